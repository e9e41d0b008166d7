//! What stands between weir and the server's socket, and could keep a SYN from it.

use std::fmt;

/// Something behind weir on a packet's way that could drop a SYN. It sees no SYN that weir answers with a cookie of
/// its own, and most of its kind let by the ACK that brings such a cookie back: beside it, weir would let in whom it
/// keeps out. Shown in words, as a part of a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SynFilter {
    /// Conntrack follows the connections of the network namespace, because rules there need it.
    Conntrack,
    /// A base chain of nftables (also of iptables-nft) that has a rule or a policy that drops.
    Chain {
        /// `inet`, `ip`, `ip6`, `bridge` or `netdev`.
        family: &'static str,
        /// Its table.
        table: String,
        /// Its name.
        chain: String,
        /// `ingress`, `prerouting`, `input`, `output` or `postrouting`.
        hook: &'static str,
    },
    /// A table of the kernel's own iptables (`iptables-legacy`) that has a rule or a policy that drops.
    Table {
        /// `iptables` or `ip6tables`.
        program: &'static str,
        /// `raw`, `mangle`, `filter`, ...
        table: String,
    },
    /// A BPF program at a hook of netfilter.
    NetfilterProgram,
    /// Virtual services of IPVS, which take a connection by its SYN. What comes without one goes to this host's sockets.
    Ipvs,
    /// An IPsec policy that wants packets protected or blocked.
    IpsecPolicy,
    /// A program of another at tc or XDP that a packet meets after weir.
    Program {
        /// The interface that it is attached to.
        device: String,
        /// Its name in the kernel.
        name: String,
    },
    /// Rules that the kernel has and weir cannot read.
    Unread {
        /// Whose: `nftables`.
        what: &'static str,
        /// The kernel's words.
        cause: String,
    },
}

impl fmt::Display for SynFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SynFilter::Conntrack => f.write_str("rules that follow connections (conntrack)"),
            SynFilter::Chain {
                family,
                table,
                chain,
                hook,
            } => write!(
                f,
                "the nftables chain {family} {table} {chain} (hook {hook})"
            ),
            SynFilter::Table { program, table } => write!(f, "the {program} table {table}"),
            SynFilter::NetfilterProgram => f.write_str("a BPF program at a netfilter hook"),
            SynFilter::Ipvs => f.write_str("virtual services of IPVS"),
            SynFilter::IpsecPolicy => f.write_str("an IPsec policy"),
            SynFilter::Program { device, name } => {
                write!(f, "the program {name} on {device}, which comes after weir")
            }
            SynFilter::Unread { what, cause } => {
                write!(f, "the rules of {what}, which weir cannot read ({cause})")
            }
        }
    }
}

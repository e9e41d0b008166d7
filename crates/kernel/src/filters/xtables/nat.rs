//! Where the kernel's own iptables translate the destination of a connection to, and what iptables-nft has in the same
//! form (include/uapi/linux/netfilter/nf_nat.h, xt_tcpudp.h).

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};

use super::{Family, IPV4, IPV6, Table, Target, is_mere_target, names, u32_at};

/// Chains within chains that are followed: more than people make.
const DEPTH: usize = 16;
const TCP: u16 = 6;
/// Of `struct xt_entry_match`: its data follow size, name and revision.
const MATCH_HEAD: usize = 32;
/// As `struct xt_entry_match`, before the data of a target.
const TARGET_HEAD: usize = 32;
/// `NF_NAT_RANGE_MAP_IPS` and `NF_NAT_RANGE_PROTO_SPECIFIED`.
const MAPS_IPS: u32 = 1;
const MAPS_PORTS: u32 = 2;
/// `XT_TCP_INV_DSTPT`.
const INVERTS_PORT: u8 = 2;
/// Of the flags of `invflags`: `IPT_INV_DSTIP` and `XT_INV_PROTO`.
const INVERTS_TO: u8 = 0x10;
const INVERTS_PROTOCOL: u8 = 0x40;

/// Where connections to an address of this host and a port are translated to by the kernel's own iptables in the calling
/// thread's network namespace. What rules ask besides (the interface, the source) is not known, so these are all the ends
/// that some connection may have. `None` among them: some end that cannot be told.
///
/// # Errors
/// There are tables, and they cannot be read.
pub fn nat_ends(to: SocketAddr) -> io::Result<BTreeSet<Option<SocketAddr>>> {
    let family = if to.is_ipv4() { &IPV4 } else { &IPV6 };
    let path = format!("/proc/thread-self/net/{}", family.names);
    if !names(&path)?.lines().any(|name| name == "nat") {
        return Ok(BTreeSet::new());
    }
    Ok(family.read("nat")?.ends(family, to))
}

/// Whether the match `tcp` of iptables fits a destination port, whatever else it asks; `None`: it cannot be told.
pub fn tcp_match(data: &[u8], port: u16) -> Option<bool> {
    // struct xt_tcp: two ports of the source, two of the destination, option, flg_mask, flg_cmp, invflags.
    let number = |at: usize| Some(u16::from_ne_bytes(data.get(at..at + 2)?.try_into().ok()?));
    let is_in = (number(4)?..=number(6)?).contains(&port);
    let is_inverted = data.get(11)? & INVERTS_PORT != 0;
    let asks_more = (number(0)?, number(2)?) != (0, u16::MAX);
    let fits = is_in != is_inverted;
    (!fits || !asks_more).then_some(fits)
}

/// Where the target DNAT or REDIRECT of iptables leads with these data; `None`: to one of several places. `is_compat`: they
/// are those of IPv4's revision 0.
pub fn nat_target(data: &[u8], is_compat: bool, to: SocketAddr) -> Option<SocketAddr> {
    // struct nf_nat_ipv4_multi_range_compat has a count before; struct nf_nat_range has addresses of 16 bytes.
    let (flags_at, ip_bytes) = if is_compat { (4, 4) } else { (0, 16) };
    let flags = u32_at(data, flags_at)?;
    if flags & !(MAPS_IPS | MAPS_PORTS) != 0 {
        return None;
    }
    let at = |index: usize| flags_at + 4 + index;
    let ips = [0, ip_bytes].map(|index| data.get(at(index)..at(index + ip_bytes)));
    let ports =
        [0, 2].map(|index| data.get(at(2 * ip_bytes + index)..at(2 * ip_bytes + index + 2)));
    let is_one = |[from, to]: [Option<&[u8]>; 2], asked: u32| flags & asked == 0 || from == to;
    if !is_one(ips, MAPS_IPS) || !is_one(ports, MAPS_PORTS) {
        return None;
    }
    let ip = match flags & MAPS_IPS {
        0 => to.ip(),
        _ => address(ips[0]?, to.is_ipv4())?,
    };
    let port = match flags & MAPS_PORTS {
        0 => to.port(),
        _ => u16::from_be_bytes(ports[0]?.try_into().ok()?),
    };
    Some(SocketAddr::new(ip, port))
}

fn address(bytes: &[u8], is_ipv4: bool) -> Option<IpAddr> {
    match is_ipv4 {
        true => Some(IpAddr::from(<[u8; 4]>::try_from(bytes.get(..4)?).ok()?)),
        false => Some(IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?)),
    }
}

/// Whether every connection has met its end.
#[derive(PartialEq, Eq)]
enum After {
    GoesOn,
    Ended,
}

impl Table {
    fn ends(&self, family: &Family, to: SocketAddr) -> BTreeSet<Option<SocketAddr>> {
        let mut ends = BTreeSet::new();
        if let Some(first) = self.prerouting {
            self.follow(family, to, first, 0, &mut ends);
        }
        ends
    }

    /// The chain that begins at this offset.
    fn follow(
        &self,
        family: &Family,
        to: SocketAddr,
        mut at: usize,
        depth: usize,
        ends: &mut BTreeSet<Option<SocketAddr>>,
    ) -> After {
        const RETURN: i32 = -1 - libc::NF_REPEAT;
        while let Some((target, next)) = self.entry(at, family).filter(|_| depth < DEPTH) {
            let fits = self.fits(family, at, to);
            let offset = self.offset(at, family);
            let (here, data) = (at, self.entries.get(offset + TARGET_HEAD..next));
            at = next;
            if fits == Some(false) {
                continue;
            }
            let (after, leaves) = match target {
                Target::Standard(RETURN) => (After::GoesOn, true),
                Target::Standard(chain @ 0..) => (
                    self.follow(family, to, chain as usize, depth + 1, ends),
                    self.goes(family, here),
                ),
                Target::Standard(_) => (After::Ended, true),
                Target::Named("DNAT" | "REDIRECT") => {
                    let revision = self.entries.get(offset + 31) == Some(&0);
                    let is_compat = to.is_ipv4() && revision;
                    ends.insert(data.and_then(|data| nat_target(data, is_compat, to)));
                    (After::Ended, true)
                }
                Target::Named("NETMAP") => {
                    ends.insert(None);
                    (After::Ended, true)
                }
                // The head of the next chain.
                Target::Named("ERROR") => return After::GoesOn,
                Target::Named(name) if is_mere_target(name) => continue,
                Target::Named(_) => (After::Ended, true),
            };
            if fits == Some(true) && (leaves || after == After::Ended) {
                return after;
            }
        }
        After::GoesOn
    }

    /// Where the target of an entry is.
    fn offset(&self, at: usize, family: &Family) -> usize {
        let bytes = self.entries.get(at + family.target_offset..);
        let bytes = bytes.and_then(|bytes| bytes.first_chunk::<2>());
        at + bytes.map_or(0, |bytes| usize::from(u16::from_ne_bytes(*bytes)))
    }

    /// Whether an entry that jumps does not come back (`-g`).
    fn goes(&self, family: &Family, at: usize) -> bool {
        let (flags_at, flag) = if family.is_ipv4() { (82, 2) } else { (131, 4) };
        self.entries
            .get(at + flags_at)
            .is_some_and(|f| f & flag != 0)
    }

    /// Whether an entry is about a connection to this address and port; `None`: it may be.
    fn fits(&self, family: &Family, at: usize, to: SocketAddr) -> Option<bool> {
        let entry = &self.entries[at..];
        let word = |at: usize| Some(u16::from_ne_bytes(*entry.get(at..)?.first_chunk()?));
        let (ip_bytes, protocol_at, inverts_at) = match family.is_ipv4() {
            true => (4, 80, 83),
            false => (16, 128, 132),
        };
        let inverts = *entry.get(inverts_at)?;
        let protocol = word(protocol_at)?;
        let is_its = protocol == 0 || (protocol == TCP) != (inverts & INVERTS_PROTOCOL != 0);
        let nth = |index: usize| entry.get(index * ip_bytes..(index + 1) * ip_bytes);
        let (from_mask, wanted, mask) = (nth(2)?, nth(1)?, nth(3)?);
        let bytes = match to.ip() {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        let masked = bytes.iter().zip(mask).map(|(byte, mask)| byte & mask);
        let is_to = masked.eq(wanted.iter().copied()) != (inverts & INVERTS_TO != 0);
        if !is_its || !is_to {
            return Some(false);
        }
        let interfaces = entry.get(4 * ip_bytes..4 * ip_bytes + 64)?;
        let asks_more = interfaces.iter().chain(from_mask).any(|byte| *byte != 0);
        let mut is_certain = !asks_more;
        for (name, data) in self.matches(family, at) {
            match (name, tcp_match(data, to.port())) {
                ("tcp", Some(true)) | ("comment", _) => {}
                ("tcp", Some(false)) => return Some(false),
                _ => is_certain = false,
            }
        }
        is_certain.then_some(true)
    }

    /// Its matches, each with its data.
    fn matches<'a>(&'a self, family: &Family, at: usize) -> Vec<(&'a str, &'a [u8])> {
        let end = self.offset(at, family);
        let mut next = at + family.head();
        let mut found = Vec::new();
        while let Some(one) = self
            .entries
            .get(next..end)
            .filter(|one| one.len() > MATCH_HEAD)
        {
            let size = usize::from(u16::from_ne_bytes([one[0], one[1]]));
            let name = one[2..MATCH_HEAD - 1].split(|byte| *byte == 0).next();
            let name = name.and_then(|name| std::str::from_utf8(name).ok());
            found.push((
                name.unwrap_or_default(),
                one.get(MATCH_HEAD..size).unwrap_or_default(),
            ));
            next += size.max(MATCH_HEAD);
        }
        found
    }
}

impl Family {
    fn is_ipv4(&self) -> bool {
        self.level == libc::SOL_IP
    }

    /// Bytes of `struct ipt_entry` or `ip6t_entry`, before its matches.
    fn head(&self) -> usize {
        if self.is_ipv4() { 112 } else { 168 }
    }
}

//! The bed: clients, proxy and origin in a row, each in a network namespace of its own.
//!
//! ```text
//!   client namespace          proxy namespace                  origin namespace
//!   10.77.0.2  [veth0] ────▶ [front] 10.77.0.1
//!              [wire]  ◀──── [wire]
//!                            [back]  10.78.0.1 ───── [veth0]  10.78.0.2
//!   CPU 0                    CPU 1 (the last)                  CPU 0
//! ```
//!
//! [`Link`] says what the links are. [`Link::Card`] is made of devices that behave like network cards:
//!
//! - Data comes to the proxy in segments of the MTU (client and origin send without TSO), GRO joins them
//!   before the proxy's stack has them, and the proxy sends to its clients with TSO.
//! - Receive work is done on CPU 0 up to GRO, as by a card that joins segments itself, under interrupt moderation:
//!   the kernel's deferral of NAPI (`napi_defer_hard_irqs`, `gro_flush_timeout`) keeps the sender from raising it,
//!   and a timer that stays on the CPU of the first poll raises it instead. Behind GRO the packets for the proxy
//!   go to its CPU (RPS), in one batch a poll. So the proxy's CPU does all TCP work of both of its connections,
//!   data, ACKs and transmission. Without the moderation each packet costs an interprocessor interrupt: on
//!   a virtual machine 6 µs for the sender, and with the proxy as the sender more than all else that it does for
//!   a small request.
//! - What the proxy sends to its clients goes over a wire of its own ([`super::wire`]): packets from a veth
//!   device with TSO do not go through NAPI (`veth_skb_is_eligible_for_gro`), so the clients' receive work would be
//!   done on the proxy's CPU, where it was a fifth of all work at 1 KB. To the origin only requests and ACKs are
//!   sent, so there the proxy's device does without TSO.
//! - The origin's link has a rate. As on real links, that and not the loss of packets limits large bodies.
//!
//! The others are plain veth pairs, as between containers. There the kernel does all work that a packet causes on the
//! proxy's CPU: what comes in for the proxy (steered there), and what the proxy sends up to the receive queue of its
//! peer (the sender's softirq does it). So each packet costs the proxy's core more than with a card,
//! and so does waking a peer that sleeps: these do when they have nothing to do.
//!
//! The congestion control is cubic, Linux's default, by route: a proxy under test cannot be made to set it.

use std::ffi::OsString;
use std::net::{Ipv4Addr, UdpSocket};
use std::process::Command;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use serde::Serialize;

use crate::bed::{Counters, Layout};
use crate::error::{Context, Error, Result};
use crate::netns::Netns;
use crate::sys::{self, Offload};

/// The proxy's address for the clients.
pub const FRONT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// The clients' address.
pub const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
/// The proxy's address for the origin.
pub(super) const BACK: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
/// The origin's address.
pub const ORIGIN: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);

/// Rate of the link to the origin, in Mbit/s: below what the contenders can forward and what the lab's CPU can
/// carry, so that large bodies come at the same rate to all of them, no reader is slower than that, and the device's
/// ring of 256 packets does not overflow between two polls.
pub const LINK_MBIT: u32 = 2500;

/// Distance of two polls of a device, when nothing else is in the way.
pub const MODERATION: Duration = Duration::from_micros(100);

/// When a device's packets are handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Receive {
    /// Every [`MODERATION`], as by a card that moderates its interrupts: for CPU time under load.
    Moderated,
    /// As they come: for delays, and for a machine that has nothing to do while its connections are idle.
    AtOnce,
}

/// The namespaces; removed on drop.
#[derive(Debug)]
pub struct Bed {
    /// Where the clients run.
    pub client: Netns,
    /// Where the contenders run.
    pub proxy: Netns,
    /// Where the origin runs.
    pub origin: Netns,
    /// Clients and origin on `client_cpu`, the contenders on `server_cpu`.
    pub layout: Layout,
}

/// What connects the proxy to its clients and to the origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Link {
    /// Cards with TSO and GRO, which take what packets cost off the proxy's CPU
    Card,
    /// veth with TSO, as between containers: packets of up to 64 KiB all the way
    Tso,
    /// veth without TSO: segments of the MTU, joined by GRO on the proxy's CPU
    Gro,
    /// veth with neither: the stack handles each segment of the MTU by itself
    Mtu,
}

impl Link {
    /// Whether the lab carries what the proxy sends to its clients ([`super::wire`]).
    pub fn has_wire(self) -> bool {
        self == Link::Card
    }

    /// Whether the link to the origin has a rate. Packets of 64 KiB are lost nowhere without one.
    fn has_rate(self) -> bool {
        self != Link::Tso
    }

    /// How many of client, origin, the proxy's `back` and its `front` send segments of the MTU.
    fn ends_without_tso(self) -> usize {
        match self {
            Link::Card => 3,
            Link::Tso => 0,
            Link::Gro | Link::Mtu => 4,
        }
    }
}

impl Bed {
    /// Builds the bed with links of this kind. `link_mbit` is the rate of the link to the origin, but for that of
    /// [`Link::Tso`], which has none. Removes what killed labs have left behind first.
    pub fn build(layout: Layout, link: Link, receive: Receive, link_mbit: u32) -> Result<Bed> {
        crate::netns::require_root()?;
        crate::netns::sweep_stale();
        let bed = Bed {
            client: Netns::create("client")?,
            proxy: Netns::create("proxy")?,
            origin: Netns::create("origin")?,
            layout,
        };
        for netns in [&bed.client, &bed.proxy, &bed.origin] {
            prepare(netns)?;
        }
        bed.connect("front", &bed.client, [FRONT, CLIENT])?;
        bed.connect("back", &bed.origin, [BACK, ORIGIN])?;
        let ends = [
            (&bed.client, "veth0"),
            (&bed.origin, "veth0"),
            (&bed.proxy, "back"),
            (&bed.proxy, "front"),
        ];
        for (netns, device) in &ends[..link.ends_without_tso()] {
            set_offload(netns, device, Offload::Tso, false)?;
        }
        if link.has_rate() {
            limit_rate(&bed.origin, "veth0", link_mbit)?;
        }
        for device in ["front", "back"] {
            bed.proxy.steer_receive_work(device, layout.server_cpu)?;
        }
        bed.join_segments(link, receive)?;
        Ok(bed)
    }

    /// Switches GRO on, and says where and when its work is done. Peers of plain veth do it at once, on the CPU that
    /// sends to them.
    fn join_segments(&self, link: Link, receive: Receive) -> Result<()> {
        let (client, proxy, origin) = (&self.client, &self.proxy, &self.origin);
        let front = (proxy, "front", client, "veth0");
        let back = (proxy, "back", origin, "veth0");
        let (devices, moderated, cpu) = match link {
            Link::Tso | Link::Mtu => return Ok(()),
            Link::Card => {
                let devices = [front, back, (origin, "veth0", proxy, "back")];
                (devices.to_vec(), 3, self.layout.client_cpu)
            }
            Link::Gro => {
                let peers = [
                    (client, "veth0", proxy, "front"),
                    (origin, "veth0", proxy, "back"),
                ];
                let devices = [&[front, back][..], &peers].concat();
                (devices, 2, self.layout.server_cpu)
            }
        };
        for (index, (netns, device, peer, other)) in devices.into_iter().enumerate() {
            set_offload(netns, device, Offload::Gro, true)?;
            if receive == Receive::Moderated && index < moderated {
                moderate(netns, device, peer, other, cpu)?;
            }
        }
        Ok(())
    }

    fn connect(&self, device: &str, peer: &Netns, [near, far]: [Ipv4Addr; 2]) -> Result<()> {
        let name = peer.name();
        self.proxy.ip_batch(&format!(
            "link add {device} mtu 1500 type veth peer name veth0 mtu 1500 netns {name}"
        ))?;
        configure(&self.proxy, device, near, far)?;
        configure(peer, "veth0", far, near)
    }

    /// What the proxy's stack has received so far.
    pub fn received(&self) -> Result<Received> {
        let counters = Counters::read(&self.proxy)?;
        let dropped = self.origin.run(|| {
            let path = "/proc/thread-self/net/dev";
            let text = std::fs::read_to_string(path).context(format!("cannot read {path}"))?;
            Ok(sent_and_dropped(&text, "veth0"))
        })?;
        Ok(Received {
            sent: counters.get("Ip.OutRequests"),
            // Tcp.InSegs counts a packet joined by GRO once; this counts the segments in it.
            segments: counters.get("IpExt.InNoECTPkts"),
            packets: counters.get("Ip.InReceives"),
            dropped,
        })
    }
}

/// What the proxy's stack has received and sent: segments, and the packets that carried them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Received {
    /// Segments as the peers sent them.
    pub segments: i64,
    /// Packets that the stack handled.
    pub packets: i64,
    /// Packets that the stack sent, before they are cut into segments.
    pub sent: i64,
    /// Packets of the origin that found the proxy's device full.
    pub dropped: i64,
}

impl Received {
    /// What came since `earlier`.
    pub fn since(&self, earlier: &Received) -> Received {
        Received {
            segments: self.segments - earlier.segments,
            packets: self.packets - earlier.packets,
            sent: self.sent - earlier.sent,
            dropped: self.dropped - earlier.dropped,
        }
    }
}

/// Settings of a namespace of a bed.
pub(super) fn prepare(netns: &Netns) -> Result<()> {
    netns.set_sysctl("net.core.somaxconn", "65535")?;
    netns.set_sysctl("net.ipv4.ip_local_port_range", "1024 65535")?;
    // Else a contender's connections would begin with what the kernel has learnt from another's.
    netns.set_sysctl("net.ipv4.tcp_no_metrics_save", "1")?;
    // Its own packets would start the polling of a device on a wrong CPU.
    netns.set_sysctl("net.ipv6.conf.default.disable_ipv6", "1")
}

/// The Ethernet address of a device with this IP address.
fn mac(address: Ipv4Addr) -> String {
    let [.., net, host] = address.octets();
    let [_, second, ..] = address.octets();
    format!("02:00:00:{second:02x}:{net:02x}:{host:02x}")
}

fn configure(netns: &Netns, device: &str, own: Ipv4Addr, peer: Ipv4Addr) -> Result<()> {
    netns.ip_batch(&format!(
        "link set {device} address {own_mac}
         addr add {own}/32 dev {device}
         link set {device} up
         route add {peer} dev {device} src {own} congctl cubic
         neigh replace {peer} lladdr {peer_mac} dev {device} nud permanent",
        own_mac = mac(own),
        peer_mac = mac(peer),
    ))
}

fn limit_rate(netns: &Netns, device: &str, mbit: u32) -> Result<()> {
    let what = format!("cannot limit the rate of {device} in {}", netns.name());
    let mut command = Command::new("tc");
    command.args(["-n", netns.name(), "qdisc", "add", "dev", device, "root"]);
    command.args(["tbf", "rate", &format!("{mbit}mbit")]);
    command.args(["burst", "131072", "limit", "100000000"]);
    let output = command.output().context(&what)?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(Error::failed(what, stderr.trim()))
}

/// Column `drop` under `Transmit` of a device in /proc/net/dev.
fn sent_and_dropped(text: &str, device: &str) -> i64 {
    let row = text
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.trim() == device);
    let column = row.and_then(|(_, columns)| columns.split_whitespace().nth(11));
    column.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Moderates the interrupts of `device`, and has its polling begin, and so stay, on one CPU by a packet that
/// is sent to it there. A broadcast, so that no answer begins the polling of another device.
fn moderate(netns: &Netns, device: &str, peer: &Netns, other: &str, cpu: usize) -> Result<()> {
    netns.run_with_sysfs(|| {
        let settings = [
            ("gro_flush_timeout", MODERATION.as_nanos().to_string()),
            ("napi_defer_hard_irqs", i32::MAX.to_string()),
        ];
        for (name, value) in settings {
            let path = format!("/sys/class/net/{device}/{name}");
            std::fs::write(&path, value).context(format!("cannot write {path}"))?;
        }
        Ok(())
    })?;
    peer.run_on(Some(cpu), || {
        let what = || format!("cannot send a broadcast on {other} in {}", peer.name());
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).context(what())?;
        setsockopt(&socket, sockopt::BindToDevice, &OsString::from(other)).context(what())?;
        socket.set_broadcast(true).context(what())?;
        socket
            .send_to(&[0], (Ipv4Addr::BROADCAST, 9))
            .context(what())?;
        Ok(())
    })
}

fn set_offload(netns: &Netns, device: &str, offload: Offload, on: bool) -> Result<()> {
    netns.run(|| {
        let word = if on { "on" } else { "off" };
        sys::set_offload(device, offload, on).context(format!(
            "cannot switch {offload:?} of {device} in {} {word}",
            netns.name()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_found_in_the_transmit_columns() {
        let text = "Inter-| Receive\n face |bytes\n    lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n veth0: 1 2 3 4 5 6 7 8 9 10 11 77 13 14 15 16\n";
        assert_eq!(sent_and_dropped(text, "veth0"), 77);
        assert_eq!(sent_and_dropped(text, "eth0"), 0);
    }
}

//! Two network namespaces joined by an emulated link, for the kernel's own TCP.
//!
//! ```text
//!   near namespace (clients)                                    far namespace (servers)
//!   10.64.0.0/10, fd64::1   [ link0 ]── up:   queue, rate, delay, loss ──▶[ link0 ]   10.128.0.0/10, fd80::1
//!                           [ link0 ]◀─ down: queue, rate, delay, loss ───[ link0 ]
//! ```
//!
//! Each `link0` is a TUN device, and one thread carries packets between the two ([`carrier`], [`engine`], [`direction`]).
//! Queue, rate, delay and loss of a direction are the [`weir_sim::link::Link`] of the simulation, so the disciplines are
//! those of `weir_sim::aqm`; only clock and packets are real ([`packet`]). All addresses of a side's range are its own, so
//! that clients and servers of any number need no setting up.
//!
//! The namespaces, their devices and all that runs in them go with [`Emulated`]. Those of a lab that was killed are
//! removed by the next one ([`crate::netns::sweep_stale`]).

pub mod capture;
pub mod carrier;
mod clock;
pub mod command;
mod direction;
mod engine;
pub mod hosts;
mod packet;
pub mod report;
mod spec;

use std::net::Ipv4Addr;

use crate::bed::{Tap, Tun};
use crate::error::Result;
use crate::netns::{self, Netns};
use carrier::Carrier;
use report::Report;
pub use spec::{Lanes, Spec};

/// The device of either side.
pub const DEVICE: &str = "link0";
/// Packets that the kernel holds for the engine while it does something else: many, since the link's own queue is where
/// packets shall be lost.
pub const DEVICE_QUEUE_PACKETS: u32 = 10_000;
/// Address bits of a side's range.
const HOST_BITS: u32 = 22;
/// The ranges of the two sides.
const NEAR: u32 = Ipv4Addr::new(10, 64, 0, 0).to_bits();
const FAR: u32 = Ipv4Addr::new(10, 128, 0, 0).to_bits();

/// The address of the near side with this number; numbers that differ in their upper 22 bits have different ones.
pub fn near(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(NEAR | number >> (u32::BITS - HOST_BITS))
}

/// The same of the far side.
pub fn far(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(FAR | number >> (u32::BITS - HOST_BITS))
}

/// Number of each side's first host: address 10.64.0.1 and 10.128.0.1.
pub const FIRST: u32 = 1 << (u32::BITS - HOST_BITS);

/// A link at work, and its two sides.
#[derive(Debug)]
pub struct Emulated {
    /// Ends first.
    carrier: Carrier,
    /// The side behind the slow link.
    pub near: Netns,
    /// The side of the servers.
    pub far: Netns,
}

impl Emulated {
    /// Makes the namespaces and begins to carry packets. Needs root and /dev/net/tun.
    ///
    /// # Errors
    /// They cannot be made; without /dev/net/tun with exit code 3.
    pub fn start(spec: Spec) -> Result<Emulated> {
        netns::require_root()?;
        for name in netns::sweep_stale() {
            eprintln!(
                "weir-lab: removed network namespace {name}, left behind by a lab that was killed"
            );
        }
        let (near_side, near_device) = side("near", NEAR, "fd64::1", spec.ecn)?;
        let (far_side, far_device) = side("far", FAR, "fd80::1", spec.ecn)?;
        Ok(Emulated {
            carrier: Carrier::start([near_device, far_device], spec)?,
            near: near_side,
            far: far_side,
        })
    }

    /// What it is.
    pub fn spec(&self) -> &Spec {
        self.carrier.spec()
    }

    /// Ends it, and gives what it has counted.
    ///
    /// # Errors
    /// The link could not go on carrying packets; the cause says why.
    pub fn stop(self) -> Result<Report> {
        self.carrier.stop()
    }
}

/// A namespace whose device leads to the other side.
fn side(role: &str, range: u32, v6: &str, ecn: bool) -> Result<(Netns, Tap)> {
    let netns = Netns::create(role)?;
    let device = Tap::create(&netns, DEVICE, Tun::Packets)?;
    let address = Ipv4Addr::from_bits(range | 1);
    let range = Ipv4Addr::from_bits(range);
    // No address of the device's own and none of its link: it sends nothing by itself.
    netns.ip_batch(&format!(
        "link set {DEVICE} addrgenmode none
         link set {DEVICE} txqueuelen {DEVICE_QUEUE_PACKETS}
         addr add {address}/32 dev lo
         addr add {v6}/128 dev lo nodad
         link set {DEVICE} up
         route add local {range}/10 dev lo
         route add default dev {DEVICE} src {address}
         -6 route add default dev {DEVICE} src {v6}"
    ))?;
    // What one connection has learnt of the link shall not decide how the next one begins.
    netns.set_sysctl("net.ipv4.tcp_no_metrics_save", "1")?;
    netns.set_sysctl("net.ipv4.tcp_ecn", if ecn { "1" } else { "2" })?;
    Ok((netns, device))
}

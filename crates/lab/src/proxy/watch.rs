//! Watches the proxy's devices as tcpdump does: which packets with data came and went, and when.
//!
//! A packet that comes is stamped behind GRO, before it is handed to the proxy's CPU; one that goes, when it is handed
//! to its device.

use std::time::Duration;

use nix::libc;
use nix::net::if_::if_nametoindex;
use nix::sys::socket::LinkAddr;

use super::wire;
use crate::error::{Context, Result};
use crate::netns::Netns;
use crate::tap::Tap;

/// Room for the packets of many bodies that wait to be read.
const QUEUE_BYTES: usize = 256 << 20;

/// Where a packet was seen, and on which way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// From a client.
    ClientIn,
    /// To a client.
    ClientOut,
    /// From the origin.
    OriginIn,
    /// To the origin.
    OriginOut,
}

/// A packet with data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// Where.
    pub point: Point,
    /// When, since the epoch.
    pub at: Duration,
}

/// A watch over all devices of the proxy's namespace.
#[derive(Debug)]
pub struct Watch {
    tap: Tap,
    /// To the clients, with the wire and without.
    client_devices: [Option<u32>; 2],
    origin_device: u32,
}

impl Watch {
    /// Watches from now on.
    pub fn open(proxy: &Netns) -> Result<Watch> {
        proxy.run(|| {
            let what = "cannot watch the proxy's devices";
            Ok(Watch {
                tap: Tap::open(QUEUE_BYTES)?,
                client_devices: ["front", wire::DEVICE].map(|name| if_nametoindex(name).ok()),
                origin_device: if_nametoindex("back").context(what)?,
            })
        })
    }

    /// Takes what has been seen since the last call, without waiting.
    pub fn take(&self, packets: &mut Vec<Packet>) -> Result<()> {
        self.tap.take(|headers, address, at| {
            if let (Some(point), true) = (self.point(address), has_data(headers)) {
                packets.push(Packet { point, at });
            }
        })
    }

    fn point(&self, address: &LinkAddr) -> Option<Point> {
        let device = address.ifindex() as u32;
        let goes = address.pkttype() == libc::PACKET_OUTGOING;
        if device == self.origin_device {
            return Some(if goes {
                Point::OriginOut
            } else {
                Point::OriginIn
            });
        }
        let clients = self.client_devices.contains(&Some(device));
        clients.then_some(if goes {
            Point::ClientOut
        } else {
            Point::ClientIn
        })
    }
}

/// Whether an IPv4 packet is one of TCP with data.
fn has_data(packet: &[u8]) -> bool {
    let &[first, _, high, low, ..] = packet else {
        return false;
    };
    let header = usize::from(first & 0x0f) * 4;
    let (Some(&protocol), Some(&offset)) = (packet.get(9), packet.get(header + 12)) else {
        return false;
    };
    let total = usize::from(u16::from_be_bytes([high, low]));
    let headers = header + usize::from(offset >> 4) * 4;
    first >> 4 == 4 && protocol == libc::IPPROTO_TCP as u8 && total > headers
}

#[cfg(test)]
mod tests {
    use super::*;

    /// IPv4 and TCP with this many bytes of options and data.
    fn packet(options: u8, data: u16) -> Vec<u8> {
        let tcp = 20 + options;
        let mut packet = vec![0; 20 + usize::from(tcp)];
        packet[0] = 0x45;
        packet[2..4].copy_from_slice(&(20 + u16::from(tcp) + data).to_be_bytes());
        packet[9] = 6;
        packet[20 + 12] = (tcp / 4) << 4;
        packet
    }

    #[test]
    fn acknowledgments_have_no_data() {
        assert!(!has_data(&packet(12, 0)));
        assert!(has_data(&packet(12, 1)));
        assert!(has_data(&packet(0, 64_000)));
    }

    #[test]
    fn what_is_not_tcp_over_ipv4_has_none() {
        let mut udp = packet(0, 10);
        udp[9] = 17;
        assert!(!has_data(&udp));
        let mut newer = packet(0, 10);
        newer[0] = 0x65;
        assert!(!has_data(&newer));
        assert!(!has_data(&packet(0, 10)[..30]));
        assert!(!has_data(&[]));
    }
}

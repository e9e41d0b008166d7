//! Watches the clients' device as tcpdump does: what went to the server's port and what came from it, and when.

use std::time::Duration;

use nix::libc;

use super::PORT;
use crate::error::Result;
use crate::netns::Netns;
use crate::tap::Tap;

/// Room for the packets of an attempt.
const QUEUE_BYTES: usize = 16 << 20;

/// What a packet is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// Of UDP, and with it of QUIC.
    Datagram,
    /// Opens a TCP connection.
    Syn,
    /// Another one of TCP.
    Segment,
}

/// A packet of the server's port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// When, since the epoch.
    pub at: Duration,
    /// It goes to the server.
    pub goes: bool,
    /// What it is.
    pub what: What,
}

/// A watch over the devices of a namespace, IPv4 only.
#[derive(Debug)]
pub struct Watch(Tap);

impl Watch {
    /// Watches from now on.
    pub fn open(clients: &Netns) -> Result<Watch> {
        clients.run(|| Tap::open(QUEUE_BYTES).map(Watch))
    }

    /// What has been seen since the last call, without waiting.
    pub fn take(&self) -> Result<Vec<Packet>> {
        let mut packets = Vec::new();
        self.0.take(|headers, _, at| {
            let packet = read(headers).map(|(goes, what)| Packet { at, goes, what });
            packets.extend(packet);
        })?;
        Ok(packets)
    }
}

/// Which way a packet of the server's port goes, and what it is. `None`: another one.
fn read(packet: &[u8]) -> Option<(bool, What)> {
    const SYN: u8 = 2;
    const ACK: u8 = 16;
    if packet.first() != Some(&0x45) {
        return None;
    }
    let port = |at: usize| Some(u16::from_be_bytes([*packet.get(at)?, *packet.get(at + 1)?]));
    let (from, to) = (port(20)?, port(22)?);
    if from != PORT && to != PORT {
        return None;
    }
    let what = match i32::from(packet[9]) {
        libc::IPPROTO_UDP => What::Datagram,
        libc::IPPROTO_TCP if packet.get(33)? & (SYN | ACK) == SYN => What::Syn,
        libc::IPPROTO_TCP => What::Segment,
        _ => return None,
    };
    Some((to == PORT, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(protocol: u8, from: u16, to: u16, flags: u8) -> [u8; 40] {
        let mut packet = [0; 40];
        (packet[0], packet[9], packet[33]) = (0x45, protocol, flags);
        packet[20..22].copy_from_slice(&from.to_be_bytes());
        packet[22..24].copy_from_slice(&to.to_be_bytes());
        packet
    }

    #[test]
    fn packets_of_the_server_s_port_are_seen_on_their_way() {
        assert_eq!(read(&packet(17, 9, PORT, 0)), Some((true, What::Datagram)));
        assert_eq!(read(&packet(17, PORT, 9, 0)), Some((false, What::Datagram)));
        assert_eq!(read(&packet(6, 9, PORT, 2)), Some((true, What::Syn)));
        assert_eq!(read(&packet(6, PORT, 9, 18)), Some((false, What::Segment)));
        assert_eq!(read(&packet(17, 9, 53, 0)), None);
        assert_eq!(read(&packet(1, 9, PORT, 0)), None);
        assert_eq!(read(&[0x45; 5]), None);
    }
}

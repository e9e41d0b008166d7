//! Fixed arrivals through a qdisc: packets from one device to another through the kernel's forwarding.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use crate::bed::{Tap, Tun};
use crate::error::{Context, Result};
use crate::experiments::judges::arrivals::{Arrival, FULL_BYTES};
use crate::experiments::judges::model::Departures;
use crate::netns::Netns;

/// The device before which packets wait.
const OUT: &str = "out";
const IN: &str = "in";
/// After so long without a packet none waits any more.
const QUIET: Duration = Duration::from_secs(2);
/// IPv4 and TCP without options.
const IP_BYTES: usize = 20;
const TCP: u8 = 6;

/// Sends the packets at their times through the device that `limit` has put a qdisc on.
pub fn departures(
    arrivals: &[Arrival],
    limit: impl FnOnce(&Netns, &str) -> Result<()>,
) -> Result<Departures> {
    let router = Netns::create("judge")?;
    let (source, sink) = (
        Tap::create(&router, IN, Tun::Packets)?,
        Tap::create(&router, OUT, Tun::Packets)?,
    );
    // Packets are as long as the arrivals say, and no link header is added.
    router.ip_batch(&format!(
        "link set {IN} mtu {mtu} up
         link set {OUT} mtu {mtu} up
         addr add 10.1.0.1/16 dev {IN}
         addr add 10.2.0.1/32 dev {OUT}
         route add 10.2.0.0/16 dev {OUT}",
        mtu = FULL_BYTES
    ))?;
    router.set_sysctl("net/ipv4/ip_forward", "1")?;
    limit(&router, OUT)?;
    Replay {
        source,
        sink,
        began: Instant::now() + Duration::from_millis(100),
        departures: vec![None; arrivals.len()],
    }
    .run(arrivals)
}

struct Replay {
    source: Tap,
    sink: Tap,
    began: Instant,
    departures: Departures,
}

impl Replay {
    fn run(mut self, arrivals: &[Arrival]) -> Result<Departures> {
        let mut buffer = [0; 2048];
        for (number, arrival) in (0..).zip(arrivals) {
            self.receive_until(self.began + Duration::from_nanos(arrival.at_ns))?;
            let packet = packet(number, arrival, &mut buffer);
            self.source.send(packet).context("cannot send a packet")?;
        }
        loop {
            let before = Instant::now();
            if self.receive_until(before + QUIET)? == 0 {
                return Ok(self.departures);
            }
        }
    }

    /// Takes what leaves until then; how many.
    fn receive_until(&mut self, end: Instant) -> Result<usize> {
        let mut buffer = [0; 2048];
        let mut count = 0;
        loop {
            while let Some(packet) = self.sink.receive(&mut buffer).context("cannot receive")? {
                count += 1;
                let number = packet.get(IP_BYTES + 4..IP_BYTES + 8);
                let number =
                    number.and_then(|bytes| Some(u32::from_be_bytes(bytes.try_into().ok()?)));
                let place = number.and_then(|number| self.departures.get_mut(number as usize));
                if let Some(place) = place {
                    let at = Instant::now().saturating_duration_since(self.began);
                    *place = Some(at.as_nanos() as u64);
                }
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(count);
            }
            let mut fds = [PollFd::new(self.sink.as_fd(), PollFlags::POLLIN)];
            match ppoll(&mut fds, Some(TimeSpec::from_duration(left)), None) {
                Ok(_) | Err(Errno::EINTR) => crate::interrupt::check()?,
                Err(error) => return Err(error).context("cannot wait for a packet"),
            }
        }
    }
}

/// A TCP segment with its number as sequence number.
pub fn packet<'a>(number: u32, arrival: &Arrival, buffer: &'a mut [u8]) -> &'a [u8] {
    let bytes = arrival.bytes as usize;
    let packet = &mut buffer[..bytes];
    packet.fill(0);
    let flow = arrival.flow;
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&(bytes as u16).to_be_bytes());
    (packet[8], packet[9]) = (64, TCP);
    packet[12..16].copy_from_slice(&[10, 1, 1, 1]);
    // A client in 10.2.1.0/24 and up, and a port of it.
    let client = 0x0a02_0100 + flow / 60_000;
    packet[16..20].copy_from_slice(&client.to_be_bytes());
    let sum = checksum(&packet[..IP_BYTES]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    let tcp = &mut packet[IP_BYTES..];
    tcp[..2].copy_from_slice(&80u16.to_be_bytes());
    tcp[2..4].copy_from_slice(&(1024 + (flow % 60_000) as u16).to_be_bytes());
    tcp[4..8].copy_from_slice(&number.to_be_bytes());
    // Without payload it is all header.
    let header = match bytes == FULL_BYTES as usize {
        true => 20,
        false => tcp.len().min(60) / 4 * 4,
    };
    tcp[12] = (header as u8 / 4) << 4;
    tcp[13] = arrival.flags;
    &buffer[..bytes]
}

/// Of an IPv4 header (RFC 1071).
fn checksum(header: &[u8]) -> u16 {
    let words = header
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_what_its_arrival_says() {
        let arrival = Arrival {
            at_ns: 0,
            flow: 60_007,
            flow_hash: 1,
            bytes: 60,
            flags: 0x12,
        };
        let mut buffer = [0; 2048];
        let packet = packet(513, &arrival, &mut buffer);
        assert_eq!(packet.len(), 60);
        assert_eq!(checksum(&packet[..IP_BYTES]), 0);
        let (ip, tcp) = (&packet[..IP_BYTES], &packet[IP_BYTES..]);
        assert_eq!(ip[16..], [10, 2, 1, 1]);
        assert_eq!(tcp[2..4], 1031u16.to_be_bytes());
        assert_eq!(tcp[4..8], 513u32.to_be_bytes());
        // All of it is header: a control segment.
        assert_eq!((tcp[12] >> 4, tcp[13]), (10, 0x12));
    }
}

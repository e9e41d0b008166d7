//! A SYN flood beside the crowd: SYNs at a constant rate, each from another address that never answers.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use weir_testbed::wait::Stops;

use crate::bed::{Layout, SERVER_MAC, Tap, Tun};
use crate::client::packet::{Endpoint, MAX_FRAME_BYTES, Segment, compose, flag};
use crate::cpu;
use crate::error::{Context, Result};
use crate::netns::Netns;
use crate::run::results::Sample;

const DEVICE: &str = "flood0";
/// SYNs are sent in turns this far apart, so that the crowd's generator has the CPU between them.
const TURN: Duration = Duration::from_millis(1);
/// Behind 172.16.0.0.
const ADDRESSES: u32 = 1 << 20;

/// Share of the flood that was not sent above which a case does not count.
const MAX_UNSENT_SHARE: f64 = 0.05;

/// A device of its own, so that what the server answers is in no one's way.
#[derive(Debug)]
pub struct Flood {
    wire: Tap,
    target: Endpoint,
    per_s: f64,
    cpu: usize,
}

impl Flood {
    /// Lays the device in the server's namespace. Nothing is sent yet.
    pub fn lay(
        server: &Netns,
        layout: Layout,
        (address, port): (Ipv4Addr, u16),
        per_s: f64,
    ) -> Result<Flood> {
        let wire = Tap::create(server, DEVICE, Tun::Frames)?;
        let mac = SERVER_MAC.map(|byte| format!("{byte:02x}")).join(":");
        server.ip_batch(&format!(
            "link set {DEVICE} address {mac} txqueuelen 10000
             addr add 10.66.2.1/24 dev {DEVICE}
             link set {DEVICE} up
             neigh replace 10.66.2.2 lladdr 02:00:00:00:66:03 dev {DEVICE} nud permanent
             route add 172.16.0.0/12 via 10.66.2.2 dev {DEVICE}"
        ))?;
        server.steer_receive_work(DEVICE, layout.server_cpu)?;
        Ok(Flood {
            wire,
            target: Endpoint {
                ip: address.into(),
                port,
            },
            per_s,
            cpu: layout.client_cpu,
        })
    }

    /// SYNs/s.
    pub fn per_s(&self) -> f64 {
        self.per_s
    }

    /// Sends until told to stop, and throws away what the server answers. Returns how many.
    pub fn run(&self, stop: &AtomicBool) -> Result<u64> {
        cpu::pin_this_thread(self.cpu)?;
        let begun = Instant::now();
        let mut sent = 0;
        let mut buffer = [0; 2048];
        while !stop.load(Ordering::Relaxed) {
            let due = (begun.elapsed().as_secs_f64() * self.per_s) as u64;
            while sent < due {
                self.syn(sent)?;
                sent += 1;
            }
            while let Some(_answer) = self.wire.receive(&mut buffer).context("flood0")? {}
            std::thread::sleep(TURN);
        }
        Ok(sent)
    }

    fn syn(&self, number: u64) -> Result<()> {
        let (from, seq) = source(number);
        let segment = Segment {
            flags: flag::SYN,
            seq,
            ack: 0,
            timestamps: Some((1, 0)),
            window_closed: false,
            payload: b"",
        };
        let mut frame = [0; MAX_FRAME_BYTES];
        let length = compose(from, self.target, &segment, &mut frame);
        match self.wire.send(&frame[..length]) {
            // One SYN less, as on a link that is full.
            Ok(()) | Err(Errno::EAGAIN | Errno::ENOBUFS) => Ok(()),
            error => error.context("cannot write to the flood's device"),
        }
    }
}

/// Does the work with a flood beside it. Its result, and the share of the flood that was not sent.
pub fn beside<T>(flood: Option<&Flood>, work: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
    let Some(flood) = flood else {
        return Ok((work()?, 0.0));
    };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let flooding = scope.spawn(|| flood.run(&stop));
        let stops = Stops(&stop);
        let begun = Instant::now();
        let done = work();
        let due = begun.elapsed().as_secs_f64() * flood.per_s();
        drop(stops);
        let sent = match flooding.join() {
            Ok(sent) => sent?,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        Ok((done?, 1.0 - (sent as f64 / due.max(1.0)).min(1.0)))
    })
}

/// Says so if too little of the flood was sent.
pub fn note_unsent(sample: &mut Sample, unsent: f64) {
    if unsent > MAX_UNSENT_SHARE && sample.flaw.is_none() {
        let percent = unsent * 100.0;
        sample.flaw = Some(format!("{percent:.0} % of the flood was not sent"));
    }
}

/// From whom a SYN comes, and its sequence number.
fn source(number: u64) -> (Endpoint, u32) {
    let address = 0xac10_0000 + (number % u64::from(ADDRESSES)) as u32;
    let port = 1024 + (number / u64::from(ADDRESSES) % 60_000) as u16;
    let ip = Ipv4Addr::from_bits(address).into();
    (
        Endpoint { ip, port },
        (number as u32).wrapping_mul(2_654_435_761),
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_syn_comes_from_another_address_of_its_network() {
        let network: ipnet::Ipv4Net = "172.16.0.0/12".parse().unwrap();
        let count = 5000;
        let sources: BTreeSet<_> = (0..count).map(|number| source(number).0.ip).collect();
        assert_eq!(sources.len() as u64, count);
        for number in [0, u64::from(ADDRESSES) - 1, u64::from(ADDRESSES)] {
            let std::net::IpAddr::V4(address) = source(number).0.ip else {
                panic!()
            };
            assert!(network.contains(&address));
        }
        assert_ne!(source(0).0, source(u64::from(ADDRESSES)).0, "another port");
    }
}

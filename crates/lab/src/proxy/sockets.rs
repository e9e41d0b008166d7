//! Kernel memory of sockets.

use std::process::Command;

use serde::Serialize;

use crate::error::{Context, Error, Result};
use crate::netns::Netns;

const PAGE_BYTES: u64 = 4096;

/// What the kernel holds for TCP.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct SocketMemory {
    /// All queues of all TCP sockets of the machine, clients and origin included, in bytes
    /// (`mem` in /proc/net/sockstat; whole pages, which sockets also keep for later).
    pub machine_bytes: u64,
    /// Receive queues of the proxy's sockets, in bytes of the kernel's accounting, overhead included.
    pub received_bytes: u64,
    /// Send queues of the proxy's sockets, likewise.
    pub to_send_bytes: u64,
}

impl SocketMemory {
    /// Reads it; `proxy` is the namespace of the proxy, and of nobody else.
    pub fn read(proxy: &Netns) -> Result<SocketMemory> {
        let path = "/proc/net/sockstat";
        let text = std::fs::read_to_string(path).context(format!("cannot read {path}"))?;
        let mut command = Command::new("ss");
        command.args(["--net", proxy.name(), "-Htnm", "state", "connected"]);
        let what = format!("cannot list the sockets in {}", proxy.name());
        let output = command.output().context(&what)?;
        if !output.status.success() {
            return Err(Error::failed(what, String::from_utf8_lossy(&output.stderr)));
        }
        let (received_bytes, to_send_bytes) = queues(&String::from_utf8_lossy(&output.stdout));
        Ok(SocketMemory {
            machine_bytes: machine_pages(&text) * PAGE_BYTES,
            received_bytes,
            to_send_bytes,
        })
    }

    /// What the proxy's sockets have queued, in bytes.
    pub fn proxy_bytes(&self) -> u64 {
        self.received_bytes + self.to_send_bytes
    }

    /// The larger of each.
    pub fn max(&self, other: &SocketMemory) -> SocketMemory {
        SocketMemory {
            machine_bytes: self.machine_bytes.max(other.machine_bytes),
            received_bytes: self.received_bytes.max(other.received_bytes),
            to_send_bytes: self.to_send_bytes.max(other.to_send_bytes),
        }
    }
}

/// `mem` of the line `TCP: inuse 5 orphan 0 tw 0 alloc 7 mem 2`.
fn machine_pages(sockstat: &str) -> u64 {
    let row = sockstat.lines().find_map(|line| line.strip_prefix("TCP:"));
    let mut words = row.unwrap_or_default().split_whitespace();
    words.find(|word| *word == "mem");
    words
        .next()
        .and_then(|pages| pages.parse().ok())
        .unwrap_or(0)
}

/// Sums of `r` (receive queue) and `w` (send queue) of `skmem:(r0,rb131072,t0,tb87040,f0,w0,o0,bl0,d0)`.
fn queues(listing: &str) -> (u64, u64) {
    let places = listing.split("skmem:(").skip(1);
    let fields = places.flat_map(|place| place.split(')').next().unwrap_or_default().split(','));
    let mut sums = (0, 0);
    for field in fields {
        let digits = field.trim_start_matches(|letter: char| letter.is_ascii_alphabetic());
        let value: u64 = digits.parse().unwrap_or(0);
        match &field[..field.len() - digits.len()] {
            "r" => sums.0 += value,
            "w" => sums.1 += value,
            _ => {}
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_found_in_sockstat() {
        let text =
            "sockets: used 9\nTCP: inuse 5 orphan 0 tw 0 alloc 7 mem 21\nUDP: inuse 0 mem 9\n";
        assert_eq!(machine_pages(text), 21);
    }

    #[test]
    fn queues_of_all_sockets_are_summed() {
        let listing = "0 0 10.0.0.1:80 10.0.0.2:9 skmem:(r5,rb9,t1,tb9,f7,w30,o0,bl0,d3)\n\
                       0 0 10.0.0.1:80 10.0.0.3:9\n\t skmem:(r7,rb9,t1,tb9,f7,w2,o0,bl0,d3) cubic\n";
        assert_eq!(queues(listing), (12, 32));
    }
}

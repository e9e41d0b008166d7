//! Writes a capture of made-up TCP connections with losses to standard output, as pcap with a snap length of 96 bytes.
//! What was lost goes to standard error: what `weir trace` is to find.
//!
//!     cargo run --release -p weir-trace --example lossy_capture -- PACKETS SEED > lossy.pcap
//!
//! 2 % of the data segments and 10 % of the SYNs and SYN/ACKs of the server are lost behind the place of the capture, so
//! that both transmissions are in it. A SYN is sent again after 1, 3, 7 … s, data after 300 ms.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, BufWriter, Write};
use std::net::Ipv4Addr;

use weir_wire::{Endpoint, Segment, Writer, compose, flag};

const MS: u64 = 1_000_000;
const START_NS: u64 = 1_700_000_000_000 * MS;
const LOSS: f64 = 0.02;
const SYN_LOSS: f64 = 0.1;
const RTT_NS: u64 = 40 * MS;
const RTO_NS: u64 = 300 * MS;
/// Mean time between two connections. With 20 packets a connection, 10 million packets last 8 minutes.
const ARRIVAL_NS: f64 = 1e6;
const MSS: u32 = 1448;
const SNAP_LEN: u32 = 96;

/// What was sent, to servers and to clients.
#[derive(Debug, Default)]
pub struct Truth {
    /// Packets.
    pub packets: [u64; 2],
    /// Retransmissions.
    pub rtx: [u64; 2],
    /// Of SYNs and SYN/ACKs.
    pub syn_rtx: [u64; 2],
    /// Sum of their delays, ns.
    pub delay_ns: [u64; 2],
}

/// A packet to come: time, a number that keeps packets of one time in order, sender (0: client), segment.
type Due = (u64, u64, usize, [u32; 4], u32);

struct Script<'a> {
    at: u64,
    number: u32,
    random: &'a mut fastrand::Rng,
    truth: &'a mut Truth,
    due: &'a mut BinaryHeap<Reverse<Due>>,
    serial: &'a mut u64,
}

impl Script<'_> {
    /// A packet by one end.
    fn send(&mut self, at: u64, from: usize, flags: u8, seq: u32, ack: u32, payload: u32) {
        *self.serial += 1;
        self.truth.packets[from] += 1;
        let words = [flags.into(), seq, ack, payload];
        self.due
            .push(Reverse((at, *self.serial, from, words, self.number)));
    }

    fn is_lost(&mut self, probability: f64) -> bool {
        self.random.f64() < probability
    }

    /// A SYN or SYN/ACK until it arrives; when it does.
    fn handshake(&mut self, from: usize, flags: u8, seq: u32, ack: u32) {
        let (first, mut wait) = (self.at, 1000 * MS);
        self.send(self.at, from, flags, seq, ack, 0);
        while self.is_lost(SYN_LOSS) && wait <= 16_000 * MS {
            self.at += wait;
            wait *= 2;
            self.send(self.at, from, flags, seq, ack, 0);
            self.truth.rtx[from] += 1;
            self.truth.syn_rtx[from] += 1;
            self.truth.delay_ns[from] += self.at - first;
        }
        self.at += RTT_NS / 2;
    }

    /// Data, one segment every 100 µs.
    fn data(&mut self, from: usize, seq: u32, ack: u32, bytes: u32) {
        let mut last = self.at;
        for (i, offset) in (0..bytes).step_by(MSS as usize).enumerate() {
            let (at, len) = (self.at + i as u64 * MS / 10, MSS.min(bytes - offset));
            self.send(at, from, flag::ACK, seq + offset, ack, len);
            last = last.max(at);
            if self.is_lost(LOSS) {
                self.send(at + RTO_NS, from, flag::ACK, seq + offset, ack, len);
                self.truth.rtx[from] += 1;
                self.truth.delay_ns[from] += RTO_NS;
                last = last.max(at + RTO_NS);
            }
            if i % 2 == 1 {
                self.send(at + RTT_NS / 2, 1 - from, flag::ACK, ack, seq + offset, 0);
            }
        }
        self.at = last + RTT_NS / 2;
    }

    fn run(mut self) {
        let (client, server) = (self.random.u32(..1 << 31), self.random.u32(..1 << 31));
        self.handshake(0, flag::SYN, client, 0);
        self.handshake(1, flag::SYN | flag::ACK, server, client + 1);
        self.send(self.at, 0, flag::ACK, client + 1, server + 1, 0);
        self.data(0, client + 1, server + 1, 300);
        let bytes = self.random.u32(1..20) * self.random.u32(100..2000);
        self.data(1, server + 1, client + 301, bytes);
        let (client_end, server_end) = (client + 301, server + 1 + bytes);
        let fin = flag::FIN | flag::ACK;
        self.send(self.at, 1, fin, server_end, client_end, 0);
        self.send(self.at + RTT_NS / 2, 0, fin, client_end, server_end + 1, 0);
        self.send(
            self.at + RTT_NS,
            1,
            flag::ACK,
            server_end + 1,
            client_end + 1,
            0,
        );
    }
}

/// The frame without its data, and its length with them.
fn frame(from: usize, [flags, seq, ack, payload]: [u32; 4], number: u32) -> (Vec<u8>, u32) {
    let client = Endpoint {
        address: Ipv4Addr::from(0x0a00_0000 + number / 50_000).to_ipv6_mapped(),
        port: 10_000 + (number % 50_000) as u16,
    };
    let server = Endpoint {
        address: Ipv4Addr::new(192, 0, 2, 1).to_ipv6_mapped(),
        port: 80,
    };
    let (source, destination) = if from == 0 {
        (client, server)
    } else {
        (server, client)
    };
    let mut bytes = compose(&Segment {
        source,
        destination,
        seq,
        ack,
        flags: flags as u8,
        window: u16::MAX,
        payload: 0,
    });
    let total_len = 40 + payload as u16;
    bytes[16..18].copy_from_slice(&total_len.to_be_bytes());
    (bytes, 54 + payload)
}

/// Writes a capture of at least so many packets; the connections in it, and what was sent again.
pub fn write(packets: u64, seed: u64, out: impl Write) -> io::Result<(u32, Truth)> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut writer = Writer::new(out, SNAP_LEN)?;
    let mut due = BinaryHeap::<Reverse<Due>>::new();
    let (mut truth, mut serial) = (Truth::default(), 0);
    let (mut arrival, mut number) = (START_NS, 0);
    loop {
        // Connections begin as long as there are too few packets, each before the packets that follow it.
        while serial < packets && due.peek().is_none_or(|Reverse((at, ..))| *at >= arrival) {
            let script = Script {
                at: arrival,
                number,
                random: &mut random,
                truth: &mut truth,
                due: &mut due,
                serial: &mut serial,
            };
            script.run();
            number += 1;
            arrival += (-ARRIVAL_NS * (1.0 - random.f64()).ln()) as u64;
        }
        let Some(Reverse((at, _, from, words, number))) = due.pop() else {
            break;
        };
        let (bytes, wire_len) = frame(from, words, number);
        writer.part(at, &bytes, wire_len)?;
    }
    writer.into_inner().flush()?;
    Ok((number, truth))
}

fn main() -> io::Result<()> {
    let mut arguments = std::env::args()
        .skip(1)
        .map(|argument| argument.parse::<u64>());
    let (Some(Ok(packets)), Some(Ok(seed))) = (arguments.next(), arguments.next()) else {
        return Err(io::Error::other("usage: lossy_capture PACKETS SEED"));
    };
    let out = BufWriter::with_capacity(1 << 20, io::stdout().lock());
    let (connections, truth) = write(packets, seed, out)?;
    eprintln!("{connections} connections, {truth:?}");
    Ok(())
}

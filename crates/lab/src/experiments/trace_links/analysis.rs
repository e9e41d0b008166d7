//! What `weir trace` says of a capture, counted in the four ways of BHD18's Section III.

use std::io::Cursor;
use std::net::Ipv4Addr;
use std::sync::Arc;

use weir_trace::{Figures, Merge, Options, Report, Source, Tracker};
use weir_wire::{Capture, Endpoint, Segment, Writer, compose, flag};

use super::Direction;
use crate::error::{Context, Error, Result};
use crate::run::results::Sample;

/// How the connections of a capture are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Counted {
    /// All
    All,
    /// Those with a whole handshake and data (Figure 2)
    Established,
    /// All, and a SYN flood among them that is not left out (Table I)
    Flood,
    /// All, and the same SYN flood, with the paper's filter against it (Table II)
    Filtered,
}

impl Counted {
    /// Whether the capture has a flood in it.
    pub fn has_flood(self) -> bool {
        matches!(self, Counted::Flood | Counted::Filtered)
    }

    fn options(self) -> Options {
        Options {
            established_only: self == Counted::Established,
            flood_filter: self == Counted::Filtered,
            ..Options::default()
        }
    }
}

/// A pcap file in memory, and its name.
#[derive(Debug, Clone)]
pub struct Pcap {
    /// As its file is called.
    pub name: String,
    /// The file.
    pub bytes: Arc<[u8]>,
}

/// The figures of captures put together, as `weir trace` makes them.
///
/// # Errors
/// A capture cannot be read to its end.
pub fn report<'a>(captures: impl Iterator<Item = &'a Pcap>, counted: Counted) -> Result<Report> {
    let source = |pcap: &Pcap| {
        let capture = Capture::new(Cursor::new(Arc::clone(&pcap.bytes)));
        Ok(Source {
            name: pcap.name.clone(),
            capture: capture.context(format!("cannot read {}", pcap.name))?,
        })
    };
    let mut packets = Merge::new(captures.map(source).collect::<Result<_>>()?);
    let mut tracker = Tracker::new(counted.options());
    for packet in packets.by_ref() {
        tracker.packet(&packet);
    }
    match packets.broken().first() {
        None => Ok(tracker.report()),
        Some(broken) => Err(Error::failed(
            format!("cannot read {}", broken.name),
            &broken.error,
        )),
    }
}

/// Where the flood goes: to an address of documentation (RFC 5737), which nobody has.
const FLOODED: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// From where: the addresses from this one on, a SYN from each.
const FLOODING: u32 = Ipv4Addr::new(172, 16, 0, 0).to_bits();
const PORT: u16 = 80;
/// Linux's window in a SYN.
const WINDOW: u16 = 64_240;

/// A capture of a SYN flood: so many SYNs to one host that does not answer, each from another address and none sent again,
/// at equal distances from a time to another, ns since 1970.
///
/// # Errors
/// None that memory does not have.
pub fn flood(syns: u32, from_ns: u64, to_ns: u64) -> Result<Pcap> {
    let what = "cannot write the flood's capture";
    let mut writer = Writer::new(Vec::new(), u32::from(u16::MAX)).context(what)?;
    let end = |address: Ipv4Addr, port| Endpoint {
        address: address.to_ipv6_mapped(),
        port,
    };
    for number in 0..syns {
        let syn = Segment {
            source: end(Ipv4Addr::from_bits(FLOODING + number), 1024),
            destination: end(FLOODED, PORT),
            seq: number.wrapping_mul(2_654_435_761),
            ack: 0,
            flags: flag::SYN,
            window: WINDOW,
            payload: 0,
        };
        let behind = u64::from(number) * (to_ns - from_ns) / u64::from(syns);
        let written = writer.frame(from_ns + behind, &compose(&syn));
        written.context(what)?;
    }
    Ok(Pcap {
        name: "flood".into(),
        bytes: writer.into_inner().into(),
    })
}

/// The figures of one direction. What there is nothing to divide by for is left out.
pub fn sample(report: &Report, direction: Direction) -> Sample {
    let figures = of(report, direction);
    let mut sample = Sample::of([
        ("packets", figures.packets as f64),
        ("connections", figures.connections as f64),
        ("syns_again", figures.syn_retransmissions as f64),
        ("flood_hosts", figures.filtered_syn_flood_hosts as f64),
        (
            "flood_connections",
            figures.filtered_syn_flood_connections as f64,
        ),
    ]);
    let over = |one: Option<f64>, other: Option<f64>| Some(one? / other.filter(|n| *n > 0.0)?);
    let (with, without) = (
        figures.mean_rtx_delay_with_syn_loss_ms,
        figures.mean_rtx_delay_without_syn_loss_ms,
    );
    let (packets, syns) = (figures.packet_rtx_probability, figures.syn_rtx_probability);
    let known = [
        ("packet_rtx", packets),
        ("segment_rtx", figures.segment_rtx_probability),
        ("syn_rtx", syns),
        ("syn_over_packet", over(syns, packets)),
        ("syn_share_of_rtx", figures.syn_share_of_rtx),
        ("rtx_delay_ms", figures.mean_rtx_delay_ms),
        ("delay_with_syn_loss_ms", with),
        ("delay_without_syn_loss_ms", without),
        ("with_over_without", over(with, without)),
        (
            "syn_loss_share_of_delay",
            figures.syn_loss_share_of_rtx_delay,
        ),
    ];
    let known = known
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)));
    sample.metrics.extend(known);
    sample
}

fn of(report: &Report, direction: Direction) -> &Figures {
    let [to_server, to_client] = &report.directions;
    match direction {
        Direction::ToServer => to_server,
        Direction::ToClient => to_client,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Connections from as many clients to one server, each with a request and a reply that are not lost; of every tenth the
    /// SYN is sent again after a second.
    fn traffic(connections: u32) -> Pcap {
        let mut writer = Writer::new(Vec::new(), 65_535).unwrap();
        for number in 0..connections {
            let at_ns = 1_000_000_000 * u64::from(number);
            let client = Endpoint {
                address: Ipv4Addr::from_bits(0x0a40_0001 + number).to_ipv6_mapped(),
                port: 4000,
            };
            let server = Endpoint {
                address: Ipv4Addr::new(10, 128, 0, 1).to_ipv6_mapped(),
                port: 80,
            };
            let mut at_ms = 0;
            let mut send = |from, to, seq, ack, flags, payload| {
                let segment = Segment {
                    source: from,
                    destination: to,
                    seq,
                    ack,
                    flags,
                    window: 100,
                    payload,
                };
                at_ms += 10;
                let frame = compose(&segment);
                writer.frame(at_ns + at_ms * 1_000_000, &frame).unwrap();
            };
            if number % 10 == 0 {
                send(client, server, 100, 0, flag::SYN, 0);
            }
            send(client, server, 100, 0, flag::SYN, 0);
            send(server, client, 500, 101, flag::SYN | flag::ACK, 0);
            send(client, server, 101, 501, flag::ACK, 50);
            send(server, client, 501, 151, flag::ACK, 1000);
        }
        Pcap {
            name: "traffic".into(),
            bytes: writer.into_inner().into(),
        }
    }

    fn counted(captures: &[&Pcap], counted: Counted) -> Sample {
        let report = report(captures.iter().copied(), counted).unwrap();
        sample(&report, Direction::ToServer)
    }

    #[test]
    fn the_flood_hides_lost_syns_and_the_filter_takes_it_out_to_the_last_one() {
        let traffic = traffic(500);
        let flood = flood(1000, 0, 500_000_000_000).unwrap();
        let plain = counted(&[&traffic], Counted::All);
        let hidden = counted(&[&traffic, &flood], Counted::Flood);
        let filtered = counted(&[&traffic, &flood], Counted::Filtered);
        assert_eq!(plain.get("syn_rtx"), 50.0 / 550.0);
        assert_eq!(hidden.get("syn_rtx"), 50.0 / 1550.0);
        assert_eq!(hidden.get("syns_again"), plain.get("syns_again"));
        assert_eq!(filtered.get("syn_rtx"), plain.get("syn_rtx"));
        assert_eq!(filtered.get("packets"), plain.get("packets"));
        assert_eq!(filtered.get("flood_hosts"), 1.0);
        assert_eq!(filtered.get("flood_connections"), 1000.0);
        // One less than the paper's limit is no flood.
        let flood = super::flood(999, 0, 500_000_000_000).unwrap();
        let filtered = counted(&[&traffic, &flood], Counted::Filtered);
        assert_eq!(filtered.get("flood_hosts"), 0.0);
    }

    #[test]
    fn what_was_never_sent_again_has_no_delay() {
        let sample = counted(&[&traffic(5)], Counted::Established);
        assert!(sample.metrics.contains_key("delay_with_syn_loss_ms"));
        for lacks in ["delay_without_syn_loss_ms", "with_over_without"] {
            assert!(!sample.metrics.contains_key(lacks), "{lacks}");
        }
    }
}

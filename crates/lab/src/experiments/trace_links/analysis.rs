//! What `weir trace` says of a capture, counted in the four ways of BHD18's Section III.

use std::io::Cursor;
use std::net::Ipv4Addr;
use std::sync::Arc;

use weir_trace::{Figures, Merge, Options, Report, Source, Tracker};
use weir_wire::{Capture, Endpoint, Segment, Writer, compose, flag};

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

/// A direction of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Direction {
    /// From the ends that open connections
    ToServer,
    /// To them
    ToClient,
    /// Their sum: what each direction of a link has that as many connections open from one side as from the other
    Both,
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
/// It cannot be written into memory.
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

/// What was seen, in one direction or in several.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    packets: f64,
    connections: f64,
    segments: f64,
    rtx: f64,
    syns: f64,
    syn_rtx: f64,
    flood_hosts: f64,
    flood_connections: f64,
    /// Retransmissions of connections with a lost SYN or SYN/ACK, and of the others.
    with_syn_loss: Delays,
    without: Delays,
}

/// Retransmissions whose delay is known.
#[derive(Debug, Clone, Copy, Default)]
struct Delays {
    count: f64,
    sum_ms: f64,
}

impl Delays {
    fn and(self, other: Delays) -> Delays {
        Delays {
            count: self.count + other.count,
            sum_ms: self.sum_ms + other.sum_ms,
        }
    }

    fn mean_ms(self) -> Option<f64> {
        ratio(self.sum_ms, self.count)
    }
}

fn ratio(one: f64, other: f64) -> Option<f64> {
    (other > 0.0).then(|| one / other)
}

impl Seen {
    fn of(figures: &Figures) -> Seen {
        // weir trace gives means, and the share of connections with a lost SYN in the sum.
        let count = (figures.retransmissions - figures.rtx_of_unknown_delay) as f64;
        let sum_ms = count * figures.mean_rtx_delay_ms.unwrap_or(0.0);
        let with_ms = sum_ms * figures.syn_loss_share_of_rtx_delay.unwrap_or(0.0);
        let mean = figures.mean_rtx_delay_with_syn_loss_ms;
        let with_syn_loss = Delays {
            count: mean.map_or(0.0, |mean| (with_ms / mean).round()),
            sum_ms: with_ms,
        };
        Seen {
            packets: figures.packets as f64,
            connections: figures.connections as f64,
            segments: figures.segments as f64,
            rtx: figures.retransmissions as f64,
            syns: figures.syns as f64,
            syn_rtx: figures.syn_retransmissions as f64,
            flood_hosts: figures.filtered_syn_flood_hosts as f64,
            flood_connections: figures.filtered_syn_flood_connections as f64,
            with_syn_loss,
            without: Delays {
                count: count - with_syn_loss.count,
                sum_ms: sum_ms - with_ms,
            },
        }
    }

    fn and(self, other: Seen) -> Seen {
        Seen {
            packets: self.packets + other.packets,
            connections: self.connections + other.connections,
            segments: self.segments + other.segments,
            rtx: self.rtx + other.rtx,
            syns: self.syns + other.syns,
            syn_rtx: self.syn_rtx + other.syn_rtx,
            flood_hosts: self.flood_hosts + other.flood_hosts,
            flood_connections: self.flood_connections + other.flood_connections,
            with_syn_loss: self.with_syn_loss.and(other.with_syn_loss),
            without: self.without.and(other.without),
        }
    }

    /// What there is nothing to divide by for is left out.
    fn sample(&self) -> Sample {
        let mut sample = Sample::of([
            ("packets", self.packets),
            ("connections", self.connections),
            ("syns", self.syns),
            ("syns_again", self.syn_rtx),
            ("flood_hosts", self.flood_hosts),
            ("flood_connections", self.flood_connections),
        ]);
        let all = self.with_syn_loss.and(self.without);
        let (with, without) = (self.with_syn_loss.mean_ms(), self.without.mean_ms());
        let (packet, syn) = (
            ratio(self.rtx, self.packets),
            ratio(self.syn_rtx, self.syns),
        );
        let over = |one: Option<f64>, other: Option<f64>| ratio(one?, other?);
        let known = [
            ("packet_rtx", packet),
            ("segment_rtx", ratio(self.rtx, self.segments)),
            ("syn_rtx", syn),
            ("syn_over_packet", over(syn, packet)),
            ("syn_share_of_rtx", ratio(self.syn_rtx, self.rtx)),
            ("rtx_delay_ms", all.mean_ms()),
            ("delay_with_syn_loss_ms", with),
            ("delay_without_syn_loss_ms", without),
            ("with_over_without", over(with, without)),
            (
                "syn_loss_share_of_delay",
                ratio(self.with_syn_loss.sum_ms, all.sum_ms),
            ),
        ];
        let known = known.into_iter();
        let known = known.filter_map(|(name, value)| Some((name.to_owned(), value?)));
        sample.metrics.extend(known);
        sample
    }
}

/// The figures of a direction.
pub fn sample(report: &Report, direction: Direction) -> Sample {
    let [to_server, to_client] = [0, 1].map(|at: usize| Seen::of(&report.directions[at]));
    let seen = match direction {
        Direction::ToServer => to_server,
        Direction::ToClient => to_client,
        Direction::Both => to_server.and(to_client),
    };
    seen.sample()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Connections from as many clients to one server, each with a request and a reply that are not lost; of every tenth the
    /// SYN is sent again after 10 ms.
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
    fn the_figures_are_those_of_the_report_and_both_directions_have_their_sums() {
        let traffic = traffic(500);
        let report = report([&traffic].into_iter(), Counted::All).unwrap();
        let of = |direction| sample(&report, direction);
        let [to_server, to_client, both] =
            [Direction::ToServer, Direction::ToClient, Direction::Both].map(of);
        let figures = &report.directions[0];
        assert_eq!(
            to_server.get("packet_rtx"),
            figures.packet_rtx_probability.unwrap()
        );
        assert_eq!(
            to_server.get("syn_share_of_rtx"),
            figures.syn_share_of_rtx.unwrap()
        );
        assert_eq!(to_server.get("delay_with_syn_loss_ms").round(), 10.0);
        let packets = to_server.get("packets") + to_client.get("packets");
        assert_eq!(both.get("packets"), packets);
        assert_eq!(both.get("syn_rtx"), 50.0 / (550.0 + 500.0));
        assert_eq!(both.get("packet_rtx"), 50.0 / packets);
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

//! Each figure, from packets made by hand. Times are in ms.

use std::net::{Ipv4Addr, Ipv6Addr};

use weir_trace::{Figures, FloodFilter, Options, Report, Tracker};
use weir_wire::{Endpoint, Frame, Packet, Segment, flag};

const MS: u64 = 1_000_000;
const SYN: u8 = flag::SYN;
const SYN_ACK: u8 = flag::SYN | flag::ACK;
const ACK: u8 = flag::ACK;
const FIN: u8 = flag::FIN | flag::ACK;
const RST: u8 = flag::RST;

/// A packet: sender `c` or `s`, ms, flags, sequence number from its first one on, bytes of data.
type Row = (char, u64, u8, u32, u32);

/// First sequence numbers: data wrap around.
const CLIENT: u32 = u32::MAX - 10;
const SERVER: u32 = 5_000_000;

fn end(address: [u8; 4], port: u16) -> Endpoint {
    Endpoint {
        address: Ipv4Addr::from(address).to_ipv6_mapped(),
        port,
    }
}

/// The packets of one connection. Each acknowledges the SYN of the other end.
fn packets(client: Endpoint, server: Endpoint, rows: &[Row]) -> Vec<Packet> {
    let packet = |&(from, ms, flags, seq, payload): &Row| {
        let (source, destination, first, other) = match from {
            'c' => (client, server, CLIENT, SERVER),
            _ => (server, client, SERVER, CLIENT),
        };
        let segment = Segment {
            source,
            destination,
            seq: first.wrapping_add(seq),
            ack: other.wrapping_add(1),
            flags,
            window: u16::MAX,
            payload,
        };
        Packet {
            at_ns: 1_700_000_000_000 * MS + ms * MS,
            frame: Frame::Tcp(segment),
        }
    };
    rows.iter().map(packet).collect()
}

fn track(options: Options, packets: &[Packet]) -> Report {
    let mut tracker = Tracker::new(options);
    packets.iter().for_each(|packet| tracker.packet(packet));
    tracker.report()
}

fn one(rows: &[Row]) -> Report {
    let packets = packets(end([10, 0, 0, 1], 40_000), end([10, 0, 0, 2], 80), rows);
    track(Options::default(), &packets)
}

fn is_ms(found: Option<f64>, expected: f64) {
    let found = found.unwrap_or_else(|| panic!("nothing instead of {expected}"));
    assert!(
        (found - expected).abs() < 0.05,
        "{found} instead of {expected}"
    );
}

/// Retransmissions and SYN retransmissions of a direction.
fn rtx(figures: &Figures) -> (u64, u64) {
    (figures.retransmissions, figures.syn_retransmissions)
}

const QUIET: [Row; 8] = [
    ('c', 0, SYN, 0, 0),
    ('s', 20, SYN_ACK, 0, 0),
    ('c', 40, ACK, 1, 0),
    ('c', 41, ACK, 1, 500),
    ('s', 60, ACK, 1, 1000),
    ('s', 61, FIN, 1001, 200),
    ('c', 80, FIN, 501, 0),
    ('s', 100, ACK, 1202, 0),
];

#[test]
fn a_connection_without_losses_has_no_retransmissions() {
    let report = one(&QUIET);
    let [to_server, to_client] = &report.directions;
    assert_eq!(
        (to_server.packets, to_server.segments, to_server.connections),
        (4, 3, 1)
    );
    assert_eq!(
        (to_client.packets, to_client.segments, to_client.connections),
        (4, 3, 1)
    );
    for figures in &report.directions {
        assert_eq!(rtx(figures), (0, 0));
        assert_eq!(figures.packet_rtx_probability, Some(0.0));
        assert_eq!(figures.syn_rtx_probability, Some(0.0));
        assert_eq!(figures.syn_share_of_rtx, None);
        assert_eq!(figures.mean_rtx_delay_ms, None);
    }
    assert_eq!(report.counts.connections, 1);
    assert_eq!(report.flood_filter, FloodFilter::On);
}

#[test]
fn a_lost_syn_is_sent_again() {
    let report = one(&[
        ('c', 0, SYN, 0, 0),
        ('c', 1000, SYN, 0, 0),
        ('c', 3000, SYN, 0, 0),
        ('s', 3020, SYN_ACK, 0, 0),
        ('c', 3040, ACK, 1, 0),
        ('c', 3041, ACK, 1, 100),
        ('c', 3341, ACK, 1, 100),
    ]);
    let [to_server, to_client] = &report.directions;
    assert_eq!(rtx(to_server), (3, 2));
    assert_eq!(to_server.packet_rtx_probability, Some(3.0 / 6.0));
    assert_eq!(to_server.segment_rtx_probability, Some(3.0 / 5.0));
    assert_eq!(to_server.syn_rtx_probability, Some(2.0 / 3.0));
    assert_eq!(to_server.syn_share_of_rtx, Some(2.0 / 3.0));
    // From the first transmission on: 1 s, 3 s and 300 ms.
    is_ms(to_server.mean_rtx_delay_ms, 4300.0 / 3.0);
    is_ms(to_server.mean_rtx_delay_with_syn_loss_ms, 4300.0 / 3.0);
    assert_eq!(to_server.mean_rtx_delay_without_syn_loss_ms, None);
    assert_eq!(to_server.connections_with_syn_rtx, 1);
    assert_eq!(to_server.syn_loss_share_of_rtx_delay, Some(1.0));
    assert_eq!(rtx(to_client), (0, 0));
}

#[test]
fn a_lost_syn_ack_shows_in_both_directions() {
    let report = one(&[
        ('c', 0, SYN, 0, 0),
        ('s', 20, SYN_ACK, 0, 0),
        ('c', 1000, SYN, 0, 0),
        ('s', 1020, SYN_ACK, 0, 0),
        ('c', 1040, ACK, 1, 0),
    ]);
    for figures in &report.directions {
        assert_eq!(rtx(figures), (1, 1));
        is_ms(figures.mean_rtx_delay_ms, 1000.0);
    }
}

#[test]
fn a_server_with_syn_cookies_may_change_its_sequence_number() {
    let report = one(&[
        ('c', 0, SYN, 0, 0),
        ('s', 20, SYN_ACK, 0, 0),
        ('c', 1000, SYN, 0, 0),
        ('s', 1020, SYN_ACK, 70_000, 0),
        ('c', 1040, ACK, 1, 0),
        ('s', 1060, ACK, 70_001, 100),
        ('s', 1360, ACK, 70_001, 100),
    ]);
    assert_eq!(rtx(&report.directions[1]), (2, 1));
    is_ms(report.directions[1].mean_rtx_delay_ms, 650.0);
    assert_eq!(report.counts.stray, 0);
}

#[test]
fn the_means_are_over_retransmissions_grouped_by_the_loss_of_a_syn() {
    let server = end([10, 0, 0, 2], 80);
    let lost_syn = packets(
        end([10, 0, 0, 1], 40_000),
        server,
        &[
            ('c', 0, SYN, 0, 0),
            ('c', 1000, SYN, 0, 0),
            ('s', 1020, SYN_ACK, 0, 0),
        ],
    );
    let lost_data = packets(
        end([10, 0, 0, 1], 40_001),
        server,
        &[
            ('c', 0, SYN, 0, 0),
            ('s', 20, SYN_ACK, 0, 0),
            ('c', 40, ACK, 1, 100),
            ('c', 240, ACK, 1, 100),
            ('c', 640, ACK, 1, 100),
            ('c', 660, ACK, 101, 100),
            ('c', 760, ACK, 101, 100),
        ],
    );
    let report = track(Options::default(), &[lost_syn, lost_data].concat());
    let to_server = &report.directions[0];
    assert_eq!(rtx(to_server), (4, 1));
    is_ms(to_server.mean_rtx_delay_with_syn_loss_ms, 1000.0);
    is_ms(to_server.mean_rtx_delay_without_syn_loss_ms, 900.0 / 3.0);
    is_ms(to_server.mean_rtx_delay_ms, 1900.0 / 4.0);
    is_ms(
        to_server
            .syn_loss_share_of_rtx_delay
            .map(|share| share * 1000.0),
        1e6 / 1900.0,
    );
    assert_eq!(to_server.packet_rtx_probability, Some(4.0 / 8.0));
    assert_eq!(to_server.syn_rtx_probability, Some(1.0 / 3.0));
}

/// The handshake takes 40 ms.
const OPEN: [Row; 3] = [
    ('c', 0, SYN, 0, 0),
    ('s', 20, SYN_ACK, 0, 0),
    ('c', 40, ACK, 1, 0),
];

fn opened(rows: &[Row]) -> Report {
    one(&[&OPEN, rows].concat())
}

#[test]
fn a_hole_that_is_filled_soon_is_reordering_and_later_a_retransmission() {
    let rows = |fill| {
        [
            ('s', 50, ACK, 1, 100),
            ('s', 51, ACK, 201, 100),
            ('s', fill, ACK, 101, 100),
        ]
    };
    let soon = opened(&rows(65));
    assert_eq!(rtx(&soon.directions[1]), (0, 0));
    assert_eq!(soon.counts.out_of_order, 1);
    let later = opened(&rows(351));
    assert_eq!(rtx(&later.directions[1]), (1, 0));
    assert_eq!(later.counts.out_of_order, 0);
    is_ms(later.directions[1].mean_rtx_delay_ms, 300.0);
}

#[test]
fn rows_of_what_is_a_retransmission() {
    // Name, packets, retransmissions of client and server, mean delay of both, ms.
    let rows: [(&str, &[Row], u64, u64, f64); 9] = [
        (
            "data, again in one larger packet with new data",
            &[
                ('c', 50, ACK, 1, 100),
                ('c', 60, ACK, 101, 100),
                ('c', 350, ACK, 1, 300),
            ],
            1,
            0,
            300.0,
        ),
        (
            "data, again in parts",
            &[
                ('s', 50, ACK, 1, 300),
                ('s', 350, ACK, 1, 100),
                ('s', 350, ACK, 101, 200),
            ],
            0,
            2,
            300.0,
        ),
        (
            "a FIN",
            &[('s', 50, FIN, 1, 0), ('s', 250, FIN, 1, 0)],
            0,
            1,
            200.0,
        ),
        (
            "a byte of a terminal",
            &[('c', 50, ACK, 1, 1), ('c', 250, ACK, 1, 1)],
            1,
            0,
            200.0,
        ),
        (
            "acknowledgements",
            &[
                ('c', 50, ACK, 1, 0),
                ('c', 50, ACK, 1, 0),
                ('s', 60, ACK, 1, 0),
            ],
            0,
            0,
            0.0,
        ),
        (
            "keep-alives",
            &[
                ('c', 50, ACK, 1, 100),
                ('c', 7050, ACK, 100, 0),
                ('c', 14_050, ACK, 100, 1),
            ],
            0,
            0,
            0.0,
        ),
        (
            "a RST",
            &[
                ('c', 50, ACK, 1, 100),
                ('c', 60, RST, 1, 0),
                ('c', 61, RST, 1, 0),
            ],
            0,
            0,
            0.0,
        ),
        (
            "what belongs to no window",
            &[
                ('c', 50, ACK, 1, 100),
                ('c', 60, ACK, 1 << 31, 10),
                ('c', 70, ACK, 101, 10),
            ],
            0,
            0,
            0.0,
        ),
        (
            "both ends",
            &[
                ('c', 50, ACK, 1, 100),
                ('s', 60, ACK, 1, 100),
                ('c', 350, ACK, 1, 100),
                ('s', 360, ACK, 1, 100),
            ],
            1,
            1,
            300.0,
        ),
    ];
    for (name, packets, of_client, of_server, delay_ms) in rows {
        println!("{name}");
        let report = opened(packets);
        let [to_server, to_client] = &report.directions;
        assert_eq!(rtx(to_server), (of_client, 0), "{name}");
        assert_eq!(rtx(to_client), (of_server, 0), "{name}");
        for figures in report
            .directions
            .iter()
            .filter(|figures| figures.retransmissions > 0)
        {
            is_ms(figures.mean_rtx_delay_ms, delay_ms);
        }
    }
}

#[test]
fn a_delay_of_more_than_45_s_takes_the_direction_out() {
    let rows = |again| {
        [
            &OPEN[..],
            &[('c', 50, ACK, 1, 100), ('c', again, ACK, 1, 100)],
        ]
        .concat()
    };
    let within = one(&rows(45_000));
    assert_eq!(within.directions[0].filtered_over_45s, 0);
    is_ms(within.directions[0].mean_rtx_delay_ms, 44_950.0);
    let over = one(&rows(45_100));
    let [to_server, to_client] = &over.directions;
    assert_eq!(
        (
            to_server.filtered_over_45s,
            to_server.connections,
            to_server.packets
        ),
        (1, 0, 0)
    );
    assert_eq!(
        (
            to_client.filtered_over_45s,
            to_client.connections,
            to_client.packets
        ),
        (0, 1, 1)
    );
    let syn = one(&[('c', 0, SYN, 0, 0), ('c', 63_000, SYN, 0, 0)]);
    assert_eq!(syn.directions[0].filtered_over_45s, 1);
}

#[test]
fn connections_without_their_syn_do_not_count() {
    let report = one(&[
        ('c', 0, ACK, 1, 100),
        ('s', 10, ACK, 1, 100),
        ('c', 300, ACK, 1, 100),
    ]);
    assert_eq!(report.counts.without_syn, 3);
    assert!(report.directions.iter().all(|figures| figures.packets == 0));
    assert!(
        report
            .directions
            .iter()
            .all(|figures| figures.packet_rtx_probability.is_none())
    );
}

#[test]
fn a_new_syn_between_the_same_ends_opens_another_connection() {
    let mut rows = QUIET.to_vec();
    let later = QUIET
        .map(|(from, ms, flags, seq, payload)| (from, ms + 200, flags, seq + 9_000_000, payload));
    rows.extend(later);
    // What the ends acknowledge in the second connection is its own.
    let (client, server) = (end([10, 0, 0, 1], 40_000), end([10, 0, 0, 2], 80));
    let mut all = packets(client, server, &rows);
    for packet in &mut all[QUIET.len()..] {
        if let Frame::Tcp(segment) = &mut packet.frame {
            segment.ack = segment.ack.wrapping_add(9_000_000);
        }
    }
    let report = track(Options::default(), &all);
    assert_eq!(report.counts.connections, 2);
    for figures in &report.directions {
        assert_eq!((figures.connections, rtx(figures)), (2, (0, 0)));
    }
}

#[test]
fn a_direction_has_the_same_figures_whether_or_not_the_other_is_captured() {
    let rows: [Row; 12] = [
        ('c', 0, SYN, 0, 0),
        ('s', 20, SYN_ACK, 0, 0),
        ('c', 1000, SYN, 0, 0),
        ('s', 1020, SYN_ACK, 0, 0),
        ('c', 1040, ACK, 1, 0),
        ('c', 1041, ACK, 1, 100),
        ('s', 1060, ACK, 1, 1000),
        ('s', 1061, ACK, 1001, 1000),
        ('c', 1341, ACK, 1, 100),
        ('s', 1361, ACK, 1, 1000),
        ('c', 1400, FIN, 101, 0),
        ('c', 1800, FIN, 101, 0),
    ];
    let both = one(&rows);
    for (at, from) in ['c', 's'].into_iter().enumerate() {
        let half: Vec<Row> = rows.into_iter().filter(|row| row.0 == from).collect();
        let report = one(&half);
        assert_eq!(report.directions[at], both.directions[at]);
        assert_eq!(report.directions[1 - at].packets, 0);
        assert_eq!(report.flood_filter, FloodFilter::OneDirection);
    }
}

#[test]
fn established_only_wants_the_handshake_and_data() {
    let options = Options {
        established_only: true,
        ..Options::default()
    };
    let server = end([10, 0, 0, 2], 80);
    let of = |number, rows: &[Row]| packets(end([10, 0, 1, number], 40_000), server, rows);
    let data: Row = ('c', 50, ACK, 1, 100);
    let all = [
        of(1, &[OPEN[0]]),
        of(2, &OPEN),
        of(3, &[OPEN[0], OPEN[1], ('c', 40, RST | ACK, 1, 0)]),
        of(4, &[OPEN[0], OPEN[1], OPEN[2], data]),
        // No SYN/ACK was seen.
        of(5, &[OPEN[0], OPEN[2], data]),
        // The data come with the final ACK.
        of(6, &[OPEN[0], OPEN[1], data]),
    ];
    let report = track(options, &all.concat());
    assert_eq!(report.filtered_not_established, 4);
    assert_eq!(report.directions[0].connections, 2);
    assert_eq!(report.directions[0].packets, 5);
}

/// Connections from `count` clients without data.
fn flood(count: u32, server: Endpoint) -> Vec<Packet> {
    let of = |number: u32| {
        let client = end((0x0b00_0000 + number).to_be_bytes(), 1024);
        packets(
            client,
            server,
            &[
                ('c', number.into(), SYN, 0, 0),
                ('s', number.into(), SYN_ACK, 0, 0),
            ],
        )
    };
    (0..count).flat_map(of).collect()
}

#[test]
fn hosts_under_a_syn_flood_are_left_out() {
    let (server, other) = (end([10, 0, 0, 2], 80), end([10, 0, 0, 3], 80));
    let client = end([10, 0, 0, 1], 40_000);
    let with_data = |server| packets(client, server, &QUIET);
    let run = |flood_filter, parts: &[Vec<Packet>]| {
        let options = Options {
            flood_filter,
            ..Options::default()
        };
        track(options, &parts.concat())
    };

    let parts = [flood(1000, server), with_data(server), with_data(other)];
    let report = run(true, &parts);
    let [to_server, to_client] = &report.directions;
    assert_eq!(
        (
            to_server.filtered_syn_flood_hosts,
            to_server.filtered_syn_flood_connections
        ),
        (1, 1001)
    );
    assert_eq!(
        (
            to_client.filtered_syn_flood_hosts,
            to_client.filtered_syn_flood_connections
        ),
        (1, 1001)
    );
    // The other server's connection stays, although its client also spoke to the one under attack.
    assert_eq!((to_server.connections, to_server.packets), (1, 4));

    let report = run(false, &parts);
    assert_eq!(report.flood_filter, FloodFilter::Off);
    assert_eq!(
        (
            report.directions[0].connections,
            report.directions[0].filtered_syn_flood_hosts
        ),
        (1002, 0)
    );

    // One fewer, or one with data for fewer than a thousand without.
    let report = run(true, &[flood(999, server), with_data(other)]);
    assert_eq!(report.directions[0].filtered_syn_flood_hosts, 0);
    let second = packets(end([10, 0, 0, 9], 40_000), server, &QUIET);
    let report = run(true, &[flood(1999, server), with_data(server), second]);
    assert_eq!(report.directions[0].filtered_syn_flood_hosts, 0);
}

#[test]
fn one_attacker_is_a_host_like_its_victim() {
    let (attacker, victim) = ([10, 9, 9, 9], end([10, 0, 0, 2], 80));
    let of = |port| {
        packets(
            end(attacker, port),
            victim,
            &[('c', 0, SYN, 0, 0), ('s', 1, RST | ACK, 0, 0)],
        )
    };
    let report = track(
        Options::default(),
        &(1..=1500).flat_map(of).collect::<Vec<_>>(),
    );
    let to_server = &report.directions[0];
    assert_eq!(
        (
            to_server.filtered_syn_flood_hosts,
            to_server.filtered_syn_flood_connections
        ),
        (2, 1500)
    );
    assert_eq!(to_server.connections, 0);
}

#[test]
fn ipv6_and_ports_tell_connections_apart() {
    let of = |last, port| Endpoint {
        address: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last),
        port,
    };
    let all = [
        packets(of(1, 1000), of(2, 80), &QUIET),
        packets(of(1, 1001), of(2, 80), &QUIET),
        packets(of(3, 1000), of(2, 80), &QUIET),
    ];
    let report = track(Options::default(), &all.concat());
    assert_eq!(report.counts.connections, 3);
    assert_eq!(rtx(&report.directions[0]), (0, 0));
}

#[test]
fn within_a_small_bound_every_connection_counts_and_the_report_says_so() {
    let server = end([10, 0, 0, 2], 80);
    let of = |number: u32| {
        let client = end((0x0a01_0000 + number).to_be_bytes(), 40_000);
        let mut packets = packets(client, server, &QUIET);
        packets
            .iter_mut()
            .for_each(|packet| packet.at_ns += u64::from(number) * 1000 * MS);
        packets
    };
    let all: Vec<Packet> = (0..10_000).flat_map(of).collect();
    let small = Options {
        connections_max: 100,
        ..Options::default()
    };
    let (small, large) = (track(small, &all), track(Options::default(), &all));
    assert_eq!(small.directions, large.directions);
    assert_eq!(large.counts.judged_early, 0);
    assert!(
        (9_900..10_000).contains(&small.counts.judged_early),
        "{}",
        small.counts.judged_early
    );
    assert_eq!(small.counts.judged_open, 0);
}

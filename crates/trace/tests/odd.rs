//! What real captures have beside orderly connections: TCP Fast Open, several SYN/ACKs, probes, packets that the capture
//! has lost. Times are in ms.

use std::net::Ipv4Addr;

use weir_trace::{Figures, Options, Report, Tracker};
use weir_wire::{Endpoint, Frame, Packet, Segment, flag};

const MS: u64 = 1_000_000;
const SYN: u8 = flag::SYN;
const SYN_ACK: u8 = flag::SYN | flag::ACK;
const ACK: u8 = flag::ACK;
const FIN: u8 = flag::FIN | flag::ACK;
const OPEN: u16 = 8192;

/// A packet: sender `c` or `s`, ms, flags, sequence and acknowledgement number, window, bytes of data.
type Row = (char, u64, u8, u32, u32, u16, u32);

fn track(rows: &[Row]) -> Report {
    let end = |address: [u8; 4], port| Endpoint {
        address: Ipv4Addr::from(address).to_ipv6_mapped(),
        port,
    };
    let (client, server) = (end([192, 0, 2, 1], 40_000), end([198, 51, 100, 1], 80));
    let mut tracker = Tracker::new(Options::default());
    for &(from, ms, flags, seq, ack, window, payload) in rows {
        let (source, destination) = match from {
            'c' => (client, server),
            _ => (server, client),
        };
        tracker.packet(&Packet {
            at_ns: 1_700_000_000_000 * MS + ms * MS,
            frame: Frame::Tcp(Segment {
                source,
                destination,
                seq,
                ack,
                flags,
                window,
                payload,
            }),
        });
    }
    tracker.report()
}

fn rtx(figures: &Figures) -> (u64, u64) {
    (figures.retransmissions, figures.syn_retransmissions)
}

#[test]
fn a_fast_open_is_one_connection_and_a_repetition_in_it_is_found() {
    let report = track(&[
        ('c', 0, SYN, 1000, 0, OPEN, 100),
        ('s', 10, SYN_ACK, 5000, 1101, OPEN, 0),
        ('c', 20, ACK, 1101, 5001, OPEN, 0),
        ('c', 21, ACK, 1101, 5001, OPEN, 50),
        ('c', 221, ACK, 1101, 5001, OPEN, 50),
        ('s', 231, ACK, 5001, 1151, OPEN, 0),
        ('s', 232, ACK, 5001, 1151, OPEN, 20),
        ('c', 240, ACK, 1151, 5021, OPEN, 0),
        ('c', 241, FIN, 1151, 5021, OPEN, 0),
        ('s', 250, FIN, 5021, 1152, OPEN, 0),
        ('c', 260, ACK, 1152, 5022, OPEN, 0),
    ]);
    let [to_server, to_client] = &report.directions;
    assert_eq!(report.counts.connections, 1);
    assert_eq!((to_server.packets, rtx(to_server)), (7, (1, 0)));
    assert_eq!((to_client.packets, rtx(to_client)), (4, (0, 0)));
    assert_eq!(report.counts.acks_of_unseen, 0);
}

#[test]
fn a_fast_open_syn_again_is_one_retransmission_each_way() {
    let report = track(&[
        ('c', 0, SYN, 1000, 0, OPEN, 100),
        ('s', 10, SYN_ACK, 5000, 1101, OPEN, 0),
        ('c', 1000, SYN, 1000, 0, OPEN, 0),
        ('s', 1010, SYN_ACK, 5000, 1101, OPEN, 0),
        ('c', 1020, ACK, 1101, 5001, OPEN, 0),
        ('c', 1030, FIN, 1101, 5001, OPEN, 0),
        ('s', 1040, FIN, 5001, 1102, OPEN, 0),
        ('c', 1050, ACK, 1102, 5002, OPEN, 0),
    ]);
    assert_eq!(report.counts.connections, 1);
    assert_eq!(report.directions.each_ref().map(rtx), [(1, 1), (1, 1)]);
}

/// The server takes the SYN alone: the client sends the data again. Their first transmission was with the SYN.
#[test]
fn data_of_a_fast_open_that_were_not_taken_are_sent_again() {
    let report = track(&[
        ('c', 0, SYN, 1000, 0, OPEN, 100),
        ('s', 10, SYN_ACK, 5000, 1001, OPEN, 0),
        ('c', 20, ACK, 1001, 5001, OPEN, 100),
    ]);
    let to_server = &report.directions[0];
    assert_eq!(report.counts.connections, 1);
    assert_eq!(
        (rtx(to_server), to_server.rtx_of_unknown_delay),
        ((1, 0), 0)
    );
    assert!(
        to_server
            .mean_rtx_delay_ms
            .is_some_and(|ms| (ms - 20.0).abs() < 0.05)
    );
}

#[test]
fn a_syn_ack_beyond_the_data_of_the_syn_opens_another_connection() {
    for (data, ack) in [(0, 1002), (100, 1102), (100, 1000)] {
        let report = track(&[
            ('c', 0, SYN, 1000, 0, OPEN, data),
            ('s', 10, SYN_ACK, 5000, ack, OPEN, 0),
        ]);
        assert_eq!(report.counts.connections, 2, "{data} bytes, ack {ack}");
    }
}

#[test]
fn two_ends_that_open_at_once_have_one_connection_also_with_data_in_their_syns() {
    for payload in [0, 9] {
        let report = track(&[
            ('c', 0, SYN, 1000, 0, OPEN, payload),
            ('s', 1, SYN, 5000, 0, OPEN, payload),
            ('c', 10, SYN_ACK, 1000, 5001 + payload, OPEN, 0),
            ('s', 11, SYN_ACK, 5000, 1001 + payload, OPEN, 0),
        ]);
        assert_eq!(report.counts.connections, 1, "{payload} bytes");
    }
}

/// Whichever of two SYN/ACKs the client has taken, and whichever came last.
#[test]
fn data_continue_the_syn_ack_that_counts() {
    let [one, other] = [5000, 2_000_000_000];
    for (counts, first, second, third) in [
        (other, one, other, one),
        (one, one, other, other),
        (other, other, one, one),
    ] {
        let mut rows = vec![
            ('c', 0, SYN, 1000, 0, OPEN, 0),
            ('s', 10, SYN_ACK, first, 1001, OPEN, 0),
            ('s', 20, SYN_ACK, second, 1001, OPEN, 0),
            ('c', 30, ACK, 1001, counts + 1, OPEN, 0),
            ('s', 1000, SYN_ACK, third, 1001, OPEN, 0),
            ('c', 1100, ACK, 1001, counts + 1, OPEN, 50),
        ];
        rows.extend((0..8).map(|i| {
            let seq = counts + 1 + 100 * i;
            ('s', 1200 + 10 * u64::from(i), ACK, seq, 1051, OPEN, 100)
        }));
        rows.push(('c', 1300, ACK, 1051, counts + 801, OPEN, 0));
        let report = track(&rows);
        let to_client = &report.directions[1];
        assert_eq!(report.counts.stray, 0);
        assert_eq!(report.counts.acks_of_unseen, 0);
        assert_eq!(report.counts.connections, 1);
        // Three SYN/ACKs and all data; the second and third SYN/ACK came again.
        assert_eq!((to_client.segments, rtx(to_client)), (11, (2, 2)));
    }
}

const HANDSHAKE: [Row; 3] = [
    ('c', 0, SYN, 0, 0, OPEN, 0),
    ('s', 10, SYN_ACK, 0, 1, OPEN, 0),
    ('c', 20, ACK, 1, 1, OPEN, 0),
];

fn opened(rows: &[Row]) -> Report {
    track(&[&HANDSHAKE, rows].concat())
}

#[test]
fn a_byte_into_a_closed_window_is_a_probe_and_into_an_open_one_a_segment() {
    let rows = |window, next, ack| {
        opened(&[
            ('s', 30, ACK, 1, 1, OPEN, 1000),
            ('c', 40, ACK, 1, 1001, window, 0),
            ('s', 300, ACK, 1001, 1, OPEN, 1),
            ('s', 500, ACK, 1001, 1, OPEN, 1),
            ('c', 510, ACK, 1, ack, window, 0),
            ('c', 700, ACK, 1, ack, OPEN, 0),
            ('s', 710, ACK, next, 1, OPEN, 1000),
            ('c', 720, ACK, 1, next + 1000, OPEN, 0),
        ])
    };
    let refused = rows(0, 1001, 1001);
    let to_client = &refused.directions[1];
    assert_eq!((to_client.segments, rtx(to_client)), (3, (0, 0)));
    assert_eq!(
        (refused.counts.keep_alives, refused.counts.acks_of_unseen),
        (2, 0)
    );
    // The receiver has taken the byte.
    let taken = rows(0, 1002, 1002);
    assert_eq!(rtx(&taken.directions[1]), (0, 0));
    assert_eq!(
        (taken.counts.keep_alives, taken.counts.acks_of_unseen),
        (2, 0)
    );
    // A byte of a terminal, lost and sent again, then with more.
    let open = rows(OPEN, 1001, 1001);
    assert_eq!(rtx(&open.directions[1]), (2, 0));
    assert_eq!(open.counts.keep_alives, 0);
}

#[test]
fn keep_alives_with_and_without_a_byte_count_as_such() {
    let report = opened(&[
        ('c', 30, ACK, 1, 1, OPEN, 100),
        ('s', 40, ACK, 1, 101, OPEN, 0),
        ('c', 7000, ACK, 100, 1, OPEN, 0),
        ('s', 7010, ACK, 1, 101, OPEN, 0),
        ('c', 14_000, ACK, 100, 1, OPEN, 1),
        ('s', 14_010, ACK, 1, 101, OPEN, 0),
    ]);
    assert_eq!(report.counts.keep_alives, 2);
    assert_eq!(rtx(&report.directions[0]), (0, 0));
    assert_eq!(
        (report.directions[0].packets, report.directions[0].segments),
        (5, 2)
    );
}

#[test]
fn an_acknowledgement_of_what_is_not_there_shows_that_the_capture_has_lost_it() {
    let lost: [Row; 3] = [
        ('s', 30, ACK, 1, 1, OPEN, 1000),
        // The next 1000 bytes are not in the capture.
        ('c', 40, ACK, 1, 2001, OPEN, 0),
        ('c', 41, ACK, 1, 2001, OPEN, 0),
    ];
    let report = opened(&lost);
    assert_eq!(report.counts.acks_of_unseen, 1);
    assert_eq!(rtx(&report.directions[1]), (0, 0));

    // They come again, although they have arrived; a keep-alive is behind them.
    let spurious: Row = ('s', 300, ACK, 1001, 1, OPEN, 1000);
    let probe: Row = ('s', 9000, ACK, 2000, 1, OPEN, 0);
    let report = opened(&[&lost[..], &[spurious, probe]].concat());
    assert_eq!(rtx(&report.directions[1]), (1, 0));
    assert_eq!(
        (report.counts.acks_of_unseen, report.counts.keep_alives),
        (1, 1)
    );

    // The capture has the acknowledgement before the data.
    let overtaken: Row = ('s', 41, ACK, 1001, 1, OPEN, 1000);
    let report = opened(&[&lost[..2], &[overtaken]].concat());
    assert_eq!(rtx(&report.directions[1]), (0, 0));
    assert_eq!(report.counts.out_of_order, 1);

    // Nothing is missing.
    let report = opened(&[lost[0], ('c', 40, ACK, 1, 1001, OPEN, 0)]);
    assert_eq!(report.counts.acks_of_unseen, 0);
}

/// The server has sent 500 bytes that the network has lost before the capture; only its acknowledgement tells.
#[test]
fn a_packet_without_data_shows_what_was_lost_before_the_capture() {
    let rows = |filled| {
        [
            ('s', 30, ACK, 501, 1, OPEN, 0),
            ('s', filled, ACK, 1, 1, OPEN, 500),
            ('c', filled + 10, ACK, 1, 501, OPEN, 0),
        ]
    };
    let lost = opened(&rows(230));
    let to_client = &lost.directions[1];
    assert_eq!(rtx(to_client), (1, 0));
    assert!(
        to_client
            .mean_rtx_delay_ms
            .is_some_and(|ms| (ms - 200.0).abs() < 0.05)
    );
    assert_eq!(lost.counts.acks_of_unseen, 0);
    let late = opened(&rows(31));
    assert_eq!(rtx(&late.directions[1]), (0, 0));
    assert_eq!(late.counts.out_of_order, 1);
    // An acknowledgement of another connection.
    let far = opened(&[('s', 30, ACK, 1 << 28, 1, OPEN, 0), rows(230)[1]]);
    assert_eq!(rtx(&far.directions[1]), (0, 0));
}

#[test]
fn what_is_sent_again_at_once_is_told_apart() {
    let rows = |again| {
        [
            ('c', 30, ACK, 1, 1, OPEN, 100),
            ('c', again, ACK, 1, 1, OPEN, 100),
        ]
    };
    assert_eq!(opened(&rows(30)).counts.rtx_at_once, 1);
    assert_eq!(opened(&rows(32)).counts.rtx_at_once, 0);
}

#[test]
fn what_is_no_tcp_is_counted_by_its_kind() {
    let mut tracker = Tracker::new(Options::default());
    for frame in [
        Frame::Other,
        Frame::Copy,
        Frame::UnknownLink,
        Frame::UnknownBlock,
        Frame::Cut,
    ] {
        tracker.packet(&Packet { at_ns: 1, frame });
    }
    let counts = tracker.report().counts;
    assert_eq!((counts.packets, counts.unknown_blocks), (4, 1));
    assert_eq!(
        (counts.other, counts.copies, counts.unknown_link, counts.cut),
        (1, 1, 1, 1)
    );
}

/// Of an overloaded server: a SYN without an answer, and a final ACK for which there is no place.
#[test]
fn what_the_server_leaves_unanswered_is_told_apart_from_what_the_path_loses() {
    let full = track(&[
        ('c', 0, SYN, 0, 0, OPEN, 0),
        ('c', 1000, SYN, 0, 0, OPEN, 0),
        ('s', 1000, SYN_ACK, 0, 1, OPEN, 0),
        ('c', 1010, ACK, 1, 1, OPEN, 0),
        ('s', 2000, SYN_ACK, 0, 1, OPEN, 0),
        ('c', 2010, ACK, 1, 1, OPEN, 0),
    ]);
    let of = |report: &Report| {
        let counts = &report.counts;
        (counts.syns_unanswered, counts.final_acks_unheeded)
    };
    assert_eq!(of(&full), (1, 1));
    assert_eq!(full.counts.syns_answered, 0);
    // The SYN/ACK is lost behind the capture: both come again.
    let lost = track(&[
        ('c', 0, SYN, 0, 0, OPEN, 0),
        ('s', 0, SYN_ACK, 0, 1, OPEN, 0),
        ('c', 1000, SYN, 0, 0, OPEN, 0),
        ('s', 1000, SYN_ACK, 0, 1, OPEN, 0),
        ('c', 1010, ACK, 1, 1, OPEN, 0),
    ]);
    assert_eq!(of(&lost), (0, 0));
    let counts = &lost.counts;
    assert_eq!((counts.syns_answered, counts.syns_answered_at_once), (1, 1));
    // Refused at once by a RST, which Windows tries again.
    let refused = track(&[
        ('c', 0, SYN, 0, 0, OPEN, 0),
        ('s', 0, flag::RST | ACK, 0, 1, 0, 0),
        ('c', 500, SYN, 0, 0, OPEN, 0),
    ]);
    assert_eq!(of(&refused), (0, 0));
    // At the client the answer takes a round trip.
    assert_eq!(opened(&[]).counts.syns_answered_at_once, 0);
}

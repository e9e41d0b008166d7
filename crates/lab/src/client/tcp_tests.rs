//! Rows of the state machine: what comes in and when, what goes out and what is counted.

use super::*;

const MS: u64 = 1_000_000;
const NUMBER: u32 = 5;
const SERVER_ISS: u32 = 9000;
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\n\r\n";
const REPLY: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody";

/// A segment that went out; `seq` and `ack` relative to the initial sequence numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sent {
    flags: u8,
    seq: u32,
    ack: u32,
    bytes: usize,
}

fn sent(flags: u8, seq: u32, ack: u32, bytes: usize) -> Sent {
    Sent {
        flags,
        seq,
        ack,
        bytes,
    }
}

#[derive(Default)]
struct Recorder {
    segments: Vec<Sent>,
    events: Vec<Event>,
    iss: u32,
}

impl Sink for Recorder {
    fn send(&mut self, segment: Segment<'_>) {
        if segment.flags == flag::SYN {
            self.iss = segment.seq;
        }
        let ack = if segment.has(flag::ACK) {
            segment.ack.wrapping_sub(SERVER_ISS)
        } else {
            0
        };
        let seq = segment.seq.wrapping_sub(self.iss);
        self.segments
            .push(sent(segment.flags, seq, ack, segment.payload.len()));
    }

    fn note(&mut self, event: Event) {
        self.events.push(event);
    }
}

/// One client and what it has done since last asked.
struct Client {
    connection: Connection,
    rules: Rules,
    heads: Heads,
    recorder: Recorder,
    now_ns: u64,
}

impl Client {
    fn open(kind: Kind) -> Client {
        Client::with(Rules {
            kind,
            timeout_ms: 10_000,
            server_closes_first: false,
            request: REQUEST.to_vec(),
        })
    }

    fn with(rules: Rules) -> Client {
        let mut recorder = Recorder::default();
        let connection = Connection::open(NUMBER, 0, &rules, &mut recorder);
        Client {
            connection,
            rules,
            heads: Heads::new(),
            recorder,
            now_ns: 0,
        }
    }

    /// A client whose handshake is over, with nothing recorded.
    fn established(kind: Kind) -> Client {
        let mut client = Client::open(kind);
        client.at(1).receive(flag::SYN | flag::ACK, 0, 1, b"");
        client.take();
        client
    }

    fn at(&mut self, ms: u64) -> &mut Client {
        self.now_ns = ms * MS;
        self
    }

    /// A segment from the server; `seq` and `ack` relative.
    fn receive(&mut self, flags: u8, seq: u32, ack: u32, payload: &[u8]) -> &mut Client {
        self.receive_with(false, flags, seq, ack, payload)
    }

    fn receive_with(
        &mut self,
        window_closed: bool,
        flags: u8,
        seq: u32,
        ack: u32,
        payload: &[u8],
    ) -> &mut Client {
        let segment = Segment {
            flags,
            seq: SERVER_ISS.wrapping_add(seq),
            ack: self.recorder.iss.wrapping_add(ack),
            timestamps: Some((77, to_ms(self.now_ns).max(1))),
            window_closed,
            payload,
        };
        let Client {
            connection,
            rules,
            heads,
            recorder,
            now_ns,
        } = self;
        connection.on_segment(&segment, *now_ns, rules, heads, recorder);
        self
    }

    /// Lets time pass until the connection's deadline; returns it in ms.
    fn expire(&mut self) -> u32 {
        let deadline_ms = self.connection.deadline_ms().expect("a timer runs");
        self.now_ns = u64::from(deadline_ms) * MS;
        self.connection
            .on_deadline(self.now_ns, &self.rules, &mut self.recorder);
        deadline_ms
    }

    fn take(&mut self) -> (Vec<Sent>, Vec<Event>) {
        (
            std::mem::take(&mut self.recorder.segments),
            std::mem::take(&mut self.recorder.events),
        )
    }
}

const ACK: u8 = flag::ACK;
const DATA: u8 = flag::ACK | flag::PSH;
const FIN: u8 = flag::ACK | flag::FIN;
const SYN_ACK: u8 = flag::SYN | flag::ACK;
const RST_ACK: u8 = flag::RST | flag::ACK;
/// Sequence numbers behind request and reply.
const REQUEST_END: u32 = 1 + REQUEST.len() as u32;
const REPLY_END: u32 = 1 + REPLY.len() as u32;

const SERVED: Event = Event::Served {
    waited_syn: false,
    waited_request: false,
};

#[test]
fn a_connection_without_losses_takes_six_packets() {
    let mut client = Client::open(Kind::Rfc793);
    assert_eq!(
        client.take(),
        (vec![sent(flag::SYN, 0, 0, 0)], vec![Event::SynSent])
    );
    client.at(1).receive(SYN_ACK, 0, 1, b"");
    assert_eq!(
        client.take(),
        (
            vec![sent(ACK, 1, 1, 0), sent(DATA, 1, 1, REQUEST.len())],
            vec![Event::Connected, Event::SynAckAcked]
        )
    );
    client.at(2).receive(DATA, 1, REQUEST_END, REPLY);
    assert_eq!(
        client.take(),
        (
            vec![
                sent(ACK, REQUEST_END, REPLY_END, 0),
                sent(FIN, REQUEST_END, REPLY_END, 0)
            ],
            vec![SERVED]
        )
    );
    client.at(3).receive(FIN, REPLY_END, REQUEST_END + 1, b"");
    assert_eq!(
        client.take(),
        (vec![sent(ACK, REQUEST_END + 1, REPLY_END + 1, 0)], vec![])
    );
    assert!(client.connection.is_over() && client.connection.deadline_ms().is_none());
}

#[test]
fn the_request_waits_for_a_window_and_is_its_probe_if_none_comes() {
    let request = vec![sent(DATA, 1, 1, REQUEST.len())];
    let mut client = Client::open(Kind::Rfc793);
    client.take();
    client.at(1).receive_with(true, SYN_ACK, 0, 1, b"");
    let events = vec![Event::Connected, Event::SynAckAcked];
    assert_eq!(client.take(), (vec![sent(ACK, 1, 1, 0)], events));
    client.at(2).receive(ACK, 1, 1, b"");
    assert_eq!(client.take(), (request.clone(), vec![]));
    client.at(3).receive(DATA, 1, REQUEST_END, REPLY);
    assert_eq!(client.take().1, [SERVED]);

    let mut silent = Client::open(Kind::Rfc793);
    silent.at(1).receive_with(true, SYN_ACK, 0, 1, b"");
    silent.take();
    silent.expire();
    let events = vec![Event::Retransmitted(Retransmission::Request)];
    assert_eq!(silent.take(), (request, events));
}

#[test]
fn a_lost_syn_is_sent_again_after_1_3_and_7_s_and_given_up_at_the_time_out() {
    let mut client = Client::open(Kind::Rfc793);
    client.take();
    for expected_ms in [1000, 3000, 7000] {
        assert_eq!(client.expire(), expected_ms);
        let events = vec![Event::Retransmitted(Retransmission::Syn), Event::SynSent];
        assert_eq!(client.take(), (vec![sent(flag::SYN, 0, 0, 0)], events));
    }
    assert_eq!(client.expire(), 10_000);
    assert_eq!(
        client.take(),
        (
            vec![],
            vec![Event::TimedOut {
                false_establishment: false
            }]
        )
    );
    assert!(!client.connection.is_known());
}

#[test]
fn a_syn_ack_for_a_client_that_gave_up_gets_a_rst() {
    let mut client = Client::open(Kind::Rfc793);
    for _ in 0..4 {
        client.expire();
    }
    client.take();
    client.receive(SYN_ACK, 0, 1, b"");
    assert_eq!(client.take(), (vec![sent(flag::RST, 1, 0, 0)], vec![]));
}

#[test]
fn a_served_client_that_waited_for_its_syn_is_told_apart() {
    let mut client = Client::open(Kind::Rfc793);
    client.expire();
    client
        .at(1001)
        .receive(SYN_ACK, 0, 1, b"")
        .receive(DATA, 1, REQUEST_END, REPLY);
    assert!(client.take().1.contains(&Event::Served {
        waited_syn: true,
        waited_request: false
    }));
}

#[test]
fn the_request_is_sent_again_when_the_server_lost_the_ack_and_dropped_it() {
    let mut client = Client::established(Kind::Rfc793);
    assert_eq!(client.expire(), 202, "1 ms of round trip, and 200 ms");
    let (segments, events) = client.take();
    assert_eq!(segments, [sent(DATA, 1, 1, REQUEST.len())]);
    assert_eq!(events, [Event::Retransmitted(Retransmission::Request)]);
    assert_eq!(client.expire(), 604, "doubled");
    client.at(605).receive(DATA, 1, REQUEST_END, REPLY);
    assert!(client.take().1.contains(&Event::Served {
        waited_syn: false,
        waited_request: true
    }));
}

#[test]
fn an_acknowledged_request_is_not_sent_again() {
    let mut client = Client::established(Kind::Rfc793);
    client.at(2).receive(ACK, 1, REQUEST_END, b"");
    assert_eq!(client.expire(), 10_000);
    assert_eq!(
        client.take(),
        (
            vec![sent(FIN, REQUEST_END, 1, 0)],
            vec![Event::TimedOut {
                false_establishment: false
            }]
        )
    );
}

#[test]
fn a_repeated_syn_ack_is_acknowledged_again_and_counted() {
    let mut client = Client::established(Kind::Rfc793);
    client.at(1000).receive(SYN_ACK, 0, 1, b"");
    assert_eq!(
        client.take(),
        (vec![sent(ACK, REQUEST_END, 1, 0)], vec![Event::SynAckAcked])
    );
}

#[test]
fn a_rst_to_the_syn_refuses_an_rfc793_client() {
    let mut client = Client::open(Kind::Rfc793);
    client.take();
    client.at(1).receive(RST_ACK, 0, 1, b"");
    assert_eq!(client.take(), (vec![], vec![Event::Refused]));
    assert!(client.connection.is_over());
}

#[test]
fn win_emu_sends_its_syn_twice_more_at_once_before_it_believes_the_rst() {
    let mut client = Client::open(Kind::WinEmu);
    client.take();
    for _ in 0..2 {
        client.at(1).receive(RST_ACK, 0, 1, b"");
        assert_eq!(
            client.take(),
            (vec![sent(flag::SYN, 0, 0, 0)], vec![Event::SynSent])
        );
    }
    client.at(1).receive(RST_ACK, 0, 1, b"");
    assert_eq!(client.take(), (vec![], vec![Event::Refused]));
}

#[test]
fn a_rst_that_acknowledges_something_else_is_not_believed() {
    let mut client = Client::open(Kind::Rfc793);
    client.take();
    client.at(1).receive(RST_ACK, 0, 2, b"");
    assert_eq!(client.take(), (vec![], vec![Event::IgnoredReset]));
    let mut client = Client::established(Kind::Rfc793);
    client.at(2).receive(flag::RST, 2, 0, b"");
    assert_eq!(
        client.take(),
        (
            vec![sent(ACK, REQUEST_END, 1, 0)],
            vec![Event::IgnoredReset]
        )
    );
    assert!(!client.connection.is_over());
}

#[test]
fn a_rst_before_any_byte_was_acknowledged_is_a_false_establishment() {
    let mut client = Client::established(Kind::Rfc793);
    client.at(2).receive(flag::RST, 1, 0, b"");
    assert_eq!(
        client.take(),
        (
            vec![],
            vec![Event::Reset {
                false_establishment: true
            }]
        )
    );
    let mut client = Client::established(Kind::Rfc793);
    client
        .at(2)
        .receive(ACK, 1, REQUEST_END, b"")
        .receive(flag::RST, 1, 0, b"");
    assert_eq!(
        client.take().1,
        [Event::Reset {
            false_establishment: false
        }]
    );
}

#[test]
fn a_time_out_after_the_handshake_closes_and_resets_what_comes_later() {
    let mut client = Client::established(Kind::Rfc793);
    while client.take().1.iter().all(|event| !event.is_final()) {
        client.expire();
    }
    assert_eq!(client.now_ns, 10_000 * MS);
    client.at(10_001).receive(DATA, 1, REQUEST_END, REPLY);
    assert_eq!(
        client.take(),
        (vec![sent(flag::RST, REQUEST_END, 0, 0)], vec![])
    );
    assert!(!client.connection.is_known());
}

#[test]
fn a_time_out_without_an_acknowledged_byte_is_a_false_establishment() {
    let mut client = Client::established(Kind::Rfc793);
    let mut last = Vec::new();
    while last.iter().all(|event: &Event| !event.is_final()) {
        client.expire();
        last = client.take().1;
    }
    assert_eq!(
        last,
        [Event::TimedOut {
            false_establishment: true
        }]
    );
}

#[test]
fn close_rst_ends_with_a_rst_instead_of_a_fin() {
    let mut client = Client::established(Kind::CloseRst);
    client.at(2).receive(DATA, 1, REQUEST_END, REPLY);
    assert_eq!(
        client.take(),
        (
            vec![
                sent(ACK, REQUEST_END, REPLY_END, 0),
                sent(RST_ACK, REQUEST_END, REPLY_END, 0)
            ],
            vec![SERVED]
        )
    );
    assert!(client.connection.is_over());
}

#[test]
fn a_lost_fin_is_sent_again_and_counted_once_as_a_wait() {
    let mut client = Client::established(Kind::Rfc793);
    client.at(2).receive(DATA, 1, REQUEST_END, REPLY);
    client.take();
    client.expire();
    let (segments, events) = client.take();
    assert_eq!(segments, [sent(FIN, REQUEST_END, REPLY_END, 0)]);
    assert_eq!(
        events,
        [
            Event::Retransmitted(Retransmission::Fin),
            Event::WaitedForFin
        ]
    );
    client.expire();
    assert_eq!(client.take().1, [Event::Retransmitted(Retransmission::Fin)]);
}

#[test]
fn a_repeated_fin_of_the_server_is_acknowledged_again() {
    let mut client = Client::established(Kind::Rfc793);
    client
        .at(2)
        .receive(DATA, 1, REQUEST_END, REPLY)
        .receive(FIN, REPLY_END, REQUEST_END + 1, b"");
    client.take();
    client.at(300).receive(FIN, REPLY_END, REQUEST_END + 1, b"");
    assert_eq!(
        client.take(),
        (vec![sent(ACK, REQUEST_END + 1, REPLY_END + 1, 0)], vec![])
    );
}

#[test]
fn a_reply_in_pieces_and_one_repeated_piece_is_served_once() {
    let mut client = Client::established(Kind::Rfc793);
    let cut = 10;
    client.at(2).receive(ACK, 1, REQUEST_END, &REPLY[..cut]);
    client.at(3).receive(ACK, 1, REQUEST_END, &REPLY[..cut]);
    client
        .at(4)
        .receive(ACK, 1 + cut as u32, REQUEST_END, &REPLY[cut..]);
    let (_, events) = client.take();
    assert_eq!(events, [SERVED]);
    assert!(client.heads.is_empty());
}

#[test]
fn data_after_a_gap_is_asked_for_again() {
    let mut client = Client::established(Kind::Rfc793);
    client.at(2).receive(DATA, 5, REQUEST_END, &REPLY[4..]);
    assert_eq!(client.take(), (vec![sent(ACK, REQUEST_END, 1, 0)], vec![]));
}

#[test]
fn error_statuses_and_replies_cut_short_are_no_service() {
    let mut client = Client::established(Kind::Rfc793);
    client.at(2).receive(
        DATA,
        1,
        REQUEST_END,
        b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n",
    );
    assert_eq!(client.take().1, [Event::BadReply { busy: true }]);
    let mut client = Client::established(Kind::Rfc793);
    client
        .at(2)
        .receive(FIN, 1, REQUEST_END, &REPLY[..REPLY.len() - 1]);
    assert_eq!(client.take().1, [Event::BadReply { busy: false }]);
}

#[test]
fn a_server_that_closes_first_is_waited_for() {
    let mut client = Client::with(Rules {
        kind: Kind::Rfc793,
        timeout_ms: 10_000,
        server_closes_first: true,
        request: REQUEST.to_vec(),
    });
    client.at(1).receive(SYN_ACK, 0, 1, b"");
    client.at(2).receive(DATA, 1, REQUEST_END, REPLY);
    let (segments, _) = client.take();
    assert_eq!(
        segments.last(),
        Some(&sent(ACK, REQUEST_END, REPLY_END, 0)),
        "no FIN yet"
    );
    client.at(3).receive(FIN, REPLY_END, REQUEST_END, b"");
    let (segments, _) = client.take();
    assert_eq!(
        segments.last(),
        Some(&sent(FIN, REQUEST_END, REPLY_END + 1, 0))
    );
    client
        .at(4)
        .receive(ACK, REPLY_END + 1, REQUEST_END + 1, b"");
    assert!(client.connection.is_over());
}

#[test]
fn strays_are_answered_as_closed_ports_do() {
    let rows = [
        (
            Segment {
                flags: flag::ACK,
                seq: 5,
                ack: 9,
                timestamps: None,
                window_closed: false,
                payload: b"",
            },
            Some((flag::RST, 9, 0)),
        ),
        (
            Segment {
                flags: flag::SYN,
                seq: 5,
                ack: 0,
                timestamps: None,
                window_closed: false,
                payload: b"",
            },
            Some((RST_ACK, 0, 6)),
        ),
        (
            Segment {
                flags: flag::RST,
                seq: 5,
                ack: 0,
                timestamps: None,
                window_closed: false,
                payload: b"",
            },
            None,
        ),
    ];
    struct Raw(Option<(u8, u32, u32)>);
    impl Sink for Raw {
        fn send(&mut self, segment: Segment<'_>) {
            self.0 = Some((segment.flags, segment.seq, segment.ack));
        }
        fn note(&mut self, _: Event) {}
    }
    for (segment, expected) in rows {
        let mut raw = Raw(None);
        refuse_stray(&segment, &mut raw);
        assert_eq!(raw.0, expected, "{segment:?}");
    }
}

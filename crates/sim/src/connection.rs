//! A connection: two ends, each with a sender and a receiver, and what is asked of them.

use crate::aqm::Ecn;
use crate::aqm::control::{FIN, SYN};

use crate::outcome::Record;
use crate::segment::{MSS, Segment, Side};
use crate::tcp::sender::Ack;
use crate::tcp::{Algorithm, Congestion, Receiver, Sender};

/// TCP flag ACK.
const ACK: u8 = 0x10;
/// Payload of a request, bytes.
const REQUEST_BYTES: u16 = 100;
/// First timeout of a SYN or SYN/ACK, ns (RFC 6298), and how often it is sent again (tcp_syn_retries of Linux).
const SYN_TIMEOUT_NS: u64 = 1_000_000_000;
const SYN_RETRIES: u32 = 6;
/// "For ever", in segments.
const ENDLESS: u32 = 1 << 30;

/// What the client wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Job {
    /// It asks for a reply of so many full segments.
    Download(u32),
    /// It sends without end.
    Upload,
}

/// A connection before it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spec {
    /// When the client sends its SYN, ns.
    pub start_ns: u64,
    /// What for.
    pub job: Job,
    /// Hash of the 5-tuple; that of the other direction is its complement.
    pub flow_hash: u32,
    /// Hash of the client's address.
    pub client_hash: u32,
    /// Hash of the server's address.
    pub server_hash: u32,
    /// Whether it is of a burst.
    pub of_burst: bool,
}

/// How both ends behave.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TcpSpec {
    /// Congestion control.
    pub algorithm: Algorithm,
    /// Initial window, segments.
    pub initial_window: f64,
    /// Whether data is ECN-capable.
    pub ecn: bool,
}

/// Where an end is in the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing sent and nothing received.
    Closed,
    /// A SYN or SYN/ACK is out: so many times, last at this time, ns.
    Opening {
        tries: u32,
        last_ns: u64,
    },
    Established,
    /// It gave up.
    Failed,
}

impl State {
    /// When the SYN or SYN/ACK is sent again, ns; `None` if none is out.
    fn repeat_at_ns(self) -> Option<u64> {
        match self {
            State::Opening { tries, last_ns } => {
                Some(last_ns + (SYN_TIMEOUT_NS << (tries - 1).min(SYN_RETRIES)))
            }
            _ => None,
        }
    }
}

/// One end.
#[derive(Debug, Clone)]
struct End {
    state: State,
    sender: Sender,
    receiver: Receiver,
    /// Payload of its first number, if it is not a full segment.
    first_bytes: u16,
    /// Number with a FIN, and whether that number has payload too.
    fin: Option<(u32, bool)>,
}

/// A connection.
#[derive(Debug, Clone)]
pub struct Connection {
    index: u32,
    spec: Spec,
    tcp: TcpSpec,
    client: End,
    server: End,
    /// What is known of it.
    pub record: Record,
}

/// What an end sends in answer to something.
pub type Sends = Vec<Segment>;

impl Connection {
    /// One that has not started.
    pub fn new(index: u32, spec: Spec, tcp: TcpSpec) -> Connection {
        let end = |first_bytes| End {
            state: State::Closed,
            sender: Sender::new(Congestion::new(tcp.algorithm, tcp.initial_window)),
            receiver: Receiver::default(),
            first_bytes,
            fin: None,
        };
        let segments = match spec.job {
            Job::Download(segments) => segments,
            Job::Upload => 0,
        };
        Connection {
            index,
            spec,
            tcp,
            client: end(match spec.job {
                Job::Download(_) => REQUEST_BYTES,
                Job::Upload => MSS,
            }),
            server: end(MSS),
            record: Record {
                of_burst: spec.of_burst,
                ..Record::new(spec.start_ns, segments)
            },
        }
    }

    fn end(&mut self, side: Side) -> &mut End {
        match side {
            Side::Client => &mut self.client,
            Side::Server => &mut self.server,
        }
    }

    /// Full segments that the client has received in order.
    pub fn received(&self) -> u32 {
        match self.spec.job {
            Job::Download(segments) => self.client.receiver.next.min(segments),
            Job::Upload => 0,
        }
    }

    /// The client opens it.
    pub fn start(&mut self, now_ns: u64, out: &mut Sends) {
        self.client.state = State::Opening {
            tries: 1,
            last_ns: now_ns,
        };
        let syn = self.segment(Side::Client, SYN, now_ns);
        out.push(syn);
    }

    /// When an end wants to be woken, ns.
    pub fn alarm_ns(&self, side: Side) -> Option<u64> {
        let end = match side {
            Side::Client => &self.client,
            Side::Server => &self.server,
        };
        let alarms = [
            end.state.repeat_at_ns(),
            end.sender.alarm_ns(),
            end.receiver.ack_at_ns,
        ];
        alarms.into_iter().flatten().min()
    }

    /// An end's alarm may be due.
    pub fn wake(&mut self, side: Side, now_ns: u64, out: &mut Sends) {
        self.repeat_handshake(side, now_ns, out);
        if let Some(seq) = self.end(side).sender.wake(now_ns) {
            let segment = self.numbered(side, seq, now_ns);
            out.push(segment);
        }
        self.send_all(side, now_ns, out);
        let delayed = self.end(side).receiver.ack_at_ns;
        if delayed.is_some_and(|at_ns| at_ns <= now_ns) {
            let ack = self.segment(side, ACK, now_ns);
            out.push(ack);
        }
    }

    fn repeat_handshake(&mut self, side: Side, now_ns: u64, out: &mut Sends) {
        let state = self.end(side).state;
        let State::Opening { tries, .. } = state else {
            return;
        };
        if state.repeat_at_ns().is_some_and(|at_ns| now_ns < at_ns) {
            return;
        }
        if tries > SYN_RETRIES {
            self.end(side).state = State::Failed;
            return;
        }
        self.end(side).state = State::Opening {
            tries: tries + 1,
            last_ns: now_ns,
        };
        self.send_handshake(side, now_ns, out);
    }

    /// Another SYN or SYN/ACK.
    fn send_handshake(&mut self, side: Side, now_ns: u64, out: &mut Sends) {
        self.record.syn_repeats += 1;
        let flags = match side {
            Side::Client => SYN,
            Side::Server => SYN | ACK,
        };
        let segment = self.segment(side, flags, now_ns);
        out.push(segment);
    }

    /// A segment arrives at the end `to`.
    pub fn arrive(&mut self, segment: &Segment, to: Side, now_ns: u64, out: &mut Sends) {
        if segment.has(SYN) {
            return self.shake_hands(segment, to, now_ns, out);
        }
        if to == Side::Server && matches!(self.server.state, State::Opening { .. }) {
            self.open(Side::Server, segment.echo_ns, now_ns);
        }
        let ack = Ack {
            ack: segment.ack,
            sack: &segment.sack,
            echo_ns: segment.echo_ns,
            ece: segment.ece,
        };
        if let Some(rtt_ns) = self.end(to).sender.acked(ack, now_ns)
            && to == Side::Server
        {
            self.record.rtt.0 += 1;
            self.record.rtt.1 += rtt_ns;
        }
        let mut at_once = false;
        if segment.is_numbered() {
            at_once = self.end(to).receiver.arrived(segment, now_ns);
            self.react(to, now_ns);
        }
        let before = out.len();
        self.send_all(to, now_ns, out);
        // Data carries the acknowledgement too.
        if at_once && out.len() == before {
            let ack = self.segment(to, ACK, now_ns);
            out.push(ack);
        }
    }

    fn shake_hands(&mut self, segment: &Segment, to: Side, now_ns: u64, out: &mut Sends) {
        match (to, self.end(to).state) {
            (Side::Server, State::Closed) => {
                self.server.state = State::Opening {
                    tries: 1,
                    last_ns: now_ns,
                };
                let answer = self.segment(Side::Server, SYN | ACK, now_ns);
                out.push(answer);
            }
            // The client has not seen the SYN/ACK.
            (Side::Server, State::Opening { .. }) => {
                self.send_handshake(Side::Server, now_ns, out);
            }
            (Side::Client, State::Opening { .. }) => {
                self.record.connect_ns = Some(now_ns - self.spec.start_ns);
                self.open(Side::Client, segment.echo_ns, now_ns);
                let ack = self.segment(Side::Client, ACK, now_ns);
                out.push(ack);
                self.client.sender.written = match self.spec.job {
                    Job::Download(_) => 1,
                    Job::Upload => ENDLESS,
                };
                self.send_all(Side::Client, now_ns, out);
            }
            // It was answered before, and the answer was lost.
            (Side::Client, State::Established) => {
                let ack = self.segment(Side::Client, ACK, now_ns);
                out.push(ack);
            }
            _ => {}
        }
    }

    /// The handshake is over at this end.
    fn open(&mut self, side: Side, echo_ns: u64, now_ns: u64) {
        let end = self.end(side);
        end.state = State::Established;
        if echo_ns > 0 {
            end.sender.rtt.measured(now_ns - echo_ns);
        }
    }

    /// What the application does with what has arrived.
    fn react(&mut self, side: Side, now_ns: u64) {
        let Job::Download(segments) = self.spec.job else {
            return;
        };
        match side {
            Side::Server if self.server.receiver.next >= 1 && self.server.fin.is_none() => {
                // What fits into the window leaves before the application can close: the FIN follows alone.
                let is_alone = f64::from(segments) <= self.server.sender.congestion.window;
                self.server.sender.written = segments + u32::from(is_alone);
                self.server.fin = Some((self.server.sender.written - 1, !is_alone));
            }
            Side::Client => {
                let next = self.client.receiver.next;
                if next >= segments && self.record.response_ns.is_none() {
                    self.record.response_ns = Some(now_ns - self.spec.start_ns);
                }
                let end = self.server.fin.map_or(u32::MAX, |(fin, _)| fin + 1);
                if next >= end && self.client.fin.is_none() {
                    self.client.sender.written = 2;
                    self.client.fin = Some((1, false));
                }
            }
            Side::Server => {}
        }
    }

    /// Sends what the window allows.
    fn send_all(&mut self, side: Side, now_ns: u64, out: &mut Sends) {
        if self.end(side).state != State::Established {
            return;
        }
        while let Some(seq) = self.end(side).sender.send(now_ns) {
            let segment = self.numbered(side, seq, now_ns);
            out.push(segment);
        }
    }

    /// The segment with this number.
    fn numbered(&mut self, side: Side, seq: u32, now_ns: u64) -> Segment {
        let mut segment = self.segment(side, ACK, now_ns);
        let ecn = self.tcp.ecn;
        let end = self.end(side);
        segment.seq = seq;
        segment.payload = if seq == 0 { end.first_bytes } else { MSS };
        if let Some((fin, has_payload)) = end.fin
            && seq == fin
        {
            segment.flags |= FIN;
            if !has_payload {
                segment.payload = 0;
            }
        }
        if ecn {
            segment.ecn = Ecn::Ect;
            segment.cwr = end.sender.take_reduced();
        }
        segment
    }

    /// A segment without number, with the state of this end's receiver.
    fn segment(&mut self, side: Side, flags: u8, now_ns: u64) -> Segment {
        let Spec {
            flow_hash,
            client_hash,
            server_hash,
            ..
        } = self.spec;
        let (flow_hash, source_hash, destination_hash) = match side {
            Side::Client => (flow_hash, client_hash, server_hash),
            Side::Server => (!flow_hash, server_hash, client_hash),
        };
        let index = self.index;
        // A SYN/ACK echoes the SYN's time: that of the client's latest.
        let syn_ns = match self.client.state {
            State::Opening { last_ns, .. } => last_ns,
            _ => 0,
        };
        let synack_ns = match self.server.state {
            State::Opening { last_ns, .. } => last_ns,
            _ => 0,
        };
        let ack = self.end(side).receiver.acknowledge();
        let echo_ns = match (side, flags & SYN != 0) {
            (Side::Client, true) => 0,
            (Side::Server, true) => syn_ns,
            // Until data has come, the client echoes the SYN/ACK.
            (Side::Client, false) if ack.echo_ns == 0 => synack_ns,
            _ => ack.echo_ns,
        };
        Segment {
            connection: Some(index),
            from: side,
            flags,
            seq: 0,
            payload: 0,
            ack: ack.ack,
            sack: ack.sack,
            sent_ns: now_ns,
            echo_ns,
            ece: ack.ece,
            cwr: false,
            ecn: Ecn::NotEct,
            flow_hash,
            source_hash,
            destination_hash,
        }
    }

    /// Adds what the senders have counted to the record.
    pub fn close_record(&mut self) {
        let senders = [&self.client.sender, &self.server.sender];
        self.record.timeouts = senders.map(|sender| sender.timeouts).iter().sum();
        self.record.repeats = senders.map(|sender| sender.repeated).iter().sum();
        self.record.last_rtt_ns = self.server.sender.rtt.smoothed_ns;
        for (count, delay_ns) in senders.map(|sender| sender.repeat_delay) {
            self.record.repeat_delay.0 += count;
            self.record.repeat_delay.1 += delay_ns;
        }
    }
}

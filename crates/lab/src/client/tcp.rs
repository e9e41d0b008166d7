//! The client's side of one TCP connection as a pure state machine: segment or deadline in, segments
//! and events out, time as an argument.
//!
//! It behaves as a client on Linux before 6.5 does that connects, sends one request, reads the
//! whole reply and closes:
//! - SYN again after 1, 3 and 7 s (RFC 6298; since 6.5 it is after 1, 2, 3, 4, 5 and 7 s);
//! - the ACK of the SYN/ACK and the request are two packets;
//! - the request again after RTT + max(2 RTT, 200 ms), doubling; FIN likewise;
//! - after the reply an ACK, then FIN (or RST with [`Kind::CloseRst`]);
//! - at the client's time-out a connect() in progress is given up without a packet, an established
//!   connection is closed with FIN (or RST), and data that comes later is answered with RST.
//!
//! Data out of order is dropped and acknowledged again, so that the server's retransmission brings
//! it; the request and the server's usual reply fit one segment each.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::packet::{Segment, flag};

/// How clients treat refusals and how they close (SB06, Section IV).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Gives up at a RST to its SYN, closes with FIN.
    Rfc793,
    /// Sends its SYN again, at once and up to two times, after a RST (SB06's win-emu).
    WinEmu,
    /// Closes with RST (SO_LINGER 0), as Internet Explorer 5 and 6 did.
    CloseRst,
}

impl Kind {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Rfc793 => "rfc793",
            Kind::WinEmu => "win-emu",
            Kind::CloseRst => "close-rst",
        }
    }
}

/// What all connections of a run have in common.
#[derive(Debug, Clone)]
pub struct Rules {
    /// Kind of client.
    pub kind: Kind,
    /// From the first SYN on, ms.
    pub timeout_ms: u32,
    /// The server is the one to close; the client waits for its FIN.
    pub server_closes_first: bool,
    /// The request.
    pub request: Vec<u8>,
}

/// A segment that was sent again by a timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retransmission {
    /// SYN.
    Syn,
    /// The request.
    Request,
    /// FIN.
    Fin,
}

/// What happened to a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A SYN went out (first, again by timer, or again after a RST).
    SynSent,
    /// An ACK went out that answers a SYN/ACK, the first or a repeated one.
    SynAckAcked,
    /// The first SYN/ACK came: connect() returns.
    Connected,
    /// The whole reply came, with a 2xx status.
    Served {
        /// The SYN was sent again before.
        waited_syn: bool,
        /// The request was sent again before.
        waited_request: bool,
    },
    /// A reply came that is no use: other status, not HTTP, or cut short.
    BadReply {
        /// Its status is 429 or 503, by which servers and proxies say that there are too many clients.
        busy: bool,
    },
    /// A RST answered the SYN (the last try of win-emu).
    Refused,
    /// A RST came after the SYN/ACK and before the reply.
    Reset {
        /// Not one byte of the request was ever acknowledged.
        false_establishment: bool,
    },
    /// The client gave up.
    TimedOut {
        /// It had a SYN/ACK, but not one byte of its request was ever acknowledged.
        false_establishment: bool,
    },
    /// A timer sent something again.
    Retransmitted(Retransmission),
    /// The first FIN retransmission of a served client.
    WaitedForFin,
    /// A RST came that this state of the connection must not believe.
    IgnoredReset,
}

impl Event {
    /// Whether the client's wait is over with this event; each connection has exactly one such.
    pub fn is_final(self) -> bool {
        use Event::*;
        matches!(
            self,
            Served { .. } | BadReply { .. } | Refused | Reset { .. } | TimedOut { .. }
        )
    }
}

/// Takes what a connection does.
pub trait Sink {
    /// A segment to send.
    fn send(&mut self, segment: Segment<'_>);
    /// Something to count.
    fn note(&mut self, event: Event);
}

/// Reply heads that came in parts, by connection number; hardly ever used.
pub type Heads = HashMap<u32, Vec<u8>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing is known of the connection.
    Free,
    SynSent,
    Established,
    /// Reply complete, waiting for the server's FIN (server closes first).
    AwaitFin,
    FinWait1,
    FinWait2,
    /// Both have closed, our FIN is not acknowledged yet.
    LastAck,
    /// Answers repeated FINs (TIME_WAIT without a timer).
    Closed,
}

const SERVED: u8 = 1;
const SYN_RETRANSMITTED: u8 = 2;
const REQUEST_RETRANSMITTED: u8 = 4;
const REQUEST_ACKED: u8 = 8;
const TIMESTAMPS: u8 = 16;
const BAD_STATUS: u8 = 32;
/// The bad status is one of [`BUSY_STATUSES`].
const BUSY_STATUS: u8 = 64;
/// The server takes no data yet, as a SYN proxy that has not reached it; the request is not sent.
const REQUEST_HELD: u8 = 128;

/// Too Many Requests, Service Unavailable.
const BUSY_STATUSES: [u16; 2] = [429, 503];

/// The head of the reply is not complete.
const HEAD_PENDING: u32 = u32::MAX;
/// The reply ends with the connection.
const UNTIL_FIN: u32 = u32::MAX - 1;

/// First SYN time-out (RFC 6298, 2.1).
const SYN_RTO_MS: u32 = 1000;
/// Linux's TCP_RTO_MIN.
const MIN_RTO_MS: u32 = 200;
/// RTO without a sample (RFC 6298, 5.7).
const FALLBACK_RTO_MS: u32 = 3000;
/// FINs sent again before the connection is forgotten; Linux sends 8, which takes 100 s.
const FIN_TRIES: u8 = 6;
/// SYNs that win-emu sends at once after RSTs.
const WIN_EMU_RETRIES: u8 = 2;
/// How long the server's FIN is waited for (Linux: tcp_fin_timeout, 60 s).
const FIN_WAIT2_MS: u32 = 10_000;

/// One connection; small, since millions of them are kept.
#[derive(Debug, Clone)]
pub struct Connection {
    start_ns: u64,
    number: u32,
    iss: u32,
    /// Relative to `iss`.
    snd_nxt: u32,
    rcv_nxt: u32,
    ts_recent: u32,
    deadline_ms: u32,
    reply_left: u32,
    rto_ms: u32,
    state: State,
    flags: u8,
    tries: u8,
    refusals: u8,
}

/// ns to ms, rounded down.
pub fn to_ms(ns: u64) -> u32 {
    (ns / 1_000_000) as u32
}

impl Connection {
    /// A slot without a connection.
    pub const FREE: Connection = Connection {
        start_ns: 0,
        number: u32::MAX,
        iss: 0,
        snd_nxt: 1,
        rcv_nxt: 0,
        ts_recent: 0,
        deadline_ms: 0,
        reply_left: HEAD_PENDING,
        rto_ms: 0,
        state: State::Free,
        flags: 0,
        tries: 0,
        refusals: 0,
    };

    /// Sends the first SYN of connection `number`.
    pub fn open(number: u32, now_ns: u64, rules: &Rules, sink: &mut impl Sink) -> Connection {
        // Any spread will do for the initial sequence number; Knuth's multiplicative hash.
        let iss = number.wrapping_mul(2_654_435_761);
        let mut connection = Connection {
            start_ns: now_ns,
            number,
            iss,
            state: State::SynSent,
            ..Connection::FREE
        };
        connection.send_syn(now_ns, sink);
        connection.deadline_ms = to_ms(now_ns) + SYN_RTO_MS.min(rules.timeout_ms);
        connection
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// When its first SYN was sent.
    pub fn start_ns(&self) -> u64 {
        self.start_ns
    }

    /// When [`Connection::on_deadline`] is to be called, ms; `None`: no timer runs.
    pub fn deadline_ms(&self) -> Option<u32> {
        (!matches!(self.state, State::Free | State::Closed)).then_some(self.deadline_ms)
    }

    /// Whether segments for its four-tuple are its own; others are answered by [`refuse_stray`].
    pub fn is_known(&self) -> bool {
        self.state != State::Free
    }

    /// Whether another connection may take its slot.
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Free | State::Closed)
    }

    /// A segment for this connection came.
    pub fn on_segment(
        &mut self,
        segment: &Segment<'_>,
        now_ns: u64,
        rules: &Rules,
        heads: &mut Heads,
        sink: &mut impl Sink,
    ) {
        match self.state {
            State::Free => refuse_stray(segment, sink),
            State::SynSent => self.on_syn_sent(segment, now_ns, rules, sink),
            _ if segment.has(flag::RST) => self.on_reset(segment, now_ns, sink),
            _ if segment.has(flag::SYN) => self.repeat_handshake_ack(segment, now_ns, sink),
            _ => {
                self.take_ack(segment, now_ns, rules);
                if self.flags & REQUEST_HELD != 0 && !segment.window_closed {
                    self.send_request(now_ns, rules, sink);
                    self.arm_request_timer(now_ns, rules);
                }
                self.take_data(segment, now_ns, rules, heads, sink);
            }
        }
    }

    /// Its deadline has come.
    pub fn on_deadline(&mut self, now_ns: u64, rules: &Rules, sink: &mut impl Sink) {
        let now_ms = to_ms(now_ns);
        let waiting = matches!(self.state, State::SynSent | State::Established);
        if waiting && now_ms >= self.timeout_at_ms(rules) {
            return self.time_out(now_ns, rules, sink);
        }
        match self.state {
            State::Free | State::Closed => {}
            State::SynSent => self.retransmit_syn(now_ns, rules, sink),
            State::Established => self.retransmit_request(now_ns, rules, sink),
            State::AwaitFin => self.close(now_ns, rules, sink),
            State::FinWait1 | State::LastAck => self.retransmit_fin(now_ns, rules, sink),
            State::FinWait2 => self.state = State::Closed,
        }
    }

    fn on_syn_sent(&mut self, segment: &Segment, now_ns: u64, rules: &Rules, sink: &mut impl Sink) {
        let acks_syn = segment.has(flag::ACK) && segment.ack == self.iss.wrapping_add(1);
        match (segment.has(flag::RST), segment.has(flag::SYN | flag::ACK)) {
            (true, _) if acks_syn => self.on_refusal(now_ns, rules, sink),
            (true, _) => sink.note(Event::IgnoredReset),
            (false, true) if acks_syn => self.establish(segment, now_ns, rules, sink),
            _ => refuse_stray(segment, sink),
        }
    }

    fn on_refusal(&mut self, now_ns: u64, rules: &Rules, sink: &mut impl Sink) {
        if rules.kind == Kind::WinEmu && self.refusals < WIN_EMU_RETRIES {
            self.refusals += 1;
            return self.send_syn(now_ns, sink);
        }
        self.state = State::Free;
        sink.note(Event::Refused);
    }

    fn establish(&mut self, segment: &Segment, now_ns: u64, rules: &Rules, sink: &mut impl Sink) {
        self.state = State::Established;
        self.tries = 0;
        self.rcv_nxt = segment.seq.wrapping_add(1);
        if let Some((value, _)) = segment.timestamps {
            self.flags |= TIMESTAMPS;
            self.ts_recent = value;
        }
        self.rto_ms = self.first_rto_ms(segment, now_ns);
        sink.note(Event::Connected);
        sink.note(Event::SynAckAcked);
        self.send(flag::ACK, 1, b"", now_ns, sink);
        match segment.window_closed {
            true => self.flags |= REQUEST_HELD,
            false => self.send_request(now_ns, rules, sink),
        }
        // If the window stays closed, the request goes out when the timer fires, as a probe of it.
        self.arm_request_timer(now_ns, rules);
    }

    fn send_request(&mut self, now_ns: u64, rules: &Rules, sink: &mut impl Sink) {
        self.flags &= !REQUEST_HELD;
        self.snd_nxt = 1 + rules.request.len() as u32;
        self.send(flag::ACK | flag::PSH, 1, &rules.request, now_ns, sink);
    }

    /// RTT + max(2 RTT, 200 ms), as Linux sets it after one sample.
    fn first_rto_ms(&self, segment: &Segment, now_ns: u64) -> u32 {
        let rtt_ms = match segment.timestamps {
            Some((_, echo)) if echo != 0 => timestamp(now_ns).wrapping_sub(echo),
            _ if self.flags & SYN_RETRANSMITTED == 0 => to_ms(now_ns - self.start_ns),
            _ => return FALLBACK_RTO_MS,
        };
        rtt_ms + (2 * rtt_ms).max(MIN_RTO_MS)
    }

    /// A SYN/ACK again: the server has not seen our ACK, or had no room for it.
    fn repeat_handshake_ack(&mut self, segment: &Segment, now_ns: u64, sink: &mut impl Sink) {
        if segment.seq.wrapping_add(1) == self.rcv_nxt || self.state == State::Established {
            sink.note(Event::SynAckAcked);
        }
        self.send_ack(now_ns, sink);
    }

    fn on_reset(&mut self, segment: &Segment, now_ns: u64, sink: &mut impl Sink) {
        if segment.seq != self.rcv_nxt {
            // RFC 5961: a RST inside the window is challenged, one outside is dropped.
            sink.note(Event::IgnoredReset);
            if segment.seq.wrapping_sub(self.rcv_nxt) < 0xffff {
                self.send_ack(now_ns, sink);
            }
            return;
        }
        if self.state == State::Established {
            sink.note(Event::Reset {
                false_establishment: self.flags & REQUEST_ACKED == 0,
            });
        }
        self.state = State::Free;
    }

    fn take_ack(&mut self, segment: &Segment, now_ns: u64, rules: &Rules) {
        if !segment.has(flag::ACK) {
            return;
        }
        let acked = segment.ack.wrapping_sub(self.iss);
        let request_end = 1 + rules.request.len() as u32;
        if acked > request_end + 1 {
            return;
        }
        if acked > 1 && self.flags & REQUEST_ACKED == 0 {
            self.flags |= REQUEST_ACKED;
            if self.state == State::Established {
                self.deadline_ms = self.timeout_at_ms(rules);
            }
        }
        if acked == request_end + 1 {
            match self.state {
                State::FinWait1 => {
                    self.state = State::FinWait2;
                    self.deadline_ms = to_ms(now_ns) + FIN_WAIT2_MS;
                }
                State::LastAck => self.state = State::Closed,
                _ => {}
            }
        }
    }

    fn take_data(
        &mut self,
        segment: &Segment,
        now_ns: u64,
        rules: &Rules,
        heads: &mut Heads,
        sink: &mut impl Sink,
    ) {
        if segment.length() == 0 {
            return;
        }
        let known = self.rcv_nxt.wrapping_sub(segment.seq);
        if known >= segment.length() {
            // Before the window (we have it) or after a gap (we want it again).
            return self.send_ack(now_ns, sink);
        }
        if let Some((value, _)) = segment.timestamps {
            self.ts_recent = value;
        }
        let fresh = segment.payload.get(known as usize..).unwrap_or_default();
        if !fresh.is_empty() && self.state != State::Established {
            // Data for a socket that is closed.
            self.state = State::Free;
            return refuse_stray(segment, sink);
        }
        self.rcv_nxt = segment.seq.wrapping_add(segment.length());
        let fin = segment.has(flag::FIN);
        self.send_ack(now_ns, sink);
        if self.state == State::Established {
            self.take_reply(fresh, fin, now_ns, rules, heads, sink);
        }
        if fin {
            self.on_fin(now_ns, rules, sink);
        }
    }

    fn take_reply(
        &mut self,
        fresh: &[u8],
        fin: bool,
        now_ns: u64,
        rules: &Rules,
        heads: &mut Heads,
        sink: &mut impl Sink,
    ) {
        let complete = match self.reply_left {
            HEAD_PENDING => self.take_head(fresh, heads),
            UNTIL_FIN => Ok(()),
            left => {
                self.reply_left = left.saturating_sub(fresh.len() as u32);
                Ok(())
            }
        };
        let complete =
            complete.map(|()| self.reply_left == 0 || (fin && self.reply_left == UNTIL_FIN));
        match complete {
            Ok(true) => self.finish_reply(fin, now_ns, rules, sink),
            Ok(false) if !fin => {}
            Ok(false) | Err(NotHttp) => {
                sink.note(Event::BadReply { busy: false });
                heads.remove(&self.number);
                self.state = State::AwaitFin;
                if !fin {
                    self.close(now_ns, rules, sink);
                }
            }
        }
    }

    fn finish_reply(&mut self, fin: bool, now_ns: u64, rules: &Rules, sink: &mut impl Sink) {
        if self.flags & BAD_STATUS != 0 {
            let busy = self.flags & BUSY_STATUS != 0;
            sink.note(Event::BadReply { busy });
        } else {
            self.flags |= SERVED;
            sink.note(Event::Served {
                waited_syn: self.flags & SYN_RETRANSMITTED != 0,
                waited_request: self.flags & REQUEST_RETRANSMITTED != 0,
            });
        }
        self.state = State::AwaitFin;
        self.deadline_ms = self.timeout_at_ms(rules);
        if !fin && !rules.server_closes_first {
            self.close(now_ns, rules, sink);
        }
    }

    fn take_head(&mut self, fresh: &[u8], heads: &mut Heads) -> Result<(), NotHttp> {
        let mut joined = heads.remove(&self.number).unwrap_or_default();
        let head = if joined.is_empty() {
            fresh
        } else {
            joined.extend_from_slice(fresh);
            &joined
        };
        match parse_head(head)? {
            None => {
                heads.insert(self.number, head.to_vec());
            }
            Some(parsed) => {
                self.reply_left = match parsed.content_bytes {
                    Some(content) => {
                        (parsed.head_bytes + content).saturating_sub(head.len() as u32)
                    }
                    None => UNTIL_FIN,
                };
                if !(200..300).contains(&parsed.status) {
                    self.flags |= BAD_STATUS;
                }
                if BUSY_STATUSES.contains(&parsed.status) {
                    self.flags |= BUSY_STATUS;
                }
            }
        }
        Ok(())
    }

    fn on_fin(&mut self, now_ns: u64, rules: &Rules, sink: &mut impl Sink) {
        match self.state {
            State::AwaitFin | State::Established => {
                self.close(now_ns, rules, sink);
                if self.state == State::FinWait1 {
                    self.state = State::LastAck;
                }
            }
            State::FinWait1 => self.state = State::LastAck,
            State::FinWait2 => self.state = State::Closed,
            _ => {}
        }
    }

    /// close(2): FIN, or RST for a client with SO_LINGER 0.
    fn close(&mut self, now_ns: u64, rules: &Rules, sink: &mut impl Sink) {
        if rules.kind == Kind::CloseRst {
            self.state = State::Free;
            return self.send(flag::RST | flag::ACK, self.snd_nxt, b"", now_ns, sink);
        }
        // The FIN is behind the request, also behind one that could not be sent yet.
        self.snd_nxt = 1 + rules.request.len() as u32;
        self.state = State::FinWait1;
        self.tries = 0;
        self.send(flag::FIN | flag::ACK, self.snd_nxt, b"", now_ns, sink);
        self.snd_nxt += 1;
        self.deadline_ms = to_ms(now_ns) + self.rto_ms;
    }

    fn time_out(&mut self, now_ns: u64, rules: &Rules, sink: &mut impl Sink) {
        let established = self.state == State::Established;
        let false_establishment = established && self.flags & REQUEST_ACKED == 0;
        sink.note(Event::TimedOut {
            false_establishment,
        });
        if established {
            self.close(now_ns, rules, sink);
        } else {
            self.state = State::Free;
        }
    }

    fn retransmit_syn(&mut self, now_ns: u64, rules: &Rules, sink: &mut impl Sink) {
        self.tries += 1;
        self.flags |= SYN_RETRANSMITTED;
        sink.note(Event::Retransmitted(Retransmission::Syn));
        self.send_syn(now_ns, sink);
        let next_ms = to_ms(now_ns) + (SYN_RTO_MS << self.tries.min(6));
        self.deadline_ms = next_ms.min(self.timeout_at_ms(rules));
    }

    fn retransmit_request(&mut self, now_ns: u64, rules: &Rules, sink: &mut impl Sink) {
        if self.flags & REQUEST_ACKED == 0 {
            self.flags |= REQUEST_RETRANSMITTED;
            sink.note(Event::Retransmitted(Retransmission::Request));
            self.send_request(now_ns, rules, sink);
            self.rto_ms *= 2;
        }
        self.arm_request_timer(now_ns, rules);
    }

    fn retransmit_fin(&mut self, now_ns: u64, rules: &Rules, sink: &mut impl Sink) {
        self.tries += 1;
        if self.tries > FIN_TRIES {
            self.state = State::Free;
            return;
        }
        if self.flags & REQUEST_ACKED == 0 {
            self.send(flag::ACK | flag::PSH, 1, &rules.request, now_ns, sink);
        }
        sink.note(Event::Retransmitted(Retransmission::Fin));
        if self.tries == 1 && self.flags & SERVED != 0 {
            sink.note(Event::WaitedForFin);
        }
        self.send(flag::FIN | flag::ACK, self.snd_nxt - 1, b"", now_ns, sink);
        self.rto_ms *= 2;
        self.deadline_ms = to_ms(now_ns) + self.rto_ms;
    }

    fn arm_request_timer(&mut self, now_ns: u64, rules: &Rules) {
        let timeout_ms = self.timeout_at_ms(rules);
        let acked = self.flags & REQUEST_ACKED != 0;
        self.deadline_ms = if acked {
            timeout_ms
        } else {
            timeout_ms.min(to_ms(now_ns) + self.rto_ms)
        };
    }

    fn timeout_at_ms(&self, rules: &Rules) -> u32 {
        to_ms(self.start_ns) + rules.timeout_ms
    }

    fn send_syn(&mut self, now_ns: u64, sink: &mut impl Sink) {
        sink.note(Event::SynSent);
        sink.send(Segment {
            flags: flag::SYN,
            seq: self.iss,
            ack: 0,
            timestamps: Some((timestamp(now_ns), 0)),
            window_closed: false,
            payload: b"",
        });
    }

    /// A pure ACK. It must carry the next sequence number: one before it is outside the server's
    /// window, and would be answered instead of taken.
    fn send_ack(&mut self, now_ns: u64, sink: &mut impl Sink) {
        self.send(flag::ACK, self.snd_nxt, b"", now_ns, sink);
    }

    fn send(&self, flags: u8, offset: u32, payload: &[u8], now_ns: u64, sink: &mut impl Sink) {
        let timestamps =
            (self.flags & TIMESTAMPS != 0).then(|| (timestamp(now_ns), self.ts_recent));
        let seq = self.iss.wrapping_add(offset);
        sink.send(Segment {
            flags,
            seq,
            ack: self.rcv_nxt,
            timestamps,
            window_closed: false,
            payload,
        });
    }
}

/// The TSval clock: ms, never 0.
fn timestamp(now_ns: u64) -> u32 {
    to_ms(now_ns) + 1
}

/// What a closed port answers (RFC 793, page 36); nothing to a RST.
pub fn refuse_stray(segment: &Segment<'_>, sink: &mut impl Sink) {
    if segment.has(flag::RST) {
        return;
    }
    let (flags, seq, ack) = if segment.has(flag::ACK) {
        (flag::RST, segment.ack, 0)
    } else {
        (
            flag::RST | flag::ACK,
            0,
            segment.seq.wrapping_add(segment.length()),
        )
    };
    sink.send(Segment {
        flags,
        seq,
        ack,
        timestamps: None,
        window_closed: false,
        payload: b"",
    });
}

#[derive(Debug, PartialEq, Eq)]
struct NotHttp;

struct Head {
    status: u16,
    head_bytes: u32,
    content_bytes: Option<u32>,
}

fn parse_head(bytes: &[u8]) -> Result<Option<Head>, NotHttp> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut response = httparse::Response::new(&mut headers);
    let head_bytes = match response.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length as u32,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err(NotHttp),
    };
    let length = response
        .headers
        .iter()
        .find(|h| h.name.eq_ignore_ascii_case("content-length"));
    let content_bytes = match length {
        Some(h) => {
            let text = std::str::from_utf8(h.value).map_err(|_| NotHttp)?;
            Some(text.trim().parse().map_err(|_| NotHttp)?)
        }
        None => None,
    };
    Ok(Some(Head {
        status: response.code.unwrap_or(0),
        head_bytes,
        content_bytes,
    }))
}

#[cfg(test)]
#[path = "tcp_tests.rs"]
mod tests;

//! The generator's loop.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::packet::{self, Endpoint, Incoming, MAX_FRAME_BYTES, Segment};
use super::tcp::{self, Connection, Event, Heads, Rules, Sink};
use super::tuples;
use super::wheel::Wheel;
use super::{Load, Phase, Run, Schedule, Tally};
use crate::bed::{Bed, Tap};
use crate::error::{Context, Error, Result};
use crate::interrupt;

/// SYNs sent in one turn.
const SYNS_PER_TURN: u32 = 32;
/// Frames taken in one turn; more than SYNs, since the server must not wait for the generator.
const FRAMES_PER_TURN: u32 = 128;
/// A SYN sent this long after it was due is late.
const LATE_NS: u64 = 10_000_000;
/// Share of late SYNs above which a run does not count.
const MAX_LATE_SHARE: f64 = 0.01;
/// Relative error of the offered rate above which a run does not count.
const MAX_RATE_ERROR: f64 = 0.02;
/// How much longer than its time-out a connection may occupy its slot (FIN retransmissions).
const CLOSING: Duration = Duration::from_secs(5);
/// The table's limits; the upper one divides [`tuples::NUMBERS`], so that slots follow from numbers.
const SLOTS: Range<usize> = 1 << 16..1 << 22;
/// Longest frame from the server: the wire's MTU and the Ethernet header.
const FRAME_BYTES: usize = 2048;
/// The close is over when the server has been silent for this long …
const SILENCE_NS: u64 = 30_000_000;
/// … or after this long in any case.
const CLOSE_GRACE_NS: u64 = 500_000_000;
/// Turns between two looks at the interrupt flag.
const TURNS_PER_CHECK: u32 = 1024;

pub(super) struct Engine<'a> {
    wire: &'a Tap,
    server: Endpoint,
    rules: Rules,
    schedule: Schedule,
    window_ns: Range<u64>,
    table: Vec<Connection>,
    wheel: Wheel,
    heads: Heads,
    tally: Tally,
    next_number: u32,
    pace: Pace,
    /// Connections whose wait is not over.
    unresolved: u64,
    /// Packets sent, of the whole run.
    sent: u64,
    received: u64,
    last_received_ns: u64,
}

/// How well the generator kept to its schedule inside the window.
#[derive(Default)]
struct Pace {
    late: u64,
    worst_ns: u64,
    skipped: u64,
    max_in_flight: u64,
    packets_in_window: (u64, u64),
}

impl<'a> Engine<'a> {
    pub(super) fn new(bed: &'a Bed, load: &Load, next_number: u32) -> Engine<'a> {
        let begin = load.warm_up.as_nanos() as u64;
        let window_ns = begin..begin + load.window.as_nanos() as u64;
        let lifetime_s = (load.timeout + CLOSING).as_secs_f64();
        let lifetime_s = lifetime_s.min((load.warm_up + load.window + load.timeout).as_secs_f64());
        let run = Duration::ZERO..load.warm_up + load.window;
        let rate_per_s = load.pattern.mean_rate_per_s(load.rate_per_s, run);
        let slots = ((rate_per_s * lifetime_s) as usize).clamp(SLOTS.start, SLOTS.end);
        Engine {
            wire: &bed.wire,
            server: Endpoint {
                ip: load.target.ip(),
                port: load.target.port(),
            },
            rules: Rules {
                kind: load.kind,
                timeout_ms: load.timeout.as_millis() as u32,
                server_closes_first: load.server_closes_first,
                request: request(load.target, load.server_closes_first),
            },
            schedule: Schedule::new(load.pattern, load.rate_per_s),
            tally: Tally::new(window_ns.clone()),
            window_ns,
            table: vec![Connection::FREE; slots.next_power_of_two().min(SLOTS.end)],
            wheel: Wheel::new(0),
            heads: Heads::new(),
            next_number,
            pace: Pace::default(),
            unresolved: 0,
            sent: 0,
            received: 0,
            last_received_ns: 0,
        }
    }

    pub(super) fn next_number(&self) -> u32 {
        self.next_number
    }

    /// Warm-up, window and, if wanted, the wait for every connection's fate.
    pub(super) fn run(&mut self, load: &Load, mut at_phase: impl FnMut(Phase)) -> Result<()> {
        let clock = Instant::now();
        let now_ns = || clock.elapsed().as_nanos() as u64;
        let window = self.window_ns.clone();
        self.turn_until(&now_ns, |_, now| now >= window.start)?;
        at_phase(Phase::WindowBegins);
        let (sent, received) = (self.sent, self.received);
        self.turn_until(&now_ns, |_, now| now >= window.end)?;
        at_phase(Phase::WindowEnds);
        self.pace.packets_in_window = (self.sent - sent, self.received - received);
        if load.drain {
            self.turn_until(&now_ns, |engine, _| engine.unresolved == 0)?;
            let grace_ends = now_ns() + CLOSE_GRACE_NS;
            self.turn_until(&now_ns, |engine, now| {
                now >= grace_ends || now >= engine.last_received_ns + SILENCE_NS
            })?;
        }
        Ok(())
    }

    /// Turns the loop until `done`. SYNs end with the window, whatever `done` says.
    fn turn_until(
        &mut self,
        now_ns: &impl Fn() -> u64,
        done: impl Fn(&Self, u64) -> bool,
    ) -> Result<()> {
        for turn in 0u32.. {
            if turn % TURNS_PER_CHECK == 0 {
                interrupt::check()?;
            }
            let now = now_ns();
            if done(self, now) {
                break;
            }
            self.send_due(now)?;
            self.receive(now_ns)?;
            self.fire_timers(now_ns())?;
        }
        Ok(())
    }

    fn send_due(&mut self, now_ns: u64) -> Result<()> {
        for _ in 0..SYNS_PER_TURN {
            let due_ns = self.schedule.due_ns();
            if due_ns > now_ns || due_ns >= self.window_ns.end {
                break;
            }
            self.schedule.advance();
            if self.window_ns.contains(&due_ns) {
                let behind_ns = now_ns - due_ns;
                self.pace.late += u64::from(behind_ns > LATE_NS);
                self.pace.worst_ns = self.pace.worst_ns.max(behind_ns);
            }
            self.begin(self.begun_ns(due_ns, now_ns), now_ns)?;
        }
        Ok(())
    }

    /// When a connection counts as begun: now, but on the side of the window's edges on which it was
    /// due, so that a late SYN is never missing from the window.
    fn begun_ns(&self, due_ns: u64, now_ns: u64) -> u64 {
        let Range { start, end } = self.window_ns;
        now_ns.min(if due_ns < start { start - 1 } else { end - 1 })
    }

    fn begin(&mut self, start_ns: u64, now_ns: u64) -> Result<()> {
        let Some(number) = self.take_number() else {
            self.pace.skipped += 1;
            return Ok(());
        };
        self.tally.begin(start_ns);
        self.unresolved += 1;
        self.pace.max_in_flight = self.pace.max_in_flight.max(self.unresolved);
        let slot = self.slot(number);
        let mut outlet = outlet(
            self.wire,
            self.server,
            number,
            start_ns,
            now_ns,
            &mut self.tally,
            &mut self.unresolved,
        );
        self.table[slot] = Connection::open(number, start_ns, &self.rules, &mut outlet);
        self.sent += outlet.finish()?;
        self.wheel
            .arm(number, self.table[slot].deadline_ms().unwrap_or(0));
        Ok(())
    }

    /// The next number whose slot is free; gives up after a few (then far too many are in flight).
    fn take_number(&mut self) -> Option<u32> {
        for _ in 0..8 {
            let number = self.next_number;
            self.next_number = (number + 1) % tuples::NUMBERS;
            if self.table[self.slot(number)].is_over() {
                return Some(number);
            }
        }
        None
    }

    fn slot(&self, number: u32) -> usize {
        number as usize & (self.table.len() - 1)
    }

    fn receive(&mut self, now_ns: &impl Fn() -> u64) -> Result<()> {
        let mut buffer = [0; FRAME_BYTES];
        for _ in 0..FRAMES_PER_TURN {
            let Some(frame) = self.wire.receive(&mut buffer).context(READ_FAILED)? else {
                break;
            };
            if let Some(incoming) = packet::parse(frame) {
                self.dispatch(&incoming, now_ns())?;
            }
        }
        Ok(())
    }

    fn dispatch(&mut self, incoming: &Incoming<'_>, now_ns: u64) -> Result<()> {
        self.received += 1;
        self.last_received_ns = now_ns;
        let number = tuples::number(incoming.to);
        let owner = number.map(|number| self.slot(number)).filter(|&slot| {
            incoming.from == self.server
                && self.table[slot].is_known()
                && Some(self.table[slot].number()) == number
        });
        let Some(slot) = owner else {
            return refuse(self.wire, incoming);
        };
        let connection = &mut self.table[slot];
        let before = connection.deadline_ms();
        let mut outlet = outlet(
            self.wire,
            self.server,
            connection.number(),
            connection.start_ns(),
            now_ns,
            &mut self.tally,
            &mut self.unresolved,
        );
        connection.on_segment(
            &incoming.segment,
            now_ns,
            &self.rules,
            &mut self.heads,
            &mut outlet,
        );
        self.sent += outlet.finish()?;
        rearm(&mut self.wheel, connection, before);
        Ok(())
    }

    fn fire_timers(&mut self, now_ns: u64) -> Result<()> {
        let Engine {
            wire,
            server,
            rules,
            table,
            wheel,
            tally,
            unresolved,
            sent,
            ..
        } = self;
        let mut result = Ok(());
        let mask = table.len() - 1;
        wheel.expire(tcp::to_ms(now_ns), |wheel, number, deadline_ms| {
            let connection = &mut table[number as usize & mask];
            if connection.number() != number || connection.deadline_ms() != Some(deadline_ms) {
                return;
            }
            let start_ns = connection.start_ns();
            let mut outlet = outlet(wire, *server, number, start_ns, now_ns, tally, unresolved);
            connection.on_deadline(now_ns, rules, &mut outlet);
            match outlet.finish() {
                Ok(packets) => *sent += packets,
                Err(error) => result = Err(error),
            }
            rearm(wheel, connection, Some(deadline_ms));
        });
        result
    }

    pub(super) fn finish(self, load: &Load) -> Run {
        let window_s = load.window.as_secs_f64();
        let started = self.tally.fate.started;
        let mut run = Run {
            offered_per_s: started as f64 / window_s,
            worst_lateness: Duration::from_nanos(self.pace.worst_ns),
            late_share: self.pace.late as f64 / started.max(1) as f64,
            skipped: self.pace.skipped,
            unfinished: started - self.tally.fate.finished(),
            max_in_flight: self.pace.max_in_flight,
            packets_per_s: (
                self.pace.packets_in_window.0 as f64 / window_s,
                self.pace.packets_in_window.1 as f64 / window_s,
            ),
            tally: self.tally,
            flaw: None,
        };
        run.flaw = find_flaw(&run, load);
        run
    }
}

/// Why a run does not show what it claims to.
fn find_flaw(run: &Run, load: &Load) -> Option<String> {
    let window = load.warm_up..load.warm_up + load.window;
    let wanted_per_s = load.pattern.mean_rate_per_s(load.rate_per_s, window);
    let missed = 1.0 - run.offered_per_s / wanted_per_s;
    // A short Poisson or bursty window may miss the mean by chance; constant ones may not.
    let chance = match load.pattern {
        super::Pattern::Constant => 0.0,
        _ => 4.0 / (load.rate_per_s * load.window.as_secs_f64()).sqrt(),
    };
    if missed.abs() > MAX_RATE_ERROR + chance {
        return Some(format!(
            "offered {:.0}/s instead of {:.0}/s: the generator could not keep up",
            run.offered_per_s, wanted_per_s
        ));
    }
    if run.late_share > MAX_LATE_SHARE {
        return Some(format!(
            "{:.1} % of the SYNs left more than 10 ms late (worst {:.0} ms): the machine is busy",
            run.late_share * 100.0,
            run.worst_lateness.as_secs_f64() * 1e3
        ));
    }
    (run.skipped > 0).then(|| format!("{} connections found no free slot", run.skipped))
}

const READ_FAILED: &str = "cannot read from the wire";

/// Answers everything that lies on the wire as closed ports do.
pub(super) fn refuse_all(wire: &Tap) -> Result<()> {
    let mut buffer = [0; FRAME_BYTES];
    while let Some(frame) = wire.receive(&mut buffer).context(READ_FAILED)? {
        if let Some(incoming) = packet::parse(frame) {
            refuse(wire, &incoming)?;
        }
    }
    Ok(())
}

fn refuse(wire: &Tap, incoming: &Incoming<'_>) -> Result<()> {
    let mut closed = Closed {
        wire,
        incoming,
        failed: None,
    };
    tcp::refuse_stray(&incoming.segment, &mut closed);
    report(closed.failed)
}

fn rearm(wheel: &mut Wheel, connection: &Connection, before: Option<u32>) {
    if let Some(deadline_ms) = connection.deadline_ms()
        && Some(deadline_ms) != before
    {
        wheel.arm(connection.number(), deadline_ms);
    }
}

fn outlet<'a>(
    wire: &'a Tap,
    server: Endpoint,
    number: u32,
    start_ns: u64,
    now_ns: u64,
    tally: &'a mut Tally,
    unresolved: &'a mut u64,
) -> Outlet<'a> {
    let client = tuples::endpoint(number, server.ip.is_ipv6());
    Outlet {
        wire,
        client,
        server,
        start_ns,
        now_ns,
        tally,
        unresolved,
        packets: 0,
        failed: None,
    }
}

/// Where one connection's segments and events go.
struct Outlet<'a> {
    wire: &'a Tap,
    client: Endpoint,
    server: Endpoint,
    start_ns: u64,
    now_ns: u64,
    tally: &'a mut Tally,
    unresolved: &'a mut u64,
    packets: u64,
    failed: Option<Errno>,
}

impl Outlet<'_> {
    fn finish(self) -> Result<u64> {
        report(self.failed).map(|()| self.packets)
    }
}

impl Sink for Outlet<'_> {
    fn send(&mut self, segment: Segment<'_>) {
        self.packets += 1;
        self.failed = transmit(self.wire, self.client, self.server, &segment)
            .err()
            .or(self.failed);
    }

    fn note(&mut self, event: Event) {
        *self.unresolved -= u64::from(event.is_final());
        self.tally.note(event, self.start_ns, self.now_ns);
    }
}

/// A closed port that answers one frame.
struct Closed<'a> {
    wire: &'a Tap,
    incoming: &'a Incoming<'a>,
    failed: Option<Errno>,
}

impl Sink for Closed<'_> {
    fn send(&mut self, segment: Segment<'_>) {
        self.failed = transmit(self.wire, self.incoming.to, self.incoming.from, &segment).err();
    }

    fn note(&mut self, _: Event) {}
}

fn transmit(
    wire: &Tap,
    from: Endpoint,
    to: Endpoint,
    segment: &Segment,
) -> std::result::Result<(), Errno> {
    let mut frame = [0; MAX_FRAME_BYTES];
    let length = packet::compose(from, to, segment, &mut frame);
    wire.send(&frame[..length])
}

fn report(failed: Option<Errno>) -> Result<()> {
    match failed {
        None => Ok(()),
        Some(cause) => Err(Error::failed("cannot write to the wire", cause)),
    }
}

fn request(target: SocketAddr, server_closes_first: bool) -> Vec<u8> {
    let close = if server_closes_first {
        "Connection: close\r\n"
    } else {
        ""
    };
    format!("GET / HTTP/1.1\r\nHost: {target}\r\nUser-Agent: weir-lab\r\n{close}\r\n").into_bytes()
}

//! The sender: a numbered stream of segments, retransmitted until it is acknowledged.
//!
//! Loss is found by time (RACK, RFC 8985): a segment is lost if one that was sent later has arrived, and a quarter of
//! the least round-trip time has gone by; or at once if three later ones have. A probe (TLP) finds a lost tail before
//! the timeout does.

use std::collections::VecDeque;

use super::congestion::Congestion;
use super::rtt::{MIN_RTO_NS, Rtt};

/// Segments that must have arrived behind a hole for it to be a loss at once (RFC 8985, DupThresh).
const DUP_THRESHOLD: u32 = 3;

/// A segment that was sent and is not acknowledged.
#[derive(Debug, Clone, Copy)]
struct Sent {
    first_ns: u64,
    last_ns: u64,
    is_repeated: bool,
    /// It arrived, out of order.
    is_sacked: bool,
    /// It is thought lost, and not sent again yet.
    is_lost: bool,
}

/// Why the sender wakes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Alarm {
    Timeout,
    Probe,
    /// RACK's time for reordering is over.
    Reorder,
}

/// A stream's sender.
#[derive(Debug, Clone)]
pub struct Sender {
    /// Numbers that the application has written.
    pub written: u32,
    /// The oldest number that is not acknowledged.
    pub unacknowledged: u32,
    /// The next new number.
    pub next: u32,
    /// Round-trip time.
    pub rtt: Rtt,
    /// Window.
    pub congestion: Congestion,
    /// Timeouts.
    pub timeouts: u32,
    /// Segments sent again.
    pub repeated: u32,
    /// Of the segments sent again that arrived: how many, and from first to last sending, ns together.
    pub repeat_delay: (u32, u64),
    sent: VecDeque<Sent>,
    /// On their way: neither arrived nor thought lost.
    in_flight: u32,
    sacked: u32,
    /// The number whose acknowledgement ends the recovery under way, and whether a timeout began it.
    recovery: Option<(u32, bool)>,
    /// Send one although the window is full.
    force: bool,
    /// RACK: the latest that arrived, by when it was sent (ns) and its number; and its round-trip time, ns.
    rack: (u64, u32),
    rack_rtt_ns: u64,
    alarm: Option<(u64, Alarm)>,
    /// A probe is out: none other until something is acknowledged.
    probed: bool,
    /// ECN: no second reduction before this number is acknowledged.
    marked_until: u32,
    /// The next segment says that the window was reduced.
    says_reduced: bool,
}

/// The sender's part of an ACK.
#[derive(Debug, Clone, Copy)]
pub struct Ack<'a> {
    /// The next number expected.
    pub ack: u32,
    /// Ranges behind it.
    pub sack: &'a [(u32, u32)],
    /// Echoed timestamp, ns; 0: none.
    pub echo_ns: u64,
    /// Echoed mark.
    pub ece: bool,
}

impl Sender {
    /// With an empty stream.
    pub fn new(congestion: Congestion) -> Sender {
        Sender {
            written: 0,
            unacknowledged: 0,
            next: 0,
            rtt: Rtt::default(),
            congestion,
            timeouts: 0,
            repeated: 0,
            repeat_delay: (0, 0),
            sent: VecDeque::new(),
            in_flight: 0,
            sacked: 0,
            recovery: None,
            force: false,
            rack: (0, 0),
            rack_rtt_ns: 0,
            alarm: None,
            probed: false,
            marked_until: 0,
            says_reduced: false,
        }
    }

    /// When it wants to be woken, ns.
    pub fn alarm_ns(&self) -> Option<u64> {
        self.alarm.map(|(at_ns, _)| at_ns)
    }

    /// Whether the segment that leaves now says that the window was reduced.
    pub fn take_reduced(&mut self) -> bool {
        std::mem::take(&mut self.says_reduced)
    }

    /// The number that may be sent now. It counts as sent.
    pub fn send(&mut self, now_ns: u64) -> Option<u32> {
        let has_room = f64::from(self.in_flight) < self.congestion.window.floor().max(1.0);
        if !has_room && !self.force {
            return None;
        }
        let lost = self.sent.iter().position(|sent| sent.is_lost);
        if let Some(at) = lost {
            self.force = false;
            self.repeat(at, now_ns);
            return Some(self.unacknowledged + at as u32);
        }
        if self.next >= self.written {
            return None;
        }
        self.force = false;
        Some(self.send_new(now_ns))
    }

    fn send_new(&mut self, now_ns: u64) -> u32 {
        self.sent.push_back(Sent {
            first_ns: now_ns,
            last_ns: now_ns,
            is_repeated: false,
            is_sacked: false,
            is_lost: false,
        });
        self.in_flight += 1;
        self.next += 1;
        if self.alarm.is_none() {
            self.set_alarm(now_ns);
        }
        self.next - 1
    }

    fn repeat(&mut self, at: usize, now_ns: u64) {
        let sent = &mut self.sent[at];
        if sent.is_lost {
            sent.is_lost = false;
            self.in_flight += 1;
        }
        sent.is_repeated = true;
        sent.last_ns = now_ns;
        self.repeated += 1;
    }

    /// An ACK arrived. The round-trip time that it measures, ns.
    pub fn acked(&mut self, ack: Ack<'_>, now_ns: u64) -> Option<u64> {
        let was_full = f64::from(self.in_flight) + 1.0 >= self.congestion.window;
        let before = self.unacknowledged;
        while self.unacknowledged < ack.ack.min(self.next) {
            let Some(sent) = self.sent.pop_front() else {
                break;
            };
            self.arrived(self.unacknowledged, sent, now_ns);
            self.unacknowledged += 1;
            self.sacked -= u32::from(sent.is_sacked);
        }
        let newly_sacked = self.take_sack(ack.sack, now_ns);
        let newly_acked = self.unacknowledged - before;
        let mut measured_ns = None;
        if newly_acked > 0 && ack.echo_ns > 0 {
            let rtt_ns = now_ns.saturating_sub(ack.echo_ns);
            self.rtt.measured(rtt_ns);
            let least_ns = self.rtt.least_ns;
            self.congestion
                .sample(rtt_ns, least_ns, self.unacknowledged, self.next);
            measured_ns = Some(rtt_ns);
        }
        if newly_acked > 0 || newly_sacked > 0 {
            self.probed = false;
        }
        if let Some((end, _)) = self.recovery
            && self.unacknowledged >= end
        {
            self.recovery = None;
        }
        self.find_losses(now_ns);
        self.answer_mark(ack.ece);
        let is_slow = self.recovery.is_none_or(|(_, by_timeout)| by_timeout);
        if is_slow && newly_acked > 0 && was_full {
            let smoothed_ns = self.rtt.smoothed_ns;
            self.congestion.acked(newly_acked, now_ns, smoothed_ns);
        }
        if newly_acked > 0 || newly_sacked > 0 {
            self.set_alarm(now_ns);
        }
        measured_ns
    }

    /// A segment is known to have arrived now, by ACK or by SACK.
    fn arrived(&mut self, seq: u32, sent: Sent, now_ns: u64) {
        if sent.is_sacked {
            return;
        }
        if !sent.is_lost {
            self.in_flight -= 1;
        }
        if sent.is_repeated {
            self.repeat_delay.0 += 1;
            self.repeat_delay.1 += sent.last_ns - sent.first_ns;
        }
        let rtt_ns = now_ns - sent.last_ns;
        // The answer to a repeated segment may be to its first copy.
        let is_doubtful = sent.is_repeated && rtt_ns < self.rtt.least_ns;
        if !is_doubtful && (sent.last_ns, seq) >= self.rack {
            (self.rack, self.rack_rtt_ns) = ((sent.last_ns, seq), rtt_ns);
        }
    }

    fn take_sack(&mut self, blocks: &[(u32, u32)], now_ns: u64) -> u32 {
        let mut newly = 0;
        for &(from, to) in blocks.iter().filter(|(from, to)| from < to) {
            for seq in from.max(self.unacknowledged)..to.min(self.next) {
                let at = (seq - self.unacknowledged) as usize;
                let sent = self.sent[at];
                if sent.is_sacked {
                    continue;
                }
                self.arrived(seq, sent, now_ns);
                (self.sent[at].is_sacked, self.sent[at].is_lost) = (true, false);
                self.sacked += 1;
                newly += 1;
            }
        }
        newly
    }

    /// RACK. Sets the alarm for what may be lost soon.
    fn find_losses(&mut self, now_ns: u64) {
        let is_sure = self.sacked >= DUP_THRESHOLD || self.recovery.is_some();
        let patience_ns = if is_sure { 0 } else { self.rtt.least_ns / 4 };
        let (mut found, mut wake_ns) = (false, None::<u64>);
        for (seq, sent) in (self.unacknowledged..).zip(&mut self.sent) {
            if sent.is_sacked || sent.is_lost || (sent.last_ns, seq) >= self.rack {
                continue;
            }
            let due_ns = sent.last_ns + self.rack_rtt_ns + patience_ns;
            if now_ns >= due_ns {
                sent.is_lost = true;
                self.in_flight -= 1;
                found = true;
            } else {
                wake_ns = Some(wake_ns.map_or(due_ns, |wake| wake.max(due_ns)));
            }
        }
        if found && self.recovery.is_none() {
            self.recovery = Some((self.next, false));
            self.congestion.reduce();
            (self.force, self.says_reduced) = (true, true);
            self.marked_until = self.next;
        }
        if let Some(wake_ns) = wake_ns {
            self.alarm = Some((wake_ns, Alarm::Reorder));
        }
    }

    fn answer_mark(&mut self, ece: bool) {
        if !ece || self.unacknowledged < self.marked_until || self.recovery.is_some() {
            return;
        }
        self.congestion.reduce();
        (self.says_reduced, self.marked_until) = (true, self.next);
    }

    /// Sets the timeout or the probe; RACK's alarm stays while it waits.
    fn set_alarm(&mut self, now_ns: u64) {
        if self.sent.is_empty() {
            self.alarm = None;
            return;
        }
        if let Some((at_ns, Alarm::Reorder)) = self.alarm
            && at_ns > now_ns
        {
            return;
        }
        let timeout_ns = self.rtt.timeout_ns();
        let may_probe =
            self.recovery.is_none() && self.sacked == 0 && !self.probed && self.rtt.smoothed_ns > 0;
        let alone = if self.sent.len() == 1 { MIN_RTO_NS } else { 0 };
        let probe_ns = 2 * self.rtt.smoothed_ns + alone;
        self.alarm = Some(match may_probe {
            true => (now_ns + probe_ns.min(timeout_ns), Alarm::Probe),
            false => (now_ns + timeout_ns, Alarm::Timeout),
        });
    }

    /// The alarm is due. Returns a number to send whatever the window says.
    pub fn wake(&mut self, now_ns: u64) -> Option<u32> {
        let (at_ns, alarm) = self.alarm?;
        if now_ns < at_ns || self.sent.is_empty() {
            return None;
        }
        self.alarm = None;
        match alarm {
            Alarm::Reorder => {
                self.find_losses(now_ns);
                if self.alarm.is_none() {
                    self.set_alarm(now_ns);
                }
                None
            }
            Alarm::Probe => {
                self.probed = true;
                let probe = match self.next < self.written {
                    true => self.send_new(now_ns),
                    false => {
                        self.repeat(self.sent.len() - 1, now_ns);
                        self.next - 1
                    }
                };
                self.alarm = Some((now_ns + self.rtt.timeout_ns(), Alarm::Timeout));
                Some(probe)
            }
            Alarm::Timeout => {
                self.time_out();
                self.alarm = Some((now_ns + self.rtt.timeout_ns(), Alarm::Timeout));
                None
            }
        }
    }

    fn time_out(&mut self) {
        self.timeouts += 1;
        self.rtt.back_off();
        for sent in &mut self.sent {
            sent.is_lost = !sent.is_sacked;
        }
        self.in_flight = 0;
        let by_timeout = matches!(self.recovery, Some((_, true)));
        self.congestion.collapse(!by_timeout);
        self.recovery = Some((self.next, true));
        (self.force, self.says_reduced) = (true, true);
    }
}

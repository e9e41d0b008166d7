//! The sender: a numbered stream of segments, retransmitted until it is acknowledged.
//!
//! Loss is found by time (RACK, RFC 8985): a segment is lost if one that was sent later has arrived, and a quarter of
//! the least round-trip time has gone by; or at once if three later ones have. A probe (TLP) finds a lost tail before
//! the timeout does. While lost ones are sent again, the window falls in proportion to what arrives (PRR, RFC 6937).

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

/// Lost segments are being sent again.
#[derive(Debug, Clone, Copy)]
struct Recovery {
    /// It ends when this number is acknowledged.
    end: u32,
    by_timeout: bool,
    /// Without a timeout: the window when it began, what has arrived and what was sent since then, and what may be on its way
    /// now, segments (PRR, RFC 6937).
    before: u32,
    arrived: u32,
    sent: u32,
    window: u32,
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
    recovery: Option<Recovery>,
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
        let window = match self.recovery {
            Some(recovery) if !recovery.by_timeout => recovery.window,
            _ => self.congestion.window.max(1.0) as u32,
        };
        if self.in_flight >= window {
            return None;
        }
        let lost = self.sent.iter().position(|sent| sent.is_lost);
        if lost.is_none() && self.next >= self.written {
            return None;
        }
        if let Some(recovery) = &mut self.recovery {
            recovery.sent += 1;
        }
        if let Some(at) = lost {
            self.repeat(at, now_ns);
            return Some(self.unacknowledged + at as u32);
        }
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
        let (mut arrived, mut latest_ns) = (0, None);
        while self.unacknowledged < ack.ack.min(self.next) {
            let Some(sent) = self.sent.pop_front() else {
                break;
            };
            self.arrived(self.unacknowledged, sent, now_ns);
            self.unacknowledged += 1;
            arrived += u32::from(!sent.is_sacked);
            if !sent.is_repeated && !sent.is_sacked {
                latest_ns = Some(now_ns - sent.last_ns);
            }
            self.sacked -= u32::from(sent.is_sacked);
        }
        let newly_sacked = self.take_sack(ack.sack, now_ns);
        let newly_acked = self.unacknowledged - before;
        let mut measured_ns = None;
        if newly_acked > 0 && ack.echo_ns > 0 {
            let rtt_ns = now_ns.saturating_sub(ack.echo_ns);
            self.rtt.measured(rtt_ns);
            measured_ns = Some(rtt_ns);
        }
        if let Some(rtt_ns) = latest_ns {
            let (acked, next) = (self.unacknowledged, self.next);
            self.congestion.sample(rtt_ns, acked, next);
        }
        if newly_acked > 0 || newly_sacked > 0 {
            self.probed = false;
        }
        if let Some(recovery) = self.recovery
            && self.unacknowledged >= recovery.end
        {
            self.recovery = None;
        }
        let found = self.find_losses(now_ns);
        self.reduce_in_proportion(arrived + newly_sacked, newly_acked > 0 && found == 0);
        self.answer_mark(ack.ece);
        let is_slow = self.recovery.is_none_or(|recovery| recovery.by_timeout);
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

    /// RACK. Sets the alarm for what may be lost soon. How many it has found.
    fn find_losses(&mut self, now_ns: u64) -> u32 {
        let is_sure = self.sacked >= DUP_THRESHOLD || self.recovery.is_some();
        let patience_ns = if is_sure { 0 } else { self.rtt.least_ns / 4 };
        let (mut found, mut wake_ns) = (0, None::<u64>);
        for (seq, sent) in (self.unacknowledged..).zip(&mut self.sent) {
            if sent.is_sacked || sent.is_lost || (sent.last_ns, seq) >= self.rack {
                continue;
            }
            let due_ns = sent.last_ns + self.rack_rtt_ns + patience_ns;
            if now_ns >= due_ns {
                sent.is_lost = true;
                self.in_flight -= 1;
                found += 1;
            } else {
                wake_ns = Some(wake_ns.map_or(due_ns, |wake| wake.max(due_ns)));
            }
        }
        if found > 0 && self.recovery.is_none() {
            self.recovery = Some(Recovery {
                end: self.next,
                by_timeout: false,
                before: self.congestion.window as u32,
                arrived: 0,
                sent: 0,
                window: 0,
            });
            self.congestion.reduce();
            (self.says_reduced, self.marked_until) = (true, self.next);
        }
        if let Some(wake_ns) = wake_ns {
            self.alarm = Some((wake_ns, Alarm::Reorder));
        }
        found
    }

    /// PRR (RFC 6937, Section 3, with the slow-start reduction bound): in recovery what is sent follows what arrives. While more
    /// than the threshold is on its way, less is sent; when less is, as much, and one more where nothing else is lost.
    fn reduce_in_proportion(&mut self, arrived: u32, may_grow: bool) {
        let Some(recovery) = &mut self.recovery else {
            return;
        };
        if recovery.by_timeout || arrived == 0 {
            return;
        }
        recovery.arrived += arrived;
        let threshold = self.congestion.threshold as u32;
        let count = match threshold.checked_sub(self.in_flight) {
            None => {
                let whole = u64::from(threshold) * u64::from(recovery.arrived);
                let share = whole.div_ceil(u64::from(recovery.before.max(1))) as u32;
                share.saturating_sub(recovery.sent)
            }
            Some(room) => {
                let owed = recovery.arrived.saturating_sub(recovery.sent);
                room.min(owed.max(arrived) + u32::from(may_grow))
            }
        };
        // The first lost one is sent at once.
        recovery.window = self.in_flight + count.max(u32::from(recovery.sent == 0));
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
                if self.find_losses(now_ns) > 0 && self.recovery.is_some_and(|now| now.window == 0)
                {
                    self.reduce_in_proportion(1, false);
                }
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
                self.time_out(now_ns);
                self.alarm = Some((now_ns + self.rtt.timeout_ns(), Alarm::Timeout));
                None
            }
        }
    }

    fn time_out(&mut self, now_ns: u64) {
        self.timeouts += 1;
        self.rtt.back_off();
        // RFC 8985, Section 6.3: the first, and what was sent longer ago than a round trip.
        let arrived_ns = self.rack_rtt_ns;
        self.in_flight = 0;
        for (at, sent) in self.sent.iter_mut().enumerate() {
            let is_due = at == 0 || now_ns >= sent.last_ns + arrived_ns;
            sent.is_lost = !sent.is_sacked && (sent.is_lost || is_due);
            self.in_flight += u32::from(!sent.is_sacked && !sent.is_lost);
        }
        let is_first = self.recovery.is_none();
        self.congestion.collapse(is_first, self.in_flight);
        self.recovery = Some(Recovery {
            end: self.next,
            by_timeout: true,
            before: 0,
            arrived: 0,
            sent: 0,
            window: 0,
        });
        self.says_reduced = true;
    }
}

#[cfg(test)]
mod tests {
    use super::super::congestion::Algorithm;
    use super::*;

    const MS: u64 = 1_000_000;

    /// A window of 20 is out, sent at 0, of which `lost` are not to arrive.
    fn of_twenty() -> Sender {
        let mut sender = Sender::new(Congestion::new(Algorithm::Cubic, 20.0));
        sender.written = 1000;
        sender.rtt.measured(100 * MS);
        while sender.send(0).is_some() {}
        assert_eq!(sender.next, 20);
        sender
    }

    /// What it sends when a SACK says that these have arrived.
    fn sent_at_sack(sender: &mut Sender, blocks: &[(u32, u32)], now_ns: u64) -> Vec<u32> {
        let ack = Ack {
            ack: sender.unacknowledged,
            sack: blocks,
            echo_ns: 0,
            ece: false,
        };
        sender.acked(ack, now_ns);
        std::iter::from_fn(|| sender.send(now_ns)).collect()
    }

    /// RFC 6937: as many are sent as arrive while less than the threshold is on its way, however many were lost.
    #[test]
    fn when_half_of_a_window_is_lost_each_arrival_sends_one() {
        let mut sender = of_twenty();
        for arrived in 11..=20 {
            let sent = sent_at_sack(&mut sender, &[(10, arrived)], 100 * MS);
            let wanted = match arrived {
                // Nothing is known to be lost: new ones.
                11 | 12 => vec![arrived + 9],
                _ => vec![arrived - 13],
            };
            assert_eq!(sent, wanted, "{arrived}");
        }
        assert_eq!(sender.congestion.threshold, 14.0);
    }

    #[test]
    fn when_one_is_lost_seven_tenths_of_what_arrives_are_sent() {
        let mut sender = of_twenty();
        let sent: Vec<usize> = (2..=20)
            .map(|arrived| sent_at_sack(&mut sender, &[(1, arrived)], 100 * MS).len())
            .collect();
        // Two new ones before the loss is known, and then 0.7 for each of the 17 that arrive.
        assert_eq!(sent[..2], [1, 1]);
        let later: usize = sent[2..].iter().sum();
        assert_eq!(later, 12, "{sent:?}");
        assert!(sent[2..].iter().all(|count| *count <= 1), "{sent:?}");
    }

    /// RFC 8985, Section 6.3.
    #[test]
    fn a_timeout_takes_only_what_is_overdue_for_lost() {
        let mut sender = of_twenty();
        sent_at_sack(&mut sender, &[(19, 20)], 100 * MS);
        // Sent a moment ago: it may still arrive.
        let late = sender.next - 1;
        sender.time_out(150 * MS);
        assert_eq!(sender.in_flight, 1);
        assert_eq!(sender.send(150 * MS), Some(0));
        assert_eq!(sender.send(150 * MS), None);
        assert!(!sender.sent[late as usize].is_lost);
        // All of them, when they are.
        sender.time_out(400 * MS);
        assert_eq!(sender.in_flight, 0);
    }
}

//! Whether the guard sees the SYNs of the connections that come to a listener.
//!
//! A connection that is established has had a SYN. So each connection uses up one SYN that the guard has seen: the SYNs of the
//! last [`FRESH`], and of older ones as many as handshakes were under way at the reading before. A connection for which none is
//! left came by a way on which the guard does not stand. SYNs that lead to no connection, refused ones too, hide such
//! connections for [`FRESH`] at most.
//!
//! A SYN that met no listening socket (`syn_unheard`) leads to no connection, as far as the guard can tell. Where connections come all
//! the same, the kernel finds their socket by something that the guard's look-up has not: the socket is bound to a VRF, or a rule
//! hands the packets to a socket of another port (TPROXY). Then no policy is carried out, and such a SYN is none that was seen.
//!
//! Times are of any clock that does not go back, from any beginning.

use std::collections::VecDeque;
use std::time::Duration;

use crate::verdict::{Counters, SYNS, Verdict};

/// A handshake that takes longer is counted among those under way, unless the client holds a cookie.
pub const FRESH: Duration = Duration::from_secs(2);
/// So long after its SYN a cookie makes a connection. The kernel counts whole minutes, and takes those of two (MAX_SYNCOOKIE_AGE in
/// include/net/tcp.h); weir's own are the kernel's.
pub const COOKIE_VALID: Duration = Duration::from_secs(120);
/// So many connections without a SYN show it: of one or two the counts may have been read too early.
pub const SURE: u64 = 3;
/// After so long without such a connection, while the guard sees SYNs, all is well again.
pub const WELL_AFTER: Duration = Duration::from_secs(5);

/// A listener at one moment. The counts are since it is guarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// When.
    pub at: Duration,
    /// Connections that were established with it over interfaces on which it is guarded. To be read before `seen`.
    pub came: u64,
    /// SYNs of which the guard knows ([`seen`]).
    pub seen: u64,
    /// Of them, those that weir knows to have been answered with a cookie, or that would have been ([`cookies`]).
    pub cookies: u64,
    /// SYNs that met no listening socket ([`unheard`]).
    pub unheard: u64,
    /// Handshakes under way.
    pub half_open: u32,
    /// Whether there are so many that the kernel answers SYNs with cookies, whatever weir says.
    pub half_open_full: bool,
}

/// SYNs to a listener that were answered with a cookie: by weir, or by the kernel where weir says so.
pub fn cookies(counters: &Counters) -> u64 {
    counters.cookies_sent() + counters.get(Verdict::SynLeftFlood)
}

/// SYNs to a listener that met no listening socket.
pub fn unheard(counters: &Counters) -> u64 {
    counters.get(Verdict::SynUnheard)
}

/// SYNs to a listener that the guard has seen, and that met a socket.
pub fn seen(counters: &Counters) -> u64 {
    let others = [
        Verdict::SynRepeated,
        Verdict::SynInFragments,
        Verdict::SynJoin,
    ];
    let all = SYNS.iter().chain(&others);
    all.map(|verdict| counters.get(*verdict)).sum()
}

/// What has become of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Connections come whose SYNs the guard does not see.
    Lost,
    /// It sees them again.
    Back,
}

/// SYNs that one reading has brought.
#[derive(Debug, Clone, Copy)]
struct Brought {
    at: Duration,
    /// Those that no cookie has answered.
    plain: u64,
    /// Those that may have been answered with a cookie.
    cookies: u64,
}

/// Follows one listener.
#[derive(Debug, Clone, Default)]
pub struct Sight {
    last: Option<Reading>,
    /// [`Reading::cookies`] of the last reading, whatever has begun anew since.
    counted_cookies: u64,
    /// SYNs that no connection has used up, with the reading that brought them, the oldest first.
    fresh: VecDeque<Brought>,
    /// Handshakes under way whose SYN is older.
    late: u64,
    /// Older SYNs whose cookie is still valid, the oldest first.
    cookies: VecDeque<Brought>,
    /// Connections without a SYN since the last reading with SYNs and without such a connection.
    missed: u64,
    lost: bool,
    /// When SYNs met no listening socket.
    unheard_at: Option<Duration>,
    /// Since when there was none, while SYNs came; only while it is lost.
    well_since: Option<Duration>,
}

impl Sight {
    /// Whether connections come whose SYNs the guard does not see, as far as is known.
    pub fn is_lost(&self) -> bool {
        self.lost
    }

    /// Whether SYNs came lately that met no listening socket: of the connections that are missed, as far as is known.
    pub fn is_unheard(&self) -> bool {
        let last = self.last.zip(self.unheard_at);
        last.is_some_and(|(last, unheard_at)| last.at < unheard_at + WELL_AFTER)
    }

    /// The counts of the next reading have nothing to do with those of the last: an interface has come or gone. Cookies stay
    /// valid.
    pub fn begin_anew(&mut self) {
        (self.last, self.late) = (None, 0);
        self.cookies.extend(self.fresh.drain(..));
    }

    /// Takes a reading.
    pub fn take(&mut self, now: Reading) -> Option<Change> {
        let cookies = match now.cookies.checked_sub(self.counted_cookies) {
            Some(new) => new,
            None => now.cookies,
        };
        self.counted_cookies = now.cookies;
        let before = self
            .last
            .filter(|last| last.came <= now.came && last.seen <= now.seen);
        let Some(before) = before else {
            self.begin_anew();
            (self.last, self.late) = (Some(now), now.half_open.into());
            // How many cookies the kernel has sent until now, nobody has counted.
            let uncounted = u64::from(now.half_open) * u64::from(now.half_open_full);
            self.cookies.push_back(Brought {
                at: now.at,
                plain: 0,
                cookies: cookies + uncounted,
            });
            return None;
        };
        self.last = Some(now);
        if now.unheard > before.unheard {
            self.unheard_at = Some(now.at);
        }
        self.age(now.at, before.half_open.into());
        let syns = now.seen - before.seen;
        let cookies = match before.half_open_full || now.half_open_full {
            true => syns,
            false => cookies.min(syns),
        };
        self.fresh.push_back(Brought {
            at: now.at,
            plain: syns - cookies,
            cookies,
        });
        let missed = self.use_up(now.came - before.came);
        if missed > 0 {
            self.missed += missed;
            self.well_since = None;
        } else if syns > 0 {
            self.missed = 0;
            self.well_since.get_or_insert(now.at);
        }
        let well = self
            .well_since
            .is_some_and(|since| now.at >= since + WELL_AFTER);
        match self.lost {
            false if self.missed >= SURE => {
                self.lost = true;
                Some(Change::Lost)
            }
            true if well => {
                self.lost = false;
                Some(Change::Back)
            }
            _ => None,
        }
    }

    /// SYNs become old: of those only what is under way may still end in a connection, or has a cookie.
    fn age(&mut self, now: Duration, under_way: u64) {
        while let Some(old) = pop_old(&mut self.fresh, now, FRESH) {
            self.late += old.plain;
            if old.cookies > 0 {
                self.cookies.push_back(old);
            }
        }
        self.late = self.late.min(under_way);
        while pop_old(&mut self.cookies, now, COOKIE_VALID).is_some() {}
    }

    /// Connections for which no SYN is left. Which SYN a connection is of is not known: that which would be forgotten first,
    /// so that none is forgotten whose connection may still come.
    fn use_up(&mut self, came: u64) -> u64 {
        let mut came = came;
        let mut take = |from: &mut u64| {
            let taken = came.min(*from);
            *from -= taken;
            came -= taken;
        };
        take(&mut self.late);
        self.fresh
            .iter_mut()
            .for_each(|brought| take(&mut brought.plain));
        let by_age = self.cookies.iter_mut().chain(&mut self.fresh);
        by_age.for_each(|brought| take(&mut brought.cookies));
        came
    }
}

/// The first one, if it is as old as that.
fn pop_old(all: &mut VecDeque<Brought>, now: Duration, age: Duration) -> Option<Brought> {
    let is_old = all.front().is_some_and(|first| now >= first.at + age);
    is_old.then(|| all.pop_front()).flatten()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_verdict_on_a_syn_that_met_a_socket_is_a_syn_that_was_seen() {
        let verdicts = crate::verdict::VERDICTS.iter();
        let on_syns = verdicts
            .filter(|row| row.kind != crate::verdict::Kind::Note && row.name != "syn_unheard")
            .filter(|row| row.name.starts_with("syn_") || row.name.starts_with("cookie_sent"));
        assert_eq!(seen(&Counters([1; _])) as usize, on_syns.count());
    }

    fn at(ms: u64, came: u64, seen: u64, half_open: u32) -> Reading {
        Reading {
            at: Duration::from_millis(ms),
            came,
            seen,
            cookies: 0,
            unheard: 0,
            half_open,
            half_open_full: false,
        }
    }

    fn counted(verdict: Verdict, count: u64) -> Counters {
        let mut counters = Counters::default();
        counters.0[verdict as usize] = count;
        counters
    }

    /// A server whose socket is bound to a VRF: the guard finds none, and the kernel serves.
    #[test]
    fn connections_whose_syns_met_no_listening_socket_are_missed_and_it_says_why() {
        let mut sight = Sight::default();
        let reading = |ms, came, verdict| {
            let counters = counted(verdict, came);
            Reading {
                unheard: unheard(&counters),
                ..at(ms, came, seen(&counters), 0)
            }
        };
        sight.take(reading(0, 0, Verdict::SynUnheard));
        let lost = reading(250, 3, Verdict::SynUnheard);
        assert_eq!(sight.take(lost), Some(Change::Lost));
        assert!(sight.is_unheard());
        let mut sight = Sight::default();
        sight.take(reading(0, 0, Verdict::SynAdmitted));
        assert_eq!(sight.take(reading(250, 3, Verdict::SynAdmitted)), None);
        assert_eq!(sight.take(at(500, 6, 3, 0)), Some(Change::Lost));
        assert!(!sight.is_unheard(), "these had no SYN at all");
    }

    #[test]
    fn syns_before_the_server_listens_are_no_lost_sight() {
        let mut sight = Sight::default();
        sight.take(at(0, 0, 0, 0));
        let reading = |ms, came, seen| Reading {
            unheard: 50,
            ..at(ms, came, seen, 0)
        };
        assert_eq!(sight.take(reading(250, 0, 0)), None);
        assert_eq!(sight.take(reading(500, 10, 10)), None);
        assert!(!sight.is_lost());
    }

    /// An overload that weir observes: the kernel has answered 20 SYNs with cookies, whose clients repeat their data while the
    /// queue is full, and keeps 300 handshakes that end as late.
    #[test]
    fn cookies_that_come_back_when_the_queue_drains_are_none_without_a_syn() {
        let mut sight = Sight::default();
        let reading = |ms, came, seen, half_open| Reading {
            cookies: 20,
            ..at(ms, came, seen, half_open)
        };
        sight.take(at(0, 0, 0, 0));
        for second in 1..=40 {
            let one = reading(1000 * second, 43 * second, 120 * second, 300);
            assert_eq!(sight.take(one), None);
        }
        let (mut came, mut half_open) = (43 * 40, 300);
        for second in 41..=60 {
            // 15 of 16 end a handshake that the kernel counts.
            (came, half_open) = (came + 16, half_open - 15);
            let one = reading(1000 * second, came, 120 * 40, half_open);
            assert_eq!(sight.take(one), None, "{second}");
        }
        let lost = reading(61_000, came + 5, 120 * 40, 0);
        assert_eq!(sight.take(lost), Some(Change::Lost), "these are too many");
    }

    #[test]
    fn with_no_room_for_handshakes_the_kernel_s_own_cookies_explain_late_connections() {
        let mut sight = Sight::default();
        let full = |ms, came, seen| Reading {
            half_open_full: true,
            ..at(ms, came, seen, 511)
        };
        sight.take(full(0, 0, 0));
        sight.take(full(1000, 0, 100));
        assert_eq!(sight.take(at(60_000, 611, 100, 0)), None);
        assert_eq!(sight.take(at(119_000, 1122, 100, 0)), None);
        let lost = at(122_000, 1125, 100, 0);
        assert_eq!(sight.take(lost), Some(Change::Lost), "no cookie is as old");
    }

    #[test]
    fn connections_without_a_syn_show_at_the_next_look_and_syns_bring_it_back() {
        let mut sight = Sight::default();
        assert_eq!(sight.take(at(0, 100, 100, 0)), None);
        assert_eq!(sight.take(at(250, 110, 110, 0)), None);
        assert_eq!(sight.take(at(500, 113, 110, 0)), Some(Change::Lost));
        assert_eq!(sight.take(at(750, 120, 110, 0)), None, "said once");
        assert!(sight.is_lost());
        assert_eq!(sight.take(at(1000, 120, 115, 0)), None);
        assert_eq!(sight.take(at(5999, 200, 195, 0)), None);
        assert_eq!(sight.take(at(6000, 201, 196, 0)), Some(Change::Back));
    }

    #[test]
    fn one_way_that_the_guard_sees_does_not_hide_another_that_it_does_not() {
        let mut sight = Sight::default();
        sight.take(at(0, 0, 0, 0));
        // A health check a second over one interface, ten connections over the other.
        assert_eq!(sight.take(at(1000, 11, 1, 0)), Some(Change::Lost));
        for second in 2..20 {
            assert_eq!(sight.take(at(1000 * second, 11 * second, second, 0)), None);
        }
        assert!(sight.is_lost());
    }

    #[test]
    fn refused_syns_hide_it_for_two_seconds_at_most() {
        let mut sight = Sight::default();
        sight.take(at(0, 0, 0, 0));
        assert_eq!(sight.take(at(250, 10, 5000, 0)), None);
        let mut looks = (2..).map(|look| {
            (
                250 * look,
                sight.take(at(250 * look, 10 + 20 * look, 5000, 0)),
            )
        });
        let (when, _) = looks
            .find(|(_, change)| *change == Some(Change::Lost))
            .unwrap();
        assert!(when <= 2250, "{when}");
    }

    #[test]
    fn a_handshake_that_takes_long_and_one_from_before_are_none_without_a_syn() {
        let mut sight = Sight::default();
        sight.take(at(0, 0, 0, 7));
        assert_eq!(
            sight.take(at(250, 7, 0, 0)),
            None,
            "under way at the first look"
        );
        sight.take(at(500, 7, 20, 20));
        for second in 1..60 {
            assert_eq!(sight.take(at(1000 * second, 7, 20, 20)), None);
        }
        assert_eq!(sight.take(at(60_000, 27, 20, 0)), None);
    }

    #[test]
    fn counts_that_begin_anew_are_no_sign() {
        let mut sight = Sight::default();
        sight.take(at(0, 50, 50, 0));
        assert_eq!(sight.take(at(250, 60, 0, 0)), None, "the listener is new");
        sight.begin_anew();
        assert_eq!(
            sight.take(at(500, 9000, 0, 0)),
            None,
            "an interface has come"
        );
        assert!(!sight.is_lost());
    }

    /// A connection of the past: when its SYN was seen and when it was established, ms.
    fn connection() -> impl Strategy<Value = (u64, u64)> {
        (0u64..20_000, prop_oneof![0u64..50, 0u64..8_000]).prop_map(|(syn, took)| (syn, syn + took))
    }

    proptest! {
        #[test]
        fn whoever_connects_under_the_guard_s_eyes_or_with_a_cookie_gives_no_alarm(
            connections in prop::collection::vec(connection(), 0..100),
            with_cookie in prop::collection::vec((0u64..20_000, 0u64..60_000), 0..100),
            pauses in prop::collection::vec(1u64..1_500, 1..80),
        ) {
            let with_cookie: Vec<_> = with_cookie.iter().map(|(syn, took)| (*syn, syn + took)).collect();
            let mut sight = Sight::default();
            let mut now = 0;
            for pause in pauses {
                now += pause;
                let count = |all: &[(u64, u64)], has: &dyn Fn(&(u64, u64)) -> bool| all.iter().filter(|one| has(one)).count() as u64;
                let began = |one: &(u64, u64)| one.0 <= now;
                let ended = |one: &(u64, u64)| one.1 <= now;
                let reading = Reading {
                    at: Duration::from_millis(now),
                    came: count(&connections, &ended) + count(&with_cookie, &ended),
                    seen: count(&connections, &began) + count(&with_cookie, &began),
                    cookies: count(&with_cookie, &began),
                    unheard: 0,
                    half_open: count(&connections, &|one| began(one) && !ended(one)) as u32,
                    half_open_full: false,
                };
                prop_assert_eq!(sight.take(reading), None);
            }
        }

        #[test]
        fn whoever_connects_under_the_guard_s_eyes_gives_no_alarm(
            connections in prop::collection::vec(connection(), 0..300),
            refused in prop::collection::vec(0u64..20_000, 0..300),
            pauses in prop::collection::vec(1u64..1_500, 1..60),
        ) {
            let mut sight = Sight::default();
            let mut now = 0;
            for pause in pauses {
                now += pause;
                let came = connections.iter().filter(|(_, end)| *end <= now).count() as u64;
                let seen = connections.iter().map(|(syn, _)| syn).chain(&refused).filter(|syn| **syn <= now).count() as u64;
                let under_way = connections.iter().filter(|(syn, end)| *syn <= now && now < *end).count() as u32;
                prop_assert_eq!(sight.take(at(now, came, seen, under_way)), None);
            }
        }
    }
}

//! Overloads of QUIC listeners: a server that takes too long to answer, or whose receive buffer is full.

use std::time::Duration;

use weir_api::Event;
use weir_core::forecast::Would;
use weir_core::forecast::quic::{QuicForecast, QuicRule};
use weir_core::listener::Mode;
use weir_core::overload::{Cause, Change, Episode, Reading, Tracker};
use weir_core::quic::QuicLook;
use weir_core::refusals::{Refusal, Seen};
use weir_core::units::about_duration;

use super::line::Line;
use crate::daemon::events;
use crate::daemon::quic::QuicGlance;
use crate::show::describe;

/// Follows one QUIC listener.
pub struct QuicFollowed {
    tracker: Tracker,
    forecast: QuicForecast,
    /// Of one that is observed.
    would: Option<Would>,
    /// Attempts let in and turned away: sums that only rise.
    sums: (u64, u64),
    /// The last counts, by the mode that they are of.
    before: Option<(Mode, u64, u64)>,
    /// Of the episode so far, as a share.
    peak_buffer: f64,
}

impl QuicFollowed {
    /// From the next look on.
    pub fn new() -> QuicFollowed {
        QuicFollowed {
            tracker: Tracker::new(Cause::Overload),
            forecast: QuicForecast::default(),
            would: None,
            sums: (0, 0),
            before: None,
            peak_buffer: 0.0,
        }
    }

    /// What enforcement would have done at one that is observed.
    pub fn would(&self) -> Option<Would> {
        self.would
    }

    /// Attempts let in, and turned away. Of an overload that is only observed, as many as enforcement would have.
    fn fates(&mut self, at: Duration, glance: &QuicGlance) -> (u64, u64) {
        let mode = glance.listener.mode;
        if self.before.is_some_and(|(before, ..)| before != mode) {
            self.forecast = QuicForecast::default();
            self.before = None;
        }
        let look = QuicLook {
            at,
            listener: &glance.listener,
            counters: &glance.counters,
            sockets: &glance.sockets,
        };
        self.forecast.take(&QuicRule::from(&glance.listener), &look);
        self.would = (mode == Mode::Observe).then(|| self.forecast.would());
        let (let_in, turned_away) = match self.would {
            Some(would) => (would.offered.saturating_sub(would.refused), would.refused),
            None => (glance.counters.let_in(), glance.counters.refused()),
        };
        let before = self.before.replace((mode, let_in, turned_away));
        if let Some((_, let_in_before, turned_away_before)) = before {
            self.sums.0 += let_in.saturating_sub(let_in_before);
            self.sums.1 += turned_away.saturating_sub(turned_away_before);
        }
        self.sums
    }

    /// What is to be said of the listener now. `samples` are its refusals since the last look: the wait may have come and
    /// gone between two looks.
    pub fn take(
        &mut self,
        at: Duration,
        glance: &QuicGlance,
        samples: &[&Refusal],
    ) -> Option<Line> {
        let (mut pending, mut wait, mut buffer) = (glance.pending, glance.wait, glance.fullest);
        for sample in samples {
            if let Seen::Quic {
                pending: waited,
                wait: longest,
                buffer: bytes,
                buffer_limit,
            } = sample.seen
            {
                pending = pending.max(waited);
                wait = wait.max(longest);
                buffer = buffer.max(f64::from(bytes) / f64::from(buffer_limit.max(1)));
            }
        }
        if self.tracker.open().is_none() {
            self.peak_buffer = 0.0;
        }
        self.peak_buffer = self.peak_buffer.max(buffer);
        let (let_in, turned_away) = self.fates(at, glance);
        let change = self.tracker.take(Reading {
            at,
            let_in,
            turned_away,
            wait,
            queue_length: pending,
            half_open: 0,
            stands: glance.waits_too_long,
        })?;
        let text = line(glance, &change, self.peak_buffer);
        Some(Line {
            good: matches!(change, Change::Ends(_)),
            event: Event {
                observed: glance.listener.mode == Mode::Observe,
                ..events::quic_episode(&glance.listener.name, &change, self.peak_buffer, &text)
            },
            text,
        })
    }
}

/// `h3 (QUIC): overload begins: refused 12 of 100 connections (12 %); pending 40, buffer 1 %, wait 35 ms`
fn line(glance: &QuicGlance, change: &Change, peak_buffer: f64) -> String {
    let (Change::Begins(episode) | Change::Lasts(episode) | Change::Ends(episode)) = change;
    let time = about_duration(episode.time());
    let (what, most) = match change {
        Change::Begins(_) => ("begins".to_owned(), ""),
        Change::Lasts(_) => (format!("for {time}"), "at most "),
        Change::Ends(_) => (format!("has ended after {time}"), "at most "),
    };
    let wait = match episode.peak_wait {
        Duration::ZERO => String::new(),
        wait => format!(", wait {}", about_duration(wait)),
    };
    format!(
        "{} (QUIC): overload {what}: {}; {most}pending {}, buffer {}{wait}",
        glance.listener.name,
        done(glance, episode),
        episode.peak_queue,
        describe::percent(peak_buffer),
    )
}

fn done(glance: &QuicGlance, episode: &Episode) -> String {
    let observed = match glance.listener.mode {
        Mode::Enforce => "",
        Mode::Observe => "would have ",
    };
    let refused = episode.turned_away;
    let all = refused + episode.let_in;
    let percent = describe::percent(episode.share());
    format!("{observed}refused {refused} of {all} connections ({percent})")
}

#[cfg(test)]
mod tests {
    use weir_core::listener::ListenAddress;
    use weir_core::quic::{QuicCounters, QuicListener, QuicSocket, QuicVerdict};

    use super::*;

    fn h3() -> QuicListener {
        let address = ListenAddress {
            ip: None,
            port: 443,
        };
        QuicListener::new("h3", address)
    }

    fn glance(let_in: u64, refused: u64) -> QuicGlance {
        let mut counters = QuicCounters::default();
        counters.0[QuicVerdict::QuicAdmitted as usize] = let_in;
        counters.0[QuicVerdict::QuicVnWait as usize] = refused;
        QuicGlance {
            listener: h3(),
            counters,
            pending: 12,
            wait: Some(Duration::from_millis(35)),
            fullest: 0.014,
            waits_too_long: false,
            sockets: Vec::new(),
        }
    }

    fn sample() -> Refusal {
        Refusal {
            at: Duration::ZERO,
            listener: "h3".into(),
            class: None,
            reason: QuicVerdict::QuicVnWait.into(),
            source: "192.0.2.1:4000".parse().unwrap(),
            destination: "192.0.2.2:443".parse().unwrap(),
            seen: Seen::Quic {
                pending: 40,
                wait: Some(Duration::from_millis(120)),
                buffer: 500,
                buffer_limit: 1000,
            },
            observe: false,
        }
    }

    #[test]
    fn an_overload_begins_and_ends_in_the_words_of_a_listener_and_says_that_it_is_of_quic() {
        let mut followed = QuicFollowed::new();
        let mut take = |second, glance, samples: &[&Refusal]| {
            followed.take(Duration::from_secs(second), &glance, samples)
        };
        assert_eq!(take(0, glance(0, 0), &[]), None);
        let begins = take(1, glance(88, 12), &[]).unwrap();
        assert_eq!(
            begins.text,
            "h3 (QUIC): overload begins: refused 12 of 100 connections (12 %); pending 12, buffer 1 %, wait 35 ms"
        );
        assert_eq!(begins.event.kind, "overload");
        assert_eq!(begins.event.protocol.as_deref(), Some("quic"));
        assert_eq!(take(2, glance(100, 300), &[&sample()]), None);
        let ends = take(19, glance(900, 300), &[]).unwrap();
        assert_eq!(
            ends.text,
            "h3 (QUIC): overload has ended after 2.0 s: refused 300 of 400 connections (75 %); at most pending 40, buffer 50 %, \
             wait 120 ms"
        );
        assert!(ends.good);
        let episode = ends.event.episode.unwrap();
        assert_eq!(
            (episode.peak_pending, episode.peak_buffer),
            (Some(40), Some(0.5))
        );
        assert_eq!((episode.peak_queue_length, episode.queue_limit), (0, 0));
        let observed = |refused| QuicGlance {
            listener: QuicListener {
                mode: Mode::Observe,
                ..h3()
            },
            ..glance(900, refused)
        };
        assert_eq!(take(20, observed(300), &[]), None);
        let again = take(21, observed(301), &[]).unwrap();
        assert!(
            again.text.contains("would have refused 1 of 1 connections"),
            "{}",
            again.text
        );
        assert!(
            again.text.ends_with("buffer 1 %, wait 35 ms"),
            "a peak of its own"
        );
        assert!(again.event.observed);
    }

    #[test]
    fn of_an_overload_that_is_only_observed_it_is_said_what_enforcing_would_refuse() {
        let mut followed = QuicFollowed::new();
        let mut text = String::new();
        // 200 come each second, and the server answers 100.
        for second in 0..20_u64 {
            let mut glance = QuicGlance {
                listener: QuicListener {
                    mode: Mode::Observe,
                    ..h3()
                },
                sockets: vec![QuicSocket {
                    pending: 100 * second as u32,
                    wait: Some(Duration::from_millis(10) * 100 * second as u32),
                    service: Some(Duration::from_millis(10)),
                    buffer: 0,
                    buffer_limit: 1 << 20,
                    standing: second > 0,
                    least: 2,
                }],
                ..glance(0, 200 * second)
            };
            glance.counters.0[QuicVerdict::QuicAnswered as usize] = 100 * second;
            let line = followed.take(Duration::from_secs(second), &glance, &[]);
            text = line.map_or(text, |line| line.text);
        }
        let would = followed.would().unwrap();
        assert_eq!(would.offered, 3800);
        assert!((1880..=1970).contains(&would.refused), "{would:?}");
        let is_near = |share: u32| text.contains(&format!("({share} %)"));
        assert!((49..=51).any(is_near), "{text}");
    }
}

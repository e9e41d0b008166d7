//! Overloads of QUIC listeners: a server that takes too long to answer, or whose receive buffer is full.

use std::time::Duration;

use weir_api::Event;
use weir_core::listener::Mode;
use weir_core::overload::{Cause, Change, Episode, Reading, Tracker};
use weir_core::refusals::{Refusal, Seen};
use weir_core::units::about_duration;

use super::line::Line;
use crate::daemon::events;
use crate::daemon::quic::QuicGlance;
use crate::show::describe;

/// Follows one QUIC listener.
pub struct QuicFollowed {
    tracker: Tracker,
    /// Of the episode so far, as a share.
    peak_buffer: f64,
}

impl QuicFollowed {
    /// From the next look on.
    pub fn new() -> QuicFollowed {
        QuicFollowed {
            tracker: Tracker::new(Cause::Overload),
            peak_buffer: 0.0,
        }
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
        let change = self.tracker.take(Reading {
            at,
            let_in: glance.counters.let_in(),
            turned_away: glance.counters.refused(),
            wait,
            queue_length: pending,
            half_open: 0,
            stands: glance.waits_too_long,
        })?;
        let text = line(glance, &change, self.peak_buffer);
        Some(Line {
            good: matches!(change, Change::Ends(_)),
            event: Event {
                observed: glance.mode == Mode::Observe,
                ..events::quic_episode(&glance.name, &change, self.peak_buffer, &text)
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
        glance.name,
        done(glance, episode),
        episode.peak_queue,
        describe::percent(peak_buffer),
    )
}

fn done(glance: &QuicGlance, episode: &Episode) -> String {
    let observed = match glance.mode {
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
    use weir_core::quic::{QuicCounters, QuicVerdict};

    use super::*;

    fn glance(let_in: u64, refused: u64) -> QuicGlance {
        let mut counters = QuicCounters::default();
        counters.0[QuicVerdict::QuicAdmitted as usize] = let_in;
        counters.0[QuicVerdict::QuicVnWait as usize] = refused;
        QuicGlance {
            name: "h3".into(),
            mode: Mode::Enforce,
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
        let observed = QuicGlance {
            mode: Mode::Observe,
            ..glance(900, 301)
        };
        let again = take(20, observed, &[]).unwrap();
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
}

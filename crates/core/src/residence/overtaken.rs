//! Whether what is outstanding keeps others waiting.

use std::time::Duration;

use super::ANSWER_CLASSES;

/// Whether answers overtake what is outstanding.
///
/// A queue's answers take longer than what waits in it has waited. Where most take much less, what is outstanding is no queue:
/// long polls, halves of requests, and clients that say what needs no answer. Those that come now are answered at once, and
/// nobody is to be refused for the others' sake.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Overtaken {
    /// Answers while more than a few requests were outstanding, and those of them that overtook: each fades.
    answers: f64,
    overtook: f64,
    /// The median age of what was outstanding at the last pass.
    waited: Duration,
}

/// What has happened between two passes.
pub(super) struct Stretch {
    /// How long it was.
    pub span: Duration,
    /// Answers that went out, by class.
    pub answers: [u64; ANSWER_CLASSES],
    /// Requests that came while none was answered.
    pub in_vain: u64,
    /// Whether more than a few requests are outstanding.
    pub many: bool,
    /// Half of them for longer than this.
    pub waited: Duration,
}

/// They fade with this time where there are many, s; else as so many more come, and with a longer time.
const FADES: f64 = 1.0;
const FADES_OF: f64 = 20.0;
const FADES_UNSEEN: f64 = 60.0;
/// Of fewer answers nothing follows.
const LEAST: f64 = 5.0;
/// Most are so many.
const MOST: f64 = 0.75;

impl Overtaken {
    pub fn note(&mut self, stretch: &Stretch, tick: Duration) {
        let before = std::mem::replace(&mut self.waited, stretch.waited);
        let span = stretch.span.as_secs_f64();
        self.fade(span / FADES_UNSEEN);
        if !stretch.many {
            return;
        }
        let longest = |class: usize| tick * ((2u32 << class) - 1);
        let overtakes = |class: usize| longest(class) * 2 <= before.min(stretch.waited);
        let classes = stretch.answers.iter().enumerate();
        let overtook = classes.filter(|(class, _)| overtakes(*class));
        let overtook: u64 = overtook.map(|(_, n)| n).sum();
        let all: u64 = stretch.answers.iter().sum();
        let news = (all + stretch.in_vain) as f64;
        self.fade((news / FADES_OF).min(span / FADES));
        self.answers += all as f64;
        self.overtook += overtook as f64;
    }

    fn fade(&mut self, by: f64) {
        let kept = (-by).exp();
        self.answers *= kept;
        self.overtook *= kept;
    }

    /// Whether most answers took no more than half of what was outstanding had waited.
    pub fn by_most(&self) -> bool {
        self.answers >= LEAST && self.overtook >= MOST * self.answers
    }
}

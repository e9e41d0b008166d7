//! Why a client was refused: the verdict of a listener, or of a QUIC listener; and how often each fell.

use std::sync::Arc;

use crate::quic::{QUIC_VERDICTS, QuicCounters, QuicVerdict};
use crate::verdict::{Counters, Kind, VERDICTS, Verdict};

/// What a listener guards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// A server of TCP.
    Tcp,
    /// A server of QUIC, over UDP.
    Quic,
}

/// Which listener, and how its refusals are to be told.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Who {
    /// What it guards.
    pub protocol: Protocol,
    /// Its name.
    pub name: Arc<str>,
}

/// The verdict with which a client was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// A listener's.
    Tcp(Verdict),
    /// A QUIC listener's.
    Quic(QuicVerdict),
}

impl From<Verdict> for Reason {
    fn from(verdict: Verdict) -> Reason {
        Reason::Tcp(verdict)
    }
}

impl From<QuicVerdict> for Reason {
    fn from(verdict: QuicVerdict) -> Reason {
        Reason::Quic(verdict)
    }
}

impl Reason {
    /// All verdicts of both.
    pub fn all() -> impl Iterator<Item = Reason> {
        let tcp = VERDICTS.iter().map(|row| Reason::Tcp(row.verdict));
        tcp.chain(QUIC_VERDICTS.iter().map(|row| Reason::Quic(row.verdict)))
    }

    /// Its name in counters, metrics and `weir explain`.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Tcp(verdict) => verdict.info().name,
            Reason::Quic(verdict) => QUIC_VERDICTS[verdict as usize].name,
        }
    }

    /// One line that explains it.
    pub fn text(self) -> &'static str {
        match self {
            Reason::Tcp(verdict) => verdict.info().text,
            Reason::Quic(verdict) => QUIC_VERDICTS[verdict as usize].text,
        }
    }

    /// Whose verdict it is.
    pub fn protocol(self) -> Protocol {
        match self {
            Reason::Tcp(_) => Protocol::Tcp,
            Reason::Quic(_) => Protocol::Quic,
        }
    }

    /// Whether it turned a client away. weir leaves some SYNs to a kernel that drops them, and samples none of these.
    pub fn turns_away(self) -> bool {
        match self {
            Reason::Tcp(Verdict::SynLeft) => true,
            Reason::Tcp(verdict) => verdict.info().kind == Kind::Refuse,
            Reason::Quic(verdict) => QUIC_VERDICTS[verdict as usize].kind == Kind::Refuse,
        }
    }

    fn index(self) -> usize {
        match self {
            Reason::Tcp(verdict) => verdict as usize,
            Reason::Quic(verdict) => VERDICTS.len() + verdict as usize,
        }
    }
}

/// How often each verdict turned a client away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tally([u64; VERDICTS.len() + QUIC_VERDICTS.len()]);

impl Default for Tally {
    fn default() -> Tally {
        Tally([0; VERDICTS.len() + QUIC_VERDICTS.len()])
    }
}

impl From<&Counters> for Tally {
    fn from(counters: &Counters) -> Tally {
        let rows = counters.rows();
        Tally::of(rows.map(|(row, n)| (Reason::Tcp(row.verdict), n)))
    }
}

impl From<&QuicCounters> for Tally {
    fn from(counters: &QuicCounters) -> Tally {
        let rows = counters.rows();
        Tally::of(rows.map(|(row, n)| (Reason::Quic(row.verdict), n)))
    }
}

impl Tally {
    /// Of those among them that turn a client away.
    pub fn of(counts: impl Iterator<Item = (Reason, u64)>) -> Tally {
        let mut tally = Tally::default();
        for (reason, n) in counts.filter(|(reason, _)| reason.turns_away()) {
            tally.0[reason.index()] += n;
        }
        tally
    }

    /// How often this one did.
    pub fn get(&self, reason: impl Into<Reason>) -> u64 {
        self.0[reason.into().index()]
    }

    /// All together.
    pub fn sum(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Each with its count.
    pub fn rows(&self) -> impl Iterator<Item = (Reason, u64)> + '_ {
        Reason::all().zip(self.0)
    }

    /// Adds another one to this one.
    pub fn add(&mut self, other: &Tally) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }

    pub(super) fn get_mut(&mut self, reason: Reason) -> &mut u64 {
        &mut self.0[reason.index()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verdict_has_a_count_of_its_own() {
        for (index, reason) in Reason::all().enumerate() {
            assert_eq!(reason.index(), index, "{}", reason.name());
        }
        assert_eq!(Reason::all().count(), Tally::default().0.len());
    }

    #[test]
    fn what_was_let_in_or_refused_again_is_no_refusal() {
        let mut counters = QuicCounters::default();
        counters.0[QuicVerdict::QuicAdmitted as usize] = 5;
        counters.0[QuicVerdict::QuicRefusedAgain as usize] = 7;
        counters.0[QuicVerdict::QuicVnWait as usize] = 3;
        let mut tally = Tally::from(&counters);
        assert_eq!((tally.sum(), tally.get(QuicVerdict::QuicVnWait)), (3, 3));
        let mut counters = Counters::default();
        counters.0[Verdict::SynAdmitted as usize] = 5;
        counters.0[Verdict::SynResetFull as usize] = 2;
        tally.add(&Tally::from(&counters));
        assert_eq!((tally.sum(), tally.get(Verdict::SynResetFull)), (5, 2));
    }
}

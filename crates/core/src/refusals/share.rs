//! How many refusals a sample stands for, and how many no sample stands for itself.

use super::{Reason, Tally};

/// Refusals of one listener: the counters that the guard keeps of all of them, beside the samples.
#[derive(Debug, Clone, Default)]
pub struct Share {
    refused: Tally,
    sampled: Tally,
    /// Refusals that were not sampled, as far as is known.
    unsampled: Tally,
    /// Refusals that samples stand for.
    weighed: Tally,
}

/// What has come since the last look.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Batch {
    /// Refusals.
    pub refused: Tally,
    /// Refusals that were not sampled.
    pub unsampled: u64,
    /// How many refusals each sample of a verdict stands for, 1 or more.
    weights: Tally,
    samples: Tally,
}

impl Batch {
    /// The weight of each sample with this verdict; 1 of one that was not among them.
    pub fn weight(&self, reason: Reason) -> f64 {
        match self.samples.get(reason) {
            0 => 1.0,
            samples => self.weights.get(reason).max(samples) as f64 / samples as f64,
        }
    }
}

impl Share {
    /// Takes in the refusals since the listener is guarded, and the samples since the last call. Read the counters first:
    /// the guard counts a refusal before it samples it, so that a sample that is missing is one that was not taken.
    pub fn take(&mut self, refused: &Tally, samples: &Tally) -> Batch {
        if refused
            .rows()
            .any(|(reason, new)| new < self.refused.get(reason))
        {
            // The listener was away and began anew.
            *self = Share::default();
        }
        let mut batch = Batch {
            samples: *samples,
            ..Batch::default()
        };
        for (reason, new) in refused.rows() {
            let samples = samples.get(reason);
            *batch.refused.get_mut(reason) = new - self.refused.get(reason);
            *self.sampled.get_mut(reason) += samples;
            // Samples may be ahead of the counters, so that it only grows.
            let unsampled = new.saturating_sub(self.sampled.get(reason));
            let more = unsampled.saturating_sub(self.unsampled.get(reason));
            *self.unsampled.get_mut(reason) += more;
            batch.unsampled += more;
            if samples > 0 {
                let due = new.saturating_sub(self.weighed.get(reason)).max(samples);
                *batch.weights.get_mut(reason) = due;
                *self.weighed.get_mut(reason) += due;
            }
        }
        self.refused = *refused;
        batch
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::quic::QuicVerdict;
    use crate::verdict::Verdict;

    fn of(verdict: impl Into<Reason>, n: u64) -> Tally {
        Tally::of([(verdict.into(), n)].into_iter())
    }

    #[test]
    fn ten_refusals_of_which_two_are_sampled_weigh_five_each() {
        let mut share = Share::default();
        let verdict = Verdict::SynResetFull;
        let batch = share.take(&of(verdict, 10), &of(verdict, 2));
        assert_eq!((batch.weight(verdict.into()), batch.unsampled), (5.0, 8));
        assert_eq!(batch.refused, of(verdict, 10));
        // What no sample has stood for yet, the next one does.
        assert_eq!(share.take(&of(verdict, 13), &of(verdict, 0)).unsampled, 3);
        let batch = share.take(&of(verdict, 14), &of(verdict, 1));
        assert_eq!((batch.weight(verdict.into()), batch.unsampled), (4.0, 0));
    }

    #[test]
    fn a_connection_that_was_let_in_is_no_refusal() {
        let mut share = Share::default();
        let batch = share.take(&of(Verdict::SynAdmitted, 9), &Tally::default());
        assert_eq!(batch, Batch::default());
    }

    #[test]
    fn a_quic_listener_s_samples_weigh_as_those_of_any_other() {
        let (room, wait) = (QuicVerdict::QuicVnRoom, QuicVerdict::QuicVnWait);
        let counted = Tally::of([(room.into(), 4), (wait.into(), 30)].into_iter());
        let batch = Share::default().take(&counted, &of(wait, 3));
        assert_eq!((batch.weight(wait.into()), batch.unsampled), (10.0, 31));
    }

    proptest! {
        /// Samples may be seen a look before their counters; every refusal is found, and counted once.
        #[test]
        fn samples_and_what_they_miss_are_all_refusals(
            steps in prop::collection::vec((0_u64..50, 0_u64..50, any::<bool>()), 1..100),
        ) {
            let verdict = Verdict::SynResetWait;
            let mut share = Share::default();
            let (mut counted, mut sampled, mut missed, mut waiting) = (0, 0, 0, 0);
            let mut truly_missed = 0;
            let mut weight = 0.0;
            for (refused, of_these, late) in steps {
                let of_these = of_these.min(refused);
                truly_missed += refused - of_these;
                // The counters are read, then the samples, between which some refusals come.
                let before = if late { 0 } else { refused };
                counted += before + waiting;
                waiting = refused - before;
                let batch = share.take(&of(verdict, counted), &of(verdict, of_these));
                missed += batch.unsampled;
                sampled += of_these;
                weight += batch.weight(verdict.into()) * of_these as f64;
            }
            let batch = share.take(&of(verdict, counted + waiting), &of(verdict, 0));
            missed += batch.unsampled;
            prop_assert_eq!(missed, truly_missed);
            prop_assert!(weight <= (sampled + missed) as f64 + 1e-6);
        }
    }
}

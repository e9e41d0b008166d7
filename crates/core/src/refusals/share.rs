//! How many refusals a sample stands for, and how many no sample stands for itself.

use crate::verdict::{Counters, Verdict};

use super::turns_away;

/// Refusals of one listener: the counters that the guard keeps of all of them, beside the samples.
#[derive(Debug, Clone, Default)]
pub struct Share {
    refused: Counters,
    sampled: Counters,
    /// Refusals that were not sampled, as far as is known.
    unsampled: Counters,
    /// Refusals that samples stand for.
    weighed: Counters,
}

/// What has come since the last look.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Batch {
    /// Refusals; of verdicts that turn nobody away 0.
    pub refused: Counters,
    /// Refusals that were not sampled.
    pub unsampled: u64,
    /// How many refusals each sample of a verdict stands for, 1 or more.
    weights: Counters,
    samples: Counters,
}

impl Batch {
    /// The weight of each sample with this verdict; 1 of one that was not among them.
    pub fn weight(&self, verdict: Verdict) -> f64 {
        match self.samples.get(verdict) {
            0 => 1.0,
            samples => self.weights.get(verdict).max(samples) as f64 / samples as f64,
        }
    }
}

impl Share {
    /// Takes in the counters since the listener is guarded, and the samples since the last call. Read the counters first:
    /// the guard counts a refusal before it samples it, so that a sample that is missing is one that was not taken.
    pub fn take(&mut self, counters: &Counters, samples: &Counters) -> Batch {
        let refused = only_turned_away(counters);
        let is_less = |(new, old): (&u64, &u64)| new < old;
        if refused.0.iter().zip(&self.refused.0).any(is_less) {
            // The listener was away and began anew.
            *self = Share::default();
        }
        let mut batch = Batch {
            samples: *samples,
            ..Batch::default()
        };
        for (i, new) in refused.0.iter().enumerate() {
            batch.refused.0[i] = new - self.refused.0[i];
            self.sampled.0[i] += samples.0[i];
            // Samples may be ahead of the counters, so that it only grows.
            let unsampled = new.saturating_sub(self.sampled.0[i]);
            let more = unsampled.saturating_sub(self.unsampled.0[i]);
            self.unsampled.0[i] += more;
            batch.unsampled += more;
            if samples.0[i] > 0 {
                let due = new.saturating_sub(self.weighed.0[i]).max(samples.0[i]);
                batch.weights.0[i] = due;
                self.weighed.0[i] += due;
            }
        }
        self.refused = refused;
        batch
    }
}

fn only_turned_away(counters: &Counters) -> Counters {
    let mut refused = Counters::default();
    for (row, n) in counters.rows().filter(|(row, _)| turns_away(row.verdict)) {
        refused.0[row.verdict as usize] = n;
    }
    refused
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(verdict: Verdict, n: u64) -> Counters {
        let mut counters = Counters::default();
        counters.0[verdict as usize] = n;
        counters
    }

    #[test]
    fn ten_refusals_of_which_two_are_sampled_weigh_five_each() {
        let mut share = Share::default();
        let verdict = Verdict::SynResetFull;
        let batch = share.take(&of(verdict, 10), &of(verdict, 2));
        assert_eq!((batch.weight(verdict), batch.unsampled), (5.0, 8));
        assert_eq!(batch.refused, of(verdict, 10));
        // What no sample has stood for yet, the next one does.
        assert_eq!(share.take(&of(verdict, 13), &of(verdict, 0)).unsampled, 3);
        let batch = share.take(&of(verdict, 14), &of(verdict, 1));
        assert_eq!((batch.weight(verdict), batch.unsampled), (4.0, 0));
    }

    #[test]
    fn a_connection_that_was_let_in_is_no_refusal() {
        let mut share = Share::default();
        let batch = share.take(&of(Verdict::SynAdmitted, 9), &Counters::default());
        assert_eq!(batch, Batch::default());
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
                weight += batch.weight(verdict) * of_these as f64;
            }
            let batch = share.take(&of(verdict, counted + waiting), &of(verdict, 0));
            missed += batch.unsampled;
            prop_assert_eq!(missed, truly_missed);
            prop_assert!(weight <= (sampled + missed) as f64 + 1e-6);
        }
    }
}

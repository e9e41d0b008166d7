//! Who gets how much of a budget: first what was promised, then by priority.

/// What one class asks for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Demand {
    /// 1 is the highest.
    pub priority: u8,
    /// Connections a second that its clients try.
    pub rate: f64,
    /// Connections a second that it was promised (`min_rate`).
    pub min_rate: f64,
}

impl Demand {
    /// What it uses of its promise.
    fn promised(&self) -> f64 {
        self.rate.min(self.min_rate)
    }

    fn beyond(&self) -> f64 {
        self.rate - self.promised()
    }
}

/// The limit of each class; `None`: it gets all it asks for and needs none. The limits, and the rates of
/// those without one, add up to the budget if the promises allow it; the lowest priority always has a
/// limit, so that what is left over is not promised twice.
///
/// Classes of one priority share alike: each gets the same, or all it wants.
pub fn share(budget: f64, demands: &[Demand]) -> Vec<Option<f64>> {
    let granted = promises(budget, demands);
    let mut rest = (budget - granted.iter().sum::<f64>()).max(0.0);
    let mut limits = vec![None; demands.len()];
    for level in levels(demands) {
        let of_level = indices(demands, level);
        let wanted: f64 = of_level.iter().map(|&i| demands[i].beyond()).sum();
        let is_last = demands.iter().all(|demand| demand.priority <= level);
        let is_kept = of_level
            .iter()
            .all(|&i| granted[i] >= demands[i].promised());
        if is_kept && wanted <= rest && !is_last {
            rest -= wanted;
            continue;
        }
        let spare = (rest - wanted).max(0.0) / of_level.len() as f64;
        let fill = water_level(rest, &of_level, demands);
        for i in of_level {
            let beyond = if wanted <= rest {
                demands[i].beyond() + spare
            } else {
                fill
            };
            limits[i] = Some(granted[i] + beyond);
        }
        rest = 0.0;
    }
    limits
}

/// The promises, the highest priority first if they are more than the budget.
fn promises(budget: f64, demands: &[Demand]) -> Vec<f64> {
    let mut rest = budget;
    let mut granted = vec![0.0; demands.len()];
    for level in levels(demands) {
        let of_level = indices(demands, level);
        let wanted: f64 = of_level.iter().map(|&i| demands[i].promised()).sum();
        let part = if wanted > 0.0 {
            (rest / wanted).min(1.0)
        } else {
            1.0
        };
        for i in of_level {
            granted[i] = demands[i].promised() * part;
        }
        rest = (rest - wanted).max(0.0);
    }
    granted
}

/// The priorities that there are, the highest first.
fn levels(demands: &[Demand]) -> Vec<u8> {
    let mut levels: Vec<u8> = demands.iter().map(|demand| demand.priority).collect();
    levels.sort_unstable();
    levels.dedup();
    levels
}

fn indices(demands: &[Demand], level: u8) -> Vec<usize> {
    (0..demands.len())
        .filter(|&i| demands[i].priority == level)
        .collect()
}

/// How much each of these may have beyond its promise so that together they use the rest: those that
/// want less leave what they do not want to the others.
fn water_level(rest: f64, of_level: &[usize], demands: &[Demand]) -> f64 {
    let mut wants: Vec<f64> = of_level.iter().map(|&i| demands[i].beyond()).collect();
    wants.sort_unstable_by(f64::total_cmp);
    let mut rest = rest;
    for (served, want) in wants.iter().enumerate() {
        let fair = rest / (wants.len() - served) as f64;
        if *want > fair {
            return fair;
        }
        rest -= want;
    }
    wants.last().copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn demand(priority: u8, rate: f64, min_rate: f64) -> Demand {
        Demand {
            priority,
            rate,
            min_rate,
        }
    }

    #[test]
    fn the_lowest_priority_gives_way_first() {
        let demands = [
            demand(1, 100.0, 0.0),
            demand(2, 500.0, 0.0),
            demand(64, 900.0, 0.0),
        ];
        assert_eq!(share(1000.0, &demands), [None, None, Some(400.0)]);
        assert_eq!(share(300.0, &demands), [None, Some(200.0), Some(0.0)]);
        assert_eq!(share(60.0, &demands), [Some(60.0), Some(0.0), Some(0.0)]);
        assert_eq!(share(2000.0, &demands), [None, None, Some(1400.0)]);
    }

    #[test]
    fn what_was_promised_is_kept_while_lower_classes_give_way() {
        let demands = [
            demand(1, 900.0, 0.0),
            demand(2, 500.0, 200.0),
            demand(64, 900.0, 0.0),
        ];
        assert_eq!(
            share(1000.0, &demands),
            [Some(800.0), Some(200.0), Some(0.0)]
        );
        let unused = [
            demand(1, 900.0, 0.0),
            demand(2, 50.0, 200.0),
            demand(64, 900.0, 0.0),
        ];
        assert_eq!(share(1000.0, &unused), [None, None, Some(50.0)]);
    }

    #[test]
    fn one_priority_shares_alike() {
        let demands = [
            demand(5, 100.0, 0.0),
            demand(5, 900.0, 0.0),
            demand(5, 900.0, 0.0),
        ];
        assert_eq!(
            share(1100.0, &demands),
            [Some(500.0), Some(500.0), Some(500.0)]
        );
    }

    prop_compose! {
        fn demands()(rows in prop::collection::vec((1u8..5, 0.0..1e4f64, 0.0..2e3f64), 1..8)) -> Vec<Demand> {
            rows.into_iter().map(|(priority, rate, min_rate)| demand(priority, rate, min_rate)).collect()
        }
    }

    /// What comes in under these limits.
    fn admitted(demands: &[Demand], limits: &[Option<f64>]) -> Vec<f64> {
        let rows = demands.iter().zip(limits);
        rows.map(|(d, limit)| limit.map_or(d.rate, |limit| d.rate.min(limit)))
            .collect()
    }

    proptest! {
        #[test]
        fn the_budget_is_used_and_never_exceeded(demands in demands(), budget in 0.0..3e4f64) {
            let admitted = admitted(&demands, &share(budget, &demands));
            let (sum, asked): (f64, f64) = (admitted.iter().sum(), demands.iter().map(|d| d.rate).sum());
            prop_assert!((sum - budget.min(asked)).abs() < 1e-6 * (1.0 + budget), "{sum} of {budget}, asked {asked}");
        }

        #[test]
        fn nobody_is_held_below_a_promise_while_a_lower_class_gets_more_than_its_own(
            demands in demands(), budget in 0.0..3e4f64,
        ) {
            let admitted = admitted(&demands, &share(budget, &demands));
            for (high, got) in demands.iter().zip(&admitted) {
                if *got + 1e-6 >= high.promised() { continue }
                for (low, has) in demands.iter().zip(&admitted).filter(|(low, _)| low.priority > high.priority) {
                    prop_assert!(*has < 1e-6, "{low:?} has {has} while {high:?} has {got}");
                }
            }
        }

        #[test]
        fn nobody_is_held_below_its_wish_while_a_lower_class_gets_more_than_its_promise(
            demands in demands(), budget in 0.0..3e4f64,
        ) {
            let admitted = admitted(&demands, &share(budget, &demands));
            for (high, got) in demands.iter().zip(&admitted) {
                if *got + 1e-6 >= high.rate { continue }
                for (low, has) in demands.iter().zip(&admitted).filter(|(low, _)| low.priority > high.priority) {
                    prop_assert!(*has <= low.promised() + 1e-6, "{low:?} has {has} while {high:?} has {got}");
                }
            }
        }
    }
}

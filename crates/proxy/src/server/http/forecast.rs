//! Whether a reply will be large, by the last one to the same target.
//!
//! A small reply is cheapest received whole, head and body in one call. Of a large one only the head
//! should be received: the rest can be spliced, but what a receive has taken must be copied out again.
//! Which it is shows only in the head, when it has been received; so the reply before it decides.

use std::cell::Cell;
use std::hash::{DefaultHasher, Hasher};

/// Number of forecasts. Targets that share one spoil each other's forecast, nothing else.
const SLOTS: usize = 4096;

/// Whether the last reply to each target was large.
pub struct Forecast {
    large: Box<[Cell<bool>; SLOTS]>,
}

/// Where a target's forecast is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForecastSlot(u16);

impl Default for Forecast {
    /// All replies are small, until they are not.
    fn default() -> Forecast {
        Forecast {
            large: Box::new([const { Cell::new(false) }; SLOTS]),
        }
    }
}

impl ForecastSlot {
    /// Of a request line: its method and target.
    pub fn of(request_line: &[u8]) -> ForecastSlot {
        let mut hasher = DefaultHasher::new();
        hasher.write(request_line);
        ForecastSlot((hasher.finish() % SLOTS as u64) as u16)
    }
}

impl Forecast {
    /// Whether the next reply is expected to be large.
    pub fn is_large(&self, slot: ForecastSlot) -> bool {
        self.large[usize::from(slot.0)].get()
    }

    /// Takes note of what it was.
    pub fn learn(&self, slot: ForecastSlot, is_large: bool) {
        self.large[usize::from(slot.0)].set(is_large);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_reply_to_a_target_decides() {
        let forecast = Forecast::default();
        let (film, icon) = (
            ForecastSlot::of(b"GET /film"),
            ForecastSlot::of(b"GET /icon"),
        );
        assert_ne!(film, icon);
        forecast.learn(film, true);
        assert!(forecast.is_large(film) && !forecast.is_large(icon));
        forecast.learn(film, false);
        assert!(!forecast.is_large(film));
    }

    #[test]
    fn targets_spread_over_the_places() {
        let slots: std::collections::HashSet<u16> = (0..1000)
            .map(|n| ForecastSlot::of(format!("GET /items/{n}").as_bytes()).0)
            .collect();
        assert!(slots.len() > 800, "{} of 1000", slots.len());
        assert!(slots.iter().all(|&slot| usize::from(slot) < SLOTS));
    }
}

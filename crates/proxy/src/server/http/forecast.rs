//! How a reply is to be received, by the last one to the same target.
//!
//! What one receive takes is sent by one send: that is the cheapest for all but long replies. Of a long one only the
//! head should be received: the rest is spliced, but what a receive has taken must be copied out again. Which it is
//! shows only in the head, when it has been received; so the reply before it decides.

use std::cell::Cell;
use std::hash::{DefaultHasher, Hasher};

/// Number of forecasts. Targets that share one spoil each other's forecast, nothing else.
const SLOTS: usize = 4096;
/// Lengths of heads are kept in steps of so many bytes.
const STEP_BYTES: usize = 64;

/// How long the head of the last reply to each target was, if its body was long.
pub struct Forecast {
    /// In steps, and one more; 0 where the body was short.
    heads: Box<[Cell<u8>; SLOTS]>,
}

/// Where a target's forecast is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForecastSlot(u16);

impl Default for Forecast {
    /// All bodies are short, until they are not.
    fn default() -> Forecast {
        Forecast {
            heads: Box::new([const { Cell::new(0) }; SLOTS]),
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
    /// How many bytes are to be received at first: all that are there, or, of a reply that is likely to be long, little
    /// more than its head. What that is sent on in is less than a segment, and so waits for the body.
    pub fn first_receive_bytes(&self, slot: ForecastSlot) -> usize {
        match self.heads[usize::from(slot.0)].get() {
            0 => usize::MAX,
            steps => usize::from(steps) * STEP_BYTES,
        }
    }

    /// Takes note of a reply: the length of its head if its body was long.
    pub fn learn(&self, slot: ForecastSlot, head_of_long: Option<usize>) {
        let steps = head_of_long.map_or(0, |bytes| bytes / STEP_BYTES + 1);
        self.heads[usize::from(slot.0)].set(steps.try_into().unwrap_or(u8::MAX));
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
        forecast.learn(film, Some(300));
        assert_eq!(forecast.first_receive_bytes(film), 320);
        assert_eq!(forecast.first_receive_bytes(icon), usize::MAX);
        forecast.learn(film, None);
        assert_eq!(forecast.first_receive_bytes(film), usize::MAX);
    }

    #[test]
    fn a_head_of_the_same_length_is_received_whole_and_more_than_it() {
        let forecast = Forecast::default();
        let slot = ForecastSlot::of(b"GET /film");
        for head in [1, 63, 64, 65, 1_000, 16_000] {
            forecast.learn(slot, Some(head));
            let received = forecast.first_receive_bytes(slot);
            assert!(
                received > head && received <= head + STEP_BYTES,
                "{head}: {received}"
            );
        }
        forecast.learn(slot, Some(100_000));
        assert_eq!(forecast.first_receive_bytes(slot), 255 * STEP_BYTES);
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

//! What a reply will be, judged by the last one to the same target.
//!
//! A small reply is cheapest received whole, head and body in one call. Of a large one only the head
//! should be received: the rest can be spliced, but what a receive has taken must be copied out again.
//! Which it is shows only in the head, when it has been received; so the reply before it decides.

use std::cell::Cell;
use std::hash::{DefaultHasher, Hasher};

/// Targets told apart. Those that fall together spoil each other's forecast, nothing else.
const PLACES: usize = 4096;

/// Whether the last reply to each target was large.
pub struct Forecast {
    large: Box<[Cell<bool>; PLACES]>,
}

/// Where a target's forecast is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place(u16);

impl Default for Forecast {
    /// All replies are small, until they are not.
    fn default() -> Forecast {
        Forecast {
            large: Box::new([const { Cell::new(false) }; PLACES]),
        }
    }
}

impl Place {
    /// Of a request line: its method and target.
    pub fn of(request_line: &[u8]) -> Place {
        let mut hasher = DefaultHasher::new();
        hasher.write(request_line);
        Place((hasher.finish() % PLACES as u64) as u16)
    }
}

impl Forecast {
    /// Whether the next reply is expected to be large.
    pub fn is_large(&self, place: Place) -> bool {
        self.large[usize::from(place.0)].get()
    }

    /// Takes note of what it was.
    pub fn learn(&self, place: Place, is_large: bool) {
        self.large[usize::from(place.0)].set(is_large);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_reply_to_a_target_decides() {
        let forecast = Forecast::default();
        let (film, icon) = (Place::of(b"GET /film"), Place::of(b"GET /icon"));
        assert_ne!(film, icon);
        forecast.learn(film, true);
        assert!(forecast.is_large(film) && !forecast.is_large(icon));
        forecast.learn(film, false);
        assert!(!forecast.is_large(film));
    }

    #[test]
    fn targets_spread_over_the_places() {
        let places: std::collections::HashSet<u16> = (0..1000)
            .map(|n| Place::of(format!("GET /items/{n}").as_bytes()).0)
            .collect();
        assert!(places.len() > 800, "{} of 1000", places.len());
        assert!(places.iter().all(|&place| usize::from(place) < PLACES));
    }
}

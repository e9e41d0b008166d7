//! The date in replies, written once a second.

use std::cell::{Cell, Ref, RefCell};
use std::time::SystemTime;

use crate::runtime::Clock;

/// The date of the second that was asked for last.
pub struct DateCache {
    second: Cell<Clock>,
    text: RefCell<String>,
}

impl Default for DateCache {
    fn default() -> Self {
        DateCache {
            second: Cell::new(Clock::MAX),
            text: RefCell::default(),
        }
    }
}

impl DateCache {
    /// The date as HTTP writes it (RFC 9110 Section 5.6.7); `now` is the loop's clock.
    pub fn at(&self, now: Clock) -> Ref<'_, str> {
        let second = now / 1000;
        if self.second.replace(second) != second {
            *self.text.borrow_mut() = httpdate::fmt_http_date(SystemTime::now());
        }
        Ref::map(self.text.borrow(), String::as_str)
    }
}

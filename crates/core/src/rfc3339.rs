//! Times as RFC 3339 writes them.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Serialize, Serializer};

const SECONDS_OF_DAY: u64 = 86_400;
/// Days of 400 years of the Gregorian calendar, after which it repeats.
const DAYS_OF_ERA: u64 = 146_097;
/// Days from 1 March of the year 0 to 1 January 1970.
const DAYS_BEFORE_1970: u64 = 719_468;

/// A time in UTC, to the microsecond: `2026-11-24T12:13:14.000001Z`. `{:.0}` shows it to the second, `2026-11-24T12:13:14Z`,
/// `{:.3}` to the millisecond. Other precisions are not known. A time before 1970 is shown as 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rfc3339(pub SystemTime);

impl fmt::Display for Rfc3339 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = self.0.duration_since(UNIX_EPOCH).unwrap_or_default();
        let (days, second) = (
            since.as_secs() / SECONDS_OF_DAY,
            since.as_secs() % SECONDS_OF_DAY,
        );
        let (year, month, day) = date(days);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}"
        )?;
        match f.precision() {
            Some(0) => f.write_str("Z"),
            Some(3) => write!(f, ".{:03}Z", since.subsec_millis()),
            _ => write!(f, ".{:06}Z", since.subsec_micros()),
        }
    }
}

impl Serialize for Rfc3339 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Year, month and day of so many days after 1 January 1970. Years are counted from March, so that the leap day is the
/// last day of one (Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`).
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + DAYS_BEFORE_1970;
    let (era, day_of_era) = (days / DAYS_OF_ERA, days % DAYS_OF_ERA);
    let leap_days = day_of_era / 1460 - day_of_era / 36_524 + day_of_era / 146_096;
    let year_of_era = (day_of_era - leap_days) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // Five months from March on have 153 days together, and so have the next five.
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: u64) -> String {
        Rfc3339(UNIX_EPOCH + Duration::from_secs(seconds)).to_string()
    }

    #[test]
    fn known_times_are_written_as_they_are_known() {
        assert_eq!(at(0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(at(784_111_777), "1994-11-06T08:49:37.000000Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00.000000Z");
        assert_eq!(at(4_107_542_399), "2100-02-28T23:59:59.000000Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00.000000Z");
        let time = UNIX_EPOCH + Duration::from_nanos(1_790_000_000_000_001_999);
        assert_eq!(Rfc3339(time).to_string(), "2026-09-21T14:13:20.000001Z");
        let before = UNIX_EPOCH - Duration::from_secs(1);
        assert_eq!(Rfc3339(before).to_string(), at(0));
        assert_eq!(format!("{:.0}", Rfc3339(time)), "2026-09-21T14:13:20Z");
        assert_eq!(format!("{:.3}", Rfc3339(time)), "2026-09-21T14:13:20.000Z");
    }

    /// httpdate writes the same day and time in another form.
    #[test]
    fn every_day_of_five_hundred_years_is_that_of_httpdate() {
        const MONTHS: [&str; 12] = [
            "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
        ];
        for day in 0..500 * 366 {
            let second = day * SECONDS_OF_DAY + day % SECONDS_OF_DAY;
            let http = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(second));
            // Sun, 06 Nov 1994 08:49:37 GMT
            let month = MONTHS
                .iter()
                .position(|month| *month == &http[8..11])
                .unwrap()
                + 1;
            let (year, day, time) = (&http[12..16], &http[5..7], &http[17..25]);
            assert_eq!(
                at(second),
                format!("{year}-{month:02}-{day}T{time}.000000Z")
            );
        }
    }
}

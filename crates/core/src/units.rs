//! Values with their units, as they stand in `weir.toml` and in flags: `"20ms"`, `"1.5s"`.

use std::time::Duration;

/// Splits a value into its number, of these characters, and its unit.
fn number_and_unit(text: &str, of_number: fn(char) -> bool) -> Result<(&str, &str), String> {
    let text = text.trim();
    let digits = text.find(|c| !of_number(c)).unwrap_or(text.len());
    let (number, unit) = (&text[..digits], text[digits..].trim_start());
    match unit.is_empty() && !number.is_empty() {
        true => Err(format!("{text:?} has no unit")),
        false => Ok((number, unit)),
    }
}

fn whole(c: char) -> bool {
    c.is_ascii_digit()
}

fn with_fraction(c: char) -> bool {
    c.is_ascii_digit() || c == '.'
}

/// A unit of time: how it is written and how many nanoseconds it has.
const TIME_UNITS: [(&str, u64); 6] = [
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("min", 60_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Reads a duration: a decimal number and one of `us`, `ms`, `s`, `min` or `m`, `h`.
///
/// # Errors
/// Says what is missing or wrong; a bare number is refused, since its unit would be a guess.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = number_and_unit(text, with_fraction)?;
    let number: f64 = number
        .parse()
        .map_err(|_| format!("{text:?} is not a duration"))?;
    let (_, unit_ns) = TIME_UNITS
        .iter()
        .find(|(name, _)| *name == unit)
        .ok_or_else(|| format!("{unit:?} is not a unit of time: us, ms, s, min, h"))?;
    Duration::try_from_secs_f64(number * *unit_ns as f64 / 1e9)
        .map_err(|_| format!("{text:?} is too long"))
}

/// Writes a duration in the largest unit that keeps it short; [`parse_duration`] reads it back
/// (to the microsecond).
pub fn format_duration(duration: Duration) -> String {
    let us = duration.as_micros();
    if us == 0 {
        return "0ms".to_owned();
    }
    if us < 1_000 {
        return format!("{us}us");
    }
    if us < 1_000_000 {
        return format!("{}ms", decimal(us, 1_000));
    }
    format!("{}s", decimal(us, 1_000_000))
}

/// A unit of size and how many bytes it has, the largest first.
const SIZE_UNITS: [(&str, u64); 4] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
];

/// Reads a size: a whole number and one of `B`, `KiB`, `MiB`, `GiB`.
///
/// # Errors
/// Says what is missing or wrong; a bare number is refused, since its unit would be a guess.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let (number, unit) = number_and_unit(text, whole)?;
    let number: u64 = number
        .parse()
        .map_err(|_| format!("{text:?} is not a size"))?;
    let (_, bytes) = SIZE_UNITS
        .iter()
        .find(|(name, _)| *name == unit)
        .ok_or_else(|| format!("{unit:?} is not a unit of size: B, KiB, MiB, GiB"))?;
    number
        .checked_mul(*bytes)
        .ok_or_else(|| format!("{text:?} is too large"))
}

/// Writes a size in the largest unit that it is a whole number of; [`parse_size`] reads it back.
pub fn format_size(bytes: u64) -> String {
    let unit = SIZE_UNITS
        .iter()
        .find(|(_, unit)| bytes.is_multiple_of(*unit) && bytes > 0);
    let (name, unit) = unit.unwrap_or(&("B", 1));
    format!("{}{name}", bytes / unit)
}

/// Writes a size for readers, to a tenth of the largest unit that it has one of: `12.3 KiB`, `312 B`.
pub fn about_size(bytes: u64) -> String {
    match SIZE_UNITS.iter().find(|(_, unit)| bytes >= *unit) {
        Some((name, unit)) if *unit > 1 => format!("{:.1} {name}", bytes as f64 / *unit as f64),
        _ => format!("{bytes} B"),
    }
}

/// Writes a duration for readers, to about three digits: `0.85 ms`, `508 ms`, `2.3 s`, `2 min 3 s`, `1 h 5 min`.
pub fn about_duration(duration: Duration) -> String {
    let ms = duration.as_nanos() as f64 / 1e6;
    let minutes = (ms / 60e3).floor();
    match ms {
        ..0.005 => "0 ms".to_owned(),
        ..0.995 => format!("{ms:.2} ms"),
        ..9.95 => format!("{ms:.1} ms"),
        ..999.5 => format!("{:.0} ms", ms.round()),
        ..9.95e3 => format!("{:.1} s", ms / 1e3),
        ..60e3 => format!("{:.0} s", (ms / 1e3).floor()),
        ..3600e3 => format!("{minutes:.0} min {:.0} s", (ms / 1e3 % 60.0).floor()),
        _ => format!(
            "{:.0} h {:.0} min",
            (minutes / 60.0).floor(),
            minutes % 60.0
        ),
    }
}

/// Writes a time of whole seconds for readers, without the parts that are 0: `2 s`, `10 min`, `1 h 5 min`.
pub fn whole_seconds(time: Duration) -> String {
    let s = time.as_secs();
    let parts = [(s / 3600, "h"), (s / 60 % 60, "min"), (s % 60, "s")];
    let parts = parts.into_iter().filter(|(number, _)| *number > 0);
    let parts: Vec<String> = parts
        .map(|(number, unit)| format!("{number} {unit}"))
        .collect();
    match parts.is_empty() {
        true => "0 s".to_owned(),
        false => parts.join(" "),
    }
}

/// Writes a rate or another average for readers, to about two digits while it is small: `1440`, `1.5`, `0.03`. Only 0 is `0`.
pub fn about_rate(per_second: f64) -> String {
    match per_second {
        0.0 => "0".to_owned(),
        ..0.095 => format!("{:.2}", per_second.max(0.01)),
        ..9.95 => format!("{per_second:.1}"),
        _ => format!("{per_second:.0}"),
    }
}

/// Writes how many of a thing there are: `1 listener`, `3 classes`, `2 proxies`.
pub fn count(n: usize, thing: &str) -> String {
    match (n, thing.strip_suffix('y')) {
        (1, _) => format!("1 {thing}"),
        (_, Some(stem)) => format!("{n} {stem}ies"),
        (_, None) if thing.ends_with('s') => format!("{n} {thing}es"),
        (_, None) => format!("{n} {thing}s"),
    }
}

/// A unit of a link's rate and how many bit/s it has, the largest first.
const BIT_RATE_UNITS: [(&str, u64); 4] = [
    ("gbit", 1_000_000_000),
    ("mbit", 1_000_000),
    ("kbit", 1_000),
    ("bit", 1),
];

/// Reads a link's rate in bit/s: a decimal number and one of `bit`, `kbit`, `mbit`, `gbit`, as tc(8) has them.
///
/// # Errors
/// Says what is missing or wrong; a bare number is refused, since its unit would be a guess.
pub fn parse_bit_rate(text: &str) -> Result<u64, String> {
    let (number, unit) = number_and_unit(text, with_fraction)?;
    let number: f64 = number
        .parse()
        .map_err(|_| format!("{text:?} is not a rate"))?;
    let unit = unit.to_ascii_lowercase();
    let (_, bits) = BIT_RATE_UNITS
        .iter()
        .find(|(name, _)| *name == unit)
        .ok_or_else(|| format!("{unit:?} is not a unit of rate: bit, kbit, mbit, gbit"))?;
    let rate = (number * *bits as f64).round();
    match rate < u64::MAX as f64 {
        true => Ok(rate as u64),
        false => Err(format!("{text:?} is too large")),
    }
}

/// Writes a link's rate in the largest unit that it has one of; [`parse_bit_rate`] reads it back.
pub fn format_bit_rate(bits_per_s: u64) -> String {
    let unit = BIT_RATE_UNITS.iter().find(|(_, unit)| bits_per_s >= *unit);
    let (name, unit) = unit.unwrap_or(&("bit", 1));
    format!("{}{name}", decimal(bits_per_s.into(), (*unit).into()))
}

/// `value / scale` without trailing zeros; `scale` is a power of ten.
fn decimal(value: u128, scale: u128) -> String {
    if scale == 1 {
        return value.to_string();
    }
    let width = scale.ilog10() as usize;
    let text = format!("{}.{:0width$}", value / scale, value % scale);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_rate_is_0_only_if_there_is_none() {
        let shown = [0.0, 0.001, 0.03, 0.3, 1.5, 9.96, 1440.4].map(about_rate);
        assert_eq!(shown, ["0", "0.01", "0.03", "0.3", "1.5", "10", "1440"]);
    }

    #[test]
    fn whole_seconds_have_no_part_that_is_0() {
        let shown = [0, 2, 600, 3600, 3900, 86_400].map(|s| whole_seconds(Duration::from_secs(s)));
        assert_eq!(shown, ["0 s", "2 s", "10 min", "1 h", "1 h 5 min", "24 h"]);
    }

    #[test]
    fn durations_are_read_with_their_unit() {
        for (text, us) in [
            ("20ms", 20_000),
            ("1.5s", 1_500_000),
            ("250us", 250),
            ("1 min", 60_000_000),
        ] {
            assert_eq!(
                parse_duration(text),
                Ok(Duration::from_micros(us)),
                "{text}"
            );
        }
    }

    #[test]
    fn rates_are_read_with_their_unit_and_written_back() {
        for (text, bits, written) in [
            ("10mbit", 10_000_000, "10mbit"),
            ("2.4 Mbit", 2_400_000, "2.4mbit"),
            ("800kbit", 800_000, "800kbit"),
            ("1000mbit", 1_000_000_000, "1gbit"),
            ("40bit", 40, "40bit"),
        ] {
            assert_eq!(parse_bit_rate(text), Ok(bits), "{text}");
            assert_eq!(format_bit_rate(bits), written);
        }
        for text in [
            "",
            "10",
            "mbit",
            "10 MB",
            "-1mbit",
            "1e9gbit",
            "99999999999999gbit",
        ] {
            assert!(parse_bit_rate(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_number_without_a_unit_is_refused() {
        assert_eq!(parse_duration("20"), Err("\"20\" has no unit".into()));
    }

    #[test]
    fn durations_for_readers_have_three_digits_at_most() {
        for (us, text) in [
            (0, "0 ms"),
            (850, "0.85 ms"),
            (999, "1.0 ms"),
            (1_500, "1.5 ms"),
            (20_000, "20 ms"),
            (507_500, "508 ms"),
            (999_700, "1.0 s"),
            (43_200_000, "43 s"),
            (59_900_000, "59 s"),
            (123_400_000, "2 min 3 s"),
            (3_900_000_000, "1 h 5 min"),
        ] {
            assert_eq!(about_duration(Duration::from_micros(us)), text, "{us}");
        }
    }

    #[test]
    fn nonsense_is_refused_and_named() {
        for text in [
            "",
            "ms",
            "20 apples",
            "-5ms",
            "1.2.3ms",
            "1e3ms",
            "99999999999999999999min",
        ] {
            assert!(parse_duration(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_size_for_readers_has_a_tenth_of_its_unit() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (4 << 20, "4.0 MiB"),
            (5 << 30, "5.0 GiB"),
        ] {
            assert_eq!(about_size(bytes), text);
        }
    }

    #[test]
    fn sizes_are_read_with_their_unit() {
        for (text, bytes) in [
            ("0B", 0),
            ("32KiB", 32 << 10),
            ("1 GiB", 1 << 30),
            ("1000B", 1000),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "1",
            "KiB",
            "-1B",
            "1.5KiB",
            "1KB",
            "1kib",
            "99999999999GiB",
        ] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_size_that_is_written_is_read_back(bytes: u64) {
            prop_assert_eq!(parse_size(&format_size(bytes)), Ok(bytes));
        }

        #[test]
        fn what_is_written_is_read_back(us in 0u64..100_000_000_000) {
            let duration = Duration::from_micros(us);
            prop_assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }
    }
}

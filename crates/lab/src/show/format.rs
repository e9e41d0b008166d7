//! Numbers and paragraphs for people.

/// Columns of what is printed.
pub const WIDTH: usize = 80;

/// Paragraphs, which empty lines part, in lines of so many columns.
pub fn wrapped(width: usize, text: &str) -> String {
    let paragraph = |text: &str| {
        let mut lines = vec![String::new()];
        for word in text.split(' ') {
            let line = lines.last_mut().expect("there is a line");
            if line.is_empty() {
                *line = word.to_owned();
            } else if line.chars().count() + 1 + word.chars().count() <= width {
                *line += &format!(" {word}");
            } else {
                lines.push(word.to_owned());
            }
        }
        lines.join("\n")
    };
    let paragraphs: Vec<String> = text.split("\n\n").map(paragraph).collect();
    paragraphs.join("\n\n")
}

/// A count with thin groups of three digits: `12 345`.
pub fn count(value: impl Into<f64>) -> String {
    let digits = format!("{:.0}", value.into());
    let (sign, digits) = digits
        .strip_prefix('-')
        .map_or(("", digits.as_str()), |rest| ("-", rest));
    let groups = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|group| String::from_utf8_lossy(group));
    format!("{sign}{}", groups.collect::<Vec<_>>().join(" "))
}

/// ms with about three significant digits.
pub fn ms(value: f64) -> String {
    match value {
        v if v >= 99.95 => count(v),
        v if v >= 9.995 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

/// With so many significant digits, and groups above them.
pub fn significant(value: f64, digits: i32) -> String {
    if value == 0.0 {
        return "0".into();
    }
    let before = value.abs().max(1e-9).log10().floor() as i32 + 1;
    match digits - before {
        places if places > 0 => format!("{value:.*}", places as usize),
        _ => count(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_three_digits() {
        assert_eq!(
            [count(1_234_567.0), count(999.4), count(-1000.0)],
            ["1 234 567", "999", "-1 000"]
        );
        assert_eq!(
            [ms(0.123), ms(12.34), ms(1234.6)],
            ["0.12", "12.3", "1 235"]
        );
        assert_eq!(
            [significant(19.23, 3), significant(136.4, 3)],
            ["19.2", "136"]
        );
    }
}

//! Sizes of bodies.

use std::str::FromStr;

use super::body;

/// Bytes, written with K and M for 1024 and 1024².
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub usize);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let (digits, unit) = match text.trim().to_ascii_uppercase() {
            upper if upper.ends_with('K') => (upper.trim_end_matches('K').to_string(), 1 << 10),
            upper if upper.ends_with('M') => (upper.trim_end_matches('M').to_string(), 1 << 20),
            upper => (upper, 1),
        };
        let bytes = digits.parse::<usize>().ok().map(|number| number * unit);
        bytes
            .filter(|bytes| (1..=body::MAX_BYTES).contains(bytes))
            .map(Size)
            .ok_or_else(|| format!("`{text}` is no size from 1 to 16M (as in 33K)"))
    }
}

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = match self.0 {
            bytes if bytes.is_multiple_of(1 << 20) => format!("{}M", bytes >> 20),
            bytes if bytes.is_multiple_of(1 << 10) => format!("{}K", bytes >> 10),
            bytes => bytes.to_string(),
        };
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_they_are_written() {
        for text in ["1K", "33K", "16M", "1000"] {
            assert_eq!(text.parse::<Size>().unwrap().to_string(), text);
        }
        for text in ["0", "17M", "K", "-1"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }
}

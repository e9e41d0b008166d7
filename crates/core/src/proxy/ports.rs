//! TCP ports, one or from one to another.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// A TCP port, or all from one to another: `443`, `8000-8999`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ports(RangeInclusive<u16>);

impl Ports {
    /// Every port.
    pub const ALL: Ports = Ports(1..=u16::MAX);

    /// This port alone, 1 to 65535.
    pub fn one(port: u16) -> Ports {
        Ports(port..=port)
    }

    /// Whether this one is among them.
    pub fn contains(&self, port: u16) -> bool {
        self.0.contains(&port)
    }
}

impl FromStr for Ports {
    type Err = String;

    fn from_str(text: &str) -> Result<Ports, String> {
        let no_port = || format!("{text:?} is neither a port nor two with - between");
        let port = |text: &str| {
            let port = text.trim().parse().ok().filter(|port| *port > 0);
            port.ok_or_else(no_port)
        };
        let (low, high) = text.split_once('-').unwrap_or((text, text));
        let range = port(low)?..=port(high)?;
        match range.is_empty() {
            true => Err(no_port()),
            false => Ok(Ports(range)),
        }
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (low, high) = (self.0.start(), self.0.end());
        match low == high {
            true => write!(f, "{low}"),
            false => write!(f, "{low}-{high}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_one_or_from_one_to_another() {
        for text in ["443", "8000-8999", "1-65535"] {
            let ports: Ports = text.parse().unwrap();
            assert_eq!(ports.to_string(), text);
        }
        let some: Ports = "80-82".parse().unwrap();
        assert!(some.contains(80) && some.contains(82) && !some.contains(83));
        for text in ["", "0", "65536", "x", "82-80", "80-", "-80", "+"] {
            assert!(text.parse::<Ports>().is_err(), "{text:?}");
        }
    }
}

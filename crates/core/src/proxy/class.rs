//! Classes of clients, and which one a client belongs to.

use std::net::IpAddr;

use crate::prefix::{Prefix, covers};

/// The lowest priority that a class can have.
pub const LOWEST_PRIORITY: u8 = 63;

/// Some of the clients, by their addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Class {
    /// Its name; unique.
    pub name: String,
    /// The proxy whose clients it is of; `None`: of all.
    pub proxy: Option<String>,
    /// Where the client is; `None`: anywhere.
    pub from: Option<Prefix>,
    /// The address that it connected to; `None`: any.
    pub to: Option<Prefix>,
    /// 1 is the highest, [`LOWEST_PRIORITY`] the lowest of a class; clients of no class come last.
    pub priority: u8,
}

/// The rank of a client, 0 the highest: that of the first class that it belongs to. Clients of none
/// have [`LOWEST_PRIORITY`]. `to` is asked only when a class wants it.
pub fn rank(classes: &[Class], from: IpAddr, to: impl Fn() -> Option<IpAddr>) -> u8 {
    let is_within = |prefix: &Option<Prefix>, ip: &dyn Fn() -> Option<IpAddr>| match prefix {
        Some(prefix) => ip().is_some_and(|ip| covers(std::slice::from_ref(prefix), ip)),
        None => true,
    };
    let belongs =
        |class: &&Class| is_within(&class.from, &|| Some(from)) && is_within(&class.to, &|| to());
    let first = classes.iter().find(belongs);
    first.map_or(LOWEST_PRIORITY, |class| class.priority.max(1) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prefix::parse_prefix;

    fn class(from: Option<&str>, to: Option<&str>, priority: u8) -> Class {
        let prefix = |text: Option<&str>| text.map(|text| parse_prefix(text).unwrap());
        Class {
            name: format!("p{priority}"),
            proxy: None,
            from: prefix(from),
            to: prefix(to),
            priority,
        }
    }

    #[test]
    fn the_first_class_that_fits_decides_and_others_come_last() {
        let classes = [
            class(Some("10.1.0.0/16"), None, 1),
            class(Some("10.0.0.0/8"), Some("192.0.2.1"), 2),
            class(None, Some("192.0.2.2"), 3),
        ];
        for (from, to, expected) in [
            ("10.1.2.3", "192.0.2.2", 0),
            ("::ffff:10.1.2.3", "192.0.2.2", 0),
            ("10.2.0.1", "192.0.2.1", 1),
            ("10.2.0.1", "192.0.2.2", 2),
            ("10.2.0.1", "192.0.2.3", LOWEST_PRIORITY),
        ] {
            let to = to.parse().ok();
            assert_eq!(
                rank(&classes, from.parse().unwrap(), || to),
                expected,
                "{from}"
            );
        }
    }
}

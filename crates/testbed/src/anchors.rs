//! The anchors by which links lead to headings.

use std::collections::BTreeMap;

/// The anchors of a page's headings, in order.
#[derive(Default)]
pub(crate) struct Anchors {
    /// How often a heading has given this anchor.
    given: BTreeMap<String, usize>,
}

impl Anchors {
    /// That of the next heading.
    pub(crate) fn of(&mut self, heading: &str) -> String {
        let anchor = anchor(heading);
        let before = self.given.entry(anchor.clone()).or_default();
        *before += 1;
        match *before {
            1 => anchor,
            n => format!("{anchor}-{}", n - 1),
        }
    }
}

/// The anchor that GitHub gives a heading.
fn anchor(heading: &str) -> String {
    let heading = heading.trim().to_lowercase();
    let kept = |c: &char| c.is_alphanumeric() || " -_".contains(*c);
    let kept = heading.chars().filter(kept);
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

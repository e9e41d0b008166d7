//! What there is to say of servers in weir's own namespace that listeners of other places are about: those of units, and of
//! containers that share it. The session guards them.

use std::collections::BTreeMap;
use std::time::Instant;

use weir_core::listener::ListenAddress;

use super::changes::{Change, Turn};
use super::space::SILENT;

/// Those that are known, by their labels.
#[derive(Default)]
pub struct OwnWorkloads(BTreeMap<String, Known>);

/// One of them.
#[derive(Default)]
struct Known {
    /// Since when nobody listens for it.
    silent_since: Option<Instant>,
    /// It was said to be off, or was not said to be on yet.
    is_off: bool,
}

/// How one of them is found.
pub struct FoundOwn {
    /// `web@nginx.service`
    pub label: String,
    /// What the listener guards.
    pub address: ListenAddress,
    /// Somebody listens.
    pub listens: bool,
}

impl OwnWorkloads {
    /// Takes in all that there are now.
    pub fn take(&mut self, found: &[FoundOwn], now: Instant) -> Vec<Change> {
        let is_gone = |label: &str| !found.iter().any(|one| one.label == label);
        let mut changes = self.take_out(is_gone);
        for one in found {
            let new = Known {
                is_off: true,
                ..Known::default()
            };
            let known = self.0.entry(one.label.clone()).or_insert(new);
            if one.listens {
                known.silent_since = None;
                if std::mem::take(&mut known.is_off) {
                    let what = format!("guards {} in weir's own network namespace", one.address);
                    changes.push(Change::new(&one.label, Turn::On, &what));
                }
                continue;
            }
            // Its server may be starting again.
            let since = *known.silent_since.get_or_insert(now);
            if !known.is_off && now >= since + SILENT {
                known.is_off = true;
                let what = "nobody listens there any more";
                changes.push(Change::new(&one.label, Turn::Off, what));
            }
        }
        changes
    }

    /// No listener is about any more.
    pub fn end(&mut self) -> Vec<Change> {
        self.take_out(|_| true)
    }

    fn take_out(&mut self, is_gone: impl Fn(&str) -> bool) -> Vec<Change> {
        let mut changes = Vec::new();
        self.0.retain(|label, known| {
            let is_gone = is_gone(label);
            if is_gone && !known.is_off {
                changes.push(Change::new(label, Turn::Off, "off"));
            }
            !is_gone
        });
        changes
    }
}

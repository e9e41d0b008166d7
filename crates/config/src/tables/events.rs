//! The keys of the `[events]` table: where events are written, and how many refusals are among them.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use crate::error::Fault;
use crate::key::Key;
use crate::table::Table;
use crate::types::{Kind, Type, text, whole};

/// Sampled refusals a second that may be events at most.
const MOST_REFUSALS: u32 = 1000;

/// What becomes of events: the `[events]` table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventsSettings {
    /// The file to which they are written, a JSON line each; `None`: none.
    pub file: Option<PathBuf>,
    /// Sampled refusals that become events, a second, 0..=1000; ten times as many at once after a pause.
    pub refusals: u32,
}

impl Default for EventsSettings {
    fn default() -> EventsSettings {
        EventsSettings {
            file: None,
            refusals: 20,
        }
    }
}

static KEYS: LazyLock<Vec<Key<EventsSettings>>> = LazyLock::new(|| Key::all_since("0.2.0", keys()));

#[rustfmt::skip] // A key a paragraph.
fn keys() -> Vec<Key<EventsSettings>> {
    vec![
        Key::new("file", field!(EventsSettings, file), file().or_none(),
            "The file to which weir adds each event as a line of JSON; a reload opens it again by its path")
            .absent("no file: `weir events` has the last ones"),
        Key::new("refusals", field!(EventsSettings, refusals), whole(0..=MOST_REFUSALS).in_unit("refusals/s"),
            "Sampled refusals that become events, per second; ten times as many at once after a pause. 0: none"),
    ]
}

fn file() -> Type<PathBuf> {
    let parse = |path: &str| match Path::new(path).is_absolute() {
        true => Ok(PathBuf::from(path)),
        false => Err(Fault::new(
            format!("{path:?} is not an absolute path"),
            "write the whole path: \"/var/log/weir/events.jsonl\"",
        )),
    };
    let show = |path: &PathBuf| path.display().to_string();
    text(Kind::Path, "an absolute path", parse, show)
}

impl Table for EventsSettings {
    const NAME: &'static str = "events";
    const TITLE: &'static str = "The events";
    const TEXT: &'static str = "What becomes of the events that `weir events` shows: overload, the controller, reloads, backends, refusals.";
    const MOST: (usize, &'static str) = (1, "one table serves all listeners and proxies");
    const IS_SINGLE: bool = true;

    fn keys() -> &'static [Key<EventsSettings>] {
        &KEYS
    }

    fn blank() -> EventsSettings {
        EventsSettings::default()
    }
}

//! The events of this process: what happened, for `weir events`, the API and a file of JSON lines.
//!
//! A journal keeps the last ones ([`weir_core::journal`]); a clone of [`Events`] is the same journal. The file is written by a
//! thread of its own, so that nobody who notes an event waits for a disk.

mod build;
mod file;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use nix::errno::Errno;
use weir_api::{EVENT_KINDS, Event};
use weir_config::EventsSettings;
use weir_core::journal::{Crowd, Journal};
use weir_core::rfc3339::Rfc3339;

use crate::failure::{Failure, Result};
use crate::host::clock::unix_ms;

pub use build::{
    backend, class_changed, decision, episode, left_out, plain, quic_episode, refusal,
    refusal_report, reload_outcome, sight,
};
use file::EventFile;

/// Events that are read at a time at most.
pub const MOST_READ: usize = 1000;

/// The events of a process.
#[derive(Clone)]
pub struct Events(Arc<Shared>);

struct Shared {
    pid: u32,
    since_unix_ms: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    journal: Journal<Event>,
    file: Option<EventFile>,
}

impl Events {
    /// No events yet; the process begins now.
    pub fn new() -> Events {
        Events(Arc::new(Shared {
            pid: std::process::id(),
            since_unix_ms: unix_ms(),
            state: Mutex::default(),
        }))
    }

    /// When the process began, in ms since 1970 UTC.
    pub fn since_unix_ms(&self) -> u64 {
        self.0.since_unix_ms
    }

    /// Notes an event: gives it its number, the process, and the time if it has none.
    pub fn note(&self, mut event: Event) {
        if event.at_unix_ms == 0 {
            event.at_unix_ms = unix_ms();
        }
        let at = UNIX_EPOCH + Duration::from_millis(event.at_unix_ms);
        event.time = format!("{:.3}", Rfc3339(at));
        event.pid = self.0.pid;
        split_label(&mut event);
        // `weir events --kind` knows no others.
        debug_assert!(EVENT_KINDS.contains(&&*event.kind), "{}", event.kind);
        let crowd = crowd_of(&event);
        let State { journal, file } = &mut *self.lock();
        journal.push(crowd, |number| {
            event.number = number;
            if let Some(file) = file {
                file.write(&event);
            }
            event
        });
    }

    /// The events with a number over `after`, the oldest first, `most` of them at most (1..=[`MOST_READ`]).
    pub fn read(&self, after: u64, most: usize) -> weir_api::Events {
        let state = self.lock();
        let read = state.journal.after(after, most.clamp(1, MOST_READ));
        weir_api::Events {
            pid: self.0.pid,
            since_unix_ms: self.0.since_unix_ms,
            last: read.last,
            missed: read.missed,
            more: read.more,
            events: read.entries.into_iter().map(|(_, e)| e.clone()).collect(),
        }
    }

    /// Writes events from now on to the file that the settings name, or to none.
    ///
    /// # Errors
    /// It cannot be opened: the file before stays.
    pub fn set_file(&self, settings: Option<&EventsSettings>) -> Result<()> {
        let wanted = settings.and_then(|settings| settings.file.as_deref());
        let mut state = self.lock();
        if state.file.as_ref().map(EventFile::path) == wanted {
            return Ok(());
        }
        let open = |path: &Path| {
            EventFile::open(path).map_err(|error| {
                let what = format!("write events to {}: {error}", path.display());
                let need = match error.kind() {
                    std::io::ErrorKind::NotFound => "its folder must exist",
                    std::io::ErrorKind::IsADirectory => "name a file in it",
                    _ if error.raw_os_error() == Some(Errno::ENXIO as i32) => {
                        "a FIFO needs a program that reads it before weir starts, and a socket is no file"
                    }
                    std::io::ErrorKind::InvalidInput => "name a file, or a FIFO that a program reads",
                    _ => "weir's user needs the right to write there",
                };
                let hint = format!(
                    "{need}; `systemctl edit weir` with LogsDirectory=weir makes /var/log/weir"
                );
                Failure::failed(format!("cannot {what}"), hint)
            })
        };
        state.file = wanted.map(open).transpose()?;
        Ok(())
    }

    /// Opens the file again by its path: it may have been rotated.
    pub fn reopen(&self) {
        if let Some(file) = &self.lock().file {
            file.reopen();
        }
    }

    /// What one who panicked here left is whole.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Those like it, of which there may be many.
fn crowd_of(event: &Event) -> Crowd {
    match event.kind.as_str() {
        "refusal" | "left_out" => Crowd::Refusals,
        "workload_on" | "workload_off" => Crowd::Workloads,
        "not_in_force" | "in_force" if event.workload.is_some() => Crowd::Workloads,
        _ => Crowd::None,
    }
}

/// A listener in another network namespace is `web@web-1` in the log; an event has either by itself. No name has an `@`.
fn split_label(event: &mut Event) {
    let label = event.listener.as_deref();
    if let Some((listener, workload)) = label.and_then(|label| label.split_once('@')) {
        (event.listener, event.workload) = (Some(listener.to_owned()), Some(workload.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_has_its_number_its_process_and_its_time() {
        let events = Events::new();
        events.note(build::plain("start", "info", "it begins"));
        let late = Event {
            at_unix_ms: 1_790_000_000_001,
            ..build::plain("stop", "info", "it ends")
        };
        events.note(late);
        let read = events.read(0, 10);
        let numbers: Vec<u64> = read.events.iter().map(|event| event.number).collect();
        assert_eq!((numbers, read.last, read.missed), (vec![1, 2], 2, 0));
        assert_eq!(read.events[1].time, "2026-09-21T14:13:20.001Z");
        assert!(read.events[0].at_unix_ms >= read.since_unix_ms);
        assert_eq!(events.read(1, 10).events, read.events[1..]);
    }
}

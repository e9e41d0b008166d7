//! `weir events`: what happened in the guard and in all processes of proxies of this network namespace. It exits with 4 if
//! there is none, and with 1 if nothing is guarded in the place that `--where` names, unless it follows.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use weir_api::{Event, Question};
use weir_core::units::count;
use weir_core::workload::Where;

use crate::cli::{Events, Since};
use crate::commands::status::{collect, narrow, not_running};
use crate::daemon::events::MOST_READ;
use crate::daemon::proxies::Peers;
use crate::failure::Result;
use crate::host::clock::unix_ms;
use crate::ipc::control::{ask, ask_at, namespace};
use crate::show::events::line;
use crate::show::output::{print_live, warn_text};

/// How often `--follow` asks.
const EVERY: Duration = Duration::from_millis(250);
/// Events before it begins that `--follow` shows.
const BEFORE: usize = 10;
/// The guard among the processes; proxies have the paths of their sockets.
const GUARD: &str = "";

/// Runs the command.
pub fn run(runtime_dir: &Path, args: &Events) -> Result<()> {
    let mut reader = Reader::new(runtime_dir, namespace()?);
    let mut first = true;
    loop {
        let (found, events) = reader.next()?;
        if first && found == 0 && !args.follow {
            return Err(not_running(runtime_dir, "events"));
        }
        if first && let Some(place) = nowhere(&events, args, found) {
            match (is_guarded(runtime_dir, place), args.follow) {
                (Err(failure), false) => return Err(failure),
                // It may come yet.
                (Err(failure), true) => warn_text(failure),
                (Ok(()), _) => {}
            }
        }
        let mut wanted: Vec<&Event> = events.iter().filter(|one| is_wanted(one, args)).collect();
        if first {
            begin(&mut wanted, args, unix_ms());
        }
        let lines: Vec<String> = wanted
            .into_iter()
            .map(|event| match args.json {
                true => serde_json::to_string(event).expect("events are JSON") + "\n",
                false => line(event),
            })
            .collect();
        if !lines.is_empty() && !print_live(&lines.concat())? {
            return Ok(());
        }
        if !args.follow {
            return Ok(());
        }
        reader.tell(found, first);
        first = false;
        std::thread::sleep(EVERY);
    }
}

fn is_wanted(event: &Event, args: &Events) -> bool {
    let is_of_kind = args.kind.is_empty() || args.kind.contains(&event.kind);
    is_of_kind && args.place.as_ref().is_none_or(|place| is_in(event, place))
}

fn is_in(event: &Event, place: &Where) -> bool {
    match (place, event.workload.as_deref()) {
        (Where::Here, workload) => workload.is_none(),
        (place, workload) => workload.is_some_and(|name| place.names(name)),
    }
}

/// The place that was asked for, if nothing that is kept happened there, of whatever kind and however long ago.
fn nowhere<'a>(events: &[Event], args: &'a Events, found: usize) -> Option<&'a Where> {
    let place = args.place.as_ref().filter(|_| found > 0)?;
    (!events.iter().any(|event| is_in(event, place))).then_some(place)
}

/// Whether something is guarded in a place now, in which nothing needs to have happened yet.
///
/// # Errors
/// Nothing is: as `weir status --where` says it, for the name may be mistyped.
fn is_guarded(runtime_dir: &Path, place: &Where) -> Result<()> {
    let (mut status, _) = collect(runtime_dir)?;
    narrow::to(&mut status, place)
}

/// Leaves of what happened before only what is asked for.
fn begin(events: &mut Vec<&Event>, args: &Events, now_unix_ms: u64) {
    match &args.since {
        None => {}
        Some(Since::Ago(time)) => {
            let then = now_unix_ms.saturating_sub(time.as_millis() as u64);
            events.retain(|event| event.at_unix_ms >= then);
        }
        Some(Since::Time(time)) => events.retain(|event| event.time >= *time),
    }
    let few = (args.follow && args.since.is_none()).then_some(BEFORE);
    if let Some(last) = args.last.or(few) {
        events.drain(..events.len().saturating_sub(last));
    }
}

/// Where one process was read to.
#[derive(Debug, Default, Clone, Copy)]
struct At {
    /// Which process it was: when it began.
    since_unix_ms: u64,
    last: u64,
}

struct Reader<'a> {
    runtime_dir: &'a Path,
    namespace: u64,
    read: BTreeMap<PathBuf, At>,
    /// Whether it was said that nothing runs.
    alone: bool,
}

impl Reader<'_> {
    fn new(runtime_dir: &Path, namespace: u64) -> Reader<'_> {
        Reader {
            runtime_dir,
            namespace,
            read: BTreeMap::new(),
            alone: false,
        }
    }

    /// How many processes there are, and their new events, the oldest first. A process that ends just now, or does not
    /// answer, does not hide the others.
    fn next(&mut self) -> Result<(usize, Vec<Event>)> {
        let mut found = 0;
        let mut events = Vec::new();
        let mut sockets = vec![PathBuf::from(GUARD)];
        sockets.extend(Peers::find(self.runtime_dir)?.paths().iter().cloned());
        for socket in sockets {
            match self.of_one(&socket, &mut events) {
                Ok(is_there) => found += usize::from(is_there),
                // Without the right to ask nothing will change by itself.
                Err(failure) if self.read.is_empty() && socket.as_os_str().is_empty() => {
                    return Err(failure);
                }
                Err(failure) => warn_text(failure),
            }
        }
        events.sort_by_key(|event| event.at_unix_ms);
        Ok((found, events))
    }

    fn of_one(&mut self, socket: &Path, into: &mut Vec<Event>) -> Result<bool> {
        loop {
            let at = self.read.get(socket).copied().unwrap_or_default();
            let question = Question::Events {
                after: at.last,
                most: MOST_READ,
            };
            let answer: Option<weir_api::Events> = match socket.as_os_str().is_empty() {
                true => ask(self.runtime_dir, self.namespace, &question)?,
                false => ask_at(socket, &question)?,
            };
            let Some(read) = answer else {
                return Ok(false);
            };
            let mut next = At {
                since_unix_ms: read.since_unix_ms,
                last: read.last,
            };
            if at.last > 0 && at.since_unix_ms != next.since_unix_ms {
                // Another process, whose numbers begin anew.
                next.last = 0;
                self.read.insert(socket.to_owned(), next);
                continue;
            }
            if at.last > 0 && read.missed > 0 {
                warn_text(format_args!(
                    "{} of process {} came too fast to be kept",
                    count(read.missed as usize, "event"),
                    read.pid
                ));
            }
            self.read.insert(socket.to_owned(), next);
            into.extend(read.events);
            if !read.more {
                return Ok(true);
            }
        }
    }

    /// Says when nothing runs, and when something does again.
    fn tell(&mut self, found: usize, first: bool) {
        let alone = found == 0;
        if alone && (first || !self.alone) {
            warn_text("no weir is running in this network namespace; waiting for one");
        }
        self.alone = alone;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is left of 30 events, one a second, whose last one happens now.
    fn left(arguments: Events) -> Vec<u64> {
        let event = |number: u64| Event {
            number,
            at_unix_ms: 1_000_000 + 1000 * number,
            time: format!("2026-11-24T15:30:{number:02}.000Z"),
            ..Event::default()
        };
        let events: Vec<Event> = (1..=30).map(event).collect();
        let mut left: Vec<&Event> = events.iter().collect();
        begin(&mut left, &arguments, 1_030_000);
        left.iter().map(|event| event.number).collect()
    }

    fn asked(follow: bool, last: Option<usize>, since: Option<Since>) -> Events {
        Events {
            follow,
            last,
            since,
            json: false,
            kind: Vec::new(),
            place: None,
        }
    }

    #[test]
    fn events_are_chosen_by_their_kind_and_their_workload() {
        let of = |kind: &str, workload: Option<&str>| Event {
            kind: kind.to_owned(),
            workload: workload.map(str::to_owned),
            ..Event::default()
        };
        let events = [
            of("start", None),
            of("overload", Some("web-1")),
            of("refusal", Some("web-2")),
            of("overload", Some("db")),
        ];
        let wanted = |place: Option<&str>, kind: &[&str]| -> Vec<usize> {
            let args = Events {
                kind: kind.iter().map(|kind| (*kind).to_owned()).collect(),
                place: place.map(|place| Where::parse(place).unwrap()),
                ..asked(false, None, None)
            };
            let all = events.iter().enumerate();
            let wanted = all.filter(|(_, event)| is_wanted(event, &args));
            wanted.map(|(at, _)| at).collect()
        };
        assert_eq!(wanted(None, &[]), [0, 1, 2, 3]);
        assert_eq!(wanted(Some("container:web-*"), &[]), [1, 2]);
        assert_eq!(wanted(Some("container:web-*"), &["overload"]), [1]);
        assert_eq!(wanted(Some("machine"), &[]), [1, 2, 3]);
        assert_eq!(wanted(Some("here"), &[]), [0]);
    }

    #[test]
    fn a_place_without_events_is_told_from_one_whose_events_are_not_asked_for() {
        let events = [Event {
            kind: "overload".to_owned(),
            workload: Some("web-1".to_owned()),
            ..Event::default()
        }];
        let is_nowhere = |place: &str, found| {
            let args = Events {
                kind: vec!["refusal".to_owned()],
                place: Where::parse(place),
                ..asked(false, Some(0), None)
            };
            nowhere(&events, &args, found).is_some()
        };
        assert!(is_nowhere("container:wbe-1", 1));
        assert!(!is_nowhere("container:web-1", 1));
        assert!(!is_nowhere("container:wbe-1", 0), "no weir runs");
        assert!(nowhere(&events, &asked(false, None, None), 1).is_none());
    }

    #[test]
    fn who_follows_sees_the_last_few_and_all_others_all() {
        let all: Vec<u64> = (1..=30).collect();
        assert_eq!(left(asked(false, None, None)), all);
        assert_eq!(left(asked(true, None, None)), all[20..]);
        assert_eq!(left(asked(true, Some(0), None)), [0; 0]);
        assert_eq!(left(asked(false, Some(2), None)), [29, 30]);
        assert_eq!(left(asked(true, Some(100), None)), all);
    }

    #[test]
    fn since_is_a_time_and_the_last_are_of_what_happened_since() {
        let ago = |seconds| Some(Since::Ago(Duration::from_secs(seconds)));
        let time = |time: &str| Some(Since::Time(time.to_owned()));
        assert_eq!(left(asked(false, None, ago(2))), [28, 29, 30]);
        assert_eq!(left(asked(true, None, ago(20))).len(), 21);
        assert_eq!(left(asked(false, Some(1), ago(2))), [30]);
        assert_eq!(left(asked(false, None, ago(1_000_000))).len(), 30);
        assert_eq!(
            left(asked(false, None, time("2026-11-24T15:30:29"))),
            [29, 30]
        );
        assert_eq!(left(asked(false, None, time("2026-11-24"))).len(), 30);
        assert_eq!(left(asked(false, None, time("2026-11-25"))), [0; 0]);
    }
}

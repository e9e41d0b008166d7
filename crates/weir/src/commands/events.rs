//! `weir events`: what happened in the guard and in all processes of proxies of this network namespace. It exits with 4 if
//! there is none, unless it follows.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use weir_api::Event;

use crate::cli::Events;
use crate::commands::status::not_running;
use crate::daemon::events::MOST_READ;
use crate::daemon::proxies::{Peers, ask_at};
use crate::failure::Result;
use crate::ipc::control::{Answer, Request, ask, namespace};
use crate::show::events::line;
use crate::show::output::{print_live, warn_text};

/// How often `--follow` asks.
const EVERY: Duration = Duration::from_millis(250);
/// The guard among the processes; proxies have the paths of their sockets.
const GUARD: &str = "";

/// Runs the command.
pub fn run(runtime_dir: &Path, args: &Events) -> Result<()> {
    let mut reader = Reader::new(runtime_dir, namespace()?);
    let mut first = true;
    loop {
        let (found, events) = reader.next()?;
        if first && found == 0 && !args.follow {
            return Err(not_running(runtime_dir));
        }
        let is_wanted = |event: &&Event| args.kind.is_empty() || args.kind.contains(&event.kind);
        let lines: Vec<String> = events
            .iter()
            .filter(is_wanted)
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
            let request = Request::Events {
                after: at.last,
                most: MOST_READ,
            };
            let answer = match socket.as_os_str().is_empty() {
                true => ask(self.runtime_dir, self.namespace, request)?,
                false => ask_at(socket, &request)?,
            };
            let Some(Answer::Events(read)) = answer else {
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
                    "{} events of process {} came too fast and are not kept any more",
                    read.missed, read.pid
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

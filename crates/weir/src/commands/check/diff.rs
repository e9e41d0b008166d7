//! `weir check --diff`: what a reload of the file would change.

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;
use weir_api::{InForce, Question};
use weir_config::{Config, Setting, Table};
use weir_core::class::Class;

use crate::daemon::at_start::{AtStart, Owner};
use crate::daemon::observing::only_observe;
use crate::daemon::proxies::Peers;
use crate::failure::{Failure, Result};
use crate::host::config::{Source, absolute};
use crate::ipc::control::{ask, ask_at, namespace};
use crate::show::output::{print, print_json};
use crate::show::settings::{class_of, is_name, plain};

/// What would change in one process.
#[derive(Debug, PartialEq, Serialize)]
pub struct Diff {
    /// The file that it has in force.
    config: PathBuf,
    /// What a reload would change, in the order of the file.
    changes: Vec<Change>,
    /// Tables of which it would change nothing, because what they say needs a restart.
    needs_restart: Vec<&'static str>,
}

/// What would become of one table.
#[derive(Debug, PartialEq, Serialize)]
pub struct Change {
    /// The kind: `listener`.
    table: &'static str,
    /// Its name; of a table that has none, the kind.
    name: String,
    /// What.
    change: Kind,
    /// The keys that would have another value; all that are not at their default, if it is added.
    keys: Vec<KeyChange>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Added,
    Removed,
    Changed,
}

/// A key with another value.
#[derive(Debug, PartialEq, Serialize)]
struct KeyChange {
    key: &'static str,
    /// As in `weir check --json`.
    before: Value,
    after: Value,
    #[serde(skip)]
    text: String,
}

/// Compares the file with what the processes of this network namespace have in force: those that read it, or all if
/// none did. Classes count as they are in force, also where `weir class` has changed them: a reload undoes that.
///
/// # Errors
/// No weir runs here, or one does not answer.
pub fn run(runtime_dir: &Path, file: &Path, config: &Config, json: bool) -> Result<()> {
    let running = running(runtime_dir)?;
    let own = absolute(file)?;
    let has_own = running.iter().any(|process| process.source.file == own);
    let meant = running
        .iter()
        .filter(|process| !has_own || process.source.file == own);
    let mut diffs = Vec::new();
    for process in meant {
        let mut before = process.source.parse()?;
        if let Some(classes) = &process.classes {
            before.classes.retain(|class| !class.is_guarded());
            before.classes.extend_from_slice(classes);
        }
        if process.observes {
            only_observe(&mut before);
        }
        diffs.push(Diff {
            config: process.source.file.clone(),
            changes: match process.has_proxies {
                true => of_proxies(&before, config),
                false => of_guard(&before, config),
            },
            needs_restart: process.at_start(&before)?.changed_by(config),
        });
    }
    if json {
        return print_json(&diffs);
    }
    diffs.iter().try_for_each(|diff| print(&diff.to_string()))
}

/// A process and what it has in force.
struct Running {
    has_proxies: bool,
    metrics_by_flag: bool,
    observes: bool,
    source: Source,
    /// What its file said at the start; `None`: the same.
    at_start: Option<Source>,
    /// Its classes, if they may be others than those of its file.
    classes: Option<Vec<Class>>,
}

impl Running {
    /// What holds until a restart; `before`: what is in force.
    fn at_start(&self, before: &Config) -> Result<AtStart> {
        let owner = match self.has_proxies {
            true => Owner::Proxies {
                metrics_by_flag: self.metrics_by_flag,
            },
            false => Owner::Guard,
        };
        Ok(match &self.at_start {
            Some(source) => AtStart::of(owner, &source.parse()?),
            None => AtStart::of(owner, before),
        })
    }
}

fn running(runtime_dir: &Path) -> Result<Vec<Running>> {
    let mut running = Vec::new();
    let guard = ask(runtime_dir, namespace()?, &Question::Config)?;
    let guard = guard.map(|answer| (false, answer));
    let peers = Peers::find(runtime_dir)?;
    let proxies = peers.paths().iter().filter_map(|path| {
        let answer = ask_at(path, &Question::Config).transpose()?;
        Some(answer.map(|answer| (true, answer)))
    });
    let answers = guard.map(Ok).into_iter().chain(proxies);
    for answer in answers {
        let (has_proxies, in_force): (bool, InForce) = answer?;
        // A process with flags only has no file to compare.
        if let Some(file) = in_force.file {
            let source = |text| Source {
                file: file.clone(),
                text,
            };
            let at_start = in_force.at_start.map(source);
            let source = source(in_force.text);
            let classes = in_force
                .classes
                .map(|classes| classes.into_iter().map(class_of));
            running.push(Running {
                has_proxies,
                metrics_by_flag: in_force.metrics_by_flag,
                observes: in_force.observes,
                source,
                at_start,
                classes: classes.and_then(Iterator::collect),
            });
        }
    }
    match running.is_empty() {
        true => Err(Failure::not_running(
            "no weir with a config file is running in this network namespace",
            "`weir check FILE` checks the file alone",
        )),
        false => Ok(running),
    }
}

/// What `weir run` has in force of a file, but for what needs a restart.
fn of_guard(before: &Config, after: &Config) -> Vec<Change> {
    let mut changes = tables(&before.listeners, &after.listeners);
    changes.extend(tables(&before.quic, &after.quic));
    changes.extend(tables(&before.classes, &after.classes));
    changes.extend(tables(&before.destinations, &after.destinations));
    changes.extend(tables(&before.shapes, &after.shapes));
    let (old, new) = (&before.controller, &after.controller);
    changes.extend(tables(old.as_slice(), new.as_slice()));
    changes.extend(of_events(before, after));
    changes
}

/// What `weir proxy` has in force of a file.
fn of_proxies(before: &Config, after: &Config) -> Vec<Change> {
    let mut changes = tables(&before.proxies, &after.proxies);
    changes.extend(of_events(before, after));
    changes
}

fn of_events(before: &Config, after: &Config) -> Vec<Change> {
    tables(before.events.as_slice(), after.events.as_slice())
}

fn tables<T: Table>(before: &[T], after: &[T]) -> Vec<Change> {
    let same = |table: &T, others: &[T]| {
        let is_same = |other: &&T| other.name() == table.name();
        others.iter().find(is_same).cloned()
    };
    let removed = before.iter().filter(|table| same(table, after).is_none());
    let removed = removed.map(|table| change(table, Kind::Removed, Vec::new()));
    let others = after.iter().filter_map(|table| match same(table, before) {
        None => {
            let keys = keys(Kind::Added, &T::blank(), table);
            Some(change(table, Kind::Added, keys))
        }
        Some(old) => {
            let keys = keys(Kind::Changed, &old, table);
            (!keys.is_empty()).then(|| change(table, Kind::Changed, keys))
        }
    });
    removed.chain(others).collect()
}

fn change<T: Table>(table: &T, change: Kind, keys: Vec<KeyChange>) -> Change {
    Change {
        table: T::NAME,
        name: table.name().to_owned(),
        change,
        keys,
    }
}

fn keys<T: Table>(change: Kind, before: &T, after: &T) -> Vec<KeyChange> {
    let json = |setting: &Setting| serde_json::to_value(setting).expect("settings are JSON");
    let keys = T::keys().iter().filter(|key| !is_name(key));
    let changed = keys.filter_map(|key| {
        let (old, new) = (key.show(before), key.show(after));
        (old != new).then(|| KeyChange {
            key: key.name,
            before: json(&old),
            after: json(&new),
            text: match change {
                Kind::Added => format!("{}: {}", key.name, plain(key, new)),
                _ => format!("{}: {} -> {}", key.name, plain(key, old), plain(key, new)),
            },
        })
    });
    changed.collect()
}

impl std::fmt::Display for Diff {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let config = self.config.display();
        match self.changes.is_empty() {
            true => writeln!(f, "{config}: a reload would change nothing")?,
            false => writeln!(f, "{config}: a reload would change")?,
        }
        for Change {
            table,
            name,
            change,
            keys,
        } in &self.changes
        {
            let sign = match change {
                Kind::Added => '+',
                Kind::Removed => '-',
                Kind::Changed => '~',
            };
            match table == name {
                true => writeln!(f, "{sign} {table}")?,
                false => writeln!(f, "{sign} {table} {name}")?,
            }
            for key in keys {
                writeln!(f, "    {}", key.text)?;
            }
        }
        if !self.needs_restart.is_empty() {
            writeln!(f, "{config}: only a restart would change")?;
        }
        for table in &self.needs_restart {
            writeln!(f, "~ {table}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        weir_config::parse("f", text).unwrap()
    }

    #[test]
    fn tables_are_told_by_name_and_keys_by_what_is_in_effect() {
        let before = config(
            "[[listener]]\nname = \"web\"\naddress = \"*:80\"\n[[listener]]\nname = \"old\"\naddress = \"*:81\"\n",
        );
        let after = config(
            "[[listener]]\nname = \"new\"\naddress = \"*:81\"\n[[listener]]\nname = \"web\"\naddress = \"*:80\"\n\
             queue = \"priority\"\nadmit = \"wait\"\n[controller]\ntarget_wait = \"20ms\"\n",
        );
        let diff = Diff {
            config: "f".into(),
            changes: of_guard(&before, &after),
            needs_restart: vec![],
        };
        let text = diff.to_string();
        let lines: Vec<&str> = text
            .lines()
            .filter(|line| !line.starts_with("  "))
            .collect();
        let tables = [
            "f: a reload would change",
            "- listener old",
            "+ listener new",
            "~ listener web",
            "+ controller",
        ];
        assert_eq!(lines, tables, "{text}");
        let web = diff.changes.iter().find(|change| change.name == "web");
        let keys: Vec<&str> = web.unwrap().keys.iter().map(|key| key.key).collect();
        assert_eq!(keys, ["queue"], "admit = wait is the default");
        assert!(text.contains("queue: fifo -> priority\n"), "{text}");
    }

    #[test]
    fn shapes_and_events_are_among_what_a_reload_changes() {
        let before = config("[[shape]]\ndev = \"ppp0\"\nrate = \"9mbit\"\n");
        let after = config(
            "[[shape]]\ndev = \"ppp0\"\nrate = \"8mbit\"\n[[shape]]\ndev = \"ppp1\"\nrate = \"8mbit\"\n\
             [events]\nrefusals = 0\n",
        );
        let diff = Diff {
            config: "f".into(),
            changes: of_guard(&before, &after),
            needs_restart: vec!["metrics"],
        };
        let lines = [
            "f: a reload would change",
            "~ shape ppp0",
            "    rate: 9mbit -> 8mbit",
            "+ shape ppp1",
            "    rate: 8mbit",
            "+ events",
            "    refusals: 0",
            "f: only a restart would change",
            "~ metrics",
        ];
        assert_eq!(diff.to_string().lines().collect::<Vec<_>>(), lines);
        assert_eq!(of_proxies(&before, &after).len(), 1, "events");
    }

    #[test]
    fn the_same_file_in_another_order_changes_nothing() {
        let one = "[[class]]\nname = \"a\"\nfrom_port = 1\nrate = 5\n";
        let other = "[[class]]\nname = \"b\"\nfrom_port = 2\nrate = 7\n";
        let listener = "[[listener]]\naddress = \"*:80\"\n";
        let before = config(&[listener, one, other].concat());
        let after = config(&[listener, other, one].concat());
        assert_eq!(of_guard(&before, &after), []);
    }
}

//! The metrics of a process: what it is, since when it runs, its last reload, its log.

use super::{Figures, Kind, Labelled, Metric, Source, Value, metric};
use crate::fields::of;

/// The process itself, which has no labels.
struct TheProcess {
    started_unix_ms: u64,
    /// When the file was read last, and whether it is in force since.
    reloaded_unix_ms: u64,
    succeeded: bool,
    log_lost: u64,
}

impl Labelled for TheProcess {
    const LABELS: &'static [&'static str] = &[];

    fn each(figures: &Figures, take: &mut dyn FnMut(Vec<String>, &Self)) {
        let Figures {
            process,
            last_reload,
            ..
        } = figures;
        let reload = last_reload.as_ref();
        // The start read the file, and put it in force: there would be no process otherwise.
        let the_process = TheProcess {
            started_unix_ms: process.started_unix_ms,
            reloaded_unix_ms: reload.map_or(process.started_unix_ms, |reload| reload.at_unix_ms),
            succeeded: reload.is_none_or(|reload| reload.succeeded),
            log_lost: process.log_lost,
        };
        take(Vec::new(), &the_process);
    }
}

/// What runs.
struct Build;

impl Labelled for Build {
    const LABELS: &'static [&'static str] = &["version", "command"];

    fn each(figures: &Figures, take: &mut dyn FnMut(Vec<String>, &Self)) {
        let process = &figures.process;
        take(
            vec![process.version.clone(), process.command.clone()],
            &Build,
        );
    }
}

/// The metrics of a process, each name with its prefix.
pub(super) fn process(prefix: &str) -> [Metric; 5] {
    let level = |name: &str, source: Source, value: fn(&TheProcess) -> f64| {
        let value = move |process: &TheProcess| Some(Value::Level(value(process)));
        metric(format!("{prefix}{name}"), Kind::Gauge, source, value)
    };
    let source = |of, help| Source { of, help };
    [
        metric(
            format!("{prefix}build_info"),
            Kind::Gauge,
            source("version", "1, with the version of the running process"),
            |_: &Build| Some(Value::Whole(1)),
        ),
        level(
            "start_time_seconds",
            source(
                "started_unix_ms",
                "When the process started, in seconds since 1970 UTC",
            ),
            |process| process.started_unix_ms as f64 / 1e3,
        ),
        level(
            "last_reload_successful",
            source(
                "succeeded",
                "1 if the config file is in force as it was read last, by a reload or the start; 0 if the last reload failed or was not confirmed",
            ),
            |process| f64::from(u8::from(process.succeeded)),
        ),
        level(
            "last_reload_timestamp_seconds",
            source(
                "last_reload",
                "When the config file was read last, by a reload or the start, in seconds since 1970 UTC",
            ),
            |process| process.reloaded_unix_ms as f64 / 1e3,
        ),
        metric(
            format!("{prefix}log_lost"),
            Kind::Counter,
            of("Process", "log_lost"),
            |process: &TheProcess| Some(Value::Count(process.log_lost)),
        ),
    ]
}

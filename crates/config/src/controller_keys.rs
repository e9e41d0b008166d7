//! The keys of the `[controller]` table: what it is for, and how often it looks.

use std::time::Duration;

use crate::error::Fault;
use crate::keys::wait;
use crate::table::{Key, Kind, Table, words_of};
use crate::value::{Given, Setting, maybe, mismatch, ranged, shown, text, whole, word};
use weir_core::controller::Settings;
use weir_core::listener::Mode;
use weir_core::units::{format_duration, parse_duration};
use weir_core::word::Word;

const SHARES: std::ops::RangeInclusive<f64> = 0.05..=1.0;
const INTERVAL_HINT: &str = "a duration with its unit from 20ms to 10s, for example \"100ms\"";

/// Every key of the `[controller]` table.
pub static CONTROLLER_KEYS: &[Key<Settings>] = &[
    Key {
        name: "target_wait",
        kind: Kind::MaybeTime,
        values: "1ms to 10s, or none",
        text: "Wait for accept() that the controller keeps, by the rates of the classes. Left out: it does not look at the wait",
        set: |c, v| maybe(v, wait).map(|wait| c.target_wait = wait),
        show: |c| shown(c.target_wait, |wait| Setting::Text(format_duration(wait))),
    },
    Key {
        name: "max_cpu",
        kind: Kind::Limit,
        values: "0.05 to 1.0, or none",
        text: "Share of the CPU that it stays under: of the machine, and of the quota of the server's cgroup. Left out: it does not look at the CPU",
        set: |c, v| maybe(v, |v| ranged(v, SHARES)).map(|share| c.max_cpu = share),
        show: |c| shown(c.max_cpu, Setting::Number),
    },
    Key {
        name: "interval",
        kind: Kind::Time,
        values: "20ms to 10s",
        text: "Time between two looks of the controller; a quarter of it while a queue is too long or a class is held",
        set: |c, v| interval(v).map(|interval| c.interval = interval),
        show: |c| Setting::Text(format_duration(c.interval)),
    },
    Key {
        name: "samples",
        kind: Kind::Number,
        values: "1 to 1000",
        text: "Intervals that the controller's averages are over",
        set: |c, v| whole(v, 1..=1000).map(|n| c.samples = n as u32),
        show: |c| Setting::Whole(c.samples.into()),
    },
    Key {
        name: "mode",
        kind: Kind::Word(words_of::<Mode>),
        values: "enforce | observe",
        text: "Whether the controller sets what it decides, or only tells it",
        set: |c, v| word(v).map(|value| c.mode = value),
        show: |c| Setting::Text(c.mode.word().into()),
    },
];

fn interval(value: &Given) -> Result<Duration, Fault> {
    let Ok(text) = text(value) else {
        return Err(mismatch(value, "a duration", INTERVAL_HINT));
    };
    let interval = parse_duration(text).map_err(|cause| Fault::new(cause, INTERVAL_HINT))?;
    if interval < Duration::from_millis(20) || interval > Duration::from_secs(10) {
        return Err(Fault::new(
            format!("{text:?} is out of range"),
            INTERVAL_HINT,
        ));
    }
    Ok(interval)
}

impl Table for Settings {
    const NAME: &'static str = "controller";
    const REQUIRED: &'static [(&'static str, &'static str)] = &[];
    const MOST: (usize, &'static str) = (1, "it is for all listeners");
    const ONE_ADDRESS_HINT: &'static str = "";
    const IS_SINGLE: bool = true;
    const HAS_ADDRESS: bool = false;

    fn keys() -> &'static [Key<Settings>] {
        CONTROLLER_KEYS
    }

    fn blank() -> Settings {
        Settings {
            target_wait: None,
            ..Settings::default()
        }
    }

    fn name(&self) -> &str {
        Self::NAME
    }

    fn take_default_name(&mut self) {}

    fn address(&self) -> String {
        String::new()
    }

    fn collides(&self, _other: &Settings) -> bool {
        false
    }

    fn check(&self) -> Result<(), (&'static str, Fault)> {
        if self.target_wait.is_none() && self.max_cpu.is_none() {
            let hint = "add target_wait = \"20ms\", or max_cpu = 0.9, or both";
            return Err((
                "target_wait",
                Fault::new("the controller has no objective", hint),
            ));
        }
        Ok(())
    }

    fn lint(&self, _given: &[&str]) -> Vec<String> {
        Vec::new()
    }
}

//! The keys of the `[controller]` table: its objectives, and how often it looks.

use std::sync::LazyLock;
use std::time::Duration;

use crate::error::Fault;
use crate::key::Key;
use crate::table::Table;
use crate::tables::listener::wait;
use crate::types::{Type, duration, number, whole, word};
use weir_core::controller::Settings;

static KEYS: LazyLock<Vec<Key<Settings>>> = LazyLock::new(keys);

#[rustfmt::skip] // A key a paragraph.
fn keys() -> Vec<Key<Settings>> {
    vec![
        Key::new("target_wait", field!(Settings, target_wait), wait().or_none(),
            "Wait for accept() that the controller keeps, by limiting the rates of classes")
            .absent("the controller does not look at the wait"),
        Key::new("max_cpu", field!(Settings, max_cpu), share().or_none(),
            "Share of the CPU that the controller stays under: of the machine, and of the quota of the server's cgroup")
            .absent("the controller does not look at the CPU"),
        Key::new("interval", field!(Settings, interval), interval(),
            "Time between two looks of the controller; a quarter of it while a queue is too long or the controller holds a class"),
        Key::new("samples", field!(Settings, samples), whole(1..=1000).in_unit("intervals"),
            "Intervals over which the controller averages"),
        Key::new("mode", field!(Settings, mode), word(),
            "Whether the controller sets the rates that it decides, or only reports them"),
    ]
}

fn share() -> Type<f64> {
    number(0.05..=1.0)
}

fn interval() -> Type<Duration> {
    duration(Duration::from_millis(20)..=Duration::from_secs(10), "100ms")
}

impl Table for Settings {
    const NAME: &'static str = "controller";
    const TITLE: &'static str = "The controller";
    const TEXT: &'static str = "Keeps the wait for accept(), or the CPU, at an objective: it limits the rates of classes, the \
                                lowest priority first.";
    const MOST: (usize, &'static str) = (1, "one controller serves all listeners");
    const IS_SINGLE: bool = true;

    fn keys() -> &'static [Key<Settings>] {
        &KEYS
    }

    fn blank() -> Settings {
        Settings {
            target_wait: None,
            ..Settings::default()
        }
    }

    fn example() -> Settings {
        Settings::default()
    }

    fn check(&self) -> Result<(), (&'static str, Fault)> {
        if self.target_wait.is_none() && self.max_cpu.is_none() {
            let hint = "add target_wait = \"20ms\", or max_cpu = 0.9, or both";
            let fault = Fault::new("the controller needs an objective", hint);
            return Err(("target_wait", fault));
        }
        Ok(())
    }
}

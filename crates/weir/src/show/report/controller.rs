//! The controller as people see it, in `weir status` and `weir explain controller`.

use std::time::Duration;

use weir_api::{ClassStatistics, Controller, Decision, ListenerStatistics};
use weir_core::units::{about_rate, format_duration, parse_duration};

use crate::daemon::controller::line;
use crate::show::table::{Align, indent, table};

/// Decisions that `weir status` shows.
pub const RECENT: usize = 5;

/// Times the target that a wait is told of: less is rounding.
const SLOWER: f64 = 1.05;

/// Objective, statistics, who is held, and the last decisions.
pub fn text(controller: &Controller, decisions: usize) -> String {
    let mut text = format!("controller: {}\n", objective(controller));
    text += &indent(&statistics(controller));
    let classes = controller.statistics.classes.iter();
    let held: Vec<Vec<String>> = classes.filter_map(held_row).collect();
    if held.is_empty() {
        text += &indent("no class is held");
    } else {
        let head = [
            ("class", Align::Left),
            ("SYN/s", Align::Right),
            ("held at", Align::Right),
            ("because", Align::Left),
        ];
        text += &indent(&table(&head, &held));
    }
    text + &log(controller, decisions)
}

fn objective(controller: &Controller) -> String {
    let wait = controller
        .target_wait
        .as_ref()
        .map(|wait| format!("wait {wait}"));
    let cpu = controller
        .max_cpu
        .map(|share| format!("CPU at most {:.0} %", 100.0 * share));
    let objectives: Vec<String> = [wait, cpu].into_iter().flatten().collect();
    let observes = match controller.mode.as_str() {
        "observe" => " (observe: nothing is set)",
        _ => "",
    };
    format!("{}{observes}", objectives.join(", "))
}

fn statistics(controller: &Controller) -> String {
    let percent = |share: Option<f64>| {
        share.map_or("-".to_owned(), |share| format!("{:.0} %", 100.0 * share))
    };
    let statistics = &controller.statistics;
    let mut lines = format!("CPU {}", percent(statistics.cpu));
    if let Some(share) = statistics.cgroup_cpu {
        lines += &format!(", the server's cgroup {}", percent(Some(share)));
    }
    for one in &statistics.listeners {
        let capacity = one.capacity.map_or("-".to_owned(), about_rate);
        lines += &format!(
            "\n{}: {} SYN/s, {}/s let in, {}/s accepted, capacity {capacity}/s",
            one.name,
            about_rate(one.syns),
            about_rate(one.admitted),
            about_rate(one.accepted),
        );
        lines += &kept(one, controller.target_wait.as_deref());
    }
    lines
}

/// What is kept instead of a target that a slow server cannot have; else nothing.
fn kept(one: &ListenerStatistics, target: Option<&str>) -> String {
    let target = target.and_then(|text| parse_duration(text).ok());
    let kept = one.kept_queue_length.zip(one.kept_wait_us);
    let Some((target, (length, wait_us))) = target.zip(kept) else {
        return String::new();
    };
    let wait = Duration::from_micros(wait_us);
    if wait <= target.mul_f64(SLOWER) {
        return String::new();
    }
    let wait = format_duration(Duration::from_millis(wait.as_millis() as u64));
    format!(
        "; {length:.0} connections wait {wait} at this speed, and with fewer the server would be idle"
    )
}

fn held_row(class: &ClassStatistics) -> Option<Vec<String>> {
    let rate = class.controlled_rate?;
    Some(vec![
        class.name.clone(),
        about_rate(class.syns),
        format!("{}/s", about_rate(rate)),
        class.reason.clone().unwrap_or_default(),
    ])
}

/// The last decisions, oldest first; empty without any.
fn log(controller: &Controller, most: usize) -> String {
    let all = &controller.decisions;
    let shown = &all[all.len().saturating_sub(most)..];
    let lines: Vec<String> = shown.iter().map(timed).collect();
    match lines.is_empty() {
        true => String::new(),
        false => format!("\n  last decisions (UTC)\n{}", indent(&lines.join("\n"))),
    }
}

/// `07:15:02.340 class other held at …`
fn timed(decision: &Decision) -> String {
    let ms = decision.at_unix_ms;
    let (hour, minute, second) = (ms / 3_600_000 % 24, ms / 60_000 % 60, ms / 1000 % 60);
    format!(
        "{hour:02}:{minute:02}:{second:02}.{:03} {}",
        ms % 1000,
        line(decision)
    )
}

#[cfg(test)]
mod tests {
    use weir_api::Statistics;

    use super::*;

    fn controller() -> Controller {
        Controller {
            mode: "observe".into(),
            target_wait: Some("20ms".into()),
            max_cpu: Some(0.9),
            interval: "100ms".into(),
            samples: 5,
            statistics: Statistics {
                cpu: Some(0.42),
                cgroup_cpu: None,
                listeners: vec![ListenerStatistics {
                    name: "web".into(),
                    syns: 61_000.0,
                    admitted: 29_900.4,
                    accepted: 29_800.0,
                    capacity: Some(29_800.0),
                    ..ListenerStatistics::default()
                }],
                classes: vec![ClassStatistics {
                    name: "other".into(),
                    syns: 61_000.0,
                    controlled_rate: Some(29_000.0),
                    reason: Some("listener \"web\": …".into()),
                    ..ClassStatistics::default()
                }],
            },
            decisions: vec![Decision {
                at_unix_ms: 1_000 * (3600 * 7 + 60 * 15 + 2) + 340,
                class: "other".into(),
                from: None,
                to: Some(29_000.0),
                observed: true,
                reason: "listener \"web\": …".into(),
            }],
        }
    }

    #[test]
    fn people_see_the_objective_who_is_held_and_what_was_decided() {
        let expected = "\
controller: wait 20ms, CPU at most 90 % (observe: nothing is set)
  CPU 42 %
  web: 61000 SYN/s, 29900/s let in, 29800/s accepted, capacity 29800/s
  class  SYN/s  held at  because
  other  61000  29000/s  listener \"web\": …

  last decisions (UTC)
  07:15:02.340 class other would be held at 29000/s: listener \"web\": …
";
        assert_eq!(text(&controller(), RECENT), expected);
    }

    #[test]
    fn a_wait_that_a_slow_server_cannot_have_is_told() {
        let mut slow = controller();
        slow.statistics.listeners[0].kept_queue_length = Some(10.0);
        slow.statistics.listeners[0].kept_wait_us = Some(208_333);
        let text = text(&slow, RECENT);
        assert!(
            text.contains("; 10 connections wait 208ms at this speed"),
            "{text}"
        );
        slow.statistics.listeners[0].kept_wait_us = Some(20_000);
        assert!(!super::text(&slow, RECENT).contains("at this speed"));
    }

    #[test]
    fn nothing_held_and_nothing_decided_is_short() {
        let mut quiet = controller();
        quiet.statistics.classes.clear();
        quiet.decisions.clear();
        assert!(
            text(&quiet, RECENT).ends_with("  no class is held\n"),
            "{}",
            text(&quiet, RECENT)
        );
    }
}

//! A status as people read it: tables, and below them what needs a sentence. The JSON of `--json` is
//! the status itself.

mod classes;
pub mod controller;
mod destinations;
mod guarded;
mod proxy;
pub mod quic;
mod shapes;
mod verdicts;

use std::collections::BTreeMap;
use std::time::Duration;

use weir_api::{Listener, Process, Quic, Socket, Status, Workload};
use weir_core::forecast::Would;
use weir_core::listener::Mode;
use weir_core::overload::turned_away;
use weir_core::verdict::{Counters, VERDICTS};
use weir_core::word::Word;
use weir_core::workload::SHOWN_ID;

pub use classes::class_list;
pub use shapes::shapes_text;
pub use verdicts::{counter_table, quic_counter_table};

use classes::some_classes;
use destinations::{asked_table, destination_table, listener_timewait_table};
use quic::{quic_lines, quic_table};
use verdicts::{Shown, quic_verdict_table, verdict_table};

use crate::show::describe;
use crate::show::residence;
use crate::show::table::{Align, indent, table};

/// How a status is shown.
#[derive(Debug, Clone, Copy, Default)]
pub struct View<'a> {
    /// Zero counters too.
    pub all: bool,
    /// With the sentence of each verdict.
    pub explain: bool,
    /// The status before, and how long ago it was: for rates.
    pub before: Option<(&'a Status, Duration)>,
}

impl View<'_> {
    /// Of a table of verdicts.
    fn verdicts<'a>(&self, before: Option<(&'a BTreeMap<String, u64>, Duration)>) -> Shown<'a> {
        Shown {
            all: self.all,
            explain: self.explain,
            before,
        }
    }
}

/// The whole status.
pub fn text(status: &Status, view: &View<'_>) -> String {
    let all = view.all;
    match (&status.process, status.proxies.as_slice()) {
        (None, []) => "no weir is running in this network namespace\n".to_owned(),
        (None, proxies) => proxy::text(proxies, all),
        (Some(process), []) => guard_text(status, process, view),
        (Some(process), proxies) => {
            guard_text(status, process, view) + "\n" + &proxy::text(proxies, all)
        }
    }
}

fn guard_text(status: &Status, process: &Process, view: &View<'_>) -> String {
    let warnings = status.warnings.iter();
    let mut warnings: String = warnings.map(|text| format!("warning: {text}\n")).collect();
    if process.log_lost > 0 {
        let lines = describe::count(process.log_lost as usize, "line");
        warnings += &format!("warning: {lines} of its log lost: nobody read them in time\n");
    }
    warnings += &describe::unconfirmed(process.unconfirmed_s, "warning: ");
    warnings += &describe::observes(process.observes_s, "warning: ");
    warnings += &describe::failed_reload(status.last_reload.as_ref(), "warning: ");
    let command = match &process.config {
        Some(file) => format!("{} --config {file}", process.command),
        None => process.command.clone(),
    };
    let mut text = format!("weir {command} (pid {}) ", process.pid);
    text += &match status.listeners.len() {
        0 => format!("has {}\n{warnings}", guarded::without_listeners(status)),
        _ => format!(
            "guards {}{}\n{warnings}\n{}",
            guarded::listeners(status),
            guarded::on_interfaces(status),
            listener_table(status),
        ),
    };
    for listener in &status.listeners {
        text += &details(listener, view);
    }
    if !status.quic.is_empty() {
        text += &format!("\n{}", quic_table(&status.quic));
    }
    for quic in &status.quic {
        text += &quic_details(quic, view);
    }
    if !status.classes.is_empty() {
        let table = some_classes(&status.classes, status.classes_left_out);
        text += &format!("\nclasses of all listeners\n{}", indent(&table));
    }
    let negotiating = listener_timewait_table(&status.listeners);
    if !negotiating.is_empty() {
        text += &format!("\n{negotiating}");
    }
    if !status.destinations.is_empty() {
        text += &format!("\n{}", destination_table(&status.destinations));
    }
    if let Some(asked) = &status.timewait_asked {
        text += &format!("\n{}", asked_table(asked));
    }
    if !status.shapes.is_empty() {
        text += &format!("\n{}", shapes_text(&status.shapes));
    }
    if let Some(controller) = &status.controller {
        text += &format!("\n{}", controller::text(controller, controller::RECENT));
    }
    text
}

fn listener_table(status: &Status) -> String {
    use Align::{Left, Right};
    let head = [
        ("listener", Left),
        ("address", Left),
        ("mode", Left),
        ("queue", Right),
        ("half-open", Right),
        ("wait", Right),
    ];
    let mut rows = Vec::new();
    for listener in &status.listeners {
        rows.push(listener_row(listener));
        if listener.sockets.len() > 1 {
            rows.extend(listener.sockets.iter().map(socket_row));
        }
        rows.extend(listener.workloads.iter().take(WORKLOADS).map(workload_row));
    }
    table(&head, &rows)
}

fn queue(length: u32, limit: u32) -> String {
    format!("{length}/{limit}")
}

fn wait(wait_us: Option<u64>) -> String {
    wait_us.map_or("-".to_owned(), |us| {
        weir_core::units::about_duration(Duration::from_micros(us))
    })
}

/// The wait before a queue of this length; `?` while some wait and weir has not seen yet for how long.
fn wait_before(length: u32, wait_us: Option<u64>) -> String {
    match wait_us {
        None if length > 0 => "?".to_owned(),
        known => wait(known),
    }
}

fn listener_row(listener: &Listener) -> Vec<String> {
    vec![
        listener.name.clone(),
        listener.address.clone(),
        if listener.in_force {
            &listener.mode
        } else {
            "not in force"
        }
        .to_owned(),
        if listener.listening {
            queue(listener.queue_length, listener.queue_limit)
        } else {
            "-".into()
        },
        listener.half_open.to_string(),
        wait_before(listener.queue_length, listener.wait_us),
    ]
}

/// Why a listener is not in force, as weir says or as it always was before it said.
pub fn not_in_force_because(listener: &Listener) -> &str {
    let because = listener.not_in_force_because.as_deref();
    because.unwrap_or("weir is attached to none of its interfaces")
}

/// Notes and counters, below the table.
fn details(listener: &Listener, view: &View<'_>) -> String {
    let mut lines = vec![format!("policy: {}", listener.policy)];
    if !listener.in_force {
        lines.push(format!("not in force: {}", not_in_force_because(listener)));
    }
    if !listener.listening {
        lines.push("nothing listens there at the moment".to_owned());
    }
    if let (Some(policy), Some(because)) = (&listener.fallback, &listener.fallback_because) {
        lines.push(format!("fallback to {policy}: {because}"));
    }
    lines.extend(standing_queue(listener));
    lines.extend(kept(listener));
    lines.extend(steady(listener));
    lines.extend(residence::line(listener));
    lines.extend(residence::inside(listener));
    match (listener.queue_way.as_str(), &listener.queue_way_because) {
        ("parking", because) => lines.push(format!(
            "by priority: {} parked, {} released, {} overtook another{}",
            listener.parked,
            listener.released,
            listener.overtook,
            because.as_ref().map_or(String::new(), |b| format!("; {b}")),
        )),
        ("fifo", Some(because)) => {
            lines.push(format!("not by priority: {because}"));
            if listener.sockets.iter().any(|socket| socket.mptcp) {
                lines.push(MPTCP_HINT.to_owned());
            }
        }
        (way, Some(because)) => lines.push(format!("by priority: {way}: {because}")),
        _ => {}
    }
    let before = view.before.and_then(|(status, time)| {
        let mut listeners = status.listeners.iter();
        let same = listeners.find(|other| other.name == listener.name)?;
        Some((&same.counters, time))
    });
    let counters = verdict_table(&listener.counters, &view.verdicts(before));
    match counters.is_empty() {
        true => lines.push("no verdict yet".to_owned()),
        false => lines.extend(totals(listener)),
    }
    let mut text = format!("\n{}\n", listener.name);
    text += &indent(&lines.join("\n"));
    if !listener.classes.is_empty() {
        text += &indent(&some_classes(&listener.classes, listener.classes_left_out));
    }
    text += &indent(&workload_table(listener));
    text + &indent(&counters)
}

/// The same of a QUIC listener.
fn quic_details(quic: &Quic, view: &View<'_>) -> String {
    let before = view.before.and_then(|(status, time)| {
        let mut all = status.quic.iter();
        let same = all.find(|other| other.name == quic.name)?;
        Some((&same.counters, time))
    });
    let counters = quic_verdict_table(&quic.counters, &view.verdicts(before));
    let mut text = format!("\n{}\n{}", quic.name, indent(&quic_lines(quic).join("\n")));
    if !quic.classes.is_empty() {
        text += &indent(&some_classes(&quic.classes, quic.classes_left_out));
    }
    text + &indent(&counters)
}

/// A wait from which on clients repeat what they sent, and many have gone before they are accepted, in µs.
const LONG_US: u64 = 1_000_000;

/// Who waits already is before everybody whom weir lets in: it refuses until they have been accepted.
fn standing_queue(listener: &Listener) -> Option<String> {
    let length = listener.queue_length;
    if length == 0 || !listener.in_force {
        return None;
    }
    let some = describe::count(length as usize, "connection");
    let Some(us) = listener.wait_us else {
        return Some(format!(
            "wait ?: not known yet; {some} wait, and weir has not seen how fast the server accepts"
        ));
    };
    let is_kept = listener
        .kept_queue_length
        .is_some_and(|kept| length <= kept);
    let is_within = listener
        .target_in_force_us
        .is_some_and(|target| us <= target);
    let by_places = listener
        .settings
        .get("admit")
        .is_some_and(|admit| admit == "queue");
    let lets_in = is_within || by_places && length < listener.queue_limit;
    if us < LONG_US || is_kept || lets_in {
        return None;
    }
    let of_queue = listener.service_us.unwrap_or(0) * u64::from(length);
    let stopped_us = us.saturating_sub(of_queue);
    if stopped_us > of_queue {
        return Some(stopped(listener, &some, stopped_us));
    }
    let wait = wait(Some(us));
    Some(match listener.mode.as_str() {
        "observe" => format!(
            "{some} wait, for {wait}; enforcing begins to let clients in once these have been accepted, or at once after a restart of \
             the server, which empties its queue"
        ),
        _ => format!(
            "the queue drains first: {some} wait, which lasts about {wait} at the server's pace. Until then new clients are refused. A \
             restart of the server empties it at once"
        ),
    })
}

/// Of a server whose clients wait for its next accept rather than for each other.
fn stopped(listener: &Listener, waiting: &str, us: u64) -> String {
    let time = wait(Some(us));
    let refuses = match listener.mode.as_str() {
        "observe" => "enforcing would refuse new clients, and most health checks,",
        _ => "weir refuses new clients, and most health checks,",
    };
    format!(
        "the server has accepted nothing for about {time}, and {waiting} wait. Soon after it has stopped, {refuses} until it accepts again"
    )
}

/// What is kept instead of a `target_wait` that a slow server cannot have.
fn kept(listener: &Listener) -> Option<String> {
    let (length, wait_us) = listener.kept_queue_length.zip(listener.kept_wait_us)?;
    let target = listener.settings.get("target_wait")?.as_str()?;
    Some(format!(
        "target_wait {target} cannot be kept: the server accepts one connection in {}. {} may wait, {} in all: \
         with fewer the server would be idle",
        wait(listener.service_us),
        describe::count(length as usize, "connection"),
        wait(Some(wait_us)),
    ))
}

/// Who has come in beside the others: a check cannot be told from many clients behind one address.
fn steady(listener: &Listener) -> Option<String> {
    let count = listener.counters.get("syn_steady").filter(|n| **n > 0)?;
    let would_be = match listener.mode.as_str() {
        "observe" => "would be let in",
        _ => "let in",
    };
    Some(format!(
        "{} of steady sources {would_be} where others are refused: health checks, or many clients behind one address",
        describe::count(*count as usize, "SYN"),
    ))
}

/// `admitted 70, refused 30 (30 %)`, and why the verdicts below it are more.
fn totals(listener: &Listener) -> Vec<String> {
    let counters = counters_of(&listener.counters);
    let mode = Mode::from_word(&listener.mode).unwrap_or(Mode::Enforce);
    let would = listener.offered.zip(listener.would_refuse);
    let would = would.map(|(offered, refused)| Would { offered, refused });
    let totals = describe::totals(mode, &counters, would);
    let why = describe::observed_verdicts(&counters, would).map(str::to_owned);
    [totals].into_iter().chain(why).collect()
}

fn counters_of(named: &BTreeMap<String, u64>) -> Counters {
    let mut counters = Counters::default();
    for row in &VERDICTS {
        let count = named.get(row.name).copied();
        counters.0[row.verdict as usize] = count.unwrap_or(0);
    }
    counters
}

/// What an operator can do about a server that listens with MPTCP.
const MPTCP_HINT: &str =
    "  hint: start the server with `weir exec -- SERVER`, or Go with GODEBUG=multipathtcp=0";

/// Workloads of a listener that the table shows.
const WORKLOADS: usize = 20;

/// What a workload is: `docker 3f2a9c0b3f2a`, `netns blue`, `nginx.service`.
pub fn workload_kind(workload: &Workload) -> String {
    match (&workload.runtime, &workload.container_id, &workload.netns) {
        (Some(runtime), Some(id), _) => format!("{runtime} {}", id.get(..SHOWN_ID).unwrap_or(id)),
        (_, _, Some(name)) => format!("netns {name}"),
        _ => workload.unit.clone().unwrap_or_default(),
    }
}

fn workload_row(workload: &Workload) -> Vec<String> {
    let mode = match workload.in_force {
        true => "",
        false => "not in force",
    };
    let its_queue = match workload.listening {
        true => queue(workload.queue_length, workload.queue_limit),
        false => "-".to_owned(),
    };
    vec![
        format!("  {}", workload.name),
        workload_kind(workload),
        mode.to_owned(),
        its_queue,
        workload.half_open.to_string(),
        wait_before(workload.queue_length, workload.wait_us),
    ]
}

/// What a table of workloads says of each: how many were let in and refused.
fn workload_table(listener: &Listener) -> String {
    let head = [
        ("workload", Align::Left),
        ("admitted", Align::Right),
        ("refused", Align::Right),
    ];
    let row = |workload: &Workload| {
        let counters = counters_of(&workload.counters);
        let refused: u64 = turned_away(&counters).iter().sum();
        let admitted = describe::admitted(&counters).to_string();
        vec![workload.name.clone(), admitted, refused.to_string()]
    };
    let workloads = listener.workloads.iter();
    let rows: Vec<_> = workloads.take(WORKLOADS).map(row).collect();
    let more = listener.workloads.len().saturating_sub(WORKLOADS);
    match (rows.len(), more) {
        (0, _) => String::new(),
        (_, 0) => table(&head, &rows),
        (_, more) => table(&head, &rows) + &format!("and {more} more; --json has all\n"),
    }
}

fn socket_row(socket: &Socket) -> Vec<String> {
    vec![
        if socket.mptcp {
            "  MPTCP socket"
        } else {
            "  socket"
        }
        .to_owned(),
        socket.address.clone(),
        String::new(),
        queue(socket.queue_length, socket.queue_limit),
        socket.half_open.to_string(),
        wait_before(socket.queue_length, socket.wait_us),
    ]
}

#[cfg(test)]
mod tests {
    use weir_api::Interface;
    use weir_core::quic::QUIC_VERDICTS;

    use super::*;

    fn socket(address: &str, queue_length: u32) -> Socket {
        Socket {
            address: address.into(),
            queue_length,
            queue_limit: 511,
            half_open: 1,
            wait_us: Some(1500),
            mptcp: false,
        }
    }

    #[test]
    fn a_shaped_interface_counts_once_with_both_directions() {
        let shape = |direction: &str| weir_api::Shape {
            dev: "ppp0".into(),
            direction: direction.into(),
            backend: "tc".into(),
            discipline: "spa-fq".into(),
            rate_bits_per_s: 9_500_000,
            queues: Vec::new(),
        };
        let mut status = Status {
            listeners: Vec::new(),
            ..report()
        };
        assert_eq!(guarded::without_listeners(&status), "nothing in force");
        status.shapes = vec![shape("egress"), shape("ingress")];
        assert_eq!(guarded::without_listeners(&status), "1 shaped interface");
    }

    #[test]
    fn a_wait_that_is_not_known_is_not_none() {
        let said = |length, wait_us| {
            let mut listener = report().listeners.remove(0);
            (listener.queue_length, listener.wait_us) = (length, wait_us);
            let cell = listener_row(&listener).pop().unwrap();
            (cell, details(&listener, &View::default()))
        };
        let (cell, text) = said(233, None);
        assert_eq!(cell, "?");
        assert!(
            text.contains("wait ?: not known yet; 233 connections wait"),
            "{text}"
        );
        let (cell, text) = said(0, None);
        assert_eq!(cell, "-");
        assert!(!text.contains("not known yet"), "{text}");
    }

    #[test]
    fn a_queue_from_before_is_said_to_drain_first_and_for_how_long() {
        let said = |mode: &str, wait_us, kept| {
            let mut listener = report().listeners.remove(0);
            (listener.queue_length, listener.wait_us) = (511, Some(wait_us));
            listener.service_us = Some(wait_us / 511);
            (listener.mode, listener.kept_queue_length) = (mode.into(), kept);
            details(&listener, &View::default())
        };
        let text = said("enforce", 12_000_000, None);
        assert!(
            text.contains("the queue drains first: 511 connections wait, which lasts about 12 s"),
            "{text}"
        );
        assert!(
            text.contains("A restart of the server empties it at once"),
            "{text}"
        );
        let text = said("observe", 12_000_000, Some(4));
        assert!(
            text.contains("511 connections wait, for 12 s; enforcing begins"),
            "{text}"
        );
        let text = said("enforce", 20_000, None) + &said("enforce", 4_000_000, Some(511));
        assert!(!text.contains("drains first"), "{text}");
    }

    #[test]
    fn a_server_that_accepts_nothing_is_not_said_to_drain() {
        let mut listener = report().listeners.remove(0);
        (listener.queue_length, listener.kept_queue_length) = (40, None);
        (listener.wait_us, listener.service_us) = (Some(2_900_000), Some(10_000));
        let text = details(&listener, &View::default());
        assert!(!text.contains("drains"), "{text}");
        let said = "accepted nothing for about 2.5 s, and 40 connections wait";
        assert!(text.contains(said), "{text}");
    }

    #[test]
    fn sources_that_pass_for_health_checks_are_said() {
        let mut listener = report().listeners.remove(0);
        let said = |listener: &Listener| details(listener, &View::default());
        assert!(!said(&listener).contains("steady"));
        listener.counters.insert("syn_steady".into(), 38);
        assert!(
            said(&listener).contains("38 SYNs of steady sources let in where others are refused")
        );
    }

    fn report() -> Status {
        let counters = VERDICTS
            .iter()
            .map(|row| (row.name.to_owned(), 0))
            .collect();
        let mut web = Listener {
            name: "web".into(),
            address: "*:80".into(),
            mode: "enforce".into(),
            policy: "reserv rst-syn, admit wait 20ms".into(),
            in_force: true,
            not_in_force_because: None,
            listening: true,
            queue_length: 5,
            queue_limit: 1022,
            half_open: 2,
            wait_us: Some(1500),
            fallback: Some("reserv rst-syn".into()),
            fallback_because: Some("cookies are off".into()),
            counters,
            sockets: vec![socket("0.0.0.0:80", 5), socket("[::]:80", 0)],
            ..Listener::default()
        };
        web.settings
            .insert("establish".into(), "no-syn-drop".into());
        web.counters.insert("syn_admitted".into(), 12345);
        Status {
            running: true,
            process: Some(Process {
                pid: 7,
                command: "run".into(),
                config: Some("/etc/weir/weir.toml".into()),
                log_lost: 3,
                ..Process::default()
            }),
            interfaces: vec![Interface {
                name: "eth0".into(),
                index: 2,
                xdp: false,
            }],
            warnings: vec!["interface eth7 does not exist".into()],
            listeners: vec![web],
            ..Status::default()
        }
    }

    #[test]
    fn people_see_queues_fallback_and_the_verdicts_that_fell() {
        let expected = "\
weir run --config /etc/weir/weir.toml (pid 7) guards 1 listener on eth0
warning: interface eth7 does not exist
warning: 3 lines of its log lost: nobody read them in time

listener  address     mode      queue  half-open    wait
web       *:80        enforce  5/1022          2  1.5 ms
  socket  0.0.0.0:80            5/511          1  1.5 ms
  socket  [::]:80               0/511          1  1.5 ms

web
  policy: reserv rst-syn, admit wait 20ms
  fallback to reserv rst-syn: cookies are off
  admitted 12345, refused 0 (0 %)
  verdict       count
  syn_admitted  12345
";
        assert_eq!(text(&report(), &View::default()), expected);
    }

    #[test]
    fn destinations_are_shown_below_the_listeners_and_alone() {
        let mut report = report();
        report.warnings.clear();
        report.process.as_mut().unwrap().log_lost = 0;
        report.destinations = vec![weir_api::Destination {
            name: "backends".into(),
            mode: "client-rst".into(),
            ..weir_api::Destination::default()
        }];
        let shown = text(&report, &View::default());
        assert!(shown.contains("\ndestination  to   timewait"), "{shown}");
        report.listeners.clear();
        let expected = "\
weir run --config /etc/weir/weir.toml (pid 7) has 1 destination

destination  to   timewait    held  avoided  held_by_peer  swapped  reused  refused  fallback  bytes
backends     any  client-rst     0        0             0        0       0        0         0      0
";
        assert_eq!(text(&report, &View::default()), expected);
        report.timewait_asked = Some(weir_api::TimeWait::default());
        let shown = text(&report, &View::default());
        let asked = shown.strip_prefix(expected).unwrap();
        assert!(asked.starts_with("\nasked by    to   timewait "), "{asked}");
    }

    #[test]
    fn quic_listeners_are_shown_below_the_listeners_and_alone() {
        let mut report = report();
        report.warnings.clear();
        report.process.as_mut().unwrap().log_lost = 0;
        report.quic = vec![Quic {
            name: "h3".into(),
            address: "*:443".into(),
            mode: "enforce".into(),
            in_force: true,
            counters: [("quic_admitted", 80), ("quic_vn_room", 20)]
                .map(|(name, n)| (name.to_owned(), n))
                .into(),
            sockets: vec![weir_api::QuicSocket {
                pending: 12,
                wait_us: Some(35_000),
                service_us: Some(2900),
                buffer: 4096,
                buffer_limit: 425_984,
                standing: false,
                least: 2,
            }],
            settings: [("refuse", "vn"), ("target_wait", "20ms")]
                .map(|(key, value)| (key.to_owned(), value.into()))
                .into(),
            ..Quic::default()
        }];
        let shown = text(&report, &View::default());
        let web = shown
            .find("  syn_admitted  12345\n\nquic  address")
            .unwrap();
        let below = &shown[web + "  syn_admitted  12345\n".len()..];
        let expected = "
quic  address  mode     pending  buffer   wait
h3    *:443    enforce       12   1.0 %  35 ms

h3
  policy: vn, wait 20ms
  12 attempts are not answered; the next waits about 35 ms
  admitted 80 (answered 0), refused 20 (20 %)
  verdict        count
  quic_admitted     80
  quic_vn_room      20
";
        assert_eq!(below, expected);
        let before = report.clone();
        report.listeners.clear();
        report.quic[0].counters.insert("quic_admitted".into(), 180);
        let view = View {
            before: Some((&before, Duration::from_secs(2))),
            explain: true,
            ..View::default()
        };
        let alone = text(&report, &view);
        let first =
            "weir run --config /etc/weir/weir.toml (pid 7) has 1 QUIC listener\n\nquic  address";
        assert!(alone.starts_with(first), "{alone}");
        let row = format!("quic_admitted    180       50  {}", QUIC_VERDICTS[0].text);
        assert!(alone.contains(&row), "{alone}");
    }

    #[test]
    fn classes_of_all_listeners_have_a_table_of_their_own() {
        let mut report = report();
        assert!(!text(&report, &View::default()).contains("classes of all"));
        report.classes = vec![weir_api::Class {
            name: "crawlers".into(),
            priority: 9,
            ..weir_api::Class::default()
        }];
        let text = text(&report, &View::default());
        assert!(
            text.contains("\nclasses of all listeners\n  class"),
            "{text}"
        );
    }

    #[test]
    fn who_listens_with_mptcp_is_told_of_weir_exec() {
        let mut report = report();
        let web = &mut report.listeners[0];
        web.queue_way = "fifo".into();
        web.queue_way_because = Some("its listening socket is MPTCP".into());
        assert!(!text(&report, &View::default()).contains("weir exec"));
        report.listeners[0].sockets[0].mptcp = true;
        let text = text(&report, &View::default());
        let told = "not by priority: its listening socket is MPTCP\n    hint: start the server with `weir exec";
        assert!(text.contains(told), "{text}");
    }

    #[test]
    fn all_shows_every_counter() {
        let shown = |all| {
            let view = View {
                all,
                explain: true,
                before: None,
            };
            let text = text(&report(), &view);
            VERDICTS
                .iter()
                .filter(|row| text.contains(row.text))
                .count()
        };
        assert_eq!((shown(false), shown(true)), (1, VERDICTS.len()));
    }

    #[test]
    fn a_verdict_s_sentence_is_shown_only_if_it_is_asked_for_and_its_rate_if_watched() {
        let before = report();
        let mut now = report();
        now.listeners[0]
            .counters
            .insert("syn_admitted".into(), 12355);
        let view = View {
            before: Some((&before, Duration::from_secs(2))),
            ..View::default()
        };
        let text = text(&now, &view);
        assert!(!text.contains(VERDICTS[0].text), "{text}");
        assert!(
            text.contains("  verdict       count  count/s\n  syn_admitted  12355        5\n"),
            "{text}"
        );
    }

    #[test]
    fn json_has_the_names_that_scripts_rely_on() {
        let json = serde_json::to_value(report()).unwrap();
        let listener = json["listeners"][0].as_object().unwrap();
        for name in [
            "name",
            "address",
            "mode",
            "queue_length",
            "queue_limit",
            "half_open",
            "counters",
            "classes",
            "sockets",
            "fallback",
            "establish",
        ] {
            assert!(listener.contains_key(name), "{name}");
        }
        assert_eq!(
            json["listeners"][0]["counters"].as_object().unwrap().len(),
            VERDICTS.len()
        );
    }

    #[test]
    fn what_is_sent_over_the_control_socket_arrives_whole() {
        let sent = serde_json::to_string(&report()).unwrap();
        assert_eq!(serde_json::from_str::<Status>(&sent).unwrap(), report());
    }
}

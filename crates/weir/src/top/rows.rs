//! Reports as rows: what is shown of each listener, verdict, class, proxy and backend, sorted and filtered.

use std::cmp::Ordering;
use std::time::Duration;

use weir_api::{
    Backend, Class, ClassStatistics, Listener, Proxy, Status, Times, TopSource, TopSources,
};
use weir_core::units::{about_duration, parse_duration};
use weir_core::verdict::{ADMITS, Kind, VERDICTS, Verdict, VerdictInfo, refusals};

use super::rates::{Interval, Pair};
use crate::show::describe::{failed_reload, percent};

/// What rows are sorted by. Ties, and what has no such figure, are sorted by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Sort {
    /// Connections refused per second, the most first
    #[default]
    Refused,
    /// Connections admitted per second, the most first
    Admitted,
    /// The wait for accept(), the longest first
    Wait,
    /// The length of the queue, the longest first
    Queue,
    /// The name
    Name,
}

impl Sort {
    const ALL: [Sort; 5] = [
        Sort::Refused,
        Sort::Admitted,
        Sort::Wait,
        Sort::Queue,
        Sort::Name,
    ];

    /// The next one.
    pub fn next(self) -> Sort {
        let at = Sort::ALL.iter().position(|sort| *sort == self).unwrap_or(0);
        Sort::ALL[(at + 1) % Sort::ALL.len()]
    }

    /// Its name as a column has it.
    pub fn word(self) -> &'static str {
        match self {
            Sort::Refused => "refused/s",
            Sort::Admitted => "admitted/s",
            Sort::Wait => "wait",
            Sort::Queue => "queue",
            Sort::Name => "name",
        }
    }
}

/// Connections per second.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Flow {
    /// Let in.
    pub admitted: f64,
    /// Turned away, by RST or silence; in observe mode, those that would have been.
    pub refused: f64,
    /// SYNs answered with a cookie; those that come back are admitted or refused then.
    pub answered: f64,
}

impl Flow {
    /// `33 %`: refused of those that were decided.
    pub fn share(&self) -> String {
        let all = self.admitted + self.refused;
        match all > 0.0 {
            true => percent(self.refused / all),
            false => "-".to_owned(),
        }
    }
}

/// The sums of verdicts of a listener or class.
pub fn flow(interval: &Interval<'_>) -> Flow {
    let cookies = [Verdict::CookieSent, Verdict::CookieSentFlood];
    Flow {
        admitted: interval.rates(ADMITS.map(|verdict| verdict.info().name)),
        refused: interval.rates(refusals().map(|row| row.name)),
        answered: interval.rates(cookies.map(|verdict| verdict.info().name)),
    }
}

/// A listener.
#[derive(Debug, Clone, PartialEq)]
pub struct ListenerRow<'a> {
    /// All else.
    pub listener: &'a Listener,
    /// enforce, observe, or not in force.
    pub mode: &'a str,
    /// The wait that is to be kept, in µs; `None`: none is.
    pub target_us: Option<u64>,
    /// `None` without a report before.
    pub flow: Option<Flow>,
}

impl ListenerRow<'_> {
    /// Whether connections wait longer than they are to.
    pub fn is_over_target(&self) -> bool {
        let over = |(wait, target)| wait > target;
        self.listener.wait_us.zip(self.target_us).is_some_and(over)
    }

    /// `5/511`; `-` if nothing listens.
    pub fn queue(&self) -> String {
        match self.listener.listening {
            true => format!(
                "{}/{}",
                self.listener.queue_length, self.listener.queue_limit
            ),
            false => "-".to_owned(),
        }
    }
}

/// The listeners whose name, address or mode has the filter.
pub fn listeners<'a>(
    status: &'a Status,
    pair: &Pair<'a>,
    filter: &str,
    sort: Sort,
    reverse: bool,
) -> Vec<ListenerRow<'a>> {
    let row = |listener: &'a Listener| ListenerRow {
        listener,
        mode: match listener.in_force {
            true => &listener.mode,
            false => "not in force",
        },
        target_us: target_us(status, listener),
        flow: pair.listener(listener).as_ref().map(flow),
    };
    let rows = status.listeners.iter().map(row);
    let fits = |row: &ListenerRow<'_>| {
        let listener = row.listener;
        has(
            filter,
            [listener.name.as_str(), listener.address.as_str(), row.mode],
        )
    };
    let mut rows: Vec<_> = rows.filter(fits).collect();
    rows.sort_by(|a, b| {
        let flow = |row: &ListenerRow<'_>| row.flow.unwrap_or_default();
        let figure = |row: &ListenerRow<'_>| match sort {
            Sort::Name => 0.0,
            Sort::Queue => row.listener.queue_length.into(),
            Sort::Wait => row.listener.wait_us.unwrap_or(0) as f64,
            Sort::Admitted => flow(row).admitted,
            Sort::Refused => flow(row).refused,
        };
        in_order(figure(a), figure(b), &a.listener.name, &b.listener.name)
    });
    turn(&mut rows, reverse);
    rows
}

/// The listener's own target where it refuses by the wait, else the controller's.
fn target_us(status: &Status, listener: &Listener) -> Option<u64> {
    let of_controller = || {
        let target = status.controller.as_ref()?.target_wait.as_deref()?;
        parse_duration(target).ok()
    };
    let target = weir_api::metrics::target_wait(listener).or_else(of_controller)?;
    Some(target.as_micros() as u64)
}

/// A verdict of a listener.
#[derive(Debug, Clone, PartialEq)]
pub struct VerdictRow {
    /// Its name.
    pub name: &'static str,
    /// How it treats the packet.
    pub kind: Kind,
    /// What it means.
    pub text: &'static str,
    /// Since weir started.
    pub count: u64,
    /// Per second; `None` without a report before.
    pub rate: Option<f64>,
}

/// The verdicts of a listener that have fallen: in their own order, or the fastest first.
pub fn verdicts(listener: &Listener, pair: &Pair<'_>, sort: Sort) -> Vec<VerdictRow> {
    let count = |name: &str| listener.counters.get(name).copied().unwrap_or(0);
    let interval = pair.listener(listener);
    let row = |row: &'static VerdictInfo| VerdictRow {
        name: row.name,
        kind: row.kind,
        text: row.text,
        count: count(row.name),
        rate: interval.as_ref().map(|interval| interval.rate(row.name)),
    };
    let mut rows: Vec<VerdictRow> = VERDICTS
        .iter()
        .map(row)
        .filter(|row| row.count > 0)
        .collect();
    if sort != Sort::Name {
        rows.sort_by(|a, b| b.rate.unwrap_or(0.0).total_cmp(&a.rate.unwrap_or(0.0)));
    }
    rows
}

/// A class.
#[derive(Debug, Clone, PartialEq)]
pub struct ClassRow<'a> {
    /// All else.
    pub class: &'a Class,
    /// The listener of its counters; `None`: all.
    pub listener: Option<&'a str>,
    /// `None` without a report before.
    pub flow: Option<Flow>,
    /// Why the controller limits it; `None` if it does not.
    pub reason: Option<&'a str>,
}

/// The classes whose name or listener has the filter. Those that the controller holds come first, unless they are
/// sorted by name.
pub fn classes<'a>(
    status: &'a Status,
    pair: &Pair<'a>,
    filter: &str,
    sort: Sort,
    reverse: bool,
) -> Vec<ClassRow<'a>> {
    let of_listener = |listener: &'a Listener| {
        let classes = listener.classes.iter();
        classes.map(|class| (Some(listener.name.as_str()), class))
    };
    let all = status.classes.iter().map(|class| (None, class));
    let all = status.listeners.iter().flat_map(of_listener).chain(all);
    let row = |(listener, class): (Option<&'a str>, &'a Class)| ClassRow {
        class,
        listener,
        flow: pair.class(listener, class).as_ref().map(flow),
        reason: held(status)
            .find(|held| held.name == class.name)
            .and_then(|held| held.reason.as_deref()),
    };
    let fits = |row: &ClassRow<'_>| {
        has(
            filter,
            [row.class.name.as_str(), row.listener.unwrap_or("*")],
        )
    };
    let mut rows: Vec<_> = all.map(row).filter(fits).collect();
    rows.sort_by(|a, b| {
        let flow = |row: &ClassRow<'_>| row.flow.unwrap_or_default();
        let figure = |row: &ClassRow<'_>| match sort {
            Sort::Name => 0.0,
            Sort::Queue | Sort::Wait => row.class.waiting.unwrap_or(0).into(),
            Sort::Admitted => flow(row).admitted,
            Sort::Refused => flow(row).refused,
        };
        let is_held = |row: &ClassRow<'_>| sort != Sort::Name && row.reason.is_some();
        let held_first = is_held(b).cmp(&is_held(a));
        held_first.then_with(|| in_order(figure(a), figure(b), &a.class.name, &b.class.name))
    });
    turn(&mut rows, reverse);
    rows
}

/// The classes that the controller limits.
pub fn held(status: &Status) -> impl Iterator<Item = &ClassStatistics> {
    let controller = status.controller.iter();
    let classes = controller.flat_map(|controller| &controller.statistics.classes);
    classes.filter(|class| class.controlled_rate.is_some())
}

/// The sources whose address, network, listener or class has the filter: by name, or else the most refused first, a
/// network before its addresses.
pub fn sources<'a>(
    top: &'a TopSources,
    filter: &str,
    sort: Sort,
    reverse: bool,
) -> Vec<&'a TopSource> {
    let fits = |source: &&TopSource| {
        let class = source.class.as_deref().unwrap_or_default();
        has(filter, [&source.source, &source.listener, class])
    };
    let all = top.networks.iter().chain(&top.addresses);
    let mut rows: Vec<_> = all.filter(fits).collect();
    rows.sort_by(|a, b| match sort {
        Sort::Name => a.source.cmp(&b.source),
        // A network has no less than its addresses, and stands first in `all`.
        _ => b.share.total_cmp(&a.share),
    });
    turn(&mut rows, reverse);
    rows
}

/// A proxy or, below it, one of its backends.
#[derive(Debug, Clone, PartialEq)]
pub struct ProxyRow<'a> {
    /// `None`: the proxy itself.
    pub backend: Option<&'a Backend>,
    /// The name of the proxy, or the address of the backend.
    pub name: &'a str,
    /// accepting, full, draining; up, down, unchecked.
    pub state: &'a str,
    /// Clients now; `None` of a backend.
    pub clients: Option<u64>,
    /// Clients that wait for a connection; `None` of a backend.
    pub waiting: Option<u64>,
    /// Requests and tunnels per second; of a backend, connections opened and used again.
    pub rate: Option<f64>,
    /// Replies with 5xx per second; of a backend, failures.
    pub failures: Option<f64>,
    /// Connections to servers that carry something, and that wait.
    pub connections: weir_api::Connections,
    /// The 99th percentile of requests, of a backend of first bytes, since the start; in µs.
    pub p99_us: Option<u64>,
}

/// The proxies that have the filter in their name or address or in that of a backend, each with its backends.
pub fn proxies<'a>(
    status: &'a Status,
    pair: &Pair<'a>,
    filter: &str,
    sort: Sort,
    reverse: bool,
) -> Vec<ProxyRow<'a>> {
    let fits = |proxy: &&Proxy| {
        let backends = proxy
            .backends
            .iter()
            .map(|backend| backend.address.as_str());
        has(
            filter,
            [proxy.name.as_str(), proxy.address.as_str()]
                .into_iter()
                .chain(backends),
        )
    };
    let mut groups: Vec<_> = status
        .proxies
        .iter()
        .filter(fits)
        .map(|p| proxy_rows(p, pair))
        .collect();
    groups.sort_by(|a: &Vec<ProxyRow<'_>>, b| {
        let figure = |rows: &[ProxyRow<'_>]| match sort {
            Sort::Name => 0.0,
            Sort::Queue | Sort::Wait => rows[0].waiting.unwrap_or(0) as f64,
            Sort::Admitted => rows[0].rate.unwrap_or(0.0),
            Sort::Refused => rows[0].failures.unwrap_or(0.0),
        };
        in_order(figure(a), figure(b), a[0].name, b[0].name)
    });
    turn(&mut groups, reverse);
    groups.into_iter().flatten().collect()
}

fn proxy_rows<'a>(proxy: &'a Proxy, pair: &Pair<'a>) -> Vec<ProxyRow<'a>> {
    let p99 = |times: &'a std::collections::BTreeMap<String, Times>, name: &str| {
        times.get(name).and_then(|times| times.p99_us)
    };
    let interval = pair.proxy(proxy);
    let state = match proxy.accepting {
        true if proxy.threads.iter().any(|thread| thread.state == "full") => "full",
        true => "accepting",
        false => "draining",
    };
    let itself = ProxyRow {
        backend: None,
        name: &proxy.name,
        state,
        clients: Some(proxy.clients),
        waiting: Some(proxy.waiting),
        rate: interval.map(|interval| interval.rates(["requests", "tunnels"])),
        failures: interval.map(|interval| interval.rate("replies_5xx")),
        connections: proxy.connections,
        p99_us: p99(&proxy.times, "request_duration"),
    };
    let backend = |backend: &'a Backend| {
        let interval = pair.backend(proxy, backend);
        let failures = ["connects_failed", "failures"];
        ProxyRow {
            backend: Some(backend),
            name: &backend.address,
            state: &backend.health,
            clients: None,
            waiting: None,
            rate: interval.map(|interval| interval.rates(["connects", "reused"])),
            failures: interval.map(|interval| interval.rates(failures)),
            connections: backend.connections,
            p99_us: p99(&backend.times, "first_byte"),
        }
    };
    let backends = proxy.backends.iter().map(backend);
    [itself].into_iter().chain(backends).collect()
}

/// What an operator should know besides: warnings of weir, and what is not as configured. A sentence each.
pub fn notes(status: &Status) -> Vec<String> {
    let mut notes = status.warnings.clone();
    let lost = status
        .process
        .as_ref()
        .map_or(0, |process| process.log_lost);
    if lost > 0 {
        notes.push(format!(
            "{lost} lines of its log lost: nobody read them in time"
        ));
    }
    let reloads = status
        .proxies
        .iter()
        .filter_map(|proxy| proxy.last_reload.as_ref());
    for reload in status.last_reload.iter().chain(reloads) {
        let note = failed_reload(Some(reload), "").trim_end().to_owned();
        // Proxies of one process have one reload.
        if !note.is_empty() && !notes.contains(&note) {
            notes.push(note);
        }
    }
    for listener in &status.listeners {
        let name = &listener.name;
        if !listener.in_force {
            notes.push(format!(
                "{name}: not in force: weir is attached to none of its interfaces"
            ));
        }
        if !listener.listening {
            notes.push(format!("{name}: nothing listens there at the moment"));
        }
        if let Some((policy, because)) = listener
            .fallback
            .as_ref()
            .zip(listener.fallback_because.as_ref())
        {
            notes.push(format!("{name}: fallback to {policy}: {because}"));
        }
        if let Some(because) = &listener.queue_way_because {
            notes.push(format!("{name}: not by priority: {because}"));
        }
    }
    let down = |proxy: &Proxy, backend: &Backend| {
        format!(
            "{}: backend {} is down: {}",
            proxy.name, backend.address, backend.last_check
        )
    };
    for proxy in &status.proxies {
        let backends = proxy
            .backends
            .iter()
            .filter(|backend| backend.health == "down");
        notes.extend(backends.map(|backend| down(proxy, backend)));
    }
    notes
}

/// `508 ms`; `-` while not known.
pub fn time(us: Option<u64>) -> String {
    us.map_or("-".to_owned(), |us| {
        about_duration(Duration::from_micros(us))
    })
}

/// `1440`, `1.5`; `-` while not known.
pub fn rate(rate: Option<f64>) -> String {
    match rate {
        None => "-".to_owned(),
        Some(0.0) => "0".to_owned(),
        Some(rate) if rate < 9.95 => format!("{rate:.1}"),
        Some(rate) => format!("{rate:.0}"),
    }
}

/// `14:05:09` of a time in ms since 1970 UTC.
pub fn clock(unix_ms: u64) -> String {
    let seconds = unix_ms / 1000;
    format!(
        "{:02}:{:02}:{:02}",
        seconds / 3600 % 24,
        seconds / 60 % 60,
        seconds % 60
    )
}

/// Whether one of the texts has the filter, in capitals or not.
fn has<'a>(filter: &str, texts: impl IntoIterator<Item = &'a str>) -> bool {
    let filter = filter.to_lowercase();
    texts
        .into_iter()
        .any(|text| text.to_lowercase().contains(&filter))
}

/// The larger figure first, then by name.
fn in_order(a: f64, b: f64, a_name: &str, b_name: &str) -> Ordering {
    b.total_cmp(&a).then_with(|| a_name.cmp(b_name))
}

fn turn<T>(rows: &mut [T], reverse: bool) {
    if reverse {
        rows.reverse();
    }
}

//! Reports as rows: what is shown of each listener, verdict, class and source, sorted and filtered.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use weir_api::{
    Backend, Class, ClassStatistics, Listener, Proxy, Quic, Status, TopSource, TopSources, Workload,
};
use weir_core::quic::QUIC_VERDICTS;
use weir_core::units::{about_duration, about_rate, parse_duration};
use weir_core::verdict::{ADMITS, Kind, VERDICTS, Verdict, refusals};

use super::rates::{Interval, Pair};
use crate::show::describe::{count, failed_reload, observes, percent, unconfirmed};
use crate::show::report::quic::{fullest, longest_wait, pending, policy};
use crate::show::report::{not_in_force_because, workload_kind};
use crate::show::residence;

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

/// Of what is only observed, with the connections a second that would have come and been refused, what enforcement would have
/// done.
fn flow_if(flow: Flow, would: Option<(f64, f64)>) -> Flow {
    let Some((offered, refused)) = would else {
        return flow;
    };
    Flow {
        admitted: (offered - refused).max(0.0),
        refused,
        ..flow
    }
}

/// As [`flow`], of a QUIC listener.
fn quic_flow(interval: &Interval<'_>) -> Flow {
    let of = |kind: Kind| {
        let rows = QUIC_VERDICTS.iter().filter(|row| row.kind == kind);
        interval.rates(rows.map(|row| row.name))
    };
    Flow {
        admitted: of(Kind::Pass),
        refused: of(Kind::Refuse),
        answered: 0.0,
    }
}

/// What a row is of.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Subject<'a> {
    /// A listener: the sum over its workloads, where it has some.
    Listener(&'a Listener),
    /// One of a listener's workloads.
    Workload(&'a Listener, &'a Workload),
    /// A QUIC listener: the sum over its sockets.
    Quic(&'a Quic),
}

/// A listener or, below it, one of its workloads; or a QUIC listener.
#[derive(Debug, Clone, PartialEq)]
pub struct ListenerRow<'a> {
    /// All else.
    pub subject: Subject<'a>,
    /// enforce, observe, or not in force.
    pub mode: &'a str,
    /// The wait that is to be kept, in µs; `None`: none is.
    pub target_us: Option<u64>,
    /// `None` without a report before.
    pub flow: Option<Flow>,
    /// Workloads that follow it.
    pub unfolded: usize,
}

impl<'a> ListenerRow<'a> {
    /// By which it is known from one report to the next.
    pub fn key(&self) -> String {
        match self.subject {
            Subject::Listener(listener) => key(listener, None),
            Subject::Workload(listener, workload) => key(listener, Some(workload)),
            // A listener may have the same name.
            Subject::Quic(_) => self.label(),
        }
    }

    /// The name of the listener, or QUIC listener.
    pub fn name(&self) -> &'a str {
        match self.subject {
            Subject::Listener(listener) | Subject::Workload(listener, _) => &listener.name,
            Subject::Quic(quic) => &quic.name,
        }
    }

    /// The name that the log and the events have for it: `web`, `web@web-1`, `h3 (QUIC)`.
    pub fn label(&self) -> String {
        match self.subject {
            Subject::Listener(listener) => listener.name.clone(),
            Subject::Workload(listener, workload) => format!("{}@{}", listener.name, workload.name),
            Subject::Quic(quic) => format!("{} (QUIC)", quic.name),
        }
    }

    /// As the table has it: `web ▸3` has three workloads that are not shown, `web ▾3` is followed by them.
    pub fn title(&self) -> String {
        let all = self.workloads().len();
        match (self.subject, self.unfolded) {
            (Subject::Workload(_, workload), _) => format!("  {}", workload.name),
            _ if all == 0 => self.label(),
            (_, 0) => format!("{} ▸{all}", self.name()),
            (_, shown) if shown < all => format!("{} ▾{shown}/{all}", self.name()),
            _ => format!("{} ▾{all}", self.name()),
        }
    }

    /// Whether it is a workload of a listener.
    pub fn is_workload(&self) -> bool {
        matches!(self.subject, Subject::Workload(..))
    }

    /// Whether it is a QUIC listener.
    pub fn is_quic(&self) -> bool {
        matches!(self.subject, Subject::Quic(_))
    }

    /// The workloads of its listener.
    pub fn workloads(&self) -> &'a [Workload] {
        match self.subject {
            Subject::Listener(listener) | Subject::Workload(listener, _) => &listener.workloads,
            Subject::Quic(_) => &[],
        }
    }

    /// The listener's address.
    pub fn address(&self) -> &'a str {
        match self.subject {
            Subject::Listener(listener) | Subject::Workload(listener, _) => &listener.address,
            Subject::Quic(quic) => &quic.address,
        }
    }

    /// The listener's address; of a workload what it is: `docker 3f2a9c0b3f2a`.
    pub fn place(&self) -> String {
        match self.subject {
            Subject::Workload(_, workload) => workload_kind(workload),
            _ => self.address().to_owned(),
        }
    }

    /// What it does with who comes, in a few words.
    pub fn policy(&self) -> String {
        match self.subject {
            Subject::Listener(listener) | Subject::Workload(listener, _) => listener.policy.clone(),
            Subject::Quic(quic) => policy(quic),
        }
    }

    /// Connections that wait for accept(); of QUIC, attempts that the server has not answered.
    pub fn queue_length(&self) -> u32 {
        match self.subject {
            Subject::Listener(listener) => listener.queue_length,
            Subject::Workload(_, workload) => workload.queue_length,
            Subject::Quic(quic) => u32::try_from(pending(quic)).unwrap_or(u32::MAX),
        }
    }

    /// Handshakes under way; `-` of QUIC, where nobody counts them.
    pub fn half_open(&self) -> String {
        match self.subject {
            Subject::Listener(listener) => listener.half_open.to_string(),
            Subject::Workload(_, workload) => workload.half_open.to_string(),
            Subject::Quic(_) => "-".to_owned(),
        }
    }

    /// How full the receive buffer of a QUIC server is; `-` of others.
    pub fn buffer(&self) -> String {
        match self.subject {
            Subject::Quic(quic) if !quic.sockets.is_empty() => percent(fullest(quic)),
            _ => "-".to_owned(),
        }
    }

    /// The estimated wait, in µs; `None` while not known.
    pub fn wait_us(&self) -> Option<u64> {
        match self.subject {
            Subject::Listener(listener) => listener.wait_us,
            Subject::Workload(_, workload) => workload.wait_us,
            Subject::Quic(quic) => longest_wait(quic).map(|wait| wait.as_micros() as u64),
        }
    }

    /// Verdicts by their names.
    pub fn counters(&self) -> &'a BTreeMap<String, u64> {
        match self.subject {
            Subject::Listener(listener) => &listener.counters,
            Subject::Workload(_, workload) => &workload.counters,
            Subject::Quic(quic) => &quic.counters,
        }
    }

    fn listening(&self) -> bool {
        match self.subject {
            Subject::Listener(listener) => listener.listening,
            Subject::Workload(_, workload) => workload.listening,
            Subject::Quic(quic) => !quic.sockets.is_empty(),
        }
    }

    fn in_force(&self) -> bool {
        match self.subject {
            Subject::Listener(listener) => listener.in_force,
            Subject::Workload(_, workload) => workload.in_force,
            Subject::Quic(quic) => quic.in_force,
        }
    }

    /// Whether connections wait longer than they are to.
    pub fn is_over_target(&self) -> bool {
        let over = |(wait, target)| wait > target;
        self.wait_us().zip(self.target_us).is_some_and(over)
    }

    /// `5/511`; of QUIC, which has no queue that is full at some length, `5`; `-` if nothing listens.
    pub fn queue(&self) -> String {
        let limit = match self.subject {
            Subject::Listener(listener) => Some(listener.queue_limit),
            Subject::Workload(_, workload) => Some(workload.queue_limit),
            Subject::Quic(_) => None,
        };
        match (self.listening(), limit) {
            (true, Some(limit)) => format!("{}/{limit}", self.queue_length()),
            (true, None) => self.queue_length().to_string(),
            (false, _) => "-".to_owned(),
        }
    }

    /// The wait; `?` while some wait and weir has not seen yet for how long.
    pub fn wait(&self) -> String {
        match self.wait_us() {
            None if self.listening() && self.queue_length() > 0 => "?".to_owned(),
            known => time(known),
        }
    }

    fn figure(&self, sort: Sort) -> f64 {
        let flow = self.flow.unwrap_or_default();
        match sort {
            Sort::Name => 0.0,
            Sort::Queue => self.queue_length().into(),
            Sort::Wait => self.wait_us().unwrap_or(0) as f64,
            Sort::Admitted => flow.admitted,
            Sort::Refused => flow.refused,
        }
    }
}

/// Two workloads may have one name; a namespace has one server at a listener's port.
pub fn key(listener: &Listener, workload: Option<&Workload>) -> String {
    match workload {
        None => listener.name.clone(),
        Some(one) => format!("{}@{}", listener.name, one.netns_cookie),
    }
}

/// Which rows of listeners there are, and in which order.
#[derive(Debug, Clone, Copy)]
pub struct Wish<'a> {
    /// What they have in their names.
    pub filter: &'a str,
    /// What they are sorted by.
    pub sort: Sort,
    /// Whether the order is turned round.
    pub reverse: bool,
    /// Listeners that are followed by their workloads; `None`: all are.
    pub unfolded: Option<&'a BTreeSet<String>>,
    /// Workloads that follow a listener, at most: the first ones in this order.
    pub most: usize,
}

/// The listeners and QUIC listeners whose name, address or mode has the filter, each followed by its workloads if it is
/// unfolded; or a workload of which has it, followed by those.
pub fn listeners<'a>(status: &'a Status, pair: &Pair<'a>, wish: Wish<'_>) -> Vec<ListenerRow<'a>> {
    let mut groups: Vec<_> = status
        .listeners
        .iter()
        .filter_map(|listener| group(status, listener, pair, wish))
        .collect();
    let quic = status.quic.iter().map(|quic| quic_row(quic, pair));
    let fits = |row: &ListenerRow<'_>| has(wish.filter, [&*row.label(), row.address(), row.mode]);
    groups.extend(quic.filter(fits).map(|row| vec![row]));
    groups.sort_by(|a, b| worst_first(&a[0], &b[0], wish.sort));
    turn(&mut groups, wish.reverse);
    groups.into_iter().flatten().collect()
}

fn quic_row<'a>(quic: &'a Quic, pair: &Pair<'a>) -> ListenerRow<'a> {
    let target = quic.settings.get("target_wait");
    let target = target.and_then(|target| parse_duration(target.as_str()?).ok());
    ListenerRow {
        subject: Subject::Quic(quic),
        mode: match quic.in_force {
            true => &quic.mode,
            false => "not in force",
        },
        target_us: target.map(|target| target.as_micros() as u64),
        flow: pair
            .quic(quic)
            .map(|interval| flow_if(quic_flow(&interval), pair.would_quic(quic))),
        unfolded: 0,
    }
}

/// A listener and those of its workloads that are shown.
fn group<'a>(
    status: &'a Status,
    listener: &'a Listener,
    pair: &Pair<'a>,
    wish: Wish<'_>,
) -> Option<Vec<ListenerRow<'a>>> {
    let mode = |in_force| match in_force {
        true => listener.mode.as_str(),
        false => "not in force",
    };
    let mut itself = ListenerRow {
        subject: Subject::Listener(listener),
        mode: mode(listener.in_force),
        target_us: target_us(status, listener),
        flow: pair
            .listener(listener)
            .map(|interval| flow_if(flow(&interval), pair.would(listener))),
        unfolded: 0,
    };
    let names = [listener.name.as_str(), &listener.address, itself.mode];
    let fits = has(wish.filter, names);
    let workloads = listener.workloads.iter().map(|workload| ListenerRow {
        subject: Subject::Workload(listener, workload),
        mode: mode(workload.in_force),
        flow: pair
            .workload(listener, workload)
            .map(|interval| flow_if(flow(&interval), pair.would_there(listener, workload))),
        ..itself.clone()
    });
    let is_unfolded = wish
        .unfolded
        .is_none_or(|names| names.contains(&listener.name));
    let mut workloads: Vec<ListenerRow<'a>> = match (fits, is_unfolded) {
        (true, true) => workloads.collect(),
        (true, false) => Vec::new(),
        (false, _) => workloads
            .filter(|row| has(wish.filter, [&*row.label(), &*row.place(), row.mode]))
            .collect(),
    };
    if !fits && workloads.is_empty() {
        return None;
    }
    workloads.sort_by(|a, b| {
        // One that is not guarded has no figures.
        let off_first = match wish.sort {
            Sort::Name => Ordering::Equal,
            _ => a.in_force().cmp(&b.in_force()),
        };
        off_first.then_with(|| worst_first(a, b, wish.sort))
    });
    turn(&mut workloads, wish.reverse);
    workloads.truncate(wish.most);
    itself.unfolded = workloads.len();
    Some([itself].into_iter().chain(workloads).collect())
}

fn worst_first(a: &ListenerRow<'_>, b: &ListenerRow<'_>, sort: Sort) -> Ordering {
    in_order(a.figure(sort), b.figure(sort), &a.label(), &b.label())
}

/// The target in force; of an older report the listener's own where it refuses by the wait, else the controller's.
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

/// The verdicts of a listener or a workload that have fallen: in their own order, or the fastest first.
pub fn verdicts(of: &ListenerRow<'_>, pair: &Pair<'_>, sort: Sort) -> Vec<VerdictRow> {
    let count = |name: &str| of.counters().get(name).copied().unwrap_or(0);
    let interval = match of.subject {
        Subject::Listener(listener) => pair.listener(listener),
        Subject::Workload(listener, workload) => pair.workload(listener, workload),
        Subject::Quic(quic) => pair.quic(quic),
    };
    let row = |name, kind, text| VerdictRow {
        name,
        kind,
        text,
        count: count(name),
        rate: interval.as_ref().map(|interval| interval.rate(name)),
    };
    let all: Vec<VerdictRow> = match of.subject {
        Subject::Quic(_) => {
            let rows = QUIC_VERDICTS.iter();
            rows.map(|one| row(one.name, one.kind, one.text)).collect()
        }
        _ => {
            let rows = VERDICTS.iter();
            rows.map(|one| row(one.name, one.kind, one.text)).collect()
        }
    };
    let mut rows = all;
    rows.retain(|row| row.count > 0);
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

/// What an operator should know besides: warnings of weir, and what is not as configured. A sentence each.
pub fn notes(status: &Status) -> Vec<String> {
    let mut notes = status.warnings.clone();
    let lost = status
        .process
        .as_ref()
        .map_or(0, |process| process.log_lost);
    if lost > 0 {
        notes.push(format!(
            "{} of its log lost: nobody read them in time",
            count(lost as usize, "line")
        ));
    }
    if let Some(process) = &status.process {
        let whiles = [
            unconfirmed(process.unconfirmed_s, ""),
            observes(process.observes_s, ""),
        ];
        let said = whiles.iter().map(|text| text.trim_end());
        notes.extend(said.filter(|text| !text.is_empty()).map(str::to_owned));
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
                "{name}: not in force: {}",
                not_in_force_because(listener)
            ));
        }
        for said in [residence::unheard(listener), residence::inside(listener)] {
            notes.extend(said.map(|said| format!("{name}: {said}")));
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
    for quic in &status.quic {
        // A sentence of the whole interface is among the warnings.
        let because = quic.warning.as_deref();
        match (quic.in_force, because) {
            (true, None) => {}
            (true, Some(because)) if status.warnings.iter().any(|said| said == because) => {}
            (true, Some(because)) => notes.push(format!("{} (QUIC): {because}", quic.name)),
            (false, _) => notes.push(format!(
                "{} (QUIC): not in force: {}",
                quic.name,
                because.unwrap_or("weir is attached to none of its interfaces")
            )),
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
    rate.map_or_else(|| "-".to_owned(), about_rate)
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
pub(super) fn has<'a>(filter: &str, texts: impl IntoIterator<Item = &'a str>) -> bool {
    let filter = filter.to_lowercase();
    texts
        .into_iter()
        .any(|text| text.to_lowercase().contains(&filter))
}

/// The larger figure first, then by name.
pub(super) fn in_order(a: f64, b: f64, a_name: &str, b_name: &str) -> Ordering {
    b.total_cmp(&a).then_with(|| a_name.cmp(b_name))
}

pub(super) fn turn<T>(rows: &mut [T], reverse: bool) {
    if reverse {
        rows.reverse();
    }
}

//! `weir protect --where`: ports in other network namespaces.

use std::collections::BTreeSet;
use std::time::Instant;

use weir_api::Workload;
use weir_config::Config;
use weir_core::listener::{Listener, Mode};
use weir_core::quic::QuicListener;
use weir_core::workload::Where;

use super::published::{self, Published};
use super::summary::{self, SHOWN, queue};
use super::udp;
use crate::cli::Protect;
use crate::daemon::guard::Start;
use crate::daemon::guard::elsewhere::Every;
use crate::failure::{Failure, Result};
use crate::show::describe;
use crate::show::output::{print, warn_text};
use crate::show::table::indent;

/// What is guarded by UDP.
pub struct Udp {
    /// The QUIC listeners of weir's own network namespace.
    pub here: Vec<QuicListener>,
    /// The policy of those elsewhere.
    pub template: QuicListener,
    /// UDP ports that are published from another network namespace.
    pub published: BTreeSet<u16>,
}

/// Guards until Ctrl-C these listeners, or every server of a place; `published` are among them.
///
/// # Errors
/// Nobody listens there (but for `--anyway`), or they cannot be guarded.
pub fn run(
    start: Start,
    (listeners, by_udp): (Vec<Listener>, Udp),
    every: Option<Every>,
    published: &[Published],
    args: &Protect,
) -> Result<()> {
    let config = Config {
        listeners,
        ..Config::default()
    };
    let mut daemon = start.daemon(&config, None, args.verbose)?;
    let place = every.as_ref().map(|every| every.location.describe());
    if let Some(every) = every {
        daemon.service.guard_every(every)?;
    }
    let asked = match place {
        Some(_) => daemon.service.elsewhere().asked().to_vec(),
        None => config.listeners.clone(),
    };
    let reports = daemon.service.listeners()?;
    if let Some(place) = place.filter(|_| asked.is_empty()) {
        if !args.anyway {
            let hint = "start the servers first; --anyway protects them as they come";
            return Err(Failure::failed(
                format!("no TCP server listens in {place}"),
                hint,
            ));
        }
        print(&format!(
            "weir: no TCP server listens in {place} yet; Ctrl-C takes it off\n"
        ))?;
    }
    if !args.anyway {
        let elsewhere = config
            .listeners
            .iter()
            .filter(|one| one.location != Where::Here);
        let failures = elsewhere.filter(|asked| report(asked, &reports).workloads.is_empty());
        let failures = failures.map(|asked| {
            let mut published = published.iter();
            if let Some(published) = published.find(|one| one.listener == *asked) {
                return published.nobody_listens();
            }
            let there = daemon.service.elsewhere().names_at(asked.address.port);
            nobody_listens(asked, &there)
        });
        Failure::all(failures.collect()).map_or(Ok(()), Err)?;
    }
    let quic = match args.no_quic {
        true => Vec::new(),
        false => udp::with_elsewhere(by_udp.here, &config.listeners, &by_udp.template, &daemon),
    };
    let is_guarded = |port: &u16| {
        let mut its = published.iter().filter(|one| one.port == *port);
        its.any(|one| quic.iter().any(|quic| quic.goes_with(&one.listener)))
    };
    udp::say_unguarded(by_udp.published.iter().filter(|port| !is_guarded(port)));
    udp::guard(&mut daemon, quic)?;
    published::say(published)?;
    daemon.service.session.notices()?.iter().for_each(warn_text);
    print(&on_lines(&asked, &reports))?;
    for line in udp::lines(&daemon.service.quic().report()?) {
        print(&indent(&line))?;
    }
    let since = Instant::now();
    let totals = daemon.guard()?;
    print(&summary::text(&totals, since.elapsed()))
}

/// What is said of a listener. Reports of weir's own namespace come first.
fn report<'a>(asked: &Listener, reports: &'a [weir_api::Listener]) -> &'a weir_api::Listener {
    let found = reports.iter().find(|report| report.name == asked.name);
    found.expect("every listener is reported")
}

fn nobody_listens(asked: &Listener, there: &[String]) -> Failure {
    let port = asked.address.port;
    let message = format!(
        "nothing listens on {} in {}",
        asked.address,
        asked.location.describe()
    );
    let names: Vec<&str> = there.iter().map(String::as_str).collect();
    let who = match names.is_empty() {
        true => format!(
            "nothing on this machine listens on port {port}: the port is the one inside, not a published one"
        ),
        false => format!("on port {port} listen {}", describe::examples(&names)),
    };
    Failure::failed(
        message,
        format!("{who}; --anyway protects what comes later"),
    )
}

/// The lines that say that protection is on: one, and one for each workload.
fn on_lines(asked: &[Listener], reports: &[weir_api::Listener]) -> String {
    let Some(first) = asked.first() else {
        return String::new();
    };
    let verb = match first.mode {
        Mode::Enforce => "protecting",
        Mode::Observe => "observing",
    };
    let object = match asked {
        [one] => summary::object(one),
        several if several.len() > SHOWN => format!("{} ports", several.len()),
        several => {
            // Inside, several containers may have the same.
            let mut named = BTreeSet::new();
            let ports = several.iter().map(|one| one.address.port);
            let ports = ports.filter(|port| named.insert(*port));
            let ports: Vec<String> = ports.map(|port| port.to_string()).collect();
            let word = if ports.len() == 1 { "port" } else { "ports" };
            format!("{word} {}", ports.join(", "))
        }
    };
    let policy = describe::policy(first);
    let is_one_place = asked.iter().all(|one| one.location == first.location);
    let place = match is_one_place {
        true => format!(" in {}", first.location.describe()),
        false => String::new(),
    };
    let head = format!("weir: {verb} {object} ({policy}){place}; Ctrl-C takes it off\n");
    let all = asked.iter().flat_map(|one| {
        let report = report(one, reports);
        let workloads = report.workloads.iter();
        let mut lines: Vec<String> = workloads
            .map(|workload| line(report, workload, asked.len() > 1))
            .collect();
        if one.location == Where::Here {
            lines.push(format!("{}: {}", report.address, queue(report)));
        }
        lines
    });
    let all: Vec<String> = all.collect();
    let mut lines: Vec<String> = all.iter().take(SHOWN).cloned().collect();
    match all.len() {
        0 => lines.push("nothing listens there yet".to_owned()),
        n if n > SHOWN => lines.push(format!("and {} more; `weir status` shows all", n - SHOWN)),
        _ => {}
    }
    head + &indent(&lines.join("\n"))
}

fn line(report: &weir_api::Listener, workload: &Workload, several: bool) -> String {
    let at = if several {
        format!("{} ", report.address)
    } else {
        String::new()
    };
    let name = &workload.name;
    match &workload.not_in_force_because {
        Some(because) => format!("{at}{name}: not in force: {because}"),
        None => format!(
            "{at}{name}: listen queue {} of {}",
            workload.queue_length, workload.queue_limit
        ),
    }
}

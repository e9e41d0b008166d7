//! `weir protect`: some ports or all, in the foreground, until Ctrl-C.

mod summary;
mod unheard;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

use weir_config::{Table, Warning};
use weir_core::listener::{ListenAddress, Listener, Mode};
use weir_kernel::ListenSocket;

use crate::cli::{Protect, Target};
use crate::daemon::attachment::missing;
use crate::daemon::backend::Backend;
use crate::daemon::guard::Start;
use crate::daemon::session::{Session, listeners_of};
use crate::failure::{Code, Failure, Result};
use crate::host::links::Link;
use crate::host::namespaces;
use crate::host::privileges;
use crate::host::shortcomings;
use crate::show::describe;
use crate::show::output::{print, warn, warn_text};
use crate::show::table::indent;

use unheard::something_listens;

/// Listeners that the first lines name.
const SHOWN: usize = 12;

/// Runs the command.
pub fn run(runtime_dir: &Path, args: &Protect) -> Result<()> {
    let wanted = Wanted::of(args)?;
    for text in wanted.template.lint(&args.policy.given()) {
        warn(&Warning {
            location: None,
            text,
        });
    }
    let start = Start::prepare(runtime_dir, std::slice::from_ref(&wanted.template))?;
    interfaces_exist(&wanted.template, &start.links)?;
    let there = start.guard.listen_sockets()?;
    let listeners = wanted.listeners(&there)?;
    if !args.anyway {
        listen(&wanted, &listeners, &there)?;
    }
    privileges::keep_those_of_guard(None, None);
    let mut daemon = start.daemon(listeners.clone(), Vec::new(), None, args.verbose)?;
    daemon.service.set_timewait(Vec::new())?;
    let session = &daemon.service.session;
    session.notices()?.iter().for_each(warn_text);
    let warnings = shortcomings::warnings(&listeners, &there);
    warnings.iter().for_each(warn_text);
    print(&on_lines(session, &wanted)?)?;
    if wanted.ports.is_none() {
        let template = wanted.template.clone();
        daemon
            .service
            .follow_sockets(move |port| for_port(&template, port));
    }
    let since = Instant::now();
    let totals = daemon.guard()?;
    print(&summary::text(&totals, since.elapsed()))
}

/// What the arguments ask for.
struct Wanted {
    /// The listener of the first port, or of every one.
    template: Listener,
    /// The ports; `None` is all on which something listens.
    ports: Option<Vec<u16>>,
}

/// A port that stands for all: 0 is none.
const ANY_PORT: u16 = 0;

impl Wanted {
    fn of(args: &Protect) -> Result<Wanted> {
        let all = args.targets.contains(&Target::All);
        if all && args.targets.len() > 1 {
            let hint = "`weir protect all`, or only the ports: `weir protect 80 443`";
            return Err(Failure::usage("all: it has every port already", hint));
        }
        let port = |target: &Target| match target {
            Target::Port(port) => Some(*port),
            Target::All => None,
        };
        let ports: BTreeSet<u16> = args.targets.iter().filter_map(port).collect();
        let ports: Vec<u16> = ports.into_iter().collect();
        if ports.len() != 1 && args.policy.given().contains(&"name") {
            let hint = "each is port-PORT; `weir run --config FILE` names several listeners";
            return Err(Failure::usage("--name: it names one listener", hint));
        }
        let port = ports.first().copied().unwrap_or(ANY_PORT);
        let mode = match args.observe {
            true => Mode::Observe,
            false => Mode::Enforce,
        };
        let ip = args.address.0;
        let blank = Listener {
            mode,
            ..Listener::new("", ListenAddress { ip, port })
        };
        let template = args.policy.applied_to(blank);
        let template =
            template.map_err(|(flag, fault)| Failure::fault(Code::Usage, &flag, fault))?;
        let ports = (!all).then_some(ports);
        Ok(Wanted { template, ports })
    }

    fn listeners(&self, there: &[ListenSocket]) -> Result<Vec<Listener>> {
        match &self.ports {
            Some(ports) if ports.len() == 1 => Ok(vec![self.template.clone()]),
            Some(ports) => Ok(ports
                .iter()
                .map(|port| for_port(&self.template, *port))
                .collect()),
            None => {
                let mut all = listeners_of(there, |port| for_port(&self.template, port));
                all.truncate(weir_core::listener::MAX_LISTENERS);
                Ok(all)
            }
        }
    }

    /// `port 80`, `10.0.0.1:80`, `ports 80, 443`, `all 7 listeners`.
    fn object(&self, listeners: usize) -> String {
        let ip = self.template.address.ip;
        let on = ip.map_or(String::new(), |ip| format!(" on {ip}"));
        match &self.ports {
            Some(ports) if ports.len() == 1 => summary::object(&self.template),
            Some(ports) => {
                let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
                format!("ports {}{on}", ports.join(", "))
            }
            None => {
                let count = describe::count(listeners, "listener");
                format!("all TCP servers{on}, {count} now")
            }
        }
    }
}

/// The template for a port, named after it.
fn for_port(template: &Listener, port: u16) -> Listener {
    let address = ListenAddress {
        port,
        ..template.address
    };
    let mut listener = Listener {
        name: String::new(),
        address,
        ..template.clone()
    };
    listener.take_default_name();
    listener
}

fn interfaces_exist(listener: &Listener, links: &[Link]) -> Result<()> {
    let Some(name) = missing(std::slice::from_ref(listener), links)
        .into_iter()
        .next()
    else {
        return Ok(());
    };
    let existing: Vec<&str> = links.iter().map(|link| link.name.as_str()).collect();
    let existing = existing.join(", ");
    Err(Failure::failed(
        format!("interface {name} does not exist in this network namespace"),
        format!("there are {existing}; without --interface all of them are guarded"),
    ))
}

/// Whether something listens for each of them.
fn listen(wanted: &Wanted, listeners: &[Listener], there: &[ListenSocket]) -> Result<()> {
    if wanted.ports.is_none() && listeners.is_empty() {
        let hint = "start the servers first; --anyway protects them as they come";
        let message = "no TCP server listens in this network namespace";
        return Err(Failure::failed(message, hint));
    }
    let elsewhere = || {
        let spaces = namespaces::others().into_iter();
        let with_ports = spaces.map(|space| (space.ports(), space));
        with_ports.filter(|(ports, _)| !ports.is_empty()).collect()
    };
    let failures = listeners
        .iter()
        .filter_map(|listener| something_listens(listener, there, elsewhere).err());
    Failure::all(failures.collect()).map_or(Ok(()), Err)
}

/// The lines that say that protection is on: one, and one for each listener if there are several.
fn on_lines<B: Backend>(session: &Session<B>, wanted: &Wanted) -> Result<String> {
    let verb = match wanted.template.mode {
        Mode::Enforce => "protecting",
        Mode::Observe => "observing",
    };
    let reports = session.listeners()?;
    let first = reports.first();
    let policy = first.map_or(describe::policy(&wanted.template), |one| one.policy.clone());
    let interfaces = match first {
        Some(one) => describe::interfaces(session.interfaces_of(&one.name)),
        None => describe::interfaces(session.interfaces().iter().map(|one| one.name.as_str())),
    };
    let object = wanted.object(reports.len());
    let head = format!("weir: {verb} {object} ({policy}) on {interfaces}; ");
    if let (Some(_), [one]) = (&wanted.ports, reports.as_slice()) {
        return Ok(format!("{head}{}; Ctrl-C takes it off\n", queue(one)));
    }
    let line = |one: &weir_api::Listener| format!("{}: {}", one.address, queue(one));
    let mut lines: Vec<String> = reports.iter().take(SHOWN).map(line).collect();
    if reports.len() > SHOWN {
        lines.push(format!(
            "and {} more; `weir status` shows all",
            reports.len() - SHOWN
        ));
    }
    Ok(format!(
        "{head}Ctrl-C takes it off\n{}",
        indent(&lines.join("\n"))
    ))
}

fn queue(report: &weir_api::Listener) -> String {
    if !report.listening {
        return "nothing listens there yet".to_owned();
    }
    let sockets = match report.sockets.len() {
        1 => String::new(),
        n => format!(" in {n} sockets"),
    };
    format!(
        "listen queue {} of {}{sockets}",
        report.queue_length, report.queue_limit
    )
}

#[cfg(test)]
mod tests;

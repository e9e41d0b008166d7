//! `weir protect`: some ports or all, in the foreground, until Ctrl-C.

mod elsewhere;
mod published;
mod summary;
mod udp;
mod unheard;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

use weir_api::Quic;
use weir_config::{Config, Table, Warning};
use weir_core::listener::{ListenAddress, Listener, Mode};
use weir_core::workload::Where;
use weir_kernel::ListenSocket;

use crate::cli::{Protect, Target};
use crate::daemon::attachment::missing;
use crate::daemon::backend::Backend;
use crate::daemon::guard::Start;
use crate::daemon::guard::elsewhere::Every;
use crate::daemon::session::{Session, listeners_of};
use crate::failure::{Code, Failure, Result};
use crate::host::containers;
use crate::host::links::Link;
use crate::host::privileges;
use crate::host::published::{Leads, leads as published_from};
use crate::host::shortcomings;
use crate::show::describe;
use crate::show::output::{print, warn, warn_text};
use crate::show::table::indent;

use published::Published;
use summary::{SHOWN, queue};
use unheard::something_listens;

/// Runs the command.
pub fn run(runtime_dir: &Path, args: &Protect) -> Result<()> {
    let mut wanted = Wanted::of(args)?;
    for text in wanted.template.lint(&args.policy.given()) {
        warn(&Warning {
            location: None,
            text,
        });
    }
    wanted.follow_published(args)?;
    let start = Start::prepare(runtime_dir, &wanted.at_first()?)?;
    let there = start.guard.listen_sockets()?;
    let mut listeners = wanted.listeners(&there)?;
    let (servers, mut udp_published) = match args.no_quic {
        true => Default::default(),
        false => udp::servers(wanted.ports.as_deref()),
    };
    // Of a place that was given, ports of this namespace say nothing.
    if wanted.ports.is_none() || args.policy.given().contains(&"where") {
        udp_published.clear();
    }
    let template = udp::template(&wanted.template, &args.policy.given());
    let quic = udp::beside(&listeners, &template, &servers);
    if wanted.ports.is_some() && !args.anyway {
        udp::without_tcp(&mut listeners, &quic, &there);
    }
    let is_here = |listener: &&Listener| listener.location == Where::Here;
    let here: Vec<Listener> = listeners.iter().filter(is_here).cloned().collect();
    if !start.elsewhere || !here.is_empty() {
        interfaces_exist(&wanted.template, &start.links)?;
        if !args.anyway {
            listen(&wanted, &here, &there)?;
        }
    }
    privileges::keep_those_of_guard(start.elsewhere, None, None);
    if start.elsewhere {
        let by_udp = elsewhere::Udp {
            here: quic,
            template,
            published: udp_published,
        };
        let (every, published) = (wanted.every(), &wanted.published);
        return elsewhere::run(start, (listeners, by_udp), every, published, args);
    }
    udp::say_unguarded(&udp_published);
    published::say(&wanted.published)?;
    let config = Config {
        listeners,
        ..Config::default()
    };
    let mut daemon = start.daemon(&config, None, args.verbose)?;
    udp::guard(&mut daemon, quic)?;
    let session = &daemon.service.session;
    session.notices()?.iter().for_each(warn_text);
    let mut warnings = shortcomings::warnings(&config.listeners, &there);
    warnings.extend(shortcomings::udp_warnings(
        daemon.service.quic().list(),
        &servers,
    ));
    warnings.iter().for_each(warn_text);
    let quic = daemon.service.quic();
    print(&on_lines(
        session,
        (&quic.report()?, quic.interfaces()),
        &wanted,
    )?)?;
    if wanted.ports.is_none() {
        let tcp = wanted.template.clone();
        let quic = (!args.no_quic).then_some(template);
        daemon
            .service
            .follow_sockets(move |port| for_port(&tcp, port), quic);
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
    /// Those that are guarded elsewhere than the template says, in the order of their ports.
    published: Vec<Published>,
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
        Ok(Wanted {
            template,
            ports,
            published: Vec::new(),
        })
    }

    /// Guards ports where their server is that are published from other network namespaces.
    fn follow_published(&mut self, args: &Protect) -> Result<()> {
        // A place that was given is meant so.
        if args.policy.given().contains(&"where") {
            return Ok(());
        }
        let mut failures = Vec::new();
        for port in self.ports.clone().unwrap_or_default() {
            let listener = self.of_port(port);
            let leads = published_from(listener.address.ip, port);
            let heard = match &leads {
                Leads::To(server) => server.heard.clone(),
                _ => BTreeSet::new(),
            };
            match published::follow(listener, leads, args.anyway) {
                Ok((_, None)) => {}
                Ok((listener, Some(text))) => self.published.push(Published {
                    port,
                    listener,
                    text,
                    heard,
                }),
                Err(failure) => failures.push(failure),
            }
        }
        Failure::all(failures).map_or(Ok(()), Err)
    }

    /// What is to be guarded, before it is known who listens.
    fn at_first(&self) -> Result<Vec<Listener>> {
        match self.every() {
            Some(_) => Ok(vec![self.template.clone()]),
            None => self.listeners(&[]),
        }
    }

    /// All servers of a place in other network namespaces.
    fn every(&self) -> Option<Every> {
        let is_elsewhere = self.ports.is_none() && self.template.location != Where::Here;
        is_elsewhere.then(|| {
            let template = self.template.clone();
            Every {
                location: template.location.clone(),
                listener: Box::new(move |port| for_port(&template, port)),
            }
        })
    }

    /// The listener of a port, in weir's own namespace.
    fn of_port(&self, port: u16) -> Listener {
        match self.ports.as_deref() {
            Some([_]) => self.template.clone(),
            _ => for_port(&self.template, port),
        }
    }

    /// What is guarded. `there`: the sockets of weir's own namespace.
    fn listeners(&self, there: &[ListenSocket]) -> Result<Vec<Listener>> {
        match &self.ports {
            Some(ports) => {
                let mut all: Vec<Listener> = Vec::new();
                for port in ports {
                    let moved = self.published.iter().find(|moved| moved.port == *port);
                    let one = moved.map(|moved| moved.listener.clone());
                    let one = one.unwrap_or_else(|| self.of_port(*port));
                    // A server may be published at several ports.
                    let is_same = |other: &Listener| {
                        (&other.location, other.address) == (&one.location, one.address)
                    };
                    if !all.iter().any(is_same) {
                        all.push(one);
                    }
                }
                Ok(all)
            }
            // The daemon finds them.
            None if self.template.location != Where::Here => Ok(Vec::new()),
            None => {
                let mut all = listeners_of(there, |port| for_port(&self.template, port));
                all.truncate(weir_core::listener::MAX_LISTENERS);
                Ok(all)
            }
        }
    }

    /// `port 80`, `10.0.0.1:80`, `ports 80, 443`, `all 7 listeners`.
    fn object(&self, guarded: &[weir_api::Listener]) -> String {
        let ip = self.template.address.ip;
        let on = ip.map_or(String::new(), |ip| format!(" on {ip}"));
        match &self.ports {
            Some(ports) if ports.len() == 1 => summary::object(&self.template),
            Some(ports) => {
                // Of some only a UDP socket may be there.
                let name = |port: &u16| self.of_port(*port).address.to_string();
                let has = |port: &&u16| guarded.iter().any(|one| one.address == name(port));
                let ports: Vec<String> = ports.iter().filter(has).map(u16::to_string).collect();
                match ports.as_slice() {
                    [one] => format!("port {one}{on}"),
                    _ => format!("ports {}{on}", ports.join(", ")),
                }
            }
            None => {
                let count = describe::count(guarded.len(), "listener");
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
        let spaces = containers::spaces().into_iter();
        let with_ports = spaces.map(|space| (space.ports(), space));
        with_ports.filter(|(ports, _)| !ports.is_empty()).collect()
    };
    let failures = listeners
        .iter()
        .filter_map(|listener| something_listens(listener, there, elsewhere).err());
    Failure::all(failures.collect()).map_or(Ok(()), Err)
}

/// The lines that say that protection is on: one, and one for each listener if there are several, and one for UDP. The QUIC
/// listeners come with the interfaces on which they are guarded.
fn on_lines<B: Backend>(
    session: &Session<B>,
    (quic, quic_on): (&[Quic], Vec<&str>),
    wanted: &Wanted,
) -> Result<String> {
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
    if wanted.ports.is_some() && reports.is_empty() && !quic.is_empty() {
        let interfaces = describe::interfaces(quic_on);
        return Ok(udp::line_alone(verb, quic, &interfaces));
    }
    let object = wanted.object(&reports);
    let head = format!("weir: {verb} {object} ({policy}) on {interfaces}; ");
    let udp = udp::lines(quic).into_iter();
    if let (Some(_), [one]) = (&wanted.ports, reports.as_slice()) {
        let udp: String = udp.map(|line| indent(&line)).collect();
        return Ok(format!("{head}{}; Ctrl-C takes it off\n{udp}", queue(one)));
    }
    let line = |one: &weir_api::Listener| format!("{}: {}", one.address, queue(one));
    let mut lines: Vec<String> = reports.iter().take(SHOWN).map(line).collect();
    if reports.len() > SHOWN {
        lines.push(format!(
            "and {} more; `weir status` shows all",
            reports.len() - SHOWN
        ));
    }
    lines.extend(udp);
    Ok(format!(
        "{head}Ctrl-C takes it off\n{}",
        indent(&lines.join("\n"))
    ))
}

#[cfg(test)]
mod tests;

//! `weir protect`: one port, in the foreground, until Ctrl-C.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use weir_config::{Table, Warning};
use weir_core::listener::{ListenAddress, Listener, Mode};
use weir_core::verdict::Counters;
use weir_kernel::ListenSocket;

use crate::cli::Protect;
use crate::daemon::attachment::missing;
use crate::daemon::backend::Backend;
use crate::daemon::guard::Start;
use crate::daemon::report::counters_by_name;
use crate::daemon::session::Session;
use crate::failure::{Code, Failure, Result};
use crate::host::links::Link;
use crate::host::sockets::serving;
use crate::show::describe;
use crate::show::output::{print, warn, warn_text};
use crate::show::report::counter_table;
use crate::show::table::indent;

/// Runs the command.
pub fn run(runtime_dir: &Path, args: &Protect) -> Result<()> {
    let listener = listener(args)?;
    for text in listener.lint(&args.policy.given()) {
        warn(&Warning {
            location: None,
            text,
        });
    }
    let start = Start::prepare(runtime_dir, std::slice::from_ref(&listener))?;
    interfaces_exist(&listener, &start.links)?;
    if !args.anyway {
        something_listens(&listener, &start.guard.listen_sockets()?)?;
    }
    let daemon = start.daemon(vec![listener.clone()], Vec::new(), None, args.verbose)?;
    daemon.service.session.notices()?.iter().for_each(warn_text);
    print(&on_line(&daemon.service.session, &listener)?)?;
    let since = Instant::now();
    let totals = daemon.guard()?;
    for (listener, counters) in &totals {
        print(&summary(listener, counters, since.elapsed()))?;
    }
    Ok(())
}

/// The listener that the flags ask for.
fn listener(args: &Protect) -> Result<Listener> {
    let address = ListenAddress {
        ip: args.address.0,
        port: args.port,
    };
    let mode = match args.observe {
        true => Mode::Observe,
        false => Mode::Enforce,
    };
    let blank = Listener {
        mode,
        ..Listener::new("", address)
    };
    let listener = args.policy.applied_to(blank);
    listener.map_err(|(flag, fault)| Failure::fault(Code::Usage, &flag, fault))
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

fn something_listens(listener: &Listener, sockets: &[ListenSocket]) -> Result<()> {
    if !serving(listener, std::slice::from_ref(listener), sockets).is_empty() {
        return Ok(());
    }
    let ports: BTreeSet<u16> = sockets.iter().map(|socket| socket.port).collect();
    let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
    let there = match ports.is_empty() {
        true => "no server listens in this network namespace".to_owned(),
        false => format!("servers listen on ports {}", ports.join(", ")),
    };
    Err(Failure::failed(
        format!("nothing listens on {}", listener.address),
        format!("{there}; start the server first, or protect it in advance with --anyway"),
    ))
}

/// The line that says that protection is on.
fn on_line<B: Backend>(session: &Session<B>, listener: &Listener) -> Result<String> {
    let verb = match listener.mode {
        Mode::Enforce => "protecting",
        Mode::Observe => "observing",
    };
    let interfaces = describe::interfaces(session.interfaces_of(&listener.name));
    let mut line = format!("weir: {verb} {}", object(listener));
    for report in session.listeners()? {
        line += &format!(" ({}) on {interfaces}; {}", report.policy, queue(&report));
    }
    Ok(line + "; Ctrl-C takes it off\n")
}

fn object(listener: &Listener) -> String {
    match listener.address.ip {
        None => format!("port {}", listener.address.port),
        Some(_) => listener.address.to_string(),
    }
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

/// What protection did, once it is off.
fn summary(listener: &Listener, counters: &Counters, time: Duration) -> String {
    let what = match listener.mode {
        Mode::Enforce => "protection",
        Mode::Observe => "observation",
    };
    let first = format!(
        "weir: {what} of {} is off after {:.1} s: {}\n",
        object(listener),
        time.as_secs_f64(),
        describe::totals(listener.mode, counters),
    );
    first + &indent(&counter_table(&counters_by_name(counters), false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::backend::fake::{Fake, socket};
    use crate::host::links::fake::link;
    use clap::Parser;
    use weir_config::{Environment, SynCookies};
    use weir_core::verdict::Verdict;

    fn args(flags: &[&str]) -> Protect {
        let words = ["weir", "protect"].iter().chain(flags);
        match crate::cli::Cli::parse_from(words).command {
            crate::cli::Command::Protect(args) => args,
            _ => unreachable!("the words say protect"),
        }
    }

    fn line(flags: &[&str], sockets: Vec<ListenSocket>) -> String {
        let listener = listener(&args(flags)).unwrap();
        let fake = Fake::default();
        fake.0.borrow_mut().sockets = sockets;
        let links = vec![link(1, "lo"), link(2, "eth0")];
        let environment = Environment {
            syn_cookies: SynCookies::WhenNeeded,
            bpf_cookies: true,
        };
        let session =
            Session::start(fake, environment, vec![listener.clone()], Vec::new(), links).unwrap();
        on_line(&session, &listener).unwrap()
    }

    #[test]
    fn one_line_says_what_is_protected_how_and_how_to_take_it_off() {
        assert_eq!(
            line(&["80"], vec![socket("0.0.0.0", 80)]),
            "weir: protecting port 80 (reserv rst-syn, admit wait 20ms) on lo, eth0; \
             listen queue 3 of 511; Ctrl-C takes it off\n"
        );
        assert_eq!(
            line(
                &[
                    "80",
                    "--address",
                    "10.0.0.1",
                    "--observe",
                    "--admit",
                    "queue"
                ],
                vec![]
            ),
            "weir: observing 10.0.0.1:80 (reserv rst-syn, admit queue) on lo, eth0; \
             nothing listens there yet; Ctrl-C takes it off\n"
        );
    }

    #[test]
    fn without_flags_the_policy_is_the_default() {
        let address = ListenAddress { ip: None, port: 80 };
        assert_eq!(
            listener(&args(&["80"])).unwrap(),
            Listener::new("port-80", address)
        );
    }

    #[test]
    fn a_port_without_a_server_is_refused_and_the_others_are_named() {
        let web = listener(&args(&["80"])).unwrap();
        assert!(something_listens(&web, &[socket("0.0.0.0", 80)]).is_ok());
        let sockets = [
            socket("0.0.0.0", 443),
            socket("::", 22),
            socket("0.0.0.0", 22),
        ];
        let failure = something_listens(&web, &sockets).unwrap_err().to_string();
        assert!(failure.contains("nothing listens on *:80"), "{failure}");
        assert!(failure.contains("ports 22, 443;"), "{failure}");
    }

    #[test]
    fn the_summary_has_every_verdict_that_fell() {
        let mut counters = Counters::default();
        counters.0[Verdict::SynAdmitted as usize] = 70;
        counters.0[Verdict::SynResetFull as usize] = 30;
        let web = listener(&args(&["80"])).unwrap();
        let text = summary(&web, &counters, Duration::from_millis(12_340));
        let first = "weir: protection of port 80 is off after 12.3 s: admitted 70, refused 30, \
                     answered 0 with a cookie\n";
        assert!(text.starts_with(first), "{text}");
        assert_eq!(
            text.lines().count(),
            4,
            "one line, the head and two verdicts: {text}"
        );
    }
}

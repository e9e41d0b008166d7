//! `weir proxy`: the proxies of a config file, or one, in the foreground, until Ctrl-C.

use std::time::{Duration, Instant};

use weir_core::config::Word;
use weir_core::proxy::Proxy;
use weir_proxy::{Error, Server, Totals};

use crate::cli;
use crate::commands::check;
use crate::daemon::Signals;
use crate::describe::count;
use crate::failure::{Code, Failure, Result};
use crate::output::{print, warn};
use crate::table::{Align, indent, table};

/// Runs the command.
pub fn run(args: &cli::Proxy) -> Result<()> {
    let proxies = proxies(args)?;
    // Before the threads, which inherit what is blocked.
    let signals = Signals::take()?;
    let start = |proxy| Ok(Server::start(proxy)?);
    let servers: Vec<Server> = proxies.into_iter().map(start).collect::<Result<_>>()?;
    for server in &servers {
        print(&on_line(server))?;
    }
    let since = Instant::now();
    while signals.wait(None)?.is_none() {}
    for (name, totals) in drain(servers, &signals)? {
        print(&summary(&name, &totals, since.elapsed()))?;
    }
    Ok(())
}

/// The proxies of the file, or the one that the flags describe.
fn proxies(args: &cli::Proxy) -> Result<Vec<Proxy>> {
    let Some(file) = &args.config else {
        let table = args.flags.table();
        let proxy = table.map_err(|(flag, fault)| Failure::fault(Code::Usage, flag, fault))?;
        return Ok(vec![proxy]);
    };
    let config = check::read(file)?;
    config.warnings.iter().for_each(warn);
    if config.proxies.is_empty() {
        let message = format!("there is no [[proxy]] in {}", file.display());
        let hint = "`weir run --config FILE` guards its listeners";
        return Err(Failure::usage(message, hint));
    }
    Ok(config.proxies)
}

/// The line that says that it listens.
fn on_line(server: &Server) -> String {
    let settings = server.settings();
    let to = match settings.backends.as_slice() {
        [] => String::new(),
        [backend] => format!(" to {backend}"),
        backends => format!(" to {}", count(backends.len(), "backend")),
    };
    format!(
        "weir: proxy on {} ({}, mode {}, engine {}){to}; Ctrl-C drains it\n",
        server.address(),
        settings.name,
        settings.mode.word(),
        settings.engine.word(),
    )
}

/// How often a draining proxy looks whether a second Ctrl-C cuts it short.
const SIGNALS_EVERY: Duration = Duration::from_millis(20);

/// Lets transfers finish; a second signal cuts them.
fn drain(mut servers: Vec<Server>, signals: &Signals) -> Result<Vec<(String, Totals)>> {
    for server in &mut servers {
        server.drain(server.settings().drain_timeout);
    }
    while !servers.iter().all(Server::is_finished) {
        if signals.wait(Some(SIGNALS_EVERY))?.is_some() {
            for server in &mut servers {
                server.drain(Duration::ZERO);
            }
        }
    }
    let end = |server: Server| Ok((server.settings().name.clone(), server.join()?));
    servers.into_iter().map(end).collect()
}

/// What the proxy did, once it has ended.
fn summary(name: &str, totals: &Totals, time: Duration) -> String {
    let rows = totals.listener.iter().filter(|total| total.value > 0);
    let rows: Vec<Vec<String>> = rows
        .map(|total| {
            vec![
                total.name.into(),
                total.value.to_string(),
                total.text.into(),
            ]
        })
        .collect();
    let first = format!("weir: {name} has ended after {:.1} s\n", time.as_secs_f64());
    if rows.is_empty() {
        return first;
    }
    let head = [
        ("counter", Align::Left),
        ("count", Align::Right),
        ("meaning", Align::Left),
    ];
    first + &indent(&table(&head, &rows))
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let hint = match &error {
            Error::Listen { cause, .. } => match cause.kind() {
                std::io::ErrorKind::AddrInUse => "`ss -ltnp` shows who listens there",
                std::io::ErrorKind::AddrNotAvailable => "`ip address` lists this machine's",
                std::io::ErrorKind::PermissionDenied => {
                    "ports below 1024 need root or CAP_NET_BIND_SERVICE"
                }
                _ => "",
            },
            Error::Setting { key, .. } => match key.as_str() {
                "source" => "`ip address` lists this machine's addresses",
                key if key.ends_with("_congestion") => {
                    "`sysctl net.ipv4.tcp_available_congestion_control` lists those there are"
                }
                _ => "",
            },
            Error::Fallen { .. } => {
                "this is a fault of weir's; please report it with the lines above"
            }
            Error::Conflict { .. } | Error::System { .. } => "",
        };
        Failure::failed(error.to_string(), hint)
    }
}

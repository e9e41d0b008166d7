//! `weir proxy`: one proxy, in the foreground, until Ctrl-C.

use std::time::{Duration, Instant};

use weir_core::config::{Fault, Word};
use weir_core::proxy::{Mode, Proxy};
use weir_proxy::{Error, Server, Totals};

use crate::cli;
use crate::daemon::Signals;
use crate::describe::count;
use crate::failure::{Code, Failure, Result};
use crate::output::print;
use crate::table::{Align, indent, table};

/// Runs the command.
pub fn run(args: &cli::Proxy) -> Result<()> {
    let proxy = proxy(args)?;
    // Before the threads, which inherit what is blocked.
    let signals = Signals::take()?;
    let server = Server::start(proxy)?;
    print(&on_line(&server))?;
    let since = Instant::now();
    while signals.wait(None)?.is_none() {}
    let totals = drain(server, &signals)?;
    print(&summary(&totals, since.elapsed()))
}

/// The proxy that the flags ask for.
fn proxy(args: &cli::Proxy) -> Result<Proxy> {
    let default = Proxy::new("proxy", args.listen, args.mode);
    let proxy = Proxy {
        backends: args.backends.clone(),
        engine: args.engine.unwrap_or(default.engine),
        threads: args.threads.unwrap_or(default.threads),
        ..default
    };
    match (proxy.mode, proxy.backends.is_empty()) {
        (Mode::Forward, false) => {
            let cause = "mode forward goes where the client says";
            let hint = "leave it out, or use --mode reverse";
            Err(Failure::fault(
                Code::Usage,
                "--backend",
                Fault::new(cause, hint),
            ))
        }
        (Mode::Reverse | Mode::Tcp, true) => {
            let cause = format!("mode {} has nowhere to go", proxy.mode.word());
            let hint = "name a server: --backend 10.0.0.5:80";
            Err(Failure::fault(
                Code::Usage,
                "--backend",
                Fault::new(cause, hint),
            ))
        }
        _ => Ok(proxy),
    }
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
        "weir: proxy on {} (mode {}, engine {}){to}; Ctrl-C drains it\n",
        server.address(),
        settings.mode.word(),
        settings.engine.word(),
    )
}

/// How often a draining proxy looks whether a second Ctrl-C cuts it short.
const SIGNALS_EVERY: Duration = Duration::from_millis(20);

/// Lets transfers finish; a second signal cuts them.
fn drain(server: Server, signals: &Signals) -> Result<Totals> {
    server.drain(server.settings().drain_timeout);
    while !server.is_finished() {
        if signals.wait(Some(SIGNALS_EVERY))?.is_some() {
            server.drain(Duration::ZERO);
        }
    }
    Ok(server.join()?)
}

/// What the proxy did, once it has ended.
fn summary(totals: &Totals, time: Duration) -> String {
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
    let first = format!(
        "weir: the proxy has ended after {:.1} s\n",
        time.as_secs_f64()
    );
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
            Error::System { .. } => "",
        };
        Failure::failed(error.to_string(), hint)
    }
}

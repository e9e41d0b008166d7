//! `weir proxy`: the proxies of a config file, or one, in the foreground, until Ctrl-C.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sd_notify::NotifyState;
use weir_core::proxy::Proxy;
use weir_core::word::Word;
use weir_proxy::{Error, Server, Totals};

use crate::cli;
use crate::commands::check;
use crate::daemon::guard::{Signals, notify};
use crate::daemon::proxies::{Metrics, Post, Proxies, Service, no_proxy_in, take_over};
use crate::failure::{Code, Failure, Result};
use crate::host::descriptors::raise_limit;
use crate::show::describe::count;
use crate::show::output::{print, warn};
use crate::show::table::{Align, indent, table};

/// Runs the command.
pub fn run(runtime_dir: &Path, args: &cli::Proxy) -> Result<()> {
    let config = args.config.as_deref().map(absolute).transpose()?;
    let proxies = proxies(args, config.as_deref())?;
    // A client is one descriptor or two, and the usual soft limit is 1024.
    raise_limit();
    // Before the threads, which inherit what is blocked.
    let signals = Signals::take()?;
    let (predecessors, inherited) = match args.take_over {
        true => take_over(runtime_dir, &proxies)?,
        false => Default::default(),
    };
    // A predecessor has its address until it retires.
    let metrics = match predecessors.is_empty() {
        true => listen_for_scrapes(args)?,
        false => None,
    };
    let proxies = Proxies::start(proxies, inherited)?;
    proxies.check_descriptors();
    let post = Post::open(runtime_dir);
    let took_over = !predecessors.is_empty();
    for predecessor in predecessors {
        let pid = predecessor.retire()?;
        tracing::info!("took over from process {pid}, which serves its clients to the end");
    }
    let metrics = match took_over {
        // It is too late to leave the clients to the predecessor.
        true => listen_for_scrapes(args).unwrap_or_else(|failure| {
            tracing::error!("{failure}");
            None
        }),
        false => metrics,
    };
    for server in proxies.running() {
        print(&on_line(server))?;
    }
    notify(&[NotifyState::MainPid(std::process::id()), NotifyState::Ready]);
    let mut service = Service {
        proxies,
        config,
        post: post.inspect_err(|failure| tracing::warn!("{failure}")).ok(),
        signals,
        metrics,
        successor: None,
    };
    let end = service.run();
    let (totals, time) = service.proxies.totals();
    for (name, totals) in totals {
        print(&summary(name, totals, time))?;
    }
    end
}

/// Listens for scrapes, if they are asked for.
fn listen_for_scrapes(args: &cli::Proxy) -> Result<Option<Metrics>> {
    let Some(address) = args.metrics else {
        return Ok(None);
    };
    let listen = || {
        let metrics = Metrics::listen(address)?;
        tracing::info!("metrics on http://{}/metrics", metrics.address()?);
        Ok(Some(metrics))
    };
    listen().map_err(|cause| Error::Listen { address, cause }.into())
}

/// Reloads read the same file whatever the working directory is by then.
fn absolute(file: &Path) -> Result<PathBuf> {
    std::path::absolute(file)
        .map_err(|error| Failure::io(format_args!("find {}", file.display()), error))
}

/// The proxies of the file, or the one that the flags describe.
fn proxies(args: &cli::Proxy, config: Option<&Path>) -> Result<Vec<Proxy>> {
    let Some(file) = config else {
        let table = args.flags.table();
        let proxy = table.map_err(|(flag, fault)| Failure::fault(Code::Usage, flag, fault))?;
        return Ok(vec![proxy]);
    };
    let config = check::read(file)?;
    config.warnings.iter().for_each(warn);
    match config.proxies.is_empty() {
        true => Err(no_proxy_in(file)),
        false => Ok(config.proxies),
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
        "weir: proxy on {} ({}, mode {}, engine {}){to}; Ctrl-C drains it\n",
        server.address(),
        settings.name,
        settings.mode.word(),
        settings.engine.word(),
    )
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
                std::io::ErrorKind::AddrInUse => {
                    "`ss -ltnp` shows who listens there; `--take-over` takes the place of a running weir proxy"
                }
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

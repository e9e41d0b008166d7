//! `weir proxy`: the proxies of a config file, or one, in the foreground, until Ctrl-C.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use weir_config::{ApiSettings, EventsSettings};
use weir_core::proxy::Proxy;
use weir_core::word::Word;
use weir_proxy::{Error, OwnListeners, Server, Totals};

use crate::cli::{self, RUNTIME_DIR};
use crate::daemon::at_start::{AtStart, Owner};
use crate::daemon::config_file::ConfigFile;
use crate::daemon::events::Events;
use crate::daemon::frame::Frame;
use crate::daemon::proxies::{ProcessSocket, Proxies, ProxyService, no_proxy_in, take_over};
use crate::daemon::signals::Signals;
use crate::failure::{Code, Failure, Result};
use crate::host::config::{self, Source};
use crate::host::descriptors::raise_limit;
use crate::host::privileges;
use crate::ipc::control::{ControlSocket, namespace};
use crate::ipc::socket_note;
use crate::show::describe::count;
use crate::show::output::{print, warn};
use crate::show::table::{Align, indent, table};

/// Runs the command.
pub fn run(runtime_dir: &Path, args: &cli::Proxy) -> Result<()> {
    let file = args.config.as_deref().map(config::absolute).transpose()?;
    let source = file.as_deref().map(Source::read).transpose()?;
    let Wanted {
        proxies,
        metrics,
        at_start,
        events: event_settings,
    } = wanted(args, source.as_ref())?;
    // A client is one descriptor or two, and the usual soft limit is 1024.
    raise_limit();
    // Before the threads, which inherit what is blocked.
    let signals = Signals::take()?;
    let (predecessors, inherited) = match args.take_over {
        true => take_over(runtime_dir, &proxies)?,
        false => Default::default(),
    };
    let socket = ProcessSocket::open(runtime_dir);
    let socket = socket
        .inspect_err(|failure| tracing::warn!("{failure}"))
        .ok();
    let dir = socket.as_ref().map(|socket| socket.dir().to_owned());
    let note = socket.as_ref().map(ProcessSocket::note);
    let control = socket.map(|socket| Box::new(socket) as Box<dyn ControlSocket>);
    let events = Events::new();
    let api = at_start.api.clone();
    let own = source.map(|source| ConfigFile::new(source, at_start));
    let mut frame = Frame::new(signals, control, own, "proxy", events.clone())?;
    let took_over = !predecessors.is_empty();
    // A predecessor has its address until it retires.
    if let Some(address) = metrics
        && !took_over
    {
        frame.endpoints.open_metrics(address)?;
    }
    let beside = privileges::keep_those_of_proxies(&proxies, api.as_ref(), event_settings.as_ref());
    // Its thread too is to have no more rights than these.
    if let Err(failure) = events.set_file(event_settings.as_ref()) {
        tracing::error!("{failure}");
    }
    let own_listeners = OwnListeners::default();
    let _own_metrics = metrics.map(|address| own_listeners.add(address));
    let proxies = Proxies::start(proxies, inherited, own_listeners, events)?;
    proxies.check_descriptors();
    for predecessor in predecessors {
        let pid = predecessor.retire()?;
        tracing::info!("took over from process {pid}, which serves its clients to the end");
    }
    if let Some(address) = metrics
        && took_over
        && let Err(failure) = frame.endpoints.open_metrics(address)
    {
        // It is too late to leave the clients to the predecessor.
        tracing::error!("{failure}");
    }
    if let Some(api) = &api {
        open_api(&mut frame, api, dir.as_deref(), note.as_deref())?;
    }
    for server in proxies.running() {
        print(&on_line(server))?;
    }
    privileges::refuse_calls(beside);
    let mut service = ProxyService::new(proxies, file);
    let ran = frame.run(&mut service);
    frame.note_stop();
    let (proxies, fault) = service.end();
    let (totals, time) = proxies.totals();
    for (name, totals) in totals {
        print(&summary(name, totals, time))?;
    }
    ran.and(fault)
}

/// Opens the API of the proxies. Clients are served without it too, so that a socket that cannot be made ends nothing.
fn open_api(
    frame: &mut Frame,
    settings: &ApiSettings,
    dir: Option<&Path>,
    note: Option<&Path>,
) -> Result<()> {
    let name = weir_client::default_proxy_socket_name(namespace()?);
    let default = dir.unwrap_or(Path::new(RUNTIME_DIR)).join(name);
    if let Err(failure) = frame.endpoints.open_api(settings, default) {
        tracing::warn!("the proxies have no API: {failure}");
    } else if let (Some(socket), Some(note)) = (&settings.socket, note)
        && let Err(error) = socket_note::write(note, socket)
    {
        tracing::warn!("cannot write {}: {error}", note.display());
    }
    Ok(())
}

/// What is to run.
struct Wanted {
    proxies: Vec<Proxy>,
    metrics: Option<SocketAddr>,
    at_start: AtStart,
    events: Option<EventsSettings>,
}

/// What the file and the flags want. The guard of the same file has its sockets, and the proxies their own.
fn wanted(args: &cli::Proxy, source: Option<&Source>) -> Result<Wanted> {
    let Some(source) = source else {
        let table = args.flags.table();
        let proxy = table.map_err(|(flag, fault)| Failure::fault(Code::Usage, flag, fault))?;
        return Ok(Wanted {
            proxies: vec![proxy],
            metrics: args.metrics,
            at_start: AtStart::default(),
            events: None,
        });
    };
    let config = source.parse()?;
    config.warnings.iter().for_each(warn);
    if config.proxies.is_empty() {
        return Err(no_proxy_in(&source.file));
    }
    let owner = Owner::Proxies {
        metrics_by_flag: args.metrics.is_some(),
    };
    let at_start = AtStart::of(owner, &config);
    Ok(Wanted {
        proxies: config.proxies,
        metrics: args.metrics.or(at_start.metrics),
        at_start,
        events: config.events,
    })
}

/// The line that says that it listens.
fn on_line(server: &Server) -> String {
    let settings = server.settings();
    let to = match settings.backends.as_slice() {
        [] => String::new(),
        [backend] => format!(" to {}", backend.address),
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
            Error::ThreadFailed { .. } => {
                "this is a fault of weir's; please report it with the lines above"
            }
            Error::Conflict { .. } | Error::System { .. } => "",
        };
        Failure::failed(error.to_string(), hint)
    }
}

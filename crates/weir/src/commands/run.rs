//! `weir run`: the listeners of a config file, as a service. The file's proxies are `weir proxy`'s: they
//! need none of the guard's rights, and what befalls them does not befall the guard.

use std::path::Path;

use weir_core::listener::Listener;
use weir_core::workload::Where;
use weir_kernel::Guard;

use crate::cli::Run;
use crate::daemon::guard::Start;
use crate::daemon::session::Session;
use crate::failure::{Cause, Failure, Result};
use crate::host::config::{self, Source};
use crate::host::{privileges, shortcomings, udp};
use crate::ipc::dashboard::Token;
use crate::shape::interface;
use crate::shape::lock::Changes;
use crate::show::describe;
use crate::show::report::quic;

/// Runs the command.
pub fn run(runtime_dir: &Path, args: &Run) -> Result<()> {
    let file = config::absolute(&args.config)?;
    let source = Source::read(&file)?;
    let config = source.parse()?;
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    if !config.is_for_run() {
        let message = format!(
            "there is no [[listener]], [[quic]], [[destination]] or [[shape]] in {}",
            file.display()
        );
        let hint = "`weir proxy --config FILE` runs its proxies";
        return Err(Failure::usage(message, hint));
    }
    // Before any right over files is given up.
    let dashboard = config.dashboard.as_ref();
    let token = dashboard.and_then(|dashboard| dashboard.token_file.as_deref());
    let token = token.map(Token::read).transpose()?;
    let start = Start::prepare(runtime_dir, &config.listeners)?;
    let there = start.guard.listen_sockets()?;
    let own = config
        .listeners
        .iter()
        .filter(|l| l.location == Where::Here);
    let own: Vec<Listener> = own.cloned().collect();
    let mut shortcomings = shortcomings::warnings(&own, &there);
    if !config.quic.is_empty() {
        let (servers, _) = udp::servers(udp::sockets().unwrap_or_default());
        shortcomings.extend(shortcomings::udp_warnings(&config.quic, &servers));
    }
    privileges::keep_those_of_guard(start.elsewhere, config.api.as_ref(), config.events.as_ref());
    // One guard has the namespace: what another one has put there was left by it.
    let left = Changes::new(runtime_dir).and_then(|changes| interface::remove_left_over(&changes));
    if let Err(failure) = left {
        tracing::warn!("{failure}");
    }
    let mut daemon = start.daemon(&config, Some(source), args.verbose)?;
    if let Some(api) = &config.api {
        daemon.open_api(api)?;
    }
    if let Some(metrics) = &config.metrics {
        daemon.open_metrics(metrics.listen)?;
    }
    if let Some(dashboard) = &config.dashboard {
        daemon.open_dashboard(dashboard.listen, token)?;
    }
    log_start(&daemon.service.session)?;
    for Cause { message, hint } in daemon.service.elsewhere_not_in_force() {
        tracing::error!("{message} ({hint})");
    }
    for text in daemon.service.elsewhere_waits() {
        tracing::warn!("{text}");
    }
    let destinations = config.destinations.len();
    if destinations > 0 {
        tracing::info!("{} in force", describe::count(destinations, "destination"));
    }
    for text in shortcomings {
        tracing::warn!("{text}");
    }
    let totals = daemon.guard()?;
    for total in totals.listeners {
        let listener = &total.listener;
        let mut text = describe::totals(listener.mode, &total.counters, total.would);
        if let Some(waits) = describe::waits(&total.waits) {
            text += &format!("; {waits}");
        }
        tracing::info!("{}: off; {text}", listener.name);
    }
    for quic in totals.quic {
        tracing::info!("{}: off; {}", quic.name, quic::totals(&quic));
    }
    Ok(())
}

fn log_start(session: &Session<Guard>) -> Result<()> {
    for listener in session.listeners()? {
        let (name, address, policy) = (&listener.name, &listener.address, &listener.policy);
        let interfaces = describe::interfaces(session.interfaces_of(name));
        tracing::info!(
            "{name}: {} {address} ({policy}) on {interfaces}",
            listener.mode
        );
        if !listener.listening {
            tracing::warn!("{name}: nothing listens on {address} yet");
        }
    }
    let (not_in_force, notices) = session.notices_apart()?;
    for Cause { message, hint } in not_in_force {
        tracing::error!("{message} ({hint})");
    }
    for notice in notices {
        tracing::warn!("{notice}");
    }
    Ok(())
}

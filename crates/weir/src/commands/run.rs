//! `weir run`: the listeners of a config file, as a service. The file's proxies are `weir proxy`'s: they
//! need none of the guard's rights, and what befalls them does not befall the guard.

use std::path::Path;

use weir_kernel::Guard;

use crate::cli::Run;
use crate::commands::check;
use crate::daemon::guard::{Role, Start};
use crate::daemon::session::Session;
use crate::failure::{Failure, Result};
use crate::show::describe;

/// Runs the command.
pub fn run(runtime_dir: &Path, args: &Run) -> Result<()> {
    // Reloads read the same file whatever the working directory is by then.
    let file = std::path::absolute(&args.config)
        .map_err(|error| Failure::io(format_args!("find {}", args.config.display()), error))?;
    let config = check::read(&file)?;
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    if config.listeners.is_empty() {
        let message = format!("there is no [[listener]] in {}", file.display());
        let hint = "`weir proxy --config FILE` runs its proxies";
        return Err(Failure::usage(message, hint));
    }
    let start = Start::prepare(runtime_dir, &config.listeners)?;
    let mut daemon = start.daemon(
        config.listeners,
        config.classes,
        Role::Run(file),
        args.verbose,
    )?;
    daemon.set_controller(config.controller)?;
    if let Some(api) = &config.api {
        daemon.open_api(api)?;
    }
    log_start(&daemon.session)?;
    for (listener, counters) in daemon.guard()? {
        let totals = describe::totals(listener.mode, &counters);
        tracing::info!("{}: off; {totals}", listener.name);
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
    for notice in session.notices()? {
        tracing::warn!("{notice}");
    }
    Ok(())
}

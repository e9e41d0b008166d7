//! What the service manager is told (sd_notify(3)). Nothing happens without one (NOTIFY_SOCKET).

use sd_notify::NotifyState;

/// The service is up.
pub fn ready() {
    notify(&[NotifyState::MainPid(std::process::id()), NotifyState::Ready]);
}

/// The service reads its config file again; [`ready`] ends it. `Type=notify-reload` needs the time.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(error) => tracing::debug!("no monotonic clock for the service manager: {error}"),
    }
}

/// The service ends.
pub fn stopping() {
    notify(&[NotifyState::Stopping]);
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!("the service manager cannot be notified: {error}");
    }
}

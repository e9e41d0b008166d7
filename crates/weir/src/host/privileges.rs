//! What a service gives up once it runs: rights that its settings do not need, and system calls that it never makes
//! (docs/rights.md). A process that cannot give something up goes on, and says so.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use weir_config::{ApiSettings, EventsSettings};
use weir_core::proxy::{Engine, Proxy, SideOptions};
pub use weir_kernel::privileges::Beside;
use weir_kernel::privileges::{self, Capability, keep_only};

use Capability::{
    Bpf, Chown, DacOverride, DacReadSearch, NetAdmin, NetBindService, Perfmon, SysAdmin, SysNice,
    SysPtrace,
};

/// Of the guard, as in packaging/weir.service, which says what each is for. A reload may need any of them.
const GUARD: [Capability; 8] = [
    Bpf,
    NetAdmin,
    Perfmon,
    Chown,
    DacReadSearch,
    SysPtrace,
    NetBindService,
    SysNice,
];

/// In the guard's first thread, before it starts others. `elsewhere`: it guards in other network namespaces too, now or
/// after a reload.
pub fn keep_those_of_guard(
    elsewhere: bool,
    api: Option<&ApiSettings>,
    events: Option<&EventsSettings>,
) {
    let mut kept = GUARD.to_vec();
    if elsewhere {
        kept.push(SysAdmin);
    }
    if api.is_some_and(is_in_foreign_folder) || events.is_some_and(are_in_foreign_file) {
        kept.push(DacOverride);
    }
    give_up(&kept);
}

/// In the first thread of the proxies, before it starts others. Later settings that need more need a new process. Gives
/// what [`refuse_calls`] is to let by.
pub fn keep_those_of_proxies(
    proxies: &[Proxy],
    api: Option<&ApiSettings>,
    events: Option<&EventsSettings>,
) -> Beside {
    let mut kept = vec![NetBindService];
    let sets_congestion = |side: &SideOptions| side.congestion.is_some();
    if proxies
        .iter()
        .any(|one| sets_congestion(&one.client) || sets_congestion(&one.server))
    {
        kept.push(NetAdmin);
    }
    let has_sockmap = proxies.iter().any(|proxy| proxy.engine == Engine::Sockmap);
    if has_sockmap {
        kept.extend([Bpf, NetAdmin, Perfmon]);
    }
    let mut logs = proxies
        .iter()
        .filter_map(|proxy| proxy.access_log.as_deref());
    let is_foreign = |log: &str| log != "-" && !is_own(Path::new(log));
    if logs.any(is_foreign)
        || api.is_some_and(is_in_foreign_folder)
        || events.is_some_and(are_in_foreign_file)
    {
        kept.push(DacOverride);
    }
    if api.is_some_and(|api| api.group.is_some()) {
        kept.push(Chown);
    }
    give_up(&kept);
    match has_sockmap {
        true => Beside::Bpf,
        false => Beside::Nothing,
    }
}

/// In a thread that only reads and writes what is open.
pub fn keep_none() {
    give_up(&[]);
}

/// For the whole process, once all is open.
pub fn refuse_calls(beside: Beside) {
    log(
        "give up system calls (seccomp)",
        privileges::refuse_calls(beside),
    );
}

fn give_up(kept: &[Capability]) {
    log("give up capabilities", keep_only(kept));
}

fn log(what: &str, done: io::Result<()>) {
    if let Err(error) = done {
        tracing::warn!("cannot {what}, and keeps them: {error}");
    }
}

fn is_in_foreign_folder(api: &ApiSettings) -> bool {
    let folder = api.socket.as_deref().and_then(Path::parent);
    folder.is_some_and(|folder| !is_own(folder))
}

fn are_in_foreign_file(events: &EventsSettings) -> bool {
    let file = events.file.as_deref();
    file.is_some_and(|file| !is_own(file))
}

/// Whether this user may write to it, or to the folder where it is to be, without a right over files of others.
fn is_own(path: &Path) -> bool {
    let own = nix::unistd::geteuid().as_raw();
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let found = path
        .ancestors()
        .find_map(|place| std::fs::metadata(place).ok());
    found.is_some_and(|file| file.uid() == own && file.mode() & 0o200 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_another_user_or_in_its_folder_is_not_own() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("access.log");
        assert!(is_own(&file), "it can be made");
        let here = std::env::current_dir().unwrap();
        assert_eq!(is_own(Path::new("a.log")), is_own(&here.join("a.log")));
        std::fs::write(&file, "").unwrap();
        assert!(is_own(&file));
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        std::os::unix::fs::chown(&file, Some(65534), None).unwrap();
        assert!(!is_own(&file));
        std::fs::remove_file(&file).unwrap();
        std::os::unix::fs::chown(folder.path(), Some(65534), None).unwrap();
        assert!(!is_own(&file));
    }
}

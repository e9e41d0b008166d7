//! A network namespace for one test.

use std::io::Write;
use std::process::Command;
use std::thread;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// As [`in_own_netns`], where names are those of this hosts(5) file.
pub fn with_hosts(hosts: &'static str, work: impl FnOnce() + Send + 'static) {
    in_own_netns(move || {
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        let no_fs = None::<&str>;
        mount(
            no_fs,
            "/",
            no_fs,
            MsFlags::MS_PRIVATE | MsFlags::MS_REC,
            no_fs,
        )
        .unwrap();
        for (path, text) in [("/etc/hosts", hosts), ("/etc/host.conf", "multi on\n")] {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(text.as_bytes()).unwrap();
            mount(Some(file.path()), path, no_fs, MsFlags::MS_BIND, no_fs).unwrap();
        }
        work();
    });
}

/// Runs `work` on a thread in a network namespace of its own, whose only interface is `lo`. The
/// threads that it starts are in it too; it ends with the last of them.
pub fn in_own_netns(work: impl FnOnce() + Send + 'static) {
    let thread = thread::spawn(|| {
        if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
            return println!("SKIP: no network namespace: {error}");
        }
        run("ip link set lo up");
        work();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

pub fn run(command: &str) {
    let mut words = command.split(' ');
    let status = Command::new(words.next().unwrap()).args(words).status();
    assert!(status.unwrap().success(), "{command}");
}

//! A network namespace for one test.

use std::process::Command;
use std::thread;

use nix::sched::{CloneFlags, unshare};

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

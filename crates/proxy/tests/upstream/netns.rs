//! A network namespace for one test.

use std::io::Write;
use std::path::Path;
use std::process::Command;

use weir_testbed::needs;
use weir_testbed::netns::{bind_over, run_in_new};

/// As [`in_own_netns`], where names are those of this hosts(5) file.
pub fn with_hosts(hosts: &'static str, work: impl FnOnce() + Send + 'static) {
    in_own_netns(move || {
        for (path, text) in [("/etc/hosts", hosts), ("/etc/host.conf", "multi on\n")] {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(text.as_bytes()).unwrap();
            bind_over(file.path(), Path::new(path)).unwrap();
        }
        work();
    });
}

/// Runs `work` on a thread in a network namespace of its own, whose only interface is `lo`. The
/// threads that it starts are in it too; it ends with the last of them.
pub fn in_own_netns(work: impl FnOnce() + Send + 'static) {
    if needs::root("a network namespace") {
        run_in_new(work).unwrap();
    }
}

pub fn run(command: &str) {
    let mut words = command.split(' ');
    let status = Command::new(words.next().unwrap()).args(words).status();
    assert!(status.unwrap().success(), "{command}");
}

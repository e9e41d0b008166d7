//! A real Podman, in a network namespace of its own: containers behind a published port, restarted, more of them, removed.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

use weir_testbed::{needs, wait};

use crate::common::{BACKLOG, Bed, connect, within};
use crate::docker::{pack, restarted};
use crate::elsewhere::{SERVER, guarded, listener_at, run_with_lib, workloads};

/// Namespaces in which Podman keeps all in its usual places, which are folders of the bed there, or in memory. It has its locks in
/// /dev/shm, state that ends with the machine in /run, and the list of containers that weir reads in /var/lib. All that runs there
/// ends with its first process, and that with its input.
struct Podman<'a> {
    bed: &'a Bed,
    first: Child,
}

const PLACES: &str = r#"mount --bind "$0" /var/lib && mount --types tmpfs none /run &&
    mount --types tmpfs none /dev/shm && echo mounted && cat"#;

impl<'a> Podman<'a> {
    /// With an image of perl. `None` without the programs; says so.
    fn start(bed: &'a Bed) -> Option<Podman<'a>> {
        if !needs::programs(&["podman", "conmon", "iptables", "perl"]) {
            return None;
        }
        let lib = bed.folder.path().join("lib");
        std::fs::create_dir(&lib).unwrap();
        let mut first = Command::new("unshare");
        first.args(["--mount-proc", "--pid", "--fork", "--kill-child"]);
        first.args(["sh", "-c", PLACES]).arg(&lib);
        first.stdin(Stdio::piped()).stdout(Stdio::piped());
        let first = within(bed.server(), || first.spawn().unwrap());
        let mut podman = Podman { bed, first };
        let mut line = String::new();
        let stdout = podman.first.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        assert_eq!(line, "mounted\n");
        let image = bed.folder.path().join("image.tar");
        pack(&image);
        podman.done(&["import", &image.display().to_string(), "perl"]);
        Some(podman)
    }

    fn try_to(&self, arguments: &[&str]) -> Output {
        let first = self.first.id().to_string();
        let mut command = Command::new("nsenter");
        command.args(["--target", &first, "--mount", "--net"]);
        command.arg(format!("--pid=/proc/{first}/ns/pid_for_children"));
        // Without systemd and its journal.
        command.args(["podman", "--cgroup-manager", "cgroupfs"]);
        command.args(["--events-backend", "file", "--network-config-dir"]);
        command.arg(self.bed.folder.path().join("networks"));
        command.args(arguments).output().unwrap()
    }

    fn done(&self, arguments: &[&str]) {
        let output = self.try_to(arguments);
        assert!(output.status.success(), "podman {arguments:?}: {output:?}");
    }

    /// A container whose server accepts nothing.
    fn run(&self, name: &str, more: &[&str]) {
        let (port, backlog) = ("80", BACKLOG.to_string());
        // By itself it asks for more than the limits of some machines.
        let limits = ["--ulimit", "nofile=256:256", "--ulimit", "nproc=256:256"];
        let run = [&["run", "--detach", "--name", name], &limits[..], more].concat();
        let server = ["perl", "perl", "-MSocket", "-e", SERVER, port, &backlog];
        self.done(&[&run[..], &server].concat());
    }

    fn restart(&self, name: &str) {
        self.done(&["restart", "--time", "0", name]);
    }
}

impl Drop for Podman<'_> {
    fn drop(&mut self) {
        // Their cgroups would stay.
        self.try_to(&["rm", "--all", "--force", "--time", "0"]);
        drop(self.first.stdin.take());
        if wait::try_until(wait::PATIENCE, || self.first.try_wait().ok()?).is_none() {
            let _ = self.first.kill();
            let _ = self.first.wait();
        }
    }
}

/// By its rules. For what else would take the port, Podman's conmon keeps it.
#[test]
fn a_port_that_podman_publishes_is_guarded_in_its_container() {
    let Some(bed) = Bed::new() else { return };
    let Some(podman) = Podman::start(&bed) else {
        return;
    };
    podman.run("shop", &["--publish", "8080:80"]);
    let lib = bed.folder.path().join("lib");
    let weir = bed.protect_with_lib(&lib, "8080 --admit queue");
    assert_eq!(
        weir.line,
        "weir: 8080 is published from container shop, port 80: guarded there, as `--where container:shop 80`\n"
    );
    let workload = &workloads(&bed, "port-8080", 1)[0];
    assert_eq!(
        (&workload["name"], &workload["runtime"]),
        (&"shop".into(), &"podman".into())
    );
    let served = || connect(bed.client(), bed.veth4().at(8080), 6).counts();
    assert_eq!(served(), (4, 2, 0));
    restarted(&bed, "port-8080", || podman.restart("shop"));
    assert_eq!(served(), (4, 2, 0));
    assert_eq!(bed.counter(0, "syn_reset_full"), 4);
}

#[test]
fn containers_of_podman_are_guarded_behind_their_published_port() {
    let Some(bed) = Bed::new() else { return };
    let Some(podman) = Podman::start(&bed) else {
        return;
    };
    podman.run("web-1", &["--publish", "8080:80"]);
    podman.run("db", &[]);
    let lib = bed.folder.path().join("lib");
    let _weir = run_with_lib(&bed, &lib, &listener_at(80, "web", "container:web-*", ""));
    let served = || connect(bed.client(), bed.veth4().at(8080), 6).counts();
    assert_eq!(guarded(&bed, "web", 1), ["web-1"]);
    assert_eq!(served(), (4, 2, 0));
    restarted(&bed, "web", || podman.restart("web-1"));
    assert_eq!(guarded(&bed, "web", 1), ["web-1"]);
    assert_eq!(served(), (4, 2, 0));
    podman.run("web-2", &[]);
    assert_eq!(guarded(&bed, "web", 2), ["web-1", "web-2"]);
    podman.done(&["rm", "--force", "--time", "0", "web-1"]);
    assert_eq!(guarded(&bed, "web", 1), ["web-2"]);
    let web = &bed.status()["listeners"][0];
    let refused = &web["counters"]["syn_reset_full"];
    assert_eq!(refused, 4, "those of the removed one too: {web:#}");
}

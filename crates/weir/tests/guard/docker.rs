//! A real Docker, in a network namespace of its own: containers behind a published port, restarted, more of them, stopped.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use weir_testbed::{needs, wait};

use crate::common::{BACKLOG, Bed, connect, until, within};
use crate::elsewhere::{SERVER, guarded, listener_at, run_with_lib, workloads};

/// An engine with its data below the bed's folder; its containers and itself end on drop.
struct Docker<'a> {
    bed: &'a Bed,
    daemon: Child,
}

impl<'a> Docker<'a> {
    /// With an image of perl. `None` without the programs; says so.
    fn start(bed: &'a Bed) -> Option<Docker<'a>> {
        Docker::start_with(bed, &[])
    }

    /// The same with more flags.
    fn start_with(bed: &'a Bed, flags: &[&str]) -> Option<Docker<'a>> {
        if !needs::programs(&[
            "dockerd",
            "docker",
            "containerd",
            "runc",
            "iptables",
            "perl",
        ]) {
            return None;
        }
        let at = |name: &str| bed.folder.path().join(name);
        // The mounts that keep its containers' namespaces are seen by nobody else.
        let mut daemon = Command::new("unshare");
        daemon.args(["--mount", "dockerd", "--storage-driver", "overlay2"]);
        daemon.arg("--data-root").arg(at("lib/docker"));
        daemon.arg("--exec-root").arg(at("exec"));
        daemon.arg("--pidfile").arg(at("docker.pid"));
        daemon.arg("--host").arg(host(bed)).args(flags);
        daemon.stdout(Stdio::null()).stderr(Stdio::null());
        let daemon = within(bed.server(), || daemon.spawn().unwrap());
        let docker = Docker { bed, daemon };
        until("docker answers", || {
            docker.try_to(&["version"]).status.success().then_some(())
        });
        pack(&at("image.tar"));
        docker.done(&["import", &at("image.tar").display().to_string(), "perl"]);
        Some(docker)
    }

    fn try_to(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new("docker");
        command.arg("--host").arg(host(self.bed)).args(arguments);
        command.output().unwrap()
    }

    fn done(&self, arguments: &[&str]) {
        let output = self.try_to(arguments);
        assert!(output.status.success(), "docker {arguments:?}: {output:?}");
    }

    /// A container whose server accepts nothing.
    fn run(&self, name: &str, more: &[&str]) {
        let (port, backlog) = ("80", BACKLOG.to_string());
        let run = [&["run", "--detach", "--name", name], more].concat();
        let server = ["perl", "perl", "-MSocket", "-e", SERVER, port, &backlog];
        self.done(&[&run[..], &server].concat());
    }

    fn restart(&self, name: &str) {
        self.done(&["restart", "--time", "0", name]);
    }
}

impl Drop for Docker<'_> {
    fn drop(&mut self) {
        let containers = self.try_to(&["ps", "--all", "--quiet"]).stdout;
        let containers = String::from_utf8_lossy(&containers).into_owned();
        for id in containers.split_whitespace() {
            self.try_to(&["rm", "--force", id]);
        }
        // unshare has become dockerd.
        let _ = kill(Pid::from_raw(self.daemon.id() as i32), Signal::SIGTERM);
        if wait::try_until(wait::PATIENCE, || self.daemon.try_wait().ok()?).is_none() {
            let _ = self.daemon.kill();
            let _ = self.daemon.wait();
        }
    }
}

fn host(bed: &Bed) -> String {
    format!("unix://{}", bed.folder.path().join("docker.sock").display())
}

/// perl and what it loads.
pub fn pack(image: &Path) {
    let script = r#"files="$(command -v perl) $(perl -MConfig -e 'print join " ", grep { -d } @INC')
        $(ldd "$(command -v perl)" | grep -o '/[^ ]*')"
        tar --create --dereference --file "$0" --directory / $(echo $files | tr ' ' '\n' | sed 's|^/||' | sort -u)"#;
    let status = Command::new("sh").args(["-c", script]).arg(image).status();
    assert!(status.unwrap().success());
}

/// Restarts the only container of a listener, and waits until its new namespace is guarded.
pub fn restarted(bed: &Bed, listener: &str, restart: impl FnOnce()) {
    let cookie = || workloads(bed, listener, 1)[0]["netns_cookie"].clone();
    let before = cookie();
    restart();
    until("its new namespace is guarded", || {
        (cookie() != before).then_some(())
    });
}

/// By both ways that Docker has: rules, and docker-proxy for what comes from this host.
#[test]
fn a_published_port_is_guarded_in_its_container() {
    let Some(bed) = Bed::new() else { return };
    let Some(docker) = Docker::start(&bed) else {
        return;
    };
    docker.run("shop", &["--publish", "8080:80"]);
    let lib = bed.folder.path().join("lib");
    let weir = bed.protect_with_lib(&lib, "8080 --admit queue");
    assert_eq!(
        weir.line,
        "weir: 8080 is published from container shop, port 80: guarded there, as `--where container:shop 80`\n"
    );
    assert_eq!(workloads(&bed, "port-8080", 1)[0]["name"], "shop");
    let served = |client, to| connect(client, to, 6).counts();
    assert_eq!(served(bed.client(), bed.veth4().at(8080)), (4, 2, 0));
    restarted(&bed, "port-8080", || docker.restart("shop"));
    assert_eq!(served(bed.client(), bed.veth4().at(8080)), (4, 2, 0));
    assert_eq!(bed.counter(0, "syn_reset_full"), 4);
}

/// Docker keeps the port itself then.
#[test]
fn a_published_port_without_docker_proxy_is_guarded_in_its_container() {
    let Some(bed) = Bed::new() else { return };
    let Some(docker) = Docker::start_with(&bed, &["--userland-proxy=false"]) else {
        return;
    };
    docker.run("shop", &["--publish", "8080:80"]);
    let lib = bed.folder.path().join("lib");
    let _weir = bed.protect_with_lib(&lib, "8080 --admit queue");
    assert_eq!(workloads(&bed, "port-8080", 1)[0]["name"], "shop");
    let clients = connect(bed.client(), bed.veth4().at(8080), 6);
    assert_eq!(clients.counts(), (4, 2, 0));
}

#[test]
fn containers_of_docker_are_guarded_behind_their_published_port() {
    let Some(bed) = Bed::new() else { return };
    let Some(docker) = Docker::start(&bed) else {
        return;
    };
    docker.run("web-1", &["--publish", "8080:80"]);
    docker.run("db", &["--label", "app=data"]);
    let config = listener_at(80, "web", "container:web-*", "")
        + &listener_at(80, "data", "label:app=d*", "");
    let lib = bed.folder.path().join("lib");
    let _weir = run_with_lib(&bed, &lib, &config);
    let published = bed.veth4().at(8080);
    let served = || connect(bed.client(), published, 6).counts();
    assert_eq!(guarded(&bed, "web", 1), ["web-1"]);
    assert_eq!(workloads(&bed, "data", 1)[0]["name"], "db");
    assert_eq!(served(), (4, 2, 0));
    restarted(&bed, "web", || docker.restart("web-1"));
    assert_eq!(guarded(&bed, "web", 1), ["web-1"]);
    assert_eq!(served(), (4, 2, 0));
    for name in ["web-2", "web-3"] {
        docker.run(name, &[]);
    }
    assert_eq!(guarded(&bed, "web", 3), ["web-1", "web-2", "web-3"]);
    docker.done(&["rm", "--force", "web-2"]);
    assert_eq!(guarded(&bed, "web", 2), ["web-1", "web-3"]);
    let refused = &bed.status()["listeners"][0]["counters"]["syn_reset_full"];
    assert_eq!(refused, 4, "those of before the restart too");
}

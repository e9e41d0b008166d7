//! Listeners in other network namespaces than weir's own (`where`): those of `ip netns`, and containers by their cgroup.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::Signal;
use serde_json::Value;
use weir_testbed::cgroup::Cgroup;
use weir_testbed::needs;
use weir_testbed::netns::Netns;

use crate::common::{BACKLOG, Bed, PORT, attempt, connect, listen, until, within};
use crate::life::{bpf_objects, exists};

/// Listens at a port of every IPv4 address and accepts nothing.
pub const SERVER: &str = "socket(S,PF_INET,SOCK_STREAM,0) or die $!; setsockopt(S,SOL_SOCKET,SO_REUSEADDR,1) or die $!; \
    bind(S,sockaddr_in($ARGV[0],INADDR_ANY)) or die $!; listen(S,$ARGV[1]) or die $!; \
    $|=1; print \"listens\\n\"; sleep 3600";

/// A server of its own process; killed on drop.
pub struct Server(Child);

impl Server {
    /// Started by this command, in front of its own.
    fn start(mut command: Command, port: u16) -> Server {
        command.args(["perl", "-MSocket", "-e", SERVER]);
        command.args([port.to_string(), BACKLOG.to_string()]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let stdout = child.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        assert_eq!(line, "listens\n");
        Server(child)
    }

    pub fn inside(netns: &Netns, port: u16) -> Server {
        within(netns, || Server::start(Command::new("env"), port))
    }

    fn path(&self) -> PathBuf {
        format!("/proc/{}/ns/net", self.0.id()).into()
    }

    /// How so many connections to its port fare, from inside its namespace.
    fn connect(&self, port: u16, times: usize) -> (usize, usize, usize) {
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let file = std::fs::File::open(self.path()).unwrap();
        let work = move || {
            nix::sched::setns(file, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            let all: Vec<_> = (0..times)
                .map(|_| attempt(to, crate::common::SILENCE))
                .collect();
            let refused = |one: &Result<_, std::io::ErrorKind>| {
                matches!(one, Err(std::io::ErrorKind::ConnectionRefused))
            };
            let connected = all.iter().filter(|one| one.is_ok()).count();
            let refused = all.iter().filter(|one| refused(one)).count();
            (connected, refused, times - connected - refused)
        };
        std::thread::spawn(work).join().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn at(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

pub fn listener(name: &str, place: &str, policy: &str) -> String {
    listener_at(PORT, name, place, policy)
}

pub fn listener_at(port: u16, name: &str, place: &str, policy: &str) -> String {
    format!(
        "[[listener]]\nname = \"{name}\"\naddress = \"*:{port}\"\nwhere = \"{place}\"\nadmit = \"queue\"\n{policy}\n"
    )
}

/// A weir with this folder in the place of /var/lib, where engines keep the names of containers.
pub fn run_with_lib(bed: &Bed, lib: &Path, config: &str) -> Server {
    run_over(bed, lib, "/var/lib", config)
}

/// A weir with a folder in the place of another one.
fn run_over(bed: &Bed, folder: &Path, place: &str, config: &str) -> Server {
    bed.write_config(config);
    let mut weir = bed.command(&format!("run --config {}", bed.config().display()));
    let weir = within(bed.server(), || {
        weir_testbed::netns::bind_over(folder, Path::new(place)).unwrap();
        weir.stderr(Stdio::null()).spawn().unwrap()
    });
    let weir = Server(weir);
    until("weir run is up", || {
        (bed.status()["running"] == true).then_some(())
    });
    weir
}

/// The workloads of a listener by its name, once so many are in force.
pub fn workloads(bed: &Bed, listener: &str, count: usize) -> Vec<Value> {
    until("as many are in force", || {
        let status = bed.status();
        let listeners = status["listeners"].as_array()?;
        let its = listeners.iter().find(|one| one["name"] == listener)?;
        let all = its["workloads"].as_array().cloned().unwrap_or_default();
        let on = all.iter().filter(|one| one["in_force"] == true).count();
        (on == count && all.len() == count).then_some(all)
    })
}

/// Their names.
pub fn guarded(bed: &Bed, listener: &str, count: usize) -> Vec<String> {
    let all = workloads(bed, listener, count).into_iter();
    all.map(|one| one["name"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn protect_all_guards_every_server_of_a_namespace_and_those_that_come() {
    let Some(bed) = Bed::new() else { return };
    let red = Netns::create("red").unwrap();
    let _red = Server::inside(&red, PORT);
    let _weir = bed.protect(&format!("all --where netns:{}", red.name()));
    workloads(&bed, &format!("port-{PORT}"), 1);
    assert_eq!(connect(&red, at(PORT), 6).counts(), (4, 2, 0));
    let _later = Server::inside(&red, PORT + 1);
    workloads(&bed, &format!("port-{}", PORT + 1), 1);
    assert_eq!(connect(&red, at(PORT + 1), 6).counts(), (4, 2, 0));
}

#[test]
fn two_namespaces_with_one_address_have_their_own_policies_and_counters() {
    let Some(bed) = Bed::new() else { return };
    let (red, blue) = (
        Netns::create("red").unwrap(),
        Netns::create("blue").unwrap(),
    );
    let _own = listen(bed.server(), at(PORT), BACKLOG);
    let _red = Server::inside(&red, PORT);
    let place = |netns: &Netns| format!("netns:{}", netns.name());
    let config = listener("red", &place(&red), "")
        + &listener("blue", &place(&blue), "reject_syn = \"drop\"");
    let _weir = bed.run(&config);
    workloads(&bed, "red", 1);
    // One that comes later.
    let _blue = Server::inside(&blue, PORT);
    workloads(&bed, "blue", 1);
    let all = [&red, &blue, bed.server()].map(|netns| connect(netns, at(PORT), 6));
    let counts = all.each_ref().map(|clients| clients.counts());
    assert_eq!(
        counts,
        [(4, 2, 0), (4, 0, 2), (5, 0, 1)],
        "weir's own is as ever"
    );
    let status = bed.status();
    for (name, netns, verdict, other) in [
        ("red", &red, "syn_reset_full", "syn_dropped_full"),
        ("blue", &blue, "syn_dropped_full", "syn_reset_full"),
    ] {
        let workload = &workloads(&bed, name, 1)[0];
        assert_eq!(workload["name"], netns.name(), "{workload:#}");
        assert_eq!(workload["netns"], netns.name());
        assert_eq!(
            (&workload["queue_length"], &workload["queue_limit"]),
            (&4.into(), &BACKLOG.into())
        );
        assert!(
            workload["counters"][verdict].as_u64() >= Some(2),
            "{workload:#}"
        );
        assert_eq!(workload["counters"][other], 0, "{workload:#}");
        let its = status["listeners"].as_array().unwrap().iter();
        let its = its.clone().find(|one| one["name"] == name).unwrap();
        assert_eq!(its["queue_length"], 4, "the sum over workloads");
    }
    let text = String::from_utf8(bed.weir("status").stdout).unwrap();
    assert!(text.contains(&format!("  {} ", red.name())), "{text}");
    let metrics = String::from_utf8(bed.weir("events --json").stdout).unwrap();
    assert!(metrics.contains("\"workload\""), "{metrics}");
}

/// A cgroup as an engine names it, and the server in a namespace of its own: all of a container that weir sees.
struct StandIn {
    /// The container's is the last.
    cgroups: Vec<PathBuf>,
    _parent: Cgroup,
}

impl StandIn {
    fn new(id: &str) -> Option<StandIn> {
        StandIn::at(&[&format!("docker-{id}.scope")])
    }

    /// Each below the one before.
    fn at(path: &[&str]) -> Option<StandIn> {
        let parent = Cgroup::create()?;
        let mut cgroups: Vec<PathBuf> = Vec::new();
        for part in path {
            let above = cgroups.last().map_or(parent.path(), |above| above);
            let cgroup = above.join(part);
            std::fs::create_dir(&cgroup).unwrap();
            cgroups.push(cgroup);
        }
        Some(StandIn {
            cgroups,
            _parent: parent,
        })
    }

    fn start(&self, port: u16) -> Server {
        let mut command = Command::new("sh");
        let script = r#"echo $$ >"$0"/cgroup.procs && exec unshare --net sh -c 'ip link set lo up && exec "$@"' sh "$@""#;
        command.args(["-c", script]).args(self.cgroups.last());
        Server::start(command, port)
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        for cgroup in self.cgroups.iter().rev() {
            weir_testbed::wait::try_until(std::time::Duration::from_secs(1), || {
                std::fs::remove_dir(cgroup).ok()
            });
        }
    }
}

#[test]
fn a_container_is_guarded_under_its_id_and_again_after_its_restart() {
    let Some(bed) = Bed::new() else { return };
    let id = "0a1b2c3d4e5f".repeat(6)[..64].to_owned();
    let Some(container) = StandIn::new(&id) else {
        return;
    };
    let weir = bed.protect(&format!(
        "{PORT} --where container:{} --admit queue --anyway",
        &id[..12]
    ));
    assert!(
        weir.line.contains("in container 0a1b2c3d4e5f"),
        "{}",
        weir.line
    );
    let mut refused = 0;
    for round in 0..3 {
        let server = container.start(PORT);
        let workload = &workloads(&bed, &format!("port-{PORT}"), 1)[0];
        assert_eq!(
            (&workload["name"], &workload["runtime"]),
            (&id[..12].into(), &"docker".into())
        );
        assert_eq!(server.connect(PORT, 6), (4, 2, 0), "round {round}");
        refused += 2;
        assert_eq!(bed.counter(0, "syn_reset_full"), refused, "the sum goes on");
    }
    until("each end and each start is an event", || {
        let kinds = kinds_of_events(&bed, &format!("container:{}", &id[..12]));
        let expected = ["workload_on", "workload_off"].repeat(3);
        (kinds
            .into_iter()
            .filter(|kind| kind.starts_with("workload")))
        .eq(expected)
        .then_some(())
    });
}

fn kinds_of_events(bed: &Bed, place: &str) -> Vec<String> {
    let output = bed.weir(&format!("events --json --where {place}"));
    let lines = String::from_utf8(output.stdout).unwrap();
    let kind = |line: &str| -> serde_json::Value { serde_json::from_str(line).unwrap() };
    let kinds = lines.lines().map(|line| kind(line)["kind"].clone());
    kinds
        .map(|kind| kind.as_str().unwrap().to_owned())
        .collect()
}

/// Docker's file of a container's name, in a folder that takes the place of /var/lib for weir alone.
#[test]
fn a_container_has_the_name_that_docker_gave_it() {
    let Some(bed) = Bed::new() else { return };
    let id = "1f2e3d4c5b6a".repeat(6)[..64].to_owned();
    let Some(container) = StandIn::new(&id) else {
        return;
    };
    let lib = bed.folder.path().join("lib");
    let its = lib.join("docker/containers").join(&id);
    std::fs::create_dir_all(&its).unwrap();
    std::fs::write(its.join("config.v2.json"), r#"{"Name":"/shop-web-1"}"#).unwrap();
    let _weir = run_with_lib(&bed, &lib, &listener("web", "container:shop-*", ""));
    let server = container.start(PORT);
    let workload = &workloads(&bed, "web", 1)[0];
    assert_eq!(workload["name"], "shop-web-1");
    assert_eq!(workload["container_id"], *id);
    assert_eq!(server.connect(PORT, 6), (4, 2, 0));
    until("the refusal is told with the container's name", || {
        let said = String::from_utf8(bed.weir("why 127.0.0.1").stdout).unwrap();
        said.contains("web@shop-web-1").then_some(())
    });
}

#[test]
fn hints_call_a_container_by_its_name() {
    let Some(bed) = Bed::new() else { return };
    let id = "2a3b4c5d6e7f".repeat(6)[..64].to_owned();
    let Some(container) = StandIn::new(&id) else {
        return;
    };
    let lib = bed.folder.path().join("lib");
    let its = lib.join("docker/containers").join(&id);
    std::fs::create_dir_all(&its).unwrap();
    std::fs::write(its.join("config.v2.json"), r#"{"Name":"/shop-web-1"}"#).unwrap();
    // A port of its own: the hint names three places, and other tests' servers are in others.
    let port = 20_000 + (std::process::id() % 10_000) as u16;
    let _server = container.start(port);
    let run = |arguments: &str| {
        within(bed.server(), || {
            weir_testbed::netns::bind_over(&lib, Path::new("/var/lib")).unwrap();
            bed.command(arguments).output().unwrap()
        })
    };
    let doctor: Value = serde_json::from_slice(&run("doctor --json").stdout).unwrap();
    let others = doctor["namespace"]["elsewhere"].to_string();
    assert!(others.contains("container shop-web-1)"), "{others}");
    assert!(!others.contains(&id[..12]), "{others}");
    let said = String::from_utf8(run(&format!("protect {port}")).stderr).unwrap();
    let command = format!("`weir protect {port} --where container:shop-web-1`");
    assert!(said.contains(&command), "{said}");
}

/// kubelet's folder of a pod's logs, in the place of /var/log for weir alone; the pod's cgroup as kubelet has it.
#[test]
fn a_pod_has_the_name_of_the_folder_that_kubelet_keeps_its_logs_in() {
    let Some(bed) = Bed::new() else { return };
    let uid = format!("0f6b1c2d-1111-2222-3333-{:012x}", std::process::id());
    let id = "9a8b7c6d5e4f".repeat(6)[..64].to_owned();
    let path = ["kubepods", "burstable", &format!("pod{uid}"), &id];
    let Some(pod) = StandIn::at(&path) else {
        return;
    };
    let log = bed.folder.path().join("log");
    let its = log.join("pods").join(format!("shop_web-7d4b9_{uid}"));
    std::fs::create_dir_all(its).unwrap();
    let config = listener("web", "pod:shop/web-*", "") + &listener_at(81, "rest", "here", "");
    let _weir = run_over(&bed, &log, "/var/log", &config);
    let server = pod.start(PORT);
    let workload = &workloads(&bed, "web", 1)[0];
    assert_eq!(
        (&workload["name"], &workload["pod"]),
        (&"shop/web-7d4b9".into(), &"shop/web-7d4b9".into())
    );
    assert_eq!(server.connect(PORT, 6), (4, 2, 0));
    let said = |place: &str| bed.weir(&format!("status --where {place}"));
    let there = String::from_utf8(said("pod:*/web-*").stdout).unwrap();
    assert!(
        there.contains("  shop/web-7d4b9 ") && !there.contains("rest"),
        "{there}"
    );
    let nowhere = said("pod:shop/db-*");
    assert_eq!(nowhere.status.code(), Some(1));
    let hint = String::from_utf8(nowhere.stderr).unwrap();
    assert!(hint.contains("there are pod:shop/web-7d4b9"), "{hint}");
}

#[test]
fn a_place_that_is_mistyped_is_told_by_events_as_by_status() {
    let Some(bed) = Bed::new() else { return };
    let netns = Netns::create("typed").unwrap();
    let _server = Server::inside(&netns, PORT);
    let _weir = bed.run(&listener("web", &format!("netns:{}", netns.name()), ""));
    workloads(&bed, "web", 1);
    for command in ["events", "status"] {
        for json in ["", " --json"] {
            let output = bed.weir(&format!("{command} --where netns:typo{json}"));
            let said = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(1), "{command}{json}: {said}");
            assert!(
                said.contains("nothing is guarded in network namespace typo"),
                "{command}{json}: {said}"
            );
            assert!(said.contains(netns.name()), "{command}{json}: {said}");
            assert!(output.stdout.is_empty(), "no lines are valid JSON lines");
        }
        let there = bed.weir(&format!("{command} --where netns:{}", netns.name()));
        assert_eq!(there.status.code(), Some(0), "{command}");
    }
}

#[test]
fn the_doctor_inside_says_that_the_namespace_is_guarded_from_outside() {
    let Some(bed) = Bed::new() else { return };
    let netns = Netns::create("inside").unwrap();
    let _server = Server::inside(&netns, PORT);
    let weir = bed.run(&listener("web", &format!("netns:{}", netns.name()), ""));
    workloads(&bed, "web", 1);
    let _clients = connect(&netns, at(PORT), 6);
    let doctor = || {
        let output = within(&netns, || bed.command("doctor").output().unwrap());
        String::from_utf8(output.stdout).unwrap()
    };
    let said = doctor();
    assert!(said.contains("its programs are on lo"), "{said}");
    assert!(said.contains("start no second one"), "{said}");
    assert!(!said.contains("`weir protect"), "{said}");
    assert!(!said.contains("could drop a SYN behind weir"), "{said}");
    weir.signal(Signal::SIGTERM);
    weir.end();
    let said = doctor();
    assert!(said.contains("`weir protect"), "{said}");
    assert!(!said.contains("start no second"), "{said}");
}

#[test]
fn a_namespace_ends_although_it_was_guarded() {
    let Some(bed) = Bed::new() else { return };
    let (netns, other) = (
        Netns::create("ends").unwrap(),
        Netns::create("stays").unwrap(),
    );
    let link = [
        "link",
        "add",
        "v0",
        "type",
        "veth",
        "peer",
        "v1",
        "netns",
        other.name(),
    ];
    netns.ip(&link).unwrap();
    let server = Server::inside(&netns, PORT);
    let weir = bed.run(&listener("web", &format!("netns:{}", netns.name()), ""));
    until("also the loopback device is attached to", || {
        let attached = &workloads(&bed, "web", 1)[0]["attached_to"];
        (*attached == serde_json::json!(["lo", "v0"])).then_some(())
    });
    let links = bpf_objects(weir.pid(), "link_id").len();
    drop(server);
    drop(netns);
    // This device ends with its other end, and that with the namespace.
    until("the namespace ends", || {
        let gone = || nix::net::if_::if_nametoindex("v1").is_err();
        within(&other, gone).then_some(())
    });
    workloads(&bed, "web", 0);
    until("its links are gone", || {
        let left = bpf_objects(weir.pid(), "link_id").len();
        (left == links - 2).then_some(())
    });
}

/// As a physical one does, which comes back to the machine when its container ends.
#[test]
fn a_namespace_ends_although_a_device_of_it_stays_and_that_device_is_let_go() {
    let Some(bed) = Bed::new() else { return };
    let (netns, other) = (
        Netns::create("ends").unwrap(),
        Netns::create("stays").unwrap(),
    );
    let own = ["link", "add", "v0", "type", "veth", "peer", "v1"];
    netns.ip(&own).unwrap();
    let server = Server::inside(&netns, PORT);
    let weir = bed.run(&listener("web", &format!("netns:{}", netns.name()), ""));
    let links = until("it is attached to all three", || {
        let attached = &workloads(&bed, "web", 1)[0]["attached_to"];
        let links = bpf_objects(weir.pid(), "link_id").len();
        (attached.as_array()?.len() == 3).then_some(links)
    });
    drop(server);
    for device in ["v0", "v1"] {
        netns
            .ip(&["link", "set", device, "netns", other.name()])
            .unwrap();
    }
    drop(netns);
    let programs = || {
        let of = |device| weir_kernel::chain(nix::net::if_::if_nametoindex(device).unwrap());
        within(&other, || ["v0", "v1"].map(|device| of(device).unwrap()))
    };
    workloads(&bed, "web", 0);
    until("its links are gone", || {
        let left = bpf_objects(weir.pid(), "link_id").len();
        (left == links - 3).then_some(())
    });
    assert_eq!(programs(), [vec![], vec![]]);
}

/// The programs at tc ingress of the loopback device, which is the first.
fn at_loopback(netns: &Netns) -> Vec<String> {
    let programs = within(netns, || weir_kernel::chain(1).unwrap());
    programs.into_iter().map(|program| program.name).collect()
}

/// As Docker moves that of a container which ends.
#[test]
fn an_interface_that_comes_from_a_container_is_guarded_without_a_warning() {
    let Some(bed) = Bed::new() else { return };
    let netns = Netns::create("ends").unwrap();
    let link = ["link", "add", "v0", "type", "veth", "peer", "v1"];
    netns.ip(&link).unwrap();
    // Whatever else runs on this machine has other ports.
    let port = 18_081;
    let _server = Server::inside(&netns, port);
    let _own = listen(bed.server(), at(port), BACKLOG);
    let _weir = bed.run(&listener_at(port, "web", "machine", ""));
    let attached = |name: &str, device: &str| {
        let all = workloads(&bed, "web", 2).into_iter();
        let its = all.filter(|one| one["name"] == name);
        its.flat_map(|one| one["attached_to"].as_array().cloned().unwrap_or_default())
            .any(|one| one == device)
    };
    until("it is attached to it", || {
        attached(netns.name(), "v0").then_some(())
    });
    let to_own = ["link", "set", "v0", "netns", bed.server().name()];
    netns.ip(&to_own).unwrap();
    until("it is guarded where it is now", || {
        bed.log_text()
            .contains("guarding interface v0")
            .then_some(())
    });
    assert!(
        !bed.log_text().contains("File exists"),
        "{}",
        bed.log_text()
    );
    let there = within(bed.server(), || {
        weir_kernel::chain(nix::net::if_::if_nametoindex("v0").unwrap()).unwrap()
    });
    assert_eq!(there.len(), 1, "{there:?}");
}

#[test]
fn kill_9_leaves_nothing_in_other_namespaces() {
    let Some(bed) = Bed::new() else { return };
    if !needs::programs(&["bpftool"]) {
        return;
    }
    let netns = Netns::create("left").unwrap();
    let server = Server::inside(&netns, PORT);
    let weir = bed.run(&listener("web", &format!("netns:{}", netns.name()), ""));
    workloads(&bed, "web", 1);
    assert_eq!(at_loopback(&netns), ["guard_tc"]);
    let links = bpf_objects(weir.pid(), "link_id");
    weir.signal(Signal::SIGKILL);
    weir.end();
    until("no link", || {
        (!links.iter().any(|id| exists("link", *id))).then_some(())
    });
    assert_eq!(at_loopback(&netns), [""; 0]);
    assert_eq!(
        server.connect(PORT, 6).1,
        0,
        "the kernel is as without weir"
    );
}

#[test]
fn the_whole_machine_is_weir_s_own_namespace_too() {
    let Some(bed) = Bed::new() else { return };
    let netns = Netns::create("machine").unwrap();
    // Whatever else runs on this machine has other ports.
    let port = 18_080;
    let config = listener_at(port, "all", "machine", "");
    let _weir = bed.run(&config);
    let servers = [
        Server::inside(bed.server(), port),
        Server::inside(&netns, port),
    ];
    let names = workloads(&bed, "all", 2);
    assert!(
        names.iter().any(|one| one["name"] == netns.name()),
        "{names:#?}"
    );
    for server in &servers {
        assert_eq!(server.connect(port, 6), (4, 2, 0));
    }
    assert_eq!(bed.counter(0, "syn_reset_full"), 4);
}

#[test]
fn a_reload_puts_other_places_in_force_and_takes_them_out() {
    let Some(bed) = Bed::new() else { return };
    let (one, other) = (
        Netns::create("one").unwrap(),
        Netns::create("other").unwrap(),
    );
    let servers = [Server::inside(&one, PORT), Server::inside(&other, PORT)];
    let place = |netns: &Netns| listener("web", &format!("netns:{}", netns.name()), "");
    let _weir = bed.run(&place(&one));
    workloads(&bed, "web", 1);
    assert_eq!(servers[0].connect(PORT, 6), (4, 2, 0));
    bed.write_config(&place(&other));
    assert!(bed.weir("reload").status.success());
    assert_eq!(workloads(&bed, "web", 1)[0]["name"], other.name());
    assert_eq!(servers[1].connect(PORT, 6), (4, 2, 0));
    assert_eq!(
        servers[0].connect(PORT, 2).1,
        0,
        "the kernel is as without weir"
    );
    // What cannot be is refused, and what is in force stays.
    bed.write_config(&listener("web", "machine", "front = \"xdp\""));
    assert!(!bed.weir("reload").status.success());
    assert_eq!(workloads(&bed, "web", 1)[0]["name"], other.name());
}

#[test]
fn a_guard_that_was_started_without_places_has_no_room_for_one() {
    let Some(bed) = Bed::new() else { return };
    let _weir = bed.run(&listener("web", "here", ""));
    bed.write_config(&listener("web", "machine", ""));
    let output = bed.weir("reload");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && said.contains("start weir again"),
        "{said}"
    );
    assert_eq!(bed.status()["listeners"][0]["where"], "here");
}

#[test]
fn a_server_that_is_nowhere_is_refused_with_the_places_where_one_listens() {
    let Some(bed) = Bed::new() else { return };
    let netns = Netns::create("named").unwrap();
    let _server = Server::inside(&netns, PORT);
    let output = bed.weir(&format!("protect {PORT} --where container:nobody"));
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let message = format!("nothing listens on *:{PORT} in container nobody");
    assert!(said.contains(&message), "{said}");
    assert!(said.contains(&format!("netns:{}", netns.name())), "{said}");
}

//! `weir shape` on a router between two network namespaces, with the kernel's own TCP on both sides.

#[allow(dead_code, reason = "the other tests use the rest of it")]
mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::Folder;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, sendto, setsockopt,
    socket, sockopt::TcpCongestion,
};
use nix::unistd::Pid;
use serde_json::Value;
use weir_testbed::needs;
use weir_testbed::netns::Netns;

const SERVER: &str = "10.9.0.2:80";
const CLIENT: &str = "10.9.1.1:80";
/// As the paper's upload has it.
const RATE: &str = "2.4mbit";

/// Two hosts and a router between them, whose `up0` is before the slow link to the server. The router's queue is the
/// test's: of one connection of its own, a host lets two packets into it (TCP small queues).
struct Hosts {
    client: Netns,
    router: Netns,
    server: Netns,
    folder: Folder,
}

impl Hosts {
    /// `None` without root; says so.
    fn new(name: &str) -> Option<Hosts> {
        let role = |role| needs::namespace(role);
        let (client, router, server) = (role("client")?, role("router")?, role("server")?);
        connect(
            (&client, "eth0", "10.9.1.1/24"),
            (&router, "lan0", "10.9.1.2/24"),
        );
        connect(
            (&router, "up0", "10.9.0.1/24"),
            (&server, "eth0", "10.9.0.2/24"),
        );
        client
            .ip(&["route", "add", "default", "via", "10.9.1.2"])
            .unwrap();
        server
            .ip(&["route", "add", "default", "via", "10.9.0.1"])
            .unwrap();
        router.set_sysctl("net/ipv4/ip_forward", "1").unwrap();
        let folder = Folder::new(name);
        Some(Hosts {
            client,
            router,
            server,
            folder,
        })
    }

    /// Runs a program on the router.
    fn run(&self, mut command: Command) -> Output {
        self.router
            .run(|| Ok(command.output().expect("it runs")))
            .expect("the namespace can be entered")
    }

    fn weir(&self, arguments: &str) -> Output {
        self.run(self.folder.command(arguments))
    }

    /// What it prints, if it succeeds.
    fn weir_says(&self, arguments: &str) -> String {
        let output = self.weir(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "weir {arguments}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn shapes(&self) -> Value {
        serde_json::from_str(&self.weir_says("shape show --json")).unwrap()
    }

    /// Every qdisc, class and filter of the router's interface, as tc(8) shows them.
    fn tc(&self) -> String {
        let show = |what| {
            let mut tc = needs::command("tc");
            tc.args([what, "show", "dev", "up0"]);
            String::from_utf8(self.run(tc).stdout).unwrap()
        };
        ["qdisc", "class", "filter"].map(show).concat()
    }
}

/// A wire between two namespaces: at each end the device and its address.
fn connect(one: (&Netns, &str, &str), other: (&Netns, &str, &str)) {
    let ends = [
        "type",
        "veth",
        "peer",
        "name",
        other.1,
        "netns",
        other.0.name(),
    ];
    one.0
        .ip(&[&["link", "add", one.1][..], &ends].concat())
        .unwrap();
    for (netns, device, address) in [one, other] {
        netns.ip(&["addr", "add", address, "dev", device]).unwrap();
        netns.ip(&["link", "set", device, "up"]).unwrap();
    }
}

/// Set when it is dropped, also by a panic.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn exit_code(output: &Output) -> Option<i32> {
    output.status.code()
}

#[test]
fn remove_leaves_the_interface_as_it_was_and_install_replaces_what_is_ours() {
    if !needs::programs(&["tc"]) {
        return;
    }
    let Some(hosts) = Hosts::new("shape") else {
        return;
    };
    let before = hosts.tc();
    for discipline in ["syn-prio", "fifo", "bfifo", "syn-fin-prio"] {
        hosts.weir_says(&format!(
            "shape install --dev up0 --rate {RATE} --discipline {discipline}"
        ));
        let shapes = hosts.shapes();
        assert_eq!(shapes[0]["dev"], "up0");
        assert_eq!(shapes[0]["discipline"], discipline);
        assert_eq!(shapes[0]["rate_bits_per_s"], 2_400_000);
        assert_ne!(hosts.tc(), before);
    }
    hosts.weir_says("shape remove --dev up0");
    assert_eq!(hosts.tc(), before);
    assert_eq!(hosts.shapes(), serde_json::json!([]));
    assert!(
        hosts
            .weir_says("shape remove --dev up0")
            .contains("nothing is changed")
    );
}

#[test]
fn a_root_qdisc_of_somebody_else_stays() {
    if !needs::programs(&["tc"]) {
        return;
    }
    let Some(hosts) = Hosts::new("shape-other") else {
        return;
    };
    let mut tc = needs::command("tc");
    tc.args([
        "qdisc", "add", "dev", "up0", "root", "handle", "7:", "pfifo", "limit", "9",
    ]);
    assert!(hosts.run(tc).status.success());
    let before = hosts.tc();
    let output = hosts.weir("shape install --dev up0 --rate 1mbit --discipline syn-prio");
    assert_eq!(exit_code(&output), Some(1));
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        errors.contains("pfifo 7:") && errors.contains("tc qdisc del dev up0 root"),
        "{errors}"
    );
    hosts.weir_says("shape remove --dev up0");
    assert_eq!(hosts.tc(), before);
}

#[test]
fn wrong_use_and_missing_qdiscs_have_their_exit_codes_and_change_nothing() {
    if !needs::programs(&["tc"]) {
        return;
    }
    let Some(hosts) = Hosts::new("shape-wrong") else {
        return;
    };
    let before = hosts.tc();
    for (arguments, code, hint) in [
        ("--dev eth7 --rate 1mbit", 2, "there are lo, lan0, up0"),
        ("--dev up0 --rate 10", 2, "10mbit"),
        ("--dev up0 --rate 10kbit", 2, "the least is 12kbit"),
        ("--dev up0 --rate 1mbit --discipline cake", 2, "spa-fq"),
        (
            "--dev up0 --rate 1mbit --discipline red",
            2,
            "there are fifo",
        ),
    ] {
        let output = hosts.weir(&format!("shape install {arguments}"));
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(exit_code(&output), Some(code), "{arguments}: {errors}");
        assert!(errors.contains(hint), "{arguments}: {errors}");
    }
    // The default needs fq_codel, which the kernel of this machine may lack.
    let output = hosts.weir("shape install --dev up0 --rate 1mbit");
    match exit_code(&output) {
        Some(0) => {
            assert_eq!(hosts.shapes()[0]["discipline"], "spa-fq");
            hosts.weir_says("shape remove --dev up0");
        }
        code => {
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(code, Some(3), "{errors}");
            assert!(errors.contains("fq_codel"), "{errors}");
        }
    }
    assert_eq!(hosts.tc(), before);
}

/// A kernel with every qdisc cannot fail here.
#[test]
fn a_discipline_that_the_kernel_lacks_leaves_the_one_before_in_place() {
    let Some(hosts) = Hosts::new("shape-before") else {
        return;
    };
    let install = |discipline| {
        hosts.weir(&format!(
            "shape install --dev up0 --rate {RATE} --discipline {discipline}"
        ))
    };
    assert_eq!(exit_code(&install("syn-prio")), Some(0));
    for discipline in ["spa-fq", "codel", "pie", "sfq"] {
        let output = install(discipline);
        let shapes = hosts.shapes();
        match exit_code(&output) {
            Some(0) => assert_eq!(shapes[0]["discipline"], discipline),
            code => {
                assert_eq!(code, Some(3));
                assert_eq!(shapes[0]["discipline"], "syn-prio");
                assert_eq!(shapes[0]["rate_bits_per_s"], 2_400_000);
                assert_eq!(shapes[0]["queues"].as_array().unwrap().len(), 2);
            }
        }
        assert_eq!(exit_code(&install("syn-prio")), Some(0));
    }
}

/// Whether the kernel has qdiscs in BPF. Where it has not, `install` says what it lacks and changes nothing.
fn has_bpf(hosts: &Hosts) -> bool {
    let before = hosts.tc();
    let output = hosts.weir("shape install --dev up0 --rate 1mbit --backend bpf");
    match exit_code(&output) {
        Some(0) => {
            hosts.weir_says("shape remove --dev up0");
            true
        }
        code => {
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(code, Some(3), "{errors}");
            assert!(errors.contains("CONFIG_NET_SCH_BPF"), "{errors}");
            assert_eq!(hosts.tc(), before);
            println!("this kernel has no qdiscs in BPF");
            false
        }
    }
}

#[test]
fn the_qdisc_in_bpf_is_shown_replaced_and_removed() {
    if !needs::programs(&["tc"]) {
        return;
    }
    let Some(hosts) = Hosts::new("shape-bpf") else {
        return;
    };
    let before = hosts.tc();
    if !has_bpf(&hosts) {
        return;
    }
    for discipline in ["spa-fq", "spa", "spa-paper", "syn-prio", "syn-fin-prio"] {
        hosts.weir_says(&format!(
            "shape install --dev up0 --rate {RATE} --discipline {discipline} --backend bpf"
        ));
        let shape = hosts.shapes()[0].clone();
        assert_eq!(shape["dev"], "up0");
        assert_eq!(shape["backend"], "bpf");
        assert_eq!(shape["discipline"], discipline);
        assert_eq!(shape["rate_bits_per_s"], 2_400_000);
        assert_eq!(shape["queues"].as_array().unwrap().len(), 3);
        assert!(hosts.tc().contains("qdisc weir_"), "{}", hosts.tc());
    }
    // From one way to the other and back.
    hosts.weir_says(&format!(
        "shape install --dev up0 --rate {RATE} --discipline syn-prio --backend tc"
    ));
    assert_eq!(hosts.shapes()[0]["backend"], "tc");
    hosts.weir_says(&format!(
        "shape install --dev up0 --rate {RATE} --backend bpf"
    ));
    // One that the qdisc has not leaves it in place.
    let output = hosts.weir(&format!(
        "shape install --dev up0 --rate {RATE} --discipline pie --backend bpf"
    ));
    assert_eq!(exit_code(&output), Some(2));
    assert_eq!(hosts.shapes()[0]["discipline"], "spa-fq");
    hosts.weir_says("shape remove --dev up0");
    assert_eq!(hosts.tc(), before);
    assert_eq!(hosts.shapes(), serde_json::json!([]));
}

/// The kernel forgets the qdisc of an interface that is gone at the next look; two namespaces do not meet.
#[test]
fn a_qdisc_in_bpf_goes_with_its_interface() {
    let Some(hosts) = Hosts::new("shape-bpf-gone") else {
        return;
    };
    if !has_bpf(&hosts) {
        return;
    }
    let registered = || {
        let all = weir_kernel::shape::qdisc::instances().unwrap();
        let ours = all
            .into_iter()
            .filter(|own| own.rate_bytes_per_s == 125_125);
        ours.map(|own| own.in_use).collect::<Vec<_>>()
    };
    let on = |dev: &str| {
        hosts.weir_says(&format!(
            "shape install --dev {dev} --rate 1001kbit --backend bpf"
        ));
    };
    on("up0");
    on("lan0");
    assert_eq!(registered(), [true, true]);
    hosts.router.ip(&["link", "del", "up0"]).unwrap();
    assert_eq!(hosts.shapes().as_array().unwrap().len(), 1);
    hosts.weir_says("shape remove --dev lan0");
    // Its maps go a moment later.
    weir_testbed::wait::until("no qdisc of this test", || {
        registered().is_empty().then_some(())
    });
}

/// IPv4 and IPv6; and data in packets of many segments, which the rate counts with the headers of each.
#[test]
fn the_qdisc_in_bpf_tells_control_segments_from_data_in_both_families() {
    let Some(hosts) = Hosts::new("shape-bpf-families") else {
        return;
    };
    if !has_bpf(&hosts) {
        return;
    }
    for (netns, address) in [(&hosts.router, "fd09::1/64"), (&hosts.server, "fd09::2/64")] {
        let device = if address.ends_with("1/64") {
            "up0"
        } else {
            "eth0"
        };
        netns
            .ip(&["addr", "add", address, "dev", device, "nodad"])
            .unwrap();
    }
    const BYTES: usize = 1 << 20;
    for discipline in ["spa", "spa-fq"] {
        hosts.weir_says(&format!(
            "shape install --dev up0 --rate 100mbit --discipline {discipline} --backend bpf"
        ));
        for address in [SERVER, "[fd09::2]:80"] {
            let of = |queue: usize, what: &str| hosts.shapes()[0]["queues"][queue][what].as_u64();
            let before = (
                of(0, "sent_packets"),
                of(1, "sent_bytes"),
                of(1, "sent_packets"),
            );
            let bind = || Ok(TcpListener::bind(address).unwrap());
            let listener = hosts.server.run(bind).unwrap();
            let server = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let mut all = Vec::new();
                stream.read_to_end(&mut all).map(|_| all.len()).unwrap()
            });
            let send = || {
                let mut stream = TcpStream::connect(address).unwrap();
                stream.write_all(&[7; BYTES]).unwrap();
                Ok(())
            };
            hosts.router.run(send).unwrap();
            assert_eq!(server.join().unwrap(), BYTES);
            let sent = |now: Option<u64>, before: Option<u64>| now.unwrap() - before.unwrap();
            assert_eq!(
                sent(of(0, "sent_packets"), before.0),
                1,
                "{discipline} {address}"
            );
            let bytes = sent(of(1, "sent_bytes"), before.1) as usize;
            // Each 1448 bytes have at least 66 of headers.
            let least = BYTES + BYTES / 1448 * 66;
            assert!(
                bytes >= least && bytes < least * 5 / 4,
                "{discipline} {address}: {bytes}"
            );
            let packets = sent(of(1, "sent_packets"), before.2) as usize;
            assert!(
                packets < BYTES / 1448,
                "{discipline} {address}: {packets} packets"
            );
        }
    }
}

/// `weir run` on the router; killed on drop.
struct Service(Child);

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Service {
    fn start(hosts: &Hosts, config: &str) -> Service {
        hosts.folder.write_config(config);
        let mut command = hosts.folder.command("run --config weir.toml");
        command.stderr(Stdio::null());
        Service(hosts.router.run(|| Ok(command.spawn().unwrap())).unwrap())
    }

    /// Ends it in order.
    fn end(mut self) {
        kill(Pid::from_raw(self.0.id() as i32), Signal::SIGTERM).unwrap();
        assert!(self.0.wait().unwrap().success());
    }
}

/// Of each shaper what does not grow while it runs: the device itself sends a packet now and then.
fn settings_of(shapes: &Value) -> Vec<Value> {
    let keys = ["dev", "backend", "discipline", "rate_bits_per_s"];
    let shapes = shapes.as_array().unwrap().iter();
    shapes
        .flat_map(|shape| {
            let queues = shape["queues"].as_array().unwrap().iter();
            let queues = queues.flat_map(|queue| [queue["name"].clone(), queue["qdisc"].clone()]);
            keys.map(|key| shape[key].clone()).into_iter().chain(queues)
        })
        .collect()
}

#[test]
fn weir_run_shapes_the_interfaces_of_its_file_while_it_runs() {
    if !needs::programs(&["tc"]) {
        return;
    }
    let Some(hosts) = Hosts::new("shape-run") else {
        return;
    };
    let before = hosts.tc();
    let config = |discipline: &str| {
        format!(
            "[[shape]]\ndev = \"up0\"\nrate = \"{RATE}\"\ndiscipline = \"{discipline}\"\n\
             [[shape]]\ndev = \"later0\"\nrate = \"1mbit\"\ndiscipline = \"fifo\"\n[metrics]\n"
        )
    };
    let service = Service::start(&hosts, &config("syn-prio"));
    let until = |wanted: &(dyn Fn(&Value) -> bool + Sync)| {
        hosts.router.run(|| Ok(hosts.folder.until(wanted))).unwrap()
    };
    let status = until(&|status| status["shapes"][0]["discipline"] == "syn-prio");
    assert_eq!(status["shapes"].as_array().unwrap().len(), 1);
    assert_eq!(settings_of(&status["shapes"]), settings_of(&hosts.shapes()));
    let warnings = status["warnings"].to_string();
    assert!(
        warnings.contains("shape later0: there is no such interface"),
        "{warnings}"
    );
    let shown = hosts.weir_says("status");
    assert!(shown.contains("up0: syn-prio at 2.4mbit, by tc"), "{shown}");

    let metrics = hosts.router.run(|| Ok(scrape())).unwrap();
    let series = "weir_shape_sent_bytes_total{dev=\"up0\",queue=\"high\"}";
    assert!(metrics.contains(series), "{metrics}");

    let later = [
        "link", "add", "later0", "type", "veth", "peer", "name", "later1",
    ];
    hosts.router.ip(&later).unwrap();
    let status = until(&|status| {
        status["shapes"]
            .as_array()
            .is_some_and(|all| all.len() == 2)
    });
    assert_eq!(status["warnings"], serde_json::json!([]));

    hosts.folder.write_config(&config("fifo"));
    hosts.weir_says("reload");
    assert_eq!(hosts.shapes()[0]["discipline"], "fifo");
    // What cannot be done changes nothing.
    hosts
        .folder
        .write_config(&config("pie").replace("[metrics]", "backend = \"bpf\"\n"));
    assert!(!hosts.weir("reload").status.success());
    assert_eq!(hosts.shapes()[0]["discipline"], "fifo");
    hosts.router.ip(&["link", "del", "later0"]).unwrap();
    until(&|status| {
        status["shapes"]
            .as_array()
            .is_some_and(|all| all.len() == 1)
    });

    service.end();
    assert_eq!(hosts.tc(), before);
}

/// What the metrics of `weir run` say.
fn scrape() -> String {
    let mut stream = TcpStream::connect("127.0.0.1:9464").unwrap();
    let request = b"GET /metrics HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n";
    stream.write_all(request).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

mod measured {
    use super::*;

    const CONNECTS: usize = 15;
    const GIVE_UP: Duration = Duration::from_secs(5);

    /// Sends to the server for as long as `work` lasts, by a congestion control that fills the queue.
    fn beside_an_upload<T>(hosts: &Hosts, work: impl FnOnce() -> T + Send) -> T
    where
        T: Send,
    {
        let ended = AtomicBool::new(false);
        let upload = || -> std::io::Result<()> {
            let mut stream = TcpStream::connect(SERVER)?;
            setsockopt(&stream, TcpCongestion, &"cubic".into())?;
            stream.set_write_timeout(Some(Duration::from_millis(100)))?;
            while !ended.load(Ordering::Relaxed) {
                // A full send buffer is what is wanted.
                let _ = stream.write(&[0; 1 << 14]);
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let upload = scope.spawn(|| hosts.client.run(|| Ok(upload())).unwrap());
            let result = {
                let _ended = Ended(&ended);
                hosts.client.run(|| Ok(work())).unwrap()
            };
            upload.join().unwrap().expect("the upload goes on");
            result
        })
    }

    /// How long connect() takes; a SYN that finds the queue full is sent again after a second, and then after two.
    fn connect_time(to: &str) -> Duration {
        let address: SocketAddr = to.parse().unwrap();
        let start = Instant::now();
        let stream = TcpStream::connect_timeout(&address, GIVE_UP);
        let took = start.elapsed();
        match stream {
            Err(error) if error.kind() != ErrorKind::TimedOut => panic!("cannot connect: {error}"),
            _ => took,
        }
    }

    /// Of connections that all open at once.
    fn connect_times() -> Vec<Duration> {
        connect_times_to(SERVER)
    }

    fn connect_times_to(address: &str) -> Vec<Duration> {
        std::thread::scope(|scope| {
            let connect = |_| scope.spawn(|| connect_time(address));
            let all: Vec<_> = (0..CONNECTS).map(connect).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        })
    }

    /// Waits until the upload has filled the queue of the data.
    fn wait_for_queue(hosts: &Hosts, bytes: u64) {
        weir_testbed::wait::until("a queue before the link", || {
            let low = &hosts.shapes()[0]["queues"];
            let low = low
                .as_array()?
                .iter()
                .find(|queue| queue["name"] == "low")?;
            (low["waiting_bytes"].as_u64()? >= bytes).then_some(())
        });
    }

    fn median_connect(hosts: &Hosts, how: &str, bytes: u64) -> Duration {
        hosts.weir_says(&format!(
            "shape install --dev up0 --rate {RATE} --discipline {how}"
        ));
        let mut times: Vec<Duration> = beside_an_upload(hosts, || {
            wait_for_queue(hosts, bytes);
            connect_times()
        });
        times.sort();
        times[CONNECTS / 2]
    }

    /// Accepts and reads until the test's process ends.
    fn serve(server: &Netns) {
        serve_at(server, SERVER);
    }

    fn serve_at(server: &Netns, address: &str) {
        let listener = server
            .run(|| Ok(TcpListener::bind(address).unwrap()))
            .unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                std::thread::spawn(move || read_all(stream));
            }
        });
    }

    fn read_all(mut stream: TcpStream) {
        let mut buffer = [0; 1 << 14];
        while stream.read(&mut buffer).is_ok_and(|len| len > 0) {}
    }

    /// BHD18: a SYN waits behind a full queue of data, or before it. Those are 151 400 bytes, 505 ms at
    /// 2.4 Mb/s, which the limit is in: one in packets would hold what the sender's stack makes of them, 64 KB each.
    #[test]
    fn a_connection_opens_at_once_beside_an_upload() {
        let Some(hosts) = Hosts::new("shape-upload") else {
            return;
        };
        serve(&hosts.server);
        let fifo = median_connect(&hosts, "bfifo", 90_000);
        println!("median of {CONNECTS} connect(): bfifo {fifo:?}");
        assert!(fifo > Duration::from_millis(200), "bfifo: {fifo:?}");
        // CoDel keeps its queue short.
        for (discipline, bytes) in [("syn-prio", 90_000), ("spa", 9_000), ("spa-fq", 9_000)] {
            if discipline != "syn-prio" && !has(&hosts, discipline) {
                println!("this kernel has not what {discipline} needs");
                continue;
            }
            let syn_first = median_connect(&hosts, discipline, bytes);
            println!("median of {CONNECTS} connect(): {discipline} {syn_first:?}");
            assert!(
                syn_first * 8 < fifo,
                "bfifo {fifo:?}, {discipline} {syn_first:?}"
            );
            let queues = &hosts.shapes()[0]["queues"];
            let high = queues[0]["sent_packets"].as_u64().unwrap();
            assert!(high >= CONNECTS as u64, "{queues}");
        }
        if !has_bpf(&hosts) {
            return;
        }
        for (discipline, bytes) in [("syn-prio", 90_000), ("spa", 9_000), ("spa-fq", 9_000)] {
            let how = format!("{discipline} --backend bpf");
            let syn_first = median_connect(&hosts, &how, bytes);
            println!("median of {CONNECTS} connect(): {discipline} in BPF {syn_first:?}");
            assert!(
                syn_first * 8 < fifo,
                "bfifo {fifo:?}, {discipline} in BPF {syn_first:?}"
            );
            let queues = &hosts.shapes()[0]["queues"];
            let high = queues[0]["sent_packets"].as_u64().unwrap();
            assert!(high >= CONNECTS as u64, "{queues}");
        }
    }

    /// Packets that wait when the qdisc goes, or the interface, are dropped, and the next ones pass.
    #[test]
    fn a_full_queue_in_bpf_is_dropped_with_its_qdisc() {
        let Some(hosts) = Hosts::new("shape-bpf-full") else {
            return;
        };
        serve(&hosts.server);
        if !has_bpf(&hosts) {
            return;
        }
        for discipline in ["spa", "spa-fq", "syn-prio"] {
            let install = format!(
                "shape install --dev up0 --rate {RATE} --discipline {discipline} --backend bpf"
            );
            hosts.weir_says(&install);
            beside_an_upload(&hosts, || {
                wait_for_queue(&hosts, 9_000);
                // Replaced while it is full, and then reset by the interface.
                hosts.weir_says(&install);
                wait_for_queue(&hosts, 9_000);
                hosts.router.ip(&["link", "set", "up0", "down"]).unwrap();
                let low = hosts.shapes()[0]["queues"][1].clone();
                assert_eq!(low["waiting_packets"], 0, "{low}");
                hosts.router.ip(&["link", "set", "up0", "up"]).unwrap();
                wait_for_queue(&hosts, 9_000);
                hosts.weir_says("shape remove --dev up0");
            });
        }
    }

    /// SYNs of a flood, each of another address or all of one. Nobody answers them: their checksum is wrong.
    fn flood_until(ended: &AtomicBool, spoofed: bool) -> nix::Result<()> {
        let raw = (AddressFamily::Inet, SockType::Raw, SockProtocol::Raw);
        let socket = socket(raw.0, raw.1, SockFlag::empty(), raw.2)?;
        let server = SockaddrIn::new(10, 9, 0, 2, 0);
        let mut syn = [0u8; 40];
        // IPv4, 40 bytes, TTL 64, TCP; to port 80 of the server, a header of 5 words, SYN.
        (syn[0], syn[3], syn[8], syn[9]) = (0x45, 40, 64, 6);
        syn[16..20].copy_from_slice(&[10, 9, 0, 2]);
        (syn[23], syn[32], syn[33]) = (80, 0x50, 2);
        let start = Instant::now();
        for number in 0u32.. {
            if ended.load(Ordering::Relaxed) {
                break;
            }
            let source = if spoofed {
                number.wrapping_mul(0x9e37_79b1) >> 8
            } else {
                1
            };
            // Of 11.0.0.0/8, which is nobody's here.
            syn[12..16].copy_from_slice(&(0x0b00_0000 | source).to_be_bytes());
            sendto(socket.as_raw_fd(), &syn, &server, MsgFlags::empty())?;
            let due = Duration::from_micros(u64::from(number) * 100);
            if let Some(early) = due.checked_sub(start.elapsed()) {
                std::thread::sleep(early);
            }
        }
        Ok(())
    }

    /// 10 000 SYNs/s through the link beside an upload: what the upload keeps of the link, and connect times of the
    /// same direction and of the other one, whose SYN/ACKs share the link with the flood.
    fn beside_a_flood(hosts: &Hosts, spoofed: bool) -> (f64, [Vec<Duration>; 2]) {
        let ended = AtomicBool::new(false);
        let low_bytes = || {
            hosts.shapes()[0]["queues"][1]["sent_bytes"]
                .as_u64()
                .unwrap()
        };
        beside_an_upload(hosts, || {
            wait_for_queue(hosts, 9_000);
            std::thread::scope(|scope| {
                let flood = scope.spawn(|| hosts.client.run(|| Ok(flood_until(&ended, spoofed))));
                let measured = {
                    let _ended = Ended(&ended);
                    weir_testbed::wait::until("demoted SYNs", || {
                        let demoted = &hosts.shapes()[0]["queues"][2]["dropped_packets"];
                        (demoted.as_u64()? > 1000).then_some(())
                    });
                    let (first, start) = (low_bytes(), Instant::now());
                    // A SYN in the direction of forged ones is like them: it may wait, and connect() for it.
                    let there = if spoofed { Vec::new() } else { connect_times() };
                    let back = hosts.server.run(|| Ok(connect_times_to(CLIENT))).unwrap();
                    weir_testbed::wait::until("two seconds", || {
                        (start.elapsed().as_secs() >= 2).then_some(())
                    });
                    let seconds = start.elapsed().as_secs_f64();
                    ((low_bytes() - first) as f64 * 8.0 / seconds, [there, back])
                };
                flood.join().unwrap().unwrap().expect("the flood goes on");
                measured
            })
        })
    }

    #[test]
    fn a_flood_leaves_the_upload_four_fifths_and_does_not_keep_connections_out() {
        let Some(hosts) = Hosts::new("shape-flood") else {
            return;
        };
        serve_at(&hosts.server, SERVER);
        serve_at(&hosts.client, CLIENT);
        let tc = has(&hosts, "spa-fq").then_some("tc");
        let bpf = has_bpf(&hosts).then_some("bpf");
        for backend in tc.into_iter().chain(bpf) {
            let how = format!("spa-fq --backend {backend}");
            for spoofed in [false, true] {
                hosts.weir_says(&format!(
                    "shape install --dev up0 --rate 10mbit --discipline {how}"
                ));
                let (upload, [there, back]) = beside_a_flood(&hosts, spoofed);
                let worst = |times: &[Duration]| times.iter().max().copied().unwrap_or_default();
                let (there, back) = (worst(&there), worst(&back));
                println!(
                    "median beside a flood (spoofed: {spoofed}), {how}: upload {:.2} Mbit/s, \
                     slowest connect() {there:?}, from the other side {back:?}",
                    upload / 1e6
                );
                assert!(upload > 8e6, "{how}: {upload}");
                assert!(back < Duration::from_millis(300), "{how}: {back:?}");
                assert!(there < Duration::from_millis(300), "{how}: {there:?}");
            }
        }
    }

    /// Whether the kernel has the discipline's qdiscs.
    fn has(hosts: &Hosts, discipline: &str) -> bool {
        let install =
            format!("shape install --dev up0 --rate {RATE} --discipline {discipline} --backend tc");
        match exit_code(&hosts.weir(&install)) {
            Some(0) => true,
            code => {
                assert_eq!(code, Some(3));
                false
            }
        }
    }

    /// What a packet costs with each root qdisc. On the clock of `make test-vm`, 2 ns are an instruction.
    #[test]
    fn a_packet_costs_in_bpf_about_what_it_does_in_fq_codel() {
        const PACKETS: u32 = 20_000;
        let Some(hosts) = Hosts::new("shape-cost") else {
            return;
        };
        let dummy = hosts.router.ip(&["link", "add", "cost0", "type", "dummy"]);
        if dummy.is_err() || !has_bpf(&hosts) || !has(&hosts, "spa-fq") {
            println!("this kernel has not all that this test needs");
            return;
        }
        for line in [
            "addr add 10.9.7.1/24 dev cost0",
            "link set cost0 up",
            "neigh add 10.9.7.2 lladdr 02:00:00:00:00:02 dev cost0",
        ] {
            hosts
                .router
                .ip(&line.split(' ').collect::<Vec<_>>())
                .unwrap();
        }
        let per_packet = |how: &str| {
            match how.strip_prefix("tc ") {
                Some(kind) => {
                    let mut tc = needs::command("tc");
                    tc.args(["qdisc", "replace", "dev", "cost0", "root", kind]);
                    assert!(hosts.run(tc).status.success(), "{how}");
                }
                None => {
                    let install = "shape install --dev cost0 --rate 10gbit --discipline";
                    hosts.weir_says(&format!("{install} {how}"));
                }
            }
            let took = hosts.router.run(|| Ok(send_packets(PACKETS))).unwrap();
            match how.starts_with("tc ") {
                true => {
                    let mut tc = needs::command("tc");
                    tc.args(["qdisc", "del", "dev", "cost0", "root"]);
                    assert!(hosts.run(tc).status.success(), "{how}");
                }
                false => drop(hosts.weir_says("shape remove --dev cost0")),
            }
            let ns = took.as_nanos() as f64 / f64::from(PACKETS);
            println!("median ns for a packet: {how} {ns:.0}");
            ns
        };
        let base = per_packet("tc pfifo");
        let fq_codel = per_packet("tc fq_codel") - base;
        let tree = per_packet("spa-fq --backend tc") - base;
        let [spa, spa_fq] =
            ["spa", "spa-fq"].map(|name| per_packet(&format!("{name} --backend bpf")) - base);
        println!(
            "median ns over pfifo: fq_codel {fq_codel:.0}, htb with fq_codel {tree:.0}, spa in BPF {spa:.0}, \
             spa-fq in BPF {spa_fq:.0}"
        );
    }

    /// How long packets of 64 flows take to be sent.
    fn send_packets(count: u32) -> Duration {
        let socket = |_| {
            let socket = UdpSocket::bind("10.9.7.1:0").unwrap();
            socket.connect("10.9.7.2:9").unwrap();
            socket
        };
        let sockets: Vec<_> = (0..64).map(socket).collect();
        let start = Instant::now();
        for (_, socket) in (0..count).zip(sockets.iter().cycle()) {
            // A full queue would be a drop, not an error.
            let _ = socket.send(&[0; 1000]);
        }
        start.elapsed()
    }

    /// The rate is what was asked for, counted with link headers.
    #[test]
    fn an_upload_has_the_rate_of_the_link() {
        let Some(hosts) = Hosts::new("shape-rate") else {
            return;
        };
        serve(&hosts.server);
        let bpf = has_bpf(&hosts).then_some("bpf");
        for backend in ["tc"].into_iter().chain(bpf) {
            let rate = upload_rate(&hosts, backend);
            println!("{:.3} Mbit/s of 10, by {backend}", rate / 1e6);
            assert!((9.7e6..10.3e6).contains(&rate), "{backend}: {rate}");
        }
    }

    fn upload_rate(hosts: &Hosts, backend: &str) -> f64 {
        hosts.weir_says(&format!(
            "shape install --dev up0 --rate 10mbit --discipline syn-prio --backend {backend}"
        ));
        let sent = || {
            let queues = hosts.shapes()[0]["queues"].clone();
            let queues = queues.as_array().unwrap().clone();
            queues
                .iter()
                .map(|queue| queue["sent_bytes"].as_u64().unwrap())
                .sum::<u64>()
        };
        beside_an_upload(hosts, || {
            wait_for_queue(hosts, 90_000);
            let (first, start) = (sent(), Instant::now());
            weir_testbed::wait::until("two seconds", || {
                (start.elapsed().as_secs() >= 2).then_some(())
            });
            (sent() - first) as f64 * 8.0 / start.elapsed().as_secs_f64()
        })
    }
}

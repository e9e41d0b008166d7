//! `weir shape` on a router between two network namespaces, with the kernel's own TCP on both sides.

#[allow(dead_code, reason = "the other tests use the rest of it")]
mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::Folder;
use nix::sys::socket::{setsockopt, sockopt::TcpCongestion};
use serde_json::Value;
use weir_testbed::needs;
use weir_testbed::netns::Netns;

const SERVER: &str = "10.9.0.2:80";
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
    fn connect_time() -> Duration {
        let address: SocketAddr = SERVER.parse().unwrap();
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
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..CONNECTS).map(|_| scope.spawn(connect_time)).collect();
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

    fn median_connect(hosts: &Hosts, discipline: &str, bytes: u64) -> Duration {
        hosts.weir_says(&format!(
            "shape install --dev up0 --rate {RATE} --discipline {discipline}"
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
        let listener = server
            .run(|| Ok(TcpListener::bind(SERVER).unwrap()))
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
    }

    /// Whether the kernel has the discipline's qdiscs.
    fn has(hosts: &Hosts, discipline: &str) -> bool {
        let install = format!("shape install --dev up0 --rate {RATE} --discipline {discipline}");
        match exit_code(&hosts.weir(&install)) {
            Some(0) => true,
            code => {
                assert_eq!(code, Some(3));
                false
            }
        }
    }

    /// The rate is what was asked for, counted with link headers.
    #[test]
    fn an_upload_has_the_rate_of_the_link() {
        let Some(hosts) = Hosts::new("shape-rate") else {
            return;
        };
        serve(&hosts.server);
        hosts.weir_says("shape install --dev up0 --rate 10mbit --discipline syn-prio");
        let sent = || {
            let queues = hosts.shapes()[0]["queues"].clone();
            let queues = queues.as_array().unwrap().clone();
            queues
                .iter()
                .map(|queue| queue["sent_bytes"].as_u64().unwrap())
                .sum::<u64>()
        };
        let rate = beside_an_upload(&hosts, || {
            wait_for_queue(&hosts, 90_000);
            let (first, start) = (sent(), Instant::now());
            weir_testbed::wait::until("two seconds", || {
                (start.elapsed().as_secs() >= 2).then_some(())
            });
            (sent() - first) as f64 * 8.0 / start.elapsed().as_secs_f64()
        });
        println!("{:.3} Mbit/s of 10", rate / 1e6);
        assert!((9.7e6..10.3e6).contains(&rate), "{rate}");
    }
}

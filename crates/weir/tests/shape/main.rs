//! `weir shape` on a router between two network namespaces, with the kernel's own TCP on both sides.

#[allow(dead_code, reason = "the other tests use the rest of it")]
#[path = "../common/mod.rs"]
mod common;
mod hosts;
mod ingress;
mod kept;
mod measured;
mod reload;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Stdio};

use hosts::{Hosts, RATE, SERVER, exit_code, needs_bpf};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use weir_testbed::needs;

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
    // The last one has the number of weir's.
    for (theirs, name) in [
        ("handle 7: pfifo limit 9", "pfifo 7:"),
        ("handle 3e12: htb default 1", "htb 3e12:"),
    ] {
        let mut tc = needs::command("tc");
        tc.args(["qdisc", "replace", "dev", "up0", "root"]);
        tc.args(theirs.split(' '));
        assert!(hosts.run(tc).status.success());
        let before = hosts.tc();
        let output = hosts.weir("shape install --dev up0 --rate 1mbit --discipline syn-prio");
        assert_eq!(exit_code(&output), Some(1), "{name}");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            errors.contains(name) && errors.contains("tc qdisc del dev up0 root"),
            "{errors}"
        );
        hosts.weir_says("shape remove --dev up0");
        assert_eq!(hosts.tc(), before);
        assert_eq!(hosts.shapes(), serde_json::json!([]));
    }
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
        ("--dev up0 --rate 101gbit", 2, "the most is 100gbit"),
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

#[test]
fn the_qdisc_in_bpf_is_shown_replaced_and_removed() {
    if !needs::programs(&["tc"]) {
        return;
    }
    let Some(hosts) = Hosts::new("shape-bpf") else {
        return;
    };
    let before = hosts.tc();
    if !needs_bpf(&hosts) {
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
    if !needs_bpf(&hosts) {
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
    if !needs_bpf(&hosts) {
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
    let keys = [
        "dev",
        "direction",
        "backend",
        "discipline",
        "rate_bits_per_s",
    ];
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
    let series = "weir_shape_sent_bytes_total{dev=\"up0\",direction=\"egress\",queue=\"high\"}";
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

/// An interface whose root qdisc is somebody else's is not shaped when it comes. A reload tries again.
#[test]
fn a_reload_shapes_an_interface_that_could_not_be_shaped_when_it_came() {
    if !needs::programs(&["tc"]) {
        return;
    }
    let Some(hosts) = Hosts::new("shape-again") else {
        return;
    };
    let config = "[[shape]]\ndev = \"later0\"\nrate = \"1mbit\"\ndiscipline = \"fifo\"\n";
    let service = Service::start(&hosts, config);
    let warning = |part: &str| {
        let has_it = |status: &Value| status["warnings"].to_string().contains(part);
        hosts.router.run(|| Ok(hosts.folder.until(has_it))).unwrap()
    };
    warning("there is no such interface");
    let tc = |arguments: &str| {
        let mut tc = needs::command("tc");
        tc.args(arguments.split(' '));
        assert!(hosts.run(tc).status.success(), "tc {arguments}");
    };
    let ip = |arguments: &str| {
        let arguments: Vec<_> = arguments.split(' ').collect();
        hosts.router.ip(&arguments).unwrap();
    };
    ip("link add other0 type veth peer name other1");
    tc("qdisc add dev other0 root handle 7: pfifo limit 9");
    ip("link set other0 name later0");
    warning("a root qdisc that is not weir's: pfifo 7:");
    tc("qdisc del dev later0 root");
    hosts.weir_says("reload");
    assert_eq!(hosts.shapes()[0]["dev"], "later0");
    service.end();
    assert_eq!(hosts.shapes(), serde_json::json!([]));
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

//! What an interface receives is shaped through an ifb.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use weir_testbed::needs;

use crate::Service;
use crate::hosts::{Hosts, RATE, exit_code, has_bpf};

const CLIENT: &str = "10.9.1.1:80";

/// A router whose kernel has ifb. Where it has not, `install` says so, advises the other end and changes nothing.
pub fn router(name: &str) -> Option<Hosts> {
    if !needs::programs(&["tc"]) {
        return None;
    }
    let hosts = Hosts::new(name)?;
    let before = state(&hosts);
    let output = hosts.weir(&install("--ingress 4mbit"));
    if output.status.success() {
        hosts.weir_says("shape remove --dev up0");
    } else {
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(exit_code(&output), Some(3), "{errors}");
        assert!(errors.contains("needs ifb"), "{errors}");
        assert!(errors.contains("at the other end"), "{errors}");
        needs::skip("kernel without ifb");
    }
    assert_eq!(state(&hosts), before);
    output.status.success().then_some(hosts)
}

pub fn install(flags: &str) -> String {
    format!("shape install --dev up0 --rate {RATE} --discipline syn-prio {flags}")
}

/// All that shaping touches: qdiscs, classes and filters of the interface, and which interfaces there are.
pub fn state(hosts: &Hosts) -> String {
    let tc = |arguments: &str| {
        let mut tc = needs::command("tc");
        tc.args(arguments.split(' '));
        String::from_utf8(hosts.run(tc).stdout).unwrap()
    };
    let mut ip = needs::command("ip");
    ip.args(["-o", "link", "show"]);
    let links = String::from_utf8(hosts.run(ip).stdout).unwrap();
    let names = links.lines().filter_map(|line| line.split(": ").nth(1));
    let filters = ["filter show dev up0 ingress", "filter show dev up0 egress"].map(tc);
    format!(
        "{}{}{}",
        hosts.tc(),
        filters.concat(),
        names.collect::<Vec<_>>().join(" ")
    )
}

/// The name of the ifb that is there.
fn ifb(hosts: &Hosts) -> String {
    let state = state(hosts);
    let rest = state.split("weir-in-").nth(1).unwrap();
    let number = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap();
    format!("weir-in-{number}")
}

/// A direction of an interface.
pub fn shape(hosts: &Hosts, dev: &str, direction: &str) -> Option<Value> {
    let shapes = hosts.shapes();
    let mut shapes = shapes.as_array().unwrap().iter();
    let found = shapes.find(|shape| shape["dev"] == dev && shape["direction"] == direction);
    found.cloned()
}

pub fn sent(shape: &Value, queue: usize, what: &str) -> u64 {
    shape["queues"][queue][what].as_u64().unwrap()
}

/// The server connects to the client and sends; what came.
pub fn to_the_client(hosts: &Hosts, bytes: usize) -> usize {
    let bind = || Ok(TcpListener::bind(CLIENT).unwrap());
    let listener = hosts.client.run(bind).unwrap();
    let client = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).map(|_| all.len()).unwrap()
    });
    let send = || {
        let mut stream = TcpStream::connect(CLIENT).unwrap();
        stream.write_all(&vec![7; bytes]).unwrap();
        Ok(())
    };
    hosts.server.run(send).unwrap();
    client.join().unwrap()
}

#[test]
fn what_comes_in_passes_the_queues_and_remove_leaves_nothing() {
    let Some(hosts) = router("shape-in") else {
        return;
    };
    let before = state(&hosts);
    const BYTES: usize = 300_000;
    let bpf = has_bpf(&hosts).then_some("--backend bpf");
    for backend in [""].into_iter().chain(bpf) {
        let says = hosts.weir_says(&install(&format!("--ingress 40mbit {backend}")));
        assert!(says.contains("what comes in at 40mbit"), "{says}");
        assert_eq!(to_the_client(&hosts, BYTES), BYTES);
        let received = shape(&hosts, "up0", "ingress").unwrap();
        assert_eq!(received["rate_bits_per_s"], 40_000_000);
        assert_eq!(received["discipline"], "syn-prio");
        // The SYN of the server; its data with headers.
        assert_eq!(sent(&received, 0, "sent_packets"), 1, "{received:#}");
        assert!(
            sent(&received, 1, "sent_bytes") > BYTES as u64,
            "{received:#}"
        );
        // The SYN/ACK of the client, which leaves.
        let egress = shape(&hosts, "up0", "egress").unwrap();
        assert_eq!(sent(&egress, 0, "sent_packets"), 1, "{egress:#}");
        assert_eq!(egress["rate_bits_per_s"], 2_400_000);
        let shown = hosts.weir_says("shape show --dev up0");
        assert!(shown.contains("up0 ingress: syn-prio at 40mbit"), "{shown}");
    }
    // Another rate; then only what is sent.
    hosts.weir_says(&install("--ingress 50mbit"));
    let received = shape(&hosts, "up0", "ingress").unwrap();
    assert_eq!(received["rate_bits_per_s"], 50_000_000);
    hosts.weir_says(&install(""));
    assert_eq!(hosts.shapes().as_array().unwrap().len(), 1);
    assert!(!state(&hosts).contains("weir-in-"));
    hosts.weir_says(&install("--ingress 50mbit"));
    hosts.weir_says("shape remove --dev up0");
    assert_eq!(state(&hosts), before);
}

#[test]
fn filters_of_others_and_their_clsact_stay() {
    let Some(hosts) = router("shape-in-others") else {
        return;
    };
    let tc = |arguments: &str| {
        let mut tc = needs::command("tc");
        tc.args(arguments.split(' '));
        assert!(hosts.run(tc).status.success(), "tc {arguments}");
    };
    let filter =
        "filter add dev up0 ingress pref 10 protocol ip u32 match ip protocol 1 0xff classid 1:1";
    // Theirs first.
    let bare = state(&hosts);
    tc("qdisc add dev up0 clsact");
    let empty = state(&hosts);
    hosts.weir_says(&install("--ingress 4mbit"));
    hosts.weir_says("shape remove --dev up0");
    assert_eq!(state(&hosts), empty);
    tc(filter);
    let theirs = state(&hosts);
    hosts.weir_says(&install("--ingress 4mbit"));
    assert_ne!(state(&hosts), theirs);
    assert_eq!(to_the_client(&hosts, 1000), 1000);
    assert!(
        shape(&hosts, "up0", "ingress").is_some_and(|shape| sent(&shape, 0, "sent_packets") == 1)
    );
    hosts.weir_says("shape remove --dev up0");
    assert_eq!(state(&hosts), theirs);
    tc("qdisc del dev up0 clsact");
    assert_eq!(state(&hosts), bare);
    // Ours first: the qdisc stays as long as somebody uses it.
    hosts.weir_says(&install("--ingress 4mbit"));
    tc(filter);
    hosts.weir_says("shape remove --dev up0");
    // u32 has numbered their table behind ours.
    assert_eq!(state(&hosts).replace("801", "800"), theirs);
}

/// Killed with the clsact qdisc made and no filter in it yet.
#[test]
fn what_an_install_that_was_killed_halfway_has_made_goes_with_remove() {
    let Some(hosts) = router("shape-in-halfway") else {
        return;
    };
    let before = state(&hosts);
    hosts.weir_says(&install("--ingress 4mbit"));
    let tc = |arguments: &str| {
        let mut tc = needs::command("tc");
        tc.args(arguments.split(' '));
        assert!(hosts.run(tc).status.success(), "tc {arguments}");
    };
    let halfway = || tc("filter del dev up0 ingress");
    halfway();
    assert!(state(&hosts).contains("clsact"));
    hosts.weir_says("shape remove --dev up0");
    assert_eq!(state(&hosts), before);
    // Somebody else's stays.
    tc("qdisc add dev up0 clsact");
    let theirs = state(&hosts);
    hosts.weir_says(&install("--ingress 4mbit"));
    halfway();
    hosts.weir_says("shape remove --dev up0");
    assert_eq!(state(&hosts), theirs);
}

#[test]
fn an_ifb_goes_with_the_next_command_when_its_interface_is_gone() {
    let Some(hosts) = router("shape-in-gone") else {
        return;
    };
    let before = state(&hosts);
    let goes = || {
        let later = [
            "link", "add", "later0", "type", "veth", "peer", "name", "later1",
        ];
        hosts.router.ip(&later).unwrap();
        let install = "shape install --dev later0 --rate 1mbit --ingress 1mbit --discipline fifo";
        hosts.weir_says(install);
        assert_eq!(hosts.shapes().as_array().unwrap().len(), 2);
        hosts.router.ip(&["link", "del", "later0"]).unwrap();
        let left = hosts.shapes();
        assert_eq!(left.as_array().unwrap().len(), 1, "{left:#}");
        let name = left[0]["dev"].as_str().unwrap();
        assert!(name.starts_with("weir-in-"), "{name}");
        assert!(state(&hosts).contains(name));
    };
    goes();
    hosts.weir_says(&install(""));
    hosts.weir_says("shape remove --dev up0");
    assert_eq!(state(&hosts), before);
    goes();
    let output = hosts.weir("shape remove --dev later0");
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(state(&hosts), before);
}

#[test]
fn what_a_killed_run_has_left_is_taken_off_and_what_the_user_has_put_there_stays() {
    let Some(hosts) = router("shape-in-killed") else {
        return;
    };
    let before = state(&hosts);
    let config = |ingress: &str| {
        format!("[[shape]]\ndev = \"up0\"\nrate = \"{RATE}\"\n{ingress}discipline = \"syn-prio\"\n")
    };
    let with = config("ingress = \"4mbit\"\n");
    let until = |wanted: &(dyn Fn(&Value) -> bool + Sync)| {
        hosts.router.run(|| Ok(hosts.folder.until(wanted))).unwrap()
    };
    let is_both = |status: &Value| {
        status["shapes"]
            .as_array()
            .is_some_and(|all| all.len() == 2)
    };
    let service = Service::start(&hosts, &with);
    let status = until(&is_both);
    assert_eq!(status["shapes"][1]["direction"], "ingress");
    // A reload takes one direction off, and puts it there again.
    hosts.folder.write_config(&config(""));
    hosts.weir_says("reload");
    assert_eq!(hosts.shapes().as_array().unwrap().len(), 1);
    hosts.folder.write_config(&with);
    hosts.weir_says("reload");
    until(&is_both);
    let mine = "shape install --dev lan0 --rate 1mbit --ingress 1mbit --discipline fifo";
    hosts.weir_says(mine);
    let mut killed = service;
    kill(Pid::from_raw(killed.0.id() as i32), Signal::SIGKILL).unwrap();
    killed.0.wait().unwrap();
    assert!(shape(&hosts, "up0", "ingress").is_some());
    let says = hosts.weir_says("detach");
    assert!(says.contains("had left on up0"), "{says}");
    assert!(shape(&hosts, "up0", "egress").is_none());
    assert!(shape(&hosts, "lan0", "ingress").is_some());
    hosts.weir_says("shape remove --dev lan0");
    assert_eq!(state(&hosts), before);
    // An orderly end needs no detach.
    let service = Service::start(&hosts, &with);
    until(&is_both);
    service.end();
    assert_eq!(state(&hosts), before);
}

#[test]
fn what_fails_on_the_way_in_leaves_both_directions_as_they_were() {
    let Some(hosts) = router("shape-in-fails") else {
        return;
    };
    let output = hosts.weir(&install("--ingress 10kbit"));
    assert_eq!(exit_code(&output), Some(2));
    hosts.weir_says(&install("--ingress 4mbit"));
    // Somebody else's root qdisc on the ifb.
    let ifb = ifb(&hosts);
    let mut tc = needs::command("tc");
    let replace = format!("qdisc replace dev {ifb} root handle 7: pfifo limit 9");
    tc.args(replace.split(' '));
    assert!(hosts.run(tc).status.success());
    let output = hosts.weir(&install("--ingress 5mbit").replace(RATE, "3mbit"));
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(exit_code(&output), Some(1), "{errors}");
    assert!(errors.contains("pfifo 7:"), "{errors}");
    let egress = shape(&hosts, "up0", "egress").unwrap();
    assert_eq!(egress["rate_bits_per_s"], 2_400_000);
    assert!(state(&hosts).contains(&ifb));
}

/// Behind a link with shorter packets than the ifb's, and with somebody else's filter where weir's would be.
#[test]
fn an_ifb_keeps_its_shaper_whole_when_nothing_can_be_sent_through_it() {
    let Some(hosts) = router("shape-in-keeps") else {
        return;
    };
    hosts
        .router
        .ip(&["link", "set", "up0", "mtu", "1400"])
        .unwrap();
    hosts.weir_says(&install("--ingress 4mbit"));
    let tc = |arguments: &str| {
        let mut tc = needs::command("tc");
        tc.args(arguments.split(' '));
        let output = hosts.run(tc);
        assert!(output.status.success(), "tc {arguments}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let name = ifb(&hosts);
    // With their rates and lengths, without the numbers of the qdiscs in them, which are new each time.
    let classes = || {
        ["up0", &name].map(|dev| {
            let all = tc(&format!("-d class show dev {dev}"));
            let mut words: Vec<String> = all.split_whitespace().map(str::to_owned).collect();
            for at in 1..words.len() {
                if words[at - 1] == "leaf" {
                    words[at].clear();
                }
            }
            words.join(" ")
        })
    };
    tc("filter del dev up0 ingress");
    // u32 of another protocol has the number that weir's filter would have beside a clsact qdisc that is there.
    tc(
        "filter add dev up0 ingress pref 15891 protocol ip u32 match ip protocol 1 0xff classid 1:1",
    );
    let before = classes();
    let output = hosts.weir(&install("--ingress 5mbit").replace(RATE, "3mbit"));
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(exit_code(&output), Some(1), "{errors}");
    assert!(errors.contains("redirect what is received"), "{errors}");
    assert_eq!(classes(), before);
    assert!(state(&hosts).contains(&name));
    tc("filter del dev up0 ingress");
    hosts.weir_says("shape remove --dev up0");
}

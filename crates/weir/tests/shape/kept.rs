//! What is shaped stays shaped, whoever else changes the interface, and goes with its owner.

use serde_json::Value;
use weir_testbed::{needs, wait};

use crate::Service;
use crate::hosts::{Hosts, RATE, exit_code};
use crate::ingress::{install, router, sent, shape, state, to_the_client};

fn ip(hosts: &Hosts, arguments: &str) {
    let arguments: Vec<_> = arguments.split(' ').collect();
    hosts.router.ip(&arguments).unwrap();
}

fn rename(hosts: &Hosts, from: &str, to: &str) {
    ip(hosts, &format!("link set {from} down"));
    ip(hosts, &format!("link set {from} name {to}"));
    ip(hosts, &format!("link set {to} up"));
}

/// Waits for a status.
fn until(hosts: &Hosts, wanted: &(dyn Fn(&Value) -> bool + Sync)) -> Value {
    hosts.router.run(|| Ok(hosts.folder.until(wanted))).unwrap()
}

fn has_shapes(number: usize) -> impl Fn(&Value) -> bool + Sync {
    move |status| {
        let shapes = status["shapes"].as_array();
        shapes.is_some_and(|all| all.len() == number)
    }
}

fn both_ways(dev: &str, rate: &str) -> String {
    format!(
        "[[shape]]\ndev = \"{dev}\"\nrate = \"{rate}\"\ningress = \"4mbit\"\ndiscipline = \"syn-prio\"\n"
    )
}

/// The device through which goes what `up0` receives.
fn through(hosts: &Hosts) -> String {
    let state = state(hosts);
    let index = state.split("weir-in-").nth(1).unwrap();
    let index = index.split(|c: char| !c.is_ascii_digit()).next().unwrap();
    format!("weir-in-{index}")
}

/// What comes in at `up0` passes weir's queues, and arrives.
fn passes(hosts: &Hosts) {
    let packets = || {
        let received = shape(hosts, "up0", "ingress").unwrap();
        sent(&received, 1, "sent_packets")
    };
    let before = packets();
    assert_eq!(to_the_client(hosts, 1000), 1000);
    assert!(packets() > before, "{}", state(hosts));
}

#[test]
fn of_two_installs_at_once_one_waits_for_the_other() {
    if !needs::programs(&["tc"]) {
        return;
    }
    let Some(hosts) = Hosts::new("shape-twice") else {
        return;
    };
    for round in 0..12 {
        let run = || hosts.weir(&install(""));
        let both = std::thread::scope(|scope| {
            let two = [scope.spawn(run), scope.spawn(run)];
            two.map(|one| one.join().unwrap())
        });
        for output in both {
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(exit_code(&output), Some(0), "round {round}: {errors}");
        }
        assert_eq!(hosts.shapes()[0]["discipline"], "syn-prio", "round {round}");
        hosts.weir_says("shape remove --dev up0");
    }
}

#[test]
fn a_renamed_interface_is_shaped_by_its_new_name_and_left_as_it_was() {
    let Some(hosts) = router("shape-renamed") else {
        return;
    };
    let before = state(&hosts);
    let config = format!("{}{}", both_ways("up0", RATE), both_ways("uq0", "3mbit"));
    let service = Service::start(&hosts, &config);
    until(&hosts, &has_shapes(2));
    rename(&hosts, "up0", "other0");
    until(&hosts, &has_shapes(0));
    assert_eq!(hosts.shapes(), serde_json::json!([]));
    rename(&hosts, "other0", "uq0");
    let is_other = |status: &Value| {
        let shape = &status["shapes"][0];
        shape["dev"] == "uq0" && shape["rate_bits_per_s"] == 3_000_000
    };
    until(&hosts, &is_other);
    service.end();
    rename(&hosts, "uq0", "up0");
    assert_eq!(hosts.shapes(), serde_json::json!([]));
    assert_eq!(state(&hosts), before);
}

#[test]
fn what_others_take_off_is_put_back_in_a_while_and_by_a_reload() {
    let Some(hosts) = router("shape-back") else {
        return;
    };
    let before = state(&hosts);
    let service = Service::start(&hosts, &both_ways("up0", RATE));
    until(&hosts, &has_shapes(2));
    let through = through(&hosts);
    let is_whole = |status: &Value| {
        let no_warnings = status["warnings"] == serde_json::json!([]);
        no_warnings && has_shapes(2)(status)
    };
    type Step<'a> = (&'a str, &'a dyn Fn());
    let steps: [Step; 5] = [
        ("its queues are gone", &|| {
            hosts.do_tc("qdisc del dev up0 root")
        }),
        ("the filter", &|| hosts.do_tc("qdisc del dev up0 clsact")),
        ("is gone", &|| ip(&hosts, &format!("link del {through}"))),
        ("is down", &|| {
            ip(&hosts, &format!("link set {through} down"))
        }),
        ("the queues of weir-in-", &|| {
            hosts.do_tc(&format!("qdisc del dev {through} root"));
        }),
    ];
    for (what, take_off) in steps {
        take_off();
        hosts.weir_says("reload");
        assert!(shape(&hosts, "up0", "egress").is_some(), "{what}");
        passes(&hosts);
        take_off();
        until(&hosts, &is_whole);
        assert!(shape(&hosts, "up0", "egress").is_some(), "{what}");
        passes(&hosts);
    }
    // Somebody else's stays until it goes.
    hosts.do_tc("qdisc replace dev up0 root handle 7: pfifo limit 9");
    until(&hosts, &|status| {
        status["warnings"].to_string().contains("pfifo 7:")
    });
    assert!(hosts.tc().contains("pfifo 7:"));
    hosts.do_tc("qdisc del dev up0 root");
    until(&hosts, &is_whole);
    service.end();
    assert_eq!(state(&hosts), before);
}

#[test]
fn an_ifb_goes_with_its_interface_while_weir_runs() {
    let Some(hosts) = router("shape-ifb-goes") else {
        return;
    };
    let before = state(&hosts);
    let service = Service::start(&hosts, &both_ways("later0", RATE));
    until(&hosts, &has_shapes(0));
    for by_user in [false, true] {
        let name = match by_user {
            true => "mine0",
            false => "later0",
        };
        ip(
            &hosts,
            &format!("link add {name} type veth peer name later1"),
        );
        match by_user {
            true => drop(hosts.weir_says(&install("--ingress 4mbit").replace("up0", name))),
            false => drop(until(&hosts, &has_shapes(2))),
        }
        assert!(state(&hosts).contains("weir-in-"));
        ip(&hosts, &format!("link del {name}"));
        wait::until("the ifb is gone", || {
            (!state(&hosts).contains("weir-in-")).then_some(())
        });
    }
    service.end();
    assert_eq!(state(&hosts), before);
}

#[test]
fn weir_run_and_weir_shape_leave_each_other_s_interfaces_alone() {
    let Some(hosts) = router("shape-whose") else {
        return;
    };
    let before = state(&hosts);
    let service = Service::start(&hosts, &both_ways("up0", RATE));
    until(&hosts, &has_shapes(2));
    for command in [&install(""), "shape remove --dev up0"] {
        let output = hosts.weir(command);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(exit_code(&output), Some(1), "{command}: {errors}");
        assert!(errors.contains("`weir run` (pid "), "{errors}");
        assert_eq!(hosts.shapes().as_array().unwrap().len(), 2);
    }
    let mine = install("--ingress 5mbit").replace("up0", "lan0");
    hosts.weir_says(&mine);
    let theirs = format!("{}{}", both_ways("up0", RATE), both_ways("lan0", "3mbit"));
    hosts.folder.write_config(&theirs);
    let output = hosts.weir("reload");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert!(errors.contains("weir shape remove --dev lan0"), "{errors}");
    service.end();
    let sent = shape(&hosts, "lan0", "egress").unwrap();
    assert_eq!(sent["rate_bits_per_s"], 2_400_000);
    assert!(shape(&hosts, "lan0", "ingress").is_some());
    // It has no weir to put it back.
    hosts.weir_says("shape remove --dev lan0");
    assert_eq!(state(&hosts), before);
}

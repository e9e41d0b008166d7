//! A reload of which one part cannot be put in force: all of the old policy stays.

use std::collections::BTreeSet;
use std::process::Output;

use serde_json::{Value, json};
use weir_testbed::needs;

use crate::Service;
use crate::hosts::{Hosts, exit_code};

/// Descriptors that a daemon still gets.
const FREE: usize = 5;

/// A policy of which each part has `name` in it.
fn policy(name: &str, rate: &str, more: &str) -> String {
    format!(
        "[[listener]]\nname = \"{name}\"\naddress = \"*:80\"\nestablish = \"reserv\"\n\
         [[class]]\nname = \"{name}\"\nfrom = \"10.9.0.0/16\"\nrate = 100\n\
         [controller]\ntarget_wait = \"20ms\"\nmode = \"observe\"\n\
         [[shape]]\ndev = \"up0\"\nrate = \"{rate}\"\ndiscipline = \"fifo\"\nbackend = \"tc\"\n\
         [[destination]]\nname = \"{name}\"\nto = \"10.9.0.0/16\"\n{more}\n"
    )
}

/// Every part of the policy in force, as the daemon and as the kernel have it.
fn in_force(hosts: &Hosts) -> Value {
    let status: Value = serde_json::from_str(&hosts.weir_says("status --json")).unwrap();
    let names = |key: &str| {
        let all = status[key].as_array().into_iter().flatten();
        all.map(|one| one["name"].clone()).collect::<Vec<_>>()
    };
    let classes: Vec<Value> = serde_json::from_str(&hosts.weir_says("class list --json")).unwrap();
    let classes: Vec<&Value> = classes.iter().map(|class| &class["name"]).collect();
    json!({
        "listeners": names("listeners"),
        "classes": classes,
        "controller": status["controller"]["mode"],
        "destinations": names("destinations"),
        "shapes": hosts.shapes().as_array().unwrap().iter()
            .map(|one| json!([one["dev"], one["rate_bits_per_s"]])).collect::<Vec<_>>(),
    })
}

fn diff(hosts: &Hosts) -> String {
    let output = hosts.weir("check --diff weir.toml");
    String::from_utf8(output.stdout).unwrap()
}

fn started(name: &str, programs: &[&str]) -> Option<(Hosts, Service)> {
    if !needs::programs(programs) {
        return None;
    }
    let hosts = Hosts::new(name)?;
    let service = Service::start(&hosts, &policy("old", "2mbit", "timewait = \"off\""));
    let is_up = |status: &Value| status["shapes"][0]["dev"] == "up0";
    hosts.router.run(|| Ok(hosts.folder.until(is_up))).unwrap();
    Some((hosts, service))
}

/// A reload of this file fails and changes nothing; `weir check --diff` says so.
fn fails_whole(hosts: &Hosts, next: &str, reload: impl FnOnce() -> Output, why: &str) {
    let before = in_force(hosts);
    assert_eq!(before["listeners"], json!(["old"]));
    hosts.folder.write_config(next);
    let wanted = diff(hosts);
    assert!(wanted.contains("listener new"), "{wanted}");
    let output = reload();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(exit_code(&output), Some(1), "{errors}");
    assert!(errors.contains(why), "{errors}");
    assert_eq!(in_force(hosts), before);
    assert_eq!(diff(hosts), wanted);
}

#[test]
fn a_reload_whose_shape_fails_leaves_the_whole_old_policy_in_force() {
    let Some((hosts, service)) = started("reload-shape", &["tc"]) else {
        return;
    };
    hosts.do_tc("qdisc add dev lan0 root handle 7: pfifo limit 9");
    let lan = "[[shape]]\ndev = \"lan0\"\nrate = \"1mbit\"\ndiscipline = \"fifo\"\n";
    let next = policy("new", "3mbit", "timewait = \"off\"")
        .replace("mode = \"observe\"", "mode = \"enforce\"")
        + lan;
    fails_whole(&hosts, &next, || hosts.weir("reload"), "pfifo 7:");
    hosts.do_tc("qdisc del dev lan0 root");
    hosts.weir_says("reload");
    assert_eq!(in_force(&hosts)["listeners"], json!(["new"]));
    service.end();
}

/// The last part of the policy: the programs of TIME-WAIT cannot be loaded.
#[test]
fn a_reload_whose_last_part_fails_puts_all_others_back() {
    let Some((hosts, service)) = started("reload-last", &["tc", "prlimit"]) else {
        return;
    };
    let next = policy("new", "3mbit", "timewait = \"client-rst\"")
        .replace("mode = \"observe\"", "mode = \"enforce\"");
    let pid = service.0.id();
    let limit = |soft: &str| {
        let mut prlimit = needs::command("prlimit");
        prlimit.args([&format!("--pid={pid}"), &format!("--nofile={soft}:")]);
        assert!(hosts.run(prlimit).status.success());
    };
    let reload = || {
        let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        let open: BTreeSet<u32> = open
            .flatten()
            .filter_map(|fd| fd.file_name().to_str()?.parse().ok())
            .collect();
        // Enough for the client and for asking the kernel, not for programs and their maps.
        let mut free = (0..).filter(|number| !open.contains(number));
        limit(&free.nth(FREE).unwrap().to_string());
        let output = hosts.weir("reload");
        limit("1024");
        output
    };
    fails_whole(&hosts, &next, reload, "open files");
    hosts.weir_says("reload");
    assert_eq!(in_force(&hosts)["destinations"], json!(["new"]));
    service.end();
}

//! Claims about `[[listener]]`.

use std::time::Duration;

use weir_core::listener::{
    Admit, Establish, Front, HalfClose, Listener, MAX_LISTENERS, Mode, RejectSyn, ResidenceMode,
};
use weir_core::timewait::{Holder, ListenerTimeWait};
use weir_core::workload::Where;

use super::problems;
use crate::{Table, parse};

#[test]
fn every_key_is_read() {
    let file = r#"
        [[listener]]
        name = "web"
        address = "10.0.0.1:8080"
        where = "here"
        interfaces = ["eth0", "lo"]
        establish = "no-syn-drop"
        reject_syn = "drop"
        overbook = 1
        admit = "queue"
        target_wait = "1.5s"
        interval = "3s"
        queue = "priority"
        ageing = "off"
        residence = "0.25s"
        residence_of = 8000
        health_checks = false
        half_close = "reset"
        timewait = "negotiate"
        holder = "server"
        per_socket = true
        reason = true
        mode = "observe"
        front = "xdp"
    "#;
    let expected = Listener {
        name: "web".into(),
        address: weir_core::listener::ListenAddress {
            ip: "10.0.0.1".parse().ok(),
            port: 8080,
        },
        interfaces: vec!["eth0".into(), "lo".into()],
        establish: Establish::NoSynDrop,
        reject_syn: RejectSyn::Drop,
        overbook: 1.0,
        admit: Admit::Queue,
        target_wait: Duration::from_millis(1500),
        interval: Duration::from_secs(3),
        least_length: 0,
        queue: weir_core::listener::QueueOrder::Priority,
        ageing: None,
        residence: ResidenceMode::Within(Duration::from_millis(250)),
        residence_of: Some(8000),
        health_checks: false,
        half_close: HalfClose::Reset,
        timewait: ListenerTimeWait::Negotiate,
        holder: Holder::Server,
        per_socket: true,
        reason: true,
        mode: Mode::Observe,
        front: Front::Xdp,
        location: Where::Here,
    };
    assert_eq!(parse("f", file).unwrap().listeners, [expected]);
    assert_eq!(Listener::keys().len(), 22, "this test must set every key");
    // The others are weir's own namespace's.
    let there = "[[listener]]\naddress = \"*:80\"\nwhere = \"container:web-*\"\n";
    let location = parse("f", there).unwrap().listeners[0].location.clone();
    assert_eq!(Some(location), Where::parse("container:web-*"));
}

#[test]
fn what_is_not_there_yet_in_other_namespaces_is_refused() {
    for line in [
        "queue = \"priority\"",
        "residence = \"observe\"",
        "timewait = \"negotiate\"",
        "per_socket = true",
        "front = \"xdp\"",
    ] {
        let key = line.split(' ').next().unwrap();
        for place in ["machine", "container:web", "unit:nginx", "netns:blue"] {
            let file = format!(
                "[[listener]]\nname = \"web\"\naddress = \"*:80\"\nwhere = \"{place}\"\n{line}\n"
            );
            let found = problems(&file);
            let said =
                format!("listener \"web\": {key}: is not there yet in other network namespaces");
            assert!(found.len() == 1 && found[0].contains(&said), "{found:?}");
        }
    }
    let file = "[[listener]]\naddress = \"*:80\"\nwhere = \"machine\"\n[controller]\ntarget_wait = \"20ms\"\n";
    let found = problems(file);
    assert!(
        found.len() == 1 && found[0].contains("the controller is not there yet in other"),
        "{found:?}"
    );
}

#[test]
fn one_address_may_be_guarded_in_several_places() {
    let listener = |place: &str| {
        format!(
            "[[listener]]\nname = \"l{}\"\naddress = \"*:80\"\n{place}\n",
            place.len()
        )
    };
    let two = |one: &str, other: &str| parse("f", &(listener(one) + &listener(other)));
    assert!(two("", "where = \"container:web\"").is_ok());
    assert!(two("where = \"netns:a\"", "where = \"netns:ab\"").is_ok());
    assert!(two("", "where = \"here\"").is_err());
}

#[test]
fn a_place_that_is_none_has_a_hint() {
    for (place, hint) in [
        ("contaner:web", "did you mean \"container:web\"?"),
        ("host", "here, machine, container:NAME"),
        ("pod:web", "\"pod:shop/web-*\""),
        ("label:app", "name it with its value"),
        ("label:=web", "name it with its value"),
        ("podman:web", "container:NAME is every engine's"),
        ("container:", "name it, as in \"container:web\""),
        ("machin", "did you mean \"machine\"?"),
    ] {
        let file = format!("[[listener]]\naddress = \"*:80\"\nwhere = \"{place}\"\n");
        let found = problems(&file);
        assert!(found.len() == 1 && found[0].contains(hint), "{found:?}");
    }
}

#[test]
fn left_out_keys_have_the_defaults_of_weir_protect() {
    let config = parse("f", "[[listener]]\naddress = \"[::]:443\"\n").unwrap();
    let address = crate::parse_listen_address("[::]:443").unwrap();
    assert_eq!(config.listeners, [Listener::new("port-443", address)]);
}

#[test]
fn mistakes_are_placed_and_hinted() {
    let keys = |line: &str| format!("[[listener]]\nname = \"web\"\naddress = \"*:80\"\n{line}\n");
    for (line, expected) in [
        (
            "estabish = \"abort\"",
            "4:1: listener \"web\": unknown key \"estabish\" | did you mean establish?",
        ),
        (
            "establish = \"reserve\"",
            "4:13: listener \"web\": establish: \"reserve\" is not known | did you mean \"reserv\"?",
        ),
        (
            "overbook = 20",
            "4:12: listener \"web\": overbook: 20 is out of range | a number from 0 to 16: 0.5 promises one and a half times the listen queue",
        ),
        (
            "overbook = nan",
            "4:12: listener \"web\": overbook: NaN is out of range | a number from 0 to 16: 0.5 promises one and a half times the listen queue",
        ),
        (
            "overbook = \"1\"",
            "4:12: listener \"web\": overbook: is a string, not a number | write the number without quotes: 0.5 promises one and a half times the listen queue",
        ),
        (
            "target_wait = 20",
            "4:15: listener \"web\": target_wait: is a number, not a duration | a duration with its unit from 1ms to 10s, for example \"20ms\"",
        ),
        (
            "target_wait = \"20\"",
            "4:15: listener \"web\": target_wait: \"20\" has no unit | a duration with its unit from 1ms to 10s, for example \"20ms\"",
        ),
        (
            "interval = \"11s\"",
            "4:12: listener \"web\": interval: \"11s\" is out of range | a duration with its unit from 1ms to 10s, for example \"20ms\"",
        ),
        (
            "residence_of = 0",
            "4:16: listener \"web\": residence_of: 0 is out of range | a whole number from 1 to 65535, or \"own\"",
        ),
        (
            "interfaces = []",
            "4:14: listener \"web\": interfaces: the list is empty | leave the key out to guard every interface",
        ),
        (
            "interfaces = [\"a\", \"a\"]",
            "4:14: listener \"web\": interfaces: the list has \"a\" twice | name it once",
        ),
        (
            "interfaces = [1]",
            "4:14: listener \"web\": interfaces: is a list with other things than strings, not a list of strings | write a list: [\"eth0\"]",
        ),
        (
            "reason = \"yes\"",
            "4:10: listener \"web\": reason: is a string, not true or false | write true or false without quotes",
        ),
    ] {
        assert_eq!(problems(&keys(line)), [expected], "{line}");
    }
}

#[test]
fn a_listener_needs_an_address() {
    let found = problems("[[listener]]\nname = \"web\"\n");
    assert_eq!(found.len(), 1);
    assert!(
        found[0].starts_with("1:1: listener \"web\": address is missing"),
        "{found:?}"
    );
}

#[test]
fn two_listeners_of_one_name_or_address_are_refused() {
    let file = "[[listener]]\nname = \"a\"\naddress = \"*:80\"\n\
                [[listener]]\nname = \"a\"\naddress = \"[::]:80\"\n";
    let found = problems(file);
    assert!(
        found[0].contains("the listener on line 1 has the same name"),
        "{found:?}"
    );
    assert!(
        found[1].contains("its address [::]:80 collides with *:80"),
        "{found:?}"
    );
}

#[test]
fn a_name_or_address_taken_several_times_is_one_problem_for_each_that_comes_later() {
    let found = problems(&"[[listener]]\naddress = \"*:80\"\n".repeat(4));
    assert_eq!(found.len(), 6, "{found:?}");
    assert!(
        found.iter().all(|line| line.contains("on line 1")),
        "{found:?}"
    );
}

#[test]
fn more_listeners_than_the_tables_hold_are_refused() {
    let file = |n: usize| -> String {
        (1..=n)
            .map(|port| format!("[[listener]]\naddress = \"*:{port}\"\n"))
            .collect()
    };
    assert!(parse("f", &file(MAX_LISTENERS)).is_ok());
    let found = problems(&file(MAX_LISTENERS + 1));
    assert!(found[0].contains("257 listeners are too many"), "{found:?}");
}

//! Claims about whole files.

use std::time::Duration;

use super::*;
use crate::listener::{Admit, Establish, Front, HalfClose, MAX_LISTENERS, Mode, RejectSyn};

/// The problems of a file, as `line:column: object: cause | hint`.
fn problems(source: &str) -> Vec<String> {
    let problems = parse("f", source).expect_err("the file is wrong").0;
    problems
        .iter()
        .map(|p| format!("{p} | {}", p.hint).replacen("f:", "", 1))
        .collect()
}

#[test]
fn every_key_is_read() {
    let file = r#"
        [[listener]]
        name = "web"
        address = "10.0.0.1:8080"
        interfaces = ["eth0", "lo"]
        establish = "no-syn-drop"
        reject_syn = "drop"
        overbook = 1
        admit = "queue"
        target_wait = "1.5s"
        interval = "3s"
        half_close = "reset"
        reason = true
        mode = "observe"
        front = "xdp"
    "#;
    let expected = Listener {
        name: "web".into(),
        address: crate::listener::ListenAddress {
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
        half_close: HalfClose::Reset,
        reason: true,
        mode: Mode::Observe,
        front: Front::Xdp,
    };
    assert_eq!(parse("f", file).unwrap().listeners, [expected]);
    assert_eq!(
        keys::LISTENER_KEYS.len(),
        13,
        "this test must set every key"
    );
}

#[test]
fn left_out_keys_have_the_defaults_of_weir_protect() {
    let config = parse("f", "[[listener]]\naddress = \"[::]:443\"\n").unwrap();
    let address = crate::listener::ListenAddress::parse("[::]:443").unwrap();
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
            "4:12: listener \"web\": overbook: 20.0 is out of range | 0.0 to 16.0: 0.5 promises one and a half times the listen queue",
        ),
        (
            "overbook = nan",
            "4:12: listener \"web\": overbook: NaN is out of range | 0.0 to 16.0: 0.5 promises one and a half times the listen queue",
        ),
        (
            "overbook = \"1\"",
            "4:12: listener \"web\": overbook: is a string, not a number | write the number without quotes",
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
            "interfaces = []",
            "4:14: listener \"web\": interfaces: the list is empty | leave the key out to guard every interface",
        ),
        (
            "interfaces = [\"a\", \"a\"]",
            "4:14: listener \"web\": interfaces: \"a\" stands there twice | name it once",
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
fn tables_of_other_versions_are_refused() {
    let file = "[[listener]]\naddress = \"*:80\"\n[[class]]\nname = \"gold\"\n";
    assert_eq!(
        problems(file),
        ["3:3: unknown table or key \"class\" | this version knows [[listener]]"]
    );
    assert_eq!(
        problems("[[listner]]\naddress = \"*:80\"\n"),
        ["1:3: unknown table or key \"listner\" | did you mean [[listener]]?"]
    );
}

#[test]
fn a_key_outside_a_listener_is_sent_below_its_header() {
    assert_eq!(
        problems("address = \"*:80\"\n"),
        ["1:1: unknown table or key \"address\" | address belongs below a line [[listener]]"]
    );
}

#[test]
fn syntax_errors_have_their_place() {
    let found = problems("[[listener]]\naddress = \n");
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("2:"), "{found:?}");
}

#[test]
fn every_mistake_is_reported_at_once_in_the_order_of_the_lines() {
    let file = "[[listener]]\naddress = \"*:80\"\nfront = \"dpdk\"\nadmit = \"never\"\n[x]\n";
    let lines: Vec<String> = problems(file)
        .iter()
        .map(|p| p.split(':').next().unwrap().to_owned())
        .collect();
    assert_eq!(lines, ["3", "4", "5"]);
}

#[test]
fn an_empty_file_has_no_listener() {
    assert!(problems("")[0].starts_with("1:1: there is no listener in it"));
}

#[test]
fn a_listener_needs_an_address() {
    let found = problems("[[listener]]\nname = \"web\"\n");
    assert_eq!(found.len(), 1);
    assert!(
        found[0].starts_with("1:1: listener \"web\": it has no address"),
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

proptest::proptest! {
    #[test]
    fn no_text_makes_the_reader_panic(source in "(\\[\\[listener\\]\\]\n)?(\\PC|\n|=|\"){0,60}") {
        let _ = parse("f", &source);
    }
}

//! Claims about `[[quic]]`.

use std::time::Duration;

use weir_core::listener::{ListenAddress, Mode};
use weir_core::quic::{QuicListener, QuicRefuse};
use weir_core::workload::Where;

use super::problems;
use crate::{Table, parse};

#[test]
fn every_key_is_read() {
    let file = r#"
        [[quic]]
        name = "h3"
        address = "10.0.0.1:8443"
        where = "here"
        interfaces = ["eth0", "lo"]
        refuse = "drop"
        target_wait = "50ms"
        interval = "1s"
        room = 0
        floor = 0.25
        mode = "observe"
    "#;
    let expected = QuicListener {
        name: "h3".into(),
        address: ListenAddress {
            ip: "10.0.0.1".parse().ok(),
            port: 8443,
        },
        location: Where::Here,
        interfaces: vec!["eth0".into(), "lo".into()],
        refuse: QuicRefuse::Drop,
        target_wait: Duration::from_millis(50),
        interval: Duration::from_secs(1),
        room: 0.0,
        floor: 0.25,
        mode: Mode::Observe,
    };
    let config = parse("f", file).unwrap();
    assert!(config.is_for_run(), "nothing else is needed");
    assert_eq!(config.quic, [expected]);
    assert_eq!(
        QuicListener::keys().len(),
        10,
        "this test must set every key"
    );
}

#[test]
fn left_out_keys_have_the_defaults_and_are_not_odd() {
    let file = "[[quic]]\naddress = \"[::]:443\"\n[[listener]]\naddress = \"*:443\"\n";
    let config = parse("f", file).unwrap();
    let address = crate::parse_listen_address("[::]:443").unwrap();
    assert_eq!(config.quic, [QuicListener::new("quic-443", address)]);
    assert_eq!(config.warnings, []);
}

#[test]
fn mistakes_are_placed_and_hinted() {
    let keys = |line: &str| format!("[[quic]]\nname = \"h3\"\naddress = \"*:443\"\n{line}\n");
    for (line, expected) in [
        (
            "reject = \"vn\"",
            "4:1: quic \"h3\": unknown key \"reject\" | the keys are name, address, where, interfaces, refuse, target_wait, interval, room, floor, mode",
        ),
        (
            "refuse = \"rst\"",
            "4:10: quic \"h3\": refuse: \"rst\" is not known | one of vn, drop",
        ),
        (
            "room = 1.5",
            "4:8: quic \"h3\": room: 1.5 is out of range | a number from 0 to 1: 0.5 refuses while more than half of the buffer is taken",
        ),
        (
            "floor = -0.1",
            "4:9: quic \"h3\": floor: -0.1 is out of range | a number from 0 to 1: 0.125 lets in an eighth of what the server can answer",
        ),
        (
            "target_wait = \"11s\"",
            "4:15: quic \"h3\": target_wait: \"11s\" is out of range | a duration with its unit from 1ms to 10s, for example \"20ms\"",
        ),
        (
            "interfaces = [\"a\", \"b\", \"c\", \"d\", \"e\", \"f\", \"g\", \"h\", \"i\"]",
            "4:14: quic \"h3\": interfaces: 9 interfaces are too many | at most 8; leave the key out to guard every interface",
        ),
    ] {
        assert_eq!(problems(&keys(line)), [expected], "{line}");
    }
    let most = "interfaces = [\"a\", \"b\", \"c\", \"d\", \"e\", \"f\", \"g\", \"h\"]";
    assert!(parse("f", &keys(most)).is_ok());
    let found = problems("[[quic]]\nname = \"h3\"\n");
    assert_eq!(
        found,
        ["1:1: quic \"h3\": address is missing | add it: address = \"*:443\""]
    );
}

#[test]
fn two_of_one_address_are_refused_and_a_listener_may_have_it_too() {
    let quic = |name: &str, address: &str| {
        format!("[[quic]]\nname = \"{name}\"\naddress = \"{address}\"\n")
    };
    let two = |address: &str| quic("a", "*:443") + &quic("b", address);
    let found = problems(&two("0.0.0.0:443"));
    assert_eq!(
        found,
        [
            "4:1: quic \"b\": its address 0.0.0.0:443 collides with *:443 of quic \"a\" on line 1 | one [[quic]] for each \
             address and port: \"*\" covers \"0.0.0.0\" and \"[::]\""
        ]
    );
    assert!(parse("f", &two("10.0.0.1:443")).is_ok());
    let listener = "[[listener]]\nname = \"web\"\naddress = \"*:443\"\n";
    assert!(parse("f", &(quic("a", "*:443") + listener)).is_ok());
    let found = problems(&(quic("web", "*:443") + listener));
    assert_eq!(
        found,
        [
            "2:8: quic \"web\": a [[listener]] is named \"web\" too | give one of them another name: classes name both \
             alike"
        ]
    );
}

#[test]
fn a_quic_server_elsewhere_needs_a_listener_there() {
    let quic =
        |keys: &str| format!("[[quic]]\naddress = \"*:443\"\nwhere = \"container:web\"\n{keys}\n");
    let listener =
        |place: &str| format!("[[listener]]\naddress = \"*:443\"\nwhere = \"{place}\"\n");
    assert!(parse("f", &(quic("") + &listener("container:web"))).is_ok());
    let found = problems(&(quic("") + &listener("container:other")));
    assert_eq!(
        found,
        [
            "3:9: quic \"quic-443\": no [[listener]] has where = \"container:web\" and port 443 | add one: weir finds servers in \
             other network namespaces by the TCP port, and refused clients come there"
        ]
    );
    let named = quic("interfaces = [\"eth0\"]") + &listener("container:web");
    assert!(problems(&named)[0].contains("is not there yet in other network namespaces"));
}

#[test]
fn more_than_the_tables_hold_are_refused() {
    let file = |n: usize| -> String {
        (1..=n)
            .map(|port| format!("[[quic]]\naddress = \"*:{port}\"\n"))
            .collect()
    };
    assert!(parse("f", &file(QuicListener::MOST)).is_ok());
    let found = problems(&file(QuicListener::MOST + 1));
    assert!(found[0].contains("65 quics are too many"), "{found:?}");
}

#[test]
fn each_setting_that_is_hardly_meant_is_named() {
    let warnings = |line: &str| -> Vec<String> {
        let file =
            format!("[[listener]]\naddress = \"*:443\"\n[[quic]]\naddress = \"*:443\"\n{line}\n");
        let config = parse("f", &file).unwrap();
        config.warnings.into_iter().map(|one| one.text).collect()
    };
    for (line, part) in [
        ("interval = \"10ms\"", "shorter than target_wait"),
        ("target_wait = \"200ms\"", "shorter than target_wait"),
        ("floor = 1", "the wait hardly falls"),
    ] {
        let said = warnings(line);
        assert_eq!(said.len(), 1, "{line}: {said:?}");
        assert!(said[0].starts_with("quic \"quic-443\": "), "{said:?}");
        assert!(said[0].contains(part), "{line}: {said:?}");
    }
    for line in ["room = 0", "floor = 0", "room = 1\nfloor = 0.5"] {
        assert_eq!(warnings(line), Vec::<String>::new(), "{line}");
    }
}

#[test]
fn a_quic_listener_without_a_listener_of_its_port_is_named() {
    let warnings = |rest: &str| parse("f", rest).unwrap().warnings;
    let quic = "[[quic]]\naddress = \"*:443\"\n";
    let listener = |at: &str| format!("[[listener]]\naddress = \"{at}\"\n");
    let odd = warnings(&(listener("*:80") + quic));
    assert_eq!(odd.len(), 1, "{odd:?}");
    assert_eq!(
        odd[0].to_string(),
        "f:3:1: quic \"quic-443\": no [[listener]] guards TCP port 443: if a server listens there, clients that are refused \
         come to it"
    );
    assert_eq!(warnings(&(listener("10.0.0.1:443") + quic)), []);
}

//! Claims about `[[destination]]`.

use std::time::Duration;

use weir_core::timewait::{Accept, Destination, TimeWaitMode};

use super::problems;
use crate::{Table, parse};

#[test]
fn a_destination_is_read_and_two_do_not_share_a_prefix_and_a_port() {
    let file = r#"
        [[destination]]
        name = "backends"
        to = ["10.0.0.0/8", "2001:db8::1"]
        to_port = 8080
        timewait = "negotiate"
        accept = "server"
        timewait_length = "2min"
        per_socket = true
    "#;
    let expected = Destination {
        name: "backends".into(),
        to: ["10.0.0.0/8", "2001:db8::1/128"]
            .map(|prefix| prefix.parse().unwrap())
            .to_vec(),
        to_port: Some(8080),
        timewait: TimeWaitMode::Negotiate,
        accept: Accept::Server,
        timewait_length: Duration::from_secs(120),
        per_socket: true,
    };
    assert_eq!(parse("f", file).unwrap().destinations, [expected]);
    assert_eq!(Destination::keys().len(), 7, "this test must set every key");
    let two = |other: &str| format!("{file}\n[[destination]]\nname = \"other\"\n{other}\n");
    assert_eq!(
        problems(&two("to = \"10.0.0.0/8\"\nto_port = 8080")),
        [
            "11:1: destination \"other\": its address 10.0.0.0/8 port 8080 collides with 10.0.0.0/8 2001:db8::1/128 \
          port 8080 of destination \"backends\" on line 2 | one destination for each prefix and port; a longer prefix \
          may stand beside a shorter one"
        ]
    );
    for fine in ["to = \"10.0.0.0/8\"", "to = \"10.0.0.0/9\"\nto_port = 8080"] {
        assert!(parse("f", &two(fine)).is_ok(), "{fine}");
    }
    let odd = parse("f", &two("timewait_length = \"5s\""))
        .unwrap()
        .warnings;
    let text = "destination \"other\": timewait_length is unused: timewait = off makes no records";
    assert_eq!(odd[0].text, text);
    let odd = parse("f", &two("timewait = \"client-rst\"\naccept = \"client\""));
    let text = "destination \"other\": accept is unused: it belongs to timewait = negotiate";
    assert_eq!(odd.unwrap().warnings[0].text, text);
}

#[test]
fn a_destination_needs_the_address_of_the_metrics_as_a_listener_does() {
    let proxy = "[[proxy]]\nname = \"edge\"\nlisten = \"*:80\"\nmode = \"tcp\"\nbackends = [\"10.0.0.1:80\"]\n";
    let warnings = |before: &str| {
        let config = parse("f", &format!("{before}{proxy}[metrics]\n")).unwrap();
        (config.is_for_run(), config.warnings.len())
    };
    assert_eq!(warnings(""), (false, 0));
    assert_eq!(
        warnings("[[destination]]\nname = \"backends\"\n"),
        (true, 1)
    );
    assert_eq!(warnings("[[listener]]\naddress = \"*:81\"\n"), (true, 1));
}

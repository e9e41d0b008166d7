//! Classes: who is policed, by which rule, and what changes while connections come.

use std::net::{Ipv6Addr, SocketAddr};
use std::process::Output;

use nix::sys::signal::Signal;
use serde_json::Value;
use weir_kernel::Guard;

use crate::common::{Bed, PORT, Peer, Raw, Segment, Shape, accept, connect, listen, until, within};

/// In the time of a test no more than the burst comes in.
const HARDLY: &str = "rate = 0.1";

fn listener(keys: &str) -> String {
    format!("[[listener]]\nname = \"web\"\naddress = \"*:{PORT}\"\nadmit = \"queue\"\n{keys}\n")
}

fn class(name: &str, keys: &str) -> String {
    format!("[[class]]\nname = {name:?}\n{keys}\n")
}

fn classes(bed: &Bed) -> Vec<Value> {
    let status = bed.status();
    status["listeners"][0]["classes"]
        .as_array()
        .unwrap()
        .clone()
}

/// What a class has met, by verdict.
fn counted(bed: &Bed, class: &str) -> Vec<(String, u64)> {
    let classes = classes(bed);
    let class = classes.iter().find(|c| c["name"] == class);
    let class = class.unwrap_or_else(|| panic!("{classes:#?}"));
    let counters = class["counters"].as_object().unwrap();
    let counter = |(name, n): (&String, &Value)| (name.clone(), n.as_u64().unwrap());
    counters.iter().map(counter).collect()
}

fn verdicts<const N: usize>(expected: [(&str, u64); N]) -> Vec<(String, u64)> {
    expected.map(|(name, n)| (name.to_owned(), n)).to_vec()
}

fn succeeds(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_class_over_its_rate_is_dropped_or_reset_as_it_says_and_its_burst_is_exact() {
    let Some(bed) = Bed::new() else { return };
    for path in bed.paths() {
        for (word, verdict, counts) in [
            ("drop", "syn_dropped_rate", (3, 0, 2)),
            ("rst", "syn_reset_rate", (3, 2, 0)),
        ] {
            let _listener = listen(bed.server(), path.at(PORT), 64);
            let limits = format!("{HARDLY}\nburst = 3\nover_rate = {word:?}");
            let _weir = bed.run(&(listener("") + &class("all", &limits)));
            let clients = connect(path.client, path.at(PORT), 5);
            assert_eq!(clients.counts(), counts, "{word} on {}", path.name);
            let expected = verdicts([("syn_admitted", 3), (verdict, 2)]);
            assert_eq!(counted(&bed, "all"), expected, "{word} on {}", path.name);
            assert_eq!(bed.counter(0, verdict), 2);
        }
    }
}

/// Its SYN/ACK was lost, and its rate has nothing left: the first SYN has taken the token.
#[test]
fn a_client_that_repeats_its_syn_is_answered_by_the_server_which_holds_its_handshake() {
    let Some(bed) = Bed::new() else { return };
    let raw = Raw(&bed.links.wire);
    for (peer, other) in [
        (Peer::v4(0, PORT), Peer::v4(1, PORT)),
        (Peer::v6(0, PORT), Peer::v6(1, PORT)),
    ] {
        let _listener = listen(bed.server(), peer.server, 64);
        let limits = format!("{HARDLY}\nburst = 1\nover_rate = \"rst\"");
        let _weir = bed.run(&(listener("") + &class("all", &limits)));
        let seq = raw.half_open(peer);
        raw.syn(peer, 0);
        let again = raw.answer(peer);
        assert!(again.is_syn_ack(), "{again:?}");
        assert_eq!(again.header.sequence_number, seq);
        raw.syn(other, 0);
        assert!(raw.answer(other).header.rst, "others are over the rate");
        let expected = [
            ("syn_admitted", 1),
            ("syn_repeated", 1),
            ("syn_reset_rate", 1),
        ];
        assert_eq!(counted(&bed, "all"), verdicts(expected));
    }
}

#[test]
fn a_connection_is_of_the_class_whose_rule_is_the_most_specific_by_every_field() {
    let Some(bed) = Bed::new() else { return };
    let any = std::net::Ipv6Addr::UNSPECIFIED;
    let _listeners = [PORT, PORT + 1].map(|port| listen(bed.server(), (any, port).into(), 512));
    let mut config = listener("");
    config += &format!(
        "[[listener]]\nname = \"second\"\naddress = \"*:{}\"\n",
        PORT + 1
    );
    // Peer::v4(n) is 10.128.0.(1 + n), Peer::v6(n) fd66:1::1:n.
    let host = "listener = \"web\"\nfrom = [\"10.128.0.6\", \"fd66:1::1:5\"]\n";
    let to = "to = [\"10.66.0.1\", \"fd66::1\"]\n";
    let net = "from = [\"10.128.0.0/24\", \"fd66:1::/32\"]\n";
    let rules = [
        ("ten", "from = \"10.0.0.0/8\"".to_owned()),
        ("net", net.to_owned()),
        ("net-second", format!("{net}listener = \"second\"")),
        ("host", host.to_owned()),
        ("host-to", format!("{host}{to}")),
        (
            "host-ports",
            format!("{host}{to}to_port = {PORT}\nfrom_port = 41000"),
        ),
    ];
    for (name, keys) in rules {
        config += &class(name, &keys);
    }
    let _weir = bed.run(&config);
    let raw = Raw(&bed.links.wire);
    let v4 = |n, port, client_port| {
        let mut peer = Peer::v4(n, port);
        peer.client.set_port(client_port);
        peer
    };
    let v6 = |n, port, client_port| {
        let mut peer = Peer::v6(n, port);
        peer.client.set_port(client_port);
        peer
    };
    let mut seen = std::collections::BTreeMap::new();
    for (peer, class) in [
        (v4(300, PORT, 40_000), "ten"),
        (v4(7, PORT, 40_000), "net"),
        (v6(7, PORT, 40_000), "net"),
        (v4(7, PORT + 1, 40_000), "net-second"),
        (v6(7, PORT + 1, 40_000), "net-second"),
        (v4(5, PORT, 40_000), "host-to"),
        (v6(5, PORT, 40_000), "host-to"),
        (v4(5, PORT, 41_000), "host-ports"),
        (v6(5, PORT, 41_000), "host-ports"),
    ] {
        raw.syn(peer, 0);
        let count = seen.entry(class).or_insert(0);
        *count += 1;
        let expected = verdicts([("syn_admitted", *count)]);
        until(&format!("{peer:?} is of {class}"), || {
            let list = succeeds(&bed.weir("class list --json"));
            let list: Vec<Value> = serde_json::from_str(&list).unwrap();
            let row = list
                .iter()
                .find(|row| row["name"] == class)
                .unwrap()
                .clone();
            let n = row["counters"]["syn_admitted"].as_u64().unwrap_or(0);
            (n == expected[0].1).then_some(())
        });
    }
}

#[test]
fn a_priority_tag_and_ip_options_evade_no_rate() {
    for shape in [Shape::Plain, Shape::Priority, Shape::Options] {
        let Some(bed) = Bed::new() else { return };
        let any: SocketAddr = (Ipv6Addr::UNSPECIFIED, PORT).into();
        let _listener = listen(bed.server(), any, 64);
        let _weir = bed.run(&(listener("") + &class("all", &format!("{HARDLY}\nburst = 3"))));
        let raw = Raw(&bed.links.wire);
        let syn = Segment {
            syn: true,
            ..Segment::default()
        };
        let mut answered = 0;
        for number in 0..5 {
            let peers = [Peer::v4(number, PORT), Peer::v6(number as u16, PORT)];
            for peer in peers {
                raw.send(peer, shape, &syn);
                answered += raw.answers_until_now(peer).len();
            }
        }
        let counted = counted(&bed, "all");
        let let_in = if shape == Shape::Options {
            "syn_not_plain"
        } else {
            "syn_admitted"
        };
        assert_eq!(answered, 3, "{shape:?}: {counted:?}");
        let mut expected = [(let_in, 3), ("syn_dropped_rate", 7)];
        expected.sort();
        assert_eq!(counted, verdicts(expected), "{shape:?}");
    }
}

#[test]
fn one_class_changes_at_run_time_and_the_buckets_of_the_others_stay() {
    let Some(bed) = Bed::new() else { return };
    let path = bed.veth4();
    let _listener = listen(bed.server(), path.at(PORT), 64);
    let config = listener("") + &class("all", &format!("{HARDLY}\nburst = 3\nover_rate = \"rst\""));
    let _weir = bed.run(&config);
    assert_eq!(connect(path.client, path.at(PORT), 2).counts(), (2, 0, 0));
    // The client's own class, which is the more specific, for as long as it is there.
    succeeds(&bed.weir("class add veth --from 10.66.1.0/24 --rate 0.1 --burst 1 --over-rate rst"));
    assert_eq!(connect(path.client, path.at(PORT), 2).counts(), (1, 1, 0));
    succeeds(&bed.weir("class set veth --rate none"));
    assert_eq!(connect(path.client, path.at(PORT), 4).counts(), (4, 0, 0));
    succeeds(&bed.weir("class remove veth"));
    assert_eq!(connect(path.client, path.at(PORT), 2).counts(), (1, 1, 0));
    assert_eq!(
        counted(&bed, "all"),
        verdicts([("syn_admitted", 3), ("syn_reset_rate", 1)])
    );
}

#[test]
fn what_cannot_be_put_in_force_at_run_time_says_why_and_changes_nothing() {
    let Some(bed) = Bed::new() else { return };
    let config = listener("") + &class("gold", "from = \"10.1.0.0/16\"");
    let _weir = bed.run(&config);
    let before = classes(&bed);
    for (arguments, part) in [
        (
            "class add gold --from 10.2.0.0/16",
            "there is a class \"gold\" already",
        ),
        ("class add tied --to-port 80", "it ties with class \"gold\""),
        (
            "class add lost --listener wbe --from 10.2.0.1",
            "did you mean \"web\"?",
        ),
        ("class set gld --rate 5", "did you mean \"gold\"?"),
        ("class set gold --rate 0", "0 is out of range"),
        ("class remove silver", "no class is named \"silver\""),
    ] {
        let output = bed.weir(arguments);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments}: {error}");
        assert!(error.contains(part), "{arguments}: {error}");
    }
    assert_eq!(classes(&bed), before);
}

#[test]
fn a_reload_keeps_the_buckets_of_classes_that_stay_and_drops_what_was_added_at_run_time() {
    let Some(bed) = Bed::new() else { return };
    let path = bed.veth4();
    let _listener = listen(bed.server(), path.at(PORT), 64);
    let limited = class("all", &format!("{HARDLY}\nburst = 3\nover_rate = \"rst\""));
    let weir = bed.run(&(listener("") + &limited));
    assert_eq!(connect(path.client, path.at(PORT), 2).counts(), (2, 0, 0));
    let told = bed.weir("class add extra --from 192.0.2.0/24");
    let warning = String::from_utf8_lossy(&told.stderr).into_owned();
    assert!(
        warning.contains("a reload takes the classes of"),
        "{warning}"
    );
    bed.write_config(&(listener("") + &limited + &class("gold", "from = \"10.1.0.0/16\"")));
    weir.signal(Signal::SIGHUP);
    until("the new class is in force", || {
        classes(&bed)
            .iter()
            .any(|c| c["name"] == "gold")
            .then_some(())
    });
    assert!(!classes(&bed).iter().any(|c| c["name"] == "extra"));
    assert_eq!(connect(path.client, path.at(PORT), 2).counts(), (1, 1, 0));
    assert_eq!(
        counted(&bed, "all"),
        verdicts([("syn_admitted", 3), ("syn_reset_rate", 1)])
    );
}

#[test]
fn observe_counts_who_is_over_the_rate_and_lets_all_in() {
    let Some(bed) = Bed::new() else { return };
    let path = bed.veth4();
    let listening = listen(bed.server(), path.at(PORT), 64);
    let limited = class("all", &format!("{HARDLY}\nburst = 3"));
    let _weir = bed.run(&(listener("mode = \"observe\"") + &limited));
    assert_eq!(connect(path.client, path.at(PORT), 5).counts(), (5, 0, 0));
    accept(&listening, 5);
    assert_eq!(
        counted(&bed, "all"),
        verdicts([("syn_admitted", 3), ("syn_dropped_rate", 2)])
    );
}

#[test]
fn the_xdp_front_polices_and_no_token_is_taken_twice() {
    let Some(bed) = Bed::new() else { return };
    let path = bed.veth4();
    let _listener = listen(bed.server(), path.at(PORT), 64);
    within(bed.client(), || {
        // A guard without listeners passes everything; with it on the peer, answers arrive.
        let mut passes_all = Guard::load().unwrap();
        let peer = nix::net::if_::if_nametoindex("veth0").unwrap();
        passes_all.attach(peer, true).unwrap();
        let limits = format!("{HARDLY}\nburst = 4\nover_rate = \"rst\"");
        let _weir = bed.run(&(listener("front = \"xdp\"") + &class("all", &limits)));
        assert_eq!(connect(path.client, path.at(PORT), 6).counts(), (4, 2, 0));
        let expected = [
            ("refused_at_xdp", 2),
            ("syn_admitted", 4),
            ("syn_reset_rate", 2),
        ];
        assert_eq!(counted(&bed, "all"), verdicts(expected));
    });
}

//! Claims about whole files.

mod declare;

use std::time::Duration;

use super::*;
use weir_core::aqm::Discipline;
use weir_core::controller;
use weir_core::listener::Listener;
use weir_core::listener::{Admit, Establish, Front, HalfClose, MAX_LISTENERS, Mode, RejectSyn};
use weir_core::proxy::{self, Proxy};
use weir_core::shape::{Backend, Shape};
use weir_core::timewait::{Accept, Destination, Holder, ListenerTimeWait, TimeWaitMode};

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
        queue = "priority"
        ageing = "off"
        health_checks = false
        half_close = "reset"
        timewait = "negotiate"
        holder = "server"
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
        health_checks: false,
        half_close: HalfClose::Reset,
        timewait: ListenerTimeWait::Negotiate,
        holder: Holder::Server,
        reason: true,
        mode: Mode::Observe,
        front: Front::Xdp,
    };
    assert_eq!(parse("f", file).unwrap().listeners, [expected]);
    assert_eq!(Listener::keys().len(), 18, "this test must set every key");
}

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
    };
    assert_eq!(parse("f", file).unwrap().destinations, [expected]);
    assert_eq!(Destination::keys().len(), 6, "this test must set every key");
    let two = |other: &str| format!("{file}\n[[destination]]\nname = \"other\"\n{other}\n");
    assert_eq!(
        problems(&two("to = \"10.0.0.0/8\"\nto_port = 8080")),
        [
            "10:1: destination \"other\": its address 10.0.0.0/8 port 8080 collides with 10.0.0.0/8 2001:db8::1/128 \
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
fn a_shape_is_read_and_an_interface_has_one() {
    let file = r#"
        [[shape]]
        dev = "ppp0"
        rate = "2.4mbit"
        discipline = "spa"
        backend = "bpf"
    "#;
    let expected = Shape {
        dev: "ppp0".into(),
        rate_bits_per_s: 2_400_000,
        discipline: Discipline::Spa,
        backend: Backend::Bpf,
    };
    let config = parse("f", file).unwrap();
    assert!(config.is_for_run());
    assert_eq!(config.shapes, [expected]);
    assert_eq!(Shape::keys().len(), 4, "this test must set every key");
    let table = |lines: &str| problems(&format!("[[shape]]\n{lines}"));
    for (lines, expected) in [
        (
            "dev = \"a\"\nrate = \"10\"\n",
            "3:8: shape \"a\": rate: \"10\" has no unit | a number and bit, kbit, mbit or gbit, 12kbit to 100gbit: 10mbit",
        ),
        (
            "dev = \"a\"\nrate = \"1kbit\"\n",
            "3:8: shape \"a\": rate: 1kbit is out of range | a number and bit, kbit, mbit or gbit, 12kbit to 100gbit: 10mbit",
        ),
        (
            "dev = \"a\"\nrate = \"1mbit\"\ndiscipline = \"spafq\"\n",
            "4:14: shape \"a\": discipline: \"spafq\" is not known | did you mean \"spa-fq\"?",
        ),
        (
            "rate = \"1mbit\"\n",
            "1:1: shape: dev is missing | add it: dev = \"ppp0\"",
        ),
    ] {
        assert_eq!(table(lines), [expected], "{lines}");
    }
    let twice = "dev = \"a\"\nrate = \"1mbit\"\n[[shape]]\ndev = \"a\"\nrate = \"1mbit\"\n";
    assert_eq!(table(twice).len(), 1, "{:?}", table(twice));
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
fn tables_of_other_versions_are_refused() {
    let file = "[[listener]]\naddress = \"*:80\"\n[[tunnel]]\nname = \"gold\"\n";
    assert_eq!(
        problems(file),
        [
            "3:3: unknown table or key \"tunnel\" | this version knows [[listener]], [[class]], [[proxy]], [[destination]], [[shape]], [controller], [api], [metrics], [events]"
        ]
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
fn an_empty_file_has_no_table() {
    assert!(
        problems("")[0].starts_with("1:1: the file has no listener, proxy, destination or shape")
    );
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

#[test]
fn every_key_of_a_proxy_is_read() {
    let file = r#"
        [[proxy]]
        name = "edge"
        listen = "*:80"
        mode = "reverse"
        backends = ["10.0.0.5:8080", "[2001:db8::1]:8080 weight=3", "App.Internal:8080 weight=2"]
        resolve_interval = "1s"
        engine = "splice"
        threads = 3
        backlog = 128
        max_clients = 1000
        max_head = "8KiB"
        connect_timeout = "1s"
        head_timeout = "2s"
        keep_alive = "3s"
        idle_timeout = "1h"
        drain_timeout = "0s"
        cache = "256MiB"
        cache_object = "1MiB"
        finish_on_abort = "90%"
        allow_from = ["10.0.0.0/8"]
        deny_from = ["10.1.0.0/16", "10.2.2.2"]
        balance = "least"
        health_check = "http"
        health_interval = "1s"
        health_timeout = "500ms"
        health_rise = 1
        health_fall = 2
        health_path = "/health?of=all"
        health_host = "web.example:8080"
        health_status = "200"
        max_connections = 100
        max_idle = 50
        queue_limit = 10
        queue_timeout = "1s"
        abort_on_close = true
        access_log = "/var/log/weir.log"
        source = ["10.0.0.2", "10.0.0.3"]
        share_port = true
        accept_proxy = true
        send_proxy = "v2"
        forwarded = "x-forwarded-for"
        odd_field_names = "pass"
        trust = ["10.9.0.0/16"]
        client_congestion = "cubic"
        client_tcp_keepalive = "1min"
        client_user_timeout = "30s"
        client_send_buffer = "1MiB"
        client_receive_buffer = "512KiB"
        server_congestion = "bbr"
        server_tcp_keepalive = "2min"
        server_user_timeout = "20s"
        server_send_buffer = "256KiB"
        server_receive_buffer = "128KiB"
    "#;
    let forward = r#"
        [[proxy]]
        listen = "*:3128"
        mode = "forward"
        allow_to = ["127.0.0.1"]
        deny_to = ["192.0.2.0/24"]
        connect_ports = ["443", "8000-8999"]
    "#;
    let mut proxies = parse("f", &format!("{file}{forward}")).unwrap().proxies;
    let (forward, mut proxy) = (proxies.remove(1), proxies.remove(0));
    // What the two modes have each for itself.
    (proxy.allow_to, proxy.deny_to) = (forward.allow_to, forward.deny_to);
    proxy.connect_ports = forward.connect_ports;
    let default = Proxy::new("edge", proxy.listen, proxy::ProxyMode::Reverse);
    assert_eq!(proxy.backends.len(), 3);
    assert_eq!(proxy.backends[1].weight, 3);
    assert_eq!(proxy.backends[2].to_string(), "app.internal:8080 weight=2");
    assert_eq!(proxy.idle_timeout, Duration::from_secs(3600));
    for key in Proxy::keys() {
        let left = key.show(&proxy) == key.show(&default);
        let required = ["name", "listen", "mode"].contains(&key.name);
        assert!(!left || required, "this test must set {}", key.name);
    }
}

#[test]
fn a_backend_is_an_address_or_a_name_with_a_port() {
    let backends = |backend: &str| {
        let file =
            format!("[[proxy]]\nlisten = \"*:80\"\nmode = \"tcp\"\nbackends = [\"{backend}\"]\n");
        let config = parse("f", &file).ok()?;
        Some(config.proxies[0].backends[0].to_string())
    };
    let long = "a".repeat(63);
    for good in [
        "10.0.0.5:80",
        "[2001:db8::1]:80 weight=3",
        "localhost:8080",
        "app.internal:80",
        "app.internal.:80",
        "my_app-1:80",
        "4ever.example:80",
        "xn--bcher-kva.example:80 weight=2",
        &format!("{long}.example:80"),
    ] {
        assert_eq!(backends(good).as_deref(), Some(good));
    }
    for bad in [
        "app",
        "app:",
        "app:0",
        "app:65536",
        "app:http",
        ":80",
        ".:80",
        "*:80",
        "0.0.0.0:80",
        "[::]:80",
        "::1:80",
        "[app]:80",
        "http://app:80",
        "app/x:80",
        "a..b:80",
        "-app:80",
        "app-:80",
        "büche.example:80",
        "10.0.0:80",
        "10.0.0.5.6:80",
        "1:80",
        &format!("{long}a.example:80"),
        &format!("{}:80", [&long[..]; 4].join(".")),
    ] {
        assert_eq!(backends(bad), None, "{bad}");
    }
}

#[test]
fn a_backend_that_stands_twice_and_an_interval_without_a_name_are_warned_of() {
    let texts = |keys: &str| -> Vec<String> {
        let file =
            format!("[[proxy]]\nname = \"edge\"\nlisten = \"*:80\"\nmode = \"tcp\"\n{keys}\n");
        let config = parse("f", &file).unwrap();
        config.warnings.iter().map(ToString::to_string).collect()
    };
    let once = "resolve_interval = \"1s\"\nbackends = [\"app:80\", \"app:81\", \"10.0.0.5:80\"]";
    assert_eq!(texts(once), [""; 0]);
    let twice = texts("backends = [\"app:80\", \"10.0.0.5:80\", \"App:80 weight=2\"]");
    assert_eq!(twice.len(), 1, "{twice:?}");
    assert!(
        twice[0].contains("backends has app:80 more than once"),
        "{twice:?}"
    );
    let no_name = texts("resolve_interval = \"1s\"\nbackends = [\"10.0.0.5:80\"]");
    assert_eq!(no_name.len(), 1, "{no_name:?}");
    assert!(no_name[0].contains("no backend is a name"), "{no_name:?}");
}

#[test]
fn keys_of_other_modes_and_other_checks_are_refused_or_odd() {
    let reverse = "mode = \"reverse\"\nbackends = [\"10.0.0.5:80\"]";
    let file = |keys: &str| format!("[[proxy]]\nlisten = \"*:80\"\n{keys}\n");
    for (keys, part) in [
        (
            "mode = \"forward\"\nhealth_check = \"tcp\"",
            "does not have backends to check",
        ),
        (
            "allow_to = [\"127.0.0.1\"]",
            "connects to its backends only",
        ),
        ("connect_ports = [\"563\"]", "connects to its backends only"),
        (
            "mode = \"forward\"\nconnect_ports = [\"0\"]",
            "neither a port nor",
        ),
        (
            "mode = \"tcp\"\nbackends = [\"10.0.0.5:80 weight=0\"]",
            "is not a weight",
        ),
        (
            "mode = \"tcp\"\nbackends = [\"10.0.0.5:80 weight=257\"]",
            "is not a weight",
        ),
        (
            "mode = \"tcp\"\nbackends = [\"10.0.0.5:80 3\"]",
            "is not a weight",
        ),
        ("health_path = \"health\"", "is not a path"),
        ("health_path = \"/a b\"", "is not a path"),
        ("health_host = \"a/b\"", "is not a host"),
        ("health_status = \"2xx\"", "neither a status"),
        ("health_rise = 0", "out of range"),
    ] {
        let keys = match keys.starts_with("mode") {
            true => keys.to_owned(),
            false => format!("{reverse}\n{keys}"),
        };
        let found = problems(&file(&keys));
        assert!(found.len() == 1 && found[0].contains(part), "{found:?}");
    }
    for (keys, odd) in [
        ("health_interval = \"1s\"", 1),
        ("health_check = \"tcp\"\nhealth_interval = \"1s\"", 0),
        ("health_check = \"tcp\"\nhealth_path = \"/\"", 1),
        ("health_check = \"http\"\nhealth_path = \"/\"", 0),
        ("odd_field_names = \"drop\"", 0),
    ] {
        let config = parse("f", &file(&format!("{reverse}\n{keys}"))).unwrap();
        assert_eq!(config.warnings.len(), odd, "{keys}: {:?}", config.warnings);
    }
    let tcp = reverse.replace("reverse", "tcp");
    let config = parse("f", &file(&format!("{tcp}\nodd_field_names = \"drop\""))).unwrap();
    assert_eq!(config.warnings.len(), 1, "{:?}", config.warnings);
    for (mode, odd) in [("mode = \"forward\"", 1), (reverse, 0)] {
        let keys = format!("{mode}\nallow_from = [\"::/0\"]");
        let config = parse("f", &file(&keys)).unwrap();
        assert_eq!(config.warnings.len(), odd, "{keys}: {:?}", config.warnings);
    }
}

#[test]
fn left_out_keys_of_a_proxy_have_their_defaults() {
    let file = "[[proxy]]\nlisten = \"10.0.0.1:3128\"\nmode = \"forward\"\n";
    let listen = "10.0.0.1:3128".parse().unwrap();
    let expected = Proxy::new("proxy-3128", listen, proxy::ProxyMode::Forward);
    assert_eq!(parse("f", file).unwrap().proxies, [expected]);
}

#[test]
fn classes_belong_to_the_proxy_that_they_name_or_to_all() {
    let file = r#"
        [[proxy]]
        name = "edge"
        listen = "10.0.0.1:80"
        mode = "forward"
        [[proxy]]
        name = "inner"
        listen = "10.0.0.1:81"
        mode = "forward"
        [[class]]
        name = "gold"
        proxy = "edge"
        from = "10.1.0.0/16"
        priority = 1
        [[class]]
        name = "silver"
        from = "10.2.0.0/16"
        priority = 2
    "#;
    let config = parse("f", file).unwrap();
    let names = |index: usize| -> Vec<&str> {
        let classes = config.proxies[index].classes.iter();
        classes.map(|class| class.name.as_str()).collect()
    };
    assert_eq!(names(0), ["gold", "silver"]);
    assert_eq!(names(1), ["silver"]);
    let problems = parse("f", &file.replace("proxy = \"edge\"", "proxy = \"egde\"")).unwrap_err();
    assert_eq!(problems.0[0].cause, "no proxy is named \"egde\"");
    assert_eq!(problems.0[0].hint, "did you mean \"edge\"?");
}

#[test]
fn mistakes_in_a_proxy_are_placed_and_hinted() {
    let file = |line: &str| {
        format!("[[proxy]]\nname = \"edge\"\nlisten = \"*:80\"\nmode = \"forward\"\n{line}\n")
    };
    for (line, expected) in [
        (
            "idle_timout = \"1s\"",
            "5:1: proxy \"edge\": unknown key \"idle_timout\" | did you mean idle_timeout?",
        ),
        (
            "backends = [\"10.0.0.1:80\"]",
            "5:12: proxy \"edge\": backends: mode forward connects where the client says | remove it, or use mode reverse",
        ),
        (
            "send_proxy = \"v1\"",
            "5:14: proxy \"edge\": send_proxy: mode forward connects to servers that do not expect a PROXY header | remove it",
        ),
        (
            "trust = [\"10.0.0.1/8\"]",
            "5:9: proxy \"edge\": trust: \"10.0.0.1/8\" has bits behind its prefix | did you mean \"10.0.0.0/8\"?",
        ),
        (
            "server_tcp_keepalive = \"10ms\"",
            "5:24: proxy \"edge\": server_tcp_keepalive: \"10ms\" is out of range | a duration with its unit from 1s to 9h, for example \"20s\", or \"system\"",
        ),
        (
            "backends = [\"localhost\"]",
            "5:12: proxy \"edge\": backends: \"localhost\" is not an address or a name with a port | write \"10.0.0.1:80\", \"[2001:db8::1]:80\" or a name, as \"app.internal:80\"",
        ),
        (
            "backends = [\"10.0.0.256:80\"]",
            "5:12: proxy \"edge\": backends: \"10.0.0.256\" is neither an IP address nor a name | an IPv4 address has four numbers from 0 to 255",
        ),
        (
            "threads = 1.5",
            "5:11: proxy \"edge\": threads: 1.5 is out of range | a whole number from 0 to 1024",
        ),
        (
            "max_head = 8192",
            "5:12: proxy \"edge\": max_head: is a number, not a size | a size with its unit from 1KiB to 60KiB, for example \"1KiB\"",
        ),
        (
            "keep_alive = \"25h\"",
            "5:14: proxy \"edge\": keep_alive: \"25h\" is out of range | a duration with its unit from 1ms to 24h, for example \"20s\"",
        ),
    ] {
        assert_eq!(problems(&file(line)), [expected], "{line}");
    }
}

#[test]
fn a_proxy_needs_to_know_where_it_listens_what_it_does_and_to_whom_it_goes() {
    assert_eq!(
        problems("[[proxy]]\nlisten = \"*:80\"\n"),
        ["1:1: proxy \"*:80\": mode is missing | add it: mode = \"reverse\""]
    );
    assert_eq!(
        problems("[[proxy]]\nname = \"db\"\nlisten = \"*:80\"\nmode = \"tcp\"\n"),
        [
            "1:1: proxy \"db\": backends: mode tcp needs a server to connect to | name a server, for example 10.0.0.5:80"
        ]
    );
}

#[test]
fn two_proxies_of_one_name_or_address_are_refused_and_a_listener_in_front_is_not() {
    let proxy = |listen: &str| format!("[[proxy]]\nlisten = \"{listen}\"\nmode = \"forward\"\n");
    let found = problems(&(proxy("*:80") + &proxy("0.0.0.0:80")));
    assert!(
        found[0].contains("proxy \"proxy-80\": the proxy on line 1 has the same name"),
        "{found:?}"
    );
    assert!(
        found[1].contains("0.0.0.0:80 collides with [::]:80"),
        "{found:?}"
    );
    let guarded = "[[listener]]\naddress = \"*:80\"\n".to_owned() + &proxy("*:80");
    assert_eq!(parse("f", &guarded).unwrap().proxies.len(), 1);
}

proptest::proptest! {
    #[test]
    fn no_text_makes_the_reader_panic(source in "(\\[\\[(listener|proxy)\\]\\]\n)?(\\PC|\n|=|\"){0,60}") {
        let _ = parse("f", &source);
    }
}

const WEB: &str = "[[listener]]\naddress = \"*:80\"\n";

#[test]
fn the_controller_and_the_api_are_read_once_or_not_at_all() {
    let none = parse("f", WEB).unwrap();
    assert!(none.controller.is_none() && none.api.is_none());
    let file = format!(
        "{WEB}[controller]\ntarget_wait = \"30ms\"\nmax_cpu = 0.9\ninterval = \"50ms\"\nsamples = 9\n\
         mode = \"observe\"\n[api]\nsocket = \"/run/a.sock\"\npermissions = \"0660\"\ngroup = \"www-data\"\n"
    );
    let config = parse("f", &file).unwrap();
    let settings = weir_core::controller::Settings {
        target_wait: Some(Duration::from_millis(30)),
        max_cpu: Some(0.9),
        interval: Duration::from_millis(50),
        samples: 9,
        mode: Mode::Observe,
    };
    assert_eq!(config.controller, Some(settings));
    let api = ApiSettings {
        socket: Some("/run/a.sock".into()),
        permissions: 0o660,
        group: Some("www-data".into()),
    };
    assert_eq!(config.api, Some(api));
    assert_eq!(
        (
            controller::Settings::keys().len(),
            ApiSettings::keys().len()
        ),
        (5, 3),
        "this test must set every key"
    );
}

#[test]
fn what_is_wrong_with_the_controller_and_the_api_is_said_where_it_stands() {
    for (tables, expected) in [
        (
            "[controller]",
            "3:1: controller: target_wait: the controller needs an objective | add target_wait = \"20ms\", or max_cpu = 0.9, or both",
        ),
        (
            "[[controller]]\nmax_cpu = 0.5",
            "3:3: controller: is a list of tables | write [controller] once",
        ),
        (
            "[controller]\nmax_cpu = 1.5",
            "4:11: controller: max_cpu: 1.5 is out of range | a number from 0.05 to 1, or \"none\"",
        ),
        (
            "[controller]\ntarget_wait = \"20ms\"\ninterval = \"1ms\"",
            "5:12: controller: interval: \"1ms\" is out of range | a duration with its unit from 20ms to 10s, for example \"100ms\"",
        ),
        (
            "[controller]\nmax_cpu = 0.5\ntarget_wat = \"20ms\"",
            "5:1: controller: unknown key \"target_wat\" | did you mean target_wait?",
        ),
        (
            "[api]\nsocket = \"api.sock\"",
            "4:10: api: socket: \"api.sock\" is not the path of a socket | write an absolute path of at most 107 bytes: \"/run/weir/api.sock\", or \"none\"",
        ),
        (
            "[api]\npermissions = 660",
            "4:15: api: permissions: is a number, not a string | four octal digits in quotes: \"0660\" lets the group ask too",
        ),
        (
            "[api]\npermissions = \"0990\"",
            "4:15: api: permissions: \"0990\" are not permissions | four octal digits in quotes: \"0660\" lets the group ask too",
        ),
    ] {
        let file = format!("{WEB}{tables}\n");
        let found = problems(&file);
        assert_eq!(
            found.last().map(String::as_str),
            Some(expected),
            "{tables}: {found:?}"
        );
    }
}

#[test]
fn a_group_that_may_not_ask_is_odd() {
    let warnings = |permissions: &str| {
        let file = format!("{WEB}[api]\ngroup = \"www-data\"\npermissions = \"{permissions}\"\n");
        parse("f", &file).unwrap().warnings.len()
    };
    assert_eq!((warnings("0600"), warnings("0660")), (1, 0));
}

#[test]
fn events_have_a_file_and_a_bound() {
    let read = |keys: &str| parse("f", &format!("{WEB}[events]\n{keys}\n"));
    let events = read("file = \"/var/log/weir/events.jsonl\"\nrefusals = 0")
        .unwrap()
        .events;
    let expected = EventsSettings {
        file: Some("/var/log/weir/events.jsonl".into()),
        refusals: 0,
    };
    assert_eq!(events, Some(expected));
    assert_eq!(
        EventsSettings::keys().len(),
        2,
        "this test must set every key"
    );
    for wrong in [
        "file = \"events.jsonl\"",
        "file = \"\"",
        "refusals = 1001",
        "refusals = -1",
    ] {
        assert!(read(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn metrics_off_loopback_are_odd_and_so_is_one_port_for_two_processes() {
    let proxy = "[[proxy]]\nlisten = \"*:3128\"\nmode = \"forward\"\n";
    let read = |file: &str| parse("f", file).unwrap();
    let warnings = |metrics: &str| read(&format!("{WEB}[metrics]\n{metrics}\n")).warnings.len();
    assert_eq!(warnings("listen = \"127.0.0.1:9464\""), 0);
    assert_eq!(warnings("listen = \"[::1]:9464\""), 0);
    assert_eq!(warnings("listen = \"*:9464\""), 1);
    assert_eq!(warnings("proxy_listen = \"10.0.0.1:9465\""), 1);
    assert!(read(WEB).metrics.is_none());

    let both = read(&format!("{WEB}{proxy}[metrics]\n"));
    assert_eq!(both.warnings.len(), 1, "{:?}", both.warnings);
    let metrics = both.metrics.unwrap();
    assert_eq!(metrics, MetricsSettings::default());
    assert_eq!(metrics.of_proxies(true), None);
    assert_eq!(metrics.of_proxies(false), Some(metrics.listen));

    let apart = read(&format!(
        "{WEB}{proxy}[metrics]\nproxy_listen = \"127.0.0.1:9465\"\n"
    ));
    assert!(apart.warnings.is_empty(), "{:?}", apart.warnings);
    let metrics = apart.metrics.unwrap();
    assert_eq!(metrics.of_proxies(true), metrics.proxy_listen);
    assert!(metrics.proxy_listen.is_some());
    assert_eq!(
        (MetricsSettings::keys().len(), problems(&format!("{WEB}[metrics]\nproxy_listen = \"127.0.0.1:9464\"\n"))),
        (2, vec!["4:16: metrics: proxy_listen: the guard listens at this address already | give the guard and the proxies a port each: proxy_listen = \"127.0.0.1:9465\"".to_owned()])
    );
}

fn as_given(setting: Setting) -> Given {
    match setting {
        Setting::Text(text) => Given::Text(text),
        Setting::Whole(number) => Given::Number(number as f64),
        Setting::Number(number) => Given::Number(number),
        Setting::Flag(on) => Given::Flag(on),
        Setting::List(list) => Given::List(list),
        Setting::None => Given::Text("none".into()),
    }
}

fn keys_read_back_what_they_show<T: Table + PartialEq + std::fmt::Debug>() {
    let example = T::example();
    for key in T::keys() {
        let mut read = example.clone();
        let shown = key.show(&example);
        if shown == Setting::List(Vec::new()) && !key.form.may_be_none() && key.empty == "all" {
            continue; // A list that must not be empty where it is given.
        }
        assert_eq!(key.set(&mut read, &as_given(shown)), Ok(()), "{}", key.name);
        assert_eq!(read, example, "{}", key.name);
    }
}

#[test]
fn the_values_of_every_key_contain_its_default_and_are_read_back_as_they_are_shown() {
    keys_read_back_what_they_show::<Listener>();
    keys_read_back_what_they_show::<Proxy>();
    keys_read_back_what_they_show::<weir_core::class::Class>();
    keys_read_back_what_they_show::<controller::Settings>();
    keys_read_back_what_they_show::<ApiSettings>();
    keys_read_back_what_they_show::<MetricsSettings>();
}

#[test]
fn the_texts_of_keys_are_one_line_without_a_full_stop() {
    for key in tables().flat_map(|table| &table.keys) {
        let text = key.text;
        let is_line = !text.is_empty() && !text.ends_with('.') && !text.contains('\n');
        assert!(
            is_line && !text.contains("Left out"),
            "{}: {text}",
            key.name
        );
    }
}

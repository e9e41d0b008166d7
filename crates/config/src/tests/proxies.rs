//! Claims about `[[proxy]]` and the classes of proxies.

use std::time::Duration;

use weir_core::proxy::{self, Proxy};

use super::problems;
use crate::{Table, parse};

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
        accept_client_close = "ask"
        send_client_close = "asked"
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
        ("accept_client_close = \"ask\"", 0),
        ("send_client_close = \"asked\"", 0),
        ("send_client_close = \"always\"", 1),
    ] {
        let config = parse("f", &file(&format!("{reverse}\n{keys}"))).unwrap();
        assert_eq!(config.warnings.len(), odd, "{keys}: {:?}", config.warnings);
    }
    let tcp = reverse.replace("reverse", "tcp");
    for key in [
        "odd_field_names = \"drop\"",
        "accept_client_close = \"on\"",
        "send_client_close = \"always\"",
    ] {
        let config = parse("f", &file(&format!("{tcp}\n{key}"))).unwrap();
        assert_eq!(config.warnings.len(), 1, "{:?}", config.warnings);
    }
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

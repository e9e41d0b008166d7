//! What a reload changes, and what it leaves alone.

use std::net::TcpStream;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::bed::{Bed, Load, Running, ask, count, echo, stderr};
use crate::names::{said_before, start_logged};

#[test]
fn a_reload_changes_where_new_connections_go_and_leaves_those_that_stand() {
    let bed = Bed::new("reload");
    bed.configure(echo(b'a'), "");
    let mut proxy = bed.start("");
    let mut tunnel = proxy.connect();
    assert_eq!(ask(&mut tunnel).unwrap(), b'a');
    bed.configure(echo(b'b'), "idle_timeout = \"20s\"");
    let output = bed.weir("reload");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(output.stdout, b"1 proxy in force\n");
    assert_eq!(ask(&mut proxy.connect()).unwrap(), b'b');
    assert_eq!(ask(&mut tunnel).unwrap(), b'a');
    let status = bed.status();
    assert_eq!(status["proxies"][0]["idle_timeout"], "20s");
    assert_eq!(status["proxies"][0]["counters"]["clients_accepted"], 2);
    drop(tunnel);
    proxy.signal(Signal::SIGTERM);
    let (said, well) = proxy.end();
    assert!(well && count(&said, "clients_accepted") == 2, "{said}");
}

#[test]
fn a_proxy_shows_for_how_long_its_reload_is_on_trial() {
    let bed = Bed::new("reload-trial");
    bed.configure(echo(b'a'), "");
    let (proxy, mut log) = start_logged(&bed);
    let unconfirmed_s = || bed.status()["proxies"][0]["unconfirmed_s"].clone();
    assert!(unconfirmed_s().is_null());
    bed.configure(echo(b'b'), "");
    assert!(bed.weir("reload --confirm 1h").status.success());
    assert!(unconfirmed_s().as_u64().unwrap() > 3500);
    said_before(
        &mut log,
        "WARN the reload is on trial: what was in force before comes back in 1 h,",
    );
    let events = String::from_utf8(bed.weir("events --kind reload").stdout).unwrap();
    assert!(
        events.contains("weir.toml is in force, on trial: "),
        "{events}"
    );
    let text = String::from_utf8(bed.weir("status").stdout).unwrap();
    assert!(
        text.contains("the config file before is in force again"),
        "{text}"
    );
    assert!(bed.weir("reload").status.success());
    said_before(&mut log, "INFO the reload is confirmed");
    assert!(unconfirmed_s().is_null());
    assert_eq!(ask(&mut proxy.connect()).unwrap(), b'b');
}

#[test]
fn a_reload_of_a_named_process_leaves_the_others_as_they_are() {
    let bed = Bed::new("named");
    let write = |file: &str, name: &str, keys: &str| {
        let text = format!(
            "[[proxy]]\nname = \"{name}\"\nlisten = \"127.0.0.1:0\"\nmode = \"forward\"\n{keys}\n"
        );
        std::fs::write(bed.path.join(file), text).unwrap();
    };
    let start = |file: &str| Bed::started(bed.command(&format!("proxy --config {file}")));
    write("one.toml", "one", "");
    write("two.toml", "two", "");
    let (one, two) = (start("one.toml"), start("two.toml"));
    let pid = two.child.id().to_string();
    let [file_of_one, file] =
        ["one.toml", "two.toml"].map(|file| bed.path.join(file).display().to_string());
    let max_clients = |name: &str| {
        let status = bed.status();
        let proxies = status["proxies"].as_array().unwrap();
        let named = proxies.iter().find(|proxy| proxy["name"] == name);
        named.unwrap()["max_clients"].as_u64().unwrap()
    };
    let before = max_clients("one");
    write("one.toml", "one", "max_clients = 1");
    for (limit, by) in (2..).zip(["two", pid.as_str(), file.as_str(), "two.toml two"]) {
        write("two.toml", "two", &format!("max_clients = {limit}"));
        let output = bed.weir(&format!("reload {by}"));
        assert_eq!(output.stdout, b"1 proxy in force\n", "{by}: {output:?}");
        assert_eq!(max_clients("two"), limit, "{by}");
    }
    write("two.toml", "two", "max_clients = 7");
    let output = bed.weir("reload two three");
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("\"three\""), "{output:?}");
    assert_eq!([max_clients("one"), max_clients("two")], [before, 5]);
    // All of them, one of which cannot.
    write("two.toml", "two", "max_clients = \"none\"");
    let output = bed.weir("reload --json");
    assert_eq!(output.status.code(), Some(2));
    let reloads: Value = serde_json::from_slice(&output.stdout).unwrap();
    let of = |process: &Running| {
        let all = reloads.as_array().unwrap().iter();
        let pid = process.child.id();
        all.clone().find(|reload| reload["pid"] == pid).unwrap()
    };
    assert_eq!(of(&one)["proxies"], 1);
    assert_eq!(of(&one)["config"], file_of_one);
    assert_eq!(of(&one)["errors"], serde_json::json!([]));
    assert_eq!(of(&two)["proxies"], Value::Null);
    assert!(
        of(&two)["errors"][0]["message"]
            .as_str()
            .unwrap()
            .contains("max_clients")
    );
    assert_eq!([max_clients("one"), max_clients("two")], [1, 5]);
    let said = bed.weir("reload one two").stdout;
    let expected = format!("{file_of_one} (pid {}): 1 proxy in force\n", one.child.id());
    assert_eq!(String::from_utf8(said).unwrap(), expected);
}

#[test]
fn a_proxy_started_with_flags_fails_a_reload_of_itself_only() {
    let bed = Bed::new("flags");
    let backend = echo(b'a');
    let flags = format!("proxy --listen 127.0.0.1:0 --mode tcp --backend {backend}");
    let without_file = Bed::started(bed.command(&flags));
    let alone = bed.weir("reload");
    assert_eq!(alone.status.code(), Some(1), "{alone:?}");
    bed.configure(backend, "");
    let _with_file = bed.start("");
    let all = bed.weir("reload");
    assert!(all.status.success(), "{all:?}");
    assert!(
        stderr(&all).contains("warning: process") && stderr(&all).contains("no config file"),
        "{all:?}"
    );
    let named = bed.weir(&format!("reload {}", without_file.child.id()));
    assert!(!named.status.success(), "{named:?}");
}

#[test]
fn a_hangup_reloads() {
    let bed = Bed::new("hangup");
    bed.configure(echo(b'a'), "");
    let proxy = bed.start("");
    bed.configure(echo(b'b'), "max_clients = 7");
    proxy.signal(Signal::SIGHUP);
    bed.until(|status| status["proxies"][0]["max_clients"] == 7);
    assert_eq!(ask(&mut proxy.connect()).unwrap(), b'b');
}

#[test]
fn a_bad_file_leaves_the_running_proxies_in_force() {
    let bed = Bed::new("bad");
    bed.configure(echo(b'a'), "");
    let proxy = bed.start("");
    let mut tunnel = proxy.connect();
    assert_eq!(ask(&mut tunnel).unwrap(), b'a');
    for (keys, code, cause) in [
        ("idle_timeout = 3", 2, "is a number, not a duration"),
        (
            "[[proxy]]\nlisten = \"192.0.2.1:1\"\nmode = \"forward\"",
            1,
            "cannot listen on 192.0.2.1:1",
        ),
    ] {
        bed.configure(echo(b'b'), keys);
        let output = bed.weir("reload");
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert!(stderr(&output).contains(cause), "{output:?}");
        assert_eq!(ask(&mut proxy.connect()).unwrap(), b'a', "{keys}");
        assert_eq!(ask(&mut tunnel).unwrap(), b'a', "{keys}");
    }
}

#[test]
fn a_proxy_that_the_file_has_no_more_is_drained_and_a_new_one_started() {
    let bed = Bed::new("swap");
    bed.configure(echo(b'a'), "");
    let proxy = bed.start("");
    let mut tunnel = proxy.connect();
    assert_eq!(ask(&mut tunnel).unwrap(), b'a');
    let text = format!(
        "[[proxy]]\nname = \"other\"\nlisten = \"127.0.0.2:0\"\nmode = \"tcp\"\nbackends = [\"{}\"]\n",
        echo(b'b')
    );
    bed.write_config(&text);
    assert!(bed.weir("reload").status.success());
    let named = |status: &Value, name: &str| {
        let proxies = status["proxies"].as_array().unwrap();
        proxies.iter().find(|proxy| proxy["name"] == name).cloned()
    };
    let status = bed.status();
    assert_eq!(named(&status, "edge").unwrap()["accepting"], false);
    let address = named(&status, "other").unwrap()["address"].clone();
    let mut client = TcpStream::connect(address.as_str().unwrap()).unwrap();
    assert_eq!(ask(&mut client).unwrap(), b'b');
    assert_eq!(ask(&mut tunnel).unwrap(), b'a');
    drop(tunnel);
    bed.until(|status| named(status, "edge").is_none());
    assert!(TcpStream::connect(proxy.address).is_err());
}

#[test]
fn reloads_under_load_refuse_and_reset_no_connection() {
    let bed = Bed::new("reload-load");
    let backend = echo(b'a');
    bed.configure(backend, "threads = 2");
    let proxy = bed.start("");
    let load = Load::start(proxy.address);
    for seconds in 1..10 {
        load.serve(20);
        bed.configure(
            backend,
            &format!("threads = 2\nhead_timeout = \"{seconds}s\""),
        );
        assert!(bed.weir("reload").status.success());
    }
    load.serve(20);
    let errors = load.errors();
    assert!(errors.is_empty(), "{errors:?}");
}

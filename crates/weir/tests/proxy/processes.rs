//! Upgrades, kills, and several processes on one machine.

use std::net::{SocketAddr, TcpListener, TcpStream};

use crate::bed::{Bed, Load, ask, echo, stderr};

#[test]
fn an_upgrade_under_load_refuses_and_resets_no_connection() {
    let bed = Bed::new("upgrade");
    bed.configure(echo(b'a'), "threads = 2");
    let mut old = bed.start("");
    let mut tunnel = old.connect();
    assert_eq!(ask(&mut tunnel).unwrap(), b'a');
    let load = Load::start(old.address);
    let mut olds = Vec::new();
    for _ in 0..5 {
        load.serve(50);
        let new = bed.start("--take-over");
        assert_eq!(new.address, old.address);
        olds.push(std::mem::replace(&mut old, new));
    }
    load.serve(50);
    let errors = load.errors();
    assert!(errors.is_empty(), "{errors:?}");
    // The oldest has a client still.
    assert_eq!(ask(&mut tunnel).unwrap(), b'a');
    drop(tunnel);
    for mut old in olds {
        let (said, well) = old.end();
        assert!(well, "{said}");
    }
    assert_eq!(bed.status()["proxies"].as_array().unwrap().len(), 1);
    assert_eq!(ask(&mut old.connect()).unwrap(), b'a');
}

#[test]
fn a_successor_that_cannot_start_changes_nothing() {
    let bed = Bed::new("failed-upgrade");
    bed.configure(echo(b'a'), "");
    let old = bed.start("");
    bed.configure(
        echo(b'b'),
        "[[proxy]]\nlisten = \"192.0.2.1:1\"\nmode = \"forward\"",
    );
    let output = bed.weir("proxy --config weir.toml --take-over");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let letters: Vec<u8> = (0..20).map(|_| ask(&mut old.connect()).unwrap()).collect();
    assert!(letters.iter().all(|letter| *letter == b'a'), "{letters:?}");
    assert_eq!(bed.status()["proxies"][0]["pid"], old.child.id());
}

#[test]
fn after_a_kill_status_and_reload_pass_the_dead_process_over() {
    let bed = Bed::new("killed");
    bed.configure(echo(b'a'), "");
    drop(bed.start(""));
    assert_eq!(bed.status()["proxies"], serde_json::json!([]));
    assert!(stderr(&bed.weir("reload")).contains("no weir is running"));
    let proxy = bed.start("--take-over");
    assert_eq!(ask(&mut proxy.connect()).unwrap(), b'a');
}

#[test]
fn a_second_process_on_the_same_address_is_refused_unless_it_takes_over() {
    let bed = Bed::new("second");
    bed.configure(echo(b'a'), "threads = 2");
    let first = bed.start("");
    let listen = |backend: SocketAddr| {
        format!(
            "proxy --listen {} --mode tcp --threads 2 --backend {backend}",
            first.address
        )
    };
    let second = bed.weir(&listen(echo(b'b')));
    assert_eq!(second.status.code(), Some(1), "{second:?}");
    let said = stderr(&second);
    assert!(
        said.contains("Address already in use") && said.contains("--take-over"),
        "{said}"
    );
    for _ in 0..16 {
        assert_eq!(ask(&mut first.connect()).unwrap(), b'a');
    }
}

#[test]
fn a_second_process_that_shares_the_port_has_its_part_of_the_clients() {
    let bed = Bed::new("share");
    bed.configure(echo(b'a'), "");
    let first = bed.start("");
    let other = Bed::new("share-too");
    other.write_config(&format!(
        "[[proxy]]\nlisten = \"{}\"\nmode = \"tcp\"\nshare_port = true\nbackends = [\"{}\"]\n",
        first.address,
        echo(b'b')
    ));
    let _second = other.start("");
    let asked = |_| ask(&mut first.connect()).unwrap();
    let letters: Vec<u8> = (0..64).map(asked).collect();
    assert!(
        letters.contains(&b'a') && letters.contains(&b'b'),
        "{letters:?}"
    );
}

#[test]
fn one_process_listens_on_one_address_and_on_all_of_the_same_port() {
    let bed = Bed::new("overlap");
    // Free on all addresses.
    let port = TcpListener::bind("0.0.0.0:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let (narrow, wide) = (echo(b'n'), echo(b'w'));
    let table = |name, ip, backend| {
        format!(
            "[[proxy]]\nname = \"{name}\"\nlisten = \"{ip}:{port}\"\nmode = \"tcp\"\nbackends = [\"{backend}\"]\n"
        )
    };
    bed.write_config(&(table("narrow", "127.0.0.1", narrow) + &table("wide", "0.0.0.0", wide)));
    let _running = bed.start("");
    bed.until(|status| {
        status["proxies"]
            .as_array()
            .is_some_and(|all| all.len() == 2)
    });
    for (ip, letter) in [("127.0.0.1", b'n'), ("127.0.0.2", b'w')] {
        let mut client = TcpStream::connect((ip, port)).unwrap();
        assert_eq!(ask(&mut client).unwrap(), letter);
    }
}

#[test]
fn a_start_removes_the_sockets_of_proxies_that_were_killed_and_no_others() {
    let bed = Bed::new("killed");
    let sockets = || {
        let entries = std::fs::read_dir(&bed.path).unwrap().flatten();
        let names = entries.map(|entry| entry.file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| name.ends_with(".sock")).collect();
        names.sort();
        names
    };
    bed.configure(echo(b'a'), "");
    let living = bed.start("");
    bed.until(|status| {
        status["proxies"]
            .as_array()
            .is_some_and(|all| all.len() == 1)
    });
    let kept = sockets();
    let mut killed = bed.start("");
    bed.until(|status| {
        status["proxies"]
            .as_array()
            .is_some_and(|all| all.len() == 2)
    });
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    // One of another namespace, whose process is gone too, and one that is no proxy's.
    let other = format!("proxy-1-{}.sock", killed.child.id());
    for name in [other.as_str(), "weir-1.sock"] {
        drop(std::os::unix::net::UnixListener::bind(bed.path.join(name)).unwrap());
    }
    assert_eq!(sockets().len(), 4);
    let next = bed.start("");
    bed.until(|status| {
        status["proxies"]
            .as_array()
            .is_some_and(|all| all.len() == 2)
    });
    let left = sockets();
    assert!(kept.iter().all(|name| left.contains(name)), "{left:?}");
    assert!(
        left.contains(&"weir-1.sock".to_owned()) && left.len() == 3,
        "{left:?}"
    );
    drop((living, next));
}

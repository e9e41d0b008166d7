//! `weir protect`: several ports, all of them, and what it warns of.

use super::*;

#[test]
fn all_guards_every_listener_and_those_that_come_later() {
    let Some(bed) = Bed::new("all") else {
        return;
    };
    let none = bed.weir("protect all");
    assert_eq!(none.status.code(), Some(1));
    assert!(stderr(&none).contains("no TCP server listens"), "{none:?}");
    let _server = idle_server(PORT);
    let protect = Bed::until_protected(bed.command("protect all"));
    let first = "weir: protecting all TCP servers, 1 listener now (reserv rst-syn, admit wait 20ms) on lo; ";
    assert!(protect.line.starts_with(first), "{}", protect.line);
    let _later = idle_server(8443);
    let status = bed.until(|status| status["listeners"][1]["address"] == "*:8443");
    assert_eq!(status["listeners"][1]["queue_limit"], BACKLOG);
    assert_eq!(connect(12, &mut Vec::new()).refused, 8);
    protect.child.signal(Signal::SIGINT);
    let (summary, exit) = protect.end();
    assert_eq!(exit.code(), Some(0));
    for words in [
        "protection of port 8080 is off",
        "weir: 1 listener had no connection\n",
    ] {
        assert!(summary.contains(words), "{summary}");
    }
}

#[test]
fn several_ports_are_guarded_together_and_each_is_summed_up() {
    let Some(bed) = Bed::new("several") else {
        return;
    };
    let _servers = [idle_server(PORT), idle_server(8443)];
    let missing = bed.weir("protect 8080 8443 8444 8445");
    assert_eq!(missing.status.code(), Some(1));
    for port in ["*:8444", "*:8445"] {
        assert!(
            stderr(&missing).contains(&format!("nothing listens on {port}")),
            "{missing:?}"
        );
    }
    let protect = bed.protect("8443");
    assert!(
        protect
            .line
            .starts_with("weir: protecting ports 8080, 8443 ("),
        "{}",
        protect.line
    );
    assert_eq!(connect(6, &mut Vec::new()).refused, 2);
    let names: Vec<Value> = (0..2)
        .map(|n| bed.status()["listeners"][n]["name"].clone())
        .collect();
    assert_eq!(names, ["port-8080", "port-8443"]);
    protect.child.signal(Signal::SIGINT);
    let (rest, _) = protect.end();
    assert!(rest.contains("  *:8443: listen queue 0 of 4\n"), "{rest}");
    assert!(rest.contains("refused 2 (33 %)"), "{rest}");
}

#[test]
fn protect_warns_of_a_small_backlog_and_the_log_says_when_overload_begins_and_ends() {
    let Some(bed) = Bed::new("overload") else {
        return;
    };
    let server = idle_server(PORT);
    let mut protect = bed.protect("");
    let mut log = BufReader::new(protect.child.0.stderr.take().unwrap()).lines();
    let mut until = |words: &str| -> String {
        log.find_map(|line| line.ok().filter(|line| line.contains(words)))
            .unwrap_or_else(|| panic!("the log ends without {words:?}"))
    };
    until("warning: backlog of 0.0.0.0:8080 (live-");
    until("hint: call listen() with a larger backlog");
    let mut kept = Vec::new();
    assert_eq!(connect(12, &mut kept).refused, 8);
    let begins = until("port-8080: overload begins: ");
    assert!(begins.contains("Z  WARN port-8080: "), "{begins}");
    assert!(
        begins.contains(" refused ") && begins.contains("queue 4/4"),
        "{begins}"
    );
    // It lasts while the queue is full.
    for _ in 0..4 {
        socket::accept(server.as_raw_fd()).unwrap();
    }
    let ended = until("port-8080: overload has ended after ");
    assert!(ended.contains("Z  INFO "), "{ended}");
    assert!(
        ended.contains("refused 8 of 12 connections (67 %); at most queue 4/4"),
        "{ended}"
    );
    drop(server);
}

#[test]
fn a_server_in_another_network_namespace_is_named_in_the_hint() {
    let Some(bed) = Bed::new("container") else {
        return;
    };
    // A hint names three namespaces: those of tests beside this one have no server on this port.
    let port = 48127;
    let mut unshared = Command::new("unshare");
    unshared.args(["--net", "python3", "-c"]).arg(format!(
        "import socket, sys\ns = socket.socket()\ns.bind(('', {port}))\ns.listen(9)\nprint(flush=True)\nsys.stdin.read()",
    ));
    unshared.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut server = Daemon(unshared.spawn().unwrap());
    let mut line = String::new();
    BufReader::new(server.0.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let here = bed.weir(&format!("protect {port}"));
    let pid = server.0.id();
    let hint = format!("python3 (pid {pid}): `nsenter -t {pid} --net weir protect {port}`");
    assert!(stderr(&here).contains(&hint), "{}", stderr(&here));
    let error = format!("error: nothing listens on *:{port} in this network namespace\n");
    assert!(stderr(&here).starts_with(&error), "{}", stderr(&here));
    // Where an address is translated, the port may be another one there. Tests beside this one have servers too.
    let other = stderr(&bed.weir("protect 48128"));
    assert!(
        other.contains("if port 48128 is translated to another network namespace (`docker run -p`): a server listens on port "),
        "{other}"
    );
}

#[test]
fn a_port_that_docker_publishes_is_guarded_here_only_if_asked_so_and_warned_of() {
    let Some(bed) = Bed::new("docker") else {
        return;
    };
    let program = "import socket, sys\nopen('/proc/self/comm', 'w').write('docker-proxy')\ns = socket.socket()\n\
                   s.bind(('', 8080))\ns.listen(999)\nprint(flush=True)\nsys.stdin.read()";
    let mut proxy = Command::new("python3");
    proxy.args([
        "-c",
        program,
        "-proto",
        "tcp",
        "-host-ip",
        "0.0.0.0",
        "-host-port",
        "8080",
    ]);
    proxy.args(["-container-ip", "192.0.2.7", "-container-port", "80"]);
    proxy.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut proxy = Daemon(proxy.spawn().unwrap());
    let mut line = String::new();
    let stdout = proxy.0.stdout.take().unwrap();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    let refused = stderr(&bed.weir(&format!("protect {PORT}")));
    let nowhere = "they go to 192.0.2.7:80, which is in no network namespace next to this one";
    assert!(refused.contains(nowhere), "{refused}");
    let log = bed.protect("--where here").child.log();
    let warning =
        "warning: Docker publishes port 8080: connections from outside go to 192.0.2.7:80 ";
    assert!(log.contains(warning), "{log}");
    let hint = "`weir protect 80 --where container:NAME`";
    assert!(log.contains(hint), "{log}");
}

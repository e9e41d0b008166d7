//! QUIC servers under guard: what weir sees of attempts, and that it can be taken off again.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::time::Duration;

use nix::sys::signal::Signal;
use weir_client::{Event, Suggestions, TopSources, Why};
use weir_testbed::netns::Netns;
use weir_testbed::quic::{Outcome, QuicServer, QuicServerKind, attempt, crowd};

use crate::common::{BACKLOG, Bed, PATIENCE, PORT, Path, Weir, connect, listen, until, within};
use crate::elsewhere::Server;

fn guarded(bed: &Bed, keys: &str) -> Weir {
    bed.run(&format!(
        "[[quic]]\nname = \"h3\"\naddress = \"*:{PORT}\"\n{keys}"
    ))
}

fn quick() -> QuicServerKind {
    QuicServerKind::QueuesInside {
        service: Duration::ZERO,
    }
}

fn counter(bed: &Bed, name: &str) -> u64 {
    let status = bed.status();
    let counter = &status["quic"][0]["counters"][name];
    counter
        .as_u64()
        .unwrap_or_else(|| panic!("no {name}: {status}"))
}

/// What is at tc ingress of the server's loopback device.
fn programs(bed: &Bed) -> Vec<String> {
    let chain = within(bed.server(), || weir_kernel::chain(1).unwrap());
    chain.into_iter().map(|program| program.name).collect()
}

#[test]
fn every_attempt_and_its_answer_are_seen_by_either_family_and_on_loopback() {
    let Some(bed) = Bed::new() else { return };
    let _weir = guarded(&bed, "");
    let mut all = 0;
    for path in [bed.veth4(), bed.veth6(), bed.loopback4()] {
        let server = QuicServer::start(bed.server(), path.at(PORT), quick()).unwrap();
        for _ in 0..10 {
            let outcome = attempt(path.client, server.address(), PATIENCE).unwrap();
            outcome.connected().echo(PATIENCE).unwrap();
        }
        all += 10;
        assert_eq!(counter(&bed, "quic_admitted"), all, "{}", path.name);
        assert_eq!(counter(&bed, "quic_answered"), all, "{}", path.name);
    }
    let status = bed.status();
    assert_eq!(status["quic"][0]["in_force"], true);
    for socket in status["quic"][0]["sockets"].as_array().unwrap() {
        assert_eq!(socket["pending"], 0, "{status}");
    }
}

#[test]
fn a_reload_keeps_the_counters_of_a_listener_that_stays_and_takes_off_the_others() {
    let Some(bed) = Bed::new() else { return };
    let weir = guarded(&bed, "");
    let path = bed.veth4();
    let server = QuicServer::start(bed.server(), path.at(PORT), quick()).unwrap();
    let come = || attempt(path.client, server.address(), PATIENCE).unwrap();
    let mut first = come().connected();
    bed.write_config(&format!(
        "[[quic]]\nname = \"h3\"\naddress = \"*:{PORT}\"\nmode = \"observe\"\n\
         [[quic]]\nname = \"other\"\naddress = \"*:{}\"\n",
        PORT + 1
    ));
    assert!(bed.weir("reload").status.success());
    come().connected();
    assert_eq!(bed.status()["quic"][0]["mode"], "observe");
    assert_eq!(counter(&bed, "quic_admitted"), 2);
    bed.write_config(&format!("[[listener]]\naddress = \"*:{}\"\n", PORT + 1));
    assert!(bed.weir("reload").status.success());
    assert_eq!(bed.status()["quic"], serde_json::Value::Null);
    assert_eq!(programs(&bed), ["guard_tc"]);
    // What was established goes on, whatever becomes of weir.
    first.echo(PATIENCE).unwrap();
    drop(weir);
    first.echo(PATIENCE).unwrap();
}

#[test]
fn a_reload_to_an_interface_that_is_not_there_says_what_is_not_in_force() {
    let Some(bed) = Bed::new() else { return };
    let _weir = guarded(&bed, "");
    bed.write_config(&format!(
        "[[quic]]\nname = \"h3\"\naddress = \"*:{PORT}\"\ninterfaces = [\"eth9\"]\n\
         [[listener]]\nname = \"web\"\naddress = \"*:{PORT}\"\n"
    ));
    let reload = bed.weir("reload");
    assert_eq!(reload.status.code(), Some(5));
    let [told, amiss] = [reload.stdout, reload.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(told.contains("1 listener in force"), "{told}");
    assert!(told.contains("0 of 1 QUIC listener in force"), "{told}");
    let because = "QUIC listener \"h3\" is not in force: not on eth9";
    assert!(amiss.contains(because), "{amiss}");
}

#[test]
fn connections_go_on_when_weir_is_killed_and_nothing_of_it_is_left() {
    let Some(bed) = Bed::new() else { return };
    let weir = guarded(&bed, "refuse = \"drop\"\n");
    let path = bed.veth4();
    let server = QuicServer::start(bed.server(), path.at(PORT), quick()).unwrap();
    let come = || attempt(path.client, server.address(), PATIENCE).unwrap();
    let mut first = come().connected();
    assert_eq!(programs(&bed), ["quic_in"]);
    weir.signal(Signal::SIGKILL);
    weir.end();
    until("nothing is attached", || {
        programs(&bed).is_empty().then_some(())
    });
    first.echo(PATIENCE).unwrap();
    come().connected().echo(PATIENCE).unwrap();
}

#[test]
fn a_class_names_a_quic_listener_and_its_rate_is_one_for_tcp_and_quic() {
    let Some(bed) = Bed::new() else { return };
    let _weir = bed.run(&format!(
        "[[quic]]\nname = \"h3\"\naddress = \"*:{PORT}\"\n\
         [[listener]]\nname = \"web\"\naddress = \"*:{PORT}\"\n\
         [[class]]\nname = \"h3-only\"\nlistener = \"h3\"\nfrom = \"2001:db8::/32\"\npriority = 2\n\
         [[class]]\nname = \"all\"\nrate = 0.1\nburst = 2\nover_rate = \"rst\"\n"
    ));
    let path = bed.veth4();
    let _listener = listen(bed.server(), path.at(PORT), 64);
    let server = QuicServer::start(bed.server(), path.at(PORT), quick()).unwrap();
    let come = || attempt(path.client, server.address(), PATIENCE).unwrap();
    let attempts = connect(path.client, path.at(PORT), 1);
    assert_eq!(attempts.counts(), (1, 0, 0));
    let _first = come().connected();
    // Both tokens are taken.
    let refused = come();
    assert!(
        matches!(refused, Outcome::VersionRefused { .. }),
        "{refused:?}"
    );
    assert_eq!(counter(&bed, "quic_vn_rate"), 1);
    let output = bed.weir(&format!("why {CLIENT} --json"));
    let why: Why = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(why.refusals[0].class.as_deref(), Some("all"), "{why:#?}");
    let status = bed.status();
    let classes = status["classes"].as_array().unwrap();
    let all = classes.iter().find(|class| class["name"] == "all").unwrap();
    let counters = &all["counters"];
    assert_eq!(counters["syn_admitted"], 1, "{status}");
    assert_eq!(counters["quic_admitted"], 1, "{status}");
    assert_eq!(counters["quic_vn_rate"], 1, "{status}");
    assert_eq!(status["quic"][0]["classes"][0]["name"], "h3-only");
    // Without the limit they come in again.
    let set = bed.weir("class set all --rate none --burst none");
    assert!(set.status.success(), "{set:?}");
    come().connected();
}

#[test]
fn servers_of_another_namespace_are_guarded_with_their_listener_and_others_are_not() {
    let Some(bed) = Bed::new() else { return };
    let (red, blue) = (
        Netns::create("red").unwrap(),
        Netns::create("blue").unwrap(),
    );
    let place = format!("where = \"netns:{}\"", red.name());
    let weir = bed.run(&format!(
        "[[quic]]\nname = \"h3\"\naddress = \"*:{PORT}\"\n{place}\n\
         [[listener]]\nname = \"web\"\naddress = \"*:{PORT}\"\n{place}\n\
         [[class]]\nname = \"all\"\nlistener = \"h3\"\nrate = 0.1\nburst = 1\nover_rate = \"rst\"\n"
    ));
    assert_eq!(bed.status()["quic"][0]["in_force"], false);
    let at = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT));
    let _tcp = [&red, &blue].map(|netns| Server::inside(netns, PORT));
    let servers = [&red, &blue].map(|netns| QuicServer::start(netns, at, quick()).unwrap());
    until("it is in force in the namespace", || {
        (bed.status()["quic"][0]["in_force"] == true).then_some(())
    });
    let workloads = &bed.status()["quic"][0]["workloads"];
    assert_eq!(*workloads, serde_json::json!([red.name()]));
    let come = |netns: &Netns| attempt(netns, servers[0].address(), PATIENCE).unwrap();
    let mut first = come(&red).connected();
    let refused = come(&red);
    assert!(
        matches!(refused, Outcome::VersionRefused { .. }),
        "{refused:?}"
    );
    for _ in 0..3 {
        come(&blue).connected();
    }
    assert_eq!(counter(&bed, "quic_admitted"), 1);
    assert_eq!(counter(&bed, "quic_answered"), 1);
    weir.signal(Signal::SIGKILL);
    weir.end();
    let left = || within(&red, || weir_kernel::chain(1).unwrap());
    until("nothing is attached", || left().is_empty().then_some(()));
    first.echo(PATIENCE).unwrap();
}

/// The bed's client.
const CLIENT: &str = "10.66.1.2";

/// A server that reads nothing: what comes stands in its buffer.
fn stopped(bed: &Bed, path: &Path<'_>) -> UdpSocket {
    let socket = within(bed.server(), || UdpSocket::bind(path.at(PORT)).unwrap());
    let client = within(path.client, || UdpSocket::bind("0.0.0.0:0").unwrap());
    client.send_to(&[0; 1000], path.at(PORT)).unwrap();
    socket.peek(&mut [0]).unwrap();
    socket
}

/// Refuses whoever comes while anything is in the server's buffer.
const NO_ROOM: &str = "room = 0.001\nfloor = 0\n";

fn events(bed: &Bed) -> Vec<Event> {
    let text = String::from_utf8(bed.weir("events --json").stdout).unwrap();
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn why_says_why_a_client_s_attempts_were_refused_and_the_overload_is_told_to_its_end() {
    let Some(bed) = Bed::new() else { return };
    let _weir = guarded(&bed, NO_ROOM);
    let path = bed.veth4();
    let server = stopped(&bed, &path);
    for _ in 0..3 {
        let outcome = attempt(path.client, path.at(PORT), PATIENCE).unwrap();
        assert!(
            matches!(outcome, Outcome::VersionRefused { .. }),
            "{outcome:?}"
        );
    }
    let output = bed.weir(&format!("why {CLIENT} --json"));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let why: Why = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (why.answer.as_str(), why.refusals[0].sampled),
        ("refused", 3)
    );
    let seen = &why.refusals[0].refusal;
    assert_eq!(why.refusals[0].listener, "h3");
    assert_eq!(seen.verdict, "quic_vn_room");
    assert_eq!(seen.destination, path.at(PORT).to_string());
    assert!(
        seen.buffer > Some(1000) && seen.pending == Some(0),
        "{seen:?}"
    );
    assert!(why.gaps.is_empty(), "{why:#?}");
    let text = String::from_utf8(bed.weir(&format!("why {CLIENT}")).stdout).unwrap();
    for part in [
        "3 times",
        "quic_vn_room",
        "receive buffer",
        "weir explain quic_vn_room",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let top: TopSources = serde_json::from_slice(&bed.weir("why --top --json").stdout).unwrap();
    assert_eq!(top.addresses[0].source, CLIENT);
    assert_eq!(top.addresses[0].verdict, "quic_vn_room");
    let other = bed.weir("why 198.51.100.7");
    assert_eq!(other.status.code(), Some(6), "{other:?}");

    let refusals = events(&bed)
        .into_iter()
        .filter(|event| event.kind == "refusal");
    let refusals: Vec<Event> = refusals.collect();
    assert_eq!(refusals.len(), 3);
    assert_eq!(refusals[0].protocol.as_deref(), Some("quic"));
    let episode = |state: &'static str| {
        until(state, || {
            let of = |event: &Event| event.episode.as_ref().map(|one| one.state.clone());
            let mut events = events(&bed).into_iter();
            events.find(|event| of(event).as_deref() == Some(state))
        })
    };
    let begins = episode("begins");
    assert_eq!(
        (begins.kind.as_str(), begins.listener.as_deref()),
        ("overload", Some("h3"))
    );
    assert_eq!(begins.protocol.as_deref(), Some("quic"));
    assert!(
        begins
            .text
            .starts_with("h3 (QUIC): overload begins: refused"),
        "{}",
        begins.text
    );
    drop(server);
    let ends = episode("ends").episode.unwrap();
    assert_eq!((ends.turned_away, ends.let_in), (3, 0));
    assert!(ends.peak_buffer > Some(0.0), "{ends:?}");
}

#[test]
fn of_a_crowd_at_a_slow_server_why_has_every_refusal_and_the_wait_that_it_was_for() {
    let Some(bed) = Bed::new() else { return };
    let _weir = guarded(&bed, "");
    let path = bed.veth4();
    let slow = QuicServerKind::QueuesInside {
        service: Duration::from_millis(10),
    };
    let server = QuicServer::start(bed.server(), path.at(PORT), slow).unwrap();
    // It answers 100 a second at most.
    let came = crowd(path.client, server.address(), 300.0, 2.0, PATIENCE).unwrap();
    assert!(!came.version_refused.is_empty(), "{came:?}");
    let output = bed.weir(&format!("why {CLIENT} --json"));
    let why: Why = serde_json::from_slice(&output.stdout).unwrap();
    assert!(why.gaps.is_empty(), "{why:#?}");
    let kept: u64 = why.refusals.iter().map(|kept| kept.estimated).sum();
    let refused = ["quic_vn_wait", "quic_vn_room"].map(|name| counter(&bed, name));
    assert_eq!(kept, refused.iter().sum::<u64>(), "{why:#?}");
    let mut of_wait = why.refusals.iter();
    let late = of_wait.find(|kept| kept.refusal.verdict == "quic_vn_wait");
    let seen = &late.expect("the wait stood").refusal;
    // It was over `target_wait`, 20 ms; between verdict and sample the server may have answered one.
    assert!(
        seen.wait_us > Some(10_000) && seen.pending > Some(0),
        "{seen:?}"
    );
}

#[test]
fn what_is_only_observed_would_have_been_refused() {
    let Some(bed) = Bed::new() else { return };
    let _weir = guarded(&bed, &format!("{NO_ROOM}mode = \"observe\"\n"));
    let path = bed.veth4();
    let _server = stopped(&bed, &path);
    let outcome = attempt(path.client, path.at(PORT), Duration::from_millis(200)).unwrap();
    assert!(matches!(outcome, Outcome::TimedOut), "{outcome:?}");
    let output = bed.weir(&format!("why {} --json", CLIENT));
    let why: Why = serde_json::from_slice(&output.stdout).unwrap();
    assert!(why.observed && why.refusals[0].observed, "{why:#?}");
    assert!(why.text.contains("would have refused"), "{}", why.text);
}

/// A server of HTTP/1.1 and HTTP/3: both sockets, of one process.
fn https(bed: &Bed) -> (TcpListener, QuicServer) {
    let path = bed.veth4();
    let server = QuicServer::start(bed.server(), path.at(PORT), quick()).unwrap();
    (listen(bed.server(), path.at(PORT), BACKLOG), server)
}

#[test]
fn protect_guards_udp_beside_tcp_and_says_so() {
    let Some(bed) = Bed::new() else { return };
    let (_listener, server) = https(&bed);
    let mut weir = bed.protect(&PORT.to_string());
    let first = format!("weir: protecting port {PORT} (reserv rst-syn");
    assert!(weir.line.starts_with(&first), "{}", weir.line);
    let udp = weir.next_line();
    let expected = format!("  UDP port {PORT} too: new QUIC connections (vn, wait 20ms");
    assert!(udp.starts_with(&expected), "{udp}");
    let path = bed.veth4();
    let mut quic = attempt(path.client, server.address(), PATIENCE)
        .unwrap()
        .connected();
    let tcp = connect(path.client, path.at(PORT), 1);
    assert_eq!(tcp.counts().0, 1);
    assert_eq!(counter(&bed, "quic_answered"), 1);
    assert_eq!(bed.counter(0, "syn_admitted"), 1);
    assert_eq!(bed.status()["quic"][0]["name"], format!("quic-{PORT}"));
    // The test server's receive buffer is that of the machine.
    let said = bed.log_text();
    assert!(
        said.contains("receive buffer of 10.66.1.1:8080 ("),
        "{said}"
    );
    weir.signal(Signal::SIGINT);
    let (summary, exit) = weir.end();
    assert!(exit.success(), "{exit}");
    let tcp = format!("protection of port {PORT} is off");
    let udp = format!("protection of UDP port {PORT} is off");
    assert!(
        summary.contains(&tcp) && summary.contains(&udp),
        "{summary}"
    );
    assert!(
        summary.contains("QUIC admitted 1 (answered 1)"),
        "{summary}"
    );
    quic.echo(PATIENCE).unwrap();
}

#[test]
fn protect_guards_udp_in_another_namespace_where_a_socket_is_bound_and_says_so() {
    let Some(bed) = Bed::new() else { return };
    let netns = Netns::create("red").unwrap();
    let _tcp = [PORT, PORT + 1].map(|port| Server::inside(&netns, port));
    let at = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT));
    let server = QuicServer::start(&netns, at, quick()).unwrap();
    let ports = format!("{PORT} {} --where netns:{}", PORT + 1, netns.name());
    let mut weir = bed.protect(&ports);
    let first = format!("weir: protecting ports {PORT}, {} ", PORT + 1);
    assert!(weir.line.starts_with(&first), "{}", weir.line);
    let _queues = [weir.next_line().to_owned(), weir.next_line().to_owned()];
    let udp = weir.next_line();
    let expected = format!("  UDP port {PORT} too: new QUIC connections (vn, wait 20ms");
    assert!(udp.starts_with(&expected), "{udp}");
    let mut quic = attempt(&netns, server.address(), PATIENCE)
        .unwrap()
        .connected();
    assert_eq!(counter(&bed, "quic_answered"), 1);
    assert_eq!(bed.status()["quic"].as_array().unwrap().len(), 1);
    weir.signal(Signal::SIGINT);
    let (summary, exit) = weir.end();
    assert!(exit.success(), "{exit}");
    assert!(
        summary.contains("QUIC admitted 1 (answered 1)"),
        "{summary}"
    );
    quic.echo(PATIENCE).unwrap();
    let weir = bed.protect(&format!("{ports} --no-quic"));
    assert!(bed.status()["quic"].as_array().is_none_or(Vec::is_empty));
    weir.signal(Signal::SIGINT);
    weir.end();
}

#[test]
fn of_a_port_with_a_udp_socket_alone_protect_guards_quic_only_and_says_so() {
    let Some(bed) = Bed::new() else { return };
    let path = bed.veth6();
    let server = QuicServer::start(bed.server(), path.at(PORT), quick()).unwrap();
    let weir = bed.protect(&format!("{PORT} --observe --reject-syn drop"));
    let expected = format!("weir: observing UDP port {PORT} (drop, wait 20ms");
    assert!(weir.line.starts_with(&expected), "{}", weir.line);
    for words in [" on lo, ", "no TCP server listens there"] {
        assert!(weir.line.contains(words), "{}", weir.line);
    }
    let outcome = attempt(path.client, server.address(), PATIENCE).unwrap();
    outcome.connected();
    assert_eq!(counter(&bed, "quic_answered"), 1);
    let status = bed.status();
    assert_eq!(status["listeners"].as_array().unwrap().len(), 0, "{status}");
    assert_eq!(status["quic"][0]["mode"], "observe");
}

#[test]
fn protect_leaves_udp_alone_where_it_is_told_to_or_no_udp_socket_is_bound() {
    let Some(bed) = Bed::new() else { return };
    let (_listener, _server) = https(&bed);
    let weir = bed.protect(&format!("{PORT} --no-quic"));
    assert_eq!(programs(&bed), ["guard_tc"]);
    drop(weir);
    let _other = listen(bed.server(), bed.veth4().at(PORT + 1), BACKLOG);
    let _weir = bed.protect(&(PORT + 1).to_string());
    assert_eq!(programs(&bed), ["guard_tc"]);
    assert_eq!(bed.status()["quic"], serde_json::Value::Null);
}

#[test]
fn protect_all_guards_udp_sockets_that_come_later_beside_tcp_servers_only() {
    let Some(bed) = Bed::new() else { return };
    let path = bed.veth4();
    let _listener = listen(bed.server(), path.at(PORT), BACKLOG);
    let _alone = within(bed.server(), || UdpSocket::bind(path.at(PORT + 1)).unwrap());
    let _weir = bed.protect("all --reject-syn drop");
    assert_eq!(bed.status()["quic"], serde_json::Value::Null);
    let server = QuicServer::start(bed.server(), path.at(PORT), quick()).unwrap();
    let quic = until("the UDP socket is guarded", || {
        let quic = bed.status()["quic"].clone();
        quic.is_array().then_some(quic)
    });
    assert_eq!(quic.as_array().unwrap().len(), 1, "{quic}");
    assert_eq!(quic[0]["address"], format!("*:{PORT}"));
    assert_eq!(quic[0]["refuse"], "drop");
    let outcome = attempt(path.client, server.address(), PATIENCE).unwrap();
    outcome.connected();
    assert_eq!(counter(&bed, "quic_answered"), 1);
}

#[test]
fn the_doctor_says_which_half_of_a_port_nothing_guards_and_whose_receive_buffer_is_small() {
    let Some(bed) = Bed::new() else { return };
    let (_listener, _server) = https(&bed);
    let said = || -> Vec<String> {
        let output = bed.weir("doctor --json");
        assert!(output.status.success(), "{output:?}");
        let doctor: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let advice = doctor["advice"].as_array().unwrap().iter();
        let names =
            advice.filter_map(|finding| finding["name"].as_str()?.split_once(" 10.66.1.1:"));
        names.map(|(name, _)| name.to_owned()).collect()
    };
    let backlog = "backlog of";
    let buffer = "receive buffer of";
    assert_eq!(said(), [buffer, backlog]);
    let weir = guarded(&bed, "");
    assert_eq!(said(), [buffer, "TCP beside", backlog]);
    drop(weir);
    let weir = bed.protect(&format!("{PORT} --no-quic"));
    assert_eq!(said(), [buffer, "UDP beside", backlog]);
    drop(weir);
    let _weir = bed.protect(&PORT.to_string());
    assert_eq!(said(), [buffer, backlog]);
}

fn suggestions(bed: &Bed, least: &str) -> (Suggestions, i32) {
    let output = bed.weir(&format!("suggest --json --least {least}"));
    let suggestions = serde_json::from_slice(&output.stdout);
    (
        suggestions.unwrap_or_else(|e| panic!("{e}: {output:?}")),
        output.status.code().unwrap(),
    )
}

#[test]
fn after_real_load_the_suggested_config_guards_both_halves_and_names_the_small_buffer() {
    let Some(bed) = Bed::new() else { return };
    let _weir = guarded(&bed, "mode = \"observe\"\n");
    let path = bed.veth4();
    let slow = QuicServerKind::QueuesInSocket {
        service: Duration::from_millis(4),
        receive_buffer_bytes: 100_000,
    };
    let server = QuicServer::start(bed.server(), path.at(PORT), slow).unwrap();
    let (first, code) = suggestions(&bed, "10m");
    let missing = first.quic[0].missing.as_deref().unwrap_or_default();
    assert!(missing.starts_with("weir has looked for"), "{first:#?}");
    assert_eq!((code, first.quic[0].toml.as_str()), (1, ""));

    let h3 = until("weir suggests something", || {
        // It answers 250 a second.
        crowd(path.client, server.address(), 200.0, 1.0, PATIENCE).unwrap();
        let (suggestions, code) = suggestions(&bed, "2s");
        let h3 = suggestions.quic.into_iter().next().unwrap();
        assert_eq!(code, i32::from(h3.missing.is_some()), "{h3:#?}");
        (h3.missing.is_none() && h3.profile.answers_per_second.is_some()).then_some(h3)
    });
    assert!(h3.profile.attempts >= 100, "{h3:#?}");
    assert!(h3.profile.answered > h3.profile.attempts / 2, "{h3:#?}");
    assert_eq!(h3.profile.buffer_limit, Some(200_000));
    assert_eq!(h3.receive_buffer, Some(1 << 20));
    let suggested = |name: &str| {
        let key = h3.keys.iter().find(|key| key.key == name).unwrap();
        (key.now.as_str(), key.value.as_str())
    };
    assert_eq!(suggested("mode"), ("\"observe\"", "\"enforce\""));
    let (now, target) = suggested("target_wait");
    // Ten answers take 40 ms, and more where this machine is busy.
    assert!(now == "\"20ms\"" && target != now, "{target}");

    // What it prints is a config file that weir check takes, and that guards the port by TCP too.
    let output = bed.weir("suggest --least 2s");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    for part in [
        "[[quic]]\nname = \"h3\"",
        "mode = \"enforce\"",
        "too small for bursts of new QUIC",
        "[[listener]]\naddress = \"*:8080\"",
        "# What weir cannot know:",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let file = bed.folder.path().join("suggested.toml");
    std::fs::write(&file, &text).unwrap();
    let check = bed.weir(&format!("check {}", file.display()));
    let said = String::from_utf8_lossy(&check.stderr);
    assert!(check.status.success() && said.is_empty(), "{said}\n{text}");

    // In the operator's own file it changes what it suggests, and adds what the file lacks.
    let own = bed.folder.path().join("own.toml");
    let written =
        format!("# Ask Ann.\n[[quic]]\naddress = \"*:{PORT}\"   # the shop\nmode = \"observe\"\n");
    std::fs::write(&own, &written).unwrap();
    let output = bed.weir(&format!("suggest --least 2s --config {}", own.display()));
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    for part in [
        "mode \"observe\" becomes \"enforce\"",
        "a [[listener]] for TCP port 8080 is added",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let changed = String::from_utf8(output.stdout).unwrap();
    assert!(
        changed.contains("address = \"*:8080\"   # the shop\n"),
        "{changed}"
    );

    // Other settings: what was seen does not follow from them, and the TCP port is guarded now.
    bed.write_config(&changed);
    assert!(bed.weir("reload").status.success());
    let (anew, code) = suggestions(&bed, "2s");
    assert_eq!((anew.quic[0].profile.attempts, code), (0, 1), "{anew:#?}");
    assert_eq!(anew.listeners[0].address, format!("*:{PORT}"));
}

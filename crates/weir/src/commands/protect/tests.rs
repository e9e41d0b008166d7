//! Claims about what `weir protect` says, on a kernel half that only remembers.

use clap::Parser;
use weir_config::{Environment, SynCookies};
use weir_core::quic::{QuicCounters, QuicListener, QuicRefuse};
use weir_kernel::BoundUdp;

use super::*;
use crate::daemon::backend::fake::{Fake, socket};
use crate::daemon::quic;
use crate::host::links::fake::link;
use crate::host::udp::UdpServer;
use crate::host::udp::fake::udp as bound_udp;

fn args(flags: &[&str]) -> Protect {
    let words = ["weir", "protect"].iter().chain(flags);
    match crate::cli::Cli::parse_from(words).command {
        crate::cli::Command::Protect(args) => args,
        _ => unreachable!("the words say protect"),
    }
}

fn wanted(flags: &[&str]) -> Result<Wanted> {
    Wanted::of(&args(flags))
}

fn template(flags: &[&str]) -> QuicListener {
    let args = args(flags);
    udp::template(&Wanted::of(&args).unwrap().template, &args.policy.given())
}

fn lines(flags: &[&str], sockets: Vec<ListenSocket>) -> String {
    lines_with_udp(flags, sockets, &[])
}

fn lines_with_udp(flags: &[&str], sockets: Vec<ListenSocket>, bound: &[BoundUdp]) -> String {
    let wanted = wanted(flags).unwrap();
    let mut listeners = wanted.listeners(&sockets).unwrap();
    let quic = udp::beside(&listeners, &template(flags), &servers(bound));
    if wanted.ports.is_some() {
        udp::without_tcp(&mut listeners, &quic, &sockets);
    }
    let fake = Fake::default();
    fake.0.borrow_mut().sockets = sockets;
    let links = vec![link(1, "lo"), link(2, "eth0")];
    let environment = Environment {
        syn_cookies: SynCookies::WhenNeeded,
        bpf_cookies: true,
        syn_filter: None,
    };
    let session = Session::start(fake, environment, listeners, Vec::new(), links).unwrap();
    let quic: Vec<Quic> = quic.iter().map(in_force).collect();
    on_lines(&session, (&quic, vec!["lo", "eth0"]), &wanted).unwrap()
}

fn in_force(quic: &QuicListener) -> Quic {
    crate::show::quic::report(quic, &QuicCounters::default(), &[], true, None)
}

fn servers(sockets: &[BoundUdp]) -> Vec<UdpServer> {
    let server = |socket: &BoundUdp| UdpServer {
        socket: *socket,
        process: None,
    };
    sockets.iter().map(server).collect()
}

#[test]
fn one_line_says_what_is_protected_how_and_how_to_take_it_off() {
    assert_eq!(
        lines(&["80"], vec![socket("0.0.0.0", 80)]),
        "weir: protecting port 80 (reserv rst-syn, admit wait 20ms) on lo, eth0; \
         listen queue 3 of 511; Ctrl-C takes it off\n"
    );
    let flags = [
        "80",
        "--address",
        "10.0.0.1",
        "--observe",
        "--admit",
        "queue",
    ];
    assert_eq!(
        lines(&flags, vec![]),
        "weir: observing 10.0.0.1:80 (reserv rst-syn, admit queue) on lo, eth0; \
         nothing listens there yet; Ctrl-C takes it off\n"
    );
}

#[test]
fn a_queue_that_is_long_already_is_said_to_drain_first() {
    let incident = |flags: &[&str], queue_length| {
        let full = ListenSocket {
            queue_length,
            ..socket("0.0.0.0", 80)
        };
        lines(flags, vec![full]).contains("new clients may be refused")
    };
    assert!(incident(&["80"], 512));
    assert!(!incident(&["80"], 30));
    assert!(!incident(&["80", "--observe"], 512));
}

#[test]
fn several_ports_have_a_line_each() {
    let sockets = vec![socket("0.0.0.0", 80), socket("0.0.0.0", 443)];
    assert_eq!(
        lines(&["443", "80", "443"], sockets),
        "weir: protecting ports 80, 443 (reserv rst-syn, admit wait 20ms) on lo, eth0; \
         Ctrl-C takes it off\n  *:80: listen queue 3 of 511\n  *:443: listen queue 3 of 511\n"
    );
}

#[test]
fn all_is_every_port_on_which_a_server_listens() {
    let parked = ListenSocket {
        parked: true,
        ..socket("0.0.0.0", 99)
    };
    let sockets = vec![
        socket("0.0.0.0", 80),
        socket("::", 80),
        socket("::1", 25),
        parked,
    ];
    assert_eq!(
        lines(&["all", "--observe"], sockets.clone()),
        "weir: observing all TCP servers, 2 listeners now (reserv rst-syn, admit wait 20ms) on lo, eth0; \
         Ctrl-C takes it off\n  *:25: listen queue 3 of 511\n  *:80: listen queue 6 of 1022 in 2 sockets\n"
    );
    let on_one = lines(&["all", "--address", "10.0.0.1"], sockets);
    assert!(
        on_one.contains("10.0.0.1:80") && !on_one.contains(":25"),
        "{on_one}"
    );
}

#[test]
fn all_takes_no_port_beside_it_and_several_ports_take_no_name() {
    let said = |flags: &[&str]| wanted(flags).err().unwrap().to_string();
    assert!(said(&["all", "80"]).starts_with("all: "));
    assert!(said(&["80", "81", "--name", "web"]).starts_with("--name: "));
    assert!(wanted(&["80", "--name", "web"]).is_ok());
}

#[test]
fn without_flags_the_policy_is_the_default() {
    let address = ListenAddress { ip: None, port: 80 };
    let listeners = wanted(&["80"]).unwrap().listeners(&[]).unwrap();
    assert_eq!(listeners, [Listener::new("port-80", address)]);
}

#[test]
fn a_udp_socket_at_a_port_is_guarded_too_and_the_lines_say_so() {
    let https = || vec![socket("0.0.0.0", 443)];
    let bound = [bound_udp("0.0.0.0", 443), bound_udp("0.0.0.0", 444)];
    assert_eq!(
        lines_with_udp(&["443"], https(), &bound),
        "weir: protecting port 443 (reserv rst-syn, admit wait 20ms) on lo, eth0; listen queue 3 of 511; Ctrl-C takes it off\n  \
         UDP port 443 too: new QUIC connections (vn, wait 20ms, room 0.5); other datagrams pass (--no-quic: all do)\n"
    );
    let other_address = [bound_udp("10.0.0.2", 443)];
    let one_address = ["443", "--address", "10.0.0.1"];
    let said = lines_with_udp(&one_address, https(), &other_address);
    assert!(!said.contains("UDP"), "{said}");
    let said = lines_with_udp(&one_address, https(), &bound);
    assert!(said.contains("  UDP 10.0.0.1:443 too: "), "{said}");
}

#[test]
fn udp_ports_that_are_not_guarded_have_a_line_each_and_the_others_one() {
    let at = |port: u16, in_force: bool, warning: Option<&str>| Quic {
        address: format!("*:{port}"),
        in_force,
        warning: warning.map(str::to_owned),
        ..self::in_force(&template(&["443"]))
    };
    let lines = udp::lines(&[
        at(443, true, None),
        at(444, false, Some("TCP port 444 is guarded nowhere")),
        at(445, true, None),
    ]);
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(
        lines[0].starts_with("UDP ports 443 and 445 too: "),
        "{lines:?}"
    );
    assert_eq!(
        lines[1],
        "UDP port 444: QUIC is not guarded: TCP port 444 is guarded nowhere"
    );
    assert!(udp::lines(&[]).is_empty());
}

#[test]
fn of_a_port_with_a_udp_socket_alone_only_that_is_guarded() {
    let bound = [bound_udp("::", 443)];
    assert_eq!(
        lines_with_udp(&["443", "--observe"], vec![], &bound),
        "weir: observing UDP port 443 (vn, wait 20ms, room 0.5) on lo, eth0: new QUIC connections, other datagrams pass; no TCP \
         server listens there; Ctrl-C takes it off\n"
    );
    assert_eq!(
        lines_with_udp(&["443", "80"], vec![socket("0.0.0.0", 80)], &bound),
        "weir: protecting port 80 (reserv rst-syn, admit wait 20ms) on lo, eth0; listen queue 3 of 511; Ctrl-C takes it off\n  \
         UDP port 443 too: new QUIC connections (vn, wait 20ms, room 0.5); other datagrams pass (--no-quic: all do)\n"
    );
}

#[test]
fn all_guards_udp_beside_tcp_servers_only() {
    let sockets = vec![socket("0.0.0.0", 80), socket("0.0.0.0", 443)];
    let bound = [bound_udp("0.0.0.0", 443), bound_udp("0.0.0.0", 68)];
    let said = lines_with_udp(&["all"], sockets, &bound);
    assert!(said.contains("\n  UDP port 443 too: "), "{said}");
}

#[test]
fn the_udp_side_has_the_policy_of_the_listener() {
    let address = ListenAddress {
        ip: None,
        port: 443,
    };
    let quic = |flags: &[&str]| quic::at(&template(flags), address);
    assert_eq!(quic(&["443"]), QuicListener::new("quic-443", address));
    let flags = [
        "443",
        "--observe",
        "--name",
        "web",
        "--reject-syn",
        "drop",
        "--target-wait",
        "50ms",
        "--interval",
        "1s",
        "--interface",
        "eth0",
    ];
    let expected = QuicListener {
        interfaces: vec!["eth0".into()],
        refuse: QuicRefuse::Drop,
        target_wait: std::time::Duration::from_millis(50),
        interval: std::time::Duration::from_secs(1),
        mode: Mode::Observe,
        ..QuicListener::new("web-quic", address)
    };
    assert_eq!(quic(&flags), expected);
    // By TCP these only count.
    let said = quic(&["443", "--interval", "200ms"]);
    assert_eq!(said.interval.as_millis(), 200, "of TCP the default");
    let counts = quic(&["443", "--establish", "default", "--reject-syn", "drop"]);
    assert_eq!(counts.mode, Mode::Observe);
}

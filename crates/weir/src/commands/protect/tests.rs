//! Claims about what `weir protect` says, on a kernel half that only remembers.

use clap::Parser;
use weir_config::{Environment, SynCookies};

use super::*;
use crate::daemon::backend::fake::{Fake, socket};
use crate::host::links::fake::link;

fn wanted(flags: &[&str]) -> Result<Wanted> {
    let words = ["weir", "protect"].iter().chain(flags);
    match crate::cli::Cli::parse_from(words).command {
        crate::cli::Command::Protect(args) => Wanted::of(&args),
        _ => unreachable!("the words say protect"),
    }
}

fn lines(flags: &[&str], sockets: Vec<ListenSocket>) -> String {
    let wanted = wanted(flags).unwrap();
    let listeners = wanted.listeners(&sockets).unwrap();
    let fake = Fake::default();
    fake.0.borrow_mut().sockets = sockets;
    let links = vec![link(1, "lo"), link(2, "eth0")];
    let environment = Environment {
        syn_cookies: SynCookies::WhenNeeded,
        bpf_cookies: true,
        syn_filter: None,
    };
    let session = Session::start(fake, environment, listeners, Vec::new(), links).unwrap();
    on_lines(&session, &wanted).unwrap()
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

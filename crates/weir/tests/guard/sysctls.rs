//! Sysctls of TCP that change while weir runs: what it answers follows them.

use std::net::{Ipv6Addr, SocketAddr};

use crate::common::{Bed, Fate, PORT, listen, takes_cookies, until};
use crate::firewall::{ROOMY, config, fallback, fill_with_half_open, visit};

/// The kernel takes a cookie only with the options that it would have agreed to itself.
#[test]
fn cookies_become_connections_after_an_option_of_tcp_is_switched_off_while_weir_runs() {
    if !takes_cookies() {
        return;
    }
    for option in ["tcp_timestamps", "tcp_sack", "tcp_window_scaling"] {
        let Some(bed) = Bed::new() else { return };
        let any: SocketAddr = (Ipv6Addr::UNSPECIFIED, PORT).into();
        let listener = listen(bed.server(), any, ROOMY);
        let _weir = bed.run(&config("establish = \"no-syn-drop\""));
        fill_with_half_open(&bed);
        assert_eq!(visit(&listener, bed.veth4()), Some(Fate::Served));
        let accepted = bed.counter(0, "cookie_accepted");
        assert!(accepted > 0, "{:?}", bed.verdicts(0));
        bed.server()
            .set_sysctl(&format!("net.ipv4.{option}"), "0")
            .unwrap();
        until(&format!("clients are served without {option}"), || {
            (visit(&listener, bed.veth4()) == Some(Fate::Served)).then_some(())
        });
        assert_eq!(visit(&listener, bed.veth6()), Some(Fate::Served));
        assert!(bed.counter(0, "cookie_accepted") > accepted);
    }
}

#[test]
fn a_listener_falls_back_while_the_kernel_takes_no_cookies_and_comes_back() {
    if !takes_cookies() {
        return;
    }
    let Some(bed) = Bed::new() else { return };
    let any: SocketAddr = (Ipv6Addr::UNSPECIFIED, PORT).into();
    let listener = listen(bed.server(), any, ROOMY);
    let _weir = bed.run(&config("establish = \"no-syn-drop\""));
    assert_eq!(fallback(&bed), None);
    let set = |value| {
        let done = bed.server().set_sysctl("net.ipv4.tcp_syncookies", value);
        done.unwrap();
    };
    set("0");
    until("it falls back", || {
        (fallback(&bed).as_deref() == Some("reserv rst-syn")).then_some(())
    });
    set("1");
    until("it comes back", || fallback(&bed).is_none().then_some(()));
    fill_with_half_open(&bed);
    assert_eq!(visit(&listener, bed.veth4()), Some(Fate::Served));
    assert!(bed.counter(0, "cookie_accepted") > 0);
}

/// The policy stays, and the log says so once.
#[test]
fn a_policy_that_a_sysctl_makes_impossible_stays_and_follows_the_others() {
    if !takes_cookies() {
        return;
    }
    let Some(bed) = Bed::new() else { return };
    let any: SocketAddr = (Ipv6Addr::UNSPECIFIED, PORT).into();
    let _listener = listen(bed.server(), any, ROOMY);
    let _weir = bed.run(&config("establish = \"reserv\""));
    let set = |name: &str, value| {
        let done = bed.server().set_sysctl(&format!("net.ipv4.{name}"), value);
        done.unwrap();
    };
    let said = || {
        bed.log_text()
            .matches("net.ipv4.tcp_syncookies is 2")
            .count()
    };
    set("tcp_syncookies", "2");
    until("the log says so", || (said() == 1).then_some(()));
    set("tcp_syncookies", "1");
    set("tcp_sack", "0");
    until("sysctls are followed", || {
        bed.log_text()
            .contains("sysctls of TCP have changed: weir follows")
            .then_some(())
    });
    assert_eq!(said(), 1, "{}", bed.log_text());
}

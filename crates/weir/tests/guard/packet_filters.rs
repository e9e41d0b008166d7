//! Beside packet filters without state, and IPsec: in a SYN flood a client whose SYNs they drop stays out, whatever kind
//! of filter it is, and clients whom they let by come in. tests/guard/firewall.rs has those that follow connections.

use std::net::{Ipv6Addr, SocketAddr, TcpListener};
use std::process::Command;

use nix::sys::signal::Signal;
use weir_testbed::bed::{SERVER_VETH_V4, WIRE};
use weir_testbed::needs;

use crate::common::{
    Bed, Fate, PORT, Peer, Raw, accept, connect, echo_both_ways, greet, listen, takes_cookies,
    until, within,
};
use crate::firewall::{CLIENT_V4, ROOMY, config, fallback, fill_with_half_open, nft, visit};

/// Attempts of the client that the filter keeps out, each with a SYN.
const ATTEMPTS: usize = 4;
/// The server's device towards the clients.
const TO_CLIENTS: &str = "veth0";
const SYN: &str = "tcp flags & (fin|syn|rst|ack) == syn";

/// Something that keeps one client out by its SYNs.
struct Filter {
    /// What status and doctor call it.
    called: String,
    /// Rules for `nft -f`, or none.
    nft: String,
    /// Commands that put the rest in force.
    commands: Vec<String>,
    /// Of the client's SYNs, so many pass: of a rate that has a burst.
    passes: usize,
}

/// A chain of nftables with one rule.
fn chain(family: &str, hook: &str, device: &str, rule: &str) -> Filter {
    Filter {
        called: format!("the nftables chain {family} keepout c (hook {hook})"),
        nft: format!(
            "table {family} keepout {{
               set blocked {{ type ipv4_addr; flags interval; elements = {{ 10.66.1.2/31 }}; }}
               set rates {{ type ipv4_addr; size 1024; flags dynamic,timeout; timeout 1h; }}
               chain c {{ type filter hook {hook} {device} priority -300; policy accept; {rule}; }}
             }}\n"
        ),
        commands: Vec::new(),
        passes: 0,
    }
}

fn command(called: &str, command: String) -> Filter {
    Filter {
        called: called.to_owned(),
        nft: String::new(),
        commands: vec![command],
        passes: 0,
    }
}

fn filters() -> Vec<Filter> {
    let rule = format!("ip saddr {CLIENT_V4} {SYN} drop");
    let device = format!("device {TO_CLIENTS}");
    let from = format!("-s {CLIENT_V4} -p tcp --syn");
    let answers = format!("ip daddr {CLIENT_V4} tcp flags & (syn|ack) == syn|ack drop");
    let limit =
        "--hashlimit-above 1/day --hashlimit-burst 1 --hashlimit-mode srcip --hashlimit-name a";
    let policy = format!("src {CLIENT_V4} dst {SERVER_VETH_V4}");
    let esp = format!("tmpl {policy} proto esp mode transport");
    vec![
        chain("inet", "input", "", &rule),
        chain("ip", "prerouting", "", &rule),
        chain("netdev", "ingress", &device, &rule),
        chain("inet", "ingress", &device, &rule),
        chain("inet", "output", "", &answers),
        chain("ip", "input", "", &format!("ip saddr @blocked {SYN} drop")),
        Filter {
            passes: 1,
            ..chain(
                "ip",
                "input",
                "",
                &format!(
                    "ip saddr {CLIENT_V4} {SYN} update @rates {{ ip saddr limit rate over 1/day burst 1 packets }} drop"
                ),
            )
        },
        command(
            "the nftables chain ip filter INPUT (hook input)",
            format!("iptables -A INPUT {from} -j DROP"),
        ),
        command(
            "the nftables chain ip raw PREROUTING (hook prerouting)",
            format!("iptables -t raw -A PREROUTING {from} -j DROP"),
        ),
        command(
            "the nftables chain ip mangle PREROUTING (hook prerouting)",
            format!("iptables -t mangle -A PREROUTING {from} -j DROP"),
        ),
        Filter {
            passes: 1,
            ..command(
                "the nftables chain ip filter INPUT (hook input)",
                format!("iptables -A INPUT {from} -m hashlimit {limit} -j DROP"),
            )
        },
        command(
            "the iptables table filter",
            format!("iptables-legacy -A INPUT {from} -j DROP"),
        ),
        command(
            "the iptables table raw",
            format!("iptables-legacy -t raw -A PREROUTING {from} -j DROP"),
        ),
        command(
            "an IPsec policy",
            format!("ip xfrm policy add {policy} dir in action block"),
        ),
        command(
            "an IPsec policy",
            format!("ip xfrm policy add {policy} dir in {esp}"),
        ),
    ]
}

impl Filter {
    fn load(&self, bed: &Bed) {
        assert!(self.nft.is_empty() || nft(bed, &self.nft), "{}", self.nft);
        self.commands.iter().for_each(|command| run(bed, command));
    }
}

/// Takes everything off.
fn unload(bed: &Bed) {
    assert!(nft(bed, "flush ruleset\n"));
    for table in ["filter", "raw"] {
        run(bed, &format!("iptables-legacy -t {table} -F"));
    }
    run(bed, "ip xfrm policy flush");
}

fn run(bed: &Bed, command: &str) {
    let mut words = command.split_whitespace();
    let mut program = Command::new(words.next().unwrap());
    let status = within(bed.server(), || program.args(words).status().unwrap());
    assert!(status.success(), "{command}");
}

/// A bed with a server on every address.
fn flooded_server(places: i32) -> Option<(Bed, TcpListener)> {
    let programs = ["nft", "iptables", "iptables-legacy", "ip", "tc"];
    if !needs::programs(&programs) {
        return None;
    }
    let bed = Bed::new()?;
    let any: SocketAddr = (Ipv6Addr::UNSPECIFIED, PORT).into();
    let listener = listen(bed.server(), any, places);
    Some((bed, listener))
}

fn only_those_come_in_whom_the_filters_let_by(policy: &str) {
    let Some((bed, listener)) = flooded_server(ROOMY) else {
        return;
    };
    for filter in filters() {
        filter.load(&bed);
        let weir = bed.run(&config(policy));
        fill_with_half_open(&bed);
        let raw = Raw(&bed.links.wire);
        for number in 0..4 * ROOMY as u32 {
            raw.syn(Peer::v4(number, PORT), number);
        }
        raw.discard();
        let what = &filter.called;
        let mut kept_out = connect(bed.client(), bed.veth4().at(PORT), ATTEMPTS);
        let connected = kept_out.counts().0;
        greet(&mut accept(&listener, kept_out.connected.len()));
        assert!(
            connected <= filter.passes,
            "{policy} {what}: {connected} of {ATTEMPTS} came in, {:?}",
            bed.verdicts(0)
        );
        kept_out.connected.clear();
        assert_eq!(
            visit(&listener, bed.veth6()),
            Some(Fate::Served),
            "{policy} {what}: {:?}",
            bed.verdicts(0)
        );
        let status = bed.status();
        let because = status["listeners"][0]["fallback_because"].as_str();
        assert!(
            because.is_some_and(|text| text.contains(what)),
            "{what}: {status:#}"
        );
        drop(weir);
        unload(&bed);
    }
}

#[test]
fn reserv_lets_in_only_those_whom_filters_without_state_let_by_in_a_flood() {
    if !takes_cookies() {
        return;
    }
    only_those_come_in_whom_the_filters_let_by("establish = \"reserv\"");
}

#[test]
fn no_syn_drop_lets_in_only_those_whom_filters_without_state_let_by_in_a_flood() {
    if !takes_cookies() {
        return;
    }
    only_those_come_in_whom_the_filters_let_by("establish = \"no-syn-drop\"");
}

#[test]
fn the_xdp_front_lets_in_only_those_whom_filters_without_state_let_by_in_a_flood() {
    if !takes_cookies() {
        return;
    }
    only_those_come_in_whom_the_filters_let_by("establish = \"reserv\"\nfront = \"xdp\"");
}

/// Without the filter the same client comes in by a cookie of weir's: the tests above can fail.
#[test]
fn beside_rules_that_drop_nothing_weir_answers_a_flood_with_its_own_cookies() {
    if !takes_cookies() {
        return;
    }
    let Some((bed, listener)) = flooded_server(ROOMY) else {
        return;
    };
    let harmless = chain("inet", "input", "", &format!("{SYN} counter accept"));
    harmless.load(&bed);
    run(&bed, "iptables-legacy -A FORWARD -j DROP");
    run(
        &bed,
        "iptables-legacy -t mangle -A PREROUTING -j MARK --set-mark 1",
    );
    let _weir = bed.run(&config("establish = \"no-syn-drop\""));
    assert_eq!(fallback(&bed), None);
    fill_with_half_open(&bed);
    assert_eq!(visit(&listener, bed.veth4()), Some(Fate::Served));
    assert!(bed.counter(0, "cookie_accepted") > 0);
}

/// A rule comes while weir runs. A cookie that weir has sent before lets nobody in from then on: it may have been sent
/// to one whom the rule drops. The cookies come back when the rule has been gone for a while.
#[test]
fn a_rule_that_comes_and_goes_is_noticed_and_ends_the_cookies_that_are_out() {
    if !takes_cookies() {
        return;
    }
    let Some((bed, listener)) = flooded_server(ROOMY) else {
        return;
    };
    let weir = bed.run(&config("establish = \"no-syn-drop\""));
    fill_with_half_open(&bed);
    let raw = Raw(&bed.links.wire);
    let early = Peer::v4(1_000_000, PORT);
    let cookie = raw.half_open(early);
    assert_eq!(fallback(&bed), None);
    let filter = chain("inet", "input", "", &format!("{SYN} drop"));
    filter.load(&bed);
    until("the rule is noticed", || {
        (fallback(&bed).as_deref() == Some("abort rst-syn")).then_some(())
    });
    assert_eq!(connect(bed.client(), bed.veth4().at(PORT), 2).counts().0, 0);
    raw.final_ack(early, cookie);
    assert!(raw.answer(early).header.rst);
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err());
    let doctor = bed.weir("doctor");
    let doctor = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(doctor.contains(&filter.called), "{doctor}");
    assert!(bed.weir("reload").status.success());
    assert!(fallback(&bed).is_some(), "and stays noticed");
    unload(&bed);
    until("its end is noticed", || {
        fallback(&bed).is_none().then_some(())
    });
    let mut client = connect(bed.client(), bed.veth4().at(PORT), 1);
    let mut server = accept(&listener, 1).remove(0);
    echo_both_ways(&mut client.connected[0], &mut server, 1 << 16);
    drop(weir);
}

/// Of an overload before it, clients have cookies of weir's, and take their connections for established.
#[test]
fn observing_lets_those_in_who_have_a_cookie_of_the_moment_before() {
    if !takes_cookies() {
        return;
    }
    let Some((bed, listener)) = flooded_server(ROOMY) else {
        return;
    };
    let _weir = bed.run(&config("establish = \"no-syn-drop\""));
    fill_with_half_open(&bed);
    let raw = Raw(&bed.links.wire);
    let early = Peer::v4(1_000_000, PORT);
    let cookie = raw.half_open(early);
    let counted = || ["cookie_accepted", "cookie_invalid"].map(|name| bed.counter(0, name));
    let [accepted, invalid] = counted();
    assert!(bed.weir("observe --for 10m").status.success());
    // It may be one of the kernel's, which sends cookies again: none of weir's business.
    raw.final_ack(Peer::v4(1_000_001, PORT), cookie);
    raw.final_ack(early, cookie);
    accept(&listener, 1);
    assert_eq!(counted(), [accepted + 1, invalid]);
}

/// After a look, and a tick of the guard's clock more.
const COOKIES_HOLD: std::time::Duration = std::time::Duration::from_millis(3_050);

/// The daemon cannot look: it is stopped, or the kernel keeps it waiting.
#[test]
fn a_daemon_that_stands_still_lets_nobody_in_whom_a_new_rule_drops() {
    if !takes_cookies() {
        return;
    }
    let Some((bed, listener)) = flooded_server(ROOMY) else {
        return;
    };
    let weir = bed.run(&config("establish = \"no-syn-drop\""));
    fill_with_half_open(&bed);
    assert_eq!(visit(&listener, bed.veth4()), Some(Fate::Served));
    weir.signal(Signal::SIGSTOP);
    chain("inet", "input", "", &format!("{SYN} drop")).load(&bed);
    // The time is what is claimed.
    std::thread::sleep(COOKIES_HOLD);
    assert_eq!(connect(bed.client(), bed.veth4().at(PORT), 1).counts().0, 0);
    weir.signal(Signal::SIGCONT);
    until("the rule is noticed", || fallback(&bed).map(drop));
    unload(&bed);
    until("its end is noticed", || {
        fallback(&bed).is_none().then_some(())
    });
    listener.set_nonblocking(true).unwrap();
    while listener.accept().is_ok() {}
    listener.set_nonblocking(false).unwrap();
    assert_eq!(visit(&listener, bed.veth4()), Some(Fate::Served));
}

/// A tc filter may have a packet wait, and the kernel does not hold on to the listener of a cookie that it brings. So not
/// even a filter that weir has not seen yet gets one.
#[test]
fn no_cookie_is_taken_before_a_tc_filter_that_has_just_come() {
    if !takes_cookies() {
        return;
    }
    let Some((bed, listener)) = flooded_server(ROOMY) else {
        return;
    };
    let weir = bed.run(&config("establish = \"no-syn-drop\""));
    fill_with_half_open(&bed);
    let raw = Raw(&bed.links.wire);
    let early = Peer::v4(1_000_000, PORT);
    let cookie = raw.half_open(early);
    weir.signal(Signal::SIGSTOP);
    run(&bed, &format!("tc qdisc add dev {WIRE} clsact"));
    run(
        &bed,
        &format!("tc filter add dev {WIRE} ingress protocol all u32 match u32 0 0 classid 1:1"),
    );
    raw.final_ack(early, cookie);
    assert!(raw.answer(early).header.rst);
    weir.signal(Signal::SIGCONT);
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err());
    assert_eq!(bed.counter(0, "cookie_failed"), 1);
}

/// weir has given up the rights that it needs no more when it looks again.
#[test]
fn filters_of_each_kind_are_named_when_they_come_while_weir_runs() {
    if !takes_cookies() {
        return;
    }
    let Some((bed, _listener)) = flooded_server(ROOMY) else {
        return;
    };
    let _weir = bed.run(&config("establish = \"no-syn-drop\""));
    for filter in filters() {
        filter.load(&bed);
        until(&format!("{} is named", filter.called), || {
            let status = bed.status();
            let because = status["listeners"][0]["fallback_because"].as_str();
            because?.contains(&filter.called).then_some(())
        });
        unload(&bed);
    }
}

/// A filter drops the flood behind weir: none of its SYNs reaches the queue, and no other client may pay for them.
#[test]
fn a_flood_that_a_filter_drops_refuses_nobody_else_at_an_idle_server() {
    for policy in ["reserv", "abort", "no-syn-drop"] {
        let Some((bed, listener)) = flooded_server(ROOMY) else {
            return;
        };
        let drop_flood = format!("iifname {WIRE} {SYN} drop");
        chain("inet", "prerouting", "", &drop_flood).load(&bed);
        let _weir = bed.run(&config(&format!("establish = \"{policy}\"")));
        let raw = Raw(&bed.links.wire);
        let mut flood = 0..20_000;
        while !flood.is_empty() {
            for number in flood.by_ref().take(2_500) {
                raw.syn(Peer::v4(number, PORT), number);
            }
            raw.discard();
            for path in [bed.veth4(), bed.veth6()] {
                let fate = visit(&listener, path);
                assert_eq!(fate, Some(Fate::Served), "{policy} {:?}", bed.verdicts(0));
            }
        }
        let held = bed.status()["listeners"][0]["half_open"].as_u64();
        assert_eq!(held, Some(0), "{policy}: the filter drops the flood");
    }
}

/// No filter, but the kernel has no way to answer it: the final ACK of a cookie finds none either.
#[test]
fn a_client_without_a_way_back_is_not_let_in_by_a_cookie() {
    if !takes_cookies() {
        return;
    }
    let Some((bed, listener)) = flooded_server(ROOMY) else {
        return;
    };
    run(&bed, &format!("ip route add blackhole {CLIENT_V4}/32"));
    let _weir = bed.run(&config("establish = \"no-syn-drop\""));
    fill_with_half_open(&bed);
    let _deceived = connect(bed.client(), bed.veth4().at(PORT), ATTEMPTS);
    assert_eq!(visit(&listener, bed.veth6()), Some(Fate::Served));
    assert!(listener.accept().is_err(), "{:?}", bed.verdicts(0));
}

//! Claims about a session, on a kernel half that only remembers.

use std::time::Instant;

use weir_config::{SynCookies, SynFilter};
use weir_core::listener::{Establish, Front, ListenAddress, ResidenceMode};
use weir_core::verdict::Verdict;

use super::*;
use crate::daemon::backend::fake::{Fake, NORMAL, socket};
use crate::host::links::Peer;
use crate::host::links::fake::link;

fn machine() -> Vec<Link> {
    vec![link(1, "lo"), link(2, "eth0")]
}

fn web() -> Listener {
    Listener::new("web", ListenAddress { ip: None, port: 80 })
}

fn on(interface: &str) -> Listener {
    Listener {
        interfaces: vec![interface.into()],
        ..web()
    }
}

fn start(fake: &Fake, listeners: Vec<Listener>) -> Session<Fake> {
    Session::start(fake.clone(), NORMAL, listeners, Vec::new(), machine()).unwrap()
}

fn attached(fake: &Fake) -> Vec<u32> {
    fake.0.borrow().attached.keys().copied().collect()
}

#[test]
fn interfaces_are_followed_as_they_come_and_go() {
    let fake = Fake::default();
    let mut session = start(&fake, vec![web()]);
    assert_eq!(attached(&fake), [1, 2]);
    session.links_changed(vec![link(1, "lo"), link(2, "eth0"), link(3, "eth1")]);
    assert_eq!(attached(&fake), [1, 2, 3]);
    let enslaved = Link {
        port: true,
        ..link(3, "eth1")
    };
    session.links_changed(vec![link(1, "lo"), enslaved, link(4, "br0")]);
    assert_eq!(attached(&fake), [1, 4]);
}

#[test]
fn a_listener_waits_for_its_interface() {
    let fake = Fake::default();
    let mut session = start(&fake, vec![on("eth7")]);
    assert!(attached(&fake).is_empty());
    assert!(!session.listeners().unwrap()[0].in_force);
    session.links_changed(vec![link(1, "lo"), link(9, "eth7")]);
    assert_eq!(
        fake.0.borrow().applies,
        2,
        "applied again, now that eth7 has an index"
    );
    assert_eq!(attached(&fake), [9]);
    assert!(session.listeners().unwrap()[0].in_force);
}

#[test]
fn a_named_interface_that_was_made_anew_is_applied_again() {
    let fake = Fake::default();
    let mut session = start(&fake, vec![on("eth0")]);
    assert_eq!(fake.0.borrow().applies, 1);
    session.links_changed(machine());
    assert_eq!(fake.0.borrow().applies, 1, "nothing has changed");
    session.links_changed(vec![link(1, "lo"), link(5, "eth0")]);
    assert_eq!(fake.0.borrow().applies, 2);
    assert_eq!(attached(&fake), [5]);
}

#[test]
fn a_failed_swap_leaves_the_running_policy_in_force() {
    let fake = Fake::default();
    let mut session = start(&fake, vec![web()]);
    fake.0.borrow_mut().refuse_apply = true;
    assert!(session.swap(NORMAL, vec![on("eth0")], Vec::new()).is_err());
    fake.0.borrow_mut().refuse_apply = false;
    let always = Environment {
        syn_cookies: SynCookies::Always,
        bpf_cookies: true,
        syn_filter: None,
    };
    assert_eq!(
        session
            .swap(always, vec![on("eth0")], Vec::new())
            .unwrap_err()
            .code,
        Code::Unsupported
    );
    assert_eq!(fake.0.borrow().applied, [web()]);
    assert_eq!(attached(&fake), [1, 2]);
    assert_eq!(
        session.listeners().unwrap()[0].settings["interfaces"],
        serde_json::json!([])
    );
}

/// The fake has no queue: the last step of the swap fails, when the new policy is in force already.
#[test]
fn a_swap_whose_queue_cannot_be_prioritized_puts_the_old_policy_back() {
    let fake = Fake::default();
    let (kept, new) = (Class::new("kept"), Class::new("new"));
    let conntrack = Environment {
        syn_filter: Some(SynFilter::Conntrack),
        ..NORMAL
    };
    let mut session = Session::start(
        fake.clone(),
        NORMAL,
        vec![web()],
        vec![kept.clone()],
        machine(),
    )
    .unwrap();
    session.replace_classes(Vec::new()).unwrap();
    let before = (
        session.classes().to_vec(),
        session.undone_by(std::slice::from_ref(&kept)),
    );
    let next = Listener {
        queue: QueueOrder::Priority,
        ..on("eth0")
    };
    assert!(session.swap(conntrack, vec![next], vec![new]).is_err());
    let state = fake.0.borrow();
    assert_eq!(state.applied, [web()]);
    assert_eq!(state.classes, before.0);
    assert_eq!(state.cookies, Some(NORMAL.sends_cookies()));
    drop(state);
    assert_eq!(attached(&fake), [1, 2]);
    assert_eq!(session.asked().collect::<Vec<_>>(), [&web()]);
    // What a reload would undo is still known.
    assert_eq!(
        (session.classes().to_vec(), session.undone_by(&[kept])),
        before
    );
}

/// Interfaces that come later have the policy applied again.
#[test]
fn a_failed_swap_leaves_it_as_it_was_whether_cookies_may_be_sent() {
    let fake = Fake::default();
    let mut session = start(&fake, vec![web()]);
    fake.0.borrow_mut().refuse_apply = true;
    let conntrack = Environment {
        syn_filter: Some(SynFilter::Conntrack),
        ..NORMAL
    };
    assert!(
        session
            .swap(conntrack, vec![on("eth0")], Vec::new())
            .is_err()
    );
    assert_eq!(fake.0.borrow().cookies, Some(NORMAL.sends_cookies()));
}

#[test]
fn a_swap_moves_the_guard_to_the_new_interfaces() {
    let fake = Fake::default();
    let mut session = start(&fake, vec![web()]);
    session.swap(NORMAL, vec![on("eth0")], Vec::new()).unwrap();
    assert_eq!(attached(&fake), [2]);
    session
        .swap(
            NORMAL,
            vec![Listener {
                front: Front::Xdp,
                ..web()
            }],
            Vec::new(),
        )
        .unwrap();
    assert_eq!(
        fake.0.borrow().attached,
        BTreeMap::from([(1, false), (2, true)])
    );
    session.swap(NORMAL, vec![web()], Vec::new()).unwrap();
    assert_eq!(
        fake.0.borrow().attached,
        BTreeMap::from([(1, false), (2, false)])
    );
}

#[test]
fn a_driver_without_xdp_is_guarded_at_tc_and_not_asked_again() {
    let fake = Fake::default();
    fake.0.borrow_mut().no_xdp.push(2);
    let mut session = start(
        &fake,
        vec![Listener {
            front: Front::Xdp,
            ..web()
        }],
    );
    let xdp: Vec<bool> = session.interfaces().iter().map(|i| i.xdp).collect();
    assert_eq!(xdp, [false, false]);
    let attempts = fake.0.borrow().attempts;
    session.links_changed(machine());
    assert_eq!(fake.0.borrow().attempts, attempts);
}

#[test]
fn an_interface_that_failed_is_tried_again_when_the_links_change() {
    let fake = Fake::default();
    fake.0.borrow_mut().broken.push(2);
    let mut session = start(&fake, vec![web()]);
    fake.0.borrow_mut().broken.clear();
    session.links_changed(machine());
    assert_eq!(attached(&fake), [1, 2]);
}

#[test]
fn a_named_interface_must_work_and_others_may_fail() {
    let fake = Fake::default();
    fake.0.borrow_mut().broken.push(2);
    assert_eq!(start(&fake, vec![web()]).interfaces().len(), 1);
    let named = Session::start(
        fake.clone(),
        NORMAL,
        vec![on("eth0")],
        Vec::new(),
        machine(),
    );
    let failure = named.err().expect("eth0 was named");
    assert!(
        failure.to_string().starts_with("interface eth0: "),
        "{failure}"
    );
    fake.0.borrow_mut().broken.push(1);
    assert!(Session::start(fake.clone(), NORMAL, vec![web()], Vec::new(), machine()).is_err());
}

#[test]
fn what_a_slow_server_can_keep_is_said_instead_of_its_target() {
    let fake = Fake::default();
    let of = |service_ms, kept_length| ListenSocket {
        service: Some(Duration::from_millis(service_ms)),
        kept_length,
        ..socket("0.0.0.0", 80)
    };
    let kept = |sockets: Vec<ListenSocket>, listener: Listener| {
        fake.0.borrow_mut().sockets = sockets;
        let report = start(&fake, vec![listener]).listeners().unwrap().remove(0);
        (report.kept_queue_length, report.kept_wait_us)
    };
    let two = || vec![of(500, 4), of(20, 2)];
    assert_eq!(kept(two(), web()), (Some(6), Some(2_000_000)));
    assert_eq!(kept(vec![of(1, 16)], web()), (None, None), "16 ms of 20");
    let queue = Listener {
        admit: weir_core::listener::Admit::Queue,
        ..web()
    };
    assert_eq!(kept(two(), queue), (None, None), "the wait does not decide");
}

#[test]
fn a_gate_is_of_the_listeners_that_refuse_for_its_port() {
    let fake = Fake::default();
    let within = ResidenceMode::Within(Duration::from_millis(250));
    let on = |name: &str, port, residence| Listener {
        residence,
        ..Listener::new(name, ListenAddress { ip: None, port })
    };
    let listeners = vec![
        on("kept", 80, within),
        on("other", 81, within),
        on("observed", 82, ResidenceMode::Observe),
        Listener {
            residence_of: Some(8000),
            ..on("front", 443, within)
        },
    ];
    let mut session = start(&fake, listeners);
    let gate = Gate {
        room: 3.0,
        per_s: 10.0,
        burst: 40.0,
        probes: 0.0,
        probes_per_s: 0.0,
    };
    let gates = || fake.0.borrow().gates.keys().cloned().collect::<Vec<_>>();
    for port in [80, 82, 443, 8080] {
        session.set_gates(port, Some(&gate));
    }
    assert_eq!(gates(), ["kept"]);
    session.set_gates(8000, Some(&gate));
    assert_eq!(gates(), ["front", "kept"]);
    session.set_gates(8000, None);
    let mut counters = Counters::default();
    counters.0[Verdict::SynResetResidence as usize] = 5;
    fake.0.borrow_mut().counters.insert("kept".into(), counters);
    assert_eq!(session.refused_for_residence(80).unwrap(), 5);
    session.set_gates(80, None);
    assert!(gates().is_empty());
}

#[test]
fn beside_a_controller_that_enforces_classes_are_held_to_what_a_gate_lets_in_and_it_lets_in_more() {
    let fake = Fake::default();
    fake.0.borrow_mut().sockets = vec![socket("0.0.0.0", 80)];
    let address = ListenAddress { ip: None, port: 80 };
    let kept = Listener {
        residence: ResidenceMode::Within(Duration::from_millis(250)),
        ..Listener::new("kept", address)
    };
    let mut session = start(&fake, vec![kept]);
    let gate = Gate {
        room: 3.0,
        per_s: 10.0,
        burst: 40.0,
        probes: 0.0,
        probes_per_s: 0.0,
    };
    let held_to = |session: &mut Session<Fake>| {
        session.set_gates(80, Some(&gate));
        let room = fake.0.borrow().gates["kept"].room;
        (room, session.load().unwrap()[0].inside)
    };
    let settings = weir_core::controller::Settings::default();
    assert_eq!(held_to(&mut session), (3.0, None), "no controller");
    session.yield_to(Some(settings)).unwrap();
    assert_eq!(held_to(&mut session), (3.0, None), "no class");
    let gold = Class {
        priority: 1,
        ..Class::new("gold")
    };
    session.replace_classes(vec![gold]).unwrap();
    assert_eq!(held_to(&mut session), (43.0, Some(gate)));
    let mut counters = Counters::default();
    counters.0[Verdict::SynResetHeld as usize] = 5;
    fake.0.borrow_mut().counters.insert("kept".into(), counters);
    assert_eq!(session.refused_for_residence(80).unwrap(), 5);
    session.set_gates(80, None);
    assert_eq!(session.load().unwrap()[0].inside, None);
    let observes = weir_core::controller::Settings {
        mode: weir_core::listener::Mode::Observe,
        ..settings
    };
    session.yield_to(Some(observes)).unwrap();
    assert_eq!(held_to(&mut session), (3.0, None), "it only tells");
}

#[test]
fn sockets_of_one_listener_are_summed_and_shown() {
    let fake = Fake::default();
    let waiting = |us| ListenSocket {
        wait: Some(std::time::Duration::from_micros(us)),
        ..socket("0.0.0.0", 80)
    };
    fake.0.borrow_mut().sockets = vec![waiting(500), waiting(1500), socket("0.0.0.0", 81)];
    let report = start(&fake, vec![web()]).listeners().unwrap().remove(0);
    assert_eq!(
        (report.queue_length, report.queue_limit, report.half_open),
        (6, 1022, 2)
    );
    assert_eq!(report.wait_us, Some(1500));
    assert_eq!(report.sockets.len(), 2);
}

#[test]
fn beside_a_controller_a_listener_refuses_later_and_is_shown_as_it_is_configured() {
    let fake = Fake::default();
    let mut session = start(&fake, vec![web()]);
    let rule = || {
        let state = fake.0.borrow();
        (
            state.applied[0].target_wait.as_millis(),
            state.applied[0].least_length,
        )
    };
    let shown = |session: &Session<Fake>| session.listeners().unwrap().remove(0).policy;
    assert_eq!(rule(), (20, 0));
    session.yield_to(Some(Settings::default())).unwrap();
    assert_eq!(rule(), (40, 32));
    assert_eq!(shown(&session), "reserv rst-syn, admit wait 20ms");
    session.swap(NORMAL, vec![web()], Vec::new()).unwrap();
    assert_eq!(rule(), (40, 32), "and after a reload");
    session.set_syn_filter(Some(SynFilter::Conntrack)).unwrap();
    assert_eq!(rule(), (40, 32), "and beside conntrack");
    session.yield_to(None).unwrap();
    assert_eq!(rule(), (20, 0));
    let observes = Settings {
        mode: Mode::Observe,
        ..Settings::default()
    };
    session.yield_to(Some(observes)).unwrap();
    assert_eq!(rule(), (20, 0), "one that sets nothing decides nothing");
}

#[test]
fn an_mptcp_listener_falls_back_and_status_says_so() {
    let fake = Fake::default();
    fake.0.borrow_mut().sockets = vec![ListenSocket {
        mptcp: true,
        ..socket("::", 80)
    }];
    let cookies = Listener {
        establish: Establish::NoSynDrop,
        ..web()
    };
    let session = start(&fake, vec![cookies]);
    assert_eq!(
        session.listeners().unwrap()[0].fallback.as_deref(),
        Some("rst-syn")
    );
    let reserv = start(&fake, vec![web()]);
    assert_eq!(reserv.listeners().unwrap()[0].fallback, None);
}

#[test]
fn conntrack_that_comes_and_goes_is_followed_and_status_says_so() {
    let fake = Fake::default();
    let cookies = Listener {
        establish: Establish::NoSynDrop,
        ..web()
    };
    let mut session = start(&fake, vec![cookies]);
    assert_eq!(fake.0.borrow().cookies, Some(true));
    let fallback = |session: &Session<Fake>| session.listeners().unwrap().remove(0).fallback;
    assert_eq!(fallback(&session), None);
    session.set_syn_filter(Some(SynFilter::Conntrack)).unwrap();
    assert_eq!(fake.0.borrow().cookies, Some(false));
    assert_eq!(fake.0.borrow().applied[0].establish, Establish::Abort);
    assert_eq!(fallback(&session).as_deref(), Some("abort rst-syn"));
    fake.0.borrow_mut().refuse_apply = true;
    assert!(session.set_syn_filter(None).is_err());
    assert!(fallback(&session).is_some(), "what is in force stays");
    fake.0.borrow_mut().refuse_apply = false;
    session.set_syn_filter(None).unwrap();
    assert_eq!(fallback(&session), None);
    assert_eq!(fake.0.borrow().applied[0].establish, Establish::NoSynDrop);
}

#[test]
fn without_syncookies_reserv_is_applied_and_no_syn_drop_still_shown_as_asked() {
    let fake = Fake::default();
    let never = Environment {
        syn_cookies: SynCookies::Never,
        bpf_cookies: true,
        syn_filter: None,
    };
    let cookies = Listener {
        establish: Establish::NoSynDrop,
        ..web()
    };
    let session =
        Session::start(fake.clone(), never, vec![cookies], Vec::new(), machine()).unwrap();
    assert_eq!(fake.0.borrow().applied[0].establish, Establish::Reserv);
    let report = session.listeners().unwrap().remove(0);
    assert_eq!(report.settings["establish"], "no-syn-drop");
    assert_eq!(report.fallback.as_deref(), Some("reserv rst-syn"));
    assert_eq!(session.notices().unwrap().len(), 1);
}

#[test]
fn cookies_are_out_only_after_one_was_sent_in_earnest() {
    let fake = Fake::default();
    let session = start(&fake, vec![web()]);
    assert!(!session.cookies_may_be_out());
    let mut counters = Counters::default();
    counters.0[Verdict::CookieSentFlood as usize] = 1;
    fake.0.borrow_mut().counters.insert("web".into(), counters);
    assert!(session.cookies_may_be_out());
    let observed = start(
        &fake,
        vec![Listener {
            mode: Mode::Observe,
            ..web()
        }],
    );
    assert!(!observed.cookies_may_be_out());
}

fn with_front() -> Listener {
    Listener {
        front: Front::Xdp,
        ..web()
    }
}

#[test]
fn the_front_goes_when_a_vlan_s_interface_is_added_and_comes_back() {
    let fake = Fake::default();
    let machine = vec![link(1, "lo"), link(2, "eth0")];
    let listeners = vec![with_front()];
    let mut session =
        Session::start(fake.clone(), NORMAL, listeners, Vec::new(), machine.clone()).unwrap();
    let at_xdp = |fake: &Fake| fake.0.borrow().attached[&2];
    assert!(at_xdp(&fake));
    let vlan = Link {
        vlan_of: Some(2),
        ..link(3, "eth0.10")
    };
    session.links_changed([machine.clone(), vec![vlan]].concat());
    assert!(!at_xdp(&fake));
    let warnings = session.warnings().join("\n");
    assert!(warnings.contains("on eth0: a VLAN's"), "{warnings}");
    session.links_changed(machine);
    assert!(at_xdp(&fake));
}

#[test]
fn more_cpus_than_claims_are_kept_for_are_told() {
    let fake = Fake::default();
    let session = start(&fake, vec![web()]);
    assert!(session.warnings().is_empty());
    fake.0.borrow_mut().shares_claims = true;
    let warnings = session.warnings().join("\n");
    assert!(warnings.contains("a number of 128 or more"), "{warnings}");
}

#[test]
fn the_front_comes_to_a_veth_and_goes_with_the_program_on_its_peer() {
    let fake = Fake::default();
    let veth = Link {
        peer: Some(Peer {
            index: 9,
            netns: Some(0),
        }),
        ..link(2, "eth0")
    };
    let machine = vec![link(1, "lo"), veth];
    let mut session = Session::start(
        fake.clone(),
        NORMAL,
        vec![with_front()],
        Vec::new(),
        machine.clone(),
    )
    .unwrap();
    let at_xdp = |fake: &Fake| fake.0.borrow().attached[&2];
    assert!(!at_xdp(&fake));
    let warnings = session.warnings().join("\n");
    assert!(
        warnings.contains("on eth0: the other end of this veth"),
        "{warnings}"
    );
    fake.0.borrow_mut().peers_with_xdp.push(9);
    session
        .swap(NORMAL, vec![with_front()], Vec::new())
        .unwrap();
    assert!(at_xdp(&fake));
    assert!(session.interfaces()[1].xdp);
    assert!(!session.warnings().join("\n").contains("eth0"));
    fake.0.borrow_mut().peers_with_xdp.clear();
    session.links_changed(machine);
    assert!(!at_xdp(&fake));
}

#[test]
fn what_stands_otherwise_than_asked_is_said() {
    let fake = Fake::default();
    fake.0
        .borrow_mut()
        .absent
        .push("192.0.2.1".parse().unwrap());
    fake.0.borrow_mut().no_xdp.push(2);
    let elsewhere = Listener {
        name: "far".into(),
        address: weir_config::parse_listen_address("192.0.2.1:81").unwrap(),
        ..on("eth7")
    };
    let mut session = start(&fake, vec![with_front(), elsewhere]);
    let starts = |session: &Session<Fake>, expected: &[&str]| {
        let warnings = session.warnings();
        assert_eq!(warnings.len(), expected.len(), "{warnings:?}");
        for (text, start) in warnings.iter().zip(expected) {
            assert!(text.starts_with(start), "{text}");
        }
    };
    starts(
        &session,
        &[
            "listener \"far\" is not in force: interface eth7 does not exist (did you mean eth0?; weir guards",
            "front = xdp stays at tc ingress on lo: ",
            "front = xdp stays at tc ingress on eth0: ",
            "listener \"far\": no interface has the address 192.0.2.1",
        ],
    );
    fake.0.borrow_mut().broken.push(3);
    session.swap(NORMAL, vec![web()], Vec::new()).unwrap();
    session.links_changed(vec![link(1, "lo"), link(3, "eth1")]);
    starts(&session, &["interface eth1 is not guarded: "]);
}

#[test]
fn a_listener_without_any_interface_is_not_in_force_and_one_with_some_is() {
    let fake = Fake::default();
    fake.0.borrow_mut().broken.push(2);
    let two = |name: &str, interfaces: [&str; 2]| Listener {
        name: name.into(),
        interfaces: interfaces.map(str::to_owned).to_vec(),
        ..web()
    };
    let both = Listener {
        address: weir_config::parse_listen_address("*:81").unwrap(),
        ..two("half", ["lo", "wlan7"])
    };
    let mut session = start(&fake, vec![both.clone()]);
    assert!(session.not_in_force().is_empty());
    session
        .swap(
            NORMAL,
            vec![two("none", ["wlan7", "wlan8"]), both],
            Vec::new(),
        )
        .unwrap();
    let (not_in_force, warnings) = session.notices_apart().unwrap();
    let [cause] = &not_in_force[..] else {
        panic!("{not_in_force:?}");
    };
    let expected = "listener \"none\" is not in force: interfaces wlan7, wlan8 do not exist";
    assert_eq!(cause.message, expected);
    assert_eq!(
        warnings,
        ["interface wlan7 does not exist; it is guarded once it appears"]
    );
    // One that is there and cannot be attached to guards nothing either.
    session.swap(NORMAL, vec![on("eth0")], Vec::new()).unwrap();
    assert!(!session.listeners().unwrap()[0].in_force);
    let said = &session.not_in_force()[0].message;
    assert!(
        said.ends_with("weir could attach to none of its interfaces"),
        "{said}"
    );
}

#[test]
fn fronts_that_stay_at_tc_for_one_reason_are_one_sentence() {
    let fake = Fake::default();
    let veth = |index| Link {
        peer: Some(Peer {
            index: 100 + index,
            netns: None,
        }),
        ..link(index, &format!("veth{index}"))
    };
    let mut session = start(&fake, vec![with_front()]);
    session.links_changed((3..43).map(veth).collect());
    let [warning] = &session.warnings()[..] else {
        panic!("{:?}", session.warnings());
    };
    let names = "veth3, veth4, veth5, veth6, veth7, veth8 and 34 more";
    let start = format!("front = xdp stays at tc ingress on {names}: ");
    assert!(warning.starts_with(&start), "{warning}");
    let apart = session.warnings_apart();
    session.links_changed((3..44).map(veth).collect());
    let new: Vec<String> = session
        .warnings_apart()
        .into_iter()
        .filter(|w| !apart.contains(w))
        .collect();
    assert_eq!(new.len(), 1, "{new:?}");
    assert!(new[0].contains("on veth43: "), "{new:?}");
}

fn class(name: &str, from: &str) -> Class {
    Class {
        from: vec![weir_core::prefix::parse_prefix(from).unwrap()],
        ..Class::new(name)
    }
}

#[test]
fn reports_have_the_classes_limits_and_the_controller_s_rate_until_it_is_lifted() {
    let fake = Fake::default();
    let gold = Class {
        rate: Some(300.0),
        ..class("gold", "10.1.0.0/16")
    };
    let mut session =
        Session::start(fake.clone(), NORMAL, vec![web()], vec![gold], machine()).unwrap();
    let limit = weir_core::controller::Limit {
        rate: 50.0,
        burst: 5.0,
    };
    let gone = ("silver".to_owned(), limit);
    session
        .control(
            &BTreeMap::from([("gold".to_owned(), limit), gone]),
            Instant::now(),
        )
        .unwrap();
    let in_kernel = weir_core::class::BucketLimit::new(50.0, 5);
    assert_eq!(
        fake.0.borrow().controlled,
        BTreeMap::from([("gold".to_owned(), in_kernel)])
    );
    let reports = session.listeners().unwrap().remove(0).classes;
    let names: Vec<&str> = reports.iter().map(|report| report.name.as_str()).collect();
    assert_eq!(names, ["gold", "other"]);
    assert_eq!((reports[0].rate, reports[0].burst), (Some(300.0), Some(30)));
    assert_eq!(reports[0].controlled_rate, Some(50.0));
    // What stays the same is not written again at each look.
    fake.0.borrow_mut().controlled.clear();
    session
        .control(
            &BTreeMap::from([("gold".to_owned(), limit)]),
            Instant::now(),
        )
        .unwrap();
    assert!(fake.0.borrow().controlled.is_empty());
    session.control(&BTreeMap::new(), Instant::now()).unwrap();
    assert_eq!(session.class_reports().unwrap()[0].controlled_rate, None);
}

#[test]
fn status_lists_a_thousand_classes_of_a_listener_and_counts_the_others() {
    let fake = Fake::default();
    let classes = (0..1007_u32)
        .map(|n| class(&format!("c{n}"), &format!("10.{}.{}.0/24", n >> 8, n & 255)))
        .collect();
    let session = Session::start(fake.clone(), NORMAL, vec![web()], classes, machine()).unwrap();
    let report = session.listeners().unwrap().remove(0);
    assert_eq!((report.classes.len(), report.classes_left_out), (1001, 7));
    assert_eq!(session.class_reports().unwrap().len(), 1008);
}

#[test]
fn classes_are_shown_once_by_the_listeners_that_their_counters_are_of() {
    let fake = Fake::default();
    let mail = Listener::new("mail", ListenAddress { ip: None, port: 25 });
    let of_web = Class {
        listener: Some("web".into()),
        ..class("gold", "10.1.0.0/16")
    };
    let classes = vec![of_web, class("crawlers", "10.2.0.0/16")];
    let names = |classes: &[weir_api::Class]| -> Vec<String> {
        classes.iter().map(|class| class.name.clone()).collect()
    };
    let of = |session: &Session<Fake>, listener: &str| {
        let reports = session.listeners().unwrap();
        names(
            &reports
                .iter()
                .find(|one| one.name == listener)
                .unwrap()
                .classes,
        )
    };
    let alone = Session::start(
        fake.clone(),
        NORMAL,
        vec![web()],
        classes.clone(),
        machine(),
    );
    let alone = alone.unwrap();
    assert_eq!(of(&alone, "web"), ["gold", "crawlers", "other"]);
    assert!(alone.classes_of_all().unwrap().0.is_empty());
    drop(alone);
    let both = Session::start(fake.clone(), NORMAL, vec![web(), mail], classes, machine()).unwrap();
    assert_eq!(of(&both, "web"), ["gold"]);
    assert!(of(&both, "mail").is_empty(), "it has none of its own");
    assert_eq!(
        names(&both.classes_of_all().unwrap().0),
        ["crawlers", "other"]
    );
}

#[test]
fn a_listener_whose_connections_may_be_those_of_a_service_passes_all_and_says_so() {
    let fake = Fake::default();
    let mut session = start(&fake, vec![web()]);
    let fallback = |session: &Session<Fake>| session.listeners().unwrap()[0].fallback.clone();
    assert_eq!(fallback(&session), None);
    let service = Services {
        addresses: [("10.96.0.1".parse().unwrap(), web().address.port)].into(),
        unknown: false,
    };
    session.set_services(service.clone()).unwrap();
    assert_eq!(fake.0.borrow().services, service);
    assert_eq!(fallback(&session), None, "other addresses are guarded");
    let marks = Services {
        unknown: true,
        ..Services::default()
    };
    session.set_services(marks).unwrap();
    assert_eq!(fallback(&session).as_deref(), Some("none"));
    session.set_services(Services::default()).unwrap();
    assert_eq!(fallback(&session), None);
}

use std::time::{Duration, SystemTime};

use super::*;

fn healthy() -> Facts {
    Facts {
        syn_cookies: Some(1),
        somaxconn: Some(4096),
        netdev_max_backlog: Some(1000),
        abort_on_overflow: Some(0),
        syn_filters: Vec::new(),
        receive_drops: Some(0),
        cpus: 2,
        receivers: vec![Receiver {
            interface: "eth0".into(),
            queues: 2,
            rps: false,
        }],
        chains: Vec::new(),
        guarded_from_outside: Vec::new(),
        lonely_veths: Vec::new(),
        tw_reuse: Some(2),
        timestamps: Some(1),
        rfc1337: Some(0),
        local_ports: 28_232,
        ports: vec![ports(14_000)],
        rmem_max: Some(212_992),
        udp: Vec::new(),
        sockets: Ok(vec![Socket {
            address: "0.0.0.0:80".into(),
            limit: 511,
            server: None,
            mptcp: false,
            vrf: None,
            ..idle()
        }]),
    }
}

/// A socket at which nobody waits.
fn idle() -> Socket {
    Socket {
        address: "0.0.0.0:80".into(),
        limit: 4096,
        server: None,
        mptcp: false,
        vrf: None,
        pid: None,
        started: None,
        queue: None,
        guarded: None,
        is_guarded_outside: false,
    }
}

/// The incident of a Node server whose event loop is fine.
fn pegged(guarded: Option<Guarded>) -> Facts {
    let node = Socket {
        address: "0.0.0.0:3000".into(),
        limit: 511,
        server: Some("node".into()),
        pid: Some(4711),
        started: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1_764_000_000)),
        queue: Some(Queue {
            length: 512,
            length_now: 512,
            dropped: 22_341,
            dropped_now: 80,
            time: Duration::from_millis(1200),
            ..Queue::default()
        }),
        guarded,
        ..idle()
    };
    let small = Socket {
        limit: 128,
        ..idle()
    };
    Facts {
        receive_drops: Some(12),
        lonely_veths: vec!["veth0".into()],
        sockets: Ok(vec![small, node]),
        ..healthy()
    }
}

#[test]
fn no_second_weir_is_proposed_where_one_guards_from_outside() {
    let mut facts = pegged(None);
    facts.guarded_from_outside = vec!["lo".into(), "eth0".into()];
    for socket in facts.sockets.as_mut().unwrap() {
        socket.is_guarded_outside = true;
    }
    let findings = advise(&facts);
    let proposes = |finding: &Finding| finding.hint.contains("weir protect");
    assert!(!findings.iter().any(proposes), "{findings:#?}");
    assert!(findings[0].hint.contains("start no second one"));
    let guard = findings.iter().find(|finding| finding.name == "guard");
    let guard = guard.unwrap();
    assert!(
        guard.text.ends_with("its programs are on lo, eth0"),
        "{guard:?}"
    );
    assert!(guard.hint.contains("no second weir"), "{guard:?}");
}

#[test]
fn a_full_queue_comes_first_and_what_is_not_the_trouble_last() {
    let findings = advise(&pegged(None));
    let first = &findings[0];
    assert_eq!(first.name, "queue of *:3000 (node, pid 4711)");
    assert_eq!(
        first.text,
        "is full: 512 of 511 places are taken, 22341 SYNs and ACKs dropped since it listens (several of each client), 80 of them \
         in the last 1.2 s. The server accepts more slowly than clients come"
    );
    assert!(first.hint.contains("`weir protect 3000`"), "{first:?}");
    let figures = first.queue.as_ref().unwrap();
    assert_eq!((figures.queue_length, figures.pid), (512, Some(4711)));
    let names: Vec<&str> = findings.iter().map(|f| f.name.as_str()).collect();
    let last = [
        "backlog of 0.0.0.0:80",
        "netdev_max_backlog",
        "XDP front on veth0",
    ];
    assert_eq!(names[names.len() - 3..], last);
    assert!(!names.contains(&"backlog of 0.0.0.0:3000"));
}

#[test]
fn of_a_queue_that_weir_observes_it_is_said_what_enforcing_would_do() {
    let guarded = Guarded {
        listener: "web".into(),
        enforces: false,
        wait: Some(Duration::from_secs(4)),
        would_refuse: Some((11_000, 4_950)),
        fifo_because: None,
    };
    let first = advise(&pegged(Some(guarded))).remove(0);
    assert!(first.text.contains("waits 4.0 s for accept()"), "{first:?}");
    assert!(
        first
            .hint
            .contains("would have refused about 45 % of the 11000 connections so far"),
        "{first:?}"
    );
    assert!(
        first
            .hint
            .contains("the queue drains first, which takes about 4.0 s"),
        "{first:?}"
    );
}

/// A pool of four that each take 2 s, and as many of whose clients wait.
fn pool(length: u32, passage: Option<(u32, u32)>) -> Facts {
    let mut facts = pegged(None);
    let queue = Queue {
        length,
        length_now: length,
        dropped: 0,
        dropped_now: 0,
        time: Duration::from_secs(2),
        passage: passage.map(|(waited, accepted)| Passage {
            length,
            waited,
            accepted,
        }),
        gone: Some(length - 40),
    };
    facts.sockets.as_mut().unwrap()[1].queue = Some(queue);
    facts
}

#[test]
fn a_long_queue_that_is_not_full_is_a_warning_with_the_wait() {
    let first = advise(&pool(237, Some((237, 4)))).remove(0);
    assert_eq!((first.state, first.queue.is_some()), (State::Warn, true));
    assert_eq!(
        first.text,
        "is long: 237 of 511 places are taken, 197 of them by clients that have gone, so no client is turned away, and all wait. \
         The server accepts about 2.0/s: who comes now waits 1 min 58 s for accept()"
    );
    assert!(first.hint.contains("`weir protect 3000`"), "{first:?}");
    let troubles = |facts| advise(&facts).iter().filter(|f| f.queue.is_some()).count();
    let mut drained = pool(237, Some((237, 237)));
    let queue = drained.sockets.as_mut().unwrap()[1].queue.as_mut().unwrap();
    queue.length_now = 4;
    assert_eq!(troubles(drained), 0, "a burst that has been accepted");
    assert_eq!(troubles(pool(237, None)), 0, "nothing is known");
}

#[test]
fn a_server_that_accepts_nothing_is_not_called_slow_and_promises_nobody_service() {
    for length in [1 + 40, 512] {
        let first = advise(&pool(length, Some((40, 0)))).remove(0);
        assert!(
            first
                .text
                .ends_with("The server has accepted nothing for 2.0 s: it has stopped"),
            "{first:?}"
        );
        assert!(!first.hint.contains("promptly"), "{first:?}");
        assert!(first.hint.contains("restart"), "{first:?}");
    }
}

#[test]
fn why_a_queue_is_not_in_the_order_of_priority_is_said() {
    let mut facts = healthy();
    let about = |facts: &Facts| {
        let all = advise(facts).into_iter();
        let its: Vec<_> = all.filter(|f| f.name.starts_with("priority")).collect();
        its
    };
    assert_eq!(about(&facts), []);
    if let Ok(sockets) = &mut facts.sockets {
        sockets[0].guarded = Some(Guarded {
            listener: "web".into(),
            enforces: true,
            wait: None,
            would_refuse: None,
            fifo_because: Some("its listening socket has a filter".into()),
        });
    }
    let found = about(&facts);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].name, "priority at 0.0.0.0:80");
    assert!(found[0].text.contains("has a filter"), "{found:?}");
}

#[test]
fn a_queue_that_was_full_long_ago_is_no_trouble() {
    let mut facts = pegged(None);
    let sockets = facts.sockets.as_mut().unwrap();
    sockets[1].queue = Some(Queue {
        length: 3,
        length_now: 3,
        dropped: 22_341,
        time: Duration::from_secs(1),
        ..Queue::default()
    });
    assert!(advise(&facts).iter().all(|finding| finding.queue.is_none()));
}

fn ports(time_wait: u32) -> Ports {
    Ports {
        from: "10.0.0.1".parse().unwrap(),
        to: "10.0.0.5:8080".parse().unwrap(),
        taken: time_wait + 20,
        time_wait,
    }
}

/// Names of the findings that are not ok.
fn complaints(facts: &Facts) -> Vec<String> {
    let findings = advise(facts);
    let bad = findings
        .into_iter()
        .filter(|finding| finding.state != State::Ok);
    bad.inspect(|finding| assert!(!finding.hint.is_empty(), "{finding:?}"))
        .map(|finding| finding.name)
        .collect()
}

fn sockets(limit: u32, mptcp: bool) -> Facts {
    let socket = Socket {
        address: "0.0.0.0:80".into(),
        limit,
        server: None,
        mptcp,
        ..idle()
    };
    Facts {
        sockets: Ok(vec![socket]),
        ..healthy()
    }
}

#[test]
fn a_healthy_machine_has_no_complaint() {
    assert_eq!(complaints(&healthy()), Vec::<String>::new());
}

#[test]
fn a_socket_that_is_bound_to_a_vrf_is_named() {
    let mut facts = sockets(4096, false);
    facts.sockets.as_mut().unwrap()[0].vrf = Some("red".into());
    let finding = advise(&facts);
    let finding = finding.iter().find(|one| one.name == "VRF of 0.0.0.0:80");
    assert!(finding.unwrap().text.contains("bound to the VRF red"));
    assert_eq!(complaints(&facts), ["VRF of 0.0.0.0:80"]);
}

#[test]
fn each_ailment_is_named_once() {
    let one = |interface: &str, rps| {
        let receiver = Receiver {
            interface: interface.into(),
            queues: 1,
            rps,
        };
        Facts {
            receivers: vec![receiver],
            ..healthy()
        }
    };
    let cases = [
        (
            Facts {
                syn_cookies: Some(0),
                ..healthy()
            },
            "tcp_syncookies",
        ),
        (
            Facts {
                syn_cookies: Some(2),
                ..healthy()
            },
            "tcp_syncookies",
        ),
        (
            Facts {
                syn_cookies: None,
                ..healthy()
            },
            "tcp_syncookies",
        ),
        (
            Facts {
                abort_on_overflow: Some(1),
                ..healthy()
            },
            "tcp_abort_on_overflow",
        ),
        (
            Facts {
                receive_drops: Some(7),
                ..healthy()
            },
            "netdev_max_backlog",
        ),
        (
            Facts {
                somaxconn: Some(128),
                ..healthy()
            },
            "somaxconn",
        ),
        (one("eth0", false), "receive steering of eth0"),
        (
            Facts {
                lonely_veths: vec!["veth0".into()],
                ..healthy()
            },
            "XDP front on veth0",
        ),
        (
            Facts {
                ports: vec![ports(14_116)],
                ..healthy()
            },
            "local ports to 10.0.0.5:8080",
        ),
        (
            Facts {
                ports: vec![ports(28_000)],
                tw_reuse: Some(1),
                timestamps: Some(0),
                ..healthy()
            },
            "local ports to 10.0.0.5:8080",
        ),
        (
            Facts {
                ports: vec![Ports {
                    taken: 28_000,
                    ..ports(100)
                }],
                tw_reuse: Some(1),
                ..healthy()
            },
            "local ports to 10.0.0.5:8080",
        ),
        (sockets(128, false), "backlog of 0.0.0.0:80"),
        (sockets(511, true), "MPTCP on 0.0.0.0:80"),
        (
            Facts {
                sockets: Err("no right".into()),
                ..healthy()
            },
            "listening sockets",
        ),
    ];
    for (facts, name) in cases {
        assert_eq!(complaints(&facts), [name]);
    }
    assert!(complaints(&one("eth0", true)).is_empty());
    assert!(
        complaints(&Facts {
            cpus: 1,
            ..one("eth0", false)
        })
        .is_empty()
    );
}

#[test]
fn ports_in_time_wait_that_connect_takes_again_are_no_complaint() {
    let all = |from: &str, to: &str| Ports {
        from: from.parse().unwrap(),
        to: to.parse().unwrap(),
        taken: 28_232,
        time_wait: 28_232,
    };
    let complains = |ports, tw_reuse| {
        let facts = Facts {
            ports: vec![ports],
            tw_reuse: Some(tw_reuse),
            ..healthy()
        };
        !complaints(&facts).is_empty()
    };
    let outside = || all("10.0.0.1", "10.0.0.5:8080");
    let loopback = || all("127.0.0.1", "127.0.0.1:8080");
    let of = |ports: &dyn Fn() -> Ports| [0, 1, 2].map(|reuse| complains(ports(), reuse));
    assert_eq!(of(&outside), [true, false, true]);
    assert_eq!(of(&loopback), [true, false, false]);
}

#[test]
fn findings_that_differ_in_their_objects_only_become_one_row() {
    let veths: Vec<String> = (0..9).map(|i| format!("veth{i}")).collect();
    let facts = Facts {
        lonely_veths: veths.clone(),
        ..sockets(128, true)
    };
    let findings = advise(&facts);
    let rows = fold(&findings);
    assert_eq!(rows.iter().map(Vec::len).sum::<usize>(), findings.len());
    let folded: Vec<_> = rows.iter().filter(|row| row.len() > 1).collect();
    assert_eq!(folded.len(), 1);
    assert_eq!(folded[0][0].name_for(9), "XDP front on 9 interfaces");
    let objects: Vec<_> = folded[0]
        .iter()
        .filter_map(|f| f.object.as_ref())
        .map(|object| object.name.clone())
        .collect();
    assert_eq!(objects, veths);
}

#[test]
fn a_finding_about_one_object_keeps_its_name() {
    let findings = advise(&sockets(128, false));
    let names: Vec<String> = fold(&findings)
        .iter()
        .map(|row| row[0].name_for(row.len()))
        .collect();
    assert!(
        names.contains(&"backlog of 0.0.0.0:80".to_owned()),
        "{names:?}"
    );
}

#[test]
fn a_backlog_cut_by_somaxconn_is_told_apart() {
    let cut = Facts {
        somaxconn: Some(128),
        ..sockets(128, false)
    };
    let hint = |facts: &Facts| {
        let mut findings = advise(facts).into_iter();
        findings
            .find(|f| f.name.starts_with("backlog of"))
            .unwrap()
            .hint
    };
    assert!(hint(&cut).starts_with("sysctl -w net.core.somaxconn=4096"));
    assert!(hint(&sockets(128, false)).contains("backlog=4096"));
}

#[test]
fn the_hint_about_a_small_backlog_is_for_the_server_that_has_it() {
    let hint = |server| small_backlog(128, Some(4096), Some(server)).unwrap().hint;
    for (server, words) in [
        ("nginx", "`listen 80 backlog=4096;`"),
        ("apache2", "`ListenBacklog 4096`"),
        ("httpd", "`ListenBacklog 4096`"),
        ("haproxy", "`backlog 4096`"),
        ("node", "backlog: 4096"),
        ("myserver", "Go takes net.core.somaxconn"),
    ] {
        assert!(hint(server).contains(words), "{server}: {}", hint(server));
    }
    assert_eq!(small_backlog(SMALL_BACKLOG, Some(4096), None), None);
}

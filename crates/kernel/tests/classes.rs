//! Classes in the loaded guard (BPF_PROG_TEST_RUN): the lookup in C against the rules in Rust, and the
//! rate that is let in. Needs root. Seeds are printed; set WEIR_SEED to run one again.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use etherparse::PacketBuilder;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use weir_core::class::{BucketLimit, Class, OTHER, OverRate, Rules, Tuple};
use weir_core::listener::{ListenAddress, Listener};
use weir_core::prefix::parse_prefix;
use weir_core::verdict::Verdict;
use weir_kernel::Guard;
use weir_testbed::seed::seed;
use weir_testbed::{needs, netns};

const DROP: i32 = 2;
const PASS: i32 = -1;
const REDIRECT: i32 = 7;

/// A listener with room in a network namespace of its own. `None` without root.
fn world(names: &[&str]) -> Option<(Guard, Vec<Listener>, Vec<TcpListener>)> {
    if !needs::root("BPF_PROG_TEST_RUN") {
        return None;
    }
    netns::enter_new().expect("a network namespace of our own");
    let sockets: Vec<TcpListener> = names
        .iter()
        .map(|_| TcpListener::bind("[::]:0").expect("a listener"))
        .collect();
    let listener = |(name, socket): (&&str, &TcpListener)| {
        let port = socket.local_addr().unwrap().port();
        Listener::new(*name, ListenAddress { ip: None, port })
    };
    let listeners = names.iter().zip(&sockets).map(listener).collect();
    Some((Guard::load().expect("the guard loads"), listeners, sockets))
}

fn syn(from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let eth = PacketBuilder::ethernet2([0; 6], [0; 6]);
    let ip = match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => eth.ipv4(from.octets(), to.octets(), 64),
        (IpAddr::V6(from), IpAddr::V6(to)) => eth.ipv6(from.octets(), to.octets(), 64),
        _ => unreachable!("one family"),
    };
    let mut frame = Vec::new();
    let tcp = ip.tcp(from.port(), to.port(), 1, 65_535).syn();
    tcp.write(&mut frame, &[]).expect("a vector");
    frame
}

/// Few values for each field, so that rules meet.
fn any_class() -> impl Strategy<Value = Class> {
    let list = |which: &'static [&'static str]| {
        let prefix = prop::sample::select(which).prop_map(|text| parse_prefix(text).unwrap());
        prop::collection::vec(prefix, 0..3)
    };
    let from = list(&[
        "10.0.0.0/8",
        "10.1.0.0/16",
        "10.1.1.1",
        "0.0.0.0/0",
        "fd01::/16",
        "fd01::1",
        "::/0",
    ]);
    let to = list(&["127.0.0.0/8", "127.0.0.1", "::1"]);
    let listener = prop::option::of(prop::sample::select(&["one", "two"][..]));
    (from, to, prop::option::of(1000u16..1003), listener).prop_map(
        |(from, to, from_port, listener)| Class {
            from,
            to,
            from_port,
            listener: listener.map(str::to_owned),
            ..Class::new("")
        },
    )
}

#[test]
fn c_and_rust_find_the_same_class_for_every_connection() {
    let Some((mut guard, listeners, _sockets)) = world(&["one", "two"]) else {
        return;
    };
    let mut runner = TestRunner::new(Config {
        rng_seed: RngSeed::Fixed(seed()),
        ..Config::default()
    });
    let (mut of_a_class, mut compared) = (0, 0);
    for _ in 0..150 {
        let many = prop::collection::vec(any_class(), 1..8);
        let mut classes = many.new_tree(&mut runner).unwrap().current();
        for (number, class) in classes.iter_mut().enumerate() {
            class.name = format!("c{number}");
        }
        let rules = Rules::compile(&classes, |class| {
            let name = class.listener.as_ref()?;
            Some(1 + listeners.iter().position(|l| l.name == *name).unwrap() as u16)
        });
        if !rules.ties(1).is_empty() {
            continue;
        }
        guard
            .apply(&listeners, &classes)
            .expect("the policy is taken");
        let from = [
            "10.1.1.1",
            "10.1.0.9",
            "10.9.0.1",
            "192.0.2.7",
            "fd01::1",
            "fd01::2",
            "fd02::1",
        ];
        for from in from.map(|text| text.parse::<IpAddr>().unwrap()) {
            for port in 1000..1004 {
                for (number, listener) in listeners.iter().enumerate() {
                    let to: IpAddr = match from {
                        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                        IpAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
                    };
                    let from = SocketAddr::new(from, port);
                    let to = SocketAddr::new(to, listener.address.port);
                    let owner = number as u16 + 1;
                    let class = rules.classify(&Tuple { from, to, owner });
                    let name = class.map_or(OTHER, |index| classes[index].name.as_str());
                    let met = |guard: &Guard| -> u64 {
                        let counters = guard.class_counters().unwrap()[name].syns;
                        counters.rows().map(|(_, n)| n).sum()
                    };
                    // Without a class of this listener nothing is looked up.
                    let looked_up = classes.iter().any(|c| c.is_of_listener(&listener.name));
                    let before = met(&guard);
                    guard.judge_tc(&syn(from, to)).expect("a test run");
                    let expected = before + u64::from(looked_up);
                    assert_eq!(met(&guard), expected, "{from} > {to}: {name}: {classes:#?}");
                    of_a_class += usize::from(class.is_some());
                    compared += 1;
                }
            }
        }
    }
    println!("{compared} connections, {of_a_class} of a class");
    assert!(of_a_class > 500, "{of_a_class} of {compared}");
}

#[test]
fn ten_thousand_rules_are_in_force_in_a_moment_and_each_finds_its_class() {
    let Some((mut guard, listeners, _sockets)) = world(&["one"]) else {
        return;
    };
    let address = |n: u32| Ipv4Addr::from(10 << 24 | n << 4);
    let class = |n: u32| Class {
        from: vec![parse_prefix(&format!("{}/{}", address(n), 28 + n % 5)).unwrap()],
        ..Class::new(format!("c{n}"))
    };
    let classes: Vec<Class> = (0..10_000).map(class).collect();
    let start = Instant::now();
    guard
        .apply(&listeners, &classes)
        .expect("the policy is taken");
    println!("10 000 rules in force after {:?}", start.elapsed());
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "{:?}",
        start.elapsed()
    );
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, listeners[0].address.port));
    for n in (0..10_000).step_by(97) {
        guard
            .judge_tc(&syn((address(n), 1000).into(), to))
            .expect("a test run");
        let counters = guard.class_counters().unwrap()[&format!("c{n}")].syns;
        assert_eq!(counters.get(Verdict::SynAdmitted), 1, "c{n}");
    }
}

/// A SYN to `to` in each way that is not plain, by its name. IPv4 clients are 10/8, IPv6 ones fd01::/16.
fn syns_that_are_not_plain(port: u16) -> Vec<(&'static str, Vec<u8>)> {
    let v4 = syn(([10, 0, 0, 1], 1000).into(), ([127, 0, 0, 1], port).into());
    let from = SocketAddr::new("fd01::1".parse().unwrap(), 1000);
    let v6 = syn(from, SocketAddr::new("::1".parse().unwrap(), port));
    let with_length = |mut frame: Vec<u8>| {
        let length = (frame.len() - 14) as u16;
        match frame[12] {
            0x86 => frame[18..20].copy_from_slice(&(length - 40).to_be_bytes()),
            _ => frame[16..18].copy_from_slice(&length.to_be_bytes()),
        }
        frame
    };
    let options = |words: u8| {
        let mut frame = v4.clone();
        frame[14] += words;
        frame.splice(34..34, vec![1; usize::from(words) * 4]);
        with_length(frame)
    };
    let behind = |next: &[u8]| {
        let mut frame = v6.clone();
        let mut headers = Vec::new();
        for (index, _) in next.iter().enumerate() {
            headers.extend([*next.get(index + 1).unwrap_or(&6), 0, 0, 0, 0, 0, 0, 0]);
        }
        frame[20] = next[0];
        frame.splice(54..54, headers);
        with_length(frame)
    };
    let mut first = v4.clone();
    (first[20], first[21]) = (0x20, 0);
    let mut first6 = behind(&[44]);
    first6[57] = 1;
    vec![
        ("four NOPs", options(1)),
        ("forty bytes of options", options(10)),
        ("a first fragment", first),
        ("hop-by-hop options", behind(&[0])),
        ("a routing header", behind(&[43])),
        ("destination options", behind(&[60])),
        ("an atomic fragment", behind(&[44])),
        ("a first fragment of IPv6", first6),
        ("a hundred headers", behind(&[60; 100])),
    ]
}

#[test]
fn a_syn_that_is_not_plain_takes_a_token_of_its_class_too() {
    for over_rate in [OverRate::Drop, OverRate::Rst] {
        let Some((mut guard, listeners, _sockets)) = world(&["one"]) else {
            return;
        };
        for (name, frame) in syns_that_are_not_plain(listeners[0].address.port) {
            let class = Class {
                from: vec![
                    parse_prefix("10.0.0.0/8").unwrap(),
                    parse_prefix("fd01::/16").unwrap(),
                ],
                rate: Some(0.1),
                burst: Some(3),
                over_rate,
                ..Class::new(name)
            };
            guard
                .apply(&listeners, &[class])
                .expect("the policy is taken");
            let judge = |_| guard.judge_tc(&frame).expect("a test run").action;
            let actions: Vec<i32> = (0..10).map(judge).collect();
            assert_eq!(
                actions,
                [[PASS; 3].as_slice(), &[DROP; 7]].concat(),
                "{name}"
            );
            let counters = guard.class_counters().unwrap()[name].syns;
            assert_eq!(counters.get(Verdict::SynNotPlain), 3, "{name}");
            assert_eq!(counters.get(Verdict::SynDroppedRate), 7, "{name}");
            // The front leaves it to tc, where it is policed.
            assert_eq!(
                guard.judge_xdp(&frame).expect("a test run").action,
                2,
                "{name}"
            );
        }
    }
}

#[test]
fn a_fragment_without_flags_is_counted_and_passes() {
    let Some((mut guard, listeners, _sockets)) = world(&["one"]) else {
        return;
    };
    guard
        .apply(
            &listeners,
            &[Class {
                rate: Some(0.1),
                burst: Some(1),
                from: vec![parse_prefix("10.0.0.0/8").unwrap()],
                ..Class::new("all")
            }],
        )
        .unwrap();
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, listeners[0].address.port));
    let mut frame = syn(([10, 0, 0, 1], 1000).into(), to);
    frame.truncate(14 + 20 + 8);
    frame[16..18].copy_from_slice(&28u16.to_be_bytes());
    (frame[20], frame[21]) = (0x20, 0);
    for _ in 0..5 {
        assert_eq!(guard.judge_tc(&frame).expect("a test run").action, PASS);
    }
    let counters = guard.class_counters().unwrap()["all"].syns;
    assert_eq!(counters.get(Verdict::SynInFragments), 5);
}

#[test]
fn a_controlled_rate_holds_beside_the_own_one_the_lower_and_ends_when_it_is_lifted() {
    let Some((mut guard, listeners, _sockets)) = world(&["one"]) else {
        return;
    };
    let class = |name: &str, from: &str| Class {
        from: vec![parse_prefix(from).unwrap()],
        rate: Some(0.1),
        burst: Some(3),
        ..Class::new(name)
    };
    let classes = [class("gold", "10.0.0.0/8"), class("tin", "11.0.0.0/8")];
    guard
        .apply(&listeners, &classes)
        .expect("the policy is taken");
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, listeners[0].address.port));
    let admitted = |guard: &Guard, from: &str| -> usize {
        let frame = syn(SocketAddr::new(from.parse().unwrap(), 1000), to);
        let judge = |_: &i32| match guard.judge_tc(&frame).expect("a test run").action {
            PASS => true,
            action => {
                // Over its own rate: over_rate, drop. Over the controller's: the listener's reject_syn, rst.
                let over_its_own = from != "192.0.2.1";
                assert_eq!(action, if over_its_own { DROP } else { REDIRECT });
                false
            }
        };
        (0..10).filter(judge).count()
    };
    let limit = |name: &str, limit| BTreeMap::from([(name.to_owned(), limit)]);
    // A higher rate of the controller's changes nothing.
    guard
        .set_controlled_rates(&limit("gold", Some(BucketLimit::new(1e6, 100_000))))
        .unwrap();
    assert_eq!(admitted(&guard, "10.0.0.1"), 3);
    guard
        .set_controlled_rates(&limit(OTHER, Some(BucketLimit::new(0.1, 1))))
        .unwrap();
    assert_eq!(admitted(&guard, "192.0.2.1"), 1);
    // The verdict says whose limit it was.
    let counted = |class: &str, verdict| guard.class_counters().unwrap()[class].syns.get(verdict);
    assert_eq!(counted("gold", Verdict::SynDroppedRate), 7);
    assert_eq!(counted(OTHER, Verdict::SynResetHeld), 9);
    assert_eq!(counted(OTHER, Verdict::SynResetRate), 0);
    // The controller opens again: what 0.1/s has left of the bucket, ten seconds of debt, holds no longer.
    guard
        .set_controlled_rates(&limit(OTHER, Some(BucketLimit::new(1e6, 100))))
        .unwrap();
    assert_eq!(admitted(&guard, "192.0.2.1"), 10);
    guard.set_controlled_rates(&limit(OTHER, None)).unwrap();
    assert_eq!(admitted(&guard, "192.0.2.1"), 10);
    assert_eq!(admitted(&guard, "11.0.0.1"), 3);
    assert!(
        guard
            .set_controlled_rates(&limit("silver", Some(BucketLimit::new(1.0, 1))))
            .is_err()
    );
}

/// A class over its rate, the drops of which are counted and sampled.
fn over_rate(guard: &mut Guard, listeners: &[Listener], from: &str) {
    let class = Class {
        from: vec![parse_prefix(from).unwrap()],
        rate: Some(0.1),
        burst: Some(1),
        over_rate: OverRate::Drop,
        ..Class::new("bounded")
    };
    guard
        .apply(listeners, &[class])
        .expect("the policy is taken");
}

#[test]
fn each_of_few_refusals_is_sampled_also_when_all_cpus_refuse_at_once() {
    let Some((mut guard, listeners, _sockets)) = world(&["one"]) else {
        return;
    };
    over_rate(&mut guard, &listeners, "10.0.0.0/8");
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, listeners[0].address.port));
    let frame = syn(([10, 0, 0, 1], 1000).into(), to);
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    // Fewer than the thousand that may be sampled at once.
    guard
        .judge_tc_on_all_cpus(&frame, 900 / cpus as u32)
        .expect("test runs");
    let refused = guard.class_counters().unwrap()["bounded"]
        .syns
        .get(Verdict::SynDroppedRate);
    assert_eq!(guard.events().unwrap().len() as u64, refused);
    assert_eq!(refused, (900 / cpus * cpus) as u64 - 1);
}

#[test]
fn a_reserved_address_is_judged_as_the_kernel_takes_it_for_a_client() {
    let Some((mut guard, listeners, _sockets)) = world(&["one"]) else {
        return;
    };
    over_rate(&mut guard, &listeners, "0.0.0.0/0");
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, listeners[0].address.port));
    let action = |first: [u8; 4]| {
        let frame = syn((first, 1000).into(), to);
        guard.judge_tc(&frame).expect("a test run").action
    };
    assert_eq!(action([10, 0, 0, 1]), PASS, "the token");
    for address in [[240, 0, 0, 1], [255, 255, 255, 254], [0, 0, 0, 1]] {
        assert_eq!(action(address), DROP, "{address:?}");
    }
    // Martians: the kernel drops them.
    for address in [[224, 0, 0, 1], [239, 255, 255, 255], [0; 4], [255; 4]] {
        assert_eq!(action(address), PASS, "{address:?}");
    }
}

/// Tests that judge rates: scripts/test runs each of them alone.
mod measured {
    use super::*;

    /// The accuracy that is promised: 2 % of the rate over 10 s, at every rate from 1/s to 100 000/s.
    #[test]
    fn over_ten_seconds_the_admitted_rate_is_within_two_percent_at_every_rate() {
        let Some((mut guard, listeners, _sockets)) = world(&["one"]) else {
            return;
        };
        let rates = [1.0, 10.0, 100.0, 1000.0, 10_000.0, 100_000.0];
        let class = |(number, rate): (usize, &f64)| Class {
            from: vec![parse_prefix(&format!("10.0.0.{}", number + 1)).unwrap()],
            rate: Some(*rate),
            // What is due while this test is kept from running is still let in afterwards.
            burst: Some((rate / 2.0).max(10.0) as u32),
            over_rate: OverRate::Drop,
            ..Class::new(format!("c{rate}"))
        };
        let classes: Vec<Class> = rates.iter().enumerate().map(class).collect();
        guard
            .apply(&listeners, &classes)
            .expect("the policy is taken");
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, listeners[0].address.port));
        let frame = |number: usize| syn(([10, 0, 0, number as u8 + 1], 1000).into(), to);
        let frames: Vec<Vec<u8>> = (0..rates.len()).map(frame).collect();
        // All classes in turn, each with more than its rate.
        let offer = |until: Instant| {
            while Instant::now() < until {
                for frame in &frames {
                    guard.judge_tc_repeatedly(frame, 500).expect("a test run");
                }
            }
        };
        // Until the bursts, half a second's, are used up.
        offer(Instant::now() + Duration::from_millis(1500));
        let counted = |verdict: &dyn Fn(&weir_core::verdict::Counters) -> u64| -> Vec<u64> {
            let counters = guard.class_counters().unwrap();
            classes
                .iter()
                .map(|c| verdict(&counters[&c.name].syns))
                .collect()
        };
        let over = |c: &weir_core::verdict::Counters| c.get(Verdict::SynDroppedRate);
        let all = |c: &weir_core::verdict::Counters| c.rows().map(|(_, n)| n).sum::<u64>();
        let let_in = |c: &weir_core::verdict::Counters| all(c) - over(c);
        let (start, before, offered) = (Instant::now(), counted(&let_in), counted(&all));
        offer(start + Duration::from_secs(10));
        let (seconds, after) = (start.elapsed().as_secs_f64(), counted(&let_in));
        println!(
            "{:>10} {:>12} {:>10} {:>8}",
            "rate", "offered/s", "admitted/s", "off"
        );
        for (index, rate) in rates.iter().enumerate() {
            let admitted = (after[index] - before[index]) as f64;
            let (wanted, off) = (rate * seconds, admitted - rate * seconds);
            let offered = (counted(&all)[index] - offered[index]) as f64 / seconds;
            println!(
                "{rate:>10} {offered:>12.0} {:>10.2} {:>7.2}%",
                admitted / seconds,
                100.0 * off / wanted
            );
            assert!(
                offered > 1.2 * rate,
                "too few were offered: {offered}/s of {rate}/s"
            );
            // One more or less is the moment at which the counting began.
            assert!(
                off.abs() <= 0.02 * wanted || off.abs() <= 1.0,
                "{rate}/s: {admitted} in {seconds} s"
            );
        }
    }
}

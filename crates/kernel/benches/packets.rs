//! ns per packet of the guard by BPF_PROG_TEST_RUN: `make bench`. Only the rows whose name has a word
//! in it: `cargo bench -p weir-kernel --bench packets -- refused`.
//!
//! Each kind of packet is judged many times over in one run. Beside it, in turn, run the empty program,
//! the program that only restores the packet, and the program that restores it and calls the kernel's own
//! socket lookup. What the guard adds to restoring the packet is printed in ns, as median and quartiles.
//!
//! The ratios by which a row is judged: packets of connections by the empty program's time, SYNs by the
//! lookup's, which no verdict on a SYN can do without. Runs in a network namespace of its own. Needs root.

use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};

use etherparse::PacketBuilder;
use nix::sched::{CloneFlags, setns};
use weir_core::class::Class;
use weir_core::listener::{Establish, Front, ListenAddress, Listener};
use weir_core::prefix::{Prefix, parse_prefix};
use weir_core::timewait::{Destination, TimeWaitMode};
use weir_kernel::NamespacePath;
use weir_kernel::testing::run::{Bench, Stage, Subject, TimeWaitBench};
use weir_testbed::netns::{self, Netns};

mod rows;
use rows::{Limit, end, need_root, print_constant, print_head, print_row, quartiles, wanted};

const ROUNDS: usize = 41;
const REPEAT: u32 = 200_000;

/// Masks and rules of the classes beside which a SYN is measured. All are looked up, for it is of the
/// last one, whose bucket has room.
const CLASSES: [(u32, u32); 7] = [
    (1, 1),
    (1, 10_000),
    (4, 10),
    (4, 10_000),
    (8, 10_000),
    (32, 100),
    (32, 10_000),
];

// Runs on one machine differ by a tenth at most, machines by more: the kernel's lookup took 34 to 61 ns on those that were
// tried, and on the one with the fast lookup a SYN that is admitted 2.2 to 2.9 of them, one that is refused 4.8 to 6.3, a packet
// of a connection 1.2 to 1.5 empty programs, in the front 1.7 to 1.8. One more lookup, or one more hash lookup for each mask,
// is over the limit there.
const DATA: Limit = Limit::Empty(1.7);
const DATA_IN_FRONT: Limit = Limit::Empty(2.1);
const TIMEWAIT: Limit = Limit::Empty(1.7);
const ADMITTED: Limit = Limit::Lookups(3.3);
/// The listener of another namespace is looked up for every SYN.
const ADMITTED_ELSEWHERE: Limit = Limit::Lookups(5.3);
const REFUSED: Limit = Limit::Lookups(7.0);

/// Of a SYN that is admitted after a lookup in each of these masks: 4.9 for the first and 0.7 for each more were measured.
fn class_limit(masks: u32) -> Limit {
    Limit::Lookups(6.0 + 0.85 * f64::from(masks))
}

/// Prefixes of so many lengths that the client is in none of, and one class for all others.
fn classes(masks: u32, rules: u32) -> Vec<Class> {
    let class = |n: u32| {
        // The last mask is that of the class for all.
        let lengths = masks.saturating_sub(1).max(1);
        let (port, length) = (n % lengths / 16, 32 - n % lengths % 16);
        let network = Ipv4Addr::from((10 << 24 | n << 4) >> (32 - length) << (32 - length));
        Class {
            from: vec![Prefix::new(network.into(), length as u8).expect("a length")],
            to_port: (port > 0).then_some(1),
            ..Class::new(format!("c{n}"))
        }
    };
    let all = Class {
        rate: Some(1e7),
        burst: Some(10_000_000),
        ..Class::new("all")
    };
    let others = if masks == 1 { 0 } else { rules - 1 };
    let mut classes: Vec<Class> = (0..others).map(class).collect();
    // Of one mask: prefixes of one length, of which the client's is one.
    if masks == 1 {
        classes = (0..rules.max(2) - 1).map(class).collect();
        classes.truncate(rules as usize - 1);
        classes.push(Class {
            from: vec![parse_prefix("127.0.0.2").expect("an address")],
            ..all
        });
        return classes;
    }
    // Different prefixes may become one where they are short.
    let mut seen = std::collections::HashSet::new();
    classes.retain(|class| seen.insert((class.from.clone(), class.to_port)));
    classes.push(all);
    classes
}

struct Row<'a> {
    name: &'a str,
    stage: Stage,
    frame: Vec<u8>,
    action: i32,
    limit: Limit,
}

fn main() {
    need_root();
    netns::enter_new().expect("a network namespace of our own");
    let open = TcpListener::bind("127.0.0.1:0").expect("a listener with room");
    let full = listener_with(1);
    let full_port = full.local_addr().unwrap().port();
    let _held: Vec<TcpStream> = (0..2)
        .map(|_| TcpStream::connect(("127.0.0.1", full_port)).expect("room for two"))
        .collect();
    let open_port = open.local_addr().unwrap().port();
    let listeners = [
        guarded("open", open_port, Establish::Reserv),
        guarded("full", full_port, Establish::Reserv),
    ];
    let mut bench = Bench::load(&listeners, &[]).expect("the benchmark loads");
    let rows = rows(open_port, full_port);
    print_head(ROUNDS, REPEAT);
    let mut missed = 0;
    let lookup = median_ns(&mut bench, &syn(open_port), |ns| {
        ns(Stage::Tc, Subject::Lookup) - ns(Stage::Tc, Subject::Rewrite)
    });
    print_constant("(the kernel's socket lookup for a SYN)", lookup);
    let empty = median_ns(&mut bench, &syn(open_port), |ns| {
        ns(Stage::Tc, Subject::Empty)
    });
    print_constant("(a run of the empty program)", empty);
    for row in rows.iter().filter(|row| wanted(row.name)) {
        missed += usize::from(!measure(&mut bench, row));
    }
    missed += usize::from(!measure_timewait(&mut bench));
    missed += measure_namespaces();
    for (masks, rules) in CLASSES {
        let name = format!("SYN admitted, {rules} rules of {masks} masks");
        if wanted(&name) {
            let frame = syn(open_port);
            let mut bench = Bench::load(&listeners, &classes(masks, rules)).expect("it loads");
            let pass = -1;
            missed += usize::from(!measure(
                &mut bench,
                &Row {
                    name: &name,
                    stage: Stage::Tc,
                    frame,
                    action: pass,
                    limit: class_limit(masks),
                },
            ));
        }
    }
    end(missed);
}

fn rows(open: u16, full: u16) -> Vec<Row<'static>> {
    let (pass, redirect, xdp_pass, xdp_tx) = (-1, 7, 2, 3);
    let row = |name, stage, frame, action, limit| Row {
        name,
        stage,
        frame,
        action,
        limit,
    };
    let (tc, xdp) = (Stage::Tc, Stage::Xdp);
    vec![
        row("data, unguarded port", tc, data(9), pass, DATA),
        row("data, guarded port", tc, data(open), pass, DATA),
        row("SYN admitted", tc, syn(open), pass, ADMITTED),
        row("SYN refused with RST", tc, syn(full), redirect, REFUSED),
        row(
            "data, unguarded port, XDP front",
            xdp,
            data(9),
            xdp_pass,
            DATA_IN_FRONT,
        ),
        row(
            "data, guarded port, XDP front",
            xdp,
            data(open),
            xdp_pass,
            DATA_IN_FRONT,
        ),
        row(
            "SYN refused with RST, XDP front",
            xdp,
            syn(full),
            xdp_tx,
            REFUSED,
        ),
    ]
}

/// Runs of the programs on a frame: the mean ns of one packet.
type Measure<'a> = &'a mut dyn FnMut(Stage, Subject) -> f64;

fn median_ns(bench: &mut Bench, frame: &[u8], of: impl Fn(Measure<'_>) -> f64) -> f64 {
    let mut ns = |stage, subject| {
        let (time, _) = bench
            .run(stage, subject, frame, REPEAT)
            .expect("a test run");
        time.as_nanos() as f64
    };
    let mut values: Vec<f64> = (0..ROUNDS).map(|_| of(&mut ns)).collect();
    quartiles(&mut values).1
}

/// Prints one row; false when it is over its limit.
fn measure(bench: &mut Bench, row: &Row<'_>) -> bool {
    let mut ns = |stage, subject| {
        let (time, action) = bench
            .run(stage, subject, &row.frame, REPEAT)
            .expect("a test run");
        (time.as_nanos() as f64, action)
    };
    let (mut differences, mut ratios) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (rewrite, _) = ns(row.stage, Subject::Rewrite);
        let (guard, action) = ns(row.stage, Subject::Guard);
        assert_eq!(
            action, row.action,
            "{}: not the verdict that is to be measured",
            row.name
        );
        let added = guard - rewrite;
        differences.push(added);
        ratios.push(match row.limit {
            Limit::Empty(_) => {
                let (empty, _) = ns(row.stage, Subject::Empty);
                (added + empty) / empty
            }
            Limit::Lookups(_) => {
                let (rewrite, _) = ns(Stage::Tc, Subject::Rewrite);
                let (lookup, _) = ns(Stage::Tc, Subject::Lookup);
                added / (lookup - rewrite)
            }
        });
    }
    print_row(row.name, &mut differences, &mut ratios, row.limit)
}

/// What other namespaces cost: packets of weir's own, beside one that is guarded, and packets there. How many rows are over
/// their limits.
fn measure_namespaces() -> usize {
    let words = ["with namespaces", "another namespace"];
    if !words.into_iter().any(wanted) {
        return 0;
    }
    let own = std::fs::File::open("/proc/thread-self/ns/net").expect("our namespace");
    let other = Netns::create("bench").expect("another namespace");
    let there = std::fs::File::open(other.path()).expect("its file");
    let enter = |file: &std::fs::File| {
        setns(file, CloneFlags::CLONE_NEWNET).expect("to enter it");
    };
    let mut missed = 0;
    let mut port = 0;
    for (file, place, admitted) in [
        (&own, "with namespaces", ADMITTED),
        (&there, "another namespace", ADMITTED_ELSEWHERE),
    ] {
        enter(file);
        let open = TcpListener::bind(("127.0.0.1", port)).expect("a listener with room");
        port = open.local_addr().unwrap().port();
        enter(&own);
        let listeners = [guarded("open", port, Establish::Reserv)];
        let at = NamespacePath::at(other.path());
        let mut bench = Bench::load_with(&at, &listeners).expect("the benchmark loads");
        enter(file);
        for (kind, frame, limit) in [
            ("data, unguarded port", data(9), DATA),
            ("data, guarded port", data(port), DATA),
            ("SYN admitted", syn(port), admitted),
        ] {
            let row = Row {
                name: &format!("{kind}, {place}"),
                stage: Stage::Tc,
                frame,
                action: -1,
                limit,
            };
            missed += usize::from(!measure(&mut bench, &row));
        }
    }
    enter(&own);
    missed
}

/// What destinations cost the packets of other connections, and those with data of their own ones. False when one is over
/// its limit.
fn measure_timewait(bench: &mut Bench) -> bool {
    let destination = |to_port| Destination {
        to_port,
        timewait: TimeWaitMode::Negotiate,
        ..Destination::new("backends")
    };
    let frame = data(9);
    let mut held = true;
    for (name, to_port) in [
        ("data, a destination with another port", Some(8080)),
        ("data, a destination with every port", None),
    ] {
        if !wanted(name) {
            continue;
        }
        let timewait = TimeWaitBench::load(&[destination(to_port)]).expect("it loads");
        let (mut differences, mut ratios) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let (empty, _) = bench
                .run(Stage::Tc, Subject::Empty, &frame, REPEAT)
                .expect("a test run");
            let (time, action) = timewait.run(&frame, REPEAT).expect("a test run");
            assert_eq!(action, -1, "{name}: not passed");
            let (time, empty) = (time.as_nanos() as f64, empty.as_nanos() as f64);
            differences.push(time - empty);
            ratios.push(time / empty);
        }
        held &= print_row(name, &mut differences, &mut ratios, TIMEWAIT);
    }
    held
}

fn guarded(name: &str, port: u16, establish: Establish) -> Listener {
    let address = ListenAddress {
        ip: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        port,
    };
    let front = Front::Xdp;
    Listener {
        establish,
        front,
        ..Listener::new(name, address)
    }
}

/// From the loopback device to itself: its MAC address is zero.
fn ip() -> etherparse::PacketBuilderStep<etherparse::IpHeaders> {
    PacketBuilder::ethernet2([0; 6], [0; 6]).ipv4([127, 0, 0, 2], [127, 0, 0, 1], 64)
}

fn data(port: u16) -> Vec<u8> {
    let mut frame = Vec::new();
    let payload = [0x55; 20];
    ip().tcp(40_000, port, 1000, 500)
        .ack(7)
        .write(&mut frame, &payload)
        .expect("a vector");
    frame
}

fn syn(port: u16) -> Vec<u8> {
    use etherparse::TcpOptionElement::{
        MaximumSegmentSize, Noop, SelectiveAcknowledgementPermitted, Timestamp, WindowScale,
    };
    let options = [
        MaximumSegmentSize(1460),
        SelectiveAcknowledgementPermitted,
        Timestamp(1, 0),
        Noop,
        WindowScale(7),
    ];
    let mut frame = Vec::new();
    ip().tcp(40_000, port, 1000, 64_240)
        .syn()
        .options(&options)
        .expect("20 bytes of options")
        .write(&mut frame, &[])
        .expect("a vector");
    frame
}

/// std's listener chooses its own backlog.
fn listener_with(backlog: i32) -> TcpListener {
    use nix::sys::socket::*;
    let fd = socket(
        AddressFamily::Inet,
        SockType::Stream,
        SockFlag::empty(),
        None,
    )
    .expect("a socket");
    bind(
        std::os::fd::AsRawFd::as_raw_fd(&fd),
        &SockaddrIn::new(127, 0, 0, 1, 0),
    )
    .expect("bind");
    listen(&fd, Backlog::new(backlog).expect("a backlog")).expect("listen");
    TcpListener::from(fd)
}

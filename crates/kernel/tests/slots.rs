//! The table in which the guard remembers listening sockets (`queues` of bpf/lib/state.bpf.h): who has a slot in it, and
//! whose it is next. What is let in here never reaches the stack (BPF_PROG_TEST_RUN, as root). And whether it and other
//! tables of which each CPU writes its part lie so that no two CPUs write to one cache line.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use etherparse::PacketBuilder;
use socket2::{Domain, Socket, Type};
use weir_core::listener::{Admit, ListenAddress, Listener};
use weir_core::verdict::{Counters, Verdict};
use weir_kernel::testing::run::Bench;
use weir_kernel::{Guard, Limits};
use weir_testbed::cpu::pin_this_thread;
use weir_testbed::{needs, netns};

const PORT: u16 = 8080;

/// A guard of a port that remembers so many sockets. `None` without root.
fn guard(sockets: u32) -> Option<Guard> {
    if !needs::root("BPF_PROG_TEST_RUN") {
        return None;
    }
    netns::enter_new().expect("a network namespace of our own");
    let limits = Limits {
        sockets,
        ..Limits::default()
    };
    let mut guard = Guard::load_for(limits).expect("the guard loads");
    let address = ListenAddress {
        ip: None,
        port: PORT,
    };
    let listener = Listener {
        admit: Admit::Queue,
        ..Listener::new("web", address)
    };
    guard.apply(&[listener], &[]).expect("the policy is taken");
    // Claims are kept by CPU.
    pin_this_thread(0).expect("a CPU");
    Some(guard)
}

/// The loopback address of this number.
fn address(number: u16) -> Ipv4Addr {
    let [high, low] = number.to_be_bytes();
    Ipv4Addr::new(127, 0, high, low)
}

/// A server at the loopback address of this number.
fn serve(number: u16, backlog: i32) -> TcpListener {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    let at = SocketAddr::from((address(number), PORT));
    socket.bind(&at.into()).unwrap();
    socket.listen(backlog).unwrap();
    TcpListener::from(socket)
}

/// A SYN from this port comes to the server of this number.
fn comes(guard: &Guard, number: u16, from_port: u16) {
    let ip =
        PacketBuilder::ethernet2([0; 6], [0; 6]).ipv4([127, 9, 9, 9], address(number).octets(), 64);
    let mut frame = Vec::new();
    let tcp = ip.tcp(from_port, PORT, 1, 65_535).syn();
    tcp.write(&mut frame, &[]).expect("a vector");
    guard.judge_tc(&frame).expect("it runs");
}

fn counted(guard: &Guard, verdict: Verdict) -> u64 {
    let counters: Counters = guard.counters("web").unwrap();
    counters.get(verdict)
}

/// A container that is started again and again has a new socket each time, and servers that have had SYNs are remembered for
/// half a minute.
#[test]
fn a_server_that_starts_is_judged_from_its_first_syn_whatever_has_ended_before() {
    let Some(guard) = guard(4) else { return };
    let before: Vec<TcpListener> = (0..4).map(|number| serve(number, 100)).collect();
    let _new = serve(4, 100);
    (0..5).for_each(|number| comes(&guard, number, 2000));
    assert_eq!(counted(&guard, Verdict::SynAdmitted), 4);
    assert_eq!(
        counted(&guard, Verdict::SynUnjudged),
        1,
        "four live, and have SYNs"
    );
    drop(before);
    comes(&guard, 4, 2001);
    assert_eq!(counted(&guard, Verdict::SynAdmitted), 5);
}

/// Connections on their way to a server that has ended are nobody's: they hold no places of the next one.
#[test]
fn a_server_is_not_held_to_what_was_let_in_for_the_one_whose_slot_it_has() {
    let Some(guard) = guard(1) else { return };
    let before = serve(0, 100);
    let new = serve(1, 4);
    (0..6).for_each(|port| comes(&guard, 0, 2000 + port));
    drop(before);
    (0..4).for_each(|port| comes(&guard, 1, 3000 + port));
    drop(new);
    assert_eq!(counted(&guard, Verdict::SynAdmitted), 10);
}

#[test]
fn half_as_many_servers_as_there_are_slots_all_have_one() {
    const SERVERS: u16 = 1024;
    let Some(guard) = guard(2 * u32::from(SERVERS)) else {
        return;
    };
    let _servers: Vec<TcpListener> = (0..SERVERS).map(|number| serve(number, 100)).collect();
    (0..SERVERS).for_each(|number| comes(&guard, number, 2000));
    assert_eq!(counted(&guard, Verdict::SynUnjudged), 0);
    assert_eq!(counted(&guard, Verdict::SynAdmitted), u64::from(SERVERS));
}

/// Two CPUs that write to one line take it from each other each time. The entries of these tables are whole lines: so
/// each has its own if the first one begins with a line.
#[test]
fn what_each_cpu_writes_is_in_cache_lines_of_its_own() {
    if !needs::root("loading BPF programs") {
        return;
    }
    netns::enter_new().expect("a network namespace of our own");
    let address = ListenAddress { ip: None, port: 80 };
    let mut bench = Bench::load(&[Listener::new("web", address)], &[]).expect("it loads");
    for (table, at) in bench.addresses().expect("it runs") {
        assert!(at != 0 && at % 64 == 0, "{table} begins at {at:#x}");
    }
}

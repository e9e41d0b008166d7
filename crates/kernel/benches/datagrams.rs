//! ns per datagram of the guard of QUIC servers, by BPF_PROG_TEST_RUN: `make bench`. Only the rows whose name has a word
//! in it: `cargo bench -p weir-kernel --bench datagrams -- admitted`.
//!
//! Each kind of datagram is judged many times over in one run by the program that would be attached. Beside it, in turn,
//! runs a program that passes everything; both write the datagram's beginning anew for each repetition, so that each may
//! be of another client. A refusal by Version Negotiation also shortens the datagram: what it takes to lengthen it again
//! is in its figure, which is too large by that.
//!
//! The ratios by which a row is judged: datagrams that are no Initials by the time of the empty program, Initials by that
//! of the kernel's socket lookup, which no verdict on an attempt can do without. Runs in a network namespace of its own.
//! Needs root.

use std::net::UdpSocket;

use etherparse::PacketBuilder;
use weir_core::listener::ListenAddress;
use weir_core::quic::{QuicListener, QuicRefuse};
use weir_kernel::testing::datagrams::{DatagramBench, Repeated, Way};
use weir_kernel::{Around, Quic};
use weir_testbed::netns;

mod rows;
use rows::{Limit, end, need_root, print_constant, print_head, print_row, quartiles, wanted};

const ROUNDS: usize = 41;
const REPEAT: u32 = 100_000;

const PASS: i32 = -1;
const DROP: i32 = 2;
const REDIRECT: i32 = 7;

/// Ports: a server that has room, two whose buffers are full, one that is not guarded.
const OPEN: u16 = 4433;
const FULL_VN: u16 = 4434;
const FULL_DROP: u16 = 4435;
const OTHER: u16 = 4436;
const CLIENT: u16 = 5000;

/// Headers of Ethernet, IPv4 and UDP, then flags, version and the first connection ID with its length, and the length of
/// the second: the client's.
const CLIENT_ID_AT: usize = 14 + 20 + 8 + 1 + 4 + 1 + 8 + 1;

// On a quiet machine about 10 ns, 20, 200, 300 and 500.
const OTHER_UDP: Limit = Limit::Empty(1.4);
const SHORT: Limit = Limit::Empty(1.7);
const KNOWN: Limit = Limit::Lookups(4.0);
// 300 and 500 ns, where a lookup takes 31.
const ADMITTED: Limit = Limit::Lookups(9.7);
const REFUSED: Limit = Limit::Lookups(16.1);

struct Row {
    name: &'static str,
    way: Way,
    datagram: Repeated,
    action: i32,
    limit: Limit,
}

fn main() {
    need_root();
    netns::enter_new().expect("a network namespace of our own");
    let sockets = [OPEN, FULL_VN, FULL_DROP].map(|port| {
        UdpSocket::bind(("127.0.0.1", port)).expect("a port in a namespace of our own")
    });
    let mut quic = Quic::load().expect("the programs load");
    quic.apply(&listeners(), &Around::default())
        .expect("they are taken");
    let mut bench = DatagramBench::load().expect("the benchmark loads");
    let client = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    for full in &sockets[1..] {
        let to = full.local_addr().expect("it is bound");
        client.send_to(&[0; 1000], to).expect("it has room");
        full.peek(&mut [0]).expect("it has come");
    }
    print_head(ROUNDS, REPEAT);
    bench.choose(&quic, Way::In).expect("a slot");
    let one = new_client(OPEN);
    let lookup = median(|| ns(bench.lookup(&one, REPEAT)) - ns(bench.nothing(&one, REPEAT)));
    print_constant("(the kernel's socket lookup for a datagram)", lookup);
    let empty = median(|| ns(bench.nothing(&one, REPEAT)));
    print_constant("(a run of the empty program)", empty);
    let rows = rows();
    let rows = rows.iter().filter(|row| wanted(row.name));
    let missed = rows.filter(|row| !measure(&mut bench, &quic, row)).count();
    end(missed);
}

fn listeners() -> Vec<QuicListener> {
    let on = |name: &str, port, refuse| {
        let address = ListenAddress { ip: None, port };
        let mut listener = QuicListener::new(name, address);
        listener.refuse = refuse;
        // Whatever is in the buffer is too much, and nobody has a share.
        (listener.room, listener.floor) = (0.001, 0.0);
        listener
    };
    vec![
        on("open", OPEN, QuicRefuse::Vn),
        on("full-vn", FULL_VN, QuicRefuse::Vn),
        on("full-drop", FULL_DROP, QuicRefuse::Drop),
    ]
}

fn rows() -> Vec<Row> {
    let row = |name, way, datagram, action, limit| Row {
        name,
        way,
        datagram,
        action,
        limit,
    };
    let (enters, leaves) = (Way::In, Way::Out);
    let same = |from, to, datagram: &[u8]| Repeated {
        frame: framed(from, to, datagram),
        counted_at: None,
    };
    let short = [0x43; 1200];
    let known = initial();
    vec![
        row(
            "UDP, unguarded port",
            enters,
            same(CLIENT, OTHER, &short),
            PASS,
            OTHER_UDP,
        ),
        row(
            "short header",
            enters,
            same(CLIENT, OPEN, &short),
            PASS,
            SHORT,
        ),
        row("Initial admitted", enters, new_client(OPEN), PASS, ADMITTED),
        row(
            "Initial of an attempt that was let in",
            enters,
            same(CLIENT, OPEN, &known),
            PASS,
            KNOWN,
        ),
        row(
            "Initial refused, dropped",
            enters,
            new_client(FULL_DROP),
            DROP,
            REFUSED,
        ),
        row(
            "Initial refused, Version Negotiation",
            enters,
            new_client(FULL_VN),
            REDIRECT,
            REFUSED,
        ),
        row(
            "Initial of an attempt that was refused",
            enters,
            same(CLIENT, FULL_DROP, &known),
            DROP,
            REFUSED,
        ),
        row(
            "UDP that leaves, unguarded port",
            leaves,
            same(OTHER, CLIENT, &short),
            PASS,
            OTHER_UDP,
        ),
        row(
            "short header that leaves",
            leaves,
            same(OPEN, CLIENT, &short),
            PASS,
            SHORT,
        ),
        row(
            "long header that leaves",
            leaves,
            same(OPEN, CLIENT, &known),
            PASS,
            KNOWN,
        ),
    ]
}

/// Prints one row; false when it is over its limit.
fn measure(bench: &mut DatagramBench, quic: &Quic, row: &Row) -> bool {
    bench.choose(quic, row.way).expect("a slot");
    let (mut added, mut ratios) = (Vec::new(), Vec::new());
    let of_lookup = new_client(OPEN);
    for _ in 0..ROUNDS {
        let empty = ns(bench.nothing(&row.datagram, REPEAT));
        let (time, action) = bench.subject(&row.datagram, REPEAT).expect("a test run");
        assert_eq!(
            action, row.action,
            "{}: not the verdict that is to be measured",
            row.name
        );
        let adds = time.as_nanos() as f64 - empty;
        added.push(adds);
        ratios.push(match row.limit {
            Limit::Empty(_) => (adds + empty) / empty,
            Limit::Lookups(_) => {
                let nothing = ns(bench.nothing(&of_lookup, REPEAT));
                adds / (ns(bench.lookup(&of_lookup, REPEAT)) - nothing)
            }
        });
    }
    print_row(row.name, &mut added, &mut ratios, row.limit)
}

fn median(mut of: impl FnMut() -> f64) -> f64 {
    let mut values: Vec<f64> = (0..ROUNDS).map(|_| of()).collect();
    quartiles(&mut values).1
}

fn ns(run: weir_kernel::Result<(std::time::Duration, i32)>) -> f64 {
    run.expect("a test run").0.as_nanos() as f64
}

/// An Initial that begins a connection, each time of another client.
fn new_client(port: u16) -> Repeated {
    Repeated {
        frame: framed(CLIENT, port, &initial()),
        counted_at: Some(CLIENT_ID_AT),
    }
}

fn initial() -> Vec<u8> {
    let mut datagram = vec![0xc3, 0, 0, 0, 1];
    for id in [[1; 8], [2; 8]] {
        datagram.push(8);
        datagram.extend(id);
    }
    datagram.resize(1200, 0x55);
    datagram
}

/// From the loopback device to itself: its MAC address is zero.
fn framed(from: u16, to: u16, datagram: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    PacketBuilder::ethernet2([0; 6], [0; 6])
        .ipv4([127, 0, 0, 2], [127, 0, 0, 1], 64)
        .udp(from, to)
        .write(&mut frame, datagram)
        .expect("a vector");
    frame
}

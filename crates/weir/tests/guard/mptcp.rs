//! MPTCP connections under guard: a new path of one is no new connection.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

use socket2::{Domain, Socket, Type};
use weir_kernel::Guard;
use weir_testbed::bed::Counters;
use weir_testbed::netns::Netns;

use crate::common::{
    BACKLOG, Bed, PATIENCE, PORT, Peer, Raw, Segment, Shape, accept, connect, output, until, within,
};

const MPTCP: i32 = 262;
/// The client's address on its first network, and the one that it has on the next.
const FIRST: &str = "10.66.1.2";
const SECOND: &str = "10.66.1.3";
/// weir lets so many new paths a second pass a full queue, and as many at once.
const PATHS_PER_SECOND: f64 = 1000.0;

fn mptcp_socket() -> Socket {
    Socket::new(Domain::IPV4, Type::STREAM, Some(MPTCP.into())).unwrap()
}

fn mptcp_server(bed: &Bed) -> TcpListener {
    let any: SocketAddr = (Ipv4Addr::UNSPECIFIED, PORT).into();
    within(bed.server(), || {
        let socket = mptcp_socket();
        socket.bind(&any.into()).unwrap();
        socket.listen(BACKLOG).unwrap();
        socket.into()
    })
}

fn say_and_hear(from: &mut TcpStream, to: &mut TcpStream) {
    let mut heard = [0; 5];
    to.set_read_timeout(Some(PATIENCE)).unwrap();
    from.write_all(b"hello").unwrap();
    to.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"hello");
}

fn mptcp_counter(netns: &Netns, name: &str) -> i64 {
    let counters = Counters::read(netns).unwrap();
    counters.get(&format!("MPTcpExt.{name}"))
}

/// Fills the queue with connections without MPTCP.
fn fill(bed: &Bed) -> Vec<TcpStream> {
    let others = bed.loopback4();
    let waiting = connect(others.client, others.at(PORT), BACKLOG as usize + 1);
    assert_eq!(waiting.counts(), (BACKLOG as usize, 1, 0));
    waiting.connected
}

/// A client with one connection changes its network while the server refuses new clients.
fn a_connection_moves(bed: &Bed, flags: &str) {
    for netns in [bed.server(), bed.client()] {
        output(netns, "ip", &["mptcp", "limits", "set", "subflow", "2"]);
    }
    // Else the second address would go with the first.
    let keep = "net.ipv4.conf.all.promote_secondaries";
    bed.client().set_sysctl(keep, "1").unwrap();
    let listener = mptcp_server(bed);
    let _weir = bed.protect(&format!("{PORT} --admit queue {flags}"));
    let path = bed.veth4();
    let mut client: TcpStream = within(path.client, || {
        let socket = mptcp_socket();
        socket.connect(&path.at(PORT).into()).unwrap();
        socket.into()
    });
    let mut server = accept(&listener, 1).remove(0);
    say_and_hear(&mut client, &mut server);
    say_and_hear(&mut server, &mut client);
    let _waiting = fill(bed);
    let ip = |arguments: &str| {
        let arguments: Vec<_> = arguments.split_whitespace().collect();
        output(path.client, "ip", &arguments)
    };
    ip(&format!("addr add {SECOND}/24 dev veth0"));
    ip(&format!("mptcp endpoint add {SECOND} dev veth0 subflow"));
    until("the second path is up", || {
        (mptcp_counter(bed.server(), "MPJoinAckRx") > 0).then_some(())
    });
    ip(&format!("mptcp endpoint delete id 0 {FIRST}"));
    ip(&format!("addr del {FIRST}/24 dev veth0"));
    say_and_hear(&mut client, &mut server);
    assert!(bed.counter(0, "syn_join") > 0, "{:?}", bed.verdicts(0));
    assert_eq!(bed.overflows(), 0);
}

#[test]
fn an_established_connection_gets_a_new_path_where_new_clients_are_refused() {
    let Some(bed) = Bed::new() else { return };
    a_connection_moves(&bed, "");
}

#[test]
fn the_xdp_front_lets_a_new_path_by() {
    let Some(bed) = Bed::new() else { return };
    within(bed.client(), || {
        let mut passes_all = Guard::load().unwrap();
        let peer = nix::net::if_::if_nametoindex("veth0").unwrap();
        passes_all.attach(peer, true).unwrap();
        a_connection_moves(&bed, "--front xdp");
        assert_eq!(mptcp_counter(bed.server(), "MPJoinNoTokenFound"), 0);
    });
}

/// MP_JOIN with a token that no connection has.
fn join(number: u32) -> Vec<u8> {
    let token = number.to_be_bytes();
    [&[30, 12, 0x10, 1][..], &token, &token].concat()
}

#[test]
fn a_flood_of_new_paths_of_no_connection_is_refused_and_takes_no_place() {
    const FLOOD: u32 = 4000;
    let Some(bed) = Bed::new() else { return };
    let listener = mptcp_server(&bed);
    let _weir = bed.protect(&format!("{PORT} --admit queue"));
    let waiting = fill(&bed);
    let raw = Raw(&bed.links.wire);
    let begun = Instant::now();
    for number in 0..FLOOD {
        let segment = Segment {
            seq: number,
            syn: true,
            options: join(number),
            ..Segment::default()
        };
        raw.send(Peer::v4(number, PORT), Shape::Plain, &segment);
    }
    let judged = || bed.counter(0, "syn_join") + bed.counter(0, "syn_reset_full");
    until("all are judged", || {
        (judged() > u64::from(FLOOD)).then_some(())
    });
    let passed = bed.counter(0, "syn_join") as f64;
    let seconds = begun.elapsed().as_secs_f64();
    println!("{passed} of {FLOOD} passed in {seconds:.2} s");
    assert!(passed > 0.0 && passed <= PATHS_PER_SECOND * (1.0 + seconds));
    assert!(mptcp_counter(bed.server(), "MPJoinNoTokenFound") > 0);
    assert_eq!(bed.status()["listeners"][0]["half_open"], 0);
    assert_eq!(accept(&listener, waiting.len()).len(), waiting.len());
    assert_eq!(bed.overflows(), 0);
}

//! A SO_REUSEPORT group, each socket with a queue of its own, and clients whose ports are in TIME-WAIT at the server.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;

use crate::common::{BACKLOG, Bed, PORT, Path, accept, connect, listen_in_group, until};
use crate::establish::connect_from;
use weir_testbed::sys::{Classic, attach_classic};

const WORKERS: usize = 4;
/// The clients' ports: others at each run, whose connections are not there any more or not yet.
const PORTS: [Range<u16>; 4] = [
    25_100..25_116,
    25_200..25_216,
    25_300..25_316,
    25_400..25_416,
];

/// Which of the sockets gets the next connection, and the connection.
fn accepted_by(group: &[TcpListener]) -> (usize, TcpStream) {
    until("one of the group accepts", || {
        group.iter().enumerate().find_map(|(number, listener)| {
            listener.set_nonblocking(true).unwrap();
            Some((number, listener.accept().ok()?.0))
        })
    })
}

/// Each port's connection is closed by the server first. Gives the socket of the group that had it.
fn come_once(path: &Path<'_>, ports: Range<u16>, group: &[TcpListener]) -> Vec<usize> {
    let come = |port| {
        let mut client = connect_from(path.client, port, path.at(PORT)).unwrap();
        let (worker, server) = accepted_by(group);
        drop(server);
        assert_eq!(client.read(&mut [0]).unwrap(), 0, "the server's FIN");
        worker
    };
    ports.map(come).collect()
}

/// One socket's queue is full, and the others' are empty.
fn fill(path: &Path<'_>, group: &[TcpListener], full: usize) -> Vec<TcpStream> {
    let clients = connect(path.client, path.at(PORT), 100);
    assert_eq!(clients.counts().0, group.len() * BACKLOG as usize);
    for (number, listener) in group.iter().enumerate() {
        if number != full {
            drop(accept(listener, BACKLOG as usize));
        }
    }
    clients.connected
}

#[test]
fn a_port_in_time_wait_is_judged_by_the_queue_of_the_socket_that_will_have_it() {
    let Some(bed) = Bed::new() else { return };
    let any: SocketAddr = (Ipv6Addr::UNSPECIFIED, PORT).into();
    let [v4, v6] = [bed.veth4(), bed.veth6()];
    let ways = [(v4, any), (v6, any), (v4, v4.at(PORT)), (v6, v6.at(PORT))];
    for ((path, address), ports) in ways.into_iter().zip(PORTS) {
        let group = [(); WORKERS].map(|()| listen_in_group(bed.server(), address, BACKLOG));
        let _weir = bed.protect(&format!("{PORT} --admit queue"));
        let owners = come_once(&path, ports.clone(), &group);
        assert!(
            owners.iter().collect::<BTreeSet<_>>().len() > 1,
            "{owners:?}"
        );
        until("all ports are in TIME-WAIT at the server", || {
            let sockets = bed.output("ss", &["-tanH", "state", "time-wait"]);
            let waits = |port: u16| sockets.contains(&format!(":{port}"));
            ports.clone().all(waits).then_some(())
        });
        let full = owners[0];
        let _waiting = fill(&path, &group, full);
        // Both ends stay open: a SYN whose connection is gone holds its place for some packets more.
        let mut connected = Vec::new();
        for (port, owner) in ports.zip(owners) {
            let again = connect_from(path.client, port, path.at(PORT));
            let context = format!("{} {address} {port}: {owner}, {full} is full", path.name);
            if owner == full {
                assert_eq!(
                    again.unwrap_err(),
                    ErrorKind::ConnectionRefused,
                    "{context}"
                );
            } else {
                let client = again.unwrap_or_else(|error| panic!("{context}: {error}"));
                let (_, server) = accepted_by(&group[owner..=owner]);
                assert_eq!(server.peer_addr().unwrap().port(), port, "{context}");
                connected.push((client, server));
            }
        }
        drop(group);
    }
    assert_eq!(bed.overflows(), 0);
}

/// The kernel has a program choose by the packet, which no lookup of weir's has.
#[test]
fn where_a_program_of_the_servers_chooses_the_socket_nobody_is_refused_by_the_queue_of_another() {
    let Some(bed) = Bed::new() else { return };
    for path in [bed.veth4(), bed.veth6()] {
        let group = [(); 2].map(|()| listen_in_group(bed.server(), path.at(PORT), BACKLOG));
        let _weir = bed.protect(&format!("{PORT} --admit queue"));
        let _waiting = fill(&path, &group, 1);
        attach_classic(&group[0], Classic::Steer, 0).unwrap();
        let clients = connect(path.client, path.at(PORT), BACKLOG as usize);
        assert_eq!(clients.counts(), (BACKLOG as usize, 0, 0), "{}", path.name);
        accept(&group[0], BACKLOG as usize);
        assert_eq!(bed.counter(0, "syn_unjudged"), BACKLOG as u64);
        let listener = &bed.status()["listeners"][0];
        assert_eq!(listener["fallback"], "default");
        let because = listener["fallback_because"].as_str().unwrap();
        assert!(because.contains("chooses the socket"), "{because}");
    }
}

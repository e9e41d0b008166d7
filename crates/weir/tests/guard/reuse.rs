//! Clients that close first and come again soon, from a port that is in TIME-WAIT on their side
//! (`net.ipv4.tcp_tw_reuse`). Their SYN repeats the timestamp of the old connection, and PAWS holds every answer to it.

use std::net::{Ipv6Addr, SocketAddr, TcpListener};

use weir_kernel::Guard;
use weir_testbed::bed::Counters;

use crate::common::{BACKLOG, Bed, PORT, Path, accept, attempt, connect, listen, until, within};
use weir_testbed::sockets::SILENCE;

/// The only port that the clients have.
const CLIENT_PORT: &str = "45678";

/// A connection that the client closes first: its port is in TIME-WAIT then, and at the server it is not.
fn come_once(bed: &Bed, path: &Path<'_>, listener: &TcpListener) {
    let client = connect(path.client, path.at(PORT), 1);
    assert_eq!(client.counts(), (1, 0, 0), "{}", path.name);
    let server = accept(listener, 1);
    drop(client);
    drop(server);
    until("the client's side is in TIME-WAIT", || {
        let sockets = crate::common::output(path.client, "ss", &["-tanH", "state", "time-wait"]);
        sockets.contains(CLIENT_PORT).then_some(())
    });
    let left = bed.output("ss", &["-tanH", "sport", "=", &format!(":{PORT}")]);
    assert!(!left.contains(CLIENT_PORT), "{left}");
}

/// How the next attempt ends. For a second after the old connection the kernel gives its port to nobody.
fn come_again(path: &Path<'_>) -> Result<(), std::io::ErrorKind> {
    until("the port may be taken again", || {
        match within(path.client, || attempt(path.at(PORT), SILENCE)) {
            Err(std::io::ErrorKind::AddrNotAvailable) => None,
            ended => Some(ended.map(drop)),
        }
    })
}

/// A full queue refuses the clients: at once, for each of them repeats its SYN after a second only.
fn refused_at_once(bed: &Bed, flags: &str, counter: &str) {
    for (name, value) in [
        ("net.ipv4.tcp_tw_reuse", "1"),
        ("net.ipv4.ip_local_port_range", "45678 45678"),
    ] {
        bed.client().set_sysctl(name, value).unwrap();
    }
    let any: SocketAddr = (Ipv6Addr::UNSPECIFIED, PORT).into();
    let listener = listen(bed.server(), any, BACKLOG);
    let _weir = bed.protect(&format!("{PORT} --admit queue {flags}"));
    for path in [bed.veth4(), bed.veth6()] {
        come_once(bed, &path, &listener);
        let others = bed.loopback4();
        let mut full = Vec::new();
        // The claim of the connection that is gone may hold a place for some ticks.
        until("the queue is full", || {
            full.extend(connect(others.client, others.at(PORT), 1).connected);
            (full.len() == BACKLOG as usize).then_some(())
        });
        let counted = bed.counter(0, counter);
        let before = Counters::read(path.client).unwrap();
        let again = come_again(&path);
        let since = Counters::read(path.client).unwrap().since(&before);
        assert_eq!(since.get("TcpExt.TWRecycled"), 1, "{} {since:?}", path.name);
        assert_eq!(
            again.as_ref().err(),
            Some(&std::io::ErrorKind::ConnectionRefused),
            "{}: {since:?}",
            path.name
        );
        assert_eq!(bed.counter(0, counter), counted + 1);
        assert_eq!(since.get("TcpExt.PAWSActive"), 0, "{} {since:?}", path.name);
        drop(accept(&listener, full.len()));
    }
}

#[test]
fn a_rst_ends_at_once_the_connect_of_a_client_that_takes_a_port_out_of_time_wait() {
    for flags in ["", "--reason"] {
        let Some(bed) = Bed::new() else { return };
        refused_at_once(&bed, flags, "syn_reset_full");
    }
}

#[test]
fn so_does_that_of_the_xdp_front() {
    let Some(bed) = Bed::new() else { return };
    within(bed.client(), || {
        let mut passes_all = Guard::load().unwrap();
        let peer = nix::net::if_::if_nametoindex("veth0").unwrap();
        passes_all.attach(peer, true).unwrap();
        refused_at_once(&bed, "--front xdp", "refused_at_xdp");
    });
}

//! The UDP sockets about which the doctor has something to say.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use weir_api::Status;
use weir_config::parse_listen_address;

use crate::host::diagnosis::{Beside, Socket, Udp};
use crate::host::udp::{self, UdpServer};

/// Those that a running weir guards, and those whose process listens on the same port by TCP. `tcp`: the listening sockets.
pub fn found(tcp: &[Socket], status: Option<&Status>) -> Vec<Udp> {
    let mut sockets = udp::sockets().unwrap_or_default();
    let has_tcp = |port| tcp.iter().any(|socket| port_of(socket) == Some(port));
    let guarded = |server: &weir_kernel::BoundUdp| {
        let mut quic = status.iter().flat_map(|status| &status.quic);
        let its = quic.find(|quic| {
            parse_listen_address(&quic.address).is_ok_and(|at| udp::is_at(server, at))
        });
        its.map(|quic| quic.name.clone())
    };
    sockets.retain(|socket| has_tcp(socket.local.port()) || guarded(socket).is_some());
    let mut found: BTreeMap<SocketAddr, Udp> = BTreeMap::new();
    for UdpServer { socket, process } in udp::servers(sockets).0 {
        let pid = process.as_ref().map(|process| process.pid);
        let port = socket.local.port();
        let drops = socket.drops.unwrap_or(0);
        let of = found.entry(socket.local).or_insert_with(|| Udp {
            address: socket.local.to_string(),
            port,
            receive_buffer: socket.receive_buffer,
            drops: 0,
            server: process.map(|process| process.comm),
            guarded: guarded(&socket),
            tcp: beside(tcp, port, pid),
        });
        // Several may share an address (SO_REUSEPORT).
        of.drops = of.drops.saturating_add(drops);
        of.receive_buffer = of.receive_buffer.min(socket.receive_buffer);
    }
    let mut found: Vec<Udp> = found.into_values().collect();
    found.retain(Udp::may_be_quic);
    found
}

/// The TCP server at a port: that of this process, if it has one there.
fn beside(tcp: &[Socket], port: u16, pid: Option<u32>) -> Option<Beside> {
    let there = tcp.iter().filter(|socket| port_of(socket) == Some(port));
    let beside = there.map(|socket| Beside {
        is_same: pid.is_some() && socket.pid == pid,
        guarded: socket
            .guarded
            .as_ref()
            .map(|guarded| guarded.listener.clone()),
    });
    beside.max_by_key(|beside| (beside.is_same, beside.guarded.is_some()))
}

fn port_of(socket: &Socket) -> Option<u16> {
    let address: SocketAddr = socket.address.parse().ok()?;
    Some(address.port())
}

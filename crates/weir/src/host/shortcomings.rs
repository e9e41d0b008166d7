//! What `weir protect` and `weir run` warn of in the sockets that they guard.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use weir_core::listener::Listener;
use weir_core::quic::QuicListener;
use weir_core::units::count;
use weir_kernel::ListenSocket;

use crate::host::containers;
use crate::host::diagnosis::{small_backlog, small_receive_buffer};
use crate::host::environment::sysctl;
use crate::host::namespaces::Space;
use crate::host::processes::{Process, owners};
use crate::host::published::{DOCKER_PROXY, Proxy};
use crate::host::sockets::is_served;
use crate::host::udp::{self, UdpServer};

/// Warnings of one kind that are printed; the others are counted.
const SHOWN: usize = 5;

/// Of the sockets that serve the listeners: small backlogs, and sockets that get no connection because Docker
/// publishes their port.
pub fn warnings(listeners: &[Listener], there: &[ListenSocket]) -> Vec<String> {
    let guarded = |socket: &&ListenSocket| {
        let alone = std::slice::from_ref(*socket);
        !socket.parked && listeners.iter().any(|one| is_served(one, alone))
    };
    let sockets: Vec<&ListenSocket> = there.iter().filter(guarded).collect();
    of(&sockets)
}

/// Of the UDP sockets that the QUIC listeners are about: small receive buffers.
pub fn udp_warnings(quic: &[QuicListener], servers: &[UdpServer]) -> Vec<String> {
    let rmem_max = sysctl("net/core/rmem_max");
    let guarded = servers.iter().filter(|server| {
        let mut quic = quic.iter();
        quic.any(|quic| udp::is_at(&server.socket, quic.address))
    });
    let small = guarded.filter_map(|UdpServer { socket, process }| {
        let owner = process.as_ref().map(|own| own.comm.as_str());
        let small = small_receive_buffer(socket.receive_buffer?, rmem_max, owner)?;
        let of = owner.map_or(String::new(), |own| format!(" ({own})"));
        Some(format!(
            "receive buffer of {}{of} is {}\n  hint: {}",
            socket.local, small.text, small.hint
        ))
    });
    let mut warnings: Vec<String> = small.collect();
    // Several sockets may share an address (SO_REUSEPORT).
    warnings.dedup();
    let more = warnings.len().saturating_sub(SHOWN);
    if more > 0 {
        warnings.truncate(SHOWN);
        warnings.push(format!(
            "{} too small; `weir doctor` names all",
            count(more, "more receive buffer")
        ));
    }
    warnings
}

fn of(sockets: &[&ListenSocket]) -> Vec<String> {
    let inodes: BTreeSet<u64> = sockets.iter().map(|socket| socket.inode).collect();
    let owners = owners(&inodes);
    let mut warnings = small(sockets, &owners, sysctl("net/core/somaxconn"));
    let proxies = owners.values().filter(|own| own.comm == DOCKER_PROXY);
    let published = proxies.filter_map(|own| Proxy::of(&own.arguments()));
    let published: BTreeSet<Proxy> = published.collect();
    if !published.is_empty() {
        let spaces = containers::spaces();
        warnings.extend(published.iter().map(|one| warning(one, &spaces)));
    }
    warnings
}

fn small(
    sockets: &[&ListenSocket],
    owners: &BTreeMap<u64, Process>,
    somaxconn: Option<u32>,
) -> Vec<String> {
    let small = sockets.iter().filter_map(|socket| {
        let owner = owners.get(&socket.inode).map(|own| own.comm.as_str());
        let small = small_backlog(socket.queue_limit, somaxconn, owner)?;
        let address = SocketAddr::new(socket.ip, socket.port);
        let of = owner.map_or(String::new(), |own| format!(" ({own})"));
        Some(format!(
            "backlog of {address}{of} is {}\n  hint: {}",
            small.text, small.hint
        ))
    });
    let mut warnings: Vec<String> = small.collect();
    let more = warnings.len().saturating_sub(SHOWN);
    if more > 0 {
        warnings.truncate(SHOWN);
        warnings.push(format!(
            "{} too small; `weir doctor` names all",
            count(more, "more backlog")
        ));
    }
    warnings
}

fn warning(published: &Proxy, spaces: &[Space]) -> String {
    let Proxy {
        port, container, ..
    } = published;
    let inside = container.port();
    let has = |space: &&Space| space.has_address(container.ip());
    let command = spaces.iter().find(has).map_or_else(
        || format!("weir protect {inside} --where container:NAME"),
        |space| space.protect(inside),
    );
    format!(
        "Docker publishes port {port}: connections from outside go to {container} and never to this socket, so this \
         protects nothing of them\n  \
         hint: protect the container: `{command}`"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::backend::fake::socket;

    #[test]
    fn small_backlogs_are_warned_of_with_the_server_s_hint_and_many_are_counted() {
        let of = |inode| ListenSocket {
            inode,
            queue_limit: 128,
            ..socket("0.0.0.0", 80)
        };
        let all: Vec<ListenSocket> = (0..9).map(of).collect();
        let all: Vec<&ListenSocket> = all.iter().collect();
        let nginx = Process {
            pid: 7,
            comm: "nginx".into(),
            container: None,
        };
        let owners = BTreeMap::from([(0, nginx)]);
        let warnings = small(&all, &owners, Some(4096));
        assert_eq!(warnings.len(), SHOWN + 1);
        assert!(
            warnings[0].starts_with("backlog of 0.0.0.0:80 (nginx) is 128: too small"),
            "{warnings:?}"
        );
        assert!(
            warnings[0].contains("hint: nginx: `listen 80"),
            "{warnings:?}"
        );
        assert!(warnings[SHOWN].starts_with("4 more"), "{warnings:?}");
        let large = socket("0.0.0.0", 80);
        assert!(small(&[&large], &owners, Some(4096)).is_empty());
    }

    #[test]
    fn a_port_that_docker_publishes_is_warned_of_with_the_container_s_port() {
        let line = "/usr/bin/docker-proxy -proto tcp -host-ip 0.0.0.0 -host-port 8080 \
                    -container-ip 192.0.2.7 -container-port 80";
        let arguments: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let warning = warning(&Proxy::of(&arguments).unwrap(), &[]);
        assert!(
            warning.starts_with("Docker publishes port 8080: "),
            "{warning}"
        );
        let hint = "`weir protect 80 --where container:NAME`";
        assert!(warning.ends_with(hint), "{warning}");
    }
}

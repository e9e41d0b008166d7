//! Why nothing listens where `weir protect` is to guard, and where it does.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use weir_core::listener::Listener;
use weir_kernel::ListenSocket;

use crate::failure::{Failure, Result};
use crate::host::namespaces::Space;
use crate::host::sockets::is_served;

/// Namespaces that a hint names.
const SHOWN: usize = 3;

/// A network namespace, with the ports on which a socket listens in it.
type PortsHeard = (BTreeSet<u16>, Space);

/// Whether some socket serves the listener. `elsewhere` gives the other network namespaces in which something listens.
///
/// # Errors
/// None does; the hint says where one does.
pub fn something_listens(
    listener: &Listener,
    sockets: &[ListenSocket],
    elsewhere: impl Fn() -> Vec<PortsHeard>,
) -> Result<()> {
    if is_served(listener, sockets) {
        return Ok(());
    }
    let port = listener.address.port;
    let here: Vec<&ListenSocket> = sockets.iter().filter(|s| s.port == port).collect();
    let (because, hint) = match here.is_empty() {
        false => other_address(listener, &here),
        true => nowhere_here(port, sockets, &elsewhere()),
    };
    Err(Failure::failed(
        format!("nothing listens on {}{because}", listener.address),
        format!("{hint}; --anyway protects it all the same"),
    ))
}

/// The port is right, the address is not.
fn other_address(listener: &Listener, here: &[&ListenSocket]) -> (String, String) {
    let wants_ipv4 = listener.address.ip.is_some_and(|ip| ip.is_ipv4());
    if wants_ipv4 && here.iter().all(|socket| socket.v6only) {
        let because = ": its server listens for IPv6 only (IPV6_V6ONLY)".to_owned();
        return (because, "--address :: protects it".to_owned());
    }
    let addresses: Vec<String> = here
        .iter()
        .map(|socket| SocketAddr::new(socket.ip, socket.port).to_string())
        .collect();
    let hint = format!(
        "a server listens on {}; without --address weir guards every address",
        addresses.join(", ")
    );
    (String::new(), hint)
}

/// Nothing has the port here: one elsewhere may have it, or be meant where address translation changes the port.
fn nowhere_here(port: u16, sockets: &[ListenSocket], elsewhere: &[PortsHeard]) -> (String, String) {
    let same: Vec<(u16, &Space)> = elsewhere
        .iter()
        .filter(|(ports, _)| ports.contains(&port))
        .map(|(_, space)| (port, space))
        .collect();
    if !same.is_empty() {
        return (
            " in this network namespace".to_owned(),
            in_namespaces(&same),
        );
    }
    // One that only listens on its own loopback device is not listed, and no process of the host counts as elsewhere.
    let others: Vec<(u16, &Space)> = elsewhere
        .iter()
        .flat_map(|(ports, space)| ports.iter().map(move |port| (*port, space)))
        .collect();
    let hint = match others.is_empty() {
        true => ports(sockets),
        false => format!(
            "{}; if port {port} is translated to another network namespace (`docker run -p`): {}",
            ports(sockets),
            in_namespaces(&others)
        ),
    };
    (String::new(), hint)
}

fn in_namespaces(found: &[(u16, &Space)]) -> String {
    let shown: Vec<String> = found
        .iter()
        .take(SHOWN)
        .map(|(port, space)| {
            let (name, command) = (space.describe(), space.protect(*port));
            format!("a server listens on port {port} in {name}: `{command}`")
        })
        .collect();
    let more = match found.len().saturating_sub(SHOWN) {
        0 => String::new(),
        n => format!("; and {n} more"),
    };
    shown.join("; ") + &more
}

fn ports(sockets: &[ListenSocket]) -> String {
    let ports: BTreeSet<u16> = sockets.iter().map(|socket| socket.port).collect();
    let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
    match ports.as_slice() {
        [] => "no server listens in this network namespace; start it first".to_owned(),
        [port] => format!("a server listens on port {port}; start the server first"),
        _ => format!(
            "servers listen on ports {}; start the server first",
            ports.join(", ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::backend::fake::socket;
    use crate::host::processes::Process;

    fn failure(address: &str, sockets: &[ListenSocket], elsewhere: &[PortsHeard]) -> String {
        let address = weir_config::parse_listen_address(address).unwrap();
        let listener = Listener::new("web", address);
        let failure = something_listens(&listener, sockets, || elsewhere.to_vec());
        failure.unwrap_err().to_string()
    }

    #[test]
    fn a_port_without_a_server_is_refused_and_the_others_are_named() {
        let web = Listener::new("web", weir_config::parse_listen_address("*:80").unwrap());
        assert!(something_listens(&web, &[socket("0.0.0.0", 80)], Vec::new).is_ok());
        let sockets = [
            socket("0.0.0.0", 443),
            socket("::", 22),
            socket("0.0.0.0", 22),
        ];
        let failure = failure("*:80", &sockets, &[]);
        assert!(failure.contains("nothing listens on *:80"), "{failure}");
        assert!(failure.contains("ports 22, 443;"), "{failure}");
    }

    #[test]
    fn a_server_that_listens_for_ipv6_only_is_named_so() {
        let v6only = ListenSocket {
            v6only: true,
            ..socket("::", 8006)
        };
        let failure = failure("0.0.0.0:8006", &[v6only], &[]);
        let expected = "nothing listens on 0.0.0.0:8006: its server listens for IPv6 only";
        assert!(failure.starts_with(expected), "{failure}");
        assert!(failure.contains("--address :: protects it"), "{failure}");
    }

    #[test]
    fn a_server_on_another_address_is_named_with_it() {
        let failure = failure("10.0.0.1:80", &[socket("127.0.0.1", 80)], &[]);
        assert!(failure.contains("listens on 127.0.0.1:80;"), "{failure}");
    }

    #[test]
    fn a_server_in_another_namespace_is_named_with_the_command_that_protects_it() {
        let process = Process {
            pid: 7,
            comm: "nginx".into(),
            container: Some("3f2a9c0b3f2a".into()),
        };
        let space = Space {
            process: Some(process),
            ..Space::new(1)
        };
        let on = |port| (BTreeSet::from([port]), space.clone());
        let said = failure("*:8080", &[], &[on(80), on(8080)]);
        for words in [
            "nothing listens on *:8080 in this network namespace\n",
            "nginx (pid 7, container 3f2a9c0b3f2a): `weir protect 8080 --where container:3f2a9c0b3f2a`",
        ] {
            assert!(said.contains(words), "{said}");
        }
        // Docker without docker-proxy: only a rule knows that the port is another one there.
        let said = failure("*:8080", &[socket("0.0.0.0", 22)], &[on(80)]);
        for words in [
            "a server listens on port 22; start the server first; if port 8080 is translated",
            "container 3f2a9c0b3f2a): `weir protect 80 --where container:3f2a9c0b3f2a`",
        ] {
            assert!(said.contains(words), "{said}");
        }
    }
}

//! Which listening sockets serve which guarded listener.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weir_core::listener::{ListenAddress, Listener};
use weir_kernel::ListenSocket;

const ANY4: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
const ANY6: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

/// Whether one of `sockets` gets the connections of `listener`, as far as no other listener takes them from it.
pub fn is_served(listener: &Listener, sockets: &[ListenSocket]) -> bool {
    !serving(listener, std::slice::from_ref(listener), sockets).is_empty()
}

/// The sockets that get the connections of `listener`, which is one of `all`.
pub fn serving<'a>(
    listener: &Listener,
    all: &[Listener],
    sockets: &'a [ListenSocket],
) -> Vec<&'a ListenSocket> {
    let port = listener.address.port;
    let here: Vec<_> = sockets
        .iter()
        .filter(|socket| socket.port == port)
        .collect();
    let Some(ip) = listener.address.ip else {
        return here;
    };
    if ip == ANY4 {
        return here
            .into_iter()
            .filter(|socket| takes_ipv4(socket))
            .collect();
    }
    if ip == ANY6 {
        let ipv4_named = all.iter().any(|l| {
            l.address
                == ListenAddress {
                    ip: Some(ANY4),
                    port,
                }
        });
        let ours = |socket: &&ListenSocket| address(socket).is_ipv6() || !ipv4_named;
        return here.into_iter().filter(ours).collect();
    }
    most_specific(ip, &here)
}

/// The kernel's choice for one address: a socket bound to it, else one for its whole family, else
/// (IPv4) a dual-stack one.
fn most_specific<'a>(ip: IpAddr, sockets: &[&'a ListenSocket]) -> Vec<&'a ListenSocket> {
    let bound = |ip: IpAddr| move |socket: &&&ListenSocket| address(socket) == ip;
    let any = if ip.is_ipv4() { ANY4 } else { ANY6 };
    for wanted in [ip, any] {
        let found: Vec<_> = sockets.iter().filter(bound(wanted)).copied().collect();
        if !found.is_empty() {
            return found;
        }
    }
    let dual = |socket: &&&ListenSocket| ip.is_ipv4() && takes_ipv4(socket);
    sockets
        .iter()
        .filter(bound(ANY6))
        .filter(dual)
        .copied()
        .collect()
}

fn address(socket: &ListenSocket) -> IpAddr {
    socket.ip.to_canonical()
}

fn takes_ipv4(socket: &ListenSocket) -> bool {
    address(socket).is_ipv4() || socket.ip == ANY6 && !socket.v6only
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::backend::fake::socket;

    /// Addresses of the sockets that serve `address`, with `others` guarded beside it.
    fn serve(address: &str, others: &[&str], sockets: &[ListenSocket]) -> Vec<String> {
        let listener =
            |text: &str| Listener::new(text, weir_config::parse_listen_address(text).unwrap());
        let all: Vec<_> = [address]
            .iter()
            .chain(others)
            .map(|text| listener(text))
            .collect();
        serving(&all[0], &all, sockets)
            .iter()
            .map(|socket| socket.ip.to_string())
            .collect()
    }

    #[test]
    fn a_socket_of_another_port_never_serves() {
        assert!(serve("*:80", &[], &[socket("0.0.0.0", 81)]).is_empty());
    }

    #[test]
    fn every_address_means_both_families() {
        let sockets = [socket("10.0.0.1", 80), socket("::1", 80)];
        assert_eq!(serve("*:80", &[], &sockets), ["10.0.0.1", "::1"]);
        assert_eq!(serve("0.0.0.0:80", &[], &sockets), ["10.0.0.1"]);
    }

    #[test]
    fn a_dual_stack_socket_serves_ipv4_unless_it_is_v6only() {
        let v6only = ListenSocket {
            v6only: true,
            ..socket("::", 80)
        };
        assert_eq!(serve("0.0.0.0:80", &[], &[socket("::", 80)]), ["::"]);
        assert!(serve("0.0.0.0:80", &[], std::slice::from_ref(&v6only)).is_empty());
        assert_eq!(serve("10.0.0.1:80", &[], &[socket("::", 80)]), ["::"]);
        assert!(serve("10.0.0.1:80", &[], &[v6only]).is_empty());
    }

    #[test]
    fn one_address_is_served_by_the_most_specific_socket() {
        let sockets = [
            socket("::", 80),
            socket("0.0.0.0", 80),
            socket("10.0.0.1", 80),
        ];
        assert_eq!(serve("10.0.0.1:80", &[], &sockets), ["10.0.0.1"]);
        assert_eq!(serve("10.0.0.2:80", &[], &sockets), ["0.0.0.0"]);
        assert_eq!(serve("[2001:db8::1]:80", &[], &sockets), ["::"]);
    }

    #[test]
    fn the_ipv6_wildcard_leaves_ipv4_to_a_listener_that_names_it() {
        let sockets = [socket("0.0.0.0", 80), socket("::", 80)];
        assert_eq!(serve("[::]:80", &[], &sockets), ["0.0.0.0", "::"]);
        assert_eq!(serve("[::]:80", &["0.0.0.0:80"], &sockets), ["::"]);
    }
}

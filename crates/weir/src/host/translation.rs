//! Where connections to a port of this host go, if address translation takes them before a socket here could have them.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};

use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;

use crate::host::nftables::nat::{End, Rules};

/// All ends of connections from outside to a port of these addresses (`None`: of every one that this host has), by the rules
/// at the prerouting hook of the calling thread's network namespace.
///
/// # Errors
/// The rules cannot be read.
pub fn ends(ip: Option<IpAddr>, port: u16) -> io::Result<BTreeSet<End>> {
    let rules = match Rules::read() {
        // The kernel is without nftables.
        Err(error) if error.raw_os_error() == Some(Errno::EINVAL as i32) => Rules::default(),
        // Whoever may not read them may not guard either, which is said by itself.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Rules::default(),
        read => read?,
    };
    let mut ends = BTreeSet::new();
    for ip in addresses(ip)? {
        let to = SocketAddr::new(ip, port);
        ends.extend(rules.ends(to));
        let unclear = || End::Unclear("the table nat of iptables".to_owned());
        let found = weir_kernel::nat_ends(to)?.into_iter();
        ends.extend(found.map(|end| end.map_or_else(unclear, End::At)));
    }
    Ok(ends)
}

/// Those of this host that are meant by it, but for those of loopback: nobody outside connects to them.
fn addresses(ip: Option<IpAddr>) -> io::Result<Vec<IpAddr>> {
    let is_meant = |own: &IpAddr| match ip {
        None => true,
        Some(ip) if ip.is_unspecified() => ip.is_ipv4() == own.is_ipv4(),
        Some(ip) => ip == *own,
    };
    let mut all = own()?;
    all.retain(|ip| is_meant(ip) && !ip.is_loopback());
    Ok(all)
}

/// Whether an interface of the calling thread's network namespace has this address.
pub fn is_own(ip: IpAddr) -> bool {
    ip.is_loopback() || own().is_ok_and(|all| all.contains(&ip))
}

fn own() -> io::Result<Vec<IpAddr>> {
    let all = getifaddrs()?.filter_map(|one| {
        let address = one.address?;
        let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
        v4.or(address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))
    });
    Ok(all.collect())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use weir_testbed::needs;
    use weir_testbed::netns::run_in_new;

    fn done(command: &str) {
        let status = Command::new("sh").args(["-c", command]).status().unwrap();
        assert!(status.success(), "{command}");
    }

    fn found(ip: Option<&str>, port: u16) -> Vec<String> {
        let ends = ends(ip.map(|ip| ip.parse().unwrap()), port).unwrap();
        let shown = |end| match end {
            End::At(at) => at.to_string(),
            End::Unclear(what) => what,
        };
        ends.into_iter().map(shown).collect()
    }

    /// Addresses that connections may have.
    const OWN: &str = "ip link set lo up; ip address add 192.0.2.1/32 dev lo; ip address add 2001:db8::1/128 dev lo nodad";

    /// Against the kernel's own dumps.
    #[test]
    fn rules_of_nftables_are_followed_to_every_end_that_a_connection_may_have() {
        if !needs::root("a network namespace") || !needs::programs(&["nft", "ip"]) {
            return;
        }
        const C: &str = "add rule inet t c";
        let unclear = "the nftables chain inet t c";
        run_in_new(|| {
            done(OWN);
            for (rules, expected) in [
                ("", &[][..]),
                ("C tcp dport 8080 dnat ip to 10.0.0.2:80", &["10.0.0.2:80"]),
                ("C tcp dport 8080 dnat ip6 to [fd00::2]:80", &["[fd00::2]:80"]),
                ("C tcp dport 8081 dnat ip to 10.0.0.2:80", &[]),
                ("C tcp dport != 8080 dnat ip to 10.0.0.2:80", &[]),
                ("C udp dport 8080 dnat ip to 10.0.0.2:80", &[]),
                ("C tcp dport 8000-9000 dnat ip to 10.0.0.2", &["10.0.0.2:8080"]),
                ("C tcp dport { 80, 8080 } dnat ip to 10.0.0.2:80", &["10.0.0.2:80"]),
                ("C tcp dport { 80, 81 } dnat ip to 10.0.0.2:80", &[]),
                ("C tcp dport { 80-90, 8080 } dnat ip to 10.0.0.2:80", &["10.0.0.2:80"]),
                ("C ip daddr 192.0.2.1 tcp dport 8080 dnat to 10.0.0.2:80", &["10.0.0.2:80"]),
                ("C ip daddr 192.0.2.0/24 tcp dport 8080 dnat to 10.0.0.2:80", &["10.0.0.2:80"]),
                ("C ip daddr 192.0.2.0/28 tcp dport 8080 dnat to 10.0.0.2:80", &["10.0.0.2:80"]),
                ("C ip daddr 192.0.2.2 tcp dport 8080 dnat to 10.0.0.2:80", &[]),
                ("C ip daddr != 192.0.2.0/28 tcp dport 8080 dnat to 10.0.0.2:80", &[]),
                ("C fib daddr type local tcp dport 8080 dnat ip to 10.0.0.2:80", &["10.0.0.2:80"]),
                ("C iifname != docker0 tcp dport 8080 dnat ip to 10.0.0.2:80", &["10.0.0.2:80"]),
                ("C dnat ip to tcp dport map { 8080 : 10.0.0.3 }", &["10.0.0.3:8080"]),
                ("C dnat ip to tcp dport map { 8080 : 10.0.0.3 . 82, 1 : 10.0.0.4 . 1 }", &["10.0.0.3:82"]),
                ("C tcp dport 8080 dnat ip to 10.0.0.2-10.0.0.4", &[unclear]),
                ("C tcp dport 8080 dnat ip to numgen random mod 2 map { 0 : 10.0.0.2, 1 : 10.0.0.3 }", &[unclear]),
                ("C ip saddr 10.9.0.1 tcp dport 8080 dnat to 10.0.0.2; C tcp dport 8080 dnat ip to 10.0.0.3",
                    &["10.0.0.2:8080", "10.0.0.3:8080"]),
                ("C tcp dport 8080 dnat ip to 10.0.0.2:1; C tcp dport 8080 dnat ip to 10.0.0.3:1", &["10.0.0.2:1"]),
                ("C tcp dport 8080 accept; C tcp dport 8080 dnat ip to 10.0.0.3", &[]),
                ("C tcp dport 8080 jump s; add rule inet t s meta l4proto tcp dnat ip to 10.0.0.2:80", &["10.0.0.2:80"]),
                ("C tcp dport 8081 jump s; add rule inet t s meta l4proto tcp dnat ip to 10.0.0.2:80", &[]),
                ("C jump s; add rule inet t s return; add rule inet t s dnat ip to 10.0.0.2", &[]),
                ("C goto s; C dnat ip to 10.0.0.2", &[]),
                ("C tcp dport vmap { 8080 : goto s }; add rule inet t s meta l4proto tcp dnat ip to 10.0.0.2:80", &["10.0.0.2:80"]),
                ("C ip daddr . tcp dport vmap { 192.0.2.1 . 8080 : goto s }; add rule inet t s meta l4proto tcp dnat ip to 10.0.0.2:80",
                    &["10.0.0.2:80"]),
                ("C ip daddr . tcp dport vmap { 192.0.2.2 . 8080 : goto s }; add rule inet t s meta l4proto tcp dnat ip to 10.0.0.2:80", &[]),
                ("C meta nfproto ipv4 tcp dport 8080 redirect to :81", &["192.0.2.1:81"]),
                ("C tcp dport 8080 meta mark set 1; C meta mark 1 tcp dport 8080 dnat ip to 10.0.0.2:80", &["10.0.0.2:80"]),
            ] {
                done(&format!(
                    "nft 'add table inet t; add chain inet t s; \
                     add chain inet t c {{ type nat hook prerouting priority -100; }}; {}'",
                    rules.replace("C ", &format!("{C} "))
                ));
                assert_eq!(found(None, 8080), expected, "{rules}");
                done("nft flush ruleset");
            }
            done("nft 'add table ip t; add chain ip t c { type nat hook output priority -100; }; \
                  add rule ip t c tcp dport 8080 dnat to 10.0.0.2'");
            assert_eq!(found(None, 8080), [""; 0], "of this host's own clients only");
        })
        .unwrap();
    }

    #[test]
    fn rules_of_both_kinds_of_iptables_are_followed() {
        if !needs::root("a network namespace") {
            return;
        }
        for program in ["iptables-nft", "iptables-legacy"] {
            if !needs::programs(&[program, "ip"]) {
                continue;
            }
            run_in_new(|| {
                done(OWN);
                let rules = [
                    "-N DOCKER",
                    "-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER",
                    "-A DOCKER -i docker0 -j RETURN",
                    "-A DOCKER ! -i docker0 -p tcp -m tcp --dport 8080 -j DNAT --to-destination 172.17.0.2:80",
                    "-A DOCKER -d 192.0.2.9/32 -p tcp -m tcp --dport 8080 -j DNAT --to-destination 172.17.0.3:80",
                    "-A DOCKER -d 192.0.2.0/24 -p tcp -m tcp --dport 8081 -m comment --comment x -j DNAT --to-destination 172.17.0.4",
                    "-A DOCKER -p tcp -m tcp --dport 8081 -j DNAT --to-destination 172.17.0.5",
                    "-A DOCKER -p udp -m udp --dport 8082 -j DNAT --to-destination 172.17.0.6",
                    "-A DOCKER -p tcp -m tcp --dport 8083 -j DNAT --to-destination 172.17.0.7-172.17.0.8",
                    "-A DOCKER -p tcp -m tcp --dport 8084 -j REDIRECT --to-ports 84",
                    "-N SERVICE",
                    "-A PREROUTING -p tcp -m tcp --dport 8085 -j SERVICE",
                    "-A SERVICE -m statistic --mode random --probability 0.5 -j DNAT -p tcp --to-destination 10.0.0.1:80",
                    "-A SERVICE -j DNAT -p tcp --to-destination 10.0.0.2:80",
                    "-A PREROUTING -p tcp -m tcp --dport 8086 -j NETMAP --to 10.1.0.0/24",
                    "-A PREROUTING -p tcp -m tcp --dport 8086 -j DNAT --to-destination 10.0.0.3:80",
                ];
                for rule in rules {
                    done(&format!("{program} -t nat {rule}"));
                }
                for (port, expected) in [
                    (8080, &["172.17.0.2:80"][..]),
                    (8081, &["172.17.0.4:8081"]),
                    (8082, &[]),
                    (8084, &["192.0.2.1:84"]),
                    (8085, &["10.0.0.1:80", "10.0.0.2:80"]),
                    (80, &[]),
                ] {
                    assert_eq!(found(None, port), expected, "{program} {port}");
                }
                for port in [8083, 8086] {
                    let found = found(None, port);
                    let is_unclear = matches!(&found[..], [one] if one.starts_with("the "));
                    assert!(is_unclear, "{program} {port}: {found:?}");
                }
                assert_eq!(found(Some("192.0.2.1"), 8080), ["172.17.0.2:80"]);
                assert_eq!(found(Some("2001:db8::1"), 8080), [""; 0]);
            })
            .unwrap();
        }
    }
}

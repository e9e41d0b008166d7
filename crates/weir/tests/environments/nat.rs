//! Address translation between the clients and the servers.

use std::path::Path;

use weir_testbed::needs::{self, lacking};
use weir_testbed::netns::Netns;
use weir_testbed::sockets::within;

use crate::bed::{
    Bed, PORT, SERVER, Weir, assert_untouched, at, holds, nft, plug, protect_fails, run, serve,
};
use crate::load;

/// A host whose address the clients know, and containers on its bridge.
struct Host {
    bed: Bed,
    containers: Vec<Netns>,
}

impl Host {
    /// `None` without root or nft; says so.
    fn new(containers: usize) -> Option<Host> {
        if !needs::programs(&["nft"]) {
            return None;
        }
        let bed = Bed::new()?;
        let host = &bed.server;
        host.set_sysctl("net.ipv4.ip_forward", "1").unwrap();
        host.set_sysctl("net.ipv6.conf.all.forwarding", "1")
            .unwrap();
        host.ip_batch(
            "link add name bridge0 type bridge
             addr add 10.72.0.1/24 dev bridge0
             addr add fd72::1/64 dev bridge0 nodad
             link set bridge0 up",
        )
        .unwrap();
        let containers = (2..2 + containers).map(|number| {
            let container = Netns::create("container").unwrap();
            let port = format!("port{number}");
            plug(host, &port, &container, "eth0");
            host.ip(&["link", "set", &port, "master", "bridge0"])
                .unwrap();
            container
                .ip_batch(&format!(
                    "addr add 10.72.0.{number}/24 dev eth0
                     addr add fd72::{number}/64 dev eth0 nodad
                     route add default via 10.72.0.1
                     -6 route add default via fd72::1"
                ))
                .unwrap();
            container
        });
        let containers = containers.collect();
        Some(Host { bed, containers })
    }

    /// Sends what comes to the port to the containers' port 80, to one of two at random as kube-proxy does, and
    /// hides the containers' addresses.
    fn publish(&self) {
        let rule = |number: usize| {
            let chance = if number + 1 < self.containers.len() {
                "numgen random mod 2 == 0"
            } else {
                ""
            };
            let host = number + 2;
            format!(
                "iif u0 tcp dport {PORT} meta nfproto ipv4 {chance} dnat ip to 10.72.0.{host}:80
                 iif u0 tcp dport {PORT} meta nfproto ipv6 {chance} dnat ip6 to [fd72::{host}]:80\n"
            )
        };
        let rules: String = (0..self.containers.len()).map(rule).collect();
        nft(
            &self.bed.server,
            &format!(
                "table inet nat {{
                   chain in {{
                     type nat hook prerouting priority dstnat;
                     {rules}
                   }}
                   chain out {{
                     type nat hook postrouting priority srcnat;
                     oif != bridge0 masquerade
                   }}
                 }}"
            ),
        );
    }
}

/// As Docker publishes a port. weir is in the container's namespace.
#[test]
fn published_port_guarded_in_the_container() {
    let Some(host) = Host::new(1) else { return };
    host.publish();
    let _server = serve(&host.containers[0], 80);
    let guarded = [(&host.containers[0], 80)];
    let to = at(SERVER, PORT);
    holds(
        "bridge with DNAT and MASQUERADE",
        &host.bed.client,
        &to,
        &guarded,
    );
}

/// The same with weir in the host's namespace, where no socket has the port: `protect` says so, and a listener
/// of the config file changes nothing.
#[test]
fn published_port_passes_a_weir_of_the_host() {
    let Some(host) = Host::new(1) else { return };
    host.publish();
    let _server = serve(&host.containers[0], 80);
    let (client, to) = (&host.bed.client, at(SERVER, PORT));
    let said = protect_fails(&host.bed.server, PORT);
    assert!(said.contains("nothing listens on *:8080"), "{said}");
    load::ready(client, &to, &load::plain);
    let weir = Weir::guard(&host.bed.server, PORT);
    let light = load::light(client, &to, &load::plain);
    let over = load::overload(client, &to, &load::plain);
    println!("DNAT, weir of the host: light load {light}; overload {over}");
    assert_untouched(&light);
    assert!(
        over.silent > 0 && over.refused == 0 && over.failed == 0,
        "{over}"
    );
    assert_eq!(weir.refused(), 0);
}

/// As kube-proxy spreads a service's address over its pods, at random; a weir in each pod.
#[test]
fn service_address_spread_at_random_over_pods() {
    let Some(host) = Host::new(2) else { return };
    host.publish();
    let _servers: Vec<_> = host.containers.iter().map(|pod| serve(pod, 80)).collect();
    let guarded: Vec<_> = host.containers.iter().map(|pod| (pod, 80)).collect();
    let to = at(SERVER, PORT);
    holds("kube-proxy's rules", &host.bed.client, &to, &guarded);
}

/// The kernel's own load balancer sends each new connection to the next pod.
#[test]
fn ipvs() {
    let Some(host) = Host::new(2) else { return };
    let balancer = &host.bed.server;
    let has_ipvs = within(balancer, || {
        Path::new("/proc/thread-self/net/ip_vs").exists()
    });
    if !has_ipvs {
        return lacking("CONFIG_IP_VS");
    }
    if !needs::programs(&["ipvsadm"]) {
        return;
    }
    for (service, pods) in [
        ("10.70.0.1:8080", ["10.72.0.2:80", "10.72.0.3:80"]),
        ("[fd70::1]:8080", ["[fd72::2]:80", "[fd72::3]:80"]),
    ] {
        run(balancer, "ipvsadm", &format!("-A -t {service} -s rr"));
        for pod in pods {
            run(balancer, "ipvsadm", &format!("-a -t {service} -r {pod} -m"));
        }
    }
    let _servers: Vec<_> = host.containers.iter().map(|pod| serve(pod, 80)).collect();
    let guarded: Vec<_> = host.containers.iter().map(|pod| (pod, 80)).collect();
    holds("IPVS", &host.bed.client, &at(SERVER, PORT), &guarded);
}

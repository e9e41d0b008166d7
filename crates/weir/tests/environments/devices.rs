//! Network devices between the clients and the server.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use weir_testbed::bed::{Tap, Tun};
use weir_testbed::needs::{self, kernel_can};
use weir_testbed::netns::Netns;
use weir_testbed::wait::Stops;

use crate::bed::{Bed, OVERLAY, PORT, SERVER, at, holds, plug, run, serve};

#[test]
fn veth() {
    let Some(bed) = Bed::new() else { return };
    let _server = serve(&bed.server, PORT);
    let to = at(SERVER, PORT);
    holds("veth", &bed.client, &to, &[(&bed.server, PORT)]);
}

/// The server has its addresses on a bridge, whose port leads to the client.
#[test]
fn bridge() {
    let Some(bed) = Bed::new() else { return };
    let bridge = "link add name o0 type bridge";
    if !kernel_can(&bed.server, "CONFIG_BRIDGE", bridge) {
        return;
    }
    bed.server.ip_batch("link set u0 master o0").unwrap();
    overlay("bridge", &bed, "u0");
}

#[test]
fn vlan() {
    both_ends("VLAN", "CONFIG_VLAN_8021Q", |_, _| {
        "link add link u0 name o0 type vlan id 5".into()
    });
}

#[test]
fn bond() {
    let Some(bed) = Bed::new() else { return };
    let bond = "link add name o0 type bond mode active-backup";
    if !kernel_can(&bed.server, "CONFIG_BONDING", bond) {
        return;
    }
    let lines = "link set u0 down\nlink set u0 master o0\nlink set o0 up";
    bed.server.ip_batch(lines).unwrap();
    overlay("bond", &bed, "u0");
}

#[test]
fn gre() {
    both_ends("GRE", "CONFIG_NET_IPGRE", |local, remote| {
        format!("link add name o0 type gre local {local} remote {remote}")
    });
}

#[test]
fn vxlan() {
    both_ends("VXLAN", "CONFIG_VXLAN", |local, remote| {
        format!("link add name o0 type vxlan id 5 dstport 4789 local {local} remote {remote}")
    });
}

/// A device of its own at each end, over the link.
fn both_ends(name: &str, option: &str, device: impl Fn(&str, &str) -> String) {
    let Some(bed) = Bed::new() else { return };
    let (client, server) = ("10.70.0.2", "10.70.0.1");
    let ends = [(&bed.client, client, server), (&bed.server, server, client)];
    if ends
        .iter()
        .any(|(netns, local, remote)| !kernel_can(netns, option, &device(local, remote)))
    {
        return;
    }
    overlay(name, &bed, "o0");
}

fn overlay(name: &str, bed: &Bed, at_client: &str) {
    bed.address_overlay(at_client, "o0");
    let _server = serve(&bed.server, PORT);
    let to = at(OVERLAY, PORT);
    holds(name, &bed.client, &to, &[(&bed.server, PORT)]);
}

#[test]
fn wireguard() {
    let Some(bed) = Bed::new() else { return };
    let ends = [(&bed.client, "10.70.0.1"), (&bed.server, "10.70.0.2")];
    let add = "link add name o0 type wireguard";
    if ends
        .iter()
        .any(|(netns, _)| !kernel_can(netns, "CONFIG_WIREGUARD", add))
    {
        return;
    }
    if !needs::programs(&["wg"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let keys = ends.map(|(netns, peer)| {
        let file = folder.path().join(peer);
        std::fs::write(&file, run(netns, "wg", "genkey")).unwrap();
        let private = format!("set o0 listen-port 51820 private-key {}", file.display());
        run(netns, "wg", &private);
        run(netns, "wg", "show o0 public-key")
    });
    for ((netns, peer), key) in ends.iter().zip(keys.iter().rev()) {
        let peer = format!("set o0 peer {key} allowed-ips 0.0.0.0/0,::/0 endpoint {peer}:51820");
        run(netns, "wg", &peer);
    }
    overlay("WireGuard", &bed, "o0");
}

#[test]
fn macvlan() {
    child_device("macvlan", "CONFIG_MACVLAN", "macvlan mode bridge");
}

#[test]
fn ipvlan() {
    child_device("ipvlan", "CONFIG_IPVLAN", "ipvlan mode l2");
}

/// A container has a device that shares its host's; weir guards in the container.
fn child_device(name: &str, option: &str, kind: &str) {
    let Some(bed) = Bed::new() else { return };
    let container = Netns::create("container").unwrap();
    let add = format!("link add link u0 name o0 type {kind}");
    if !kernel_can(&bed.server, option, &add) {
        return;
    }
    let lines = format!("link set o0 netns {}", container.name());
    bed.server.ip_batch(&lines).unwrap();
    let lines = "addr add 10.70.0.3/24 dev o0\naddr add fd70::3/64 dev o0 nodad\nlink set o0 up";
    container.ip_batch(lines).unwrap();
    let _server = serve(&container, PORT);
    let to = at(["10.70.0.3", "fd70::3"], PORT);
    holds(name, &bed.client, &to, &[(&container, PORT)]);
}

/// The server's link is in a routing domain of its own; its socket serves all domains.
#[test]
fn vrf() {
    let Some(bed) = Bed::new() else { return };
    let vrf = "link add name o0 type vrf table 10";
    if !kernel_can(&bed.server, "CONFIG_NET_VRF", vrf) {
        return;
    }
    let lines = "link set o0 up\nlink set u0 master o0\naddr replace fd70::1/64 dev u0 nodad";
    bed.server.ip_batch(lines).unwrap();
    bed.server
        .set_sysctl("net.ipv4.tcp_l3mdev_accept", "1")
        .unwrap();
    let _server = serve(&bed.server, PORT);
    holds(
        "VRF",
        &bed.client,
        &at(SERVER, PORT),
        &[(&bed.server, PORT)],
    );
}

/// A wire between two more namespaces does not disturb the server's own.
#[test]
fn two_links_into_one_server() {
    let Some(bed) = Bed::new() else { return };
    plug(&bed.client, "u1", &bed.server, "u1");
    bed.address_overlay("u1", "u1");
    let _server = serve(&bed.server, PORT);
    let to = [at(SERVER, PORT), at(OVERLAY, PORT)].concat();
    holds("two links", &bed.client, &to, &[(&bed.server, PORT)]);
}

/// As of a VPN: devices without a link header, and a program that carries their packets.
#[test]
fn tun() {
    let Some(bed) = Bed::new() else { return };
    let ends =
        [&bed.client, &bed.server].map(|netns| Tap::create(netns, "o0", Tun::Packets).unwrap());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| carry(&ends, &stop));
        let _stops = Stops(&stop);
        overlay("tun", &bed, "o0");
    });
}

/// Carries packets between two devices, until `stop`.
fn carry(ends: &[Tap; 2], stop: &AtomicBool) {
    let mut buffer = vec![0; 65_536];
    while !stop.load(Ordering::Relaxed) {
        let mut idle = true;
        for (from, to) in [(&ends[0], &ends[1]), (&ends[1], &ends[0])] {
            while let Ok(Some(packet)) = from.receive(&mut buffer) {
                idle = false;
                // A device that is not up yet takes none.
                let _ = to.send(packet);
            }
        }
        if idle {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

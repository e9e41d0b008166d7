//! The test bed: a server namespace with a wire to the load generator, and a client namespace for
//! programs with real sockets.
//!
//! ```text
//!   generator (this process, CPU 0)            client namespace (httperf, curl, bursts)
//!        | frames by read(2)/write(2)               | veth0  10.66.1.2  fd66:0:0:1::2
//!        |                                          |
//!   [ wire0  10.66.0.1  fd66::1          veth0  10.66.1.1  fd66:0:0:1::1 ]  server namespace
//!        | RPS: receive work of wire0 goes to the server's CPU (the last one)
//! ```
//!
//! The generator's clients live in 10.128.0.0/9 and fd66:1::/64, which the server namespace routes
//! to a gateway on the wire with a permanent neighbour entry, so that neither ARP nor neighbour
//! discovery is in the way. Only sysctls of these namespaces are set.

mod counters;
mod tap;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub use counters::Counters;
pub use tap::{Tap, Tun};

use crate::error::Result;
use crate::netns::Netns;

/// Name of the server's device that leads to the generator.
pub const WIRE: &str = "wire0";
/// The server's Ethernet address on the wire.
pub const SERVER_MAC: [u8; 6] = [0x02, 0, 0, 0, 0x66, 0x01];
/// The gateway's (that is, the generator's) Ethernet address on the wire.
pub const GATEWAY_MAC: [u8; 6] = [0x02, 0, 0, 0, 0x66, 0x02];
/// The server's IPv4 address on the wire.
pub const SERVER_V4: Ipv4Addr = Ipv4Addr::new(10, 66, 0, 1);
/// The server's IPv6 address on the wire.
pub const SERVER_V6: Ipv6Addr = Ipv6Addr::new(0xfd66, 0, 0, 0, 0, 0, 0, 1);
/// The server's IPv4 address towards the client namespace.
pub const SERVER_VETH_V4: Ipv4Addr = Ipv4Addr::new(10, 66, 1, 1);

/// Packets that the wire holds towards the generator. Ten times the default, so that a moment in
/// which the generator does not read loses nothing: losses shall happen at the server only.
const WIRE_QUEUE_PACKETS: u32 = 10_000;

/// Names, addresses and CPUs of a bed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// CPU of the generator.
    pub client_cpu: usize,
    /// CPU of the server and of the receive work of its packets.
    pub server_cpu: usize,
}

impl Layout {
    /// The generator on the first CPU and the server on the last.
    pub fn of_this_machine() -> Layout {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Layout {
            client_cpu: 0,
            server_cpu: cpus - 1,
        }
    }
}

/// A server namespace with its wire, and a client namespace; all removed on drop.
#[derive(Debug)]
pub struct Bed {
    /// Where the server (and weir) runs.
    pub server: Netns,
    /// Where programs with real sockets run.
    pub clients: Netns,
    /// The generator's end of the wire.
    pub wire: Tap,
    /// CPUs in use.
    pub layout: Layout,
}

impl Bed {
    /// Builds the bed. Removes what killed labs have left behind first.
    pub fn build(layout: Layout) -> Result<Bed> {
        crate::netns::require_root()?;
        for name in crate::netns::sweep_stale() {
            eprintln!(
                "weir-lab: removed network namespace {name}, left behind by a lab that was killed"
            );
        }
        let server = Netns::create("server")?;
        let clients = Netns::create("clients")?;
        let wire = Tap::create(&server, WIRE, Tun::Frames)?;
        let bed = Bed {
            server,
            clients,
            wire,
            layout,
        };
        bed.set_sysctls()?;
        bed.configure_wire()?;
        bed.configure_veth()?;
        bed.server.steer_receive_work(WIRE, bed.layout.server_cpu)?;
        Ok(bed)
    }

    /// The server's address on the wire.
    pub fn server_address(&self, ipv6: bool) -> IpAddr {
        if ipv6 {
            SERVER_V6.into()
        } else {
            SERVER_V4.into()
        }
    }

    /// Kernel counters of the server namespace.
    pub fn counters(&self) -> Result<Counters> {
        Counters::read(&self.server)
    }

    /// Puts a router between the two namespaces that loses so many of a thousand packets, at random, in each direction:
    /// neither end learns of a loss but by what does not come. The addresses stay. The router goes when it is dropped, and
    /// the link with it.
    pub fn lose_between(&self, permille: u32) -> Result<Netns> {
        let router = Netns::create("router")?;
        self.server.ip(&["link", "delete", "veth0"])?;
        let ends = [
            (&self.server, "to-server", "10.66.1.1", "fd66:0:0:1::1"),
            (&self.clients, "to-clients", "10.66.1.2", "fd66:0:0:1::2"),
        ];
        for name in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
            router.set_sysctl(name, "1")?;
        }
        for (netns, device, v4, v6) in ends {
            router.ip_batch(&format!(
                "link add {device} type veth peer name veth0 netns {}
                 addr add 10.66.9.1/32 dev {device}
                 addr add fe80::1/64 dev {device} nodad
                 link set {device} up
                 route add {v4}/32 dev {device}
                 route add {v6}/128 dev {device}",
                netns.name()
            ))?;
            netns.ip_batch(&format!(
                "addr add {v4}/32 dev veth0
                 addr add {v6}/128 dev veth0 nodad
                 link set veth0 up
                 route add 10.66.9.1/32 dev veth0
                 route add 10.66.1.0/24 via 10.66.9.1 dev veth0
                 route add fd66:0:0:1::/64 via fe80::1 dev veth0"
            ))?;
        }
        router.lose_forwarded(permille)?;
        Ok(router)
    }

    fn set_sysctls(&self) -> Result<()> {
        // The backlog that a server asks for shall be the one it gets.
        self.server.set_sysctl("net.core.somaxconn", "65535")?;
        for netns in [&self.server, &self.clients] {
            netns.set_sysctl("net.ipv4.conf.all.rp_filter", "0")?;
            netns.set_sysctl("net.ipv4.conf.default.rp_filter", "0")?;
            netns.set_sysctl("net.ipv6.conf.all.accept_ra", "0")?;
            netns.set_sysctl("net.ipv6.conf.default.accept_ra", "0")?;
        }
        Ok(())
    }

    fn configure_wire(&self) -> Result<()> {
        self.server.ip_batch(&format!(
            "link set {WIRE} address {server} txqueuelen {WIRE_QUEUE_PACKETS}
             addr add {SERVER_V4}/24 dev {WIRE}
             addr add {SERVER_V6}/64 dev {WIRE} nodad
             link set {WIRE} up
             neigh replace 10.66.0.2 lladdr {gateway} dev {WIRE} nud permanent
             neigh replace fd66::2 lladdr {gateway} dev {WIRE} nud permanent
             route add 10.128.0.0/9 via 10.66.0.2 dev {WIRE}
             route add fd66:1::/64 via fd66::2 dev {WIRE}",
            server = colons(SERVER_MAC),
            gateway = colons(GATEWAY_MAC),
        ))
    }

    fn configure_veth(&self) -> Result<()> {
        self.server.ip(&[
            "link",
            "add",
            "veth0",
            "type",
            "veth",
            "peer",
            "name",
            "veth0",
            "netns",
            self.clients.name(),
        ])?;
        self.server.ip_batch(&format!(
            "addr add {SERVER_VETH_V4}/24 dev veth0
             addr add fd66:0:0:1::1/64 dev veth0 nodad
             link set veth0 up"
        ))?;
        self.clients.ip_batch(
            "addr add 10.66.1.2/24 dev veth0
             addr add fd66:0:0:1::2/64 dev veth0 nodad
             link set veth0 up
             route add default via 10.66.1.1",
        )
    }
}

fn colons(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

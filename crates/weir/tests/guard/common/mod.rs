//! What all themes share: the bed with its paths, and the weir under test.

mod weir;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::Command;

use tempfile::TempDir;
use weir_kernel::has_cookie_kfunc;
use weir_testbed::bed::{Bed as Links, Counters, Layout, SERVER_VETH_V4};
use weir_testbed::needs;
use weir_testbed::netns::Netns;

pub use weir::Weir;
pub use weir_testbed::raw::{Peer, Raw, Segment, Shape, Tunnel};
pub use weir_testbed::sockets::{
    Attempts, Fate, SILENCE, accept, attempt, connect, connect_patiently, echo_both_ways, fate,
    greet, listen, listen_in_group, within,
};
pub use weir_testbed::wait::{PATIENCE, until};

/// Whether the kernel takes cookies from BPF (Linux 6.9); says so if not. Without, no-syn-drop is as reserv.
pub fn takes_cookies() -> bool {
    let takes = has_cookie_kfunc();
    if !takes {
        needs::skip("kernel without bpf_sk_assign_tcp_reqsk");
    }
    takes
}

/// The port of the server under guard.
pub const PORT: u16 = 8080;
/// Places in its listen queue; the kernel by itself takes one more.
pub const BACKLOG: i32 = 4;
/// The server's IPv6 address towards the client namespace.
pub const SERVER_VETH_V6: Ipv6Addr = Ipv6Addr::new(0xfd66, 0, 0, 1, 0, 0, 0, 1);

/// A server namespace, a client namespace behind a veth pair, a wire for [`Raw`] hosts, and a folder.
pub struct Bed {
    pub links: Links,
    pub folder: TempDir,
}

/// A way to the server: who connects, and to which of its addresses.
#[derive(Clone, Copy)]
pub struct Path<'a> {
    pub name: &'static str,
    pub client: &'a Netns,
    pub address: IpAddr,
}

impl Path<'_> {
    pub fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.address, port)
    }
}

impl Bed {
    /// `None` without root; says so.
    pub fn new() -> Option<Bed> {
        if !needs::root("a network namespace") {
            return None;
        }
        let links = Links::build(Layout::of_this_machine()).unwrap();
        let folder = TempDir::with_prefix("weir-test-").unwrap();
        Some(Bed { links, folder })
    }

    pub fn server(&self) -> &Netns {
        &self.links.server
    }

    pub fn client(&self) -> &Netns {
        &self.links.clients
    }

    /// IPv4 and IPv6, over veth and over the loopback device.
    pub fn paths(&self) -> [Path<'_>; 4] {
        [
            self.veth4(),
            self.veth6(),
            self.loopback4(),
            self.loopback6(),
        ]
    }

    pub fn veth4(&self) -> Path<'_> {
        Path {
            name: "veth4",
            client: self.client(),
            address: SERVER_VETH_V4.into(),
        }
    }

    pub fn veth6(&self) -> Path<'_> {
        Path {
            name: "veth6",
            client: self.client(),
            address: SERVER_VETH_V6.into(),
        }
    }

    pub fn loopback4(&self) -> Path<'_> {
        Path {
            name: "loopback4",
            client: self.server(),
            address: Ipv4Addr::LOCALHOST.into(),
        }
    }

    pub fn loopback6(&self) -> Path<'_> {
        Path {
            name: "loopback6",
            client: self.server(),
            address: Ipv6Addr::LOCALHOST.into(),
        }
    }

    /// The kernel's own overflows of listen queues in the server namespace so far.
    pub fn overflows(&self) -> i64 {
        Counters::read(self.server())
            .unwrap()
            .get("TcpExt.ListenOverflows")
    }

    /// What a program prints inside the server namespace.
    pub fn output(&self, program: &str, arguments: &[&str]) -> String {
        output(self.server(), program, arguments)
    }
}

/// What a program prints inside a namespace; it must succeed.
pub fn output(netns: &Netns, program: &str, arguments: &[&str]) -> String {
    let output = within(netns, || Command::new(program).args(arguments).output());
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {output:?}"
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

//! Namespaces with links between them, a slow server, and weir beside it.

use std::fs::File;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;
use weir_testbed::needs;
use weir_testbed::netns::Netns;
use weir_testbed::sockets::{listen, within};
use weir_testbed::wait::until;

use crate::load::{self, Outcome, Workers};

/// The port of the servers.
pub const PORT: u16 = 8080;
/// Places in their listen queues.
pub const BACKLOG: i32 = 8;
/// The ends of the link `u0` between client and server.
pub const SERVER: [&str; 2] = ["10.70.0.1", "fd70::1"];
/// The server's addresses on what the environment adds over that link.
pub const OVERLAY: [&str; 2] = ["10.71.0.1", "fd71::1"];

/// An address of each family with a port.
pub fn at(addresses: [&str; 2], port: u16) -> Vec<SocketAddr> {
    let address = |text: &str| SocketAddr::new(text.parse::<IpAddr>().unwrap(), port);
    addresses.map(address).to_vec()
}

/// A client and a server with a link between them, `u0` at both ends.
pub struct Bed {
    pub client: Netns,
    pub server: Netns,
}

impl Bed {
    /// `None` without root; says so.
    pub fn new() -> Option<Bed> {
        let client = needs::namespace("client")?;
        let server = needs::namespace("server")?;
        plug(&client, "u0", &server, "u0");
        client
            .ip_batch("addr add 10.70.0.2/24 dev u0\naddr add fd70::2/64 dev u0 nodad")
            .unwrap();
        server
            .ip_batch("addr add 10.70.0.1/24 dev u0\naddr add fd70::1/64 dev u0 nodad")
            .unwrap();
        Some(Bed { client, server })
    }

    /// Gives the overlay's devices their addresses, and sets them up.
    pub fn address_overlay(&self, client: &str, server: &str) {
        for (netns, device, host) in [(&self.client, client, 2), (&self.server, server, 1)] {
            netns
                .ip_batch(&format!(
                    "addr add 10.71.0.{host}/24 dev {device}
                     addr add fd71::{host}/64 dev {device} nodad
                     link set {device} up"
                ))
                .unwrap();
        }
    }
}

/// A veth pair between two namespaces, up.
pub fn plug(a: &Netns, at_a: &str, b: &Netns, at_b: &str) {
    a.ip_batch(&format!(
        "link add {at_a} type veth peer name {at_b} netns {}\nlink set {at_a} up",
        b.name()
    ))
    .unwrap();
    b.ip(&["link", "set", at_b, "up"]).unwrap();
}

/// Runs a program in a namespace; it must succeed.
pub fn run(netns: &Netns, program: &str, arguments: &str) -> String {
    let mut command = needs::command(program);
    command.args(arguments.split_whitespace());
    let output = within(netns, || command.output().unwrap());
    assert!(output.status.success(), "{program} {arguments}: {output:?}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Puts nftables rules in force; needs `nft`.
pub fn nft(netns: &Netns, rules: &str) {
    let output = within(netns, || needs::command("nft").arg(rules).output().unwrap());
    assert!(output.status.success(), "{rules}: {output:?}");
}

/// A server of the usual kind: all addresses of both families, one worker.
pub fn serve(netns: &Netns, port: u16) -> Workers {
    Workers::start(vec![open(netns, port)])
}

/// The listening socket of such a server.
pub fn open(netns: &Netns, port: u16) -> TcpListener {
    listen(netns, format!("[::]:{port}").parse().unwrap(), BACKLOG)
}

/// A running `weir run` in a namespace; killed on drop.
pub struct Weir<'a> {
    netns: &'a Netns,
    folder: TempDir,
    child: Child,
}

impl<'a> Weir<'a> {
    /// Starts it with one listener on this port of all addresses, and waits until it runs.
    pub fn guard(netns: &'a Netns, port: u16) -> Weir<'a> {
        let folder = TempDir::with_prefix("weir-environment-").unwrap();
        let config = folder.path().join("weir.toml");
        std::fs::write(&config, format!("[[listener]]\naddress = \"*:{port}\"\n")).unwrap();
        let stderr = File::create(folder.path().join("stderr")).unwrap();
        let mut command = weir(&folder);
        command.arg("run").arg("--config").arg(config);
        command.stdout(Stdio::null()).stderr(stderr);
        let child = within(netns, || command.spawn().unwrap());
        let mut weir = Weir {
            netns,
            folder,
            child,
        };
        until("weir runs", || {
            let ended = weir.child.try_wait().unwrap();
            assert!(ended.is_none(), "weir: {}", weir.said());
            (weir.status()["running"] == true).then_some(())
        });
        weir
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("stderr")).unwrap_or_default()
    }

    /// `weir status --json`.
    pub fn status(&self) -> Value {
        let mut command = weir(&self.folder);
        command.args(["status", "--json"]);
        let output = within(self.netns, || command.output().unwrap());
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    /// Connections that it has refused: at the SYN, or those that had a SYN cookie at the final ACK.
    pub fn refused(&self) -> u64 {
        let status = self.status();
        let counters = status["listeners"][0]["counters"].as_object().unwrap();
        let refusals = counters
            .iter()
            .filter(|(name, _)| name.starts_with("syn_reset") || name.starts_with("ack_reset"));
        refusals.map(|(_, n)| n.as_u64().unwrap()).sum()
    }

    /// The verdicts that have fallen, by name, for people.
    pub fn verdicts(&self) -> Vec<String> {
        let status = self.status();
        let counters = status["listeners"][0]["counters"].as_object().unwrap();
        let fallen = counters.iter().filter(|(_, n)| n.as_u64() > Some(0));
        fallen.map(|(name, n)| format!("{name} {n}")).collect()
    }

    /// SYNs that it has let in.
    pub fn admitted(&self) -> u64 {
        let status = self.status();
        let admitted = &status["listeners"][0]["counters"]["syn_admitted"];
        admitted.as_u64().unwrap()
    }
}

impl Drop for Weir<'_> {
    fn drop(&mut self) {
        let _ = nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(self.child.id() as i32),
            Signal::SIGKILL,
        );
        let _ = self.child.wait();
    }
}

fn weir(folder: &TempDir) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.arg("--runtime-dir").arg(folder.path());
    command.stdin(Stdio::null());
    command
}

/// What `weir protect` says on a port on which it finds no server.
pub fn protect_fails(netns: &Netns, port: u16) -> String {
    let folder = TempDir::with_prefix("weir-environment-").unwrap();
    let mut command = weir(&folder);
    command.arg("protect").arg(port.to_string());
    // A port that is published from elsewhere would be guarded there.
    command.args(["--where", "here"]);
    let output = within(netns, || command.output().unwrap());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What the clients saw, and the weirs that still guard.
pub struct Seen<'a> {
    /// Overload without weir.
    pub without: Outcome,
    /// Light load with it.
    pub light: Outcome,
    /// Overload with it.
    pub over: Outcome,
    /// One for each of the guarded.
    pub weirs: Vec<Weir<'a>>,
}

/// Overload without weir, then light load and overload with it; each server is idle in between. Prints what came of it.
///
/// `guarded`: the namespaces of the servers, each with its own weir.
pub fn without_and_with<'a>(
    name: &str,
    client: &Netns,
    to: &[SocketAddr],
    guarded: &[(&'a Netns, u16)],
    open: load::Open,
) -> Seen<'a> {
    load::ready(client, to, open);
    let without = load::overload_all(guarded.len(), client, to, open);
    load::ready(client, to, open);
    let weirs: Vec<Weir<'a>> = guarded
        .iter()
        .map(|(netns, port)| Weir::guard(netns, *port))
        .collect();
    let light = load::light(client, to, open);
    let over = load::overload_all(guarded.len(), client, to, open);
    println!("{name}: without weir {without}; with: light load {light}; overload {over}");
    for weir in &weirs {
        println!("{name}: {:?}", weir.verdicts());
    }
    Seen {
        without,
        light,
        over,
        weirs,
    }
}

/// The claim of an environment in which weir guards: without it, clients of an overloaded server hear nothing until
/// they repeat their SYN; with it, light load is served whole, and overload is served or refused at once.
///
/// `guarded`: the namespaces of the servers, each with its own weir.
pub fn holds(name: &str, client: &Netns, to: &[SocketAddr], guarded: &[(&Netns, u16)]) {
    holds_by(name, client, to, guarded, &load::plain);
}

/// The same with clients of another kind.
pub fn holds_by(
    name: &str,
    client: &Netns,
    to: &[SocketAddr],
    guarded: &[(&Netns, u16)],
    open: load::Open,
) {
    let Seen {
        without,
        light,
        over,
        weirs,
    } = without_and_with(name, client, to, guarded, open);
    let refused: u64 = weirs.iter().map(Weir::refused).sum();
    assert!(without.silent + without.late > 0, "{without}");
    assert_eq!((without.refused, without.failed), (0, 0), "{without}");
    assert_untouched(&light);
    assert!(over.served > 0 && over.refused > over.served / 2, "{over}");
    assert_eq!((over.silent, over.late, over.failed), (0, 0, 0), "{over}");
    assert_eq!(over.refused as u64, refused, "weir refused them: {over}");
    let admitted = weirs.iter().map(Weir::admitted);
    assert!(
        admitted.into_iter().all(|n| n > 0),
        "each server has a share"
    );
}

/// Nobody was refused, nobody waited for a repeated SYN.
pub fn assert_untouched(outcome: &Outcome) {
    let troubles = (
        outcome.refused,
        outcome.silent,
        outcome.late,
        outcome.failed,
    );
    assert!(outcome.served > 0 && troubles == (0, 0, 0, 0), "{outcome}");
}

//! The router and its hosts, and what the kernel has.

use std::process::{Command, Output};

use serde_json::Value;
use weir_testbed::needs;
use weir_testbed::netns::Netns;

use crate::common::Folder;

pub const SERVER: &str = "10.9.0.2:80";
/// As the paper's upload has it.
pub const RATE: &str = "2.4mbit";

/// Two hosts and a router between them, whose `up0` is before the slow link to the server. The router's queue is the
/// test's: of one connection of its own, a host lets two packets into it (TCP small queues).
pub struct Hosts {
    pub client: Netns,
    pub router: Netns,
    pub server: Netns,
    pub folder: Folder,
}

impl Hosts {
    /// `None` without root; says so.
    pub fn new(name: &str) -> Option<Hosts> {
        let role = |role| needs::namespace(role);
        let (client, router, server) = (role("client")?, role("router")?, role("server")?);
        connect(
            (&client, "eth0", "10.9.1.1/24"),
            (&router, "lan0", "10.9.1.2/24"),
        );
        connect(
            (&router, "up0", "10.9.0.1/24"),
            (&server, "eth0", "10.9.0.2/24"),
        );
        client
            .ip(&["route", "add", "default", "via", "10.9.1.2"])
            .unwrap();
        server
            .ip(&["route", "add", "default", "via", "10.9.0.1"])
            .unwrap();
        router.set_sysctl("net/ipv4/ip_forward", "1").unwrap();
        let folder = Folder::new(name);
        Some(Hosts {
            client,
            router,
            server,
            folder,
        })
    }

    /// Runs a program on the router.
    pub fn run(&self, mut command: Command) -> Output {
        self.router
            .run(|| Ok(command.output().expect("it runs")))
            .expect("the namespace can be entered")
    }

    pub fn weir(&self, arguments: &str) -> Output {
        self.run(self.folder.command(arguments))
    }

    /// What it prints, if it succeeds.
    pub fn weir_says(&self, arguments: &str) -> String {
        let output = self.weir(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "weir {arguments}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn shapes(&self) -> Value {
        serde_json::from_str(&self.weir_says("shape show --json")).unwrap()
    }

    /// Every qdisc, class and filter of the router's interface, as tc(8) shows them, less what HTB counts there, and the
    /// flows that fq_codel has at the moment.
    pub fn tc(&self) -> String {
        let counted = |word: &&str| word.parse::<u64>().is_ok();
        let show = |what| {
            let mut tc = needs::command("tc");
            tc.args([what, "show", "dev", "up0"]);
            let text = String::from_utf8(self.run(tc).stdout).unwrap();
            let mut parts = text.split("direct_packets_stat ");
            let first = parts.next().unwrap_or_default().to_owned();
            parts.fold(first, |text, part| {
                let count = part.split(' ').next().filter(counted);
                text + &part[count.map_or(0, str::len)..]
            })
        };
        let all = ["qdisc", "class", "filter"].map(show).concat();
        let is_flow = |line: &&str| line.starts_with("class fq_codel ");
        all.split_inclusive('\n')
            .filter(|line| !is_flow(line))
            .collect()
    }

    /// Runs tc(8) on the router with these words.
    ///
    /// # Panics
    /// It fails.
    pub fn do_tc(&self, arguments: &str) {
        let mut tc = needs::command("tc");
        tc.args(arguments.split(' '));
        let output = self.run(tc);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "tc {arguments}: {errors}");
    }
}

/// A wire between two namespaces: at each end the device and its address.
fn connect(one: (&Netns, &str, &str), other: (&Netns, &str, &str)) {
    let ends = [
        "type",
        "veth",
        "peer",
        "name",
        other.1,
        "netns",
        other.0.name(),
    ];
    one.0
        .ip(&[&["link", "add", one.1][..], &ends].concat())
        .unwrap();
    for (netns, device, address) in [one, other] {
        netns.ip(&["addr", "add", address, "dev", device]).unwrap();
        netns.ip(&["link", "set", device, "up"]).unwrap();
    }
}

pub fn exit_code(output: &Output) -> Option<i32> {
    output.status.code()
}

/// As of [`has_bpf`], for tests of nothing else: says so if not.
pub fn needs_bpf(hosts: &Hosts) -> bool {
    let has = has_bpf(hosts);
    if !has {
        needs::skip("kernel without qdiscs in BPF (CONFIG_NET_SCH_BPF)");
    }
    has
}

/// Whether the kernel has qdiscs in BPF. Where it has not, `install` says what it lacks and changes nothing.
pub fn has_bpf(hosts: &Hosts) -> bool {
    let before = hosts.tc();
    let output = hosts.weir("shape install --dev up0 --rate 1mbit --backend bpf");
    match exit_code(&output) {
        Some(0) => {
            hosts.weir_says("shape remove --dev up0");
            true
        }
        code => {
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(code, Some(3), "{errors}");
            assert!(errors.contains("CONFIG_NET_SCH_BPF"), "{errors}");
            assert_eq!(hosts.tc(), before);
            false
        }
    }
}

//! Beside a firewall that follows connections (conntrack): what weir lets in passes rules that want a SYN
//! first, what the rules refuse stays out, and their own SYN proxy is not disturbed.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::{Ipv6Addr, SocketAddr, TcpListener};
use std::process::{Command, Stdio};
use std::time::Duration;

use weir_testbed::needs;
use weir_testbed::wait::try_until;

use crate::common::{
    BACKLOG, Bed, Fate, PORT, Path, Peer, Raw, accept, connect, echo_both_ways, fate, greet,
    listen, takes_cookies, until, within,
};

/// Places of the server under a flood.
pub const ROOMY: i32 = 16;
/// The client of these tests by its address towards the server.
pub const CLIENT_V4: &str = "10.66.1.2";
/// Also open, and not guarded: what a flood's clients are held against comes here.
pub const PORT_BESIDE: u16 = PORT + 1;
const CLIENT_V6: &str = "fd66:0:0:1::2";

/// A way to write the same rules: established connections, then SYNs to the port, and nothing else.
#[derive(Clone, Copy, Debug)]
pub enum Rules {
    Nftables,
    /// As half of the world's guides have it: `! --syn -m state --state NEW -j DROP`.
    Iptables,
}

impl Rules {
    pub const ALL: [Rules; 2] = [Rules::Nftables, Rules::Iptables];

    /// Puts them in force in the server namespace; `blocked` are addresses that they drop. False: the
    /// program or the kernel's part is not there, and it says so.
    pub fn load(self, bed: &Bed, blocked: &[&str]) -> bool {
        match self {
            Rules::Nftables => needs::programs(&["nft"]) && nft(bed, &nft_rules(blocked)),
            Rules::Iptables => {
                needs::programs(&["iptables", "ip6tables"])
                    && iptables(bed, "iptables", blocked, |address| !address.contains(':'))
                    && iptables(bed, "ip6tables", blocked, |address| address.contains(':'))
            }
        }
    }
}

fn nft_rules(blocked: &[&str]) -> String {
    let drop = |address: &&str| {
        let family = if address.contains(':') { "ip6" } else { "ip" };
        format!("{family} saddr {address} drop\n")
    };
    format!(
        "table inet filter {{
           chain input {{
             type filter hook input priority 0; policy drop;
             ct state established,related accept
             iif lo accept
             meta l4proto {{ icmp, ipv6-icmp }} accept
             {blocked}
             tcp dport {{ {PORT}, {PORT_BESIDE} }} tcp flags & (fin|syn|rst|ack) == syn ct state new accept
           }}
         }}\n",
        blocked = blocked.iter().map(drop).collect::<String>()
    )
}

/// Runs `nft -f` in the server namespace.
pub fn nft(bed: &Bed, rules: &str) -> bool {
    let mut command = Command::new("nft");
    command.args(["-f", "-"]).stdin(Stdio::piped());
    within(bed.server(), || {
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(rules.as_bytes()).unwrap();
        drop(stdin);
        succeeded("nft", child.wait().unwrap().success())
    })
}

fn iptables(bed: &Bed, program: &str, blocked: &[&str], ours: impl Fn(&&&str) -> bool) -> bool {
    let port = PORT.to_string();
    let mut rules = vec![
        "-m state --state ESTABLISHED,RELATED -j ACCEPT".to_owned(),
        "-i lo -j ACCEPT".to_owned(),
        "-p tcp ! --syn -m state --state NEW -j DROP".to_owned(),
        "-m conntrack --ctstate INVALID -j DROP".to_owned(),
    ];
    rules.extend(
        blocked
            .iter()
            .filter(ours)
            .map(|a| format!("-s {a} -j DROP")),
    );
    rules.push(format!("-p tcp --dport {port} -j ACCEPT"));
    let icmp = if program == "iptables" {
        "icmp"
    } else {
        "ipv6-icmp"
    };
    rules.push(format!("-p {icmp} -j ACCEPT"));
    rules.push("-j DROP".to_owned());
    let add = |rule: &String| {
        let mut command = Command::new(program);
        command.args(["-A", "INPUT"]).args(rule.split_whitespace());
        within(bed.server(), || command.status().unwrap().success())
    };
    succeeded(program, rules.iter().all(add))
}

fn succeeded(program: &str, success: bool) -> bool {
    if !success {
        needs::skip(format_args!(
            "{program}: this kernel lacks what the rules need"
        ));
    }
    success
}

pub fn config(policy: &str) -> String {
    format!("[[listener]]\nname = \"web\"\naddress = \"*:{PORT}\"\n{policy}\n")
}

/// A client's whole visit with a megabyte each way: `None` if it is refused.
pub fn visit(listener: &TcpListener, path: Path<'_>) -> Option<Fate> {
    let attempts = connect(path.client, path.at(PORT), 1);
    if attempts.silent > 0 {
        return Some(Fate::False);
    }
    let mut client = attempts.connected.into_iter().next()?;
    // Longer than the kernel repeats a final ACK, shorter than a test's patience.
    listener.set_nonblocking(true).unwrap();
    let accepted = try_until(Duration::from_secs(2), || listener.accept().ok());
    let Some((mut server, _)) = accepted else {
        return Some(Fate::False);
    };
    server.set_nonblocking(false).unwrap();
    greet(std::slice::from_mut(&mut server));
    let fate = fate(&mut client);
    echo_both_ways(&mut client, &mut server, 1 << 20);
    Some(fate)
}

/// Half-open connections of clients that never come hold every place.
pub fn fill_with_half_open(bed: &Bed) {
    let raw = Raw(&bed.links.wire);
    // So many that it does not matter how many of them weir counts before the kernel does.
    for number in 0..4 * ROOMY as u32 {
        raw.syn(Peer::v4(number, PORT), number);
    }
    raw.discard();
    until("half-open connections hold the places", || {
        let held = bed.status()["listeners"][0]["half_open"].as_i64().unwrap();
        (held >= i64::from(ROOMY) / 2).then_some(())
    });
}

/// With each kind of rules, and the server flooded: clients of both families are served, and conntrack has
/// their connections.
fn clients_pass_in_a_flood(policy: &str) {
    for rules in Rules::ALL {
        let Some(bed) = Bed::new() else { return };
        if !rules.load(&bed, &[]) {
            continue;
        }
        let any: SocketAddr = (Ipv6Addr::UNSPECIFIED, PORT).into();
        let listener = listen(bed.server(), any, ROOMY);
        let _weir = bed.run(&config(policy));
        fill_with_half_open(&bed);
        let paths = [bed.veth4(), bed.veth6()];
        let mut tracked = Tracked::default();
        for round in 0..10 {
            for path in paths {
                assert_eq!(
                    visit(&listener, path),
                    Some(Fate::Served),
                    "{rules:?} {policy} {} {round}: {:?}",
                    path.name,
                    bed.verdicts(0)
                );
            }
            tracked.look(&bed);
        }
        assert!(
            bed.status()["listeners"][0]["half_open"].as_i64().unwrap() >= i64::from(ROOMY) / 2,
            "the flood lasts"
        );
        tracked.assert_has(10);
        assert_eq!(bed.overflows(), 0);
    }
}

/// The clients' connections that the kernel has tracked from their beginning. An entry goes after a while.
#[derive(Default)]
struct Tracked {
    /// Address and port of each, as conntrack has them.
    connections: BTreeSet<String>,
    is_unlisted: bool,
}

impl Tracked {
    const CLIENTS: [&str; 2] = [CLIENT_V4, "fd66:0000:0000:0001:0000:0000:0000:0002"];

    /// Adds those that the kernel lists now. Ubuntu's kernels list none: a skip.
    fn look(&mut self, bed: &Bed) {
        const LIST: &str = "/proc/thread-self/net/nf_conntrack";
        let list = bed.output(
            "sh",
            &["-c", &format!("cat {LIST} 2>/dev/null || echo none")],
        );
        if list.trim() == "none" && !std::mem::replace(&mut self.is_unlisted, true) {
            needs::lacking("CONFIG_NF_CONNTRACK_PROCFS");
        }
        let assured = list.lines().filter(|line| line.contains("[ASSURED]"));
        let ours = assured.filter_map(|line| {
            let mut words = line.split_whitespace();
            let client = words.find_map(|word| word.strip_prefix("src="))?;
            let port = words.find_map(|word| word.strip_prefix("sport="))?;
            Self::CLIENTS
                .contains(&client)
                .then(|| format!("{client} {port}"))
        });
        self.connections.extend(ours);
    }

    fn assert_has(&self, of_each: usize) {
        for client in Self::CLIENTS {
            let of_it = |connection: &&String| connection.starts_with(&format!("{client} "));
            let count = self.connections.iter().filter(of_it).count();
            assert!(
                self.is_unlisted || count >= of_each,
                "{client}: {count} of {:?}",
                self.connections
            );
        }
    }
}

#[test]
fn reserv_lets_clients_pass_stateful_rules_in_a_flood() {
    clients_pass_in_a_flood("establish = \"reserv\"");
}

#[test]
fn no_syn_drop_lets_clients_pass_stateful_rules_in_a_flood() {
    if !takes_cookies() {
        return;
    }
    clients_pass_in_a_flood("establish = \"no-syn-drop\"");
}

#[test]
fn the_xdp_front_lets_clients_pass_stateful_rules_in_a_flood() {
    clients_pass_in_a_flood("front = \"xdp\"");
}

#[test]
fn a_prioritized_queue_lets_clients_pass_stateful_rules_in_a_flood() {
    clients_pass_in_a_flood("queue = \"priority\"");
}

/// A cookie that became an entry of conntrack would be an established connection for the rules, whoever
/// its client is.
#[test]
fn a_client_that_the_rules_drop_stays_out_in_a_flood() {
    for policy in ["reserv", "no-syn-drop"] {
        for rules in Rules::ALL {
            let Some(bed) = Bed::new() else { return };
            if !rules.load(&bed, &[CLIENT_V4, CLIENT_V6]) {
                continue;
            }
            let any: SocketAddr = (Ipv6Addr::UNSPECIFIED, PORT).into();
            let listener = listen(bed.server(), any, ROOMY);
            let _weir = bed.run(&config(&format!(
                "establish = \"{policy}\"\nreject_syn = \"drop\""
            )));
            fill_with_half_open(&bed);
            let raw = Raw(&bed.links.wire);
            let mut flood = 4 * ROOMY as u32..;
            until("weir sees the flood, or answers none", || {
                raw.syn(Peer::v4(flood.next().unwrap(), PORT), 0);
                raw.discard();
                let seen = bed.counter(0, "syn_left_flood") + bed.counter(0, "cookie_sent_flood");
                (policy == "no-syn-drop" || seen > 0).then_some(())
            });
            listener.set_nonblocking(true).unwrap();
            for path in [bed.veth4(), bed.veth6()] {
                assert_eq!(connect(path.client, path.at(PORT), 1).counts(), (0, 0, 1));
                assert!(
                    listener.accept().is_err(),
                    "{policy} {rules:?} {}",
                    path.name
                );
            }
        }
    }
}

pub fn fallback(bed: &Bed) -> Option<String> {
    let status = bed.status();
    let fallback = status["listeners"][0]["fallback"].as_str();
    fallback.map(str::to_owned)
}

/// Where a rule moves clients of the guarded port to another one, weir's look-up, before the rule, finds the listener of
/// the port that they name.
#[test]
fn a_connection_that_a_rule_moves_away_from_the_guarded_port_outlives_its_full_queue() {
    const MOVED_TO: u16 = 8081;
    const WATCHED: u16 = 8082;
    for policy in ["establish = \"abort\"", ""] {
        let Some(bed) = Bed::new() else { return };
        let rules = format!(
            "table inet nat {{ chain c {{
               type nat hook prerouting priority -100;
               iifname veth0 tcp dport {PORT} redirect to :{MOVED_TO};
             }}
             }}\n"
        );
        if !needs::programs(&["nft"]) || !nft(&bed, &rules) {
            return;
        }
        let any = |port| SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
        let [_full, moved, watched] = [(PORT, BACKLOG), (MOVED_TO, ROOMY), (WATCHED, ROOMY)]
            .map(|(port, places)| listen(bed.server(), any(port), places));
        let paths = [bed.veth4(), bed.veth6()];
        let clients = paths.map(|path| {
            let client = connect(path.client, path.at(PORT), 1).connected.remove(0);
            (client, accept(&moved, 1).remove(0))
        });
        let here = bed.loopback4();
        let waiting = connect(here.client, here.at(PORT), BACKLOG as usize + 1);
        assert_eq!(waiting.counts().0, BACKLOG as usize + 1, "one too many");
        let other = format!(
            "[[listener]]\nname = \"other\"\naddress = \"*:{WATCHED}\"\nestablish = \"abort\"\n"
        );
        let _weir = bed.run(&format!("{}{other}", config(policy)));
        // From a SYN on that its final ACK decides, weir looks at all ACKs.
        let _decided = connect(here.client, here.at(WATCHED), 1);
        drop(accept(&watched, 1));
        for (mut client, mut server) in clients {
            echo_both_ways(&mut client, &mut server, 1 << 16);
        }
        assert_eq!(bed.counter(0, "ack_reset_full"), 0, "{policy}");
    }
}

/// Rules come, are reloaded (all off, then on again), and go, while weir runs and a connection is in use.
#[test]
fn rules_that_come_and_go_are_noticed_and_status_says_so() {
    let Some(bed) = Bed::new() else { return };
    if !takes_cookies() {
        return;
    }
    let path = bed.veth4();
    let listener = listen(bed.server(), path.at(PORT), BACKLOG);
    let weir = bed.run(&config("establish = \"no-syn-drop\""));
    assert_eq!(fallback(&bed), None);
    let mut clients = connect(path.client, path.at(PORT), 1);
    let mut first = accept(&listener, 1).remove(0);
    if !Rules::Nftables.load(&bed, &[]) {
        return;
    }
    until("the rules are noticed", || {
        (fallback(&bed).as_deref() == Some("abort rst-syn")).then_some(())
    });
    assert!(nft(&bed, "flush ruleset\n"));
    assert!(bed.weir("reload").status.success());
    assert!(fallback(&bed).is_some(), "they may come back");
    assert!(Rules::Nftables.load(&bed, &[]));
    assert!(bed.weir("reload").status.success());
    assert!(fallback(&bed).is_some());
    let doctor = bed.weir("doctor");
    let doctor = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(doctor.contains("conntrack"), "{doctor}");
    assert_eq!(visit(&listener, path), Some(Fate::Served));
    assert!(nft(&bed, "flush ruleset\n"));
    until("their end is noticed", || {
        fallback(&bed).is_none().then_some(())
    });
    echo_both_ways(&mut clients.connected[0], &mut first, 1 << 20);
    drop(weir);
}

/// nftables' own SYN proxy, as its wiki has it.
fn synproxy_rules() -> String {
    format!(
        "table inet proxy {{
           chain raw {{
             type filter hook prerouting priority raw; policy accept;
             tcp dport {PORT} tcp flags & (fin|syn|rst|ack) == syn notrack
           }}
           chain input {{
             type filter hook input priority 0; policy accept;
             tcp dport {PORT} ct state invalid,untracked synproxy mss 1460 wscale 7 timestamp sack-perm
             ct state invalid drop
           }}
         }}\n"
    )
}

/// More clients than places, and none of them is deceived: each is served, or refused at once.
#[test]
fn an_overloaded_server_behind_stateful_rules_serves_or_refuses_each_client() {
    for policy in [
        "establish = \"reserv\"",
        "establish = \"no-syn-drop\"",
        "queue = \"priority\"",
    ] {
        for rules in Rules::ALL {
            let Some(bed) = Bed::new() else { return };
            if !rules.load(&bed, &[]) {
                continue;
            }
            let any: SocketAddr = (Ipv6Addr::UNSPECIFIED, PORT).into();
            let listener = listen(bed.server(), any, BACKLOG);
            let _weir = bed.run(&config(&format!("{policy}\nadmit = \"queue\"")));
            for path in [bed.veth4(), bed.veth6()] {
                let mut clients = connect(path.client, path.at(PORT), 4 * BACKLOG as usize);
                let (connected, refused, silent) = clients.counts();
                assert_eq!((connected + refused, silent), (4 * BACKLOG as usize, 0));
                let waiting = bed.status()["listeners"][0]["queue_length"].as_u64();
                greet(&mut accept(&listener, waiting.unwrap() as usize));
                let (served, reset, deceived) = clients.fates();
                let what = format!("{policy} {rules:?} {}: {:?}", path.name, bed.verdicts(0));
                assert!(served >= BACKLOG as usize && deceived == 0, "{what}");
                assert_eq!(served + reset, connected, "{what}");
            }
        }
    }
}

/// A flood takes the processor from tests beside it, and they from it.
mod measured {
    use super::*;

    /// It answers the SYNs behind weir, and connects to the server over the loopback device when a client has come
    /// back: weir judges that SYN, and the client's before it. For a moment each SYN that the proxy answers is a claim
    /// of weir's, so reserv needs places for as many as come in 8 ms; abort makes no reservations.
    #[test]
    fn the_syn_proxy_of_nftables_serves_clients_in_a_flood_as_without_weir() {
        for (policy, places) in [("reserv", 64 * ROOMY), ("abort", ROOMY)] {
            let Some(bed) = Bed::new() else { return };
            if !needs::programs(&["nft"]) || !nft(&bed, &synproxy_rules()) {
                return;
            }
            let loose = "net.netfilter.nf_conntrack_tcp_loose";
            bed.server().set_sysctl(loose, "0").unwrap();
            let any: SocketAddr = (Ipv6Addr::UNSPECIFIED, PORT).into();
            let listener = listen(bed.server(), any, places);
            let _weir = bed.run(&config(&format!("establish = \"{policy}\"")));
            let raw = Raw(&bed.links.wire);
            let mut flood = 0..u32::MAX;
            for path in [bed.veth4(), bed.veth6()] {
                for round in 0..10 {
                    for number in flood.by_ref().take(4 * ROOMY as usize) {
                        raw.syn(Peer::v4(number, PORT), number);
                    }
                    raw.discard();
                    assert_eq!(
                        visit(&listener, path),
                        Some(Fate::Served),
                        "{policy} {} {round}: {:?}",
                        path.name,
                        bed.verdicts(0)
                    );
                }
            }
            assert_eq!(
                bed.status()["listeners"][0]["half_open"],
                0,
                "the proxy answers"
            );
        }
    }
}

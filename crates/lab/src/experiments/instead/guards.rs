//! What is before the server, or how it is set: the lines of each configuration, from what the server can do.

use clap::ValueEnum;

/// A guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Guard {
    /// Nothing
    Plain,
    /// Nothing, and other sysctls: tcp_abort_on_overflow, tcp_syncookies = 2, a backlog of 65535
    Tuned,
    /// nginx's limit_conn
    LimitConn,
    /// nginx's limit_req
    LimitReq,
    /// HAProxy with maxconn and a queue
    Haproxy,
    /// nftables' limit, a RST to the other SYNs
    NftLimit,
    /// nftables' ct count, a RST to the other SYNs
    NftConnlimit,
    /// nftables' synproxy
    NftSynproxy,
    /// weir protect, without further settings
    Weir,
    /// limit-conn, and a limit_conn by address
    LimitConnEach,
    /// limit-req, and a limit_req by address
    LimitReqEach,
    /// haproxy, and a stick table by address
    HaproxyEach,
    /// nft-limit, and a limit by address
    NftLimitEach,
    /// nft-connlimit, and a ct count by address
    NftConnlimitEach,
    /// weir, and a class with a rate for the greedy addresses
    WeirClass,
}

/// What nftables' rules take for a SYN.
pub const SYN: &str = "tcp flags & (fin | syn | rst | ack) == syn";
/// Where the server listens if a proxy has its port.
pub const BEHIND: u16 = 8080;
/// How long a client may wait for its turn, where a guard can be told: ms.
pub const WAIT_MS: u32 = 100;
/// Length of the server's listen queue, nginx's default.
pub const BACKLOG: u32 = 511;
/// The same of the tuned server.
pub const TUNED_BACKLOG: u32 = 65_535;

/// Patterns that nginx holds each served request's User-Agent against: work for it, as TLS and a page are. Without any, an
/// nginx serves so many small files that refusing the rest is most of its core's work, and the clients' core has too little
/// time.
const PATTERNS: usize = 7000;

/// What the server can do, by which its guards are set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Capacity {
    /// Replies/s at its peak, as measured.
    pub per_s: f64,
    /// Requests that it works on at the same time.
    pub at_once: u32,
}

impl Capacity {
    /// The same in whole requests/s.
    fn rate(self) -> u32 {
        (self.per_s.round() as u32).max(1)
    }

    /// Requests that it serves within the wait, at least one.
    pub fn burst(self) -> u32 {
        ((self.per_s * f64::from(WAIT_MS) / 1e3).round() as u32).max(1)
    }

    /// Connections to have at the same time: those that it works on, and those that are served within the wait or fit
    /// into its listen queue.
    pub fn connections(self) -> u32 {
        self.at_once + self.burst().min(BACKLOG)
    }
}

impl Guard {
    /// Whether it is a proxy process in front of a server that listens on [`BEHIND`]. nginx limits by itself where it is
    /// the server.
    pub fn is_proxy(self, server_is_nginx: bool) -> bool {
        match self.for_all() {
            Guard::Haproxy => true,
            Guard::LimitConn | Guard::LimitReq => !server_is_nginx,
            _ => false,
        }
    }

    /// Length of the listen queue of what clients connect to.
    pub fn backlog(self) -> u32 {
        match self {
            Guard::Tuned => TUNED_BACKLOG,
            _ => BACKLOG,
        }
    }

    /// Sysctls of the server's namespace.
    pub fn sysctls(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Guard::Tuned => &[
                ("net.core.somaxconn", "65535"),
                ("net.ipv4.tcp_max_syn_backlog", "65535"),
                ("net.ipv4.tcp_abort_on_overflow", "1"),
                ("net.ipv4.tcp_syncookies", "2"),
            ],
            _ => &[],
        }
    }

    /// Sysctls of the server's namespace that are there once conntrack is.
    pub fn conntrack_sysctls(self) -> &'static [(&'static str, &'static str)] {
        match self.for_all() {
            Guard::NftConnlimit => &[("net.netfilter.nf_conntrack_tcp_timeout_time_wait", "1")],
            Guard::NftSynproxy => &[
                ("net.netfilter.nf_conntrack_tcp_timeout_time_wait", "1"),
                ("net.netfilter.nf_conntrack_tcp_loose", "0"),
                ("net.ipv4.tcp_syncookies", "1"),
                ("net.ipv4.tcp_timestamps", "1"),
            ],
            _ => &[],
        }
    }

    /// The ruleset for nft; `None` if it is none of nftables'.
    pub fn nft(self, capacity: Capacity, port: u16) -> Option<String> {
        let (rate, burst) = (capacity.rate(), capacity.burst());
        match self.for_all() {
            Guard::NftLimit => Some(self.nft_input(port, &format!(
                "tcp dport {port} {SYN} limit rate over {rate}/second burst {burst} packets counter reject with tcp reset"
            ))),
            Guard::NftConnlimit => Some(self.nft_input(port, &format!(
                "tcp dport {port} ct state new ct count over {} counter reject with tcp reset",
                capacity.connections()
            ))),
            Guard::NftSynproxy => Some(format!(
                "table inet guard {{
    chain prerouting {{
        type filter hook prerouting priority raw; policy accept;
        tcp dport {port} {SYN} notrack
    }}
    chain input {{
        type filter hook input priority filter; policy accept;
        tcp dport {port} ct state invalid,untracked synproxy mss 1460 wscale 7 timestamp sack-perm
        ct state invalid drop
    }}
}}
"
            )),
            _ => None,
        }
    }

    /// The rule for all in the hook input, behind the one by address.
    fn nft_input(self, port: u16, for_all: &str) -> String {
        let (set, each) = self.nft_each(port).unwrap_or_default();
        format!(
            "table inet guard {{
    {set}
    chain input {{
        type filter hook input priority filter; policy accept;
        {each}
        {for_all}
    }}
}}
"
        )
    }

    /// nginx's lines for the block http, and for the server: the limit, if it is nginx's.
    fn nginx_limit(self, capacity: Capacity) -> (String, String) {
        match self.for_all() {
            Guard::LimitConn => (
                "limit_conn_zone $server_port zone=all:1m; limit_conn_status 503;".into(),
                format!("limit_conn all {};", capacity.connections()),
            ),
            Guard::LimitReq => (
                format!(
                    "limit_req_zone $server_port zone=all:1m rate={}r/s; limit_req_status 429;",
                    capacity.rate()
                ),
                format!("limit_req zone=all burst={} nodelay;", capacity.burst()),
            ),
            _ => Default::default(),
        }
    }
}

/// nginx with one worker: what it serves is in `folder`/www, or behind it.
pub fn nginx(guard: Guard, capacity: Capacity, port: u16, folder: &str, is_proxy: bool) -> String {
    let (zone, limit) = guard.nginx_limit(capacity);
    let (zone_each, limit_each) = guard.nginx_each().unwrap_or_default();
    let backlog = guard.backlog();
    let location = match is_proxy {
        true => format!("proxy_pass http://127.0.0.1:{BEHIND};"),
        // Looked up for a reply with status 200 only, so that no limit pays for it.
        false => format!("add_header X-Robot $robot; root {folder}/www;"),
    };
    let robots = if is_proxy { String::new() } else { robots() };
    format!(
        "user root; daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log stderr crit;
worker_rlimit_nofile 20000;
events {{ worker_connections 16384; }}
http {{
    access_log off; sendfile on; keepalive_timeout 65; open_file_cache max=16;
    client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
    uwsgi_temp_path {folder}; scgi_temp_path {folder};
    {zone} {zone_each}
    {robots}
    server {{
        listen {port} backlog={backlog};
        location / {{ {limit_each} {limit} {location} }}
    }}
}}
"
    )
}

/// The robots of nginx's list, of which no client is one.
fn robots() -> String {
    let robots: String = (0..PATTERNS)
        .map(|number| format!(" ~*robot-{number:04} {number};"))
        .collect();
    format!("map $http_user_agent $robot {{ default \"\";{robots} }}")
}

/// HAProxy with one thread: as many requests at the server as it works on, the others wait in HAProxy's queue.
pub fn haproxy(guard: Guard, capacity: Capacity, port: u16) -> String {
    let at_once = capacity.at_once;
    let each = guard.haproxy_each().unwrap_or_default();
    format!(
        "global
    maxconn 8000
    nbthread 1
defaults
    mode http
    http-reuse always
    timeout connect 10s
    timeout client 30s
    timeout server 30s
    timeout queue {WAIT_MS}ms
frontend web
    bind :{port} backlog {BACKLOG}{each}
    default_backend servers
backend servers
    server one 127.0.0.1:{BEHIND} maxconn {at_once}
"
    )
}

/// What nft says when the kernel has not what a rule needs; `None` if it says something else.
pub fn lacking(said: &str) -> Option<String> {
    const LACKS: [&str; 3] = [
        "No such file or directory",
        "not supported",
        "No such device",
    ];
    let mut lines = said.lines();
    let line = lines.find(|line| LACKS.iter().any(|lacks| line.contains(lacks)))?;
    let from = line.find("Error: ").unwrap_or_default();
    Some(line[from..].trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOL: Capacity = Capacity {
        per_s: 40.0,
        at_once: 4,
    };
    const FAST: Capacity = Capacity {
        per_s: 30_000.4,
        at_once: 64,
    };

    #[test]
    fn limits_follow_from_what_the_server_can_do() {
        assert_eq!((POOL.burst(), POOL.connections()), (4, 8));
        assert_eq!(FAST.burst(), 3000);
        assert_eq!(
            FAST.connections(),
            64 + BACKLOG,
            "its listen queue is full then"
        );
        let slow = Capacity {
            per_s: 0.3,
            at_once: 1,
        };
        assert_eq!((slow.rate(), slow.burst()), (1, 1));
    }

    #[test]
    fn nginx_has_the_limit_of_its_guard_and_no_other() {
        let plain = nginx(Guard::Plain, POOL, 80, "/f", false);
        assert!(
            !plain.contains("limit_conn")
                && !plain.contains("limit_req")
                && plain.contains("root /f/www;")
        );
        assert!(plain.contains("listen 80 backlog=511;"));
        assert!(nginx(Guard::Tuned, POOL, 80, "/f", false).contains("backlog=65535;"));
        let conn = nginx(Guard::LimitConn, POOL, 80, "/f", true);
        assert!(conn.contains("limit_conn all 8;") && conn.contains("127.0.0.1:8080"));
        let req = nginx(Guard::LimitReq, FAST, 80, "/f", false);
        assert!(req.contains("rate=30000r/s;") && req.contains("burst=3000 nodelay;"));
        let each = nginx(Guard::LimitReqEach, POOL, 80, "/f", true);
        assert!(each.contains("zone=each burst=5 nodelay;") && each.contains("rate=40r/s;"));
    }

    #[test]
    fn haproxy_hands_the_server_what_it_works_on() {
        let text = haproxy(Guard::Haproxy, POOL, 80);
        assert!(
            text.contains("127.0.0.1:8080 maxconn 4\n") && text.contains("timeout queue 100ms")
        );
        let each = haproxy(Guard::HaproxyEach, POOL, 80);
        assert!(each.contains("backlog 511\n    stick-table ") && !text.contains("stick-table"));
    }

    #[test]
    fn rules_are_those_of_the_guard() {
        let rules = |guard: Guard| guard.nft(POOL, 80);
        let limit = rules(Guard::NftLimit).unwrap();
        assert!(
            limit.contains(
                "limit rate over 40/second burst 4 packets counter reject with tcp reset"
            )
        );
        let count = rules(Guard::NftConnlimit).unwrap();
        assert!(count.contains("ct count over 8 counter reject"));
        assert!(
            rules(Guard::NftSynproxy)
                .unwrap()
                .contains("synproxy mss 1460")
        );
        let each = rules(Guard::NftConnlimitEach).unwrap();
        let (by_address, for_all) = (each.find("count over 1 "), each.find("count over 8 "));
        assert!(by_address < for_all && by_address.is_some(), "{each}");
        for guard in Guard::value_variants() {
            let name = guard.to_possible_value().unwrap();
            let is_nft = name.get_name().starts_with("nft-");
            assert_eq!(rules(*guard).is_some(), is_nft, "{guard:?}");
        }
    }

    /// The lines of a guard that a page has to have.
    fn lines(guard: Guard) -> Vec<String> {
        let capacity = Capacity {
            per_s: 12_345.0,
            at_once: 77,
        };
        let is_rule = |line: &&str| {
            let words = ["tcp ", "ct ", "set "];
            words.iter().any(|word| line.trim().starts_with(word))
        };
        let rules = guard.nft(capacity, 80).unwrap_or_default();
        let mut lines: Vec<String> = rules.lines().filter(is_rule).map(str::to_owned).collect();
        if guard.for_all() == Guard::Haproxy {
            lines.extend(haproxy(guard, capacity, 80).lines().map(str::to_owned));
        }
        for (zone, limit) in [guard.nginx_limit(capacity)]
            .into_iter()
            .chain(guard.nginx_each())
        {
            lines.extend([zone, limit]);
        }
        lines.extend(guard.class());
        lines
    }

    /// The pages say PEAK, BURST, CONNECTIONS and AT_ONCE where these lines have numbers.
    #[test]
    fn the_page_has_the_lines_that_are_used() {
        let page = |name: &str| {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../experiments/instead");
            std::fs::read_to_string(format!("{folder}/{name}")).unwrap()
        };
        let (page, by_address) = (page("README.md"), page("greedy.md"));
        let mut count = 0;
        for guard in Guard::value_variants() {
            for text in lines(*guard) {
                let line = text.trim();
                let line = line.replace("12345", "PEAK").replace("1235", "BURST");
                let line = line.replace("588", "CONNECTIONS").replace("77", "AT_ONCE");
                let is_there =
                    page.contains(&line) || guard.for_all() != *guard && by_address.contains(&line);
                assert!(is_there, "{guard:?}: {line}");
                count += 1;
            }
            for (name, value) in [guard.sysctls(), guard.conntrack_sysctls()].concat() {
                assert!(page.contains(&format!("`{name}={value}`")), "{name}");
            }
        }
        assert!(count > 40, "{count}");
    }

    #[test]
    fn a_kernel_without_a_mechanism_is_told_from_a_bad_rule() {
        let without = "/dev/stdin:4:9-20: Error: Could not process rule: No such file or directory\n  ct count";
        let said = "Error: Could not process rule: No such file or directory";
        assert_eq!(lacking(without).as_deref(), Some(said));
        assert_eq!(lacking("Error: syntax error, unexpected newline"), None);
    }
}

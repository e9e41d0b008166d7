//! Health checks of a guarded server in overload: a balancer takes a server out when some checks in a row fail.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use weir_testbed::needs;
use weir_testbed::netns::Netns;
use weir_testbed::sockets::within;
use weir_testbed::wait::until;

use crate::bed::{Bed, PORT, SERVER, Weir, at, open, plug, serve};
use crate::load::{self, Crowd, Workers};
use crate::local::Proxy;

/// The server's addresses on the balancer's link.
const BEHIND: [&str; 2] = ["10.72.0.1", "fd72::1"];
/// As long as each overload lasts.
const OVERLOAD: Duration = Duration::from_secs(20);
/// Failed probes in a row after which Kubernetes restarts a container (`failureThreshold`).
const THRESHOLD: usize = 3;

/// HAProxy's checks, its defaults but for the interval: `fall 3`, `rise 2`.
const CHECKS: &str = "
  backend connects
    mode tcp
    server four 10.72.0.1:8080 check inter 1s
    server six [fd72::1]:8080 check inter 1s
  backend requests
    option httpchk GET /
    server four 10.72.0.1:8080 check inter 1s
";

/// What HAProxy's statistics say of a server.
struct Server {
    status: String,
    /// Checks that failed while it was up.
    failed: u64,
    /// How often it was taken out.
    taken_out: u64,
}

struct Balancer {
    netns: Netns,
    haproxy: Proxy,
}

impl Balancer {
    /// Checks the server from a namespace of its own, and relays nothing.
    fn new(bed: &Bed) -> Option<Balancer> {
        let netns = needs::namespace("balancer")?;
        plug(&netns, "u1", &bed.server, "u1");
        for (netns, host) in [(&netns, 2), (&bed.server, 1)] {
            netns
                .ip_batch(&format!(
                    "addr add 10.72.0.{host}/24 dev u1\naddr add fd72::{host}/64 dev u1 nodad"
                ))
                .unwrap();
        }
        load::ready(&netns, &at(BEHIND, PORT), &load::plain);
        let haproxy = Proxy::haproxy(&netns, CHECKS);
        Some(Balancer { netns, haproxy })
    }
}

/// What HAProxy's statistics say; `None`: it does not answer yet.
fn servers(haproxy: &Proxy) -> Option<Vec<Server>> {
    let mut socket = UnixStream::connect(haproxy.file("stats")).ok()?;
    socket.write_all(b"show stat\n").ok()?;
    let mut table = String::new();
    socket.read_to_string(&mut table).ok()?;
    let mut lines = table.lines();
    let heads: Vec<&str> = lines.next()?.trim_start_matches("# ").split(',').collect();
    let column = |name: &str| heads.iter().position(|head| *head == name).unwrap();
    let of_server = |line: &str| {
        let fields: Vec<&str> = line.split(',').collect();
        let field = |name: &str| fields.get(column(name)).copied().unwrap_or_default();
        // 2: a server.
        (field("type") == "2").then(|| Server {
            status: field("status").to_owned(),
            failed: field("chkfail").parse().unwrap(),
            taken_out: field("chkdown").parse().unwrap(),
        })
    };
    Some(lines.filter_map(of_server).collect())
}

/// How many checks have failed, and how often a server was taken out, all together.
fn failures(haproxy: &Proxy) -> (u64, u64) {
    let servers = servers(haproxy).unwrap();
    let failed = servers.iter().map(|server| server.failed).sum();
    let taken_out = servers.iter().map(|server| server.taken_out).sum();
    (failed, taken_out)
}

/// Waits until all servers are up.
fn settle(haproxy: &Proxy) {
    until("all servers are up", || {
        let servers = servers(haproxy)?;
        let up = servers.iter().all(|server| server.status == "UP");
        (up && !servers.is_empty()).then_some(())
    });
}

/// The most probes in a row that failed. A probe every second, as kubelet makes them: it fails without a reply in time.
fn probe(netns: &Netns, to: SocketAddr) -> usize {
    let begun = Instant::now();
    let (mut row, mut most) = (0, 0);
    within(netns, || {
        for n in 1.. {
            let good = load::visit(to, &load::plain).is_ok_and(|status| status == 200);
            row = if good { 0 } else { row + 1 };
            most = most.max(row);
            if begun.elapsed() >= OVERLOAD {
                break;
            }
            let next = begun + Duration::from_secs(n);
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    });
    most
}

/// What an overload does to checks.
struct Checks {
    /// Of HAProxy, those that failed.
    failed: u64,
    /// How often HAProxy took a server out.
    taken_out: u64,
    /// Probes that failed in a row, at most.
    row: usize,
}

/// Overloads the server by so many times what it serves.
fn overload(name: &str, bed: &Bed, balancer: &Balancer, times: u32) -> Checks {
    settle(&balancer.haproxy);
    let before = failures(&balancer.haproxy);
    let (crowd, row) = std::thread::scope(|scope| {
        let probes = scope.spawn(|| probe(&balancer.netns, at(BEHIND, PORT)[0]));
        let during = OVERLOAD;
        let crowd = Crowd { times, during }.overload(&bed.client, &at(SERVER, PORT));
        (crowd, probes.join().unwrap())
    });
    let after = failures(&balancer.haproxy);
    let (failed, taken_out) = (after.0 - before.0, after.1 - before.1);
    println!(
        "health checks, {name}, {times} times overload: {crowd}; {failed} of 60 checks failed, servers taken out {taken_out} \
         times, at most {row} probes failed in a row"
    );
    Checks {
        failed,
        taken_out,
        row,
    }
}

/// Without weir checks fail in overload, because their SYNs find a full queue and are dropped. With it they come in: their
/// source is steady. weir learns that while the first overload begins, and knows it when the second does.
#[test]
fn a_balancer_keeps_an_overloaded_server() {
    if !needs::programs(&["haproxy"]) {
        return;
    }
    let Some(bed) = Bed::new() else { return };
    let _server = serve(&bed.server, PORT);
    let Some(balancer) = Balancer::new(&bed) else {
        return;
    };
    let without = overload("without weir", &bed, &balancer, 4);
    assert!(without.failed > 5, "{} checks failed", without.failed);
    let weir = Weir::guard(&bed.server, PORT);
    for times in [2, 4] {
        let with = overload("with weir", &bed, &balancer, times);
        println!("health checks: {:?}", weir.verdicts());
        assert_eq!(with.taken_out, 0, "{times} times overload");
        assert!(with.row < THRESHOLD, "{} probes failed in a row", with.row);
    }
    assert!(weir.refused() > 1000, "{:?}", weir.verdicts());
}

/// The port of the balancer that relays the clients, and the server's second one, for checks.
const FRONT: u16 = 80;
const CHECKED: u16 = 8081;

/// Its checks come from the address of the clients: weir sees one busy source. A second port of the server, which weir does
/// not guard, has a queue of its own.
#[test]
fn a_balancer_that_relays_the_clients_checks_a_port_of_its_own() {
    if !needs::programs(&["haproxy"]) {
        return;
    }
    let Some(bed) = Bed::new() else { return };
    let _server = Workers::start(vec![open(&bed.server, PORT), open(&bed.server, CHECKED)]);
    let relays = format!(
        "frontend front
           bind 10.70.0.2:{FRONT}
           default_backend back
         backend back
           retries 0
           option httpchk GET /
           server four 10.70.0.1:{PORT} check port {CHECKED} inter 500ms"
    );
    let haproxy = Proxy::haproxy(&bed.client, &relays);
    settle(&haproxy);
    let weir = Weir::guard(&bed.server, PORT);
    let crowd = Crowd {
        times: 4,
        during: OVERLOAD / 2,
    };
    let crowd = crowd.overload(&bed.client, &at(["10.70.0.2", "10.70.0.2"], FRONT));
    let (failed, taken_out) = failures(&haproxy);
    println!(
        "relayed clients: {crowd}; {failed} checks failed; {:?}",
        weir.verdicts()
    );
    assert!(weir.refused() > 500, "{:?}", weir.verdicts());
    assert_eq!((failed, taken_out), (0, 0));
}

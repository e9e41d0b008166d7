//! Processes that negotiate TIME-WAIT are killed with SIGKILL at random moments of handshakes and closes, at both ends: the
//! connections come to their end all the same.
//!
//! The seed is printed; set WEIR_SEED for the same moments, and WEIR_KILLS for another number of them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use weir_core::listener::{ListenAddress, Listener};
use weir_core::timewait::{Destination, Holder, ListenerTimeWait, TimeWaitMode};
use weir_kernel::TimeWaitFigures;
use weir_kernel::testing::kills::Loaded;
use weir_testbed::bed::{Bed, Layout, SERVER_VETH_V4};
use weir_testbed::closing::{Close, Plan, Servers, Tally};
use weir_testbed::needs;
use weir_testbed::netns::Netns;
use weir_testbed::seed::seed;
use weir_testbed::tcp_table::{BUSY, sockets_in_state};
use weir_testbed::wait::until;

const PORTS: [u16; 4] = [8080, 8081, 8082, 8083];
const CLIENTS: usize = 16;
/// The most that a process lives, in µs: it attaches within the first third, mostly.
const LIVES_US: u64 = 40_000;
/// The most until the next one, in µs.
const PAUSES_US: u64 = 2_000;
/// Of one load, after which the servers listen anew.
const LOAD: Duration = Duration::from_secs(3);
/// include/net/tcp_states.h: one end has closed, and waits for the other one.
const FIN_WAIT2: u8 = 5;

fn kills() -> u64 {
    let given = std::env::var("WEIR_KILLS").ok();
    given.map_or(300, |number| number.parse().expect("WEIR_KILLS: a number"))
}

/// splitmix64
fn draw(state: &AtomicU64, below: u64) -> u64 {
    let mut z = state.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) % below
}

/// What the threads of a run share.
struct Shared {
    random: AtomicU64,
    /// Clients are at work.
    loaded: AtomicBool,
    /// Processes killed meanwhile.
    kills: AtomicU64,
    goal: u64,
}

impl Shared {
    fn is_over(&self) -> bool {
        self.kills.load(Ordering::Relaxed) >= self.goal
    }

    /// Starts and kills processes in a namespace until there were enough.
    fn kill_often(&self, netns: &Netns, at_server: bool, holder: Holder) -> TimeWaitFigures {
        let run = || {
            let veth = nix::net::if_::if_nametoindex("veth0").expect("the link of the bed");
            let (destinations, listeners) = match at_server {
                true => (
                    Vec::new(),
                    PORTS.map(|port| listener(port, holder)).to_vec(),
                ),
                false => (vec![destination()], Vec::new()),
            };
            let mut loaded = Loaded::load(&destinations, &listeners, veth).expect("it loads");
            let sleep = |most| std::thread::sleep(Duration::from_micros(draw(&self.random, most)));
            while !self.is_over() {
                let process = loaded.attach().expect("a process");
                sleep(LIVES_US);
                drop(process);
                if self.loaded.load(Ordering::Relaxed) {
                    self.kills.fetch_add(1, Ordering::Relaxed);
                }
                loaded.forget().expect("the records can be forgotten");
                sleep(PAUSES_US);
            }
            let mut figures = Vec::new();
            match at_server {
                true => {
                    figures.extend(PORTS.map(|port| loaded.listener_figures(&port.to_string())))
                }
                false => figures.push(loaded.figures("backends")),
            }
            let mut sum = TimeWaitFigures::default();
            for one in figures.into_iter().map(Result::unwrap) {
                sum.avoided += one.avoided;
                sum.held_by_peer += one.held_by_peer;
                sum.refused += one.refused;
            }
            Ok(sum)
        };
        netns.run(run).expect("the namespace can be entered")
    }

    /// Connections that either end closes first, until there were enough kills.
    fn load(&self, bed: &Bed, seed: u64) -> Tally {
        let servers = PORTS.map(|port| (SERVER_VETH_V4, port).into());
        let plan = Plan {
            servers: servers.to_vec(),
            clients: CLIENTS,
            connections: u64::MAX,
            time: LOAD,
            closes: vec![Close::Server, Close::Client, Close::ClientShutdown],
            bursts: (1, 1),
            sizes: vec![(1, 500)],
            first_port: None,
            seed,
        };
        let mut all = Tally::default();
        while !self.is_over() {
            let running = Servers::open(&bed.server, &servers).expect("the ports are free");
            self.loaded.store(true, Ordering::Relaxed);
            let tally = running.run(&plan, (&bed.server, None, CLIENTS), (&bed.clients, None));
            self.loaded.store(false, Ordering::Relaxed);
            let tally = tally.expect("the load runs");
            all.made += tally.made;
            all.failed.extend(tally.failed);
        }
        all
    }
}

fn destination() -> Destination {
    Destination {
        timewait: TimeWaitMode::Negotiate,
        ..Destination::new("backends")
    }
}

fn listener(port: u16, holder: Holder) -> Listener {
    Listener {
        timewait: ListenerTimeWait::Negotiate,
        holder,
        ..Listener::new(port.to_string(), ListenAddress { ip: None, port })
    }
}

/// Sockets that wait for a packet of the other end.
fn unfinished(netns: &Netns) -> usize {
    let states = [BUSY, &[FIN_WAIT2]].concat();
    netns
        .run(|| sockets_in_state(&states, None))
        .expect("/proc/net/tcp can be read")
}

#[test]
fn no_connection_fails_or_is_stuck_by_kills_at_any_moment_at_either_end() {
    if !needs::root("network namespaces") {
        return;
    }
    let seed = seed();
    for holder in [Holder::Client, Holder::Server] {
        let bed = Bed::build(Layout::of_this_machine()).expect("a bed");
        for netns in [&bed.clients, &bed.server] {
            // The client is in TIME-WAIT where it closes first while no weir runs.
            netns.set_sysctl("net.ipv4.tcp_tw_reuse", "1").unwrap();
            let range = "net.ipv4.ip_local_port_range";
            netns.set_sysctl(range, "1024 65535").unwrap();
        }
        let shared = Shared {
            random: AtomicU64::new(seed),
            loaded: AtomicBool::new(false),
            kills: AtomicU64::new(0),
            goal: kills().div_ceil(2),
        };
        let (tally, clients, server) = std::thread::scope(|scope| {
            let clients = scope.spawn(|| shared.kill_often(&bed.clients, false, holder));
            let server = scope.spawn(|| shared.kill_often(&bed.server, true, holder));
            let tally = shared.load(&bed, seed);
            (tally, clients.join().unwrap(), server.join().unwrap())
        });
        let forgets = match holder {
            Holder::Client => server,
            Holder::Server => clients,
        };
        println!(
            "holder = {holder:?}: {} kills, {} connections, {} failed, {} whose TIME-WAIT the other end held",
            shared.kills.load(Ordering::Relaxed),
            tally.made,
            tally.failures(),
            forgets.held_by_peer
        );
        assert_eq!(tally.failures(), 0, "{:?}", tally.failed);
        assert_eq!((clients.refused, server.refused), (0, 0));
        // Both ways of ending were met.
        assert!(forgets.held_by_peer > 0 && forgets.held_by_peer < tally.made);
        until("no connection is stuck", || {
            (unfinished(&bed.clients) + unfinished(&bed.server) == 0).then_some(())
        });
    }
}

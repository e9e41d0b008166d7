//! How many packets a reply takes, and what moves it. On a link between containers the proxy's CPU does all the work that each causes.

mod common;

use std::process::Command;

use common::{Origin, connect, end, pattern, reverse, total};
use weir_core::proxy::Engine;
use weir_testbed::needs;
use weir_testbed::netns::run_in_new;

/// Until the congestion window takes a whole reply.
const BEFORE: u32 = 30;
const REPLIES: u32 = 50;

/// Packets that were sent in this thread's network namespace, before they are cut into segments.
fn packets() -> u32 {
    let text = std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
    let mut rows = text.lines().filter_map(|line| line.strip_prefix("Ip: "));
    let (names, values) = (rows.next().unwrap(), rows.next().unwrap());
    let mut columns = names.split(' ').zip(values.split(' '));
    let (_, value) = columns.find(|(name, _)| *name == "OutRequests").unwrap();
    value.parse().unwrap()
}

/// Packets for each reply whose head and body come in one packet: the client's, the proxy's and the origin's, over a
/// link of the usual MTU, with TSO.
fn packets_per_reply(engine: Engine, bytes: usize) -> f64 {
    run_in_new(move || {
        let mut command = Command::new("ip");
        let status = command.args(["link", "set", "lo", "mtu", "1500"]).status();
        assert!(status.unwrap().success());
        let origin = Origin::start();
        let proxy = reverse(&origin, engine);
        let mut client = connect(proxy.address());
        let path = format!("/length/{bytes}");
        let mut before = 0;
        for reply in 0..BEFORE + REPLIES {
            if reply == BEFORE {
                before = packets();
            }
            assert!(client.get(&path).body == pattern(bytes), "{engine:?}");
        }
        f64::from(packets() - before) / f64::from(REPLIES)
    })
    .unwrap()
}

#[test]
fn what_came_with_the_head_goes_on_in_as_few_packets_as_copied() {
    if !needs::root("a network namespace") {
        return;
    }
    for bytes in [20_000, 33_000, 48_000, 60_000] {
        let [auto, copy] =
            [Engine::Auto, Engine::Copy].map(|engine| packets_per_reply(engine, bytes));
        // Acknowledgements come when they come: at least one packet in three replies is more than that.
        assert!(
            auto < copy + 0.3,
            "{bytes} bytes: {auto} packets, {copy} copied"
        );
    }
}

/// A receive that takes a head alone takes some bytes of the body with it, so a body of just the length from which on bodies are
/// spliced has less than that to come.
#[test]
fn auto_splices_all_but_the_end_of_bodies_of_33_kib_and_more_and_nothing_of_shorter_ones() {
    const KIB: u64 = 1024;
    const TAKEN_AND_REST: u64 = (1 + 16) * KIB;
    for body in [1, 10, 20, 31, 33, 48, 64, 96, 97, 128].map(|kib| kib * KIB) {
        let origin = Origin::start();
        let proxy = reverse(&origin, Engine::Auto);
        let mut client = connect(proxy.address());
        let path = format!("/length/{body}");
        for _ in 0..=REPLIES {
            assert_eq!(client.get(&path).body.len() as u64, body);
        }
        let spliced = total(&end(proxy), "bytes_spliced");
        // The first reply tells how long the others are.
        match body >= 33 * KIB {
            true => assert!(
                spliced >= (body - TAKEN_AND_REST) * u64::from(REPLIES),
                "{body}"
            ),
            false => assert_eq!(spliced, 0, "{body}"),
        }
    }
}

/// How many packets many transfers at once take depends on who gets the CPU when.
mod measured {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::thread;

    use weir_core::proxy::ProxyMode;
    use weir_testbed::sys::{self, Offload};

    use super::common::{connect_tcp, start};
    use super::*;

    const TUNNELS: usize = 8;
    const TUNNEL_BYTES: usize = 16 << 20;

    /// Packets that were sent while tunnels carried [`TUNNEL_BYTES`] each at the same time, over a link of the usual MTU
    /// without TSO.
    fn packets_of_tunnels(engine: Engine) -> u32 {
        run_in_new(move || {
            let mut command = Command::new("ip");
            let status = command.args(["link", "set", "lo", "mtu", "1500"]).status();
            assert!(status.unwrap().success());
            sys::set_offload("lo", Offload::Tso, false).unwrap();
            let server = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = server.local_addr().unwrap();
            thread::spawn(move || {
                for stream in server.incoming() {
                    let mut stream = stream.unwrap();
                    thread::spawn(move || stream.write_all(&vec![7; TUNNEL_BYTES]).unwrap());
                }
            });
            let proxy = start(ProxyMode::Tcp, &[address], |proxy| proxy.engine = engine);
            let before = packets();
            let clients: Vec<_> = (0..TUNNELS).map(|_| connect_tcp(proxy.address())).collect();
            let readers = clients.into_iter().map(|mut client| {
                thread::spawn(move || {
                    let mut bytes = Vec::new();
                    client.read_to_end(&mut bytes).unwrap();
                    assert_eq!(bytes.len(), TUNNEL_BYTES);
                })
            });
            let readers: Vec<_> = readers.collect();
            for reader in readers {
                reader.join().unwrap();
            }
            packets() - before
        })
        .unwrap()
    }

    #[test]
    fn tunnels_over_small_segments_send_fewer_packets_than_copied() {
        if !needs::root("a network namespace") {
            return;
        }
        let median = |engine| {
            let mut runs = [(); 5].map(|()| packets_of_tunnels(engine));
            runs.sort();
            runs[2]
        };
        // 0.81 to 0.84; where splices chase what comes, without the turn of the others, 0.99 to 1.21.
        let [auto, copy] = [Engine::Auto, Engine::Copy].map(median);
        assert!(
            f64::from(auto) < f64::from(copy) * 0.92,
            "{auto} packets, {copy} copied"
        );
    }
}

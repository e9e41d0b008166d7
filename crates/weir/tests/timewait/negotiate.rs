//! `timewait = "negotiate"` (FTY99, Section 3): the end that was agreed on remembers a connection, and it alone,
//! whichever end closes first. weir runs at both ends.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, TcpStream};

use serde_json::Value;
use weir_testbed::bed::SERVER_VETH_V4;

use crate::bed::{
    First, REPLY, Server, THERE_V4, THERE_V6, ask, ask_often, beside, run, there, time_waits,
    time_waits_become,
};
use crate::common::{Bed, PATIENCE, PORT, Weir, listen, output, until, within};

/// Connections of each kind.
const TIMES: usize = 100;

/// The destination here that negotiates with the servers, and agrees to these holders.
pub fn rule(accept: &str) -> String {
    format!(
        "[[destination]]\nname = \"backends\"\nto_port = {PORT}\ntimewait = \"negotiate\"\naccept = \"{accept}\"\n"
    )
}

/// The listener there, which chooses this holder.
pub fn listener(holder: &str) -> String {
    format!(
        "[[listener]]\nname = \"web\"\naddress = \"*:{PORT}\"\ntimewait = \"negotiate\"\nholder = \"{holder}\"\n"
    )
}

/// weir at both ends.
pub struct Ends {
    pub _here: Weir,
    pub _there: Weir,
}

impl Ends {
    pub fn start(bed: &Bed, accept: &str, holder: &str) -> Ends {
        Ends {
            _there: bed.run_there(&listener(holder)),
            _here: run(bed, &rule(accept)),
        }
    }
}

/// A figure of the listener there.
pub fn figure_there(bed: &Bed, name: &str) -> u64 {
    let status = bed.status_there();
    let figure = &status["listeners"][0]["timewait"][name];
    figure
        .as_u64()
        .unwrap_or_else(|| panic!("no figure {name}: {status:#}"))
}

/// Waits until the figures of both ends are these: held, avoided, held by the peer.
#[track_caller]
pub fn figures_become(bed: &Bed, here: [u64; 3], there: [u64; 3]) {
    let names = ["held", "avoided", "held_by_peer"];
    let of = |timewait: &Value| names.map(|name| timewait[name].as_u64().unwrap());
    let mut last = ([0; 3], [0; 3]);
    let reached = weir_testbed::wait::try_until(PATIENCE, || {
        last = (
            of(&bed.status()["destinations"][0]["timewait"]),
            of(&bed.status_there()["listeners"][0]["timewait"]),
        );
        (last == (here, there)).then_some(())
    });
    assert!(reached.is_some(), "{last:?} is not {:?}", (here, there));
}

/// How a client ends a connection before the server does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// close(): the kernel alone has the socket from then on.
    Close,
    /// shutdown(), and the program waits for the server's FIN.
    Shutdown,
}

/// A connection that the client ends first.
pub fn end_first(bed: &Bed, ip: IpAddr, ending: Ending) {
    within(bed.here(), || {
        let mut stream = TcpStream::connect(there(ip)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut reply = [0; REPLY.len()];
        stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply, REPLY);
        if ending == Ending::Shutdown {
            stream.shutdown(Shutdown::Write).unwrap();
            assert_eq!(stream.read(&mut [0]).unwrap(), 0);
        }
    });
}

/// So many connections over each family, from one after the other.
pub fn connect_often(bed: &Bed, first: First, times: usize) -> u64 {
    for ip in [THERE_V4, THERE_V6] {
        match first {
            First::Server => ask_often(bed, ip, PORT, times),
            First::Client => {
                for turn in 0..times {
                    end_first(bed, ip, [Ending::Close, Ending::Shutdown][turn % 2]);
                }
            }
        }
    }
    2 * times as u64
}

#[test]
fn a_server_that_closes_first_has_the_client_hold() {
    let Some(bed) = Bed::new() else { return };
    let _both = beside(&bed, First::Server, || Ends::start(&bed, "any", "client"));
    let all = connect_often(&bed, First::Server, TIMES);
    figures_become(&bed, [all, 0, 0], [0, all, all]);
    assert_eq!((time_waits(bed.here()), time_waits(bed.there())), (0, 0));
    assert_eq!(bed.figure("bytes"), all * 128);
    assert_eq!(
        (bed.figure("fallback"), figure_there(&bed, "fallback")),
        (0, 0)
    );
}

#[test]
fn a_client_that_closes_first_has_the_server_hold_and_its_port_is_free() {
    let Some(bed) = Bed::new() else { return };
    let _ends = Ends::start(&bed, "any", "server");
    let _servers = Server::start(&bed, PORT, First::Client);
    let all = connect_often(&bed, First::Client, TIMES);
    figures_become(&bed, [0, all, all], [all, 0, 0]);
    assert_eq!((time_waits(bed.here()), time_waits(bed.there())), (0, 0));
    assert_eq!(
        (bed.figure("fallback"), figure_there(&bed, "fallback")),
        (0, 0)
    );
}

#[test]
fn a_holder_that_closes_first_is_in_the_kernel_s_time_wait() {
    for (holder, first) in [("client", First::Client), ("server", First::Server)] {
        let Some(bed) = Bed::new() else { return };
        // On a machine that is slow a FIN is repeated, and the RST for its second ACK would end TIME-WAIT, as ever.
        for netns in [bed.here(), bed.there()] {
            netns.set_sysctl("net.ipv4.tcp_rfc1337", "1").unwrap();
        }
        let _both = beside(&bed, first, || Ends::start(&bed, "any", holder));
        let all = connect_often(&bed, first, TIMES);
        let (holds, forgets) = match first {
            First::Client => (bed.here(), bed.there()),
            First::Server => (bed.there(), bed.here()),
        };
        time_waits_become(holds, all as usize);
        assert_eq!(time_waits(forgets), 0, "{holder}");
        match first {
            First::Client => figures_become(&bed, [0, 0, 0], [0, 0, all]),
            First::Server => figures_become(&bed, [0, 0, all], [0, 0, 0]),
        }
    }
}

#[test]
fn a_client_that_does_not_agree_is_refused_before_any_data() {
    for (accept, holder) in [
        ("server", "client"),
        ("client", "server"),
        ("none", "client"),
    ] {
        let Some(bed) = Bed::new() else { return };
        let _both = beside(&bed, First::Server, || Ends::start(&bed, accept, holder));
        for ip in [THERE_V4, THERE_V6] {
            let refused = ask(&bed, 0, there(ip));
            assert_eq!(refused, Err(ErrorKind::ConnectionRefused), "{accept} {ip}");
        }
        bed.figure_becomes("refused", 2);
        let left = || output_of_sockets(&bed);
        until("the server has no half of a connection", || {
            left().is_empty().then_some(())
        });
    }
}

/// Sockets there that are neither listening nor closed.
fn output_of_sockets(bed: &Bed) -> String {
    let port = format!("sport = :{PORT}");
    output(bed.there(), "ss", &["-tanH", "state", "connected", &port])
}

#[test]
fn where_one_end_does_not_negotiate_tcp_is_as_ever() {
    for weir_here in [true, false] {
        let Some(bed) = Bed::new() else { return };
        let one = || match weir_here {
            true => run(&bed, &rule("any")),
            false => bed.run_there(&listener("client")),
        };
        let (_servers, weir) = beside(&bed, First::Server, one);
        ask_often(&bed, THERE_V4, PORT, TIMES);
        time_waits_become(bed.there(), TIMES);
        assert_eq!(time_waits(bed.here()), 0);
        let fallback = match weir_here {
            true => bed.figure("fallback"),
            false => figure_there(&bed, "fallback"),
        };
        assert_eq!(fallback, TIMES as u64);
        drop(weir);
    }
}

/// Packets and bytes that the link between the ends has carried, as the device here counts them.
fn carried(bed: &Bed) -> (u64, u64) {
    let text = within(bed.here(), || {
        std::fs::read_to_string("/proc/thread-self/net/dev")
    });
    let text = text.unwrap();
    let row = text
        .lines()
        .find_map(|row| row.trim().strip_prefix("veth0:"));
    let numbers: Vec<u64> = row
        .expect("the bed has this device")
        .split_whitespace()
        .map(|number| number.parse().unwrap())
        .collect();
    (numbers[1] + numbers[9], numbers[0] + numbers[8])
}

/// A connection that the server closes first, in which each end waits for the other one's packets. Returns its bytes.
fn connect_in_nine_packets(bed: &Bed, weirs: bool) -> u64 {
    let listener = listen(bed.there(), there(THERE_V4), 8);
    let (before, bytes_before) = carried(bed);
    let carries = |wanted: u64, step: &str| {
        until(
            &format!("{wanted} packets by {step}, weir: {weirs}"),
            || {
                let (now, _) = carried(bed);
                assert!(
                    now - before <= wanted,
                    "{} packets by {step}, weir: {weirs}",
                    now - before
                );
                (now - before == wanted).then_some(())
            },
        );
    };
    let mut client = within(bed.here(), || TcpStream::connect(there(THERE_V4))).unwrap();
    carries(3, "the handshake");
    let (mut server, _) = listener.accept().unwrap();
    server.write_all(REPLY).unwrap();
    carries(5, "the reply");
    client.read_exact(&mut [0; REPLY.len()]).unwrap();
    drop(server);
    carries(7, "the server's end");
    drop(client);
    carries(9, "the client's end");
    carried(bed).1 - bytes_before
}

#[test]
fn a_connection_has_as_many_packets_as_without_and_40_bytes_more() {
    let Some(bed) = Bed::new() else { return };
    let ends = [(bed.here(), SERVER_VETH_V4.into()), (bed.there(), THERE_V4)];
    for (one, other) in [(ends[0], ends[1]), (ends[1], ends[0])] {
        // Nothing but the connections: no neighbour is looked for.
        let sysctl = "net.ipv6.conf.veth0.disable_ipv6";
        one.0.set_sysctl(sysctl, "1").unwrap();
        let link = output(other.0, "ip", &["-br", "link", "show", "veth0"]);
        let mac = link.split_whitespace().nth(2).expect("its address");
        let address: IpAddr = other.1;
        let line = format!("neigh replace {address} lladdr {mac} dev veth0 nud permanent");
        one.0.ip_batch(&line).unwrap();
    }
    let without = connect_in_nine_packets(&bed, false);
    let _ends = Ends::start(&bed, "any", "client");
    let with = connect_in_nine_packets(&bed, true);
    figures_become(&bed, [1, 0, 0], [0, 1, 1]);
    // 8 in the SYN, the SYN/ACK, the ACK, the holder's FIN, and in the ACK that is made from that FIN.
    assert_eq!(with - without, 40);
}

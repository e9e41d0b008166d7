//! One million random and malformed packets through the loaded guard (BPF_PROG_TEST_RUN): no verdict
//! other than pass, except where the model of the decision says so. Needs root. The seed is printed;
//! set WEIR_SEED to run one again.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use etherparse::PacketBuilder;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrIn6, bind, listen, socket,
};
use proptest::prelude::Rng as _;
use proptest::test_runner::{RngAlgorithm, TestRng};
use weir_core::listener::{Establish, HalfClose, ListenAddress, Listener, RejectSyn};
use weir_core::policy::{Table, table};
use weir_core::verdict::{VERDICTS, Verdict};
use weir_kernel::Guard;
use weir_models::admit::{QueueSpace, QueueView};
use weir_models::headers;
use weir_models::packet::{Fate, answerable, fate, parse};
use weir_testbed::raw::{Peer, Segment, Shape, frame};
use weir_testbed::seed::seed;
use weir_testbed::sys::next_numbers;
use weir_testbed::{needs, netns};

const PACKETS: usize = 1_000_000;
const PASS: i32 = -1;
const DROP: i32 = 2;
const REDIRECT: i32 = 7;

struct World {
    guard: Guard,
    listeners: Vec<Listener>,
    table: Table,
    full: Vec<bool>,
    _sockets: Vec<TcpListener>,
    _held: Vec<TcpStream>,
}

#[test]
fn a_million_random_packets_meet_the_model_s_verdicts() {
    if !needs::root("BPF_PROG_TEST_RUN") {
        return;
    }
    let seed = seed();
    let mut bytes = [0u8; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let mut random = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let world = World::new();
    let mut seen = [0u64; VERDICTS.len()];
    let mut others = 0;
    for n in 0..PACKETS {
        let mut frame = random_frame(&mut random, &world);
        // Test runs take no frame without a whole IP header; the pure parser's test has those.
        let least = match frame[12..14] {
            [0x08, 0x00] => 34,
            [0x86, 0xdd] => 54,
            _ => 15,
        };
        frame.resize(frame.len().max(least), 0);
        let expected = world.verdict(&frame);
        let judged = world.guard.judge_tc(&frame).expect("a test run");
        let context = || format!("packet {n} of seed {seed}: {frame:02x?}: {expected:?}");
        match expected.map_or(Fate::Pass, fate) {
            Fate::Pass => {
                assert_eq!(judged.action, PASS, "{}", context());
                assert_eq!(judged.frame, frame, "changed: {}", context());
            }
            Fate::Drop => assert_eq!(judged.action, DROP, "{}", context()),
            Fate::Answer => {
                assert_eq!(judged.action, REDIRECT, "{}", context());
                check_answer(&frame, &judged.frame, expected.unwrap(), &context);
            }
        }
        match expected {
            Some(v) => seen[v as usize] += 1,
            None => others += 1,
        }
    }
    println!("{others} not ours; {:?}", named(&seen));
    for v in [
        Verdict::SynAdmitted,
        Verdict::SynResetFull,
        Verdict::SynDroppedFull,
        Verdict::CookieSent,
        Verdict::SynUnheard,
        Verdict::SynLeft,
        Verdict::SynNotPlain,
        Verdict::SynInFragments,
    ] {
        assert!(
            seen[v as usize] > 100,
            "{v:?} was met {} times only",
            seen[v as usize]
        );
    }
    world.check_counters(&seen);
}

fn named(seen: &[u64]) -> Vec<(&'static str, u64)> {
    VERDICTS
        .iter()
        .zip(seen)
        .filter(|(_, n)| **n > 0)
        .map(|(row, &n)| (row.name, n))
        .collect()
}

impl World {
    fn new() -> World {
        netns::enter_new().expect("a network namespace of our own");
        let mut world = World {
            guard: Guard::load().expect("the guard loads"),
            listeners: Vec::new(),
            table: Table::default(),
            full: Vec::new(),
            _sockets: Vec::new(),
            _held: Vec::new(),
        };
        let base = Listener::new("", ListenAddress { ip: None, port: 0 });
        world.add("open", false, base.clone());
        world.add("full", true, base.clone());
        world.add(
            "full-drop",
            true,
            Listener {
                reject_syn: RejectSyn::Drop,
                ..base.clone()
            },
        );
        world.add(
            "cookies",
            true,
            Listener {
                establish: Establish::NoSynDrop,
                ..base.clone()
            },
        );
        let abort = Listener {
            establish: Establish::Abort,
            ..base.clone()
        };
        world.add("abort", true, abort.clone());
        world.add(
            "abort-drop",
            true,
            Listener {
                reject_syn: RejectSyn::Drop,
                ..abort
            },
        );
        world.add(
            "reset",
            false,
            Listener {
                half_close: HalfClose::Reset,
                ..base.clone()
            },
        );
        let address = ListenAddress { ip: None, port: 1 };
        world.listeners.push(Listener {
            name: "unheard".into(),
            address,
            ..base
        });
        world.full.push(false);
        world.table = table(&world.listeners).expect("a table");
        let listeners = world.listeners.clone();
        world
            .guard
            .apply(&listeners, &[])
            .expect("the policy is taken");
        world
    }

    /// A dual-stack socket; a full one has its whole queue taken (backlog 1 holds two).
    fn add(&mut self, name: &str, full: bool, policy: Listener) {
        let fd = socket(
            AddressFamily::Inet6,
            SockType::Stream,
            SockFlag::empty(),
            None,
        )
        .unwrap();
        bind(
            fd.as_raw_fd(),
            &SockaddrIn6::from("[::]:0".parse::<std::net::SocketAddrV6>().unwrap()),
        )
        .unwrap();
        listen(&fd, Backlog::new(if full { 1 } else { 4000 }).unwrap()).unwrap();
        let socket = TcpListener::from(fd);
        let port = socket.local_addr().unwrap().port();
        if full {
            let connect = || TcpStream::connect(("127.0.0.1", port)).expect("room for two");
            self._held.extend((0..2).map(|_| connect()));
        }
        let address = ListenAddress { ip: None, port };
        self.listeners.push(Listener {
            name: name.into(),
            address,
            ..policy
        });
        self.full.push(full);
        self._sockets.push(socket);
    }

    /// The model of guard() in bpf/guard.bpf.c. `None`: not ours, or nothing to decide.
    fn verdict(&self, frame: &[u8]) -> Option<Verdict> {
        let ethertype = u16::from_be_bytes([frame[12], frame[13]]);
        let Some(p) = parse(frame, 14, ethertype) else {
            return self.unusual(frame, ethertype);
        };
        let for_us = frame[..6] == [0; 6];
        let destination: IpAddr = match p.v6 {
            true => IpAddr::from(<[u8; 16]>::try_from(&frame[38..54]).unwrap()),
            false => IpAddr::from(<[u8; 4]>::try_from(&frame[30..34]).unwrap()),
        };
        let number = self.table.listener_of(destination, p.destination_port);
        if number == 0 || !for_us {
            return None;
        }
        let index = usize::from(number) - 1;
        if p.is_plain_ack() {
            // No random number brings a cookie back, so also at a full queue the ACK is the kernel's.
            return None;
        }
        if !p.is_syn() {
            return None;
        }
        if self.listeners[index].name == "unheard" {
            return Some(Verdict::SynUnheard);
        }
        let queue = match self.full[index] {
            true => QueueView {
                length: 2,
                limit: 1,
                ..Default::default()
            },
            false => QueueView {
                limit: 4000,
                ..Default::default()
            },
        };
        let verdict =
            QueueSpace::from(&self.listeners[index]).syn_verdict(&queue, false, true, false);
        let may = verdict == Verdict::SynAdmitted || answerable(frame, 14, &p);
        may.then_some(verdict)
    }

    /// The same for a packet that is not plain. No class has a rate, so all that is counted passes.
    fn unusual(&self, frame: &[u8], ethertype: u16) -> Option<Verdict> {
        let (ip, v6) = (&frame[14..], ethertype == 0x86dd);
        if !(v6 || ethertype == 0x0800) || !headers::is_unusual(ip, v6) {
            return None;
        }
        let found = headers::find(ip, v6)?;
        let destination: IpAddr = match v6 {
            true => IpAddr::from(<[u8; 16]>::try_from(&ip[24..40]).unwrap()),
            false => IpAddr::from(<[u8; 4]>::try_from(&ip[16..20]).unwrap()),
        };
        let number = self.table.listener_of(destination, found.destination_port);
        if number == 0 || frame[..6] != [0; 6] {
            return None;
        }
        match found.flags {
            None => Some(Verdict::SynInFragments),
            Some(flags) if flags & 0x17 == 0x02 => Some(Verdict::SynNotPlain),
            Some(_) => None,
        }
    }

    fn check_counters(&self, seen: &[u64]) {
        let mut counted = weir_core::verdict::Counters::default();
        for l in &self.listeners {
            counted.add(&self.guard.counters(&l.name).expect("counters"));
        }
        for (row, n) in VERDICTS.iter().zip(seen) {
            // ACKs while cookies are out are counted too; the model looks at SYNs.
            if row.name.starts_with("syn_") || row.name.starts_with("cookie_sent") {
                assert_eq!(counted.get(row.verdict), *n, "counter {}", row.name);
            }
        }
    }
}

fn pick<T: Copy>(random: &mut TestRng, from: &[T]) -> T {
    from[random.next_u32() as usize % from.len()]
}

/// From nearly nothing to a whole SYN: built right, then bent in one or two places or cut, or noise.
fn random_frame(random: &mut TestRng, world: &World) -> Vec<u8> {
    if random.next_u32().is_multiple_of(16) {
        let mut noise = vec![0u8; 15 + random.next_u32() as usize % 120];
        random.fill_bytes(&mut noise);
        let ethertype = pick(random, &[0x0800u16, 0x86dd, 0x0806, 0x8100]);
        noise[..6].fill(0);
        noise[12..14].copy_from_slice(&ethertype.to_be_bytes());
        return noise;
    }
    let mut frame = valid_frame(random, world);
    if random.next_u32().is_multiple_of(8) {
        frame = not_plain(random, frame);
    }
    match random.next_u32() % 8 {
        0 | 1 => {
            let at = random.next_u32() as usize % frame.len();
            frame[at] ^= 1 << (random.next_u32() % 8);
        }
        2 => {
            let at = random.next_u32() as usize % frame.len();
            frame[at] = random.next_u32() as u8;
            let at = random.next_u32() as usize % frame.len();
            frame[at] = random.next_u32() as u8;
        }
        3 => frame.truncate(15 + random.next_u32() as usize % (frame.len() - 14)),
        4 => frame.extend([0; 6]),
        _ => {}
    }
    frame
}

/// The frame with IPv4 options or an extension header, or as a first fragment. Checksums are of no matter.
fn not_plain(random: &mut TestRng, mut frame: Vec<u8>) -> Vec<u8> {
    if frame[12..14] == [0x86, 0xdd] {
        let next = pick(random, &[0u8, 43, 44, 44, 60]);
        let fragment = pick(random, &[0u8, 1, 8]);
        let size = if next == 44 {
            0
        } else {
            random.next_u32() as u8 % 3
        };
        let mut header = vec![6, size];
        header.resize(8 + usize::from(size) * 8, 0);
        header[3] = if next == 44 { fragment } else { 0 };
        frame[20] = next;
        frame.splice(54..54, header);
    } else if random.next_u32().is_multiple_of(2) {
        let words = random.next_u32() as usize % 11;
        frame[14] = 0x45 + words as u8;
        frame.splice(34..34, vec![1; words * 4]);
    } else {
        frame[20] = pick(random, &[0x20, 0x00]);
        frame[21] = pick(random, &[0, 0, 1]);
        // So short that the flags are in the next one.
        if random.next_u32().is_multiple_of(3) {
            frame.truncate(34 + 8);
        }
    }
    let length = (frame.len() - 14) as u16;
    match frame[12..14] == [0x86, 0xdd] {
        true => frame[18..20].copy_from_slice(&(length - 40).to_be_bytes()),
        false => frame[16..18].copy_from_slice(&length.to_be_bytes()),
    }
    frame
}

fn valid_frame(random: &mut TestRng, world: &World) -> Vec<u8> {
    let destination = match random.next_u32() % 10 {
        0 => random.next_u32() as u16,
        n => {
            world.listeners[n as usize % world.listeners.len()]
                .address
                .port
        }
    };
    let source = 1 + random.next_u32() as u16 % 60_000;
    let mac = pick(random, &[0u8, 0, 0, 0, 0, 0, 0, 2]);
    let eth = PacketBuilder::ethernet2([mac; 6], [mac; 6]);
    let host = random.next_u32().to_be_bytes();
    let ip = match random.next_u32() % 3 {
        0 => {
            let client = [
                0xfd, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, host[0], host[1], host[2], host[3],
            ];
            let server = std::net::Ipv6Addr::LOCALHOST.octets();
            eth.ipv6(
                pick(random, &[client, client, client, [0; 16], [0xff; 16]]),
                server,
                64,
            )
        }
        _ => {
            let first = pick(random, &[10u8, 10, 10, 127, 192, 0, 224, 240, 255]);
            eth.ipv4([first, host[1], host[2], host[3]], [127, 0, 0, 1], 64)
        }
    };
    let flags = random.next_u32();
    let mut tcp = ip.tcp(source, destination, random.next_u32(), 65_535);
    if flags & 3 != 0 {
        tcp = tcp.syn();
    }
    if flags & 28 == 0 {
        tcp = tcp.ack(random.next_u32());
    }
    if flags & 0x1e0 == 0 {
        tcp = tcp.fin();
    }
    if flags & 0x3e00 == 0 {
        tcp = tcp.rst();
    }
    let mut options = vec![0u8; random.next_u32() as usize % 11 * 4];
    random.fill_bytes(&mut options);
    if random.next_u32().is_multiple_of(2) {
        options = [
            2u8, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7,
        ]
        .to_vec();
    }
    let payload = vec![7u8; pick(random, &[0usize, 0, 0, 0, 1, 30])];
    let mut frame = Vec::new();
    tcp.options_raw(&options)
        .expect("at most 40")
        .write(&mut frame, &payload)
        .expect("a vector");
    frame
}

/// The answer goes back to where the SYN came from, acknowledges it, and is sound.
fn check_answer(syn: &[u8], answer: &[u8], verdict: Verdict, context: &dyn Fn() -> String) {
    let ethertype = u16::from_be_bytes([syn[12], syn[13]]);
    let (asked, said) = (
        parse(syn, 14, ethertype).unwrap(),
        parse(answer, 14, ethertype),
    );
    let said = said.unwrap_or_else(|| panic!("no answer: {}", context()));
    let l4 = if asked.v6 { 54 } else { 34 };
    let word = |f: &[u8], at: usize| u32::from_be_bytes(f[at..at + 4].try_into().unwrap());
    assert_eq!(said.source_port, asked.destination_port, "{}", context());
    assert_eq!(said.destination_port, asked.source_port, "{}", context());
    assert!(
        answerable(answer, 14, &said),
        "its sums are right: {}",
        context()
    );
    let payload = asked.tcp_len - u32::from(asked.header_len);
    let cookie = matches!(verdict, Verdict::CookieSent | Verdict::CookieSentFlood);
    let (flags, acknowledged) = if cookie {
        (0x12, 1)
    } else {
        (0x14, 1 + payload)
    };
    assert_eq!(said.flags, flags, "{}", context());
    assert_eq!(
        word(answer, l4 + 8),
        word(syn, l4 + 4).wrapping_add(acknowledged),
        "{}",
        context()
    );
    let (from, to) = if asked.v6 {
        (22..38, 38..54)
    } else {
        (26..30, 30..34)
    };
    assert_eq!(
        (&answer[from.clone()], &answer[to.clone()]),
        (&syn[to], &syn[from]),
        "{}",
        context()
    );
}

#[test]
fn the_sum_of_a_fin_that_becomes_a_rst_is_that_of_the_rst() {
    if !needs::own_namespace() {
        return;
    }
    let mut guard = Guard::load().unwrap();
    for ip in [
        IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(Ipv6Addr::LOCALHOST),
    ] {
        let listener = TcpListener::bind((ip, 0)).unwrap();
        let server = listener.local_addr().unwrap();
        let address = ListenAddress {
            ip: None,
            port: server.port(),
        };
        let resets = Listener {
            half_close: HalfClose::Reset,
            ..Listener::new("resets", address)
        };
        guard.apply(&[resets], &[]).unwrap();
        let client = TcpStream::connect(server).unwrap();
        let _accepted = listener.accept().unwrap();
        let (next, theirs) = next_numbers(&client);
        let peer = Peer {
            client: client.local_addr().unwrap(),
            server,
        };
        // Without options: a packet that becomes shorter or longer has no such sum any more.
        let fin = Segment {
            seq: next,
            ack: Some(theirs),
            fin: true,
            ..Segment::default()
        };
        let mut fin = frame(peer, Shape::Plain, &fin);
        fin[..6].fill(0);
        let Some(judged) = guard.judge_summed(&fin).expect("the sum is right") else {
            return needs::lacking("CHECKSUM_COMPLETE in test runs (Linux 6.17)");
        };
        let ethertype = u16::from_be_bytes([judged.frame[12], judged.frame[13]]);
        let became = parse(&judged.frame, 14, ethertype).unwrap();
        assert_eq!((judged.action, became.flags), (PASS, 0x04), "{ip}");
    }
}

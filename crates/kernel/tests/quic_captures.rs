//! Datagrams of a capture, and mutations of them, before the loaded programs of QUIC (BPF_PROG_TEST_RUN, as root).
//! `scripts/quic-captures` gives those of other projects' captures; without it, they are one of each kind of packet.
//!
//! Every attempt is refused here, with an answer, so that whatever the programs take for one shows. The seed of the mutations
//! is printed; set WEIR_SEED to run one again.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::path::Path;

use etherparse::PacketBuilder;
use proptest::prelude::Rng;
use weir_core::listener::ListenAddress;
use weir_core::quic::QuicListener;
use weir_kernel::{Around, Quic};
use weir_models::quic::{LongPacket, PacketKind};
use weir_testbed::{needs, netns};

mod seed;
use seed::runner;

const PASS: i32 = -1;
const REDIRECT: i32 = 7;
const PORT: u16 = 443;
/// A test run takes no more than what is left of a page.
const MOST_BYTES: usize = 3000;
const MUTATIONS: usize = 32;
/// 1, 2 and that of Version Negotiation.
const VERSIONS: [u32; 3] = [1, 0x6b33_43cf, 0];
/// Of a datagram, what is read at most: mutations change this.
const HEAD: usize = 47;

#[derive(Debug, Default)]
struct Counts {
    judged: u64,
    too_long: u64,
    /// By what the model says of them.
    attempts: u64,
    answered: u64,
    handshakes: u64,
    other_long: u64,
    short: u64,
}

#[test]
fn nothing_but_an_attempt_is_answered_and_no_answer_is_longer_than_the_attempt() {
    if !needs::root("BPF_PROG_TEST_RUN") {
        return;
    }
    let captures = match std::env::var_os("WEIR_DATAGRAMS") {
        Some(file) => read_captures(Path::new(&file)),
        None => one_of_each_kind(),
    };
    netns::enter_new().expect("a network namespace of our own");
    let world = World::new();
    let (mut captured, mut mutated) = (Counts::default(), Counts::default());
    let mut rng = runner(1).new_rng();
    let mut client = 0;
    for datagram in captures {
        client += 1;
        world.judge(client, &datagram, &mut captured);
        for _ in 0..MUTATIONS {
            client += 1;
            world.judge(client, &mutate(&datagram, &mut rng), &mut mutated);
        }
    }
    println!("captured: {captured:?}");
    println!("mutated: {mutated:?}");
    assert!(captured.attempts > 0 && captured.handshakes > 0 && captured.short > 0);
    assert!(mutated.attempts > captured.attempts);
}

/// A QUIC listener on loopback that refuses every attempt.
struct World {
    quic: Quic,
    _socket: UdpSocket,
}

impl World {
    fn new() -> World {
        let mut quic = Quic::load().expect("the programs load");
        let address = ListenAddress {
            ip: None,
            port: PORT,
        };
        let mut listener = QuicListener::new("h3", address);
        // Whatever is in the buffer is too much, and nobody has a share.
        (listener.room, listener.floor) = (0.001, 0.0);
        quic.apply(&[listener], &Around::default())
            .expect("it is taken");
        let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, PORT)).expect("a port");
        let from = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        from.send_to(&[0; 1000], (Ipv4Addr::LOCALHOST, PORT))
            .expect("there is room");
        socket.peek(&mut [0]).expect("it has come");
        World {
            quic,
            _socket: socket,
        }
    }

    /// Judges a datagram on both ways, each time of a client that nothing has come from.
    fn judge(&self, client: u32, datagram: &[u8], counts: &mut Counts) {
        if datagram.len() > MOST_BYTES {
            counts.too_long += 1;
            return;
        }
        counts.judged += 1;
        let read = LongPacket::read(datagram);
        let is_attempt = read.is_some_and(|packet| packet.may_begin(datagram.len()));
        match read {
            Some(_) if is_attempt => counts.attempts += 1,
            Some(packet) if packet.kind == PacketKind::Handshake => counts.handshakes += 1,
            None if datagram.first().is_none_or(|first| first & 0x80 == 0) => counts.short += 1,
            _ => counts.other_long += 1,
        }
        for v6 in [false, true] {
            let comes = framed(client, v6, true, datagram);
            let judged = self.quic.judge_in(&comes).expect("a test run");
            let expected = if is_attempt { REDIRECT } else { PASS };
            assert_eq!(judged.action, expected, "{datagram:02x?}");
            if is_attempt {
                counts.answered += 1;
                assert!(judged.frame.len() <= comes.len(), "{datagram:02x?}");
                self.judge_of_established(client, v6, datagram);
            } else {
                assert_eq!(judged.frame, comes, "{datagram:02x?}");
            }
            let leaves = framed(client, v6, false, datagram);
            let judged = self.quic.judge_out(&leaves).expect("a test run");
            assert_eq!((judged.action, judged.frame), (PASS, leaves));
        }
    }

    /// What a client sends on an established connection passes, though an attempt of its own was refused right before.
    fn judge_of_established(&self, client: u32, v6: bool, attempt: &[u8]) {
        for first in [0x40, handshake(attempt)] {
            let mut datagram = attempt.to_vec();
            datagram[0] = first;
            let comes = framed(client, v6, true, &datagram);
            let judged = self.quic.judge_in(&comes).expect("a test run");
            assert_eq!((judged.action, judged.frame), (PASS, comes));
        }
    }
}

/// The first byte of a Handshake packet of the version that a long packet has.
fn handshake(datagram: &[u8]) -> u8 {
    match datagram[4] {
        1 => 0xe0,
        _ => 0xf0,
    }
}

/// A frame of one client, which comes or leaves.
fn framed(client: u32, v6: bool, comes: bool, datagram: &[u8]) -> Vec<u8> {
    const CLIENT_PORT: u16 = 5000;
    let ports = match comes {
        true => (CLIENT_PORT, PORT),
        false => (PORT, CLIENT_PORT),
    };
    let builder = PacketBuilder::ethernet2([0; 6], [0; 6]);
    let builder = match v6 {
        true => {
            let [a, b, c, d] = client.to_be_bytes();
            let other = Ipv6Addr::from([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d]);
            let (from, to) = ordered(comes, other, Ipv6Addr::LOCALHOST);
            builder.ipv6(from.octets(), to.octets(), 64)
        }
        false => {
            let other = Ipv4Addr::from_bits(0x0a00_0001 + client);
            let (from, to) = ordered(comes, other, Ipv4Addr::LOCALHOST);
            builder.ipv4(from.octets(), to.octets(), 64)
        }
    };
    let mut frame = Vec::new();
    let builder = builder.udp(ports.0, ports.1);
    builder.write(&mut frame, datagram).expect("a vector");
    frame
}

fn ordered<T>(comes: bool, client: T, server: T) -> (T, T) {
    match comes {
        true => (client, server),
        false => (server, client),
    }
}

/// In three sizes, long packets of each kind of versions 1 and 2 and of Version Negotiation, and an established connection's
/// packet; and what is no QUIC. About a thousand mutations of each are judged.
fn one_of_each_kind() -> Vec<Vec<u8>> {
    const SIZES: [usize; 3] = [60, 1200, 1400];
    let mut datagrams = vec![b"GET / HTTP/1.1\r\n".to_vec(), Vec::new()];
    for (size, version) in SIZES.iter().flat_map(|&size| VERSIONS.map(|v| (size, v))) {
        for kind in 0..4 {
            let mut datagram = vec![0xc0 | kind << 4];
            datagram.extend(version.to_be_bytes());
            datagram.extend(b"\x08itstheir\x05other");
            datagram.extend(b"\x04mark\x44\x80");
            datagram.resize(size, 0x5a);
            datagrams.push(datagram);
        }
        let mut of_established = vec![0x5a; size];
        of_established[0] = 0x40;
        datagrams.push(of_established);
    }
    let often = |datagram: Vec<u8>| std::iter::repeat_n(datagram, 1000 / MUTATIONS);
    datagrams.into_iter().flat_map(often).collect()
}

/// The datagrams of a file of `scripts/quic-captures`: ports and bytes of one a line.
fn read_captures(file: &Path) -> Vec<Vec<u8>> {
    let lines = BufReader::new(std::fs::File::open(file).expect("it is there")).lines();
    let of_line = |line: std::io::Result<String>| {
        let line = line.expect("text");
        bytes(&line).unwrap_or_else(|| panic!("no datagram: {line}"))
    };
    lines.map(of_line).collect()
}

/// The bytes of a line: the third of its words.
fn bytes(line: &str) -> Option<Vec<u8>> {
    let hex = line.split(' ').nth(2)?;
    let byte = |at| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok();
    (0..hex.len()).step_by(2).map(byte).collect()
}

/// Something near it: other bytes at its beginning, another length, a version that weir knows.
fn mutate(datagram: &[u8], rng: &mut impl Rng) -> Vec<u8> {
    let mut below = |n: usize| rng.next_u32() as usize % n.max(1);
    let mut changed = datagram.to_vec();
    if below(2) == 0 {
        let version = VERSIONS[below(VERSIONS.len())];
        if let Some(place) = changed.get_mut(1..5) {
            place.copy_from_slice(&version.to_be_bytes());
        }
    }
    for _ in 0..below(4) {
        let at = below(changed.len().min(HEAD));
        if let Some(byte) = changed.get_mut(at) {
            *byte ^= 1 << below(8);
        }
    }
    match below(4) {
        0 => changed.truncate(below(changed.len() + 1)),
        1 => changed.resize(1199 + below(3), 0),
        _ => {}
    }
    if below(2) == 0
        && let Some(first) = changed.first_mut()
    {
        *first |= 0xc0;
    }
    changed
}

//! Old duplicates: segments of a closed connection that come late, within the window of a later connection with the same
//! addresses and ports. The servers here are made of frames.

use std::io::{ErrorKind, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use crate::bed::run;
use crate::common::{Bed, PATIENCE, Peer, Raw, Segment, Shape, Tunnel, until, within};

/// A port here that no other socket has.
const FROM: u16 = 20_000;
/// Of each kind.
const TRIES: u32 = 5_000;
const RULE: &str =
    "[[destination]]\nname = \"backends\"\nto = \"10.128.0.0/9\"\ntimewait = \"client-rst\"\n";

/// A connection that a program here has opened, as its server sees it.
struct Connection {
    stream: TcpStream,
    peer: Peer,
    /// The next sequence number of the server, and of the client.
    next: u32,
    ack: u32,
    /// The client's last timestamp.
    echo: Option<u32>,
}

/// Connects from [`FROM`] to a server with this number, which has this timestamp; `None`: it was reset.
fn connect(raw: &Raw<'_>, number: u32, isn: u32, stamp: u32) -> Option<Connection> {
    let peer = Peer::v4(number, FROM);
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
    socket.set_reuse_address(true).unwrap();
    let from = SocketAddr::from((Ipv4Addr::UNSPECIFIED, FROM));
    socket.bind(&from.into()).unwrap();
    socket.set_nonblocking(true).unwrap();
    until("the connection before has ended", || {
        let begun = socket.connect(&peer.client.into()).unwrap_err();
        match begun.raw_os_error().unwrap() {
            nix::libc::EINPROGRESS => Some(()),
            // weir's RST is on the wire before the kernel has read the ACK that it is for.
            nix::libc::EADDRNOTAVAIL => None,
            _ => panic!("{begun}"),
        }
    });
    let syn = raw.answer(peer);
    assert!(syn.header.syn && !syn.header.ack, "{syn:?}");
    let echo = syn.stamp();
    let syn_ack = Segment {
        seq: isn,
        ack: Some(syn.header.sequence_number.wrapping_add(1)),
        syn: true,
        stamps: echo.map(|echo| (stamp, echo)),
        ..Segment::default()
    };
    raw.send(peer, Shape::Plain, &syn_ack);
    let answer = raw.answer(peer);
    if answer.header.rst {
        assert_eq!(Some(answer.header.sequence_number), syn_ack.ack);
        let ended = until("connect() has failed", || socket.take_error().unwrap());
        assert_eq!(ended.kind(), ErrorKind::ConnectionRefused);
        return None;
    }
    assert!(answer.header.ack && !answer.header.syn, "{answer:?}");
    socket.set_nonblocking(false).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    Some(Connection {
        stream: socket.into(),
        peer,
        next: isn.wrapping_add(1),
        ack: answer.header.sequence_number,
        echo,
    })
}

impl Connection {
    fn segment(&self, stamp: u32) -> Segment {
        Segment {
            seq: self.next,
            ack: Some(self.ack),
            stamps: self.echo.map(|echo| (stamp, echo)),
            ..Segment::default()
        }
    }

    /// The server closes first. Says whether it was sent a RST that ends its TIME-WAIT.
    fn end(mut self, raw: &Raw<'_>, stamp: u32, swaps: bool) {
        let fin = Segment {
            fin: true,
            ..self.segment(stamp)
        };
        raw.send(self.peer, Shape::Plain, &fin);
        assert_eq!(self.stream.read(&mut [0; 8]).unwrap(), 0);
        let peer = self.peer;
        let last = Segment {
            seq: self.next.wrapping_add(1),
            ack: Some(self.ack.wrapping_add(1)),
            ..self.segment(stamp)
        };
        drop(self.stream);
        // An ACK of the server's FIN may come before the client's own.
        while !raw.answer(peer).header.fin {}
        raw.send(peer, Shape::Plain, &last);
        if swaps {
            let rst = raw.answer(peer);
            assert!(rst.header.rst && rst.sound, "{rst:?}");
            assert_eq!(Some(rst.header.sequence_number), last.ack);
            assert_eq!(rst.stamp(), None);
        }
    }

    /// What the program reads after an old duplicate and a new segment in its place.
    fn reads(mut self, raw: &Raw<'_>, old_stamp: u32, new_stamp: u32) -> Vec<u8> {
        for (stamp, data) in [(old_stamp, b"stale"), (new_stamp, b"fresh")] {
            let segment = Segment {
                payload: data.to_vec(),
                ..self.segment(stamp)
            };
            raw.send(self.peer, Shape::Plain, &segment);
        }
        let mut read = vec![0; 5];
        self.stream.read_exact(&mut read).unwrap();
        let socket = Socket::from(self.stream);
        socket.set_linger(Some(Duration::ZERO)).unwrap();
        read
    }
}

/// Timestamps near their wrap: a new connection's are later only in the sense of RFC 7323.
const OLD: u32 = u32::MAX - 5;
const NEW: u32 = 7;

/// A connection that the server closes first.
fn old(raw: &Raw<'_>, number: u32, swaps: bool) {
    let first = connect(raw, number, 1_000, OLD).expect("nothing stands in its way");
    first.end(raw, OLD, swaps);
}

/// A new one from the same port; what its program reads, `None` where weir reset it.
fn new(raw: &Raw<'_>, number: u32) -> Option<Vec<u8>> {
    let second = connect(raw, number, 900_000, NEW)?;
    Some(second.reads(raw, OLD, NEW))
}

fn set_timestamps(bed: &Bed, value: &str) {
    let sysctl = "net.ipv4.tcp_timestamps";
    bed.here().set_sysctl(sysctl, value).unwrap();
}

#[test]
fn no_program_reads_an_old_duplicate() {
    let Some(bed) = Bed::new() else { return };
    let raw = Raw(&bed.links.wire);
    set_timestamps(&bed, "0");
    within(bed.here(), || {
        old(&raw, TRIES, false);
        let read = new(&raw, TRIES);
        assert_eq!(read.as_deref(), Some(&b"stale"[..]), "without a record");
    });
    let _weir = run(&bed, RULE);
    within(bed.here(), || {
        for number in 0..TRIES {
            old(&raw, number, true);
            assert_eq!(new(&raw, number), None, "{number}");
        }
    });
    let tries = u64::from(TRIES);
    assert_eq!((bed.figure("refused"), bed.figure("reused")), (tries, 0));
    set_timestamps(&bed, "1");
    within(bed.here(), || {
        let numbers = || TRIES..2 * TRIES;
        // All old ones first: within a tick of the client's clock, 1 ms, its timestamps prove nothing.
        numbers().for_each(|number| old(&raw, number, true));
        for number in numbers() {
            let read = new(&raw, number);
            assert_eq!(read.as_deref(), Some(&b"fresh"[..]), "{number}");
        }
    });
    assert_eq!(
        (bed.figure("refused"), bed.figure("reused")),
        (tries, tries)
    );
    assert_eq!(bed.figure("swapped"), 2 * tries);
}

#[test]
fn a_device_without_a_link_header_carries_it_too() {
    let Some(bed) = Bed::new() else { return };
    let tun = Tunnel::create(bed.here(), "tun0").unwrap();
    let lines =
        "link set tun0 up\naddr add 10.66.0.1/32 dev tun0\nroute replace 10.128.0.0/9 dev tun0";
    bed.here().ip_batch(lines).unwrap();
    let raw = Raw(&tun);
    let _weir = run(&bed, RULE);
    within(bed.here(), || old(&raw, 0, true));
    bed.figure_becomes("swapped", 1);
}

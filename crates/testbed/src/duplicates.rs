//! Old duplicates: segments of a closed connection that come late, within the window of a later connection with the same
//! addresses and ports. One end is made of frames, and closes first; the other one is a program.
//!
//! A duplicate here is the worst there can be: its data is within the window of the new connection, and what it acknowledges
//! is acceptable there too.

use std::io::{ErrorKind, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, getpeername, getsockopt,
    setsockopt, socket, sockopt,
};

use crate::netns::Netns;
use crate::raw::{Peer, Raw, Segment, Shape};
use crate::wait::{PATIENCE, until};

/// The option of `timewait = "negotiate"` in a SYN, whose sender offers to hold, and in the ACK of a SYN/ACK that says that
/// the server does. docs/timewait-details.md describes it.
const OFFER: [u8; 8] = [253, 8, b'T', b'W', b'N', b'G', 1, 1];
const AGREED: [u8; 8] = [253, 8, b'T', b'W', b'N', b'G', 3, 2];

/// What an old duplicate has as data, and what the new connection has in its place.
const STALE: &[u8; 5] = b"stale";
const FRESH: &[u8; 5] = b"fresh";
/// The most bytes before them: one segment.
const BEFORE: u64 = 1400;
/// First all old connections of a batch, then all new ones: within a tick of their clocks, 1 ms, timestamps prove nothing.
const BATCH: u32 = 250;

/// Which end the program is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// It connects: the record is of a destination.
    Client,
    /// It listens: the record is of a listener.
    Server,
}

/// The timestamps of the end that is made of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// The program's end has none.
    Off,
    /// Those of the new connection are later than those of the old one, by 2 ms at least.
    Later,
    /// Later by 1 ms, of which PAWS takes no notice: TCP_PAWS_WINDOW, include/net/tcp.h.
    Next,
    /// Earlier: a machine that was started anew, or another one behind the same address.
    Earlier,
}

/// What came of the new connections.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// The program has read an old duplicate.
    pub stale: u64,
    /// It has read the new connection's data alone.
    pub fresh: u64,
    /// It has got no connection for its SYN, or for the SYN of the other end.
    pub refused: u64,
}

/// Tries, one after the other.
pub struct Duplicates<'a> {
    /// Where the program runs.
    pub netns: &'a Netns,
    /// The other end.
    pub raw: Raw<'a>,
    /// Which end the program is.
    pub side: Side,
    /// The other end's timestamps.
    pub clock: Clock,
    /// The program's port.
    pub port: u16,
    /// weir runs where the program does: with `timewait = "client-rst"` of a destination, or `negotiate` of a listener that
    /// is to hold.
    pub enforced: bool,
    /// Number of the first host at the other end: no two tries while a record lasts are of the same one.
    pub first: u32,
    /// Seed of sequence numbers, timestamps, and places in the window.
    pub seed: u64,
}

/// What is random of a try.
#[derive(Clone, Copy)]
struct Try {
    number: u32,
    /// Initial sequence number of the old connection.
    isn: u32,
    stamp: u32,
    /// Bytes of the new connection before the place of the duplicate.
    before: u32,
    /// Between the clocks of both connections, in ms.
    apart: u32,
}

/// A connection, as the end that is made of frames sees it.
struct Ends {
    stream: TcpStream,
    peer: Peer,
    /// Its next sequence number, and that of the program's end.
    next: u32,
    theirs: u32,
    /// The last timestamp of the program's end.
    echo: Option<u32>,
}

impl Duplicates<'_> {
    /// Makes so many tries. Panics where the wire fails, or an old connection is none, as [`Raw`] does.
    pub fn run(&self, tries: u32) -> Outcome {
        let on = if self.clock == Clock::Off { "0" } else { "1" };
        let sysctl = "net.ipv4.tcp_timestamps";
        self.netns.set_sysctl(sysctl, on).unwrap();
        let work = || {
            let listener = (self.side == Side::Server).then(|| {
                let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, self.port)).unwrap();
                listener.set_nonblocking(true).unwrap();
                listener
            });
            let mut outcome = Outcome::default();
            let mut next = self.first;
            let end = self.first + tries;
            while next < end {
                let numbers = next..end.min(next + BATCH);
                next = numbers.end;
                for number in numbers.clone() {
                    self.earlier(self.draw(number), listener.as_ref());
                }
                for number in numbers {
                    *match self.later(self.draw(number), listener.as_ref()) {
                        None => &mut outcome.refused,
                        Some(read) if read == *STALE => &mut outcome.stale,
                        Some(read) if read == *FRESH => &mut outcome.fresh,
                        Some(read) => panic!("{read:?}"),
                    } += 1;
                }
            }
            Ok(outcome)
        };
        self.netns.run(work).unwrap()
    }

    /// The same each time.
    fn draw(&self, number: u32) -> Try {
        let mut state = self.seed ^ u64::from(number) << 32;
        // splitmix64
        let mut next = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        };
        Try {
            number,
            isn: next() as u32,
            // The kernel takes 0 for none.
            stamp: (next() as u32).max(1),
            before: (next() % (BEFORE + 1)) as u32,
            apart: (2 + next() % 10_000) as u32,
        }
    }

    fn stamp(&self, one: Try, of_new: bool) -> Option<u32> {
        match (self.clock, of_new) {
            (Clock::Off, _) => None,
            (_, false) => Some(one.stamp),
            (Clock::Next, true) => Some(one.stamp.wrapping_add(1)),
            (Clock::Later, true) => Some(one.stamp.wrapping_add(one.apart)),
            (Clock::Earlier, true) => Some(one.stamp.wrapping_sub(one.apart)),
        }
    }

    /// A connection with data that the end made of frames closes first.
    fn earlier(&self, one: Try, listener: Option<&TcpListener>) {
        let stamp = self.stamp(one, false);
        let open = self.open(one.number, one.isn, stamp, listener);
        let mut ends = open.expect("nothing stands in the way of an old connection");
        self.send(&mut ends, stamp, STALE, false);
        let mut read = [0; STALE.len()];
        ends.stream.read_exact(&mut read).unwrap();
        assert_eq!(read, *STALE);
        self.send(&mut ends, stamp, b"", true);
        assert_eq!(ends.stream.read(&mut [0]).unwrap(), 0);
        let Ends { stream, peer, .. } = ends;
        drop(stream);
        // An ACK of the other end's FIN may come before the program's own.
        let fin = loop {
            let answer = self.raw.answer(peer);
            if answer.header.fin {
                break answer;
            }
        };
        let last = Segment {
            seq: ends.next,
            ack: Some(fin.header.sequence_number.wrapping_add(1)),
            stamps: stamp.zip(fin.stamp()),
            ..Segment::default()
        };
        self.raw.send(peer, Shape::Plain, &last);
        if self.enforced && self.side == Side::Client {
            let rst = self.raw.answer(peer);
            assert!(rst.header.rst, "its TIME-WAIT is not taken over: {rst:?}");
        }
    }

    /// A new connection, into which the old one's data comes late. What the program reads in its place.
    fn later(&self, one: Try, listener: Option<&TcpListener>) -> Option<[u8; 5]> {
        let stamp = self.stamp(one, true);
        let isn = one.isn.wrapping_sub(one.before);
        let mut ends = self.open(one.number, isn, stamp, listener)?;
        let old = Segment {
            seq: one.isn.wrapping_add(1),
            ack: Some(ends.theirs),
            stamps: self.stamp(one, false).zip(ends.echo),
            payload: STALE.to_vec(),
            ..Segment::default()
        };
        self.raw.send(ends.peer, Shape::Plain, &old);
        if one.before > 0 {
            let mut before = vec![b'.'; one.before as usize];
            self.send(&mut ends, stamp, &before, false);
            // The kernel may join segments that wait for the socket's lock: then the duplicate would come second.
            ends.stream.read_exact(&mut before).unwrap();
        }
        self.send(&mut ends, stamp, FRESH, false);
        let mut read = *FRESH;
        ends.stream.read_exact(&mut read).unwrap();
        // Its port is free at once.
        let linger = nix::libc::linger {
            l_onoff: 1,
            l_linger: 0,
        };
        setsockopt(&ends.stream, sockopt::Linger, &linger).unwrap();
        Some(read)
    }

    fn send(&self, ends: &mut Ends, stamp: Option<u32>, data: &[u8], fin: bool) {
        let segment = Segment {
            seq: ends.next,
            ack: Some(ends.theirs),
            fin,
            stamps: stamp.zip(ends.echo),
            payload: data.to_vec(),
            ..Segment::default()
        };
        self.raw.send(ends.peer, Shape::Plain, &segment);
        let bytes = data.len() as u32 + u32::from(fin);
        ends.next = ends.next.wrapping_add(bytes);
    }

    /// `None`: the connection is refused.
    fn open(
        &self,
        number: u32,
        isn: u32,
        stamp: Option<u32>,
        listener: Option<&TcpListener>,
    ) -> Option<Ends> {
        let peer = Peer::v4(number, self.port);
        match listener {
            Some(listener) => self.connect_to_program(peer, isn, stamp, listener),
            None => self.accept_program(peer, isn, stamp),
        }
    }

    fn connect_to_program(
        &self,
        peer: Peer,
        isn: u32,
        stamp: Option<u32>,
        listener: &TcpListener,
    ) -> Option<Ends> {
        let option = |bytes: [u8; 8]| {
            if self.enforced {
                bytes.to_vec()
            } else {
                Vec::new()
            }
        };
        let syn = Segment {
            seq: isn,
            syn: true,
            stamps: stamp.map(|stamp| (stamp, 0)),
            options: option(OFFER),
            ..Segment::default()
        };
        self.raw.send(peer, Shape::Plain, &syn);
        let answer = self.raw.answer(peer);
        if !answer.is_syn_ack() {
            assert!(accept(listener).is_none(), "{answer:?}");
            return None;
        }
        let (next, theirs) = (
            isn.wrapping_add(1),
            answer.header.sequence_number.wrapping_add(1),
        );
        let ack = Segment {
            seq: next,
            ack: Some(theirs),
            stamps: stamp.zip(answer.stamp()),
            options: option(AGREED),
            ..Segment::default()
        };
        self.raw.send(peer, Shape::Plain, &ack);
        let stream = until("the connection is made", || accept(listener));
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Some(Ends {
            stream,
            peer,
            next,
            theirs,
            echo: answer.stamp(),
        })
    }

    fn accept_program(&self, peer: Peer, isn: u32, stamp: Option<u32>) -> Option<Ends> {
        let socket = begin_to_connect(self.port, peer.client);
        let syn = self.raw.answer(peer);
        assert!(syn.header.syn && !syn.header.ack, "{syn:?}");
        let syn_ack = Segment {
            seq: isn,
            ack: Some(syn.header.sequence_number.wrapping_add(1)),
            syn: true,
            stamps: stamp.zip(syn.stamp()),
            ..Segment::default()
        };
        self.raw.send(peer, Shape::Plain, &syn_ack);
        let answer = self.raw.answer(peer);
        if answer.header.rst {
            // It has no connection, and no error: it would send its SYN again.
            let peer = getpeername::<SockaddrStorage>(socket.as_raw_fd());
            assert_eq!(peer.unwrap_err(), Errno::ENOTCONN);
            assert_eq!(getsockopt(&socket, sockopt::SocketError).unwrap(), 0);
            return None;
        }
        assert!(answer.header.ack && !answer.header.syn, "{answer:?}");
        let stream = TcpStream::from(socket);
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Some(Ends {
            stream,
            peer,
            next: isn.wrapping_add(1),
            theirs: answer.header.sequence_number,
            echo: syn.stamp(),
        })
    }
}

/// A connection that waits, if there is one.
fn accept(listener: &TcpListener) -> Option<TcpStream> {
    match listener.accept() {
        Ok((stream, _)) => {
            stream.set_nonblocking(false).unwrap();
            Some(stream)
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => None,
        Err(error) => panic!("accept: {error}"),
    }
}

/// Has the kernel send a SYN from this port.
fn begin_to_connect(port: u16, to: SocketAddr) -> OwnedFd {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Inet, SockType::Stream, flags, None).unwrap();
    setsockopt(&fd, sockopt::ReuseAddr, &true).unwrap();
    let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    bind(fd.as_raw_fd(), &SockaddrStorage::from(any)).unwrap();
    until("the connection before has ended", || {
        match connect(fd.as_fd().as_raw_fd(), &SockaddrStorage::from(to)) {
            Err(Errno::EINPROGRESS) => Some(()),
            // A RST that ends it is on the wire before the kernel has read the ACK that it is for.
            Err(Errno::EADDRNOTAVAIL) => None,
            other => panic!("connect: {other:?}"),
        }
    });
    fd
}

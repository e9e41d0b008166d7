//! What weir believes about connections that it did not see: nothing that only a stranger, or a machine that has lost its
//! memory, would say. One end is made of frames, or has lost its connection.

use std::io::{ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};

use nix::errno::Errno;
use nix::libc;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use weir_testbed::needs;
use weir_testbed::raw::Answer;

use crate::bed::{REPLY, THERE_V4, THERE_V6, run, there, time_waits, time_waits_become};
use crate::common::{
    Bed, PATIENCE, PORT, Peer, Raw, Segment, Shape, listen, output, until, within,
};
use crate::negotiate::{Ends, figure_there, listener, rule};

/// Phases of the option of negotiation, and its holder as the sender of a segment sees it: docs/timewait-details.md.
const OFFER: u8 = 1;
const AGREED: u8 = 3;
const WILL_HOLD: u8 = 4;
const HOLDS: u8 = 5;
/// The holder, as the option says it.
const ME: u8 = 1;
const YOU: u8 = 2;

/// The option; 1: its sender is the holder, 2: the other end.
fn option(phase: u8, holder: u8) -> Vec<u8> {
    vec![253, 8, b'T', b'W', b'N', b'G', phase, holder]
}

/// That of an end that holds, or offers to.
fn i_hold(phase: u8) -> Vec<u8> {
    option(phase, 1)
}

/// A listener here that negotiates, whose SYNs the kernel judges.
fn listener_here(holder: &str) -> String {
    let kernel = "establish = \"default\"\nreject_syn = \"drop\"\nadmit = \"queue\"\n";
    listener(holder) + kernel
}

/// Starts the weir under test with a listener.
fn run_listener(bed: &Bed, holder: &str) -> crate::common::Weir {
    let weir = bed.run(&listener_here(holder));
    until("weir runs", || {
        (bed.status()["running"] == true).then_some(())
    });
    weir
}

/// A figure of the listener here.
fn figure_of_listener(bed: &Bed, name: &str) -> u64 {
    let status = bed.status();
    let figure = &status["listeners"][0]["timewait"][name];
    figure
        .as_u64()
        .unwrap_or_else(|| panic!("no figure {name}: {status:#}"))
}

/// A client made of frames.
struct Client<'a> {
    raw: Raw<'a>,
    peer: Peer,
    /// Its next sequence number, and the server's.
    next: u32,
    theirs: u32,
}

impl<'a> Client<'a> {
    /// Makes a connection to a program here, and agrees to this holder; `None`: without negotiation.
    fn connect(
        bed: &'a Bed,
        server: &TcpListener,
        number: u32,
        holder: Option<u8>,
    ) -> (Client<'a>, TcpStream) {
        const ISN: u32 = u32::MAX - 2;
        let say = |phase, end: u8| holder.map_or(Vec::new(), |_| option(phase, end));
        let mut client = Client {
            raw: Raw(&bed.links.wire),
            peer: Peer::v4(number, PORT),
            next: ISN.wrapping_add(1),
            theirs: 0,
        };
        client.raw.send(
            client.peer,
            Shape::Plain,
            &Segment {
                seq: ISN,
                syn: true,
                options: say(OFFER, ME),
                ..Segment::default()
            },
        );
        let answer = client.raw.answer(client.peer);
        assert!(answer.is_syn_ack(), "{answer:?}");
        client.theirs = answer.header.sequence_number.wrapping_add(1);
        client.say(0, say(AGREED, holder.unwrap_or(ME)), false);
        (client, server.accept().unwrap().0)
    }

    fn segment(&self, ahead: u32, options: Vec<u8>, fin: bool) -> Segment {
        Segment {
            seq: self.next.wrapping_add(ahead),
            ack: Some(self.theirs),
            fin,
            options,
            ..Segment::default()
        }
    }

    /// Sends a segment without data, so many bytes ahead.
    fn say(&self, ahead: u32, options: Vec<u8>, fin: bool) {
        self.raw
            .send(self.peer, Shape::Plain, &self.segment(ahead, options, fin));
    }

    /// Waits for the server's FIN, which is acknowledged from then on.
    fn server_closes(&mut self) {
        let fin = until("the server's FIN", || {
            Some(self.raw.answer(self.peer)).filter(|answer| answer.header.fin)
        });
        self.theirs = fin.header.sequence_number.wrapping_add(1);
    }

    /// What comes back for a FIN.
    fn answer_to_fin(&self, ahead: u32, option: Vec<u8>) -> Answer {
        self.say(ahead, option, true);
        self.raw.answer(self.peer)
    }

    fn is_acknowledged(&self, answer: &Answer) -> bool {
        !answer.header.rst && answer.header.acknowledgment_number == self.next.wrapping_add(1)
    }
}

/// A connection that its end forgets without a word, as one that loses its power does.
#[expect(unsafe_code, reason = "no crate has this option")]
fn lose(stream: TcpStream) {
    use std::os::fd::AsRawFd;
    let on: libc::c_int = 1;
    let length = size_of_val(&on) as libc::socklen_t;
    let at = (&raw const on).cast();
    // SAFETY: the value is readable, and length says how long it is.
    let failed = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_TCP,
            libc::TCP_REPAIR,
            at,
            length,
        )
    };
    assert_eq!(failed, 0, "{}", Errno::last());
}

#[test]
fn a_client_learns_at_once_that_its_server_has_lost_the_connection() {
    let Some(bed) = Bed::new() else { return };
    let _ends = Ends::start(&bed, "any", "client");
    for (ip, data) in [(THERE_V4, 0), (THERE_V6, 0), (THERE_V4, 1), (THERE_V6, 1)] {
        let server = listen(bed.there(), there(ip), 8);
        let client = within(bed.here(), || TcpStream::connect(there(ip))).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        lose(server.accept().unwrap().0);
        // It goes with the FIN, in one segment.
        let sent = SockRef::from(&client).send_with_flags(&b"?"[..data], libc::MSG_MORE);
        assert_eq!(sent.unwrap(), data);
        client.shutdown(Shutdown::Write).unwrap();
        let read = (&client).read(&mut [0]).map_err(|error| error.kind());
        assert_eq!(read, Err(ErrorKind::ConnectionReset), "{ip}, bytes: {data}");
    }
    assert_eq!(
        (bed.figure("fallback"), figure_there(&bed, "fallback")),
        (0, 0)
    );
}

#[test]
fn the_last_ack_is_repeated_for_the_fin_that_ended_a_connection_and_for_no_other() {
    let Some(bed) = Bed::new() else { return };
    let server = server(&bed);
    let _weir = run_listener(&bed, "client");
    let (mut client, stream) = Client::connect(&bed, &server, 1, Some(ME));
    drop(stream);
    client.server_closes();
    for time in ["first", "second", "third"] {
        let answer = client.answer_to_fin(0, i_hold(HOLDS));
        assert!(client.is_acknowledged(&answer), "{time}: {answer:?}");
    }
    assert_eq!(figure_of_listener(&bed, "avoided"), 1);
    // Not of this connection, though nearly.
    for (ahead, theirs) in [(1, 0), (0, 1), (u32::MAX, 0)] {
        client.theirs = client.theirs.wrapping_add(theirs);
        let answer = client.answer_to_fin(ahead, i_hold(HOLDS));
        assert!(answer.header.rst, "{ahead} {theirs}: {answer:?}");
        client.theirs = client.theirs.wrapping_sub(theirs);
    }
    client.peer = Peer::v4(2, PORT);
    for phase in [WILL_HOLD, HOLDS] {
        let answer = client.answer_to_fin(0, i_hold(phase));
        assert!(answer.header.rst, "{phase}: {answer:?}");
    }
}

fn server(bed: &Bed) -> TcpListener {
    let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT));
    listen(bed.here(), any, 8)
}

/// A client whose connection has ended, it first, and of which the server has a record. `next` is behind its FIN.
fn closed_with_a_record<'a>(bed: &'a Bed, server: &TcpListener) -> Client<'a> {
    let (mut client, mut stream) = Client::connect(bed, server, 1, Some(YOU));
    client.say(0, Vec::new(), true);
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    drop(stream);
    client.server_closes();
    client.next = client.next.wrapping_add(1);
    client.say(0, Vec::new(), false);
    until("it has a record", || {
        (figure_of_listener(bed, "held") == 1).then_some(())
    });
    client
}

/// A record is of the last FIN of its connection: it acknowledges that one, and no other.
#[test]
fn a_record_acknowledges_no_fin_but_its_connection_s() {
    let Some(bed) = Bed::new() else { return };
    let server = server(&bed);
    let _weir = run_listener(&bed, "server");
    let mut client = closed_with_a_record(&bed, &server);
    // Its FIN once more.
    let fin = client.next.wrapping_sub(1);
    client.next = fin;
    let answer = client.answer_to_fin(0, Vec::new());
    assert!(client.is_acknowledged(&answer), "{answer:?}");
    for ahead in [1, 1 << 30, 3 << 30, u32::MAX] {
        let answer = client.answer_to_fin(ahead, Vec::new());
        let acknowledged = answer.header.acknowledgment_number;
        assert!(
            answer.header.rst || acknowledged == fin.wrapping_add(1),
            "{ahead}: {answer:?}"
        );
    }
}

#[test]
fn a_forged_fin_ends_no_time_wait_of_a_connection() {
    let Some(bed) = Bed::new() else { return };
    let server = server(&bed);
    let _weir = run_listener(&bed, "client");
    // Each far from what its socket waits for: by its own number, and by that which it acknowledges.
    let forged = [
        (1 << 30, 0),
        (u32::MAX, 0),
        (8, 1 << 30),
        (8, 1 << 31),
        (0, 1 << 30),
    ];
    let mut victims = 0;
    for holder in [None, Some(ME)] {
        for (ahead, theirs) in forged {
            for phase in [WILL_HOLD, HOLDS] {
                victims += 1;
                let (mut client, stream) = Client::connect(&bed, &server, victims, holder);
                stream.shutdown(Shutdown::Write).unwrap();
                client.server_closes();
                client.say(0, Vec::new(), false);
                client.theirs = client.theirs.wrapping_add(theirs);
                client.say(ahead, i_hold(phase), true);
                client.theirs = client.theirs.wrapping_sub(theirs);
                // The client itself, whose weir has ended meanwhile.
                client.say(0, Vec::new(), true);
                until("it is in TIME-WAIT", || {
                    (time_waits(bed.here()) == victims as usize).then_some(())
                });
            }
        }
    }
    // One whose FIN came before what it follows: user space ends it, and would end the others in the same round.
    let (mut client, stream) = Client::connect(&bed, &server, 0, Some(ME));
    stream.shutdown(Shutdown::Write).unwrap();
    client.server_closes();
    client.say(1, i_hold(HOLDS), true);
    let data = Segment {
        payload: b"?".to_vec(),
        ..client.segment(0, Vec::new(), false)
    };
    client.raw.send(client.peer, Shape::Plain, &data);
    until("it has ended", || {
        (figure_of_listener(&bed, "avoided") > 0).then_some(())
    });
    assert_eq!(figure_of_listener(&bed, "avoided"), 1);
    time_waits_become(bed.here(), victims as usize);
}

const DESTINATION: &str =
    "[[destination]]\nname = \"backends\"\nto = \"10.128.0.0/9\"\ntimewait = \"client-rst\"\n";

/// Has the kernel send a SYN from this port here.
fn begin_to_connect(bed: &Bed, from: u16, to: SocketAddr) -> Socket {
    within(bed.here(), || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
        socket.set_reuse_address(true).unwrap();
        socket
            .bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, from)).into())
            .unwrap();
        socket.set_nonblocking(true).unwrap();
        until("connect() begins", || match socket.connect(&to.into()) {
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Some(()),
            // The connection before has not gone yet.
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable => None,
            other => panic!("connect: {other:?}"),
        });
        socket
    })
}

#[test]
fn a_blind_syn_ack_ends_no_record() {
    const FROM: u16 = 20_000;
    let Some(bed) = Bed::new() else { return };
    bed.here()
        .set_sysctl("net.ipv4.tcp_timestamps", "0")
        .unwrap();
    let _weir = run(&bed, DESTINATION);
    let raw = Raw(&bed.links.wire);
    let peer = Peer::v4(1, FROM);
    let send = |seq: u32, ack: u32, syn: bool, fin: bool| {
        let ack = Some(ack);
        raw.send(
            peer,
            Shape::Plain,
            &Segment {
                seq,
                ack,
                syn,
                fin,
                ..Segment::default()
            },
        );
    };
    // The server closes first, and is told to forget.
    let socket = begin_to_connect(&bed, FROM, peer.client);
    let isn = raw.answer(peer).header.sequence_number;
    send(7, isn.wrapping_add(1), true, false);
    assert!(raw.answer(peer).header.ack);
    send(8, isn.wrapping_add(1), false, true);
    let mut stream = TcpStream::from(socket);
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    drop(stream);
    let fin = until("its FIN", || {
        Some(raw.answer(peer)).filter(|answer| answer.header.fin)
    });
    let (seq, ack) = (9, fin.header.sequence_number.wrapping_add(1));
    send(seq, ack, false, false);
    let told = until("the server is told to forget", || {
        Some(raw.answer(peer)).filter(|answer| answer.header.rst)
    });
    assert_eq!(told.header.sequence_number, ack);

    // Without a connection that is being made, and with one, but not with its number.
    let blind = |ahead: [u32; 2]| {
        send(
            seq.wrapping_add(ahead[0]),
            ack.wrapping_add(ahead[1]),
            true,
            false,
        );
        raw.answers_until_now(peer)
    };
    for ahead in [[1, 1], [1 << 30, 1 << 30], [5, u32::MAX], [1 << 31, 5]] {
        let answers = blind(ahead);
        assert!(
            answers.iter().all(|answer| answer.header.rst),
            "{answers:?}"
        );
    }
    assert_eq!((bed.figure("reused"), bed.figure("refused")), (0, 0));
    let socket = begin_to_connect(&bed, FROM, peer.client);
    let syn = raw.answer(peer);
    assert!(syn.header.syn && !syn.header.ack, "{syn:?}");
    let isn = syn.header.sequence_number;
    for wrong in [isn, isn.wrapping_add(2), isn.wrapping_add(1 << 30)] {
        send(seq.wrapping_add(1), wrong, true, false);
        let answers = raw.answers_until_now(peer);
        assert!(
            answers
                .iter()
                .all(|answer| !answer.header.ack || answer.header.rst),
            "{answers:?}"
        );
    }
    assert_eq!((bed.figure("reused"), bed.figure("refused")), (0, 0));
    // The record stands: it puts off a server whose numbers prove nothing, and gives way to one whose do.
    send(seq.wrapping_sub(1), isn.wrapping_add(1), true, false);
    until("the server is reset", || {
        Some(raw.answer(peer)).filter(|answer| answer.header.rst)
    });
    assert_eq!((bed.figure("reused"), bed.figure("refused")), (0, 1));
    send(seq.wrapping_add(1), isn.wrapping_add(1), true, false);
    until("the connection is made", || socket.peer_addr().ok());
    assert_eq!((bed.figure("reused"), bed.figure("refused")), (1, 1));
}

/// Connects from an address and a port, reads the reply, and closes first.
fn ask_from(bed: &Bed, from: SocketAddr) -> Result<(), ErrorKind> {
    within(bed.here(), || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
        socket.set_reuse_address(true).unwrap();
        socket.bind(&from.into()).unwrap();
        let kind = |error: std::io::Error| error.kind();
        socket
            .connect_timeout(&there(THERE_V4).into(), PATIENCE)
            .map_err(kind)?;
        let mut stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.read_exact(&mut [0; REPLY.len()]).map_err(kind)
    })
}

#[test]
fn another_client_behind_the_same_address_gets_its_connection_in_spite_of_a_record() {
    /// Half have a later sequence number: that all have it comes about once in 2^32 runs.
    const PORTS: u16 = 32;
    const FROM: u16 = 20_000;
    const ONE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 66, 1, 1));
    const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 66, 1, 9));
    let Some(bed) = Bed::new() else { return };
    if !needs::programs(&["nft"]) {
        return;
    }
    for netns in [bed.here(), bed.there()] {
        netns.set_sysctl("net.ipv4.tcp_timestamps", "0").unwrap();
    }
    bed.here()
        .ip_batch(&format!("addr add {OTHER}/32 dev lo"))
        .unwrap();
    let _servers = crate::bed::Server::start(&bed, PORT, crate::bed::First::Client);
    let _there = bed.run_there(&listener_here("server"));
    let _here = run(&bed, &rule("any"));
    let all_are_served = |ip| {
        let bed = &bed;
        std::thread::scope(|scope| {
            let ports = FROM..FROM + PORTS;
            let asks: Vec<_> = ports
                .map(|port| scope.spawn(move || ask_from(bed, SocketAddr::new(ip, port))))
                .collect();
            for ask in asks {
                assert_eq!(ask.join().unwrap(), Ok(()), "{ip}");
            }
        });
    };
    all_are_served(ONE);
    until("all have a record", || {
        (figure_there(&bed, "held") == u64::from(PORTS)).then_some(())
    });
    let rules = format!(
        "table ip router {{ chain leaves {{ type nat hook postrouting priority srcnat; \
         ip saddr {OTHER} tcp dport {PORT} snat to {ONE} ; }} ; }}"
    );
    output(bed.here(), "nft", &[&rules]);
    all_are_served(OTHER);
    assert_ne!(figure_there(&bed, "refused"), 0);
    assert_eq!(figure_there(&bed, "reused"), u64::from(PORTS));
}

/// As the kernel's TIME-WAIT with this setting.
#[test]
fn a_protected_record_ignores_resets() {
    reset_of_a_record(true);
}

#[test]
fn a_record_gives_way_to_the_reset_of_a_client_that_it_has_put_off_and_to_no_other() {
    reset_of_a_record(false);
}

fn reset_of_a_record(protected: bool) {
    let Some(bed) = Bed::new() else { return };
    bed.here()
        .set_sysctl("net.ipv4.tcp_timestamps", "0")
        .unwrap();
    if protected {
        bed.here().set_sysctl("net.ipv4.tcp_rfc1337", "1").unwrap();
    }
    let server = server(&bed);
    let _weir = run_listener(&bed, "server");
    let client = closed_with_a_record(&bed, &server);
    let reset = |ahead: u32| {
        let seq = client.next.wrapping_add(ahead);
        client.raw.send(
            client.peer,
            Shape::Plain,
            &Segment {
                seq,
                rst: true,
                ..Segment::default()
            },
        );
    };
    let is_put_off = || {
        let seq = client.next.wrapping_sub(1000);
        client.raw.syn(client.peer, seq);
        let answer = client.raw.answer(client.peer);
        assert!(!answer.header.rst, "{answer:?}");
        !answer.header.syn && answer.header.acknowledgment_number == client.next
    };
    // Nobody has been put off yet: it is for a stray segment (RFC 1337), or forged.
    reset(0);
    assert!(is_put_off());
    for ahead in [1, u32::MAX, 1 << 30] {
        reset(ahead);
        assert!(is_put_off(), "{ahead}");
    }
    reset(0);
    assert_eq!(is_put_off(), protected);
}

//! Redirecting between real sockets: what comes out of a tunnel whose sockets are in the map, and
//! after they have left it. Needs root; traffic stays on loopback.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use weir_kernel::{Splice, SpliceLane, SplicePair};
use weir_testbed::needs;

const PATIENCE: Duration = Duration::from_secs(20);

/// `None` without root, and says so.
fn lane() -> Option<SpliceLane> {
    if !needs::root("redirecting") {
        return None;
    }
    Some(Splice::load().unwrap().lane().unwrap())
}

/// A client and a server, and the two sockets of the proxy between them.
struct Bed {
    client: TcpStream,
    server: TcpStream,
    proxy: [TcpStream; 2],
}

fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    for stream in [&near, &far] {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    (near, far)
}

impl Bed {
    fn new() -> Bed {
        let ((client, a), (b, server)) = (connection(), connection());
        for stream in [&a, &b] {
            stream.set_nonblocking(true).unwrap();
        }
        Bed {
            client,
            server,
            proxy: [a, b],
        }
    }

    fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.proxy[0].as_fd(), self.proxy[1].as_fd()]
    }

    fn armed(&self, lane: &SpliceLane) -> SplicePair {
        let pair = lane.join(self.fds()).unwrap();
        assert!(pair.arm(self.fds(), [0, 0]));
        pair
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "not in time: {what}");
        std::thread::yield_now();
    }
}

fn read(mut stream: &TcpStream, bytes: usize) -> Vec<u8> {
    let mut buffer = vec![0; bytes];
    stream.read_exact(&mut buffer).unwrap();
    buffer
}

/// What a socket of the proxy has, without waiting for it.
fn receive(mut stream: &TcpStream) -> Option<Vec<u8>> {
    let mut buffer = vec![0; 1 << 20];
    match stream.read(&mut buffer) {
        Ok(length) => {
            buffer.truncate(length);
            Some(buffer)
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => None,
        Err(error) => panic!("{error}"),
    }
}

fn text(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 7 + i / 251) as u8).collect()
}

#[test]
fn short_messages_pass_by_user_space_both_ways() {
    let Some(lane) = lane() else { return };
    let mut bed = Bed::new();
    let pair = bed.armed(&lane);
    for length in [1, 100, 2000, 1, 700] {
        bed.client.write_all(&text(length)).unwrap();
        assert_eq!(read(&bed.server, length), text(length));
        bed.server.write_all(&text(length)).unwrap();
        assert_eq!(read(&bed.client, length), text(length));
    }
    assert_eq!([pair.redirected(0), pair.redirected(1)], [2802, 2802]);
    assert_eq!([pair.passed(0), pair.passed(1)], [0, 0]);
    assert!(lane.take_passed().is_empty());
}

#[test]
fn bytes_that_came_before_the_socket_was_armed_come_first() {
    let Some(lane) = lane() else { return };
    let mut bed = Bed::new();
    bed.client.write_all(b"before ").unwrap();
    bed.server.write_all(b"early ").unwrap();
    let unread = |stream: &TcpStream| stream.peek(&mut [0; 16]).is_ok_and(|length| length > 4);
    until("they are there", || bed.proxy.iter().all(unread));
    let pair = bed.armed(&lane);
    bed.client.write_all(b"and after").unwrap();
    bed.server.write_all(b"and late").unwrap();
    assert_eq!(read(&bed.server, 16), b"before and after");
    assert_eq!(read(&bed.client, 14), b"early and late");
    assert_eq!([pair.passed(0), pair.passed(1)], [0, 0]);
}

/// Two sockets come in one after the other: what comes when the one socket is in the map and the other is not.
#[test]
fn bytes_that_come_between_joining_and_arming_are_passed() {
    let Some(lane) = lane() else { return };
    let mut bed = Bed::new();
    let pair = lane.join(bed.fds()).unwrap();
    bed.client.write_all(b"meanwhile").unwrap();
    until("it is passed", || pair.passed(0) == 9);
    assert!(pair.arm(bed.fds(), [0, 0]));
    bed.client.write_all(b", later").unwrap();
    until("what follows is passed too", || pair.passed(0) == 16);
    assert_eq!(receive(&bed.proxy[0]).unwrap(), b"meanwhile, later");
    assert_eq!(pair.redirected(0), 0);
}

#[test]
fn a_long_packet_and_all_after_it_are_passed_and_the_thread_is_told_once_each_time() {
    let Some(lane) = lane() else { return };
    let mut bed = Bed::new();
    let pair = bed.armed(&lane);
    bed.client.write_all(b"short").unwrap();
    assert_eq!(read(&bed.server, 5), b"short");
    bed.client.write_all(&text(50_000)).unwrap();
    bed.client.write_all(b"short again").unwrap();
    until("all is passed", || pair.passed(0) == 50_011);
    assert_eq!(pair.redirected(0), 5);
    until("the bell rings", || lane.take_passed() == [pair.number()]);
    assert!(lane.take_passed().is_empty());
    pair.disarm(bed.fds());
    assert!(pair.is_sent(0, bed.fds()) && pair.is_sent(1, bed.fds()));
    let passed = receive(&bed.proxy[0]).unwrap();
    assert_eq!(passed[..50_000], text(50_000));
    assert_eq!(&passed[50_000..], b"short again");
    bed.client.write_all(b"in between").unwrap();
    until("it comes", || {
        receive(&bed.proxy[0]).is_some_and(|bytes| bytes == b"in between")
    });
    assert!(lane.take_passed().is_empty());

    assert!(pair.arm(bed.fds(), [50_021, 0]));
    bed.client.write_all(b"once more").unwrap();
    assert_eq!(read(&bed.server, 9), b"once more");
    bed.client.write_all(&text(50_000)).unwrap();
    until("the bell rings", || lane.take_passed() == [pair.number()]);
    until("all is passed", || pair.passed(0) == 100_021);
    assert_eq!(pair.redirected(0), 14);
    pair.disarm(bed.fds());
    assert!(pair.is_sent(0, bed.fds()));
}

/// User space armed, and did not know of what was passed just before.
#[test]
fn what_was_passed_and_not_received_keeps_all_that_follows_from_being_redirected() {
    let Some(lane) = lane() else { return };
    let mut bed = Bed::new();
    let pair = lane.join(bed.fds()).unwrap();
    bed.client.write_all(b"first").unwrap();
    until("it is passed", || pair.passed(0) == 5);
    assert!(pair.arm(bed.fds(), [0, 0]));
    bed.client.write_all(b"second").unwrap();
    until("the bell rings", || lane.take_passed() == [pair.number()]);
    assert_eq!(pair.passed(0), 11);
    pair.disarm(bed.fds());
    assert_eq!(receive(&bed.proxy[0]).unwrap(), b"firstsecond");
    assert!(pair.arm(bed.fds(), [11, 0]));
    bed.client.write_all(b"third").unwrap();
    assert_eq!(read(&bed.server, 5), b"third");
}

/// An end is a packet without bytes.
#[test]
fn an_end_stays_with_its_socket_and_breaks_nothing() {
    let Some(lane) = lane() else { return };
    let mut bed = Bed::new();
    let pair = bed.armed(&lane);
    bed.client.write_all(b"last").unwrap();
    bed.client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read(&bed.server, 4), b"last");
    until("the end", || {
        receive(&bed.proxy[0]).is_some_and(|bytes| bytes.is_empty())
    });
    bed.server.write_all(b"the other way is open").unwrap();
    assert_eq!(read(&bed.client, 21), b"the other way is open");
    pair.disarm(bed.fds());
    until("it is sent", || {
        pair.is_sent(0, bed.fds()) && pair.is_sent(1, bed.fds())
    });
    bed.proxy[1].shutdown(Shutdown::Write).unwrap();
    let mut rest = Vec::new();
    bed.server.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty());
}

/// A socket whose peer has ended cannot come in.
#[test]
fn a_socket_that_has_ended_stays_outside() {
    let Some(lane) = lane() else { return };
    let bed = Bed::new();
    bed.client.shutdown(Shutdown::Write).unwrap();
    bed.server.shutdown(Shutdown::Write).unwrap();
    let ended = |stream: &TcpStream| stream.peek(&mut [0; 1]).is_ok_and(|length| length == 0);
    until("the ends are there", || bed.proxy.iter().all(ended));
    assert!(lane.join(bed.fds()).is_none());
}

#[test]
fn a_pair_of_which_one_socket_has_ended_passes_what_the_other_gets() {
    let Some(lane) = lane() else { return };
    let mut bed = Bed::new();
    bed.server.shutdown(Shutdown::Write).unwrap();
    until("the end is there", || {
        bed.proxy[1]
            .peek(&mut [0; 1])
            .is_ok_and(|length| length == 0)
    });
    let pair = lane.join(bed.fds()).unwrap();
    assert!(!pair.arm(bed.fds(), [0, 0]));
    bed.client.write_all(b"hello").unwrap();
    until("it is passed", || pair.passed(0) == 5);
    assert_eq!(receive(&bed.proxy[0]).unwrap(), b"hello");
}

/// No backpressure: a receiver that reads nothing.
#[test]
fn a_receiver_that_stalls_holds_its_sender_back() {
    let Some(lane) = lane() else { return };
    let mut bed = Bed::new();
    let pair = bed.armed(&lane);
    bed.client.set_nonblocking(true).unwrap();
    let (message, mut written) = (text(1000), 0u64);
    loop {
        match bed.client.write(&message) {
            Ok(length) => written += length as u64,
            Err(error) if error.kind() == ErrorKind::WouldBlock && pair.passed(0) > 0 => break,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
        assert!(written < 64 << 20, "{written} bytes and no end");
    }
    // What was redirected fits into the receiver's send queue: nothing of it waits outside.
    pair.disarm(bed.fds());
    until("it is sent", || pair.is_sent(0, bed.fds()));
}

/// How a sender goes on after a message.
#[derive(Clone, Copy)]
enum Pace {
    /// At once: most messages come in long packets, and a packet may come at any moment.
    Flood,
    /// After some microseconds, so that short messages are short packets.
    Chat,
}

fn random(last: &mut u32) -> u32 {
    *last = last.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    *last >> 16
}

/// Sends `total` bytes in messages of 1 to 900 bytes, and 20 times that now and then.
fn send(mut to: TcpStream, total: usize, pace: Pace) {
    let bytes = text(total);
    let (mut at, mut seed) = (0, 1);
    while at < total {
        let dice = random(&mut seed);
        let mut length = random(&mut seed) as usize % 900 + 1;
        if dice.is_multiple_of(64) {
            length *= 20;
        }
        let end = (at + length).min(total);
        to.write_all(&bytes[at..end]).unwrap();
        at = end;
        if let Pace::Flood = pace {
            continue;
        }
        let next = Instant::now() + Duration::from_micros(u64::from(dice % 40));
        while Instant::now() < next {
            std::thread::yield_now();
        }
    }
    to.shutdown(Shutdown::Write).unwrap();
}

fn forward(mut to: &TcpStream, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match to.write(bytes) {
            Ok(length) => bytes = &bytes[length..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Arms and takes back as often as it can while bytes come, and holds what comes out against them.
/// Gives the number of bytes that were redirected.
fn take_back_all_the_time(lane: &SpliceLane, total: usize, pace: Pace) -> u64 {
    let bed = Bed::new();
    let sender = bed.client.try_clone().unwrap();
    let sending = std::thread::spawn(move || send(sender, total, pace));
    let mut reader = bed.server.try_clone().unwrap();
    let reading = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).unwrap();
        bytes
    });
    let (mut rounds, mut received, mut ended) = (0, 0, false);
    let pair = lane.join(bed.fds()).unwrap();
    while !ended {
        pair.arm(bed.fds(), [received, 0]);
        let end = Instant::now() + Duration::from_micros(300);
        while pair.passed(0) == received && Instant::now() < end {}
        pair.disarm(bed.fds());
        until("it is sent", || pair.is_sent(0, bed.fds()));
        until("all that was passed is received", || {
            match receive(&bed.proxy[0]) {
                Some(bytes) if bytes.is_empty() => ended = received == pair.passed(0),
                Some(bytes) => {
                    received += bytes.len() as u64;
                    forward(&bed.proxy[1], &bytes);
                }
                None => {}
            }
            received == pair.passed(0)
        });
        rounds += 1;
    }
    bed.proxy[1].shutdown(Shutdown::Write).unwrap();
    sending.join().unwrap();
    let bytes = reading.join().unwrap();
    let redirected = pair.redirected(0);
    println!("{rounds} rounds, {redirected} bytes of {total} redirected");
    assert_eq!(bytes.len(), total);
    assert!(bytes == text(total));
    redirected
}

/// Leaving the map: what is on its way when the sockets are taken back.
#[test]
fn taking_back_at_any_time_loses_doubles_and_reorders_nothing() {
    let Some(lane) = lane() else { return };
    assert!(take_back_all_the_time(&lane, 4_000_000, Pace::Chat) > 0);
}

#[test]
fn taking_back_under_a_flood_loses_doubles_and_reorders_nothing() {
    let Some(lane) = lane() else { return };
    let rounds = 0..4;
    let redirected = rounds.map(|_| take_back_all_the_time(&lane, 16_000_000, Pace::Flood));
    assert!(redirected.sum::<u64>() > 0);
}

/// What a socket passes waits behind what is redirected to it, in a queue of the kernel's.
#[test]
fn an_end_is_no_end_before_all_that_was_passed_has_come() {
    let Some(lane) = lane() else { return };
    for round in 0..300 {
        let mut bed = Bed::new();
        let pair = bed.armed(&lane);
        for _ in 0..4 {
            bed.server.write_all(&text(2000)).unwrap();
        }
        bed.client.write_all(&text(3000)).unwrap();
        bed.client.shutdown(Shutdown::Write).unwrap();
        let mut received = 0;
        until("all that was passed has come", || {
            received += receive(&bed.proxy[0]).map_or(0, |bytes| bytes.len());
            received == 3000
        });
        assert_eq!(pair.passed(0), 3000, "{round}");
        assert_eq!(read(&bed.client, 8000).len(), 8000);
    }
}

#[test]
fn a_half_that_the_proxy_ended_leaves_the_other_whole() {
    let Some(lane) = lane() else { return };
    let mut bed = Bed::new();
    let pair = bed.armed(&lane);
    pair.disarm(bed.fds());
    bed.proxy[1].shutdown(Shutdown::Write).unwrap();
    bed.server.write_all(b"still open").unwrap();
    until("it comes", || pair.passed(1) == 10);
    assert_eq!(receive(&bed.proxy[1]).unwrap(), b"still open");
    bed.server.shutdown(Shutdown::Write).unwrap();
    until("the end", || {
        receive(&bed.proxy[1]).is_some_and(|bytes| bytes.is_empty())
    });
}

/// Many small pages: a packet that lies in several pages.
#[test]
fn a_packet_of_several_pages_goes_on_as_one_packet() {
    let Some(lane) = lane() else { return };
    let bed = Bed::new();
    let pair = bed.armed(&lane);
    let mut file = tempfile();
    file.write_all(&text(8192)).unwrap();
    let messages = 100;
    for _ in 0..messages {
        let mut offset = 4000;
        // SAFETY: both descriptors are open, and the offset lives through the call.
        let sent = unsafe {
            let (to, from) = (bed.client.as_raw_fd(), file.as_raw_fd());
            libc::sendfile(to, from, &raw mut offset, 200)
        };
        assert_eq!(sent, 200);
        assert_eq!(read(&bed.server, 200), text(8192)[4000..4200]);
    }
    assert_eq!(pair.redirected(0), 200 * messages);
    assert_eq!(segments_in(&bed.server), messages as u32);
}

fn tempfile() -> std::fs::File {
    // SAFETY: the name is a C string, and the descriptor is new and nobody else's.
    unsafe { std::fs::File::from_raw_fd(libc::memfd_create(c"pages".as_ptr(), 0)) }
}

/// tcpi_data_segs_in of linux/tcp.h.
fn segments_in(socket: &TcpStream) -> u32 {
    get(socket, libc::TCP_INFO, [0u32; 40])[38]
}

/// Reads an option of TCP, of integers alone, which may have more of them than the kernel knows.
fn get<T: Copy>(socket: &impl AsRawFd, name: libc::c_int, mut value: T) -> T {
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to a live value.
    let failed = unsafe {
        let (fd, to) = (socket.as_raw_fd(), (&raw mut value).cast());
        libc::getsockopt(fd, libc::IPPROTO_TCP, name, to, &raw mut length)
    };
    assert_eq!(failed, 0, "{}", std::io::Error::last_os_error());
    value
}

fn unacknowledged(socket: &TcpStream) -> libc::c_int {
    let mut bytes = 0;
    // SAFETY: the request writes one int, to a live one.
    let failed = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    assert_eq!(failed, 0, "{}", std::io::Error::last_os_error());
    bytes
}

fn set<T: Copy>(socket: &impl AsRawFd, name: libc::c_int, value: T) {
    set_option(socket, libc::IPPROTO_TCP, name, value);
}

fn set_option<T: Copy>(socket: &impl AsRawFd, level: libc::c_int, name: libc::c_int, value: T) {
    let length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel reads `length` bytes of a live value.
    let failed = unsafe {
        let (fd, from) = (socket.as_raw_fd(), (&raw const value).cast());
        libc::setsockopt(fd, level, name, from, length)
    };
    assert_eq!(failed, 0, "{}", std::io::Error::last_os_error());
}

/// What was sent again is joined with what was not, and some of it was judged already.
#[test]
fn bytes_that_come_twice_go_on_once() {
    for armed in [true, false] {
        let Some(lane) = lane() else { return };
        let mut bed = Bed::new();
        let pair = lane.join(bed.fds()).unwrap();
        if armed {
            assert!(pair.arm(bed.fds(), [0, 0]));
        }
        let judged = || pair.redirected(0) + pair.passed(0);
        let text = text(7700);
        bed.client.write_all(&text[..1000]).unwrap();
        until("the first are judged", || judged() == 1000);
        bed.client = moved(bed.client, -900, 0);
        bed.client.write_all(&text[100..1100]).unwrap();
        until("one that begins before is", || judged() == 1100);
        // A hole, and what fills it goes beyond.
        bed.client = moved(bed.client, 200, 0);
        let segments = segments_in(&bed.proxy[0]);
        bed.client.write_all(&text[1300..1900]).unwrap();
        until("what is behind the hole is there", || {
            segments_in(&bed.proxy[0]) > segments
        });
        bed.client = moved(bed.client, -800, 600);
        bed.client.write_all(&text[1100..1700]).unwrap();
        until("all around a hole is", || judged() == 1900);
        // More than is cut at a time, and as long as a first burst can be. What it sent last was acknowledged together with
        // what it knows nothing of.
        bed.client = moved(bed.client, 200, 600);
        bed.client.write_all(&text[1900..7000]).unwrap();
        until("a long one is", || judged() == 7000);
        bed.client = moved(bed.client, -4500, 0);
        let packets = segments_in(&bed.proxy[0]);
        bed.client.write_all(&text[2500..7700]).unwrap();
        until("a long one that begins long before is", || judged() == 7700);
        assert_eq!(segments_in(&bed.proxy[0]), packets + 1);
        let redirected = pair.redirected(0) as usize;
        assert_eq!(redirected, if armed { 1900 } else { 0 });
        assert!(read(&bed.server, redirected) == text[..redirected]);
        let mut received = Vec::new();
        until("all that was passed has come", || {
            received.extend(receive(&bed.proxy[0]).unwrap_or_default());
            received.len() == 7700 - redirected
        });
        assert!(received == text[redirected..]);
    }
}

#[test]
fn a_packet_that_was_received_in_part_goes_on_from_there() {
    let Some(lane) = lane() else { return };
    let mut bed = Bed::new();
    bed.client.write_all(b"known, and new").unwrap();
    until("it is there", || bed.proxy[0].peek(&mut [0]).is_ok());
    bed.proxy[0].set_nonblocking(false).unwrap();
    assert_eq!(read(&bed.proxy[0], 7), b"known, ");
    let pair = bed.armed(&lane);
    assert_eq!(read(&bed.server, 7), b"and new");
    assert_eq!((pair.redirected(0), pair.passed(0)), (7, 0));
}

/// The same connection to its peer, of a sender that stands so many bytes further on (TCP_REPAIR). The peer can
/// acknowledge all that was sent but `held` bytes.
fn moved(client: TcpStream, bytes: i32, held: libc::c_int) -> TcpStream {
    const SEND_QUEUE: libc::c_int = 2;
    const RECEIVE_QUEUE: libc::c_int = 1;
    const OFF_WITHOUT_PROBE: libc::c_int = -1;
    const LONGEST_SEGMENT: u32 = 2;
    const WINDOW_SCALE: u32 = 3;
    until("it is acknowledged", || unacknowledged(&client) == held);
    let (near, far) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
    set(&client, libc::TCP_REPAIR, 1);
    let places = [SEND_QUEUE, RECEIVE_QUEUE].map(|queue| {
        set(&client, libc::TCP_REPAIR_QUEUE, queue);
        get(&client, libc::TCP_QUEUE_SEQ, 0i32)
    });
    let window: [u32; 5] = get(&client, libc::TCP_REPAIR_WINDOW, [0; 5]);
    let info: [u8; 8] = get(&client, libc::TCP_INFO, [0; 8]);
    let segment: u32 = get(&client, libc::TCP_MAXSEG, 0);
    let scales = u32::from(info[6] & 15) | u32::from(info[6] >> 4) << 16;
    drop(client);
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    set(&socket, libc::TCP_REPAIR, 1);
    socket.bind(&near.into()).unwrap();
    for (queue, place) in [
        (SEND_QUEUE, places[0].wrapping_add(bytes)),
        (RECEIVE_QUEUE, places[1]),
    ] {
        set(&socket, libc::TCP_REPAIR_QUEUE, queue);
        set(&socket, libc::TCP_QUEUE_SEQ, place);
    }
    socket.connect(&far.into()).unwrap();
    set(&socket, libc::TCP_REPAIR_WINDOW, window);
    let options = [[LONGEST_SEGMENT, segment], [WINDOW_SCALE, scales]];
    set(&socket, libc::TCP_REPAIR_OPTIONS, options);
    set(&socket, libc::TCP_REPAIR, OFF_WITHOUT_PROBE);
    // None; but the length of segments is computed again (do_ip_setsockopt of net/ipv4/ip_sockglue.c).
    set_option(&socket, libc::IPPROTO_IP, libc::IP_OPTIONS, [0u8; 0]);
    socket.set_tcp_nodelay(true).unwrap();
    socket.into()
}

#[test]
fn a_pair_that_takes_the_number_of_another_begins_anew() {
    let Some(lane) = lane() else { return };
    let mut number = None;
    for _ in 0..100 {
        let mut bed = Bed::new();
        let pair = bed.armed(&lane);
        assert_eq!(*number.get_or_insert(pair.number()), pair.number());
        bed.client.write_all(b"hello").unwrap();
        assert_eq!(read(&bed.server, 5), b"hello");
        bed.client.write_all(&text(50_000)).unwrap();
        assert_eq!(pair.redirected(0), 5);
        pair.leave(bed.fds());
    }
}

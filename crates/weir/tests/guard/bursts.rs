//! Bursts from several CPUs at once: reserv is exact.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, connect, getsockopt, setsockopt, socket,
    sockopt,
};

use crate::common::{Attempts, Bed, PATIENCE, PORT, Path, accept, greet, listen};

const BURSTS: usize = 100;
const CLIENTS: usize = 256;
const BACKLOG: i32 = 64;

/// A connection attempt under way. Its end is a RST, so that it leaves no TIME_WAIT behind.
fn begin(address: SocketAddr) -> TcpStream {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Inet, SockType::Stream, flags, None).unwrap();
    let reset_on_close = nix::libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    setsockopt(&fd, sockopt::Linger, &reset_on_close).unwrap();
    match connect(fd.as_raw_fd(), &SockaddrStorage::from(address)) {
        Ok(()) | Err(Errno::EINPROGRESS) => TcpStream::from(fd),
        Err(errno) => panic!("connect: {errno}"),
    }
}

/// Waits for the attempt's end and notes it.
fn end(stream: TcpStream, attempts: &mut Attempts) {
    let mut fds = [PollFd::new(stream.as_fd(), PollFlags::POLLOUT)];
    let timeout = PollTimeout::try_from(PATIENCE).unwrap();
    assert_eq!(poll(&mut fds, timeout), Ok(1), "an answer to every SYN");
    match Errno::from_raw(getsockopt(&stream, sockopt::SocketError).unwrap()) {
        Errno::ECONNREFUSED => attempts.refused += 1,
        Errno::ECONNRESET => attempts.reset += 1,
        Errno::UnknownErrno => {
            stream.set_nonblocking(false).unwrap();
            attempts.connected.push(stream);
        }
        errno => panic!("connect: {errno}"),
    }
}

/// A thread's share of a burst: first all SYNs, then all ends.
fn share(path: &Path<'_>, cpu: usize, clients: usize) -> Attempts {
    let burst = || {
        let streams: Vec<TcpStream> = (0..clients).map(|_| begin(path.at(PORT))).collect();
        let mut attempts = Attempts::default();
        streams
            .into_iter()
            .for_each(|stream| end(stream, &mut attempts));
        Ok(attempts)
    };
    path.client.run_on(Some(cpu), burst).unwrap()
}

fn burst(path: &Path<'_>, cpus: usize) -> Attempts {
    std::thread::scope(|scope| {
        let shares: Vec<_> = (0..cpus)
            .map(|cpu| scope.spawn(move || share(path, cpu, CLIENTS / cpus)))
            .collect();
        let mut all = Attempts::default();
        for share in shares {
            let share = share.join().unwrap();
            all.connected.extend(share.connected);
            all.refused += share.refused;
            all.reset += share.reset;
        }
        all
    })
}

#[test]
fn reserv_never_overflows_in_bursts_and_no_client_believes_in_what_is_not_there() {
    let Some(bed) = Bed::new() else { return };
    let path = bed.veth4();
    let listener = listen(bed.server(), path.at(PORT), BACKLOG);
    let _weir = bed.protect(&format!("{PORT} --admit queue"));
    let cpus = std::thread::available_parallelism()
        .map_or(1, usize::from)
        .min(4);
    let mut connected = 0;
    for number in 0..BURSTS {
        let mut clients = burst(&path, cpus);
        let (places, refused, silent) = clients.counts();
        assert!(
            (1..=BACKLOG as usize).contains(&places),
            "burst {number}: {places}"
        );
        assert_eq!(
            (places + refused, silent),
            (CLIENTS / cpus * cpus, 0),
            "burst {number}"
        );
        greet(&mut accept(&listener, places));
        assert_eq!(clients.fates(), (places, 0, 0), "burst {number}");
        connected += places;
    }
    assert_eq!(bed.overflows(), 0);
    assert!(
        connected >= BURSTS * BACKLOG as usize * 9 / 10,
        "exact, and not by refusing everyone: {connected} connected"
    );
}

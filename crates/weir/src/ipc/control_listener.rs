//! The listener of a control socket, with the clients that have connected and not yet asked.
//!
//! The service's loop must not wait for a client, so a client is read when it has sent something. Silent ones are kept
//! up to a bound; then the one that has been silent for longest goes.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use crate::ipc::socket_file::SocketFile;
use crate::ipc::spare;

/// Silent clients that are kept, each with a descriptor. A command asks as soon as it has connected.
const SILENT_MOST: usize = 32;
/// No descriptor has this number.
const LISTENER: u64 = u64::MAX;

/// Readable ([`AsFd`]) when a client connects or asks.
#[derive(Debug)]
pub struct ControlListener {
    listener: UnixListener,
    /// The longest silent first.
    silent: RefCell<VecDeque<UnixStream>>,
    epoll: Epoll,
}

impl ControlListener {
    /// Listens at this path, as [`SocketFile::listen`].
    ///
    /// # Errors
    /// As there, or no descriptor is left.
    pub fn listen(path: &Path) -> io::Result<(SocketFile, ControlListener)> {
        let (file, listener) = SocketFile::listen(path)?;
        Ok((file, ControlListener::new(listener)?))
    }

    /// Takes clients from a listener that does not block.
    ///
    /// # Errors
    /// No descriptor is left.
    fn new(listener: UnixListener) -> io::Result<ControlListener> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))?;
        Ok(ControlListener {
            listener,
            silent: RefCell::default(),
            epoll,
        })
    }

    /// A client that has asked, or gone; `None` if there is none. Without a descriptor for a client, it gets `refusal`.
    pub fn next(&self, refusal: impl Fn() -> String) -> Option<UnixStream> {
        let mut silent = self.silent.borrow_mut();
        // No more at once: who connects faster than this goes on would hold the loop.
        for _ in 0..SILENT_MOST {
            let Some(stream) = spare::accept(&self.listener, &refusal) else {
                break;
            };
            let number = stream.as_raw_fd() as u64;
            let asks = EpollEvent::new(EpollFlags::EPOLLIN, number);
            match self.epoll.add(&stream, asks) {
                Ok(()) => silent.push_back(stream),
                Err(errno) => tracing::warn!("control socket: a client is turned away: {errno}"),
            }
        }
        let asking = self.asking();
        let at = silent
            .iter()
            .position(|stream| asking.contains(&(stream.as_raw_fd() as u64)));
        let asking = at.and_then(|at| silent.remove(at));
        if let Some(stream) = &asking {
            // Else a client that is answered and not yet gone would wake the loop.
            let _ = self.epoll.delete(stream);
        }
        while silent.len() > SILENT_MOST {
            tracing::debug!(
                "control socket: the client that has been silent for longest is turned away"
            );
            if let Some(stream) = silent.pop_front() {
                // A process that is being started may hold the descriptor, and the epoll would tell of it.
                let _ = self.epoll.delete(&stream);
            }
        }
        asking
    }

    /// The descriptors of all clients that have asked or gone.
    fn asking(&self) -> Vec<u64> {
        // Each client that is kept, those of this time, and the listener.
        let mut events = [EpollEvent::empty(); 2 * SILENT_MOST + 1];
        let ready = self.epoll.wait(&mut events, EpollTimeout::ZERO);
        let ready = events.iter().take(ready.unwrap_or(0));
        ready.map(EpollEvent::data).collect()
    }
}

impl AsFd for ControlListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::time::Duration;

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use tempfile::TempDir;

    use super::*;

    /// For how long a test waits for what has to come.
    const PATIENCE: Duration = Duration::from_secs(5);

    fn open() -> (TempDir, impl Fn() -> UnixStream, ControlListener) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        let connect = move || UnixStream::connect(&path).unwrap();
        (folder, connect, ControlListener::new(listener).unwrap())
    }

    fn wakes(listener: &ControlListener) -> bool {
        wakes_within(listener, PollTimeout::ZERO)
    }

    fn wakes_within(listener: &ControlListener, time: PollTimeout) -> bool {
        let mut fds = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, time).unwrap() == 1
    }

    fn next(listener: &ControlListener) -> Option<UnixStream> {
        listener.next(|| panic!("there are descriptors"))
    }

    #[test]
    fn a_client_is_taken_once_it_asks_and_a_silent_one_wakes_nobody() {
        let (_folder, connect, listener) = open();
        assert!(!wakes(&listener));
        let _silent = connect();
        assert!(wakes(&listener));
        assert!(next(&listener).is_none());
        assert!(!wakes(&listener));
        let mut second = connect();
        second.write_all(b"second").unwrap();
        let mut taken = next(&listener).unwrap();
        let mut text = [0; 6];
        taken.read_exact(&mut text).unwrap();
        assert_eq!(&text, b"second");
        // It has been taken: what it sends further is not the listener's.
        second.write_all(b"again").unwrap();
        assert!(!wakes(&listener) && next(&listener).is_none());
        drop((second, taken));
        assert!(!wakes(&listener));
    }

    #[test]
    fn a_client_that_asks_is_heard_behind_silent_ones_and_the_longest_silent_go() {
        let (_folder, connect, listener) = open();
        let mut silent: VecDeque<_> = (0..5 * SILENT_MOST).map(|_| connect()).collect();
        let mut asks = connect();
        asks.write_all(b"now").unwrap();
        let mut rounds = 0;
        while next(&listener).is_none() {
            rounds += 1;
            assert!(rounds < 6, "the client that asks is not found");
        }
        // A process that another test starts may hold the other end until it executes its program.
        let goes = |mut stream: UnixStream| {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.read(&mut [0]).is_ok_and(|bytes| bytes == 0)
        };
        let is_kept = |mut stream: UnixStream| {
            stream.set_nonblocking(true).unwrap();
            stream
                .read(&mut [0])
                .is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
        };
        assert!(next(&listener).is_none());
        let kept = silent.split_off(4 * SILENT_MOST);
        assert!(silent.into_iter().all(goes));
        assert!(kept.into_iter().all(is_kept));
    }

    #[test]
    fn a_silent_client_that_goes_is_no_longer_kept() {
        let (_folder, connect, listener) = open();
        let silent = connect();
        assert!(next(&listener).is_none());
        drop(silent);
        // A process that another test starts may hold the descriptor until it executes its program.
        assert!(wakes_within(&listener, PATIENCE.try_into().unwrap()));
        assert!(next(&listener).is_some());
        assert!(!wakes(&listener));
    }
}

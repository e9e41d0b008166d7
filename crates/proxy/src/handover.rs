//! Hands listening sockets to another process over a Unix stream socket (SCM_RIGHTS, unix(7)).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Descriptors in one message: the kernel takes 253 (SCM_MAX_FD).
const BATCH: usize = 128;
/// Descriptors need a byte to travel with.
const CARRIER: [u8; 1] = [b'+'];

/// Sends descriptors; the sender keeps its own.
///
/// # Errors
/// As sendmsg(2).
pub fn send<'a>(stream: impl AsFd, fds: impl Iterator<Item = BorrowedFd<'a>>) -> io::Result<()> {
    let fds: Vec<BorrowedFd<'_>> = fds.collect();
    for batch in fds.chunks(BATCH) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        // The space is that of a whole batch.
        ancillary.push(SendAncillaryMessage::ScmRights(batch));
        let carrier = [IoSlice::new(&CARRIER)];
        sendmsg(&stream, &carrier, &mut ancillary, SendFlags::NOSIGNAL)?;
    }
    Ok(())
}

/// Receives so many descriptors.
///
/// # Errors
/// As recvmsg(2); `UnexpectedEof` if the sender sent fewer.
pub fn receive(stream: impl AsFd, count: usize) -> io::Result<Vec<OwnedFd>> {
    let mut fds = Vec::new();
    while fds.len() < count {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut carrier = CARRIER;
        let mut carriers = [IoSliceMut::new(&mut carrier)];
        recvmsg(
            &stream,
            &mut carriers,
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        )?;
        let before = fds.len();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                fds.extend(received);
            }
        }
        if fds.len() == before {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(fds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn more_sockets_than_fit_one_message_arrive_in_their_order() {
        let (from, to) = UnixStream::pair().unwrap();
        let listeners: Vec<std::net::TcpListener> = (0..BATCH * 2 + 1)
            .map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap())
            .collect();
        send(&from, listeners.iter().map(AsFd::as_fd)).unwrap();
        let received = receive(&to, listeners.len()).unwrap();
        for (sent, received) in listeners.iter().zip(received) {
            let received = std::net::TcpListener::from(received);
            assert_eq!(sent.local_addr().unwrap(), received.local_addr().unwrap());
        }
    }

    #[test]
    fn a_sender_that_goes_before_all_is_sent_is_an_error() {
        let (from, to) = UnixStream::pair().unwrap();
        send(&from, [to.as_fd()].into_iter()).unwrap();
        drop(from);
        let error = receive(&to, 2).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}

//! What a BPF iterator program writes.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::error::{Error, Result, of_errno};

/// What an iterator program writes, from its beginning. `link`: of the program. `what`: what it lists, as in "the listening sockets".
///
/// # Errors
/// The kernel gives no iterator.
pub(crate) fn iterate(link: BorrowedFd<'_>, what: &str) -> Result<Iteration<File>> {
    // SAFETY: no options are given.
    let fd = unsafe { libbpf_sys::bpf_iter_create(link.as_raw_fd()) };
    if fd < 0 {
        return Err(of_errno(format!("open the list of {what}")));
    }
    // SAFETY: a new descriptor of ours.
    Ok(Iteration(File::from(unsafe { OwnedFd::from_raw_fd(fd) })))
}

/// All that it writes.
///
/// # Errors
/// The kernel gives no iterator, or it cannot be read.
pub(crate) fn read_all(link: BorrowedFd<'_>, what: &str) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = iterate(link, what)?.read_to_end(&mut bytes);
    read.map_err(|e| Error::Failed {
        what: format!("read the list of {what}"),
        cause: e.to_string(),
    })?;
    Ok(bytes)
}

/// Reads on where the kernel has looked at a million objects of which the program wrote nothing. It says EAGAIN then, and goes
/// on where it was (`bpf_seq_read()`).
pub(crate) struct Iteration<R>(R);

impl<R: Read> Read for Iteration<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.read(bytes) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                done => return done,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers by number of call.
    struct Kernel(Vec<io::Result<&'static [u8]>>);

    impl Read for Kernel {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            if self.0.is_empty() {
                return Ok(0);
            }
            let (mut now, later) = self.0.remove(0)?.split_at(1);
            if !later.is_empty() {
                self.0.insert(0, Ok(later));
            }
            now.read(bytes)
        }
    }

    #[test]
    fn a_million_objects_without_a_word_do_not_end_the_list() {
        let nothing = || Err(ErrorKind::WouldBlock.into());
        let kernel = Kernel(vec![
            nothing(),
            Ok(b"first"),
            nothing(),
            nothing(),
            Ok(b" last"),
        ]);
        let mut read = String::new();
        Iteration(kernel).read_to_string(&mut read).unwrap();
        assert_eq!(read, "first last");
        let failed = Kernel(vec![nothing(), Err(ErrorKind::OutOfMemory.into())]);
        let error = Iteration(failed).read_to_end(&mut Vec::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    }
}

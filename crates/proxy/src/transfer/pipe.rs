//! The thread's pipes.

use std::cell::{Cell, RefCell};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use rustix::pipe::{
    PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with, splice,
};

/// Capacity asked for. The kernel's default of 64 KiB was measured to cost 24 % at 16 MB.
const PIPE_BYTES: usize = 256 * 1024;
/// Pipes kept for the next user.
const KEPT: usize = 16;
/// From so many pipes in use on, a transfer asks for the receiver's space before it reads for it.
const MANY_LENT: usize = 32;

/// Pipes that are lent while they carry bytes.
#[derive(Clone)]
pub struct Pipes(Rc<Pool>);

#[derive(Default)]
struct Pool {
    free: RefCell<Vec<Ends>>,
    lent: Cell<usize>,
    /// Pipes lent at most.
    most: usize,
    /// Most that were lent at once since the last trim.
    most_lent: Cell<usize>,
}

struct Ends {
    out: OwnedFd,
    r#in: OwnedFd,
    capacity: usize,
}

/// A pipe on loan.
pub struct Pipe {
    /// Taken only by drop.
    ends: Option<Ends>,
    /// Bytes that are in it.
    held: usize,
    pool: Rc<Pool>,
}

impl Pipes {
    /// Lends `most` pipes at once: beyond, transfers copy. Two descriptors each.
    pub fn at_most(most: usize) -> Pipes {
        Pipes(Rc::new(Pool {
            most,
            ..Pool::default()
        }))
    }

    /// Lends an empty pipe; `None` if there are too many, or no descriptors for another.
    pub fn lend(&self) -> Option<Pipe> {
        let lent = self.0.lent.get();
        if lent >= self.0.most {
            return None;
        }
        let free = self.0.free.borrow_mut().pop();
        let ends = free.or_else(|| Ends::open().ok())?;
        self.0.lent.set(lent + 1);
        self.0.most_lent.set(self.0.most_lent.get().max(lent + 1));
        Some(Pipe {
            ends: Some(ends),
            held: 0,
            pool: self.0.clone(),
        })
    }

    /// Closes pipes that no transfer needed since the last call: an idle proxy holds none.
    pub fn trim(&self) {
        let lent = self.0.lent.get();
        let spare = self.0.most_lent.replace(lent).saturating_sub(lent);
        self.0.free.borrow_mut().truncate(spare);
    }

    /// Whether so many are lent that slow receivers must be behind it.
    pub fn many_lent(&self) -> bool {
        self.0.lent.get() >= MANY_LENT
    }
}

impl Ends {
    fn open() -> rustix::io::Result<Ends> {
        let (out, r#in) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // EPERM past fs.pipe-user-pages-soft: a small pipe carries the bytes too.
        let capacity =
            fcntl_setpipe_size(&r#in, PIPE_BYTES).or_else(|_| fcntl_getpipe_size(&r#in))?;
        Ok(Ends {
            out,
            r#in,
            capacity,
        })
    }
}

impl Pipe {
    fn ends(&self) -> &Ends {
        self.ends.as_ref().expect("taken only by drop")
    }

    /// Bytes that fit in at most; fewer if they come in small segments.
    pub fn capacity(&self) -> usize {
        self.ends().capacity
    }

    /// Bytes in it.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Moves at most `bytes` from a socket into the pipe; 0 is the socket's end.
    pub fn fill(&mut self, from: BorrowedFd<'_>, bytes: usize) -> rustix::io::Result<usize> {
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        let filled = splice(from, None, self.ends().r#in.as_fd(), None, bytes, flags)?;
        self.held += filled;
        Ok(filled)
    }

    /// Moves what the pipe holds into a socket, as far as that takes it. `more`: the rest follows
    /// at once.
    pub fn drain(&mut self, to: BorrowedFd<'_>, more: bool) -> rustix::io::Result<usize> {
        let mut flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        flags.set(SpliceFlags::MORE, more);
        let drained = splice(self.ends().out.as_fd(), None, to, None, self.held, flags)?;
        self.held -= drained;
        Ok(drained)
    }
}

impl Drop for Pipe {
    /// Back to the pool; with a broken transfer's bytes in it, closed.
    fn drop(&mut self) {
        self.pool.lent.set(self.pool.lent.get() - 1);
        let mut free = self.pool.free.borrow_mut();
        if self.held == 0
            && free.len() < KEPT
            && let Some(ends) = self.ends.take()
        {
            free.push(ends);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipes_are_kept_while_they_are_needed_and_closed_after() {
        let pipes = Pipes::at_most(16);
        let free = || pipes.0.free.borrow().len();
        drop([pipes.lend(), pipes.lend(), pipes.lend()]);
        assert_eq!(free(), 3);
        pipes.trim();
        assert_eq!(free(), 3, "they were needed since the last trim");
        drop(pipes.lend());
        pipes.trim();
        assert_eq!(free(), 1);
        pipes.trim();
        assert_eq!(free(), 0);
    }

    #[test]
    fn no_more_pipes_are_lent_than_there_are_descriptors_for() {
        let pipes = Pipes::at_most(2);
        let lent = [pipes.lend(), pipes.lend()];
        assert!(lent.iter().all(Option::is_some) && pipes.lend().is_none());
        drop(lent);
        assert!(pipes.lend().is_some());
    }
}

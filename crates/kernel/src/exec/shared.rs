//! Memory that the process that answers shares with the one that waits for its death: which calls wait,
//! which connections are held, and which one is being given to which call.
//!
//! Both share their descriptor table too ([`super::fork_sharing_descriptors`]), so every connection that is
//! held outlives the process that took it. What is written here is what the table cannot tell.

use std::cell::UnsafeCell;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering::SeqCst};

use super::call::Call;
use crate::error::{Result, of_errno};

/// Calls that can wait at a time; further ones wait in the kernel.
pub const CALL_SLOTS: usize = 4096;
/// Descriptors that a process can have here.
const DESCRIPTORS: usize = 1 << 16;
/// Listening sockets that are told of.
const LISTENERS: usize = 64;

/// Zero bytes are a valid, empty one.
#[repr(C)]
struct Memory {
    /// Turns that the answering process has made: a sign of life.
    turns: AtomicU64,
    /// That it is to end, and leave everything as it is to a successor.
    step_down: AtomicU32,
    /// Inode of the listening socket from which a connection is being taken.
    taking: AtomicU64,
    listeners: [Listener; LISTENERS],
    calls: [Entry; CALL_SLOTS],
    held: [Held; DESCRIPTORS],
}

#[repr(C)]
struct Listener {
    /// 0: none.
    inode: AtomicU64,
    held: AtomicU32,
}

#[repr(C)]
struct Entry {
    /// The kernel writes it; an id of 0 is none.
    call: UnsafeCell<libc::seccomp_notif>,
    /// 1 + the descriptor that is being given to it; 0: none.
    giving: AtomicI32,
}

#[repr(C)]
struct Held {
    /// Inode of its listening socket; 0: not held.
    inode: AtomicU64,
    /// The how manyth it was.
    number: AtomicU64,
    /// When it came, ns on the monotonic clock.
    since_ns: AtomicU64,
}

/// The shared memory.
#[derive(Debug, Clone, Copy)]
pub struct SharedState(NonNull<Memory>);

/// A slot for a call that waits.
#[derive(Debug, Clone, Copy)]
pub struct CallSlot {
    state: SharedState,
    index: usize,
}

/// A connection that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entered {
    /// Inode of its listening socket.
    pub inode: u64,
    /// The how manyth it was.
    pub number: u64,
    /// When it came, ns on the monotonic clock.
    pub since_ns: u64,
}

impl SharedState {
    /// Empty shared memory. Every process that is forked from now on shares it. It is never unmapped.
    ///
    /// # Errors
    /// No memory.
    pub fn new() -> Result<SharedState> {
        // SAFETY: new memory at an address of the kernel's choice.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size_of::<Memory>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(of_errno("share memory with the supervisor"));
        }
        Ok(SharedState(
            NonNull::new(memory.cast()).expect("mmap gives no null"),
        ))
    }

    fn memory(&self) -> &Memory {
        // SAFETY: mapped for ever, and zero bytes are a valid `Memory`, all of which is made to be shared.
        unsafe { self.0.as_ref() }
    }

    /// The slot with this number, below [`CALL_SLOTS`].
    pub fn slot(&self, index: usize) -> CallSlot {
        assert!(index < CALL_SLOTS);
        let state = *self;
        CallSlot { state, index }
    }

    /// A sign of life of the answering process.
    pub fn turn(&self) {
        self.memory().turns.fetch_add(1, SeqCst);
    }

    /// How many signs of life there were.
    pub fn turns(&self) -> u64 {
        self.memory().turns.load(SeqCst)
    }

    /// Asks the answering process to make room for a successor, or takes that back.
    pub fn ask_to_step_down(&self, asked: bool) {
        self.memory().step_down.store(asked.into(), SeqCst);
    }

    /// Whether it is asked to.
    pub fn is_to_step_down(&self) -> bool {
        self.memory().step_down.load(SeqCst) != 0
    }

    /// From now on connections are taken from this listening socket.
    pub fn set_taking(&self, inode: u64) {
        self.memory().taking.store(inode, SeqCst);
    }

    /// From which one connections were taken last.
    pub fn taking(&self) -> u64 {
        self.memory().taking.load(SeqCst)
    }

    /// Enters a connection that is held. Descriptors beyond 65535 are not entered.
    pub fn enter(&self, fd: RawFd, entered: Entered) {
        if let Some(held) = self.memory().held.get(fd as usize) {
            held.number.store(entered.number, SeqCst);
            held.since_ns.store(entered.since_ns, SeqCst);
            held.inode.store(entered.inode, SeqCst);
        }
    }

    /// The connection is held no longer. To be called before its descriptor is closed.
    pub fn strike(&self, fd: RawFd) {
        if let Some(held) = self.memory().held.get(fd as usize) {
            held.inode.store(0, SeqCst);
        }
    }

    /// What was entered of it.
    pub fn entered(&self, fd: RawFd) -> Option<Entered> {
        let held = self.memory().held.get(fd as usize)?;
        let inode = held.inode.load(SeqCst);
        (inode != 0).then(|| Entered {
            inode,
            number: held.number.load(SeqCst),
            since_ns: held.since_ns.load(SeqCst),
        })
    }

    /// Says how many connections of a listening socket are held. More than 64 sockets are not told of.
    pub fn tell(&self, inode: u64, held: usize) {
        let listeners = &self.memory().listeners;
        let its = |l: &&Listener| l.inode.load(SeqCst) == inode;
        let free = |l: &&Listener| l.inode.load(SeqCst) == 0;
        let Some(listener) = listeners.iter().find(its).or(listeners.iter().find(free)) else {
            return;
        };
        listener.held.store(held as u32, SeqCst);
        listener.inode.store(inode, SeqCst);
    }

    /// The listening socket is gone.
    pub fn forget(&self, inode: u64) {
        for listener in &self.memory().listeners {
            if listener.inode.load(SeqCst) == inode {
                listener.inode.store(0, SeqCst);
            }
        }
    }

    /// The listening sockets, by inode, with how many connections of each are held.
    pub fn told(&self) -> Vec<(u64, u32)> {
        let listeners = self.memory().listeners.iter();
        let each = listeners.map(|l| (l.inode.load(SeqCst), l.held.load(SeqCst)));
        each.filter(|(inode, _)| *inode != 0).collect()
    }
}

impl CallSlot {
    /// Its number.
    pub fn index(&self) -> usize {
        self.index
    }

    fn entry(&self) -> &Entry {
        &self.state.memory().calls[self.index]
    }

    /// Empties it for the kernel to write a call to.
    pub(super) fn cleared(&self) -> *mut libc::seccomp_notif {
        self.set_giving(None);
        let call = self.entry().call.get();
        // SAFETY: mapped for ever, and only one process at a time answers.
        unsafe { call.write_volatile(std::mem::zeroed()) };
        call
    }

    /// The call that waits here.
    pub fn call(&self) -> Option<Call> {
        // SAFETY: mapped for ever; the kernel writes to it only in `Calls::next`.
        let raw = unsafe { self.entry().call.get().read_volatile() };
        Call::of(&raw)
    }

    /// Nothing waits here any more.
    pub fn clear(&self) {
        self.cleared();
    }

    /// Writes down that this descriptor is about to be given to the call, or no longer is.
    pub fn set_giving(&self, fd: Option<BorrowedFd<'_>>) {
        let number = fd.map_or(0, |fd| fd.as_raw_fd() + 1);
        self.entry().giving.store(number, SeqCst);
    }

    /// The descriptor that was being given to the call.
    pub fn being_given(&self) -> Option<RawFd> {
        let fd = self.entry().giving.load(SeqCst);
        (fd > 0).then(|| fd - 1)
    }
}

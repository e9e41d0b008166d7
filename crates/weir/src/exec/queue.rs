//! What waits before one listening socket: in the kernel's queue, and here in order.
//!
//! While more than one connection waits, one of them stays behind in the kernel's queue: a server that waits
//! with epoll comes to accept() only while that is not empty. It is the youngest. If at the next accept()
//! nobody has come since, it is taken too, and a [`WakeConnection`] takes its place: so a connection is
//! overtaken out of order by one other at most.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use weir_core::queue::{ReleaseOrder, Waiting};
use weir_kernel::exec::{
    Backlog, Entered, SharedState, SocketAddress, backlog, now_ns, reset_on_close,
};

use super::policy::Policy;
use super::wake_connection::WakeConnection;

/// The connections of one listening socket.
pub struct ExecQueue {
    inode: u64,
    /// Where it listens.
    address: SocketAddr,
    /// A thread of the server that has it, and its number there.
    pub seen_at: (i32, RawFd),
    order: ReleaseOrder<RawFd>,
    held: HashMap<RawFd, Held>,
    came: u64,
    wake_connection: Option<WakeConnection>,
    /// The one in the kernel's queue was left there at the accept() before.
    left: bool,
    limit: u32,
    shared: SharedState,
}

/// A connection that is held.
pub struct Held {
    /// The connection.
    pub stream: TcpStream,
    /// Its client, as accept() writes it.
    pub peer: SocketAddress,
    /// Whether it is set O_NONBLOCK.
    pub nonblocking: bool,
}

impl ExecQueue {
    /// An empty one. Those that are held already are entered with [`ExecQueue::resume`].
    pub fn new(
        inode: u64,
        listener: BorrowedFd<'_>,
        seen_at: (i32, RawFd),
        policy: &Policy,
        shared: SharedState,
    ) -> std::io::Result<ExecQueue> {
        let address = TcpListener::from(listener.try_clone_to_owned()?).local_addr()?;
        shared.tell(inode, 0);
        Ok(ExecQueue {
            inode,
            address,
            seen_at,
            order: ReleaseOrder::new(&policy.priorities(), policy.ageing(address)),
            held: HashMap::new(),
            came: 0,
            wake_connection: None,
            left: false,
            limit: 1,
            shared,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many are held here.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Takes out of the kernel's queue what can be put in order, for one accept() to be answered.
    pub fn take(&mut self, listener: OwnedFd, policy: &Policy) {
        let Ok(waiting) = backlog(listener.as_fd()) else {
            return;
        };
        self.limit = waiting.limit;
        let listener = TcpListener::from(listener);
        let take = self.share(waiting);
        self.shared.set_taking(self.inode);
        for _ in 0..take {
            if !self.take_one(&listener, policy) {
                break;
            }
        }
        self.shed(policy);
        self.shared.tell(self.inode, self.order.len());
    }

    /// Makes room in the kernel's queue, whose fullness would keep higher classes out too.
    pub fn relieve(&mut self, listener: OwnedFd, policy: &Policy) {
        let Ok(waiting) = backlog(listener.as_fd()) else {
            return;
        };
        let all = waiting.length as usize + self.order.len();
        let full = waiting.length > waiting.limit / 2 || all > waiting.limit as usize;
        if waiting.length >= 2 && full {
            self.take(listener, policy);
        }
    }

    /// How many of the kernel's queue are to be taken. May ring.
    fn share(&mut self, waiting: Backlog) -> u32 {
        let in_kernel = waiting.length;
        let wake_connections = u32::from(self.has_wake_connection());
        let clients = in_kernel.saturating_sub(wake_connections);
        if self.order.len() as u32 + clients < 2 {
            // The one is answered with, and nobody is left who would have to be waited for.
            self.left = false;
            return in_kernel;
        }
        match (in_kernel, clients) {
            // Only the wake connection is there.
            (1, 0) => 0,
            (1, _) if !self.left => {
                self.left = true;
                0
            }
            (0 | 1, _) => {
                self.left = false;
                u32::from(self.open_wake_connection()) * in_kernel
            }
            _ => {
                self.left = false;
                in_kernel - 1
            }
        }
    }

    /// Returns whether the wake connection is in the kernel's queue now.
    fn open_wake_connection(&mut self) -> bool {
        match WakeConnection::open(self.address) {
            Ok(connection) => {
                self.wake_connection = Some(connection);
                true
            }
            Err(error) => {
                tracing::debug!("{}: no wake connection: {error}", self.address);
                false
            }
        }
    }

    /// Returns whether there was one.
    fn take_one(&mut self, listener: &TcpListener, policy: &Policy) -> bool {
        let Ok((stream, peer)) = listener.accept() else {
            return false;
        };
        if self.is_wake_connection(peer) {
            self.end_wake_connection(&stream);
            return true;
        }
        let since_ns = now_ns();
        self.came += 1;
        let entered = Entered {
            inode: self.inode,
            number: self.came,
            since_ns,
        };
        self.shared.enter(stream.as_raw_fd(), entered);
        self.push(stream, peer, since_ns, policy);
        true
    }

    /// Whether one keeps the kernel's queue readable.
    pub fn has_wake_connection(&self) -> bool {
        self.wake_connection.is_some()
    }

    fn is_wake_connection(&self, peer: SocketAddr) -> bool {
        let own = self.wake_connection.as_ref();
        own.is_some_and(|own| own.is(peer))
    }

    /// Resets it from both ends.
    fn end_wake_connection(&mut self, servers_end: &TcpStream) {
        reset_on_close(servers_end.as_fd());
        self.wake_connection = None;
    }

    /// Enters a connection that a predecessor held.
    pub fn resume(&mut self, stream: TcpStream, entered: Entered, policy: &Policy) {
        match stream.peer_addr() {
            Ok(peer) if self.is_wake_connection(peer) => self.end_wake_connection(&stream),
            Ok(peer) => {
                self.came = self.came.max(entered.number);
                self.shared.enter(stream.as_raw_fd(), entered);
                self.push(stream, peer, entered.since_ns, policy);
            }
            // Reset by its client meanwhile; it is of nobody now.
            Err(_) => self.shared.strike(stream.as_raw_fd()),
        }
        self.shared.tell(self.inode, self.order.len());
    }

    /// Goes on with the wake connection of a predecessor. Its other end is no client, wherever it turns up: it waits
    /// in the kernel's queue, or the predecessor was just taking it out.
    pub fn resume_wake_connection(&mut self, clients_end: TcpStream) {
        self.wake_connection = WakeConnection::of(clients_end).ok();
    }

    /// Takes the wake connection out of the kernel's queue, which the server empties by itself from now on. Clients
    /// before it are held, and given, one at a time.
    pub fn withdraw_wake_connection(&mut self, listener: OwnedFd, policy: &Policy) {
        let waits = |listener: &TcpListener| backlog(listener.as_fd()).is_ok_and(|b| b.length > 0);
        let listener = TcpListener::from(listener);
        self.shared.set_taking(self.inode);
        while self.has_wake_connection() && self.len() == 0 {
            if !waits(&listener) || !self.take_one(&listener, policy) {
                self.wake_connection = None;
            }
        }
        self.shared.tell(self.inode, self.order.len());
    }

    fn push(&mut self, stream: TcpStream, peer: SocketAddr, since_ns: u64, policy: &Policy) {
        let to = stream.local_addr().unwrap_or(self.address);
        let standing = policy.standing(peer, to);
        let fd = stream.as_raw_fd();
        let since = Duration::from_nanos(since_ns);
        self.order
            .push(fd, standing.class, standing.priority, since);
        let held = Held {
            stream,
            peer: peer.into(),
            nonblocking: false,
        };
        self.held.insert(fd, held);
    }

    /// The connection to be accepted next. It is either [given](ExecQueue::gave) or [put back](ExecQueue::put_back).
    pub fn next(&mut self) -> Option<(Waiting<RawFd>, &mut Held)> {
        let next = self.order.pop(Duration::from_nanos(now_ns()))?;
        let held = self.held.get_mut(&next.item);
        Some((next, held.expect("what is in order is held")))
    }

    /// The server has it.
    pub fn gave(&mut self, waiting: Waiting<RawFd>) {
        self.shared.strike(waiting.item);
        self.held.remove(&waiting.item);
        self.shared.tell(self.inode, self.order.len());
    }

    /// The server has it in its table and does not know; it waits for the server alone.
    pub fn strand(&mut self, waiting: Waiting<RawFd>) -> Option<Held> {
        self.held.remove(&waiting.item)
    }

    /// The server has not taken it.
    pub fn put_back(&mut self, waiting: Waiting<RawFd>) {
        self.order.put_back(waiting);
    }

    /// Resets the youngest of the lowest while more wait than the server's backlog allows, and of a class
    /// over its own limit.
    fn shed(&mut self, policy: &Policy) {
        let over = |order: &ReleaseOrder<RawFd>| {
            let classes = order.by_class().iter();
            let mut over = classes.filter(|(class, n)| {
                let limit = policy.queue_limit(**class);
                limit.is_some_and(|limit| **n > limit as usize)
            });
            over.next().map(|(class, _)| *class)
        };
        loop {
            let shed = match over(&self.order) {
                Some(class) => self.order.shed_of(class),
                None if self.order.len() > self.limit.max(1) as usize => self.order.shed(),
                None => return,
            };
            let Some(shed) = shed else { return };
            self.shared.strike(shed.item);
            if let Some(held) = self.held.remove(&shed.item) {
                reset_on_close(held.stream.as_fd());
            }
        }
    }

    /// The listening socket is gone: what waited before it is reset, as the kernel does it.
    pub fn close(mut self) {
        for (fd, held) in self.held.drain() {
            reset_on_close(held.stream.as_fd());
            self.shared.strike(fd);
        }
        self.shared.forget(self.inode);
    }
}

//! The prioritized listen queue (bpf/queue.bpf.c): parking listeners beside a running server's own,
//! and the release of what waits in them.
//!
//! [`Queue`] is used by one thread. Which connection is released when is not its business. When it is
//! dropped, or the process dies, what is parked goes to the server.

mod group;
mod options;
pub(crate) mod owner;
mod reuseport;
mod table;

pub use reuseport::undo;

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use libbpf_rs::ProgramInput;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::resource::{Resource, getrlimit};
use weir_core::queue::Rule;

use crate::error::{Error, Result, of_libbpf};
use crate::listeners::{self, ListenSocket};

/// Skeleton of bpf/queue.bpf.c.
#[allow(missing_docs, clippy::all, clippy::undocumented_unsafe_blocks)]
pub(crate) mod skel {
    include!(concat!(env!("OUT_DIR"), "/queue.skel.rs"));
}

use group::Group;
use skel::{QueueSkel, QueueSkelBuilder};
use table::Table;

pub(crate) use table::now_ns;

/// Groups at a time (WEIR_MAX_GROUPS).
const GROUPS: u32 = 8;
/// Sockets of a server in a group (WEIR_MAX_SERVERS).
const SERVERS: u32 = 64;
/// Parking listeners of a group (WEIR_MAX_SLOTS).
const SLOTS: u32 = 4096;
/// Mark of a parking listener in `group_of` (WEIR_PARKED).
const PARKED: u32 = 0x10000;
/// The kernel gives a handshake up after this (tcp_synack_retries 5: 63 s).
const HANDSHAKE_OVER: Duration = Duration::from_secs(64);
/// Descriptors that parking listeners leave to the rest of the process.
const DESCRIPTORS_OF_OTHERS: u32 = 256;
/// Token of the epoll events that are not a slot's.
const LISTEN_EVENTS: u64 = u64::MAX;

/// Something that happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A connection is established and waits in this parking listener.
    Arrived(Slot),
    /// A socket on this port began to listen, or a server's socket ceased to.
    ListenersChanged {
        /// The port.
        port: u16,
        /// It ceased to, and was a server's of this group.
        ceased_in: Option<u32>,
    },
    /// A descriptor given to [`Queue::watch`] is readable.
    Woken,
}

/// A parking listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot {
    /// Its group.
    pub group: u32,
    /// Its number in the group.
    pub number: u32,
}

/// What is known of the connection that was sent to a parking listener last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// Slot of its class.
    pub class: u32,
    /// Priority of its class, 1 to 64.
    pub priority: u8,
}

/// The two ends of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    /// The client's.
    pub source: SocketAddr,
    /// The server's.
    pub destination: SocketAddr,
}

/// A server's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ServerQueue {
    /// Connections that wait for accept().
    pub length: u32,
    /// The backlog in force.
    pub limit: u32,
    /// Handshakes under way.
    pub half_open: u32,
    /// Whether it still listens.
    pub listening: bool,
}

impl ServerQueue {
    /// Connections that are in it or on their way there.
    pub fn used(&self) -> u32 {
        self.length + self.half_open
    }
}

/// A socket began or ceased to listen (struct listen_event).
struct Change {
    socket: u64,
    port: u16,
    listening: bool,
}

/// What the ring has said and nobody has asked for yet.
type Changes = std::rc::Rc<std::cell::RefCell<Vec<Change>>>;

/// The loaded programs, and the groups that they serve.
pub struct Queue {
    groups: BTreeMap<u32, Group>,
    /// Groups whose parking listeners are closed, while handshakes that began on them may still end.
    retired: BTreeMap<u32, (Instant, Group)>,
    /// Cookies of sockets that SO_REUSEPORT was lent to while they were bound, the last one first.
    heirs: Vec<u64>,
    _watch: libbpf_rs::Link,
    lends: Result<[libbpf_rs::Link; 2]>,
    ring: libbpf_rs::RingBuffer<'static>,
    changes: Changes,
    epoll: Epoll,
    table: Table,
    iterator: OwnedFd,
    skel: QueueSkel<'static>,
}

/// The guard's maps that the queue shares.
pub struct QueueMaps {
    pub(crate) parking: OwnedFd,
    pub(crate) group_of: OwnedFd,
    pub(crate) iterator: OwnedFd,
    /// class_active, class_masks, class_rules, class_policies.
    pub(crate) classes: [OwnedFd; 4],
}

impl Queue {
    /// Loads the programs; no server is touched.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the kernel cannot migrate listeners, or loses wake-ups when it
    /// does; else what the kernel refused.
    pub fn load(maps: QueueMaps) -> Result<Queue> {
        crate::probe::migration()?;
        libbpf_rs::set_print(None);
        let load = || of_libbpf("load the programs of the prioritized queue");
        // Its memory is not given back: as long as the process.
        let storage = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = QueueSkelBuilder::default().open(storage).map_err(load())?;
        let constants = open.maps.rodata_data.as_deref_mut();
        let constants = constants.expect("it has constants");
        constants.namespace_inum = namespace()?;
        constants.namespace_cookie = reuseport::namespace_cookie()?;
        open.maps
            .parking
            .reuse_fd(maps.parking.as_fd())
            .map_err(load())?;
        open.maps
            .group_of
            .reuse_fd(maps.group_of.as_fd())
            .map_err(load())?;
        let [active, masks, rules, policies] = &maps.classes;
        let theirs = &mut open.maps;
        for (map, fd) in [
            (&mut theirs.class_active, active),
            (&mut theirs.class_masks, masks),
            (&mut theirs.class_rules, rules),
            (&mut theirs.class_policies, policies),
        ] {
            map.reuse_fd(fd.as_fd()).map_err(load())?;
        }
        let skel = open.load().map_err(load())?;
        let watch = skel.progs.queue_watch.attach().map_err(load())?;
        let lends = reuseport::attach([&skel.progs.queue_bind4, &skel.progs.queue_bind6]);
        let changes = Changes::default();
        let ring = ring(&skel, changes.clone()).map_err(load())?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)
            .map_err(|e| failed("wait for connections", e))?;
        // SAFETY: the ring owns the descriptor and outlives the borrow.
        let doorbell = unsafe { BorrowedFd::borrow_raw(ring.epoll_fd()) };
        epoll
            .add(
                doorbell,
                EpollEvent::new(EpollFlags::EPOLLIN, LISTEN_EVENTS),
            )
            .map_err(|e| failed("wait for listeners", e))?;
        let table = Table::map(skel.maps.parking.as_fd())?;
        Ok(Queue {
            groups: BTreeMap::new(),
            retired: BTreeMap::new(),
            heirs: Vec::new(),
            _watch: watch,
            lends,
            ring,
            changes,
            epoll,
            table,
            iterator: maps.iterator,
            skel,
        })
    }

    /// Wakes [`Queue::wait`] when this descriptor is readable.
    pub fn watch(&self, fd: BorrowedFd<'_>) -> Result<()> {
        self.epoll
            .add(fd, EpollEvent::new(EpollFlags::EPOLLIN, LISTEN_EVENTS - 1))
            .map_err(|e| failed("wait for requests", e))
    }

    /// Why a server that restarts may find its port held by parking listeners for a moment; `None`: it
    /// does not.
    pub fn holds_ports_because(&self) -> Option<&Error> {
        self.lends.as_ref().err()
    }

    /// All listening sockets of the network namespace.
    pub fn listen_sockets(&self) -> Result<Vec<ListenSocket>> {
        listeners::read(self.iterator.as_fd())
    }

    /// Puts parking listeners beside these sockets of one server, all on one address. `listener`:
    /// index of the guarded listener's counters.
    ///
    /// # Errors
    /// Why this server cannot be served so; nothing has changed then.
    pub fn attach(&mut self, servers: &[ListenSocket], listener: u16) -> Result<u32> {
        let number = (0..GROUPS)
            .find(|n| !self.groups.contains_key(n) && !self.retired.contains_key(n))
            .ok_or_else(|| Error::Failed {
                what: "park connections for one more address".into(),
                cause: format!("{GROUPS} addresses are"),
            })?;
        let group = Group::attach(self, number, servers, listener)?;
        self.groups.insert(number, group);
        Ok(number)
    }

    /// Closes the parking listeners of a server that is gone, and what is in them.
    pub fn abandon(&mut self, group: u32) {
        if let Some(mut g) = self.groups.remove(&group) {
            g.leave_the_port(&self.table, group);
            g.forget(self, group);
        }
    }

    /// Takes the parking listeners away; what is in them goes to the server.
    pub fn detach(&mut self, group: u32) {
        let Some(mut g) = self.groups.remove(&group) else {
            return;
        };
        if g.detach(self, group) {
            self.retired.insert(group, (Instant::now(), g));
        } else {
            g.forget(self, group);
        }
    }

    fn forget_retired(&mut self) {
        let over = |(_, (since, _)): &(&u32, &(Instant, Group))| since.elapsed() > HANDSHAKE_OVER;
        let over: Vec<u32> = self.retired.iter().filter(over).map(|(n, _)| *n).collect();
        for number in over {
            if let Some((_, mut group)) = self.retired.remove(&number) {
                group.forget(self, number);
            }
        }
    }

    /// Renews the promise that parked connections are released: without it, none is parked from
    /// `period` on. `park`: until then a connection is parked, so that it does not overtake those that
    /// wait, unless `rule` says that it is the next one.
    pub fn renew(&self, group: u32, period: Duration, park: Option<Duration>, rule: Rule) {
        self.table.renew(group, period, park, rule);
    }

    /// Reads the server's queues anew; with `sweep` also gives parking listeners back whose connection
    /// never came.
    pub fn look(&mut self, sweep: bool) -> Result<()> {
        let before = table::now_ns();
        self.look_at(sweep)?;
        if sweep {
            for (number, group) in &mut self.groups {
                group.sweep(*number, &self.table, before);
            }
            self.forget_retired();
        }
        Ok(())
    }

    fn look_at(&mut self, slots: bool) -> Result<()> {
        let mut look = skel::types::look {
            sweep: slots.into(),
            pad: 0,
        };
        let input = ProgramInput {
            context_in: Some(table::bytes_of(&mut look)),
            ..Default::default()
        };
        let look = self.skel.progs.queue_look.test_run(input);
        look.map(drop)
            .map_err(of_libbpf("look at the server's queue"))
    }

    /// The server's queues as of the last [`Queue::look`].
    pub fn servers(&self, group: u32) -> Vec<ServerQueue> {
        let servers = self.groups.get(&group).map_or(0, Group::servers);
        (0..servers).map(|i| self.table.server(group, i)).collect()
    }

    /// How many connections went straight to the server, ever, and how many of them while others were parked;
    /// both wrap.
    pub fn straight_ever(&self, group: u32) -> (u32, u32) {
        self.table.straight_ever(group)
    }

    /// What was sent to this slot last; `None`: it is free, and what it holds came by itself.
    pub fn taken(&self, slot: Slot) -> Option<Taken> {
        self.table.taken(slot)
    }

    /// What time it is on the clock of [`Queue::wait`]'s arrivals.
    pub fn now() -> Duration {
        Duration::from_nanos(table::now_ns())
    }

    /// Waits for at most `timeout` (0: not at all), and says what happened.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<Vec<Event>> {
        if let Some(timeout) = timeout.filter(|t| !t.is_zero()) {
            poll(self.epoll.0.as_fd(), timeout)?;
        }
        let mut ready = [EpollEvent::empty(); 256];
        let wait = match timeout {
            None => EpollTimeout::NONE,
            Some(_) => EpollTimeout::ZERO,
        };
        let got = match self.epoll.wait(&mut ready, wait) {
            Ok(got) => got,
            Err(nix::errno::Errno::EINTR) => 0,
            Err(e) => return Err(failed("wait for connections", e)),
        };
        let mut events = Vec::new();
        let mut arrived = Vec::with_capacity(got);
        for event in &ready[..got] {
            match event.data() {
                LISTEN_EVENTS => {
                    let _ = self.ring.consume();
                    let changes = self.changes.take();
                    events.extend(changes.iter().map(|change| self.listeners_changed(change)));
                }
                token if token == LISTEN_EVENTS - 1 => events.push(Event::Woken),
                token if event.events().contains(EpollFlags::EPOLLIN) => {
                    let (group, number) = ((token >> 32) as u32, token as u32);
                    arrived.push(Slot { group, number });
                }
                _ => {}
            }
        }
        // The kernel lists a slot where it was touched first, which may have been its last release.
        arrived.sort_by_key(|slot| self.table.taken_since(*slot).0);
        events.extend(arrived.into_iter().map(Event::Arrived));
        Ok(events)
    }

    fn listeners_changed(&self, change: &Change) -> Event {
        let its = |group: &Group| !change.listening && group.serves_with(change.socket);
        let mut ceased_in = self.groups.iter().filter(|(_, group)| its(group));
        Event::ListenersChanged {
            port: change.port,
            ceased_in: ceased_in.next().map(|(number, _)| *number),
        }
    }

    /// Sleeps for so long, but not when a socket begins or ceases to listen: a server that is to bind anew
    /// waits for what follows from that.
    pub fn sleep(&self, time: Duration) -> Result<()> {
        // SAFETY: the ring owns the descriptor and outlives the borrow.
        poll(
            unsafe { BorrowedFd::borrow_raw(self.ring.epoll_fd()) },
            time,
        )
    }

    /// Hands what waits in this slot to the server.
    pub fn release(&mut self, slot: Slot) -> Result<()> {
        self.with_group(slot.group, |group, queue| group.release(queue, slot))
    }

    /// Resets the connection that came to this slot first. Returns its ends; `None`: there was none.
    pub fn reset(&mut self, slot: Slot) -> Result<Option<Ends>> {
        match self.groups.get_mut(&slot.group) {
            Some(group) => group.reset(slot, &self.table),
            None => Ok(None),
        }
    }

    /// Sees to it that enough parking listeners stand ready, as long as there are fewer than the server
    /// has places.
    pub fn grow(&mut self, group: u32) -> Result<()> {
        self.with_group(group, |g, queue| g.grow(queue, group))
    }

    /// Closes some of the parking listeners that are more than stand ready. Call while nothing waits.
    pub fn shrink(&mut self, group: u32) -> Result<()> {
        self.with_group(group, |g, queue| g.shrink(queue, group))
    }

    /// How many parking listeners stand ready, and how many of these the limit of descriptors forbids.
    pub fn ready(&self, group: u32) -> (u32, u32) {
        self.groups.get(&group).map_or((0, 0), Group::ready)
    }

    /// How many more descriptors parking listeners may have; the rest of the process needs some too.
    fn descriptors_left(&self) -> u32 {
        let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((u64::MAX, 0));
        let groups = self.groups.values();
        let used: u32 = groups.map(Group::slots).sum::<u32>() + DESCRIPTORS_OF_OTHERS;
        u32::try_from(soft).unwrap_or(u32::MAX).saturating_sub(used)
    }

    /// Has a group, if there is one, do something that needs the rest of the queue too.
    fn with_group(
        &mut self,
        number: u32,
        act: impl FnOnce(&mut Group, &mut Queue) -> Result<()>,
    ) -> Result<()> {
        let Some(mut group) = self.groups.remove(&number) else {
            return Ok(());
        };
        let done = act(&mut group, self);
        self.groups.insert(number, group);
        done
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        for group in self.groups.keys().copied().collect::<Vec<_>>() {
            self.detach(group);
        }
    }
}

/// Sleeps until this descriptor is readable, to the microsecond.
fn poll(fd: BorrowedFd<'_>, timeout: Duration) -> Result<()> {
    let mut fds = [nix::poll::PollFd::new(fd, nix::poll::PollFlags::POLLIN)];
    match nix::poll::ppoll(&mut fds, Some(timeout.into()), None) {
        Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
        Err(e) => Err(failed("wait for connections", e)),
    }
}

fn ring(
    skel: &QueueSkel<'static>,
    changes: Changes,
) -> libbpf_rs::Result<libbpf_rs::RingBuffer<'static>> {
    let mut builder = libbpf_rs::RingBufferBuilder::new();
    builder.add(&skel.maps.listen_events, move |bytes| {
        if let Some((socket, rest)) = bytes.split_first_chunk()
            && let Some((port, [listening, ..])) = rest.split_first_chunk()
        {
            changes.borrow_mut().push(Change {
                socket: u64::from_ne_bytes(*socket),
                port: u16::from_ne_bytes(*port),
                listening: *listening != 0,
            });
        }
        0
    })?;
    builder.build()
}

/// Inode number of the thread's network namespace.
fn namespace() -> Result<u32> {
    use std::os::unix::fs::MetadataExt;
    let path = "/proc/thread-self/ns/net";
    std::fs::metadata(path)
        .map(|m| m.ino() as u32)
        .map_err(|e| Error::Failed {
            what: format!("look at {path}"),
            cause: e.to_string(),
        })
}

/// Has the calling thread run soon after it is woken, and sleep to the microsecond: what it does is
/// short, and servers wait for it. Where this is not allowed, it is slower.
pub fn hasten_this_thread() {
    // SAFETY: neither call takes pointers.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1000);
        let thread = libc::syscall(libc::SYS_gettid);
        libc::setpriority(libc::PRIO_PROCESS, thread as libc::id_t, -15);
    }
}

fn failed(what: &str, e: nix::errno::Errno) -> Error {
    Error::Failed {
        what: what.into(),
        cause: e.desc().into(),
    }
}

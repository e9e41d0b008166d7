//! The programs of bpf/queue.bpf.c, loaded, with their maps: what every group of parking listeners works with.

use std::cell::RefCell;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use libbpf_rs::skel::OpenSkel;
use libbpf_rs::{MapCore, MapFlags, ProgramInput};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::resource::{Resource, getrlimit};

use super::failure::failed;
use super::migration::can_migrate;
use super::reuseport;
use super::skel::types::{listen_event, look};
use super::skel::{QueueSkel, QueueSkelBuilder};
use super::table::Table;
use crate::cookies;
use crate::error::{Result, of_libbpf};
use crate::guard::QueueMaps;
use crate::namespace::namespace;
use crate::object::{self, Plain, Ring, Share, SharedMaps, open, plain};

plain!(listen_event, look);

/// Descriptors that parking listeners leave to the rest of the process.
const DESCRIPTORS_OF_OTHERS: u32 = 256;
/// Token of the epoll events that are not a slot's.
pub(super) const LISTEN_EVENTS: u64 = u64::MAX;

/// What is done here, in errors.
const QUEUE: &str = "load the programs of the prioritized queue";

/// The programs and what they share with user space.
pub(super) struct Programs {
    /// Cookies of sockets that SO_REUSEPORT was lent to while they were bound, the last one first.
    pub heirs: Vec<u64>,
    /// Parking listeners of the groups other than the one that is worked on.
    pub slots_of_others: u32,
    _watch: libbpf_rs::Link,
    pub lends: Result<[libbpf_rs::Link; 2]>,
    pub ring: Ring,
    changes: Rc<RefCell<Vec<listen_event>>>,
    pub epoll: Epoll,
    pub table: Table,
    pub iterator: OwnedFd,
    pub skel: QueueSkel<'static>,
}

/// Gives the programs to the kernel; nothing is attached.
pub(crate) fn load_skel(maps: &SharedMaps) -> Result<QueueSkel<'static>> {
    let mut open = open::<QueueSkelBuilder>().map_err(of_libbpf(QUEUE))?;
    let constants = open.maps.rodata_data.as_deref_mut();
    let constants = constants.expect("it has constants");
    constants.namespace_inum = namespace()?;
    constants.namespace_cookie = cookies::of_namespace()?;
    maps.give_to(open.open_object_mut(), Share::Declared)
        .map_err(of_libbpf(QUEUE))?;
    object::load(open, QUEUE)
}

impl Programs {
    pub fn load(maps: QueueMaps) -> Result<Programs> {
        can_migrate()?;
        let load = || of_libbpf(QUEUE);
        let skel = load_skel(&maps.maps)?;
        let watch = skel.progs.queue_watch.attach().map_err(load())?;
        let lends = reuseport::attach(
            [&skel.progs.queue_bind4, &skel.progs.queue_bind6],
            maps.cgroups.as_ref().map(AsFd::as_fd),
        );
        let changes: Rc<RefCell<Vec<listen_event>>> = Rc::default();
        let gathered = changes.clone();
        let ring = Ring::open(&skel.maps.listen_events, move |change| {
            gathered.borrow_mut().push(change);
        })
        .map_err(load())?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)
            .map_err(|e| failed("wait for connections", e))?;
        let event = EpollEvent::new(EpollFlags::EPOLLIN, LISTEN_EVENTS);
        epoll
            .add(ring.as_fd(), event)
            .map_err(|e| failed("wait for listeners", e))?;
        let table = Table::map(skel.maps.parking.as_fd())?;
        Ok(Programs {
            heirs: Vec::new(),
            slots_of_others: 0,
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

    /// Sockets that began or ceased to listen since the last call.
    pub fn take_changes(&self) -> Vec<listen_event> {
        self.ring.consume();
        self.changes.take()
    }

    /// The programs know this socket no more, whose entry in group_of is `was`.
    pub fn forget_socket(&self, socket: u64, was: u32) {
        let group_of = &self.skel.maps.group_of;
        // The address may be another group's socket's by now.
        let is = group_of.lookup(socket.bytes(), MapFlags::ANY);
        if is.is_ok_and(|is| is.as_deref() == Some(was.bytes())) {
            let _ = group_of.delete(socket.bytes());
        }
    }

    /// How many descriptors the parking listeners of the group that is worked on may have; the rest of the
    /// process needs some too.
    pub fn descriptors_left(&self) -> u32 {
        let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((u64::MAX, 0));
        let used = self.slots_of_others + DESCRIPTORS_OF_OTHERS;
        u32::try_from(soft).unwrap_or(u32::MAX).saturating_sub(used)
    }

    /// Has queue_look read the servers' queues, and with `slots` the parking listeners' too.
    pub fn look_at(&mut self, slots: bool) -> Result<()> {
        let mut look = look {
            sweep: slots.into(),
            pad: 0,
        };
        let input = ProgramInput {
            context_in: Some(look.bytes_mut()),
            ..Default::default()
        };
        let look = self.skel.progs.queue_look.test_run(input);
        look.map(drop)
            .map_err(of_libbpf("look at the server's queue"))
    }
}

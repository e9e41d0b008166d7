//! Parking listeners beside running servers' sockets, and the release of what waits in them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::sys::epoll::{EpollEvent, EpollFlags, EpollTimeout};
use weir_core::abi::MAX_GROUPS;
use weir_core::queue::ParkingRule;

use super::failure::failed;
use super::group::{self, DRAIN, Group, HANDSHAKE_OVER};
use super::programs::{LISTEN_EVENTS, Programs};
use super::skel::types::listen_event;
use super::types::{Ends, Event, ServerQueue, Slot, Taken};
use crate::clock::now_ns;
use crate::error::{Error, Result};
use crate::guard::QueueMaps;
use crate::guard::listeners::{self, ListenSocket};

/// How long the handshakes on parking listeners may take when the queue goes for good: one that has lost a packet
/// goes on after 1 s.
const LAST_DRAIN: Duration = Duration::from_millis(1500);

/// The loaded programs, and the groups of parking listeners that they serve.
pub struct Parking {
    groups: BTreeMap<u32, Group>,
    /// Groups whose parking listeners are closed, while handshakes that began on them may still end.
    retired: BTreeMap<u32, (Instant, Group)>,
    programs: Programs,
}

impl Parking {
    /// Loads the programs; no server is touched.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the kernel cannot migrate listeners, or loses wake-ups when it
    /// does; else what the kernel refused.
    pub fn load(maps: QueueMaps) -> Result<Parking> {
        Ok(Parking {
            groups: BTreeMap::new(),
            retired: BTreeMap::new(),
            programs: Programs::load(maps)?,
        })
    }

    /// Wakes [`Parking::wait`] when this descriptor is readable.
    pub fn watch(&self, fd: BorrowedFd<'_>) -> Result<()> {
        self.programs
            .epoll
            .add(fd, EpollEvent::new(EpollFlags::EPOLLIN, LISTEN_EVENTS - 1))
            .map_err(|e| failed("wait for requests", e))
    }

    /// Why a server that restarts may find its port held by parking listeners for a moment; `None`: it
    /// does not.
    pub fn holds_ports_because(&self) -> Option<&Error> {
        self.programs.lends.as_ref().err()
    }

    /// All listening sockets of the network namespace.
    pub fn listen_sockets(&self) -> Result<Vec<ListenSocket>> {
        listeners::read(self.programs.iterator.as_fd())
    }

    /// Whether connections can be parked before these sockets, as far as their records say. [`Parking::attach`] asks it too.
    ///
    /// # Errors
    /// Why not.
    pub fn check(servers: &[ListenSocket]) -> Result<()> {
        group::check(servers)
    }

    /// Puts parking listeners beside these sockets of one server, all on one address. `listener`:
    /// index of the guarded listener's counters.
    ///
    /// # Errors
    /// Why this server cannot be served so; nothing has changed then.
    pub fn attach(&mut self, servers: &[ListenSocket], listener: u16) -> Result<u32> {
        let number = self.free_number().ok_or_else(|| Error::Failed {
            what: "park connections for one more address".into(),
            cause: format!("{MAX_GROUPS} addresses are"),
        })?;
        self.programs.slots_of_others = self.slots_without(number);
        let inodes: Vec<u64> = servers.iter().map(|s| s.inode).collect();
        let shared = |group: &Group| group.servers().inodes().iter().any(|i| inodes.contains(i));
        let predecessors = self.retired.iter().filter(|(_, (_, group))| shared(group));
        let predecessors: Vec<u32> = predecessors.map(|(number, _)| *number).collect();
        let mut group = Group::attach(&mut self.programs, number, servers, listener)?;
        for number in predecessors {
            if let Some((_, retired)) = self.retired.remove(&number) {
                group.adopt(&mut self.programs, retired);
            }
        }
        self.groups.insert(number, group);
        Ok(number)
    }

    /// Has a group serve these sockets of the same server instead of those that it serves, without closing a parking
    /// listener. Returns whether it does; if not, parking listeners for them would not look like those that there
    /// are, and the group serves its sockets as before.
    ///
    /// # Errors
    /// Why these cannot be served.
    pub fn change(&mut self, group: u32, servers: &[ListenSocket]) -> Result<bool> {
        self.programs.slots_of_others = self.slots_without(group);
        match self.groups.get_mut(&group) {
            Some(g) => g.change(&mut self.programs, servers),
            None => Ok(false),
        }
    }

    /// Where a group's server listens.
    pub fn address(&self, group: u32) -> Option<SocketAddr> {
        self.groups.get(&group).map(Group::address)
    }

    /// Inodes of the sockets that a group serves, sorted.
    pub fn inodes(&self, group: u32) -> Vec<u64> {
        let group = self.groups.get(&group);
        group.map_or(Vec::new(), |group| group.servers().inodes())
    }

    /// Closes the parking listeners of a server that is gone, and what is in them.
    pub fn abandon(&mut self, group: u32) {
        if let Some(mut g) = self.groups.remove(&group) {
            g.leave_the_port(&self.programs.table);
            g.forget(&mut self.programs);
        }
    }

    /// Takes the parking listeners away; what is in them goes to the server.
    pub fn detach(&mut self, group: u32) {
        self.detach_within(group, DRAIN);
    }

    fn detach_within(&mut self, group: u32, drain: Duration) {
        let Some(mut g) = self.groups.remove(&group) else {
            return;
        };
        if g.detach(&mut self.programs, drain) {
            self.retired.insert(group, (Instant::now(), g));
        } else {
            g.forget(&mut self.programs);
        }
    }

    /// A number that no group has. Where all are given, that of the group which was retired first: who listens now
    /// goes before handshakes that have not ended until now.
    fn free_number(&mut self) -> Option<u32> {
        let taken = |n: &u32| self.groups.contains_key(n) || self.retired.contains_key(n);
        if let Some(free) = (0..MAX_GROUPS).find(|n| !taken(n)) {
            return Some(free);
        }
        let retired = self.retired.iter();
        let oldest = retired.min_by_key(|(_, (since, _))| *since);
        let number = oldest.map(|(number, _)| *number)?;
        self.forget_retired(number);
        Some(number)
    }

    fn forget_retired(&mut self, number: u32) {
        if let Some((_, mut group)) = self.retired.remove(&number) {
            group.give_up_program();
            group.forget(&mut self.programs);
        }
    }

    fn forget_long_retired(&mut self) {
        let over = |(_, (since, _)): &(&u32, &(Instant, Group))| since.elapsed() > HANDSHAKE_OVER;
        let over: Vec<u32> = self.retired.iter().filter(over).map(|(n, _)| *n).collect();
        over.into_iter()
            .for_each(|number| self.forget_retired(number));
    }

    /// Renews the promise that parked connections are released: without it, none is parked from
    /// `period` on. `park`: until then a connection is parked, so that it does not overtake those that
    /// wait, unless `rule` says that it is the next one.
    pub fn renew(&self, group: u32, period: Duration, park: Option<Duration>, rule: ParkingRule) {
        self.programs.table.renew(group, period, park, rule);
    }

    /// Reads the server's queues anew; with `sweep` also gives parking listeners back whose connection
    /// never came.
    pub fn look(&mut self, sweep: bool) -> Result<()> {
        let before = now_ns();
        self.programs.look_at(sweep)?;
        if sweep {
            for group in self.groups.values_mut() {
                group.sweep(&self.programs.table, before);
            }
            self.forget_long_retired();
        }
        Ok(())
    }

    /// The server's queues as of the last [`Parking::look`].
    pub fn servers(&self, group: u32) -> Vec<ServerQueue> {
        let its = self.groups.get(&group).into_iter();
        its.flat_map(|g| g.servers().indices())
            .map(|i| self.programs.table.server(group, i))
            .collect()
    }

    /// How many connections went straight to the server, ever, and how many of them while others were parked;
    /// both wrap.
    pub fn straight_ever(&self, group: u32) -> (u32, u32) {
        self.programs.table.straight_ever(group)
    }

    /// What was sent to this slot last; `None`: it is free, and what it holds came by itself.
    pub fn taken(&self, slot: Slot) -> Option<Taken> {
        self.programs.table.taken(slot)
    }

    /// What time it is on the clock of [`Parking::wait`]'s arrivals.
    pub fn now() -> Duration {
        Duration::from_nanos(now_ns())
    }

    /// Waits for at most `timeout` (0: not at all), and says what happened.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<Vec<Event>> {
        if let Some(timeout) = timeout.filter(|t| !t.is_zero()) {
            poll(self.programs.epoll.0.as_fd(), timeout)?;
        }
        let mut ready = [EpollEvent::empty(); 256];
        let wait = match timeout {
            None => EpollTimeout::NONE,
            Some(_) => EpollTimeout::ZERO,
        };
        let got = match self.programs.epoll.wait(&mut ready, wait) {
            Ok(got) => got,
            Err(nix::errno::Errno::EINTR) => 0,
            Err(e) => return Err(failed("wait for connections", e)),
        };
        let mut events = Vec::new();
        let mut arrived = Vec::with_capacity(got);
        for event in &ready[..got] {
            match event.data() {
                LISTEN_EVENTS => {
                    let changes = self.programs.take_changes();
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
        arrived.sort_by_key(|slot| self.programs.table.taken_since(*slot).0);
        events.extend(arrived.into_iter().map(Event::Arrived));
        Ok(events)
    }

    fn listeners_changed(&mut self, change: &listen_event) -> Event {
        let its = |group: &Group| change.listening == 0 && group.servers().has(change.socket);
        let mut its = self.groups.iter_mut().filter(|(_, group)| its(group));
        let ceased_in = its.next().and_then(|(number, group)| {
            // At once: a parking listener may get its address.
            let others = group.lose(&self.programs, change.socket);
            (!others).then_some(*number)
        });
        Event::ListenersChanged {
            port: change.port,
            ceased_in,
        }
    }

    /// Sleeps for so long, but not when a socket begins or ceases to listen: a server that is to bind anew
    /// waits for what follows from that.
    pub fn sleep(&self, time: Duration) -> Result<()> {
        poll(self.programs.ring.as_fd(), time)
    }

    /// Hands what waits in this slot to the server.
    pub fn release(&mut self, slot: Slot) -> Result<()> {
        self.with_group(slot.group, |group, programs| group.release(programs, slot))
    }

    /// Resets the connection that came to this slot first. Returns its ends; `None`: there was none.
    pub fn reset(&mut self, slot: Slot) -> Result<Option<Ends>> {
        match self.groups.get_mut(&slot.group) {
            Some(group) => group.reset(slot, &self.programs.table),
            None => Ok(None),
        }
    }

    /// Sees to it that enough parking listeners stand ready, as long as there are fewer than the server
    /// has places.
    pub fn grow(&mut self, group: u32) -> Result<()> {
        self.with_group(group, |g, programs| g.grow(programs))
    }

    /// Closes some of the parking listeners that are more than stand ready. Call while nothing waits.
    pub fn shrink(&mut self, group: u32) -> Result<()> {
        self.with_group(group, |g, programs| g.shrink(programs))
    }

    /// How many parking listeners stand ready, and how many of these the limit of descriptors forbids.
    pub fn ready(&self, group: u32) -> (u32, u32) {
        self.groups.get(&group).map_or((0, 0), Group::ready)
    }

    /// Has a group, if there is one, do something.
    fn with_group(
        &mut self,
        number: u32,
        act: impl FnOnce(&mut Group, &mut Programs) -> Result<()>,
    ) -> Result<()> {
        self.programs.slots_of_others = self.slots_without(number);
        match self.groups.get_mut(&number) {
            Some(group) => act(group, &mut self.programs),
            None => Ok(()),
        }
    }

    fn slots_without(&self, number: u32) -> u32 {
        let others = self.groups.iter().filter(|(n, _)| **n != number);
        others.map(|(_, group)| group.slots()).sum()
    }
}

impl Drop for Parking {
    fn drop(&mut self) {
        let end = Instant::now() + LAST_DRAIN;
        for group in self.groups.keys().copied().collect::<Vec<_>>() {
            let left = end.saturating_duration_since(Instant::now());
            self.detach_within(group, left);
        }
        // Nothing is to be left on the servers' sockets, also if a handshake is lost by that.
        for number in self.retired.keys().copied().collect::<Vec<_>>() {
            self.forget_retired(number);
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

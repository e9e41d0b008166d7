//! The parking listeners beside one server's sockets.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore, MapFlags};
use nix::sys::epoll::{EpollEvent, EpollFlags};
use nix::sys::socket::{Shutdown, SockFlag, listen, shutdown};
use weir_core::abi::{MAX_SERVERS, MAX_SLOTS, PARKED};

use super::failure::failed;
use super::label;
use super::model::Model;
use super::owner;
use super::programs::Programs;
use super::reuseport;
use super::servers::Servers;
use super::table::Table;
use super::types::{Ends, Slot};
use crate::clock::now_ns;
use crate::error::{Error, Result, of_libbpf};
use crate::guard::listeners::ListenSocket;
use crate::object::Plain;

/// Parking listeners that stand ready: as many as the server's queue has places, for all of them may come in
/// one burst, faster than new ones are made, and who finds none free is not of the order. Not more than
/// this, since each holds the port for 5 µs when the server goes.
const READY_MOST: u32 = 1024;
/// And not fewer: a handshake that never ends has its slot for a while.
const READY_LEAST: u32 = 128;
/// So many may be more than the server has places, for connections that are on their way.
const SPARE: u32 = 256;
/// How many are made or closed at a time when few are taken: each takes about 20 µs, and releases wait
/// meanwhile.
const STEP: u32 = 32;
/// Where more were taken since the last time, as many are made, but not more than this.
const STEP_MOST: u32 = 256;
/// A connection that was sent to a slot and that the slot does not hold: its SYN was dropped, or
/// answered with a cookie. Long enough for a SYN to get from the lookup into the tables.
const NEVER_CAME_NS: u64 = 100_000_000;
/// A connection that was sent to a slot has come there by then, if it does.
const ON_THE_WAY_NS: u64 = 5_000_000;
/// The kernel gives a handshake up after this (tcp_synack_retries 5: 63 s).
pub const HANDSHAKE_OVER: Duration = Duration::from_secs(64);
/// So many closed slots with handshakes are remembered. Of more, the kernel chooses the socket that gets them.
const GONE_MOST: usize = 2048;
/// How many sockets are remembered that SO_REUSEPORT was lent to while they were bound.
const HEIRS: usize = 32;
/// What to do where connections cannot be parked.
const NOT_PARKED: &str =
    "queue = \"fifo\" leaves it alone; `weir exec` orders its queue without parking connections";
/// How long handshakes may take to end before parking listeners are closed under them. The kernel
/// migrates them too; this only spares it.
pub const DRAIN: Duration = Duration::from_millis(20);

/// See [`super::Parking::attach`].
pub struct Group {
    number: u32,
    servers: Servers,
    model: Model,
    slots: BTreeMap<u32, ParkingListener>,
    /// Kernel addresses of closed slots on which handshakes began that the kernel may still migrate, the oldest
    /// first, and when they were closed.
    gone: Vec<(Instant, u64)>,
    /// Numbers below `most` that are no slot's, the least one last.
    unused: Vec<u32>,
    /// How many slots there may be.
    most: u32,
    /// How many slots are to be free.
    ready: u32,
    /// As many more would stand ready, but for the limit of descriptors.
    forbidden: u32,
    /// [`Table::taken_ever`] when slots were made last.
    taken: u32,
}

struct ParkingListener {
    fd: OwnedFd,
    socket: u64,
}

impl Group {
    pub fn attach(
        programs: &mut Programs,
        number: u32,
        servers: &[ListenSocket],
        listener: u16,
    ) -> Result<Group> {
        check(servers)?;
        check_labels(servers)?;
        let descriptors = descriptors(servers)?;
        let mut group = Group {
            number,
            servers: Servers::new(number),
            model: Model::of(&servers[0], descriptors[0].as_fd())?,
            slots: BTreeMap::new(),
            gone: Vec::new(),
            unused: Vec::new(),
            most: 0,
            ready: 0,
            forbidden: 0,
            taken: 0,
        };
        group.size(programs, servers);
        programs.table.begin(number, group.model.address, listener);
        if let Err(error) = group.set_up(programs, servers, &descriptors) {
            group.undo(programs);
            return Err(error);
        }
        // Its own close is to be the last. Only now, as what follows takes long.
        drop(descriptors);
        if let Err(error) = group.make(programs, READY_MOST) {
            if !group.detach(programs, DRAIN) {
                group.forget(programs);
            }
            return Err(error);
        }
        Ok(group)
    }

    /// Sizes it for these sockets: a slot for each place that the guard gives out, and some.
    fn size(&mut self, programs: &Programs, servers: &[ListenSocket]) {
        let places: u32 = servers
            .iter()
            .fold(0, |sum, s| sum.saturating_add(s.queue_limit));
        let most = places.saturating_add(SPARE).min(MAX_SLOTS);
        let more = (self.most..most).rev();
        self.unused.splice(..0, more);
        self.most = self.most.max(most);
        let wanted = places.clamp(READY_LEAST, READY_MOST);
        self.ready = wanted.min(programs.descriptors_left());
        self.forbidden = wanted - self.ready;
    }

    fn set_up(
        &mut self,
        programs: &mut Programs,
        servers: &[ListenSocket],
        descriptors: &[OwnedFd],
    ) -> Result<()> {
        let mut indices = Vec::new();
        for (server, fd) in servers.iter().zip(descriptors) {
            indices.push(self.servers.take(programs, server, fd.as_fd())?);
        }
        let attach = |programs: &Programs| {
            let steer = programs.skel.progs.queue_steer.as_fd();
            reuseport::attach_program(steer, descriptors[0].as_fd())
        };
        let enter = |group: &Group, programs: &Programs| {
            let mut sockets = indices.iter().zip(descriptors);
            sockets.try_for_each(|(&i, fd)| group.servers.enter(programs, i, fd.as_fd()))
        };
        // A server that has SO_REUSEPORT itself, or had it from weir, is of a SO_REUSEPORT group. Then nothing is
        // parked before the program steers.
        if attach(programs).is_ok() {
            return enter(self, programs);
        }
        // If not, the first parking listener makes the group; a connection that comes just then waits in that one.
        let Some(number) = self.unused.pop() else {
            return Ok(());
        };
        let first = Slot {
            group: self.number,
            number,
        };
        self.open(programs, first)?;
        attach(programs).map_err(|e| failed("attach the program that steers connections", e))?;
        enter(self, programs)?;
        self.release(programs, first)
    }

    fn undo(&mut self, programs: &mut Programs) {
        self.close_all();
        self.servers.leave(programs);
        self.servers.give_up(true);
        self.forget(programs);
    }

    /// See [`super::Parking::change`].
    pub fn change(&mut self, programs: &mut Programs, servers: &[ListenSocket]) -> Result<bool> {
        check(servers)?;
        let known = self.servers.inodes();
        let fresh = servers.iter().filter(|s| !known.contains(&s.inode));
        let fresh: Vec<ListenSocket> = fresh.cloned().collect();
        check_labels(&fresh)?;
        let descriptors = descriptors(&fresh)?;
        for (server, fd) in fresh.iter().zip(&descriptors) {
            if Model::of(server, fd.as_fd())? != self.model {
                return Ok(false);
            }
        }
        for (server, fd) in fresh.iter().zip(&descriptors) {
            let index = self.servers.take(programs, server, fd.as_fd());
            let entered = index.and_then(|i| self.servers.enter(programs, i, fd.as_fd()));
            if let Err(error) = entered {
                programs.look_at(false)?;
                self.servers.keep(programs, &known);
                return Err(error);
            }
        }
        let inodes: Vec<u64> = servers.iter().map(|s| s.inode).collect();
        programs.look_at(false)?;
        self.servers.keep(programs, &inodes);
        self.size(programs, servers);
        Ok(true)
    }

    /// Where the server listens.
    pub fn address(&self) -> SocketAddr {
        self.model.address
    }

    /// The server's sockets.
    pub fn servers(&self) -> &Servers {
        &self.servers
    }

    /// Takes a socket out that has ceased to listen. Returns whether another one is left; if not, this one stays.
    pub fn lose(&mut self, programs: &Programs, socket: u64) -> bool {
        let others = self.servers.indices().nth(1).is_some();
        if others {
            self.servers.lose(programs, socket);
        }
        others
    }

    /// Slots that have a parking listener.
    pub fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    /// See [`super::Parking::ready`].
    pub fn ready(&self) -> (u32, u32) {
        (self.ready, self.forbidden)
    }

    /// See [`super::Parking::grow`].
    pub fn grow(&mut self, programs: &mut Programs) -> Result<()> {
        let taken = programs.table.taken_ever(self.number);
        let burst = taken.wrapping_sub(self.taken);
        self.taken = taken;
        self.make(programs, burst.clamp(STEP, STEP_MOST))
    }

    /// Makes those that are missing, at most so many.
    fn make(&mut self, programs: &mut Programs, step: u32) -> Result<()> {
        let group = self.number;
        let missing = self
            .ready
            .saturating_sub(programs.table.free(group))
            .min(step);
        if missing == 0 {
            return Ok(());
        }
        // This group is not among the others just now.
        let left = programs.descriptors_left().saturating_sub(self.slots());
        for _ in 0..missing.min(left) {
            let Some(number) = self.unused.pop() else {
                break;
            };
            if let Err(error) = self.open(programs, Slot { group, number }) {
                self.unused.push(number);
                return Err(error);
            }
        }
        Ok(())
    }

    /// See [`super::Parking::shrink`].
    pub fn shrink(&mut self, programs: &mut Programs) -> Result<()> {
        let too_many = self.slots().saturating_sub(self.ready).min(STEP);
        for _ in 0..too_many {
            let Some(slot) = programs.table.take(self.number) else {
                break;
            };
            programs.table.close(slot);
            self.close(programs, slot, "close a parking listener")?;
            self.unused.push(slot.number);
        }
        Ok(())
    }

    /// Closes the slot's parking listener; what waits in it goes to the server.
    fn close(&mut self, programs: &mut Programs, slot: Slot, what: &str) -> Result<()> {
        let Some(parking) = self.slots.remove(&slot.number) else {
            return Ok(());
        };
        // The program must know it until the kernel has migrated what waits in it.
        shutdown(parking.fd.as_raw_fd(), Shutdown::Read).map_err(|e| failed(what, e))?;
        let _ = programs.skel.maps.group_of.delete(parking.socket.bytes());
        Ok(())
    }

    fn open(&mut self, programs: &mut Programs, slot: Slot) -> Result<()> {
        let socket = self.listen(programs, slot)?;
        programs.table.open(slot, socket);
        Ok(())
    }

    /// Makes the slot's parking listener. Returns its kernel address.
    fn listen(&mut self, programs: &mut Programs, slot: Slot) -> Result<u64> {
        let fd = self.model.make()?;
        let inode = nix::sys::stat::fstat(&fd)
            .map_err(|e| failed("look at a parking listener", e))?
            .st_ino;
        let bss = programs
            .skel
            .maps
            .bss_data
            .as_deref_mut()
            .expect("it has globals");
        // SAFETY: mapped and aligned; the program reads it in this thread's call of listen().
        unsafe {
            std::ptr::write_volatile(&mut bss.opened_socket, 0);
            std::ptr::write_volatile(&mut bss.opening_group, slot.group | PARKED);
            std::ptr::write_volatile(&mut bss.opening_inode, inode);
        }
        let listens = listen(&fd, self.model.backlog());
        // SAFETY: as above.
        let socket = unsafe {
            std::ptr::write_volatile(&mut bss.opening_inode, 0);
            std::ptr::read_volatile(&bss.opened_socket)
        };
        let maps = &programs.skel.maps;
        if let Err(errno) = listens {
            let _ = maps.group_of.delete(socket.bytes());
            return Err(failed("listen for parked connections", errno));
        }
        if socket == 0 {
            return Err(Error::Failed {
                what: "find the address of a parking listener".into(),
                cause: "the tracepoint did not tell".into(),
            });
        }
        let token = u64::from(slot.group) << 32 | u64::from(slot.number);
        let event = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, token);
        let entered = enter_slot(&maps.slot_socks, slot, fd.as_fd())
            .map_err(of_libbpf("enter a parking listener"))
            .and_then(|()| {
                let added = programs.epoll.add(&fd, event);
                added.map_err(|e| failed("wait for parked connections", e))
            });
        if let Err(error) = entered {
            // The program must know it until the kernel has migrated what came meanwhile.
            drop(fd);
            let _ = maps.group_of.delete(socket.bytes());
            return Err(error);
        }
        self.slots
            .insert(slot.number, ParkingListener { fd, socket });
        Ok(socket)
    }

    /// See [`super::Parking::release`].
    ///
    /// The slot gets a new socket. listen() on the old one would cost less on an idle port, but it would
    /// compare that socket, which its SO_REUSEPORT group still knows for the migration, with every other
    /// on the port, TIME-WAIT ones too (inet_csk_bind_conflict), and hold the lock that each new
    /// connection needs: tens of thousands of closed connections had a busy server lose half of its
    /// accepts. A new socket is not compared (sk_reuseport_match).
    pub fn release(&mut self, programs: &mut Programs, slot: Slot) -> Result<()> {
        if !self.slots.contains_key(&slot.number) {
            return Ok(());
        }
        // Before the new one is made, which may have its address.
        let closed = self.close(programs, slot, "release a parked connection");
        match closed.and_then(|()| self.listen(programs, slot)) {
            Ok(socket) => programs.table.give_back_with(slot, socket),
            Err(error) => {
                // Its connection went to the server when the listener was closed.
                programs.table.lose(slot);
                self.unused.push(slot.number);
                return Err(error);
            }
        }
        Ok(())
    }

    /// See [`super::Parking::reset`].
    pub fn reset(&mut self, slot: Slot, table: &Table) -> Result<Option<Ends>> {
        let Some(parking) = self.slots.get(&slot.number) else {
            return Ok(None);
        };
        let Ok(fd) = nix::sys::socket::accept4(parking.fd.as_raw_fd(), SockFlag::SOCK_CLOEXEC)
        else {
            return Ok(None);
        };
        // SAFETY: a new descriptor of ours.
        let connection = TcpStream::from(unsafe { OwnedFd::from_raw_fd(fd) });
        let linger = libc::linger {
            l_onoff: 1,
            l_linger: 0,
        };
        nix::sys::socket::setsockopt(&connection, nix::sys::socket::sockopt::Linger, &linger)
            .map_err(|e| failed("reset a parked connection", e))?;
        table.give_back(slot);
        // The client may have reset it itself by now.
        let ends = connection.peer_addr().and_then(|source| {
            let destination = connection.local_addr()?;
            Ok(Ends {
                source,
                destination,
            })
        });
        Ok(ends.ok())
    }

    /// Gives slots back whose connection never came. Call after `queue_look` with `sweep`.
    /// `looked_ns`: before that look. By now, on a busy machine, what it saw may be old.
    pub fn sweep(&mut self, table: &Table, looked_ns: u64) {
        let group = self.number;
        for &number in self.slots.keys() {
            let slot = Slot { group, number };
            let (taken_ns, holds) = table.taken_since(slot);
            if taken_ns != 0 && holds == 0 && looked_ns > taken_ns + NEVER_CAME_NS {
                table.give_back(slot);
            }
        }
    }

    /// See [`super::Parking::detach`]. Returns whether handshakes are left after `drain` that the kernel is still to
    /// migrate: then the program stays, and with it the group's entries.
    pub fn detach(&mut self, programs: &mut Programs, drain: Duration) -> bool {
        if programs.look_at(false).is_err() || !self.listens(programs) {
            self.leave_the_port(&programs.table);
            return false;
        }
        programs.table.stop_parking(self.number);
        let open = self.drain(programs, drain);
        self.servers.leave(programs);
        self.servers.give_up(!open);
        open
    }

    /// Closes all parking listeners, last those on which handshakes are under way; what is established goes to the
    /// server at once. Returns whether such handshakes are left after `drain`.
    fn drain(&mut self, programs: &mut Programs, drain: Duration) -> bool {
        let end = Instant::now() + drain;
        loop {
            let looked_ns = now_ns();
            let listens = programs.look_at(true).is_ok() && self.listens(programs);
            let over = !listens || Instant::now() >= end;
            let numbers: Vec<u32> = self.slots.keys().copied().collect();
            for number in numbers {
                let slot = Slot {
                    group: self.number,
                    number,
                };
                let busy = programs.table.half_open(slot) > 0;
                let (taken_ns, holds) = programs.table.taken_since(slot);
                // A connection that was sent here just now may be on the way: its SYN would find a closed socket.
                let expected = taken_ns + ON_THE_WAY_NS > looked_ns && holds == 0;
                if over || (!busy && !expected) {
                    self.close_for_good(programs, number, busy);
                }
            }
            if self.slots.is_empty() {
                self.gone
                    .retain(|(since, _)| since.elapsed() < HANDSHAKE_OVER);
                return listens && !self.gone.is_empty();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Closes a slot that is not to be used again. `busy`: the kernel is still to migrate what began on it.
    fn close_for_good(&mut self, programs: &Programs, number: u32, busy: bool) {
        let Some(parking) = self.slots.remove(&number) else {
            return;
        };
        let socket = parking.socket;
        drop(parking);
        if busy {
            self.gone.push((Instant::now(), socket));
        } else {
            programs.forget_socket(socket, self.number | PARKED);
        }
    }

    /// Takes the program off that was left for the last handshakes.
    pub fn give_up_program(&self) {
        self.servers.give_up(true);
    }

    /// Takes over what a group with a socket of this one's servers has left behind.
    pub fn adopt(&mut self, programs: &mut Programs, mut other: Group) {
        let was = other.number | PARKED;
        for (since, socket) in std::mem::take(&mut other.gone) {
            let group_of = &programs.skel.maps.group_of;
            let is = group_of.lookup(socket.bytes(), MapFlags::ANY);
            if is.is_ok_and(|is| is.as_deref() == Some(was.bytes())) {
                let mine = self.number | PARKED;
                let _ = group_of.update(socket.bytes(), mine.bytes(), MapFlags::ANY);
                self.gone.push((since, socket));
            }
        }
        let too_many = self.gone.len().saturating_sub(GONE_MOST);
        for (_, socket) in self.gone.drain(..too_many) {
            programs.forget_socket(socket, self.number | PARKED);
        }
        other.forget(programs);
    }

    /// Whether a socket of the server listened at the last look.
    fn listens(&self, programs: &Programs) -> bool {
        let table = &programs.table;
        let mut indices = self.servers.indices();
        indices.any(|i| table.server(self.number, i).listening)
    }

    /// Closes all parking listeners of a server that is gone. It may want to bind anew just now, so there is
    /// nothing but the closing itself.
    pub fn leave_the_port(&mut self, table: &Table) {
        table.stop_parking(self.number);
        // A server without SO_REUSEPORT leaves nobody behind to whom connections could go: they would wander
        // from one parking listener to the next until the last is closed, which takes three times as long.
        let heirless = self.servers.are_lent();
        if let Some(any) = self.slots.values().next().filter(|_| heirless) {
            reuseport::give_up(any.fd.as_fd(), false, true);
        }
        self.close_all();
    }

    /// Closes all parking listeners. The program still knows them.
    fn close_all(&mut self) {
        let (now, slots) = (Instant::now(), std::mem::take(&mut self.slots));
        self.gone.extend(slots.values().map(|p| (now, p.socket)));
    }

    /// Takes the group out of the tables.
    pub fn forget(&mut self, programs: &mut Programs) {
        self.servers.forget(programs);
        for (_, socket) in self.gone.drain(..) {
            programs.forget_socket(socket, self.number | PARKED);
        }
        programs.table.end(self.number);
        let heir = programs.table.heir(self.number);
        if heir != 0 {
            // Before it has listened and been found, others may follow, but not many.
            programs.heirs.truncate(HEIRS - 1);
            programs.heirs.insert(0, heir);
        }
    }
}

/// A descriptor of each.
fn descriptors(servers: &[ListenSocket]) -> Result<Vec<OwnedFd>> {
    let servers = servers.iter();
    servers.map(|s| owner::descriptor(s.inode)).collect()
}

fn unsupported(cause: &str, hint: &str) -> Result<()> {
    Err(Error::Unsupported {
        what: "parking connections before this server".into(),
        cause: cause.into(),
        hint: hint.into(),
    })
}

/// See [`super::Parking::check`].
pub fn check(servers: &[ListenSocket]) -> Result<()> {
    if servers.is_empty() || servers.len() > MAX_SERVERS as usize {
        return unsupported(
            &format!("it listens on one address with {} sockets", servers.len()),
            "1 to 64 sockets can be served",
        );
    }
    if servers.iter().any(|s| s.mptcp) {
        return unsupported(
            "its listening socket is MPTCP, whose connections the kernel does not migrate",
            "Go programs do without MPTCP with GODEBUG=multipathtcp=0",
        );
    }
    if servers.iter().any(|s| s.steered) {
        return unsupported(
            "its SO_REUSEPORT group has a BPF program of its own that chooses the socket",
            "queue = \"fifo\" leaves it alone",
        );
    }
    match servers.iter().find_map(|s| s.own_filters.because()) {
        Some(because) => unsupported(because, NOT_PARKED),
        None => Ok(()),
    }
}

/// Whether parking listeners for these have the label that the server's own have.
fn check_labels(servers: &[ListenSocket]) -> Result<()> {
    match label::because(servers.iter().map(|s| s.inode)) {
        Some(because) => unsupported(&because, NOT_PARKED),
        None => Ok(()),
    }
}

fn enter_slot(
    slot_socks: &libbpf_rs::MapMut<'_>,
    slot: Slot,
    fd: BorrowedFd<'_>,
) -> libbpf_rs::Result<()> {
    let key = slot.group * MAX_SLOTS + slot.number;
    let value = fd.as_raw_fd() as u64;
    slot_socks.update(key.bytes(), value.bytes(), MapFlags::ANY)
}

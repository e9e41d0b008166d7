//! The parking listeners beside one server's sockets.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore, MapFlags};
use nix::errno::Errno;
use nix::sys::epoll::{EpollEvent, EpollFlags};
use nix::sys::socket::{
    AddressFamily, Backlog, Shutdown, SockFlag, SockType, SockaddrStorage, bind, listen, shutdown,
    socket,
};
use nix::unistd::{Uid, fchown};
use weir_core::abi::{MAX_SERVERS, MAX_SLOTS, PARKED};

use super::options::{self, Options, set_number};
use super::owner;
use super::programs::{Programs, failed};
use super::reuseport;
use super::table::Table;
use super::types::{Ends, Slot};
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
/// How long the kernel may take to free the program of a weir that was killed, which still holds the
/// server's socket in its table.
const FREED_WITHIN: Duration = Duration::from_secs(2);
/// How many sockets are remembered that SO_REUSEPORT was lent to while they were bound.
const HEIRS: usize = 32;
/// How long handshakes may take to end before parking listeners are closed under them. The kernel
/// migrates them too; this only spares it.
const DRAIN: Duration = Duration::from_millis(20);

/// See [`super::Parking::attach`].
pub struct Group {
    /// The server's sockets, by inode and kernel address.
    servers: Vec<(u64, u64)>,
    /// Those on which SO_REUSEPORT was off before.
    lent: Vec<u64>,
    model: Model,
    slots: BTreeMap<u32, Parking>,
    /// Kernel addresses of slots that are closed, while the program may still need them.
    gone: Vec<u64>,
    /// Numbers below `most` that are no slot's, the least one last.
    unused: Vec<u32>,
    /// How many slots are to be free.
    ready: u32,
    /// As many more would stand ready, but for the limit of descriptors.
    forbidden: u32,
    /// [`Table::taken_ever`] when slots were made last.
    taken: u32,
}

/// What a parking listener has to be like.
struct Model {
    address: SocketAddr,
    uid: u32,
    backlog: i32,
    options: Options,
}

struct Parking {
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
        let descriptors: Vec<OwnedFd> = servers
            .iter()
            .map(|s| owner::descriptor(s.inode))
            .collect::<Result<_>>()?;
        let first = descriptors[0].as_fd();
        // One for each place that the guard gives out, and some.
        let places: u32 = servers
            .iter()
            .fold(0, |sum, s| sum.saturating_add(s.queue_limit));
        let most = places.saturating_add(SPARE).min(MAX_SLOTS);
        let wanted = places.clamp(READY_LEAST, READY_MOST);
        let ready = wanted.min(programs.descriptors_left());
        let mut group = Group {
            servers: servers.iter().map(|s| (s.inode, s.socket)).collect(),
            lent: Vec::new(),
            model: Model::of(&servers[0], first)?,
            slots: BTreeMap::new(),
            gone: Vec::new(),
            // Number 0 is made before the others.
            unused: (1..most).rev().collect(),
            ready,
            forbidden: wanted - ready,
            taken: 0,
        };
        let sockets: Vec<u64> = servers.iter().map(|s| s.socket).collect();
        programs
            .table
            .begin(number, &sockets, group.model.address, listener);
        if let Err(error) = group.set_up(programs, number, &descriptors) {
            group.undo(programs, number, &descriptors);
            return Err(error);
        }
        // Its own close is to be the last. Only now, as what follows takes long.
        drop(descriptors);
        if let Err(error) = group.make(programs, number, READY_MOST) {
            if !group.detach(programs, number) {
                group.forget(programs, number);
            }
            return Err(error);
        }
        Ok(group)
    }

    fn set_up(&mut self, programs: &mut Programs, number: u32, servers: &[OwnedFd]) -> Result<()> {
        let lent = reuseport::cookies();
        for (i, fd) in servers.iter().enumerate() {
            let socket = self.servers[i].1;
            programs
                .skel
                .maps
                .group_of
                .update(socket.bytes(), number.bytes(), MapFlags::ANY)
                .map_err(of_libbpf("enter the server's socket"))?;
            let off =
                options::number(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT) == Some(0);
            if off {
                set_number(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)
                    .map_err(|e| failed("set SO_REUSEPORT on the server's socket", e))?;
            }
            let cookie = reuseport::cookie(fd.as_fd());
            if off || lent.contains(&cookie) || programs.heirs.contains(&cookie) {
                self.lent.push(self.servers[i].0);
                programs.table.lend(number, i as u32);
            }
        }
        // A server's group exists already if it has SO_REUSEPORT itself. If not, the first parking
        // listener makes it; a connection that comes just then waits in that one, to be released.
        let program = programs.skel.progs.queue_steer.as_fd().as_raw_fd();
        let in_force = attach_program(program, servers[0].as_fd());
        self.open(
            programs,
            Slot {
                group: number,
                number: 0,
            },
        )?;
        if in_force.is_err() {
            attach_program(program, servers[0].as_fd())
                .map_err(|e| failed("attach the program that steers connections", e))?;
        }
        for (i, fd) in servers.iter().enumerate() {
            let key = number * MAX_SERVERS + i as u32;
            enter_server(&programs.skel.maps.server_socks, key, fd.as_fd())?;
        }
        Ok(())
    }

    fn undo(&mut self, programs: &mut Programs, number: u32, servers: &[OwnedFd]) {
        self.gone = self.slots.values().map(|p| p.socket).collect();
        self.slots.clear();
        for (fd, (inode, _)) in servers.iter().zip(&self.servers) {
            reuseport::give_up(fd.as_fd(), self.lent.contains(inode), true);
        }
        self.forget(programs, number);
    }

    /// Number of the server's sockets.
    pub fn servers(&self) -> u32 {
        self.servers.len() as u32
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
    pub fn grow(&mut self, programs: &mut Programs, group: u32) -> Result<()> {
        let taken = programs.table.taken_ever(group);
        let burst = taken.wrapping_sub(self.taken);
        self.taken = taken;
        self.make(programs, group, burst.clamp(STEP, STEP_MOST))
    }

    /// Makes those that are missing, at most so many.
    fn make(&mut self, programs: &mut Programs, group: u32, step: u32) -> Result<()> {
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
    pub fn shrink(&mut self, programs: &mut Programs, group: u32) -> Result<()> {
        let too_many = self.slots().saturating_sub(self.ready).min(STEP);
        for _ in 0..too_many {
            let Some(slot) = programs.table.take(group) else {
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
        enter_slot(&maps.slot_socks, slot, fd.as_fd())
            .map_err(of_libbpf("enter a parking listener"))?;
        let token = u64::from(slot.group) << 32 | u64::from(slot.number);
        programs
            .epoll
            .add(
                &fd,
                EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, token),
            )
            .map_err(|e| failed("wait for parked connections", e))?;
        self.slots.insert(slot.number, Parking { fd, socket });
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
    pub fn sweep(&mut self, group: u32, table: &Table, looked_ns: u64) {
        for &number in self.slots.keys() {
            let slot = Slot { group, number };
            let (taken_ns, holds) = table.taken_since(slot);
            if taken_ns != 0 && holds == 0 && looked_ns > taken_ns + NEVER_CAME_NS {
                table.give_back(slot);
            }
        }
    }

    /// See [`super::Parking::detach`]. Returns whether handshakes are left that the kernel is still to migrate:
    /// then the program stays, and with it the group's entries.
    pub fn detach(&mut self, programs: &mut Programs, group: u32) -> bool {
        if programs.look_at(false).is_err() || !self.listens(programs, group) {
            self.leave_the_port(&programs.table, group);
            return false;
        }
        programs.table.stop_parking(group);
        let open = self.wait_for_handshakes(programs, group);
        self.gone = self.slots.values().map(|p| p.socket).collect();
        self.slots.clear();
        for (inode, _) in &self.servers {
            if let Ok(fd) = owner::descriptor(*inode) {
                reuseport::give_up(fd.as_fd(), self.lent.contains(inode), !open);
            }
        }
        open
    }

    /// Whether a socket of the server listened at the last look.
    fn listens(&self, programs: &Programs, group: u32) -> bool {
        (0..self.servers()).any(|i| programs.table.server(group, i).listening)
    }

    /// Closes all parking listeners of a server that is gone. It may want to bind anew just now, so there is
    /// nothing but the closing itself.
    pub fn leave_the_port(&mut self, table: &Table, group: u32) {
        table.stop_parking(group);
        self.gone = self.slots.values().map(|p| p.socket).collect();
        // A server without SO_REUSEPORT leaves nobody behind to whom connections could go: they would wander
        // from one parking listener to the next until the last is closed, which takes three times as long.
        let heirless = self.lent.len() == self.servers.len();
        if let Some(any) = self.slots.values().next().filter(|_| heirless) {
            reuseport::give_up(any.fd.as_fd(), false, true);
        }
        self.slots.clear();
    }

    /// Waits for a moment until no handshake is under way on a parking listener. Returns whether one is.
    fn wait_for_handshakes(&self, programs: &mut Programs, group: u32) -> bool {
        let end = Instant::now() + DRAIN;
        loop {
            if programs.look_at(true).is_err() || !self.listens(programs, group) {
                return false;
            }
            // What is established is migrated when the listener closes.
            if !self.slots.keys().any(|&number| {
                let slot = Slot { group, number };
                programs.table.half_open(slot) > 0
            }) {
                return false;
            }
            if Instant::now() >= end {
                return true;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether the server has, or had, a socket at this kernel address.
    pub fn serves_with(&self, socket: u64) -> bool {
        self.servers.iter().any(|(_, its)| *its == socket)
    }

    /// Takes the group out of the tables.
    pub fn forget(&mut self, programs: &mut Programs, group: u32) {
        let servers = self.servers.iter().map(|(_, socket)| (*socket, group));
        let parked = self.gone.drain(..).map(|socket| (socket, group | PARKED));
        let group_of = &programs.skel.maps.group_of;
        for (socket, was) in servers.chain(parked) {
            // The address may be another group's socket's by now.
            let is = group_of.lookup(socket.bytes(), MapFlags::ANY);
            if is.is_ok_and(|is| is.as_deref() == Some(was.bytes())) {
                let _ = group_of.delete(socket.bytes());
            }
        }
        programs.table.end(group);
        let heir = programs.table.heir(group);
        if heir != 0 {
            // Before it has listened and been found, others may follow, but not many.
            programs.heirs.truncate(HEIRS - 1);
            programs.heirs.insert(0, heir);
        }
    }
}

/// Whether parking can serve these sockets.
fn check(servers: &[ListenSocket]) -> Result<()> {
    let unsupported = |cause: &str, hint: &str| {
        Err(Error::Unsupported {
            what: "parking connections before this server".into(),
            cause: cause.into(),
            hint: hint.into(),
        })
    };
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
    Ok(())
}

impl Model {
    fn of(server: &ListenSocket, fd: BorrowedFd<'_>) -> Result<Model> {
        let stat =
            nix::sys::stat::fstat(fd).map_err(|e| failed("look at the server's socket", e))?;
        let address = SocketAddr::new(server.ip, server.port);
        let fresh = new_socket(&address)?;
        Ok(Model {
            address,
            uid: stat.st_uid,
            backlog: server.queue_limit.clamp(1, i32::MAX as u32) as i32,
            options: Options::of(fd, fresh.as_fd()),
        })
    }

    fn backlog(&self) -> Backlog {
        Backlog::new(self.backlog).unwrap_or(Backlog::MAXCONN)
    }

    /// A socket bound to the server's address, as the server's own is.
    fn make(&self) -> Result<OwnedFd> {
        let fd = new_socket(&self.address)?;
        let what = |what: &str| format!("make a parking listener: {what}");
        let raw = fd.as_raw_fd();
        // Only sockets of one user are of one SO_REUSEPORT group.
        fchown(&fd, Some(Uid::from_raw(self.uid)), None)
            .map_err(|e| failed(&what("give it to the server's user"), e))?;
        self.options
            .apply(fd.as_fd())
            .map_err(|e| failed(&what("set the server's socket options"), e))?;
        for name in [libc::SO_REUSEADDR, libc::SO_REUSEPORT] {
            set_number(raw, libc::SOL_SOCKET, name, 1)
                .map_err(|e| failed(&what("set SO_REUSEPORT"), e))?;
        }
        bind(raw, &SockaddrStorage::from(self.address))
            .map_err(|e| failed(&what(&format!("bind it to {}", self.address)), e))?;
        Ok(fd)
    }
}

fn new_socket(address: &SocketAddr) -> Result<OwnedFd> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::Inet,
        SocketAddr::V6(_) => AddressFamily::Inet6,
    };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket(family, SockType::Stream, flags, None).map_err(|e| failed("make a socket", e))
}

fn attach_program(program: i32, server: BorrowedFd<'_>) -> std::result::Result<(), Errno> {
    let raw = server.as_raw_fd();
    set_number(
        raw,
        libc::SOL_SOCKET,
        libc::SO_ATTACH_REUSEPORT_EBPF,
        program,
    )
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

/// Enters a server's socket. One that is still in the table of a weir that was killed is free only
/// once the kernel has freed that table, with the program that this one replaced.
fn enter_server(server_socks: &libbpf_rs::MapMut<'_>, key: u32, fd: BorrowedFd<'_>) -> Result<()> {
    let value = fd.as_raw_fd() as u64;
    let end = Instant::now() + FREED_WITHIN;
    loop {
        // SAFETY: key and value are readable, 4 and 8 bytes as the map was made for.
        let result = unsafe {
            libbpf_sys::bpf_map_update_elem(
                server_socks.as_fd().as_raw_fd(),
                std::ptr::from_ref(&key).cast(),
                std::ptr::from_ref(&value).cast(),
                libbpf_sys::BPF_ANY.into(),
            )
        };
        match Errno::from_raw(-result) {
            _ if result == 0 => return Ok(()),
            Errno::EBUSY if Instant::now() < end => std::thread::sleep(Duration::from_millis(1)),
            e => return Err(failed("enter the server's socket", e)),
        }
    }
}

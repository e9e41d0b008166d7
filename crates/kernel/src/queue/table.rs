//! The tables that are shared with the BPF programs, mapped into memory (struct parking_group).

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::ptr::{addr_of, addr_of_mut};
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

use weir_core::abi::{MAX_GROUPS, MAX_SLOTS};
use weir_core::queue::{PRIORITIES, ParkingRule};

use super::skel::types::{parking_group, parking_rule, parking_server};
use super::types::{ServerQueue, Slot, Taken};
use crate::clock::now_ns;
use crate::error::Result;
use crate::object::{Mapped, plain};
use crate::own_filters::OwnFilters;

plain!(parking_group);

/// The table, one [`parking_group`] a group.
pub struct Table(Mapped<parking_group>);

fn raw(rule: ParkingRule) -> parking_rule {
    parking_rule {
        depth: rule.depth,
        before: rule.before.into(),
        top: rule.top.into(),
    }
}

impl Table {
    pub fn map(fd: BorrowedFd<'_>) -> Result<Table> {
        Mapped::of(fd, MAX_GROUPS, "map the table of parking listeners").map(Table)
    }

    fn group(&self, group: u32) -> *mut parking_group {
        self.0.at(group)
    }

    /// Begins a group whose server has no sockets yet. Nothing is parked.
    pub fn begin(&self, group: u32, address: SocketAddr, listener: u16) {
        let ip = match address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let g = self.group(group);
        // SAFETY: plain memory inside the mapping; BPF programs find no socket of this group yet.
        unsafe {
            std::ptr::write_bytes(g, 0, 1);
            (*g).port = address.port();
            (*g).addr = std::mem::transmute::<[u8; 16], [u32; 4]>(ip.octets());
            (*g).listener = listener + 1;
            (*g).rule = raw(ParkingRule::default());
        }
    }

    /// No program looks at the group any more.
    pub fn end(&self, group: u32) {
        // SAFETY: as in begin().
        unsafe { addr_of_mut!((*self.group(group)).servers).write_volatile(0) };
    }

    /// Enters a socket of the server, by its kernel address. `lent`: its SO_REUSEPORT is weir's.
    pub fn set_server(&self, group: u32, index: u32, socket: u64, lent: bool) {
        let g = self.group(group);
        let server = parking_server {
            socket,
            lent: lent.into(),
            ..Default::default()
        };
        // SAFETY: inside the mapping. The programs may read it half written: an address that is not (any more)
        // that of a listening socket is no server's to them.
        unsafe {
            addr_of_mut!((*g).server[index as usize]).write_volatile(server);
            fence(Ordering::SeqCst);
            let servers = addr_of_mut!((*g).servers);
            servers.write_volatile(servers.read_volatile().max(index + 1));
        }
    }

    /// The server has no socket of this index any more.
    pub fn clear_server(&self, group: u32, index: u32) {
        // SAFETY: as above.
        unsafe {
            addr_of_mut!((*self.group(group)).server[index as usize])
                .write_volatile(parking_server::default());
        }
    }

    /// The socket that it was lent to when the server was gone; 0: none.
    pub fn heir(&self, group: u32) -> u64 {
        // SAFETY: as above.
        unsafe { addr_of!((*self.group(group)).heir).read_volatile() }
    }

    pub fn stop_parking(&self, group: u32) {
        // SAFETY: an aligned field inside the mapping, which the programs only read.
        unsafe { addr_of_mut!((*self.group(group)).alive_until_ns).write_volatile(0) };
    }

    pub fn renew(&self, group: u32, period: Duration, park: Option<Duration>, rule: ParkingRule) {
        let (g, now) = (self.group(group), now_ns());
        // SAFETY: aligned fields inside the mapping. `park_until_ns` is also set by queue_steer; the
        // later time need not win, as the next connection that finds the queue full sets it again.
        unsafe {
            addr_of_mut!((*g).rule).write_volatile(raw(rule));
            if let Some(park) = park {
                addr_of_mut!((*g).park_until_ns).write_volatile(now + park.as_nanos() as u64);
            }
            addr_of_mut!((*g).alive_until_ns).write_volatile(now + period.as_nanos() as u64);
        }
    }

    pub fn server(&self, group: u32, i: u32) -> ServerQueue {
        // SAFETY: a field inside the mapping, written by queue_look, which this thread runs.
        let s = unsafe { addr_of!((*self.group(group)).server[i as usize]).read_volatile() };
        ServerQueue {
            length: s.length,
            limit: s.limit,
            half_open: s.half_open,
            listening: s.listening != 0,
            own_filters: OwnFilters::of(s.own_filters.into()),
        }
    }

    pub fn taken(&self, slot: Slot) -> Option<Taken> {
        // SAFETY: a field inside the mapping; torn at worst between two connections of one slot.
        let s = unsafe {
            addr_of!((*self.group(slot.group)).slot[slot.number as usize]).read_volatile()
        };
        (s.taken_ns != 0).then_some(Taken {
            class: s.class,
            priority: s.priority,
        })
    }

    /// Enters a parking listener, which is free from now on.
    pub fn open(&self, slot: Slot, socket: u64) {
        let g = self.group(slot.group);
        // SAFETY: inside the mapping; the programs do not know the slot yet.
        unsafe {
            let s = addr_of_mut!((*g).slot[slot.number as usize]);
            addr_of_mut!((*s).socket).write_volatile(socket);
            addr_of_mut!((*s).taken_ns).write_volatile(0);
            let slots = addr_of_mut!((*g).slots);
            slots.write_volatile(slots.read_volatile().max(slot.number + 1));
        }
        self.free_again(slot);
    }

    /// Gives a slot to the ring of free ones, unless it is free: a connection that was not sent there by
    /// queue_steer takes no slot.
    pub fn give_back(&self, slot: Slot) {
        if self.left(slot) {
            self.free_again(slot);
        }
    }

    /// The connection that was sent to the slot waits there no more. Returns whether there was one.
    fn left(&self, slot: Slot) -> bool {
        let Some(taken) = self.taken(slot) else {
            return false;
        };
        let g = self.group(slot.group);
        let i = usize::from(taken.priority.clamp(1, PRIORITIES)) - 1;
        // SAFETY: aligned fields inside the mapping; queue_steer adds to `waits` atomically, and knows the slot
        // only once it is in the ring of free ones.
        unsafe {
            AtomicU32::from_ptr(addr_of_mut!((*g).waits[i])).fetch_sub(1, Ordering::SeqCst);
            addr_of_mut!((*g).slot[slot.number as usize].taken_ns).write_volatile(0);
        }
        true
    }

    /// The slot has lost its parking listener while it was taken.
    pub fn lose(&self, slot: Slot) {
        self.left(slot);
        self.close(slot);
    }

    /// The same, with another parking listener.
    pub fn give_back_with(&self, slot: Slot, socket: u64) {
        let g = self.group(slot.group);
        // SAFETY: an aligned field inside the mapping, which the programs only read.
        unsafe {
            addr_of_mut!((*g).slot[slot.number as usize].socket).write_volatile(socket);
        }
        self.give_back(slot);
    }

    fn free_again(&self, slot: Slot) {
        let g = self.group(slot.group);
        // SAFETY: inside the mapping. The programs read an entry only between head and tail, and there
        // are no more slots than entries, so the one written is not read until the tail has moved.
        unsafe {
            let tail = addr_of_mut!((*g).free_tail);
            let at = tail.read_volatile();
            addr_of_mut!((*g).free[(at % MAX_SLOTS) as usize]).write_volatile(slot.number as u16);
            fence(Ordering::SeqCst);
            tail.write_volatile(at.wrapping_add(1));
        }
    }

    /// Takes a slot from the ring of free ones, as queue_steer does.
    pub fn take(&self, group: u32) -> Option<Slot> {
        let g = self.group(group);
        // SAFETY: aligned fields inside the mapping. queue_steer takes by compare and swap too, and only
        // this thread gives back, so an entry read before the swap is the one that is taken.
        unsafe {
            let head = AtomicU32::from_ptr(addr_of_mut!((*g).free_head));
            let at = head.load(Ordering::SeqCst);
            if at == addr_of!((*g).free_tail).read_volatile() {
                return None;
            }
            let number = addr_of!((*g).free[(at % MAX_SLOTS) as usize]).read_volatile();
            let next = at.wrapping_add(1);
            let taken = head.compare_exchange(at, next, Ordering::SeqCst, Ordering::SeqCst);
            taken.ok().map(|_| Slot {
                group,
                number: number.into(),
            })
        }
    }

    /// The slot has no parking listener any more.
    pub fn close(&self, slot: Slot) {
        let g = self.group(slot.group);
        // SAFETY: an aligned field inside the mapping, which the programs only read.
        unsafe { addr_of_mut!((*g).slot[slot.number as usize].socket).write_volatile(0) };
    }

    /// How many slots were taken, ever; wraps.
    pub fn taken_ever(&self, group: u32) -> u32 {
        // SAFETY: an aligned field inside the mapping.
        unsafe { addr_of!((*self.group(group)).free_head).read_volatile() }
    }

    /// How many connections went straight to the server, ever, and how many of them while others were parked;
    /// both wrap.
    pub fn straight_ever(&self, group: u32) -> (u32, u32) {
        let g = self.group(group);
        // SAFETY: aligned fields inside the mapping.
        unsafe {
            (
                addr_of!((*g).straight).read_volatile(),
                addr_of!((*g).overtook).read_volatile(),
            )
        }
    }

    /// Free slots now.
    pub fn free(&self, group: u32) -> u32 {
        let g = self.group(group);
        // SAFETY: aligned fields inside the mapping.
        unsafe {
            addr_of!((*g).free_tail)
                .read_volatile()
                .wrapping_sub(addr_of!((*g).free_head).read_volatile())
        }
    }

    /// When a connection was sent to the slot last, and what it held at the last sweep.
    pub fn taken_since(&self, slot: Slot) -> (u64, u16) {
        let g = self.group(slot.group);
        // SAFETY: as in taken().
        let s = unsafe { addr_of!((*g).slot[slot.number as usize]).read_volatile() };
        (s.taken_ns, s.length + s.half_open)
    }

    /// Handshakes under way in the slot, at the last sweep.
    pub fn half_open(&self, slot: Slot) -> u16 {
        let g = self.group(slot.group);
        // SAFETY: as in taken().
        unsafe { addr_of!((*g).slot[slot.number as usize].half_open).read_volatile() }
    }
}

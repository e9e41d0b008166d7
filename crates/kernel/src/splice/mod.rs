//! Loads the program that redirects the short messages of tunnels inside the kernel
//! (bpf/splice.bpf.c), and manages the tunnels of one thread.
//!
//! A tunnel's two sockets are [joined](SpliceLane::join) for as long as the tunnel lasts. They are
//! [armed](SplicePair::arm) and [disarmed](SplicePair::disarm) time and again. After each disarming, the caller
//! waits for each way until the redirected bytes [are sent](SplicePair::is_sent) before it sends there, and
//! receives the bytes that were passed to it. Joined sockets never become ordinary sockets again: the
//! kernel would drop what arrives at that moment.
//!
//! A closed socket leaves the map by itself, and the end of the process removes everything. An open
//! socket stays in the map: deleting it there detaches the program without the socket's lock. A packet
//! that is about to be judged then finds no program and is dropped, although it was acknowledged
//! (sk_psock_verdict_recv of net/core/skmsg.c; under a flood within a hundred times). No system call
//! deletes under that lock.

pub(crate) mod skel;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};

use weir_core::abi::{SPLICE_LANES, SPLICE_SLOTS};

use crate::cookies;
use crate::error::{Error, Result, of_libbpf};
use crate::object::{self, Mapped, Plain, Ring, open_in, plain};
use skel::SpliceSkelBuilder;
use skel::types::splice_way;

plain!(splice_way);

/// Pairs that a thread takes at a time, and at most.
const BLOCK: u32 = 64;
const PAIRS_PER_LANE: usize = 8192;
/// A record with its header has 16 bytes, and each way has one at most for each time that it is
/// armed: room for all. A way that finds none tells with its next packet.
const RING_BYTES: u32 = 32 * PAIRS_PER_LANE as u32;
/// Older kernels lose redirected packets when a receiver is full for a moment ("bpf, sockmap: Fix
/// data lost during EAGAIN retries", 6.15), which no trial can show.
const LEAST_KERNEL: (u32, u32) = (6, 15);

/// One way of a tunnel: 0 from its first socket to its second, 1 back.
pub type Way = usize;

/// The two sockets of a tunnel. Way 0 is received from the first.
pub type Sockets<'a> = [BorrowedFd<'a>; 2];

/// The loaded program with its maps, for all threads.
#[derive(Clone)]
pub struct Splice(Arc<Maps>);

struct Maps {
    sockets: MapHandle,
    slots: MapHandle,
    rings: MapHandle,
    ways: Ways,
    next_lane: AtomicU32,
    next_pair: AtomicU32,
}

impl Splice {
    /// Loads the program.
    ///
    /// # Errors
    /// [`Error::Denied`] without root, [`Error::Unsupported`] where the kernel lacks what it takes.
    pub fn load() -> Result<Splice> {
        check_kernel()?;
        let mut storage = MaybeUninit::uninit();
        const WHAT: &str = "load the program that redirects";
        let open = open_in::<SpliceSkelBuilder>(&mut storage).map_err(of_libbpf(WHAT))?;
        let skel = object::load(open, WHAT).map_err(|error| match error {
            Error::Denied { .. } => Error::Denied {
                what: "load BPF programs".into(),
                cause: "needs root".into(),
            },
            other => other,
        })?;
        let maps = &skel.maps;
        // The map holds the program from here on.
        skel.progs
            .splice_verdict
            .attach_sockmap(maps.sockets.as_fd().as_raw_fd())
            .map_err(of_libbpf("attach the program to the map of sockets"))?;
        let keep = of_libbpf("keep the maps of redirected sockets");
        let handles = (|| {
            Ok((
                MapHandle::try_from(&maps.sockets)?,
                MapHandle::try_from(&maps.slots)?,
                MapHandle::try_from(&maps.rings)?,
            ))
        })();
        let (sockets, slots, rings) = handles.map_err(keep)?;
        Ok(Splice(Arc::new(Maps {
            sockets,
            slots,
            rings,
            ways: Ways::map(maps.ways.as_fd())?,
            next_lane: AtomicU32::new(0),
            next_pair: AtomicU32::new(0),
        })))
    }

    /// Prepares the tunnels of one more thread. Call it in that thread.
    ///
    /// # Errors
    /// 256 threads redirect already, or the kernel cannot create a ring buffer.
    pub fn lane(&self) -> Result<SpliceLane> {
        let maps = self.0.clone();
        let number = maps.next_lane.fetch_add(1, Ordering::Relaxed);
        if number >= SPLICE_LANES {
            return Err(Error::Failed {
                what: "redirect in one more thread".into(),
                cause: format!("{SPLICE_LANES} threads do"),
            });
        }
        let passed = Rc::new(RefCell::new(Vec::new()));
        let ring = ring(&maps.rings, number, passed.clone())?;
        Ok(SpliceLane {
            free: Rc::default(),
            pairs: Cell::new(0),
            maps,
            number,
            ring,
            passed,
        })
    }
}

fn ring(rings: &MapHandle, lane: u32, passed: Rc<RefCell<Vec<u32>>>) -> Result<Ring> {
    let failed = || of_libbpf("make a ring for what is passed");
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
        ..Default::default()
    };
    let map = MapHandle::create(MapType::RingBuf, Some("ring"), 0, 0, RING_BYTES, &options)
        .map_err(failed())?;
    let fd = map.as_fd().as_raw_fd() as u32;
    rings
        .update(lane.bytes(), fd.bytes(), MapFlags::ANY)
        .map_err(failed())?;
    let record = move |slot: u32| passed.borrow_mut().push(slot / 2);
    Ring::open(&map, record).map_err(failed())
}

fn check_kernel() -> Result<()> {
    let name = nix::sys::utsname::uname().map_err(|e| Error::Failed {
        what: "ask for the kernel's version".into(),
        cause: e.to_string(),
    })?;
    let release = name.release().to_string_lossy().into_owned();
    match version(&release).is_none_or(|version| version >= LEAST_KERNEL) {
        true => Ok(()),
        false => Err(Error::Unsupported {
            what: "engine \"sockmap\"".into(),
            cause: format!("Linux {release} loses redirected packets under pressure"),
            hint: "it needs Linux 6.15; engine \"auto\" works everywhere".into(),
        }),
    }
}

/// `6.18.44-cloud` is (6, 18).
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next()?.parse().ok();
    Some((number()?, number()?))
}

/// The tunnels of one thread.
pub struct SpliceLane {
    maps: Arc<Maps>,
    number: u32,
    /// Numbers of pairs that it has and does not use: the program writes to no line of theirs.
    free: Rc<RefCell<Vec<u32>>>,
    /// How many it has.
    pairs: Cell<usize>,
    ring: Ring,
    passed: Rc<RefCell<Vec<u32>>>,
}

impl fmt::Debug for Splice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Splice")
    }
}

impl SpliceLane {
    /// The descriptor of the ring. It is readable while [`take_passed`](Self::take_passed) has
    /// something to return.
    pub fn ring_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }

    /// Returns the numbers of the armed pairs in which bytes were passed to user space since the last
    /// call. A pair appears once for each way and each time it is armed.
    pub fn take_passed(&self) -> Vec<u32> {
        self.ring.consume();
        self.passed.take()
    }

    /// Takes two connected sockets into the map. While they are not armed, user space receives from
    /// them as before, but with recv(2) only.
    ///
    /// `None`: the sockets are unchanged. There are too many pairs, or both peers have closed.
    pub fn join(&self, sockets: Sockets<'_>) -> Option<SplicePair> {
        let pair = SplicePair {
            maps: self.maps.clone(),
            number: self.take_number()?,
            free: self.free.clone(),
            cookies: sockets.map(cookies::of_socket),
            inside: Default::default(),
            before: Default::default(),
        };
        if pair.enter(self.number, sockets) {
            return Some(pair);
        }
        pair.leave(sockets);
        None
    }

    fn take_number(&self) -> Option<u32> {
        let mut free = self.free.borrow_mut();
        if free.is_empty() && self.pairs.get() < PAIRS_PER_LANE {
            let first = self.maps.next_pair.fetch_add(BLOCK, Ordering::Relaxed);
            let last = first.saturating_add(BLOCK).min(SPLICE_SLOTS / 2);
            free.extend((first..last).rev());
            self.pairs.set(self.pairs.get() + BLOCK as usize);
        }
        free.pop()
    }
}

impl fmt::Debug for SpliceLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpliceLane")
            .field("number", &self.number)
            .finish()
    }
}

/// The two joined sockets of a tunnel. Close them when the pair is dropped: bytes that were redirected
/// or passed and have not gone on by then, and bytes that arrive afterwards, are lost. The pair's number
/// is used again only if the pair [left](SplicePair::leave).
pub struct SplicePair {
    maps: Arc<Maps>,
    number: u32,
    free: Rc<RefCell<Vec<u32>>>,
    cookies: [u64; 2],
    /// Whose packets the program judges: not those of a socket whose peer had ended.
    inside: [Cell<bool>; 2],
    /// What each way's receiver had been sent, less what was redirected to it, when the pair was armed.
    before: [Cell<u64>; 2],
}

impl SplicePair {
    /// The number by which [`SpliceLane::take_passed`] names the pair.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Redirects from now on, both ways, what arrives and what has arrived, until the program must
    /// pass something to user space: a packet longer than 2048 bytes, or one for which the receiver has
    /// no space. `received` is the number of bytes of each way that user space has received since the
    /// sockets were joined. User space may hold none of them. A way of which more was passed redirects
    /// nothing.
    ///
    /// False: one of the sockets could not be joined, and they are never redirected.
    pub fn arm(&self, sockets: Sockets<'_>, received: [u64; 2]) -> bool {
        for way in [0, 1] {
            let inside = self.inside[way].get();
            let Some(sent) = sent(sockets[1 - way]).filter(|_| inside) else {
                return false;
            };
            self.before[way].set(sent - self.redirected(way));
        }
        for way in [0, 1] {
            self.maps.ways.arm(self.slot(way), received[way]);
        }
        // Packets that came before the socket was inside are judged now. And it waits for verdicts
        // from before: what they passed is counted, what later ones pass is told.
        sockets.iter().all(|socket| set_low_water(*socket, 1))
    }

    /// Passes all bytes to user space from now on, both ways.
    pub fn disarm(&self, sockets: Sockets<'_>) {
        for way in [0, 1] {
            self.maps.ways.disarm(self.slot(way));
            wait_for_verdicts(sockets[way]);
        }
    }

    /// Bytes redirected on this way since the sockets were joined.
    pub fn redirected(&self, way: Way) -> u64 {
        self.maps.ways.redirected(self.slot(way))
    }

    /// Bytes passed to user space on this way since the sockets were joined, received or not. Some
    /// may not have reached the socket yet: until all have, a recv(2) of 0 bytes is not the end.
    pub fn passed(&self, way: Way) -> u64 {
        self.maps.ways.passed(self.slot(way))
    }

    /// Whether all redirected bytes of this way are in the receiver's send queue. Ask it once the pair
    /// is disarmed, before user space sends or closes there.
    pub fn is_sent(&self, way: Way, sockets: Sockets<'_>) -> bool {
        let due = self.before[way].get() + self.redirected(way);
        // A socket that cannot be asked is broken, and waits for nothing.
        sent(sockets[1 - way]).is_none_or(|sent| sent >= due)
    }

    /// Whether the kernel lost acknowledged bytes of this way, for want of memory. It redirects and
    /// passes nothing that came after them.
    pub fn has_lost(&self, way: Way) -> bool {
        self.maps.ways.is_broken(self.slot(way))
    }

    /// Drops the pair and frees its number for another pair.
    pub fn leave(self, sockets: Sockets<'_>) {
        let (number, free) = (self.number, self.free.clone());
        drop(self);
        // From here on the program finds no line for these sockets.
        sockets.into_iter().for_each(wait_for_verdicts);
        free.borrow_mut().push(number);
    }
}

impl fmt::Debug for SplicePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SplicePair")
            .field("number", &self.number)
            .finish()
    }
}

impl SplicePair {
    fn slot(&self, way: Way) -> u32 {
        2 * self.number + way as u32
    }

    /// Brings the sockets in, of a lane's tunnel. False: neither is inside.
    fn enter(&self, lane: u32, sockets: Sockets<'_>) -> bool {
        for way in [0, 1] {
            self.maps.ways.reset(self.slot(way), lane);
            let (slot, cookie) = (self.slot(way), self.cookies[way]);
            let slots = &self.maps.slots;
            let known = slots.update(cookie.bytes(), slot.bytes(), MapFlags::ANY);
            if known.is_err() {
                return false;
            }
        }
        for (way, socket) in sockets.iter().enumerate() {
            self.inside[way].set(put(&self.maps.sockets, self.slot(way), *socket));
        }
        self.inside.iter().any(Cell::get)
    }
}

impl Drop for SplicePair {
    fn drop(&mut self) {
        // Sockets that were closed have gone by themselves.
        for way in [0, 1] {
            let _ = self.maps.sockets.delete(self.slot(way).bytes());
            let _ = self.maps.slots.delete(self.cookies[way].bytes());
        }
    }
}

fn put(map: &MapHandle, slot: u32, socket: BorrowedFd<'_>) -> bool {
    let fd = socket.as_raw_fd() as u64;
    map.update(slot.bytes(), fd.bytes(), MapFlags::ANY).is_ok()
}

/// The lines that the program and user space share. Each access is one atomic load or store, or the reset
/// of a line whose slot belongs to the calling lane.
struct Ways(Mapped<splice_way>);

impl Ways {
    fn map(fd: BorrowedFd<'_>) -> Result<Ways> {
        Mapped::of(fd, SPLICE_SLOTS, "map the counters of redirected sockets").map(Ways)
    }

    fn line(&self, slot: u32) -> *mut splice_way {
        self.0.at(slot)
    }

    /// A new line. The slot's socket is in no map yet.
    fn reset(&self, slot: u32, lane: u32) {
        let line = splice_way {
            lane,
            ..Default::default()
        };
        // SAFETY: the line is aligned, and the program knows of no socket with this slot.
        unsafe { self.line(slot).write_volatile(line) };
        fence(Ordering::SeqCst);
    }

    /// The program writes none of this while it is not armed.
    fn arm(&self, slot: u32, received: u64) {
        let line = self.line(slot);
        // SAFETY: live, aligned fields, accessed by others in one piece.
        let (told, looked, taken, armed) = unsafe {
            (
                AtomicU32::from_ptr(&raw mut (*line).told),
                AtomicU32::from_ptr(&raw mut (*line).looked),
                AtomicU64::from_ptr(&raw mut (*line).received),
                AtomicU32::from_ptr(&raw mut (*line).armed),
            )
        };
        told.store(0, Ordering::Relaxed);
        looked.store(0, Ordering::Relaxed);
        taken.store(received, Ordering::Relaxed);
        armed.store(1, Ordering::SeqCst);
    }

    fn disarm(&self, slot: u32) {
        // SAFETY: as above.
        let field = unsafe { AtomicU32::from_ptr(&raw mut (*self.line(slot)).armed) };
        field.store(0, Ordering::SeqCst);
    }

    fn redirected(&self, slot: u32) -> u64 {
        // SAFETY: as above.
        let field = unsafe { AtomicU64::from_ptr(&raw mut (*self.line(slot)).redirected) };
        field.load(Ordering::Acquire)
    }

    fn passed(&self, slot: u32) -> u64 {
        // SAFETY: as above.
        let field = unsafe { AtomicU64::from_ptr(&raw mut (*self.line(slot)).passed) };
        field.load(Ordering::Acquire)
    }

    fn is_broken(&self, slot: u32) -> bool {
        // SAFETY: as above.
        let field = unsafe { AtomicU32::from_ptr(&raw mut (*self.line(slot)).broken) };
        field.load(Ordering::Acquire) != 0
    }
}

/// struct tcp_info of linux/tcp.h up to the field that is read, of kernel 4.2.
#[derive(Clone, Copy)]
#[repr(C)]
struct TcpInfo {
    fields: [u64; 15],
    bytes_acked: u64,
}

fn tcp_info(socket: BorrowedFd<'_>) -> Option<TcpInfo> {
    let zero = TcpInfo {
        fields: [0; 15],
        bytes_acked: 0,
    };
    option(socket, libc::IPPROTO_TCP, libc::TCP_INFO, zero)
}

/// Reads an option of integers into a value that the kernel may fill in part.
fn option<T: Copy>(socket: BorrowedFd<'_>, level: i32, name: i32, mut value: T) -> Option<T> {
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes of integers to a live value of that size.
    let failed = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    (failed == 0).then_some(value)
}

/// A number that grows by one with each byte that enters the socket's send queue: those that were
/// acknowledged and those that were not. Exact also while bytes go from the one to the other.
fn sent(socket: BorrowedFd<'_>) -> Option<u64> {
    let mut acknowledged = tcp_info(socket)?.bytes_acked;
    loop {
        let queued = queue_length(socket, libc::TIOCOUTQ)?;
        match tcp_info(socket)?.bytes_acked {
            same if same == acknowledged => return Some(acknowledged + queued),
            more => acknowledged = more,
        }
    }
}

fn queue_length(socket: BorrowedFd<'_>, which: libc::Ioctl) -> Option<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: both requests write one int.
    let failed = unsafe { libc::ioctl(socket.as_raw_fd(), which, &raw mut bytes) };
    (failed == 0).then_some(bytes.try_into().ok()?)
}

/// Returns when no packet of the socket is being judged that began to be before the call: verdicts
/// are found under the socket's lock, and TCP_INFO takes it.
fn wait_for_verdicts(socket: BorrowedFd<'_>) {
    let _ = tcp_info(socket);
}

/// Sets SO_RCVLOWAT: from so many bytes on the kernel calls the program, or whoever reads. It does
/// so at once if they are there.
fn set_low_water(socket: BorrowedFd<'_>, bytes: libc::c_int) -> bool {
    // SAFETY: the pointer and the length are those of a live int.
    let failed = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVLOWAT,
            (&raw const bytes).cast(),
            size_of_val(&bytes) as libc::socklen_t,
        )
    };
    failed == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        assert_eq!(version("6.18.44-fc-v669"), Some((6, 18)));
        assert_eq!(version("7.0-rc1"), Some((7, 0)));
        assert!(version("6.9.0").unwrap() < LEAST_KERNEL);
        assert_eq!(version("x"), None);
    }

    #[test]
    fn the_acknowledged_bytes_are_where_the_kernel_has_them() {
        assert_eq!(std::mem::offset_of!(TcpInfo, bytes_acked), 120);
    }
}

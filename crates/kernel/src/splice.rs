//! Redirecting the short messages of tunnels inside the kernel (bpf/splice.bpf.c): loading, and the
//! tunnels of one thread.
//!
//! [`weir_core::redirect`] says how it is used. A socket that is closed leaves by itself, and
//! everything goes with the process.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};

use weir_core::redirect::{self, Left, Pair as _, Sockets, Way};

use crate::error::{Error, Result, of_errno, of_libbpf};

/// Skeleton of bpf/splice.bpf.c.
#[allow(missing_docs, clippy::all, clippy::undocumented_unsafe_blocks)]
pub(crate) mod skel {
    include!(concat!(env!("OUT_DIR"), "/splice.skel.rs"));
}

use skel::SpliceSkelBuilder;
use skel::types::splice_way;

/// Slots of the map (WEIR_SPLICE_SLOTS).
const SLOTS: u32 = 32768;
/// Threads that can redirect (WEIR_SPLICE_LANES).
const LANES: u32 = 256;
/// Pairs that a thread takes at a time, and at most.
const BLOCK: u32 = 64;
const PAIRS_PER_LANE: usize = 8192;
/// A record with its header has 16 bytes, and each pair has one at most for each time that it is
/// joined: room for all, twice.
const RING_BYTES: u32 = 32 * PAIRS_PER_LANE as u32;
/// Older kernels lose redirected packets when a receiver is full for a moment ("bpf, sockmap: Fix
/// data lost during EAGAIN retries", 6.15), which no trial can show.
const LEAST_KERNEL: (u32, u32) = (6, 15);

/// The loaded program with its maps, for all threads.
#[derive(Clone)]
pub struct Splice(Arc<Maps>);

struct Maps {
    sockets: MapHandle,
    leaving: MapHandle,
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
        libbpf_rs::set_print(None);
        let mut storage = MaybeUninit::uninit();
        let load = |e: libbpf_rs::Error| match e.kind() {
            libbpf_rs::ErrorKind::PermissionDenied => Error::Denied {
                what: "load BPF programs".into(),
                cause: "needs root".into(),
            },
            _ => Error::Failed {
                what: "load the program that redirects".into(),
                cause: format!("{e:#}"),
            },
        };
        let open = SpliceSkelBuilder::default()
            .open(&mut storage)
            .map_err(load)?;
        let skel = open.load().map_err(load)?;
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
                MapHandle::try_from(&maps.leaving)?,
                MapHandle::try_from(&maps.slots)?,
                MapHandle::try_from(&maps.rings)?,
            ))
        })();
        let (sockets, leaving, slots, rings) = handles.map_err(keep)?;
        Ok(Splice(Arc::new(Maps {
            sockets,
            leaving,
            slots,
            rings,
            ways: Ways::map(maps.ways.as_fd())?,
            next_lane: AtomicU32::new(0),
            next_pair: AtomicU32::new(0),
        })))
    }

    /// The share of one more thread; call it in that thread.
    ///
    /// # Errors
    /// There are as many as were asked for, or the kernel gives no ring.
    fn lane(&self) -> Result<Lane> {
        let maps = self.0.clone();
        let number = maps.next_lane.fetch_add(1, Ordering::Relaxed);
        if number >= LANES {
            return Err(Error::Failed {
                what: "redirect in one more thread".into(),
                cause: format!("{LANES} threads do"),
            });
        }
        let passed = Rc::new(RefCell::new(Vec::new()));
        let ring = ring(&maps.rings, number, passed.clone())?;
        Ok(Lane {
            free: Rc::default(),
            pairs: Cell::new(0),
            maps,
            number,
            ring,
            passed,
        })
    }
}

fn ring(
    rings: &MapHandle,
    lane: u32,
    passed: Rc<RefCell<Vec<u32>>>,
) -> Result<libbpf_rs::RingBuffer<'static>> {
    let failed = || of_libbpf("make a ring for what is passed");
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
        ..Default::default()
    };
    let map = MapHandle::create(MapType::RingBuf, Some("ring"), 0, 0, RING_BYTES, &options)
        .map_err(failed())?;
    let fd = map.as_fd().as_raw_fd();
    rings
        .update(&lane.to_ne_bytes(), &fd.to_ne_bytes(), MapFlags::ANY)
        .map_err(failed())?;
    let mut builder = libbpf_rs::RingBufferBuilder::new();
    let record = move |bytes: &[u8]| {
        if let Some(slot) = bytes.first_chunk() {
            passed.borrow_mut().push(u32::from_ne_bytes(*slot) / 2);
        }
        0
    };
    builder.add(&map, record).map_err(failed())?;
    builder.build().map_err(failed())
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
struct Lane {
    maps: Arc<Maps>,
    number: u32,
    /// Numbers of pairs that it has and does not use.
    free: Rc<RefCell<Vec<u32>>>,
    /// How many it has.
    pairs: Cell<usize>,
    ring: libbpf_rs::RingBuffer<'static>,
    passed: Rc<RefCell<Vec<u32>>>,
}

impl fmt::Debug for Splice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Splice")
    }
}

impl redirect::Redirector for Splice {
    fn lane(&self) -> io::Result<Box<dyn redirect::Lane>> {
        let lane = Splice::lane(self).map_err(io::Error::other)?;
        Ok(Box::new(lane))
    }
}

impl redirect::Lane for Lane {
    fn doorbell(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring owns the descriptor and lives as long as the borrow.
        unsafe { BorrowedFd::borrow_raw(self.ring.epoll_fd()) }
    }

    fn take_passed(&self) -> Vec<u32> {
        // Fails only where the callback does.
        let _ = self.ring.consume();
        self.passed.take()
    }

    fn join(&self, sockets: Sockets<'_>) -> Option<Box<dyn redirect::Pair>> {
        let number = self.take_number()?;
        let pair = Pair {
            maps: self.maps.clone(),
            number,
            free: self.free.clone(),
            cookies: sockets.map(cookie),
            places: Default::default(),
            sent_before: Default::default(),
        };
        for way in [0, 1] {
            pair.maps.ways.reset(pair.slot(way), self.number);
            let slot = pair.slot(way).to_ne_bytes();
            let cookie = pair.cookies[way].to_ne_bytes();
            let known = self.maps.slots.update(&cookie, &slot, MapFlags::ANY);
            known.ok()?;
        }
        for (way, socket) in sockets.iter().enumerate() {
            if put(&self.maps.sockets, pair.slot(way), *socket) {
                pair.places[way].set(Place::Inside);
            }
        }
        let outside = |place: &Cell<Place>| place.get() == Place::Outside;
        (!pair.places.iter().all(outside)).then(|| Box::new(pair) as Box<dyn redirect::Pair>)
    }
}

impl Lane {
    fn take_number(&self) -> Option<u32> {
        let mut free = self.free.borrow_mut();
        if free.is_empty() && self.pairs.get() < PAIRS_PER_LANE {
            let first = self.maps.next_pair.fetch_add(BLOCK, Ordering::Relaxed);
            let last = first.saturating_add(BLOCK).min(SLOTS / 2);
            free.extend((first..last).rev());
            self.pairs.set(self.pairs.get() + BLOCK as usize);
        }
        free.pop()
    }
}

/// Where a socket of a pair is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Place {
    /// An ordinary socket.
    #[default]
    Outside,
    /// The program judges its packets.
    Inside,
    /// The program is done with it; what was passed is still to be read.
    Leaving,
}

/// The two sockets of a tunnel in the map.
struct Pair {
    maps: Arc<Maps>,
    number: u32,
    free: Rc<RefCell<Vec<u32>>>,
    cookies: [u64; 2],
    places: [Cell<Place>; 2],
    /// What each way's receiver had been sent when the pair was armed.
    sent_before: [Cell<u64>; 2],
}

/// So many bytes may arrive on a socket that is leaving before the program is called for them.
const QUIET_BYTES: i32 = 32 * 1024;

impl redirect::Pair for Pair {
    fn number(&self) -> u32 {
        self.number
    }

    fn arm(&self, sockets: Sockets<'_>) -> bool {
        for way in [0, 1] {
            let inside = self.places[way].get() == Place::Inside;
            let Some(sent) = sent(sockets[1 - way]).filter(|_| inside) else {
                return false;
            };
            self.sent_before[way].set(sent);
        }
        for way in [0, 1] {
            self.maps.ways.set_armed(self.slot(way), true);
        }
        // Packets that came before the socket was inside are judged now.
        sockets.iter().all(|socket| set_low_water(*socket, 1))
    }

    fn disarm(&self, sockets: Sockets<'_>) {
        for way in [0, 1] {
            self.maps.ways.set_armed(self.slot(way), false);
            wait_for_verdicts(sockets[way]);
        }
    }

    fn redirected(&self, way: Way) -> u64 {
        self.maps.ways.redirected(self.slot(way))
    }

    fn passed(&self, way: Way) -> u64 {
        self.maps.ways.passed(self.slot(way))
    }

    fn is_sent(&self, way: Way, sockets: Sockets<'_>) -> bool {
        let due = self.sent_before[way].get() + self.redirected(way);
        // A socket that cannot be asked is broken, and waits for nothing.
        sent(sockets[1 - way]).is_none_or(|sent| sent >= due)
    }

    fn leave(&self, sockets: Sockets<'_>, received: [u64; 2]) -> Left {
        for way in [0, 1] {
            match self.leave_one(way, sockets[way], received[way]) {
                Left::Both => {}
                other => return other,
            }
        }
        Left::Both
    }
}

impl Pair {
    fn slot(&self, way: Way) -> u32 {
        2 * self.number + way as u32
    }

    fn leave_one(&self, way: Way, socket: BorrowedFd<'_>, received: u64) -> Left {
        if self.places[way].get() == Place::Outside {
            return Left::Both;
        }
        let all_received = || self.passed(way) == received;
        if self.places[way].get() == Place::Inside && all_received() {
            match put(&self.maps.leaving, self.slot(way), socket) {
                true => self.let_go(way, socket, all_received),
                // Its peer's end has come, and nothing comes after that; asking for it has waited
                // for the verdicts on what came before.
                false if is_read_closed(socket) => {}
                // The other half has ended, or there is no memory: it stays.
                false => return Left::NotYet,
            }
        }
        let place = self.places[way].get();
        if !all_received() {
            // One that is leaving still has ended, and so could not come in again. Either all its
            // bytes were passed, or others stand behind them, in a queue that is not read in turn.
            let passed = self.passed(way).saturating_sub(received);
            let torn = place == Place::Leaving && unread(socket).is_none_or(|all| all > passed);
            return if torn { Left::Torn } else { Left::NotYet };
        }
        self.take_out(way);
        Left::Both
    }

    /// Lets the map with the program go, while the one without keeps what was passed meanwhile. If
    /// something was, the socket comes in again, so that it is read as what it is.
    fn let_go(&self, way: Way, socket: BorrowedFd<'_>, all_received: impl Fn() -> bool) {
        let slot = self.slot(way).to_ne_bytes();
        set_low_water(socket, QUIET_BYTES);
        let _ = self.maps.sockets.delete(&slot);
        wait_for_verdicts(socket);
        self.places[way].set(Place::Leaving);
        if !all_received() && put(&self.maps.sockets, self.slot(way), socket) {
            let _ = self.maps.leaving.delete(&slot);
            self.places[way].set(Place::Inside);
        }
        set_low_water(socket, 1);
    }

    fn take_out(&self, way: Way) {
        let slot = self.slot(way).to_ne_bytes();
        match self.places[way].replace(Place::Outside) {
            Place::Outside => return,
            Place::Inside => drop(self.maps.sockets.delete(&slot)),
            Place::Leaving => drop(self.maps.leaving.delete(&slot)),
        }
        let _ = self.maps.slots.delete(&self.cookies[way].to_ne_bytes());
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // Sockets that were closed have gone by themselves.
        for way in [0, 1] {
            self.take_out(way);
            let _ = self.maps.slots.delete(&self.cookies[way].to_ne_bytes());
        }
        self.free.borrow_mut().push(self.number);
    }
}

fn put(map: &MapHandle, slot: u32, socket: BorrowedFd<'_>) -> bool {
    let fd = socket.as_raw_fd() as u64;
    map.update(&slot.to_ne_bytes(), &fd.to_ne_bytes(), MapFlags::ANY)
        .is_ok()
}

/// The lines that the program and user space share.
struct Ways(NonNull<splice_way>);

// SAFETY: the memory is mapped for the life of the value, and each access is one atomic load or
// store, or the reset of a line whose slot belongs to the calling lane.
unsafe impl Send for Ways {}
// SAFETY: as above.
unsafe impl Sync for Ways {}

impl Ways {
    const BYTES: usize = SLOTS as usize * size_of::<splice_way>();

    fn map(fd: BorrowedFd<'_>) -> Result<Ways> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        let (null, fd) = (std::ptr::null_mut(), fd.as_raw_fd());
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { libc::mmap(null, Self::BYTES, protection, flags, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(of_errno("map the counters of redirected sockets"));
        }
        let base = NonNull::new(base.cast()).expect("the kernel maps nothing at 0 unasked");
        Ok(Ways(base))
    }

    fn line(&self, slot: u32) -> *mut splice_way {
        assert!(slot < SLOTS);
        // SAFETY: within the mapping.
        unsafe { self.0.as_ptr().add(slot as usize) }
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

    fn set_armed(&self, slot: u32, armed: bool) {
        // SAFETY: a live, aligned field, accessed by others in one piece.
        let field = unsafe { AtomicU32::from_ptr(&raw mut (*self.line(slot)).armed) };
        field.store(armed.into(), Ordering::SeqCst);
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
}

impl Drop for Ways {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and nothing refers to it any more.
        unsafe { libc::munmap(self.0.as_ptr().cast(), Self::BYTES) };
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

/// Whether the peer's end has come.
fn is_read_closed(socket: BorrowedFd<'_>) -> bool {
    // include/net/tcp_states.h: TIME_WAIT, CLOSE, CLOSE_WAIT, LAST_ACK, CLOSING
    const READ_CLOSED: [u8; 5] = [6, 7, 8, 9, 11];
    // The first field is the state.
    tcp_info(socket).is_none_or(|info| READ_CLOSED.contains(&info.fields[0].to_ne_bytes()[0]))
}

fn cookie(socket: BorrowedFd<'_>) -> u64 {
    option(socket, libc::SOL_SOCKET, libc::SO_COOKIE, 0u64).unwrap_or(0)
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

/// Bytes that have come and were not received (SIOCINQ).
fn unread(socket: BorrowedFd<'_>) -> Option<u64> {
    queue_length(socket, libc::FIONREAD)
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

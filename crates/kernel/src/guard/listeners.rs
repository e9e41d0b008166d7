//! The listening sockets of this network namespace: found through a BPF iterator, read again where they were found.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use libbpf_rs::ProgramInput;
use weir_core::abi::MAX_KNOWN;

use super::events::address;
use super::skel::GuardSkel;
use super::skel::types::{listen_record, look_again};
use crate::error::{Error, Result, of_errno, of_libbpf};
use crate::object::{Mapped, Plain, plain};
use crate::sockets::{Cookie, listening_cookies};

plain!(listen_record, look_again);

/// One listening TCP socket of this network namespace, as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenSocket {
    /// Local address; `0.0.0.0` or `::` for any.
    pub ip: IpAddr,
    /// Local port.
    pub port: u16,
    /// An IPv6 socket that takes no IPv4 (IPV6_V6ONLY).
    pub v6only: bool,
    /// An MPTCP listener.
    pub mptcp: bool,
    /// Connections waiting for accept().
    pub queue_length: u32,
    /// The backlog in force.
    pub queue_limit: u32,
    /// Handshakes under way.
    pub half_open: u32,
    /// Its inode number, by which /proc/PID/fd names it.
    pub inode: u64,
    /// A parking listener of this weir, not a server's.
    pub parked: bool,
    /// Its SO_REUSEPORT group has a BPF program that is not weir's.
    pub steered: bool,
    /// Its kernel address.
    pub socket: u64,
    /// The guard's estimate of the wait in the queue; `None` while not known.
    pub wait: Option<Duration>,
}

/// Records a read. For each read the kernel walks the sockets of a port from the first one again: one
/// record at a time, a full queue of 4096 took 0.4 s.
const RECORDS: usize = 256;

/// How long a listening socket may be unknown that no connection has come to.
const FIND_EVERY: Duration = Duration::from_secs(1);

/// The listening sockets: found by a walk through the kernel's tables, and read where they are while they stay the same.
pub(crate) struct Listeners {
    iterator: libbpf_rs::Link,
    /// The sockets that the last walk has found. Only `look_again` writes to it besides.
    known: Mapped<listen_record>,
    found: RefCell<Found>,
}

/// The last walk.
#[derive(Default)]
struct Found {
    /// The cookies of its sockets; `None`: there was none, it found more than there is room for, or sock_diag(7) is not to be had.
    cookies: Option<BTreeSet<Cookie>>,
    /// When these were all that there were.
    at: Option<Instant>,
    /// Entries of `known` that hold them.
    count: u32,
    signs: Signs,
    /// Walks so far.
    walks: u64,
}

/// What changes when connections come to a socket that is not known.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Signs {
    taken: u32,
    parked: u32,
}

impl Listeners {
    /// Knows no socket yet.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn new(skel: &GuardSkel<'_>) -> Result<Listeners> {
        let iterator = skel.progs.list_listeners.attach();
        let map = skel.maps.known_sockets.as_fd();
        Ok(Listeners {
            iterator: iterator.map_err(of_libbpf("attach the iterator over sockets"))?,
            known: Mapped::of(map, MAX_KNOWN, "map the table of listening sockets")?,
            found: RefCell::default(),
        })
    }

    /// The link of the iterator program.
    pub fn iterator(&self) -> BorrowedFd<'_> {
        self.iterator.as_fd()
    }

    /// All listening sockets. The kernel's list of their cookies says whether they are those of the last walk.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn all(&self, skel: &GuardSkel<'_>) -> Result<Vec<ListenSocket>> {
        let now = Instant::now();
        // Before they are read: what changes meanwhile differs the next time.
        let cookies = listening_cookies().ok();
        if cookies.is_some() && cookies == self.found.borrow().cookies {
            self.found.borrow_mut().at = Some(now);
            if let Some(sockets) = self.renewed(skel)? {
                return Ok(sockets);
            }
        }
        self.walk(skel, cookies, now)
    }

    /// As [`Listeners::all`], but whether there are others is asked once a second only, and where a known one has gone or
    /// the guard has let a connection come to one that it did not know.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn known(&self, skel: &GuardSkel<'_>) -> Result<Vec<ListenSocket>> {
        let asked = self.found.borrow().at;
        if asked.is_some_and(|at| at.elapsed() < FIND_EVERY)
            && let Some(sockets) = self.renewed(skel)?
        {
            return Ok(sockets);
        }
        self.all(skel)
    }

    /// Those of the last walk as they are now. `None`: they are not all any more.
    fn renewed(&self, skel: &GuardSkel<'_>) -> Result<Option<Vec<ListenSocket>>> {
        let (count, signs) = {
            let found = self.found.borrow();
            (found.count, found.signs)
        };
        let look = look_again_at(skel, count)?;
        if look.gone > 0 || Signs::of(&look) != signs {
            return Ok(None);
        }
        // SAFETY: inside the mapping; `look_again` runs in calls of this object only, which no thread shares.
        let known = (0..count).map(|index| unsafe { self.known.at(index).read_volatile() });
        let sockets = known.map(|record| ListenSocket::of(&record));
        // As a walk leaves them out.
        let sockets = sockets.filter(|socket| !socket.parked || socket.holds());
        Ok(Some(sockets.collect()))
    }

    fn walk(
        &self,
        skel: &GuardSkel<'_>,
        cookies: Option<BTreeSet<Cookie>>,
        now: Instant,
    ) -> Result<Vec<ListenSocket>> {
        let signs = Signs::of(&look_again_at(skel, 0)?);
        let records = records(self.iterator.as_fd())?;
        let mut found = self.found.borrow_mut();
        found.walks += 1;
        if cookies.is_some() && records.len() <= MAX_KNOWN as usize {
            for (index, record) in (0..).zip(&records) {
                // SAFETY: as above.
                unsafe { self.known.at(index).write_volatile(*record) };
            }
            *found = Found {
                cookies,
                at: Some(now),
                count: records.len() as u32,
                signs,
                walks: found.walks,
            };
        } else {
            (found.cookies, found.at) = (None, None);
        }
        Ok(records.iter().map(ListenSocket::of).collect())
    }

    /// How often the kernel's tables were walked so far.
    #[cfg(feature = "testing")]
    pub fn walks(&self) -> u64 {
        self.found.borrow().walks
    }
}

impl Signs {
    fn of(look: &look_again) -> Signs {
        Signs {
            taken: look.taken,
            parked: look.parked,
        }
    }
}

/// Renews this many of the known sockets.
fn look_again_at(skel: &GuardSkel<'_>, known: u32) -> Result<look_again> {
    let mut look = look_again {
        known,
        ..look_again::zero()
    };
    let input = ProgramInput {
        context_in: Some(look.bytes_mut()),
        ..ProgramInput::default()
    };
    let run = skel.progs.look_again.test_run(input);
    run.map_err(of_libbpf("read the listening sockets again"))?;
    Ok(look)
}

/// All listening sockets. `link`: of the iterator program.
pub(crate) fn read(link: BorrowedFd<'_>) -> Result<Vec<ListenSocket>> {
    Ok(records(link)?.iter().map(ListenSocket::of).collect())
}

/// Reads records until the one that says the listeners are all read.
fn records(link: BorrowedFd<'_>) -> Result<Vec<listen_record>> {
    // SAFETY: no options are given.
    let fd = unsafe { libbpf_sys::bpf_iter_create(link.as_raw_fd()) };
    if fd < 0 {
        return Err(of_errno("open the iterator over sockets"));
    }
    // SAFETY: a new descriptor of ours.
    let mut iter = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    let mut records = Vec::new();
    let mut bytes = [0u8; size_of::<listen_record>() * RECORDS];
    loop {
        match iter.read(&mut bytes) {
            Ok(0) => return Ok(records),
            Ok(got) => {
                for record in listen_record::read_all(&bytes[..got]) {
                    if record.end != 0 {
                        return Ok(records);
                    }
                    records.push(record);
                }
            }
            Err(e) => {
                let what = "read the listening sockets".into();
                return Err(Error::Failed {
                    what,
                    cause: e.to_string(),
                });
            }
        }
    }
}

impl ListenSocket {
    /// Whether it has any connection, accepted ones apart.
    fn holds(&self) -> bool {
        self.queue_length > 0 || self.half_open > 0
    }

    fn of(record: &listen_record) -> ListenSocket {
        // An IPv6 socket may be bound to a mapped address.
        let ip = match address(record.addr) {
            IpAddr::V4(v4) if i32::from(record.family) == libc::AF_INET6 => {
                IpAddr::V6(v4.to_ipv6_mapped())
            }
            ip => ip,
        };
        ListenSocket {
            ip,
            port: record.port,
            v6only: record.v6only != 0,
            mptcp: record.mptcp != 0,
            queue_length: record.queue_length,
            queue_limit: record.queue_limit,
            half_open: record.half_open,
            inode: record.inode,
            parked: record.parked != 0,
            steered: record.steered != 0,
            socket: record.socket,
            wait: (record.wait_ns > 0).then(|| Duration::from_nanos(record.wait_ns)),
        }
    }
}

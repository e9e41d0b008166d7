//! The listening sockets of this network namespace: found through a BPF iterator, read again where they were found.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::Read;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use libbpf_rs::ProgramInput;
use weir_core::abi::MAX_KNOWN;

use super::events::address;
use super::skel::GuardSkel;
use super::skel::types::{listen_record, look_again};
use crate::error::{Error, Result, of_libbpf};
use crate::namespace::Namespace;
use crate::object::iteration::iterate;
use crate::object::{Mapped, Plain, plain};
use crate::own_filters::OwnFilters;
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
    /// What keeps packets of some from it.
    pub own_filters: OwnFilters,
    /// Its kernel address.
    pub socket: u64,
    /// The guard's estimate of the wait in the queue; `None` while not known.
    pub wait: Option<Duration>,
    /// And of the time between two accepts of the busy server; `None` while not known.
    pub service: Option<Duration>,
    /// So many may wait where one service takes longer than the target; 0 while not known.
    pub kept_length: u32,
}

/// Records a read. For each read the kernel walks the sockets of a port from the first one again: one
/// record at a time, a full queue of 4096 took 0.4 s.
const RECORDS: usize = 256;

/// How long a listening socket may be unknown that no connection has come to.
const FIND_EVERY: Duration = Duration::from_secs(1);

/// The listening sockets: found by a walk through the kernel's tables, and read where they are while they stay the same.
pub(crate) struct Listeners {
    iterator: libbpf_rs::Link,
    /// Those that `look_again` is to renew, and does.
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
    records: Vec<listen_record>,
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
        let own = Namespace::with_cookie(own_netns(skel));
        let found = self.found.borrow();
        let (look, known) = self.look_again(skel, own, &found.records)?;
        if look.gone > 0 || Signs::of(&look) != found.signs {
            return Ok(None);
        }
        let sockets = known.iter().map(ListenSocket::of);
        // As a walk leaves them out.
        let sockets = sockets.filter(|socket| !socket.parked || socket.holds());
        Ok(Some(sockets.collect()))
    }

    /// The sockets of another namespace that a walk has found there, as they are now. `None`: one has gone, or there are
    /// none.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn again_in(
        &self,
        skel: &GuardSkel<'_>,
        namespace: Namespace,
        records: &[listen_record],
    ) -> Result<Option<Vec<ListenSocket>>> {
        if records.is_empty() || records.len() > MAX_KNOWN as usize {
            return Ok(None);
        }
        let (look, known) = self.look_again(skel, namespace, records)?;
        Ok((look.gone == 0).then(|| known.iter().map(ListenSocket::of).collect()))
    }

    /// Renews these records, at most [`MAX_KNOWN`], of sockets in this namespace.
    fn look_again(
        &self,
        skel: &GuardSkel<'_>,
        namespace: Namespace,
        records: &[listen_record],
    ) -> Result<(look_again, Vec<listen_record>)> {
        for (index, record) in (0..).zip(records) {
            // SAFETY: inside the mapping; `look_again` runs in calls of this object only, which no thread shares.
            unsafe { self.known.at(index).write_volatile(*record) };
        }
        let count = records.len() as u32;
        let look = look_again_at(skel, namespace, count)?;
        // SAFETY: as above.
        let known = (0..count).map(|index| unsafe { self.known.at(index).read_volatile() });
        Ok((look, known.collect()))
    }

    fn walk(
        &self,
        skel: &GuardSkel<'_>,
        cookies: Option<BTreeSet<Cookie>>,
        now: Instant,
    ) -> Result<Vec<ListenSocket>> {
        let own = Namespace::with_cookie(own_netns(skel));
        let signs = Signs::of(&look_again_at(skel, own, 0)?);
        let records = records(self.iterator.as_fd())?;
        let mut found = self.found.borrow_mut();
        found.walks += 1;
        if cookies.is_some() && records.len() <= MAX_KNOWN as usize {
            *found = Found {
                cookies,
                at: Some(now),
                records: records.clone(),
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

/// Cookie of weir's own network namespace.
fn own_netns(skel: &GuardSkel<'_>) -> u64 {
    let constants = skel.maps.rodata_data;
    constants.expect("the guard has constants").own_netns
}

/// Renews this many of the known sockets, in this namespace.
fn look_again_at(skel: &GuardSkel<'_>, namespace: Namespace, known: u32) -> Result<look_again> {
    let mut look = look_again {
        netns: namespace.cookie(),
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
pub(super) fn records(link: BorrowedFd<'_>) -> Result<Vec<listen_record>> {
    let mut iter = iterate(link, "listening sockets")?;
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
                let what = "read the list of listening sockets".into();
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

    pub(super) fn of(record: &listen_record) -> ListenSocket {
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
            own_filters: OwnFilters::of(record.own_filters),
            socket: record.socket,
            wait: known(record.wait_ns),
            service: known(record.service_ns),
            kept_length: record.kept_length,
        }
    }
}

/// A time that is 0 while it is not known.
fn known(ns: u64) -> Option<Duration> {
    (ns > 0).then(|| Duration::from_nanos(ns))
}

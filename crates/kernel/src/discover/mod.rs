//! Who listens where, in all network namespaces of the machine (bpf/discover.bpf.c).

pub(crate) mod skel;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::read_volatile;
use std::rc::Rc;

use crate::error::{Result, of_libbpf};
use crate::guard::events::address;
use crate::namespace::Namespace;
use crate::object::iteration::read_all;
use crate::object::{self, Plain, Ring, open, plain};
use skel::types::listen_notice;
use skel::{DiscoverSkel, DiscoverSkelBuilder};

plain!(listen_notice);

const WHAT: &str = "find the listeners of all network namespaces";

/// Finds listeners while it lives. It holds nothing of what it finds.
pub struct Discovery {
    // Before the skeleton: the program leaves its hook first.
    _state: libbpf_rs::Link,
    files: libbpf_rs::Link,
    ring: Ring,
    gathered: Rc<RefCell<Vec<listen_notice>>>,
    skel: DiscoverSkel<'static>,
}

/// A TCP socket that listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundListener {
    /// Where it is.
    pub namespace: Namespace,
    /// Its cookie (SO_COOKIE), which no other socket gets until the machine stops.
    pub socket: u64,
    /// Local address; `0.0.0.0` or `::` for any.
    pub ip: IpAddr,
    /// Local port; 0: listen() was called without bind() and has not chosen one yet. [`Discovery::listeners`] knows it then.
    pub port: u16,
    /// The backlog in force. A later listen() changes it without a notice.
    pub backlog: u32,
    /// The process that called listen(), or one that has the socket open; as the initial pid namespace numbers it.
    pub pid: u32,
    /// Id of this process's cgroup in the unified hierarchy (v2); of the root where processes are in others only.
    pub cgroup: u64,
}

/// What has happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// A socket begins to listen: connections come to it from now on.
    Listens(FoundListener),
    /// One has ceased to.
    Ceased {
        /// Where it was.
        namespace: Namespace,
        /// Its cookie.
        socket: u64,
        /// Its local port.
        port: u16,
    },
}

impl Discovery {
    /// Notes from now on who begins to listen and who ceases to.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn load() -> Result<Discovery> {
        let failed = || of_libbpf(WHAT);
        let open = open::<DiscoverSkelBuilder>().map_err(failed())?;
        let skel = object::load(open, WHAT)?;
        let gathered: Rc<RefCell<Vec<listen_notice>>> = Rc::default();
        let to = gathered.clone();
        let ring = Ring::open(&skel.maps.notices, move |notice| {
            to.borrow_mut().push(notice);
        });
        Ok(Discovery {
            ring: ring.map_err(failed())?,
            _state: skel.progs.discover_state.attach().map_err(failed())?,
            files: skel.progs.discover_files.attach().map_err(failed())?,
            gathered,
            skel,
        })
    }

    /// All that listen now, each once. One that is held by the kernel or lies in a message between processes is not found. It
    /// takes the kernel about 1 µs for each open file of the machine. Asked after [`Discovery::load`], together with the
    /// notices it misses none.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn listeners(&self) -> Result<Vec<FoundListener>> {
        let bytes = read_all(self.files.as_fd(), "open files")?;
        // Processes share sockets; the first one has most likely made it.
        let mut found = BTreeMap::new();
        for notice in listen_notice::read_all(&bytes) {
            found.entry(notice.socket).or_insert_with(|| of(&notice));
        }
        Ok(found.into_values().collect())
    }

    /// What has happened since the last call, in this order.
    pub fn notices(&self) -> Vec<Notice> {
        self.ring.consume();
        let gathered = std::mem::take(&mut *self.gathered.borrow_mut());
        let notice = |notice: &listen_notice| match notice.listens {
            0 => Notice::Ceased {
                namespace: Namespace::with_cookie(notice.netns),
                socket: notice.socket,
                port: notice.port,
            },
            _ => Notice::Listens(of(notice)),
        };
        gathered.iter().map(notice).collect()
    }

    /// Notices that were lost, ever, because a thousand were waiting; wraps. When it grows, [`Discovery::listeners`] is to
    /// be asked again.
    pub fn lost(&self) -> u32 {
        let bss = self.skel.maps.bss_data.as_deref();
        let bss = bss.expect("its globals are mapped");
        // SAFETY: mapped and aligned; the program adds to it atomically.
        unsafe { read_volatile(&bss.lost) }
    }
}

impl AsFd for Discovery {
    /// Readable while there are notices.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}

fn of(notice: &listen_notice) -> FoundListener {
    // An IPv6 socket may be bound to a mapped address.
    let ip = match address(notice.addr) {
        IpAddr::V4(v4) if i32::from(notice.family) == libc::AF_INET6 => {
            IpAddr::V6(v4.to_ipv6_mapped())
        }
        ip => ip,
    };
    FoundListener {
        namespace: Namespace::with_cookie(notice.netns),
        socket: notice.socket,
        ip,
        port: notice.port,
        backlog: notice.backlog,
        pid: notice.pid,
        cgroup: notice.cgroup,
    }
}

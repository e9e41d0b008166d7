//! Where the programs of negotiation hang beside tc: at the root of the cgroups, and at the listening sockets.

use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use libbpf_rs::Link;

use super::skel::TimewaitSkel;
use crate::error::{Error, Result, of_libbpf};
use crate::object::iteration::iterate;

/// The hooks in force. Dropping it takes them away.
pub(super) struct Hooks {
    /// Options of handshakes and closes, of all sockets; the program looks which are of its namespace.
    _ops: Link,
    /// What applications ask of their sockets; why they cannot; or nothing.
    ask: Option<std::result::Result<Link, String>>,
    mark: Link,
}

impl Hooks {
    /// Attaches to the root of the cgroups; without what is of single sockets.
    pub(super) fn attach(skel: &TimewaitSkel<'_>, root: BorrowedFd<'_>) -> Result<Hooks> {
        let ops = skel
            .progs
            .timewait_ops
            .attach_cgroup(root.as_raw_fd())
            .map_err(of_libbpf("attach to the root of the cgroups"))?;
        let mark = skel.progs.timewait_mark.attach();
        let mark = mark.map_err(of_libbpf("attach the iterator over sockets"))?;
        Ok(Hooks {
            _ops: ops,
            ask: None,
            mark,
        })
    }

    /// Lets applications ask for their sockets, or no more.
    pub(super) fn let_ask(&mut self, skel: &TimewaitSkel<'_>, root: BorrowedFd<'_>, may: bool) {
        if !may {
            self.ask = None;
        } else if !matches!(self.ask, Some(Ok(_))) {
            let link = skel.progs.timewait_ask.attach_cgroup(root.as_raw_fd());
            let why = |e| of_libbpf("attach to setsockopt()")(e).to_string();
            self.ask = Some(link.map_err(why));
        }
    }

    /// Why applications cannot ask anything for their sockets, though they may.
    pub(super) fn cannot_ask(&self) -> Option<&str> {
        self.ask.as_ref()?.as_ref().err().map(String::as_str)
    }

    /// Has the listening sockets of this network namespace add options or not, as their ports say.
    pub(super) fn mark_listeners(&self) -> Result<()> {
        let failed = |e: std::io::Error| Error::Failed {
            what: "go through the listening sockets".into(),
            cause: e.to_string(),
        };
        let mut iterator = iterate(self.mark.as_fd(), "listening sockets")?;
        // The program writes a byte at the first socket that is none; at the end of all there is nothing.
        iterator.read(&mut [0]).map(drop).map_err(failed)
    }
}

/// What is said where there are none.
pub(super) fn no_cgroups() -> Error {
    Error::Unsupported {
        what: "timewait = \"negotiate\"".into(),
        cause: "no cgroup2 is mounted, and weir may not mount it".into(),
        hint: "`mount -t cgroup2 none /sys/fs/cgroup`, and start weir anew".into(),
    }
}

//! What `weir exec --order exact` says of the servers whose accept() calls it answers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use weir_api::ExecReport;
use weir_kernel::ListenSocket;

/// What was told is shown for so long: supervisors tell every second.
const FRESH: Duration = Duration::from_secs(3);

/// By process.
#[derive(Debug, Default)]
pub(super) struct ExecServers(BTreeMap<u32, (ExecReport, Instant)>);

/// What is known of the sockets of one listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Answered {
    /// The server's process.
    server: u32,
    /// Connections that are held.
    pub held: u32,
}

impl Answered {
    /// Why the listener's queue is not parked for.
    pub fn because(&self) -> String {
        format!("process {} was started with weir exec", self.server)
    }
}

impl ExecServers {
    /// Inodes of all their sockets. A socket stays one of them as long as it is there: who has ceased to tell
    /// may still answer.
    pub fn sockets(&self) -> BTreeSet<u64> {
        let held = self.0.values().flat_map(|(report, _)| &report.held);
        held.map(|(inode, _)| *inode).collect()
    }

    /// What is known of these sockets; `None`: none is of such a server.
    pub fn of(&self, sockets: &[&ListenSocket]) -> Option<Answered> {
        let its = |(inode, _): &&(u64, u32)| sockets.iter().any(|socket| socket.inode == *inode);
        let of_server = |(report, told): &(ExecReport, Instant)| {
            let held: Vec<u32> = report.held.iter().filter(its).map(|(_, n)| *n).collect();
            let fresh = told.elapsed() < FRESH;
            (!held.is_empty()).then(|| Answered {
                server: report.server,
                held: if fresh { held.iter().sum() } else { 0 },
            })
        };
        let together = |a: Answered, b: Answered| Answered {
            held: a.held + b.held,
            ..a
        };
        self.0.values().filter_map(of_server).reduce(together)
    }

    /// Takes a report in, and forgets servers that have ended.
    pub fn tell(&mut self, report: ExecReport, now: Instant) {
        let alive = |server: &u32| std::path::Path::new(&format!("/proc/{server}")).exists();
        self.0
            .retain(|server, (_, told)| now.duration_since(*told) < FRESH || alive(server));
        self.0.insert(report.server, (report, now));
    }
}

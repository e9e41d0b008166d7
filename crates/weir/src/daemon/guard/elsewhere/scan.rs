//! Looks at all that listen, for what the kernel's notices do not say: the port that listen() has chosen, or which process has
//! a socket once the one that called listen() has ended. And for notices that were lost.

use std::collections::BTreeSet;
use std::time::Instant;

use weir_kernel::{FoundListener, Notice};

use super::Elsewhere;
use crate::failure::Result;
use crate::show::describe::count;

/// Sockets that a line of the log names.
const SHOWN: usize = 3;

impl Elsewhere {
    /// Looks at all that listen, if there is a reason to and it is time.
    pub(super) fn scan_if_due(&mut self, now: Instant) {
        let lost = self.world.as_ref().map_or(0, |world| world.lost());
        self.scans.again |= lost != self.scans.lost;
        if !self.scans.again || now < self.scans.at {
            return;
        }
        let begun = Instant::now();
        if let Err(failure) = self.scan(now) {
            tracing::error!("who listens in other network namespaces is not known: {failure}");
        }
        self.scans.looked(now, begun.elapsed());
    }

    fn scan(&mut self, now: Instant) -> Result<()> {
        let Some(world) = &self.world else {
            return Ok(());
        };
        let (lost, found) = (world.lost(), world.listeners()?);
        // Of those who began to listen meanwhile a notice tells.
        let later = world.notices();
        let news = |one: &&FoundListener| {
            let known = self.sockets.get(&one.socket);
            !known.is_some_and(|known| known.listens) && !self.scans.unused.contains(&one.socket)
        };
        let news = found.iter().filter(news).map(|one| one.socket);
        let mut news: BTreeSet<u64> = news.collect();
        for notice in &later {
            if let Notice::Listens(one) = notice {
                news.remove(&one.socket);
            }
        }
        let lost = lost.wrapping_sub(std::mem::replace(&mut self.scans.lost, lost));
        self.scans.again = false;
        self.scans.unused.clear();
        if lost > 0 {
            // Of those who have ceased to, too.
            self.none_listens_but(&found);
        }
        self.note(found);
        self.tell_untold(&news, lost);
        self.take(later, now);
        Ok(())
    }

    fn none_listens_but(&mut self, found: &[FoundListener]) {
        let there: BTreeSet<u64> = found.iter().map(|one| one.socket).collect();
        for (cookie, one) in &mut self.sockets {
            one.listens = there.contains(cookie);
        }
    }

    /// Says which of these sockets are of interest: unless notices were lost it should be none, and then somebody was not
    /// guarded for a while.
    fn tell_untold(&mut self, news: &BTreeSet<u64>, lost: u32) {
        let of_interest = news.iter().filter_map(|cookie| self.sockets.get(cookie));
        let said = of_interest.map(|one| {
            let (at, port) = (one.found.namespace.cookie(), one.found.port);
            match one.workload.place() {
                Some(place) => format!("{place} at port {port}"),
                None => format!("net-{at} at port {port}"),
            }
        });
        let said: Vec<String> = said.collect();
        if said.is_empty() {
            return;
        }
        self.scans.untold += said.len() as u64;
        let some = said[..said.len().min(SHOWN)].join(", ");
        let more = match said.len().saturating_sub(SHOWN) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        tracing::warn!(
            "found by a look at all that listen, told by no notice: {some}{more} ({} so far; {} lost)",
            self.scans.untold,
            count(lost as usize, "notice")
        );
    }
}

//! Verdicts of the guard: one enum, one counter each, one line of explanation each.

/// How a verdict treats the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The packet goes on to the server's stack.
    Pass,
    /// The connection is turned away.
    Refuse,
    /// weir itself continued the handshake.
    Answer,
    /// Says how another verdict, which is counted too, was reached.
    Note,
}

/// A verdict's row in bpf/abi/guard.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VerdictInfo {
    /// The verdict.
    pub verdict: Verdict,
    /// Its name in counters, metrics, status columns and `weir explain`.
    pub name: &'static str,
    /// How it treats the packet.
    pub kind: Kind,
    /// One line that explains it.
    pub text: &'static str,
}

include!(concat!(env!("OUT_DIR"), "/verdicts.rs"));

/// Verdicts after which the server gets the connection.
pub const ADMITS: [Verdict; 4] = [
    Verdict::SynAdmitted,
    Verdict::SynSteady,
    Verdict::SynTimeWait,
    Verdict::CookieAccepted,
];

/// Verdicts on a SYN after which the server may get the connection.
pub const LET_IN: [Verdict; 8] = [
    Verdict::SynAdmitted,
    Verdict::SynSteady,
    Verdict::SynTimeWait,
    Verdict::SynNotPlain,
    Verdict::SynLeft,
    Verdict::SynLeftFlood,
    Verdict::SynUnjudged,
    Verdict::CookieAccepted,
];

/// Verdicts that are each on one SYN; cookies are answered SYNs.
pub const SYNS: [Verdict; 19] = [
    Verdict::SynAdmitted,
    Verdict::SynSteady,
    Verdict::SynTimeWait,
    Verdict::SynNotPlain,
    Verdict::SynLeft,
    Verdict::SynLeftFlood,
    Verdict::SynUnjudged,
    Verdict::SynDroppedFull,
    Verdict::SynResetFull,
    Verdict::SynDroppedWait,
    Verdict::SynResetWait,
    Verdict::CookieSent,
    Verdict::CookieSentFlood,
    Verdict::SynDroppedRate,
    Verdict::SynResetRate,
    Verdict::SynDroppedHeld,
    Verdict::SynResetHeld,
    Verdict::SynDroppedResidence,
    Verdict::SynResetResidence,
];

/// Verdicts on connections for which there was no place in the listen queue.
pub const FULL: [Verdict; 4] = [
    Verdict::SynDroppedFull,
    Verdict::SynResetFull,
    Verdict::SynLeft,
    Verdict::AckResetFull,
];

/// Verdicts on SYNs of a class that is over its own rate.
pub const OVER_RATE: [Verdict; 2] = [Verdict::SynDroppedRate, Verdict::SynResetRate];

/// Verdicts that turn a connection away that the server has not served: all that refuse, but [`Verdict::FinReset`].
pub fn refusals() -> impl Iterator<Item = &'static VerdictInfo> {
    let refuses = VERDICTS.iter().filter(|row| row.kind == Kind::Refuse);
    // What is reset at its FIN was served before.
    refuses.filter(|row| row.verdict != Verdict::FinReset)
}

impl Verdict {
    /// The verdict's row: name, kind and text.
    pub fn info(self) -> &'static VerdictInfo {
        &VERDICTS[self as usize]
    }

    /// The verdict with this name, if there is one.
    pub fn by_name(name: &str) -> Option<Verdict> {
        VERDICTS
            .iter()
            .find(|row| row.name == name)
            .map(|row| row.verdict)
    }
}

/// How often each verdict fell on one listener, summed over the CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counters(pub [u64; VERDICTS.len()]);

impl Default for Counters {
    fn default() -> Counters {
        Counters([0; VERDICTS.len()])
    }
}

impl Counters {
    /// The count of one verdict.
    pub fn get(&self, verdict: Verdict) -> u64 {
        self.0[verdict as usize]
    }

    /// Connections turned away: the sum over all verdicts that refuse.
    pub fn refused(&self) -> u64 {
        self.rows()
            .filter(|(row, _)| row.kind == Kind::Refuse)
            .map(|(_, n)| n)
            .sum()
    }

    /// SYNs answered with a cookie. The cookies that were taken are among them.
    pub fn cookies_sent(&self) -> u64 {
        self.get(Verdict::CookieSent) + self.get(Verdict::CookieSentFlood)
    }

    /// Every verdict with its count, in the order of bpf/abi/guard.h.
    pub fn rows(&self) -> impl Iterator<Item = (&'static VerdictInfo, u64)> + '_ {
        VERDICTS.iter().map(|row| (row, self.get(row.verdict)))
    }

    /// Adds another set of counts to this one.
    pub fn add(&mut self, other: &Counters) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verdict_is_found_by_its_name_and_explained() {
        for row in &VERDICTS {
            assert_eq!(Verdict::by_name(row.name), Some(row.verdict));
            assert_eq!(row.verdict.info(), row);
            assert!(row.text.len() > 20, "{} needs a text", row.name);
        }
    }

    #[test]
    fn refused_sums_the_refusals_only() {
        let mut c = Counters::default();
        c.0[Verdict::SynAdmitted as usize] = 5;
        c.0[Verdict::SynResetFull as usize] = 2;
        c.0[Verdict::FinReset as usize] = 1;
        c.0[Verdict::RefusedAtXdp as usize] = 2;
        assert_eq!(c.refused(), 3);
    }
}

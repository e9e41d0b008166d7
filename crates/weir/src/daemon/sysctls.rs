//! Sysctls of TCP decide what weir's answers may promise. They may change at any time, and nothing tells of it: weir looks.

use std::time::{Duration, Instant};

use weir_kernel::TcpOptions;

/// How often weir looks. A SYN cookie in between may promise what the kernel does not take any more.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What the last look saw.
pub struct SysctlWatch {
    seen: TcpOptions,
    /// When the next look is due.
    due: Instant,
}

impl SysctlWatch {
    /// `seen`: read before the policy was put in force.
    pub fn new(seen: TcpOptions, now: Instant) -> SysctlWatch {
        SysctlWatch {
            seen,
            due: now + LOOK_EVERY,
        }
    }

    /// When the next look is.
    pub fn due_at(&self) -> Instant {
        self.due
    }

    /// Looks, if it is time to. True if something has changed since the last look.
    pub fn look(&mut self, now: Instant, read: impl FnOnce() -> TcpOptions) -> bool {
        if now < self.due {
            return false;
        }
        self.due = now + LOOK_EVERY;
        let before = std::mem::replace(&mut self.seen, read());
        before != self.seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_told_once_and_so_is_its_end() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let usual = TcpOptions {
            window_scaling: true,
            sack: true,
            timestamps: true,
            syncookies: 1,
        };
        let other = TcpOptions {
            timestamps: false,
            ..usual
        };
        let mut watch = SysctlWatch::new(usual, begun);
        assert_eq!(watch.due_at(), begun + LOOK_EVERY);
        assert!(!watch.look(begun, || panic!("not due")));
        assert!(!watch.look(at(1), || usual));
        assert!(watch.look(at(2), || other));
        assert!(!watch.look(at(3), || other));
        assert!(watch.look(at(4), || usual));
    }
}

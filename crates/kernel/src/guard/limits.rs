//! How large the guard's tables are. They are made once, before anything is guarded.

use weir_core::abi;
use weir_core::listener::MAX_LISTENERS;

/// What a guard has room for. Each is memory of the kernel's that is taken at once: a listener 48 bytes and 300 for each CPU, a
/// socket 8.4 KiB. What is in force in a namespace takes its memory when it comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Network namespaces beside weir's own, 0..=4096. 0: only weir's own, and packets pay nothing for others.
    pub namespaces: u32,
    /// Listeners in these together, 0..=8192. Each namespace may have 256 of them.
    pub listeners: u32,
    /// Listening sockets of all namespaces that are busy at a time, 1..=16384; a power of two, else the next one.
    pub sockets: u32,
}

impl Default for Limits {
    /// Weir's own network namespace only.
    fn default() -> Limits {
        Limits {
            namespaces: 0,
            listeners: 0,
            sockets: abi::MAX_SOCKETS,
        }
    }
}

impl Limits {
    /// The same with each within its range.
    pub(super) fn fit(self) -> Limits {
        Limits {
            namespaces: self.namespaces.min(abi::MOST_NAMESPACES),
            listeners: self.listeners.min(abi::MOST_LISTENERS),
            sockets: self.sockets.clamp(1, abi::MOST_SOCKETS).next_power_of_two(),
        }
    }

    /// Counters, one for each listener anywhere.
    pub(super) fn counters(&self) -> u32 {
        MAX_LISTENERS as u32 + self.listeners
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_out_of_range_is_the_nearest_that_is_not() {
        let most = Limits {
            namespaces: u32::MAX,
            listeners: u32::MAX,
            sockets: u32::MAX,
        };
        let fit = most.fit();
        assert_eq!(
            (fit.namespaces, fit.listeners, fit.sockets),
            (4096, 8192, 16_384)
        );
        let sockets = |sockets| Limits { sockets, ..most }.fit().sockets;
        assert_eq!([0, 1, 513, 1024].map(sockets), [1, 1, 1024, 1024]);
        assert_eq!(Limits::default().fit(), Limits::default());
    }
}

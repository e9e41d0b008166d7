//! What keeps packets of some from one listening socket and not from others on its address (bpf/lib/own_filters.bpf.h).

use weir_core::abi;

/// What a listening socket has of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OwnFilters(u32);

/// Why nothing can be parked beside such a socket.
const BECAUSE: [(u8, &str); 4] = [
    (
        abi::OWN_FILTER_PROGRAM,
        "its listening socket has a filter (SO_ATTACH_FILTER or SO_ATTACH_BPF), which parked connections would not meet",
    ),
    (
        abi::OWN_FILTER_MD5,
        "its listening socket has keys of TCP-MD5, which parked connections would do without",
    ),
    (
        abi::OWN_FILTER_AO,
        "its listening socket has keys of TCP-AO, which parked connections would do without",
    ),
    (
        abi::OWN_FILTER_CGROUP,
        "its cgroup has other BPF programs for packets than weir's, as IPAddressDeny= of systemd sets them, and parked \
         connections would meet weir's",
    ),
];

impl OwnFilters {
    /// Of the bits by `enum own_filter`.
    pub(crate) fn of(bits: u32) -> OwnFilters {
        OwnFilters(bits)
    }

    /// Why its connections cannot be those of other sockets; `None`: they can.
    pub fn because(self) -> Option<&'static str> {
        let mut found = BECAUSE.iter().filter(|(bit, _)| self.0 >> bit & 1 != 0);
        found.next().map(|(_, because)| *because)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_filter_has_its_reason_and_a_socket_without_has_none() {
        assert_eq!(OwnFilters::default().because(), None);
        let mut reasons: Vec<_> = (0..4).map(|bit| OwnFilters(1 << bit).because()).collect();
        assert!(reasons.iter().all(Option::is_some), "{reasons:?}");
        reasons.sort_unstable();
        reasons.dedup();
        assert_eq!(reasons.len(), 4);
    }
}

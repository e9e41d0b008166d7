//! The numbers by which the rules of classes know QUIC listeners.

use std::collections::BTreeMap;

use weir_core::abi;
use weir_core::class::OwnerId;

// No listener of TCP has such a number.
const _: () = assert!(abi::MOST_LISTENERS + abi::MAX_LISTENERS < abi::QUIC_OWNER);

/// By name. A name keeps its number though its listener goes: rules in force may still have it.
#[derive(Default)]
pub(super) struct QuicOwners(BTreeMap<String, OwnerId>);

impl QuicOwners {
    /// Of a listener that has been given one.
    pub fn of(&self, name: &str) -> Option<OwnerId> {
        self.0.get(name).copied()
    }

    /// The listener's, which may be new. After 32 768 names there is none left: 0, as of a class whose listener is unknown.
    pub fn assign(&mut self, name: &str) -> OwnerId {
        let next = abi::QUIC_OWNER as usize + self.0.len();
        let next = OwnerId::try_from(next).unwrap_or(0);
        *self.0.entry(name.to_owned()).or_insert(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_its_number_and_no_other_has_it() {
        let mut owners = QuicOwners::default();
        let numbers = ["a", "b", "a"].map(|name| owners.assign(name));
        assert_eq!(numbers, [0x8000, 0x8001, 0x8000]);
        assert_eq!((owners.of("b"), owners.of("c")), (Some(0x8001), None));
    }
}

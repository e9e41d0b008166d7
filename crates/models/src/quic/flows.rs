//! What is remembered of connection attempts: the model of bpf/lib/quic_flows.h, on one CPU.

use super::FORGOTTEN_NS;

/// What is remembered of a client that was let in outlives by so much what is of a refused one.
pub const KEPT_NS: u64 = 30_000_000_000;
/// Words of what a client is known by (struct quic_client).
pub const CLIENT_WORDS: usize = 12;

/// Random words of [`client_hash`], for either half of the hash; the last one of each is added (struct quic_flow_keys).
pub type FlowKeys = [[u64; CLIENT_WORDS + 1]; 2];

/// The hash of a client: twice the upper half of a sum of products. Never 0.
pub fn client_hash(client: &[u32; CLIENT_WORDS], keys: &FlowKeys) -> u64 {
    let [high, low] = keys.map(|keys| {
        let products = keys
            .iter()
            .zip(client)
            .map(|(key, word)| key.wrapping_mul(u64::from(*word)));
        products.fold(keys[CLIENT_WORDS], u64::wrapping_add) >> 32
    });
    high << 32 | low | 1
}

/// The pair of slots that a client's hash belongs to, of so many (a power of two).
pub fn pair_of(client: u64, pairs: u32) -> u32 {
    (client >> 32) as u32 & (pairs - 1)
}

/// An attempt in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remembered {
    /// Hash of its client.
    pub client: u64,
    /// When it was judged, ns.
    pub at_ns: u64,
    /// It was refused.
    pub refused: bool,
}

impl Remembered {
    fn until(&self) -> u64 {
        self.at_ns + if self.refused { 0 } else { KEPT_NS }
    }
}

/// Two slots, one of which a client may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pair(pub [Option<Remembered>; 2]);

impl Pair {
    /// The slot of this client.
    pub fn find(&self, client: u64) -> Option<usize> {
        let has = |slot: &Option<Remembered>| slot.is_some_and(|one| one.client == client);
        self.0.iter().position(has)
    }

    /// Remembers an attempt: in its client's slot, or in the one that is remembered less long. False: it was refused, and both
    /// of the pair were let in less than [`FORGOTTEN_NS`] ago.
    pub fn write(&mut self, attempt: Remembered) -> bool {
        let way = self.find(attempt.client).unwrap_or_else(|| {
            let [first, second] = self.0.map(|slot| slot.map_or(0, |one| one.until()));
            usize::from(second < first)
        });
        let spared = |other: Remembered| {
            other.client != attempt.client
                && attempt.refused
                && other.until() as i64 - attempt.at_ns as i64 > (KEPT_NS - FORGOTTEN_NS) as i64
        };
        if self.0[way].is_some_and(spared) {
            return false;
        }
        self.0[way] = Some(attempt);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    fn attempt(client: u64, at_s: u64, refused: bool) -> Remembered {
        let at_ns = at_s * SECOND_NS;
        Remembered {
            client,
            at_ns,
            refused,
        }
    }

    #[test]
    fn refused_ones_give_way_before_those_that_were_let_in() {
        let mut pair = Pair::default();
        assert!(pair.write(attempt(10, 100, false)));
        assert!(pair.write(attempt(11, 101, true)));
        for client in 12..40 {
            assert!(pair.write(attempt(client, 90 + client, true)));
            assert_eq!(pair.find(10), Some(0), "{client}");
        }
    }

    #[test]
    fn no_refused_one_takes_the_slot_of_one_that_was_let_in_a_moment_ago() {
        let mut pair = Pair::default();
        assert!(pair.write(attempt(10, 100, false)));
        assert!(pair.write(attempt(11, 101, false)));
        assert!(!pair.write(attempt(12, 101, true)));
        // Its own it does.
        assert!(pair.write(attempt(11, 101, true)));
        assert!(pair.write(attempt(11, 101, false)));
        assert!(pair.write(attempt(12, 102, true)));
        assert_eq!((pair.find(10), pair.find(12)), (None, Some(0)));
    }
}

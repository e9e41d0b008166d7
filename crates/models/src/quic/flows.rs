//! What is remembered of connection attempts: the model of bpf/lib/quic_flows.h, on one CPU.

use super::FORGOTTEN_NS;

/// What is remembered of a client that was let in outlives by so much what is of a refused one.
pub const KEPT_NS: u64 = 30_000_000_000;
/// And what is of one that was sent a Retry.
pub const KEPT_RETRIED_NS: u64 = 1_000_000_000;
/// So long no refused one takes the slot of one that has its answer or a Retry; of one that waits, [`FORGOTTEN_NS`].
pub const SPARED_ANSWERED_NS: u64 = 500_000_000;
/// Words of what a client is known by (struct quic_client).
pub const CLIENT_WORDS: usize = 12;

/// Random words of [`client_hash`], for either half of the hash; the last one of each is added (struct quic_flow_keys).
pub type FlowKeys = [[u64; CLIENT_WORDS + 1]; 2];

/// The hash of a client: twice the upper half of a sum of products that is mixed. Never 0.
pub fn client_hash(client: &[u32; CLIENT_WORDS], keys: &FlowKeys) -> u64 {
    let [high, low] = keys.map(|keys| {
        let products = keys
            .iter()
            .zip(client)
            .map(|(key, word)| key.wrapping_mul(u64::from(*word)));
        mix(products.fold(keys[CLIENT_WORDS], u64::wrapping_add)) >> 32
    });
    high << 32 | low | 1
}

fn mix(sum: u64) -> u64 {
    let sum = (sum ^ sum >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    sum ^ sum >> 32
}

/// The pair of slots that a client's hash belongs to, of so many (a power of two).
pub fn pair_of(client: u64, pairs: u32) -> u32 {
    (client >> 32) as u32 & (pairs - 1)
}

/// What became of an attempt (`enum quic_fate`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Fate {
    /// It was let in and waits for its answer.
    UnderWay,
    /// And its client has repeated it.
    Late,
    /// The server has answered.
    Answered,
    /// With a Retry.
    Retried,
    /// It was refused.
    Refused,
}

/// An attempt in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remembered {
    /// Hash of its client.
    pub client: u64,
    /// When it was judged, ns.
    pub at_ns: u64,
    /// What became of it.
    pub fate: Fate,
}

impl Remembered {
    fn until(&self) -> u64 {
        self.at_ns
            + match self.fate {
                Fate::Refused => 0,
                Fate::Retried => KEPT_RETRIED_NS,
                _ => KEPT_NS,
            }
    }

    /// Whether a refused attempt may take its slot.
    fn yields(&self, now_ns: u64) -> bool {
        let spared = match self.fate {
            Fate::Refused => return true,
            Fate::Answered | Fate::Retried => SPARED_ANSWERED_NS,
            Fate::UnderWay | Fate::Late => FORGOTTEN_NS,
        };
        now_ns as i64 - self.at_ns as i64 >= spared as i64
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
    /// of the pair were let in a moment ago.
    pub fn write(&mut self, attempt: Remembered) -> bool {
        let own = self.find(attempt.client);
        let way = own.unwrap_or_else(|| {
            let [first, second] = self.0.map(|slot| slot.map_or(0, |one| one.until()));
            usize::from(second < first)
        });
        let yields = self.0[way].is_none_or(|other| other.yields(attempt.at_ns));
        if attempt.fate == Fate::Refused && own.is_none() && !yields {
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

    fn attempt(client: u64, at_s: u64, fate: Fate) -> Remembered {
        Remembered {
            client,
            at_ns: at_s * SECOND_NS,
            fate,
        }
    }

    #[test]
    fn refused_ones_give_way_before_those_that_were_let_in() {
        let mut pair = Pair::default();
        assert!(pair.write(attempt(10, 100, Fate::UnderWay)));
        assert!(pair.write(attempt(11, 101, Fate::Refused)));
        for client in 12..40 {
            assert!(pair.write(attempt(client, 90 + client, Fate::Refused)));
            assert_eq!(pair.find(10), Some(0), "{client}");
        }
    }

    #[test]
    fn no_refused_one_takes_the_slot_of_one_that_was_let_in_a_moment_ago() {
        let mut pair = Pair::default();
        assert!(pair.write(attempt(10, 100, Fate::UnderWay)));
        assert!(pair.write(attempt(11, 101, Fate::UnderWay)));
        assert!(!pair.write(attempt(12, 101, Fate::Refused)));
        // Its own it does.
        assert!(pair.write(attempt(11, 101, Fate::Refused)));
        assert!(pair.write(attempt(11, 101, Fate::UnderWay)));
        assert!(pair.write(attempt(12, 102, Fate::Refused)));
        assert_eq!((pair.find(10), pair.find(12)), (None, Some(0)));
    }

    #[test]
    fn whoever_was_sent_a_retry_gives_way_before_those_that_wait() {
        let mut pair = Pair::default();
        assert!(pair.write(attempt(10, 100, Fate::UnderWay)));
        for client in 11..40 {
            assert!(pair.write(attempt(client, 90 + client, Fate::Retried)));
            assert_eq!(pair.find(10), Some(0), "{client}");
        }
    }

    #[test]
    fn clients_that_differ_by_the_same_do_not_share_a_pair_by_that() {
        // Keys by which these two do.
        let keys: FlowKeys = std::array::from_fn(|half| {
            std::array::from_fn(|n| {
                mix((half * 100 + n) as u64 + 1).wrapping_mul(0xd6e8_feb8_6659_fd93)
            })
        });
        let pair = |client: &[u32; CLIENT_WORDS]| pair_of(client_hash(client, &keys), 8192);
        let with = |mut client: [u32; CLIENT_WORDS], delta: u32| {
            client[7] = client[7].wrapping_add(delta);
            client
        };
        let some = [7; CLIENT_WORDS];
        let delta = (1..)
            .find(|delta| pair(&with(some, *delta)) == pair(&some))
            .unwrap();
        let shared = (0..1000).filter(|n| {
            let other = [1000 + n; CLIENT_WORDS];
            pair(&with(other, delta)) == pair(&other)
        });
        assert!(shared.count() < 10);
    }
}

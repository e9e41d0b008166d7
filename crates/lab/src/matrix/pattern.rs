//! The bytes of every stream: known to both ends without being sent between them.

/// Length of the table of random bytes. A prime above 1 MiB: no buffer, page or pipe divides it, so
/// bytes that move by the length of one never match.
const PERIOD: usize = 1_048_583;

/// Random bytes from a seed; each stream is the table from a place of its own on, repeated.
pub struct Pattern {
    table: Box<[u8]>,
}

impl Pattern {
    /// The bytes of this seed.
    pub fn new(seed: u64) -> Pattern {
        let mut table = vec![0; PERIOD].into_boxed_slice();
        fastrand::Rng::with_seed(seed).fill(&mut table);
        Pattern { table }
    }

    /// The stream's bytes from `position` on, as many as the table has in a row; at least one.
    pub fn at(&self, stream: u64, position: u64) -> &[u8] {
        let start = stream.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20;
        let place = (start + position % PERIOD as u64) % PERIOD as u64;
        &self.table[place as usize..]
    }

    /// Where these bytes, the stream's from `position` on, first differ from it.
    pub fn first_difference(&self, stream: u64, position: u64, bytes: &[u8]) -> Option<u64> {
        let mut compared = 0;
        while compared < bytes.len() {
            let expected = self.at(stream, position + compared as u64);
            let length = expected.len().min(bytes.len() - compared);
            let (expected, got) = (&expected[..length], &bytes[compared..compared + length]);
            if expected != got {
                let equal = expected.iter().zip(got).take_while(|(a, b)| a == b).count();
                return Some(position + (compared + equal) as u64);
            }
            compared += length;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stretch(pattern: &Pattern, stream: u64, from: u64, length: usize) -> Vec<u8> {
        (from..from + length as u64)
            .map(|position| pattern.at(stream, position)[0])
            .collect()
    }

    #[test]
    fn a_stream_matches_itself_across_the_tables_end() {
        let pattern = Pattern::new(1);
        let bytes = stretch(&pattern, 7, 0, PERIOD + 1000);
        assert_eq!(pattern.first_difference(7, 0, &bytes), None);
    }

    #[test]
    fn one_lost_doubled_or_changed_byte_is_found_where_it_is() {
        let pattern = Pattern::new(2);
        let whole = stretch(&pattern, 3, 500, 1000);
        let mut changed = whole.clone();
        changed[600] ^= 1;
        assert_eq!(pattern.first_difference(3, 500, &changed), Some(1100));
        let lost = [&whole[..10], &whole[11..]].concat();
        assert!(pattern.first_difference(3, 500, &lost).is_some());
        assert!(pattern.first_difference(4, 500, &whole).is_some());
    }
}

//! What is transferred: the first bytes of one stream that no two places of which look alike, so that a
//! byte that is lost, doubled or out of place is found by comparing.

use std::sync::OnceLock;

use crate::error::{Error, Result};

/// The longest body.
pub const MAX_BYTES: usize = 16 << 20;
const SEED: u64 = 4;

/// The whole stream; a body of n bytes is its first n.
pub fn stream() -> &'static [u8] {
    static STREAM: OnceLock<Vec<u8>> = OnceLock::new();
    STREAM.get_or_init(|| {
        let mut bytes = vec![0; MAX_BYTES];
        fastrand::Rng::with_seed(SEED).fill(&mut bytes);
        bytes
    })
}

/// Fails if `bytes`, which came at this place of a body, are not the stream's.
pub fn check(place: usize, bytes: &[u8]) -> Result<()> {
    let wanted = &stream()[place..place + bytes.len()];
    if wanted == bytes {
        return Ok(());
    }
    let wrong = wanted.iter().zip(bytes).take_while(|(a, b)| a == b).count();
    Err(Error::failed(
        "a body arrived damaged",
        format!("the first wrong byte is number {}", place + wrong),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_doubled_byte_is_found_at_its_place() {
        check(1000, &stream()[1000..1100]).unwrap();
        let mut doubled = stream()[1000..1100].to_vec();
        doubled.insert(50, doubled[49]);
        let error = check(1000, &doubled).unwrap_err();
        let place: usize = error.cause.rsplit(' ').next().unwrap().parse().unwrap();
        assert!((1050..1054).contains(&place), "{error}");
    }
}

//! What moves bytes: pure functions of the engine and of how many bytes there are.
//!
//! A spliced step takes more calls than a copied one, and saves the copying of its bytes. The lengths here are estimates
//! from one run of `weir-lab run proxy-engine --full` on a machine that had other work (docs/design/proxy.md). How much there
//! is to move at a time depends on the link and on the load, so the steps before tell it.

use weir_core::proxy::Engine;

/// A step of at least this length is long: splicing pays for its calls.
pub const LONG_STEP_BYTES: u64 = 40 * 1024;
/// A step of less than this, not three segments, is copied, however much there is in all.
pub const SHORT_STEP_BYTES: u64 = 4 * 1024;
/// Engine `auto` begins to splice a body of which at least this much is to come. Of a reply with less, one or two receives take
/// all, head and body, in no more packets.
const LONG_BODY_BYTES: u64 = 96 * 1024;
/// Engine `splice` receives the head of a reply alone if at least this much follows: of less, one receive takes most.
const RECEIVED_ANYWAY_BYTES: u64 = 24 * 1024;

/// Whether a body of which so many bytes are to come is spliced, at first.
pub fn is_spliced(engine: Engine, to_come: u64) -> bool {
    match engine {
        Engine::Copy => false,
        Engine::Splice => true,
        Engine::Auto | Engine::Sockmap => to_come >= LONG_BODY_BYTES,
    }
}

/// Whether the head of a reply with a body of this length is to be received alone, to splice all of the body.
pub fn is_head_alone(engine: Engine, body: u64) -> bool {
    match engine {
        Engine::Splice => body >= RECEIVED_ANYWAY_BYTES,
        engine => is_spliced(engine, body),
    }
}

/// Whether so short a rest of a body is left to the reader of the connection, which receives it together with what may
/// follow it. If nothing follows, the short read says so without another call.
pub fn is_short_rest(engine: Engine, to_come: u64) -> bool {
    match engine {
        Engine::Splice => to_come == 0,
        _ => to_come < LONG_STEP_BYTES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1024;

    #[test]
    fn auto_copies_what_one_receive_takes_and_splices_long_bodies() {
        for body in [1, 33 * KIB, 64 * KIB, 96 * KIB - 1] {
            assert!(!is_spliced(Engine::Auto, body) && !is_head_alone(Engine::Auto, body));
        }
        for body in [96 * KIB, 1024 * KIB, u64::MAX] {
            assert!(is_spliced(Engine::Auto, body) && is_head_alone(Engine::Auto, body));
        }
    }

    #[test]
    fn an_engine_that_was_chosen_does_as_its_name_says() {
        for body in [1, 33 * KIB, 1024 * KIB] {
            assert!(is_spliced(Engine::Splice, body) && !is_spliced(Engine::Copy, body));
            assert!(!is_head_alone(Engine::Copy, body));
        }
        assert!(is_head_alone(Engine::Splice, 33 * KIB));
    }

    #[test]
    fn only_engine_splice_splices_to_the_last_byte() {
        assert!(!is_short_rest(Engine::Splice, 1) && is_short_rest(Engine::Splice, 0));
        for engine in [Engine::Auto, Engine::Copy, Engine::Sockmap] {
            assert!(is_short_rest(engine, 40 * KIB - 1) && !is_short_rest(engine, 40 * KIB));
        }
    }
}

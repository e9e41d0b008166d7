//! What moves bytes: pure functions of the engine and of how many bytes there are.
//!
//! A spliced step takes more calls than a copied one, and saves the copying of its bytes. The lengths here are
//! measured: experiments/proxy/engine.md. How much there is to move at a time depends on the link and on the load, so the steps
//! before tell it.

use weir_core::proxy::Engine;

/// A step of at least this length is long: splicing pays for its calls.
pub const LONG_STEP_BYTES: u64 = 40 * 1024;
/// A step of less than this, not three segments, is copied, however much there is in all.
pub const SHORT_STEP_BYTES: u64 = 4 * 1024;
/// Engine `auto` splices a body of which at least this much is to come. Copying so much costs more than the two calls of a
/// splice on a veth with TSO, and about as much on other links; of less, one or two receives take all.
const LONG_BODY_BYTES: u64 = 32 * 1024;
/// A receive of the head alone may take so much of the body with it, or a little more: the length of the head is guessed.
const TAKEN_WITH_HEAD_BYTES: u64 = 1024;
/// Engine `auto` receives the rest of a body that it splices once this is shorter than so much.
const SHORT_REST_BYTES: u64 = 16 * 1024;
/// Engine `auto` splices a chunk of which at least this much is to come: the framing behind it needs a receive of its own, which
/// takes a shorter chunk too.
const LONG_CHUNK_BYTES: u64 = 96 * 1024;
/// Engine `splice` receives the head of a reply alone if at least this much follows: of less, one receive takes most.
const RECEIVED_ANYWAY_BYTES: u64 = 24 * 1024;
/// Engine `splice` receives of a chunk what is shorter than this.
const RECEIVED_CHUNK_BYTES: u64 = 32 * 1024;

/// Whether a body of known length of which so many bytes are to come is spliced, at first.
pub fn is_spliced(engine: Engine, to_come: u64) -> bool {
    match engine {
        Engine::Copy => false,
        Engine::Splice => true,
        Engine::Auto | Engine::Sockmap => to_come >= LONG_BODY_BYTES,
    }
}

/// Whether the data of a chunk of which so many bytes are to come is spliced, without a look at it. Other data is received with
/// the framing behind it.
pub fn is_chunk_spliced(engine: Engine, to_come: u64) -> bool {
    match engine {
        Engine::Copy => false,
        Engine::Splice => to_come >= RECEIVED_CHUNK_BYTES,
        Engine::Auto | Engine::Sockmap => to_come >= LONG_CHUNK_BYTES,
    }
}

/// Whether the head of a reply with a body of this length is to be received alone, to splice all of the body. What that receive
/// takes of the body must leave enough to splice: else it was a call too many.
pub fn is_head_alone(engine: Engine, body: u64) -> bool {
    match engine {
        Engine::Splice => body >= RECEIVED_ANYWAY_BYTES,
        engine => is_spliced(engine, body.saturating_sub(TAKEN_WITH_HEAD_BYTES)),
    }
}

/// Whether a body of known length of which so many bytes are to come is moved without a look at it. Else it is left to the
/// reader of the connection, as a [short rest](is_short_rest) is.
pub fn is_moved_unseen(engine: Engine, to_come: u64) -> bool {
    match engine {
        Engine::Copy | Engine::Splice => !is_short_rest(engine, to_come),
        Engine::Auto | Engine::Sockmap => is_spliced(engine, to_come),
    }
}

/// Whether so short a rest of a body that was moved is left to the reader of the connection, which receives it together with
/// what may follow it. If nothing follows, the short read says so without another call.
pub fn is_short_rest(engine: Engine, to_come: u64) -> bool {
    match engine {
        Engine::Splice => to_come == 0,
        Engine::Copy => to_come < LONG_STEP_BYTES,
        Engine::Auto | Engine::Sockmap => to_come < SHORT_REST_BYTES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1024;

    #[test]
    fn auto_receives_short_bodies_and_splices_others() {
        for body in [1, 10 * KIB, 20 * KIB, 32 * KIB - 1] {
            assert!(!is_spliced(Engine::Auto, body) && !is_head_alone(Engine::Auto, body));
        }
        for body in [33 * KIB, 64 * KIB, 96 * KIB, 1024 * KIB, u64::MAX] {
            assert!(is_spliced(Engine::Auto, body) && is_head_alone(Engine::Auto, body));
        }
    }

    #[test]
    fn a_head_is_received_alone_only_where_what_follows_it_is_spliced() {
        for body in 24 * KIB..128 * KIB {
            let left = body - TAKEN_WITH_HEAD_BYTES;
            let is_alone = is_head_alone(Engine::Auto, body);
            assert!(!is_alone || is_moved_unseen(Engine::Auto, left), "{body}");
        }
    }

    #[test]
    fn an_engine_that_was_chosen_does_as_its_name_says() {
        for body in [1, 33 * KIB, 1024 * KIB] {
            assert!(is_spliced(Engine::Splice, body) && !is_spliced(Engine::Copy, body));
            assert!(!is_head_alone(Engine::Copy, body) && !is_chunk_spliced(Engine::Copy, body));
        }
        assert!(is_head_alone(Engine::Splice, 33 * KIB));
    }

    #[test]
    fn only_engine_splice_splices_to_the_last_byte() {
        assert!(!is_short_rest(Engine::Splice, 1) && is_short_rest(Engine::Splice, 0));
        for (engine, rest) in [
            (Engine::Auto, 16 * KIB),
            (Engine::Sockmap, 16 * KIB),
            (Engine::Copy, 40 * KIB),
        ] {
            assert!(is_short_rest(engine, rest - 1) && !is_short_rest(engine, rest));
        }
    }

    #[test]
    fn what_auto_moves_unseen_is_spliced_and_no_short_rest() {
        for to_come in 0..128 * KIB {
            let unseen = is_moved_unseen(Engine::Auto, to_come);
            assert_eq!(unseen, is_spliced(Engine::Auto, to_come));
            assert!(!unseen || !is_short_rest(Engine::Auto, to_come));
        }
    }

    #[test]
    fn a_chunk_is_received_with_its_framing_unless_it_is_long() {
        for (engine, long) in [(Engine::Auto, 96 * KIB), (Engine::Splice, 32 * KIB)] {
            assert!(!is_chunk_spliced(engine, long - 1) && is_chunk_spliced(engine, long));
        }
    }
}

//! When a TIME-WAIT socket, or weir's record of a connection, yields to a new one: C against the Rust model, on random
//! input. The seed is printed; set WEIR_SEED to run one again.

use proptest::prelude::*;
use weir_kernel::testing::pure;
use weir_models::packet::TimeWait;
use weir_models::timewait::{self, Closing, Numbers, Opening, Stamps};

mod seed;
use seed::runner;

#[test]
fn a_time_wait_socket_and_a_record_yield_to_the_syns_of_the_model() {
    // Close to each other as well as anywhere, and 0, which means "none" in a timestamp.
    let near = |base: u32| prop_oneof![(base..base + 4), any::<u32>(), Just(0u32)];
    let old = (near(77), prop::option::of(near(99)), any::<bool>()).prop_map(
        |(rcv_nxt, ts_recent, fin_wait2)| TimeWait {
            rcv_nxt,
            ts_recent,
            fin_wait2,
        },
    );
    runner(200_000)
        .run(
            &(old, near(77), prop::option::of(near(99))),
            |(old, seq, timestamp)| {
                prop_assert_eq!(
                    pure::time_wait_yields(&old, seq, timestamp),
                    old.yields(seq, timestamp)
                );
                prop_assert_eq!(
                    pure::record_yields_to_syn(&old, seq, timestamp),
                    timewait::record_yields_to_syn(&old, seq, timestamp)
                );
                Ok(())
            },
        )
        .unwrap();
}

#[test]
fn a_record_hangs_as_in_the_model() {
    let near = (0u64..1 << 33).prop_map(|now_s| now_s * 1_000_000_000);
    runner(100_000)
        .run(&(near, 0u32..2500, any::<u32>()), |(now_ns, age, any)| {
            let now_s = (now_ns / 1_000_000_000) as u32;
            for since_s in [now_s.wrapping_sub(age), any] {
                prop_assert_eq!(
                    pure::record_hangs(since_s, now_ns),
                    timewait::record_hangs(since_s, now_ns)
                );
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn a_passive_close_ends_and_a_record_yields_as_in_the_model() {
    let near = |base: u32| {
        prop_oneof![
            (0u32..6).prop_map(move |n| base.wrapping_add(n).wrapping_sub(3)),
            any::<u32>(),
            Just(base.wrapping_add(1 << 31))
        ]
    };
    let closing = (near(0), near(9), 1u8..13, any::<bool>()).prop_map(
        |(write_seq, rcv_nxt, state, mptcp)| Closing {
            write_seq,
            rcv_nxt,
            // Mostly the state that counts.
            state: if state < 6 { 9 } else { state },
            mptcp,
        },
    );
    let numbers = || {
        let stamps =
            (near(0), near(u32::MAX)).prop_map(|(sent, received)| Stamps { sent, received });
        let all = (near(7), near(77), prop::option::of(stamps));
        all.prop_map(|(snd_nxt, rcv_nxt, stamps)| Numbers {
            snd_nxt,
            rcv_nxt,
            stamps,
        })
    };
    let opening = (near(0), near(2), 1u8..13).prop_map(|(snd_una, write_seq, state)| Opening {
        snd_una,
        write_seq,
        state: if state < 6 { 2 } else { state },
    });
    runner(200_000)
        .run(
            &(closing, near(9), near(0), numbers(), numbers(), opening),
            |(closing, seq, ack, old, new, opening)| {
                prop_assert_eq!(pure::opens(&opening, ack), opening.is_answered_by(ack));
                prop_assert_eq!(
                    pure::ends_passive_close(&closing, seq, ack),
                    closing.is_ended_by(seq, ack)
                );
                prop_assert_eq!(pure::record_yields(&old, &new), old.yield_to(&new));
                Ok(())
            },
        )
        .unwrap();
}

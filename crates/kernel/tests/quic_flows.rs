//! What is remembered of QUIC attempts: the C against its model on random input, and on several CPUs. The seed is printed; set
//! WEIR_SEED to run one again.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use proptest::prelude::*;
use weir_kernel::testing::quic::{CPair, client_hash, pair_of};
use weir_models::quic::flows::{self, Fate, Pair, Remembered};

mod seed;
use seed::runner;

#[test]
fn c_hashes_a_client_as_the_model_does() {
    let keys = any::<[[u64; 13]; 2]>();
    runner(50_000)
        .run(
            &(any::<[u32; 12]>(), keys, 0u32..20),
            |(client, keys, shift)| {
                let hash = flows::client_hash(&client, &keys);
                prop_assert_eq!(client_hash(&client, &keys), hash);
                prop_assert!(hash > 0);
                prop_assert_eq!(pair_of(hash, 1 << shift), flows::pair_of(hash, 1 << shift));
                Ok(())
            },
        )
        .unwrap();
}

#[test]
fn c_remembers_what_the_model_does() {
    // Steps around the two seconds and the thirty of the rule.
    let step =
        prop_oneof![5 => 0u64..200_000_000, 2 => 0u64..3_000_000_000, 1 => 0u64..40_000_000_000];
    let fate = prop::sample::select(vec![
        Fate::UnderWay,
        Fate::Late,
        Fate::Answered,
        Fate::Retried,
        Fate::Refused,
    ]);
    // Hashes that differ where the word has them.
    let attempts = prop::collection::vec((step, 1u64..7, fate), 1..100);
    runner(10_000)
        .run(&attempts, |attempts| {
            let (c, mut model) = (CPair::default(), Pair::default());
            let mut at_ns = 1;
            for (n, (step, client, fate)) in attempts.into_iter().enumerate() {
                at_ns += step;
                let client = client << 3 | 1;
                let written = model.write(Remembered {
                    client,
                    at_ns,
                    fate,
                });
                prop_assert_eq!(c.write(client, at_ns, n as u32, fate, n as u32), written);
                for client in 1..7 {
                    let client = client << 3 | 1;
                    prop_assert_eq!(c.find(client), model.find(client), "{}", client);
                }
            }
            Ok(())
        })
        .unwrap();
}

/// Each attempt has a mark of its own, which stands in all its fields. Of several sockets some have the same number.
#[test]
fn an_answer_is_of_one_attempt_whoever_writes_meanwhile() {
    const ENOUGH: u64 = 20_000;
    const ATTEMPTS: u64 = 3_000_000;
    const NUMBERS: u32 = 1000;
    let (pair, now, seen) = (CPair::default(), AtomicU64::new(1), AtomicU64::new(0));
    let answered: Vec<AtomicBool> = (0..2 * ATTEMPTS).map(|_| AtomicBool::new(false)).collect();
    let writing = AtomicU64::new(2);
    let write = &|writer: u64| {
        for n in 0..ATTEMPTS {
            let mark = (writer * ATTEMPTS + n) as u32;
            // Refused ones too: they overwrite.
            let fate = match n % 7 {
                0 => Fate::Refused,
                _ => Fate::UnderWay,
            };
            let at_ns = now.fetch_add(1_000_000_000, Ordering::Relaxed);
            let client = (n + writer) % 5 + 1;
            pair.write(client << 3 | 1, at_ns, mark % NUMBERS, fate, mark);
            if seen.load(Ordering::Relaxed) > ENOUGH {
                break;
            }
            // On a busy machine the readers would have a CPU too rarely.
            if n % 256 == 0 {
                std::thread::yield_now();
            }
        }
        writing.fetch_sub(1, Ordering::Relaxed);
    };
    let read = || {
        for n in 0.. {
            if let Some((number, _, marks)) = pair.answer((n % 5 + 1) << 3 | 1) {
                let mark = marks[0];
                assert_eq!(
                    (marks, number),
                    ([mark; 3], mark % NUMBERS),
                    "parts of two attempts"
                );
                let twice = answered[mark as usize].swap(true, Ordering::Relaxed);
                assert!(!twice, "{mark} was answered twice");
                seen.fetch_add(1, Ordering::Relaxed);
            }
            if writing.load(Ordering::Relaxed) == 0 {
                break;
            }
        }
    };
    std::thread::scope(|scope| {
        for writer in [0, 1] {
            scope.spawn(move || write(writer));
            scope.spawn(read);
        }
    });
    assert!(seen.into_inner() > ENOUGH);
}

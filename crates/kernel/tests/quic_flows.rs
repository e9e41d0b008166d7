//! What is remembered of QUIC attempts: the C against its model on random input, and on several CPUs. The seed is printed; set
//! WEIR_SEED to run one again.

use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use weir_kernel::testing::quic::{CPair, client_hash, pair_of};
use weir_models::quic::flows::{self, Pair, Remembered};

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
                prop_assert!(hash > 1);
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
    let attempts = prop::collection::vec((step, 2u64..8, any::<bool>()), 1..100);
    runner(10_000)
        .run(&attempts, |attempts| {
            let (c, mut model) = (CPair::default(), Pair::default());
            let mut at_ns = 1;
            for (n, (step, client, refused)) in attempts.into_iter().enumerate() {
                at_ns += step;
                let number = (!refused).then_some(n as u32);
                let written = model.write(Remembered {
                    client,
                    at_ns,
                    refused,
                });
                prop_assert_eq!(c.write(client, at_ns, number, n as u32), written);
                for client in 2..8 {
                    prop_assert_eq!(c.find(client), model.find(client), "{}", client);
                }
            }
            Ok(())
        })
        .unwrap();
}

/// Each attempt has a number of its own, which stands in all its fields.
#[test]
fn an_answer_is_of_one_attempt_whoever_writes_meanwhile() {
    const ATTEMPTS: u64 = 200_000;
    let (pair, now) = (CPair::default(), AtomicU64::new(1));
    let answered: Vec<AtomicU64> = (0..2 * ATTEMPTS).map(|_| AtomicU64::new(0)).collect();
    let write = |writer: u64| {
        for n in 0..ATTEMPTS {
            let number = (writer * ATTEMPTS + n) as u32;
            let client = 2 + (n + writer) % 5;
            // Refused ones too: they overwrite.
            let let_in = (n % 7 != 0).then_some(number);
            pair.write(
                client,
                now.fetch_add(1_000_000_000, Ordering::Relaxed),
                let_in,
                number,
            );
        }
    };
    let read = || {
        let mut seen = 0u64;
        for n in 0..2 * ATTEMPTS {
            let Some((number, _, marks)) = pair.answer(2 + n % 5) else {
                continue;
            };
            assert_eq!(marks, [number; 3], "parts of two attempts");
            answered[number as usize].fetch_add(1, Ordering::Relaxed);
            seen += 1;
        }
        seen
    };
    let seen: u64 = std::thread::scope(|scope| {
        let writers = [0, 1].map(|writer| scope.spawn(move || write(writer)));
        let readers = [0, 1].map(|_| scope.spawn(read));
        writers.map(|writer| writer.join().unwrap());
        readers.map(|reader| reader.join().unwrap()).iter().sum()
    });
    assert!(seen > 1000, "{seen}");
    let twice = answered
        .iter()
        .filter(|count| count.load(Ordering::Relaxed) > 1);
    assert_eq!(twice.count(), 0, "answered twice");
}

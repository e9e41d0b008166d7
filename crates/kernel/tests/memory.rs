//! How much of the kernel's memory the guard takes. Needs root.

use std::collections::BTreeMap;

use weir_core::class::Class;
use weir_core::listener::{ListenAddress, Listener};
use weir_core::prefix::parse_prefix;
use weir_kernel::Guard;
use weir_testbed::{needs, netns};

const KIB: u64 = 1024;
/// With one listener, beside what each CPU takes. 5.8 MiB of it are `queues`, `policies` and `retried`.
const MOST_KIB: u64 = 14_100;
/// Each CPU that the kernel may have.
const MOST_KIB_A_CPU: u64 = 70;
/// A class more, over all tables, when there are many.
const MOST_BYTES_A_CLASS: u64 = 500;

/// Bytes of each map of this process, by its number, as the kernel accounts for them.
fn maps() -> BTreeMap<u64, u64> {
    let mut maps = BTreeMap::new();
    for entry in std::fs::read_dir("/proc/self/fdinfo").unwrap() {
        // The descriptor of this very directory is gone by now.
        let Ok(text) = std::fs::read_to_string(entry.unwrap().path()) else {
            continue;
        };
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().parse::<u64>().ok()
        };
        if let (Some(id), Some(bytes)) = (field("map_id:"), field("memlock:")) {
            maps.insert(id, bytes);
        }
    }
    maps
}

fn total() -> u64 {
    maps().values().sum()
}

fn class(number: usize) -> Class {
    let prefix = format!("10.{}.{}.0/24", number / 256, number % 256);
    Class {
        from: vec![parse_prefix(&prefix).unwrap()],
        ..Class::new(format!("class{number}"))
    }
}

#[test]
fn the_guard_takes_no_more_memory_than_the_docs_say_and_classes_take_it_when_they_come() {
    if !needs::root("loading BPF programs") {
        return;
    }
    netns::enter_new().expect("a network namespace of our own");
    assert_eq!(total(), 0, "no map before");
    let mut guard = Guard::load().expect("the guard loads");
    let address = ListenAddress { ip: None, port: 80 };
    let listeners = [Listener::new("web", address)];
    guard.apply(&listeners, &[]).unwrap();
    let cpus = libbpf_rs::num_possible_cpus().unwrap() as u64;
    let one = total();
    println!(
        "{} KiB with one listener, {cpus} CPUs: {:?}",
        one / KIB,
        maps()
    );
    assert!(
        one <= (MOST_KIB + cpus * MOST_KIB_A_CPU) * KIB,
        "{one} bytes"
    );
    let few: Vec<Class> = (0..10).map(class).collect();
    guard.apply(&listeners, &few).unwrap();
    let with_few = total() - one;
    assert!(with_few < 100 * KIB, "ten classes take {with_few} bytes");
    let many: Vec<Class> = (0..2000).map(class).collect();
    guard.apply(&listeners, &many).unwrap();
    let each = (total() - one) / 2000;
    println!("{with_few} bytes for ten classes, {each} for each of 2000");
    assert!(each <= MOST_BYTES_A_CLASS, "{each} bytes a class");
    assert_eq!(guard.class_counters().unwrap().len(), 2001);
}

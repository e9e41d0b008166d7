//! What the kernel's verifier has to do when weir starts. It follows every path through a program, so
//! an innocent change can make a start take seconds. How to keep it low: bpf/lib/arrival.bpf.h.

use weir_kernel::testing::run::verified_instructions;
use weir_testbed::needs;

/// The largest program may take this many; a hundred thousand take 0.2 to 0.4 s of CPU time.
const MOST: u32 = 60_000;
/// The same on Linux before 6.18, whose verifier knows fewer paths to be equal: 70 621 on 6.12.
const MOST_BEFORE_6_18: u32 = 80_000;

fn most() -> u32 {
    let release = nix::sys::utsname::uname().unwrap();
    let release = release.release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map(|n| n.parse().unwrap_or(0));
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    match version < (6, 18) {
        true => MOST_BEFORE_6_18,
        false => MOST,
    }
}

#[test]
fn the_verifier_follows_few_instructions_of_each_program() {
    if !needs::root("loading BPF programs") {
        return;
    }
    let programs = verified_instructions().expect("all programs load");
    for (name, instructions) in &programs {
        println!("{name:<16}{instructions:>8}");
    }
    for (name, instructions) in programs {
        assert!(instructions > 0, "{name}: the kernel does not say");
        assert!(
            instructions <= most(),
            "{name}: the verifier follows {instructions} instructions, more than {}",
            most()
        );
    }
}

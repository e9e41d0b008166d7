//! What the kernel's verifier has to do when weir starts. It follows every path through a program, so
//! an innocent change can make a start take seconds. How to keep it low: bpf/lib/arrival.bpf.h.

use weir_kernel::testing::run::verified_instructions;
use weir_testbed::needs;

/// The largest program may take this many, on any kernel; a hundred thousand take 0.2 to 0.4 s of CPU time.
const MOST: u32 = 60_000;

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
            instructions <= MOST,
            "{name}: the verifier follows {instructions} instructions, more than {MOST}"
        );
    }
}

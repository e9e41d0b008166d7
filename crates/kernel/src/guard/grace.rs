//! Waiting until packets have done with what they were judged by.

use std::time::Duration;

/// include/uapi/linux/membarrier.h
const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;
/// How long is waited for packets without it.
const WITHOUT_MEMBARRIER: Duration = Duration::from_millis(100);

/// Waits until no packet is judged by the copy of the policy that was in force before: a BPF
/// program runs inside an RCU read-side section, and this command waits for a grace period.
pub(super) fn wait_for_packets() {
    // SAFETY: membarrier(2) takes no pointers.
    let done = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) };
    if done != 0 {
        // Kernels with nohz_full CPUs or without CONFIG_MEMBARRIER have no such command, and sandboxes refuse it. No packet
        // takes this long.
        std::thread::sleep(WITHOUT_MEMBARRIER);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::seccomp::{NUMBER, answer, install, load, skip};

    /// The new policy is in force by then: an error could not take it back.
    #[test]
    fn where_the_kernel_refuses_to_wait_for_packets_time_passes_instead() {
        for errno in [libc::ENOSYS, libc::EPERM, libc::EINVAL] {
            let refused = std::thread::spawn(move || {
                let filter = [
                    load(NUMBER),
                    skip(libc::SYS_membarrier as u32, 0, 1),
                    answer(libc::SECCOMP_RET_ERRNO | errno as u32),
                    answer(libc::SECCOMP_RET_ALLOW),
                ];
                install(&filter, 0).unwrap();
                let begun = Instant::now();
                wait_for_packets();
                begun.elapsed()
            });
            let took = refused.join().unwrap();
            assert!(took >= WITHOUT_MEMBARRIER, "errno {errno}: {took:?}");
        }
    }
}

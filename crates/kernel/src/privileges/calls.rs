//! System calls that no service of weir makes once it runs, refused by the kernel (seccomp(2)).
//!
//! The list says what is refused, and all else is let by: a new version of libc, libbpf or tokio may make calls that
//! nobody has thought of, and a guard or a proxy that fails in the middle of its work is worse than one that could call
//! what it never calls. A refused call fails with EPERM and ends nothing. docs/rights.md has the reasons.

use std::io;

use crate::seccomp::{
    ARCH, ARCHITECTURE, NUMBER, answer, install, load, no_new_privileges, skip, skip_from,
};

/// What a service does besides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beside {
    /// It loads BPF programs, and takes descriptors of servers (`queue = "priority"`).
    Bpf,
    /// The same, and it enters other network namespaces.
    Namespaces,
    /// Neither.
    Nothing,
}

/// Runs another program, looks into another process, changes what is mounted or which kernel and clock there is, leaves
/// its namespaces, or uses a large part of the kernel that weir does not.
const NEVER: &[libc::c_long] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_kcmp,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_chroot,
    libc::SYS_pivot_root,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_mount_setattr,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_open_by_handle_at,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_syslog,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_userfaultfd,
    libc::SYS_perf_event_open,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_personality,
];

/// Of these, a service that has nothing to do with BPF makes none either.
const WITH_BPF: &[libc::c_long] = &[libc::SYS_bpf, libc::SYS_pidfd_getfd];

/// On x86-64 the calls of the x32 ABI, which is another set of numbers for the same calls.
const X32: u32 = 0x4000_0000;

/// Has the kernel refuse these calls to all threads of this process and to what it starts, for good; with EPERM. Nor can
/// it get more rights by an exec (no_new_privs).
///
/// # Errors
/// No seccomp here, another architecture, or a thread has a filter of its own. Nothing is refused then.
pub fn refuse_calls(beside: Beside) -> io::Result<()> {
    put_in_force(beside, libc::SECCOMP_FILTER_FLAG_TSYNC)
}

/// The same for this thread alone and for what it starts.
///
/// # Errors
/// As of [`refuse_calls`].
pub fn refuse_calls_here(beside: Beside) -> io::Result<()> {
    put_in_force(beside, 0)
}

fn put_in_force(beside: Beside, flags: libc::c_ulong) -> io::Result<()> {
    let Some(architecture) = ARCHITECTURE else {
        return Err(io::ErrorKind::Unsupported.into());
    };
    no_new_privileges()?;
    install(&program(architecture, beside), flags).map(drop)
}

fn refused(beside: Beside) -> Vec<libc::c_long> {
    let mut calls = NEVER.to_vec();
    match beside {
        Beside::Bpf => {}
        Beside::Namespaces => calls.retain(|call| *call != libc::SYS_setns),
        Beside::Nothing => calls.extend(WITH_BPF),
    }
    calls
}

fn program(architecture: u32, beside: Beside) -> Vec<libc::sock_filter> {
    let calls = refused(beside);
    let count = calls.len();
    // Of the last statement, from the first comparison of a number.
    let refuse = |at: usize| (count + 1 - at) as u8;
    let mut program = vec![
        load(ARCH),
        // Calls of another architecture have other numbers: weir makes none.
        skip(architecture, 0, refuse(0) + 2),
        load(NUMBER),
        skip_from(X32, refuse(0)),
    ];
    program.extend(
        calls
            .iter()
            .enumerate()
            .map(|(at, &call)| skip(call as u32, refuse(at + 1), 0)),
    );
    program.push(answer(libc::SECCOMP_RET_ALLOW));
    program.push(answer(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32));
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a program answers to a call.
    fn run(program: &[libc::sock_filter], architecture: u32, number: u32) -> u32 {
        let (mut at, mut word) = (0, 0);
        loop {
            let one = program[at];
            let is = |code: u32| u32::from(one.code) == code | libc::BPF_K;
            at += 1;
            if is(libc::BPF_RET) {
                return one.k;
            } else if is(libc::BPF_JMP | libc::BPF_JEQ) {
                at += usize::from(if word == one.k { one.jt } else { one.jf });
            } else if is(libc::BPF_JMP | libc::BPF_JGE) {
                at += usize::from(if word >= one.k { one.jt } else { one.jf });
            } else if one.k == ARCH {
                word = architecture;
            } else {
                word = number;
            }
        }
    }

    fn all_but(call: libc::c_long) -> Vec<libc::c_long> {
        let others = NEVER.iter().filter(|other| **other != call);
        others.copied().collect()
    }

    #[test]
    fn exactly_the_listed_calls_are_refused() {
        let own = ARCHITECTURE.unwrap();
        for (beside, refused) in [
            (Beside::Bpf, NEVER.to_vec()),
            (Beside::Nothing, [NEVER, WITH_BPF].concat()),
            (Beside::Namespaces, all_but(libc::SYS_setns)),
        ] {
            let program = program(own, beside);
            for number in 0..1024 {
                let is_refused = run(&program, own, number) != libc::SECCOMP_RET_ALLOW;
                assert_eq!(
                    is_refused,
                    refused.contains(&number.into()),
                    "call {number}"
                );
            }
            let read = libc::SYS_read as u32;
            assert_ne!(run(&program, own, X32 | read), libc::SECCOMP_RET_ALLOW);
            assert_ne!(run(&program, own ^ 1, read), libc::SECCOMP_RET_ALLOW);
        }
    }

    #[test]
    fn a_thread_that_gave_exec_up_runs_no_program_and_others_do() {
        let run = || std::process::Command::new("true").status();
        let refused = std::thread::spawn(move || {
            refuse_calls_here(Beside::Bpf).unwrap();
            run().unwrap_err().raw_os_error()
        });
        assert_eq!(refused.join().unwrap(), Some(libc::EPERM));
        assert!(run().unwrap().success());
    }
}

//! Capabilities (capabilities(7)) of this thread.

use std::io;

/// A capability that weir names. The numbers are those of <linux/capability.h>.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Capability {
    /// Gives a socket to a group.
    Chown = 0,
    /// Writes files of others.
    DacOverride = 1,
    /// Reads files and folders of others.
    DacReadSearch = 2,
    /// Binds ports below 1024.
    NetBindService = 10,
    /// Attaches to interfaces; sets what congestion control is not for everybody.
    NetAdmin = 12,
    /// Looks into processes of other users.
    SysPtrace = 19,
    /// Enters network namespaces.
    SysAdmin = 21,
    /// Has a thread run at once.
    SysNice = 23,
    /// Lets BPF programs read kernel memory.
    Perfmon = 38,
    /// Loads BPF programs, and reads and writes their maps.
    Bpf = 39,
}

/// `_LINUX_CAPABILITY_VERSION_3`: 64 bits, in two words.
const VERSION: u32 = 0x2008_0522;
/// As many as two words have; the kernel says EINVAL to those that it does not know.
const NUMBERS: u32 = 64;

/// `struct __user_cap_header_struct`.
#[repr(C)]
struct Header {
    version: u32,
    /// 0: this thread.
    pid: i32,
}

/// `struct __user_cap_data_struct`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Word {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Gives up all capabilities but these, of which it keeps those that it has: in this thread and in the threads and
/// processes that it starts from now on. Nothing can give them back, except the exec of a program that has some; that
/// ends with [`refuse_calls`](super::refuse_calls).
///
/// # Errors
/// What the kernel says. All capabilities are as before then.
pub fn keep_only(kept: &[Capability]) -> io::Result<()> {
    let header = Header {
        version: VERSION,
        pid: 0,
    };
    let mut words = [Word::default(); 2];
    // SAFETY: the kernel reads the header and writes both words, which are what version 3 has.
    let got = unsafe { libc::syscall(libc::SYS_capget, &raw const header, words.as_mut_ptr()) };
    if got != 0 {
        return Err(io::Error::last_os_error());
    }
    let mask = kept.iter().fold(0_u64, |mask, one| mask | 1 << *one as u32);
    // While CAP_SETPCAP is there. A process without it has no bounding set of its own to speak of.
    for number in (0..NUMBERS).filter(|number| mask >> number & 1 == 0) {
        // SAFETY: takes no pointers.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, number, 0, 0, 0) };
    }
    for (word, mask) in words.iter_mut().zip([mask as u32, (mask >> 32) as u32]) {
        word.permitted &= mask;
        word.effective &= mask;
        // What is inherited over exec: nothing is exec'd. The ambient set follows it.
        word.inheritable = 0;
    }
    // SAFETY: the kernel reads the header and both words.
    let set = unsafe { libc::syscall(libc::SYS_capset, &raw const header, words.as_ptr()) };
    match set {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(name: &str) -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        u64::from_str_radix(line.unwrap().trim(), 16).unwrap()
    }

    #[test]
    fn a_thread_keeps_only_what_it_names_and_others_keep_theirs() {
        let before = set("CapPrm:");
        let bind = 1 << Capability::NetBindService as u32;
        let inside = std::thread::spawn(move || {
            keep_only(&[Capability::NetBindService]).unwrap();
            let child = std::thread::spawn(|| set("CapEff:"));
            let sets = ["CapPrm:", "CapEff:", "CapInh:", "CapAmb:"].map(set);
            (sets, child.join().unwrap())
        });
        let (sets, child) = inside.join().unwrap();
        assert_eq!(sets, [before & bind, before & bind, 0, 0]);
        assert_eq!(child, before & bind);
        assert_eq!(set("CapPrm:"), before);
    }
}

//! The tables of the kernel's own iptables (`iptables-legacy`), as include/uapi/linux/netfilter/x_tables.h lays them
//! out. Tables of iptables-nft are nftables.

mod nat;

use std::io;
use std::net::UdpSocket;
use std::ops::Range;
use std::os::fd::AsRawFd;

pub use nat::{nat_ends, nat_target, tcp_match};

/// `NF_INET_PRE_ROUTING`: of packets that have come.
const PREROUTING: usize = 0;
/// `NF_INET_FORWARD`: of packets that go to no socket of this host.
const FORWARD: usize = 2;
const HOOKS: usize = 5;
/// `XT_TABLE_MAXNAMELEN`.
const NAME: usize = 32;
/// IPT_SO_GET_INFO and IPT_SO_GET_ENTRIES; those of IPv6 are the same.
const GET_INFO: libc::c_int = 64;
const GET_ENTRIES: libc::c_int = 65;
/// Before the entries in the answer: the table's name and the size, aligned to 8 bytes.
const ENTRIES_AT: usize = 40;
/// A table that changes between two calls is asked for again, so often.
const TRIES: usize = 4;

/// Targets of iptables that let the packet go on, or that need conntrack. Any other may end it.
const MERE_TARGETS: [&str; 31] = [
    "AUDIT",
    "CHECKSUM",
    "CLASSIFY",
    "CONNMARK",
    "CONNSECMARK",
    "CT",
    "DNAT",
    "DNPT",
    "DSCP",
    "ECN",
    "HL",
    "HMARK",
    "IDLETIMER",
    "LED",
    "LOG",
    "MARK",
    "MASQUERADE",
    "NETMAP",
    "NFLOG",
    "NOTRACK",
    "RATEEST",
    "REDIRECT",
    "SECMARK",
    "SET",
    "SNAT",
    "TCPMSS",
    "TCPOPTSTRIP",
    "TEE",
    "TOS",
    "TRACE",
    "TTL",
];

/// Whether packets go on after this target of iptables, by its name in the kernel.
pub fn is_mere_target(name: &str) -> bool {
    MERE_TARGETS.contains(&name)
}

/// The tables of the calling thread's network namespace whose rules or policies could drop a packet on its way to a
/// socket or back, each with `iptables` or `ip6tables`.
///
/// # Errors
/// There are tables, and they cannot be read.
pub fn tables_that_drop() -> io::Result<Vec<(&'static str, String)>> {
    let mut found = Vec::new();
    for family in &FAMILIES {
        // The file is there once the module is; to ask for a table that is not there would make it.
        let path = format!("/proc/thread-self/net/{}", family.names);
        for name in names(&path)?.lines() {
            if family.read(name)?.drops(family) {
                found.push((family.program, name.to_owned()));
            }
        }
    }
    Ok(found)
}

/// Only a file that is not there says that there are no tables: one that is root's and cannot be read may name some.
fn names(path: &str) -> io::Result<String> {
    match std::fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        read => read,
    }
}

/// What differs between IPv4 and IPv6.
struct Family {
    program: &'static str,
    /// The file below net/ with the tables' names.
    names: &'static str,
    /// A socket of the family binds to it.
    any: &'static str,
    level: libc::c_int,
    /// Of `target_offset` in `struct ipt_entry`; `next_offset` follows it.
    target_offset: usize,
}

const FAMILIES: [Family; 2] = [IPV4, IPV6];
const IPV4: Family = Family {
    program: "iptables",
    names: "ip_tables_names",
    any: "0.0.0.0:0",
    level: libc::SOL_IP,
    target_offset: 88,
};
const IPV6: Family = Family {
    program: "ip6tables",
    names: "ip6_tables_names",
    any: "[::]:0",
    level: libc::SOL_IPV6,
    target_offset: 140,
};

/// A table as the kernel gives it.
struct Table {
    /// The entries of packets that are forwarded, as offsets: from the hook's first to its policy.
    forward: Option<Range<usize>>,
    /// Where those of packets that have come begin.
    prerouting: Option<usize>,
    entries: Vec<u8>,
}

impl Family {
    fn read(&self, name: &str) -> io::Result<Table> {
        let socket = UdpSocket::bind(self.any)?;
        let mut last = io::ErrorKind::Interrupted.into();
        for _ in 0..TRIES {
            match self.try_read(&socket, name) {
                Ok(table) => return Ok(table),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn try_read(&self, socket: &UdpSocket, name: &str) -> io::Result<Table> {
        // struct ipt_getinfo: name, valid_hooks, hook_entry, underflow, num_entries, size.
        let mut info = vec![0; NAME + 4 * (1 + 2 * HOOKS + 2)];
        put_name(&mut info, name)?;
        self.get(socket, GET_INFO, &mut info)?;
        let word = |index: usize| u32_at(&info, NAME + 4 * index).unwrap_or(0);
        let (valid, size) = (word(0), word(2 * HOOKS + 2));
        let begin = word(1 + FORWARD) as usize;
        let policy = word(1 + HOOKS + FORWARD) as usize;
        let mut answer = vec![0; ENTRIES_AT + size as usize];
        put_name(&mut answer, name)?;
        answer[NAME..NAME + 4].copy_from_slice(&size.to_ne_bytes());
        self.get(socket, GET_ENTRIES, &mut answer)?;
        let first = word(1 + PREROUTING) as usize;
        Ok(Table {
            forward: (valid >> FORWARD & 1 != 0).then_some(begin..policy + 1),
            prerouting: (valid >> PREROUTING & 1 != 0).then_some(first),
            entries: answer.split_off(ENTRIES_AT),
        })
    }

    fn get(&self, socket: &UdpSocket, option: libc::c_int, answer: &mut [u8]) -> io::Result<()> {
        let mut length = answer.len() as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes to the buffer, which is as long.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                self.level,
                option,
                answer.as_mut_ptr().cast(),
                &mut length,
            )
        };
        match result {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

fn put_name(bytes: &mut [u8], name: &str) -> io::Result<()> {
    if name.len() >= NAME {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    Ok(())
}

impl Table {
    /// Whether some entry could drop: a rule's, or the policy of a hook. Chains of users count for every hook. What
    /// cannot be parsed could.
    fn drops(&self, family: &Family) -> bool {
        let mut at = 0;
        while at < self.entries.len() {
            let Some((target, next)) = self.entry(at, family) else {
                return true;
            };
            let forwards = self.forward.as_ref().is_some_and(|all| all.contains(&at));
            if !forwards && target.could_drop() {
                return true;
            }
            at = next;
        }
        false
    }

    /// The target of the entry at this offset, and the offset of the next one.
    fn entry(&self, at: usize, family: &Family) -> Option<(Target<'_>, usize)> {
        let offset = |index: usize| {
            let at = at + family.target_offset + 2 * index;
            let bytes = self.entries.get(at..at + 2)?.try_into().ok()?;
            Some(usize::from(u16::from_ne_bytes(bytes)))
        };
        let (target, next) = (at + offset(0)?, at + offset(1)?);
        let name = self.entries.get(target + 2..target + 31)?;
        let name = name.split(|byte| *byte == 0).next()?;
        let target = match std::str::from_utf8(name).ok()? {
            "" => Target::Standard(u32_at(&self.entries, target + 32)? as i32),
            name => Target::Named(name),
        };
        (next > at).then_some((target, next))
    }
}

/// What an entry does with packets that it matches.
enum Target<'a> {
    /// A jump, if it is not negative; else -1 - NF_*.
    Standard(i32),
    Named(&'a str),
}

impl Target<'_> {
    fn could_drop(&self) -> bool {
        const DROP: i32 = -1 - libc::NF_DROP;
        const QUEUE: i32 = -1 - libc::NF_QUEUE;
        match *self {
            Target::Standard(verdict) => matches!(verdict, DROP | QUEUE),
            // The head of a user's chain, and the end of the table.
            Target::Named("ERROR") => false,
            Target::Named(name) => !is_mere_target(name),
        }
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    bytes.try_into().ok().map(u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCEPT: i32 = -1 - libc::NF_ACCEPT;
    const DROP: i32 = -1 - libc::NF_DROP;

    /// An entry without matches, as long as the family has it.
    fn entry(family: &Family, name: &str, verdict: i32) -> Vec<u8> {
        let head = match family.level {
            libc::SOL_IP => 112,
            _ => 168,
        };
        let mut bytes = vec![0; head + 40];
        let at = family.target_offset;
        bytes[at..at + 2].copy_from_slice(&(head as u16).to_ne_bytes());
        bytes[at + 2..at + 4].copy_from_slice(&(head as u16 + 40).to_ne_bytes());
        bytes[head + 2..head + 2 + name.len()].copy_from_slice(name.as_bytes());
        bytes[head + 32..head + 36].copy_from_slice(&verdict.to_ne_bytes());
        bytes
    }

    fn drops(targets: &[(&str, i32)], forward: Option<Range<usize>>) -> [bool; 2] {
        FAMILIES.map(|family| {
            let all = targets.iter().map(|(n, v)| entry(&family, n, *v));
            let all: Vec<_> = all.collect();
            let scale = |at: usize| at * all[0].len();
            let table = Table {
                forward: forward.clone().map(|f| scale(f.start)..scale(f.end)),
                prerouting: None,
                entries: all.concat(),
            };
            table.drops(&family)
        })
    }

    #[test]
    fn a_table_drops_by_a_rule_a_policy_or_a_target_that_is_not_known() {
        for (targets, expected) in [
            (&[("", ACCEPT), ("", 304), ("ERROR", 0)][..], false),
            (&[("", ACCEPT), ("", DROP), ("ERROR", 0)], true),
            (&[("MARK", DROP), ("", ACCEPT)], false),
            (&[("REJECT", 0), ("", ACCEPT)], true),
            (&[("SYNPROXY", 0)], true),
            (&[("", -1 - libc::NF_QUEUE)], true),
            (&[("", -1 - libc::NF_REPEAT)], false),
        ] {
            assert_eq!(drops(targets, None), [expected; 2], "{targets:?}");
        }
        let targets = [("", ACCEPT), ("", DROP), ("", DROP), ("", ACCEPT)];
        assert_eq!(drops(&targets, Some(1..3)), [false; 2], "forwarded only");
        assert_eq!(drops(&targets, Some(1..2)), [true; 2]);
    }

    #[test]
    fn only_a_file_that_is_not_there_names_no_tables() {
        assert_eq!(names("/proc/no-such-file").unwrap(), "");
        assert!(names("/proc").is_err(), "a directory cannot be read");
    }

    #[test]
    fn entries_that_do_not_parse_could_drop() {
        for bytes in [vec![0; 7], vec![0; 400], vec![0xff; 400]] {
            let table = Table {
                forward: None,
                prerouting: None,
                entries: bytes,
            };
            assert!(table.drops(&IPV4) && table.drops(&IPV6));
        }
    }
}

//! Kernels that lack what this one has: each field that depends on the kernel's configuration or version is taken out of
//! its BTF, and every program must load all the same. Needs root.

use std::path::Path;

use weir_kernel::testing::run::{verified_instructions, verified_instructions_on};
use weir_testbed::needs;

/// What a kernel lacks: why, fields (structure and member), and types.
struct Lack {
    because: &'static str,
    fields: &'static [(&'static str, &'static str)],
    types: &'static [&'static str],
}

const LACKS: [Lack; 8] = [
    Lack {
        because: "CONFIG_MPTCP is off",
        fields: &[("tcp_sock", "is_mptcp")],
        types: &["mptcp_sock"],
    },
    Lack {
        because: "CONFIG_IPV6 is off",
        fields: &[
            ("sock_common", "skc_v6_rcv_saddr"),
            ("sock_common", "skc_v6_daddr"),
        ],
        types: &["inet6_dev", "inet6_ifaddr"],
    },
    Lack {
        because: "CONFIG_NET_NS is off",
        fields: &[("possible_net_t", "net")],
        types: &[],
    },
    Lack {
        because: "CONFIG_NETFILTER is off",
        fields: &[("net", "nf")],
        types: &[
            "netns_nf",
            "nf_hook_entries",
            "nf_hook_entry",
            "nf_hook_ops",
        ],
    },
    Lack {
        because: "CONFIG_TCP_MD5SIG is off",
        fields: &[("tcp_sock", "md5sig_info")],
        types: &["tcp_md5sig_info"],
    },
    Lack {
        because: "CONFIG_CGROUP_BPF is off",
        fields: &[("cgroup", "bpf")],
        types: &["cgroup_bpf"],
    },
    Lack {
        because: "CONFIG_CGROUPS is off",
        fields: &[("sock", "sk_cgrp_data"), ("task_struct", "cgroups")],
        types: &["cgroup", "css_set", "sock_cgroup_data"],
    },
    Lack {
        because: "Linux before 6.7",
        fields: &[("tcp_sock", "tcp_usec_ts")],
        types: &[],
    },
];

/// BTF of a kernel (Documentation/bpf/btf.rst), with what was read of its header.
struct Btf {
    bytes: Vec<u8>,
    types: std::ops::Range<usize>,
    strings: usize,
}

const STR_LEN_AT: usize = 20;

impl Btf {
    fn of_this_kernel() -> Btf {
        let bytes = std::fs::read("/sys/kernel/btf/vmlinux").unwrap();
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        assert_eq!(word(0) & 0xffff, 0xeb9f, "little endian BTF");
        let header = word(4);
        let types = header + word(8)..header + word(8) + word(12);
        let strings = header + word(16);
        assert_eq!(strings + word(STR_LEN_AT), bytes.len(), "strings come last");
        Btf {
            bytes,
            types,
            strings,
        }
    }

    fn word(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.bytes[at..at + 4].try_into().unwrap())
    }

    fn name(&self, at: usize) -> &str {
        let from = self.strings + self.word(at) as usize;
        let len = self.bytes[from..].iter().position(|b| *b == 0).unwrap();
        std::str::from_utf8(&self.bytes[from..from + len]).unwrap()
    }

    /// Gives what has its name here another one, that no program asks for.
    fn rename(&mut self, at: usize) {
        let name = (self.bytes.len() - self.strings) as u32;
        self.bytes.extend_from_slice(b"taken_away\0");
        let len = (self.bytes.len() - self.strings) as u32;
        self.bytes[STR_LEN_AT..STR_LEN_AT + 4].copy_from_slice(&len.to_le_bytes());
        self.bytes[at..at + 4].copy_from_slice(&name.to_le_bytes());
    }

    /// Takes a type or a member away; gives how many names it had. Members of anonymous structures inside others too.
    fn take(&mut self, lack: &Lack) -> usize {
        let mut found = Vec::new();
        let mut at = self.types.start;
        while at < self.types.end {
            let info = self.word(at + 4);
            let (kind, vlen) = (info >> 24 & 0x1f, (info & 0xffff) as usize);
            let name = self.name(at);
            if lack.types.contains(&name) {
                found.push(at);
            }
            let members = if matches!(kind, 4 | 5) { vlen } else { 0 };
            for member in (0..members).map(|n| at + 12 + 12 * n) {
                let field = self.name(member);
                let is = |(of, member): &(&str, &str)| {
                    (*of == name || name.is_empty()) && *member == field
                };
                if lack.fields.iter().any(is) {
                    found.push(member);
                }
            }
            at += 12 + tail(kind, vlen);
        }
        for at in &found {
            self.rename(*at);
        }
        found.len()
    }
}

/// Bytes that follow a type's three words.
fn tail(kind: u32, vlen: usize) -> usize {
    match kind {
        1 | 14 | 17 => 4,
        3 => 12,
        4 | 5 | 15 | 19 => 12 * vlen,
        6 | 13 => 8 * vlen,
        _ => 0,
    }
}

fn load_without(lacks: &[Lack], file: &Path) -> Result<usize, String> {
    let mut btf = Btf::of_this_kernel();
    for lack in lacks {
        let taken = btf.take(lack);
        assert!(
            taken >= lack.fields.len(),
            "{}: {taken} taken away",
            lack.because
        );
    }
    std::fs::write(file, &btf.bytes).unwrap();
    let programs = verified_instructions_on(file);
    programs.map(|all| all.len()).map_err(|e| e.to_string())
}

#[test]
fn every_program_loads_on_kernels_that_lack_an_optional_field() {
    if !needs::root("loading BPF programs") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("btf");
    let all = verified_instructions().unwrap().len();
    for lack in LACKS {
        let because = lack.because;
        assert_eq!(load_without(&[lack], &file), Ok(all), "{because}");
    }
    assert_eq!(load_without(&LACKS, &file), Ok(all), "all of them lacking");
}

/// Else the test above could not fail.
#[test]
fn none_loads_without_a_field_that_weir_needs() {
    if !needs::root("loading BPF programs") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let needed = Lack {
        because: "no kernel lacks it",
        fields: &[("sock", "sk_ack_backlog")],
        types: &[],
    };
    let refused = load_without(&[needed], &folder.path().join("btf"));
    refused.expect_err("the length of the queue is needed");
}

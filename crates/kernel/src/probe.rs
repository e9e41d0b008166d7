//! What this kernel can do: each mechanism is tried, not guessed from a version.

use std::ffi::CString;
use std::sync::OnceLock;

use crate::queue::can_migrate;

/// One mechanism and whether this machine has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mechanism {
    /// Short name (`tcx`, `cookies`, …).
    pub name: &'static str,
    /// What weir uses it for.
    pub purpose: &'static str,
    /// Believed lowest kernel version.
    pub min_kernel: &'static str,
    /// `Ok` or why not.
    pub state: std::result::Result<(), String>,
    /// What falls back or fails without it.
    pub without: &'static str,
    /// Whether the guard cannot do without it.
    pub needed: bool,
}

/// What programs of weir are built on. Needs root; attaches nothing, and loads the smallest program only.
pub(crate) fn basics() -> Vec<Mechanism> {
    vec![
        Mechanism {
            name: "btf",
            purpose: "finding the kernel's structures (CO-RE)",
            min_kernel: "5.4 with CONFIG_DEBUG_INFO_BTF",
            state: btf(),
            without: "nothing works",
            needed: true,
        },
        Mechanism {
            name: "bpf",
            purpose: "loading programs",
            min_kernel: "6.6",
            state: may_load(),
            without: "nothing works",
            needed: true,
        },
        Mechanism {
            name: "tcx",
            purpose: "judging packets at tc ingress beside other programs; gone with the process",
            min_kernel: "6.6",
            state: tcx(),
            without: "nothing works",
            needed: true,
        },
        Mechanism {
            name: "kernel-context",
            purpose: "right checksums in answers to packets of this machine (bpf_cast_to_kern_ctx)",
            min_kernel: "6.2",
            state: kernel_function("bpf_cast_to_kern_ctx"),
            without: "nothing works",
            needed: true,
        },
        Mechanism {
            name: "cookies",
            purpose: "establish = no-syn-drop, and reserv's answer to SYN floods (bpf_sk_assign_tcp_reqsk)",
            min_kernel: "6.9",
            state: kernel_function("bpf_sk_assign_tcp_reqsk"),
            without: "no-syn-drop refuses as reserv does",
            needed: false,
        },
        Mechanism {
            name: "xdp-front",
            purpose: "front = xdp: refusing in the driver, before receive steering",
            min_kernel: "5.9, and a driver with native XDP",
            state: native_xdp_somewhere(),
            without: "refusals are made at tc ingress",
            needed: false,
        },
        Mechanism {
            name: "migration",
            purpose: "queue = priority: handing parked connections to the server",
            min_kernel: "6.6.140, 6.12.86, 6.18.27 or 7.0.4, or their fix of CVE-2026-46015",
            state: can_migrate().map_err(|error| error.to_string()),
            without: "queue = priority stays fifo",
            needed: false,
        },
    ]
}

fn btf() -> Result<(), String> {
    let path = "/sys/kernel/btf/vmlinux";
    std::fs::metadata(path)
        .map(drop)
        .map_err(|e| format!("{path}: {e}"))
}

/// Loads the smallest program there is.
fn may_load() -> Result<(), String> {
    // mov64 r0, 0; exit
    let program: [libbpf_sys::bpf_insn; 2] = [insn(0xb7), insn(0x95)];
    let (name, license) = (c"weir_probe", c"GPL");
    // SAFETY: all pointers are to live, NUL-terminated or counted data; no options are given.
    let fd = unsafe {
        libbpf_sys::bpf_prog_load(
            libbpf_sys::BPF_PROG_TYPE_SCHED_CLS,
            name.as_ptr(),
            license.as_ptr(),
            program.as_ptr(),
            program.len() as _,
            std::ptr::null_mut(),
        )
    };
    if fd < 0 {
        return Err(match -fd {
            libc::EPERM | libc::EACCES => "no right to load BPF programs (root needed)".into(),
            errno => std::io::Error::from_raw_os_error(errno).to_string(),
        });
    }
    // SAFETY: fd is a new descriptor of ours.
    unsafe { libc::close(fd) };
    Ok(())
}

fn insn(code: u8) -> libbpf_sys::bpf_insn {
    libbpf_sys::bpf_insn {
        code,
        ..Default::default()
    }
}

/// Asks for the programs on the loopback device's tcx ingress.
fn tcx() -> Result<(), String> {
    let lo = nix::net::if_::if_nametoindex("lo").map_err(|e| format!("no loopback device: {e}"))?;
    let mut opts = libbpf_sys::bpf_prog_query_opts {
        sz: size_of::<libbpf_sys::bpf_prog_query_opts>() as _,
        ..Default::default()
    };
    // SAFETY: opts is initialised, outlives the call and asks for no arrays.
    let failed = unsafe {
        libbpf_sys::bpf_prog_query_opts(lo as i32, libbpf_sys::BPF_TCX_INGRESS, &mut opts)
    };
    match -failed {
        0 => Ok(()),
        libc::EPERM => Err("no right to ask (root needed)".into()),
        _ => Err("the kernel has no tcx links".into()),
    }
}

/// Whether BPF SYN cookies can be handed to the kernel (bpf_sk_assign_tcp_reqsk, kernel 6.9).
pub fn has_cookie_kfunc() -> bool {
    // The kernel does not change under the process, and its BTF takes 20 ms to read.
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| kernel_function("bpf_sk_assign_tcp_reqsk").is_ok())
}

/// Whether IPv6 is no module (CONFIG_IPV6=y): of a module's functions the kernel's own BTF says nothing.
pub(crate) fn has_ipv6_built_in() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| kernel_function("inet6_bind").is_ok())
}

/// Whether programs at tc may ask which ACKs bring a SYN cookie of the kernel's back. A kernel built without
/// CONFIG_SYN_COOKIES has neither such cookies nor that helper.
pub(crate) fn tells_of_kernel_cookies() -> bool {
    // SAFETY: no options are given.
    let known = unsafe {
        libbpf_sys::libbpf_probe_bpf_helper(
            libbpf_sys::BPF_PROG_TYPE_SCHED_CLS,
            libbpf_sys::BPF_FUNC_tcp_raw_check_syncookie_ipv4,
            std::ptr::null(),
        )
    };
    known == 1
}

pub(crate) fn kernel_function(name: &str) -> Result<(), String> {
    // include/uapi/linux/btf.h
    const BTF_KIND_FUNC: u32 = 12;
    // SAFETY: returns a new object or NULL.
    let btf = unsafe { libbpf_sys::btf__load_vmlinux_btf() };
    if btf.is_null() {
        return Err("the kernel's BTF cannot be read".into());
    }
    let c_name = CString::new(name).expect("a name without NUL");
    // SAFETY: btf is valid until freed, and freed once.
    let id = unsafe {
        let id = libbpf_sys::btf__find_by_name_kind(btf, c_name.as_ptr(), BTF_KIND_FUNC);
        libbpf_sys::btf__free(btf);
        id
    };
    if id < 0 {
        Err(format!("the kernel has no {name}"))
    } else {
        Ok(())
    }
}

/// Whether an interface's driver has native XDP with transmission back (kernel 6.3 tells).
pub fn native_xdp(ifindex: u32) -> bool {
    // include/uapi/linux/netdev.h: NETDEV_XDP_ACT_BASIC
    const BASIC: u64 = 1;
    let mut opts = libbpf_sys::bpf_xdp_query_opts {
        sz: size_of::<libbpf_sys::bpf_xdp_query_opts>() as _,
        ..Default::default()
    };
    // SAFETY: opts is initialised and outlives the call.
    let failed = unsafe { libbpf_sys::bpf_xdp_query(ifindex as i32, 0, &mut opts) };
    failed == 0 && opts.feature_flags & BASIC != 0
}

fn native_xdp_somewhere() -> Result<(), String> {
    let interfaces = nix::net::if_::if_nameindex().map_err(|e| e.to_string())?;
    if interfaces.iter().any(|i| native_xdp(i.index())) {
        return Ok(());
    }
    Err("no interface of this network namespace has a driver with native XDP".into())
}

//! System calls that no library wraps: all unsafe code of the test bed and the lab.
#![allow(unsafe_code)]

use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

mod request {
    nix::ioctl_write_int!(set_interface, b'T', 202);
    nix::ioctl_write_int!(set_offload, b'T', 208);
}

/// What goes through the descriptor of a device of /dev/net/tun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tun {
    /// Ethernet frames: a TAP device.
    Frames,
    /// IP packets: a TUN device, without a link header, as a tunnel or a VPN has it.
    Packets,
    /// IP packets, each behind a virtio_net_hdr, which leaves checksums and the cutting of large TCP
    /// packets into segments to their reader.
    LargePackets,
}

/// Makes an open /dev/net/tun the far end of a device of this name (TUNSETIFF).
pub fn attach_tun(file: &File, device: &str, kind: Tun) -> Result<(), Errno> {
    let flags = match kind {
        Tun::Frames => libc::IFF_TAP | libc::IFF_NO_PI,
        Tun::Packets => libc::IFF_TUN | libc::IFF_NO_PI,
        Tun::LargePackets => libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR,
    };
    let ifru_flags = flags as libc::c_short;
    let request = libc::ifreq {
        ifr_name: name(device),
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags },
    };
    // SAFETY: the argument is a valid, NUL-terminated ifreq that outlives the call; TUNSETIFF reads
    // and writes nothing beyond it.
    unsafe { request::set_interface(file.as_raw_fd(), &raw const request as libc::c_ulong) }?;
    if kind == Tun::LargePackets {
        let offloads = libc::TUN_F_CSUM | libc::TUN_F_TSO4;
        // SAFETY: no pointers; TUNSETOFFLOAD takes the flags themselves.
        unsafe { request::set_offload(file.as_raw_fd(), offloads.into()) }?;
    }
    Ok(())
}

/// Work that a network device can take over; the values are linux/ethtool.h's ETHTOOL_S….
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Offload {
    /// Cutting what TCP sends into segments of the MTU.
    Tso = 0x1f,
    /// Joining received segments before the stack sees them.
    Gro = 0x2c,
}

/// Switches an offload of a device of this thread's network namespace (SIOCETHTOOL).
pub fn set_offload(device: &str, offload: Offload, on: bool) -> Result<(), Errno> {
    /// struct ethtool_value.
    #[repr(C)]
    struct Value {
        command: u32,
        data: u32,
    }
    let socket = socket(
        AddressFamily::Inet,
        SockType::Datagram,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    let mut value = Value {
        command: offload as u32,
        data: on.into(),
    };
    let mut request = libc::ifreq {
        ifr_name: name(device),
        ifr_ifru: libc::__c_anonymous_ifr_ifru {
            ifru_data: (&raw mut value).cast(),
        },
    };
    // SAFETY: the ifreq is valid and NUL-terminated, and its pointer leads to the ethtool_value that
    // these commands read; both outlive the call.
    let answer = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
    Errno::result(answer).map(drop)
}

/// Gives the calling thread the idle scheduling class: it runs only when nothing else wants its CPU. Its
/// time is `nice` in /proc/stat.
pub fn run_only_when_idle() -> Result<(), Errno> {
    // SAFETY: no pointers; 0 means the calling thread.
    Errno::result(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 19) })?;
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: 0 means the calling thread; the parameters are valid and only read.
    let answer = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) };
    Errno::result(answer).map(drop)
}

/// Gives the calling thread the lowest real-time priority (SCHED_FIFO): it runs before every usual thread, as soon as it
/// has something to do. For threads that mostly wait.
pub fn run_before_others() -> Result<(), Errno> {
    let parameters = libc::sched_param { sched_priority: 1 };
    // SAFETY: 0 means the calling thread; the parameters are valid and only read.
    let answer = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) };
    Errno::result(answer).map(drop)
}

/// The state of a TCP connection, as in net/tcp_states.h.
pub fn tcp_state(socket: &impl AsRawFd) -> Result<u8, Errno> {
    let mut state = 0u8;
    let mut length: libc::socklen_t = 1;
    // SAFETY: the kernel writes at most one byte, tcpi_state of linux/tcp.h, to a live one.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut state).cast(),
            &raw mut length,
        )
    };
    Errno::result(answer).map(|_| state)
}

/// The smoothed round-trip time of a TCP connection, µs; 0: none known.
pub fn tcp_round_trip_us(socket: &impl AsRawFd) -> Result<u32, Errno> {
    let mut info = std::mem::MaybeUninit::<libc::tcp_info>::zeroed();
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, the size of the live structure.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    Errno::result(answer)?;
    // SAFETY: it was zeroed, and integers may have any value.
    Ok(unsafe { info.assume_init() }.tcpi_rtt)
}

/// Options of TCP sockets that no library sets; the values are linux/tcp.h's TCP_….
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum TcpOption {
    /// Seconds, u32.
    DeferAccept = 9,
    /// struct tcp_md5sig.
    Md5 = 14,
    /// Places for connections whose SYN had data, u32.
    FastOpen = 23,
    /// 1, u32: connect() leaves the SYN to the first write.
    FastOpenConnect = 30,
    /// struct tcp_ao_add.
    Ao = 38,
}

impl TcpOption {
    /// The value that gives a socket a key for this peer, for [`TcpOption::Md5`] (RFC 2385) and [`TcpOption::Ao`]
    /// (RFC 5925): always the same key.
    pub fn key_for(self, peer: SocketAddr) -> Vec<u8> {
        const KEY: &[u8] = b"weir";
        let mut bytes = vec![0; 128];
        let (family, at, prefix) = match peer {
            SocketAddr::V4(_) => (libc::AF_INET, 4, 32),
            SocketAddr::V6(_) => (libc::AF_INET6, 8, 128),
        };
        bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
        match peer.ip() {
            IpAddr::V4(ip) => bytes[at..at + 4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => bytes[at..at + 16].copy_from_slice(&ip.octets()),
        }
        if self == TcpOption::Md5 {
            bytes.extend([0, 0]);
            bytes.extend((KEY.len() as u16).to_ne_bytes());
            bytes.extend([0; 4]);
        } else {
            let mut algorithm = b"hmac(sha1)".to_vec();
            algorithm.resize(64 + 4 + 4 + 2, 0);
            bytes.extend(algorithm);
            // Prefix, both key ids, length of the code, flags, length of the key.
            bytes.extend([prefix, 1, 1, 12, 0, KEY.len() as u8]);
        }
        let mut key = KEY.to_vec();
        key.resize(80, 0);
        bytes.extend(key);
        bytes
    }
}

/// Sets an option of a TCP socket to this value.
pub fn set_tcp_option(socket: &impl AsRawFd, option: TcpOption, value: &[u8]) -> Result<(), Errno> {
    // SAFETY: the kernel reads as many bytes as the slice has.
    let answer = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            option as i32,
            value.as_ptr().cast(),
            value.len() as libc::socklen_t,
        )
    };
    Errno::result(answer).map(drop)
}

/// An option of an IPv4 socket; the values are linux/in.h's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum IpOption {
    /// IP_BIND_ADDRESS_NO_PORT: bind() to port 0 leaves the choice of the port to connect(). 1: on.
    BindAddressNoPort = 24,
    /// IP_LOCAL_PORT_RANGE: the ports that connect() chooses from, the last one in the upper 16 bits.
    LocalPortRange = 51,
}

/// Sets an option of an IPv4 socket to this value.
pub fn set_ip_option(socket: &impl AsRawFd, option: IpOption, value: u32) -> Result<(), Errno> {
    // SAFETY: the kernel reads as many bytes as are said, which the value has.
    let answer = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            option as i32,
            (&raw const value).cast(),
            size_of::<u32>() as libc::socklen_t,
        )
    };
    Errno::result(answer).map(drop)
}

/// What a classic BPF program of a socket is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Classic {
    /// How many bytes of a packet the socket gets (SO_ATTACH_FILTER); 0 drops it.
    Filter = libc::SO_ATTACH_FILTER,
    /// Which socket of its SO_REUSEPORT group gets a connection, counted from 0 (SO_ATTACH_REUSEPORT_CBPF).
    Steer = libc::SO_ATTACH_REUSEPORT_CBPF,
}

/// Gives a socket a classic BPF program that returns this for every packet.
pub fn attach_classic(socket: &impl AsRawFd, what: Classic, value: u32) -> Result<(), Errno> {
    const BPF_RET_K: u16 = 6;
    let mut program = [libc::sock_filter {
        code: BPF_RET_K,
        jt: 0,
        jf: 0,
        k: value,
    }];
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the kernel reads the structure and the program that it names; both outlive the call.
    let answer = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            what as libc::c_int,
            (&raw const filter).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    Errno::result(answer).map(drop)
}

fn name(device: &str) -> [libc::c_char; libc::IFNAMSIZ] {
    let mut name = [0; libc::IFNAMSIZ];
    for (to, from) in name.iter_mut().zip(device.bytes().take(libc::IFNAMSIZ - 1)) {
        *to = from as libc::c_char;
    }
    name
}

/// bpf(2): loads a program that does nothing but return `value`. `kind` and `flags` are the BPF_PROG_TYPE_… and BPF_F_… of
/// linux/bpf.h; a name has at most 15 characters.
pub fn load_constant(name: &str, kind: u32, value: i32, flags: u32) -> Result<OwnedFd, Errno> {
    const BPF_PROG_LOAD: libc::c_int = 5;
    // mov64 r0, value; exit
    let program: [u64; 2] = [0xb7 | u64::from(value as u32) << 32, 0x95];
    let license = c"GPL";
    /// The beginning of union bpf_attr for this command.
    #[repr(C)]
    #[derive(Default)]
    struct Load {
        kind: u32,
        instructions: u32,
        program: u64,
        license: u64,
        log: [u32; 4],
        kernel_version: u32,
        flags: u32,
        name: [u8; 16],
    }
    let mut load = Load {
        kind,
        instructions: program.len() as u32,
        program: program.as_ptr() as u64,
        license: license.as_ptr() as u64,
        flags,
        ..Load::default()
    };
    for (to, from) in load.name[..15].iter_mut().zip(name.bytes()) {
        *to = from;
    }
    bpf(BPF_PROG_LOAD, &load)
}

/// bpf(2): attaches a program to an interface of this thread's network namespace, or to the cgroup with this descriptor
/// (BPF_LINK_CREATE). `hook` is a BPF_… of
/// `enum bpf_attach_type`, `flags` those of the hook.
pub fn attach_program(
    program: &OwnedFd,
    index: u32,
    hook: u32,
    flags: u32,
) -> Result<OwnedFd, Errno> {
    const BPF_LINK_CREATE: libc::c_int = 28;
    let link: [u32; 8] = [program.as_raw_fd() as u32, index, hook, flags, 0, 0, 0, 0];
    bpf(BPF_LINK_CREATE, &link)
}

/// bpf(2): puts another program in the place of the one that a link holds (BPF_LINK_UPDATE).
pub fn update_link(link: &OwnedFd, program: &OwnedFd) -> Result<(), Errno> {
    const BPF_LINK_UPDATE: libc::c_int = 29;
    let update: [u32; 4] = [link.as_raw_fd() as u32, program.as_raw_fd() as u32, 0, 0];
    bpf_call(BPF_LINK_UPDATE, &update).map(drop)
}

fn bpf<T>(command: libc::c_int, attributes: &T) -> Result<OwnedFd, Errno> {
    let fd = bpf_call(command, attributes)?;
    // SAFETY: the call returned a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn bpf_call<T>(command: libc::c_int, attributes: &T) -> Result<libc::c_int, Errno> {
    let at = std::ptr::from_ref(attributes);
    // SAFETY: the kernel reads as many bytes as the attributes have; what they point to outlives the call.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, at, size_of::<T>()) };
    Errno::result(result).map(|value| value as libc::c_int)
}

/// A number among a socket's options of TCP (tcp(7), `TCP_…`), which may be set before.
///
/// # Errors
/// The kernel's: it has no such option, or does not take that value.
pub fn tcp_option(
    socket: &impl AsRawFd,
    option: libc::c_int,
    set: Option<i32>,
) -> Result<i32, Errno> {
    let fd = socket.as_raw_fd();
    let mut value = set.unwrap_or(0);
    let mut length = size_of::<i32>() as libc::socklen_t;
    let at: *mut libc::c_void = (&raw mut value).cast();
    // SAFETY: the value is writable, and length says how long it is.
    let result = unsafe {
        match set {
            Some(_) => libc::setsockopt(fd, libc::SOL_TCP, option, at, length),
            None => libc::getsockopt(fd, libc::SOL_TCP, option, at, &mut length),
        }
    };
    Errno::result(result).map(|_| value)
}

/// The next sequence numbers of a TCP socket's own end and of the other one, without a word to that (tcp(7),
/// TCP_REPAIR). Needs root.
///
/// # Panics
/// The kernel does not give them.
pub fn next_numbers(socket: &impl AsRawFd) -> (u32, u32) {
    const OFF_WITHOUT_PROBE: i32 = -1;
    const RECEIVED: i32 = 1;
    const SENT: i32 = 2;
    let option = |option, set| tcp_option(socket, option, set).expect("TCP_REPAIR") as u32;
    option(libc::TCP_REPAIR, Some(1));
    let [received, sent] = [RECEIVED, SENT].map(|queue| {
        option(libc::TCP_REPAIR_QUEUE, Some(queue));
        option(libc::TCP_QUEUE_SEQ, None)
    });
    option(libc::TCP_REPAIR, Some(OFF_WITHOUT_PROBE));
    (sent, received)
}

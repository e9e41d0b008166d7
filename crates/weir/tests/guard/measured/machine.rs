//! One weir for a machine with many network namespaces: what it holds and uses, and how soon each is guarded.
//!
//! Each namespace is one of a process, as a container's is, without a name. The limits here hold for a debug build on two
//! busy CPUs; experiments/namespaces has what a release build does.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::Signal;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, connect, getsockopt, socket, sockopt,
};
use nix::sys::time::TimeSpec;
use weir_testbed::netns::Netns;
use weir_testbed::process::{Usage, rss_kib};
use weir_testbed::wait::try_until;

use crate::common::{BACKLOG, Bed, PATIENCE, until, within};
use crate::elsewhere::listener_at;
use crate::life::{bpf_objects, exists};

const NAMESPACES: usize = 250;
/// Whatever else listens on this machine has other ports.
const PORT: u16 = 18_081;
/// Unless WEIR_RESTARTS says another number.
const RESTARTS: usize = 400;

/// Of the process and its maps together. Without optimization the program is five times as long.
const MOST_KIB: u64 = 120 * 1024;
const MOST_START: Duration = Duration::from_secs(if cfg!(debug_assertions) { 16 } else { 8 });
/// Of one core.
const MOST_IDLE: f64 = if cfg!(debug_assertions) { 0.02 } else { 0.005 };
const MEASURED: Duration = Duration::from_secs(10);
/// Nearly all of the restarts, and most of those that begin at the moment in which the namespace before ends: while the kernel
/// takes that apart, it keeps its lock (RTNL).
const MOST_SOON: Duration = Duration::from_millis(20);
/// One of so many restarts begins after the namespace before has gone. For that the test waits about two seconds.
const LATER: usize = 40;
/// Nearly all of the others.
const MOST_P99: Duration = Duration::from_millis(if cfg!(debug_assertions) { 250 } else { 150 });
/// None of the restarts is forgotten until something looks at it by chance.
const MOST_LATE: Duration = Duration::from_secs(if cfg!(debug_assertions) { 3 } else { 1 });
/// What the allocator and the kernel keep for later.
const MOST_GROWTH_KIB: u64 = 4 * 1024;
const PROBE_EVERY: Duration = Duration::from_micros(250);

/// What a process does in a namespace of its own.
const CONTAINER: &str = r#"
    use Socket; $| = 1; my ($port, $backlog, $count) = @ARGV;
    sub up { socket(my $s, PF_INET, SOCK_DGRAM, 0) or die $!; ioctl($s, 0x8914, pack("Z16 s x22", $_[0], 0x41)) or die $! }
    sub serve {
        # unshare(CLONE_NEWNET)
        syscall($ENV{WEIR_UNSHARE}, 0x40000000) == 0 or die $!; up("lo"); if ($_[0]) {
            my @veth = (qw(link add eth0 type veth peer), "p$_[0]", "netns", getppid());
            system("ip", @veth) == 0 or die; up("eth0");
        }
        socket(my $s, PF_INET, SOCK_STREAM, 0) or die $!; bind($s, sockaddr_in($port, INADDR_ANY)) or die $!;
        listen($s, $backlog) or die $!; $s
    }
"#;
/// So many of them, each with a veth to where they are started; until the end of standard input.
const MANY: &str = r#"
    pipe(my $told, my $tell);
    for my $n (1..$count) { if (!fork) { close $told; my $s = serve($n); syswrite $tell, "."; <STDIN>; exit } }
    close $tell;
    while ($count > 0) { my $got = sysread($told, my $some, 1000) or die; $count -= $got }
    print "listens\n"; <STDIN>
"#;
/// One that begins again in a new namespace at each line, and with `ends` leaves that for one in which nothing is.
const AGAIN: &str = r#"
    my $s;
    while (<STDIN>) {
        close $s if $s;
        if (/ends/) { undef $s; syscall($ENV{WEIR_UNSHARE}, 0x40000000) == 0 or die $!; print "ended\n"; next }
        $s = serve(0); print "listens\n"
    }
"#;

/// Processes in namespaces of their own; they end with it.
struct Containers {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Containers {
    fn start(netns: &Netns, script: &str, count: usize) -> Containers {
        let mut perl = Command::new("perl");
        perl.args(["-e", &format!("{CONTAINER}{script}")]);
        perl.args([PORT.to_string(), BACKLOG.to_string(), count.to_string()]);
        perl.env("WEIR_UNSHARE", nix::libc::SYS_unshare.to_string());
        let perl = perl.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = within(netns, || perl.spawn().unwrap());
        let said = BufReader::new(child.stdout.take().unwrap());
        Containers { child, said }
    }

    fn listens(&mut self) {
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        assert_eq!(line, "listens\n");
    }

    /// From listen() to the first SYN that weir refuses.
    fn starts_again(&mut self) -> Duration {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        self.listens();
        let begun = Instant::now();
        let netns = std::fs::File::open(format!("/proc/{}/ns/net", self.child.id())).unwrap();
        let refused = std::thread::spawn(move || {
            setns(netns, CloneFlags::CLONE_NEWNET).unwrap();
            first_refused()
        });
        refused.join().unwrap().duration_since(begun)
    }

    fn ends(&mut self) {
        let lines = self.child.stdin.as_mut().unwrap();
        lines.write_all(b"ends\n").unwrap();
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        assert_eq!(line, "ended\n");
    }
}

impl Drop for Containers {
    fn drop(&mut self) {
        // Their standard input ends.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// When the first connection was begun that was refused. The server accepts none, and the kernel refuses none.
fn first_refused() -> Instant {
    let to = SockaddrIn::new(127, 0, 0, 1, PORT);
    let mut probes: Vec<(Instant, OwnedFd)> = Vec::new();
    let give_up = Instant::now() + PATIENCE;
    while Instant::now() < give_up {
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let fd = socket(AddressFamily::Inet, SockType::Stream, flags, None).unwrap();
        let begun = Instant::now();
        match connect(fd.as_raw_fd(), &to) {
            Ok(()) | Err(Errno::EINPROGRESS) => probes.push((begun, fd)),
            Err(Errno::ECONNREFUSED) => return begun,
            Err(error) => panic!("{error}"),
        }
        let next = probes.last().unwrap().1.as_fd();
        let mut fds = [PollFd::new(next, PollFlags::empty())];
        ppoll(&mut fds, Some(TimeSpec::from_duration(PROBE_EVERY)), None).unwrap();
        let is_refused = |(_, fd): &&(Instant, OwnedFd)| {
            getsockopt(fd, sockopt::SocketError).unwrap() == Errno::ECONNREFUSED as i32
        };
        if let Some((begun, _)) = probes.iter().find(is_refused) {
            return *begun;
        }
    }
    panic!("nothing is refused");
}

/// Median, 99th percentile and the most.
fn spread(times: &mut [Duration]) -> [Duration; 3] {
    times.sort_unstable();
    let n = times.len();
    [times[n / 2], times[n * 99 / 100], times[n - 1]]
}

/// What weir and its maps take, KiB.
fn memory(weir: u32) -> u64 {
    let mut maps = BTreeMap::new();
    for entry in std::fs::read_dir(format!("/proc/{weir}/fdinfo")).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap_or_default();
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().parse::<u64>().ok()
        };
        if let (Some(id), Some(bytes)) = (field("map_id:"), field("memlock:")) {
            maps.insert(id, bytes);
        }
    }
    let maps = maps.values().sum::<u64>() / 1024;
    let rss = rss_kib(weir).unwrap();
    println!("memory: process {rss} KiB, maps {maps} KiB");
    rss + maps
}

fn links(weir: u32) -> usize {
    bpf_objects(weir, "link_id").len()
}

fn share_of_idle(weir: u32) -> f64 {
    let (begun, used) = (Instant::now(), Usage::of(weir).unwrap());
    // Nothing is waited for here: this is the time in which nothing is to happen.
    std::thread::sleep(MEASURED);
    let used = Usage::of(weir).unwrap().since(&used);
    used.cpu.as_secs_f64() / begun.elapsed().as_secs_f64()
}

fn restarts() -> usize {
    let given = std::env::var("WEIR_RESTARTS").ok();
    given.map_or(RESTARTS, |number| number.parse().expect("a number"))
}

#[test]
fn one_weir_guards_250_namespaces_and_a_restart_costs_nothing() {
    let Some(bed) = Bed::new() else { return };
    let hub = Netns::create("hub").unwrap();
    let mut many = Containers::start(&hub, MANY, NAMESPACES);
    many.listens();

    let begun = Instant::now();
    let weir = bed.run(&listener_at(PORT, "all", "machine", ""));
    until("all are in force", || {
        let said = bed.log_text();
        (said.matches(" guards *:").count() == NAMESPACES).then_some(())
    });
    let start = begun.elapsed();
    println!("all in force after {start:?}");
    let pid = weir.pid();
    let idle = share_of_idle(pid);
    // With the loopback devices, and those of weir's own that are there anyway. Those of the last namespaces may have come
    // after the line of the log.
    let all = links(pid);
    assert!(all > 2 * NAMESPACES, "{all} links");
    println!("idle: {:.3} % of a core", idle * 100.0);

    let mut one = Containers::start(&hub, AGAIN, 0);
    let mut times: Vec<Duration> = (0..20).map(|_| one.starts_again()).collect();
    let before = memory(pid);
    let count = restarts();
    let churn = Instant::now();
    times.extend((0..count).map(|_| one.starts_again()));
    println!("{count} restarts in {:?}", churn.elapsed());
    let [median, p99, most] = spread(&mut times);
    println!("in force after listen(): median {median:?}, p99 {p99:?}, most {most:?}");
    let latest = &times[times.len().saturating_sub(10)..];
    let unjudged = bed.counter(0, "syn_unjudged");
    let found = bed.log_text().matches("found by a look at all").count();
    let mut later: Vec<_> = (0..count.div_ceil(LATER))
        .map(|_| {
            one.ends();
            until("the namespace has gone", || {
                (links(pid) == all).then_some(())
            });
            one.starts_again()
        })
        .collect();
    let [later_median, later_p99, later_most] = spread(&mut later);
    println!(
        "after the one before has gone: median {later_median:?}, p99 {later_p99:?}, most {later_most:?}"
    );
    println!("the latest: {latest:?}; SYNs passed unjudged: {unjudged}; found by a look: {found}");
    drop(one);
    let left = try_until(PATIENCE, || (links(pid) == all).then_some(()));
    assert!(left.is_some(), "{} links, before {all}", links(pid));
    let after = memory(pid);
    let said = bed.log_text();
    // Of one of the namespaces; at the start weir says that it is about to enter them.
    let is_trouble = |line: &&str| line.contains("all@") && line.contains(" not in force");
    let trouble: Vec<&str> = said.lines().filter(is_trouble).collect();

    let its = bpf_objects(pid, "link_id");
    weir.signal(Signal::SIGKILL);
    weir.end();
    let some: Vec<u32> = its.into_iter().step_by(50).collect();
    until("no link is left", || {
        (!some.iter().any(|id| exists("link", *id))).then_some(())
    });
    assert!(trouble.is_empty(), "{trouble:#?}");
    assert!(after < MOST_KIB, "{after} KiB");
    assert!(
        after < before + MOST_GROWTH_KIB,
        "{before} KiB, then {after} KiB"
    );
    assert!(start < MOST_START, "{start:?}");
    assert!(idle < MOST_IDLE, "{:.3} % of a core", idle * 100.0);
    assert!(median < MOST_SOON, "{median:?}");
    assert!(p99 < MOST_P99, "{p99:?}");
    assert!(later_p99 < MOST_SOON, "{later_p99:?}");
    assert!(most < MOST_LATE, "{most:?}");
    // Before it was in force, no policy of weir's counted them.
    assert_eq!(unjudged, 0);
    assert_eq!(found, 0, "a notice tells of each restart");
}

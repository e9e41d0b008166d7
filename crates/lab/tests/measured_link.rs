//! The emulated link keeps its rate and its times while the machine is busy with other things. Needs root and
//! /dev/net/tun.

use std::io::IoSliceMut;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::sched::{CpuSet, sched_getaffinity};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt};
use nix::sys::time::TimeSpec;
use nix::unistd::Pid;
use weir_lab::error::{Context, Result};
use weir_lab::link::{Emulated, FIRST, Lanes, Spec, far, near};
use weir_lab::{cpu, sys};
use weir_sim::aqm::{Discipline, Setup};
use weir_sim::{LinkSpec, Loss};
use weir_testbed::needs;

/// A thread for each core that never rests.
struct Busy {
    ended: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Busy {
    fn start() -> Busy {
        let ended = Arc::new(AtomicBool::new(false));
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let spin = |ended: Arc<AtomicBool>| {
            move || {
                while !ended.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            }
        };
        let threads = (0..cores).map(|_| std::thread::spawn(spin(Arc::clone(&ended))));
        Busy {
            threads: threads.collect(),
            ended,
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// A thread on each core which goes before others, as the link does, and notes when it is woken late: then the core was
/// with somebody whom the link cannot go before, such as the machine's host.
struct Witnesses {
    ended: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Vec<Stall>>>,
}

/// From when to when a core was not to be had, ns since 1970.
type Stall = (i128, i128);

impl Witnesses {
    fn start() -> Witnesses {
        let ended = Arc::new(AtomicBool::new(false));
        let cores = sched_getaffinity(Pid::from_raw(0)).unwrap();
        let cores = (0..CpuSet::count()).filter(|core| cores.is_set(*core).unwrap());
        let watch = |core| {
            let ended = Arc::clone(&ended);
            std::thread::spawn(move || stalls(core, &ended))
        };
        Witnesses {
            threads: cores.map(watch).collect(),
            ended,
        }
    }

    /// When any of the cores was not to be had, in order: the link is on one of them.
    fn end(self) -> Vec<Stall> {
        self.ended.store(true, Ordering::Relaxed);
        let threads = self.threads.into_iter();
        let mut all: Vec<Stall> = threads.flat_map(|thread| thread.join().unwrap()).collect();
        all.sort_unstable();
        all.dedup_by(|next, last| {
            let meets = next.0 <= last.1;
            last.1 = if meets { last.1.max(next.1) } else { last.1 };
            meets
        });
        all
    }
}

fn stalls(core: usize, ended: &AtomicBool) -> Vec<Stall> {
    cpu::pin_this_thread(core).unwrap();
    sys::run_before_others().unwrap();
    let mut stalls = Vec::new();
    while !ended.load(Ordering::Relaxed) {
        let due_ns = now_ns() + LOOK.as_nanos() as i128;
        std::thread::sleep(LOOK);
        let woken_ns = now_ns();
        if woken_ns - due_ns > STALL.as_nanos() as i128 {
            stalls.push((due_ns, woken_ns));
        }
    }
    stalls
}

/// How often a witness is woken.
const LOOK: Duration = Duration::from_micros(500);
/// Late, for a packet.
const LATE: Duration = Duration::from_millis(1);
/// Late, for a witness: of what made a packet late it has seen so much at least.
const STALL: Duration = Duration::from_micros(250);
/// Share of the packets that may be late.
const MAX_LATE: f64 = 0.01;
/// If more of them were late because a core was stalled, too little is left to judge the link by.
const MAX_EXCUSED: f64 = 0.1;
/// Measurements of a rate, until one is fair.
const ATTEMPTS: usize = 8;

const DELAY: Duration = Duration::from_millis(20);
/// Payload, and what the link carries of it: with the headers of UDP and IPv4.
const PAYLOAD: usize = 1372;
const PACKET_BITS: f64 = (PAYLOAD as f64 + 28.0) * 8.0;
/// The sender offers so much of what the link carries.
const OFFERED: f64 = 1.2;
/// It sends so much at once in the beginning, s of the link's time: the link never runs empty while the sender is kept
/// from its core for less.
const AHEAD: f64 = 0.5;
/// Packets that it sends in one call at most.
const AT_ONCE: f64 = 40.0;
const SECONDS: f64 = 3.0;
const PORT: u16 = 9;

fn direction(bits_per_s: f64) -> LinkSpec {
    LinkSpec {
        discipline: Discipline::Fifo,
        setup: Setup {
            // All that the sender is ahead of it.
            buffer_packets: 20_000,
            ..Setup::of_ip((bits_per_s / 8.0) as u64)
        },
        delay_ns: DELAY.as_nanos() as u64,
        loss: Loss::default(),
        passes_at_once: false,
    }
}

fn now_ns() -> i128 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    now.as_nanos() as i128
}

/// What the sender knows.
struct Sent {
    /// Just before and just after the first packet, ns since 1970.
    first_ns: (i128, i128),
    /// It was kept from its core for so long that the link may have had nothing to carry.
    starved_the_link: bool,
}

/// Sends for so long.
fn send(bits_per_s: f64) -> Result<Sent> {
    let socket = UdpSocket::bind((far(FIRST), 0)).context("no socket")?;
    // The kernel cuts what is sent into packets: else sending alone takes a good part of a core.
    setsockopt(&socket, sockopt::UdpGsoSegment, &(PAYLOAD as i32)).context("no segments")?;
    let send = |packets: usize| {
        let sent = socket.send_to(&vec![0; packets * PAYLOAD], (near(FIRST), PORT));
        sent.context("cannot send")
    };
    let (before_ns, began) = (now_ns(), Instant::now());
    send(1)?;
    let after_ns = now_ns();
    let mut sent = 1.0;
    let mut starved_the_link = false;
    while began.elapsed().as_secs_f64() < SECONDS {
        let seconds = began.elapsed().as_secs_f64();
        starved_the_link |= sent > 1.0 && sent < seconds * bits_per_s / PACKET_BITS;
        let due = (AHEAD + seconds * OFFERED) * bits_per_s / PACKET_BITS;
        while sent <= due {
            let packets = (due - sent).clamp(1.0, AT_ONCE).floor();
            send(packets as usize)?;
            sent += packets;
        }
        std::thread::sleep(Duration::from_micros(500));
    }
    Ok(Sent {
        first_ns: (before_ns, after_ns),
        starved_the_link,
    })
}

/// When the kernel took each packet from the link, ns.
fn receive(socket: &UdpSocket, sender: &JoinHandle<Result<Sent>>) -> Vec<i128> {
    let mut times = Vec::new();
    let mut space = nix::cmsg_space!(TimeSpec);
    let mut buffer = [0; 2048];
    loop {
        let mut parts = [IoSliceMut::new(&mut buffer)];
        let fd = socket.as_raw_fd();
        let received = recvmsg::<()>(fd, &mut parts, Some(&mut space), MsgFlags::empty());
        match received {
            Ok(message) => {
                let mut notes = message.cmsgs().unwrap();
                let time = notes.find_map(|note| match note {
                    ControlMessageOwned::ScmTimestampns(time) => Some(time),
                    _ => None,
                });
                let time = time.expect("a timestamp");
                times.push(i128::from(time.tv_sec()) * 1_000_000_000 + i128::from(time.tv_nsec()));
            }
            // Nothing for as long as the socket waits: longer than the delay.
            Err(_) if sender.is_finished() => return times,
            Err(_) => {}
        }
    }
}

/// What one rate gave.
struct Measured {
    /// bit/s
    rate: f64,
    /// When the link began by the earliest arrival, after the moment before the first packet was sent, ns.
    began_ns: f64,
    /// How long sending the first packet took, ns.
    first_took_ns: f64,
    /// Share of the packets that were late although no core was stalled.
    late: f64,
    /// Why it says nothing about the link; `None`: it was a fair run.
    unfair: Option<String>,
}

/// Whether the link kept its delay, its rate and its times.
fn claims(bits_per_s: f64, measured: &Measured) -> std::result::Result<(), String> {
    let claim = |is_so: bool, what: String| is_so.then_some(()).ok_or(what);
    // Two clocks differ by some thousandths of a ms.
    let possible = -50e3..=measured.first_took_ns + 1e6;
    let (began_ns, rate, late) = (measured.began_ns, measured.rate, measured.late);
    claim(
        possible.contains(&began_ns),
        format!("it began at {began_ns}, not in {possible:?} ns"),
    )?;
    claim(
        (rate / bits_per_s - 1.0).abs() < 0.01,
        format!("{rate} of {bits_per_s} bit/s"),
    )?;
    claim(
        late <= MAX_LATE,
        format!(
            "{:.1} % over {LATE:?} late at {bits_per_s} bit/s",
            late * 100.0
        ),
    )
}

/// When a packet was due and when it came, ns since 1970.
type Times = (i128, i128);

/// For how much of this time a core was stalled, ns.
fn stalled_ns((begin, end): (i128, i128), stalls: &[Stall]) -> i128 {
    let common = |(from, to): &Stall| (end.min(*to) - begin.max(*from)).max(0);
    stalls.iter().map(common).sum()
}

/// Why a run says nothing about the link. `excused`: the share of the packets that a stall made late.
fn unfair(sent: &Sent, stalls: &[Stall], excused: f64) -> Option<String> {
    let (before_ns, after_ns) = sent.first_ns;
    let at_first = (before_ns, after_ns + LATE.as_nanos() as i128);
    let why = if sent.starved_the_link {
        "the sender was kept from its core for long"
    } else if stalled_ns(at_first, stalls) > 0 {
        "a core was stalled as the link began"
    } else if excused > MAX_EXCUSED {
        "the cores were stalled again and again"
    } else {
        return None;
    };
    Some(why.to_owned())
}

fn measure(bits_per_s: f64) -> Measured {
    let spec = Spec {
        down: direction(bits_per_s),
        up: direction(bits_per_s),
        lanes: Lanes::Shared,
        ecn: false,
        seed: 1,
    };
    let link = Emulated::start(spec).unwrap();
    let bind = || {
        let address = SocketAddr::from((near(FIRST), PORT));
        let socket = UdpSocket::bind(address).context("no socket")?;
        setsockopt(&socket, sockopt::RcvBufForce, &(64 << 20)).context("no room")?;
        setsockopt(&socket, sockopt::ReceiveTimestampns, &true).context("no timestamps")?;
        let timeout = Some(Duration::from_secs(1));
        socket.set_read_timeout(timeout).context("no timeout")?;
        Ok(socket)
    };
    let socket = link.near.run(bind).unwrap();
    let busy = Busy::start();
    let witnesses = Witnesses::start();
    let sender = link.far.spawn(0, move || send(bits_per_s)).unwrap();
    let times = receive(&socket, &sender);
    let sent = sender.join().unwrap().unwrap();
    let stalls = witnesses.end();
    drop(busy);
    let report = link.stop().unwrap();
    assert_eq!(times.len() as u64, report.down.delivered, "all are counted");

    // The link was busy from the first packet to the last, so each is due one packet's time after the one before. It
    // began when the first one came, which was between the two times that its sender has taken; the earliest arrival
    // says when.
    let packet_ns = PACKET_BITS / bits_per_s * 1e9;
    let first_ns = packet_ns + DELAY.as_nanos() as f64;
    let (before_ns, after_ns) = sent.first_ns;
    let began = |(number, at): (usize, &i128)| {
        (at - before_ns) as f64 - first_ns - number as f64 * packet_ns
    };
    let began = times.iter().enumerate().map(began);
    let began_ns = began.fold(f64::MAX, f64::min);
    let due_ns = |number: usize| {
        before_ns + (began_ns + first_ns + number as f64 * packet_ns).round() as i128
    };
    let packets: Vec<Times> = times
        .iter()
        .enumerate()
        .map(|(number, at)| (due_ns(number), *at))
        .collect();
    let is_late = |came_ns: i128, due_ns: i128| came_ns - due_ns > LATE.as_nanos() as i128;
    let without_stalls =
        |(due_ns, came_ns): Times| came_ns - stalled_ns((due_ns, came_ns), &stalls);
    let late = packets.iter().filter(|(due, came)| is_late(*came, *due));
    let (late, excused): (Vec<&Times>, Vec<&Times>) =
        late.partition(|packet| is_late(without_stalls(**packet), packet.0));
    let [late, excused] = [late, excused].map(|some| some.len() as f64 / packets.len() as f64);
    let span_ns = without_stalls(packets[packets.len() - 1]) - without_stalls(packets[0]);
    let rate = (packets.len() - 1) as f64 * PACKET_BITS / (span_ns as f64 / 1e9);
    let unfair = unfair(&sent, &stalls, excused);
    println!(
        "{} packets at {:.3} of {} Mbit/s; late {:.2} %, and {:.2} % for a core was stalled; by the link's own clock 99 % {:.3} ms; {}",
        packets.len(),
        rate / 1e6,
        bits_per_s / 1e6,
        late * 100.0,
        excused * 100.0,
        report.down.late.p99_ms,
        unfair.as_deref().unwrap_or("a fair run"),
    );
    Measured {
        rate,
        began_ns,
        first_took_ns: (after_ns - before_ns) as f64,
        late,
        unfair,
    }
}

/// Measures a rate until a run was fair: in that one the link must have kept it.
fn judge(bits_per_s: f64) {
    let mut tried = Vec::new();
    for _ in 0..ATTEMPTS {
        let measured = measure(bits_per_s);
        match (claims(bits_per_s, &measured), measured.unfair) {
            (Ok(()), None) => return,
            (Err(broken), None) => panic!("{broken}; before that: {tried:#?}"),
            (claims, Some(why)) => tried.push(format!("{claims:?}: {why}")),
        }
    }
    panic!("never a fair run: {tried:#?}");
}

#[test]
fn measured_a_link_keeps_its_rate_and_its_times_while_every_core_is_busy() {
    if !needs::root("an emulated link") {
        return;
    }
    [2.4e6, 10e6, 100e6].into_iter().for_each(judge);
}

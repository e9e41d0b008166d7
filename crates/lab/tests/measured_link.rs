//! The emulated link keeps its rate and its times while the machine is busy with other things. Needs root and
//! /dev/net/tun.

use std::io::IoSliceMut;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt};
use nix::sys::time::TimeSpec;
use weir_core::aqm::{Discipline, Setup};
use weir_lab::error::{Context, Result};
use weir_lab::link::{Emulated, FIRST, Spec, far, near};
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

const DELAY: Duration = Duration::from_millis(20);
/// Payload, and what the link carries of it: with the headers of UDP and IPv4.
const PAYLOAD: usize = 1372;
const PACKET_BITS: f64 = (PAYLOAD as f64 + 28.0) * 8.0;
/// The sender offers so much of what the link carries.
const OFFERED: f64 = 1.2;
/// Packets that it sends at once in the beginning.
const AHEAD: f64 = 500.0;
const SECONDS: f64 = 3.0;
const PORT: u16 = 9;

fn direction(bits_per_s: f64) -> LinkSpec {
    LinkSpec {
        discipline: Discipline::Fifo,
        setup: Setup {
            // So that it never runs empty while the sender is kept from its core.
            buffer_packets: 2000,
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

/// Sends for so long; just before and just after the first packet, ns.
fn send(bits_per_s: f64) -> Result<(i128, i128)> {
    let socket = UdpSocket::bind((far(FIRST), 0)).context("no socket")?;
    let send = || {
        let sent = socket.send_to(&[0; PAYLOAD], (near(FIRST), PORT));
        sent.context("cannot send")
    };
    let (before_ns, began) = (now_ns(), Instant::now());
    send()?;
    let after_ns = now_ns();
    let mut sent = 1.0;
    while began.elapsed().as_secs_f64() < SECONDS {
        let seconds = began.elapsed().as_secs_f64();
        let due = AHEAD + seconds * bits_per_s * OFFERED / PACKET_BITS;
        while sent <= due {
            send()?;
            sent += 1.0;
        }
        std::thread::sleep(Duration::from_micros(500));
    }
    Ok((before_ns, after_ns))
}

/// When the kernel took each packet from the link, ns.
fn receive(socket: &UdpSocket, sender: &JoinHandle<Result<(i128, i128)>>) -> Vec<i128> {
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

/// What one rate gave: the rate, bit/s, and by how much packets were later than they were due, in order, ms.
fn measure(bits_per_s: f64) -> (f64, Vec<f64>) {
    let spec = Spec {
        down: direction(bits_per_s),
        up: direction(bits_per_s),
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
    let sender = link.far.spawn(0, move || send(bits_per_s)).unwrap();
    let times = receive(&socket, &sender);
    let (before_ns, after_ns) = sender.join().unwrap().unwrap();
    drop(busy);
    let report = link.stop().unwrap();
    assert_eq!(times.len() as u64, report.down.delivered, "all are counted");

    // The link was busy from the first packet to the last, so each is due one packet's time after the one before. It
    // began when the first one came, which was between the two times that its sender has taken; the earliest arrival
    // says when.
    let packet_ns = PACKET_BITS / bits_per_s * 1e9;
    let first_ns = packet_ns + DELAY.as_nanos() as f64;
    let began = |(number, at): (usize, &i128)| {
        (at - before_ns) as f64 - first_ns - number as f64 * packet_ns
    };
    let mut late: Vec<f64> = times.iter().enumerate().map(began).collect();
    late.sort_by(f64::total_cmp);
    let began_ns = late[0];
    // Two clocks differ by some thousandths of a ms.
    let possible = -50e3..=(after_ns - before_ns) as f64 + 1e6;
    assert!(
        possible.contains(&began_ns),
        "{began_ns} not in {possible:?} ns"
    );
    late.iter_mut()
        .for_each(|late| *late = (*late - began_ns) / 1e6);
    let span_s = (times[times.len() - 1] - times[0]) as f64 / 1e9;
    let rate = (times.len() - 1) as f64 * PACKET_BITS / span_s;
    println!(
        "{} packets at {:.3} of {} Mbit/s; late: median {:.3}, 99 % {:.3}, most {:.3} ms; by the link's own clock 99 % {:.3} ms",
        times.len(),
        rate / 1e6,
        bits_per_s / 1e6,
        late[late.len() / 2],
        late[late.len() * 99 / 100],
        late[late.len() - 1],
        report.down.late.p99_ms,
    );
    (rate, late)
}

#[test]
fn measured_a_link_keeps_its_rate_and_its_times_while_every_core_is_busy() {
    if !needs::root("an emulated link") {
        return;
    }
    for bits_per_s in [2.4e6, 10e6, 100e6] {
        let (rate, late) = measure(bits_per_s);
        assert!(
            (rate / bits_per_s - 1.0).abs() < 0.01,
            "{rate} of {bits_per_s} bit/s"
        );
        let at_99 = late[late.len() * 99 / 100];
        assert!(at_99 <= 1.0, "{at_99} ms at {bits_per_s} bit/s");
    }
}

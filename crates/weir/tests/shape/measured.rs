//! Rates and times: connections beside an upload and in a flood, the rate of the link, what a packet costs.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, sendto, setsockopt,
    socket, sockopt::TcpCongestion,
};
use weir_testbed::needs;
use weir_testbed::netns::Netns;

use crate::hosts::{Hosts, RATE, SERVER, exit_code, has_bpf, needs_bpf};

/// Of the client's side, for connections in the other direction.
const CLIENT: &str = "10.9.1.1:80";

const CONNECTS: usize = 15;
const GIVE_UP: Duration = Duration::from_secs(5);

/// Set when it is dropped, also by a panic.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends to the server for as long as `work` lasts, by a congestion control that fills the queue.
fn beside_an_upload<T>(hosts: &Hosts, work: impl FnOnce() -> T + Send) -> T
where
    T: Send,
{
    let ended = AtomicBool::new(false);
    let upload = || -> std::io::Result<()> {
        let mut stream = TcpStream::connect(SERVER)?;
        setsockopt(&stream, TcpCongestion, &"cubic".into())?;
        stream.set_write_timeout(Some(Duration::from_millis(100)))?;
        while !ended.load(Ordering::Relaxed) {
            // A full send buffer is what is wanted.
            let _ = stream.write(&[0; 1 << 14]);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let upload = scope.spawn(|| hosts.client.run(|| Ok(upload())).unwrap());
        let result = {
            let _ended = Ended(&ended);
            hosts.client.run(|| Ok(work())).unwrap()
        };
        upload.join().unwrap().expect("the upload goes on");
        result
    })
}

/// How long connect() takes; a SYN that finds the queue full is sent again after a second, and then after two.
fn connect_time(to: &str) -> Duration {
    let address: SocketAddr = to.parse().unwrap();
    let start = Instant::now();
    let stream = TcpStream::connect_timeout(&address, GIVE_UP);
    let took = start.elapsed();
    match stream {
        Err(error) if error.kind() != ErrorKind::TimedOut => panic!("cannot connect: {error}"),
        _ => took,
    }
}

/// Of connections that all open at once.
fn connect_times() -> Vec<Duration> {
    connect_times_to(SERVER)
}

fn connect_times_to(address: &str) -> Vec<Duration> {
    std::thread::scope(|scope| {
        let connect = |_| scope.spawn(|| connect_time(address));
        let all: Vec<_> = (0..CONNECTS).map(connect).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    })
}

/// Waits until the upload has filled the queue of the data.
fn wait_for_queue(hosts: &Hosts, bytes: u64) {
    wait_in_shape(hosts, 0, bytes);
}

/// The same before the shape of this number.
fn wait_in_shape(hosts: &Hosts, number: usize, bytes: u64) {
    weir_testbed::wait::until("a queue before the link", || {
        let low = &hosts.shapes()[number]["queues"];
        let low = low
            .as_array()?
            .iter()
            .find(|queue| queue["name"] == "low")?;
        (low["waiting_bytes"].as_u64()? >= bytes).then_some(())
    });
}

fn median_connect(hosts: &Hosts, how: &str, bytes: u64) -> Duration {
    hosts.weir_says(&format!(
        "shape install --dev up0 --rate {RATE} --discipline {how}"
    ));
    let mut times: Vec<Duration> = beside_an_upload(hosts, || {
        wait_for_queue(hosts, bytes);
        connect_times()
    });
    times.sort();
    times[CONNECTS / 2]
}

/// Accepts and reads until the test's process ends.
fn serve(server: &Netns) {
    serve_at(server, SERVER);
}

fn serve_at(server: &Netns, address: &str) {
    let listener = server
        .run(|| Ok(TcpListener::bind(address).unwrap()))
        .unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || read_all(stream));
        }
    });
}

fn read_all(mut stream: TcpStream) {
    let mut buffer = [0; 1 << 14];
    while stream.read(&mut buffer).is_ok_and(|len| len > 0) {}
}

/// BHD18: a SYN waits behind a full queue of data, or before it. Those are 151 400 bytes, 505 ms at
/// 2.4 Mb/s, which the limit is in: one in packets would hold what the sender's stack makes of them, 64 KB each.
#[test]
fn a_connection_opens_at_once_beside_an_upload() {
    let Some(hosts) = Hosts::new("shape-upload") else {
        return;
    };
    serve(&hosts.server);
    let fifo = median_connect(&hosts, "bfifo", 90_000);
    println!("median of {CONNECTS} connect(): bfifo {fifo:?}");
    assert!(fifo > Duration::from_millis(200), "bfifo: {fifo:?}");
    // CoDel keeps its queue short.
    for (discipline, bytes) in [("syn-prio", 90_000), ("spa", 9_000), ("spa-fq", 9_000)] {
        if discipline != "syn-prio" && !has(&hosts, discipline) {
            println!("this kernel has not what {discipline} needs");
            continue;
        }
        let syn_first = median_connect(&hosts, discipline, bytes);
        println!("median of {CONNECTS} connect(): {discipline} {syn_first:?}");
        assert!(
            syn_first * 8 < fifo,
            "bfifo {fifo:?}, {discipline} {syn_first:?}"
        );
        let queues = &hosts.shapes()[0]["queues"];
        let high = queues[0]["sent_packets"].as_u64().unwrap();
        assert!(high >= CONNECTS as u64, "{queues}");
    }
    if !has_bpf(&hosts) {
        return;
    }
    for (discipline, bytes) in [("syn-prio", 90_000), ("spa", 9_000), ("spa-fq", 9_000)] {
        // A SYN of syn-prio waits for the packet that is being sent, 0.2 s if it has 64 KB; one of weir's own overtakes that.
        let longest = if discipline == "syn-prio" {
            "4000"
        } else {
            "65536"
        };
        let words = ["link", "set", "eth0", "gso_max_size", longest];
        hosts.client.ip(&words).unwrap();
        let how = format!("{discipline} --backend bpf");
        let syn_first = median_connect(&hosts, &how, bytes);
        println!("median of {CONNECTS} connect(): {discipline} in BPF {syn_first:?}");
        assert!(
            syn_first * 8 < fifo,
            "bfifo {fifo:?}, {discipline} in BPF {syn_first:?}"
        );
        let queues = &hosts.shapes()[0]["queues"];
        let high = queues[0]["sent_packets"].as_u64().unwrap();
        assert!(high >= CONNECTS as u64, "{queues}");
    }
}

/// Packets that wait when the qdisc goes, or the interface, are dropped, and the next ones pass.
#[test]
fn a_full_queue_in_bpf_is_dropped_with_its_qdisc() {
    let Some(hosts) = Hosts::new("shape-bpf-full") else {
        return;
    };
    serve(&hosts.server);
    if !needs_bpf(&hosts) {
        return;
    }
    for discipline in ["spa", "spa-fq", "syn-prio"] {
        let install = format!(
            "shape install --dev up0 --rate {RATE} --discipline {discipline} --backend bpf"
        );
        hosts.weir_says(&install);
        beside_an_upload(&hosts, || {
            wait_for_queue(&hosts, 9_000);
            // Replaced while it is full, and then reset by the interface.
            hosts.weir_says(&install);
            wait_for_queue(&hosts, 9_000);
            hosts.router.ip(&["link", "set", "up0", "down"]).unwrap();
            let low = hosts.shapes()[0]["queues"][1].clone();
            assert_eq!(low["waiting_packets"], 0, "{low}");
            hosts.router.ip(&["link", "set", "up0", "up"]).unwrap();
            wait_for_queue(&hosts, 9_000);
            hosts.weir_says("shape remove --dev up0");
        });
    }
}

/// SYNs of a flood, each of another address or all of one. Nobody answers them: their checksum is wrong.
fn flood_until(ended: &AtomicBool, spoofed: bool) -> nix::Result<()> {
    let raw = (AddressFamily::Inet, SockType::Raw, SockProtocol::Raw);
    let socket = socket(raw.0, raw.1, SockFlag::empty(), raw.2)?;
    let server = SockaddrIn::new(10, 9, 0, 2, 0);
    let mut syn = [0u8; 40];
    // IPv4, 40 bytes, TTL 64, TCP; to port 80 of the server, a header of 5 words, SYN.
    (syn[0], syn[3], syn[8], syn[9]) = (0x45, 40, 64, 6);
    syn[16..20].copy_from_slice(&[10, 9, 0, 2]);
    (syn[23], syn[32], syn[33]) = (80, 0x50, 2);
    let start = Instant::now();
    for number in 0u32.. {
        if ended.load(Ordering::Relaxed) {
            break;
        }
        let source = if spoofed {
            number.wrapping_mul(0x9e37_79b1) >> 8
        } else {
            1
        };
        // Of 11.0.0.0/8, which is nobody's here.
        syn[12..16].copy_from_slice(&(0x0b00_0000 | source).to_be_bytes());
        sendto(socket.as_raw_fd(), &syn, &server, MsgFlags::empty())?;
        let due = Duration::from_micros(u64::from(number) * 100);
        if let Some(early) = due.checked_sub(start.elapsed()) {
            std::thread::sleep(early);
        }
    }
    Ok(())
}

/// 10 000 SYNs/s through the link beside an upload: what the upload keeps of the link, and connect times of the
/// same direction and of the other one, whose SYN/ACKs share the link with the flood.
fn beside_a_flood(hosts: &Hosts, spoofed: bool) -> (f64, [Vec<Duration>; 2]) {
    let ended = AtomicBool::new(false);
    let low_bytes = || {
        hosts.shapes()[0]["queues"][1]["sent_bytes"]
            .as_u64()
            .unwrap()
    };
    beside_an_upload(hosts, || {
        wait_for_queue(hosts, 9_000);
        std::thread::scope(|scope| {
            let flood = scope.spawn(|| hosts.client.run(|| Ok(flood_until(&ended, spoofed))));
            let measured = {
                let _ended = Ended(&ended);
                weir_testbed::wait::until("demoted SYNs", || {
                    let demoted = &hosts.shapes()[0]["queues"][2]["dropped_packets"];
                    (demoted.as_u64()? > 1000).then_some(())
                });
                let (first, start) = (low_bytes(), Instant::now());
                // A SYN in the direction of forged ones is like them: it may wait, and connect() for it.
                let there = if spoofed { Vec::new() } else { connect_times() };
                let back = hosts.server.run(|| Ok(connect_times_to(CLIENT))).unwrap();
                weir_testbed::wait::until("two seconds", || {
                    (start.elapsed().as_secs() >= 2).then_some(())
                });
                let seconds = start.elapsed().as_secs_f64();
                ((low_bytes() - first) as f64 * 8.0 / seconds, [there, back])
            };
            flood.join().unwrap().unwrap().expect("the flood goes on");
            measured
        })
    })
}

#[test]
fn a_flood_leaves_the_upload_four_fifths_and_does_not_keep_connections_out() {
    let Some(hosts) = Hosts::new("shape-flood") else {
        return;
    };
    serve_at(&hosts.server, SERVER);
    serve_at(&hosts.client, CLIENT);
    let tc = has(&hosts, "spa-fq").then_some("tc");
    let bpf = has_bpf(&hosts).then_some("bpf");
    for backend in tc.into_iter().chain(bpf) {
        let how = format!("spa-fq --backend {backend}");
        for spoofed in [false, true] {
            hosts.weir_says(&format!(
                "shape install --dev up0 --rate 10mbit --discipline {how}"
            ));
            let (upload, [there, back]) = beside_a_flood(&hosts, spoofed);
            let worst = |times: &[Duration]| times.iter().max().copied().unwrap_or_default();
            let (there, back) = (worst(&there), worst(&back));
            println!(
                "median beside a flood (spoofed: {spoofed}), {how}: upload {:.2} Mbit/s, \
                 slowest connect() {there:?}, from the other side {back:?}",
                upload / 1e6
            );
            assert!(upload > 8e6, "{how}: {upload}");
            assert!(back < Duration::from_millis(300), "{how}: {back:?}");
            assert!(there < Duration::from_millis(300), "{how}: {there:?}");
        }
    }
}

/// Whether the kernel has the discipline's qdiscs.
fn has(hosts: &Hosts, discipline: &str) -> bool {
    let install =
        format!("shape install --dev up0 --rate {RATE} --discipline {discipline} --backend tc");
    match exit_code(&hosts.weir(&install)) {
        Some(0) => true,
        code => {
            assert_eq!(code, Some(3));
            false
        }
    }
}

/// What a packet costs with each root qdisc. On the clock of `make test-vm`, 2 ns are an instruction.
#[test]
fn a_packet_costs_in_bpf_about_what_it_does_in_fq_codel() {
    const PACKETS: u32 = 20_000;
    let Some(hosts) = Hosts::new("shape-cost") else {
        return;
    };
    let dummy = hosts.router.ip(&["link", "add", "cost0", "type", "dummy"]);
    if !needs_bpf(&hosts) {
        return;
    }
    if dummy.is_err() || !has(&hosts, "spa-fq") {
        return needs::skip("kernel without dummy devices, or without fq_codel");
    }
    for line in [
        "addr add 10.9.7.1/24 dev cost0",
        "link set cost0 up",
        "neigh add 10.9.7.2 lladdr 02:00:00:00:00:02 dev cost0",
    ] {
        hosts
            .router
            .ip(&line.split(' ').collect::<Vec<_>>())
            .unwrap();
    }
    let per_packet = |how: &str| {
        match how.strip_prefix("tc ") {
            Some(kind) => {
                let mut tc = needs::command("tc");
                tc.args(["qdisc", "replace", "dev", "cost0", "root", kind]);
                assert!(hosts.run(tc).status.success(), "{how}");
            }
            None => {
                let install = "shape install --dev cost0 --rate 10gbit --discipline";
                hosts.weir_says(&format!("{install} {how}"));
            }
        }
        let took = hosts.router.run(|| Ok(send_packets(PACKETS))).unwrap();
        match how.starts_with("tc ") {
            true => {
                let mut tc = needs::command("tc");
                tc.args(["qdisc", "del", "dev", "cost0", "root"]);
                assert!(hosts.run(tc).status.success(), "{how}");
            }
            false => drop(hosts.weir_says("shape remove --dev cost0")),
        }
        let ns = took.as_nanos() as f64 / f64::from(PACKETS);
        println!("median ns for a packet: {how} {ns:.0}");
        ns
    };
    let base = per_packet("tc pfifo");
    let fq_codel = per_packet("tc fq_codel") - base;
    let tree = per_packet("spa-fq --backend tc") - base;
    let [spa, spa_fq] =
        ["spa", "spa-fq"].map(|name| per_packet(&format!("{name} --backend bpf")) - base);
    println!(
        "median ns over pfifo: fq_codel {fq_codel:.0}, htb with fq_codel {tree:.0}, spa in BPF {spa:.0}, \
         spa-fq in BPF {spa_fq:.0}"
    );
}

/// How long packets of 64 flows take to be sent.
fn send_packets(count: u32) -> Duration {
    let socket = |_| {
        let socket = UdpSocket::bind("10.9.7.1:0").unwrap();
        socket.connect("10.9.7.2:9").unwrap();
        socket
    };
    let sockets: Vec<_> = (0..64).map(socket).collect();
    let start = Instant::now();
    for (_, socket) in (0..count).zip(sockets.iter().cycle()) {
        // A full queue would be a drop, not an error.
        let _ = socket.send(&[0; 1000]);
    }
    start.elapsed()
}

/// The rate is what was asked for, counted with link headers.
#[test]
fn an_upload_has_the_rate_of_the_link() {
    let Some(hosts) = Hosts::new("shape-rate") else {
        return;
    };
    serve(&hosts.server);
    let bpf = has_bpf(&hosts).then_some("bpf");
    for backend in ["tc"].into_iter().chain(bpf) {
        let rate = upload_rate(&hosts, backend);
        println!("{:.3} Mbit/s of 10, by {backend}", rate / 1e6);
        assert!((9.7e6..10.3e6).contains(&rate), "{backend}: {rate}");
    }
}

/// What an interface receives has its rate too, and a SYN does not wait behind what waits there. Before the router's
/// stack has a packet, it counts for the sender's TCP small queues: few wait.
#[test]
fn what_comes_in_has_its_rate_and_connections_open_at_once_beside_it() {
    let Some(hosts) = crate::ingress::router("shape-in-rate") else {
        return;
    };
    serve(&hosts.server);
    const WAITING: u64 = 9_000;
    // The clients' uploads come in at lan0, whose ingress is the second shape.
    let install = |rate: &str, how: &str| {
        hosts.weir_says(&format!(
            "shape install --dev lan0 --rate 10gbit --ingress {rate} --discipline {how}"
        ));
    };
    let median = |how: &str| {
        install(RATE, how);
        let mut times = beside_an_upload(&hosts, || {
            wait_in_shape(&hosts, 1, WAITING);
            connect_times()
        });
        times.sort();
        times[CONNECTS / 2]
    };
    let (fifo, syn_first) = (median("bfifo"), median("syn-prio"));
    // Packets are up to 64 KB, which count at once: 3 % of two seconds.
    install("10mbit", "syn-prio");
    let rate = sent_rate(&hosts, 1, WAITING);
    println!(
        "median of {CONNECTS} connect() beside what comes in: bfifo {fifo:?}, syn-prio {syn_first:?}; {:.3} Mbit/s of 10",
        rate / 1e6
    );
    assert!(
        syn_first * 4 < fifo,
        "bfifo {fifo:?}, syn-prio {syn_first:?}"
    );
    assert!((9.5e6..10.5e6).contains(&rate), "{rate}");
}

fn upload_rate(hosts: &Hosts, backend: &str) -> f64 {
    hosts.weir_says(&format!(
        "shape install --dev up0 --rate 10mbit --discipline syn-prio --backend {backend}"
    ));
    sent_rate(hosts, 0, 90_000)
}

/// Of the shape of this number beside an upload, of which so many bytes wait there, bit/s.
///
/// A count is read by a process, and nobody knows when in its time; where the machine, or the virtual one's host, is
/// busy, that may be tenths of a second. So the two readings are so far apart that it is 3 % at most.
fn sent_rate(hosts: &Hosts, number: usize, waiting: u64) -> f64 {
    let sent = || {
        let queues = hosts.shapes()[number]["queues"].clone();
        let queues = queues.as_array().unwrap().clone();
        queues
            .iter()
            .map(|queue| queue["sent_bytes"].as_u64().unwrap())
            .sum::<u64>()
    };
    let read = || {
        let before = Instant::now();
        (before, sent(), Instant::now())
    };
    beside_an_upload(hosts, || {
        wait_in_shape(hosts, number, waiting);
        let (begun, first, counted) = read();
        weir_testbed::wait::until("readings that are far enough apart", || {
            if counted.elapsed().as_secs() < 2 {
                return None;
            }
            let (before, last, after) = read();
            let (least, most) = (before - counted, after - begun);
            let seconds = (least + most).as_secs_f64() / 2.0;
            ((most - least) * 16 <= least).then(|| (last - first) as f64 * 8.0 / seconds)
        })
    })
}

//! The sockmap engine: what the kernel carries, how it is taken back, and that nothing of it stays.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use socket2::SockRef;
use weir_testbed::needs::{self, namespace};
use weir_testbed::process::stands_still;
use weir_testbed::wait::{PATIENCE, until};

use super::WEIR;

/// More messages than a tunnel has to show before it is handed to the kernel.
const CHAT: usize = 200;

/// A running proxy in mode tcp, with its server.
struct Proxy {
    child: Child,
    stdout: BufReader<ChildStdout>,
    address: SocketAddr,
    server: TcpListener,
}

/// Both ends of a tunnel.
struct Ends {
    client: TcpStream,
    server: TcpStream,
}

impl Proxy {
    fn start(engine: &str) -> Proxy {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let backend = server.local_addr().unwrap().to_string();
        let mut child = Command::new(WEIR)
            .args(["proxy", "--listen", "127.0.0.1:0", "--mode", "tcp"])
            .args(["--backend", &backend, "--engine", engine])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let rest = line.split_once("proxy on ").expect("it listens").1;
        let address = rest.split(' ').next().unwrap().parse().unwrap();
        Proxy {
            child,
            stdout,
            address,
            server,
        }
    }

    fn tunnel(&self) -> Ends {
        let client = TcpStream::connect(self.address).unwrap();
        let (server, _) = self.server.accept().unwrap();
        for end in [&client, &server] {
            end.set_nodelay(true).unwrap();
            end.set_read_timeout(Some(PATIENCE)).unwrap();
        }
        Ends { client, server }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Takes the CPU away from all its threads; SIGCONT gives it back.
    fn stop(&self) {
        self.signal(Signal::SIGSTOP);
        until("it stops", || stands_still(self.child.id()).then_some(()));
    }

    /// Ends it and says what a counter of its summary was.
    fn end(mut self, counter: &str) -> u64 {
        self.signal(Signal::SIGTERM);
        let mut summary = String::new();
        self.stdout.read_to_string(&mut summary).unwrap();
        assert!(self.child.wait().unwrap().success());
        let mut rows = summary.lines().map(str::split_whitespace);
        let row = rows.find_map(|mut row| (row.next() == Some(counter)).then(|| row.next()));
        row.flatten().map_or(0, |count| count.parse().unwrap())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ends {
    /// Messages of `length` bytes forth and back, one at a time.
    fn chat(&mut self, messages: usize, length: usize) {
        for number in 0..messages {
            let message = vec![number as u8; length];
            let mut heard = vec![0; length];
            self.client.write_all(&message).unwrap();
            self.server.read_exact(&mut heard).unwrap();
            assert!(heard == message, "message {number} forth");
            self.server.write_all(&message).unwrap();
            self.client.read_exact(&mut heard).unwrap();
            assert!(heard == message, "message {number} back");
        }
    }

    fn end(self) {
        drop(self.client);
        assert_eq!((&self.server).read(&mut [0; 8]).unwrap(), 0);
    }
}

#[test]
fn the_kernel_carries_the_short_messages_and_user_space_the_long_ones() {
    let Some(netns) = namespace("sockmap") else {
        return;
    };
    let redirected = netns
        .run(|| {
            let proxy = Proxy::start("sockmap");
            let mut ends = proxy.tunnel();
            for round in 1..4 {
                ends.chat(CHAT, 500);
                ends.chat(2, 300_000 * round);
            }
            ends.end();
            Ok(proxy.end("bytes_redirected"))
        })
        .unwrap();
    let short = 3 * 2 * CHAT as u64 * 500;
    // All of the first round at least. Handing over again is a race with a peer that answers at once, which a busy
    // machine may lose each time: what has been passed by then is copied.
    assert!(redirected > short / 4, "{redirected} of {short}");
    assert!(redirected <= short + 2048, "{redirected} of {short}");
}

#[test]
fn a_half_that_ends_leaves_the_other_to_bulk() {
    let Some(netns) = namespace("sockmap") else {
        return;
    };
    netns
        .run(|| {
            let proxy = Proxy::start("sockmap");
            let mut ends = proxy.tunnel();
            ends.chat(CHAT, 100);
            ends.client.write_all(b"last words").unwrap();
            ends.client.shutdown(Shutdown::Write).unwrap();
            let mut heard = Vec::new();
            ends.server.read_to_end(&mut heard).unwrap();
            assert_eq!(heard, b"last words");
            let bulk: Vec<u8> = (0..5_000_000u32).map(|n| (n / 3) as u8).collect();
            let (sent, mut server) = (bulk.clone(), ends.server);
            let sending = std::thread::spawn(move || server.write_all(&sent).unwrap());
            let mut received = vec![0; bulk.len()];
            ends.client.read_exact(&mut received).unwrap();
            assert!(received == bulk);
            sending.join().unwrap();
            Ok(())
        })
        .unwrap();
}

#[test]
fn a_reset_of_a_tunnel_that_the_kernel_carries_travels() {
    let Some(netns) = namespace("sockmap") else {
        return;
    };
    netns
        .run(|| {
            let proxy = Proxy::start("sockmap");
            for from_client in [true, false] {
                let mut ends = proxy.tunnel();
                ends.chat(CHAT, 100);
                let (resets, mut sees) = match from_client {
                    true => (ends.client, ends.server),
                    false => (ends.server, ends.client),
                };
                SockRef::from(&resets)
                    .set_linger(Some(Duration::ZERO))
                    .unwrap();
                drop(resets);
                let error = sees.read(&mut [0; 8]).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{from_client}");
            }
            Ok(())
        })
        .unwrap();
}

/// The largest buffers that the kernel gives a socket of the namespace for receiving and sending, which
/// it otherwise chooses by how fast bytes came before: on this machine from 0.1 to 33 MB.
const MOST_RECEIVED: usize = 1 << 20;
const MOST_SENT: usize = 512 << 10;

fn limit_buffers() {
    let limit = |name: &str, start: usize, most: usize| {
        let path = format!("/proc/sys/net/ipv4/{name}");
        std::fs::write(path, format!("4096 {start} {most}")).unwrap();
    };
    limit("tcp_rmem", 131_072, MOST_RECEIVED);
    limit("tcp_wmem", 16_384, MOST_SENT);
}

/// What the proxy does while a receiver stalls.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Proxying {
    Runs,
    /// It gets no CPU at all.
    Stopped,
}

/// Bytes that a sender gets rid of while its receiver reads nothing, until nothing more is taken.
fn taken_without_a_reader(engine: &str, proxying: Proxying) -> usize {
    let proxy = Proxy::start(engine);
    let mut ends = proxy.tunnel();
    ends.chat(CHAT, 500);
    if proxying == Proxying::Stopped {
        proxy.stop();
        if engine == "sockmap" {
            // Without the proxy's help.
            ends.chat(1, 500);
        }
    }
    ends.client.set_nonblocking(true).unwrap();
    let (message, mut taken, mut last) = ([7; 500], 0, Instant::now());
    // Once the proxy has no more room the window closes, and stays so.
    while last.elapsed() < Duration::from_millis(700) {
        match ends.client.write(&message) {
            Ok(length) => {
                taken += length;
                last = Instant::now();
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
        assert!(taken < 100 << 20, "nobody reads, and all is taken");
    }
    // And the reader gets it all.
    proxy.signal(Signal::SIGCONT);
    ends.client.set_nonblocking(false).unwrap();
    ends.client.shutdown(Shutdown::Write).unwrap();
    let mut heard = Vec::new();
    ends.server.read_to_end(&mut heard).unwrap();
    assert_eq!(heard.len(), taken);
    taken
}

#[test]
fn a_receiver_that_stalls_costs_the_buffers_of_its_sockets_even_if_the_proxy_gets_no_cpu() {
    let Some(netns) = namespace("sockmap") else {
        return;
    };
    // Of client and server, and of the proxy's two sockets.
    let buffers = 2 * (MOST_RECEIVED + MOST_SENT);
    let run = |engine, proxying| {
        let taken = netns.run(|| {
            limit_buffers();
            Ok(taken_without_a_reader(engine, proxying))
        });
        let taken = taken.unwrap();
        println!("taken without a reader, {engine}, the proxy {proxying:?}: {taken} bytes");
        // A packet or two more than fits is taken, and the proxy has a pipe.
        assert!(taken <= buffers * 3 / 2, "{engine}, {proxying:?}: {taken}");
    };
    for engine in ["auto", "sockmap"] {
        run(engine, Proxying::Runs);
        run(engine, Proxying::Stopped);
    }
}

/// Ids of the BPF programs and maps that a process holds open.
fn bpf_objects(pid: u32) -> Vec<(&'static str, u32)> {
    let folder = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap();
    let texts = folder.map(|entry| std::fs::read_to_string(entry.unwrap().path()));
    let id = |text: &str, kind: &str| -> Option<u32> {
        let line = text.lines().find_map(|line| line.strip_prefix(kind))?;
        line.trim().parse().ok()
    };
    texts
        .flatten()
        .flat_map(|text| {
            let map = id(&text, "map_id:").map(|id| ("map", id));
            let program = id(&text, "prog_id:").map(|id| ("prog", id));
            [map, program]
        })
        .flatten()
        .collect()
}

fn exists(kind: &str, id: u32) -> bool {
    let mut bpftool = Command::new("bpftool");
    bpftool.args([kind, "show", "id", &id.to_string()]);
    let output = bpftool.output().expect("bpftool is installed");
    output.status.success()
}

#[test]
fn kill_9_ends_the_tunnels_and_leaves_no_bpf_object() {
    let Some(netns) = namespace("sockmap") else {
        return;
    };
    let (mut proxy, tunnels) = netns
        .run(|| {
            let proxy = Proxy::start("sockmap");
            let mut tunnels: Vec<Ends> = (0..8).map(|_| proxy.tunnel()).collect();
            tunnels.iter_mut().for_each(|ends| ends.chat(CHAT, 100));
            Ok((proxy, tunnels))
        })
        .unwrap();
    let objects = bpf_objects(proxy.child.id());
    assert!(!objects.is_empty() && objects.iter().all(|(kind, id)| exists(kind, *id)));
    proxy.signal(Signal::SIGKILL);
    proxy.child.wait().unwrap();
    for ends in tunnels {
        for mut end in [ends.client, ends.server] {
            let ended = end.read(&mut [0; 8]);
            let reset = |error: std::io::Error| error.kind() == ErrorKind::ConnectionReset;
            assert!(ended.map_or_else(reset, |length| length == 0));
        }
    }
    let end = Instant::now() + PATIENCE;
    while objects.iter().any(|(kind, id)| exists(kind, *id)) {
        assert!(Instant::now() < end, "left behind: {objects:?}");
    }
}

#[test]
fn without_root_the_engine_says_what_to_do() {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--clear-groups", "--bounding-set=-all"]);
    command.args(["--inh-caps=-all"]).arg(WEIR);
    command.args(["proxy", "--listen", "127.0.0.1:0", "--mode", "tcp"]);
    command.args(["--backend", "127.0.0.1:9", "--engine", "sockmap"]);
    if !needs::root("changing to another user") {
        return;
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(
        text.contains("needs root") && text.contains("hint:"),
        "{text}"
    );
}

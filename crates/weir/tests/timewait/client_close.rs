//! CLIENT_CLOSE: `weir proxy` here before servers there that people run, and clients here of a `weir proxy` there. Which end
//! is in TIME-WAIT, and whether servers that do not know the request lose anything.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use etherparse::TcpHeader;
use nix::sys::socket::MsgFlags;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use weir_core::client_close::ClientClose;
use weir_testbed::bed::Counters;
use weir_testbed::needs;
use weir_testbed::netns::Netns;

use crate::bed::{THERE_V4, time_waits, time_waits_become};
use crate::common::{Bed, PATIENCE, PORT, Weir, output, until, within};
use crate::peers::{Started, start_there};

const TIMES: usize = 20;
/// Where a proxy here listens.
const FRONT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8081);
/// The server there.
const BACK: SocketAddr = SocketAddr::new(THERE_V4, PORT);

/// Servers that know nothing of CLIENT_CLOSE, and what each replies to it.
#[derive(Debug, Clone, Copy)]
enum Server {
    Nginx,
    Apache,
    Haproxy,
    Node,
    Go,
    Python,
}

impl Server {
    fn program(self) -> &'static str {
        match self {
            Server::Nginx => "nginx",
            Server::Apache => "apache2",
            Server::Haproxy => "haproxy",
            Server::Node => "node",
            Server::Go => "go",
            Server::Python => "/usr/bin/python3",
        }
    }

    /// `None` if it is not installed. It replies to `/N` with N.
    fn start(self, bed: &Bed) -> Option<Started> {
        if !needs::programs(&[self.program()]) {
            return None;
        }
        let folder = bed.folder.path();
        // Apache's workers are another user.
        std::fs::set_permissions(folder, PermissionsExt::from_mode(0o755)).unwrap();
        for number in 0..TIMES {
            std::fs::write(folder.join(number.to_string()), number.to_string()).unwrap();
        }
        Some(start_there(bed, self.command(folder)))
    }

    fn command(self, folder: &Path) -> Command {
        let (at, port) = (folder.display(), PORT.to_string());
        let write = |name: &str, text: String| {
            let file = folder.join(name);
            std::fs::write(&file, text).unwrap();
            file.display().to_string()
        };
        let mut command = needs::command(self.program());
        match self {
            Server::Nginx => {
                let text = format!(
                    "daemon off; master_process off; user root; pid {at}/nginx.pid; error_log stderr;\n\
                     events {{}}\nhttp {{ access_log off; server {{ listen {port}; root {at}; }} }}\n"
                );
                command.args(["-e", "stderr", "-c", &write("nginx.conf", text)]);
            }
            Server::Apache => {
                let modules = "/usr/lib/apache2/modules/mod_";
                let text = format!(
                    "ServerRoot {at}\nServerName localhost\nListen {port}\nPidFile {at}/apache.pid\n\
                     DefaultRuntimeDir {at}\nMutex file:{at} default\nErrorLog {at}/apache.log\n\
                     LoadModule mpm_event_module {modules}mpm_event.so\n\
                     LoadModule authz_core_module {modules}authz_core.so\n\
                     User www-data\nGroup www-data\nDocumentRoot {at}\n"
                );
                command.args(["-D", "FOREGROUND", "-f", &write("apache.conf", text)]);
            }
            Server::Haproxy => {
                let text = format!(
                    "defaults\n  mode http\n  timeout client 10s\n  timeout connect 10s\n  timeout server 10s\n\
                     frontend web\n  bind :{port}\n  \
                     http-request return status 200 content-type text/plain lf-string \"%[path,bytes(1)]\"\n"
                );
                command.args(["-db", "-f", &write("haproxy.cfg", text)]);
            }
            Server::Node => {
                let text = format!(
                    "require('http').createServer((q, r) => r.end(q.url.slice(1))).listen({port});\n"
                );
                command.arg(write("server.js", text));
            }
            Server::Go => {
                let text = format!(
                    "package main\n\nimport (\n\t\"io\"\n\t\"net/http\"\n)\n\nfunc main() {{\n\
                     \thttp.HandleFunc(\"/\", func(w http.ResponseWriter, r *http.Request) {{\n\
                     \t\tio.WriteString(w, r.URL.Path[1:])\n\t}})\n\
                     \tpanic(http.ListenAndServe(\":{port}\", nil))\n}}\n"
                );
                let (source, program) = (write("server.go", text), folder.join("server"));
                let built = command
                    .args(["build", "-o"])
                    .arg(&program)
                    .arg(&source)
                    .env("CGO_ENABLED", "0")
                    .env("GOCACHE", std::env::temp_dir().join("weir-test-go"))
                    .status();
                assert!(built.unwrap().success());
                command = Command::new(program);
            }
            Server::Python => {
                command.args([
                    "-m",
                    "http.server",
                    "--protocol",
                    "HTTP/1.1",
                    &port,
                    "--directory",
                ]);
                command.arg(folder);
            }
        }
        command
    }
}

/// A client's connection.
struct Client(BufReader<TcpStream>);

impl Client {
    /// The calling thread is in the client's namespace.
    fn connect(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Client(BufReader::new(stream))
    }

    fn send(&self, text: &str) {
        self.0.get_ref().write_all(text.as_bytes()).unwrap();
    }

    /// Sends the last bytes in one segment with the FIN: the server's FIN cannot come between them.
    fn send_last(&self, text: &str) {
        let stream = self.0.get_ref();
        let more = MsgFlags::from_bits_retain(nix::libc::MSG_MORE);
        let sent = nix::sys::socket::send(stream.as_raw_fd(), text.as_bytes(), more);
        assert_eq!(sent.unwrap(), text.len());
        stream.shutdown(std::net::Shutdown::Write).unwrap();
    }

    /// The status and the body of a reply.
    fn reply(&mut self) -> (u16, String) {
        let (mut line, mut status, mut length) = (String::new(), None, 0);
        loop {
            line.clear();
            assert!(self.0.read_line(&mut line).unwrap() > 0, "no whole head");
            let head = line.trim_end().to_ascii_lowercase();
            if head.is_empty() {
                break;
            }
            status = status.or_else(|| head.split(' ').nth(1)?.parse().ok());
            if let Some(value) = head.strip_prefix("content-length: ") {
                length = value.parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).unwrap();
        (status.unwrap(), String::from_utf8(body).unwrap())
    }

    fn get(&mut self, number: usize, fields: &str) {
        self.send(&format!(
            "GET /{number} HTTP/1.1\r\nHost: a\r\n{fields}\r\n"
        ));
        assert_eq!(self.reply(), (200, number.to_string()));
    }

    /// Everything up to the end of the connection, or to its reset.
    fn rest(&mut self) -> String {
        let mut rest = Vec::new();
        let _ = self.0.read_to_end(&mut rest);
        String::from_utf8_lossy(&rest).into_owned()
    }
}

/// A running `weir proxy` in this namespace.
fn proxy(bed: &Bed, netns: &Netns, listen: SocketAddr, backend: SocketAddr, keys: &str) -> Weir {
    let words = format!("proxy --mode reverse --listen {listen} --backend {backend} {keys}");
    let proxy = bed.spawn(netns, &words);
    until("the proxy listens", || {
        let filter = format!("sport = :{}", listen.port());
        let listening = output(netns, "ss", &["-tlnH", &filter]);
        (!listening.trim().is_empty()).then_some(())
    });
    proxy
}

/// TIME-WAIT sockets here of connections to the server there.
fn here_to_there(bed: &Bed) -> usize {
    let filter = format!("dport = :{PORT}");
    let sockets = output(bed.here(), "ss", &["-tnH", "state", "time-wait", &filter]);
    sockets.lines().count()
}

fn here_to_there_becomes(bed: &Bed, count: usize) {
    let mut last = 0;
    let reached = weir_testbed::wait::try_until(PATIENCE, || {
        last = here_to_there(bed);
        (last == count).then_some(())
    });
    assert!(reached.is_some(), "{last} TIME-WAIT here, not {count}");
}

/// Each request of a proxy that keeps no connection has one of its own, which ends with CLIENT_CLOSE.
fn loses_nothing(server: Server) {
    let Some(bed) = Bed::new() else { return };
    let Some(_server) = server.start(&bed) else {
        return;
    };
    let said = within(bed.here(), || {
        let mut client = Client::connect(BACK);
        client.get(0, "");
        client.send_last(&ClientClose { host: "a" }.to_string());
        client.rest()
    });
    let first = said.lines().next().unwrap_or("nothing").to_owned();
    println!("{server:?} replies to CLIENT_CLOSE: {first}");
    here_to_there_becomes(&bed, 1);
    let keys = "--threads 1 --max-idle 0 --send-client-close always";
    let _proxy = proxy(&bed, bed.here(), FRONT, BACK, keys);
    within(bed.here(), || {
        let mut client = Client::connect(FRONT);
        for number in 0..TIMES {
            client.get(number, "");
        }
    });
    here_to_there_becomes(&bed, 1 + TIMES);
    assert_eq!(time_waits(bed.there()), 0, "{server:?}");
    let status = within(bed.here(), || {
        bed.command("status --json").output().unwrap()
    });
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    let counters = &status["proxies"][0]["backends"][0]["counters"];
    assert_eq!(counters["client_closes_sent"], TIMES, "{status:#}");
    assert_eq!(counters["failures"], 0, "{status:#}");
    assert_eq!(counters["connects"], TIMES, "{status:#}");
}

#[test]
fn nginx_loses_nothing_and_keeps_no_time_wait() {
    loses_nothing(Server::Nginx);
}

#[test]
fn apache_loses_nothing_and_keeps_no_time_wait() {
    loses_nothing(Server::Apache);
}

#[test]
fn haproxy_loses_nothing_and_keeps_no_time_wait() {
    loses_nothing(Server::Haproxy);
}

#[test]
fn node_loses_nothing_and_keeps_no_time_wait() {
    loses_nothing(Server::Node);
}

#[test]
fn go_loses_nothing_and_keeps_no_time_wait() {
    loses_nothing(Server::Go);
}

#[test]
fn a_python_server_loses_nothing_and_keeps_no_time_wait() {
    loses_nothing(Server::Python);
}

/// A proxy there that takes CLIENT_CLOSE, before a server there.
fn there_with_client_close(bed: &Bed) -> Option<(Started, Weir)> {
    let server = Server::Nginx.start(bed)?;
    let there = SocketAddr::new(THERE_V4, FRONT.port());
    let back = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), PORT);
    let keys = "--threads 1 --accept-client-close on";
    Some((server, proxy(bed, bed.there(), there, back, keys)))
}

/// How a client ends its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// It leaves it to the server.
    Server,
    Fin,
    ClientClose,
}

/// By both ends.
fn segments_sent(bed: &Bed) -> i64 {
    let of = |netns| Counters::read(netns).unwrap().get("Tcp.OutSegs");
    of(bed.here()) + of(bed.there())
}

/// So many connections from here to the proxy there. Returns the segments that both ends sent for them.
fn connect_often(bed: &Bed, ending: Ending) -> i64 {
    let before = segments_sent(bed);
    within(bed.here(), || {
        for _ in 0..TIMES {
            let mut client = Client::connect(SocketAddr::new(THERE_V4, FRONT.port()));
            match ending {
                Ending::Server => {
                    client.get(1, "Connection: close\r\n");
                    assert_eq!(client.rest(), "");
                }
                Ending::Fin => client.get(1, ""),
                Ending::ClientClose => {
                    client.get(1, "Connection: client-ends\r\n");
                    client.send(&ClientClose { host: "a" }.to_string());
                }
            }
        }
    });
    let (here, there) = match ending {
        Ending::Server => (0, TIMES),
        _ => (TIMES, 0),
    };
    time_waits_become(bed.here(), here);
    time_waits_become(bed.there(), there);
    segments_sent(bed) - before
}

#[test]
fn a_client_that_says_that_it_closes_is_in_time_wait_and_so_is_one_that_only_closes() {
    for ending in [Ending::Server, Ending::Fin, Ending::ClientClose] {
        let Some(bed) = Bed::new() else { return };
        let Some(_there) = there_with_client_close(&bed) else {
            return;
        };
        let segments = connect_often(&bed, ending);
        println!("{ending:?}: {segments} segments for {TIMES} connections");
    }
}

/// The proxy's CLIENT_CLOSE goes in the segment of its FIN.
#[test]
fn it_adds_no_segment_to_a_connection_that_the_proxy_ends() {
    let segments = ["off", "always"].map(|send| {
        let bed = Bed::new()?;
        let _there = there_with_client_close(&bed)?;
        let back = SocketAddr::new(THERE_V4, FRONT.port());
        let keys = format!("--threads 1 --max-idle 0 --send-client-close {send}");
        let _proxy = proxy(&bed, bed.here(), FRONT, back, &keys);
        let before = segments_sent(&bed);
        within(bed.here(), || {
            let mut client = Client::connect(FRONT);
            for number in 0..TIMES {
                client.get(number, "");
            }
        });
        // And one of the client's own connection to the proxy.
        time_waits_become(bed.here(), TIMES + 1);
        assert_eq!(time_waits(bed.there()), 0, "{send}");
        Some(segments_sent(&bed) - before)
    });
    let [Some(without), Some(with)] = segments else {
        return;
    };
    println!("{with} segments for {TIMES} connections, {without} without CLIENT_CLOSE");
    // When an end acknowledges depends on when its program runs.
    assert!(
        with < without + TIMES as i64 / 2,
        "{with}, {without} without"
    );
}

/// A segment of the closed connection to this port here that comes late. Its answer, an ACK, is answered by a RST, because
/// the server has forgotten the connection (RFC 1337).
fn old_duplicate(bed: &Bed, port: u16) {
    within(bed.there(), || {
        let here = Ipv4Addr::new(10, 66, 1, 1);
        let mut header = TcpHeader::new(FRONT.port(), port, 7, 1024);
        (header.ack, header.acknowledgment_number) = (true, 7);
        let IpAddr::V4(there) = THERE_V4 else {
            unreachable!()
        };
        let sum = header.calc_checksum_ipv4_raw(there.octets(), here.octets(), &[]);
        header.checksum = sum.unwrap();
        let raw = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::TCP)).unwrap();
        let to = SockAddr::from(SocketAddr::from((here, 0)));
        raw.send_to(&header.to_bytes(), &to).unwrap();
    });
}

#[test]
fn the_clients_time_wait_is_protected_from_assassination_where_its_kernel_protects_it() {
    for (protects, left) in [("0", 0), ("1", 1)] {
        let Some(bed) = Bed::new() else { return };
        let Some(_there) = there_with_client_close(&bed) else {
            return;
        };
        bed.here()
            .set_sysctl("net.ipv4.tcp_rfc1337", protects)
            .unwrap();
        let port = within(bed.here(), || {
            let mut client = Client::connect(SocketAddr::new(THERE_V4, FRONT.port()));
            client.get(1, "Connection: client-ends\r\n");
            client.send(&ClientClose { host: "a" }.to_string());
            client.0.get_ref().local_addr().unwrap().port()
        });
        time_waits_become(bed.here(), 1);
        let sockets = || output(bed.there(), "ss", &["-tanH", "state", "last-ack"]);
        until("the server has forgotten it", || {
            sockets().trim().is_empty().then_some(())
        });
        let resets = || Counters::read(bed.there()).unwrap().get("Tcp.OutRsts");
        let before = resets();
        old_duplicate(&bed, port);
        until("the server has reset it", || {
            (resets() > before).then_some(())
        });
        time_waits_become(bed.here(), left);
    }
}

//! A server and a client for the proxy's tests, both plain blocking sockets.
#![allow(dead_code, reason = "each test uses a part")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use socket2::{Domain, Socket, Type};
use weir_core::proxy::{Engine, Ports, Proxy, ProxyMode};
use weir_proxy::{Server, Total, Totals};
use weir_testbed::wait;

pub use weir_testbed::wait::PATIENCE;

/// The engines that need no redirector.
pub const ENGINES: [Engine; 3] = [Engine::Auto, Engine::Copy, Engine::Splice];

/// Bytes of which no two stretches are alike; the same for the same length. Made once: a server that makes a long body for
/// each request is slow to answer.
pub fn pattern(length: usize) -> Vec<u8> {
    static MADE: Mutex<BTreeMap<usize, Vec<u8>>> = Mutex::new(BTreeMap::new());
    let mut made = MADE.lock().unwrap();
    let pattern = made
        .entry(length)
        .or_insert_with(|| pattern_of(length, length as u64));
    pattern.clone()
}

/// Bytes of which no two stretches are alike; the same for the same length and seed.
pub fn pattern_of(length: usize, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut bytes = vec![0; length];
    random.fill(&mut bytes);
    bytes
}

/// A proxy's settings, with one thread.
pub fn settings(mode: ProxyMode, backends: &[SocketAddr]) -> Proxy {
    let mut settings = Proxy::new("test", "127.0.0.1:0".parse().unwrap(), mode);
    settings.backends = backends.iter().map(|address| (*address).into()).collect();
    settings.threads = 1;
    // The servers of tests listen where the kernel lets them.
    settings.connect_ports = vec![Ports::ALL];
    settings
}

/// A proxy with one thread, and with settings that `change` changes.
pub fn start(mode: ProxyMode, backends: &[SocketAddr], change: impl FnOnce(&mut Proxy)) -> Server {
    let mut settings = settings(mode, backends);
    change(&mut settings);
    Server::start(settings).unwrap()
}

/// A reverse proxy in front of an origin.
pub fn reverse(origin: &Origin, engine: Engine) -> Server {
    start(ProxyMode::Reverse, &[origin.address], |proxy| {
        proxy.engine = engine;
    })
}

/// Drains the proxy and returns what it counted. While it runs, a client may have its reply before that is counted.
pub fn end(mut proxy: Server) -> Totals {
    proxy.drain(PATIENCE);
    proxy.join().unwrap()
}

/// A counter of the clients' side.
pub fn total(totals: &Totals, name: &str) -> u64 {
    value(&totals.listener, name)
}

/// The counter or histogram of this name.
pub fn value<V: Copy>(totals: &[Total<V>], name: &str) -> V {
    let mut totals = totals.iter();
    totals.find(|total| total.name == name).unwrap().value
}

/// Looks again until it is so.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    wait::until(what, || is_so().then_some(()));
}

pub fn connect(address: SocketAddr) -> Connection {
    Connection::new(connect_tcp(address))
}

/// A connection without HTTP.
pub fn connect_tcp(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// An address on which no socket listens as long as the returned one lives: another test would get the port else.
pub fn refusing_address() -> (Socket, SocketAddr) {
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&any.into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, address)
}

/// A connection whose kernel takes only some KiB ahead of its reader.
pub fn connect_narrow(address: SocketAddr) -> Connection {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(16 * 1024).unwrap();
    socket.connect(&address.into()).unwrap();
    Connection::new(socket.into())
}

/// A message as it was received: the head's lines and the body without chunk framing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub first_line: String,
    pub fields: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Message {
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.fields.iter();
        let found = fields.find(|(field, _)| field.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    pub fn status(&self) -> u16 {
        self.first_line.split(' ').nth(1).unwrap().parse().unwrap()
    }
}

/// One end of an HTTP connection.
pub struct Connection(pub BufReader<TcpStream>);

impl Connection {
    pub fn new(stream: TcpStream) -> Connection {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Connection(BufReader::new(stream))
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.get_mut().write_all(bytes.as_ref()).unwrap();
    }

    /// Sends to a peer that may be gone.
    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> std::io::Result<()> {
        self.0.get_mut().write_all(bytes.as_ref())
    }

    /// Sends a request and reads its reply.
    pub fn ask(&mut self, request: &str) -> Message {
        self.send(request);
        self.reply(request.starts_with("HEAD"))
    }

    pub fn get(&mut self, path: &str) -> Message {
        self.ask(&format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n"))
    }

    pub fn head(&mut self) -> Option<Message> {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            match self.0.read_line(&mut line) {
                Ok(0) if lines.is_empty() => return None,
                Ok(0) => panic!("the head ends early: {lines:?}"),
                Ok(_) => {}
                Err(error) => panic!("{error} after {lines:?}"),
            }
            match line.strip_suffix("\r\n").unwrap() {
                "" => break,
                line => lines.push(line.to_owned()),
            }
        }
        let field = |line: &String| {
            let (name, value) = line.split_once(": ").unwrap();
            (name.to_owned(), value.to_owned())
        };
        Some(Message {
            first_line: lines[0].clone(),
            fields: lines[1..].iter().map(field).collect(),
            body: Vec::new(),
        })
    }

    /// Reads a request with its body; `None` at the end of the connection.
    pub fn request(&mut self) -> Option<Message> {
        let mut message = self.head()?;
        message.body = self.body(&message, false);
        Some(message)
    }

    pub fn reply(&mut self, head_only: bool) -> Message {
        let mut message = self.head().expect("a reply");
        if !head_only && message.status() >= 200 {
            message.body = self.body(&message, true);
        }
        message
    }

    fn body(&mut self, head: &Message, is_reply: bool) -> Vec<u8> {
        let mut body = Vec::new();
        if head.field("transfer-encoding").is_some() {
            while self.chunk(&mut body) {}
        } else if let Some(length) = head.field("content-length") {
            body = vec![0; length.parse().unwrap()];
            self.0.read_exact(&mut body).unwrap();
        } else if is_reply {
            self.0.read_to_end(&mut body).unwrap();
        }
        body
    }

    fn chunk(&mut self, body: &mut Vec<u8>) -> bool {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        let size = usize::from_str_radix(line.trim(), 16).unwrap();
        let start = body.len();
        body.resize(start + size, 0);
        self.0.read_exact(&mut body[start..]).unwrap();
        let mut end = [0; 2];
        self.0.read_exact(&mut end).unwrap();
        assert_eq!(&end, b"\r\n");
        size > 0
    }

    pub fn at_end(&mut self) -> bool {
        self.0.fill_buf().unwrap().is_empty()
    }
}

/// Writes a body in chunks of this size.
pub fn chunked(body: &[u8], size: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for chunk in body.chunks(size) {
        write!(out, "{:x}\r\n", chunk.len()).unwrap();
        out.extend_from_slice(chunk);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"0\r\n\r\n");
    out
}

/// A server whose replies the path asks for: `/length/N`, `/chunked/N`, `/close/N`, `/echo`.
pub struct Origin {
    pub address: SocketAddr,
    pub connections: Arc<AtomicUsize>,
}

impl Origin {
    pub fn start() -> Origin {
        Origin::serving(|connection, request| answer(connection, &request))
    }

    /// `serve` answers one request; false closes the connection.
    pub fn serving(
        serve: impl Fn(&mut Connection, Message) -> bool + Send + Sync + 'static,
    ) -> Origin {
        Origin::at("127.0.0.1:0".parse().unwrap(), serve)
    }

    /// Counts its requests; `serve` gets the number of each, from 0.
    pub fn counting(
        serve: impl Fn(&mut Connection, Message, usize) -> bool + Send + Sync + 'static,
    ) -> (Origin, Arc<AtomicUsize>) {
        let requests = Arc::<AtomicUsize>::default();
        let seen = requests.clone();
        let origin = Origin::serving(move |connection, request| {
            let number = requests.fetch_add(1, Ordering::SeqCst);
            serve(connection, request, number)
        });
        (origin, seen)
    }

    /// Counts its requests and gives all the same reply.
    pub fn replying(reply: impl Into<Vec<u8>>) -> (Origin, Arc<AtomicUsize>) {
        let reply = reply.into();
        Origin::counting(move |connection, _, _| {
            let _ = connection.try_send(&reply);
            true
        })
    }

    /// `serve` gets each connection once the head of its first request is there, and its body is not.
    pub fn at_head(serve: impl Fn(&mut Connection) + Send + Sync + 'static) -> Origin {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let origin = Origin {
            address: listener.local_addr().unwrap(),
            connections: Arc::default(),
        };
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut connection = Connection::new(stream.unwrap());
                connection.head().unwrap();
                serve(&mut connection);
            }
        });
        origin
    }

    /// One that listens there.
    pub fn at(
        address: SocketAddr,
        serve: impl Fn(&mut Connection, Message) -> bool + Send + Sync + 'static,
    ) -> Origin {
        let listener = TcpListener::bind(address).unwrap();
        let origin = Origin {
            address: listener.local_addr().unwrap(),
            connections: Arc::default(),
        };
        let (count, serve) = (origin.connections.clone(), Arc::new(serve));
        thread::spawn(move || {
            for stream in listener.incoming() {
                count.fetch_add(1, Ordering::Relaxed);
                let serve = serve.clone();
                thread::spawn(move || {
                    let mut connection = Connection::new(stream.unwrap());
                    while let Some(request) = connection.request()
                        && serve(&mut connection, request)
                    {}
                });
            }
        });
        origin
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

/// Replies as the path asks; says whether the connection goes on.
pub fn answer(connection: &mut Connection, request: &Message) -> bool {
    let mut words = request.first_line.split(' ');
    let (method, path) = (words.next().unwrap(), words.next().unwrap());
    let (kind, length) = path[1..].split_once('/').unwrap_or((&path[1..], "0"));
    let body = match kind {
        "echo" => request.body.clone(),
        _ => pattern(length.parse().unwrap()),
    };
    let mut reply = b"HTTP/1.1 200 OK\r\n".to_vec();
    match kind {
        "close" => write!(reply, "Connection: close\r\n\r\n").unwrap(),
        "chunked" => write!(reply, "Transfer-Encoding: chunked\r\n\r\n").unwrap(),
        _ => write!(reply, "Content-Length: {}\r\n\r\n", body.len()).unwrap(),
    }
    match (method, kind) {
        ("HEAD", _) => {}
        (_, "chunked") => reply.extend(chunked(&body, 50_000)),
        _ => reply.extend(body),
    }
    // The client may have aborted.
    let _ = connection.0.get_mut().write_all(&reply);
    kind != "close"
}

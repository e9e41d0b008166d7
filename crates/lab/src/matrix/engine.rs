//! The event loop of both ends.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use nix::sys::epoll::{EpollFlags, EpollTimeout};
use serde::Serialize;
use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};
use weir_testbed::proxy::Proxy;

use super::end::{Clock, End, NARROW_BYTES, Next, PIECE_BYTES, Shared};
use super::fault::{Fault, Kind};
use super::handler::Handler;
use super::http::{Asking, Call, Fate, Serving};
use super::pattern::Pattern;
use super::plan::{Manner, Part, Tunnel, rng};
use super::tunnel::{EndReport, Side, TunnelEnd, judge};
use crate::error::{Context, Result};
use crate::interrupt;
use crate::poll::{EDGES, INPUT, Poll};
use crate::process;

/// What goes through the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Traffic {
    /// Connections in mode tcp.
    Tcp,
    /// CONNECT in mode forward.
    Connect,
    /// Requests in mode reverse.
    Reverse,
    /// Requests with absolute URIs in mode forward.
    Forward,
}

/// What is to be done to one proxy.
#[derive(Debug, Clone)]
pub struct Settings {
    /// What goes through it.
    pub traffic: Traffic,
    /// Everything random follows from it.
    pub seed: u64,
    /// Tunnels, or exchanges.
    pub transfers: u64,
    /// Clients at once.
    pub clients: usize,
    /// An end on which nothing moves for so long is stuck.
    pub patience: Duration,
    /// Segments get lost on the way.
    pub lossy: bool,
}

/// What became of it.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Tally {
    /// Tunnels or exchanges that were begun.
    pub transfers: u64,
    /// Those of which every byte and the end arrived.
    pub whole: u64,
    /// Those that one of the ends cut short, as it was to.
    pub cut: u64,
    /// Replies that a cache gave.
    pub hits: u64,
    /// Bytes that the ends received.
    pub bytes: u64,
    /// Seconds.
    pub seconds: f64,
    /// Faults by kind.
    pub faults: BTreeMap<Kind, u64>,
    /// The first of them.
    pub texts: Vec<String>,
}

/// Texts of faults that are kept.
const TEXTS: usize = 20;
/// Ends are looked after for being stuck so often.
const WATCH_EVERY: Clock = 1000;
/// Tunnels of a run have addresses of their own within 127.0.0.0/8.
const ADDRESSES: u64 = (1 << 24) - 2;

impl Tally {
    /// Adds those of another run.
    pub fn add(&mut self, other: Tally) {
        self.transfers += other.transfers;
        self.whole += other.whole;
        self.cut += other.cut;
        self.hits += other.hits;
        self.bytes += other.bytes;
        self.seconds += other.seconds;
        for (kind, count) in other.faults {
            *self.faults.entry(kind).or_default() += count;
        }
        self.texts.extend(other.texts);
        self.texts.truncate(TEXTS);
    }

    fn blame(&mut self, fault: Fault) {
        *self.faults.entry(fault.kind).or_default() += 1;
        if self.texts.len() < TEXTS {
            self.texts.push(fault.text);
        }
    }
}

/// Lets ends meet through the proxy until all transfers are done and the proxy holds what it held
/// before. `listener` is the origin's, on all addresses.
pub fn run(settings: &Settings, proxy: &Proxy, listener: TcpListener) -> Result<Tally> {
    let before = process::descriptors(proxy.pid())?;
    let start = Instant::now();
    let mut run = Run::new(settings, proxy.address, listener)?;
    run.all()?;
    run.tally.seconds = start.elapsed().as_secs_f64();
    run.expect_descriptors(proxy, &before)?;
    run.judge_unpaired();
    Ok(run.tally)
}

struct Run<'a> {
    settings: &'a Settings,
    proxy: SocketAddr,
    origin: SocketAddr,
    listener: TcpListener,
    pattern: Pattern,
    buffer: Box<[u8]>,
    poll: Poll,
    start: Instant,
    now: Clock,
    watched: Clock,
    ends: HashMap<u64, End>,
    serial: u64,
    turns: VecDeque<u64>,
    timers: BinaryHeap<Reverse<(Clock, u64)>>,
    /// Next client's number, and transfers begun.
    next: u64,
    clients: usize,
    /// In mode tcp a connection of the origin belongs to the client that connected last.
    unpaired: Option<Unpaired>,
    /// Ends of tunnels whose other end has not finished.
    reports: HashMap<u64, (Side, EndReport)>,
    /// Tunnels with a fault.
    faulty: HashSet<u64>,
    tally: Tally,
}

#[derive(Debug, Clone, Copy)]
struct Unpaired {
    id: u64,
    since: Clock,
}

/// A connection that the origin did not get for so long after its client has gone does not come.
const PAIRING: Clock = 5000;
const LISTENER: u64 = u64::MAX;

impl<'a> Run<'a> {
    fn new(settings: &'a Settings, proxy: SocketAddr, listener: TcpListener) -> Result<Run<'a>> {
        listener
            .set_nonblocking(true)
            .context("cannot make the origin non-blocking")?;
        let port = listener
            .local_addr()
            .context("the origin is nowhere")?
            .port();
        let poll = Poll::new()?;
        poll.watch(&listener, LISTENER, INPUT)?;
        Ok(Run {
            settings,
            proxy,
            origin: SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port),
            listener,
            pattern: Pattern::new(settings.seed),
            buffer: vec![0; PIECE_BYTES].into(),
            poll,
            start: Instant::now(),
            now: 0,
            watched: 0,
            ends: HashMap::new(),
            serial: 0,
            turns: VecDeque::new(),
            timers: BinaryHeap::new(),
            next: 0,
            clients: 0,
            unpaired: None,
            reports: HashMap::new(),
            faulty: HashSet::new(),
            tally: Tally::default(),
        })
    }

    fn all(&mut self) -> Result<()> {
        while self.tally.transfers < self.settings.transfers || self.is_busy() {
            interrupt::check()?;
            self.connect_clients()?;
            self.step(Duration::from_millis(100))?;
        }
        Ok(())
    }

    fn is_busy(&self) -> bool {
        self.clients > 0 || self.ends.values().any(|end| !is_idle(end))
    }

    fn connect_clients(&mut self) -> Result<()> {
        while self.clients < self.settings.clients
            && self.tally.transfers < self.settings.transfers
            && self.unpaired.is_none()
        {
            let id = self.next;
            let stream = self
                .connect(self.is_narrow(id))
                .context("cannot connect to the proxy")?;
            self.next += 1;
            self.clients += 1;
            match self.settings.traffic {
                Traffic::Tcp => {
                    self.unpaired = Some(Unpaired {
                        id,
                        since: self.now,
                    });
                    self.begin_tunnel(stream, id, Side::Client)?;
                }
                Traffic::Connect => self.begin_tunnel(stream, id, Side::Client)?,
                Traffic::Reverse | Traffic::Forward => self.begin_call(stream, id)?,
            }
        }
        Ok(())
    }

    fn is_narrow(&self, id: u64) -> bool {
        let seed = self.settings.seed;
        match self.settings.traffic {
            Traffic::Tcp | Traffic::Connect => Tunnel::new(seed, id).client.manner.narrow,
            Traffic::Reverse | Traffic::Forward => Call::new(seed, id).manner.narrow,
        }
    }

    /// A receive buffer that shrinks after connecting would drop what the window had promised room
    /// for, and the kernel's timers would set the pace.
    fn connect(&self, narrow: bool) -> std::io::Result<TcpStream> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        if narrow {
            socket.set_recv_buffer_size(NARROW_BYTES)?;
        }
        socket.connect(&self.proxy.into())?;
        Ok(socket.into())
    }

    fn begin_tunnel(&mut self, stream: TcpStream, id: u64, side: Side) -> Result<()> {
        let plan = Tunnel::new(self.settings.seed, id);
        let part: &Part = match side {
            Side::Client => &plan.client,
            Side::Origin => &plan.origin,
        };
        let mut handler = TunnelEnd::new(id, side, part.bytes, part.start);
        if side == Side::Client {
            self.tally.transfers += 1;
            if self.settings.traffic == Traffic::Connect {
                handler = handler.asking_for(self.tunnel_address(id), plan.hasty);
            }
        }
        self.add(stream, Handler::Tunnel(handler), part.manner, part.cut)
    }

    /// The origin's address for this tunnel alone.
    fn tunnel_address(&self, id: u64) -> SocketAddr {
        let host = Ipv4Addr::from_bits((127 << 24) + 1 + (id % ADDRESSES) as u32);
        SocketAddr::new(host.into(), self.origin.port())
    }

    fn begin_call(&mut self, stream: TcpStream, id: u64) -> Result<()> {
        let call = Call::new(self.settings.seed, id);
        self.tally.transfers += call.exchanges;
        let absolute = self.settings.traffic == Traffic::Forward;
        let asking = Asking::new(self.settings.seed, call, self.origin, absolute);
        self.add(stream, Handler::Asking(asking), call.manner, call.cut)
    }

    fn accept(&mut self) -> Result<()> {
        loop {
            let (stream, _) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error).context("the origin cannot accept"),
            };
            match self.settings.traffic {
                Traffic::Tcp => match self.unpaired.take() {
                    Some(client) => self.begin_tunnel(stream, client.id, Side::Origin)?,
                    None => self.tally.blame(Fault::new(
                        Kind::Lost,
                        "the origin got a connection that no client made",
                    )),
                },
                Traffic::Connect => {
                    let address = stream.local_addr().context("accepted without an address")?;
                    let IpAddr::V4(host) = address.ip() else {
                        continue;
                    };
                    let id = u64::from(host.to_bits() & 0xff_ffff) - 1;
                    self.begin_tunnel(stream, id, Side::Origin)?;
                }
                Traffic::Reverse | Traffic::Forward => self.begin_serving(stream)?,
            }
        }
    }

    fn begin_serving(&mut self, stream: TcpStream) -> Result<()> {
        let seed = self.settings.seed;
        let mut rng = rng(seed.rotate_left(1), self.serial);
        let manner: Manner = super::plan::manner(&mut rng, 50_000, 50_000);
        let serving = Serving::new(seed, self.serial);
        self.add(stream, Handler::Serving(serving), manner, None)
    }

    fn add(
        &mut self,
        stream: TcpStream,
        handler: Handler,
        manner: Manner,
        cut: Option<super::plan::Cut>,
    ) -> Result<()> {
        stream
            .set_nonblocking(true)
            .context("cannot make a socket non-blocking")?;
        let _ = stream.set_nodelay(true);
        // A RST whose place does not fit, because of a segment that was lost before it, counts for nothing, and who sent
        // it is gone (RFC 5961, 3.2): that end comes when it is asked for. Where nothing is lost, each comes by itself.
        if self.settings.lossy {
            let asks = TcpKeepalive::new()
                .with_time(Duration::from_secs(2))
                .with_interval(Duration::from_secs(1));
            let _ = SockRef::from(&stream).set_tcp_keepalive(&asks);
        }
        let key = self.serial;
        self.serial += 1;
        self.poll
            .watch(&stream, key, EDGES | EpollFlags::EPOLLRDHUP)?;
        let end = End::new(stream, handler, manner, cut, self.now);
        self.ends.insert(key, end);
        self.turns.push_back(key);
        Ok(())
    }

    /// Waits for events at most this long, and gives a turn to all that may go on.
    fn step(&mut self, longest: Duration) -> Result<()> {
        self.now = self.start.elapsed().as_millis() as Clock;
        self.wait(longest)?;
        self.now = self.start.elapsed().as_millis() as Clock;
        while let Some(Reverse((due, key))) = self.timers.peek().copied()
            && due <= self.now
        {
            self.timers.pop();
            self.turns.push_back(key);
        }
        for _ in 0..self.turns.len() {
            let Some(key) = self.turns.pop_front() else {
                break;
            };
            self.turn(key);
        }
        self.watch();
        Ok(())
    }

    fn wait(&mut self, longest: Duration) -> Result<()> {
        let until_timer = self
            .timers
            .peek()
            .map(|Reverse((due, _))| due.saturating_sub(self.now));
        let may_connect = self.unpaired.is_none()
            && self.clients < self.settings.clients
            && self.tally.transfers < self.settings.transfers;
        let timeout = match self.turns.is_empty() && !may_connect {
            true => until_timer
                .unwrap_or(u64::MAX)
                .min(longest.as_millis() as u64),
            false => 0,
        };
        for event in 0..self.poll.wait(EpollTimeout::from(timeout as u16))? {
            let key = self.poll.key(event);
            if key == LISTENER {
                self.accept()?;
            } else if let Some(end) = self.ends.get_mut(&key) {
                end.wake();
                self.turns.push_back(key);
            }
        }
        Ok(())
    }

    fn turn(&mut self, key: u64) {
        let Some(end) = self.ends.get_mut(&key) else {
            return;
        };
        let mut shared = Shared {
            pattern: &self.pattern,
            buffer: &mut self.buffer,
            now: self.now,
        };
        match end.turn(&mut shared) {
            Ok(Next::Event) => {}
            Ok(Next::Time(due)) => self.timers.push(Reverse((due, key))),
            Ok(Next::Turn) => self.turns.push_back(key),
            Ok(Next::Nothing) => self.settle(key),
            Err(fault) => self.give_up(key, fault),
        }
    }

    fn settle(&mut self, key: u64) {
        let Some(end) = self.ends.remove(&key) else {
            return;
        };
        self.tally.bytes += end.received();
        match &end.handler {
            Handler::Tunnel(tunnel) => {
                let report = tunnel.report(end.outcome, &end.outgoing);
                let (id, side) = (tunnel.id(), tunnel.side());
                self.clients -= usize::from(side == Side::Client);
                self.settle_tunnel(id, side, report);
            }
            Handler::Asking(asking) => {
                self.clients -= 1;
                self.tally.hits += asking.hits();
                for fate in asking.fates() {
                    match fate {
                        Fate::Whole => self.tally.whole += 1,
                        _ => self.tally.cut += 1,
                    }
                }
                if let Err(fault) = asking.judge(end.outcome) {
                    self.tally.blame(fault);
                }
            }
            Handler::Serving(_) => {}
        }
    }

    fn settle_tunnel(&mut self, id: u64, side: Side, report: EndReport) {
        if self.faulty.contains(&id) {
            return;
        }
        let Some((_, other)) = self.reports.remove(&id) else {
            self.reports.insert(id, (side, report));
            return;
        };
        let (client, origin) = match side {
            Side::Client => (report, other),
            Side::Origin => (other, report),
        };
        let left = client.outcome.left.or(origin.outcome.left);
        match left {
            Some(_) => self.tally.cut += 1,
            None => self.tally.whole += 1,
        }
        if let Err(fault) = judge(id, &client, &origin) {
            self.tally.blame(fault);
        }
    }

    fn give_up(&mut self, key: u64, fault: Fault) {
        if let Some(end) = self.ends.remove(&key) {
            match &end.handler {
                Handler::Tunnel(tunnel) => {
                    self.clients -= usize::from(tunnel.side() == Side::Client);
                    self.reports.remove(&tunnel.id());
                    self.faulty.insert(tunnel.id());
                    self.unpaired = self.unpaired.filter(|client| client.id != tunnel.id());
                }
                Handler::Asking(_) => self.clients -= 1,
                Handler::Serving(_) => {}
            }
        }
        self.tally.blame(fault);
    }

    /// Finds ends on which nothing has moved for too long.
    fn watch(&mut self) {
        if self.now < self.watched + WATCH_EVERY {
            return;
        }
        self.watched = self.now;
        let (now, reports) = (self.now, &self.reports);
        self.unpaired = self
            .unpaired
            .filter(|client| client.since + PAIRING > now || !reports.contains_key(&client.id));
        let patience = self.settings.patience.as_millis() as Clock;
        let stuck: Vec<(u64, String)> = self
            .ends
            .iter()
            .filter(|(_, end)| end.moved + patience < self.now && !is_idle(end))
            .map(|(key, end)| (*key, end.to_string()))
            .collect();
        for (key, text) in stuck {
            self.give_up(key, Fault::new(Kind::Stuck, text));
        }
    }

    /// Ends the origin's idle connections, and waits until the proxy holds what it held before: as many
    /// descriptors of every kind.
    fn expect_descriptors(
        &mut self,
        proxy: &Proxy,
        before: &BTreeMap<String, usize>,
    ) -> Result<()> {
        let end = Instant::now() + self.settings.patience;
        loop {
            // One may become idle now: its client had a reply that came before the request's whole body, and left.
            self.ends.retain(|_, end| !is_idle(end));
            self.step(Duration::from_millis(20))?;
            let now = process::descriptors(proxy.pid())?;
            if now == *before {
                return Ok(());
            }
            if Instant::now() > end {
                self.tally.blame(Fault::new(
                    Kind::Leaked,
                    format!("before {before:?}, and long after the last transfer {now:?}"),
                ));
                return Ok(());
            }
        }
    }

    /// Tunnels whose client left before the proxy had connected to the origin.
    fn judge_unpaired(&mut self) {
        for (id, (side, report)) in std::mem::take(&mut self.reports) {
            self.tally.cut += 1;
            if side == Side::Origin || report.outcome.left.is_none() {
                let text = format!("tunnel {id}: only the {side:?} took part: {report:?}");
                self.tally.blame(Fault::new(Kind::Lost, text));
            }
        }
    }
}

/// An origin's connection that waits for a request is nobody's transfer.
fn is_idle(end: &End) -> bool {
    matches!(&end.handler, Handler::Serving(serving) if serving.is_idle() && end.outgoing.is_flushed())
}

//! The clients: one thread, one epoll, a kernel socket for each.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use ipnet::Ipv4Net;
use nix::errno::Errno;
use nix::sys::epoll::EpollTimeout;
use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Socket, Type};

use super::reply::Reply;
use super::tally::{Fate, Tally};
use crate::client::{Pattern, Schedule};
use crate::error::Result;
use crate::interrupt;
use crate::poll::{EDGES, Poll};

/// Connections begun between two looks at the replies.
const BEGUN_PER_TURN: usize = 64;
const BUFFER_BYTES: usize = 64 << 10;
/// Longest sleep of the loop.
const LOOK: Duration = Duration::from_millis(100);
/// A client that begins so long after it was due is late.
const LATE: Duration = Duration::from_millis(10);
/// In how long those come that come together.
const TOGETHER: Duration = Duration::from_millis(1);
/// Distance of two reports of how it goes.
const REPORT: Duration = Duration::from_secs(1);

/// What the clients do.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Where they connect to.
    pub target: SocketAddr,
    /// What each of them sends.
    pub request: Vec<u8>,
    /// Clients/s of each step, one step after the other.
    pub rates_per_s: Vec<f64>,
    /// Length of each step.
    pub step: Duration,
    /// All clients of a step come at its beginning; without, each comes by chance (Poisson).
    pub together: bool,
    /// A client without its whole reply gives up after this.
    pub patience: Duration,
    /// A served client leaves its connection open until the server closes it, or for so long.
    pub stay: Option<Duration>,
    /// Addresses from which they come; the kernel chooses one without.
    pub sources: Option<Ipv4Net>,
    /// Seed of all that is random.
    pub seed: u64,
}

/// One of the addresses of a network, without the first and the last of a network of four or more.
fn draw(network: Ipv4Net, random: &mut fastrand::Rng) -> Ipv4Addr {
    let hosts = 1u64 << (32 - network.prefix_len());
    let host = match hosts {
        1 | 2 => random.u64(..hosts),
        _ => random.u64(1..hosts - 1),
    };
    Ipv4Addr::from(u32::from(network.network()) + host as u32)
}

/// A connection that begins, from one of these addresses. The socket does not block.
pub fn connect(
    target: SocketAddr,
    sources: Option<Ipv4Net>,
    random: &mut fastrand::Rng,
) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(target), Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    if let Some(network) = sources {
        // The port is chosen at connect(), by the whole four-tuple.
        setsockopt(&socket, sockopt::IpBindAddressNoPort, &true)?;
        let source = draw(network, random);
        socket.bind(&SocketAddr::from((source, 0)).into())?;
    }
    match socket.connect(&target.into()) {
        Err(error) if error.raw_os_error() != Some(Errno::EINPROGRESS as i32) => Err(error),
        _ => Ok(socket.into()),
    }
}

/// The request of each client.
pub fn request(authority: &str, path: &str, stays: bool) -> Vec<u8> {
    let connection = if stays { "keep-alive" } else { "close" };
    format!(
        "GET {path} HTTP/1.1\r\nHost: {authority}\r\nUser-Agent: weir-lab load\r\nAccept: */*\r\nConnection: {connection}\r\n\r\n"
    )
    .into_bytes()
}

/// How it goes.
#[derive(Debug, Clone, Copy)]
pub struct Progress<'a> {
    /// Since the beginning.
    pub elapsed: Duration,
    /// Until now.
    pub tally: &'a Tally,
    /// Clients that wait for their reply.
    pub waiting: usize,
}

/// What a run leaves.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// By fate, step and second.
    pub tally: Tally,
    /// Share of the clients that began more than 10 ms after they were due.
    pub late_share: f64,
    /// A signal ended it; clients that waited then are in no count.
    pub interrupted: bool,
}

/// A served client leaves a connection that it keeps open after this, if the server has not closed it.
pub const LONGEST_STAY: Duration = Duration::from_secs(30);

/// Runs the plan in the calling thread's namespace: all steps, and until nobody waits.
pub fn run(plan: &Plan, on_progress: &mut dyn FnMut(Progress<'_>)) -> Result<Outcome> {
    let mut clients = Clients::new(plan)?;
    clients.run(on_progress)?;
    let begun = clients
        .tally
        .seconds
        .iter()
        .map(|second| second.due)
        .sum::<u64>();
    Ok(Outcome {
        late_share: clients.late as f64 / begun.max(1) as f64,
        interrupted: interrupt::interrupted(),
        tally: clients.tally,
    })
}

#[derive(Debug)]
enum State {
    Free,
    Connecting(TcpStream),
    Reading(TcpStream, Reply),
    /// Served, and still open.
    Staying(TcpStream),
}

struct Slot {
    state: State,
    step: usize,
    due: Duration,
    /// Tells its client from earlier ones of the slot.
    number: u32,
}

/// A client in the deadlines and in epoll: its slot and its number there.
#[derive(Clone, Copy)]
struct Name {
    slot: u32,
    number: u32,
}

impl Name {
    fn to_u64(self) -> u64 {
        u64::from(self.number) << 32 | u64::from(self.slot)
    }

    fn from_u64(data: u64) -> Name {
        Name {
            slot: data as u32,
            number: (data >> 32) as u32,
        }
    }
}

struct Clients<'a> {
    plan: &'a Plan,
    clock: Instant,
    poll: Poll,
    slots: Vec<Slot>,
    free: Vec<u32>,
    waiting: usize,
    /// When clients give up, and when those that stay leave: each list is in order, since all have the same time.
    patience: VecDeque<(Duration, Name)>,
    stays: VecDeque<(Duration, Name)>,
    /// Of the step that is under way, from its beginning on.
    schedule: Schedule,
    step: usize,
    random: fastrand::Rng,
    late: u64,
    tally: Tally,
    buffer: Vec<u8>,
}

impl<'a> Clients<'a> {
    fn new(plan: &'a Plan) -> Result<Clients<'a>> {
        Ok(Clients {
            plan,
            clock: Instant::now(),
            poll: Poll::new()?,
            slots: Vec::new(),
            free: Vec::new(),
            waiting: 0,
            patience: VecDeque::new(),
            stays: VecDeque::new(),
            schedule: schedule(plan, 0),
            step: 0,
            random: fastrand::Rng::with_seed(plan.seed),
            late: 0,
            tally: Tally::new(&plan.rates_per_s, plan.step),
            buffer: vec![0; BUFFER_BYTES],
        })
    }

    fn now(&self) -> Duration {
        self.clock.elapsed()
    }

    fn run(&mut self, on_progress: &mut dyn FnMut(Progress<'_>)) -> Result<()> {
        let mut report_due = REPORT;
        while (self.next_due().is_some() || self.waiting > 0) && !interrupt::interrupted() {
            self.begin_due()?;
            self.give_up();
            let sleep = self.sleep();
            for event in 0..self.poll.wait(sleep)? {
                self.advance(Name::from_u64(self.poll.key(event)));
            }
            if self.now() >= report_due {
                report_due += REPORT;
                on_progress(Progress {
                    elapsed: self.now(),
                    tally: &self.tally,
                    waiting: self.waiting,
                });
            }
        }
        Ok(())
    }

    /// When the next client is due; goes on to the next step where one is over. `None` behind the last.
    fn next_due(&mut self) -> Option<Duration> {
        loop {
            if self.step == self.plan.rates_per_s.len() {
                return None;
            }
            let due = Duration::from_nanos(self.schedule.due_ns());
            if due < self.plan.step {
                return Some(self.plan.step * self.step as u32 + due);
            }
            self.step += 1;
            if self.step < self.plan.rates_per_s.len() {
                self.schedule = schedule(self.plan, self.step);
            }
        }
    }

    fn begin_due(&mut self) -> Result<()> {
        for _ in 0..BEGUN_PER_TURN {
            let now = self.now();
            let Some(due) = self.next_due().filter(|due| *due <= now) else {
                break;
            };
            self.schedule.advance();
            self.late += u64::from(now > due + LATE);
            self.begin(due)?;
        }
        Ok(())
    }

    /// Until the next thing is due, in whole ms: rounded down, since to be late is worse than to look twice.
    fn sleep(&mut self) -> EpollTimeout {
        let next = self.next_due();
        let lists = [self.patience.front(), self.stays.front()];
        let next = lists
            .into_iter()
            .flatten()
            .map(|(at, _)| *at)
            .chain(next)
            .min();
        let now = self.now();
        let sleep = next.map_or(LOOK, |at| at.saturating_sub(now).min(LOOK));
        EpollTimeout::from(sleep.as_millis() as u8)
    }

    fn begin(&mut self, due: Duration) -> Result<()> {
        self.tally.due(due);
        let step = self.step;
        let Plan {
            target, sources, ..
        } = self.plan;
        let stream = match connect(*target, *sources, &mut self.random) {
            Ok(stream) => stream,
            Err(error) => {
                self.tally
                    .end(step, due, self.now(), fate_of(&error, Fate::Refused));
                return Ok(());
            }
        };
        let name = self.take_slot(due);
        self.poll.watch(&stream, name.to_u64(), EDGES)?;
        self.slots[name.slot as usize].state = State::Connecting(stream);
        self.waiting += 1;
        self.patience.push_back((due + self.plan.patience, name));
        Ok(())
    }

    fn take_slot(&mut self, due: Duration) -> Name {
        let step = self.step;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                state: State::Free,
                step,
                due,
                number: 0,
            });
            (self.slots.len() - 1) as u32
        });
        let entry = &mut self.slots[slot as usize];
        (entry.step, entry.due) = (step, due);
        entry.number = entry.number.wrapping_add(1);
        Name {
            slot,
            number: entry.number,
        }
    }

    /// The state of a client that is still there.
    fn state(&mut self, name: Name) -> Option<&mut State> {
        let slot = self.slots.get_mut(name.slot as usize)?;
        (slot.number == name.number).then_some(&mut slot.state)
    }

    /// Goes as far as the socket lets it.
    fn advance(&mut self, name: Name) {
        let Some(state) = self.state(name) else {
            return;
        };
        match std::mem::replace(state, State::Free) {
            State::Free => {}
            State::Connecting(stream) => self.ask(name, stream),
            State::Reading(stream, reply) => self.read(name, stream, reply),
            State::Staying(stream) => self.stay(name, stream),
        }
    }

    fn put(&mut self, name: Name, state: State) {
        self.slots[name.slot as usize].state = state;
    }

    /// Sends the request once the connection stands. It fits into the socket's buffer.
    fn ask(&mut self, name: Name, mut stream: TcpStream) {
        if let Ok(Some(error)) = stream.take_error() {
            return self.end(name, fate_of(&error, Fate::Refused));
        }
        match stream.write(&self.plan.request) {
            Ok(_) => self.read(name, stream, Reply::new()),
            Err(error) if is_not_yet(&error) => self.put(name, State::Connecting(stream)),
            Err(error) => self.end(name, fate_of(&error, Fate::Reset)),
        }
    }

    fn read(&mut self, name: Name, mut stream: TcpStream, mut reply: Reply) {
        loop {
            let taken = match stream.read(&mut self.buffer) {
                Ok(0) => {
                    return self.end(name, reply.at_end().map_or(Fate::CutShort, fate_of_status));
                }
                Ok(bytes) => reply.take(&self.buffer[..bytes]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return self.put(name, State::Reading(stream, reply));
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return self.end(name, fate_of(&error, Fate::Reset)),
            };
            match taken {
                Ok(None) => {}
                Ok(Some(status)) => {
                    self.tell(name, fate_of_status(status));
                    return match self.plan.stay {
                        Some(longest) => {
                            self.stays.push_back((self.now() + longest, name));
                            self.stay(name, stream);
                        }
                        None => self.leave(name),
                    };
                }
                Err(_) => return self.end(name, Fate::CutShort),
            }
        }
    }

    /// Waits for the server's end.
    fn stay(&mut self, name: Name, mut stream: TcpStream) {
        loop {
            match stream.read(&mut self.buffer) {
                Ok(1..) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return self.put(name, State::Staying(stream));
                }
                _ => return self.leave(name),
            }
        }
    }

    fn give_up(&mut self) {
        let now = self.now();
        while let Some(name) = pop_due(&mut self.patience, now) {
            if let Some(State::Connecting(_) | State::Reading(..)) = self.state(name) {
                self.end(name, Fate::TimedOut);
            }
        }
        while let Some(name) = pop_due(&mut self.stays, now) {
            if let Some(State::Staying(_)) = self.state(name) {
                self.leave(name);
            }
        }
    }

    /// The client's wait is over.
    fn tell(&mut self, name: Name, fate: Fate) {
        let slot = &self.slots[name.slot as usize];
        let (step, due) = (slot.step, slot.due);
        self.waiting -= 1;
        self.tally.end(step, due, self.now(), fate);
    }

    /// Its connection is over too.
    fn leave(&mut self, name: Name) {
        let slot = &mut self.slots[name.slot as usize];
        slot.state = State::Free;
        slot.number = slot.number.wrapping_add(1);
        self.free.push(name.slot);
    }

    fn end(&mut self, name: Name, fate: Fate) {
        self.tell(name, fate);
        self.leave(name);
    }
}

/// The first of the list, if it is due.
fn pop_due(list: &mut VecDeque<(Duration, Name)>, now: Duration) -> Option<Name> {
    let (_, name) = *list.front().filter(|(at, _)| *at <= now)?;
    list.pop_front();
    Some(name)
}

/// Beginnings of a step, from 0.
fn schedule(plan: &Plan, step: usize) -> Schedule {
    let rate_per_s = plan.rates_per_s[step];
    if plan.together {
        let burst = Pattern::Bursts {
            factor: 1e9,
            length: TOGETHER,
            period: plan.step,
        };
        // Half a client less: the first of the next step is due at the end of the burst, or by rounding just before.
        let rate_per_s = rate_per_s - 0.5 / plan.step.as_secs_f64();
        return Schedule::new(burst, rate_per_s);
    }
    let seed = plan.seed.wrapping_add(step as u64);
    let mut schedule = Schedule::new(Pattern::Poisson { seed }, rate_per_s);
    // The first one at a random time too.
    schedule.advance();
    schedule
}

fn fate_of_status(status: u16) -> Fate {
    match status {
        ..400 => Fate::Served,
        _ => Fate::Error(status),
    }
}

/// The fate of a client whose socket has failed; `reset` is that of a RST.
fn fate_of(error: &std::io::Error, reset: Fate) -> Fate {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ECONNREFUSED) => Fate::Refused,
        Some(Errno::ECONNRESET | Errno::EPIPE) => reset,
        Some(Errno::ETIMEDOUT) => Fate::TimedOut,
        Some(Errno::EADDRNOTAVAIL | Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS) => {
            Fate::NotBegun
        }
        _ => Fate::Unreachable,
    }
}

fn is_not_yet(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::NotConnected
    )
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn plan(target: SocketAddr, rates: &[f64]) -> Plan {
        Plan {
            target,
            request: request("x", "/", false),
            rates_per_s: rates.to_vec(),
            step: Duration::from_millis(500),
            together: false,
            patience: Duration::from_millis(800),
            stay: None,
            sources: None,
            seed: 1,
        }
    }

    fn tally(plan: &Plan) -> Tally {
        run(plan, &mut |_| {}).unwrap().tally
    }

    /// Serves each connection by itself: it answers with this, and closes unless the reply is empty.
    fn server(reply: &'static str) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let mut silent = Vec::new();
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut request = [0; 1024];
                let _ = stream.read(&mut request).unwrap();
                match reply {
                    "" => silent.push(stream),
                    reply => stream.write_all(reply.as_bytes()).unwrap(),
                }
            }
        });
        address
    }

    #[test]
    fn every_client_has_one_fate_and_steps_have_their_rates() {
        let target = server("HTTP/1.0 200 OK\r\n\r\nhello");
        let tally = tally(&plan(target, &[100.0, 400.0]));
        let [first, second] = &tally.steps[..] else {
            panic!()
        };
        // Poisson with a fixed seed: the same clients in each run.
        assert!((30..75).contains(&first.begun), "{}", first.begun);
        assert!((150..250).contains(&second.begun), "{}", second.begun);
        for step in [first, second] {
            assert_eq!(step.served, step.begun);
        }
    }

    #[test]
    fn those_who_come_together_come_at_the_beginning_of_their_step() {
        let together = Plan {
            together: true,
            ..plan(server("HTTP/1.0 200 OK\r\n\r\nhello"), &[60.0, 60.0])
        };
        for step in 0..2 {
            let mut schedule = schedule(&together, step);
            let due = std::iter::from_fn(|| {
                let due = Duration::from_nanos(schedule.due_ns());
                schedule.advance();
                (due < together.step).then_some(due)
            });
            let due: Vec<Duration> = due.collect();
            assert_eq!(due.len(), 30);
            assert!(due.iter().all(|due| *due <= TOGETHER), "{due:?}");
        }
    }

    #[test]
    fn a_closed_port_refuses_and_a_silent_server_runs_into_the_patience() {
        let closed = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = closed.local_addr().unwrap();
        drop(closed);
        let step = &tally(&plan(address, &[100.0])).steps[0];
        assert!(step.begun > 0 && step.refused == step.begun, "{step:?}");

        let step = &tally(&plan(server(""), &[20.0])).steps[0];
        assert!(step.begun > 0 && step.timed_out == step.begun, "{step:?}");
    }

    #[test]
    fn replies_of_errors_and_half_replies_are_told_apart() {
        let step = &tally(&plan(server("HTTP/1.0 503 No\r\n\r\n"), &[50.0])).steps[0];
        assert!(
            step.begun > 0 && step.errors[&503] == step.begun,
            "{step:?}"
        );
        let cut = server("HTTP/1.0 200 OK\r\nContent-Length: 9\r\n\r\nhello");
        let step = &tally(&plan(cut, &[50.0])).steps[0];
        assert!(step.begun > 0 && step.cut_short == step.begun, "{step:?}");
    }

    #[test]
    fn clients_come_from_all_addresses_of_the_prefix() {
        let mut random = fastrand::Rng::with_seed(1);
        let loopback = "127.0.0.0/8".parse().unwrap();
        assert!(draw(loopback, &mut random).is_loopback());
        let two = "10.0.0.0/31".parse().unwrap();
        let drawn: std::collections::BTreeSet<Ipv4Addr> =
            (0..64).map(|_| draw(two, &mut random)).collect();
        assert_eq!(drawn.len(), 2);
    }
}

//! More connections than one process may hold: threads with a table of descriptors of their own hold some
//! thousands each, clients and origin alike.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use super::connection::{Ask, Connection, Scratch, Step, Style};
use super::origin::Origin;
use crate::error::{Context, Error, Result};
use crate::interrupt;
use crate::netns::Netns;

/// Of the 20 000 descriptors that RLIMIT_NOFILE allows on the test machines, with room for uneven shares.
const PER_THREAD: usize = 15_000;
/// Exchanges of a thread at a time.
const AT_ONCE: usize = 64;
const EVENTS_PER_TURN: usize = 256;
/// Without any progress for so long, the proxy is stuck.
const PATIENCE: Duration = Duration::from_secs(15);
/// How often a thread looks whether it is to end, in ms.
const LOOK_MS: u8 = 100;

/// What each client does.
#[derive(Debug, Clone, Copy)]
pub struct Visit {
    /// The proxy.
    pub target: SocketAddr,
    /// Body bytes of a reply.
    pub bytes: usize,
    /// How it takes its replies.
    pub appetite: Appetite,
}

/// How clients take their replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Appetite {
    /// As they come.
    Hungry,
    /// In sips ([`Crowd::sip`]), with a receive buffer of so many bytes.
    Slow {
        /// SO_RCVBUF.
        receive_buffer: usize,
    },
}

/// Clients that hold one connection each. Dropped, they leave.
#[derive(Debug)]
pub struct Crowd {
    members: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    /// Taken by drop.
    orders: Option<Sender<Order>>,
    /// Bytes of bodies that came in consequence.
    answers: Receiver<Result<u64>>,
    thread: Option<JoinHandle<Result<()>>>,
}

#[derive(Debug, Clone, Copy)]
enum Order {
    /// Each connects if it has not yet, and asks; the hungry take the reply.
    Ask,
    /// Each receives at most so many bytes.
    Sip(usize),
}

impl Crowd {
    /// So many clients in a namespace, on one CPU; each connects, asks once, and stays.
    pub fn gather(netns: &Netns, cpu: usize, count: usize, visit: Visit) -> Result<Crowd> {
        let threads = threads_for(count);
        let share = |index| count / threads + usize::from(index < count % threads);
        let members = (0..threads).map(|index| Member::start(netns, cpu, share(index), visit));
        let crowd = Crowd {
            members: members.collect::<Result<_>>()?,
        };
        crowd.ask()?;
        Ok(crowd)
    }

    /// Lets each client ask, and the hungry take their reply: an error if a connection has died.
    pub fn ask(&self) -> Result<()> {
        self.order(Order::Ask).map(drop)
    }

    /// Lets each client receive at most so many bytes of its reply; says how many bytes of bodies came.
    pub fn sip(&self, most: usize) -> Result<u64> {
        self.order(Order::Sip(most))
    }

    fn order(&self, order: Order) -> Result<u64> {
        for member in &self.members {
            // One that has ended does not answer.
            let _ = member.orders.as_ref().map(|orders| orders.send(order));
        }
        let answers = self.members.iter().map(|member| {
            let answer = member.answers.recv();
            answer.context("a thread of clients has ended")?
        });
        answers.sum()
    }
}

impl Member {
    fn start(netns: &Netns, cpu: usize, count: usize, visit: Visit) -> Result<Member> {
        let (orders, ordered) = channel();
        let (answering, answers) = channel();
        let thread = netns.spawn(cpu, move || {
            let mut clients = Clients::new(count, visit)?;
            for order in ordered {
                let answer = clients.obey(order);
                if answering.send(answer).is_err() {
                    break;
                }
            }
            Ok(())
        })?;
        Ok(Member {
            orders: Some(orders),
            answers,
            thread: Some(thread),
        })
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn threads_for(connections: usize) -> usize {
    connections.div_ceil(PER_THREAD).max(1)
}

/// The clients of one thread.
struct Clients {
    count: usize,
    visit: Visit,
    epoll: Epoll,
    scratch: Scratch,
    connections: Vec<Connection>,
}

impl Clients {
    fn new(count: usize, visit: Visit) -> Result<Clients> {
        let flags = EpollCreateFlags::EPOLL_CLOEXEC;
        Ok(Clients {
            count,
            visit,
            epoll: Epoll::new(flags).context("cannot create an epoll")?,
            scratch: Scratch::new(&Ask::plain(visit.bytes, Style::KeepAlive)),
            connections: Vec::with_capacity(count),
        })
    }

    fn obey(&mut self, order: Order) -> Result<u64> {
        let before = self.scratch.received;
        match order {
            Order::Ask => self.ask()?,
            Order::Sip(most) => {
                for connection in &mut self.connections {
                    connection.sip(&mut self.scratch, most)?;
                }
            }
        }
        Ok(self.scratch.received - before)
    }

    fn ask(&mut self) -> Result<()> {
        let (mut begun, mut done) = (0, 0);
        let mut progress = Instant::now();
        while done < self.count {
            while begun < self.count && begun - done < AT_ONCE {
                self.begin(begun)?;
                begun += 1;
            }
            let more = self.turn()?;
            done += more;
            if more > 0 {
                progress = Instant::now();
            } else if progress.elapsed() > PATIENCE {
                let cause = format!("{done} of {} clients were served", self.count);
                return Err(Error::failed("the proxy is stuck", cause));
            }
        }
        Ok(())
    }

    fn begin(&mut self, index: usize) -> Result<()> {
        if let Some(connection) = self.connections.get_mut(index) {
            return connection.request(&self.scratch, true);
        }
        let Visit {
            target,
            bytes,
            appetite,
        } = self.visit;
        let connection = match appetite {
            Appetite::Hungry => Connection::open(target, bytes, Style::KeepAlive)?,
            Appetite::Slow { receive_buffer } => {
                Connection::open_narrow(target, bytes, receive_buffer)?
            }
        };
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLET;
        self.epoll
            .add(&connection, EpollEvent::new(flags, index as u64))
            .context("cannot watch a connection")?;
        self.connections.push(connection);
        Ok(())
    }

    /// Waits for events; says how many clients have done what they were to do.
    fn turn(&mut self) -> Result<usize> {
        interrupt::check()?;
        let mut events = [EpollEvent::empty(); EVENTS_PER_TURN];
        let ready = match self.epoll.wait(&mut events, LOOK_MS) {
            Err(Errno::EINTR) => 0,
            ready => ready.context("cannot wait for events")?,
        };
        let mut done = 0;
        for event in &events[..ready] {
            done += usize::from(self.advance(event.data() as usize)?);
        }
        Ok(done)
    }

    fn advance(&mut self, index: usize) -> Result<bool> {
        let connection = &mut self.connections[index];
        match connection.advance(&mut self.scratch)? {
            Step::Waiting | Step::Closed => Ok(false),
            Step::Replied => Ok(true),
            Step::Connected => {
                connection.request(&self.scratch, true)?;
                let slow = self.visit.appetite != Appetite::Hungry;
                if slow {
                    self.epoll
                        .delete(&*connection)
                        .context("cannot stop to watch a connection")?;
                }
                Ok(slow)
            }
        }
    }
}

/// Threads that are the origin together. Dropped, they end.
#[derive(Debug)]
pub struct Hosts {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<()>>>,
}

impl Hosts {
    /// Listens on a port of a namespace, on one CPU, for so many connections.
    pub fn open(netns: &Netns, cpu: usize, port: u16, connections: usize) -> Result<Hosts> {
        let mut hosts = Hosts {
            stop: Arc::default(),
            threads: Vec::new(),
        };
        for _ in 0..threads_for(connections) {
            let (stop, (ready, listening)) = (hosts.stop.clone(), channel());
            hosts.threads.push(netns.spawn(cpu, move || {
                let mut origin = Origin::listen(port)?;
                let _ = ready.send(());
                while !stop.load(Ordering::Relaxed) {
                    origin.wait(LOOK_MS)?;
                }
                Ok(())
            })?);
            if listening.recv().is_err() {
                return Err(hosts.failure());
            }
        }
        Ok(hosts)
    }

    /// Why the last thread has ended.
    fn failure(&mut self) -> Error {
        let ended = self.threads.pop().map(JoinHandle::join);
        match ended {
            Some(Ok(Err(error))) => error,
            _ => Error::failed("cannot start the origin", "its thread has died"),
        }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

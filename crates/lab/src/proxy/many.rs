//! More connections than one process may hold: threads with a table of descriptors of their own hold some
//! thousands each, clients and origin alike.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::connection::{Ask, Connection, Scratch, Step, Style};
use super::origin::Origin;
use crate::error::{Context, Error, Result};
use crate::interrupt;
use crate::netns::Netns;
use crate::poll::{EDGES, Poll};

/// Of the 20 000 descriptors that RLIMIT_NOFILE allows on the test machines, with room for uneven shares.
const PER_THREAD: usize = 15_000;
/// Exchanges of a thread at a time.
const AT_ONCE: usize = 64;
/// Without any progress for so long, the proxy is stuck.
const PATIENCE: Duration = Duration::from_secs(15);
/// How often a thread looks whether it is to end, in ms.
const LOOK_MS: u8 = 100;

/// What each client does.
#[derive(Debug, Clone, Copy)]
pub struct Task {
    /// The proxy.
    pub target: SocketAddr,
    /// Body bytes of a reply.
    pub bytes: usize,
    /// How it takes its replies.
    pub demand: Demand,
}

/// How clients take their replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Demand {
    /// As they come.
    AtOnce,
    /// A few bytes at a time ([`Clients::take`]), with a receive buffer of so many bytes.
    Slow {
        /// SO_RCVBUF.
        receive_buffer: usize,
    },
}

/// Worker that hold one connection each. Dropped, they leave.
#[derive(Debug)]
pub struct Clients {
    threads: Vec<ClientThread>,
}

#[derive(Debug)]
struct ClientThread {
    /// Taken by drop.
    orders: Option<Sender<Order>>,
    /// Bytes of bodies that came in consequence.
    answers: Receiver<Result<u64>>,
    thread: Option<JoinHandle<Result<()>>>,
}

#[derive(Debug, Clone, Copy)]
enum Order {
    /// Each connects if it has not yet, and asks; without [`Demand::Slow`] it takes the reply.
    Ask,
    /// Each receives at most so many bytes.
    Take(usize),
}

impl Clients {
    /// So many clients in a namespace, on one CPU; each connects, asks once, and stays.
    pub fn connect(netns: &Netns, cpu: usize, count: usize, task: Task) -> Result<Clients> {
        let number = threads_for(count);
        let share = |index| count / number + usize::from(index < count % number);
        let threads = (0..number).map(|index| ClientThread::start(netns, cpu, share(index), task));
        let clients = Clients {
            threads: threads.collect::<Result<_>>()?,
        };
        clients.ask()?;
        Ok(clients)
    }

    /// Lets each client ask, and take its reply unless it is slow: an error if a connection has died.
    pub fn ask(&self) -> Result<()> {
        self.order(Order::Ask).map(drop)
    }

    /// Lets each client receive at most so many bytes of its reply; says how many bytes of bodies came.
    pub fn take(&self, most: usize) -> Result<u64> {
        self.order(Order::Take(most))
    }

    fn order(&self, order: Order) -> Result<u64> {
        for thread in &self.threads {
            // One that has ended does not answer.
            let _ = thread.orders.as_ref().map(|orders| orders.send(order));
        }
        let answers = self.threads.iter().map(|thread| {
            let answer = thread.answers.recv();
            answer.context("a thread of clients has ended")?
        });
        answers.sum()
    }
}

impl ClientThread {
    fn start(netns: &Netns, cpu: usize, count: usize, task: Task) -> Result<ClientThread> {
        let (orders, ordered) = channel();
        let (answering, answers) = channel();
        let thread = netns.spawn(cpu, move || {
            let mut clients = Worker::new(count, task)?;
            for order in ordered {
                let answer = clients.obey(order);
                if answering.send(answer).is_err() {
                    break;
                }
            }
            Ok(())
        })?;
        Ok(ClientThread {
            orders: Some(orders),
            answers,
            thread: Some(thread),
        })
    }
}

impl Drop for ClientThread {
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
struct Worker {
    count: usize,
    task: Task,
    poll: Poll,
    scratch: Scratch,
    connections: Vec<Connection>,
}

impl Worker {
    fn new(count: usize, task: Task) -> Result<Worker> {
        Ok(Worker {
            count,
            task,
            poll: Poll::new()?,
            scratch: Scratch::new(&Ask::plain(task.bytes, Style::KeepAlive)),
            connections: Vec::with_capacity(count),
        })
    }

    fn obey(&mut self, order: Order) -> Result<u64> {
        let before = self.scratch.received;
        match order {
            Order::Ask => self.ask()?,
            Order::Take(most) => {
                for connection in &mut self.connections {
                    connection.take(&mut self.scratch, most)?;
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
        let Task {
            target,
            bytes,
            demand,
        } = self.task;
        let connection = match demand {
            Demand::AtOnce => Connection::open(target, bytes, Style::KeepAlive)?,
            Demand::Slow { receive_buffer } => {
                Connection::open_narrow(target, bytes, receive_buffer)?
            }
        };
        self.poll.watch(&connection, index as u64, EDGES)?;
        self.connections.push(connection);
        Ok(())
    }

    /// Waits for events; says how many clients have done what they were to do.
    fn turn(&mut self) -> Result<usize> {
        interrupt::check()?;
        let mut done = 0;
        for event in 0..self.poll.wait(LOOK_MS)? {
            done += usize::from(self.advance(self.poll.key(event) as usize)?);
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
                let slow = self.task.demand != Demand::AtOnce;
                if slow {
                    self.poll.leave(&*connection)?;
                }
                Ok(slow)
            }
        }
    }
}

/// Threads that are the origin together. Dropped, they end.
#[derive(Debug)]
pub struct Origins {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<()>>>,
}

impl Origins {
    /// Listens on a port of a namespace, on one CPU, for so many connections.
    pub fn open(netns: &Netns, cpu: usize, port: u16, connections: usize) -> Result<Origins> {
        let mut origins = Origins {
            stop: Arc::default(),
            threads: Vec::new(),
        };
        for _ in 0..threads_for(connections) {
            let (stop, (ready, listening)) = (origins.stop.clone(), channel());
            origins.threads.push(netns.spawn(cpu, move || {
                let mut origin = Origin::listen(port)?;
                let _ = ready.send(());
                while !stop.load(Ordering::Relaxed) {
                    origin.wait(LOOK_MS)?;
                }
                Ok(())
            })?);
            if listening.recv().is_err() {
                return Err(origins.failure());
            }
        }
        Ok(origins)
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

impl Drop for Origins {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

//! Threads that look names up: getaddrinfo(3) blocks, for as long as a name server says nothing (resolver(5): 5 s, twice,
//! for each server). So there are several, started when they are needed, and no client has them all: its further
//! names wait, while those of others go ahead.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv6Addr, ToSocketAddrs};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::runtime::Sender;

/// Names that are looked up at once.
const THREADS: usize = 64;
/// Of these, the threads that look up names for one client.
const SHARE: usize = 8;
/// Names that wait at most, of all clients.
const WAITING: usize = 1024;
/// Of these, the names of one client: others must find room too.
const MOST_OF_CLIENT: usize = WAITING / SHARE;
/// A thread that has nothing to do for so long ends.
const IDLE: Duration = Duration::from_secs(10);

/// A question.
pub struct Question {
    /// What is to be looked up.
    pub name: String,
    /// How many tasks wait for the answer. A name for which none waits is not looked up.
    pub waiting: Arc<AtomicUsize>,
    /// Where the answer goes.
    pub answers: Sender<Resolved>,
}

/// The answer.
pub struct Resolved {
    /// The question.
    pub name: String,
    /// `None`: no task waited for it any more.
    pub addresses: Option<io::Result<Vec<IpAddr>>>,
    /// How long that took.
    pub took: Duration,
}

type LookUp = dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync;

/// The threads, and the names that wait for them.
#[derive(Clone)]
pub struct Resolver(Arc<Pool>);

struct Pool {
    state: Mutex<State>,
    asked: Condvar,
    look_up: Box<LookUp>,
}

#[derive(Default)]
struct State {
    queue: FairQueue<Question>,
    threads: usize,
    idle: usize,
}

impl Default for Resolver {
    /// Asks getaddrinfo(3).
    fn default() -> Resolver {
        Resolver::asking(getaddrinfo)
    }
}

/// The addresses of a name, by getaddrinfo(3). It may block, for as long as above and longer.
///
/// # Errors
/// The name has none, or no name server answers.
pub(super) fn getaddrinfo(name: &str) -> io::Result<Vec<IpAddr>> {
    let found = (name, 0).to_socket_addrs()?;
    Ok(found.map(|address| address.ip()).collect())
}

impl Resolver {
    /// Asks `look_up`, which may block.
    pub fn asking(
        look_up: impl Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync + 'static,
    ) -> Resolver {
        Resolver(Arc::new(Pool {
            state: Mutex::default(),
            asked: Condvar::new(),
            look_up: Box::new(look_up),
        }))
    }

    /// Has a name looked up for a client.
    ///
    /// # Errors
    /// Too many wait already, or the kernel gives no thread.
    pub fn ask(&self, client: IpAddr, question: Question) -> io::Result<()> {
        let mut state = self.0.lock();
        if !state.queue.push(sharing_address(client), question) {
            return Err(io::Error::other("too many names are being looked up"));
        }
        self.0.asked.notify_one();
        if state.idle < state.queue.ready() && state.threads < THREADS {
            let pool = self.0.clone();
            let thread = std::thread::Builder::new().name("weir-resolver".to_owned());
            match thread.spawn(move || pool.work()) {
                Ok(_) => state.threads += 1,
                // The others come to it.
                Err(error) if state.threads > 0 => tracing::debug!("no further resolver: {error}"),
                Err(error) => {
                    state.queue = FairQueue::default();
                    return Err(io::Error::other(error));
                }
            }
        }
        Ok(())
    }
}

impl Pool {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The life of a thread.
    fn work(&self) {
        let mut state = self.lock();
        loop {
            while let Some((client, question)) = state.queue.next() {
                drop(state);
                self.answer(question);
                state = self.lock();
                state.queue.done(client);
            }
            state.idle += 1;
            let waited = self.asked.wait_timeout(state, IDLE);
            let (next, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = next;
            state.idle -= 1;
            if timeout.timed_out() && !state.queue.is_ready() {
                state.threads -= 1;
                return;
            }
        }
    }

    fn answer(&self, question: Question) {
        let Question {
            name,
            answers,
            waiting,
        } = question;
        let start = Instant::now();
        let is_wanted = waiting.load(Ordering::Relaxed) > 0;
        answers.send(Resolved {
            addresses: is_wanted.then(|| (self.look_up)(&name)),
            took: start.elapsed(),
            name,
        });
    }
}

/// The address that stands for a client's share: of IPv6 that of its /64 network.
fn sharing_address(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
        ip => ip,
    }
}

/// A queue for each client. The queues are served in turn, and each has so many served at once.
struct FairQueue<T> {
    clients: HashMap<IpAddr, ClientQueue<T>>,
    /// Clients with names that wait, and with less than their share of the threads.
    turn: VecDeque<IpAddr>,
    waiting: usize,
}

struct ClientQueue<T> {
    waiting: VecDeque<T>,
    served: usize,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        FairQueue {
            clients: HashMap::new(),
            turn: VecDeque::new(),
            waiting: 0,
        }
    }
}

impl<T> FairQueue<T> {
    /// False if too many wait.
    fn push(&mut self, client: IpAddr, item: T) -> bool {
        if self.waiting >= WAITING {
            return false;
        }
        let own = self.clients.entry(client).or_insert_with(|| ClientQueue {
            waiting: VecDeque::new(),
            served: 0,
        });
        // A queue that is full is not empty: no empty one is left behind here.
        if own.waiting.len() >= MOST_OF_CLIENT {
            return false;
        }
        if own.waiting.is_empty() && own.served < SHARE {
            self.turn.push_back(client);
        }
        own.waiting.push_back(item);
        self.waiting += 1;
        true
    }

    /// How many may be served now, each of a thread of its own.
    fn ready(&self) -> usize {
        let of_one = |client: &IpAddr| {
            let own = self.clients.get(client);
            own.map_or(0, |own| own.waiting.len().min(SHARE - own.served))
        };
        self.turn.iter().map(of_one).sum()
    }

    fn is_ready(&self) -> bool {
        !self.turn.is_empty()
    }

    fn next(&mut self) -> Option<(IpAddr, T)> {
        let client = self.turn.pop_front()?;
        let own = self.clients.get_mut(&client)?;
        let item = own.waiting.pop_front()?;
        self.waiting -= 1;
        own.served += 1;
        if !own.waiting.is_empty() && own.served < SHARE {
            self.turn.push_back(client);
        }
        Some((client, item))
    }

    fn done(&mut self, client: IpAddr) {
        let Some(own) = self.clients.get_mut(&client) else {
            return;
        };
        if own.served == SHARE && !own.waiting.is_empty() {
            self.turn.push_back(client);
        }
        own.served -= 1;
        if own.served == 0 && own.waiting.is_empty() {
            self.clients.remove(&client);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::{Runtime, mailbox};

    fn client(number: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, number])
    }

    #[test]
    fn a_client_has_its_share_and_the_others_go_ahead_in_turn() {
        let mut queue = FairQueue::default();
        for item in 0..20 {
            assert!(queue.push(client(1), item));
        }
        for item in 100..102 {
            assert!(queue.push(client(2), item));
        }
        let order: Vec<i32> = std::iter::from_fn(|| queue.next().map(|(_, item)| item)).collect();
        assert_eq!(order, [0, 100, 1, 101, 2, 3, 4, 5, 6, 7]);
        assert!(!queue.is_ready());
        queue.done(client(1));
        assert_eq!(queue.next(), Some((client(1), 8)));
        assert_eq!(queue.next(), None);
    }

    /// A resolver whose look-ups of names that begin with "slow" last until what comes with it is dropped.
    fn held() -> (Resolver, std::sync::mpsc::Sender<()>) {
        let (release, held) = std::sync::mpsc::channel::<()>();
        let held = Mutex::new(held);
        let resolver = Resolver::asking(move |name| {
            if name.starts_with("slow") {
                let held = held.lock().unwrap_or_else(PoisonError::into_inner);
                // Nothing is ever sent.
                let _ = held.recv();
            }
            Ok(Vec::new())
        });
        (resolver, release)
    }

    fn question(name: &str, answers: &Sender<Resolved>) -> Question {
        Question {
            name: name.to_owned(),
            waiting: Arc::new(AtomicUsize::new(1)),
            answers: answers.clone(),
        }
    }

    #[test]
    fn one_client_with_more_names_than_may_wait_takes_the_others_nothing() {
        let runtime = Runtime::new().unwrap();
        let (sender, _answers) = mailbox(runtime.handle()).unwrap();
        let (resolver, _release) = held();
        let ask = |from, name: &str| resolver.ask(client(from), question(name, &sender));
        let asked = (0..2 * WAITING).filter(|_| ask(1, "slow").is_ok()).count();
        assert!(
            (MOST_OF_CLIENT..=MOST_OF_CLIENT + SHARE).contains(&asked),
            "{asked}"
        );
        // Whether the threads have begun with some of them by now or not.
        assert!(ask(2, "fast").is_ok());
    }

    #[test]
    fn a_name_waits_for_no_thread_while_one_is_idle_or_another_may_begin() {
        let runtime = Runtime::new().unwrap();
        let handle = runtime.handle().clone();
        let (sender, answers) = mailbox(&handle).unwrap();
        let (resolver, _release) = held();
        let longest = runtime.run(async move {
            for _ in 0..100 {
                resolver.ask(client(1), question("slow", &sender)).unwrap();
            }
            let mut longest = Duration::ZERO;
            for _ in 0..2 * THREADS {
                let start = Instant::now();
                resolver.ask(client(2), question("fast", &sender)).unwrap();
                handle.set_deadline(2 * IDLE);
                answers.receive().await.unwrap();
                longest = longest.max(start.elapsed());
            }
            longest
        });
        // A thread that is not told finds the name when its own time is over.
        assert!(longest.unwrap() < IDLE / 2);
    }

    #[test]
    fn nothing_is_kept_of_clients_that_are_done_and_no_more_wait_than_may() {
        let mut queue = FairQueue::default();
        for item in 0..WAITING {
            assert!(queue.push(client(item as u8), item));
        }
        assert!(!queue.push(client(1), 0));
        let mut served = 0;
        while let Some((client, _)) = queue.next() {
            queue.done(client);
            served += 1;
        }
        assert_eq!(
            (served, queue.clients.len(), queue.waiting),
            (WAITING, 0, 0)
        );
    }

    #[test]
    fn the_addresses_of_one_network_are_one_client() {
        let sharing_address = |ip: &str| sharing_address(ip.parse().unwrap()).to_string();
        assert_eq!(sharing_address("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(sharing_address("::ffff:192.0.2.1"), "192.0.2.1");
    }
}

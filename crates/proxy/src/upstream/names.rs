//! Names of servers that clients of a forward proxy ask for: what one thread knows of them, and the tasks that wait for
//! an answer.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::resolver::{Question, Resolved, Resolver};
use crate::runtime::{Clock, Handle, Mailbox, Sender, TaskId};

/// How long an answer is used: getaddrinfo(3) does not tell the records' own time to live.
const ANSWER_KEPT: Clock = 30_000;
/// How long a failure is, at least: one that took longer is used for as long as it took, up to [`ANSWER_KEPT`].
const FAILURE_KEPT: Clock = 2_000;
/// Names remembered by one thread, beside those that are being looked up.
const NAMES_KEPT: usize = 4096;
/// A name has no more bytes (RFC 1035 Section 2.3.4): what is longer is not looked up, nor remembered.
const NAME_BYTES: usize = 255;

/// No answer came in time.
#[derive(Debug, thiserror::Error)]
#[error("the name was not resolved in time")]
struct Unresolved;

/// Whether it was the name that took too long, and not a server.
pub fn is_name_timeout(error: &io::Error) -> bool {
    error
        .get_ref()
        .is_some_and(|inner| inner.is::<Unresolved>())
}

/// The names that one thread knows.
pub struct Names {
    known: RefCell<HashMap<String, Name>>,
    resolver: Resolver,
    answers: Sender<Resolved>,
}

enum Name {
    Pending(PendingName),
    Found(Vec<IpAddr>, Clock),
    Failed(String, Clock),
}

/// A question that has no answer yet.
struct PendingName {
    waiting: Vec<TaskId>,
    tasks: Arc<AtomicUsize>,
}

/// A task that waits for an answer, counted until this is dropped.
struct WaitingTask(Arc<AtomicUsize>);

impl WaitingTask {
    fn of(pending: &mut PendingName, task: TaskId) -> WaitingTask {
        pending.waiting.push(task);
        pending.tasks.fetch_add(1, Ordering::Relaxed);
        WaitingTask(pending.tasks.clone())
    }
}

impl Drop for WaitingTask {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Names {
    /// No names yet. Answers come to the mailbox behind `answers`: see [`learn`](Self::learn).
    pub fn new(resolver: Resolver, answers: Sender<Resolved>) -> Names {
        Names {
            known: RefCell::default(),
            resolver,
            answers,
        }
    }

    /// The addresses of a host with this port, for this client.
    ///
    /// # Errors
    /// The name has none, or cannot be looked up; after the task's deadline `TimedOut`, of which
    /// [`is_name_timeout`] knows.
    pub async fn resolve(
        &self,
        handle: &Handle,
        client: IpAddr,
        host: &str,
        port: u16,
    ) -> io::Result<Vec<SocketAddr>> {
        if let Ok(ip) = host.parse() {
            return Ok(vec![SocketAddr::new(ip, port)]);
        }
        if host.len() > NAME_BYTES {
            return Err(io::Error::other("the name is longer than names are"));
        }
        let mut waiting = None;
        let answered = handle
            .wait_for(|| self.ask(handle.running(), handle.now(), client, host, &mut waiting))
            .await;
        let ips = answered.map_err(|_| io::Error::new(ErrorKind::TimedOut, Unresolved))??;
        Ok(ips
            .into_iter()
            .map(|ip| SocketAddr::new(ip, port))
            .collect())
    }

    /// What is known of a name; if nothing, the task is woken when it is, as long as it keeps `waiting`.
    fn ask(
        &self,
        task: TaskId,
        now: Clock,
        client: IpAddr,
        host: &str,
        waiting: &mut Option<WaitingTask>,
    ) -> Option<io::Result<Vec<IpAddr>>> {
        let mut known = self.known.borrow_mut();
        match known.get_mut(host) {
            Some(Name::Found(ips, until)) if *until > now => return Some(Ok(ips.clone())),
            Some(Name::Failed(why, until)) if *until > now => {
                return Some(Err(io::Error::other(why.clone())));
            }
            Some(Name::Pending(pending)) => {
                let waits = |waiting: &WaitingTask| Arc::ptr_eq(&waiting.0, &pending.tasks);
                if !waiting.as_ref().is_some_and(waits) {
                    *waiting = Some(WaitingTask::of(pending, task));
                }
                return None;
            }
            _ => {}
        }
        if known.len() >= NAMES_KEPT {
            known.retain(|_, name| matches!(name, Name::Pending(_)));
        }
        let mut pending = PendingName {
            waiting: Vec::new(),
            tasks: Arc::default(),
        };
        *waiting = Some(WaitingTask::of(&mut pending, task));
        let question = Question {
            name: host.to_owned(),
            waiting: pending.tasks.clone(),
            answers: self.answers.clone(),
        };
        if let Err(error) = self.resolver.ask(client, question) {
            return Some(Err(error));
        }
        known.insert(host.to_owned(), Name::Pending(pending));
        None
    }

    /// Takes answers in, for ever.
    ///
    /// # Errors
    /// epoll fails.
    pub async fn learn(&self, handle: &Handle, answers: &Mailbox<Resolved>) -> io::Result<()> {
        loop {
            let answer = answers.receive().await?;
            let now = handle.now();
            let asked = {
                let mut known = self.known.borrow_mut();
                match answer.addresses {
                    Some(Ok(ips)) => known.insert(answer.name, Name::Found(ips, now + ANSWER_KEPT)),
                    Some(Err(error)) => {
                        let kept =
                            (answer.took.as_millis() as Clock).clamp(FAILURE_KEPT, ANSWER_KEPT);
                        known.insert(answer.name, Name::Failed(error.to_string(), now + kept))
                    }
                    // A task that has come meanwhile asks again.
                    None => known.remove(&answer.name),
                }
            };
            if let Some(Name::Pending(pending)) = asked {
                pending
                    .waiting
                    .into_iter()
                    .for_each(|task| handle.wake(task));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::sync::Mutex;
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;
    use crate::runtime::{Runtime, mailbox};

    const PATIENCE: Duration = Duration::from_secs(20);

    fn client(number: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, number])
    }

    /// Runs `main` with names whose resolver does not answer for those that begin with `slow` until the sender is
    /// dropped or has sent something for each; says which names were looked up.
    fn run(main: impl AsyncFnOnce(Handle, Rc<Names>, mpsc::Sender<()>) + 'static) -> Vec<String> {
        let (go, gone) = mpsc::channel::<()>();
        let gone = Mutex::new(gone);
        let looked_up = Arc::<Mutex<Vec<String>>>::default();
        let list = looked_up.clone();
        let resolver = Resolver::asking(move |name| {
            list.lock().unwrap().push(name.to_owned());
            if name.starts_with("slow") {
                let _ = gone.lock().unwrap().recv();
            }
            Ok(vec![client(9)])
        });
        let runtime = Runtime::new().unwrap();
        let handle = runtime.handle().clone();
        let (answers, answered) = mailbox(&handle).unwrap();
        let names = Rc::new(Names::new(resolver, answers));
        let (learner, loop_of) = (names.clone(), handle.clone());
        handle.spawn(async move {
            let _ = learner.learn(&loop_of, &answered).await;
        });
        runtime
            .run(async move { main(handle, names, go).await })
            .unwrap();
        let looked_up = looked_up.lock().unwrap();
        looked_up.clone()
    }

    async fn resolve(
        names: &Names,
        handle: &Handle,
        number: u8,
        name: &str,
        patience: Duration,
    ) -> io::Result<()> {
        handle.set_deadline(patience);
        let found = names.resolve(handle, client(number), name, 80).await;
        found.map(|addresses| assert_eq!(addresses, [SocketAddr::new(client(9), 80)]))
    }

    #[test]
    fn a_client_whose_names_are_slow_holds_no_other_client_up() {
        run(async |handle, names, _go| {
            for number in 0..100 {
                let (names, handle) = (names.clone(), handle.clone());
                let own = handle.clone();
                handle.spawn(async move {
                    let _ = resolve(&names, &own, 1, &format!("slow{number}"), PATIENCE).await;
                });
            }
            // They have asked.
            handle.yield_now().await;
            handle.yield_now().await;
            resolve(&names, &handle, 2, "fast", PATIENCE).await.unwrap();
        });
    }

    #[test]
    fn a_name_that_takes_too_long_is_told_from_a_server_that_does() {
        run(async |handle, names, _go| {
            let late = resolve(&names, &handle, 1, "slow", Duration::from_millis(20)).await;
            let late = late.unwrap_err();
            assert!(late.kind() == ErrorKind::TimedOut && is_name_timeout(&late));
            assert!(!is_name_timeout(&ErrorKind::TimedOut.into()));
        });
    }

    #[test]
    fn names_for_which_nobody_waits_any_more_are_not_looked_up() {
        let looked_up = run(async |handle, names, go| {
            for number in 0..100 {
                let (names, own) = (names.clone(), handle.clone());
                handle.spawn(async move {
                    let short = Duration::from_millis(10);
                    let _ = resolve(&names, &own, 1, &format!("slow{number}"), short).await;
                });
            }
            handle.sleep(Duration::from_millis(50)).await;
            drop(go);
            // It waits behind all of them.
            resolve(&names, &handle, 1, "last", PATIENCE).await.unwrap();
        });
        assert_eq!(looked_up.len(), 9, "{looked_up:?}");
    }
}

//! Tasks: their queue, their deadlines, and the loop that runs them.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::num::NonZeroU32;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use slab::Slab;

use super::poller::{Poller, Trigger};
use super::source::{Direction, Source};
use super::task::TaskId;
use super::wheel::Wheel;

/// Milliseconds since the loop began.
pub type Clock = u64;

const NEVER: Clock = Clock::MAX;

type Work = Pin<Box<dyn Future<Output = ()>>>;

struct Task {
    /// `None` while it runs.
    work: Option<Work>,
    generation: NonZeroU32,
    queued: bool,
    deadline: Clock,
    /// When it is woken, though nothing has come.
    reminder: Clock,
}

impl Task {
    /// When its timer must fire.
    fn next_timer(&self) -> Clock {
        self.deadline.min(self.reminder)
    }
}

struct Inner {
    poller: RefCell<Poller>,
    tasks: RefCell<Slab<Task>>,
    queue: RefCell<VecDeque<TaskId>>,
    wheel: RefCell<Wheel>,
    start: Instant,
    /// Read once per turn of the loop.
    now: Cell<Clock>,
    /// The same reading in microseconds.
    now_us: Cell<u64>,
    running: Cell<TaskId>,
    generation: Cell<NonZeroU32>,
}

/// A reference to the loop of this thread.
#[derive(Clone)]
pub struct Handle(Rc<Inner>);

/// The loop of one thread.
pub struct Runtime {
    handle: Handle,
}

impl Runtime {
    /// A loop without tasks.
    ///
    /// # Errors
    /// The kernel gives no epoll descriptor.
    pub fn new() -> io::Result<Runtime> {
        let no_task = TaskId {
            index: u32::MAX,
            generation: NonZeroU32::MIN,
        };
        let inner = Inner {
            poller: RefCell::new(Poller::new()?),
            tasks: RefCell::default(),
            queue: RefCell::default(),
            wheel: RefCell::new(Wheel::new(0)),
            start: Instant::now(),
            now: Cell::new(0),
            now_us: Cell::new(0),
            running: Cell::new(no_task),
            generation: Cell::new(NonZeroU32::MIN),
        };
        Ok(Runtime {
            handle: Handle(Rc::new(inner)),
        })
    }

    /// What tasks and sockets need of the loop.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Runs tasks until `main` is done. The other tasks are dropped then.
    ///
    /// # Errors
    /// epoll fails.
    pub fn run<T: 'static>(self, main: impl Future<Output = T> + 'static) -> io::Result<T> {
        let result = Rc::new(Cell::new(None));
        let out = result.clone();
        self.handle.spawn(async move { out.set(Some(main.await)) });
        loop {
            self.handle.run_queue();
            if let Some(value) = result.take() {
                return Ok(value);
            }
            self.handle.turn()?;
        }
    }
}

impl Drop for Runtime {
    /// Tasks hold handles and handles hold tasks: ends that circle.
    fn drop(&mut self) {
        let tasks = self.handle.0.tasks.take();
        drop(tasks);
    }
}

impl Handle {
    /// Starts a task. It runs for the first time before the loop waits again.
    pub fn spawn(&self, work: impl Future<Output = ()> + 'static) {
        let next = self.0.generation.get().checked_add(1);
        let generation = next.unwrap_or(NonZeroU32::MIN);
        self.0.generation.set(generation);
        let index = self.0.tasks.borrow_mut().insert(Task {
            work: Some(Box::pin(work)),
            generation,
            queued: true,
            deadline: NEVER,
            reminder: NEVER,
        });
        let index = index as u32;
        let task = TaskId { index, generation };
        self.0.queue.borrow_mut().push_back(task);
    }

    /// The loop's clock, as of this turn.
    pub fn now(&self) -> Clock {
        self.0.now.get()
    }

    /// The same reading in microseconds, for what is measured: its error is the length of a turn.
    pub fn now_us(&self) -> u64 {
        self.0.now_us.get()
    }

    /// Gives the running task this long: waits that last beyond it fail with `TimedOut`, until the
    /// deadline is moved.
    pub fn set_deadline(&self, time: Duration) {
        let millis = Clock::try_from(time.as_millis()).unwrap_or(NEVER);
        self.set_deadline_at(self.now().saturating_add(millis));
    }

    /// Lets the running task wait for ever.
    pub fn clear_deadline(&self) {
        self.set_deadline_at(NEVER);
    }

    fn set_deadline_at(&self, deadline: Clock) {
        let task = self.0.running.get();
        self.0.tasks.borrow_mut()[task.index as usize].deadline = deadline;
        self.arm_by(task, deadline);
    }

    /// Lets the running task's timer fire at `time` at the latest.
    fn arm_by(&self, task: TaskId, time: Clock) {
        if time == NEVER {
            return;
        }
        let mut wheel = self.0.wheel.borrow_mut();
        // A timer that fires too early looks again; only one that would fire too late must move.
        if wheel.due(task.index).is_none_or(|due| due > time) {
            wheel.arm(task.index, time);
        }
    }

    /// Wakes the running task at `time`, so that it looks again at what it waits for. It is no deadline: no wait
    /// fails. A task has one reminder, the earliest that its waits asked for since it was last woken. A wait that
    /// goes on then asks again.
    pub fn remind_at(&self, time: Clock) {
        let id = self.0.running.get();
        let mut tasks = self.0.tasks.borrow_mut();
        let task = &mut tasks[id.index as usize];
        task.reminder = task.reminder.min(time);
        drop(tasks);
        self.arm_by(id, time);
    }

    /// Takes back the reminder of a wait that is over. Another wait of the running task keeps its own.
    pub fn forget_reminder(&self) {
        let id = self.0.running.get();
        let tasks = self.0.tasks.borrow();
        let task = &tasks[id.index as usize];
        if task.reminder != NEVER {
            return;
        }
        // Else the loop would wake up for it, which under load costs a GET of 128 KB a sixth.
        let mut wheel = self.0.wheel.borrow_mut();
        match task.deadline {
            NEVER => wheel.disarm(id.index),
            deadline => wheel.arm(id.index, deadline),
        }
    }

    pub(super) fn deadline_has_passed(&self) -> bool {
        let task = self.0.running.get();
        self.0.tasks.borrow()[task.index as usize].deadline <= self.now()
    }

    /// Lets the running task sleep; its deadline is cleared.
    pub async fn sleep(&self, time: Duration) {
        self.set_deadline(time);
        std::future::poll_fn(|_| match self.deadline_has_passed() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
        self.clear_deadline();
    }

    /// Lets the other tasks run before this one goes on.
    pub async fn yield_now(&self) {
        let mut yielded = false;
        std::future::poll_fn(|_| {
            if std::mem::replace(&mut yielded, true) {
                return Poll::Ready(());
            }
            self.wake(self.0.running.get());
            Poll::Pending
        })
        .await;
    }

    /// Makes every task look again.
    pub fn wake_all(&self) {
        let mut tasks = self.0.tasks.borrow_mut();
        let mut queue = self.0.queue.borrow_mut();
        for (index, task) in tasks.iter_mut().filter(|(_, task)| !task.queued) {
            task.queued = true;
            let (index, generation) = (index as u32, task.generation);
            queue.push_back(TaskId { index, generation });
        }
    }

    /// Waits until the running task is woken by [`wake`](Self::wake) or its deadline passes, and
    /// `ready` gives a value.
    ///
    /// # Errors
    /// `TimedOut`.
    pub fn wait_for<T>(
        &self,
        mut ready: impl FnMut() -> Option<T>,
    ) -> impl Future<Output = io::Result<T>> {
        std::future::poll_fn(move |_| match ready() {
            Some(value) => Poll::Ready(Ok(value)),
            None if self.deadline_has_passed() => Poll::Ready(Err(timed_out())),
            None => Poll::Pending,
        })
    }

    /// The task that is running.
    pub fn running(&self) -> TaskId {
        self.0.running.get()
    }

    /// Makes a task look again for what it waits for. One that has ended stays so.
    pub fn wake(&self, id: TaskId) {
        if let Some(task) = self.0.tasks.borrow_mut().get_mut(id.index as usize)
            && task.generation == id.generation
            && !task.queued
        {
            task.queued = true;
            self.0.queue.borrow_mut().push_back(id);
        }
    }

    /// Waits until `source`, the readiness of `fd`, is ready for `direction`, or `interrupted`,
    /// which is asked each time that the task is woken.
    ///
    /// No `async fn`, nor is what stands on it: those keep their arguments twice, and this is what
    /// idle tunnels consist of.
    pub(super) fn ready(
        &self,
        fd: impl AsFd,
        source: &Rc<Source>,
        trigger: Trigger,
        direction: Direction,
        interrupted: impl Fn() -> bool,
    ) -> impl Future<Output = io::Result<()>> {
        std::future::poll_fn(move |_| {
            self.poll_ready(&fd, source, trigger, direction, &interrupted)
        })
    }

    /// One look of [`ready`](Self::ready), for a future that keeps nothing of it between two.
    pub(super) fn poll_ready(
        &self,
        fd: impl AsFd,
        source: &Rc<Source>,
        trigger: Trigger,
        direction: Direction,
        interrupted: impl Fn() -> bool,
    ) -> Poll<io::Result<()>> {
        if source.is_ready(direction) || interrupted() {
            return Poll::Ready(Ok(()));
        }
        if self.deadline_has_passed() {
            return Poll::Ready(Err(timed_out()));
        }
        source.wait(direction, self.running());
        match self.register(&fd, source, trigger) {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    /// Lets events tell the readiness of `fd` from now on, if they do not yet.
    pub(super) fn register(
        &self,
        fd: impl AsFd,
        source: &Rc<Source>,
        trigger: Trigger,
    ) -> io::Result<()> {
        if source.key().is_none() {
            let key = self.0.poller.borrow_mut().register(fd, source, trigger)?;
            source.set_key(key);
        }
        Ok(())
    }

    /// As [`forget`](Self::forget), for a descriptor that others go on holding.
    pub(super) fn unregister(&self, fd: impl AsFd, source: &Source) {
        if let Some(key) = source.take_key() {
            self.0.poller.borrow_mut().unregister(fd, key);
        }
    }

    /// Lets only the end of `fd` be reported, or bytes as well.
    pub(super) fn mute(&self, fd: impl AsFd, source: &Rc<Source>, muted: bool) -> io::Result<()> {
        self.register(&fd, source, Trigger::Edge)?;
        let key = source.key().ok_or(io::ErrorKind::NotFound)?;
        self.0.poller.borrow().mute(fd, key, muted)
    }

    pub(super) fn forget(&self, source: &Source) {
        if let Some(key) = source.take_key() {
            self.0.poller.borrow_mut().forget(key);
        }
    }

    /// Runs the tasks that are queued now; those that they wake run after the next look at epoll.
    fn run_queue(&self) {
        let queued = self.0.queue.borrow().len();
        for _ in 0..queued {
            let Some(id) = self.0.queue.borrow_mut().pop_front() else {
                return;
            };
            self.run_task(id);
        }
    }

    fn run_task(&self, id: TaskId) {
        let index = id.index as usize;
        let mut work = {
            let mut tasks = self.0.tasks.borrow_mut();
            // One that was woken in its last poll has ended, and its number may be another's.
            let Some(task) = tasks
                .get_mut(index)
                .filter(|task| task.generation == id.generation)
            else {
                return;
            };
            task.queued = false;
            task.reminder = NEVER;
            task.work.take().expect("a task is run by the loop only")
        };
        self.0.running.set(id);
        let poll = work.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        if poll.is_pending() {
            self.0.tasks.borrow_mut()[index].work = Some(work);
            return;
        }
        // Before the task's number is free for another: what it holds may still name it.
        drop(work);
        self.0.wheel.borrow_mut().disarm(id.index);
        self.0.tasks.borrow_mut().remove(index);
    }

    /// Waits for the next event or timer, and queues the tasks that it wakes.
    fn turn(&self) -> io::Result<()> {
        let timeout = match self.0.queue.borrow().is_empty() {
            true => self.until_next_timer(),
            false => Some(Duration::ZERO),
        };
        let mut poller = self.0.poller.borrow_mut();
        poller.wait(timeout, |source, readiness| {
            source.update(readiness, |task| self.wake(task));
        })?;
        drop(poller);
        let elapsed = self.0.start.elapsed();
        self.0.now.set(elapsed.as_millis() as Clock);
        self.0.now_us.set(elapsed.as_micros() as u64);
        self.fire_timers();
        Ok(())
    }

    /// How long the loop sleeps at most while nothing comes; `None`: until something does.
    pub(super) fn until_next_timer(&self) -> Option<Duration> {
        let next = self.0.wheel.borrow().next()?;
        Some(Duration::from_millis(next.saturating_sub(self.now())))
    }

    fn fire_timers(&self) {
        let now = self.now();
        if self.0.wheel.borrow().next().is_none_or(|next| next > now) {
            return;
        }
        let mut fired = Vec::new();
        self.0.wheel.borrow_mut().advance(now, &mut fired);
        for index in fired {
            let tasks = self.0.tasks.borrow();
            let task = &tasks[index as usize];
            let generation = task.generation;
            let wakes = task.next_timer() <= now;
            // A task that is woken asks for its reminder again.
            let next = match wakes {
                true => task.deadline,
                false => task.next_timer(),
            };
            drop(tasks);
            if wakes {
                self.wake(TaskId { index, generation });
            }
            if next > now && next != NEVER {
                self.0.wheel.borrow_mut().arm(index, next);
            }
        }
    }
}

fn timed_out() -> io::Error {
    io::ErrorKind::TimedOut.into()
}

/// Runs two futures as one, in one task, until one of them is done. They stay where the caller has
/// pinned them: moved in, they would take their room twice.
pub async fn first<T>(
    mut a: Pin<&mut impl Future<Output = T>>,
    mut b: Pin<&mut impl Future<Output = T>>,
) -> T {
    std::future::poll_fn(move |context| match a.as_mut().poll(context) {
        Poll::Pending => b.as_mut().poll(context),
        done => done,
    })
    .await
}

/// Runs two futures as one, in one task, until both are done or one has failed. They stay where the
/// caller has pinned them.
///
/// # Errors
/// The first failure; the other future stands where it was.
///
/// No `async fn`: those keep their arguments twice, and idle tunnels consist of this.
pub fn try_both<A, B, E>(
    mut a: Pin<&mut impl Future<Output = Result<A, E>>>,
    mut b: Pin<&mut impl Future<Output = Result<B, E>>>,
) -> impl Future<Output = Result<(A, B), E>> {
    let (mut a_done, mut b_done) = (None, None);
    std::future::poll_fn(move |context| {
        if a_done.is_none()
            && let Poll::Ready(result) = a.as_mut().poll(context)
        {
            a_done = Some(result?);
        }
        if b_done.is_none()
            && let Poll::Ready(result) = b.as_mut().poll(context)
        {
            b_done = Some(result?);
        }
        match (a_done.take(), b_done.take()) {
            (Some(a), Some(b)) => Poll::Ready(Ok((a, b))),
            (a, b) => {
                (a_done, b_done) = (a, b);
                Poll::Pending
            }
        }
    })
}

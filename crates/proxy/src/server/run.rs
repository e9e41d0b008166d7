//! The life of one thread, from its event loop to its last client.

use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use super::client_limit::ThreadClientLimit;
use super::command::Command;
use super::counters::Counters;
use super::date::DateCache;
use super::future_pool::FuturePool;
use super::http::{Forecast, Scratch, Upstreams};
use super::shared::Shared;
use super::thread_state::ThreadState;
use super::worker::Worker;
use crate::cache::ThreadCache;
use crate::http::Limits;
use crate::runtime::{Clock, Mailbox, Runtime, Sender, TaskId, TcpListener, mailbox};
use crate::transfer::{Redirect, Resources};
use crate::upstream::{Backends, Names, Notice, Origins, Resolved, ThreadConnectionLimit};

/// How often the thread looks for idle connections to servers to close.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// Runs a thread to its end. Once it has started, sends what takes its commands to `started`.
pub fn run(
    index: usize,
    shared: Shared,
    counters: Counters,
    listener: OwnedFd,
    started: &SyncSender<Sender<Command>>,
) -> io::Result<()> {
    // Another thread may have failed in its place.
    counters.origins.reset_gauges();
    for backend in shared.backends.all() {
        backend.accounts[index].reset_gauges();
    }
    let runtime = Runtime::new()?;
    let handle = runtime.handle().clone();
    let (commands, mailbox) = mailbox(&handle)?;
    let (names, answered) = match shared.resolver {
        Some(resolver) => {
            let (answers, answered) = self::mailbox::<Resolved>(&handle)?;
            (Some(Names::new(resolver, answers)), Some(answered))
        }
        None => (None, None),
    };
    let (cache, woken) = match shared.cache {
        Some(cache) => {
            let (waker, woken) = self::mailbox::<TaskId>(&handle)?;
            (
                Some(ThreadCache::new(cache, waker, handle.clone())),
                Some(woken),
            )
        }
        None => (None, None),
    };
    let (notices, noticed) = self::mailbox::<Notice>(&handle)?;
    let connection_limit = shared.connection_limit.map(|shared_limit| {
        ThreadConnectionLimit::new(shared_limit, index, handle.clone(), notices.clone())
    });
    let listed = shared.backends.join(index, notices);
    let (waker, called) = self::mailbox::<()>(&handle)?;
    let client_limit = ThreadClientLimit::new(
        shared.client_limit,
        shared.settings.max_clients as usize,
        waker,
    );
    let listener = TcpListener::new(listener, &handle);
    let lane = shared
        .redirector
        .as_ref()
        .map(|redirector| redirector.lane());
    let redirect = lane.transpose()?.map(Redirect::new);
    // Fails only if the whole server is gone.
    let _ = started.send(commands);
    runtime.run(async move {
        let (settings, log) = (shared.settings, shared.log);
        let max_idle = share(settings.max_idle as usize, index, shared.threads);
        let worker = Rc::new(Worker {
            main: handle.running(),
            handle,
            resources: Resources::new(shared.pipes, redirect),
            upstreams: Upstreams {
                backends: Backends::new(
                    &listed,
                    index,
                    settings.clone(),
                    connection_limit,
                    max_idle,
                ),
                origins: Origins::new(
                    counters.origins.counters.clone(),
                    counters.origins.gauges.clone(),
                    settings.clone(),
                    max_idle,
                ),
                names,
                settings: settings.clone(),
                own: shared.own_listeners,
            },
            scratch: Scratch::default(),
            exchanges: FuturePool::default(),
            forecast: Forecast::default(),
            limits: Limits::of_head(settings.max_head as usize),
            default_host: settings
                .backends
                .first()
                .map_or(String::new(), |backend| backend.address.to_string()),
            date: DateCache::default(),
            cache,
            settings,
            classes: shared.classes,
            counters: counters.listener,
            state: counters.state,
            journal: log.and_then(|log| log.journal()),
            clients: Cell::new(0),
            most_clients: Cell::new(0),
            client_limit,
            draining: Cell::new(false),
            ends_idle: Cell::new(false),
        });
        worker.spawn_background_tasks(called, answered, woken, noticed);
        worker.state.set(ThreadState::Accepting);
        let mut command = worker.accept_until_told(&listener, &mailbox).await?;
        worker.draining.set(true);
        worker.state.set(ThreadState::Draining);
        if let Command::Drain(time) = command {
            worker.end_idle();
            let last = worker.accept_the_last(&listener, &mailbox, time).await;
            command = last.unwrap_or(command);
        }
        drop(listener);
        worker.finish(&mailbox, command).await;
        worker.state.set(ThreadState::Ended);
        Ok(())
    })?
}

/// What a thread has of `sum`, if each of `threads` has as much or one more.
fn share(sum: usize, thread: usize, threads: usize) -> usize {
    sum / threads + usize::from(thread < sum % threads)
}

impl Worker {
    /// Spawns the tasks beside those of clients. They handle wake-ups for free client slots, looked-up names, and
    /// backends and connections from other threads, and close connections that stay unused.
    fn spawn_background_tasks(
        self: &Rc<Self>,
        called: Mailbox<()>,
        answered: Option<Mailbox<Resolved>>,
        woken: Option<Mailbox<TaskId>>,
        noticed: Mailbox<Notice>,
    ) {
        let worker = self.clone();
        self.handle.spawn(async move {
            // It ends only with epoll, and so does the thread.
            while let Ok(()) = called.receive().await {
                worker.handle.wake(worker.main);
            }
        });
        let worker = self.clone();
        self.handle.spawn(async move {
            // As above.
            while let Ok(notice) = noticed.receive().await {
                worker.upstreams.backends.handle_notice(notice);
            }
        });
        if let Some(woken) = woken {
            let handle = self.handle.clone();
            self.handle.spawn(async move {
                // It ends only with epoll, and so does the thread.
                while let Ok(task) = woken.receive().await {
                    handle.wake(task);
                }
            });
        }
        if let Some(answered) = answered {
            let worker = self.clone();
            self.handle.spawn(async move {
                if let Some(names) = &worker.upstreams.names {
                    // It ends only with epoll, and so does the thread.
                    let _ = names.learn(&worker.handle, &answered).await;
                }
            });
        }
        let worker = self.clone();
        self.handle.spawn(async move {
            if let Some(redirect) = &worker.resources.redirect {
                // As above.
                let _ = redirect.wake_passed(&worker.handle).await;
            }
        });
        let worker = self.clone();
        self.handle.spawn(async move {
            let kept = worker.settings.keep_alive.as_millis() as Clock;
            loop {
                worker.handle.sleep(SWEEP_EVERY).await;
                let now = worker.handle.now();
                worker.upstreams.sweep(now.saturating_sub(kept));
                worker.resources.pipes.trim();
                worker.trim_memory();
            }
        });
    }
}

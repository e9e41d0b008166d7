//! Connections to a server that has several addresses: the first one that answers (RFC 8305,
//! Section 5).

use std::cell::Cell;
use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::{Backend, Link, Requester};
use crate::runtime::Handle;

/// How long an address is tried alone before the next one is tried too (RFC 8305, Section 8).
const HEAD_START: Duration = Duration::from_millis(250);

type Attempt<'a> = Pin<Box<dyn Future<Output = io::Result<Link>> + 'a>>;

/// Connects to the first of these addresses that takes the connection: in their order, the next one
/// when one has failed or has had its head start. The slower ones are given up.
///
/// # Errors
/// That of the last one that failed, once all have.
pub async fn race(
    handle: &Handle,
    addresses: &[Rc<Backend>],
    requester: Requester<'_>,
) -> io::Result<Link> {
    // Most servers have one.
    if let [only] = addresses {
        requester.note(only);
        return only.connect(handle).await;
    }
    let mut race = Race {
        handle,
        requester,
        waiting: addresses.iter(),
        running: Vec::new(),
        start: None,
        last: ErrorKind::NotFound.into(),
    };
    Box::pin(poll_fn(move |context| race.poll(context))).await
}

struct Race<'a> {
    handle: &'a Handle,
    requester: Requester<'a>,
    waiting: std::slice::Iter<'a, Rc<Backend>>,
    running: Vec<(&'a Rc<Backend>, Attempt<'a>)>,
    /// Set when the last one that began has had its head start.
    start: Option<Rc<Cell<bool>>>,
    last: io::Error,
}

impl<'a> Race<'a> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Link>> {
        loop {
            let mut failed = false;
            let mut index = 0;
            while index < self.running.len() {
                let (_, attempt) = &mut self.running[index];
                match attempt.as_mut().poll(context) {
                    Poll::Pending => index += 1,
                    Poll::Ready(Ok(link)) => {
                        self.note_slower_than(index);
                        return Poll::Ready(Ok(link));
                    }
                    Poll::Ready(Err(error)) => {
                        drop(self.running.remove(index));
                        self.last = error;
                        failed = true;
                    }
                }
            }
            let is_due = self.start.as_ref().is_none_or(|start| start.get());
            if !failed && !is_due && !self.running.is_empty() {
                return Poll::Pending;
            }
            match self.waiting.next() {
                Some(next) => self.begin(next),
                None if self.running.is_empty() => {
                    let last = std::mem::replace(&mut self.last, ErrorKind::NotFound.into());
                    return Poll::Ready(Err(last));
                }
                None => return Poll::Pending,
            }
        }
    }

    fn begin(&mut self, backend: &'a Rc<Backend>) {
        self.requester.note(backend);
        let handle = self.handle;
        let attempt = Box::pin(async move { backend.connect(handle).await });
        self.running.push((backend, attempt));
        let start = Rc::new(Cell::new(false));
        if self.waiting.len() > 0 {
            self.wake_after_head_start(start.clone());
        }
        self.start = Some(start);
    }

    /// By a task of its own: this one's deadline is the attempts'.
    fn wake_after_head_start(&self, start: Rc<Cell<bool>>) {
        let (handle, racer) = (self.handle.clone(), self.handle.running());
        self.handle.spawn(async move {
            handle.sleep(HEAD_START).await;
            // Still wanted?
            if Rc::strong_count(&start) > 1 {
                start.set(true);
                handle.wake(racer);
            }
        });
    }

    /// Those that began before the one that won are tried after it for a while.
    fn note_slower_than(&self, winner: usize) {
        for (backend, _) in &self.running[..winner] {
            backend.note_slow(self.handle.now());
        }
    }
}

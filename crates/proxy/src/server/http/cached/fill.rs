//! Receives a reply of known length into the cache, as a task of its own. So it waits for no client, and a client that
//! goes away takes nothing from the others.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use weir_core::proxy::{FinishOnAbort, Proxy, SendProxy};

use crate::cache::{AbandonedReply, Filler, Kept, Lead, finishes};
use crate::http::ReplyFacts;
use crate::metrics::ListenerCounters;
use crate::runtime::{Clock, Handle};
use crate::server::http::finish::leaves_open;
use crate::server::peer::LeasedPeer;
use crate::transfer::YieldBudget;

/// A reply on its way into the cache.
pub struct Fill {
    pub server: LeasedPeer,
    pub facts: ReplyFacts,
    pub filler: Filler,
    pub lead: Lead,
    pub kept: Kept,
    pub counters: Arc<ListenerCounters>,
    pub settings: Arc<Proxy>,
    pub handle: Handle,
}

/// Since when the reply has no reader, and how much of it was there then.
#[derive(Clone, Copy)]
struct Abandoned {
    at: Clock,
    received: u64,
}

impl Fill {
    /// Takes what was received with the head. If that is not all, a task receives the rest.
    pub fn begin(mut self) {
        match self.take_ahead() {
            true => self.finish(),
            false => self.handle.clone().spawn(self.run()),
        }
    }

    fn take_ahead(&mut self) -> bool {
        let buffer = &mut self.server.peer.buffer;
        let most = usize::try_from(self.filler.left()).unwrap_or(usize::MAX);
        let ahead = buffer.bytes().len().min(most);
        if ahead > 0 {
            self.filler.copy(&buffer.bytes()[..ahead]);
            buffer.consume(ahead);
            self.counters.bytes_down.add(ahead as u64);
        }
        self.filler.left() == 0
    }

    /// Receives the rest, as long as it has a reader or is worth finishing.
    async fn run(mut self) {
        let mut abandoned = None;
        let mut budget = YieldBudget::default();
        while self.filler.left() > 0 {
            abandoned = match self.filler.is_abandoned() {
                true => Some(abandoned.unwrap_or_else(|| self.abandoned_now())),
                false => None,
            };
            if abandoned.is_some_and(|abandoned| !self.is_worth_finishing(abandoned)) {
                return self.counters.transfers_broken.add(1);
            }
            let Some(received) = self.receive(abandoned).await else {
                return self.broken();
            };
            budget.spend(received, &self.handle).await;
        }
        self.counters
            .cache_finished
            .add(u64::from(abandoned.is_some()));
        self.finish();
    }

    /// All of it is there: keeps it, and the connection.
    fn finish(self) {
        self.filler.finish();
        self.counters.count_kept(self.lead.keep(self.kept));
        // One that began with a client's address is of no use to others.
        let for_all = self.settings.send_proxy == SendProxy::Off;
        if for_all && leaves_open(&self.facts, &self.server.peer.buffer) {
            let asks = self.facts.client_close;
            self.server.lease.keep(self.server.peer.stream, asks);
        }
    }

    fn broken(self) {
        self.server.lease.backend().counters.failures.add(1);
    }

    /// Receives what comes next; `None` if nothing will. 0 bytes may mean that the last reader left.
    async fn receive(&mut self, abandoned: Option<Abandoned>) -> Option<usize> {
        let (stream, filler) = (&self.server.peer.stream, &mut self.filler);
        self.handle.set_deadline(match abandoned {
            Some(abandoned) => silence_limit(&self.settings, self.handle.now() - abandoned.at),
            None => self.settings.idle_timeout,
        });
        let left_alone = || abandoned.is_none() && filler.is_abandoned();
        poll_fn(|_| stream.poll_readable_or(left_alone))
            .await
            .ok()?;
        match stream.try_receive(filler.space()) {
            Ok(Some(0)) | Err(_) => None,
            Ok(Some(received)) => {
                filler.filled(received);
                self.counters.bytes_down.add(received as u64);
                Some(received)
            }
            Ok(None) => Some(0),
        }
    }

    fn abandoned_now(&self) -> Abandoned {
        Abandoned {
            at: self.handle.now(),
            received: self.filler.received(),
        }
    }

    fn is_worth_finishing(&self, abandoned: Abandoned) -> bool {
        let received = self.filler.received();
        let reply = AbandonedReply {
            received,
            length: Some(received + self.filler.left()),
            since: received - abandoned.received,
            elapsed: Duration::from_millis(self.handle.now() - abandoned.at),
        };
        finishes(self.settings.finish_on_abort, reply)
    }
}

/// How long a server may send nothing of a reply without readers.
fn silence_limit(settings: &Proxy, elapsed: Clock) -> Duration {
    match settings.finish_on_abort {
        FinishOnAbort::Time(most) => most
            .saturating_sub(Duration::from_millis(elapsed))
            .min(settings.idle_timeout),
        _ => settings.idle_timeout,
    }
}

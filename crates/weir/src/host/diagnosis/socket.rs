//! A listening socket, as the doctor sees it.

use std::time::{Duration, SystemTime};

use crate::host::diagnosis::finding::Object;

/// A wait from which on a queue is trouble, full or not: a client's first repeated SYN takes as long.
pub const LONG: Duration = Duration::from_secs(1);

/// The listen queue of a socket at two moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Queue {
    /// Connections that waited for accept(), at the fuller one.
    pub length: u32,
    /// The same at the second one.
    pub length_now: u32,
    /// SYNs and final ACKs dropped since the socket listens.
    pub dropped: u32,
    /// Of them, those between the two.
    pub dropped_now: u32,
    /// The time between the two.
    pub time: Duration,
    /// What has become of those that waited at the first; `None` where the kernel does not say.
    pub passage: Option<Passage>,
    /// Of those that waited at the second, those whose client has closed or reset; `None` likewise.
    pub gone: Option<u32>,
}

/// What has become of connections that waited, between two moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Passage {
    /// Connections in the socket's queue at the first moment, also those that their client had reset.
    pub length: u32,
    /// Connections that waited at the first moment for it and all others on its address, without those that their client had
    /// reset.
    pub waited: u32,
    /// Of them, those that no longer waited at the second.
    pub accepted: u32,
}

/// How fast a server takes connections out of its queue.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pace {
    /// It has accepted none for so long, although some waited all the time.
    Stopped(Duration),
    /// About so many a second.
    Accepts(f64),
}

impl Queue {
    /// The server's pace; `None` if nobody waited for long enough to tell.
    pub fn pace(&self) -> Option<Pace> {
        let passage = self.passage;
        let Passage {
            length,
            waited,
            accepted,
        } = passage.filter(|passage| passage.waited > 0 && passage.length > 0)?;
        if accepted == 0 {
            return (self.time >= LONG).then_some(Pace::Stopped(self.time));
        }
        // Those that were reset stand among the others, and are accepted with them.
        let all = f64::from(length) * f64::from(accepted) / f64::from(waited);
        Some(Pace::Accepts(all / self.time.as_secs_f64().max(1e-3)))
    }

    /// How long a connection that comes now waits for accept(), at the server's pace; of one that has stopped, how long the
    /// first one has waited at least. `None`: not known.
    pub fn wait(&self) -> Option<Duration> {
        match self.pace()? {
            Pace::Stopped(time) => Some(time),
            Pace::Accepts(per_second) => {
                Duration::try_from_secs_f64(f64::from(self.length_now) / per_second).ok()
            }
        }
    }
}

/// What a running weir does for a listener.
#[derive(Debug, Clone, PartialEq)]
pub struct Guarded {
    /// The listener's name.
    pub listener: String,
    /// Whether it refuses, or only counts.
    pub enforces: bool,
    /// The estimated wait.
    pub wait: Option<Duration>,
    /// Connections that came, each once, and of them those that enforcement would have refused; `None`: none has come.
    pub would_refuse: Option<(u64, u64)>,
    /// Why its queue is in the kernel's order and not in that of queue = priority.
    pub fifo_because: Option<String>,
}

/// A listening socket.
#[derive(Debug, Clone, PartialEq)]
pub struct Socket {
    /// Local address and port.
    pub address: String,
    /// The backlog in force.
    pub limit: u32,
    /// The name of the process that has it; `None` while not known.
    pub server: Option<String>,
    /// An MPTCP listener.
    pub mptcp: bool,
    /// The VRF that it is bound to.
    pub vrf: Option<String>,
    /// The id of that process.
    pub pid: Option<u32>,
    /// When it was started.
    pub started: Option<SystemTime>,
    /// Its listen queue; `None` where the kernel does not say.
    pub queue: Option<Queue>,
    /// What a running weir does for it.
    pub guarded: Option<Guarded>,
    /// A weir outside of this network namespace may guard it.
    pub is_guarded_outside: bool,
}

impl Socket {
    /// As one of the sockets.
    pub fn object(&self) -> Object {
        Object {
            name: self.address.clone(),
            kind: "sockets",
        }
    }

    /// Whether nobody waits there, and nothing was dropped while the doctor looked.
    pub fn is_idle(&self) -> bool {
        let has_trouble = |queue: Queue| queue.dropped_now > 0 || queue.length > self.limit / 2;
        !self.queue.is_some_and(has_trouble)
    }

    /// Whether no place is free, or something was dropped while the doctor looked.
    pub fn is_full(&self) -> bool {
        // Between an accept() and the next SYN one place is free.
        let nearly = self.limit - self.limit / 10;
        let full =
            |queue: Queue| queue.dropped_now > 0 || (queue.length > 0 && queue.length >= nearly);
        self.queue.is_some_and(full)
    }

    /// How long a connection that comes now waits for accept(): as a running weir says, which has looked for longer, else by
    /// what the doctor has seen.
    pub fn wait(&self) -> Option<Duration> {
        let guarded = self.guarded.as_ref().and_then(|guarded| guarded.wait);
        guarded.or_else(|| self.queue?.wait())
    }

    /// Whether clients wait for long, in a queue that may have places.
    pub fn is_long(&self) -> bool {
        let some_wait = self.queue.is_some_and(|queue| queue.length_now > 0);
        some_wait && self.wait() >= Some(LONG)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(length: u32, waited: u32, accepted: u32, ms: u64) -> Queue {
        Queue {
            length,
            length_now: length,
            time: Duration::from_millis(ms),
            passage: Some(Passage {
                length,
                waited,
                accepted,
            }),
            ..Queue::default()
        }
    }

    #[test]
    fn the_wait_is_the_queue_by_the_pace_at_which_it_is_emptied() {
        let wait = |queue: Queue| queue.wait().map(|wait| wait.as_secs_f64().round() as u64);
        assert_eq!(wait(queue(237, 237, 4, 2000)), Some(119));
        assert_eq!(wait(queue(511, 511, 86, 2000)), Some(12));
        assert_eq!(wait(queue(0, 0, 0, 2000)), None, "nobody waits");
        assert_eq!(wait(Queue::default()), None);
        let drained = Queue {
            length_now: 3,
            ..queue(200, 200, 200, 2000)
        };
        assert_eq!(wait(drained), Some(0), "a burst that was accepted");
        let half_were_reset = queue(512, 256, 43, 2000);
        assert_eq!(wait(half_were_reset), Some(12), "43 of 256 seen, 86 of all");
    }

    #[test]
    fn a_server_has_stopped_if_it_accepts_nothing_for_a_second() {
        assert_eq!(queue(9, 9, 0, 999).pace(), None);
        let stopped = Some(Pace::Stopped(Duration::from_millis(1200)));
        assert_eq!(queue(9, 9, 0, 1200).pace(), stopped);
        assert!(matches!(
            queue(9, 9, 1, 1200).pace(),
            Some(Pace::Accepts(_))
        ));
    }
}

//! epoll, and which socket an event belongs to.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::time::Timespec;
use slab::Slab;

use super::source::{Readiness, Source};

/// Events fetched by one `epoll_wait`.
const BATCH: usize = 256;

/// How a socket's readiness is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// Once per change, both directions: for streams, which are read until they run dry.
    Edge,
    /// As long as it is readable: for listeners, which accept one connection at a time.
    Level,
}

pub struct Poller {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
    sources: Slab<Registered>,
    generation: u32,
}

struct Registered {
    source: Rc<Source>,
    generation: u32,
}

impl Poller {
    pub fn new() -> io::Result<Poller> {
        Ok(Poller {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            events: Vec::with_capacity(BATCH),
            sources: Slab::new(),
            generation: 0,
        })
    }

    /// Starts to report the readiness of `fd` to `source`; says by which key it is known.
    pub fn register(
        &mut self,
        fd: impl AsFd,
        source: &Rc<Source>,
        trigger: Trigger,
    ) -> io::Result<usize> {
        self.generation = self.generation.wrapping_add(1);
        let generation = self.generation;
        let entry = self.sources.vacant_entry();
        let key = entry.key();
        let flags = match trigger {
            Trigger::Edge => EDGE,
            Trigger::Level => EventFlags::IN,
        };
        epoll::add(&self.epoll, fd, data(key, generation), flags)?;
        entry.insert(Registered {
            source: source.clone(),
            generation,
        });
        Ok(key)
    }

    /// Reports only the end of an edge-triggered socket, or all of it, and what there is at once.
    pub fn mute(&self, fd: impl AsFd, key: usize, muted: bool) -> io::Result<()> {
        let flags = match muted {
            true => EventFlags::RDHUP | EventFlags::ET,
            false => EDGE,
        };
        let generation = self.sources[key].generation;
        Ok(epoll::modify(
            &self.epoll,
            fd,
            data(key, generation),
            flags,
        )?)
    }

    /// Forgets a socket that is about to be closed, which takes it out of epoll by itself.
    pub fn forget(&mut self, key: usize) {
        self.sources.remove(key);
    }

    /// Forgets a socket that stays open elsewhere.
    pub fn unregister(&mut self, fd: impl AsFd, key: usize) {
        // Fails only if it is not registered, which is what is wanted.
        let _ = epoll::delete(&self.epoll, fd);
        self.forget(key);
    }

    /// Waits for events at most this long (`None`: until there is one) and hands each socket that
    /// became ready to `ready`.
    pub fn wait(
        &mut self,
        timeout: Option<Duration>,
        mut ready: impl FnMut(&Source, Readiness),
    ) -> io::Result<()> {
        let timeout = timeout.map(|time| Timespec {
            tv_sec: time.as_secs() as _,
            tv_nsec: time.subsec_nanos() as _,
        });
        let buffer = rustix::buffer::spare_capacity(&mut self.events);
        match epoll::wait(&self.epoll, buffer, timeout.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        for event in self.events.drain(..) {
            let data = event.data.u64();
            let (key, generation) = (data as u32 as usize, (data >> 32) as u32);
            // The socket may have been closed, and its key given to another, since the last wait.
            if let Some(registered) = self.sources.get(key)
                && registered.generation == generation
            {
                ready(&registered.source, readiness(event.flags));
            }
        }
        Ok(())
    }
}

const EDGE: EventFlags = EventFlags::IN
    .union(EventFlags::OUT)
    .union(EventFlags::RDHUP)
    .union(EventFlags::ET);

fn data(key: usize, generation: u32) -> EventData {
    EventData::new_u64(u64::from(generation) << 32 | key as u64)
}

fn readiness(flags: EventFlags) -> Readiness {
    let broken = flags.intersects(EventFlags::HUP | EventFlags::ERR);
    Readiness {
        read: broken || flags.intersects(EventFlags::IN | EventFlags::RDHUP),
        write: broken || flags.contains(EventFlags::OUT),
        read_closed: broken || flags.contains(EventFlags::RDHUP),
        broken,
    }
}

//! The thread that releases what is parked.
//!
//! While nothing waits it sleeps until a connection is parked. While something waits it looks at the
//! servers' queues, when [`weir_core::queue::Pace`] says, and fills each up to its depth in the order of
//! [`weir_core::queue::ReleaseOrder`].

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::sys::eventfd::EventFd;
use weir_core::class::OTHER;
use weir_core::queue::{Depth, Pace, ParkingRule, ReleaseOrder, Waiting};
use weir_core::refusals::{Refusal, Seen};
use weir_core::verdict::Verdict;
use weir_kernel::ListenSocket;
use weir_kernel::queue::{Event, Parking, QueueMaps, ServerQueue, Slot, hasten_this_thread};

use super::address::{address, groups, identity};
use super::shared::{ClassLimits, EXAMPLES, HEARTBEAT, QueueState, Shared, Wanted};

/// For how long each look promises to release: longer than any pause of this thread that is not a fault.
const ALIVE: Duration = Duration::from_secs(1);
/// While something waits connections are parked that might overtake it; for this long after a look.
const PARK: Duration = Duration::from_millis(20);
/// How long after a change of the listening sockets they are read again: one that begins to listen is
/// told of before the kernel has entered it.
const SETTLE: Duration = Duration::from_millis(5);
/// A server that could not be served is tried again after this; each time after twice as long as before, up to
/// the second.
const TRY_AGAIN: Duration = Duration::from_millis(20);
const TRY_AGAIN_MOST: Duration = Duration::from_secs(5);

/// The thread.
pub fn run(maps: QueueMaps, shared: &Shared, waker: &EventFd) {
    hasten_this_thread();
    let queue =
        match Parking::load(maps).and_then(|queue| queue.watch(waker.as_fd()).map(|()| queue)) {
            Ok(queue) => queue,
            Err(error) => return refuse(shared, waker, Vec::new(), &error.to_string()),
        };
    if let Some(because) = queue.holds_ports_because() {
        tracing::warn!(
            "a server that restarts at once may find its port in use for some ms: {because}"
        );
    }
    let releaser = Releaser {
        queue,
        wanted: Vec::new(),
        parked: BTreeMap::new(),
        states: BTreeMap::new(),
        examples: Vec::new(),
        scan_at: None,
        again: TRY_AGAIN,
        changed: false,
    };
    if let Err(Stopped { wanted, because }) = releaser.run(shared, waker) {
        refuse(shared, waker, wanted, &because);
    }
}

/// The queues are in the servers' hands again.
struct Stopped {
    /// What was wanted last.
    wanted: Vec<Wanted>,
    because: String,
}

/// Says why no queue can be prioritized, until the end. `wanted`: what was, before.
fn refuse(shared: &Shared, waker: &EventFd, wanted: Vec<Wanted>, because: &str) {
    let mut wanted = Some(wanted);
    loop {
        let mut mine = shared.lock();
        if mine.ends {
            return;
        }
        if let Some(wanted) = mine.wanted.take().or(wanted.take()) {
            // What was counted stays, as the guard's counters do.
            let mut states = mine.states.clone();
            drop(mine);
            for state in states.values_mut() {
                (state.parking, state.because) = (false, None);
                state.waiting.clear();
            }
            for one in wanted {
                let state = states.entry(one.listener.name).or_default();
                state.because = Some(because.to_owned());
            }
            shared.answer(states);
        } else {
            drop(mine);
        }
        let mut fds = [nix::poll::PollFd::new(
            waker.as_fd(),
            nix::poll::PollFlags::POLLIN,
        )];
        let _ = nix::poll::poll(&mut fds, nix::poll::PollTimeout::NONE);
        let _ = waker.read();
    }
}

struct Releaser {
    queue: Parking,
    wanted: Vec<Wanted>,
    /// By group number.
    parked: BTreeMap<u32, Parked>,
    states: BTreeMap<String, QueueState>,
    examples: Vec<Refusal>,
    /// When to read the listening sockets again.
    scan_at: Option<Instant>,
    /// After how long to try again those that could not be served.
    again: Duration,
    /// A server has come or gone: nothing is parked before the next look, and the state is not published.
    changed: bool,
}

/// A group of sockets with parking listeners.
struct Parked {
    listener: String,
    classes: BTreeMap<u32, ClassLimits>,
    /// Of `classes`: see [`is_highest_bounded`].
    bounded: bool,
    order: ReleaseOrder<Slot>,
    /// The slots in `order`.
    inside: HashSet<Slot>,
    depth: Depth,
    pace: Pace,
    /// What the servers' queues held after the last look, handshakes under way included.
    left: u32,
    /// [`Parking::straight_ever`] at the last look.
    straight: (u32, u32),
    /// Whether the queues hold as many as they are to hold.
    full: bool,
    /// How many more the shortest of them holds.
    surplus: u32,
    limit: u32,
}

impl Releaser {
    /// Returns at the end of the daemon, or when it cannot go on: then what was parked has gone to the servers.
    fn run(mut self, shared: &Shared, waker: &EventFd) -> std::result::Result<(), Stopped> {
        let mut beat = Instant::now();
        loop {
            let events = self.wait(beat);
            let now = Instant::now();
            if let Err(error) = events.and_then(|events| self.take(events, waker)) {
                tracing::error!("the prioritized queue stops: {error}");
                // What was counted is not to fall.
                self.publish(shared);
                return Err(Stopped {
                    wanted: self.wanted,
                    because: error.to_string(),
                });
            }
            if !self.obey(shared) {
                return Ok(());
            }
            if self.scan_at.is_some_and(|at| now >= at) {
                self.scan();
            }
            let sweep = now >= beat || std::mem::take(&mut self.changed);
            if let Err(error) = self.release(sweep) {
                tracing::warn!("{error}");
            }
            if sweep && self.keeps_out() {
                self.scan();
            }
            if sweep {
                beat = now + HEARTBEAT;
                self.publish(shared);
            }
        }
    }

    /// Whether a server has a filter of its own by now, which what is parked does not meet.
    fn keeps_out(&self) -> bool {
        let servers = self
            .parked
            .keys()
            .flat_map(|&number| self.queue.servers(number));
        servers
            .into_iter()
            .any(|server| server.own_filters.because().is_some())
    }

    fn wait(&mut self, beat: Instant) -> weir_kernel::Result<Vec<Event>> {
        let busy = self.parked.values().filter(|p| !p.order.is_empty());
        let now = Parking::now();
        if let Some(at) = busy.map(|p| p.pace.look_at(now, p.full, p.surplus)).min() {
            // Connections that arrive meanwhile are entered at the next look: waking for each would cost more.
            self.queue.sleep(at.saturating_sub(now))?;
            return self.queue.wait(Some(Duration::ZERO));
        }
        let next = self.scan_at.map_or(beat, |at| at.min(beat));
        let left = next.saturating_duration_since(Instant::now());
        self.queue.wait(Some(left))
    }

    fn take(&mut self, events: Vec<Event>, waker: &EventFd) -> weir_kernel::Result<()> {
        let now = Parking::now();
        for event in events {
            match event {
                // Its connection went to the server: that is no reason to leave all others there.
                Event::Arrived(slot) => {
                    if let Err(error) = self.arrived(slot, now) {
                        tracing::warn!("{error}");
                    }
                }
                Event::Woken => drop(waker.read()),
                Event::ListenersChanged { port, ceased_in } => {
                    self.listeners_changed(port, ceased_in)?;
                }
            }
        }
        Ok(())
    }

    fn arrived(&mut self, slot: Slot, now: Duration) -> weir_kernel::Result<()> {
        let Some(taken) = self.queue.taken(slot) else {
            // The kernel chose it, before the program that steers was attached: nothing is known of it.
            return self.queue.release(slot);
        };
        if let Some(parked) = self.parked.get_mut(&slot.group) {
            // A slot that is told of twice still holds one connection.
            if parked.inside.insert(slot) {
                parked.order.push(slot, taken.class, taken.priority, now);
            }
        }
        Ok(())
    }

    /// The server's sockets are not the same any more. `ceased_in`: of this group the last one has ceased to listen,
    /// though another one may have its address in the kernel by now.
    fn listeners_changed(&mut self, port: u16, ceased_in: Option<u32>) -> weir_kernel::Result<()> {
        if let Some(group) = ceased_in
            && !self.is_succeeded(group)
            && self.parked.remove(&group).is_some()
        {
            self.queue.abandon(group);
            self.changed = true;
        }
        if !self.wanted.iter().any(|w| w.listener.address.port == port) {
            return Ok(());
        }
        self.queue.look(false)?;
        let gone = |queue: &Parking, group: u32| {
            let servers = queue.servers(group);
            servers.iter().all(|server| !server.listening)
        };
        let groups: Vec<u32> = self.parked.keys().copied().collect();
        for group in groups {
            if gone(&self.queue, group) {
                self.detach(group);
            }
        }
        self.scan_at = Some(Instant::now() + SETTLE);
        Ok(())
    }

    /// Whether another socket has taken over from the last one of this group, which then serves that one. Its parking
    /// listeners are to stay: if they were closed now, whom the kernel sends there meanwhile would be reset.
    fn is_succeeded(&mut self, group: u32) -> bool {
        // None has begun to listen.
        if self.scan_at.is_none() {
            return false;
        }
        let before = self.queue.inodes(group);
        self.scan();
        self.queue.inodes(group) != before
    }

    fn detach(&mut self, group: u32) {
        self.parked.remove(&group);
        self.queue.detach(group);
    }

    /// Does what the daemon wants. Returns whether it wants anything.
    fn obey(&mut self, shared: &Shared) -> bool {
        let mut mine = shared.lock();
        if mine.ends {
            return false;
        }
        let Some(wanted) = mine.wanted.take() else {
            return true;
        };
        drop(mine);
        self.wanted = wanted;
        self.scan();
        // What is asked for is in force, and answered, after the next step.
        self.changed = true;
        true
    }

    /// Brings the groups in line with what is wanted and with the sockets that there are.
    fn scan(&mut self) {
        self.scan_at = None;
        let sockets = match self.queue.listen_sockets() {
            Ok(sockets) => sockets,
            Err(error) => return tracing::warn!("{error}"),
        };
        let sockets: Vec<ListenSocket> = sockets.into_iter().filter(|s| !s.parked).collect();
        let listening = self.wanted.clone().into_iter();
        let listening: Vec<(Wanted, Vec<ListenSocket>)> = listening
            .flat_map(|wanted| {
                let groups = groups(&wanted, &sockets);
                groups.into_iter().map(move |group| (wanted.clone(), group))
            })
            .collect();
        let addresses: HashSet<SocketAddr> = listening.iter().map(|(_, g)| address(g)).collect();
        // Those that no listener needs make room for others.
        self.detach_all_but(|queue, n| queue.address(n).is_some_and(|a| addresses.contains(&a)));
        let mut kept = Vec::new();
        let mut refused: BTreeMap<String, String> = BTreeMap::new();
        for (wanted, group) in listening {
            match self.attached(&wanted, &group) {
                Ok(number) => kept.push(number),
                Err(error) => {
                    refused.insert(wanted.listener.name.clone(), error.to_string());
                }
            }
        }
        if refused.is_empty() {
            self.again = TRY_AGAIN;
        } else {
            self.scan_at = Some(Instant::now() + self.again);
            self.again = (self.again * 2).min(TRY_AGAIN_MOST);
        }
        self.detach_all_but(|_, number| kept.contains(&number));
        self.note(&refused);
    }

    fn detach_all_but(&mut self, is_kept: impl Fn(&Parking, u32) -> bool) {
        let numbers = self.parked.keys().copied();
        let over: Vec<u32> = numbers.filter(|n| !is_kept(&self.queue, *n)).collect();
        over.into_iter().for_each(|number| self.detach(number));
    }

    fn note(&mut self, refused: &BTreeMap<String, String>) {
        let names: Vec<String> = self
            .wanted
            .iter()
            .map(|w| w.listener.name.clone())
            .collect();
        // What was counted stays, as the guard's counters do.
        for (name, state) in &mut self.states {
            if !names.contains(name) {
                *state = QueueState {
                    refused: std::mem::take(&mut state.refused),
                    ..QueueState::default()
                };
            }
        }
        for name in names {
            let parking = self.parked.values().any(|p| p.listener == name);
            let because = refused.get(&name).cloned();
            let because = because.or_else(|| (!parking).then(|| self.why_none(&name)));
            let state = self.states.entry(name.clone()).or_default();
            if state.parking != parking || state.because != because {
                match &because {
                    None => tracing::info!("{name}: waiting connections are accepted by priority"),
                    Some(because) => tracing::warn!("{name}: queue = fifo for now: {because}"),
                }
            }
            (state.parking, state.because) = (parking, because);
        }
    }

    /// Why nothing is parked for a listener though nothing was refused.
    fn why_none(&self, name: &str) -> String {
        let its = self.wanted.iter().find(|w| w.listener.name == name);
        match its.is_some_and(|wanted| !wanted.exec.is_empty()) {
            true => "weir exec answers the accept() calls of what listens there".to_owned(),
            false => "nothing listens there".to_owned(),
        }
    }

    /// The group of these sockets: the one that there is, with the settings of now, or a new one.
    fn attached(&mut self, wanted: &Wanted, sockets: &[ListenSocket]) -> weir_kernel::Result<u32> {
        Parking::check(sockets)?;
        let inodes = identity(sockets);
        let priorities: Vec<u8> = wanted.classes.values().map(|c| c.priority).collect();
        let ageing = wanted.listener.ageing;
        let mut numbers = self.parked.keys().copied();
        let known = numbers.find(|number| self.queue.inodes(*number) == inodes);
        let number = match known.or_else(|| self.changed_group(wanted, sockets, &inodes)) {
            Some(number) => number,
            None => self.attach(wanted, sockets, &priorities)?,
        };
        if let Some(parked) = self.parked.get_mut(&number) {
            parked.classes = wanted.classes.clone();
            parked.bounded = is_highest_bounded(&wanted.classes);
            parked.order.change(&priorities, ageing);
        }
        Ok(number)
    }

    /// The group of this address, with sockets that are gone or without some that came: it serves these from now on.
    /// `None`: there is none any more.
    fn changed_group(
        &mut self,
        wanted: &Wanted,
        sockets: &[ListenSocket],
        inodes: &[u64],
    ) -> Option<u32> {
        let its = address(sockets);
        let shares = |n: &u32| {
            let inodes_of = self.queue.inodes(*n);
            self.queue.address(*n) == Some(its) || inodes_of.iter().any(|i| inodes.contains(i))
        };
        let sharing: Vec<u32> = self.parked.keys().copied().filter(shares).collect();
        if let [one] = sharing[..]
            && let Some(parked) = self.parked.get_mut(&one)
            && parked.listener == wanted.listener.name
            && self.queue.change(one, sockets).unwrap_or(false)
        {
            parked.limit = sockets.iter().map(|s| s.queue_limit).sum();
            self.changed = true;
            return Some(one);
        }
        sharing.into_iter().for_each(|number| self.detach(number));
        None
    }

    fn attach(
        &mut self,
        wanted: &Wanted,
        sockets: &[ListenSocket],
        priorities: &[u8],
    ) -> weir_kernel::Result<u32> {
        let number = self.queue.attach(sockets, wanted.counters)?;
        if let (ready, forbidden @ 1..) = self.queue.ready(number) {
            tracing::warn!(
                "{}: of a fast burst {ready} connections are parked at most, {forbidden} fewer than its queue \
                 could hold; hint: allow more open files (LimitNOFILE= of the service, ulimit -Hn)",
                wanted.listener.name
            );
        }
        let parked = Parked {
            listener: wanted.listener.name.clone(),
            classes: BTreeMap::new(),
            bounded: false,
            order: ReleaseOrder::new(priorities, wanted.listener.ageing),
            inside: HashSet::new(),
            depth: Depth::default(),
            pace: Pace::default(),
            left: 0,
            straight: (0, 0),
            full: false,
            surplus: 0,
            limit: sockets.iter().map(|s| s.queue_limit).sum(),
        };
        self.parked.insert(number, parked);
        self.changed = true;
        Ok(number)
    }

    /// One look at each server's queue, and what follows from it.
    fn release(&mut self, sweep: bool) -> weir_kernel::Result<()> {
        if self.parked.is_empty() {
            return Ok(());
        }
        if sweep || self.parked.values().any(|p| !p.order.is_empty()) {
            self.queue.look(sweep)?;
            let now = Parking::now();
            for (&number, parked) in &mut self.parked {
                let state = self.states.entry(parked.listener.clone()).or_default();
                let shed = parked.step(&mut self.queue, number, now, state)?;
                let room = EXAMPLES.saturating_sub(self.examples.len());
                self.examples.extend(shed.into_iter().take(room));
            }
        }
        Ok(())
    }

    fn publish(&mut self, shared: &Shared) {
        for state in self.states.values_mut() {
            state.waiting.clear();
        }
        for parked in self.parked.values() {
            let Some(state) = self.states.get_mut(&parked.listener) else {
                continue;
            };
            for (class, n) in parked.order.by_class() {
                let name = parked.class_name(*class).to_owned();
                *state.waiting.entry(name).or_default() += *n as u32;
            }
        }
        let mut notes = shared.lock();
        notes.examples.append(&mut self.examples);
        notes.examples.truncate(EXAMPLES);
        drop(notes);
        shared.answer(self.states.clone());
    }
}

/// Whether a class of the highest priority has a `queue_limit`: only who is parked can be held to it.
fn is_highest_bounded(classes: &BTreeMap<u32, ClassLimits>) -> bool {
    let top = classes.values().map(|class| class.priority).min();
    let mut of_it = classes.values().filter(|class| Some(class.priority) == top);
    of_it.any(|class| class.queue_limit.is_some())
}

/// Connections in the servers' own queues.
fn length(servers: &[ServerQueue]) -> u32 {
    servers.iter().map(|s| s.length).sum()
}

/// And those on their way there.
fn used(servers: &[ServerQueue]) -> u32 {
    servers.iter().map(ServerQueue::used).sum()
}

impl Parked {
    fn step(
        &mut self,
        queue: &mut Parking,
        group: u32,
        now: Duration,
        state: &mut QueueState,
    ) -> weir_kernel::Result<Vec<Refusal>> {
        let mut servers: Vec<ServerQueue> = queue.servers(group);
        servers.retain(|server| server.listening);
        let waited = !self.order.is_empty();
        let before = std::mem::replace(&mut self.straight, queue.straight_ever(group));
        let came = self.straight.0.wrapping_sub(before.0);
        state.overtook += u64::from(self.straight.1.wrapping_sub(before.1));
        let taken = (self.left + came).saturating_sub(used(&servers));
        self.pace.took(taken, now);
        if waited && let Some(shortest) = servers.iter().map(|s| s.length).min() {
            self.depth.looked(shortest);
        }
        self.fill(queue, &mut servers, now, state)?;
        self.left = used(&servers);
        let shortest = servers.iter().map(|s| s.length).min();
        self.surplus = shortest.unwrap_or(0).saturating_sub(self.depth.get());
        let shed = self.shed(queue, &servers, now, state)?;
        if self.order.is_empty() {
            // A server that has nobody to take says nothing of its pace. And a depth that holds all who wait
            // would never be found too deep: nobody would be parked, and nobody looks.
            self.pace = Pace::default();
            self.depth = Depth::default();
        }
        let park = match self.order.is_empty() {
            true => Duration::ZERO,
            false => PARK,
        };
        queue.renew(group, ALIVE, waited.then_some(park), self.rule(now));
        queue.grow(group)?;
        if self.order.is_empty() {
            queue.shrink(group)?;
        }
        Ok(shed)
    }

    fn class_name(&self, slot: u32) -> &str {
        self.classes.get(&slot).map_or(OTHER, |class| &class.name)
    }

    /// Which connections are released, and which go straight to the servers, by now.
    fn rule(&self, now: Duration) -> ParkingRule {
        ParkingRule::of(&self.order, now, self.depth.get(), self.bounded)
    }

    /// Fills the servers' queues: up to the depth, if it is time for that, and up to their limits with connections
    /// that none is to overtake. One that has only aged to the highest priority is not of these: in a full
    /// queue it is to be shed, and its class held to its limit.
    fn fill(
        &mut self,
        queue: &mut Parking,
        servers: &mut [ServerQueue],
        now: Duration,
        state: &mut QueueState,
    ) -> weir_kernel::Result<()> {
        let rule = self.rule(now);
        let in_time = self.pace.fill_at() <= now;
        while let Some(server) = servers.iter_mut().min_by_key(|s| s.length)
            && let Some(first) = self.order.first(now)
        {
            // In a SYN flood handshakes that never end hold the whole limit: what is free for any is free for the first.
            let is_free = (in_time && server.length < rule.depth)
                || (first.priority <= rule.top && server.used() < server.limit);
            if !is_free {
                break;
            }
            let Some(next) = self.order.pop(now) else {
                break;
            };
            self.inside.remove(&next.item);
            state.released += 1;
            state.overtook += u64::from(self.order.overtaken_by(&next) > 0);
            queue.release(next.item)?;
            server.length += 1;
            self.depth.filled();
        }
        self.full = in_time || servers.iter().all(|s| s.length >= rule.depth);
        Ok(())
    }

    /// Resets the youngest of the lowest while more wait than the queue holds, and the youngest of a class
    /// of which more wait than may. Returns who that was.
    fn shed(
        &mut self,
        queue: &mut Parking,
        servers: &[ServerQueue],
        now: Duration,
        state: &mut QueueState,
    ) -> weir_kernel::Result<Vec<Refusal>> {
        let mut examples = Vec::new();
        let inside = length(servers);
        while let Some((verdict, shed)) = self.next_to_shed(inside) {
            self.inside.remove(&shed.item);
            let Some(ends) = queue.reset(shed.item)? else {
                continue;
            };
            let class = self.class_name(shed.class).to_owned();
            state.refused.entry(class.clone()).or_default().0[verdict as usize] += 1;
            examples.push(Refusal {
                at: now,
                listener: self.listener.as_str().into(),
                class: Some(class.into()),
                reason: verdict.into(),
                source: ends.source,
                destination: ends.destination,
                seen: Seen::Queue {
                    length: self.order.len() as u32 + inside,
                    half_open: servers.iter().map(|s| s.half_open).sum(),
                    limit: self.limit,
                    wait: now.saturating_sub(shed.since),
                },
                observe: false,
            });
        }
        Ok(examples)
    }

    /// Takes out who is to be reset next, with the reason.
    fn next_to_shed(&mut self, inside: u32) -> Option<(Verdict, Waiting<Slot>)> {
        let over_limit = self.order.by_class().iter().find_map(|(class, n)| {
            let limit = self.classes.get(class)?.queue_limit?;
            (*n > limit as usize).then_some(*class)
        });
        if let Some(class) = over_limit {
            return Some((Verdict::QueueResetLimit, self.order.shed_of(class)?));
        }
        if self.order.len() as u32 + inside <= self.limit.max(1) {
            return None;
        }
        Some((Verdict::QueueResetFull, self.order.shed()?))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nix::sys::eventfd::EfdFlags;
    use weir_core::listener::{ListenAddress, Listener};
    use weir_core::verdict::Counters;

    use super::*;

    fn wanted(name: &str) -> Wanted {
        Wanted {
            listener: Listener::new(name, ListenAddress { ip: None, port: 80 }),
            all: Vec::new(),
            counters: 0,
            exec: Default::default(),
            classes: BTreeMap::new(),
        }
    }

    #[test]
    fn a_thread_that_stops_says_that_nothing_is_parked_and_why_and_keeps_what_it_counted() {
        let shared = Arc::<Shared>::default();
        let waker = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap());
        let mut refused = Counters::default();
        refused.0[Verdict::QueueResetFull as usize] = 3;
        let parking = QueueState {
            parking: true,
            waiting: BTreeMap::from([("gold".to_owned(), 7)]),
            refused: BTreeMap::from([("gold".to_owned(), refused)]),
            released: 11,
            overtook: 2,
            because: None,
        };
        shared.answer(BTreeMap::from([("web".to_owned(), parking.clone())]));
        let theirs = (shared.clone(), waker.clone());
        let thread = std::thread::spawn(move || {
            refuse(&theirs.0, &theirs.1, vec![wanted("web")], "it broke");
        });
        let until = |name: &str| {
            weir_testbed::wait::until("the thread has said so", || {
                let states = shared.lock().states.clone();
                states.get(name).filter(|s| s.because.is_some()).cloned()
            })
        };
        let stopped = QueueState {
            parking: false,
            because: Some("it broke".to_owned()),
            waiting: BTreeMap::new(),
            ..parking
        };
        assert_eq!(until("web"), stopped);
        // Another policy.
        let mut notes = shared.lock();
        (notes.wanted, notes.pending) = (Some(vec![wanted("other")]), true);
        drop(notes);
        waker.write(1).unwrap();
        shared.wait_until_obeyed();
        assert_eq!(until("other").because, stopped.because);
        let states = shared.lock().states.clone();
        assert_eq!(
            (states["web"].released, &states["web"].because),
            (11, &None)
        );
        shared.lock().ends = true;
        waker.write(1).unwrap();
        thread.join().unwrap();
    }
}

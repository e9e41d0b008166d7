//! The process that answers the server's accept() calls.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::EventFd;
use nix::sys::stat::fstat;
use weir_kernel::exec::{
    self as kernel, Accept, Asked, CALL_SLOTS, Call, CallSlot, Calls, Entered, Kind, SharedState,
    Threads, now_ns,
};

use super::policy::Policy;
use super::queue::{ExecQueue, Held};
use super::wake_connection::WakeConnection;

/// Tokens of the events that are not a listening socket's, whose inode is none of these.
const CALLS: u64 = 0;
const BELL: u64 = 1;
/// How often listening sockets are looked at, which may be full, or which the server may have closed: while
/// somebody waits, and else. So often at least the supervisor is given a sign of life.
const LOOK_AFTER_HELD: Duration = Duration::from_millis(20);
const LOOK_AFTER_ALL: Duration = Duration::from_secs(1);

/// Why it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// No process of the server is left.
    ServerGone,
    /// A successor shall go on.
    SteppedDown,
}

/// What the supervisor has opened for every orderer.
#[derive(Clone, Copy)]
pub struct Tools<'a> {
    /// The calls to be answered.
    pub calls: &'a Calls,
    /// Wakes the orderer when the shared state asks it to step down.
    pub waker: &'a EventFd,
    /// Wakes the supervisor when the shared state has another listening socket.
    pub news: &'a EventFd,
    /// What is shared with the supervisor.
    pub shared: SharedState,
}

/// What answers.
pub struct Orderer<'a> {
    tools: Tools<'a>,
    policy: Policy,
    /// Whether it hands out what is held, and leaves the rest to the kernel.
    plain: bool,
    epoll: Epoll,
    threads: Threads,
    /// By inode of the listening socket.
    lines: BTreeMap<u64, Line>,
    /// Free places of the shared state. The last one is for the next call.
    free: Vec<usize>,
    look_at_ns: u64,
}

/// A listening socket.
struct Line {
    queue: ExecQueue,
    /// Calls of accept() that wait for a connection, the oldest first.
    callers: VecDeque<Caller>,
    /// Readable while the kernel's queue is not empty; watched while there are callers.
    arrivals: Epoll,
    watched: bool,
    /// Connections that were put into the table of a caller that a signal then interrupted. The next call from
    /// there is answered with it.
    stranded: Vec<Stranded>,
}

struct Stranded {
    /// Whose table it is.
    thread: i32,
    /// Its number there.
    number: RawFd,
    held: Held,
}

struct Caller {
    place: CallSlot,
    /// When the call fails with EAGAIN (SO_RCVTIMEO), ns on the monotonic clock.
    until_ns: Option<u64>,
}

/// What became of a call.
#[derive(PartialEq, Eq)]
enum Outcome {
    Answered,
    /// There is no connection for it.
    Waits,
}

impl<'a> Orderer<'a> {
    /// Takes over what a predecessor has left.
    ///
    /// # Errors
    /// No epoll, no /proc.
    pub fn resume(tools: Tools<'a>, policy: Policy, plain: bool) -> std::io::Result<Orderer<'a>> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(tools.calls, EpollEvent::new(EpollFlags::EPOLLIN, CALLS))?;
        epoll.add(tools.waker, EpollEvent::new(EpollFlags::EPOLLIN, BELL))?;
        let mut orderer = Orderer {
            tools,
            policy,
            plain,
            epoll,
            threads: Threads::default(),
            lines: BTreeMap::new(),
            free: Vec::new(),
            look_at_ns: 0,
        };
        orderer.take_over()?;
        Ok(orderer)
    }

    fn take_over(&mut self) -> std::io::Result<()> {
        let places = (0..CALL_SLOTS)
            .rev()
            .map(|index| self.tools.shared.slot(index));
        let (waiting, free): (Vec<CallSlot>, Vec<CallSlot>) =
            places.partition(|p| p.call().is_some());
        self.free = free.iter().map(CallSlot::index).collect();
        let calls = waiting
            .iter()
            .filter_map(|place| Some((*place, place.call()?)));
        let calls: Vec<(CallSlot, Call)> = calls.collect();
        // The listening sockets first, to which the connections belong.
        for (_, call) in &calls {
            if let Asked::Accept(accept) = call.asked {
                let _ = self.line_of(call, accept.listener);
            }
        }
        self.take_over_connections(&calls)?;
        for (place, call) in calls {
            if self.tools.calls.is_valid(&call) {
                self.handle(place, call);
            } else {
                self.release(place);
            }
        }
        Ok(())
    }

    fn take_over_connections(&mut self, calls: &[(CallSlot, Call)]) -> std::io::Result<()> {
        let shared = self.tools.shared;
        let mut found: Vec<(Entered, OwnedFd)> = Vec::new();
        for fd in kernel::open_descriptors()? {
            let giving = calls
                .iter()
                .find(|(place, _)| place.being_given() == Some(fd));
            let Some(connection) = kernel::adopt_connection(fd) else {
                continue;
            };
            let entered = shared.entered(fd);
            let given = giving
                .is_some_and(|(_, call)| entered.is_none() || self.was_given(call, &connection));
            match entered {
                _ if given => shared.strike(fd),
                Some(entered) => found.push((entered, connection)),
                // Taken, and not yet written down: the youngest.
                None => {
                    let entered = Entered {
                        inode: shared.taking(),
                        number: u64::MAX >> 1,
                        since_ns: now_ns(),
                    };
                    found.push((entered, connection));
                }
            }
        }
        found.sort_by_key(|(entered, _)| entered.number);
        let found = found
            .into_iter()
            .map(|(entered, connection)| (entered, TcpStream::from(connection)));
        let found: Vec<(Entered, TcpStream)> = found.collect();
        self.find_lines(&found);
        // The wake connections first, so that their other ends are known for what they are.
        for (entered, stream) in self.resume_wake_connections(found) {
            self.resume_connection(entered, stream);
        }
        Ok(())
    }

    /// The listening sockets from which a predecessor has taken something, or may have a wake connection.
    fn find_lines(&mut self, found: &[(Entered, TcpStream)]) {
        let told = match found.is_empty() {
            true => Vec::new(),
            false => self.tools.shared.told(),
        };
        let of_found = found.iter().map(|(entered, _)| entered.inode);
        let inodes: BTreeSet<u64> = told.iter().map(|t| t.0).chain(of_found).collect();
        for inode in inodes {
            if !self.lines.contains_key(&inode)
                && let Some((process, number)) = kernel::holder(inode)
            {
                let _ = self.line(process, number);
            }
        }
    }

    /// Takes the clients' ends of wake connections out of what was found.
    fn resume_wake_connections(
        &mut self,
        found: Vec<(Entered, TcpStream)>,
    ) -> Vec<(Entered, TcpStream)> {
        let mut others = Vec::new();
        for (entered, stream) in found {
            let mut lines = self.lines.values_mut();
            let its = lines.find(|line| {
                !line.queue.has_wake_connection()
                    && WakeConnection::leads_to(&stream, line.queue.address())
            });
            match its {
                Some(line) => line.queue.resume_wake_connection(stream),
                None => others.push((entered, stream)),
            }
        }
        others
    }

    /// Whether the call got the connection before the predecessor died, or gets it now.
    fn was_given(&self, call: &Call, connection: &OwnedFd) -> bool {
        let number = kernel::number_of(call.thread, inode_of(connection));
        match number {
            Some(number) if self.tools.calls.is_valid(call) => {
                self.tools.calls.accept(call, number).is_ok()
            }
            Some(_) => true,
            // The server has closed it already, or never had it.
            None => kernel::has_sent(connection.as_fd()),
        }
    }

    fn resume_connection(&mut self, entered: Entered, stream: TcpStream) {
        let policy = &self.policy;
        match self.lines.get_mut(&entered.inode) {
            Some(line) if is_of(&stream, &line.queue) => {
                line.queue.resume(stream, entered, policy);
            }
            // The listening socket is gone.
            _ => {
                // Else it is a socket of the server's own that does not listen yet: the option would stay.
                if stream.peer_addr().is_ok() {
                    kernel::reset_on_close(stream.as_fd());
                }
                self.tools.shared.strike(stream.as_raw_fd());
            }
        }
    }

    /// Answers until the end. What is held is still open then, for a successor: the orderer must not be dropped.
    ///
    /// # Errors
    /// It cannot wait.
    pub fn run(&mut self) -> std::io::Result<End> {
        let shared = self.tools.shared;
        loop {
            let mut events = [EpollEvent::empty(); 16];
            let timeout = self.timeout();
            shared.turn();
            let got = match self.epoll.wait(&mut events, timeout) {
                Ok(got) => got,
                Err(Errno::EINTR) => 0,
                Err(errno) => return Err(errno.into()),
            };
            let now = now_ns();
            for event in &events[..got] {
                match event.data() {
                    CALLS if event.events().contains(EpollFlags::EPOLLIN) => self.next_call(),
                    CALLS => return Ok(self.close()),
                    BELL => drop(self.tools.waker.read()),
                    inode => self.arrived(inode),
                }
            }
            if shared.is_to_step_down() {
                return Ok(End::SteppedDown);
            }
            if now >= self.look_at_ns {
                self.look_after();
            }
        }
    }

    fn timeout(&self) -> EpollTimeout {
        let callers = self.lines.values().flat_map(|line| &line.callers);
        let first = callers.filter_map(|caller| caller.until_ns).min();
        let at = first.map_or(self.look_at_ns, |first| first.min(self.look_at_ns));
        let ms = at.saturating_sub(now_ns()).div_ceil(1_000_000);
        EpollTimeout::try_from(ms).unwrap_or(EpollTimeout::MAX)
    }

    fn next_call(&mut self) {
        // One place is always free: see `handle`.
        let index = *self.free.last().expect("a place for the next call");
        let place = self.tools.shared.slot(index);
        if self.tools.calls.next(&place).is_err() {
            return;
        }
        if let Some(call) = place.call() {
            self.free.pop();
            self.handle(place, call);
        }
    }

    fn handle(&mut self, place: CallSlot, call: Call) {
        let outcome = match call.asked {
            Asked::Accept(accept) => self.accept(place, &call, &accept),
            Asked::Listen(fd) => {
                // Known before it listens, so that nobody else parks for it.
                let _ = self.line_of(&call, fd);
                self.tools.calls.go_on(&call);
                Outcome::Answered
            }
            Asked::Other => {
                self.tools.calls.go_on(&call);
                Outcome::Answered
            }
        };
        if outcome == Outcome::Answered {
            self.release(place);
        }
    }

    fn release(&mut self, place: CallSlot) {
        place.clear();
        self.free.push(place.index());
    }

    /// The line of a descriptor of the caller's; `None`: none of interest.
    fn line_of(&mut self, call: &Call, number: RawFd) -> Option<(u64, OwnedFd)> {
        self.line(call.thread, number)
    }

    fn line(&mut self, thread: i32, number: RawFd) -> Option<(u64, OwnedFd)> {
        let listener = self.threads.descriptor(thread, number).ok()?;
        let inode = fstat(&listener).ok()?.st_ino;
        match self.lines.get_mut(&inode) {
            Some(line) => line.queue.seen_at = (thread, number),
            None => {
                let line = self.new_line(inode, &listener, (thread, number))?;
                self.lines.insert(inode, line);
                let _ = self.tools.news.write(1);
            }
        }
        Some((inode, listener))
    }

    fn new_line(&self, inode: u64, listener: &OwnedFd, seen_at: (i32, RawFd)) -> Option<Line> {
        if kernel::kind(listener.as_fd()) == Kind::Other {
            return None;
        }
        let shared = self.tools.shared;
        let queue = ExecQueue::new(inode, listener.as_fd(), seen_at, &self.policy, shared).ok()?;
        let arrivals = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).ok()?;
        // Stays when this descriptor is closed, until the server's is.
        arrivals
            .add(listener, EpollEvent::new(EpollFlags::EPOLLIN, 0))
            .ok()?;
        Some(Line {
            queue,
            callers: VecDeque::new(),
            arrivals,
            watched: false,
            stranded: Vec::new(),
        })
    }

    fn accept(&mut self, place: CallSlot, call: &Call, accept: &Accept) -> Outcome {
        let calls = self.tools.calls;
        let Some((inode, listener)) = self.line_of(call, accept.listener) else {
            calls.go_on(call);
            return Outcome::Answered;
        };
        let line = self.lines.get_mut(&inode).expect("it was just looked up");
        // A thread waits in one call: an older one was interrupted.
        let same = |caller: &Caller| caller.place.call().is_none_or(|c| c.thread == call.thread);
        if let Some(at) = line
            .callers
            .iter()
            .position(|c| same(c) && c.place.index() != place.index())
            && let Some(caller) = line.callers.remove(at)
        {
            caller.place.clear();
            self.free.push(caller.place.index());
        }
        let plain = self.plain || self.policy.observes(line.queue.address());
        let blocking = fcntl(&listener, FcntlArg::F_GETFL)
            .is_ok_and(|flags| !OFlag::from_bits_retain(flags).contains(OFlag::O_NONBLOCK));
        let timeout = blocking
            .then(|| kernel::receive_timeout(listener.as_fd()))
            .flatten();
        if !line.stranded.is_empty() && self.accept_stranded(inode, call, accept) {
            return Outcome::Answered;
        }
        let line = self.lines.get_mut(&inode).expect("it was just looked up");
        match plain {
            false => line.queue.take(listener, &self.policy),
            true => line.queue.withdraw_wake_connection(listener, &self.policy),
        }
        if let Some((waiting, held)) = line.queue.next() {
            match put(calls, place, call, accept, held) {
                Ok(number) if calls.accept(call, number).is_ok() => line.queue.gave(waiting),
                Ok(number) => {
                    line.stranded
                        .extend(line.queue.strand(waiting).map(|held| Stranded {
                            thread: call.thread,
                            number,
                            held,
                        }))
                }
                Err(errno) => {
                    line.queue.put_back(waiting);
                    calls.fail(call, errno);
                }
            }
            return Outcome::Answered;
        }
        // The last place is for the next call.
        if plain || !blocking || self.free.is_empty() {
            calls.go_on(call);
            return Outcome::Answered;
        }
        let until_ns = timeout.map(|timeout| now_ns() + timeout.as_nanos() as u64);
        line.callers.push_back(Caller { place, until_ns });
        self.watch(inode);
        Outcome::Waits
    }

    /// Answers with a connection that is in the caller's table already. Returns whether there was one.
    fn accept_stranded(&mut self, inode: u64, call: &Call, accept: &Accept) -> bool {
        let Some(line) = self.lines.get_mut(&inode) else {
            return false;
        };
        let threads = &mut self.threads;
        let mut has = |stranded: &Stranded| {
            let there = threads.descriptor(call.thread, stranded.number);
            there.is_ok_and(|fd| inode_of(fd) == inode_of(&stranded.held.stream))
        };
        let Some(at) = line.stranded.iter().position(&mut has) else {
            return false;
        };
        let stranded = line.stranded.swap_remove(at);
        let calls = self.tools.calls;
        let told = write_peer(calls, call, accept, &stranded.held);
        match told.and_then(|()| calls.accept(call, stranded.number)) {
            Ok(()) => self.tools.shared.strike(stranded.held.stream.as_raw_fd()),
            Err(errno) => {
                line.stranded.push(stranded);
                calls.fail(call, errno);
            }
        }
        true
    }

    /// Wakes when somebody arrives at a line, while it has callers.
    fn watch(&mut self, inode: u64) {
        let Some(line) = self.lines.get_mut(&inode) else {
            return;
        };
        let wanted = !line.callers.is_empty();
        if wanted == line.watched {
            return;
        }
        let changed = match wanted {
            true => self.epoll.add(
                &line.arrivals.0,
                EpollEvent::new(EpollFlags::EPOLLIN, inode),
            ),
            false => self.epoll.delete(&line.arrivals.0),
        };
        line.watched = wanted == changed.is_ok();
    }

    /// Somebody arrived at a line with callers.
    fn arrived(&mut self, inode: u64) {
        while let Some(line) = self.lines.get_mut(&inode)
            && let Some(caller) = line.callers.pop_front()
        {
            let call = caller.place.call();
            let call = call.filter(|call| self.tools.calls.is_valid(call));
            let Some(call) = call else {
                self.release(caller.place);
                continue;
            };
            let Asked::Accept(accept) = call.asked else {
                self.release(caller.place);
                continue;
            };
            match self.accept(caller.place, &call, &accept) {
                Outcome::Answered => self.release(caller.place),
                Outcome::Waits => {
                    self.keep_its_turn(inode, caller.until_ns);
                    break;
                }
            }
        }
        self.watch(inode);
    }

    /// The caller that was just entered last was the first, and has waited since before.
    fn keep_its_turn(&mut self, inode: u64, until_ns: Option<u64>) {
        let line = self.lines.get_mut(&inode);
        if let Some(line) = line
            && let Some(mut caller) = line.callers.pop_back()
        {
            caller.until_ns = until_ns;
            line.callers.push_front(caller);
        }
    }

    /// Ends calls whose time is over and lines whose listening socket is gone, and makes room before full ones.
    fn look_after(&mut self) {
        self.end_overdue_calls();
        let inodes: Vec<u64> = self.lines.keys().copied().collect();
        for inode in inodes {
            match self.open(inode) {
                Some(listener) => self.relieve(inode, listener),
                None => self.end_line(inode),
            }
        }
        let held = self.lines.values().any(|line| line.queue.len() > 0);
        let next = if held {
            LOOK_AFTER_HELD
        } else {
            LOOK_AFTER_ALL
        };
        self.look_at_ns = now_ns() + next.as_nanos() as u64;
    }

    fn relieve(&mut self, inode: u64, listener: OwnedFd) {
        if let Some(line) = self.lines.get_mut(&inode)
            && !self.plain
            && !self.policy.observes(line.queue.address())
        {
            line.queue.relieve(listener, &self.policy);
        }
        self.recover_stranded(inode);
    }

    /// What is in the table of a process that is gone waits again.
    fn recover_stranded(&mut self, inode: u64) {
        let Some(line) = self.lines.get_mut(&inode) else {
            return;
        };
        let is_gone =
            |s: &mut Stranded| kernel::number_of(s.thread, inode_of(&s.held.stream)).is_none();
        let gone: Vec<Stranded> = line.stranded.extract_if(.., is_gone).collect();
        for stranded in gone {
            let fd = stranded.held.stream.as_raw_fd();
            match self.tools.shared.entered(fd) {
                Some(entered) => line
                    .queue
                    .resume(stranded.held.stream, entered, &self.policy),
                None => drop(stranded),
            }
        }
    }

    fn end_line(&mut self, inode: u64) {
        let Some(line) = self.lines.remove(&inode) else {
            return;
        };
        for caller in &line.callers {
            if let Some(call) = caller.place.call() {
                self.tools.calls.go_on(&call);
            }
            self.release(caller.place);
        }
        line.queue.close();
    }

    fn end_overdue_calls(&mut self) {
        let now = now_ns();
        let mut over = Vec::new();
        for line in self.lines.values_mut() {
            let overdue = |c: &Caller| {
                c.until_ns.is_some_and(|until| until <= now)
                    || c.place
                        .call()
                        .is_none_or(|call| !self.tools.calls.is_valid(&call))
            };
            let (gone, kept) = line.callers.drain(..).partition(overdue);
            line.callers = kept;
            let gone: VecDeque<Caller> = gone;
            over.extend(gone);
        }
        for caller in over {
            if let Some(call) = caller.place.call() {
                self.tools.calls.fail(&call, Errno::EAGAIN);
            }
            self.release(caller.place);
        }
    }

    /// The socket, if the server still has it open.
    fn open(&mut self, inode: u64) -> Option<OwnedFd> {
        let is_it = |fd: &OwnedFd| fstat(fd).is_ok_and(|stat| stat.st_ino == inode);
        let (thread, number) = self.lines[&inode].queue.seen_at;
        let here = self.threads.descriptor(thread, number).ok().filter(is_it);
        here.or_else(|| {
            let (process, number) = kernel::holder(inode)?;
            let there = self.threads.descriptor(process, number).ok();
            let there = there.filter(is_it)?;
            if let Some(line) = self.lines.get_mut(&inode) {
                line.queue.seen_at = (process, number);
            }
            Some(there)
        })
    }

    /// The server is gone: so are those that waited for it.
    fn close(&mut self) -> End {
        for line in std::mem::take(&mut self.lines).into_values() {
            line.queue.close();
        }
        End::ServerGone
    }
}

/// Writes the client's address into the caller's memory, as accept() does.
fn write_peer(calls: &Calls, call: &Call, accept: &Accept, held: &Held) -> Result<(), Errno> {
    match kernel::read_length(call, accept)? {
        Some(room) => kernel::write_address(calls, call, accept, room, &held.peer),
        None => Ok(()),
    }
}

/// Puts the connection into the caller's table; returns its number there.
fn put(
    calls: &Calls,
    place: CallSlot,
    call: &Call,
    accept: &Accept,
    held: &mut Held,
) -> Result<RawFd, Errno> {
    write_peer(calls, call, accept, held)?;
    if held.nonblocking != accept.nonblocking
        && held.stream.set_nonblocking(accept.nonblocking).is_ok()
    {
        held.nonblocking = accept.nonblocking;
    }
    place.set_giving(Some(held.stream.as_fd()));
    let number = calls.put(call, held.stream.as_fd(), accept.close_on_exec);
    if number.is_err() {
        place.set_giving(None);
    }
    number
}

fn inode_of(fd: impl AsFd) -> u64 {
    fstat(fd).map_or(0, |stat| stat.st_ino)
}

/// Whether the connection arrived at the queue's listening socket.
fn is_of(stream: &TcpStream, queue: &ExecQueue) -> bool {
    let port = |address: std::net::SocketAddr| address.port();
    stream.local_addr().map(port).ok() == Some(queue.address().port())
}

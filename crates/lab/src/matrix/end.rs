//! One end of a connection: sends what is queued and gives its handler what it receives, in its manner, until it leaves.

use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use fastrand::Rng;
use socket2::SockRef;

use super::fault::Fault;
use super::handler::Handler;
use super::outcome::Outcome;
use super::outgoing::Outgoing;
use super::pattern::Pattern;
use super::plan::{Cut, Leave, Manner, Pace};
use crate::sys;

/// Milliseconds since the run began.
pub type Clock = u64;

/// Calls made for one end before others have their turn.
const CALLS_PER_TURN: usize = 8;
/// Longest piece of one call.
pub const PIECE_BYTES: usize = 128 * 1024;

/// Socket buffers of a narrow end: some segments.
pub const NARROW_BYTES: usize = 12 * 1024;

/// What an end needs of the run.
pub struct Shared<'a> {
    /// The streams' bytes.
    pub pattern: &'a Pattern,
    /// Of [`PIECE_BYTES`].
    pub buffer: &'a mut [u8],
    /// Now.
    pub now: Clock,
}

/// What an end waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// An event of its socket.
    Event,
    /// This time, or an event.
    Time(Clock),
    /// Its next turn.
    Turn,
    /// Nothing: it has left.
    Nothing,
}

/// One direction's progress through its pace.
struct Progress {
    pace: Pace,
    ready: bool,
    calls: u32,
    until: Clock,
}

impl Progress {
    fn new(pace: Pace) -> Progress {
        Progress {
            pace,
            ready: true,
            calls: 0,
            until: 0,
        }
    }

    fn goes(&self, now: Clock) -> bool {
        self.ready && self.until <= now
    }

    fn piece(&self, rng: &mut Rng) -> usize {
        let most = self.pace.piece.min(PIECE_BYTES);
        match most == PIECE_BYTES {
            true => most,
            false => rng.usize(1..=most),
        }
    }

    fn step(&mut self, rng: &mut Rng, now: Clock) {
        self.calls += 1;
        if self.pace.pause_every > 0 && self.calls.is_multiple_of(self.pace.pause_every) {
            self.until = now + rng.u64(0..=self.pace.pause_ms);
        }
    }
}

/// One end.
pub struct End {
    socket: TcpStream,
    /// What it has to send.
    pub outgoing: Outgoing,
    /// Checks what it receives.
    pub handler: Handler,
    /// When it leaves before it is due.
    pub cut: Option<Cut>,
    /// How it went so far.
    pub outcome: Outcome,
    /// When something last moved.
    pub moved: Clock,
    /// A write has failed: what came before the RST is still to be read.
    refused: bool,
    received: u64,
    sending: Progress,
    receiving: Progress,
    rng: Rng,
}

impl End {
    /// An end that has just been connected.
    pub fn new(
        socket: TcpStream,
        handler: Handler,
        manner: Manner,
        cut: Option<Cut>,
        now: Clock,
    ) -> End {
        let mut outgoing = Outgoing::default();
        let rng = Rng::with_seed(handler.number());
        if manner.narrow {
            // Fails only on a socket that is broken already.
            let _ = SockRef::from(&socket).set_send_buffer_size(NARROW_BYTES);
        }
        let mut handler = handler;
        handler.connected(&mut outgoing);
        let port = socket.local_addr().map_or(0, |address| address.port());
        End {
            socket,
            outgoing,
            handler,
            cut,
            outcome: Outcome {
                port,
                ..Outcome::default()
            },
            moved: now,
            refused: false,
            received: 0,
            sending: Progress::new(manner.sending),
            receiving: Progress::new(manner.receiving),
            rng,
        }
    }

    /// Bytes received.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// The socket may be ready.
    pub fn wake(&mut self) {
        self.sending.ready = true;
        self.receiving.ready = true;
    }

    /// Sends and receives what is possible now.
    pub fn turn(&mut self, shared: &mut Shared<'_>) -> Result<Next, Fault> {
        for _ in 0..CALLS_PER_TURN {
            if let Some(how) = self.due_cut() {
                self.leave(how);
                return Ok(Next::Nothing);
            }
            let received = self.receive(shared)?;
            let sent = !self.outcome.reset && self.due_cut().is_none() && self.send(shared);
            if received || sent {
                self.moved = shared.now;
            }
            if self.outcome.reset || (self.outcome.eof && self.outcome.finished) {
                return Ok(Next::Nothing);
            }
            if !received && !sent {
                return Ok(self.waits_for(shared.now));
            }
        }
        Ok(Next::Turn)
    }

    fn waits_for(&self, now: Clock) -> Next {
        let both = [&self.sending, &self.receiving];
        let pauses = both.iter().map(|progress| progress.until);
        match pauses.filter(|until| *until > now).min() {
            Some(until) => Next::Time(until),
            None => Next::Event,
        }
    }

    fn due_cut(&self) -> Option<Leave> {
        match self.cut? {
            Cut::Sent(at, how) => (self.outgoing.sent() >= at).then_some(how),
            Cut::Received(at, how) => (self.received >= at).then_some(how),
        }
    }

    fn leave(&mut self, how: Leave) {
        self.outcome.left = Some(how);
        /// LAST-ACK and CLOSING: whoever wants to reset there once all was sent leaves without a word (tcp_disconnect of
        /// net/ipv4/tcp.c), and what was lost on the way before is not sent again.
        const ENDED: [u8; 2] = [9, 11];
        let ended = || sys::tcp_state(&self.socket).is_ok_and(|state| ENDED.contains(&state));
        if how == Leave::Reset && !ended() {
            // It may have been reset by the other side already.
            let _ = SockRef::from(&self.socket).set_linger(Some(Duration::ZERO));
        }
    }

    fn receive(&mut self, shared: &mut Shared<'_>) -> Result<bool, Fault> {
        if self.outcome.eof || !self.receiving.goes(shared.now) {
            return Ok(false);
        }
        let mut piece = self.receiving.piece(&mut self.rng);
        if let Some(Cut::Received(at, _)) = self.cut {
            piece = piece.min((at - self.received) as usize);
        }
        match self.socket.read(&mut shared.buffer[..piece]) {
            // The error was told to the write that failed.
            Ok(0) if self.refused => self.outcome.reset = true,
            Ok(0) => {
                self.outcome.eof = true;
                self.handler.ended(&mut self.outgoing)?;
            }
            Ok(bytes) => {
                self.received += bytes as u64;
                self.receiving.step(&mut self.rng, shared.now);
                let bytes = &shared.buffer[..bytes];
                let cut = self
                    .handler
                    .receive(shared.pattern, bytes, &mut self.outgoing)?;
                self.cut = self.cut.or(cut);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.receiving.ready = false;
                return Ok(false);
            }
            Err(_) => self.outcome.reset = true,
        }
        Ok(true)
    }

    fn send(&mut self, shared: &mut Shared<'_>) -> bool {
        if self.outcome.finished || self.refused {
            return false;
        }
        if self.outgoing.is_over() {
            // A RST that has come meanwhile is read.
            let _ = self.socket.shutdown(Shutdown::Write);
            self.outcome.finished = true;
            return true;
        }
        if self.outgoing.is_flushed() || !self.sending.goes(shared.now) {
            return false;
        }
        let mut piece = self.sending.piece(&mut self.rng);
        if let Some(Cut::Sent(at, _)) = self.cut {
            piece = piece.min((at - self.outgoing.sent()) as usize);
        }
        let filled = self
            .outgoing
            .preview(shared.pattern, &mut shared.buffer[..piece]);
        match self.socket.write(&shared.buffer[..filled]) {
            Ok(bytes) => {
                self.outgoing.advance(bytes);
                self.sending.step(&mut self.rng, shared.now);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.sending.ready = false;
                return false;
            }
            Err(_) => {
                self.refused = true;
                self.receiving.ready = true;
                // There is no more to read.
                self.outcome.reset = self.outcome.eof;
            }
        }
        true
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sent, planned) = (self.outgoing.sent(), self.outgoing.planned());
        write!(
            f,
            "{}: sent {sent} of {planned}, received {}, {:?}",
            self.handler, self.received, self.outcome
        )
    }
}

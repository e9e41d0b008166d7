//! One end of a connection: writes its speech and reads into its ear, in its manner, until it leaves.

use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use fastrand::Rng;
use socket2::SockRef;

use super::ear::Ear;
use super::fault::Fault;
use super::pattern::Pattern;
use super::plan::{Cut, Leave, Manner, Pace};
use super::speech::Speech;
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
pub struct Room<'a> {
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

/// How an end's connection went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outcome {
    /// Its half was ended after all was said.
    pub finished: bool,
    /// The other end's end was read.
    pub eof: bool,
    /// A RST came.
    pub reset: bool,
    /// It left before it was due.
    pub left: Option<Leave>,
    /// Its port, by which logs name it.
    pub port: u16,
}

/// One direction's progress through its pace.
struct Gait {
    pace: Pace,
    ready: bool,
    calls: u32,
    until: Clock,
}

impl Gait {
    fn new(pace: Pace) -> Gait {
        Gait {
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
    /// What it says.
    pub speech: Speech,
    /// Who judges what it hears.
    pub ear: Ear,
    /// When it leaves before it is due.
    pub cut: Option<Cut>,
    /// How it went so far.
    pub outcome: Outcome,
    /// When something last moved.
    pub moved: Clock,
    /// A write has failed: what came before the RST is still to be read.
    refused: bool,
    heard: u64,
    speaking: Gait,
    hearing: Gait,
    rng: Rng,
}

impl End {
    /// An end that has just been connected.
    pub fn new(socket: TcpStream, ear: Ear, manner: Manner, cut: Option<Cut>, now: Clock) -> End {
        let mut speech = Speech::default();
        let rng = Rng::with_seed(ear.number());
        if manner.narrow {
            // Fails only on a socket that is broken already.
            let _ = SockRef::from(&socket).set_send_buffer_size(NARROW_BYTES);
        }
        let mut ear = ear;
        ear.connected(&mut speech);
        let port = socket.local_addr().map_or(0, |address| address.port());
        End {
            socket,
            speech,
            ear,
            cut,
            outcome: Outcome {
                port,
                ..Outcome::default()
            },
            moved: now,
            refused: false,
            heard: 0,
            speaking: Gait::new(manner.speaking),
            hearing: Gait::new(manner.hearing),
            rng,
        }
    }

    /// Bytes heard.
    pub fn heard(&self) -> u64 {
        self.heard
    }

    /// The socket may be ready.
    pub fn wake(&mut self) {
        self.speaking.ready = true;
        self.hearing.ready = true;
    }

    /// Says and hears what is possible now.
    pub fn turn(&mut self, room: &mut Room<'_>) -> Result<Next, Fault> {
        for _ in 0..CALLS_PER_TURN {
            if let Some(how) = self.due_cut() {
                self.leave(how);
                return Ok(Next::Nothing);
            }
            let heard = self.hear(room)?;
            let said = !self.outcome.reset && self.due_cut().is_none() && self.say(room);
            if heard || said {
                self.moved = room.now;
            }
            if self.outcome.reset || (self.outcome.eof && self.outcome.finished) {
                return Ok(Next::Nothing);
            }
            if !heard && !said {
                return Ok(self.waits_for(room.now));
            }
        }
        Ok(Next::Turn)
    }

    fn waits_for(&self, now: Clock) -> Next {
        let gaits = [&self.speaking, &self.hearing];
        let pauses = gaits.iter().map(|gait| gait.until);
        match pauses.filter(|until| *until > now).min() {
            Some(until) => Next::Time(until),
            None => Next::Event,
        }
    }

    fn due_cut(&self) -> Option<Leave> {
        match self.cut? {
            Cut::Said(at, how) => (self.speech.said() >= at).then_some(how),
            Cut::Heard(at, how) => (self.heard >= at).then_some(how),
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

    fn hear(&mut self, room: &mut Room<'_>) -> Result<bool, Fault> {
        if self.outcome.eof || !self.hearing.goes(room.now) {
            return Ok(false);
        }
        let mut piece = self.hearing.piece(&mut self.rng);
        if let Some(Cut::Heard(at, _)) = self.cut {
            piece = piece.min((at - self.heard) as usize);
        }
        match self.socket.read(&mut room.buffer[..piece]) {
            // The error was told to the write that failed.
            Ok(0) if self.refused => self.outcome.reset = true,
            Ok(0) => {
                self.outcome.eof = true;
                self.ear.ended(&mut self.speech)?;
            }
            Ok(bytes) => {
                self.heard += bytes as u64;
                self.hearing.step(&mut self.rng, room.now);
                let bytes = &room.buffer[..bytes];
                let cut = self.ear.hear(room.pattern, bytes, &mut self.speech)?;
                self.cut = self.cut.or(cut);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.hearing.ready = false;
                return Ok(false);
            }
            Err(_) => self.outcome.reset = true,
        }
        Ok(true)
    }

    fn say(&mut self, room: &mut Room<'_>) -> bool {
        if self.outcome.finished || self.refused {
            return false;
        }
        if self.speech.is_over() {
            // A RST that has come meanwhile is read.
            let _ = self.socket.shutdown(Shutdown::Write);
            self.outcome.finished = true;
            return true;
        }
        if self.speech.is_silent() || !self.speaking.goes(room.now) {
            return false;
        }
        let mut piece = self.speaking.piece(&mut self.rng);
        if let Some(Cut::Said(at, _)) = self.cut {
            piece = piece.min((at - self.speech.said()) as usize);
        }
        let filled = self.speech.preview(room.pattern, &mut room.buffer[..piece]);
        match self.socket.write(&room.buffer[..filled]) {
            Ok(bytes) => {
                self.speech.advance(bytes);
                self.speaking.step(&mut self.rng, room.now);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.speaking.ready = false;
                return false;
            }
            Err(_) => {
                self.refused = true;
                self.hearing.ready = true;
                // There is no more to read.
                self.outcome.reset = self.outcome.eof;
            }
        }
        true
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (said, planned) = (self.speech.said(), self.speech.planned());
        write!(
            f,
            "{}: said {said} of {planned}, heard {}, {:?}",
            self.ear, self.heard, self.outcome
        )
    }
}

//! Moves bytes from one connection to another: so many, or until the end; then both connections
//! are the caller's again.
//!
//! Two engines. *copy* receives into a buffer of the thread and sends from it; *splice* moves the
//! kernel's pages through a pipe. `auto` takes the one that was measured to be cheaper
//! (docs/design/proxy.md): copy for what fits a buffer or two, splice for the rest.
//!
//! Buffers and pipes belong to the thread and are held only while they carry bytes. A receiver that
//! is slower than its sender leaves the bytes in the kernel's queues: once its socket has been full,
//! no more is read for it than the socket has room for.

mod buffer;
mod copy;
mod pipe;
mod redirect;
mod splice;
mod tunnel;

use std::cell::Cell;
use std::io;
use std::time::Duration;

pub use buffer::{BUFFER_BYTES, Buffer, Buffers};
use pipe::Pipe;
pub use pipe::Pipes;
pub use redirect::Redirect;
pub use tunnel::{Tunnelled, tunnel};
use weir_core::proxy::Engine;

use crate::runtime::TcpStream;
use crate::sys;

/// A body with at least this much left is spliced: GETs of 64 KB then take 0.84 of what copying takes, those of 10 KB
/// come whole with their heads (docs/design/proxy.md has the command).
const SPLICE_FROM_BYTES: u64 = 16 * 1024;
/// What one transfer moves before other tasks of the thread have their turn.
pub const TURN_BYTES: u64 = 1024 * 1024;
/// A read at least this long is bulk: it pays to hold back its last, short segment for the next.
/// After a shorter one the sender may be pausing, and its bytes must not wait.
pub const BULK_BYTES: usize = 16 * 1024;

/// Buffers and pipes of one thread.
#[derive(Default)]
pub struct Lanes {
    /// What the copy engine and the readers of heads receive into.
    pub buffers: Buffers,
    /// What the splice engine moves pages through.
    pub pipes: Pipes,
    /// What the sockmap engine hands tunnels of short messages to.
    pub redirect: Option<Redirect>,
}

/// How much a transfer moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Exactly so many bytes; what follows them stays in the sender's socket.
    Bytes(u64),
    /// All until the sender's end.
    UntilEnd,
}

/// Bytes that went by, counted as they go.
#[derive(Debug, Default)]
pub struct Moved {
    bytes: Cell<u64>,
    spliced: Cell<u64>,
}

impl Moved {
    /// All of them.
    pub fn get(&self) -> u64 {
        self.bytes.get()
    }

    /// Those that splice(2) moved.
    pub fn spliced(&self) -> u64 {
        self.spliced.get()
    }

    /// Counts bytes that were copied.
    pub fn add(&self, bytes: u64) {
        self.bytes.set(self.bytes.get() + bytes);
    }

    fn add_step(&self, bytes: u64, course: &Course) {
        self.add(bytes);
        if course.spliced {
            self.spliced.set(self.spliced.get() + bytes);
        }
    }
}

/// How a transfer is made.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// What moves the bytes.
    pub engine: Engine,
    /// Time without progress after which it fails.
    pub idle: Duration,
}

/// Which connection ended a transfer, and how.
#[derive(Debug)]
pub enum Broken {
    /// The one that is read.
    From(io::Error),
    /// The one that is written.
    To(io::Error),
}

impl Broken {
    /// The cause.
    pub fn error(&self) -> &io::Error {
        match self {
            Broken::From(error) | Broken::To(error) => error,
        }
    }
}

/// Moves bytes and adds to `moved` as they go; says how many they were. Fewer than
/// [`Limit::Bytes`] means that the sender ended early.
///
/// # Errors
/// A connection broke, or nothing moved for [`Rules::idle`] (`TimedOut`).
///
/// No `async fn`: those keep their arguments twice, and this is what idle tunnels wait in.
pub fn transfer(
    lanes: &Lanes,
    from: &TcpStream,
    to: &TcpStream,
    limit: Limit,
    rules: Rules,
    moved: &Moved,
) -> impl Future<Output = Result<u64, Broken>> {
    let mut course = Course::new(limit, rules);
    let mut turn = 0;
    async move {
        while course.left() > 0 {
            course.restart_idle_time(from);
            if course.slow {
                to.writable().await.map_err(Broken::To)?;
            }
            from.readable_or_broken(to).await.map_err(Broken::From)?;
            if to.is_broken() {
                return Err(Broken::To(to.take_error()));
            }
            let Some(step) = step(lanes, from, to, &mut course).await? else {
                continue;
            };
            if step == 0 {
                break;
            }
            course.advance(step);
            moved.add_step(step as u64, &course);
            turn += step as u64;
            if turn >= TURN_BYTES {
                turn = 0;
                from.handle().yield_now().await;
            }
        }
        Ok(course.moved)
    }
}

/// Moves what is there; 0 at the sender's end, `None` if there was nothing yet.
async fn step(
    lanes: &Lanes,
    from: &TcpStream,
    to: &TcpStream,
    course: &mut Course,
) -> Result<Option<usize>, Broken> {
    let (read, waited) = match begin(lanes, from, to, course)? {
        Begun::Done(read) => return Ok(read),
        Begun::Copied(read, rest) => (read, copy::finish(&rest, to, course).await),
        Begun::Spliced(read, mut pipe) => (read, splice::finish(&mut pipe, to, course).await),
    };
    waited.map_err(Broken::To)?;
    Ok(Some(read))
}

/// How far a step came without waiting: buffers, which nobody may hold while waiting, are in no
/// future.
enum Begun {
    /// All that was read was sent.
    Done(Option<usize>),
    /// Of so many bytes the receiver has not yet taken these.
    Copied(usize, Vec<u8>),
    /// Of so many bytes the receiver has not yet taken those in the pipe.
    Spliced(usize, Pipe),
}

fn begin(
    lanes: &Lanes,
    from: &TcpStream,
    to: &TcpStream,
    course: &mut Course,
) -> Result<Begun, Broken> {
    let pressed = course.slow || lanes.pipes.crowded() || lanes.buffers.crowded();
    let room = match pressed {
        true => send_room(to),
        false => usize::MAX,
    };
    course.slow &= room < AMPLE_ROOM_BYTES;
    course.spliced = false;
    let most = room.min(course.left().try_into().unwrap_or(usize::MAX));
    if course.splices
        && room >= SPLICE_ROOM_BYTES
        && let Some(pipe) = lanes.pipes.lend()
    {
        course.spliced = true;
        return splice::begin(pipe, from, to, most, course);
    }
    copy::begin(lanes.buffers.lend(), from, to, most, course)
}

/// What a socket that is nearly full is given, so that it fills up and says when it has room again.
const LEAST_ROOM_BYTES: usize = 4 * 1024;
/// A receiver with so much room is slow no longer.
const AMPLE_ROOM_BYTES: usize = 128 * 1024;
/// With less room than this, a pipe would be filled for a few segments.
const SPLICE_ROOM_BYTES: usize = 16 * 1024;

/// What the socket would take now. The kernel charges a quarter more than the bytes at most.
fn send_room(to: &TcpStream) -> usize {
    let room = sys::send_room(to).map_or(0, |room| room / 4 * 3);
    match room >= SPLICE_ROOM_BYTES {
        true => room,
        false => LEAST_ROOM_BYTES,
    }
}

/// Where a transfer stands.
struct Course {
    limit: Limit,
    rules: Rules,
    moved: u64,
    /// Whether the next step splices.
    splices: bool,
    /// Whether the last one did: it may have found no room or no pipe for that.
    spliced: bool,
    /// Whether the receiver's socket has been full.
    slow: bool,
    /// Whether the last segment of this step waits for the next step's first bytes.
    more: bool,
    /// Short steps since the last long one.
    short_steps: u32,
}

/// A tunnel whose reads are this long is spliced. With 6 KiB tunnels of 10 KB took no less (1.05 of copying them), though
/// the splice engine, which does not look at reads, takes 0.81 (docs/design/proxy.md has the command).
const TUNNEL_SPLICE_BYTES: usize = 12 * 1024;
/// A spliced tunnel whose reads are this short, this often in a row, is copied again.
const TUNNEL_COPY_BYTES: usize = 4 * 1024;
const TUNNEL_COPY_AFTER: u32 = 2;

impl Course {
    fn new(limit: Limit, rules: Rules) -> Course {
        let splices = match (rules.engine, limit) {
            (Engine::Copy, _) => false,
            (Engine::Splice, _) => true,
            (Engine::Auto | Engine::Sockmap, Limit::Bytes(bytes)) => bytes >= SPLICE_FROM_BYTES,
            (Engine::Auto | Engine::Sockmap, Limit::UntilEnd) => false,
        };
        Course {
            limit,
            rules,
            moved: 0,
            splices,
            spliced: false,
            slow: false,
            more: false,
            short_steps: 0,
        }
    }

    fn left(&self) -> u64 {
        match self.limit {
            Limit::Bytes(bytes) => bytes - self.moved,
            Limit::UntilEnd => u64::MAX,
        }
    }

    /// Decides whether the last segment of a step waits for the next step's first bytes.
    fn hold_back(&mut self, step: usize) {
        let due = self.limit != Limit::UntilEnd && self.left() > step as u64;
        self.more = due && step >= BULK_BYTES;
    }

    fn restart_idle_time(&self, stream: &TcpStream) {
        stream.handle().set_deadline(self.rules.idle);
    }

    /// Takes a step into account, and what its length says of those that follow.
    fn advance(&mut self, step: usize) {
        self.moved += step as u64;
        let chooses = matches!(self.rules.engine, Engine::Auto | Engine::Sockmap);
        if !chooses || self.limit != Limit::UntilEnd {
            return;
        }
        if step >= TUNNEL_SPLICE_BYTES {
            self.splices = true;
            self.short_steps = 0;
        } else if step < TUNNEL_COPY_BYTES {
            self.short_steps += 1;
            self.splices &= self.short_steps < TUNNEL_COPY_AFTER;
        }
    }
}

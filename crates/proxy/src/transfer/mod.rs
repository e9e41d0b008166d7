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
mod gather;
mod pipe;
mod redirect;
mod redirector;
mod splice;
mod tunnel;

use std::cell::Cell;
use std::io;
use std::time::Duration;

pub use buffer::{BUFFER_BYTES, Buffer, Buffers};
pub use gather::{Gathering, readable_or_pushed};
use pipe::Pipe;
pub use pipe::Pipes;
pub use redirect::Redirect;
pub use redirector::{RedirectLane, RedirectPair, Redirector, Sockets, Way};
pub use tunnel::{Tunnelled, tunnel};
use weir_core::proxy::Engine;

use crate::runtime::{Handle, TcpStream};
use crate::sys;

/// A body with at least this much left is spliced: GETs of 64 KB then take 0.84 of what copying takes, those of 10 KB
/// come whole with their heads (docs/design/proxy.md has the command). A shorter rest is the caller's: received with
/// what may be behind it, it tells that there is nothing, which would have to be asked for.
pub const SPLICE_FROM_BYTES: u64 = 16 * 1024;
/// What a task moves before the other tasks of the thread have their turn.
const TURN_BYTES: u64 = 1024 * 1024;

/// What a task has moved since the others had their turn. Where there is always more to read and room to send it, no wait
/// would give it to them.
#[derive(Debug, Default)]
pub struct YieldBudget(u64);

impl YieldBudget {
    /// Takes bytes into account; after [`TURN_BYTES`] the other tasks run.
    pub async fn spend(&mut self, bytes: usize, handle: &Handle) {
        self.0 += bytes as u64;
        if self.0 >= TURN_BYTES {
            self.0 = 0;
            handle.yield_now().await;
        }
    }
}

/// A read at least this long is bulk: it pays to hold back its last, short segment for the next.
/// After a shorter one the sender may be pausing, and its bytes must not wait.
const BULK_BYTES: usize = 16 * 1024;

/// Buffers and pipes of one thread.
#[derive(Default)]
pub struct Resources {
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
    /// So many bytes; what follows them stays in the sender's socket. A rest of less than [`SPLICE_FROM_BYTES`] may stay
    /// there too.
    Bytes(u64),
    /// All until the sender's end.
    UntilEnd,
}

/// Bytes that went by, counted as they go.
#[derive(Debug, Default)]
pub struct Moved {
    bytes: Cell<u64>,
    spliced: Cell<u64>,
    /// Of the message that is being moved those in steps that were not short, at most [`LONG_MESSAGE_BYTES`]. A message
    /// is what goes one way while nothing goes the other.
    message: Cell<u32>,
    /// Short messages, and short steps, since the last long message.
    short: Cell<u8>,
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
        if bytes < SHORT_STEP_BYTES {
            return self.note_short();
        }
        let step = u32::try_from(bytes).unwrap_or(u32::MAX);
        let message = self.message.get().saturating_add(step);
        self.message.set(message.min(LONG_MESSAGE_BYTES));
        if message >= LONG_MESSAGE_BYTES {
            self.short.set(0);
        }
    }

    /// Something has gone the other way: what comes next is another message.
    fn end_message(&self) {
        if (1..LONG_MESSAGE_BYTES).contains(&self.message.replace(0)) {
            self.note_short();
        }
    }

    fn note_short(&self) {
        self.short.set(self.short.get().saturating_add(1));
        if self.short.get() >= COPY_AFTER_SHORT {
            self.message.set(0);
        }
    }

    /// Whether the next step of a tunnel is to be spliced, if the last one was or was not.
    fn calls_for_splicing(&self, splices: bool) -> bool {
        let is_long = self.message.get() == LONG_MESSAGE_BYTES;
        is_long || splices && self.short.get() < COPY_AFTER_SHORT
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

/// What a transfer came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transferred {
    /// How many bytes were moved.
    pub bytes: u64,
    /// The sender has ended.
    pub ended: bool,
    /// The last segment waits for what the caller sends next: see [`readable_or_pushed`].
    pub held_back: bool,
}

/// Who sends what is moved.
pub trait Sender {
    /// Its connection.
    fn stream(&self) -> &TcpStream;

    /// Waits until a read is worth a try, or `to` has been reset by its peer. If that takes long and `course.more` says
    /// that the last segment is held back for `to`, sends it and says so; of a tunnel none ever is.
    ///
    /// # Errors
    /// `TimedOut` after the task's deadline.
    fn readable_or_broken(
        &mut self,
        to: &TcpStream,
        course: &mut Course,
    ) -> impl Future<Output = io::Result<()>>;
}

/// Every byte goes on at once.
impl Sender for &TcpStream {
    fn stream(&self) -> &TcpStream {
        self
    }

    fn readable_or_broken(
        &mut self,
        to: &TcpStream,
        _: &mut Course,
    ) -> impl Future<Output = io::Result<()>> {
        TcpStream::readable_or_broken(self, to)
    }
}

/// Moves bytes and adds to `moved` as they go. `back` has what goes the other way, which tells the messages of a tunnel
/// apart.
///
/// # Errors
/// A connection broke, or nothing moved for [`Rules::idle`] (`TimedOut`).
///
/// No `async fn`: those keep their arguments twice, and this is what idle tunnels wait in.
pub fn transfer(
    resources: &Resources,
    mut sender: impl Sender,
    to: &TcpStream,
    limit: Limit,
    rules: Rules,
    moved: &Moved,
    back: &Moved,
) -> impl Future<Output = Result<Transferred, Broken>> {
    let mut course = Course::new(limit, rules);
    let mut budget = YieldBudget::default();
    async move {
        let mut ended = false;
        while course.goes_on() {
            course.restart_idle_time(to);
            if course.slow {
                to.writable().await.map_err(Broken::To)?;
            }
            let readable = sender.readable_or_broken(to, &mut course);
            readable.await.map_err(Broken::From)?;
            if to.is_broken() {
                return Err(Broken::To(to.take_error()));
            }
            let Some(step) = step(resources, sender.stream(), to, &mut course).await? else {
                continue;
            };
            if step == 0 {
                ended = true;
                break;
            }
            course.advance(step, moved, back);
            budget.spend(step, to.handle()).await;
        }
        Ok(Transferred {
            bytes: course.moved,
            ended,
            held_back: course.more,
        })
    }
}

/// Moves what is there; 0 at the sender's end, `None` if there was nothing yet.
async fn step(
    resources: &Resources,
    from: &TcpStream,
    to: &TcpStream,
    course: &mut Course,
) -> Result<Option<usize>, Broken> {
    let (read, waited) = match begin(resources, from, to, course)? {
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
    resources: &Resources,
    from: &TcpStream,
    to: &TcpStream,
    course: &mut Course,
) -> Result<Begun, Broken> {
    let pressed = course.slow || resources.pipes.crowded() || resources.buffers.crowded();
    let space = match pressed {
        true => send_space(to),
        false => usize::MAX,
    };
    course.slow &= space < AMPLE_SPACE_BYTES;
    course.spliced = false;
    let most = space.min(course.left().try_into().unwrap_or(usize::MAX));
    if course.splices
        && space >= SPLICE_SPACE_BYTES
        && let Some(pipe) = resources.pipes.lend()
    {
        course.spliced = true;
        return splice::begin(pipe, from, to, most, course);
    }
    copy::begin(resources.buffers.lend(), from, to, most, course)
}

/// What a socket that is nearly full is given, so that it fills up and says when it has room again.
const LEAST_SPACE_BYTES: usize = 4 * 1024;
/// A receiver with so much room is slow no longer.
const AMPLE_SPACE_BYTES: usize = 128 * 1024;
/// With less room than this, a pipe would be filled for a few segments.
const SPLICE_SPACE_BYTES: usize = 16 * 1024;

/// What the socket would take now. The kernel charges a quarter more than the bytes at most.
fn send_space(to: &TcpStream) -> usize {
    let space = sys::send_space(to).map_or(0, |space| space / 4 * 3);
    match space >= SPLICE_SPACE_BYTES {
        true => space,
        false => LEAST_SPACE_BYTES,
    }
}

/// Where a transfer stands.
pub struct Course {
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
}

/// A tunnel whose messages are this long is spliced: at 10 KB that takes 0.81 of copying them, at 5 KB 0.95, at 2 KB 1.07
/// (docs/design/proxy.md has the command).
const LONG_MESSAGE_BYTES: u32 = 8 * 1024;
/// However long the message is, steps as short as this are cheaper copied.
const SHORT_STEP_BYTES: u64 = 2 * 1024;
/// A spliced tunnel whose messages or steps are short, this often in a row, is copied again.
const COPY_AFTER_SHORT: u8 = 2;

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
        }
    }

    fn left(&self) -> u64 {
        match self.limit {
            Limit::Bytes(bytes) => bytes - self.moved,
            Limit::UntilEnd => u64::MAX,
        }
    }

    /// Whether there is more to move. For a slow receiver also a short rest: the caller would hold it in memory.
    fn goes_on(&self) -> bool {
        let leaves_rest = !self.slow && self.rules.engine != Engine::Splice;
        match leaves_rest {
            true => self.left() >= SPLICE_FROM_BYTES,
            false => self.left() > 0,
        }
    }

    /// Decides whether the last segment of a step waits for the next step's first bytes, as long as the sender allows.
    fn hold_back(&mut self, step: usize) {
        let due = self.limit != Limit::UntilEnd && self.left() > step as u64;
        self.more = due && step >= BULK_BYTES;
    }

    fn restart_idle_time(&self, stream: &TcpStream) {
        stream.handle().set_deadline(self.rules.idle);
    }

    /// Takes a step into account that went to `there`, and what it says of those that follow.
    fn advance(&mut self, step: usize, there: &Moved, back: &Moved) {
        self.moved += step as u64;
        there.add_step(step as u64, self);
        back.end_message();
        let chooses = matches!(self.rules.engine, Engine::Auto | Engine::Sockmap);
        if chooses && self.limit == Limit::UntilEnd {
            self.splices = there.calls_for_splicing(self.splices);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::runtime::Runtime;

    /// Which steps of a tunnel are spliced. A step of 0 bytes: something goes the other way.
    fn spliced(engine: Engine, steps: &[usize]) -> Vec<bool> {
        let rules = Rules {
            engine,
            idle: Duration::from_secs(1),
        };
        let (there, back) = (Moved::default(), Moved::default());
        let mut course = Course::new(Limit::UntilEnd, rules);
        let mut spliced = Vec::new();
        for &step in steps {
            if step == 0 {
                there.end_message();
                continue;
            }
            spliced.push(course.splices);
            course.advance(step, &there, &back);
        }
        spliced
    }

    #[test]
    fn a_tunnel_is_spliced_once_a_message_was_long_however_it_was_cut() {
        let reply = [4_300, 4_300, 1_500, 0];
        let auto = spliced(Engine::Auto, &reply.repeat(3));
        assert_eq!(auto, [[false, false, true], [true; 3], [true; 3]].concat());
        assert_eq!(spliced(Engine::Auto, &[10_000, 0, 10_000]), [false, true]);
    }

    #[test]
    fn a_tunnel_of_short_messages_is_copied_and_one_between_long_ones_changes_nothing() {
        assert_eq!(spliced(Engine::Auto, &[5_000, 0].repeat(5)), [false; 5]);
        let one_between = [20_000, 0, 300, 0, 20_000, 0, 20_000];
        assert_eq!(
            spliced(Engine::Auto, &one_between),
            [false, true, true, true]
        );
        let two_between = [20_000, 0, 300, 0, 300, 0, 20_000];
        assert_eq!(
            spliced(Engine::Auto, &two_between),
            [false, true, true, false]
        );
    }

    #[test]
    fn a_long_stream_of_short_writes_is_copied() {
        assert_eq!(spliced(Engine::Auto, &[300; 100]), [false; 100]);
        let after_bulk = spliced(Engine::Auto, &[&[50_000; 3][..], &[300; 5]].concat());
        let expected = [false, true, true, true, true, false, false, false];
        assert_eq!(after_bulk, expected);
    }

    #[test]
    fn a_task_that_never_has_to_wait_gives_the_others_their_turn() {
        let runtime = Runtime::new().unwrap();
        let handle = runtime.handle().clone();
        let bytes_of_the_other = Rc::new(Cell::new(0));
        let moved = bytes_of_the_other.clone();
        let mover = handle.clone();
        handle.spawn(async move {
            let mut budget = YieldBudget::default();
            while moved.get() < 100 * TURN_BYTES {
                moved.set(moved.get() + 16 * 1024);
                budget.spend(16 * 1024, &mover).await;
            }
        });
        let seen = runtime.run(async move {
            handle.yield_now().await;
            bytes_of_the_other.get()
        });
        assert!((1..=2 * TURN_BYTES).contains(&seen.unwrap()));
    }

    #[test]
    fn an_engine_that_was_chosen_stays() {
        let steps = [20_000, 0, 300, 0, 300, 0, 300, 0, 20_000, 20_000];
        assert_eq!(spliced(Engine::Splice, &steps), [true; 6]);
        assert_eq!(spliced(Engine::Copy, &steps), [false; 6]);
    }
}

//! Moves bytes from one connection to another: a given number, or all until the end. Then both connections are the
//! caller's again.
//!
//! Two engines. *copy* receives into a buffer of the thread and sends from it; *splice* moves the
//! kernel's pages through a pipe. `auto` takes one of them by the length of what there is to move ([`choice`]): copy
//! for what comes at once in one or two receives or in short steps, splice for the rest.
//!
//! Buffers and pipes belong to the thread and are held only while they carry bytes. A receiver that
//! is slower than its sender leaves the bytes in the kernel's queues: once its socket has been full,
//! no more is read for it than the socket has room for.

mod budget;
mod buffer;
mod choice;
mod copy;
mod course;
mod gather;
mod lane;
mod outcome;
mod pipe;
mod redirect;
mod redirector;
mod resources;
mod splice;
mod step;
mod tunnel;

use std::io;

pub use budget::YieldBudget;
pub use buffer::{BUFFER_BYTES, Buffer, Buffers};
pub use choice::{is_chunk_spliced, is_head_alone, is_moved_unseen};
use course::Course;
pub use course::{Limit, Moved, Rules};
pub use gather::{Gathering, readable_or_pushed};
pub use lane::Redirect;
pub use outcome::{Broken, Transferred, Tunnelled};
pub use pipe::Pipes;
pub use redirector::{RedirectLane, RedirectPair, Redirector, SocketPair, Way};
pub use resources::{Resources, TransferContext};
use step::step;
pub use tunnel::tunnel;

use crate::runtime::TcpStream;

/// The sending side of a transfer.
pub trait ByteSource {
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
impl ByteSource for &TcpStream {
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
    context: TransferContext<'_>,
    mut sender: impl ByteSource,
    to: &TcpStream,
    limit: Limit,
    [moved, back]: [&Moved; 2],
) -> impl Future<Output = Result<Transferred, Broken>> {
    let mut course = Course::new(limit, context.rules);
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
            let Some(step) = step(context.resources, sender.stream(), to, &mut course).await?
            else {
                continue;
            };
            if step == 0 {
                ended = true;
                break;
            }
            course.advance(step, moved, back);
            match course.spliced {
                // Else it would splice on what comes meanwhile, segment by segment, as long as that goes on.
                true => to.handle().yield_now().await,
                false => budget.spend(step, to.handle()).await,
            }
        }
        Ok(Transferred {
            bytes: course.moved,
            ended,
            held_back: course.more,
        })
    }
}

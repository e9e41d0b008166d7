//! The splice engine: pages of the one socket's receive queue become the other's send queue.

use super::pipe::Pipe;
use super::{Broken, Course};
use crate::runtime::{Direction, TcpStream};

/// Moves what is there, at most a pipe full or `most`; says how much, 0 at the sender's end, `None`
/// if there is nothing yet.
///
/// A step shorter than the pipe does not mean that the sender's queue is empty: a pipe has a slot
/// for each segment, and small segments use them up first. Only EAGAIN means it, and the pipe is
/// empty before each fill, so that EAGAIN is never the pipe's.
pub async fn step(
    mut pipe: Pipe,
    from: &TcpStream,
    to: &TcpStream,
    most: usize,
    course: &mut Course,
) -> Result<Option<usize>, Broken> {
    let most = most.min(pipe.capacity());
    let filled = from
        .attempt(Direction::Read, |fd| pipe.fill(fd, most))
        .map_err(Broken::From)?;
    if let Some(filled @ 1..) = filled {
        let more = course.more_follows(filled);
        drain(&mut pipe, to, more, course)
            .await
            .map_err(Broken::To)?;
    }
    Ok(filled)
}

async fn drain(
    pipe: &mut Pipe,
    to: &TcpStream,
    more: bool,
    course: &mut Course,
) -> std::io::Result<()> {
    loop {
        let drained = to.attempt(Direction::Write, |fd| pipe.drain(fd, more))?;
        if pipe.held() == 0 {
            return Ok(());
        }
        course.slow = true;
        if drained.is_some() {
            course.restart_idle_time(to);
        }
        to.writable().await?;
    }
}

//! The splice engine: pages of the one socket's receive queue become the other's send queue.

use std::io;

use super::course::Course;
use super::outcome::{Begun, Broken};
use super::pipe::Pipe;
use crate::runtime::{Direction, TcpStream};

/// Fills the pipe with what is there, at most `most`, and drains it as far as the receiver takes it.
///
/// A step shorter than the pipe does not mean that the sender's queue is empty: a pipe has a slot
/// for each segment, and small segments use them up first. Only EAGAIN means it, and the pipe is
/// empty before each fill, so that EAGAIN is never the pipe's.
pub fn begin(
    mut pipe: Pipe,
    from: &TcpStream,
    to: &TcpStream,
    most: usize,
    course: &mut Course,
) -> Result<Begun, Broken> {
    let most = most.min(pipe.capacity());
    let filled = from
        .attempt(Direction::Read, |fd| pipe.fill(fd, most))
        .map_err(Broken::From)?;
    let Some(length @ 1..) = filled else {
        if filled.is_some() {
            from.check_end().map_err(Broken::From)?;
        }
        return Ok(Begun::Done(filled));
    };
    course.hold_back(length);
    drain(&mut pipe, to, course).map_err(Broken::To)?;
    if pipe.held() == 0 {
        return Ok(Begun::Done(filled));
    }
    course.slow = true;
    Ok(Begun::Spliced(length, pipe))
}

/// Drains the pipe as the receiver takes it.
pub async fn finish(pipe: &mut Pipe, to: &TcpStream, course: &Course) -> io::Result<()> {
    while pipe.held() > 0 {
        to.writable().await?;
        if drain(pipe, to, course)?.is_some() {
            course.restart_idle_time(to);
        }
    }
    Ok(())
}

fn drain(pipe: &mut Pipe, to: &TcpStream, course: &Course) -> io::Result<Option<usize>> {
    to.attempt(Direction::Write, |fd| pipe.drain(fd, course.more))
}

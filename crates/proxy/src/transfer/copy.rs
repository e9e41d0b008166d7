//! The copy engine: one receive, one send.

use std::io;

use super::buffer::Buffer;
use super::course::Course;
use super::outcome::{Begun, Broken};
use crate::runtime::TcpStream;

/// Receives what is there, at most a buffer or `most`, and sends what the receiver takes of it. The
/// rest waits in a copy of its own length: the thread's buffers are for bytes that move.
pub fn begin(
    mut buffer: Buffer,
    from: &TcpStream,
    to: &TcpStream,
    most: usize,
    course: &mut Course,
) -> Result<Begun, Broken> {
    let most = most.min(buffer.len());
    let received = from
        .try_receive(&mut buffer[..most])
        .map_err(Broken::From)?;
    let Some(length @ 1..) = received else {
        return Ok(Begun::Done(received));
    };
    course.hold_back(length);
    let sent = to
        .try_send(&buffer[..length], course.more)
        .map_err(Broken::To)?
        .unwrap_or(0);
    if sent == length {
        return Ok(Begun::Done(received));
    }
    course.slow = true;
    Ok(Begun::Copied(length, buffer[sent..length].to_vec()))
}

/// Sends the rest of a step as the receiver takes it.
pub async fn finish(mut rest: &[u8], to: &TcpStream, course: &Course) -> io::Result<()> {
    while !rest.is_empty() {
        to.writable().await?;
        if let Some(sent) = to.try_send(rest, course.more)? {
            rest = &rest[sent..];
            course.restart_idle_time(to);
        }
    }
    Ok(())
}

//! The copy engine: one receive, one send.

use super::buffer::Buffer;
use super::{Broken, Course};
use crate::runtime::TcpStream;

/// Moves what is there, at most a buffer or `most`; says how much, 0 at the sender's end, `None` if
/// there is nothing yet.
pub async fn step(
    mut buffer: Buffer,
    from: &TcpStream,
    to: &TcpStream,
    most: usize,
    course: &mut Course,
) -> Result<Option<usize>, Broken> {
    let most = most.min(buffer.len());
    let received = from
        .try_receive(&mut buffer[..most])
        .map_err(Broken::From)?;
    if let Some(received @ 1..) = received {
        send(to, buffer, received, course)
            .await
            .map_err(Broken::To)?;
    }
    Ok(received)
}

/// Sends the first bytes of a buffer and gives it back. What the socket does not take now waits in
/// a copy of its own length: the thread's buffers are for bytes that move.
async fn send(
    to: &TcpStream,
    buffer: Buffer,
    length: usize,
    course: &mut Course,
) -> std::io::Result<()> {
    let more = course.more_follows(length);
    let sent = to.try_send(&buffer[..length], more)?.unwrap_or(0);
    if sent == length {
        return Ok(());
    }
    course.slow = true;
    let rest = buffer[sent..length].to_vec();
    drop(buffer);
    let mut rest = rest.as_slice();
    while !rest.is_empty() {
        to.writable().await?;
        if let Some(sent) = to.try_send(rest, more)? {
            rest = &rest[sent..];
            course.restart_idle_time(to);
        }
    }
    Ok(())
}

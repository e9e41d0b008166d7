//! One step of a transfer: what is there moves as far as the receiver takes it.

use super::course::Course;
use super::outcome::{Begun, Broken};
use super::resources::Resources;
use super::{copy, splice};
use crate::runtime::TcpStream;
use crate::sys;

/// Moves what is there; 0 at the sender's end, `None` if there was nothing yet.
pub async fn step(
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

fn begin(
    resources: &Resources,
    from: &TcpStream,
    to: &TcpStream,
    course: &mut Course,
) -> Result<Begun, Broken> {
    let pressed = course.slow || resources.pipes.many_lent() || resources.buffers.many_lent();
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

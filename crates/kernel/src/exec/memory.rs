//! The server's memory: where accept() writes the peer's address.

use std::io::{IoSlice, IoSliceMut};

use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::Pid;

use super::call::{Accept, Call};
use super::calls::Calls;
use super::sockets::SocketAddress;

/// How much room for an address the caller has; `None`: it wants none.
///
/// # Errors
/// What accept() would return: EFAULT, EINVAL.
pub fn read_length(call: &Call, accept: &Accept) -> Result<Option<usize>, Errno> {
    let [address, length] = accept.address;
    if address == 0 {
        return Ok(None);
    }
    let mut bytes = [0; 4];
    let from = [remote(length, 4)];
    process_vm_readv(thread(call), &mut [IoSliceMut::new(&mut bytes)], &from)?;
    let room = i32::from_ne_bytes(bytes);
    usize::try_from(room).map(Some).map_err(|_| Errno::EINVAL)
}

/// Writes the address, cut to `room` bytes, and its whole length, as accept() does. Nothing is written for a
/// call that is no longer valid: its thread's number may be another's.
///
/// # Errors
/// EFAULT as accept() has it; ENOENT: no longer valid; EPERM: no right to.
pub fn write_address(
    calls: &Calls,
    call: &Call,
    accept: &Accept,
    room: usize,
    peer: &SocketAddress,
) -> Result<(), Errno> {
    if !calls.is_valid(call) {
        return Err(Errno::ENOENT);
    }
    let bytes = peer.bytes();
    let written = &bytes[..room.min(bytes.len())];
    let length = (bytes.len() as i32).to_ne_bytes();
    let [to, to_length] = accept.address;
    let local = [IoSlice::new(written), IoSlice::new(&length)];
    let remote = [remote(to, written.len()), remote(to_length, 4)];
    let first = usize::from(written.is_empty());
    match process_vm_writev(thread(call), &local[first..], &remote[first..])? {
        n if n == written.len() + 4 => Ok(()),
        _ => Err(Errno::EFAULT),
    }
}

fn thread(call: &Call) -> Pid {
    Pid::from_raw(call.thread)
}

fn remote(address: u64, len: usize) -> RemoteIoVec {
    RemoteIoVec {
        base: address as usize,
        len,
    }
}

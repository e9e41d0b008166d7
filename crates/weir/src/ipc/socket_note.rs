//! A note beside a control socket that says where the API of the same process listens, if the config file chose the
//! place: so that a later weir finds what one that was killed has left there.

use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::ipc::socket_file::remove_dead;

/// The note beside a control socket.
pub fn of(control_socket: &Path) -> PathBuf {
    control_socket.with_extension("api")
}

/// Writes a note.
///
/// # Errors
/// The folder cannot be written to.
pub fn write(note: &Path, socket: &Path) -> std::io::Result<()> {
    fs::write(note, std::path::absolute(socket)?.as_os_str().as_bytes())
}

/// Removes the socket that a note names, if nobody listens on it any more, and the note. Call it for a process that has
/// ended.
pub fn sweep(note: &Path) {
    let Ok(socket) = fs::read(note) else { return };
    let socket = PathBuf::from(std::ffi::OsString::from_vec(socket));
    if let Err(error) = remove_dead(&socket) {
        tracing::warn!("{} stays: {error}", socket.display());
    }
    // One that stays does no harm: it is read again.
    let _ = fs::remove_file(note);
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::ipc::socket_file::tests::{Dir, leave_dead};

    #[test]
    fn what_a_note_names_goes_with_it_unless_somebody_listens() {
        let dir = Dir::new("socket-note");
        let note = of(&dir.0.join("net-1.sock"));
        let (dead, living) = (dir.0.join("dead"), dir.0.join("living"));
        leave_dead(&dead);
        let _listener = UnixListener::bind(&living).unwrap();
        for (socket, lives) in [(dead, false), (living, true)] {
            write(&note, &socket).unwrap();
            sweep(&note);
            assert_eq!((socket.exists(), note.exists()), (lives, false));
        }
        sweep(&note);
    }
}

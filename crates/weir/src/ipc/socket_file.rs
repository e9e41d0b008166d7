//! A Unix socket that is listened on, and the file by which others find it.
//!
//! weir runs as root and the path may be the operator's, so nothing goes that somebody may still need: before
//! only a socket that nobody listens on any more, afterwards only the very file that was made.

use std::fs::symlink_metadata;
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use nix::sys::stat::{Mode, umask};

use crate::ipc::spare;

/// The file; removed on drop, if it is still the one that was made. Drop it before the socket, which keeps
/// its inode number from being another's.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    id: FileId,
}

/// Device and inode.
type FileId = (u64, u64);

impl SocketFile {
    /// Listens on a socket that only its owner and root can connect to. A dead process's socket makes room.
    ///
    /// # Errors
    /// Something else is there ([`ErrorKind::AlreadyExists`]), or somebody listens ([`ErrorKind::AddrInUse`]);
    /// it stays. Or the folder is missing or closed to weir.
    pub fn listen(path: &Path) -> io::Result<(SocketFile, UnixListener)> {
        remove_dead(path)?;
        let before = umask(Mode::from_bits_truncate(0o177));
        let listener = UnixListener::bind(path);
        umask(before);
        let listener = listener?;
        listener.set_nonblocking(true)?;
        spare::keep();
        let file = SocketFile {
            path: path.to_owned(),
            id: id_of(path)?,
        };
        Ok((file, listener))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes it, unless another one has taken its place.
    pub fn remove(&self) {
        if id_of(&self.path).is_ok_and(|id| id == self.id) {
            // One that cannot be removed does no harm: who connects to it is refused.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        self.remove();
    }
}

fn id_of(path: &Path) -> io::Result<FileId> {
    let file = symlink_metadata(path)?;
    Ok((file.dev(), file.ino()))
}

/// Removes a socket that nobody listens on.
///
/// # Errors
/// There is something else, which stays, or it cannot be removed.
pub fn remove_dead(path: &Path) -> io::Result<()> {
    let file = match symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        file => file?,
    };
    if !file.file_type().is_socket() {
        let text = "there is something that is no socket, which weir leaves alone";
        return Err(io::Error::new(ErrorKind::AlreadyExists, text));
    }
    if !is_dead(path)? {
        let text = "another process listens there";
        return Err(io::Error::new(ErrorKind::AddrInUse, text));
    }
    // Another process that found it dead too may have taken its place meanwhile.
    match id_of(path) {
        Ok(id) if id == (file.dev(), file.ino()) => std::fs::remove_file(path),
        _ => Ok(()),
    }
}

/// Whether the socket is refused by the kernel. All else is an answer: a full queue (EAGAIN), another type
/// (EPROTOTYPE), no right (EACCES).
fn is_dead(path: &Path) -> io::Result<bool> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let asking = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    let answer = connect(asking.as_raw_fd(), &UnixAddr::new(path)?);
    Ok(answer == Err(Errno::ECONNREFUSED))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::net::{UnixDatagram, UnixStream};

    use super::*;

    /// A directory of its own for each test, removed on drop.
    pub(crate) struct Dir(pub(crate) PathBuf);

    impl Dir {
        pub(crate) fn new(name: &str) -> Dir {
            let path = std::env::temp_dir().join(format!("weir-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Dir(path)
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// A socket that nobody listens on. It never did: a child that another test starts has all open sockets until it
    /// executes its program, and would listen in place of who has ended.
    pub(crate) fn leave_dead(path: &Path) {
        let server = socket(
            AddressFamily::Unix,
            SockType::Stream,
            SockFlag::SOCK_CLOEXEC,
            None,
        )
        .unwrap();
        nix::sys::socket::bind(server.as_raw_fd(), &UnixAddr::new(path).unwrap()).unwrap();
    }

    #[test]
    fn what_is_no_dead_socket_stays() {
        let dir = Dir::new("socket-stays");
        let at = |name: &str| dir.0.join(name);
        std::fs::write(at("file"), "precious").unwrap();
        std::os::unix::fs::symlink(at("file"), at("link")).unwrap();
        std::fs::create_dir(at("dir")).unwrap();
        let _living = UnixListener::bind(at("living")).unwrap();
        let _datagrams = UnixDatagram::bind(at("datagrams")).unwrap();
        std::os::unix::fs::symlink(at("living"), at("link-to-living")).unwrap();
        for (name, kind) in [
            ("file", ErrorKind::AlreadyExists),
            ("link", ErrorKind::AlreadyExists),
            ("dir", ErrorKind::AlreadyExists),
            ("link-to-living", ErrorKind::AlreadyExists),
            ("living", ErrorKind::AddrInUse),
            ("datagrams", ErrorKind::AddrInUse),
        ] {
            let before = id_of(&at(name)).unwrap();
            assert_eq!(
                SocketFile::listen(&at(name)).unwrap_err().kind(),
                kind,
                "{name}"
            );
            assert_eq!(id_of(&at(name)).unwrap(), before, "{name}");
        }
        assert_eq!(std::fs::read(at("file")).unwrap(), b"precious");
        assert!(UnixStream::connect(at("living")).is_ok());
    }

    #[test]
    fn a_server_whose_queue_is_full_lives() {
        let dir = Dir::new("socket-full");
        let path = dir.0.join("full");
        let flags = SockFlag::SOCK_CLOEXEC;
        let server = socket(AddressFamily::Unix, SockType::Stream, flags, None).unwrap();
        nix::sys::socket::bind(server.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
        assert!(is_dead(&path).unwrap(), "it does not listen yet");
        let backlog = nix::sys::socket::Backlog::new(1).unwrap();
        nix::sys::socket::listen(&server, backlog).unwrap();
        let _queued = [(); 2].map(|()| UnixStream::connect(&path).unwrap());
        assert!(!is_dead(&path).unwrap());
    }

    #[test]
    fn a_dead_socket_makes_room_and_only_ones_own_goes() {
        let dir = Dir::new("socket-own");
        let path = dir.0.join("socket");
        leave_dead(&path);
        let (first, _listener) = SocketFile::listen(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let (second, _other) = SocketFile::listen(&path).unwrap();
        drop(first);
        assert!(UnixStream::connect(&path).is_ok(), "the other one's");
        drop(second);
        assert!(!path.exists());
    }

    #[test]
    fn no_folder_is_made() {
        let dir = Dir::new("socket-folder");
        let missing = dir.0.join("missing");
        let error = SocketFile::listen(&missing.join("socket")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(!missing.exists());
    }
}

//! A lock between processes: a file that flock(2) locks. The kernel gives it back when its holder dies.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

/// How often somebody who waits looks.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A lock that is held until this value goes; the file goes with it.
#[derive(Debug)]
pub struct Lock {
    _file: Flock<File>,
    path: PathBuf,
}

/// Why a lock was not taken.
#[derive(Debug)]
pub enum NotTaken {
    /// The holder keeps it: the file, open to read.
    Held(File),
    /// The file cannot be made, or not be locked.
    Failed(io::Error),
}

/// Makes the file and locks it; waits for a holder, but no longer than this. Whoever removes the file is to hold the lock.
///
/// # Errors
/// See [`NotTaken`].
pub fn take(path: &Path, at_most: Duration) -> Result<Flock<File>, NotTaken> {
    let end = Instant::now() + at_most;
    loop {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(NotTaken::Failed)?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            // The holder before may have removed the file between our open and our lock: nobody else will find that one.
            Ok(file) if is_at(path, &file.metadata().map_err(NotTaken::Failed)?) => {
                return Ok(file);
            }
            Ok(_) => {}
            Err((_, Errno::EWOULDBLOCK)) if Instant::now() < end => {
                std::thread::sleep(LOOK_EVERY);
            }
            Err((file, Errno::EWOULDBLOCK)) => return Err(NotTaken::Held(file)),
            Err((_, errno)) => return Err(NotTaken::Failed(errno.into())),
        }
    }
}

impl Lock {
    /// As [`take`].
    ///
    /// # Errors
    /// As there; EWOULDBLOCK: the holder keeps it.
    pub fn wait(path: &Path, at_most: Duration) -> io::Result<Lock> {
        let file = take(path, at_most).map_err(|error| match error {
            NotTaken::Held(_) => Errno::EWOULDBLOCK.into(),
            NotTaken::Failed(error) => error,
        })?;
        Ok(Lock {
            _file: file,
            path: path.to_owned(),
        })
    }
}

fn is_at(path: &Path, ours: &Metadata) -> bool {
    std::fs::metadata(path)
        .is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino()))
}

impl Drop for Lock {
    fn drop(&mut self) {
        // While it is held, so that it cannot be a successor's.
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holds_it_and_the_next_has_it_when_that_one_goes() {
        let path = std::env::temp_dir().join(format!("weir-lock-{}", std::process::id()));
        let first = Lock::wait(&path, Duration::ZERO).unwrap();
        let refused = Lock::wait(&path, Duration::ZERO).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        let next = std::thread::scope(|scope| {
            let waits = scope.spawn(|| Lock::wait(&path, Duration::from_secs(60)));
            drop(first);
            waits.join().unwrap()
        });
        assert!(path.exists());
        drop(next.unwrap());
        assert!(!path.exists());
    }
}

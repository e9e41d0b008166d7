//! A descriptor that is kept for the time when the process has no other left: without it a client of the control socket
//! could be neither taken nor turned away, and would wake its loop for ever.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;

/// Between two lines of the log.
const SAID_EVERY: Duration = Duration::from_secs(10);
/// Without the spare one the loop would come back at once.
const PAUSE: Duration = Duration::from_millis(100);

static SPARE: Mutex<Spare> = Mutex::new(Spare {
    file: None,
    said: None,
});

struct Spare {
    file: Option<File>,
    said: Option<Instant>,
}

/// Keeps one, if the process has one left and keeps none yet.
pub fn keep() {
    with(|spare| spare.keep());
}

fn with<T>(act: impl FnOnce(&mut Spare) -> T) -> T {
    act(&mut SPARE.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The next client that waits, if one does. Without a descriptor for it, it gets `refusal`, and its connection ends.
pub fn accept(listener: &UnixListener, refusal: impl FnOnce() -> String) -> Option<UnixStream> {
    match listener.accept() {
        Ok((stream, _)) => {
            keep();
            Some(stream)
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
        Err(error) => {
            let used_up = matches!(
                error.raw_os_error().map(Errno::from_raw),
                Some(Errno::EMFILE | Errno::ENFILE)
            );
            with(|spare| {
                spare.say(&error);
                let has_one_now = used_up && spare.file.take().is_some();
                if !has_one_now {
                    std::thread::sleep(PAUSE);
                    return;
                }
                if let Ok((mut stream, _)) = listener.accept() {
                    // It does not wait: a client that does not read gets a part, or nothing.
                    let _ = stream.set_nonblocking(true);
                    let _ = stream.write_all(refusal().as_bytes());
                }
                spare.keep();
            });
            None
        }
    }
}

impl Spare {
    fn keep(&mut self) {
        if self.file.is_none() {
            self.file = File::open("/dev/null").ok();
        }
    }

    fn say(&mut self, error: &io::Error) {
        let now = Instant::now();
        if self.said.is_none_or(|said| now - said >= SAID_EVERY) {
            self.said = Some(now);
            tracing::warn!("control socket: a client is turned away: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::Command;

    use nix::sys::resource::{Resource, getrlimit, setrlimit};

    use super::*;

    const CHILD: &str = "WEIR_TEST_WITHOUT_DESCRIPTORS";

    /// In a process of its own, because no other test has a descriptor meanwhile.
    #[test]
    fn without_a_descriptor_a_client_is_told_and_does_not_wake_the_loop_again() {
        if std::env::var_os(CHILD).is_none() {
            let name = concat!(
                module_path!(),
                "::without_a_descriptor_a_client_is_told_and_does_not_wake_the_loop_again"
            );
            let name = name.split_once("::").unwrap().1;
            let child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", name])
                .env(CHILD, "1")
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&child.stdout);
            assert!(
                child.status.success() && text.contains("1 passed"),
                "{child:?}"
            );
            return;
        }
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, 64, hard).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        keep();
        let mut clients = [0; 3].map(|_| UnixStream::connect(&path).unwrap());
        let all: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
        for client in &mut clients {
            assert!(accept(&listener, || "busy\n".to_owned()).is_none());
            let mut answer = String::new();
            client
                .set_read_timeout(Some(Duration::from_secs(5)))
                .unwrap();
            client.read_to_string(&mut answer).unwrap();
            assert_eq!(answer, "busy\n");
        }
        drop(all);
        let nobody = listener.accept().unwrap_err();
        assert_eq!(nobody.kind(), io::ErrorKind::WouldBlock);
        let _served = UnixStream::connect(&path).unwrap();
        assert!(accept(&listener, String::new).is_some());
    }
}

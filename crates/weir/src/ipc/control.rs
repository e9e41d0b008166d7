//! How `weir status`, `reload` and `detach` reach the process that guards their network namespace.
//!
//! In the runtime directory each namespace has a lock file and a socket, named after its inode
//! number. The lock makes "one weir per namespace" free of races, and the kernel gives it back when
//! the process dies; whoever holds it may remove a dead process's socket. A request is one line of
//! JSON, the answer another. The socket's permissions (0600) let its owner and root
//! in only.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::socket::{MsgFlags, getsockopt, sockopt::PeerCredentials};
use serde::Deserialize;
use weir_api::{Answer, Question};

use crate::failure::{Failure, Result};
use crate::host::lock::{self, NotTaken};
use crate::ipc::control_listener::ControlListener;
use crate::ipc::peer::{Asker, Peer};
use crate::ipc::socket_file::{SocketFile, remove_dead};
use crate::ipc::socket_note;

/// A request is one short line; whoever is slower to send it than this is not served.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest request, in bytes: a class with its lists of prefixes.
const REQUEST_BYTES: u64 = 128 << 10;
/// Longest answer, in bytes: the status of some thousand listeners and backends.
const ANSWER_BYTES: u64 = 16 << 20;
/// Longer than a detach takes (it drains for some 300 ms) and than a reload of many listeners.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// `weir status` locks the file for a moment to see whether another process has it, and a process that was killed has it
/// until its last socket is closed.
const LOCKED_FOR_A_LOOK: Duration = Duration::from_millis(200);

/// The answer is to no such question: that of another version.
pub fn another_answer() -> Failure {
    let hint = "is it of another version? restart it";
    Failure::failed("the running weir gave another answer", hint)
}

/// Inode number of the network namespace of this process.
///
/// # Errors
/// No /proc.
pub fn namespace() -> Result<u64> {
    let path = "/proc/self/ns/net";
    let meta = std::fs::metadata(path).map_err(|e| Failure::io(format_args!("read {path}"), e))?;
    Ok(meta.ino())
}

fn socket_path(dir: &Path, namespace: u64) -> PathBuf {
    dir.join(format!("net-{namespace}.sock"))
}

fn lock_path(dir: &Path, namespace: u64) -> PathBuf {
    dir.join(format!("net-{namespace}.lock"))
}

/// The right to guard a network namespace, and the socket on which its holder is asked.
#[derive(Debug)]
pub struct Claim {
    socket: SocketFile,
    listener: ControlListener,
    lock: Flock<File>,
    lock_path: PathBuf,
}

impl Claim {
    /// Takes the namespace.
    ///
    /// # Errors
    /// Another weir has it, or the runtime directory cannot be written.
    pub fn take(dir: &Path, namespace: u64) -> Result<Claim> {
        let shown = dir.display();
        create_dir(dir).map_err(|error| no_access(format_args!("create {shown}"), dir, error))?;
        let lock_path = lock_path(dir, namespace);
        let lock = take_lock(&lock_path)?;
        let socket = socket_path(dir, namespace);
        // Of one that was killed: nobody else has the lock.
        socket_note::sweep(&socket_note::of(&socket));
        let (socket, listener) = ControlListener::listen(&socket).map_err(|error| {
            no_access(
                format_args!("listen on {}", socket.display()),
                &socket,
                error,
            )
        })?;
        Ok(Claim {
            socket,
            listener,
            lock,
            lock_path,
        })
    }
}

/// Notes that the API of the guard of this namespace listens on a socket that is not the default one. A note that
/// cannot be written matters only after a `kill -9`.
pub fn note_api_socket(dir: &Path, namespace: u64, socket: &Path) {
    let note = socket_note::of(&socket_path(dir, namespace));
    if let Err(error) = socket_note::write(&note, socket) {
        tracing::warn!("cannot write {}: {error}", note.display());
    }
}

/// The inode numbers of the network namespaces that some weir guards, as far as this process may see them.
pub fn guarded(dir: &Path) -> Vec<u64> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let held = |path: &Path| {
        let file = File::open(path).ok()?;
        let lock = Flock::lock(file, FlockArg::LockSharedNonblock);
        matches!(lock, Err((_, Errno::EWOULDBLOCK))).then_some(())
    };
    let guarded = entries.filter_map(|entry| {
        let name = entry.file_name();
        let inode = name.to_str()?.strip_prefix("net-")?.strip_suffix(".lock")?;
        held(&entry.path())?;
        inode.parse().ok()
    });
    guarded.collect()
}

/// A control socket.
pub trait ControlSocket: AsFd {
    /// As [`next_client`].
    fn next(&self) -> Option<(Question, Client)>;
}

impl ControlSocket for Claim {
    fn next(&self) -> Option<(Question, Client)> {
        next_client(&self.listener)
    }
}

/// A client that has asked, with its request; `None` if none is or it asked nonsense (which
/// then has been answered).
pub fn next_client(listener: &ControlListener) -> Option<(Question, Client)> {
    let stream = listener.next(|| {
        let hint = "LimitNOFILE= of the service or `ulimit -n` gives it more";
        line(&Err(Failure::failed("weir has no descriptor left", hint)))
    })?;
    let client = Client { stream };
    match client.question() {
        Ok(question) => Some((question, client)),
        Err(error) => {
            tracing::warn!("control socket: request of {}: {error}", client.asker());
            let hint = "requests are one line, for example {\"command\":\"status\"}";
            let message = format!("the request cannot be read: {error}");
            client.answer(&Err(Failure::usage(message, hint)));
            None
        }
    }
}

impl AsFd for Claim {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Both files go while the lock is held, so neither can be a successor's. One that cannot be
        // removed does no harm: the next claim takes it over.
        let _ = self.lock.set_len(0);
        let _ = std::fs::remove_file(socket_note::of(self.socket.path()));
        self.socket.remove();
        let _ = std::fs::remove_file(&self.lock_path);
    }
}

/// Creates the runtime directory, if it is missing.
pub fn create_dir(dir: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(dir)
}

/// A failure with a file of the runtime directory. No capability that weir asks for is a right to files: the hint says
/// whose they are.
fn no_access(what: impl fmt::Display, path: &Path, error: io::Error) -> Failure {
    if error.kind() != io::ErrorKind::PermissionDenied {
        return Failure::io(what, error);
    }
    let mut places = path.ancestors();
    let owner = places.find_map(|place| Some((place, place.symlink_metadata().ok()?.uid())));
    let hint = owner.map_or(String::new(), |(place, uid)| {
        let (place, owner) = (place.display(), user_name(uid));
        format!("{place} belongs to {owner}: run weir as {owner}, or name a folder of your own with --runtime-dir")
    });
    Failure::failed(format!("cannot {what}: {error}"), hint)
}

/// Its name; the number of one that has none.
fn user_name(uid: u32) -> String {
    let user = nix::unistd::User::from_uid(uid.into()).ok().flatten();
    user.map_or_else(|| format!("user {uid}"), |user| user.name)
}

/// Locks the file and writes the process id into it.
fn take_lock(path: &Path) -> Result<Flock<File>> {
    let failed = |error| no_access(format_args!("lock {}", path.display()), path, error);
    let mut file = lock::take(path, LOCKED_FOR_A_LOOK).map_err(|error| match error {
        NotTaken::Held(file) => taken(file),
        NotTaken::Failed(error) => failed(error),
    })?;
    file.set_len(0).map_err(failed)?;
    write!(file, "{}", std::process::id()).map_err(failed)?;
    Ok(file)
}

fn taken(mut lock: File) -> Failure {
    let mut pid = String::new();
    let holder = match lock.read_to_string(&mut pid) {
        Ok(_) if !pid.is_empty() => format!(" (pid {pid})"),
        _ => String::new(),
    };
    Failure::failed(
        format!("this network namespace is already guarded by another weir{holder}"),
        "`weir status` shows what it does, `weir detach` takes it off; \
         `weir protect 80 443` guards several ports at once",
    )
}

/// A client of the control socket that waits for its answer.
pub struct Client {
    stream: UnixStream,
}

impl Client {
    /// The client at the other end of this socket.
    #[cfg(feature = "fuzzing")]
    pub fn on(stream: UnixStream) -> Client {
        Client { stream }
    }

    /// What it asks. A client that was answered may ask again.
    ///
    /// # Errors
    /// It is gone, slow, or asks nonsense.
    pub fn question(&self) -> io::Result<Question> {
        self.stream.set_nonblocking(false)?;
        self.stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
        self.stream.set_write_timeout(Some(REQUEST_TIMEOUT))?;
        Ok(serde_json::from_str(&read_line(
            &self.stream,
            REQUEST_BYTES,
        )?)?)
    }

    /// Who it is, by the kernel.
    pub fn asker(&self) -> Asker {
        let credentials = getsockopt(&self.stream, PeerCredentials).ok();
        Asker::Control(Peer {
            uid: credentials.map_or(u32::MAX, |peer| peer.uid()),
            // 0: of a namespace that this one does not see.
            pid: credentials.map(|peer| peer.pid()).filter(|pid| *pid > 0),
        })
    }

    /// Answers; a client that has gone is only logged.
    pub fn answer(&self, answer: &Result<Answer>) {
        if let Err(error) = (&self.stream).write_all(line(answer).as_bytes()) {
            tracing::debug!("control socket: the client has gone: {error}");
        }
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

fn line(answer: &Result<Answer>) -> String {
    let line = match answer {
        Ok(answer) => serde_json::to_string(answer),
        Err(error) => serde_json::to_string(&serde_json::json!({ "error": error })),
    };
    line.expect("answers are JSON") + "\n"
}

/// What stands in a line.
///
/// # Errors
/// Nothing that this version knows.
pub fn read(line: &str) -> serde_json::Result<Result<Answer>> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Refused {
        error: Failure,
    }
    match serde_json::from_str::<Refused>(line) {
        Ok(refused) => Ok(Err(refused.error)),
        Err(_) => serde_json::from_str(line).map(Ok),
    }
}

/// Asks the weir of a namespace; `None` if there is none.
///
/// # Errors
/// No right to ask it, no answer, or its own error.
pub fn ask<T: TryFrom<Answer>>(
    dir: &Path,
    namespace: u64,
    question: &Question,
) -> Result<Option<T>> {
    ask_at(&socket_path(dir, namespace), question)
}

/// Asks the process whose control socket this is; `None` if nobody listens there any more.
///
/// # Errors
/// As of [`ask`].
pub fn ask_at<T: TryFrom<Answer>>(path: &Path, question: &Question) -> Result<Option<T>> {
    let stream = connect(path)?;
    let ask = |stream| ask_on(&stream, path, question);
    stream.map(ask).transpose()
}

/// Connects to the control socket of a process; `None` if there is none.
///
/// # Errors
/// No right to ask it.
pub fn connect(path: &Path) -> Result<Option<UnixStream>> {
    match UnixStream::connect(path) {
        Ok(stream) => Ok(Some(stream)),
        Err(error) => match error.kind() {
            // No socket, or one that a killed process has left.
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Ok(None),
            io::ErrorKind::PermissionDenied => {
                let message = format!("no right to ask {}: {error}", path.display());
                let owner = path.symlink_metadata().map_or(0, |file| file.uid());
                let hint = match owner {
                    0 => "ask as root (sudo)".to_owned(),
                    uid => format!("ask as root (sudo), or as {}, who runs it", user_name(uid)),
                };
                Err(Failure::failed(message, hint))
            }
            _ => Err(Failure::io(
                format_args!("connect to {}", path.display()),
                error,
            )),
        },
    }
}

/// Asks on a connection; `path` names it in errors. What follows the answer is left to be read.
///
/// # Errors
/// No answer, or the other side's error.
pub fn ask_on<T: TryFrom<Answer>>(
    stream: &UnixStream,
    path: &Path,
    question: &Question,
) -> Result<T> {
    let line = exchange(stream, question).map_err(|error| no_answer(path, &error))?;
    let answer = read(&line).map_err(|error| {
        let message = format!(
            "the answer on {} is not understood: {error}",
            path.display()
        );
        Failure::failed(
            message,
            "is the running weir of another version? restart it",
        )
    })?;
    T::try_from(answer?).map_err(|_| another_answer())
}

/// Removes what a killed process has left, if there is anything and nobody holds the namespace.
///
/// # Errors
/// The files cannot be removed.
pub fn sweep(dir: &Path, namespace: u64) -> Result<()> {
    let api = dir.join(weir_client::default_socket_name(namespace));
    let files = [
        socket_path(dir, namespace),
        lock_path(dir, namespace),
        socket_note::of(&socket_path(dir, namespace)),
        api.clone(),
    ];
    if files.iter().any(|file| file.exists()) {
        let claim = Claim::take(dir, namespace)?;
        if let Err(error) = remove_dead(&api) {
            tracing::warn!("{} stays: {error}", api.display());
        }
        drop(claim);
    }
    Ok(())
}

fn no_answer(path: &Path, error: &io::Error) -> Failure {
    let hint = match error.kind() {
        // To a question that it does not know.
        io::ErrorKind::UnexpectedEof => {
            "an older weir does so where it lacks a command: restart it"
        }
        _ => "is the process stopped? its pid is in the .lock file beside it",
    };
    Failure::failed(format!("no answer on {}: {error}", path.display()), hint)
}

fn exchange(mut stream: &UnixStream, question: &Question) -> io::Result<String> {
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    let mut line = serde_json::to_string(question).expect("questions are JSON");
    line.push('\n');
    stream.write_all(line.as_bytes())?;
    let answer = read_line(stream, ANSWER_BYTES)?;
    if answer.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "it closed the connection",
        ));
    }
    Ok(answer)
}

/// Reads a line and not a byte more: what follows may carry descriptors, which a longer read would
/// lose.
fn read_line(stream: &UnixStream, most: u64) -> io::Result<String> {
    let mut line = Vec::new();
    let mut peeked = [0; 4096];
    loop {
        let seen = nix::sys::socket::recv(stream.as_raw_fd(), &mut peeked, MsgFlags::MSG_PEEK)?;
        let end = peeked[..seen].iter().position(|&byte| byte == b'\n');
        let wanted = end.map_or(seen, |at| at + 1);
        (&*stream).read_exact(&mut peeked[..wanted])?;
        line.extend_from_slice(&peeked[..wanted]);
        if end.is_some() || seen == 0 {
            break;
        }
        if line.len() as u64 > most {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the line is too long",
            ));
        }
    }
    String::from_utf8(line).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};

    use weir_api::{Reloaded, Status};

    use super::*;
    use crate::ipc::socket_file::tests::{Dir, leave_dead};

    fn serve_one(claim: &Claim, answer: &Result<Answer>) -> Question {
        loop {
            if let Some((question, client)) = claim.next() {
                client.answer(answer);
                return question;
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_look_at_the_lock_keeps_nobody_from_the_claim() {
        let dir = Dir::new("look");
        create_dir(&dir.0).unwrap();
        let file = File::create(lock_path(&dir.0, 1)).unwrap();
        let look = Flock::lock(file, FlockArg::LockSharedNonblock).unwrap();
        std::thread::scope(|scope| {
            let claim = scope.spawn(|| Claim::take(&dir.0, 1).map(drop));
            std::thread::sleep(Duration::from_millis(20));
            drop(look);
            claim.join().unwrap().unwrap();
        });
    }

    #[test]
    fn one_namespace_has_one_claim_and_the_second_hears_whose() {
        let dir = Dir::new("claim");
        let first = Claim::take(&dir.0, 1).unwrap();
        let refused = Claim::take(&dir.0, 1).unwrap_err().to_string();
        assert!(
            refused.contains(&format!("(pid {})", std::process::id())),
            "{refused}"
        );
        assert!(Claim::take(&dir.0, 2).is_ok(), "another namespace");
        drop(first);
        assert!(Claim::take(&dir.0, 1).is_ok());
    }

    #[test]
    fn nothing_stays_behind_and_what_a_killed_process_left_is_swept() {
        let dir = Dir::new("stale");
        drop(Claim::take(&dir.0, 1).unwrap());
        assert_eq!(std::fs::read_dir(&dir.0).unwrap().count(), 0);
        leave_dead(&socket_path(&dir.0, 1));
        std::fs::write(lock_path(&dir.0, 1), "4194304").unwrap();
        drop(Claim::take(&dir.0, 1).unwrap());
        leave_dead(&socket_path(&dir.0, 1));
        let status = ask::<Answer>(&dir.0, 1, &Question::Status);
        assert_eq!(status.unwrap(), None);
        sweep(&dir.0, 1).unwrap();
        assert_eq!(std::fs::read_dir(&dir.0).unwrap().count(), 0);
    }

    #[test]
    fn only_the_owner_can_connect() {
        let dir = Dir::new("mode");
        let _claim = Claim::take(&dir.0, 1).unwrap();
        let mode = std::fs::metadata(socket_path(&dir.0, 1)).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn requests_are_answered_and_errors_arrive_with_their_exit_code() {
        let dir = Dir::new("ask");
        let claim = Claim::take(&dir.0, 1).unwrap();
        let bad = || Failure::usage("bad file", "mend it");
        let answers = [
            Ok(Answer::Detached { pid: 7 }),
            Err(bad()),
            Ok(Answer::Classes(Vec::new())),
        ];
        let questions = [
            Question::Detach,
            Question::Reload { confirm_s: None },
            Question::Status,
        ];
        std::thread::scope(|scope| {
            let server = scope.spawn(move || answers.map(|answer| serve_one(&claim, &answer)));
            let ok = ask(&dir.0, 1, &questions[0]);
            assert_eq!(ok, Ok(Some(Answer::Detached { pid: 7 })));
            let error = ask::<Reloaded>(&dir.0, 1, &questions[1]);
            assert_eq!(error, Err(bad()));
            let another = ask::<Status>(&dir.0, 1, &questions[2]);
            assert_eq!(another, Err(another_answer()));
            assert_eq!(server.join().unwrap(), questions);
        });
    }

    #[test]
    fn a_connection_that_is_closed_may_be_that_of_an_older_weir() {
        let (here, there) = UnixStream::pair().unwrap();
        let older = std::thread::spawn(move || {
            let mut question = String::new();
            BufReader::new(there).read_line(&mut question).unwrap();
        });
        let question = Question::Observe { for_s: 60 };
        let failure = ask_on::<Reloaded>(&here, Path::new("it"), &question).unwrap_err();
        older.join().unwrap();
        assert!(failure.to_string().contains("an older weir"), "{failure}");
    }

    #[test]
    fn nonsense_is_answered_with_an_error() {
        let dir = Dir::new("nonsense");
        let claim = Claim::take(&dir.0, 1).unwrap();
        let mut stream = UnixStream::connect(socket_path(&dir.0, 1)).unwrap();
        stream.write_all(b"hello\n").unwrap();
        assert!(claim.next().is_none());
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).unwrap();
        assert!(answer.starts_with("{\"error\":"), "{answer}");
    }
}

//! The access log: one JSON line for each request and for each tunnel, at its end.
//!
//! Threads that move data put entries into a queue of bounded length and never wait: when it is full,
//! the line is lost and counted. A thread of its own makes lines of them and writes.

use std::cell::{Cell, RefCell};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;
use weir_core::rfc3339::Rfc3339;

use crate::address::canonical;

/// Lines that may wait for the writer: at 100 000 a second, 80 ms.
const QUEUE: usize = 8192;
/// How long the last lines have at the log's end: its reader may stand still.
const PATIENCE: Duration = Duration::from_secs(1);
/// Lines are written together up to so many bytes.
const BATCH_BYTES: usize = 64 * 1024;
/// The path that stands for standard error.
const STDERR: &str = "-";
/// Bytes of a field of the request that a line has at most: clients choose them.
const MAX_FIELD_BYTES: usize = 512;

/// What the log says of a request.
#[derive(Debug, Default)]
pub struct LoggedRequest {
    /// Its method.
    pub method: String,
    /// Its target as written.
    pub target: String,
    /// The host and port that it names; `None` only in HTTP/1.0.
    pub host: Option<String>,
    /// The first `User-Agent`.
    pub user_agent: Option<String>,
}

/// A field's value as the log shows it: its first 512 bytes, with U+FFFD for what is not UTF-8 and for control characters
/// beyond ASCII, which some terminals obey. JSON escapes those of ASCII.
pub fn shown(value: &[u8]) -> String {
    let value = &value[..value.len().min(MAX_FIELD_BYTES)];
    let text = String::from_utf8_lossy(value);
    match value.is_ascii() {
        true => text.into_owned(),
        false => text.replace(
            |char: char| !char.is_ascii() && char.is_control(),
            "\u{fffd}",
        ),
    }
}

/// What became of a request, as it becomes known.
#[derive(Debug)]
pub struct Entry {
    began: SystemTime,
    start: Instant,
    client: SocketAddr,
    request: Option<LoggedRequest>,
    /// The reply's status.
    pub status: Cell<Option<u16>>,
    /// Bytes of bodies, without the framing of chunks, and of tunnels, from the client and to it.
    pub bytes: Cell<(u64, u64)>,
    /// Of these, those that splice(2) moved, and those that the kernel carried from socket to socket.
    by_kernel: Cell<(u64, u64)>,
    /// Of these, those that were sent from the cache's memory.
    by_cache: Cell<u64>,
    /// The last server that was tried.
    pub backend: Cell<Option<SocketAddr>>,
    /// On a connection that was open already.
    pub reused: Cell<bool>,
    /// How often it was sent again.
    pub retries: Cell<u32>,
    /// It became a tunnel.
    pub tunnel: Cell<bool>,
    /// Why it was refused or broke off.
    pub reason: RefCell<Option<String>>,
}

impl Entry {
    /// A request that begins now. `None`: a tunnel that no request asked for, or what was no request. An IPv4 client of
    /// a listener on `[::]` is shown as what it is.
    pub fn new(client: SocketAddr, request: Option<LoggedRequest>) -> Entry {
        Entry {
            began: SystemTime::now(),
            start: Instant::now(),
            client: canonical(client),
            request,
            status: Cell::default(),
            bytes: Cell::default(),
            by_kernel: Cell::default(),
            by_cache: Cell::default(),
            backend: Cell::default(),
            reused: Cell::default(),
            retries: Cell::default(),
            tunnel: Cell::default(),
            reason: RefCell::default(),
        }
    }

    /// Adds bytes that were moved.
    pub fn moved(&self, up: u64, down: u64) {
        let (before_up, before_down) = self.bytes.get();
        self.bytes.set((before_up + up, before_down + down));
    }

    /// Says that of the bytes moved so many were spliced, and so many redirected.
    pub fn moved_by_kernel(&self, spliced: u64, redirected: u64) {
        let (spliced_before, redirected_before) = self.by_kernel.get();
        let sums = (spliced_before + spliced, redirected_before + redirected);
        self.by_kernel.set(sums);
    }

    /// Adds bytes that the client got from the cache.
    pub fn sent_by_cache(&self, down: u64) {
        self.moved(0, down);
        self.by_cache.set(self.by_cache.get() + down);
    }

    /// What moved most of the bytes; `None` if there were none.
    fn engine(&self) -> Option<&'static str> {
        let (up, down) = self.bytes.get();
        let (spliced, redirected) = self.by_kernel.get();
        let cached = self.by_cache.get();
        let copied = (up + down).saturating_sub(spliced + redirected + cached);
        let engines = [
            (copied, "copy"),
            (spliced, "splice"),
            (redirected, "sockmap"),
            (cached, "cache"),
        ];
        let (bytes, engine) = engines.into_iter().max_by_key(|(bytes, _)| *bytes)?;
        (bytes > 0).then_some(engine)
    }

    /// Says why there is no whole reply.
    pub fn because(&self, reason: impl Into<String>) {
        *self.reason.borrow_mut() = Some(reason.into());
    }

    fn line<'a>(&'a self, proxy: &'a str, duration: Duration) -> Line<'a> {
        let request = self.request.as_ref();
        let (bytes_up, bytes_down) = self.bytes.get();
        Line {
            time: Rfc3339(self.began),
            proxy,
            client: self.client,
            method: request.map(|request| &*request.method),
            target: request.map(|request| &*request.target),
            host: request.and_then(|request| request.host.as_deref()),
            user_agent: request.and_then(|request| request.user_agent.as_deref()),
            status: self.status.get(),
            bytes_up,
            bytes_down,
            engine: self.engine(),
            duration_ms: millis(duration),
            backend: self.backend.get().map(canonical),
            reused: self.reused.get(),
            retries: self.retries.get(),
            tunnel: self.tunnel.get(),
            reason: self.reason.borrow().clone(),
        }
    }
}

/// To the microsecond.
fn millis(time: Duration) -> f64 {
    time.as_micros() as f64 / 1000.0
}

/// The fields of a line, in their order. Those that do not apply are left out.
#[derive(Serialize)]
struct Line<'a> {
    time: Rfc3339,
    proxy: &'a str,
    client: SocketAddr,
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user_agent: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    bytes_up: u64,
    bytes_down: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    engine: Option<&'static str>,
    duration_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    backend: Option<SocketAddr>,
    reused: bool,
    retries: u32,
    tunnel: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

enum Message {
    Ended(Box<Entry>, Duration),
    Reopen,
}

/// A log and the thread that writes it, which ends when no journal is left to send lines.
pub struct AccessLog {
    /// `None` once it is closed.
    queue: Option<SyncSender<Message>>,
    /// Closed by the writer's end.
    writer: Mutex<Receiver<()>>,
    /// Lines that could not be written.
    lost: Arc<AtomicU64>,
}

impl AccessLog {
    /// Opens the file, or standard error for `-`, to write at its end.
    ///
    /// # Errors
    /// The file cannot be opened or created.
    pub fn open(proxy: &str, path: &str) -> io::Result<AccessLog> {
        let out = open(path)?;
        let (queue, messages) = sync_channel(QUEUE);
        let (at_end, writer) = channel();
        let lost = Arc::<AtomicU64>::default();
        let mut writer_of = Writer {
            proxy: proxy.to_owned(),
            path: path.to_owned(),
            out,
            lost: lost.clone(),
            is_failing: false,
            is_torn: false,
        };
        std::thread::Builder::new()
            .name("weir-access-log".to_owned())
            .spawn(move || {
                // Nothing is ever sent: it goes when the thread does.
                let _at_end = at_end;
                writer_of.run(&messages);
            })?;
        Ok(AccessLog {
            queue: Some(queue),
            writer: Mutex::new(writer),
            lost,
        })
    }

    /// Lines that could not be written so far.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// A way into the log, for one thread.
    pub fn journal(&self) -> Option<Journal> {
        self.queue.clone().map(Journal)
    }

    /// Opens the file again by its path: it may have been rotated.
    pub fn reopen(&self) {
        if let Some(queue) = &self.queue {
            // Full: the writer is far behind, and the next order comes.
            let _ = queue.try_send(Message::Reopen);
        }
    }
}

impl Drop for AccessLog {
    /// Waits until all lines are written, or the writer has stood still for too long.
    fn drop(&mut self) {
        self.queue = None;
        if let Ok(writer) = self.writer.get_mut() {
            let _ = writer.recv_timeout(PATIENCE);
        }
    }
}

/// One thread's way into the log.
#[derive(Clone)]
pub struct Journal(SyncSender<Message>);

impl Journal {
    /// Writes the line of a request that has ended. False: the queue is full and the line lost.
    pub fn write(&self, entry: Box<Entry>) -> bool {
        let duration = entry.start.elapsed();
        self.0.try_send(Message::Ended(entry, duration)).is_ok()
    }
}

fn open(path: &str) -> io::Result<Box<dyn Write + Send>> {
    if path == STDERR {
        return Ok(Box::new(io::stderr()));
    }
    // It would be written over.
    if std::fs::metadata(path).is_ok_and(|there| there.file_type().is_block_device()) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is a block device, not a file",
        ));
    }
    // Opening a FIFO to write waits for a reader, which this thread may not.
    let open = |read| {
        let mut options = OpenOptions::new();
        options.append(true).create(true).read(read);
        options.custom_flags(libc::O_NONBLOCK).open(path)
    };
    // A descriptor that reads as well needs no other reader and survives it: unread lines stay in the FIFO until it is full.
    let file: File = match open(false) {
        Ok(file) if file.metadata()?.file_type().is_fifo() => open(true)?,
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => open(true)?,
        opened => opened?,
    };
    // From here on the writer's thread alone waits.
    rustix::io::ioctl_fionbio(&file, false)?;
    Ok(Box::new(file))
}

struct Writer {
    proxy: String,
    path: String,
    out: Box<dyn Write + Send>,
    lost: Arc<AtomicU64>,
    /// It was said that writing fails.
    is_failing: bool,
    /// The last line that was written broke off.
    is_torn: bool,
}

impl Writer {
    fn run(&mut self, messages: &Receiver<Message>) {
        let mut lines = Vec::new();
        while let Ok(message) = messages.recv() {
            let mut next = Some(message);
            while let Some(message) = next {
                self.take(message, &mut lines);
                next = messages
                    .try_recv()
                    .ok()
                    .filter(|_| lines.len() < BATCH_BYTES);
            }
            self.flush(&mut lines);
        }
    }

    fn take(&mut self, message: Message, lines: &mut Vec<u8>) {
        match message {
            Message::Ended(entry, duration) => {
                let line = entry.line(&self.proxy, duration);
                serde_json::to_writer(&mut *lines, &line).expect("a vector takes every line");
                lines.push(b'\n');
            }
            Message::Reopen => {
                self.flush(lines);
                match open(&self.path) {
                    Ok(out) => {
                        self.out = out;
                        // The line that broke off is in the other file.
                        self.is_torn = false;
                    }
                    Err(error) => tracing::error!("cannot reopen {}: {error}", self.path),
                }
            }
        }
    }

    /// Writes the lines. Those that a full disk has no room for are lost and counted; that is said when it begins and
    /// when it ends, and not for each line.
    fn flush(&mut self, lines: &mut Vec<u8>) {
        let was_torn = std::mem::take(&mut self.is_torn);
        if was_torn {
            lines.insert(0, b'\n');
        }
        let (written, failure) = self.write(lines);
        if let Some(error) = failure {
            let unwritten = &lines[written.max(usize::from(was_torn))..];
            let unwritten = unwritten.iter().filter(|byte| **byte == b'\n');
            self.lost
                .fetch_add(unwritten.count() as u64, Ordering::Relaxed);
            self.is_torn = match written {
                0 => was_torn,
                written => lines[written - 1] != b'\n',
            };
            if !std::mem::replace(&mut self.is_failing, true) {
                tracing::error!(
                    "cannot write {}: {error}; lines are lost (access_log_lost) until that ends",
                    self.path
                );
            }
        } else if written > 0 && std::mem::take(&mut self.is_failing) {
            tracing::info!("{} can be written again", self.path);
        }
        lines.clear();
    }

    /// How many bytes went out, and why not all.
    fn write(&mut self, lines: &[u8]) -> (usize, Option<io::Error>) {
        let mut written = 0;
        while written < lines.len() {
            match self.out.write(&lines[written..]) {
                Ok(0) => return (written, Some(io::ErrorKind::WriteZero.into())),
                Ok(bytes) => written += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return (written, Some(error)),
            }
        }
        (written, None)
    }
}

/// The log that the settings ask for.
pub(crate) fn of_settings(
    settings: &weir_core::proxy::Proxy,
) -> io::Result<Option<Arc<AccessLog>>> {
    let path = settings.access_log.as_deref();
    let open = |path| AccessLog::open(&settings.name, path).map(Arc::new);
    path.map(open).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_loses_lines_and_nobody_waits() {
        let (queue, messages) = sync_channel(1);
        let journal = Journal(queue);
        let entry = || Box::new(Entry::new("127.0.0.1:1".parse().unwrap(), None));
        assert!(journal.write(entry()));
        assert!(!journal.write(entry()));
        drop(messages);
        assert!(!journal.write(entry()));
    }

    /// Takes so many bytes in all, then it is full.
    struct Disk(Arc<Mutex<(usize, Vec<u8>)>>);

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut disk = self.0.lock().unwrap();
            let taken = bytes.len().min(disk.0);
            disk.0 -= taken;
            disk.1.extend(&bytes[..taken]);
            match taken {
                0 => Err(io::ErrorKind::StorageFull.into()),
                taken => Ok(taken),
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_a_full_disk_does_not_take_are_counted_and_those_after_it_are_whole() {
        let disk = Arc::new(Mutex::new((9, Vec::new())));
        let mut writer = Writer {
            proxy: String::new(),
            path: String::new(),
            out: Box::new(Disk(disk.clone())),
            lost: Arc::default(),
            is_failing: false,
            is_torn: false,
        };
        writer.flush(&mut b"first\nsecond\nthird\n".to_vec());
        writer.flush(&mut b"fourth\n".to_vec());
        assert!(writer.is_failing);
        assert_eq!(writer.lost.load(Ordering::Relaxed), 3);
        disk.lock().unwrap().0 = 100;
        writer.flush(&mut b"fifth\n".to_vec());
        assert!(!writer.is_failing);
        assert_eq!(disk.lock().unwrap().1, b"first\nsec\nfifth\n");
    }

    #[test]
    fn a_fifo_needs_no_reader_to_be_opened_and_its_reader_may_come_later() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fifo");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let mut out = open(path.to_str().unwrap()).unwrap();
        out.write_all(b"line\n").unwrap();
        let mut line = String::new();
        let reader = File::open(&path).unwrap();
        io::BufRead::read_line(&mut io::BufReader::new(reader), &mut line).unwrap();
        assert_eq!(line, "line\n");
    }

    #[test]
    fn the_engine_is_what_moved_most_of_the_bytes() {
        let entry = Entry::new("127.0.0.1:1".parse().unwrap(), None);
        assert_eq!(entry.engine(), None);
        entry.moved(10, 90);
        assert_eq!(entry.engine(), Some("copy"));
        entry.moved_by_kernel(40, 0);
        assert_eq!(entry.engine(), Some("copy"));
        entry.moved_by_kernel(20, 0);
        assert_eq!(entry.engine(), Some("splice"));
        entry.moved(0, 200);
        entry.moved_by_kernel(0, 200);
        assert_eq!(entry.engine(), Some("sockmap"));
        entry.sent_by_cache(1000);
        assert_eq!(entry.engine(), Some("cache"));
    }

    #[test]
    fn a_field_is_shown_within_bounds_and_without_control_characters() {
        assert_eq!(shown(&[b'a'; 600]), "a".repeat(512));
        assert_eq!(shown("é".repeat(300).as_bytes()), "é".repeat(256));
        // CSI of C1, which some terminals obey.
        assert_eq!(shown("a\u{9b}31mb".as_bytes()), "a\u{fffd}31mb");
        assert_eq!(
            shown(&[&[b'a'; 511], "é".as_bytes()].concat())
                .chars()
                .last(),
            Some('\u{fffd}')
        );
    }

    #[test]
    fn a_line_is_json_with_what_is_known() {
        let request = LoggedRequest {
            method: "GET".to_owned(),
            target: "/\"\u{1}".to_owned(),
            host: Some("a.example:80".to_owned()),
            user_agent: Some(shown(b"a\"b\\\tc\xff")),
        };
        let entry = Entry::new("[::ffff:192.0.2.1]:1".parse().unwrap(), Some(request));
        entry.backend.set("[::ffff:192.0.2.2]:80".parse().ok());
        entry.status.set(Some(502));
        entry.moved(1, 2);
        entry.moved(10, 20);
        entry.because("connection_refused");
        let line = entry.line("edge", Duration::from_micros(1500));
        let json = serde_json::to_string(&line).unwrap();
        let (time, rest) = json.split_once(",\"proxy\"").unwrap();
        assert_eq!(time, format!("{{\"time\":\"{}\"", Rfc3339(entry.began)));
        assert_eq!(
            rest,
            r#":"edge","client":"192.0.2.1:1","method":"GET","target":"/\"\u0001","host":"a.example:80","user_agent":"a\"b\\\tc�","status":502,"bytes_up":11,"bytes_down":22,"engine":"copy","duration_ms":1.5,"backend":"192.0.2.2:80","reused":false,"retries":0,"tunnel":false,"reason":"connection_refused"}"#
        );
    }
}

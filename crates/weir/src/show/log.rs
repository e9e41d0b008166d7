//! weir's log: lines on standard error that weir never waits for.
//!
//! A write to a pipe that is full waits until somebody reads it. The commands that guard and serve may not,
//! so a thread of its own writes what they say. When it is too far behind, lines are lost and counted.
//!
//! Their events begin with the time, unless they go to the journal, which has it.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::panic::PanicHookInfo;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use nix::sys::signal::{SigSet, SigmaskHow};
use nix::sys::stat::{FileStat, fstat};
use tracing::{Level, Metadata};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

use crate::host::privileges;

/// Bytes of lines that may wait for the writer.
const ROOM: usize = 256 * 1024;
/// Of `2026-11-22T20:53:59.123`.
const MILLIS_LENGTH: usize = 23;
/// How long the last lines have at the end of the process.
const PATIENCE: Duration = Duration::from_secs(1);

/// The log of this process, if a thread writes it.
static LOG: OnceLock<&'static Log> = OnceLock::new();

/// Starts to log. With `thread`, nobody who logs waits for standard error.
pub fn start(level: LevelFilter, thread: bool) -> AtEnd {
    if thread {
        start_thread();
    }
    // The user of a short command knows the time.
    let clock = match thread && !goes_to_journal(io::stderr()) {
        true => Clock::Utc,
        false => Clock::None,
    };
    let _ = CLOCK.set(clock);
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(EventLines)
        .with_ansi(false)
        .with_target(false)
        .with_timer(clock)
        .init();
    AtEnd(())
}

/// Whether this descriptor is the journal's, of which the service manager says device and inode in
/// `$JOURNAL_STREAM` (systemd.exec(5)). A service's child may have another standard error.
fn goes_to_journal(fd: impl AsFd) -> bool {
    let stream = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    let is_it = |stat: FileStat| stream == format!("{}:{}", stat.st_dev, stat.st_ino);
    fstat(fd).is_ok_and(is_it)
}

/// What a line begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Clock {
    /// Nothing.
    None,
    /// The time, as in `2026-11-22T20:53:59.123Z`.
    Utc,
}

static CLOCK: OnceLock<Clock> = OnceLock::new();

impl FormatTime for Clock {
    fn format_time(&self, out: &mut format::Writer<'_>) -> fmt::Result {
        match self {
            Clock::None => Ok(()),
            Clock::Utc => {
                let mut time = String::new();
                SystemTime.format_time(&mut format::Writer::new(&mut time))?;
                // It has microseconds.
                let millis = time.get(..MILLIS_LENGTH).unwrap_or(&time);
                write!(out, "{millis}Z")
            }
        }
    }
}

/// The time now, with a space behind it, if lines have it.
fn stamp() -> String {
    let mut stamp = String::new();
    if let Some(Clock::Utc) = CLOCK.get()
        && Clock::Utc
            .format_time(&mut format::Writer::new(&mut stamp))
            .is_ok()
    {
        stamp.push(' ');
    }
    stamp
}

/// Without the thread, whoever logs writes, as in a short command.
fn start_thread() {
    let log: &Log = Box::leak(Box::default());
    let thread = std::thread::Builder::new().name("weir-log".to_owned());
    let write = || {
        privileges::keep_none();
        loop {
            log.write_next(&mut io::stderr());
        }
    };
    // The command takes its signals over later, in its own thread: here they would end the process.
    let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK);
    let started = thread.spawn(write).is_ok();
    if let Ok(mask) = mask {
        let _ = mask.thread_set_mask();
    }
    if started && LOG.set(log).is_ok() {
        // The standard library's own writes to standard error, and waits.
        std::panic::set_hook(Box::new(log_panic));
    }
}

/// Writes what is no event but happens: a sampled refusal.
pub fn stamped_line(text: impl fmt::Display) {
    line(format_args!("{}{text}", stamp()));
}

/// Writes a line that is a command's answer, as the error that ends it.
pub fn line(text: impl fmt::Display) {
    // Where standard error is gone, nothing can say so.
    let _ = Lines.write_all(format!("{text}\n").as_bytes());
}

/// Lines that this process has lost.
pub fn lost() -> u64 {
    LOG.get().map_or(0, |log| log.lost.load(Ordering::Relaxed))
}

/// Has the last lines written when it is dropped, also by a panic, if somebody takes them.
pub struct AtEnd(());

impl Drop for AtEnd {
    fn drop(&mut self) {
        if let Some(log) = LOG.get() {
            log.wait_until_written(PATIENCE);
        }
    }
}

/// Events, of which each line begins as the first one does: with the time and the level.
struct EventLines;

impl<'a> MakeWriter<'a> for EventLines {
    type Writer = EventWriter;

    fn make_writer(&'a self) -> EventWriter {
        EventWriter(Level::INFO)
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> EventWriter {
        EventWriter(*meta.level())
    }
}

/// Takes one event of this level, whole.
struct EventWriter(Level);

impl Write for EventWriter {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        Lines.write_all(with_prefix(&text, self.0).as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An event with what is before its message in front of each further line, for those who read the log by lines.
fn with_prefix(event: &str, level: Level) -> String {
    let message = event
        .find(level.as_str())
        .map_or(0, |at| at + level.as_str().len());
    let (prefix, message) = event.split_at(message);
    let message = message.trim_end_matches('\n');
    let lines: Vec<String> = message
        .split('\n')
        .enumerate()
        .map(|(i, line)| match i {
            0 => format!("{prefix}{line}\n"),
            _ => format!("{prefix} {line}\n"),
        })
        .collect();
    lines.concat()
}

/// Where lines are written to.
struct Lines;

impl Write for Lines {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        match LOG.get() {
            Some(log) => log.push(lines),
            None => io::stderr().write_all(lines)?,
        }
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn log_panic(panic: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("without a name");
    let backtrace = Backtrace::capture();
    match backtrace.status() {
        BacktraceStatus::Captured => tracing::error!("thread {name} {panic}\n{backtrace}"),
        _ => tracing::error!("thread {name} {panic}"),
    }
}

/// Lines on their way to one writer.
#[derive(Default)]
struct Log {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    lost: AtomicU64,
}

#[derive(Default)]
struct Waiting {
    lines: Vec<u8>,
    /// How many were lost after these.
    lost: u64,
    /// The writer has taken lines and is not done.
    writing: bool,
}

impl Waiting {
    fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.lost == 0
    }
}

impl Log {
    fn push(&self, lines: &[u8]) {
        let mut waiting = self.lock();
        // Once one is lost, so are those that follow, until the writer has been here: it can say where they are missing.
        if waiting.lost > 0 || waiting.lines.len() + lines.len() > ROOM {
            let lost = lines.split_inclusive(is_end).count() as u64;
            waiting.lost += lost;
            self.lost.fetch_add(lost, Ordering::Relaxed);
        } else {
            waiting.lines.extend_from_slice(lines);
        }
        drop(waiting);
        self.changed.notify_all();
    }

    /// Waits for lines, and writes them.
    fn write_next(&self, out: &mut impl Write) {
        let waits = |waiting: &mut Waiting| waiting.is_empty();
        let waiting = self.changed.wait_while(self.lock(), waits);
        let mut waiting = waiting.unwrap_or_else(PoisonError::into_inner);
        let Waiting {
            mut lines, lost, ..
        } = std::mem::take(&mut *waiting);
        waiting.writing = true;
        drop(waiting);
        if lost > 0 {
            let told = writeln!(
                lines,
                "{} WARN {lost} lines of the log are lost here: nobody read it in time",
                stamp()
            );
            told.expect("a vector takes every line");
        }
        // Each by itself: another process that writes to the same pipe does not come between a line's parts.
        for line in lines.split_inclusive(is_end) {
            if out.write_all(line).is_err() {
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.lock().writing = false;
        self.changed.notify_all();
    }

    fn wait_until_written(&self, patience: Duration) {
        let waits = |waiting: &mut Waiting| waiting.writing || !waiting.is_empty();
        let _ = self
            .changed
            .wait_timeout_while(self.lock(), patience, waits);
    }

    /// What one who panicked here left is whole: each step leaves it so.
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_end(byte: &u8) -> bool {
    *byte == b'\n'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(log: &Log) -> String {
        let mut out = Vec::new();
        log.write_next(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn what_does_not_fit_is_lost_and_the_writer_says_so_where_it_is_missing() {
        let log = Log::default();
        let long = format!("{}\n", "x".repeat(ROOM - 1));
        log.push(long.as_bytes());
        log.push(b"two\nlines\n");
        let mut expected = long.clone();
        expected += " WARN 2 lines of the log are lost here: nobody read it in time\n";
        assert_eq!(written(&log), expected);
        assert_eq!(log.lost.load(Ordering::Relaxed), 2);
        log.push(b"after\n");
        assert_eq!(written(&log), "after\n");
    }

    #[test]
    fn a_time_is_rfc_3339_in_utc_with_milliseconds() {
        let mut time = String::new();
        Clock::Utc
            .format_time(&mut format::Writer::new(&mut time))
            .unwrap();
        let shape = time.replace(|letter: char| letter.is_ascii_digit(), "0");
        assert_eq!(shape, "0000-00-00T00:00:00.000Z", "{time}");
    }

    #[test]
    fn every_line_of_an_event_begins_with_its_time_and_level() {
        let event = "2026-11-22T20:53:59.123Z ERROR reload failed\nerror: f: no\n  hint: ERROR\n";
        let expected = "2026-11-22T20:53:59.123Z ERROR reload failed\n\
                        2026-11-22T20:53:59.123Z ERROR error: f: no\n\
                        2026-11-22T20:53:59.123Z ERROR   hint: ERROR\n";
        assert_eq!(with_prefix(event, Level::ERROR), expected);
        assert_eq!(with_prefix(" WARN one\n", Level::WARN), " WARN one\n");
    }

    #[test]
    fn no_line_is_taken_after_one_that_was_lost() {
        let log = Log::default();
        log.push(b"first\n");
        log.push(&[b'x'; ROOM]);
        log.push(b"short\n");
        assert!(written(&log).starts_with("first\n WARN 2 lines"));
    }

    #[test]
    fn lines_that_cannot_be_written_are_lost_and_those_after_them_are_not() {
        /// Takes no line with an x.
        struct Picky(Vec<u8>);
        impl Write for Picky {
            fn write(&mut self, line: &[u8]) -> io::Result<usize> {
                match line.contains(&b'x') {
                    true => Err(io::ErrorKind::BrokenPipe.into()),
                    false => self.0.write(line),
                }
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let log = Log::default();
        log.push(b"x\ngood\n");
        let mut picky = Picky(Vec::new());
        log.write_next(&mut picky);
        assert_eq!(picky.0, b"good\n");
        assert_eq!(log.lost.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn the_end_waits_for_the_last_line_and_not_for_a_writer_that_stands_still() {
        let log = Log::default();
        log.push(b"last\n");
        log.wait_until_written(Duration::from_millis(1));
        assert!(!log.lock().is_empty(), "nobody has written it");
        std::thread::scope(|scope| {
            scope.spawn(|| log.write_next(&mut Vec::new()));
            log.wait_until_written(Duration::from_secs(60));
        });
        let waiting = log.lock();
        assert!(waiting.is_empty() && !waiting.writing);
    }
}

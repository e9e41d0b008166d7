//! The file of events: a JSON line each, written by a thread of its own.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use weir_api::Event;
use weir_core::units::count;

/// Events that may wait for the writer; those after them are lost.
const QUEUE: usize = 1024;
/// How long the last lines have at the end.
const PATIENCE: Duration = Duration::from_secs(1);

enum Message {
    Line(String),
    Reopen,
}

/// What found the queue full.
#[derive(Default)]
struct Missed {
    lines: AtomicU64,
    reopen: AtomicBool,
}

/// The file and its thread.
pub struct EventFile {
    path: PathBuf,
    /// `None` at the end.
    queue: Option<SyncSender<Message>>,
    missed: Arc<Missed>,
    /// Closed by the writer's end.
    writer: Mutex<Receiver<()>>,
}

impl EventFile {
    /// Opens it to write at its end.
    ///
    /// # Errors
    /// It cannot be opened or made, or the kernel gives no thread.
    pub fn open(path: &Path) -> io::Result<EventFile> {
        let missed = Arc::new(Missed::default());
        let mut writer = Writer::open(path, missed.clone())?;
        let (queue, messages) = sync_channel(QUEUE);
        let (at_end, ended) = channel();
        std::thread::Builder::new()
            .name("weir-events".to_owned())
            .spawn(move || {
                // Nothing is ever sent: it goes when the thread does.
                let _at_end: std::sync::mpsc::Sender<()> = at_end;
                messages.iter().for_each(|message| writer.take(message));
            })?;
        Ok(EventFile {
            path: path.to_owned(),
            queue: Some(queue),
            missed,
            writer: Mutex::new(ended),
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the line of an event, later. One that finds the queue full is lost; the numbers in the file then have a gap.
    pub fn write(&self, event: &Event) {
        let line = serde_json::to_string(event).expect("events are JSON") + "\n";
        if !self.send(Message::Line(line)) {
            self.missed.lines.fetch_add(1, Relaxed);
        }
    }

    /// Opens it again by its path: after the lines before, or at once if the queue is full.
    pub fn reopen(&self) {
        if !self.send(Message::Reopen) {
            self.missed.reopen.store(true, Relaxed);
        }
    }

    fn send(&self, message: Message) -> bool {
        let queue = self.queue.as_ref();
        queue.is_some_and(|queue| queue.try_send(message).is_ok())
    }
}

impl Drop for EventFile {
    /// Waits until all lines are written, or the writer has stood still for too long.
    fn drop(&mut self) {
        self.queue = None;
        if let Ok(writer) = self.writer.get_mut() {
            let _ = writer.recv_timeout(PATIENCE);
        }
    }
}

/// Opens for the end. A FIFO without a reader is an error, and is not waited for.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o640);
    options.custom_flags(nix::libc::O_NONBLOCK | nix::libc::O_CLOEXEC);
    // It would be written over.
    if std::fs::metadata(path).is_ok_and(|there| there.file_type().is_block_device()) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is a block device, not a file",
        ));
    }
    options.open(path)
}

struct Writer {
    path: PathBuf,
    file: File,
    /// A part of a line is at the end of the file.
    broken: bool,
    /// Lines that could not be written since the last one that was.
    lost: u64,
    missed: Arc<Missed>,
}

impl Writer {
    fn open(path: &Path, missed: Arc<Missed>) -> io::Result<Writer> {
        Ok(Writer {
            path: path.to_owned(),
            file: open(path)?,
            broken: false,
            lost: 0,
            missed,
        })
    }

    fn take(&mut self, message: Message) {
        if self.missed.reopen.swap(false, Relaxed) {
            self.reopen();
        }
        match message {
            Message::Line(line) => match self.write(&line) {
                Ok(()) => {
                    let lost = std::mem::take(&mut self.lost) + self.missed.lines.swap(0, Relaxed);
                    if lost > 0 {
                        let path = self.path.display();
                        let lost = count(lost as usize, "event");
                        tracing::warn!("{path} can be written again; {lost} lost");
                    }
                }
                Err(error) => {
                    if self.lost == 0 {
                        tracing::error!("cannot write events to {}: {error}", self.path.display());
                    }
                    self.lost += 1;
                }
            },
            Message::Reopen => self.reopen(),
        }
    }

    /// Adds a line. What a full disk takes of one is taken back, so that each line of the file is an event; where that is
    /// not possible (a FIFO), it has a line of its own.
    fn write(&mut self, line: &str) -> io::Result<()> {
        // One write for a line, so that another process that appends does not come between its parts.
        let whole = match self.broken {
            true => format!("\n{line}"),
            false => line.to_owned(),
        };
        let mut written = 0;
        while written < whole.len() {
            match self.file.write(&whole.as_bytes()[written..]) {
                Ok(0) => break,
                Ok(bytes) => written += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    if written > 0 {
                        self.broken = self.take_back(written as u64).is_err() || self.broken;
                    }
                    return Err(error);
                }
            }
        }
        self.broken = false;
        Ok(())
    }

    /// Takes the last bytes that were written off the end of the file, if nobody has written after them.
    fn take_back(&mut self, bytes: u64) -> io::Result<()> {
        let end = self.file.stream_position()?;
        if self.file.metadata()?.len() != end {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.file.set_len(end.saturating_sub(bytes))
    }

    fn reopen(&mut self) {
        match open(&self.path) {
            Ok(file) => {
                self.file = file;
                self.broken = false;
            }
            Err(error) => tracing::error!("cannot reopen {}: {error}", self.path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn each_event_is_a_line_and_a_rotated_file_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let (path, old) = (
            folder.path().join("events.jsonl"),
            folder.path().join("events.1"),
        );
        let file = EventFile::open(&path).unwrap();
        let event = |number| Event {
            number,
            text: "two\nlines".into(),
            ..Event::default()
        };
        file.write(&event(1));
        file.write(&event(2));
        // The writer may not have come to the lines yet: they belong to the old file then, too.
        std::fs::rename(&path, &old).unwrap();
        file.reopen();
        file.write(&event(3));
        drop(file);
        let read = |path: &Path| -> Vec<u64> {
            let text = std::fs::read_to_string(path).unwrap();
            let lines = text.lines();
            lines
                .map(|line| serde_json::from_str::<Event>(line).unwrap().number)
                .collect()
        };
        assert_eq!((read(&old), read(&path)), (vec![1, 2], vec![3]));
    }

    #[test]
    fn a_rotated_file_is_left_though_the_queue_is_full_and_what_is_lost_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.jsonl");
        let missed = Arc::new(Missed::default());
        let mut writer = Writer::open(&path, missed.clone()).unwrap();
        let (queue, messages) = sync_channel(1);
        let (_, ended) = channel();
        let file = EventFile {
            path: path.clone(),
            queue: Some(queue),
            missed: missed.clone(),
            writer: Mutex::new(ended),
        };
        file.write(&Event::default());
        std::fs::rename(&path, folder.path().join("events.1")).unwrap();
        file.reopen();
        file.write(&Event::default());
        assert_eq!(missed.lines.load(Relaxed), 1);
        drop(file);
        messages.iter().for_each(|message| writer.take(message));
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 1);
        assert_eq!(missed.lines.load(Relaxed), 0, "the log has them");
    }

    #[test]
    fn what_was_written_of_a_line_is_taken_back_unless_another_process_wrote_after_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.jsonl");
        let mut writer = Writer::open(&path, Arc::default()).unwrap();
        let text = || std::fs::read_to_string(&path).unwrap();
        writer.write("one\n").unwrap();
        writer.file.write_all(b"tw").unwrap();
        writer.take_back(2).unwrap();
        assert_eq!(text(), "one\n");
        writer.file.write_all(b"tw").unwrap();
        open(&path).unwrap().write_all(b"other\n").unwrap();
        assert!(writer.take_back(2).is_err());
        assert_eq!(text(), "one\ntwother\n");
    }

    #[test]
    fn a_part_that_cannot_be_taken_back_has_a_line_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fifo");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(nix::libc::O_NONBLOCK);
        let mut reader = options.open(&path).unwrap();
        let mut writer = Writer::open(&path, Arc::default()).unwrap();
        // More than the pipe holds: the kernel takes a part of it.
        let long = format!("{}\n", "x".repeat(4 << 20));
        assert!(writer.write(&long).is_err());
        let mut part = vec![0; long.len()];
        let part_length = reader.read(&mut part).unwrap();
        assert!(part_length > 0);
        while reader.read(&mut part).is_ok_and(|bytes| bytes > 0) {}
        writer.write("next\n").unwrap();
        writer.write("last\n").unwrap();
        let bytes = reader.read(&mut part).unwrap();
        assert_eq!(&part[..bytes], b"\nnext\nlast\n");
    }

    #[test]
    fn a_disk_is_not_written_over() {
        use nix::sys::stat::{Mode, SFlag, makedev, mknod};
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        // No driver has this one.
        if mknod(&path, SFlag::S_IFBLK, Mode::S_IRWXU, makedev(4000, 1)).is_err() {
            return println!("SKIP: only root makes device files");
        }
        let error = open(&path).unwrap_err();
        assert!(error.to_string().contains("block device"), "{error}");
        let error = open(folder.path()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::IsADirectory);
    }

    #[test]
    fn a_fifo_without_a_reader_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fifo");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(EventFile::open(&path).is_err());
        assert!(EventFile::open(&folder.path().join("none/events")).is_err());
    }
}

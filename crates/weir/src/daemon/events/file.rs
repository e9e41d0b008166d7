//! The file of events: a JSON line each, written by a thread of its own.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::time::Duration;

use weir_api::Event;

/// Events that may wait for the writer; those after them are lost.
const QUEUE: usize = 1024;
/// How long the last lines have at the end.
const PATIENCE: Duration = Duration::from_secs(1);

enum Message {
    Line(String),
    Reopen,
}

/// The file and its thread.
pub struct EventFile {
    path: PathBuf,
    /// `None` at the end.
    queue: Option<SyncSender<Message>>,
    /// Closed by the writer's end.
    writer: Mutex<Receiver<()>>,
}

impl EventFile {
    /// Opens it to write at its end.
    ///
    /// # Errors
    /// It cannot be opened or made, or the kernel gives no thread.
    pub fn open(path: &Path) -> io::Result<EventFile> {
        let mut writer = Writer {
            path: path.to_owned(),
            file: open(path)?,
            lost: 0,
        };
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
        self.send(Message::Line(line));
    }

    /// Opens it again by its path.
    pub fn reopen(&self) {
        self.send(Message::Reopen);
    }

    fn send(&self, message: Message) {
        if let Some(queue) = &self.queue {
            let _ = queue.try_send(message);
        }
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
    options.open(path)
}

struct Writer {
    path: PathBuf,
    file: File,
    /// Lines that could not be written since the last one that was.
    lost: u64,
}

impl Writer {
    fn take(&mut self, message: Message) {
        let path = self.path.display();
        match message {
            // One write for a line, so that another process that appends does not come between its parts.
            Message::Line(line) => match self.file.write_all(line.as_bytes()) {
                Ok(()) if self.lost > 0 => {
                    tracing::warn!("{path} can be written again; {} events are lost", self.lost);
                    self.lost = 0;
                }
                Ok(()) => {}
                Err(error) => {
                    if self.lost == 0 {
                        tracing::error!("cannot write events to {path}: {error}");
                    }
                    self.lost += 1;
                }
            },
            Message::Reopen => match open(&self.path) {
                Ok(file) => self.file = file,
                Err(error) => tracing::error!("cannot reopen {path}: {error}"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
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
    fn a_fifo_without_a_reader_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fifo");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(EventFile::open(&path).is_err());
        assert!(EventFile::open(&folder.path().join("none/events")).is_err());
    }
}

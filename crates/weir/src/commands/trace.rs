//! `weir trace`: Section III of BHD18 on captures. It exits with 1 if a capture cannot be read to its end, after the
//! figures of what comes before.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::Serialize;
use weir_trace::{Broken, Merge, Options, Report, Source, Tracker};
use weir_wire::{Capture, Error, decompressed};

use crate::cli::Trace;
use crate::daemon::signals::{Signals, ends};
use crate::failure::{Failure, Result};
use crate::host::file::is_named_fifo;
use crate::show::capture;
use crate::show::output::{print, print_json, warn_text};

const STDIN: &str = "-";
/// Packets between two updates of the progress bar.
const STEP: u64 = 1 << 16;

/// What `--json` prints.
#[derive(Serialize)]
struct Answer<'a> {
    files: Vec<String>,
    /// Every capture was read to its end.
    complete: bool,
    /// Why not.
    errors: Vec<String>,
    #[serde(flatten)]
    report: &'a Report,
}

/// Runs the command.
pub fn run(args: &Trace) -> Result<()> {
    let progress = Progress::new();
    let mut failures = Vec::new();
    let mut sources = Vec::new();
    for file in &args.files {
        match open(file, &progress) {
            Ok(source) => sources.push(source),
            Err(failure) => failures.push(failure),
        }
    }
    if sources.is_empty() {
        return Failure::all(failures).map_or(Ok(()), Err);
    }
    let (report, broken) = follow(Merge::new(sources), args, &progress);
    failures.extend(broken.iter().map(failure));
    match args.json {
        true => print_json(&answer(args, &report, &failures))?,
        false => print(&capture::text(&report))?,
    }
    Failure::all(failures).map_or(Ok(()), Err)
}

/// Follows all packets.
fn follow(mut packets: Merge, args: &Trace, progress: &Progress) -> (Report, Vec<Broken>) {
    let mut tracker = Tracker::new(Options {
        established_only: args.established_only,
        flood_filter: !args.no_flood_filter,
        connections_max: args.max_connections as usize,
    });
    let mut until_step = STEP;
    for packet in packets.by_ref() {
        tracker.packet(&packet);
        until_step -= 1;
        if until_step == 0 {
            until_step = STEP;
            progress.show();
        }
    }
    progress.end();
    (tracker.report(), packets.broken())
}

fn answer<'a>(args: &Trace, report: &'a Report, failures: &[Failure]) -> Answer<'a> {
    let message = |failure: &Failure| {
        failure
            .causes
            .iter()
            .map(|cause| cause.message.clone())
            .collect::<Vec<_>>()
    };
    Answer {
        files: args
            .files
            .iter()
            .map(|file| file.display().to_string())
            .collect(),
        complete: failures.is_empty(),
        errors: failures.iter().flat_map(message).collect(),
        report,
    }
}

fn open(file: &Path, progress: &Progress) -> Result<Source> {
    let name = file.display().to_string();
    let stream: Box<dyn Read + Send> = match name.as_str() {
        STDIN => {
            progress.add(None);
            Box::new(Stdin::take()?)
        }
        _ => {
            if is_named_fifo(file) {
                warn_text(format_args!(
                    "{name} is a FIFO: weir reads it once a program writes to it"
                ));
            }
            let opened = File::open(file).and_then(|file| Ok((file.metadata()?.len(), file)));
            let (bytes, file) = opened.map_err(|error| {
                Failure::failed(
                    format!("cannot open {name}: {error}"),
                    "name a capture, or - for standard input",
                )
            })?;
            progress.add(Some(bytes));
            Box::new(file)
        }
    };
    let stream = Counting {
        stream,
        bytes: Arc::clone(&progress.read),
    };
    let capture = decompressed(stream)
        .map_err(Error::Io)
        .and_then(Capture::new);
    match capture {
        Ok(capture) => Ok(Source { name, capture }),
        Err(error) => Err(failure(&Broken { name, error })),
    }
}

fn failure(broken: &Broken) -> Failure {
    let hint = match broken.error {
        Error::Cut { .. } | Error::Malformed { .. } | Error::Io(_) => {
            "the figures are of the packets before; `tcpdump -U` and an orderly end write whole packets"
        }
        Error::NotACapture => {
            "weir reads pcap and pcapng, plain, gzip or zstd; `tcpdump -w FILE` writes pcap"
        }
        Error::LinkType(_) => {
            "capture on an interface with one of these links, a radio without its monitor mode; `editcap -T` changes only the number"
        }
        Error::Blocks(_) => {
            "have the program that wrote it write pcap, or pcapng with enhanced packet blocks"
        }
    };
    let name = match broken.name.as_str() {
        STDIN => "standard input",
        name => name,
    };
    Failure::failed(format!("{name}: {}", broken.error), hint)
}

/// How much has been read, on a terminal.
struct Progress {
    bar: ProgressBar,
    read: Arc<AtomicU64>,
}

impl Progress {
    fn new() -> Progress {
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
        let style = "{bytes} of {total_bytes} [{wide_bar}] {percent} %, {eta} left";
        bar.set_style(ProgressStyle::with_template(style).expect("the template is valid"));
        Progress {
            bar,
            read: Arc::default(),
        }
    }

    /// One more source, of so many bytes; `None`: nobody knows.
    fn add(&self, bytes: Option<u64>) {
        match (bytes, self.bar.length()) {
            (Some(bytes), Some(all)) => self.bar.set_length(all + bytes),
            _ => {
                self.bar.unset_length();
                let style = "{bytes} read, {bytes_per_sec} {spinner}";
                self.bar
                    .set_style(ProgressStyle::with_template(style).expect("the template is valid"));
            }
        }
    }

    fn show(&self) {
        self.bar.set_position(self.read.load(Ordering::Relaxed));
    }

    fn end(&self) {
        self.bar.finish_and_clear();
    }
}

/// Standard input, which Ctrl-C ends: what has come by then has its figures.
struct Stdin {
    file: File,
    signals: Signals,
    is_ending: bool,
}

/// How long a writer that got Ctrl-C too may take for its last packets.
const LAST_PACKETS_MS: u16 = 1000;

impl Stdin {
    fn take() -> Result<Stdin> {
        let file = io::stdin().as_fd().try_clone_to_owned();
        Ok(Stdin {
            file: file
                .map_err(|error| Failure::io("read standard input", error))?
                .into(),
            signals: Signals::take()?,
            is_ending: false,
        })
    }
}

impl Read for Stdin {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let timeout = match self.is_ending {
                true => PollTimeout::from(LAST_PACKETS_MS),
                false => PollTimeout::NONE,
            };
            let mut fds = [
                PollFd::new(self.file.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            ];
            let is_silent = poll(&mut fds, timeout)? == 0;
            let has_data = fds[0].any().unwrap_or(false);
            match self.signals.next() {
                // The second one does not wait.
                Some(signal) if ends(signal) && self.is_ending => return Ok(0),
                Some(signal) if ends(signal) => self.is_ending = true,
                _ if has_data => return self.file.read(buffer),
                _ if is_silent => return Ok(0),
                _ => {}
            }
        }
    }
}

/// Counts what is read of a stream.
struct Counting {
    stream: Box<dyn Read + Send>,
    bytes: Arc<AtomicU64>,
}

impl Read for Counting {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.stream.read(buffer)?;
        self.bytes.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

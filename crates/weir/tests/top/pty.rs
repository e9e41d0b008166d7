//! A terminal for a program: a pty, and an emulator that knows what its screen shows.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::num::NonZeroU16;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

use nix::poll::{PollFd, PollFlags, poll};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};
use weir_testbed::wait::{self, PATIENCE};

/// What the program has written.
struct Written {
    emulator: vt100::Parser,
    raw: Vec<u8>,
}

/// A program in a terminal. Killed on drop.
pub struct Pty {
    /// `None`: hung up.
    master: Option<OwnedFd>,
    /// Holds the terminal's settings, and keeps it there when the program has ended.
    slave: Option<File>,
    before: Termios,
    written: Arc<Mutex<Written>>,
    reader: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    child: Child,
}

/// Reads until the terminal is gone, or it is told to stop.
fn read(mut output: File, into: &Mutex<Written>, stop: &AtomicBool) {
    let mut buffer = [0; 65536];
    while !stop.load(Ordering::Relaxed) {
        let mut fds = [PollFd::new(output.as_fd(), PollFlags::POLLIN)];
        if poll(&mut fds, 50_u16) == Ok(0) {
            continue;
        }
        let Ok(read @ 1..) = output.read(&mut buffer) else {
            return;
        };
        let mut written = into.lock().unwrap();
        written.emulator.process(&buffer[..read]);
        written.raw.extend_from_slice(&buffer[..read]);
    }
}

impl Pty {
    /// Starts `command` as the leader of a session with this terminal, as sshd starts a shell.
    pub fn start(command: &Command, columns: u16, rows: u16) -> Pty {
        let master =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let path = ptsname(&master, Vec::new()).unwrap();
        let mut options = OpenOptions::new();
        let slave = options.read(true).write(true).custom_flags(libc_noctty());
        let slave = slave.open(path.to_str().unwrap()).unwrap();
        tcsetwinsize(&slave, size(columns, rows)).unwrap();
        let before = tcgetattr(&slave).unwrap();
        // util-linux makes the session; safe Rust has no way to do it in a child.
        let mut session = Command::new("setsid");
        session
            .arg("--ctty")
            .arg(command.get_program())
            .args(command.get_args());
        if let Some(folder) = command.get_current_dir() {
            session.current_dir(folder);
        }
        session.env("TERM", "xterm-256color").env_remove("NO_COLOR");
        for (name, value) in command.get_envs() {
            session.env(name, value.unwrap_or_default());
        }
        let end = || slave.try_clone().unwrap();
        session.stdin(end()).stdout(end()).stderr(end());
        let child = session.spawn().unwrap();
        let written = Arc::new(Mutex::new(Written {
            emulator: vt100::Parser::new(cells(rows), cells(columns), 0),
            raw: Vec::new(),
        }));
        let output = File::from(master.try_clone().unwrap());
        let (into, stop) = (Arc::clone(&written), Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        let reader = std::thread::spawn(move || read(output, &into, &stopped));
        Pty {
            master: Some(master),
            slave: Some(slave),
            before,
            written,
            reader: Some(reader),
            stop,
            child,
        }
    }

    /// Its process.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Types.
    pub fn keys(&self, keys: &str) {
        let master = self.master.as_ref().unwrap().try_clone().unwrap();
        File::from(master).write_all(keys.as_bytes()).unwrap();
    }

    /// Makes the terminal larger or smaller; the kernel sends SIGWINCH.
    pub fn resize(&self, columns: u16, rows: u16) {
        self.written()
            .emulator
            .screen_mut()
            .set_size(cells(rows), cells(columns));
        tcsetwinsize(self.master.as_ref().unwrap(), size(columns, rows)).unwrap();
    }

    /// What the terminal shows, a line each.
    pub fn text(&self) -> String {
        self.written().emulator.screen().contents()
    }

    /// The screen with its colours.
    pub fn screen(&self) -> vt100::Screen {
        self.written().emulator.screen().clone()
    }

    /// All bytes that have come.
    pub fn raw(&self) -> Vec<u8> {
        self.written().raw.clone()
    }

    fn written(&self) -> MutexGuard<'_, Written> {
        self.written.lock().unwrap()
    }

    /// Waits until the terminal shows what is wanted.
    #[track_caller]
    pub fn until(&self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let shown = || Some(self.text()).filter(|text| wanted(text));
        wait::try_until(PATIENCE, shown)
            .unwrap_or_else(|| panic!("not within {PATIENCE:?}: {what}\n{}", self.text()))
    }

    /// Waits for the end of the program.
    pub fn end(&mut self) -> ExitStatus {
        wait::until("the program ends", || self.child.try_wait().unwrap())
    }

    /// Whether the terminal is as the program found it: its settings, the first screen, a cursor.
    #[track_caller]
    pub fn is_as_before(&self) {
        let now = tcgetattr(self.slave.as_ref().unwrap()).unwrap();
        assert_eq!(format!("{now:?}"), format!("{:?}", self.before));
        let restored = || {
            let screen = self.screen();
            (!screen.alternate_screen() && !screen.hide_cursor()).then_some(())
        };
        wait::until("the terminal has its first screen and its cursor", restored);
    }

    /// The terminal goes away, as when a connection of ssh is cut.
    pub fn hang_up(&mut self) {
        self.slave = None;
        self.master = None;
        // The reader has a descriptor of it too.
        self.stop.store(true, Ordering::Relaxed);
        self.reader.take().unwrap().join().unwrap();
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn cells(count: u16) -> NonZeroU16 {
    NonZeroU16::new(count).unwrap()
}

fn size(columns: u16, rows: u16) -> Winsize {
    Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

/// The terminal must not become the test's own.
fn libc_noctty() -> i32 {
    nix::fcntl::OFlag::O_NOCTTY.bits()
}

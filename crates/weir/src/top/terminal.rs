//! The terminal: the screen, which is given back however weir ends, and the keys.

use std::io::{self, IsTerminal, Stdout, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::style::ResetColor;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};

use super::model::{Key, Model};
use super::theme::Theme;
use super::view;
use crate::failure::{Failure, Result};

/// The signals that `weir top` takes. Blocked, so that none of them ends weir before the terminal is as it was.
const SIGNALS: [Signal; 6] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGWINCH,
    Signal::SIGCONT,
];

/// Whether `weir top` can show a screen here: standard output is a terminal that can move its cursor.
pub fn is_screen() -> bool {
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb" || term.is_empty());
    io::stdout().is_terminal() && !is_dumb
}

/// Whether colours are wanted (<https://no-color.org>).
pub fn has_colour() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// The signals as a descriptor.
pub struct Signals(SignalFd);

impl Signals {
    /// Takes them over. Threads that start later have them blocked too.
    ///
    /// # Errors
    /// The kernel gives no signalfd.
    pub fn take() -> Result<Signals> {
        let take = || -> nix::Result<SignalFd> {
            let mut set = SigSet::empty();
            SIGNALS.into_iter().for_each(|signal| set.add(signal));
            set.thread_block()?;
            SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
        };
        let taken = take().map_err(|errno| Failure::io("take signals over", errno.into()))?;
        Ok(Signals(taken))
    }

    /// The next signal that has come.
    pub fn next(&self) -> Option<Signal> {
        let info = self.0.read_signal().ok().flatten()?;
        Signal::try_from(info.ssi_signo as i32).ok()
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The screen while weir has it. Dropped, the terminal is as it was; a panic gives it back before its message.
pub struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Screen {
    /// Takes the terminal.
    ///
    /// # Errors
    /// It cannot be set or written.
    pub fn enter() -> Result<Screen> {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            give_back();
            before(panic);
        }));
        let enter = || {
            take()?;
            Terminal::new(CrosstermBackend::new(io::stdout()))
        };
        match enter() {
            Ok(terminal) => Ok(Screen { terminal }),
            Err(error) => {
                give_back();
                Err(Failure::io("set the terminal up", error))
            }
        }
    }

    /// Draws the model at the terminal's size of now.
    ///
    /// # Errors
    /// The terminal has gone.
    pub fn draw(&mut self, model: &Model, theme: Theme) -> io::Result<()> {
        self.terminal
            .draw(|frame| view::draw(frame, model, theme))
            .map(drop)
    }

    /// Stops this process until its shell wakes it.
    ///
    /// # Errors
    /// As [`again`](Self::again).
    pub fn suspend(&mut self) -> io::Result<()> {
        give_back();
        raise(Signal::SIGTSTP)?;
        self.again()
    }

    /// Takes the terminal again after this process was stopped: the shell may have set it otherwise meanwhile.
    ///
    /// # Errors
    /// It cannot be set or written.
    pub fn again(&mut self) -> io::Result<()> {
        // What crossterm remembers as the state before is what the shell has set now.
        disable_raw_mode()?;
        take()?;
        self.terminal.clear()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

fn take() -> io::Result<()> {
    enable_raw_mode()?;
    execute!(io::stdout(), EnterAlternateScreen)
}

/// Gives the terminal back, as far as it is still there. Twice does no harm.
fn give_back() {
    let _ = execute!(io::stdout(), ResetColor, LeaveAlternateScreen, Show);
    let _ = io::stdout().flush();
    let _ = disable_raw_mode();
}

/// The keys: standard input where it is a terminal, else the terminal of this process, as crossterm reads them.
pub enum Keyboard {
    /// Standard input.
    Stdin(io::Stdin),
    /// The terminal of this process.
    Tty(OwnedFd),
}

impl Keyboard {
    /// Finds it.
    ///
    /// # Errors
    /// This process has no terminal.
    pub fn find() -> Result<Keyboard> {
        let stdin = io::stdin();
        if stdin.is_terminal() {
            return Ok(Keyboard::Stdin(stdin));
        }
        let tty = std::fs::File::open("/dev/tty");
        let tty = tty.map_err(|error| Failure::io("read keys from /dev/tty", error))?;
        Ok(Keyboard::Tty(tty.into()))
    }

    /// The descriptor that is readable when a key was pressed.
    pub fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Keyboard::Stdin(stdin) => stdin.as_fd(),
            Keyboard::Tty(tty) => tty.as_fd(),
        }
    }
}

/// The next key that was pressed and means something here.
///
/// # Errors
/// The terminal has gone.
pub fn next_key() -> io::Result<Option<Key>> {
    while event::poll(Duration::ZERO)? {
        if let Event::Key(pressed) = event::read()?
            && let Some(key) = key(pressed)
        {
            return Ok(Some(key));
        }
    }
    Ok(None)
}

fn key(pressed: KeyEvent) -> Option<Key> {
    if pressed.kind == KeyEventKind::Release {
        return None;
    }
    // A key with Alt means nothing here; Esc and a letter that come together look like one.
    if pressed.modifiers.contains(KeyModifiers::ALT) {
        return None;
    }
    let is_ctrl = pressed.modifiers.contains(KeyModifiers::CONTROL);
    Some(match pressed.code {
        KeyCode::Char(c) if is_ctrl => Key::Ctrl(c.to_ascii_lowercase()),
        KeyCode::Char(c) => Key::Char(c),
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::Left => Key::Left,
        KeyCode::Right => Key::Right,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Tab => Key::Tab,
        KeyCode::BackTab => Key::BackTab,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Esc,
        KeyCode::Backspace => Key::Backspace,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::{Command, Stdio};

    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::tcgetattr;

    use super::*;

    /// Tells this program, run again in a terminal, to panic on a screen.
    const IN_A_TERMINAL: &str = "WEIR_TEST_PANIC_ON_A_SCREEN";

    #[test]
    fn a_panic_gives_the_terminal_back_before_its_message() {
        if std::env::var_os(IN_A_TERMINAL).is_some() {
            let _screen = Screen::enter().unwrap();
            panic!("of the test");
        }
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let path = ptsname(&master, Vec::new()).unwrap();
        let mut options = std::fs::OpenOptions::new();
        let slave = options
            .read(true)
            .write(true)
            .open(path.to_str().unwrap())
            .unwrap();
        let before = format!("{:?}", tcgetattr(&slave).unwrap());
        let own = "top::terminal::tests::a_panic_gives_the_terminal_back_before_its_message";
        let mut child = Command::new(std::env::current_exe().unwrap());
        let end = || Stdio::from(slave.try_clone().unwrap());
        child
            .args([own, "--exact", "--nocapture"])
            .env(IN_A_TERMINAL, "1");
        child.stdin(end()).stdout(end()).stderr(end());
        let ended = child.spawn().unwrap().wait().unwrap();
        assert!(!ended.success());
        assert_eq!(format!("{:?}", tcgetattr(&slave).unwrap()), before);
        drop((slave, child));
        let mut shown = Vec::new();
        // EIO ends it: nobody has the other end any more.
        let _ = std::fs::File::from(master).read_to_end(&mut shown);
        let shown = String::from_utf8_lossy(&shown);
        let at = |text: &str| {
            shown
                .find(text)
                .unwrap_or_else(|| panic!("{text:?}: {shown:?}"))
        };
        // Modes 1049 (the alternate screen) and 25 (the cursor) of xterm.
        assert!(at("\x1b[?1049h") < at("\x1b[?1049l"), "{shown:?}");
        assert!(
            at("\x1b[?1049l") < at("of the test") && at("\x1b[?25h") < at("of the test"),
            "{shown:?}"
        );
    }
}

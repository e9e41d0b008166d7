//! `weir top`: what `weir status` says, live on the whole terminal. Once and as plain text with `--once`, and where
//! standard output is no terminal.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::Instant;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use weir_core::units::about_duration;

use crate::cli::Top;
use crate::failure::{Failure, Result};
use crate::show::output::print;
use crate::top::data::{Data, Report};
use crate::top::model::{Model, Then};
use crate::top::once;
use crate::top::source::{Reporter, Source};
use crate::top::terminal::{self, Keyboard, Screen, Signals};
use crate::top::theme::Theme;

/// Runs the command.
pub fn run(runtime_dir: &Path, args: &Top) -> Result<()> {
    let source = Source::new(runtime_dir, &args.api);
    let start = Instant::now();
    // Whoever asks where no weir runs gets an error, not an empty screen.
    let first = source.report(start)?;
    match args.once || !terminal::is_screen() {
        true => print_once(args, &source, start, first),
        false => live(args, source, start, first),
    }
}

fn print_once(args: &Top, source: &Source, start: Instant, first: Report) -> Result<()> {
    std::thread::sleep(args.every);
    let mut data = Data::default();
    data.take(first);
    data.take(source.report(start)?);
    let order = once::Order {
        sort: args.sort,
        filter: &args.filter,
    };
    print(&once::text(&data, order))
}

fn live(args: &Top, source: Source, start: Instant, first: Report) -> Result<()> {
    let mut model = Model::new(source.name(), about_duration(args.every));
    model.sort = args.sort;
    model.filter = args.filter.clone();
    model.take(first);
    let theme = Theme::new(terminal::has_colour());
    let keyboard = Keyboard::find()?;
    // Before any thread starts, so that all have them blocked.
    let signals = Signals::take()?;
    let reporter = Reporter::start(source, start, args.every)?;
    let mut screen = Screen::enter()?;
    let ended = show(
        &mut screen,
        &mut model,
        theme,
        &keyboard,
        &signals,
        &reporter,
    );
    // A failure is printed on the user's own screen.
    drop(screen);
    ended
}

fn show(
    screen: &mut Screen,
    model: &mut Model,
    theme: Theme,
    keyboard: &Keyboard,
    signals: &Signals,
    reporter: &Reporter,
) -> Result<()> {
    loop {
        // Nobody is left to tell where the terminal has gone.
        if screen.draw(model, theme).is_err() {
            return Ok(());
        }
        let woken = wait(keyboard, signals, reporter)?;
        if woken.has_gone {
            return Ok(());
        }
        while let Some(signal) = signals.next() {
            match signal {
                Signal::SIGWINCH => {}
                Signal::SIGCONT => drop(screen.again()),
                _ => return Ok(()),
            }
        }
        while let Some(answer) = reporter.next()? {
            match answer {
                Ok(report) => model.take(report),
                Err(failure) => model.fail(failure.causes[0].message.clone()),
            }
        }
        if woken.is_typed {
            while let Some(key) = terminal::next_key().unwrap_or_default() {
                match model.key(key) {
                    Then::Draw => {}
                    Then::Suspend => drop(screen.suspend()),
                    Then::Quit => return Ok(()),
                }
            }
        }
    }
}

/// What has happened.
struct Woken {
    is_typed: bool,
    /// The terminal has hung up.
    has_gone: bool,
}

fn wait(keyboard: &Keyboard, signals: &Signals, reporter: &Reporter) -> Result<Woken> {
    let fds = [keyboard.fd(), signals.as_fd(), reporter.as_fd()];
    let mut fds = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN));
    match poll(&mut fds, PollTimeout::NONE) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(errno) => return Err(Failure::io("wait for keys and reports", errno.into())),
    }
    let events = fds[0].revents().unwrap_or(PollFlags::empty());
    let gone = PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL;
    Ok(Woken {
        is_typed: events.contains(PollFlags::POLLIN),
        has_gone: events.intersects(gone),
    })
}

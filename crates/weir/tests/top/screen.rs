//! `weir top` in a terminal.

use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::common::Running;
use crate::overload::{Bed, Load};
use crate::pty::Pty;
use crate::svg;

/// A file to write a screenshot of the overload to: docs/top.md shows it.
const SCREENSHOT: &str = "WEIR_SCREENSHOT";

/// Columns before the charts.
const LABEL: usize = 21;

fn top(bed: &Bed, arguments: &str, columns: u16, rows: u16) -> Pty {
    let command = bed.folder.command(&format!("top {arguments}"));
    Pty::start(&command, columns, rows)
}

#[test]
fn an_overload_is_watched_live_and_every_key_does_what_the_help_says() {
    let Some(bed) = Bed::new("top-screen") else {
        return;
    };
    let load = Load::start();
    let mut top = top(&bed, "--every 200ms", 80, 24);
    let shown = top.until("refusals and bars", |text| {
        text.contains("syn_reset") && text.contains('█')
    });
    for word in [
        "web",
        "mail",
        "enforce",
        "observe",
        "wait",
        "target",
        "refused/s",
        "q quit",
    ] {
        assert!(shown.contains(word), "{word}\n{shown}");
    }
    let target = shown.lines().find(|line| line.starts_with("target "));
    assert!(target.is_some_and(|line| line.contains(" ms ")), "{shown}");
    assert!(top.screen().alternate_screen() && top.screen().hide_cursor());
    if let Some(path) = std::env::var_os(SCREENSHOT) {
        // As many reports as the charts have columns.
        let is_full =
            |line: &str| line.starts_with("admitted/s") && line.chars().nth(LABEL) != Some(' ');
        let full = |text: &str| text.lines().any(is_full);
        top.until("a full chart", |text| full(text) && text.contains("held: "));
        let title = "weir top: a server with more clients than it can serve";
        std::fs::write(Path::new(&path), svg::of(&top.screen(), title)).unwrap();
    }
    for (keys, words) in [
        ("2", "held at"),
        ("3", "127.0.0.0/24"),
        ("4", "controller: wait 20ms"),
        ("5", "edge"),
        ("6", "backend 127.0.0.1:8083 is down"),
        ("?", "weir top: keys"),
        ("x", "q quit"),
        ("s", "sort: admitted/s"),
        ("/mail\r", "filter: mail"),
        ("\x1b", "/ filter  Space"),
        (" ", "FROZEN"),
        (" ", "freeze"),
    ] {
        top.keys(keys);
        top.until(&format!("{words:?} after {keys:?}"), |text| {
            text.contains(words)
        });
    }
    top.resize(120, 40);
    top.until("the columns of a wide terminal", |text| {
        text.contains("half-open")
    });
    top.resize(40, 10);
    top.until("that it is too small", |text| {
        text.contains("weir top needs")
    });
    top.resize(80, 24);
    top.until("the screen again", |text| text.contains("refused/s"));
    top.keys("q");
    assert_eq!(top.end().code(), Some(0), "{}", top.text());
    top.is_as_before();
    drop(load);
}

#[test]
fn a_weir_that_ends_and_comes_again_is_seen_to() {
    let Some(mut bed) = Bed::new("top-restart") else {
        return;
    };
    let mut top = top(&bed, "--every 100ms", 80, 24);
    top.until("the listeners", |text| text.contains("mail"));
    // The proxies alone are still there; then nobody is.
    let (guard, proxies) = (&mut bed.guard.0, &mut bed.proxies.0);
    for process in [guard, proxies] {
        kill(Pid::from_raw(process.id() as i32), Signal::SIGTERM).unwrap();
        process.wait().unwrap();
    }
    top.until("that nobody answers", |text| {
        text.contains("no answer: no weir is running")
    });
    let again = Running::start(&bed.folder, "run --config weir.toml");
    top.until("the next one", |text| {
        text.contains("mail") && !text.contains("no answer")
    });
    drop(again);
    top.keys("\x03");
    assert_eq!(top.end().code(), Some(0));
    top.is_as_before();
}

#[test]
fn the_terminal_is_given_back_whatever_signal_ends_it() {
    let Some(bed) = Bed::new("top-signals") else {
        return;
    };
    for signal in [
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGHUP,
        Signal::SIGQUIT,
    ] {
        let mut top = top(&bed, "", 80, 24);
        top.until("the screen", |text| text.contains("q quit"));
        kill(Pid::from_raw(top.pid()), signal).unwrap();
        assert_eq!(top.end().code(), Some(0), "{signal}");
        top.is_as_before();
    }
}

#[test]
fn it_ends_when_its_terminal_goes_away() {
    let Some(bed) = Bed::new("top-hangup") else {
        return;
    };
    let mut top = top(&bed, "", 80, 24);
    top.until("the screen", |text| text.contains("q quit"));
    top.hang_up();
    top.end();
}

#[test]
fn no_color_turns_colours_off_and_a_failure_is_printed_on_the_user_s_own_screen() {
    let Some(bed) = Bed::new("top-colour") else {
        return;
    };
    let coloured = |raw: &[u8]| {
        // A foreground of the 256 colours of xterm: ESC [ 38 ; 5 ; 1 m.
        String::from_utf8_lossy(raw).contains("[38;5;")
    };
    for (value, expected) in [("1", false), ("", true)] {
        let mut command = bed.folder.command("top");
        command.env("NO_COLOR", value);
        let mut top = Pty::start(&command, 80, 24);
        top.until("the screen", |text| text.contains("q quit"));
        top.keys("q");
        top.end();
        assert_eq!(coloured(&top.raw()), expected, "NO_COLOR={value:?}");
    }
    let mut top = top(&bed, "--api none.sock", 80, 24);
    assert_eq!(top.end().code(), Some(1));
    top.until("the failure", |text| text.contains("error: ask none.sock"));
    top.is_as_before();
}

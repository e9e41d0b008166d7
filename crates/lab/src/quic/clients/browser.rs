//! Chromium, headless. Its first page says that the server has HTTP/3 (Alt-Svc), and asks for two more.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use super::end::{End, How, since_epoch};
use crate::bed::{Bed, SERVER_VETH_V4};
use crate::error::{Context, Error, Result};
use crate::process::end_session;
use crate::quic::{PORT, Program};
use crate::{interrupt, needs};

/// It has HTTP/3, and stays until it is ended.
const OWN_FLAGS: [&str; 2] = ["--enable-quic", "--remote-debugging-port=0"];
/// What it calls the server, which no name service knows.
const NAME: &str = "server.test";
const POLL: Duration = Duration::from_millis(10);

/// # Errors
/// Unsupported where none is installed.
pub(super) fn find() -> Result<std::path::PathBuf> {
    let found = needs::find_browser();
    found.ok_or_else(|| {
        Error::unsupported("cannot have a browser", "no Chromium is installed")
            .hint("scripts/setup quic")
    })
}

/// A new browser with a profile of its own; the end of the attempt is that of the second page, which is the first that may
/// come by QUIC.
pub(super) fn attempt(bed: &Bed, web: &Program, patience: Duration) -> Result<End> {
    let profile = tempfile::TempDir::with_prefix("weir-lab-browser-");
    let profile = profile.context("cannot create a directory for a browser")?;
    let mut command = needs::command("setsid");
    command
        .arg(find()?)
        .args(needs::BROWSER_FLAGS)
        .args(OWN_FLAGS);
    command.arg(format!("--user-data-dir={}", profile.path().display()));
    // Its certificate is as good as any: what is wrong with it would keep QUIC away.
    let key = web.key_hash()?;
    command.arg(format!("--ignore-certificate-errors-spki-list={key}"));
    command.arg(format!("--host-resolver-rules=MAP {NAME} {SERVER_VETH_V4}"));
    command.arg(format!("https://{NAME}:{PORT}/first"));
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(Stdio::null());
    let before = web.reports().len();
    let child = bed.clients.run_on(Some(bed.layout.client_cpu), || {
        command.spawn().context("cannot start a browser")
    })?;
    let _browser = Browser(child);
    let begun = Instant::now();
    loop {
        interrupt::check()?;
        if let Some(end) = read(&web.reports()[before..]) {
            return Ok(end);
        }
        if begun.elapsed() > patience {
            return Ok(End {
                at: since_epoch(),
                how: How::OutOfPatience,
                next: None,
            });
        }
        std::thread::sleep(POLL);
    }
}

/// Killed with all its processes on drop.
struct Browser(Child);

impl Drop for Browser {
    fn drop(&mut self) {
        end_session(&mut self.0);
    }
}

/// What the first page reports, once it has.
fn read(reports: &str) -> Option<End> {
    let (line, _) = reports.split_once('\n')?;
    let mut parts = line.strip_prefix("/report?")?.split(',');
    let at_ms: f64 = parts.next()?.parse().ok()?;
    let second = parts.nth(1)?;
    let third = parts.nth(1)?;
    Some(End {
        at: Duration::from_secs_f64(at_ms / 1e3),
        how: How::Served(protocol(second)),
        next: Some(protocol(third)),
    })
}

/// As people write it.
fn protocol(name: &str) -> String {
    match name {
        "h2" => "HTTP/2".into(),
        "h3" => "HTTP/3".into(),
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_says_when_the_second_page_was_there_and_how_both_came() {
        let end = read("/report?1700000000250.5,44.1,h2,12.9,h3\n").unwrap();
        let at = Duration::from_micros(1_700_000_000_250_500);
        assert!(end.at.abs_diff(at) < Duration::from_micros(1));
        assert_eq!(end.how, How::Served("HTTP/2".into()));
        assert_eq!(end.next.as_deref(), Some("HTTP/3"));
        // Half of it is there.
        assert_eq!(read("/report?17000000"), None);
    }
}

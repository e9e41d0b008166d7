//! The proxy's experiments in short: each runs the real `weir proxy`.

mod matrix;

/// Tests that judge rates and times: scripts/test runs each of them alone.
mod measured {
    mod lossy;
    mod rr02;
    mod scale;
}

use std::path::PathBuf;
use std::sync::OnceLock;

use weir_lab::cli;
use weir_lab::run::results::Results;
use weir_testbed::needs::namespace;
use weir_testbed::program;

/// The program, as new as its sources.
fn weir() -> &'static PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| program::find_or_build("weir").unwrap())
}

/// An experiment of the registry with these flags.
fn measure(id: &str, flags: &str) -> Results {
    cli::once(id, flags, Some(weir().clone())).unwrap()
}

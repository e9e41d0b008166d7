//! The real `weir proxy` between hostile ends, and between real clients and a plain origin.

mod clients;
mod matrix;
mod origin;
mod rr02;
mod scale;
mod sockmap;

use std::path::PathBuf;
use std::sync::OnceLock;

use weir_lab::netns::{Netns, require_root};
use weir_lab::program;

/// A namespace of the test's own; `None` without root, and says so.
fn namespace(role: &str) -> Option<Netns> {
    if let Err(error) = require_root() {
        println!("SKIP: {error}");
        return None;
    }
    Some(Netns::create(role).unwrap())
}

/// The program, built if cargo has not built it beside this test already.
fn weir() -> &'static PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| program::find_or_build("weir").unwrap())
}

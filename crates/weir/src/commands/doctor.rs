//! `weir doctor`: what this kernel and this network namespace can do, and why not.

use crate::cli::Doctor;
use crate::failure::{Failure, Result};

/// Runs the command.
pub fn run(_args: &Doctor) -> Result<()> {
    Err(Failure::failed("not built yet", ""))
}

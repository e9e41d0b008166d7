//! The program; all of it is in the library, so that fuzzing reaches it too.

use std::process::ExitCode;

fn main() -> ExitCode {
    weir::main()
}

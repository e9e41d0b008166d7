//! The real `weir proxy` between real clients and a plain origin, and what its sockmap engine leaves to the kernel.

mod clients;
mod origin;
mod sockmap;

/// The program, which cargo has built for this test.
const WEIR: &str = env!("CARGO_BIN_EXE_weir");

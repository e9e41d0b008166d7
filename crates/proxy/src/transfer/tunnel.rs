//! Both directions of a tunnel at once.

use std::cell::Cell;

use super::{Broken, Lanes, Limit, Rules, transfer};
use crate::runtime::{TcpStream, try_both};

/// What went through a tunnel, and how it ended.
#[derive(Debug)]
pub struct Tunnelled {
    /// Bytes from the first connection to the second.
    pub forth: u64,
    /// Bytes from the second to the first.
    pub back: u64,
    /// `Err` if a connection broke or nothing moved for the idle time; `Ok` if both ends came.
    pub end: Result<(), Broken>,
}

/// Carries bytes both ways until both senders have ended. One that ends is ended to the other at
/// once, after its last byte, while the other way goes on; one that resets is reset to the other.
pub async fn tunnel(lanes: &Lanes, a: &TcpStream, b: &TcpStream, rules: Rules) -> Tunnelled {
    let (forth, back) = (Cell::new(0), Cell::new(0));
    let end = try_both(
        flow(lanes, a, b, rules, &forth),
        flow(lanes, b, a, rules, &back),
    )
    .await
    .map(|_| ());
    if let Err(broken) = &end
        && broken.error().kind() != std::io::ErrorKind::TimedOut
    {
        a.reset_on_close();
        b.reset_on_close();
    }
    Tunnelled {
        forth: forth.get(),
        back: back.get(),
        end,
    }
}

/// One way: all bytes, then the end.
async fn flow(
    lanes: &Lanes,
    from: &TcpStream,
    to: &TcpStream,
    rules: Rules,
    moved: &Cell<u64>,
) -> Result<(), Broken> {
    transfer(lanes, from, to, Limit::UntilEnd, rules, moved).await?;
    to.shut_down_write();
    Ok(())
}

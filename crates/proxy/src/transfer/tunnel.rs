//! Both directions of a tunnel at once.

use std::cell::Cell;
use std::pin::pin;

use super::course::{Limit, Moved};
use super::outcome::{Broken, Tunnelled};
use super::resources::TransferContext;
use super::{redirect, transfer};
use crate::runtime::{TcpStream, try_both, while_taken};

/// Carries bytes both ways until both senders have ended. One that ends is ended to the other at
/// once, after its last byte, while the other way goes on; one that resets is reset to the other.
/// `ahead` was received of `a` and of `b` before, and goes first.
///
/// No `async fn`: those keep their arguments twice, and this is what idle tunnels consist of.
pub fn tunnel(
    context: TransferContext<'_>,
    a: &TcpStream,
    b: &TcpStream,
    ahead: [Vec<u8>; 2],
) -> impl Future<Output = Tunnelled> {
    let (forth, back) = (Moved::default(), Moved::default());
    let [of_a, of_b] = ahead.map(Cell::new);
    async move {
        if let Some(redirect) = &context.resources.redirect {
            let ahead = [of_a.take(), of_b.take()];
            // Boxed: the futures of other engines' tunnels then need no memory for it.
            let carried = redirect::tunnel(redirect, context, [a, b], ahead);
            let mut carried = Box::pin(carried);
            let tunnelled = while_taken(context.rules.idle, [a, b], carried.as_mut()).await;
            reset_what_broke([a, b], &tunnelled.end);
            return tunnelled;
        }
        let there = pin!(flow(context, [a, b], &of_a, [&forth, &back]));
        let back_again = pin!(flow(context, [b, a], &of_b, [&back, &forth]));
        let both = pin!(try_both(there, back_again));
        let end = while_taken(context.rules.idle, [a, b], both)
            .await
            .map(|_| ());
        reset_what_broke([a, b], &end);
        Tunnelled {
            forth: forth.get(),
            back: back.get(),
            spliced: forth.spliced() + back.spliced(),
            redirected: 0,
            end,
        }
    }
}

/// A silent tunnel is ended; one that holds bytes which a side takes no longer is broken off.
fn reset_what_broke(sides: [&TcpStream; 2], end: &Result<(), Broken>) {
    if let Err(broken) = end {
        let is_late = broken.error().kind() == std::io::ErrorKind::TimedOut;
        for side in sides {
            if !is_late || side.unacknowledged() > 0 {
                side.reset_on_close();
            }
        }
    }
}

/// One way: what was received ahead, all that comes, then the end.
#[expect(clippy::manual_async_fn, reason = "it would keep its arguments twice")]
fn flow(
    context: TransferContext<'_>,
    [from, to]: [&TcpStream; 2],
    ahead: &Cell<Vec<u8>>,
    [moved, back]: [&Moved; 2],
) -> impl Future<Output = Result<(), Broken>> {
    async move {
        send_ahead(to, ahead, moved).await.map_err(Broken::To)?;
        transfer(context, from, to, Limit::UntilEnd, [moved, back]).await?;
        to.shut_down_write();
        Ok(())
    }
}

async fn send_ahead(to: &TcpStream, ahead: &Cell<Vec<u8>>, moved: &Moved) -> std::io::Result<()> {
    let ahead = ahead.take();
    to.send_all(&ahead, false).await?;
    moved.add(ahead.len() as u64);
    Ok(())
}

//! Servers with other kinds of listening sockets.

use weir_testbed::sockets::listen_in_group;

use crate::bed::{BACKLOG, Bed, PORT, SERVER, at, holds};
use crate::load::Workers;

/// Two workers, each with a queue of its own.
#[test]
fn reuseport_group() {
    let Some(bed) = Bed::new() else { return };
    let any = format!("[::]:{PORT}").parse().unwrap();
    let sockets = (0..2).map(|_| listen_in_group(&bed.server, any, BACKLOG / 2));
    let _server = Workers::start(sockets.collect());
    let to = at(SERVER, PORT);
    holds(
        "SO_REUSEPORT group",
        &bed.client,
        &to,
        &[(&bed.server, PORT)],
    );
}

//! What transfers of one thread share.

use super::buffer::Buffers;
use super::course::Rules;
use super::lane::Redirect;
use super::pipe::Pipes;

/// Buffers and pipes of one thread.
pub struct Resources {
    /// What the copy engine and the readers of heads receive into.
    pub buffers: Buffers,
    /// What the splice engine moves pages through.
    pub pipes: Pipes,
    /// What the sockmap engine hands tunnels of short messages to.
    pub redirect: Option<Redirect>,
}

impl Resources {
    /// Of a thread that lends so many pipes at once.
    pub fn new(pipes: usize, redirect: Option<Redirect>) -> Resources {
        Resources {
            buffers: Buffers::default(),
            pipes: Pipes::at_most(pipes),
            redirect,
        }
    }
}

/// What a transfer works with.
#[derive(Clone, Copy)]
pub struct TransferContext<'a> {
    /// Of its thread.
    pub resources: &'a Resources,
    /// Of its proxy.
    pub rules: Rules,
}

//! The event loop: a single-threaded executor over edge-triggered epoll.
//!
//! Each thread of the proxy runs one. It is made for two rules of the data path:
//!
//! - A system call is tried first and waited for only after EAGAIN. A socket's readiness is known
//!   from the last event and the last short read, so that a request costs its receives and sends
//!   and nothing else; a socket that never has to wait never meets epoll.
//! - A timeout costs no timer. Each task has one deadline, which is a plain store to move; the wheel
//!   holds the earliest of them and looks again when that has passed.
//!
//! Tasks do not use `Waker`s: an event names the socket, and the socket the task that waits for it.
//! A task may be woken without cause, and every future here looks again for what it waits for.

mod executor;
mod fd_watch;
mod handshakes;
mod mailbox;
mod poller;
mod side;
mod source;
mod task;
mod tcp;
mod wheel;
mod while_taken;

pub use executor::{Clock, Handle, Runtime, first, try_both};
pub use fd_watch::FdWatch;
pub use mailbox::{Mailbox, Sender, mailbox};
pub use side::{OptionError, set_side_options};
pub use source::Direction;
pub use task::TaskId;
pub use tcp::{ListenOptions, TcpListener, TcpStream, bind_source, tcp_socket};
pub use while_taken::while_taken;

#[cfg(test)]
mod tests;

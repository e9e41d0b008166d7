//! Where servers stand: behind bridges, tunnels and address translation, on other kinds of sockets. In each
//! environment the real weir meets light load and overload, beside a slow server; docs/environments.md says what
//! comes of it.
//!
//! One test an environment, each in namespaces of its own. What this kernel lacks is a counted skip.

mod bed;
mod devices;
mod load;
mod local;
/// What judges rates or times.
mod measured {
    mod health;
}
mod nat;
mod routing;
mod sockets;

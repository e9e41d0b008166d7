//! The trial that tells whether connections can be handed to a server.

/// Whether a server is woken for a connection that is migrated to its listening socket: tried on the loopback device of
/// this network namespace, each time that it is asked. Needs root.
///
/// # Errors
/// The kernel's answer, where it cannot be tried. EAGAIN: the connection was not migrated. ETIMEDOUT: none came about.
pub fn wakes() -> Result<bool, nix::errno::Errno> {
    crate::queue::wakes_at_migration()
}

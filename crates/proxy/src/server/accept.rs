//! A thread accepts connections until a command ends that, and then serves the clients that it has.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use weir_core::proxy::ProxyMode;
use weir_core::units::count;

use super::command::Command;
use super::http::ClientTask;
use super::tcp;
use super::thread_state::ThreadState;
use super::worker::{ClientGuard, ClientPermit, Worker};
use crate::runtime::{Clock, Mailbox, TcpListener, TcpStream, first};
use crate::shortage;

/// Pause of accepting when the process is out of descriptors or memory.
const OUT_OF_DESCRIPTORS: Duration = Duration::from_millis(50);

/// How long the thread waits for handshakes under way when accepting ends. The kernel sends a SYN/ACK again after a
/// second.
const HANDSHAKE_TIME: Duration = Duration::from_millis(1500);
/// How often it looks for them.
const HANDSHAKE_LOOK: Duration = Duration::from_millis(5);

fn obey(command: Command) -> Command {
    #[cfg(test)]
    if let Command::Panic = command {
        panic!("as commanded");
    }
    command
}

impl Worker {
    /// Accepts connections until a command comes.
    ///
    /// # Errors
    /// epoll fails.
    pub async fn accept_until_told(
        self: &Rc<Self>,
        listener: &TcpListener,
        commands: &Mailbox<Command>,
    ) -> io::Result<Command> {
        loop {
            let command = pin!(async { commands.receive().await.map(Some) });
            match first(command, pin!(self.accept(listener))).await {
                Ok(Some(command)) => return Ok(obey(command)),
                Ok(None) => {}
                Err(error) => {
                    shortage::warn("accept connections", &error);
                    self.counters.accepts_failed.add(1);
                    listener.rest();
                    self.handle.set_deadline(OUT_OF_DESCRIPTORS);
                    match commands.receive().await {
                        Ok(command) => return Ok(obey(command)),
                        Err(_) => self.handle.clear_deadline(),
                    }
                }
            }
        }
    }

    async fn accept(self: &Rc<Self>, listener: &TcpListener) -> io::Result<Option<Command>> {
        let admit = || ClientPermit::take(self);
        let serve = |permit, client, peer| self.serve(permit, client, peer);
        let mut admitted = listener.accept(admit, serve).await?;
        while !admitted {
            listener.rest();
            self.state.set(ThreadState::Full);
            self.client_limit.wait(&self.handle).await?;
            self.state.set(ThreadState::Accepting);
            admitted = listener.accept_now(admit, serve)?;
        }
        Ok(None)
    }

    /// Accepts, before the socket is closed, each connection that stands already for its client: those in the accept
    /// queue, and those whose handshake is not over. No new handshake begins, so there is an end to them. (The kernel
    /// keeps nothing of a handshake by SYN cookie: its final ACK is reset if it comes later.) Returns a command that
    /// came meanwhile.
    pub async fn accept_the_last(
        self: &Rc<Self>,
        listener: &TcpListener,
        commands: &Mailbox<Command>,
        time: Duration,
    ) -> Option<Command> {
        let serve = |client, peer| self.serve(ClientPermit::take_over_limit(self), client, peer);
        listener.rest();
        let failed = |error| tracing::warn!("cannot accept the last connections: {error}");
        let until = self.handle.now() + time.min(HANDSHAKE_TIME).as_millis() as Clock;
        if let Err(error) = listener.shut() {
            tracing::warn!("cannot refuse new connections before the last are accepted: {error}");
        }
        while self.handle.now() < until && listener.is_in_handshake() {
            listener.accept_all(serve).map_err(failed).ok()?;
            self.handle.set_deadline(HANDSHAKE_LOOK);
            if let Ok(command) = commands.receive().await {
                return Some(obey(command));
            }
        }
        listener.accept_all(serve).map_err(failed).ok()?;
        None
    }

    fn serve(self: &Rc<Self>, permit: ClientPermit, stream: TcpStream, peer: SocketAddr) {
        let guard = ClientGuard::new(permit);
        // Two kinds of task: a tunnel's is smaller than that of a client that speaks HTTP.
        match self.settings.mode {
            ProxyMode::Tcp => self.handle.spawn(tcp::serve(guard, stream, peer)),
            ProxyMode::Forward | ProxyMode::Reverse => {
                self.handle.spawn(ClientTask::new(guard, stream, peer));
            }
        }
    }

    /// Waits for the last client, at most as long as the command says; a later one gives another time.
    pub async fn finish(&self, commands: &Mailbox<Command>, mut command: Command) {
        loop {
            match command {
                Command::Drain(time) => {
                    self.end_idle();
                    self.handle.set_deadline(time);
                }
                _ => self.handle.clear_deadline(),
            }
            let served = pin!(async {
                let served = || (self.clients.get() == 0).then_some(());
                self.handle.wait_for(served).await.map(|()| None)
            });
            let next = pin!(async { commands.receive().await.map(Some) });
            match first(served, next).await {
                Ok(Some(next)) => command = obey(next),
                Ok(None) => return,
                Err(_) => {
                    let clients = count(self.clients.get(), "connection");
                    return tracing::warn!("{clients} cut");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of<F>(_: impl FnOnce(ClientGuard, TcpStream, SocketAddr) -> F) -> usize {
        size_of::<F>()
    }

    /// Each idle connection holds one such future; the figures are in docs/design/proxy.md.
    #[test]
    fn tasks_of_idle_clients_are_small() {
        let http = bytes_of(ClientTask::new);
        let tunnel = bytes_of(tcp::serve);
        assert!(http <= 120, "{http}");
        assert!(tunnel <= 1392, "{tunnel}");
    }
}

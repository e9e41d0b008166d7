//! Long transfers to clients, which fill the link.

use std::ffi::OsString;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};

use super::site::SITE;
use crate::bed::Layout;
use crate::error::{Context, Result};
use crate::link::Emulated;

/// Where the transfers come from: a port of the server that nobody guards.
const PORT: u16 = 9000;
/// Of all transfers, whatever the machine's default is.
const ALGORITHM: &str = "cubic";
/// A thread that waits looks so often whether all has ended.
const LOOK: Duration = Duration::from_millis(100);
const CHUNK: usize = 1 << 16;

/// Transfers under way; they end with this.
#[derive(Debug)]
pub struct Bulk {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Result<()>>>,
}

#[derive(Debug, Default)]
struct Shared {
    ended: AtomicBool,
    received: AtomicU64,
}

impl Shared {
    fn ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }
}

impl Bulk {
    /// Begins so many.
    pub fn start(link: &Emulated, layout: Layout, transfers: usize) -> Result<Bulk> {
        let shared = Arc::new(Shared::default());
        let of_source = Arc::clone(&shared);
        let source = link
            .far
            .spawn(layout.server_cpu, move || send_to_all(&of_source))?;
        let mut bulk = Bulk {
            shared,
            threads: vec![source],
        };
        for _ in 0..transfers {
            let shared = Arc::clone(&bulk.shared);
            let sink = link
                .near
                .spawn(layout.client_cpu, move || receive(&shared))?;
            bulk.threads.push(sink);
        }
        Ok(bulk)
    }

    /// Bytes that clients have received so far.
    pub fn received(&self) -> u64 {
        self.shared.received.load(Ordering::Relaxed)
    }

    /// Ends them.
    pub fn stop(mut self) -> Result<()> {
        self.shared.ended.store(true, Ordering::Relaxed);
        let threads = self.threads.drain(..);
        let ends = threads.map(|thread| match thread.join() {
            Ok(end) => end,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        ends.collect()
    }
}

impl Drop for Bulk {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Sends zeros to each who connects, until all has ended.
fn send_to_all(shared: &Arc<Shared>) -> Result<()> {
    let what = || format!("cannot listen on port {PORT}");
    let listener = TcpListener::bind((SITE.0, PORT)).context(what())?;
    let algorithm = OsString::from(ALGORITHM);
    setsockopt(&listener, sockopt::TcpCongestion, &algorithm).context(what())?;
    listener.set_nonblocking(true).context(what())?;
    let mut senders = Vec::new();
    while !shared.ended() {
        match listener.accept() {
            Ok((stream, _)) => {
                let shared = Arc::clone(shared);
                // A client that goes away is its own affair.
                senders.push(std::thread::spawn(move || drop(send(stream, &shared))));
            }
            Err(_) => std::thread::sleep(LOOK),
        }
    }
    for sender in senders {
        let _ = sender.join();
    }
    Ok(())
}

fn send(mut stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(LOOK))?;
    let chunk = vec![0; CHUNK];
    while !shared.ended() {
        match stream.write(&chunk) {
            Err(error) if !is_time(&error) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Reads until all has ended; connects again where the connection ends.
fn receive(shared: &Shared) -> Result<()> {
    let source = SocketAddr::from((SITE.0, PORT));
    let mut chunk = vec![0; CHUNK];
    while !shared.ended() {
        let Ok(mut stream) = TcpStream::connect_timeout(&source, LOOK * 10) else {
            // Nobody listens yet.
            std::thread::sleep(LOOK / 5);
            continue;
        };
        let timeout = stream.set_read_timeout(Some(LOOK));
        timeout.context("cannot set up a transfer")?;
        while !shared.ended() {
            match stream.read(&mut chunk) {
                Ok(0) => break,
                Ok(bytes) => {
                    shared.received.fetch_add(bytes as u64, Ordering::Relaxed);
                }
                Err(error) if is_time(&error) => {}
                Err(_) => break,
            }
        }
    }
    Ok(())
}

/// Whether a call only took longer than [`LOOK`].
fn is_time(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

//! One client: an attempt, and the connection that comes of it.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::eventfd::{EfdFlags, EventFd};
use quinn_proto::StreamId;

use super::clients::{Clients, End, News, socket_to};
use super::request::Request;
use crate::error::{Context, Error, Result};
use crate::netns::Netns;

/// What [`Connection::echo`] sends.
const ECHO: &[u8] = b"Is anybody there?";
/// A connection that nobody uses looks at the clock so often at least.
const LONGEST_TURN: Duration = Duration::from_secs(60);
const ECHO_FAILED: &str = "no echo on a QUIC connection";

/// How an attempt to connect ended. The times are from the first Initial on.
#[derive(Debug)]
pub enum Outcome {
    /// The handshake is complete.
    Connected {
        /// How long it took.
        after: Duration,
        /// Open as long as this is kept.
        connection: Connection,
    },
    /// A Version Negotiation packet ended it.
    VersionRefused {
        /// When it came.
        after: Duration,
    },
    /// ICMP: nobody has the port.
    Refused {
        /// When it came.
        after: Duration,
    },
    /// The handshake was not complete in time. The server was told that the client has given up.
    TimedOut,
    /// It ended otherwise: the reason.
    Other(String),
}

impl Outcome {
    /// The connection.
    ///
    /// # Panics
    /// There is none.
    pub fn connected(self) -> Connection {
        match self {
            Outcome::Connected { connection, .. } => connection,
            other => panic!("not connected: {other:?}"),
        }
    }
}

/// Opens a connection from this namespace to a [`super::QuicServer`], and waits so long at most for it.
///
/// # Errors
/// The client cannot be made. How the attempt ended is no error.
pub fn attempt(netns: &Netns, to: SocketAddr, timeout: Duration) -> Result<Outcome> {
    let socket = netns.run(|| socket_to(to))?;
    let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
    let wake = Arc::new(EventFd::from_flags(flags).context("cannot create an eventfd")?);
    let (asks, asked) = mpsc::channel();
    let (tell, told) = mpsc::channel();
    let thread = std::thread::Builder::new()
        .name("quic-client".into())
        .spawn({
            let wake = wake.clone();
            move || {
                if let Err(error) = hold(to, socket, timeout, &wake, &asked, &tell) {
                    // Nobody listens only where the connection is being dropped.
                    let _ = tell.send(Told::Failed(error));
                }
            }
        });
    let connection = Connection {
        thread: Some(thread.context("cannot start a thread")?),
        wake,
        asks: Some(asks),
        told,
        echoes: 0,
    };
    Ok(match connection.told.recv() {
        Ok(Told::Connected(after)) => Outcome::Connected { after, connection },
        Ok(Told::Ended(End::VersionRefused, after)) => Outcome::VersionRefused { after },
        Ok(Told::Ended(End::Refused, after)) => Outcome::Refused { after },
        Ok(Told::Ended(End::Other(reason), _)) => Outcome::Other(reason),
        Ok(Told::TimedOut) => Outcome::TimedOut,
        Ok(Told::Failed(error)) => return Err(error),
        Ok(Told::Echo { .. }) | Err(_) => {
            unreachable!("the thread says first how the attempt ended")
        }
    })
}

/// A connection that is open. A thread of its own answers what the server sends; the connection ends when this is dropped,
/// and the server is told.
#[derive(Debug)]
pub struct Connection {
    thread: Option<JoinHandle<()>>,
    wake: Arc<EventFd>,
    /// Numbers of echoes that are asked for.
    asks: Option<Sender<u64>>,
    told: Receiver<Told>,
    echoes: u64,
}

impl Connection {
    /// Sends a few bytes on a stream of their own, and waits until they are back: how long that took.
    ///
    /// # Errors
    /// They are not back in time, are others, or the connection has ended.
    pub fn echo(&mut self, timeout: Duration) -> Result<Duration> {
        self.echoes += 1;
        let asks = self
            .asks
            .as_ref()
            .filter(|asks| asks.send(self.echoes).is_ok());
        if asks.is_some() {
            self.wake.write(1).context("cannot wake a client")?;
        }
        let end = Instant::now() + timeout;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.told.recv_timeout(left) {
                Ok(Told::Echo { number, after }) if number == self.echoes => {
                    return after.ok_or("other bytes came").context(ECHO_FAILED);
                }
                Ok(Told::Ended(how, _)) => {
                    return Err(Error::failed(ECHO_FAILED, format!("it has ended: {how:?}")));
                }
                Ok(Told::Failed(error)) => return Err(error),
                // The answer to an echo that was given up.
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    return Err(Error::failed(
                        ECHO_FAILED,
                        format!("none within {timeout:?}"),
                    ));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::failed(ECHO_FAILED, "it has ended before"));
                }
            }
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.asks = None;
        // It fails only where 2^64 - 1 writes were before it.
        let _ = self.wake.write(1);
        if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join)
            && !std::thread::panicking()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

/// What the thread of a connection says.
#[derive(Debug)]
enum Told {
    Connected(Duration),
    TimedOut,
    Ended(End, Duration),
    /// `after` is missing where other bytes came back.
    Echo {
        number: u64,
        after: Option<Duration>,
    },
    Failed(Error),
}

/// The thread of a connection: opens it and answers what comes, until `asked` is closed or the connection ends.
fn hold(
    to: SocketAddr,
    socket: UdpSocket,
    timeout: Duration,
    wake: &EventFd,
    asked: &Receiver<u64>,
    tell: &Sender<Told>,
) -> Result<()> {
    // Nobody listens only where the connection is being dropped.
    let tell = |told| drop(tell.send(told));
    let mut clients = Clients::new(to, Request::echo(ECHO))?;
    clients.watch(wake)?;
    let begun = Instant::now();
    let key = clients.open(begun, socket)?;
    let mut is_connected = false;
    let mut echo: Option<(u64, StreamId, Instant)> = None;
    loop {
        let until = match is_connected {
            true => Instant::now() + LONGEST_TURN,
            false => begun + timeout,
        };
        for (_, news) in clients.turn(until)? {
            match news {
                News::Connected => {
                    is_connected = true;
                    tell(Told::Connected(begun.elapsed()));
                }
                News::Answered { request, is_right } => {
                    if let Some((number, _, at)) = echo.take_if(|(_, asked, _)| *asked == request) {
                        let after = is_right.then(|| at.elapsed());
                        tell(Told::Echo { number, after });
                    }
                }
                News::Ended(end) => {
                    tell(Told::Ended(end, begun.elapsed()));
                    return Ok(());
                }
            }
        }
        let now = Instant::now();
        if !is_connected && now >= begun + timeout {
            clients.end(now, key);
            tell(Told::TimedOut);
            return Ok(());
        }
        if wake.read().is_ok() {
            let Ok(number) = asked.try_recv() else {
                clients.end(now, key);
                return Ok(());
            };
            echo = Some((number, clients.ask(now, key, number == 1)?, now));
        }
    }
}

//! Who comes in to the API: so many connections at a time, each for so long.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};

use super::Peer;

/// Connections at a time; more wait in the listen queue.
const MOST: usize = 64;
/// A connection ends after this, whatever it does: the places are few, and clients of no rights share
/// them with root's.
const LIFETIME: Duration = Duration::from_secs(60);
/// After accept() has failed: mostly for want of descriptors, which come back.
const AFTER_FAILURE: Duration = Duration::from_millis(100);

/// The listening socket.
pub struct Door {
    listener: UnixListener,
    places: Arc<Semaphore>,
}

impl Door {
    /// On a socket that listens and does not block.
    pub fn new(listener: std::os::unix::net::UnixListener) -> io::Result<Door> {
        Ok(Door {
            listener: UnixListener::from_std(listener)?,
            places: Arc::new(Semaphore::new(MOST)),
        })
    }
}

impl Listener for Door {
    type Io = Guest;
    type Addr = Peer;

    async fn accept(&mut self) -> (Guest, Peer) {
        loop {
            let places = Arc::clone(&self.places);
            let place = places.acquire_owned().await.expect("it is never closed");
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    let peer = Peer::of(&stream);
                    let end = Box::pin(sleep(LIFETIME));
                    let guest = Guest {
                        stream,
                        end,
                        _place: place,
                    };
                    return (guest, peer);
                }
                Err(error) => {
                    tracing::warn!("API socket: {error}");
                    sleep(AFTER_FAILURE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<Peer> {
        // Asked for by nobody; a listening socket has no peer.
        Ok(Peer {
            uid: u32::MAX,
            pid: None,
        })
    }
}

impl Peer {
    fn of(stream: &UnixStream) -> Peer {
        match stream.peer_cred() {
            Ok(peer) => Peer {
                uid: peer.uid(),
                pid: peer.pid(),
            },
            Err(_) => Peer {
                uid: u32::MAX,
                pid: None,
            },
        }
    }
}

impl Connected<IncomingStream<'_, Door>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Door>) -> Peer {
        *stream.remote_addr()
    }
}

/// A connection.
pub struct Guest {
    stream: UnixStream,
    end: Pin<Box<Sleep>>,
    _place: OwnedSemaphorePermit,
}

impl Guest {
    fn is_over(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match self.end.as_mut().poll(context) {
            Poll::Ready(()) => Err(io::ErrorKind::TimedOut.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl AsyncRead for Guest {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.is_over(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Guest {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.is_over(context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

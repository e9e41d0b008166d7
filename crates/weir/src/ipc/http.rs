//! An HTTP endpoint: a listening socket, and a thread that serves it with axum.
//!
//! An endpoint bounds what its clients can hold: connections at a time, bytes and time of a request's head, and the
//! time of a connection. If all connections are taken, a new one closes the oldest whose request the service does
//! not have at the moment. So clients that send a byte now and then, or do not read, delay no other: an honest client
//! is connected at once, and its request takes milliseconds.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use axum::extract::{ConnectInfo, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use crate::failure::{Failure, Result};
use crate::host::privileges;
use crate::ipc::peer::{Asker, Peer};

/// Bytes of a request's head at most, and of its body at a time: hyper's least.
const BUFFER_BYTES: usize = 8 * 1024;
/// A request's head has come completely after this long.
const HEAD_TIME: Duration = Duration::from_secs(5);
/// accept() fails mostly because descriptors are used up, and some become free.
const AFTER_FAILURE: Duration = Duration::from_millis(100);

/// What an endpoint allows its clients.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at a time.
    pub connections: usize,
    /// A connection ends after this long in any case.
    pub time: Duration,
    /// Whether a connection may carry more than one request.
    pub keep_alive: bool,
}

/// A socket that listens and does not block.
pub enum Listener {
    /// A Unix socket.
    Unix(std::os::unix::net::UnixListener),
    /// A TCP socket.
    Tcp(std::net::TcpListener),
}

impl Listener {
    /// Listens at a TCP address, and says at which: port 0 is any free one. `what` stands in the error.
    ///
    /// # Errors
    /// The address is in use, not of this machine, or not allowed.
    pub fn tcp(what: &str, address: SocketAddr) -> Result<(SocketAddr, Listener)> {
        let listen = || {
            let listener = std::net::TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            Ok((listener.local_addr()?, Listener::Tcp(listener)))
        };
        listen().map_err(|error| cannot_listen(what, address, &error))
    }
}

fn cannot_listen(what: &str, address: SocketAddr, error: &io::Error) -> Failure {
    let hint = match error.kind() {
        io::ErrorKind::AddrInUse => {
            "`ss -ltnp` shows the process that listens there; each weir needs an address of its own, unless it is a proxy \
             that replaces another one with --take-over"
        }
        io::ErrorKind::AddrNotAvailable => "`ip address` lists this machine's addresses",
        io::ErrorKind::PermissionDenied => "ports below 1024 need root or CAP_NET_BIND_SERVICE",
        _ => "",
    };
    Failure::failed(format!("{what}: cannot listen on {address}: {error}"), hint)
}

/// A thread that serves HTTP. Dropped, it closes its socket and its connections.
pub struct Endpoint {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Endpoint {
    /// Starts the thread. `name` is that of the thread, of at most 15 bytes, and stands in its messages.
    ///
    /// # Errors
    /// The kernel gives no thread.
    pub fn start(
        name: &'static str,
        listener: Listener,
        router: Router,
        limits: Limits,
    ) -> Result<Endpoint> {
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name(name.to_owned());
        let run = move || {
            privileges::keep_none();
            let runtime = tokio::runtime::Builder::new_current_thread()
                // Of threads that it starts for what blocks.
                .thread_name(name)
                .enable_all()
                .build();
            let serve = async {
                tokio::select! {
                    end = serve(listener, router, limits) => end,
                    _ = stopped => Ok(()),
                }
            };
            if let Err(error) = runtime.and_then(|runtime| runtime.block_on(serve)) {
                tracing::error!("{name} is off: {error}");
            }
        };
        let thread = thread
            .spawn(run)
            .map_err(|error| Failure::io(format_args!("start the thread {name}"), error))?;
        Ok(Endpoint {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // Waits for the thread: a successor may listen at the same address next.
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn serve(listener: Listener, router: Router, limits: Limits) -> io::Result<()> {
    match listener {
        Listener::Unix(listener) => {
            let listener = UnixListener::from_std(listener)?;
            let accept = async || listener.accept().await.map(|(stream, _)| stream);
            accept_all(accept, asker_of, &router, limits).await
        }
        Listener::Tcp(listener) => {
            let listener = TcpListener::from_std(listener)?;
            let accept = async || listener.accept().await.map(|(stream, _)| stream);
            accept_all(accept, |_: &TcpStream| Asker::Tcp, &router, limits).await
        }
    }
}

fn asker_of(stream: &UnixStream) -> Asker {
    let peer = stream.peer_cred();
    Asker::Api(peer.map_or(Peer::UNKNOWN, |peer| Peer {
        uid: peer.uid(),
        pid: peer.pid(),
    }))
}

/// Serves every connection, for ever.
async fn accept_all<S>(
    accept: impl AsyncFn() -> io::Result<S>,
    asker_of: impl Fn(&S) -> Asker,
    router: &Router,
    limits: Limits,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut connections = Connections(VecDeque::new());
    loop {
        match accept().await {
            Ok(stream) => {
                connections.make_room(limits.connections);
                let asker = asker_of(&stream);
                let in_service = Arc::<AtomicBool>::default();
                let one = serve_one(stream, asker, router, limits, Arc::clone(&in_service));
                let task = tokio::spawn(one).abort_handle();
                connections.0.push_back(Connection { task, in_service });
            }
            Err(error) => {
                tracing::warn!("accept a connection for HTTP: {error}");
                sleep(AFTER_FAILURE).await;
            }
        }
    }
}

/// The open connections, the oldest first.
struct Connections(VecDeque<Connection>);

struct Connection {
    task: AbortHandle,
    /// The service has its request.
    in_service: Arc<AtomicBool>,
}

impl Connections {
    /// Closes the oldest connection whose request is not in service, if there are `most`.
    fn make_room(&mut self, most: usize) {
        self.0.retain(|connection| !connection.task.is_finished());
        if self.0.len() < most {
            return;
        }
        let idle = |connection: &Connection| !connection.in_service.load(Ordering::Relaxed);
        let oldest = self.0.iter().position(idle).unwrap_or(0);
        if let Some(connection) = self.0.remove(oldest) {
            tracing::debug!("HTTP: all {most} connections are taken: the oldest is closed");
            connection.task.abort();
        }
    }
}

/// Serves one connection to its end.
fn serve_one<S>(
    stream: S,
    asker: Asker,
    router: &Router,
    limits: Limits,
    in_service: Arc<AtomicBool>,
) -> impl Future<Output = ()> + Send + use<S>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let router = router
        .clone()
        .layer(Extension(ConnectInfo(asker)))
        .layer(from_fn_with_state(in_service, note_service));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(BUFFER_BYTES)
        .keep_alive(limits.keep_alive)
        // A client may say that it has no more to ask (`nc -N`), and still reads.
        .half_close(true)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    async move {
        match timeout(limits.time, connection).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!("HTTP: {error}"),
            Err(_) => tracing::debug!("HTTP: a connection of {asker} has had its time"),
        }
    }
}

/// Notes while the service has the request.
async fn note_service(
    State(in_service): State<Arc<AtomicBool>>,
    request: Request,
    next: Next,
) -> Response {
    in_service.store(true, Ordering::Relaxed);
    let response = next.run(request).await;
    in_service.store(false, Ordering::Relaxed);
    response
}

//! `weir proxy --metrics`: what `weir status` shows of proxies, as OpenMetrics text over HTTP.
//!
//! The loop of the process takes the connection and makes the text; a thread of its own reads the
//! request and answers, so that a slow reader holds nobody up but others like it. Threads that move
//! data are not involved: their counters are read as they stand.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use weir_api::Proxy;
use weir_api::metrics::{CONTENT_TYPE, Figures, text};

use super::report;
use crate::show::log;

/// Who is slower than this to send its request or to take its answer is not served.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest request, in bytes.
const REQUEST_BYTES: usize = 8 * 1024;
/// Scrapes that wait for those before them; more are turned away.
const WAITING: usize = 16;

/// Where metrics are asked for.
pub struct Metrics {
    listener: TcpListener,
    answers: SyncSender<(TcpStream, String)>,
}

impl Metrics {
    /// Listens, and starts the thread that answers.
    ///
    /// # Errors
    /// As bind(2), or the kernel gives no thread.
    pub fn listen(address: SocketAddr) -> io::Result<Metrics> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let (answers, scrapes) = sync_channel(WAITING);
        std::thread::Builder::new()
            .name("weir-metrics".to_owned())
            .spawn(move || answer_all(&scrapes))?;
        Ok(Metrics { listener, answers })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// As getsockname(2).
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Takes the next scrape, if one waits, and has it answered with what is now.
    pub fn serve(&self, reports: impl FnOnce() -> Vec<Proxy>) {
        let Ok((stream, _)) = self.listener.accept() else {
            return;
        };
        let figures = Figures {
            proxies: reports(),
            log_lost: log::lost(),
            ..Figures::default()
        };
        let text = text(report::metrics(), &figures);
        if self.answers.try_send((stream, text)).is_err() {
            tracing::warn!("metrics: a scrape was turned away, {WAITING} wait already");
        }
    }
}

impl AsFd for Metrics {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

fn answer_all(scrapes: &Receiver<(TcpStream, String)>) {
    for (stream, text) in scrapes {
        if let Err(error) = answer(stream, &text) {
            tracing::debug!("metrics: {error}");
        }
    }
}

fn answer(mut stream: TcpStream, text: &str) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let request = read_request(&mut stream)?;
    let (status, body) = match request.starts_with(b"GET /metrics ") {
        true => ("200 OK", text),
        false => ("404 Not Found", "GET /metrics\n"),
    };
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\n\
         Content-Type: {CONTENT_TYPE}\r\n\
         Content-Length: {length}\r\n\
         Connection: close\r\n\r\n{body}"
    )
}

/// Reads to the end of a head: what is unread at close would reset the answer.
fn read_request(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut request = Vec::new();
    let mut buffer = [0; 1024];
    while !request.ends_with(b"\r\n\r\n") {
        let read = stream.read(&mut buffer)?;
        if read == 0 || request.len() > REQUEST_BYTES {
            return Err(io::Error::other("the request has no end"));
        }
        request.extend_from_slice(&buffer[..read]);
    }
    Ok(request)
}

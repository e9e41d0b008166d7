//! A client of the dashboard that asks as its page does, without the browser.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;
use weir_testbed::cpu::pin_this_thread;

use crate::common::{Bed, PATIENCE, within};

/// The table of the config file.
pub const DASHBOARD: &str = "[dashboard]\nlisten = \"127.0.0.1:9466\"\n";
/// EVERY and SOURCES_EVERY of crates/weir/dashboard/app.js.
const EVERY: Duration = Duration::from_secs(1);
const SOURCES_EVERY: u32 = 3;

/// An open page: it asks until it is closed.
pub struct Page {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<u32>,
}

/// A connection that stays open.
struct Connection(BufReader<TcpStream>);

impl Connection {
    fn get(&mut self, path: &str) -> Value {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        self.0.get_mut().write_all(request.as_bytes()).unwrap();
        let (mut line, mut length) = (String::new(), 0);
        while line != "\r\n" {
            line.clear();
            self.0.read_line(&mut line).unwrap();
            let length_of = line.to_lowercase();
            if let Some(value) = length_of.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).unwrap();
        serde_json::from_slice(&body).unwrap()
    }
}

impl Page {
    /// Opens it in the server's namespace. `cpu`: where it runs; `None`: anywhere.
    pub fn open(bed: &Bed, cpu: Option<usize>) -> Page {
        let connect = || {
            let stream = within(bed.server(), || {
                TcpStream::connect("127.0.0.1:9466").unwrap()
            });
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.set_nodelay(true).unwrap();
            Connection(BufReader::new(stream))
        };
        let [mut status, mut sources, mut events] = [connect(), connect(), connect()];
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            cpu.into_iter()
                .for_each(|cpu| pin_this_thread(cpu).unwrap());
            let (mut due, mut last, mut reports) = (Instant::now(), 0, 0_u32);
            while !stopped.load(Ordering::Relaxed) {
                assert_eq!(status.get("/v1/status")["running"], true);
                if reports % SOURCES_EVERY == 0 {
                    assert!(sources.get("/v1/sources")["networks"].is_array());
                }
                let new = events.get(&format!("/v1/events?after={last}&most=1000"));
                last = new["last"].as_u64().unwrap();
                reports += 1;
                due += EVERY;
                std::thread::park_timeout(due.saturating_duration_since(Instant::now()));
            }
            reports
        });
        Page { stop, thread }
    }

    /// Closes it. How many reports it has had.
    pub fn close(self) -> u32 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        self.thread.join().unwrap()
    }
}

//! Which server to run, and how.

use super::pool;

/// Bytes of the body that the built-in server and the nginx configuration reply with: with its head
/// it fits one segment (SB06 and FINDINGS use the same).
pub const BODY_BYTES: usize = 900;

/// Bytes of the body that the pool, Apache and nginx with several workers reply with (VTFM01).
pub const FILE_BYTES: usize = 8192;

/// Which server to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerProgram {
    /// `weir-lab serve` with this much work for each request.
    BuiltIn {
        /// CPU time spun for each request, in µs.
        work_us: u32,
    },
    /// One byte to every accepted connection, then wait for the client's close.
    Greeter {
        /// CPU time spun for each connection, in µs.
        work_us: u32,
    },
    /// The pool ([`pool`]); its records are in [`super::Server::records`].
    Pool {
        /// Connections served at the same time.
        workers: usize,
        /// How long a worker is busy with each, in µs.
        service_us: u32,
        /// How it is busy.
        occupation: pool::Occupation,
        /// Bytes of a reply's body.
        body_bytes: usize,
        /// Listeners: one for each class, or one.
        listeners: u16,
    },
    /// nginx with one worker and a file of [`BODY_BYTES`].
    Nginx,
    /// nginx with so many workers and a file of [`FILE_BYTES`].
    NginxWorkers(usize),
    /// Workers that are busy for a long time with each connection.
    Slow(Slow, Workers),
    /// HAProxy before the server of another port, which it hands so many requests at the same time. The others wait in
    /// its queue; those that wait for longer have a 503.
    Haproxy {
        /// The server's port.
        server: u16,
        /// Requests at the server.
        places: usize,
        /// Longest wait, ms.
        longest_ms: u32,
    },
    /// Apache's prefork model with so many processes and a file of [`FILE_BYTES`].
    Apache {
        /// Server processes, of which each has one connection at a time.
        workers: usize,
    },
    /// A shell command that listens on the port.
    Command(String),
}

/// A server whose workers are slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slow {
    /// Forked processes of Python that accept, sleep and reply.
    Prefork,
    /// gunicorn with workers of the class `sync`.
    Gunicorn,
    /// Apache's prefork model: a client that keeps its connection keeps a worker.
    ApacheKeepAlive,
    /// PHP-FPM behind nginx.
    Php,
    /// A server with its queue inside.
    Inside(Inside),
}

/// A server that accepts at once, and whose requests then wait for one of a few workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inside {
    /// Go's net/http; a handler waits for a place in a channel, or for the client's end.
    Go,
    /// uvicorn; a coroutine waits for a semaphore.
    Uvicorn,
    /// Node; its agent has so many connections to a slow upstream.
    Node,
    /// Tomcat with 200 threads, which wait for a semaphore, as for a connection of a pool.
    Tomcat,
    /// nginx before gunicorn with workers of the class `sync`.
    Gunicorn {
        /// Connections that nginx has at the same time (`limit_conn`); it replies 503 to others.
        limit: Option<u32>,
    },
}

/// Its workers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Workers {
    /// Connections served at the same time.
    pub count: usize,
    /// How long a worker is busy with each, s; whole seconds for [`Slow::ApacheKeepAlive`].
    pub service_s: f64,
}

impl Eq for Workers {}

impl Workers {
    /// Connections/s that they can serve.
    pub fn per_s(self) -> f64 {
        self.count as f64 / self.service_s
    }
}

impl std::str::FromStr for ServerProgram {
    type Err = std::convert::Infallible;

    /// `built-in`, `nginx`, or a command.
    fn from_str(text: &str) -> std::result::Result<ServerProgram, Self::Err> {
        Ok(match text.trim() {
            "built-in" => ServerProgram::BuiltIn { work_us: 0 },
            "nginx" => ServerProgram::Nginx,
            command => ServerProgram::Command(command.to_string()),
        })
    }
}

/// A server and its port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// What to run.
    pub program: ServerProgram,
    /// TCP port, 1..=65535.
    pub port: u16,
    /// Length of the listen queue (commands of the user have their own).
    pub backlog: u32,
}

impl Spec {
    /// One line for titles and reports.
    pub fn describe(&self) -> String {
        let backlog = self.backlog;
        match &self.program {
            ServerProgram::BuiltIn { work_us } => {
                format!("built-in server, {work_us} µs work per request, backlog {backlog}")
            }
            ServerProgram::Greeter { work_us } => {
                format!("built-in greeter, {work_us} µs work per connection, backlog {backlog}")
            }
            ServerProgram::Pool {
                workers,
                service_us,
                occupation,
                ..
            } => {
                let busy = match occupation {
                    pool::Occupation::Wait => "waiting",
                    pool::Occupation::Spin => "of CPU",
                };
                let ms = f64::from(*service_us) / 1e3;
                let workers = match workers {
                    1 => "one worker".to_string(),
                    more => format!("{more} workers"),
                };
                format!("pool of {workers}, {ms} ms {busy} each, backlog {backlog}")
            }
            ServerProgram::Nginx => format!("nginx, one worker, backlog {backlog}"),
            ServerProgram::NginxWorkers(workers) => {
                format!("nginx, {workers} workers, backlog {backlog}")
            }
            ServerProgram::Apache { workers } => {
                format!("Apache prefork, {workers} processes, backlog {backlog}")
            }
            ServerProgram::Slow(slow, Workers { count, service_s }) => {
                format!("{slow:?}, {count} workers of {service_s} s, backlog {backlog}")
            }
            ServerProgram::Haproxy {
                server,
                places,
                longest_ms,
            } => {
                format!(
                    "HAProxy before port {server}, {places} places, {longest_ms} ms in its queue"
                )
            }
            ServerProgram::Command(command) => format!("`{command}`"),
        }
    }
}

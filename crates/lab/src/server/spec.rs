//! Which server to run, and how.

use super::pool;

/// Bytes of the body that the built-in server and the nginx configuration reply with: with its head
/// it fits one segment (SB06 and FINDINGS use the same).
pub const BODY_BYTES: usize = 900;

/// Bytes of the body that the pool, Apache and nginx with several workers reply with (VTFM01).
pub const FILE_BYTES: usize = 8192;

/// Which server to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Program {
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
    /// Apache's prefork model with so many processes and a file of [`FILE_BYTES`].
    Apache {
        /// Server processes, of which each has one connection at a time.
        workers: usize,
    },
    /// A shell command that listens on the port.
    Command(String),
}

impl std::str::FromStr for Program {
    type Err = std::convert::Infallible;

    /// `built-in`, `nginx`, or a command.
    fn from_str(text: &str) -> std::result::Result<Program, Self::Err> {
        Ok(match text.trim() {
            "built-in" => Program::BuiltIn { work_us: 0 },
            "nginx" => Program::Nginx,
            command => Program::Command(command.to_string()),
        })
    }
}

/// A server and its port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// What to run.
    pub program: Program,
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
            Program::BuiltIn { work_us } => {
                format!("built-in server, {work_us} µs work per request, backlog {backlog}")
            }
            Program::Greeter { work_us } => {
                format!("built-in greeter, {work_us} µs work per connection, backlog {backlog}")
            }
            Program::Pool {
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
            Program::Nginx => format!("nginx, one worker, backlog {backlog}"),
            Program::NginxWorkers(workers) => {
                format!("nginx, {workers} workers, backlog {backlog}")
            }
            Program::Apache { workers } => {
                format!("Apache prefork, {workers} processes, backlog {backlog}")
            }
            Program::Command(command) => format!("`{command}`"),
        }
    }
}

//! Why a request got no whole reply.

use std::io::{self, ErrorKind};

use super::body::Stopped;
use crate::http::Refusal;
use crate::transfer::Broken;

/// Why a request got no whole reply.
#[derive(Debug)]
pub enum Failure {
    /// The server closed or broke the connection before it said anything.
    Unanswered(io::Error),
    /// The server said nothing in time.
    Late,
    /// The server began its reply, and the head was not whole in time.
    Slow,
    /// The reply's head is malformed.
    Malformed(Refusal),
    /// The client is gone, or takes nothing any more.
    Client(io::Error),
    /// The request's body stopped on its way.
    Upload(Stopped),
    /// The reply broke off: in its head, or after the client had got that.
    Broken(Stopped),
}

impl Failure {
    /// What the access log says of it: a word, and which side failed how.
    pub fn reason(&self) -> String {
        format!("{}: {}", self.word(), self.details())
    }

    fn details(&self) -> String {
        let unless_late = |error: &io::Error, late: &str| match error.kind() {
            ErrorKind::TimedOut => late.to_owned(),
            _ => error.to_string(),
        };
        match self {
            Failure::Unanswered(error) => error.to_string(),
            Failure::Late => "the server sent nothing for idle_timeout".to_owned(),
            Failure::Slow => "the head was not whole after idle_timeout".to_owned(),
            Failure::Client(error) => unless_late(error, "it took nothing for idle_timeout"),
            Failure::Malformed(refusal)
            | Failure::Upload(Stopped::Malformed(refusal))
            | Failure::Broken(Stopped::Malformed(refusal)) => refusal.text().to_owned(),
            Failure::Upload(Stopped::Incomplete) => "the client ended early".to_owned(),
            Failure::Broken(Stopped::Incomplete) => "the server ended early".to_owned(),
            Failure::Upload(Stopped::Broken(broken)) => {
                unless_late(broken.error(), "the client sent nothing for idle_timeout")
            }
            Failure::Broken(Stopped::Broken(broken)) => {
                unless_late(broken.error(), "the server sent nothing for idle_timeout")
            }
        }
    }

    fn word(&self) -> &'static str {
        match self {
            Failure::Unanswered(_) => "connection_terminated",
            Failure::Late => "connection_read_timeout",
            Failure::Slow => "http_response_timeout",
            Failure::Malformed(_) => "http_protocol_error",
            Failure::Client(_) => "client_gone",
            Failure::Upload(_) => "http_request_incomplete",
            Failure::Broken(_) => "http_response_incomplete",
        }
    }

    /// Whether nothing came or went for too long.
    pub fn is_timeout(&self) -> bool {
        match self {
            Failure::Late | Failure::Slow => true,
            Failure::Client(error) => error.kind() == ErrorKind::TimedOut,
            Failure::Upload(Stopped::Broken(broken)) | Failure::Broken(Stopped::Broken(broken)) => {
                broken.error().kind() == ErrorKind::TimedOut
            }
            _ => false,
        }
    }
}

impl From<Stopped> for Failure {
    fn from(stopped: Stopped) -> Failure {
        match stopped {
            Stopped::Broken(Broken::To(error)) => Failure::Client(error),
            stopped => Failure::Broken(stopped),
        }
    }
}

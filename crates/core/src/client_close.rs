//! CLIENT_CLOSE: a client of HTTP/1.1 says that it closes its connection, so that it and not the server is in TIME-WAIT.
//!
//! Source: Faber, Touch, Yue, *The TIME-WAIT State in TCP and Its Effect on Busy Servers* (INFOCOM 1999), Section 4.2. It
//! has CLIENT_CLOSE as an extension request without a reply, which ends a series of requests, and plans a way for the
//! server to ask for it. It gives neither a syntax. This is weir's:
//!
//! ```text
//! client                                   server
//! GET / HTTP/1.1
//! Host: a
//! Connection: client-ends           ──▶                     I know CLIENT_CLOSE: ask, and I close.
//!                                    ◀──   HTTP/1.1 200 OK
//!                                          Connection: client-ends    Close, please.
//! CLIENT_CLOSE * HTTP/1.1
//! Host: a
//! Connection: client-ends           ──▶                     I close.
//! FIN                                ──▶
//!                                    ◀──   FIN
//! ```
//!
//! **The option.** `client-ends` is an option of the field `Connection`, so it holds for one connection only: an
//! intermediary that does not know it takes it out (RFC 9110, Section 7.6.1). A request CLIENT_CLOSE without it came
//! through one, which may use the connection for other clients too. Then it ends nothing, but is a request that the
//! server does not implement (501).
//!
//! **Who may send what when.**
//!
//! - The client sends CLIENT_CLOSE when it has all of its replies ([`ClientEnd`]), as the last thing before it closes. It
//!   needs no consent. A server that does not know the request replies (501, 405, 400), or closes: the client waits for
//!   the server's end and throws away what comes before it.
//! - The server sends no reply to it. It waits for the client's FIN before it closes, else both would close first. It
//!   throws away what comes behind the request.
//! - The server asks in a final reply, and only a client that has announced that it knows CLIENT_CLOSE. The connection
//!   stays open: a request that was on its way is answered. A client that does not close in time is closed by the server.

use std::fmt;

/// The method of the request. Names of methods are case-sensitive (RFC 9110, Section 9.1).
pub const METHOD: &str = "CLIENT_CLOSE";

/// The option of `Connection` by which a client says that it knows CLIENT_CLOSE, a server asks for it, and the request
/// shows that it is the peer's own. Options are case-insensitive. Without `close` in it: nginx 1.22 looks for that word
/// anywhere in the field's value, and closes then.
pub const OPTION: &str = "client-ends";

/// Whether an option of `Connection` is [`OPTION`].
pub fn is_option(option: &[u8]) -> bool {
    option.eq_ignore_ascii_case(OPTION.as_bytes())
}

/// The request, as a client sends it to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientClose<'a> {
    /// What `Host` says: the server's, as in other requests to it. It must be a host with an optional port, or empty.
    pub host: &'a str,
}

impl fmt::Display for ClientClose<'_> {
    /// The whole request.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = self.host;
        write!(
            f,
            "{METHOD} * HTTP/1.1\r\nHost: {host}\r\nConnection: {OPTION}\r\n\r\n"
        )
    }
}

/// What a server knows of a request with the method [`METHOD`], once it has read its head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// HTTP/1.1. Requests of other versions have no such extension.
    pub is_http_1_1: bool,
    /// The target is `*`: the server itself.
    pub is_asterisk: bool,
    /// `Connection` has [`OPTION`].
    pub has_option: bool,
    /// A body follows, of whatever length or coding.
    pub has_body: bool,
}

impl Received {
    /// Whether it ends the connection without a reply. If not, it is a request that the server does not implement.
    pub fn ends(self) -> bool {
        self.is_http_1_1 && self.is_asterisk && self.has_option && !self.has_body
    }
}

/// A connection as its client knows it: whether it may send CLIENT_CLOSE, and whether it is asked to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClientEnd {
    replies_due: u32,
    is_asked: bool,
}

impl ClientEnd {
    /// A request is on its way.
    pub fn sends_request(&mut self) {
        self.replies_due += 1;
    }

    /// The whole of a final reply is there. `is_asked`: its `Connection` has [`OPTION`].
    pub fn gets_reply(&mut self, is_asked: bool) {
        self.replies_due = self.replies_due.saturating_sub(1);
        self.is_asked |= is_asked;
    }

    /// Whether it may send CLIENT_CLOSE: no reply is due.
    pub fn may_end(self) -> bool {
        self.replies_due == 0
    }

    /// Whether the server wants it to.
    pub fn is_asked(self) -> bool {
        self.is_asked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Received = Received {
        is_http_1_1: true,
        is_asterisk: true,
        has_option: true,
        has_body: false,
    };

    #[test]
    fn the_request_is_one_head_without_a_body() {
        let text = ClientClose { host: "a:80" }.to_string();
        let expected = "CLIENT_CLOSE * HTTP/1.1\r\nHost: a:80\r\nConnection: client-ends\r\n\r\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn only_the_peers_own_request_in_its_one_form_ends_a_connection() {
        assert!(OWN.ends());
        for other in [
            Received {
                is_http_1_1: false,
                ..OWN
            },
            Received {
                is_asterisk: false,
                ..OWN
            },
            Received {
                has_option: false,
                ..OWN
            },
            Received {
                has_body: true,
                ..OWN
            },
        ] {
            assert!(!other.ends(), "{other:?}");
        }
    }

    #[test]
    fn a_client_that_waits_for_a_reply_may_not_end() {
        let mut end = ClientEnd::default();
        assert!(end.may_end());
        end.sends_request();
        end.sends_request();
        end.gets_reply(false);
        assert!(!end.may_end());
        end.gets_reply(true);
        assert!(end.may_end() && end.is_asked());
    }

    #[test]
    fn options_have_no_case() {
        assert!(is_option(b"Client-Ends"));
        assert!(!is_option(b"client-ends2") && !is_option(b"close"));
    }
}

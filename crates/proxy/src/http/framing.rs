//! Where a message ends, and whether its connection lives on (RFC 9112 Sections 6.3 and 9.3).

use weir_core::client_close;

/// The method of CLIENT_CLOSE.
const METHOD: &[u8] = client_close::METHOD.as_bytes();

/// How the bytes after a head are delimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyKind {
    /// Nothing follows.
    None,
    /// So many bytes.
    Length(u64),
    /// Chunks: [`ChunkScanner`](super::ChunkScanner) finds the end.
    Chunked,
    /// Everything up to the end of the connection. Replies only.
    UntilClose,
    /// No longer HTTP: both directions are passed on until both have ended. Replies only.
    Tunnel,
}

/// A body or a chunk is shorter. From 2^63 on a peer with signed lengths reads a negative number, from
/// 2^53 on one whose numbers are doubles (JavaScript) another one, and where both add to it sums overflow.
pub(super) const LENGTH_LIMIT: u64 = 1 << 53;

/// The protocol version that a peer named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// HTTP/1.0
    Http10,
    /// HTTP/1.1
    Http11,
}

/// What the proxy is to its clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Chosen by the client; targets are absolute.
    Forward,
    /// Stands for the servers behind it; targets are paths.
    Reverse,
}

/// The methods that the proxy treats differently. Names are case-sensitive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the documentation")]
pub enum Method {
    Get,
    Head,
    Post,
    Put,
    Delete,
    Connect,
    Options,
    Trace,
    ClientClose,
    Other,
}

impl Method {
    pub(super) fn of(name: &str) -> Self {
        match name.as_bytes() {
            b"GET" => Self::Get,
            b"HEAD" => Self::Head,
            b"POST" => Self::Post,
            b"PUT" => Self::Put,
            b"DELETE" => Self::Delete,
            b"CONNECT" => Self::Connect,
            b"OPTIONS" => Self::Options,
            b"TRACE" => Self::Trace,
            METHOD => Self::ClientClose,
            _ => Self::Other,
        }
    }

    /// Asks for no change at the server (RFC 9110 Section 9.2.1).
    pub fn is_safe(self) -> bool {
        matches!(self, Self::Get | Self::Head | Self::Options | Self::Trace)
    }

    /// May be sent again when it is not known whether it was carried out (Section 9.2.2).
    pub fn is_idempotent(self) -> bool {
        self.is_safe() || matches!(self, Self::Put | Self::Delete)
    }
}

/// What remains of a request once its head has been passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestFacts {
    /// Bytes of the head in the buffer; the body begins there.
    pub len: usize,
    /// The method.
    pub method: Method,
    /// The client's version.
    pub version: Version,
    /// How the body ends.
    pub body: BodyKind,
    /// The client would use the connection again.
    pub keep_alive: bool,
    /// The client waits for 100 before it sends the body.
    pub expects_continue: bool,
    /// The client asks to leave HTTP; a reply of 101 makes a tunnel.
    pub upgrade: bool,
    /// `Connection` says that the client itself knows CLIENT_CLOSE ([`weir_core::client_close`]).
    pub client_close: bool,
}

/// What remains of a reply once its head has been passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyFacts {
    /// Bytes of the head in the buffer; the body begins there.
    pub len: usize,
    /// The status, 100 to 999.
    pub status: u16,
    /// The server's version.
    pub version: Version,
    /// How the body ends.
    pub body: BodyKind,
    /// The server's connection may carry another request once the body has been read.
    pub keep_alive: bool,
    /// The server asks the proxy to close the connection ([`weir_core::client_close`]).
    pub client_close: bool,
}

impl ReplyFacts {
    /// The final reply is still to come (1xx, other than 101).
    pub fn is_interim(&self) -> bool {
        (100..200).contains(&self.status) && self.status != 101
    }
}

/// How a reply reaches the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery {
    /// The chunks' framing is left out, because the client does not know it (HTTP/1.0).
    pub dechunk: bool,
    /// The client's connection is kept for its next request.
    pub keep_alive: bool,
    /// It is kept, and the client is asked to close it.
    pub asks: bool,
}

impl Delivery {
    /// `closing`: the proxy wants to close the client's connection, as when it is draining.
    pub fn of(request: &RequestFacts, reply: &ReplyFacts, role: Role, closing: bool) -> Self {
        let dechunk = reply.body == BodyKind::Chunked && request.version == Version::Http10;
        Self {
            dechunk,
            keep_alive: persists(request, role, closing)
                && reply.body != BodyKind::UntilClose
                && !dechunk,
            asks: false,
        }
    }

    /// The same; where the connection is kept, the client is asked to close it.
    pub fn and_asks(self) -> Self {
        Self {
            asks: self.keep_alive,
            ..self
        }
    }
}

/// Whether the client's connection outlives a reply whose end the client can see.
///
/// A forward proxy must not keep connections of HTTP/1.0 clients (RFC 9112 Section 9.3): the
/// `Keep-Alive` may come from a client behind a proxy that does not know the field. A reverse proxy
/// is the origin to its clients and may.
pub fn persists(request: &RequestFacts, role: Role, closing: bool) -> bool {
    request.keep_alive && !closing && (request.version == Version::Http11 || role == Role::Reverse)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(version: Version) -> RequestFacts {
        RequestFacts {
            len: 0,
            method: Method::Get,
            version,
            body: BodyKind::None,
            keep_alive: true,
            expects_continue: false,
            upgrade: false,
            client_close: false,
        }
    }

    fn reply(body: BodyKind) -> ReplyFacts {
        ReplyFacts {
            len: 0,
            status: 200,
            version: Version::Http11,
            body,
            keep_alive: true,
            client_close: false,
        }
    }

    #[test]
    fn a_reply_without_an_end_of_its_own_closes_the_clients_connection() {
        let delivery = |body| {
            let request = request(Version::Http11);
            Delivery::of(&request, &reply(body), Role::Reverse, false).keep_alive
        };
        assert!(delivery(BodyKind::Length(5)));
        assert!(delivery(BodyKind::Chunked));
        assert!(!delivery(BodyKind::UntilClose));
    }

    #[test]
    fn chunks_reach_a_1_0_client_without_framing_and_end_with_the_connection() {
        let request = request(Version::Http10);
        let delivery = Delivery::of(&request, &reply(BodyKind::Chunked), Role::Reverse, false);
        assert!(delivery.dechunk && !delivery.keep_alive);
    }

    #[test]
    fn only_a_reverse_proxy_keeps_connections_of_1_0_clients() {
        let request = request(Version::Http10);
        assert!(persists(&request, Role::Reverse, false));
        assert!(!persists(&request, Role::Forward, false));
        assert!(!persists(&request, Role::Reverse, true));
    }
}

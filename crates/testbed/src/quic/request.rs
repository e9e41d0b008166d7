//! What a client asks on a connection, and what is an answer.

use super::ALPN;

/// The application protocol of HTTP/3 (RFC 9114, 3.1).
const HTTP3: &[u8] = b"h3";

/// One request of a client: bytes on a bidirectional stream, which the client then ends. The server has answered when it
/// has ended the stream too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The application protocol (ALPN).
    pub alpn: &'static [u8],
    /// What the client sends on a unidirectional stream first, once a connection; it does not end that stream. Empty:
    /// it opens none.
    pub opening: Vec<u8>,
    /// The request.
    pub bytes: Vec<u8>,
    answer: Answer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    TheSame,
    Http3Ok,
}

impl Request {
    /// Asks a [`super::QuicServer`] for the same bytes.
    pub fn echo(bytes: &[u8]) -> Request {
        Request {
            alpn: ALPN,
            opening: Vec::new(),
            bytes: bytes.to_vec(),
            answer: Answer::TheSame,
        }
    }

    /// A GET by HTTP/3. An `authority` is shorter than 127 bytes.
    ///
    /// It is one HEADERS frame whose four fields QPACK has in its static table (RFC 9204, appendix A), so that neither end
    /// needs a dynamic one.
    pub fn http3_get_root(authority: &str) -> Request {
        const CONTROL_STREAM: u8 = 0x00;
        const SETTINGS_FRAME: u8 = 0x04;
        const HEADERS_FRAME: u8 = 0x01;
        /// No dynamic table: Required Insert Count and Base are 0.
        const PREFIX: [u8; 2] = [0, 0];
        /// Indexed fields of the static table: `:method: GET`, `:scheme: https`, `:path: /`.
        const INDEXED: [u8; 3] = [0xc0 | 17, 0xc0 | 23, 0xc0 | 1];
        /// A literal with the name of static entry 0, `:authority`.
        const AUTHORITY: u8 = 0x50;
        let name = authority.as_bytes();
        assert!(name.len() < 127, "the length is one byte of QPACK");
        let section = [&PREFIX[..], &INDEXED, &[AUTHORITY, name.len() as u8], name].concat();
        // A length from 64 on takes two bytes (RFC 9000, 16).
        let length = (0x4000 | section.len() as u16).to_be_bytes();
        Request {
            alpn: HTTP3,
            opening: vec![CONTROL_STREAM, SETTINGS_FRAME, 0],
            bytes: [&[HEADERS_FRAME], &length[..], &section].concat(),
            answer: Answer::Http3Ok,
        }
    }

    /// Whether all that came on the stream is the answer that was asked for.
    pub fn is_answered_by(&self, received: &[u8]) -> bool {
        match self.answer {
            Answer::TheSame => received == self.bytes,
            Answer::Http3Ok => is_http3_ok(received),
        }
    }
}

/// Whether a HEADERS frame comes first whose first field is `:status: 200` of the static table.
fn is_http3_ok(received: &[u8]) -> bool {
    const STATUS_200: u8 = 0xc0 | 25;
    let Some((1, rest)) = received.split_first().map(|(first, rest)| (*first, rest)) else {
        return false;
    };
    let Some(length_bytes) = rest.first().map(|first| 1 << (first >> 6)) else {
        return false;
    };
    rest.get(length_bytes + 2) == Some(&STATUS_200)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_echo_is_answered_by_the_same_bytes_only() {
        let request = Request::echo(b"abc");
        assert!(request.is_answered_by(b"abc"));
        assert!(!request.is_answered_by(b"ab"));
    }

    #[test]
    fn a_get_is_answered_by_status_200() {
        let request = Request::http3_get_root("localhost");
        assert_eq!(request.bytes.len(), 3 + 2 + 3 + 2 + 9);
        assert!(request.is_answered_by(&[1, 3, 0, 0, 0xd9]));
        assert!(request.is_answered_by(&[1, 0x40, 3, 0, 0, 0xd9, 0, 2, b'o', b'k']));
        // :status: 503 is entry 28.
        assert!(!request.is_answered_by(&[1, 3, 0, 0, 0xdc]));
        assert!(!request.is_answered_by(&[1]));
        assert!(!request.is_answered_by(&[]));
    }
}

//! One HTTP request over one Unix connection. The server ends the connection after its answer, and
//! says how long it is.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Longest answer, in bytes: the status of some thousand listeners and classes.
const ANSWER_BYTES: u64 = 64 << 20;
/// Fields of an answer's head; weir sends five.
const FIELDS: usize = 32;

pub struct Answer {
    pub status: u16,
    pub body: Vec<u8>,
}

/// Asks, and reads the answer to its end.
pub fn exchange(
    socket: &Path,
    patience: Duration,
    method: &str,
    path: &str,
    body: Option<&[u8]>,
) -> io::Result<Answer> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    let mut request = format!("{method} {path} HTTP/1.1\r\nhost: weir\r\nconnection: close\r\n");
    if let Some(body) = body {
        request += &format!(
            "content-type: application/json\r\ncontent-length: {}\r\n",
            body.len()
        );
    }
    request += "\r\n";
    let mut request = request.into_bytes();
    request.extend_from_slice(body.unwrap_or_default());
    stream.write_all(&request)?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES).read_to_end(&mut answer)?;
    parse(answer)
}

fn parse(mut bytes: Vec<u8>) -> io::Result<Answer> {
    let malformed = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let mut fields = [httparse::EMPTY_HEADER; FIELDS];
    let mut head = httparse::Response::new(&mut fields);
    let length = match head.parse(&bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Err(malformed("the answer ends in its head")),
        Err(error) => return Err(malformed(&format!("no HTTP answer: {error}"))),
    };
    let status = head.code.unwrap_or_default();
    let declared = head
        .headers
        .iter()
        .find(|field| field.name.eq_ignore_ascii_case("content-length"))
        .and_then(|field| std::str::from_utf8(field.value).ok()?.trim().parse().ok());
    let body = bytes.split_off(length);
    // An answer that was cut off must not pass for a shorter one.
    if declared != Some(body.len()) {
        return Err(malformed("the answer is not of the length that it says"));
    }
    Ok(Answer { status, body })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_its_status_and_its_body() {
        let answer =
            parse(b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}".to_vec()).unwrap();
        assert_eq!((answer.status, answer.body.as_slice()), (404, &b"{}"[..]));
    }

    #[test]
    fn an_answer_that_was_cut_off_is_an_error() {
        for text in [
            "",
            "HTTP/1.1 200 OK\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n{}",
            "HTTP/1.1 200 OK\r\n\r\n{}",
            "SSH-2.0-x\r\n\r\n",
        ] {
            assert!(parse(text.into()).is_err(), "{text:?}");
        }
    }
}

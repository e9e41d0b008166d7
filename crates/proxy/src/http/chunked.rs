//! Finds the end of a chunked body without changing it (RFC 9112 Section 7.1).
//!
//! The bytes pass through as they are; the scanner says which of them belong to the body, and how
//! many of the next are data alone, so that large chunks can be spliced. The framing between is read
//! byte by byte, in any split, and refused where a lenient reader could see another end: sizes that
//! are not plain hexadecimal, lines that end without CR, data that runs on, trailers that would
//! change the message.

use super::Refusal;
use super::field::{Known, TOKEN, is_value_byte};
use super::framing::LENGTH_LIMIT;

/// Zeros in front are digits too. With one more a sum of 64 bits would wrap.
const MAX_SIZE_DIGITS: u8 = 16;
/// Bytes of extensions on one chunk. No client needs them; megabytes of them were attacks.
const MAX_EXTENSION_BYTES: u16 = 256;
/// Bytes of the trailer section.
const MAX_TRAILER_BYTES: u16 = 8192;
/// Longer than the names that are not allowed in trailers.
const NAME_BYTES: usize = 20;

/// Where in a chunked body its reader stands.
#[derive(Debug, Clone)]
pub struct ChunkScanner {
    state: State,
    /// The size being read, then the bytes of data that are still to come.
    remaining: u64,
    /// Blanks may stand between a size and its line's end.
    padded: bool,
    /// Digits of a size, or bytes of an extension or of the trailers, against their limits.
    count: u16,
    /// The name of the trailer field that is being read, cut off when it is too long to matter.
    name: [u8; NAME_BYTES],
    name_len: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Size,
    /// Whitespace after the size.
    SizeGap,
    /// Whitespace after a value.
    ExtensionGap,
    /// After `;`.
    ExtensionName0,
    ExtensionName,
    /// Whitespace after a name.
    ExtensionNameGap,
    /// After `=`.
    ExtensionValue0,
    ExtensionValue,
    Quoted,
    QuotedPair,
    QuotedEnd,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    TrailerLine,
    TrailerName,
    TrailerValue,
    TrailerLf,
    LastLf,
    Done,
}

/// What the first bytes of a buffer are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    /// So many bytes of sizes, line ends and trailers.
    Framing(usize),
    /// So many bytes of data.
    Data(usize),
    /// The body has ended before them.
    End,
}

/// What a buffer holds of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scanned {
    /// So many bytes at its start belong to the body.
    pub body: usize,
    /// Of these, so many are data.
    pub data: usize,
    /// What follows them.
    pub next: Next,
}

/// What follows the bytes that were scanned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Framing, that must be scanned.
    Framing,
    /// So many bytes of data. They may be passed on unseen, if [`ChunkScanner::skip`] is told.
    Data(u64),
    /// The next message: the body has ended.
    End,
}

impl Default for ChunkScanner {
    fn default() -> Self {
        Self::new()
    }
}

impl ChunkScanner {
    /// At the start of a request's body.
    pub fn new() -> Self {
        Self {
            padded: false,
            state: State::Size,
            remaining: 0,
            count: 0,
            name: [0; NAME_BYTES],
            name_len: 0,
        }
    }

    /// At the start of a reply's body. Old servers fill a size up with blanks. Every reader that is known takes the number
    /// before them or refuses the body, and none finds another end; but what a client sends so is more likely an attack.
    pub fn of_reply() -> Self {
        Self {
            padded: true,
            ..Self::new()
        }
    }

    /// Reads as much of `buf` as belongs to the body.
    ///
    /// # Errors
    /// The body is malformed; nothing of `buf` may be passed on, and both connections must be closed:
    /// the receiver must not take what it has for the whole body.
    pub fn scan(&mut self, buf: &[u8]) -> Result<Scanned, Refusal> {
        let (mut body, mut data) = (0, 0);
        while body < buf.len() {
            match self.piece(&buf[body..])? {
                Piece::Framing(len) => body += len,
                Piece::Data(len) => {
                    body += len;
                    data += len;
                }
                Piece::End => break,
            }
        }
        let next = match self.state {
            State::Done => Next::End,
            State::Data => Next::Data(self.remaining),
            _ => Next::Framing,
        };
        Ok(Scanned { body, data, next })
    }

    /// Reads the first piece of `buf`, for a receiver that wants the data alone. Pieces are not
    /// empty unless `buf` is.
    ///
    /// # Errors
    /// As [`ChunkScanner::scan`].
    pub fn piece(&mut self, buf: &[u8]) -> Result<Piece, Refusal> {
        match self.state {
            State::Done => Ok(Piece::End),
            State::Data => {
                let len = usize::try_from(self.remaining).map_or(buf.len(), |n| n.min(buf.len()));
                self.skip(len as u64);
                Ok(Piece::Data(len))
            }
            _ => self.framing(buf).map(Piece::Framing),
        }
    }

    /// So many bytes of data were passed on unseen.
    ///
    /// # Panics
    /// They are more than [`Next::Data`] said: the end of the body would be lost.
    pub fn skip(&mut self, data: u64) {
        assert!(self.state == State::Data && data <= self.remaining);
        self.remaining -= data;
        if self.remaining == 0 {
            self.state = State::DataCr;
        }
    }

    fn framing(&mut self, buf: &[u8]) -> Result<usize, Refusal> {
        for (at, &byte) in buf.iter().enumerate() {
            self.state = self.step(byte)?;
            if matches!(self.state, State::Data | State::Done) {
                return Ok(at + 1);
            }
        }
        Ok(buf.len())
    }

    #[inline]
    fn step(&mut self, byte: u8) -> Result<State, Refusal> {
        match (self.state, byte) {
            (State::Size, _) => self.size(byte),
            (State::SizeLf, b'\n') => {
                self.count = 0;
                Ok(match self.remaining {
                    0 => State::TrailerLine,
                    _ => State::Data,
                })
            }
            (State::SizeLf, _) => Err(Refusal::ChunkSize),
            (State::DataCr, b'\r') => Ok(State::DataLf),
            (State::DataLf, b'\n') => {
                self.count = 0;
                Ok(State::Size)
            }
            (State::DataCr | State::DataLf, _) => Err(Refusal::ChunkEnd),
            (
                State::TrailerLine | State::TrailerName | State::TrailerValue | State::TrailerLf,
                _,
            ) => self.trailer(byte),
            (State::LastLf, b'\n') => Ok(State::Done),
            (State::LastLf, _) => Err(Refusal::Trailer),
            (State::Data | State::Done, _) => unreachable!("these states read no framing"),
            _ => self.extension(byte),
        }
    }

    fn size(&mut self, byte: u8) -> Result<State, Refusal> {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' => byte - b'A' + 10,
            _ if self.count == 0 => return Err(Refusal::ChunkSize),
            b'\r' => return Ok(State::SizeLf),
            b';' | b' ' | b'\t' => {
                self.count = 0;
                return self.after_size(byte);
            }
            _ => return Err(Refusal::ChunkSize),
        };
        if self.count == 0 {
            self.remaining = 0;
        }
        self.count += 1;
        if self.count > u16::from(MAX_SIZE_DIGITS) {
            return Err(Refusal::ChunkSize);
        }
        self.remaining = self.remaining << 4 | u64::from(digit);
        match self.remaining < LENGTH_LIMIT {
            true => Ok(State::Size),
            false => Err(Refusal::ChunkSize),
        }
    }

    fn after_size(&mut self, byte: u8) -> Result<State, Refusal> {
        self.state = State::SizeGap;
        self.extension(byte)
    }

    /// `*( BWS ";" BWS name [ BWS "=" BWS ( token / quoted-string ) ] )`, and no whitespace before the
    /// end of the line, but for the size of a reply's chunk.
    fn extension(&mut self, byte: u8) -> Result<State, Refusal> {
        self.count += 1;
        if self.count > MAX_EXTENSION_BYTES {
            return Err(Refusal::ChunkExtension);
        }
        let is_space = matches!(byte, b' ' | b'\t');
        let is_token = TOKEN.contains(byte);
        match (self.state, byte) {
            (State::SizeGap | State::ExtensionGap, _) if is_space => Ok(self.state),
            (State::SizeGap | State::ExtensionGap, b';') => Ok(State::ExtensionName0),
            (State::SizeGap, b'\r') if self.padded => Ok(State::SizeLf),
            (State::ExtensionName0, _) if is_space => Ok(State::ExtensionName0),
            (State::ExtensionName0 | State::ExtensionName, _) if is_token => {
                Ok(State::ExtensionName)
            }
            (State::ExtensionNameGap, _) if is_space => Ok(State::ExtensionNameGap),
            (State::ExtensionNameGap, b';') => Ok(State::ExtensionName0),
            (State::ExtensionName | State::ExtensionNameGap, b'=') => Ok(State::ExtensionValue0),
            (State::ExtensionValue0, _) if is_space => Ok(State::ExtensionValue0),
            (State::ExtensionValue0, b'"') => Ok(State::Quoted),
            (State::ExtensionValue0 | State::ExtensionValue, _) if is_token => {
                Ok(State::ExtensionValue)
            }
            (State::Quoted, b'"') => Ok(State::QuotedEnd),
            (State::Quoted, b'\\') => Ok(State::QuotedPair),
            (State::Quoted | State::QuotedPair, _) if is_value_byte(byte) => Ok(State::Quoted),
            (State::ExtensionName | State::ExtensionValue | State::QuotedEnd, b';') => {
                Ok(State::ExtensionName0)
            }
            (State::ExtensionName | State::ExtensionValue | State::QuotedEnd, b'\r') => {
                Ok(State::SizeLf)
            }
            (State::ExtensionName, _) if is_space => Ok(State::ExtensionNameGap),
            (State::ExtensionValue | State::QuotedEnd, _) if is_space => Ok(State::ExtensionGap),
            _ => Err(Refusal::ChunkExtension),
        }
    }

    fn trailer(&mut self, byte: u8) -> Result<State, Refusal> {
        self.count += 1;
        if self.count > MAX_TRAILER_BYTES {
            return Err(Refusal::TrailersTooLong);
        }
        match (self.state, byte) {
            (State::TrailerLine, b'\r') => Ok(State::LastLf),
            (State::TrailerLine, _) if TOKEN.contains(byte) => {
                self.name_len = 0;
                self.remember(byte);
                Ok(State::TrailerName)
            }
            (State::TrailerName, b':') => match Known::frames_or_routes(self.name()) {
                true => Err(Refusal::Trailer),
                false => Ok(State::TrailerValue),
            },
            (State::TrailerName, _) if TOKEN.contains(byte) => {
                self.remember(byte);
                Ok(State::TrailerName)
            }
            (State::TrailerValue, b'\r') => Ok(State::TrailerLf),
            (State::TrailerValue, _) if is_value_byte(byte) => Ok(State::TrailerValue),
            (State::TrailerLf, b'\n') => Ok(State::TrailerLine),
            _ => Err(Refusal::Trailer),
        }
    }

    fn remember(&mut self, byte: u8) {
        if let Some(place) = self.name.get_mut(usize::from(self.name_len)) {
            *place = byte;
            self.name_len += 1;
        }
    }

    fn name(&self) -> &[u8] {
        &self.name[..usize::from(self.name_len)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scanned(mut scanner: ChunkScanner, body: &[u8]) -> Result<Scanned, Refusal> {
        scanner.scan(body)
    }

    #[test]
    fn blanks_fill_up_the_sizes_of_replies_alone() {
        for body in [
            &b"2   \r\nok\r\n0\r\n\r\n"[..],
            b"2\t\r\nok\r\n0     \r\n\r\n",
            b"2 ;a=b\r\nok\r\n0\r\n\r\n",
        ] {
            let whole = scanned(ChunkScanner::of_reply(), body).unwrap();
            assert_eq!(
                (whole.body, whole.data, whole.next),
                (body.len(), 2, Next::End)
            );
        }
        let padded = b"2   \r\nok\r\n0\r\n\r\n";
        assert_eq!(
            scanned(ChunkScanner::new(), padded),
            Err(Refusal::ChunkExtension)
        );
    }

    #[test]
    fn blanks_make_no_other_number_and_no_other_line() {
        for (size, reason) in [
            ("2 0", Refusal::ChunkExtension),
            ("2 x", Refusal::ChunkExtension),
            (" 2", Refusal::ChunkSize),
            ("2 ;a ", Refusal::ChunkExtension),
            ("2 \n", Refusal::ChunkExtension),
            ("2 \r \n", Refusal::ChunkSize),
        ] {
            let body = format!("{size}\r\nok\r\n0\r\n\r\n");
            let refused = scanned(ChunkScanner::of_reply(), body.as_bytes());
            assert_eq!(refused, Err(reason), "{size:?}");
        }
        let endless = [b"2", &[b' '; 1000][..]].concat();
        let refused = scanned(ChunkScanner::of_reply(), &endless);
        assert_eq!(refused, Err(Refusal::ChunkExtension));
    }
}

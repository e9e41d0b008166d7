//! Reads a body out of what comes, whatever says where it ends.

/// What is still to come of a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// So many bytes.
    Length(u64),
    /// Chunks.
    Chunked(Chunk),
    /// All until the end.
    UntilEnd,
}

/// Where in a chunked body the next byte is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Chunk {
    /// In the line with a chunk's length.
    Size(Vec<u8>),
    /// In its data, so many bytes before their end.
    Data(u64),
    /// In the line end behind the data, so many bytes before its end.
    DataEnd(u8),
    /// In a line of the trailer.
    Trailer(Vec<u8>),
    /// Behind it.
    End,
}

/// The chunks are malformed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed(pub String);

impl Body {
    /// A chunked body from its first byte on.
    pub fn chunked() -> Body {
        Body::Chunked(Chunk::Size(Vec::new()))
    }

    /// Whether all of it has come.
    pub fn is_done(&self) -> bool {
        matches!(self, Body::Length(0) | Body::Chunked(Chunk::End))
    }

    /// Takes a first piece of these bytes: says how many bytes were taken, and how many of them, the
    /// last ones, are data.
    pub fn take(&mut self, bytes: &[u8]) -> Result<(usize, usize), Malformed> {
        match self {
            Body::UntilEnd => Ok((bytes.len(), bytes.len())),
            Body::Length(left) => {
                let data = at_most(bytes, *left);
                *left -= data as u64;
                Ok((data, data))
            }
            Body::Chunked(chunk) => chunk.take(bytes),
        }
    }
}

fn at_most(bytes: &[u8], most: u64) -> usize {
    bytes.len().min(usize::try_from(most).unwrap_or(usize::MAX))
}

impl Chunk {
    fn take(&mut self, bytes: &[u8]) -> Result<(usize, usize), Malformed> {
        match self {
            Chunk::Data(left) => {
                let data = at_most(bytes, *left);
                *left -= data as u64;
                if *left == 0 {
                    *self = Chunk::DataEnd(2);
                }
                Ok((data, data))
            }
            Chunk::DataEnd(left) => {
                let expected = [b'\r', b'\n'][2 - usize::from(*left)];
                if bytes[0] != expected {
                    return Err(Malformed(format!("{:#x} behind a chunk", bytes[0])));
                }
                *left -= 1;
                if *left == 0 {
                    *self = Chunk::Size(Vec::new());
                }
                Ok((1, 0))
            }
            Chunk::Size(line) | Chunk::Trailer(line) => {
                let end = bytes.iter().position(|byte| *byte == b'\n');
                let taken = end.map_or(bytes.len(), |end| end + 1);
                line.extend_from_slice(&bytes[..taken]);
                if end.is_some() {
                    *self = self.after_line()?;
                }
                Ok((taken, 0))
            }
            Chunk::End => Ok((0, 0)),
        }
    }

    fn after_line(&self) -> Result<Chunk, Malformed> {
        match self {
            Chunk::Trailer(line) if line == b"\r\n" => Ok(Chunk::End),
            Chunk::Size(line) => {
                let text = String::from_utf8_lossy(line);
                let size = text.trim_end().split(';').next().unwrap_or_default();
                match u64::from_str_radix(size, 16) {
                    Ok(0) => Ok(Chunk::Trailer(Vec::new())),
                    Ok(size) => Ok(Chunk::Data(size)),
                    Err(_) => Err(Malformed(format!("{text:?} as a chunk's length"))),
                }
            }
            _ => Ok(Chunk::Trailer(Vec::new())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_come_apart_at_every_byte_and_what_follows_is_left() {
        let message = b"3;x=y\r\nabc\r\n0A\r\n0123456789\r\n0\r\nT: v\r\n\r\nGET";
        for step in 1..message.len() {
            let (mut body, mut data, mut at) = (Body::chunked(), Vec::new(), 0);
            while !body.is_done() {
                let piece = &message[at..message.len().min(at + step)];
                let (taken, last) = body.take(piece).unwrap();
                data.extend_from_slice(&piece[taken - last..taken]);
                at += taken;
            }
            assert_eq!(data, b"abc0123456789");
            assert_eq!(&message[at..], b"GET");
        }
    }
}

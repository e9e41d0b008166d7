//! Streams that may be compressed.

use std::io::{self, BufRead, BufReader, Cursor, Read};

use flate2::read::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// RFC 1952.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// RFC 8878: a frame, and the 16 kinds of frames to skip.
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const ZSTD_TO_SKIP: [u8; 3] = [0x2a, 0x4d, 0x18];
/// What is read before anything is decided. pcap-parser wants the first block of a file in the first read.
const FIRST_BYTES: usize = 64 << 10;

/// The bytes of a stream, decompressed if they begin as gzip or zstd do. The name of the file does not matter.
///
/// # Errors
/// The first bytes cannot be read.
pub fn decompressed(stream: impl Read + Send + 'static) -> io::Result<Box<dyn Read + Send>> {
    let (first, stream) = begun(stream)?;
    Ok(match first.as_slice() {
        start if start.starts_with(&GZIP) => Box::new(MultiGzDecoder::new(BufReader::new(stream))),
        start if is_zstd(start) => Box::new(Zstd::new(stream)),
        _ => Box::new(stream),
    })
}

fn is_zstd(start: &[u8]) -> bool {
    start.starts_with(&ZSTD) || start.get(1..4) == Some(&ZSTD_TO_SKIP) && start[0] >> 4 == 5
}

/// The first bytes of a stream, as many as there are up to [`FIRST_BYTES`], and a stream whose first read gives them.
pub(crate) fn begun<R: Read>(mut stream: R) -> io::Result<(Vec<u8>, Begun<R>)> {
    let mut first = Vec::with_capacity(FIRST_BYTES);
    let fault = stream
        .by_ref()
        .take(FIRST_BYTES as u64)
        .read_to_end(&mut first)
        .err();
    match fault {
        Some(fault) if first.is_empty() => Err(fault),
        fault => {
            let begun = Begun {
                first: Cursor::new(first.clone()),
                fault,
                stream,
            };
            Ok((first, begun))
        }
    }
}

/// A stream whose first bytes have been read once already.
pub(crate) struct Begun<R> {
    first: Cursor<Vec<u8>>,
    /// What came behind the first bytes. A decoder says so once, and then that the stream has ended.
    fault: Option<io::Error>,
    stream: R,
}

impl<R: Read> Read for Begun<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.first.read(buffer)? {
            0 => match self.fault.take() {
                Some(fault) => Err(fault),
                None => self.stream.read(buffer),
            },
            read => Ok(read),
        }
    }
}

/// All frames of a zstd stream: `pzstd` and `cat` make several.
struct Zstd<R> {
    stream: BufReader<R>,
    /// Of the frame that is being read.
    decoder: Option<FrameDecoder>,
}

impl<R: Read> Zstd<R> {
    fn new(stream: R) -> Zstd<R> {
        Zstd {
            stream: BufReader::new(stream),
            decoder: None,
        }
    }

    /// The decoder of the next frame; `None` at the end of the stream.
    fn next_frame(&mut self) -> io::Result<Option<FrameDecoder>> {
        while !self.stream.fill_buf()?.is_empty() {
            let mut decoder = FrameDecoder::new();
            match decoder.init(&mut self.stream) {
                Ok(()) => return Ok(Some(decoder)),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    io::copy(
                        &mut self.stream.by_ref().take(length.into()),
                        &mut io::sink(),
                    )?;
                }
                Err(error) => return Err(invalid(error)),
            }
        }
        Ok(None)
    }
}

impl<R: Read> Read for Zstd<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            let mut decoder = match self.decoder.take() {
                Some(decoder) => decoder,
                None => match self.next_frame()? {
                    Some(decoder) => decoder,
                    None => return Ok(0),
                },
            };
            while decoder.can_collect() < buffer.len() && !decoder.is_finished() {
                let wanted = BlockDecodingStrategy::UptoBytes(buffer.len() - decoder.can_collect());
                decoder
                    .decode_blocks(&mut self.stream, wanted)
                    .map_err(invalid)?;
            }
            let read = decoder.read(buffer)?;
            if read > 0 {
                self.decoder = Some(decoder);
                return Ok(read);
            }
        }
    }
}

/// ruzstd does not say of every error whether the stream ended too early or makes no sense.
fn invalid(error: FrameDecoderError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

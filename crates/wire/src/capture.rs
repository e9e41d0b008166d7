//! Packets of a capture, one after the other.

use std::io::{self, Read};
use std::sync::{Arc, Mutex, PoisonError};

use pcap_parser::traits::PcapReaderIterator;
use pcap_parser::{LegacyPcapReader, PcapError, PcapNGReader};

use crate::compression::begun;
use crate::frame::Frame;
use crate::interfaces::{Interfaces, block_type};
use crate::packet::{Error, Packet};

/// To begin with; a longer block makes it grow.
const BUFFER_BYTES: usize = 256 << 10;
/// No packet of a real capture is longer. libpcap takes none over 256 KiB.
const PACKET_BYTES_MAX: usize = 4 << 20;
/// Of a block of pcapng without anything in it.
const BLOCK_BYTES_MIN: u32 = 12;

/// Reads a capture: pcap (both byte orders, µs and ns) or pcapng.
pub struct Capture {
    reader: Box<dyn PcapReaderIterator + Send>,
    /// What the stream said, which pcap-parser does not pass on.
    fault: Arc<Mutex<Option<io::Error>>>,
    is_pcapng: bool,
    interfaces: Interfaces,
    packets: u64,
    /// Of these, packets of links that are not read.
    unread: u64,
    buffer_bytes: usize,
    /// What is left of a block that is passed over, bytes.
    to_pass_over: u32,
    has_ended: bool,
}

impl Capture {
    /// Begins to read a stream of pcap or pcapng, not compressed.
    ///
    /// # Errors
    /// It cannot be read, is no capture, or is one of frames that weir does not read.
    pub fn new(stream: impl Read + Send + 'static) -> Result<Capture, Error> {
        let (first, stream) = begun(stream).map_err(Error::Io)?;
        let fault = Arc::default();
        let stream = Noting {
            stream,
            fault: Arc::clone(&fault),
        };
        let is_pcapng = first.starts_with(&SECTION_HEADER);
        let reader: Result<Box<dyn PcapReaderIterator + Send>, _> = match is_pcapng {
            true => PcapNGReader::new(BUFFER_BYTES, stream).map(|reader| Box::new(reader) as _),
            false => {
                LegacyPcapReader::new(BUFFER_BYTES, stream).map(|reader| Box::new(reader) as _)
            }
        };
        let reader = reader.map_err(|error| match error {
            PcapError::Incomplete(_) if !first.is_empty() && (is_pcapng || is_pcap(&first)) => {
                Error::Cut { packets: 0 }
            }
            _ => Error::NotACapture,
        })?;
        Ok(Capture {
            reader,
            fault,
            is_pcapng,
            interfaces: Interfaces::default(),
            packets: 0,
            unread: 0,
            buffer_bytes: BUFFER_BYTES,
            to_pass_over: 0,
            has_ended: false,
        })
    }

    /// The next packet, or the next block that weir does not know; `None` behind the last one, and behind an error.
    ///
    /// # Errors
    /// The capture cannot be read any further.
    pub fn next_packet(&mut self) -> Result<Option<Packet>, Error> {
        while !self.has_ended {
            match self.step() {
                Ok(None) => {}
                Ok(Some(packet)) => {
                    self.packets += u64::from(packet.frame != Frame::UnknownBlock);
                    self.unread += u64::from(packet.frame == Frame::UnknownLink);
                    return Ok(Some(packet));
                }
                Err(End::Orderly) => {
                    self.has_ended = true;
                    self.was_readable()?;
                }
                Err(End::Broken(error)) => {
                    self.has_ended = true;
                    return Err(error);
                }
            }
        }
        Ok(None)
    }

    /// A capture that has packets, and none that is read, is not read.
    fn was_readable(&self) -> Result<(), Error> {
        match (
            self.interfaces.unread_link(),
            self.interfaces.unknown_block(),
        ) {
            (Some(link), _) if self.unread == self.packets => Err(Error::LinkType(link)),
            (_, Some(kind)) if self.packets == 0 => Err(Error::Blocks(kind)),
            _ => Ok(()),
        }
    }

    /// Reads one block, or more of the stream.
    fn step(&mut self) -> Result<Option<Packet>, End> {
        if self.to_pass_over > 0 {
            return self.pass_over();
        }
        let more = match self.reader.next() {
            Ok((bytes, block)) => {
                let packet = self.interfaces.read(block);
                self.reader.consume(bytes);
                return packet.map_err(End::Broken);
            }
            Err(error) => More::of(error),
        };
        let packets = self.packets;
        match more {
            More::Refill => self.refill(),
            More::Grow => self.read_longer(),
            More::Cut => Err(End::Broken(Error::Cut { packets })),
            More::Malformed => Err(End::Broken(self.malformed())),
            More::Nothing => Err(End::Orderly),
        }
    }

    fn refill(&mut self) -> Result<Option<Packet>, End> {
        match self.reader.refill() {
            Ok(()) => Ok(None),
            Err(_) => Err(End::Broken(self.io_error())),
        }
    }

    fn malformed(&self) -> Error {
        Error::Malformed {
            packets: self.packets,
            at: self.reader.consumed() as u64,
        }
    }

    /// A block is longer than the buffer: one with a packet makes it grow, any other is passed over, whatever its length.
    /// The TLS keys of a long capture have megabytes.
    fn read_longer(&mut self) -> Result<Option<Packet>, End> {
        let head = match self.is_pcapng {
            true => self.interfaces.block_head(self.reader.data()),
            false => None,
        };
        match head {
            Some((kind, bytes)) if !READ.contains(&kind) && bytes >= BLOCK_BYTES_MIN => {
                self.to_pass_over = bytes;
                Ok(self.interfaces.pass_over(kind))
            }
            _ if self.buffer_bytes >= PACKET_BYTES_MAX => Err(End::Broken(self.malformed())),
            _ => {
                self.buffer_bytes *= 2;
                self.reader.grow(self.buffer_bytes);
                Ok(None)
            }
        }
    }

    fn pass_over(&mut self) -> Result<Option<Packet>, End> {
        let there = self.reader.data().len().min(self.to_pass_over as usize);
        self.reader.consume(there);
        self.to_pass_over -= there as u32;
        if there == 0 && self.reader.reader_exhausted() {
            let packets = self.packets;
            return Err(End::Broken(Error::Cut { packets }));
        }
        match self.to_pass_over {
            0 => Ok(None),
            _ => self.refill(),
        }
    }

    /// What the stream said. A compressed one that ends too early is a capture that is cut.
    fn io_error(&self) -> Error {
        let fault = self
            .fault
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        match fault {
            Some(fault) if fault.kind() == io::ErrorKind::UnexpectedEof => Error::Cut {
                packets: self.packets,
            },
            Some(fault) => Error::Io(fault),
            None => Error::Io(io::ErrorKind::Other.into()),
        }
    }
}

/// The blocks that are read.
const READ: [u32; 5] = [
    block_type::SECTION_HEADER,
    block_type::INTERFACE_DESCRIPTION,
    block_type::PACKET,
    block_type::SIMPLE_PACKET,
    block_type::ENHANCED_PACKET,
];

/// Why there is no next packet.
enum End {
    Orderly,
    Broken(Error),
}

/// What is to be done when pcap-parser gives no block.
enum More {
    Refill,
    Grow,
    Cut,
    Malformed,
    Nothing,
}

impl More {
    fn of<I>(error: PcapError<I>) -> More {
        match error {
            PcapError::Eof => More::Nothing,
            PcapError::Incomplete(_) => More::Refill,
            PcapError::BufferTooSmall => More::Grow,
            PcapError::UnexpectedEof => More::Cut,
            _ => More::Malformed,
        }
    }
}

/// The block type of pcapng's section header, the same in both byte orders.
const SECTION_HEADER: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

fn is_pcap(first: &[u8]) -> bool {
    let magics: [u32; 5] = [
        0xa1b2_c3d4,
        0xa1b2_3c4d,
        0xa1b2_cd34,
        0xd4c3_b2a1,
        0x4d3c_b2a1,
    ];
    let begins = |magic: &u32| {
        magic
            .to_le_bytes()
            .starts_with(&first[..first.len().min(4)])
    };
    magics.iter().any(begins)
}

/// A stream that notes its errors.
struct Noting<R> {
    stream: R,
    fault: Arc<Mutex<Option<io::Error>>>,
}

impl<R: Read> Read for Noting<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.stream.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let kind = error.kind();
                    *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                    return Err(kind.into());
                }
                read => return read,
            }
        }
    }
}

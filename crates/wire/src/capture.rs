//! Packets of a capture, one after the other.

use std::io::{self, Read};
use std::sync::{Arc, Mutex, PoisonError};

use pcap_parser::traits::{PcapNGPacketBlock, PcapReaderIterator};
use pcap_parser::{Block, LegacyPcapReader, PcapBlockOwned, PcapError, PcapNGReader};

use crate::compression::begun;
use crate::frame::{Frame, parse};
use crate::link::Link;

/// A packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// When it was captured, ns since 1970.
    pub at_ns: u64,
    /// What it carries.
    pub frame: Frame,
}

/// Why a capture cannot be read to its end. What was read before it stands.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The stream fails.
    #[error("cannot read it: {0}")]
    Io(#[source] io::Error),
    /// It begins as no capture does.
    #[error("it is neither pcap nor pcapng")]
    NotACapture,
    /// Frames of this kind are not read.
    #[error(
        "its link type, {0}, is none that weir reads (Ethernet, Linux cooked, PPP, loopback, raw IP)"
    )]
    LinkType(i32),
    /// It ends within a packet.
    #[error("it is cut within packet {}", .packets + 1)]
    Cut {
        /// Packets before.
        packets: u64,
    },
    /// A record makes no sense, so that the next cannot be found.
    #[error("what follows packet {packets}, at byte {at}, is no packet")]
    Malformed {
        /// Packets before.
        packets: u64,
        /// Bytes before, decompressed.
        at: u64,
    },
}

/// To begin with; a longer block makes it grow.
const BUFFER_BYTES: usize = 256 << 10;
/// No packet and no block of a real capture is longer. libpcap takes none over 256 KiB.
const BLOCK_BYTES_MAX: usize = 4 << 20;
const NS_PER_S: u64 = 1_000_000_000;

/// Reads a capture: pcap (both byte orders, µs and ns) or pcapng.
pub struct Capture {
    reader: Box<dyn PcapReaderIterator + Send>,
    /// What the stream said, which pcap-parser does not pass on.
    fault: Arc<Mutex<Option<io::Error>>>,
    interfaces: Interfaces,
    packets: u64,
    buffer_bytes: usize,
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
            interfaces: Interfaces::default(),
            packets: 0,
            buffer_bytes: BUFFER_BYTES,
            has_ended: false,
        })
    }

    /// The next packet; `None` behind the last one, and behind an error.
    ///
    /// # Errors
    /// The capture cannot be read any further.
    pub fn next_packet(&mut self) -> Result<Option<Packet>, Error> {
        while !self.has_ended {
            match self.step() {
                Ok(None) => {}
                Ok(Some(packet)) => {
                    self.packets += 1;
                    return Ok(Some(packet));
                }
                Err(End::Orderly) => self.has_ended = true,
                Err(End::Broken(error)) => {
                    self.has_ended = true;
                    return Err(error);
                }
            }
        }
        Ok(None)
    }

    /// Reads one block, or more of the stream.
    fn step(&mut self) -> Result<Option<Packet>, End> {
        let more = match self.reader.next() {
            Ok((bytes, block)) => {
                let packet = self.interfaces.read(block);
                self.reader.consume(bytes);
                return packet.map_err(End::Broken);
            }
            Err(error) => More::of(error),
        };
        let packets = self.packets;
        let malformed = || Error::Malformed {
            packets,
            at: self.reader.consumed() as u64,
        };
        match more {
            More::Refill => match self.reader.refill() {
                Ok(()) => Ok(None),
                Err(_) => Err(End::Broken(self.io_error())),
            },
            More::Grow if self.buffer_bytes >= BLOCK_BYTES_MAX => Err(End::Broken(malformed())),
            More::Grow => {
                self.buffer_bytes *= 2;
                self.reader.grow(self.buffer_bytes);
                Ok(None)
            }
            More::Cut => Err(End::Broken(Error::Cut { packets })),
            More::Malformed => Err(End::Broken(malformed())),
            More::Nothing => Err(End::Orderly),
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

/// What is known of the interfaces of a capture. pcap has one.
#[derive(Default)]
struct Interfaces {
    all: Vec<Interface>,
    is_big_endian: bool,
    /// Of the last packet. pcapng's simple packets have none.
    at_ns: u64,
}

/// An interface.
struct Interface {
    /// `None`: frames that are not read.
    link: Option<Link>,
    snap_len: u32,
    clock: Clock,
}

/// What the times of an interface mean.
#[derive(Clone, Copy)]
struct Clock {
    units_per_s: u64,
    offset_s: i64,
}

impl Clock {
    fn ns(self, units: u64) -> u64 {
        let seconds = (units / self.units_per_s).saturating_add_signed(self.offset_s);
        let rest = u128::from(units % self.units_per_s) * u128::from(NS_PER_S)
            / u128::from(self.units_per_s);
        seconds.saturating_mul(NS_PER_S).saturating_add(rest as u64)
    }
}

impl Interfaces {
    /// The packet of a block, if it has one.
    fn read(&mut self, block: PcapBlockOwned<'_>) -> Result<Option<Packet>, Error> {
        match block {
            PcapBlockOwned::LegacyHeader(header) => {
                let number = header.network.0;
                let link = Link::from_number(number).ok_or(Error::LinkType(number))?;
                let units_per_s = match header.is_nanosecond_precision() {
                    true => NS_PER_S,
                    false => 1_000_000,
                };
                self.all.push(Interface {
                    link: Some(link),
                    snap_len: header.snaplen,
                    clock: Clock {
                        units_per_s,
                        offset_s: 0,
                    },
                });
                Ok(None)
            }
            PcapBlockOwned::Legacy(packet) => {
                let Some(interface) = self.all.first() else {
                    return Ok(None);
                };
                let per_s = interface.clock.units_per_s;
                let units = u64::from(packet.ts_sec) * per_s + u64::from(packet.ts_usec);
                let (at_ns, link) = (interface.clock.ns(units), interface.link);
                Ok(Some(self.packet(at_ns, link, packet.data, packet.origlen)))
            }
            PcapBlockOwned::NG(block) => Ok(self.read_block(&block)),
        }
    }

    fn read_block(&mut self, block: &Block<'_>) -> Option<Packet> {
        match block {
            Block::SectionHeader(section) => {
                self.all.clear();
                self.is_big_endian = section.big_endian();
                None
            }
            Block::InterfaceDescription(description) => {
                // pcap-parser reads the offset as little-endian always.
                let offset_s = match self.is_big_endian {
                    true => description.if_tsoffset.swap_bytes(),
                    false => description.if_tsoffset,
                };
                self.all.push(Interface {
                    link: Link::from_number(description.linktype.0),
                    snap_len: description.snaplen,
                    clock: Clock {
                        units_per_s: units_per_s(description.if_tsresol),
                        offset_s,
                    },
                });
                None
            }
            Block::EnhancedPacket(packet) => {
                let Some(interface) = self.all.get(packet.if_id as usize) else {
                    return Some(self.packet_of_unknown_interface());
                };
                let units = u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low);
                let (at_ns, link) = (interface.clock.ns(units), interface.link);
                Some(self.packet(at_ns, link, packet.packet_data(), packet.origlen))
            }
            Block::SimplePacket(packet) => {
                let Some(interface) = self.all.first() else {
                    return Some(self.packet_of_unknown_interface());
                };
                // The block does not say how much was captured: the data are padded to four bytes.
                let data = packet.packet_data();
                let captured = match interface.snap_len {
                    0 => data.len(),
                    snap_len => data.len().min(snap_len as usize),
                };
                let link = interface.link;
                Some(self.packet(self.at_ns, link, &data[..captured], packet.origlen))
            }
            _ => None,
        }
    }

    fn packet(&mut self, at_ns: u64, link: Option<Link>, data: &[u8], wire_len: u32) -> Packet {
        self.at_ns = at_ns;
        let frame = link.map_or(Frame::Other, |link| parse(link, data, wire_len));
        Packet { at_ns, frame }
    }

    fn packet_of_unknown_interface(&self) -> Packet {
        Packet {
            at_ns: self.at_ns,
            frame: Frame::Malformed,
        }
    }
}

/// Of the option if_tsresol: a power of ten, or with the upper bit of two. What does not fit counts as µs.
fn units_per_s(resolution: u8) -> u64 {
    let exponent = u32::from(resolution & 0x7f);
    let units = match resolution & 0x80 {
        0 => 10_u64.checked_pow(exponent),
        _ => 1_u64.checked_shl(exponent),
    };
    units.unwrap_or(1_000_000)
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

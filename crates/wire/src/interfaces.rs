//! From blocks to packets: the interfaces of a capture, their links and clocks.

use pcap_parser::traits::PcapNGPacketBlock;
use pcap_parser::{Block, PcapBlockOwned};

use crate::copies::{Copies, Place};
use crate::frame::{Frame, read};
use crate::link::Link;
use crate::packet::{Error, Packet};

const NS_PER_S: u64 = 1_000_000_000;

/// The types of pcapng's blocks that weir reads.
pub(crate) mod block_type {
    pub const SECTION_HEADER: u32 = 0x0a0d_0d0a;
    pub const INTERFACE_DESCRIPTION: u32 = 1;
    /// What came before the enhanced packet block. Old captures have it.
    pub const PACKET: u32 = 2;
    pub const SIMPLE_PACKET: u32 = 3;
    pub const ENHANCED_PACKET: u32 = 6;
}

/// Of blocks that hold no packet: names, statistics, journal entries, secrets, what a program keeps there for itself, and
/// processes.
const WITHOUT_PACKETS: [u32; 7] = [4, 5, 9, 10, 0x0bad, 0x4000_0bad, 0x8000_0001];
/// In a block of type [`block_type::PACKET`], before the bytes of the packet.
const PACKET_BLOCK_HEAD_BYTES: usize = 20;

/// What is known of the interfaces of a capture. pcap has one.
#[derive(Default)]
pub(crate) struct Interfaces {
    all: Vec<Interface>,
    is_big_endian: bool,
    /// Of the last packet. pcapng's simple packets have none.
    at_ns: u64,
    copies: Copies,
    /// The number of the first link that had packets and is not read.
    unread_link: Option<i32>,
    /// The type of the first block that weir does not know.
    unknown_block: Option<u32>,
}

/// An interface.
#[derive(Clone, Copy)]
struct Interface {
    /// Its number among those of its section.
    id: u32,
    /// LINKTYPE.
    link: i32,
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
    /// The number of the first link that had packets and is not read.
    pub fn unread_link(&self) -> Option<i32> {
        self.unread_link
    }

    /// The type of the first block that weir does not know.
    pub fn unknown_block(&self) -> Option<u32> {
        self.unknown_block
    }

    /// Type and length of the block that begins here.
    pub fn block_head(&self, data: &[u8]) -> Option<(u32, u32)> {
        Some((self.word(data, 0)?, self.word(data, 4)?))
    }

    /// Notes a block that is passed over. Types of blocks that hold no packet are those that pcap-parser knows.
    pub fn pass_over(&mut self, kind: u32) -> Option<Packet> {
        if WITHOUT_PACKETS.contains(&kind) {
            return None;
        }
        self.unknown_block.get_or_insert(kind);
        Some(Packet {
            at_ns: self.at_ns,
            frame: Frame::UnknownBlock,
        })
    }

    /// The packet of a block, if it has one.
    pub fn read(&mut self, block: PcapBlockOwned<'_>) -> Result<Option<Packet>, Error> {
        match block {
            PcapBlockOwned::LegacyHeader(header) => {
                let link = header.network.0;
                if Link::from_number(link).is_none() {
                    return Err(Error::LinkType(link));
                }
                let units_per_s = match header.is_nanosecond_precision() {
                    true => NS_PER_S,
                    false => 1_000_000,
                };
                self.all.push(Interface {
                    id: 0,
                    link,
                    snap_len: header.snaplen,
                    clock: Clock {
                        units_per_s,
                        offset_s: 0,
                    },
                });
                Ok(None)
            }
            PcapBlockOwned::Legacy(packet) => {
                let Some(&interface) = self.all.first() else {
                    return Ok(None);
                };
                let per_s = interface.clock.units_per_s;
                let units = u64::from(packet.ts_sec) * per_s + u64::from(packet.ts_usec);
                let at_ns = interface.clock.ns(units);
                Ok(Some(self.packet(
                    at_ns,
                    interface,
                    packet.data,
                    packet.origlen,
                )))
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
                    id: self.all.len() as u32,
                    link: description.linktype.0,
                    snap_len: description.snaplen,
                    clock: Clock {
                        units_per_s: units_per_s(description.if_tsresol),
                        offset_s,
                    },
                });
                None
            }
            Block::EnhancedPacket(packet) => {
                let Some(&interface) = self.all.get(packet.if_id as usize) else {
                    return Some(self.packet_of_unknown_interface());
                };
                let units = u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low);
                let at_ns = interface.clock.ns(units);
                Some(self.packet(at_ns, interface, packet.packet_data(), packet.origlen))
            }
            Block::SimplePacket(packet) => {
                let Some(&interface) = self.all.first() else {
                    return Some(self.packet_of_unknown_interface());
                };
                // The block does not say how much was captured: the data are padded to four bytes.
                let data = packet.packet_data();
                let captured = match interface.snap_len {
                    0 => data.len(),
                    snap_len => data.len().min(snap_len as usize),
                };
                Some(self.packet(self.at_ns, interface, &data[..captured], packet.origlen))
            }
            Block::Unknown(block) => {
                // pcap-parser reads these types as little-endian always.
                let kind = match self.is_big_endian {
                    true => block.block_type.swap_bytes(),
                    false => block.block_type,
                };
                match kind {
                    block_type::PACKET => Some(self.read_packet_block(block.data)),
                    _ => self.pass_over(kind),
                }
            }
            _ => None,
        }
    }

    /// A block of type [`block_type::PACKET`]: interface and drops, 2 bytes each; time, captured and whole length.
    fn read_packet_block(&mut self, body: &[u8]) -> Packet {
        let interface = self.short(body, 0);
        let interface = interface.and_then(|id| self.all.get(usize::from(id)).copied());
        let words = [4, 8, 12, 16].map(|at| self.word(body, at));
        let (Some(interface), [Some(high), Some(low), Some(captured), Some(wire_len)]) =
            (interface, words)
        else {
            return self.packet_of_unknown_interface();
        };
        let Some(data) = body[PACKET_BLOCK_HEAD_BYTES..].get(..captured as usize) else {
            return self.packet_of_unknown_interface();
        };
        let at_ns = interface.clock.ns(u64::from(high) << 32 | u64::from(low));
        self.packet(at_ns, interface, data, wire_len)
    }

    fn short(&self, bytes: &[u8], at: usize) -> Option<u16> {
        let bytes = bytes.get(at..at + 2)?.try_into().ok()?;
        Some(match self.is_big_endian {
            true => u16::from_be_bytes(bytes),
            false => u16::from_le_bytes(bytes),
        })
    }

    fn word(&self, bytes: &[u8], at: usize) -> Option<u32> {
        let bytes = bytes.get(at..at + 4)?.try_into().ok()?;
        Some(match self.is_big_endian {
            true => u32::from_be_bytes(bytes),
            false => u32::from_le_bytes(bytes),
        })
    }

    fn packet(&mut self, at_ns: u64, interface: Interface, data: &[u8], wire_len: u32) -> Packet {
        self.at_ns = at_ns;
        let frame = match Link::from_number(interface.link) {
            Some(link) => self.frame(at_ns, interface.id, link, data, wire_len),
            None => {
                self.unread_link.get_or_insert(interface.link);
                Frame::UnknownLink
            }
        };
        Packet { at_ns, frame }
    }

    fn frame(&mut self, at_ns: u64, id: u32, link: Link, data: &[u8], wire_len: u32) -> Frame {
        let (segment, header) = match read(link, data, wire_len) {
            Ok(read) => read,
            Err(other) => return other,
        };
        let place = Place {
            interface: id,
            of_frame: link.way(data),
            hops: header.hops,
        };
        match self.copies.is_copy(at_ns, place, &segment, &header) {
            true => Frame::Copy,
            false => Frame::Tcp(segment),
        }
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

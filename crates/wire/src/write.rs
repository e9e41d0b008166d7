//! Writes captures.

use std::io::{self, Write};

/// Of pcap with times in nanoseconds; LINKTYPE_ETHERNET.
const MAGIC_NS: u32 = 0xa1b2_3c4d;
const LINKTYPE_ETHERNET: u32 = 1;
const NS_PER_S: u64 = 1_000_000_000;

/// Writes Ethernet frames as pcap, with times in nanoseconds.
#[derive(Debug)]
pub struct Writer<W: Write> {
    out: W,
    snap_len: usize,
}

impl<W: Write> Writer<W> {
    /// Begins a capture that keeps `snap_len` bytes of each frame at most.
    ///
    /// # Errors
    /// `out` cannot be written.
    pub fn new(mut out: W, snap_len: u32) -> io::Result<Writer<W>> {
        out.write_all(&MAGIC_NS.to_le_bytes())?;
        // Version 2.4; time zone and accuracy, which are always 0.
        out.write_all(&[2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0])?;
        out.write_all(&snap_len.to_le_bytes())?;
        out.write_all(&LINKTYPE_ETHERNET.to_le_bytes())?;
        let snap_len = snap_len as usize;
        Ok(Writer { out, snap_len })
    }

    /// Adds a frame that was seen `at_ns` nanoseconds after 1970.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn frame(&mut self, at_ns: u64, frame: &[u8]) -> io::Result<()> {
        self.part(
            at_ns,
            &frame[..frame.len().min(self.snap_len)],
            frame.len() as u32,
        )
    }

    /// Adds the first bytes of a frame of `wire_len` bytes.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn part(&mut self, at_ns: u64, bytes: &[u8], wire_len: u32) -> io::Result<()> {
        let words = [
            (at_ns / NS_PER_S) as u32,
            (at_ns % NS_PER_S) as u32,
            bytes.len() as u32,
            wire_len,
        ];
        for word in words {
            self.out.write_all(&word.to_le_bytes())?;
        }
        self.out.write_all(bytes)
    }

    /// What it has been written to.
    pub fn into_inner(self) -> W {
        self.out
    }
}

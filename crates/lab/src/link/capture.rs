//! Captures of what comes to the two queues of an emulated link, as `tcpdump` makes them right before each queue.
//!
//! There every packet is seen before the link can lose it, so that whatever is sent again shows as a retransmission.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::libc;
use nix::net::if_::if_nametoindex;
use weir_wire::Writer;

use super::{DEVICE, Emulated};
use crate::error::{Context, Result};
use crate::netns::Netns;
use crate::tap::Tap;

/// Room for what comes between two looks.
const QUEUE_BYTES: usize = 64 << 20;
/// Between two looks.
const LOOK: Duration = Duration::from_millis(10);
/// The device has packets and no frames: each gets the head of a frame between no stations.
const HEAD_BYTES: usize = 14;
const ETHERTYPE_V4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_V6: [u8; 2] = [0x86, 0xdd];
/// As much of a frame as the capture keeps: more than all headers have.
const SNAP_BYTES: u32 = 256;

/// What has come to one queue.
#[derive(Debug)]
pub struct Captured {
    /// Packets.
    pub packets: u64,
    /// A pcap file with their headers, as Ethernet frames.
    pub pcap: Vec<u8>,
}

/// A capture at work; it ends when this is dropped.
#[derive(Debug)]
pub struct Capture {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<[Captured; 2]>>>,
}

impl Capture {
    /// Captures from now on. What has come before is not in it.
    ///
    /// # Errors
    /// The devices cannot be watched: no root.
    pub fn start(link: &Emulated) -> Result<Capture> {
        let queues = [Queue::watch(&link.far)?, Queue::watch(&link.near)?];
        let ended = Arc::new(AtomicBool::new(false));
        let of_thread = Arc::clone(&ended);
        let thread = std::thread::spawn(move || watch(queues, &of_thread));
        Ok(Capture {
            ended,
            thread: Some(thread),
        })
    }

    /// Ends it, and gives what has come to the downlink and to the uplink. The link may be gone by then.
    ///
    /// # Errors
    /// The kernel has handed over no more packets.
    pub fn stop(mut self) -> Result<[Captured; 2]> {
        self.ended.store(true, Ordering::Relaxed);
        let thread = self.thread.take().expect("stopped once");
        match thread.join() {
            Ok(captured) => captured,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// What goes out by the device of one side.
struct Queue {
    tap: Tap,
    device: u32,
    writer: Writer<Vec<u8>>,
    packets: u64,
}

fn watch(mut queues: [Queue; 2], ended: &AtomicBool) -> Result<[Captured; 2]> {
    loop {
        let is_last = ended.load(Ordering::Relaxed);
        for queue in &mut queues {
            queue.take()?;
        }
        if is_last {
            return Ok(queues.map(Queue::end));
        }
        std::thread::sleep(LOOK);
    }
}

impl Queue {
    fn watch(side: &Netns) -> Result<Queue> {
        let what = "cannot watch the device of a link";
        side.run(|| {
            Ok(Queue {
                tap: Tap::open(QUEUE_BYTES)?,
                device: if_nametoindex(DEVICE).context(what)?,
                writer: Writer::new(Vec::new(), SNAP_BYTES).context(what)?,
                packets: 0,
            })
        })
    }

    fn take(&mut self) -> Result<()> {
        let Queue {
            tap,
            device,
            writer,
            packets,
        } = self;
        let mut written = Ok(());
        tap.take(|headers, address, at| {
            let goes = address.pkttype() == libc::PACKET_OUTGOING;
            if !goes || address.ifindex() as u32 != *device {
                return;
            }
            *packets += 1;
            let (frame, length) = framed(headers);
            let result = writer.part(at.as_nanos() as u64, &frame, length);
            written = std::mem::replace(&mut written, Ok(())).and(result);
        })?;
        written.context("cannot keep a packet")
    }

    fn end(self) -> Captured {
        Captured {
            packets: self.packets,
            pcap: self.writer.into_inner(),
        }
    }
}

/// An Ethernet frame with the first bytes of an IP packet, and the length that the whole frame has, bytes.
fn framed(packet: &[u8]) -> (Vec<u8>, u32) {
    let word = |at: usize| match packet.get(at..at + 2) {
        Some(bytes) => usize::from(u16::from_be_bytes([bytes[0], bytes[1]])),
        None => 0,
    };
    /// Of IPv6, which its length leaves out.
    const HEADER_V6_BYTES: usize = 40;
    let (ethertype, length) = match packet.first().map(|byte| byte >> 4) {
        Some(6) => (ETHERTYPE_V6, HEADER_V6_BYTES + word(4)),
        _ => (ETHERTYPE_V4, word(2)),
    };
    let mut frame = vec![0; HEAD_BYTES];
    frame[HEAD_BYTES - 2..].copy_from_slice(&ethertype);
    frame.extend_from_slice(packet);
    (frame, (HEAD_BYTES + length.max(packet.len())) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_wire::{Frame, Link, Segment, compose, flag, parse};

    fn segment(from: &str, to: &str) -> Segment {
        let end = |address: &str, port| weir_wire::Endpoint {
            address: address.parse().unwrap(),
            port,
        };
        Segment {
            source: end(from, 1000),
            destination: end(to, 80),
            seq: 7,
            ack: 9,
            flags: flag::ACK,
            window: 500,
            payload: 1400,
        }
    }

    #[test]
    fn the_trace_analysis_reads_a_cut_packet_of_the_device_whole() {
        for (from, to) in [
            ("::ffff:10.64.0.1", "::ffff:10.128.0.1"),
            ("fd64::1", "fd80::1"),
        ] {
            let segment = segment(from, to);
            let whole = compose(&segment);
            let (frame, length) = framed(&whole[HEAD_BYTES..HEAD_BYTES + 120]);
            assert_eq!(length as usize, whole.len());
            let read = parse(Link::Ethernet, &frame, length);
            assert_eq!(read, Frame::Tcp(segment));
        }
    }
}

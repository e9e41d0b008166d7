//! What one end of a connection has to send: heads and stretches of the pattern, in order.

use std::collections::VecDeque;

use super::pattern::Pattern;

enum Part {
    Text { bytes: Vec<u8>, sent: usize },
    Stretch { stream: u64, from: u64, left: u64 },
}

/// Bytes that are still to be sent.
#[derive(Default)]
pub struct Outgoing {
    parts: VecDeque<Part>,
    sent: u64,
    planned: u64,
    finished: bool,
}

impl Outgoing {
    /// Adds a head or framing.
    pub fn push(&mut self, text: impl Into<Vec<u8>>) {
        let bytes = text.into();
        self.planned += bytes.len() as u64;
        self.parts.push_back(Part::Text { bytes, sent: 0 });
    }

    /// Adds a stretch of a stream.
    pub fn push_pattern(&mut self, stream: u64, from: u64, length: u64) {
        self.planned += length;
        self.parts.push_back(Part::Stretch {
            stream,
            from,
            left: length,
        });
    }

    /// Nothing will be added.
    pub fn finish(&mut self) {
        self.finished = true;
    }

    /// What was not sent yet is not sent any more.
    pub fn abandon(&mut self) {
        self.parts.clear();
        self.planned = self.sent;
        self.finished = true;
    }

    /// Bytes sent.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Bytes sent and to be sent so far.
    pub fn planned(&self) -> u64 {
        self.planned
    }

    /// Nothing is to be sent now.
    pub fn is_flushed(&self) -> bool {
        self.sent == self.planned
    }

    /// All has been sent.
    pub fn is_over(&self) -> bool {
        self.finished && self.is_flushed()
    }

    /// Fills the buffer with what comes next, without sending it; returns how much that is.
    pub fn preview(&self, pattern: &Pattern, buffer: &mut [u8]) -> usize {
        let mut filled = 0;
        for part in &self.parts {
            let room = &mut buffer[filled..];
            filled += match part {
                Part::Text { bytes, sent } => copy(&bytes[*sent..], room),
                Part::Stretch { stream, from, left } => {
                    stretch(pattern, *stream, *from, *left, room)
                }
            };
            if filled == buffer.len() {
                break;
            }
        }
        filled
    }

    /// So many bytes have been sent.
    pub fn advance(&mut self, bytes: usize) {
        self.sent += bytes as u64;
        let mut bytes = bytes as u64;
        while let Some(part) = self.parts.front_mut() {
            let left = match part {
                Part::Text { bytes: text, sent } => {
                    let step = bytes.min((text.len() - *sent) as u64);
                    *sent += step as usize;
                    bytes -= step;
                    (text.len() - *sent) as u64
                }
                Part::Stretch { from, left, .. } => {
                    let step = bytes.min(*left);
                    *from += step;
                    *left -= step;
                    bytes -= step;
                    *left
                }
            };
            if left > 0 {
                return;
            }
            self.parts.pop_front();
        }
    }
}

fn copy(bytes: &[u8], room: &mut [u8]) -> usize {
    let length = bytes.len().min(room.len());
    room[..length].copy_from_slice(&bytes[..length]);
    length
}

fn stretch(pattern: &Pattern, stream: u64, from: u64, left: u64, room: &mut [u8]) -> usize {
    let length = room.len().min(usize::try_from(left).unwrap_or(usize::MAX));
    let mut filled = 0;
    while filled < length {
        let bytes = pattern.at(stream, from + filled as u64);
        filled += copy(bytes, &mut room[filled..length]);
    }
    filled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_in_pieces_is_what_was_planned() {
        let pattern = Pattern::new(1);
        let mut outgoing = Outgoing::default();
        outgoing.push("head");
        outgoing.push_pattern(9, 5, 1000);
        outgoing.push("");
        outgoing.push("tail");
        outgoing.finish();
        let mut all = Vec::new();
        let mut piece = 1;
        while !outgoing.is_over() {
            let mut buffer = vec![0; piece];
            let filled = outgoing.preview(&pattern, &mut buffer);
            outgoing.advance(filled);
            all.extend_from_slice(&buffer[..filled]);
            piece += 1;
        }
        assert_eq!(all.len(), 1008);
        assert!(all.starts_with(b"head") && all.ends_with(b"tail"));
        assert_eq!(pattern.first_difference(9, 5, &all[4..1004]), None);
    }
}

//! What one end of a connection says: heads and stretches of the pattern, in order.

use std::collections::VecDeque;

use super::pattern::Pattern;

enum Part {
    Text { bytes: Vec<u8>, said: usize },
    Stretch { stream: u64, from: u64, left: u64 },
}

/// Bytes that are still to be said.
#[derive(Default)]
pub struct Speech {
    parts: VecDeque<Part>,
    said: u64,
    planned: u64,
    finished: bool,
}

impl Speech {
    /// Adds a head or framing.
    pub fn say(&mut self, text: impl Into<Vec<u8>>) {
        let bytes = text.into();
        self.planned += bytes.len() as u64;
        self.parts.push_back(Part::Text { bytes, said: 0 });
    }

    /// Adds a stretch of a stream.
    pub fn say_pattern(&mut self, stream: u64, from: u64, length: u64) {
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

    /// What was not said yet is not said any more.
    pub fn abandon(&mut self) {
        self.parts.clear();
        self.planned = self.said;
        self.finished = true;
    }

    /// Bytes said.
    pub fn said(&self) -> u64 {
        self.said
    }

    /// Bytes said and to be said so far.
    pub fn planned(&self) -> u64 {
        self.planned
    }

    /// Nothing is to be said now.
    pub fn is_silent(&self) -> bool {
        self.said == self.planned
    }

    /// All has been said.
    pub fn is_over(&self) -> bool {
        self.finished && self.is_silent()
    }

    /// Fills the buffer with what comes next, without saying it; says how much that is.
    pub fn preview(&self, pattern: &Pattern, buffer: &mut [u8]) -> usize {
        let mut filled = 0;
        for part in &self.parts {
            let room = &mut buffer[filled..];
            filled += match part {
                Part::Text { bytes, said } => copy(&bytes[*said..], room),
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

    /// So many bytes have been said.
    pub fn advance(&mut self, bytes: usize) {
        self.said += bytes as u64;
        let mut bytes = bytes as u64;
        while let Some(part) = self.parts.front_mut() {
            let left = match part {
                Part::Text { bytes: text, said } => {
                    let step = bytes.min((text.len() - *said) as u64);
                    *said += step as usize;
                    bytes -= step;
                    (text.len() - *said) as u64
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
        let mut speech = Speech::default();
        speech.say("head");
        speech.say_pattern(9, 5, 1000);
        speech.say("");
        speech.say("tail");
        speech.finish();
        let mut all = Vec::new();
        let mut piece = 1;
        while !speech.is_over() {
            let mut buffer = vec![0; piece];
            let filled = speech.preview(&pattern, &mut buffer);
            speech.advance(filled);
            all.extend_from_slice(&buffer[..filled]);
            piece += 1;
        }
        assert_eq!(all.len(), 1008);
        assert!(all.starts_with(b"head") && all.ends_with(b"tail"));
        assert_eq!(pattern.first_difference(9, 5, &all[4..1004]), None);
    }
}

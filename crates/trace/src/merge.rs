//! Several captures as one, in the order of time.

use weir_wire::{Capture, Error, Packet};

/// A capture and its name.
pub struct Source {
    /// How the user calls it.
    pub name: String,
    /// Its packets.
    pub capture: Capture,
}

/// A capture that could not be read to its end.
#[derive(Debug)]
pub struct Broken {
    /// How the user calls it.
    pub name: String,
    /// Why.
    pub error: Error,
}

/// The packets of all sources: of the next packets of all, the earliest comes first. Captures of two directions are put
/// together so, and pieces of one capture are put one behind the other.
#[derive(Default)]
pub struct Merge {
    /// With the next packet of each.
    sources: Vec<(Packet, Source)>,
    broken: Vec<Broken>,
}

impl Merge {
    /// Of these sources.
    pub fn new(sources: Vec<Source>) -> Merge {
        let mut merge = Merge::default();
        for mut source in sources {
            if let Some(packet) = merge.next_of(&mut source) {
                merge.sources.push((packet, source));
            }
        }
        merge
    }

    /// The next packet of one source; a source that breaks is noted.
    fn next_of(&mut self, source: &mut Source) -> Option<Packet> {
        source.capture.next_packet().unwrap_or_else(|error| {
            let name = source.name.clone();
            self.broken.push(Broken { name, error });
            None
        })
    }

    /// Sources that could not be read to their ends, so far.
    pub fn broken(self) -> Vec<Broken> {
        self.broken
    }
}

impl Iterator for Merge {
    type Item = Packet;

    fn next(&mut self) -> Option<Packet> {
        let earliest = (0..self.sources.len()).min_by_key(|&at| self.sources[at].0.at_ns)?;
        let Merge { sources, broken } = self;
        let (packet, source) = &mut sources[earliest];
        let found = *packet;
        match source.capture.next_packet() {
            Ok(Some(next)) => *packet = next,
            ended => {
                let (_, source) = sources.remove(earliest);
                if let Err(error) = ended {
                    let name = source.name;
                    broken.push(Broken { name, error });
                }
            }
        }
        Some(found)
    }
}

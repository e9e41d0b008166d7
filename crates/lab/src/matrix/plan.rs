//! What is to happen on a connection, all of it from the seed and the connection's number.

use fastrand::Rng;

/// How an end leaves before it is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leave {
    /// With a RST (SO_LINGER of 0).
    Reset,
    /// With close(2), whatever is still to come: the kernel sends a FIN, and a RST to what arrives.
    Close,
}

/// When an end leaves before it is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// After so many bytes sent.
    Sent(u64, Leave),
    /// After so many bytes received.
    Received(u64, Leave),
}

/// How bytes are written or read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Bytes of one call at most; each call has a random length up to it.
    pub piece: usize,
    /// One call of so many is followed by a pause; 0: none is.
    pub pause_every: u32,
    /// Longest pause, in ms.
    pub pause_ms: u64,
}

/// When an end begins to send its part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// At once.
    AtOnce,
    /// After the other's end (half-closed then).
    AfterEnd,
}

/// One end of a tunnel.
#[derive(Debug, Clone, Copy)]
pub struct Part {
    /// Bytes to send.
    pub bytes: u64,
    /// When to begin.
    pub start: Start,
    /// How to behave.
    pub manner: Manner,
    /// When to leave before it is due.
    pub cut: Option<Cut>,
}

/// How one end treats its socket.
#[derive(Debug, Clone, Copy)]
pub struct Manner {
    /// Writes.
    pub sending: Pace,
    /// Reads.
    pub receiving: Pace,
    /// Socket buffers of a few segments: an origin's for sending, a client's both.
    pub narrow: bool,
}

/// A tunnel: both ends.
#[derive(Debug, Clone, Copy)]
pub struct Tunnel {
    /// Who connects.
    pub client: Part,
    /// Who is connected to.
    pub origin: Part,
    /// The client of a CONNECT sends before it has the reply.
    pub hasty: bool,
}

/// A generator for one connection of a run.
pub fn rng(seed: u64, id: u64) -> Rng {
    let mut rng = Rng::with_seed(seed);
    Rng::with_seed(rng.u64(..) ^ id.wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

/// Sizes at which buffers, pages, pipes and the engines' choices change.
const EDGES: [u64; 12] = [
    1,
    4096,
    8192,
    12 * 1024,
    16 * 1024,
    32 * 1024,
    64 * 1024,
    128 * 1024,
    256 * 1024,
    512 * 1024,
    1 << 20,
    65_483,
];

/// A size: often none or tiny, often at an edge, seldom megabytes.
pub fn size(rng: &mut Rng) -> u64 {
    match rng.u32(..100) {
        0..10 => 0,
        10..35 => rng.u64(1..300),
        35..60 => rng.u64(300..20_000),
        60..85 => edge(rng),
        85..99 => rng.u64(20_000..200_000),
        _ => rng.u64(200_000..4_000_000),
    }
}

fn edge(rng: &mut Rng) -> u64 {
    // The larger, the rarer: they take long.
    let largest = match rng.u32(..10) {
        0 => EDGES.len(),
        _ => 8,
    };
    EDGES[rng.usize(..largest)] + rng.u64(..3) - 1
}

/// How one end treats its socket, with about `bytes` to write or read.
pub fn manner(rng: &mut Rng, sends: u64, receives: u64) -> Manner {
    Manner {
        sending: pace(rng, sends),
        receiving: pace(rng, receives),
        narrow: rng.u32(..8) == 0,
    }
}

fn pace(rng: &mut Rng, bytes: u64) -> Pace {
    let bytes = bytes as usize;
    match rng.u32(..10) {
        0..5 => Pace {
            piece: 128 * 1024,
            pause_every: 0,
            pause_ms: 0,
        },
        5..7 => Pace {
            piece: (bytes / 20).max(1),
            pause_every: 0,
            pause_ms: 0,
        },
        7..9 => Pace {
            piece: (bytes / 8).max(1),
            pause_every: 4,
            pause_ms: 3,
        },
        _ => Pace {
            piece: (bytes / 4).max(1),
            pause_every: 2,
            pause_ms: 25,
        },
    }
}

fn leave(rng: &mut Rng) -> Leave {
    match rng.bool() {
        true => Leave::Reset,
        false => Leave::Close,
    }
}

/// One end of eight leaves early, at any byte that it sends or receives.
pub fn cut(rng: &mut Rng, sends: u64, receives: u64) -> Option<Cut> {
    match rng.u32(..16) {
        0 => Some(Cut::Sent(rng.u64(..=sends), leave(rng))),
        1 => Some(Cut::Received(rng.u64(..=receives), leave(rng))),
        _ => None,
    }
}

impl Tunnel {
    /// The tunnel of this number.
    pub fn new(seed: u64, id: u64) -> Tunnel {
        let mut rng = rng(seed, id);
        let (up, down) = (size(&mut rng), size(&mut rng));
        let (client_starts, origin_starts) = match rng.u32(..8) {
            0 => (Start::AfterEnd, Start::AtOnce),
            1 | 2 => (Start::AtOnce, Start::AfterEnd),
            _ => (Start::AtOnce, Start::AtOnce),
        };
        let mut part = |sends, receives, start| Part {
            bytes: sends,
            start,
            manner: manner(&mut rng, sends, receives),
            cut: cut(&mut rng, sends, receives),
        };
        Tunnel {
            client: part(up, down, client_starts),
            origin: part(down, up, origin_starts),
            hasty: rng.u32(..4) == 0,
        }
    }
}

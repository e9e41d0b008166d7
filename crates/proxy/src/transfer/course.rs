//! How much a transfer moves, and how far it has come: this decides what the next step is.

use std::cell::Cell;
use std::time::Duration;

use weir_core::proxy::Engine;

use super::choice::{LONG_STEP_BYTES, SHORT_STEP_BYTES, is_short_rest, is_spliced};
use crate::runtime::TcpStream;

/// A read at least this long is bulk: it pays to hold back its last, short segment for the next.
/// After a shorter one the sender may be pausing, and its bytes must not wait.
const BULK_BYTES: usize = 16 * 1024;

/// How much a transfer moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// So many bytes; what follows them stays in the sender's socket. A rest may stay there too, if
    /// [`is_short_rest`].
    Bytes(u64),
    /// All until the sender's end.
    UntilEnd,
}

/// Bytes that went by, counted as they go.
#[derive(Debug, Default)]
pub struct Moved {
    bytes: Cell<u64>,
    spliced: Cell<u64>,
    /// Of the message that is being moved those in steps that were not short, at most `LONG_MESSAGE_BYTES`. A message
    /// is what goes one way while nothing goes the other.
    message: Cell<u32>,
    /// Short steps and the ends of short messages, by their weight, since the last long message.
    short: Cell<u8>,
}

impl Moved {
    /// All of them.
    pub fn get(&self) -> u64 {
        self.bytes.get()
    }

    /// Those that splice(2) moved.
    pub fn spliced(&self) -> u64 {
        self.spliced.get()
    }

    /// Counts bytes that were copied.
    pub fn add(&self, bytes: u64) {
        self.bytes.set(self.bytes.get() + bytes);
    }

    fn add_step(&self, bytes: u64, course: &Course) {
        self.add(bytes);
        if course.spliced {
            self.spliced.set(self.spliced.get() + bytes);
        }
        if bytes < SHORT_STEP_BYTES {
            // There is a message, though none of it counts.
            self.message.set(self.message.get().max(1));
            return self.note_short(1);
        }
        let step = u32::try_from(bytes).unwrap_or(u32::MAX);
        let message = self.message.get().saturating_add(step);
        self.message.set(message.min(LONG_MESSAGE_BYTES));
        if message >= LONG_MESSAGE_BYTES {
            self.short.set(0);
        }
    }

    /// Something has gone the other way: what comes next is another message.
    fn end_message(&self) {
        if (1..LONG_MESSAGE_BYTES).contains(&self.message.replace(0)) {
            self.note_short(SHORT_MESSAGE);
        }
    }

    fn note_short(&self, weight: u8) {
        self.short.set(self.short.get().saturating_add(weight));
        if self.short.get() >= COPY_AFTER_SHORT {
            self.message.set(0);
        }
    }

    /// Whether the next step is to be spliced, if the last one was or was not.
    fn calls_for_splicing(&self, splices: bool) -> bool {
        let is_long = self.message.get() == LONG_MESSAGE_BYTES;
        is_long || splices && self.short.get() < COPY_AFTER_SHORT
    }
}

/// How a transfer is made.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// What moves the bytes.
    pub engine: Engine,
    /// Time without progress after which it fails.
    pub idle: Duration,
}

/// Where a transfer stands.
pub struct Course {
    pub(super) limit: Limit,
    pub(super) rules: Rules,
    pub(super) moved: u64,
    /// Whether the next step splices.
    pub(super) splices: bool,
    /// Whether the last one did: it may have found no room or no pipe for that.
    pub(super) spliced: bool,
    /// Whether the receiver's socket has been full.
    pub(super) slow: bool,
    /// Whether the last segment of this step waits for the next step's first bytes.
    pub(super) more: bool,
}

/// A message that is as long as a step for which splicing pays. Half a word: idle tunnels hold two of these.
const LONG_MESSAGE_BYTES: u32 = LONG_STEP_BYTES as u32;
/// What is spliced is copied again after so many short steps in a row. Long messages have some too, where the proxy is
/// faster than the sender.
const COPY_AFTER_SHORT: u8 = 6;
/// The end of a short message counts for so many: the second one in a row is enough.
const SHORT_MESSAGE: u8 = 4;

impl Course {
    pub(super) fn new(limit: Limit, rules: Rules) -> Course {
        let splices = match limit {
            Limit::Bytes(bytes) => is_spliced(rules.engine, bytes),
            Limit::UntilEnd => rules.engine == Engine::Splice,
        };
        Course {
            limit,
            rules,
            moved: 0,
            splices,
            spliced: false,
            slow: false,
            more: false,
        }
    }

    pub(super) fn left(&self) -> u64 {
        match self.limit {
            Limit::Bytes(bytes) => bytes - self.moved,
            Limit::UntilEnd => u64::MAX,
        }
    }

    /// Whether there is more to move. For a slow receiver also a short rest: the caller would hold it in memory.
    pub(super) fn goes_on(&self) -> bool {
        match self.slow {
            true => self.left() > 0,
            false => !is_short_rest(self.rules.engine, self.left()),
        }
    }

    /// Decides whether the last segment of a step waits for the next step's first bytes, as long as the sender allows.
    pub(super) fn hold_back(&mut self, step: usize) {
        let due = self.limit != Limit::UntilEnd && self.left() > step as u64;
        self.more = due && step >= BULK_BYTES;
    }

    pub(super) fn restart_idle_time(&self, stream: &TcpStream) {
        stream.handle().set_deadline(self.rules.idle);
    }

    /// Takes a step into account that went to `there`, and what it says of those that follow.
    pub(super) fn advance(&mut self, step: usize, there: &Moved, back: &Moved) {
        self.moved += step as u64;
        there.add_step(step as u64, self);
        back.end_message();
        let chooses = matches!(self.rules.engine, Engine::Auto | Engine::Sockmap);
        if chooses {
            self.splices = there.calls_for_splicing(self.splices);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which steps of a tunnel are spliced. A step of 0 bytes: something goes the other way.
    fn spliced(engine: Engine, steps: &[usize]) -> Vec<bool> {
        spliced_of(Limit::UntilEnd, engine, steps)
    }

    fn spliced_of(limit: Limit, engine: Engine, steps: &[usize]) -> Vec<bool> {
        let rules = Rules {
            engine,
            idle: Duration::from_secs(1),
        };
        let (there, back) = (Moved::default(), Moved::default());
        let mut course = Course::new(limit, rules);
        let mut spliced = Vec::new();
        for &step in steps {
            if step == 0 {
                there.end_message();
                continue;
            }
            spliced.push(course.splices);
            course.advance(step, &there, &back);
        }
        spliced
    }

    #[test]
    fn a_tunnel_is_spliced_once_a_message_was_long_however_it_was_cut() {
        let reply = [21_500, 21_500, 7_500, 0];
        let auto = spliced(Engine::Auto, &reply.repeat(3));
        assert_eq!(auto, [[false, false, true], [true; 3], [true; 3]].concat());
        assert_eq!(spliced(Engine::Auto, &[50_000, 0, 50_000]), [false, true]);
    }

    #[test]
    fn a_tunnel_of_short_messages_is_copied_and_one_between_long_ones_changes_nothing() {
        assert_eq!(spliced(Engine::Auto, &[33_000, 0].repeat(5)), [false; 5]);
        let one_between = [50_000, 0, 300, 0, 50_000, 0, 50_000];
        assert_eq!(
            spliced(Engine::Auto, &one_between),
            [false, true, true, true]
        );
        let two_between = [50_000, 0, 300, 0, 300, 0, 50_000];
        assert_eq!(
            spliced(Engine::Auto, &two_between),
            [false, true, true, false]
        );
    }

    #[test]
    fn a_long_stream_of_short_writes_is_copied() {
        assert_eq!(spliced(Engine::Auto, &[300; 100]), [false; 100]);
        assert_eq!(spliced(Engine::Auto, &[3_000; 100]), [false; 100]);
        let after_bulk = spliced(Engine::Auto, &[&[50_000; 3][..], &[300; 9]].concat());
        let expected = [&[false][..], &[true; 2], &[true; 6], &[false; 3]].concat();
        assert_eq!(after_bulk, expected);
    }

    #[test]
    fn a_long_body_is_spliced_until_it_comes_in_short_steps_and_again_when_it_does_not() {
        let steps = [
            &[3_000, 90_000, 3_000, 90_000][..],
            &[3_000; 7],
            &[64_000; 2],
        ]
        .concat();
        let of_body = spliced_of(Limit::Bytes(1 << 20), Engine::Auto, &steps);
        let expected = [&[true; 4][..], &[true; 6], &[false; 2], &[true]].concat();
        assert_eq!(of_body, expected);
        let of_short_body = spliced_of(Limit::Bytes(30_000), Engine::Auto, &[15_000, 15_000]);
        assert_eq!(of_short_body, [false; 2]);
    }

    #[test]
    fn an_engine_that_was_chosen_stays() {
        let steps = [20_000, 0, 300, 0, 300, 0, 300, 0, 20_000, 20_000];
        assert_eq!(spliced(Engine::Splice, &steps), [true; 6]);
        assert_eq!(spliced(Engine::Copy, &steps), [false; 6]);
    }
}

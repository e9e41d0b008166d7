//! What a connection's counters say of its requests: the model of bpf/lib/residence.h.

use weir_core::residence::ANSWER_CLASSES;

/// Answers of more segments say how fast the client reads, not how long the server thought.
pub const ANSWER_SEGMENTS: u32 = 16;

/// A request of more segments is an upload.
pub const UPLOAD_SEGMENTS: i32 = 16;

/// A connection, as the kernel has it (struct talk).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Talk {
    /// Tick at which data last came; wraps.
    pub received: u32,
    /// And went.
    pub sent: u32,
    /// Segments with data that came; wraps.
    pub segments_in: u32,
    /// And went.
    pub segments_out: u32,
    /// The next byte expected of the client.
    pub rcv_nxt: u32,
    /// First byte of the last segment that brought an acknowledgement.
    pub snd_wl1: u32,
    /// The next byte that the server writes.
    pub write_seq: u32,
    /// The first that is not acknowledged.
    pub snd_una: u32,
}

impl Talk {
    /// Whether the server owes the client an answer that it has not begun.
    pub fn is_outstanding(&self) -> bool {
        if self.segments_in == 0 {
            return false;
        }
        if self.segments_out == 0 {
            return true;
        }
        match self.received.wrapping_sub(self.sent) as i32 {
            0 => self.write_seq == self.snd_una && self.rcv_nxt != self.snd_wl1,
            later => later > 0,
        }
    }

    /// Whether an outstanding request, whose last segment came so long ago, has not come as a whole yet: an upload takes no
    /// place in the server before.
    pub fn is_arriving(&self, age_ticks: u32, second_ticks: u32) -> bool {
        let more = self.segments_in.wrapping_sub(self.segments_out) as i32;
        more >= UPLOAD_SEGMENTS && age_ticks < second_ticks / 4
    }

    /// Requests that were answered, at most: each takes a segment one way and one the other.
    pub fn turns(&self) -> u32 {
        self.segments_in.min(self.segments_out)
    }

    /// Whether its last answer was short, and is out.
    pub fn is_short_answer(&self) -> bool {
        self.segments_in > 0
            && (1..=ANSWER_SEGMENTS).contains(&self.segments_out)
            && self.sent.wrapping_sub(self.received) as i32 >= 0
    }
}

/// Later answers may be to what needs none.
pub const FIRST_TURNS: u32 = 4;

impl Talk {
    /// Whether the client has just had a short answer, one of the first on its connection.
    pub fn is_first_answer(&self) -> bool {
        self.is_short_answer() && self.turns() <= FIRST_TURNS && !self.is_outstanding()
    }
}

/// The class of an answer that took so many ticks.
pub fn answer_class(ticks: u32) -> usize {
    let class = (u64::from(ticks) + 1).ilog2() as usize;
    class.min(ANSWER_CLASSES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn talk(received: u32, sent: u32, segments: (u32, u32)) -> Talk {
        Talk {
            received,
            sent,
            segments_in: segments.0,
            segments_out: segments.1,
            rcv_nxt: 100,
            snd_wl1: 100,
            write_seq: 500,
            snd_una: 500,
        }
    }

    #[test]
    fn a_request_is_outstanding_until_its_answer_begins() {
        let rows = [
            ("nothing came", talk(5, 5, (0, 0)), false),
            ("a server that speaks first", talk(5, 5, (0, 1)), false),
            ("a request at once", talk(5, 5, (1, 0)), true),
            ("a request later", talk(9, 5, (2, 1)), true),
            ("an answer", talk(9, 12, (2, 2)), false),
            ("after the tick went round", talk(2, u32::MAX, (2, 1)), true),
            ("acknowledged in the tick", talk(9, 9, (2, 2)), false),
        ];
        for (what, talk, outstanding) in rows {
            assert_eq!(talk.is_outstanding(), outstanding, "{what}");
        }
        let again = Talk {
            snd_wl1: 60,
            ..talk(9, 9, (3, 2))
        };
        assert!(again.is_outstanding(), "the next request, in the same tick");
        let under_way = Talk {
            snd_una: 400,
            ..again
        };
        assert!(!under_way.is_outstanding(), "the answer is under way");
    }

    #[test]
    fn an_upload_is_no_request_before_it_has_come() {
        let talk = talk(9, 5, (40, 1));
        assert!(talk.is_outstanding());
        assert!(talk.is_arriving(10, 250));
        assert!(
            !talk.is_arriving(70, 250),
            "for a quarter of a second nothing came"
        );
        let short = Talk {
            segments_in: 3,
            ..talk
        };
        assert!(!short.is_arriving(0, 250));
    }

    #[test]
    fn answers_are_classed_by_powers_of_two() {
        let classes = [
            (0, 0),
            (1, 1),
            (2, 1),
            (3, 2),
            (6, 2),
            (7, 3),
            (u32::MAX, 19),
        ];
        for (ticks, class) in classes {
            assert_eq!(answer_class(ticks), class, "{ticks}");
        }
    }
}

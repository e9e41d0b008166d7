//! Whether the handshakes under way stall, as a SYN flood's do: the model of `struct stall_state` in
//! bpf/lib/admit.h.
//!
//! Handshakes of clients end within a round trip, those of spoofed SYNs never. They stall while they hold half of the
//! places and fewer than a quarter of them end in [`STALL_NS`].

use crate::admit::{QueueSpace, QueueView};

/// Least time that one look spans, ns. Handshakes on a local network end in less; before it has passed, a flood
/// cannot be told from a burst.
pub const STALL_NS: u64 = 1_000_000;

/// What is known about the handshakes under way of one listening socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stall {
    /// The running look began, ns; 0: handshakes hold less than half of the places.
    pub since_ns: u64,
    /// Handshakes that had ended then, ever; wraps.
    pub ended: u32,
    /// In the look before hardly any ended.
    pub stalled: bool,
}

impl Stall {
    /// One look, at a SYN while handshakes hold half of the places or did. `ended`: handshakes that have ended, ever;
    /// wraps. After a silence the look has been longer: what stands still is stuck.
    pub fn look(&mut self, now: u64, q: &QueueView, ended: u32, space: &QueueSpace) {
        if !space.half_reserved(q) {
            (self.since_ns, self.stalled) = (0, false);
            return;
        }
        // Signed: a CPU that was kept from running may come with a time before the last look.
        if self.since_ns != 0 && (now.wrapping_sub(self.since_ns) as i64) < STALL_NS as i64 {
            return;
        }
        if self.since_ns != 0 {
            let quarter = (q.half_open.wrapping_add(q.claims) / 4).max(1);
            self.stalled = (ended.wrapping_sub(self.ended) as i32) < quarter as i32;
        }
        (self.since_ns, self.ended) = (now, ended);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_core::listener::{Admit, Establish, RejectSyn};

    const SPACE: QueueSpace = QueueSpace {
        establish: Establish::Reserv,
        reject_syn: RejectSyn::Rst,
        admit: Admit::Wait,
        overbook_1024: 0,
        draining: false,
    };

    fn queue(length: u32, half_open: u32) -> QueueView {
        QueueView {
            length,
            limit: 512,
            half_open,
            young: half_open,
            ..QueueView::default()
        }
    }

    #[test]
    fn a_look_with_a_time_before_the_last_one_finds_no_stall() {
        let mut stall = Stall::default();
        stall.look(2 * STALL_NS, &queue(0, 300), 10, &SPACE);
        stall.look(2 * STALL_NS - 1, &queue(0, 300), 10, &SPACE);
        assert!(!stall.stalled);
    }

    /// SYNs of which a share is of clients that answer after `round_trip_us`, one SYN every `gap_us`. How long after
    /// the places were full the handshakes stalled, us; None: in `us` they did not, or the places were never full.
    fn stalls_after(gap_us: u64, one_client_in: u64, round_trip_us: u64, us: u64) -> Option<u64> {
        let mut stall = Stall::default();
        let (mut ended, mut under_way) = (0, Vec::new());
        let mut full = None;
        for (number, at) in (0..us).step_by(gap_us as usize).enumerate() {
            let before = under_way.len();
            under_way.retain(|end: &Option<u64>| end.is_none_or(|end| end > at));
            ended += (before - under_way.len()) as u32;
            stall.look(
                at * 1000 + 1,
                &queue(0, under_way.len() as u32),
                ended,
                &SPACE,
            );
            if under_way.len() < 512 {
                let answers = (number as u64).is_multiple_of(one_client_in);
                under_way.push(answers.then_some(at + round_trip_us));
            } else {
                full.get_or_insert(at);
            }
            if let (true, Some(full)) = (stall.stalled, full) {
                return Some(at - full);
            }
        }
        None
    }

    #[test]
    fn a_flood_is_known_by_the_time_it_has_filled_the_queue() {
        // 80 000 SYNs/s, of which 200/s or 20 000/s are of clients.
        assert_eq!(stalls_after(12, 400, 100, 100_000), Some(0));
        assert_eq!(stalls_after(12, 4, 100, 100_000), Some(0));
        // A million SYNs/s: the queue is full after half a millisecond, and the rest of one is uncertain.
        let uncertain = stalls_after(1, 5000, 100, 100_000).unwrap();
        assert!(uncertain <= STALL_NS / 1000, "{uncertain}");
    }

    #[test]
    fn clients_on_a_local_network_never_stall() {
        for round_trip_us in [50, 200, 800] {
            for gap_us in [1, 5, 20] {
                let stalled = stalls_after(gap_us, 1, round_trip_us, 100_000);
                assert_eq!(stalled, None, "{gap_us} {round_trip_us}");
            }
        }
    }

    #[test]
    fn far_clients_stall_only_where_they_fill_the_queue() {
        assert_eq!(stalls_after(250, 1, 100_000, 1_000_000), None);
        assert!(stalls_after(100, 1, 100_000, 1_000_000).is_some());
    }

    #[test]
    fn a_queue_that_empties_ends_it() {
        let mut stall = Stall::default();
        for now in [1, STALL_NS + 1] {
            stall.look(now, &queue(0, 512), 0, &SPACE);
        }
        assert!(stall.stalled);
        stall.look(STALL_NS + 2, &queue(0, 255), 257, &SPACE);
        assert_eq!(
            stall,
            Stall {
                ended: 0,
                ..Stall::default()
            }
        );
    }
}

//! Is there room for one more connection, and what follows if not? The model of
//! bpf/lib/admit.h.

use weir_core::listener::{Admit, Establish, Listener, RejectSyn};
use weir_core::verdict::Verdict;

/// A listening socket's queue as the guard sees it when it decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueView {
    /// Connections waiting for accept().
    pub length: u32,
    /// Backlog in force.
    pub limit: u32,
    /// Handshakes that the kernel counts.
    pub half_open: u32,
    /// Of those, the ones whose SYN/ACK was not retransmitted yet: under about 1 s old.
    pub young: u32,
    /// SYNs let in that the kernel does not count yet.
    pub claims: u32,
    /// Its handshakes stall ([`crate::stall::Stall`]).
    pub stalled: bool,
}

/// The part of a listener's policy that decides about room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueSpace {
    /// How connections are established.
    pub establish: Establish,
    /// What a SYN that cannot be served gets.
    pub reject_syn: RejectSyn,
    /// When the queue counts as having no room.
    pub admit: Admit,
    /// Places promised beyond the backlog, in 1/1024 of it.
    pub overbook_1024: u16,
    /// Being taken off: all are let in.
    pub draining: bool,
}

impl From<&Listener> for QueueSpace {
    fn from(l: &Listener) -> QueueSpace {
        QueueSpace {
            establish: l.establish,
            reject_syn: l.reject_syn,
            admit: l.admit,
            overbook_1024: l.overbook_1024(),
            draining: false,
        }
    }
}

impl QueueSpace {
    /// Places that may be promised: the backlog and its overbooking; `listen(fd, 0)` still holds one.
    pub fn places(&self, limit: u32) -> u32 {
        let all = u64::from(limit) + ((u64::from(limit) * u64::from(self.overbook_1024)) >> 10);
        (all as u32).max(1)
    }

    /// Whether waiting, half-open and claimed connections together leave a place, with so many more in the accept
    /// queue than the backlog. Overbooked or not, the kernel drops a SYN whose SYN queue is full (at most the backlog).
    fn place_with_more(&self, q: &QueueView, more: u32) -> bool {
        let pending = q.half_open.wrapping_add(q.claims);
        let limit = q.limit.max(1);
        q.length.wrapping_add(pending) < self.places(q.limit) + more
            && pending < limit
            && q.length < limit + more
    }

    /// SB06 Section III-B1, reserv: waiting, half-open and claimed connections together leave a
    /// place.
    pub fn place_free(&self, q: &QueueView) -> bool {
        self.place_with_more(q, 0)
    }

    fn half_of_places(&self, q: &QueueView) -> u32 {
        (self.places(q.limit) / 2).max(1)
    }

    /// As [`QueueSpace::place_free`], without the half-open connections that let their first SYN/ACK time
    /// out: in a flood of spoofed SYNs those hold every place and never come. While handshakes stall, the younger
    /// ones are not held against a client either, up to half of the places: the other half is for those that end
    /// after all.
    pub fn place_for_cookie(&self, q: &QueueView) -> bool {
        let taken = q.length.wrapping_add(q.claims);
        let past_stalled = q.stalled && taken < self.half_of_places(q);
        q.length < q.limit.max(1)
            && (taken.wrapping_add(q.young) < self.places(q.limit) || past_stalled)
    }

    /// The same before the SYN/ACK of the cookie: claims are handshakes too, and while these stall, or in a flood of such, they
    /// are not held against a client either. Its final ACK goes by [`QueueSpace::place_for_cookie`].
    pub fn place_for_later(&self, q: &QueueView, flooded: bool) -> bool {
        let past_stalled = (q.stalled || flooded) && q.length < self.half_of_places(q);
        self.place_for_cookie(q) || (past_stalled && q.length < q.limit)
    }

    /// Whether handshakes hold the half of the places that no-syn-drop, and reserv in a flood,
    /// reserve; the other half is for the final ACKs of cookies.
    pub fn half_reserved(&self, q: &QueueView) -> bool {
        q.half_open.wrapping_add(q.claims) >= self.half_of_places(q)
    }

    fn reserves(&self) -> bool {
        matches!(self.establish, Establish::Reserv | Establish::NoSynDrop)
    }

    /// The verdict on a new SYN. `waiting`: the standing wait is over the target. `cookies`: a
    /// cookie can be sent (kernel and listener allow it). `flooded`: half-open connections that never
    /// came, or claims of none, held the places within the last 10 s. Where weir can send no cookie the kernel does, once its SYN queue
    /// is full (`tcp_syncookies = 1`).
    pub fn syn_verdict(
        &self,
        q: &QueueView,
        waiting: bool,
        cookies: bool,
        flooded: bool,
    ) -> Verdict {
        let full = if self.reserves() {
            !self.place_free(q)
        } else {
            q.length > q.limit
        };
        let waiting = waiting && self.admit == Admit::Wait && self.establish != Establish::Default;
        let cookie_instead = cookies && (full || waiting || self.half_reserved(q));
        let flood_cookie = cookies
            && !waiting
            && (full || (flooded && self.half_reserved(q)))
            && self.place_for_later(q, flooded);
        match self.establish {
            _ if self.draining => Verdict::SynAdmitted,
            Establish::NoSynDrop if cookie_instead => Verdict::CookieSent,
            Establish::Reserv if flood_cookie => Verdict::CookieSentFlood,
            _ if !full && !waiting => Verdict::SynAdmitted,
            _ if self.reserves() && !cookies && !waiting && self.place_for_later(q, flooded) => {
                Verdict::SynLeftFlood
            }
            _ => self.refusal(full),
        }
    }

    /// The verdict on a SYN that takes the place of a TIME-WAIT socket ([`crate::packet::TimeWait::yields`]). No cookie
    /// can answer it: where others get one it is let in, as the kernel itself does past its limit of half-open
    /// connections (`tcp_conn_request()`), and its final ACK decides. Where the queue stands, or the kernel would drop it, it
    /// is dropped, and the client repeats it.
    pub fn time_wait_verdict(&self, q: &QueueView, waiting: bool, flooded: bool) -> Verdict {
        match self.syn_verdict(q, waiting, true, flooded) {
            Verdict::CookieSent | Verdict::CookieSentFlood if q.length > q.limit => {
                Verdict::SynDroppedFull
            }
            Verdict::CookieSent | Verdict::CookieSentFlood
                if waiting && self.admit == Admit::Wait =>
            {
                Verdict::SynDroppedWait
            }
            Verdict::CookieSent | Verdict::CookieSentFlood => Verdict::SynTimeWait,
            verdict => verdict,
        }
    }

    /// Whether there is a place for the SYN of a steady source ([`crate::steady`]). The kernel holds one connection more
    /// than the backlog (`sk_acceptq_is_full()`), and [`QueueSpace::place_free`] gives that place to nobody: it is
    /// theirs. `shared`: the queue is of several sockets, and the place of any one.
    pub fn steady_place(&self, q: &QueueView, shared: bool) -> bool {
        match self.reserves() {
            true => self.place_with_more(q, u32::from(!shared)),
            false => q.length <= q.limit,
        }
    }

    fn refusal(&self, full: bool) -> Verdict {
        match (self.reject_syn, full) {
            (RejectSyn::Rst, true) => Verdict::SynResetFull,
            (RejectSyn::Rst, false) => Verdict::SynResetWait,
            (RejectSyn::Drop, true) if !self.reserves() => Verdict::SynLeft,
            (RejectSyn::Drop, true) => Verdict::SynDroppedFull,
            (RejectSyn::Drop, false) => Verdict::SynDroppedWait,
        }
    }

    /// The verdict on the final ACK of a handshake that a cookie began.
    pub fn cookie_ack_verdict(&self, q: &QueueView, waiting: bool) -> Verdict {
        if self.draining {
            Verdict::CookieAccepted
        } else if !self.place_for_cookie(q) {
            Verdict::AckResetFull
        } else if waiting && self.admit == Admit::Wait {
            Verdict::AckResetWait
        } else {
            Verdict::CookieAccepted
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(establish: Establish) -> QueueSpace {
        let (reject_syn, admit) = (RejectSyn::Rst, Admit::Wait);
        QueueSpace {
            establish,
            reject_syn,
            admit,
            overbook_1024: 0,
            draining: false,
        }
    }

    fn queue(length: u32, half_open: u32, claims: u32) -> QueueView {
        QueueView {
            length,
            limit: 128,
            half_open,
            young: half_open,
            claims,
            stalled: false,
        }
    }

    #[test]
    fn reserv_promises_each_place_once() {
        let r = room(Establish::Reserv);
        assert_eq!(
            r.syn_verdict(&queue(100, 20, 7), false, true, false),
            Verdict::SynAdmitted
        );
        assert_eq!(
            r.syn_verdict(&queue(100, 20, 8), false, true, false),
            Verdict::SynResetFull
        );
        assert_eq!(
            r.syn_verdict(&queue(128, 0, 0), false, true, false),
            Verdict::SynResetFull
        );
    }

    #[test]
    fn overbooking_promises_more() {
        let r = QueueSpace {
            overbook_1024: 512,
            ..room(Establish::Reserv)
        };
        assert_eq!(
            r.syn_verdict(&queue(100, 91, 0), false, true, false),
            Verdict::SynAdmitted
        );
        assert_eq!(
            r.syn_verdict(&queue(100, 92, 0), false, true, false),
            Verdict::SynResetFull
        );
    }

    #[test]
    fn a_backlog_of_zero_holds_one() {
        let r = room(Establish::Reserv);
        let empty = QueueView::default();
        assert_eq!(
            r.syn_verdict(&empty, false, true, false),
            Verdict::SynAdmitted
        );
        let taken = QueueView { length: 1, ..empty };
        assert_eq!(
            r.syn_verdict(&taken, false, true, false),
            Verdict::SynResetFull
        );
    }

    #[test]
    fn old_half_open_connections_do_not_shut_the_door() {
        let r = room(Establish::Reserv);
        let flooded = QueueView {
            young: 3,
            ..queue(0, 128, 0)
        };
        assert_eq!(
            r.syn_verdict(&flooded, false, true, false),
            Verdict::CookieSentFlood
        );
        assert_eq!(
            r.syn_verdict(&flooded, false, false, false),
            Verdict::SynLeftFlood
        );
        assert_eq!(
            r.cookie_ack_verdict(&flooded, false),
            Verdict::CookieAccepted
        );
        let young = queue(0, 128, 0);
        assert_eq!(
            r.syn_verdict(&young, false, true, false),
            Verdict::SynResetFull
        );
    }

    #[test]
    fn handshakes_that_stall_are_not_held_against_a_client_that_answers() {
        let stalled = |length, half_open| QueueView {
            stalled: true,
            ..queue(length, half_open, 0)
        };
        for establish in [Establish::Reserv, Establish::NoSynDrop] {
            let r = room(establish);
            for q in [stalled(0, 128), stalled(63, 65)] {
                let cookie = r.syn_verdict(&q, false, true, false);
                assert!(matches!(
                    cookie,
                    Verdict::CookieSentFlood | Verdict::CookieSent
                ));
                assert_eq!(
                    r.syn_verdict(&q, false, false, false),
                    Verdict::SynLeftFlood
                );
                assert_eq!(r.cookie_ack_verdict(&q, false), Verdict::CookieAccepted);
            }
            // Half of the places are for handshakes that end after all.
            let q = stalled(64, 64);
            assert_eq!(
                r.syn_verdict(&q, false, false, false),
                Verdict::SynResetFull
            );
            assert_eq!(r.cookie_ack_verdict(&q, false), Verdict::AckResetFull);
            // The wait is not their doing.
            let q = stalled(0, 128);
            assert_eq!(r.syn_verdict(&q, true, false, false), Verdict::SynResetFull);
        }
        let r = room(Establish::Reserv);
        let far = stalled(0, 64);
        assert_eq!(
            r.syn_verdict(&far, false, true, false),
            Verdict::SynAdmitted,
            "far clients have places while there are any"
        );
    }

    #[test]
    fn claims_that_stall_are_held_against_a_final_ack_and_against_no_syn() {
        let claimed = |length, stalled| QueueView {
            stalled,
            ..queue(length, 0, 128 - length)
        };
        let r = room(Establish::Reserv);
        let q = claimed(63, true);
        for (cookies, verdict) in [
            (true, Verdict::CookieSentFlood),
            (false, Verdict::SynLeftFlood),
        ] {
            assert_eq!(r.syn_verdict(&q, false, cookies, false), verdict);
        }
        assert_eq!(r.cookie_ack_verdict(&q, false), Verdict::AckResetFull);
        assert_eq!(
            r.syn_verdict(&claimed(63, false), false, false, true),
            Verdict::SynLeftFlood
        );
        for q in [claimed(64, true), claimed(63, false)] {
            assert_eq!(r.syn_verdict(&q, false, true, false), Verdict::SynResetFull);
        }
    }

    #[test]
    fn a_flood_is_left_half_of_the_places() {
        let r = room(Establish::Reserv);
        let half = queue(0, 64, 0);
        assert_eq!(
            r.syn_verdict(&half, false, true, true),
            Verdict::CookieSentFlood
        );
        assert_eq!(
            r.syn_verdict(&half, false, true, false),
            Verdict::SynAdmitted
        );
        assert_eq!(
            r.syn_verdict(&queue(0, 63, 0), false, true, true),
            Verdict::SynAdmitted
        );
        assert_eq!(r.cookie_ack_verdict(&half, false), Verdict::CookieAccepted);
    }

    #[test]
    fn a_steady_source_has_the_place_beyond_the_backlog() {
        let r = room(Establish::Reserv);
        assert!(r.steady_place(&queue(128, 0, 0), false));
        assert!(r.steady_place(&queue(100, 20, 8), false));
        assert!(!r.steady_place(&queue(100, 20, 9), false));
        assert!(!r.steady_place(&queue(129, 0, 0), false));
        assert!(!r.steady_place(&queue(128, 0, 0), true));
        // With a full SYN queue the kernel sends a cookie, or drops the SYN.
        assert!(!r.steady_place(&queue(0, 128, 0), false));
        let kernel = room(Establish::Abort);
        assert!(kernel.steady_place(&queue(128, 0, 0), false));
        assert!(!kernel.steady_place(&queue(129, 0, 0), false));
    }

    #[test]
    fn no_syn_drop_answers_every_syn() {
        let r = room(Establish::NoSynDrop);
        assert_eq!(
            r.syn_verdict(&queue(0, 63, 0), false, true, false),
            Verdict::SynAdmitted
        );
        assert_eq!(
            r.syn_verdict(&queue(0, 64, 0), false, true, false),
            Verdict::CookieSent
        );
        assert_eq!(
            r.syn_verdict(&queue(128, 0, 0), false, true, false),
            Verdict::CookieSent
        );
        assert_eq!(
            r.syn_verdict(&queue(0, 0, 0), true, true, false),
            Verdict::CookieSent
        );
        assert_eq!(
            r.syn_verdict(&queue(128, 0, 0), false, false, false),
            Verdict::SynResetFull
        );
        assert_eq!(
            r.cookie_ack_verdict(&queue(128, 0, 0), false),
            Verdict::AckResetFull
        );
        assert_eq!(
            r.cookie_ack_verdict(&queue(1, 0, 0), true),
            Verdict::AckResetWait
        );
    }

    #[test]
    fn a_port_in_time_wait_is_let_in_where_others_get_a_cookie() {
        let verdict =
            |establish, q: &QueueView, waiting| room(establish).time_wait_verdict(q, waiting, true);
        let flooded = QueueView {
            young: 3,
            ..queue(0, 128, 0)
        };
        for establish in [Establish::Reserv, Establish::NoSynDrop] {
            assert_eq!(verdict(establish, &flooded, false), Verdict::SynTimeWait);
        }
        let full = queue(128, 0, 0);
        assert_eq!(
            verdict(Establish::Reserv, &full, false),
            Verdict::SynResetFull
        );
        assert_eq!(
            verdict(Establish::NoSynDrop, &full, false),
            Verdict::SynTimeWait
        );
        assert_eq!(
            verdict(Establish::NoSynDrop, &full, true),
            Verdict::SynDroppedWait
        );
        // The kernel drops such a SYN by itself, and the client repeats it.
        let over = queue(129, 0, 0);
        assert_eq!(
            verdict(Establish::NoSynDrop, &over, true),
            Verdict::SynDroppedFull
        );
    }

    #[test]
    fn default_and_abort_follow_the_kernel_rule() {
        for establish in [Establish::Default, Establish::Abort] {
            let drop = QueueSpace {
                reject_syn: RejectSyn::Drop,
                ..room(establish)
            };
            assert_eq!(
                drop.syn_verdict(&queue(128, 99, 0), false, true, false),
                Verdict::SynAdmitted
            );
            assert_eq!(
                drop.syn_verdict(&queue(129, 0, 0), false, true, false),
                Verdict::SynLeft
            );
            let rst = room(establish);
            assert_eq!(
                rst.syn_verdict(&queue(129, 0, 0), false, true, false),
                Verdict::SynResetFull
            );
        }
        let waiting = |e| room(e).syn_verdict(&queue(1, 0, 0), true, true, false);
        assert_eq!(waiting(Establish::Default), Verdict::SynAdmitted);
        assert_eq!(waiting(Establish::Abort), Verdict::SynResetWait);
    }

    #[test]
    fn draining_refuses_nobody() {
        let r = QueueSpace {
            draining: true,
            ..room(Establish::NoSynDrop)
        };
        assert_eq!(
            r.syn_verdict(&queue(128, 128, 9), true, true, false),
            Verdict::SynAdmitted
        );
        assert_eq!(
            r.cookie_ack_verdict(&queue(128, 128, 9), true),
            Verdict::CookieAccepted
        );
    }
}

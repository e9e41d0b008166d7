//! What a server's stack has sent, and how often it was acknowledged: the counters of its namespace, in which nothing else
//! runs (RR02, Figures 8 and 9).

use crate::bed::Counters;
use crate::error::Result;
use crate::netns::Netns;

/// Segments of all connections of a namespace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sent {
    /// Segments sent for the first time, also the few without data.
    pub first: i64,
    /// Segments sent again.
    pub again: i64,
    /// Time-outs after which one was sent again.
    pub timeouts: i64,
    /// ACKs that came, with data or without, and acknowledged something new or nothing.
    pub acks: i64,
}

impl Sent {
    /// Since the namespace was made.
    ///
    /// # Errors
    /// The counters cannot be read.
    pub fn read(server: &Netns) -> Result<Sent> {
        Ok(Sent::of(&Counters::read(server)?))
    }

    fn of(counters: &Counters) -> Sent {
        Sent {
            // The kernel counts what it sends again in RetransSegs alone.
            first: counters.get("Tcp.OutSegs"),
            again: counters.get("Tcp.RetransSegs"),
            timeouts: counters.get("TcpExt.TCPTimeouts"),
            // Of the kernel's fast path, and of its slow one.
            acks: counters.get("TcpExt.TCPHPAcks") + counters.get("TcpExt.TCPPureAcks"),
        }
    }

    /// What was counted since `earlier`.
    pub fn since(&self, earlier: &Sent) -> Sent {
        Sent {
            first: self.first - earlier.first,
            again: self.again - earlier.again,
            timeouts: self.timeouts - earlier.timeouts,
            acks: self.acks - earlier.acks,
        }
    }

    /// Segments sent for each ACK that came; infinite without any.
    pub fn per_ack(&self) -> f64 {
        (self.first + self.again) as f64 / self.acks as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_again_counts_for_the_acks_as_what_is_sent_first() {
        let counters = |pairs: [(&str, i64); 5]| {
            let pairs = pairs.map(|(name, value)| (name.to_owned(), value));
            Sent::of(&Counters(pairs.into()))
        };
        let names = |values: [i64; 5]| {
            counters([
                ("Tcp.OutSegs", values[0]),
                ("Tcp.RetransSegs", values[1]),
                ("TcpExt.TCPTimeouts", values[2]),
                ("TcpExt.TCPHPAcks", values[3]),
                ("TcpExt.TCPPureAcks", values[4]),
            ])
        };
        let sent = names([110, 12, 3, 40, 25]).since(&names([20, 2, 1, 5, 10]));
        assert_eq!(
            (sent.first, sent.again, sent.timeouts, sent.acks),
            (90, 10, 2, 50)
        );
        assert_eq!(sent.per_ack(), 2.0);
    }
}

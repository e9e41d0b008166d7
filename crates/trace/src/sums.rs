//! What figures are made of, summed over connections.

use std::net::Ipv6Addr;

use hashbrown::HashSet;

use crate::connection::Connection;
use crate::direction::{Direction, had};

/// Sums over one direction of all connections that count.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sums {
    pub packets: u64,
    pub segments: u64,
    pub rtx: u64,
    pub syns: u64,
    pub syn_rtx: u64,
    pub untimed: u64,
    pub connections: u64,
    pub connections_with_syn_rtx: u64,
    /// Delays of connections with a SYN sent again, and of the others.
    pub with_syn_loss: Delays,
    pub without_syn_loss: Delays,
    pub filtered_over_45s: u64,
    pub filtered_flood_connections: u64,
    pub flood_hosts: HashSet<Ipv6Addr>,
}

/// Delays of retransmissions.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Delays {
    pub sum_ns: u128,
    pub count: u64,
}

impl Delays {
    pub fn plus(self, other: Delays) -> Delays {
        Delays {
            sum_ns: self.sum_ns + other.sum_ns,
            count: self.count + other.count,
        }
    }
}

impl Sums {
    /// Adds one direction of a connection.
    pub fn add(&mut self, direction: &Direction) {
        if !direction.has(had::SYN) {
            return;
        }
        if direction.has(had::LATE) {
            self.filtered_over_45s += 1;
            return;
        }
        self.connections += 1;
        self.packets += u64::from(direction.packets);
        self.segments += u64::from(direction.segments);
        self.rtx += u64::from(direction.rtx);
        self.syns += u64::from(direction.syns);
        self.syn_rtx += u64::from(direction.syn_rtx);
        self.untimed += u64::from(direction.untimed);
        self.connections_with_syn_rtx += u64::from(direction.syn_rtx > 0);
        let delays = Delays {
            sum_ns: direction.delay_ns.into(),
            count: direction.timed().into(),
        };
        let group = match direction.syn_rtx > 0 {
            true => &mut self.with_syn_loss,
            false => &mut self.without_syn_loss,
        };
        *group = group.plus(delays);
    }

    /// Notes one direction of a connection that the SYN-flood filter takes out.
    pub fn filter_flood(&mut self, connection: &Connection, from: usize, hosts: &[Ipv6Addr]) {
        if connection.directions[from].has(had::SYN) {
            self.filtered_flood_connections += 1;
            self.flood_hosts.extend(hosts);
        }
    }
}

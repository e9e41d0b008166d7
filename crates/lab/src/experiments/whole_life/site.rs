//! Who comes, and what there is: numbers and addresses that the other parts share.

use std::net::Ipv4Addr;
use std::time::Duration;

use ipnet::Ipv4Net;
use weir_sim::aqm::{Discipline, Setup};
use weir_sim::{LinkSpec, Loss};

use crate::link::{self, Lanes};

/// The device of the link, at either end.
pub use crate::link::DEVICE;

/// Where the proxy listens.
pub const SITE: (Ipv4Addr, u16) = (Ipv4Addr::new(10, 128, 0, 1), 80);
/// The pool behind it.
pub const POOL_PORT: u16 = 8080;
/// Connections that the pool works on at the same time.
pub const WORKERS: usize = 8;
/// How long it works on each, µs. It waits meanwhile, as for a database, so that what it can serve does not depend on the
/// machine.
pub const SERVICE_US: u32 = 50_000;
/// Length of the listen queues: nginx's default.
pub const BACKLOG: u32 = 511;
/// Bytes of a reply's body: two packets.
pub const BODY_BYTES: usize = 2000;

/// Replies/s that the pool can serve.
pub const CAPACITY_PER_S: f64 = WORKERS as f64 * 1e6 / SERVICE_US as f64;

/// A class of clients.
#[derive(Debug, Clone, Copy)]
pub struct Class {
    /// Its name in configurations and metrics.
    pub name: &'static str,
    /// Where its clients come from: each from another address, lest weir take them for a health check.
    pub from: Ipv4Net,
    /// What they ask for, in parts of what the pool can serve.
    pub offered: f64,
    /// The rate of the class where classes have rates, connections/s.
    pub rate_per_s: Option<u32>,
}

const fn class(name: &'static str, net: u8, offered: f64, rate_per_s: Option<u32>) -> Class {
    Class {
        name,
        from: Ipv4Net::new_assert(Ipv4Addr::new(10, net, 0, 0), 16),
        offered,
        rate_per_s,
    }
}

/// The classes, the highest first. Together they ask for twice what the pool can serve. With the rates they ask for nine
/// tenths of it.
pub const HELD: [Class; 3] = [
    class("gold", 71, 0.25, None),
    class("silver", 72, 0.65, Some(64)),
    class("bronze", 73, 1.1, Some(40)),
];

/// Where those come from who never want a reply. No class has them.
pub const STRANGERS: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(10, 74, 0, 0), 16);
/// Strangers/s of each of three kinds.
pub const STRANGERS_PER_S: f64 = 10.0;
/// One who aborts does so after this.
pub const ABORTS_AFTER: Duration = Duration::from_millis(300);

/// Rate of the link in each direction, bit/s.
const LINK_BITS_PER_S: u64 = 10_000_000;
/// One way.
const LINK_DELAY: Duration = Duration::from_millis(5);
/// Room of the queue before the link: 0.3 s of full packets, as many a modem has.
const LINK_PACKETS: u32 = 250;
/// Long transfers over the link to clients.
pub const TRANSFERS: usize = 3;

/// The link. Its queues are FIFOs.
pub fn link(seed: u64) -> link::Spec {
    let direction = LinkSpec {
        discipline: Discipline::Fifo,
        setup: Setup {
            buffer_packets: LINK_PACKETS,
            ..Setup::of_ip(LINK_BITS_PER_S / 8)
        },
        delay_ns: LINK_DELAY.as_nanos() as u64,
        loss: Loss::default(),
        passes_at_once: false,
    };
    link::Spec {
        down: direction,
        up: direction,
        lanes: Lanes::Shared,
        ecn: false,
        seed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_classes_ask_for_twice_what_there_is_and_gold_for_a_quarter() {
        let offered: f64 = HELD.iter().map(|class| class.offered).sum();
        assert!((offered - 2.0).abs() < 1e-9);
        assert!((CAPACITY_PER_S - 160.0).abs() < 1e-9);
        let let_in = |class: &Class| {
            let offered = class.offered * CAPACITY_PER_S;
            class
                .rate_per_s
                .map_or(offered, |rate| offered.min(rate.into()))
        };
        let let_in: f64 = HELD.iter().map(let_in).sum();
        assert!((let_in / CAPACITY_PER_S - 0.9).abs() < 1e-9);
    }

    #[test]
    fn no_two_kinds_of_clients_share_an_address_and_all_are_of_the_near_side() {
        let near: Ipv4Net = "10.64.0.0/10".parse().unwrap();
        let mut nets: Vec<Ipv4Net> = HELD.iter().map(|class| class.from).collect();
        nets.push(STRANGERS);
        assert!(nets.iter().all(|net| near.contains(net)));
        for (index, net) in nets.iter().enumerate() {
            assert!(nets[..index].iter().all(|other| other != net));
        }
    }
}

//! A queue of any discipline, by its name.

use weir_core::aqm::discipline::DEFAULT_PACKETS;
use weir_core::aqm::{Discipline, Setup};
use weir_models::aqm::codel::{Codel, LimitedCodel};
use weir_models::aqm::flows::Flows;
use weir_models::aqm::fq_codel::FqCodel;
use weir_models::aqm::spa::Spa;
use weir_models::aqm::{Aqm, Count, Hooks, Packet, Stats};

use super::cake::{self, Cake, CakeParams};
use super::fifo::{Fifo, FifoParams};
use super::pie::Pie;
use super::prio::{Prio, PrioParams};
use super::red::{Red, RedParams};
use super::sfq::Sfq;

/// A queue of any discipline.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum AnyQueue<P> {
    Fifo(Fifo<P>),
    Red(Red<P>),
    Codel(Codel<P>),
    FqCodel(FqCodel<P>),
    Pie(Pie<P>),
    Sfq(Sfq<P>),
    Cake(Cake<P>),
    Prio(Prio<P>),
    Spa(Spa<P, LimitedCodel>),
    SpaFq(Spa<P, Flows>),
}

impl<P> AnyQueue<P> {
    /// An empty queue of the discipline, for this link.
    pub fn new(setup: &Setup, discipline: Discipline) -> AnyQueue<P> {
        let packets = FifoParams::Packets(setup.buffer_packets);
        let prio = |fin| {
            AnyQueue::Prio(Prio::new(PrioParams {
                limit: packets,
                fin,
            }))
        };
        match discipline {
            Discipline::Fifo => AnyQueue::Fifo(Fifo::new(packets)),
            Discipline::Bfifo => {
                let bytes = setup.buffer_packets * setup.mtu_bytes;
                AnyQueue::Fifo(Fifo::new(FifoParams::Bytes(bytes)))
            }
            Discipline::Red => AnyQueue::Red(Red::new(RedParams::of(setup))),
            Discipline::Ared => AnyQueue::Red(Red::new(RedParams {
                adaptive: true,
                ..RedParams::of(setup)
            })),
            Discipline::RedFavor => AnyQueue::Red(Red::new(RedParams {
                spare_syn: true,
                ..RedParams::of(setup)
            })),
            Discipline::Codel => AnyQueue::Codel(Codel::new(setup.codel(), DEFAULT_PACKETS)),
            Discipline::FqCodel => AnyQueue::FqCodel(FqCodel::new(setup.flows(setup.codel()))),
            Discipline::Pie => AnyQueue::Pie(Pie::new(setup.pie())),
            Discipline::Sfq => AnyQueue::Sfq(Sfq::new(setup.sfq())),
            Discipline::Cake => AnyQueue::Cake(cake::new(CakeParams::of(setup))),
            Discipline::SynPrio => prio(false),
            Discipline::SynFinPrio => prio(true),
            Discipline::SpaPaper => {
                AnyQueue::Spa(Spa::new(setup.spa_paper(), setup.codel(), DEFAULT_PACKETS))
            }
            Discipline::Spa => AnyQueue::Spa(Spa::new(
                setup.spa(),
                setup.own_codel(),
                setup.own_packets(),
            )),
            Discipline::SpaFq => AnyQueue::SpaFq(Spa::with_flows(setup.spa(), setup.own_flows())),
            Discipline::SpaFqTc => {
                AnyQueue::SpaFq(Spa::with_flows(setup.spa(), setup.own_fq_codel()))
            }
        }
    }
}

/// Calls a method of whichever discipline it is.
macro_rules! each {
    ($queue:expr, $inner:ident => $call:expr) => {
        match $queue {
            AnyQueue::Fifo($inner) => $call,
            AnyQueue::Red($inner) => $call,
            AnyQueue::Codel($inner) => $call,
            AnyQueue::FqCodel($inner) => $call,
            AnyQueue::Pie($inner) => $call,
            AnyQueue::Sfq($inner) => $call,
            AnyQueue::Cake($inner) => $call,
            AnyQueue::Prio($inner) => $call,
            AnyQueue::Spa($inner) => $call,
            AnyQueue::SpaFq($inner) => $call,
        }
    };
}

impl<P: Packet> Aqm<P> for AnyQueue<P> {
    fn enqueue<H: Hooks<P>>(&mut self, packet: P, now_ns: u64, hooks: &mut H) {
        each!(self, queue => queue.enqueue(packet, now_ns, hooks))
    }

    fn dequeue<H: Hooks<P>>(&mut self, now_ns: u64, hooks: &mut H) -> Option<P> {
        each!(self, queue => queue.dequeue(now_ns, hooks))
    }

    fn backlog(&self) -> Count {
        each!(self, queue => queue.backlog())
    }

    fn stats(&self) -> &Stats {
        each!(self, queue => queue.stats())
    }

    fn state_bytes(&self) -> usize {
        each!(self, queue => queue.state_bytes())
    }
}

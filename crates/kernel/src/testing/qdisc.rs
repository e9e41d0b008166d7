//! The queues of the qdisc in BPF (bpf/lib/spa.h), compiled natively, for property tests against weir_models::aqm. Its
//! packets are numbers.

use weir_core::abi::SPA_NONE;
use weir_models::aqm::{Control, Count};

use crate::object::Plain;
use crate::shape::qdisc::skel::types::{spa, spa_params};
use crate::shape::qdisc::{Instance, Spec, instance, params};

unsafe extern "C" {
    fn pure_spa_begin(params: *const spa_params);
    fn pure_spa_enqueue(number: u32, control: u8, client: u32, flow: u32, len: u32, now_ns: u64);
    fn pure_spa_dequeue(now_ns: u64) -> u32;
    fn pure_spa_dropped() -> u32;
    fn pure_spa_state(copy: *mut spa);
}

/// A packet that comes.
#[derive(Debug, Clone, Copy)]
pub struct Packet {
    /// By which it is known again.
    pub number: u32,
    /// What it controls.
    pub control: Control,
    /// Hash of who opens the connection.
    pub client: u32,
    /// Hash of the 5-tuple.
    pub flow: u32,
    /// Bytes.
    pub len: u32,
}

/// The one qdisc of this thread.
#[derive(Debug)]
pub struct Queue {
    // Its state is the thread's.
    _not_send: std::marker::PhantomData<*const ()>,
}

impl Queue {
    /// An empty one; an earlier one of this thread ends.
    pub fn begin(spec: &Spec) -> Queue {
        // SAFETY: the parameters live through the call.
        unsafe { pure_spa_begin(&params(spec, 0)) };
        Queue {
            _not_send: std::marker::PhantomData,
        }
    }

    /// `spa_enqueue()` and `spa_trim()`.
    pub fn enqueue(&mut self, packet: &Packet, now_ns: u64) {
        let Packet {
            number,
            control,
            client,
            flow,
            len,
        } = *packet;
        let control = match control {
            Control::None => 0,
            Control::Syn => 1,
            Control::SynAck => 2,
            Control::Fin => 3,
        };
        // SAFETY: numbers only; the state is this thread's.
        unsafe { pure_spa_enqueue(number, control, client, flow, len, now_ns) };
    }

    /// `spa_dequeue()`: the number of the packet that leaves.
    pub fn dequeue(&mut self, now_ns: u64) -> Option<u32> {
        // SAFETY: as above.
        let number = unsafe { pure_spa_dequeue(now_ns) };
        (number != SPA_NONE).then_some(number)
    }

    /// The packets that were dropped since it was asked last, in the order of dropping.
    pub fn dropped(&mut self) -> Vec<u32> {
        // SAFETY: as above.
        let next = || Some(unsafe { pure_spa_dropped() }).filter(|number| *number != SPA_NONE);
        let mut all: Vec<_> = std::iter::from_fn(next).collect();
        all.reverse();
        all
    }

    /// What it has counted.
    pub fn counts(&self) -> Instance {
        instance(&self.state())
    }

    /// What waits.
    pub fn backlog(&self) -> Count {
        let state = self.state();
        Count {
            packets: state.packets.into(),
            bytes: state.bytes.into(),
        }
    }

    fn state(&self) -> spa {
        let mut state = spa::zero();
        // SAFETY: the copy is writable.
        unsafe { pure_spa_state(&mut state) };
        state
    }
}

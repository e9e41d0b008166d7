//! The servers of a forward proxy: whichever its clients name.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use weir_core::proxy::Proxy;

use super::{Backend, BackendContext};
use crate::metrics::{BackendCounters, BackendGauges};
use crate::runtime::Clock;

/// Servers by address, as long as there is a connection to them.
pub struct Origins {
    known: RefCell<HashMap<SocketAddr, Rc<Backend>>>,
    counters: Arc<BackendCounters>,
    gauges: Arc<BackendGauges>,
    settings: Arc<Proxy>,
    /// Idle connections to each that this thread keeps at most.
    max_idle: usize,
}

impl Origins {
    /// No servers yet; all of them count into the same counters and gauges.
    pub fn new(
        counters: Arc<BackendCounters>,
        gauges: Arc<BackendGauges>,
        settings: Arc<Proxy>,
        max_idle: usize,
    ) -> Origins {
        Origins {
            known: RefCell::default(),
            counters,
            gauges,
            settings,
            max_idle,
        }
    }

    /// The server at this address.
    pub fn at(&self, address: SocketAddr) -> Rc<Backend> {
        let new = || {
            let context = BackendContext {
                gauges: self.gauges.clone(),
                max_idle: self.max_idle,
                ..BackendContext::default()
            };
            Rc::new(Backend::new(
                address,
                self.counters.clone(),
                self.settings.clone(),
                context,
            ))
        };
        let mut known = self.known.borrow_mut();
        known.entry(address).or_insert_with(new).clone()
    }

    /// Closes connections that were not used since `then`, and forgets servers without one.
    pub fn sweep(&self, then: Clock) {
        self.known.borrow_mut().retain(|_, backend| {
            backend.sweep(then);
            !backend.is_unused()
        });
    }
}

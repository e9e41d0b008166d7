//! What listeners let in whose servers queue inside (`core::residence`).

use weir_core::controller::Settings;
use weir_core::listener::{Listener, Mode, ResidenceMode};
use weir_core::residence::Gate;
use weir_core::verdict::Verdict;

use super::Session;
use crate::daemon::backend::Backend;
use crate::failure::Result;

impl<B: Backend> Session<B> {
    /// The listeners that refuse for the requests of the server on this port.
    fn limited(&self, port: u16) -> impl Iterator<Item = &Listener> {
        self.asked().filter(move |one| {
            one.residence_port() == port && matches!(one.residence, ResidenceMode::Within(_))
        })
    }

    /// Sets or lifts what they let in until the next pass. Where the controller shares it out by class, more comes in before
    /// all are refused alike.
    pub fn set_gates(&mut self, port: u16, gate: Option<&Gate>) {
        let of = |one: &Listener| (one.name.clone(), self.shares_by_class(one));
        let listeners: Vec<(String, bool)> = self.limited(port).map(of).collect();
        for (name, shared) in listeners {
            match gate.filter(|_| shared) {
                Some(gate) => {
                    self.inside.insert(name.clone(), *gate);
                    let beside = gate.beside_controller();
                    self.backend.set_gate(&name, Some(&beside));
                }
                None => {
                    self.inside.remove(&name);
                    self.backend.set_gate(&name, gate);
                }
            }
        }
    }

    /// Whether the controller holds the listener's classes to what there is room for inside its server.
    pub fn shares_by_class(&self, listener: &Listener) -> bool {
        let enforces = |settings: &Settings| settings.mode == Mode::Enforce;
        let mut classes = self.classes().iter();
        self.controller.as_ref().is_some_and(enforces)
            && listener.mode == Mode::Enforce
            && classes.any(|class| class.is_of_listener(&listener.name))
    }

    /// A config is put in force: the next pass says anew what may come in.
    pub fn forget_gates(&mut self) {
        self.inside.clear();
    }

    /// SYNs that they have refused for it, or would have, ever; also those of classes that the controller holds.
    ///
    /// # Errors
    /// The counters cannot be read.
    pub fn refused_for_residence(&self, port: u16) -> Result<u64> {
        let mut refused = 0;
        for listener in self.limited(port) {
            let counters = self.backend.counters(&listener.name)?;
            refused += counters.get(Verdict::SynDroppedResidence);
            refused += counters.get(Verdict::SynResetResidence);
            if self.shares_by_class(listener) {
                refused += counters.get(Verdict::SynDroppedHeld);
                refused += counters.get(Verdict::SynResetHeld);
            }
        }
        Ok(refused)
    }
}

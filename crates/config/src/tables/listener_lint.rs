//! Settings of a listener that are valid and that the user hardly meant.
//!
//! A key that the user did not set is never worth a warning: its default may well have no effect.

use weir_core::listener::{
    Admit, DEFAULT_AGEING, Establish, HalfClose, Listener, Mode, QueueOrder, RejectSyn,
    ResidenceMode,
};
use weir_core::timewait::{Holder, ListenerTimeWait};

/// What is odd about a listener, one sentence each. `given` names the keys that the user set.
pub(crate) fn lint(listener: &Listener, given: &[&str]) -> Vec<String> {
    let given = |key: &str| given.contains(&key);
    let l = listener;
    let mut odd = Vec::new();
    let mut say = |text: String| odd.push(format!("listener {:?}: {text}", l.name));
    if leaves_all_to_the_kernel(l) {
        say(
            "establish = default and reject_syn = drop leave everything to the kernel: \
             weir only counts"
                .into(),
        );
    }
    if l.establish == Establish::NoSynDrop && l.reject_syn == RejectSyn::Drop && given("reject_syn")
    {
        say(
            "no-syn-drop answers every SYN: reject_syn = drop has an effect only where cookies are \
             impossible (MPTCP listeners, tcp_syncookies = 0, Linux before 6.9)"
                .into(),
        );
    }
    if l.overbook > 0.0 && l.establish != Establish::Reserv {
        say("overbook is unused: it belongs to establish = reserv".into());
    }
    for key in ["target_wait", "interval"] {
        if l.admit == Admit::Queue && given(key) {
            say(format!("{key} is unused: it belongs to admit = wait"));
        }
    }
    // The example spells the default out.
    if l.queue == QueueOrder::Fifo && given("ageing") && l.ageing != Some(DEFAULT_AGEING) {
        say("ageing is unused: it belongs to queue = priority".into());
    }
    if l.residence == ResidenceMode::Off && l.residence_of.is_some() {
        say("residence_of is unused: it belongs to residence".into());
    }
    if l.admit == Admit::Wait && l.interval < l.target_wait {
        say(
            "interval is shorter than target_wait: weir refuses also in a burst that fills the \
             queue for less than target_wait"
                .into(),
        );
    }
    if l.timewait == ListenerTimeWait::Off && l.holder != Holder::Client && given("holder") {
        say("holder is unused: it belongs to timewait = negotiate".into());
    }
    if l.timewait == ListenerTimeWait::Negotiate && !l.interfaces.is_empty() {
        say("timewait = negotiate is of connections through every interface, whatever interfaces says".into());
    }
    if l.timewait == ListenerTimeWait::Negotiate && l.mode == Mode::Observe {
        say("timewait = negotiate does nothing in mode = observe".into());
    }
    if l.reason && !sends_rst(l) {
        say("reason is unused: this policy does not send RSTs".into());
    }
    if l.half_close == HalfClose::Reset {
        say(
            "half_close = reset breaks clients that half-close and then read on (rsh, \
             `nc -N`, some HTTP/1.0 clients)"
                .into(),
        );
    }
    odd
}

/// Nothing of this policy ever touches a packet, even when it is enforced.
fn leaves_all_to_the_kernel(l: &Listener) -> bool {
    l.establish == Establish::Default
        && l.reject_syn == RejectSyn::Drop
        && l.half_close == HalfClose::Keep
        && l.timewait == ListenerTimeWait::Off
}

fn sends_rst(l: &Listener) -> bool {
    l.reject_syn == RejectSyn::Rst
        || matches!(l.establish, Establish::Abort | Establish::NoSynDrop)
        || l.half_close == HalfClose::Reset
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::parse;
    use weir_core::listener::ListenAddress;

    fn warnings(keys: &str) -> Vec<String> {
        let file = format!("[[listener]]\naddress = \"*:80\"\n{keys}\n");
        parse("f", &file)
            .unwrap()
            .warnings
            .into_iter()
            .map(|w| w.text)
            .collect()
    }

    #[test]
    fn the_default_policy_is_not_odd() {
        let address = ListenAddress { ip: None, port: 80 };
        assert_eq!(
            lint(&Listener::new("web", address), &[]),
            Vec::<String>::new()
        );
    }

    #[test]
    fn each_nonsense_combination_is_named() {
        for (keys, part) in [
            (
                "establish = \"default\"\nreject_syn = \"drop\"",
                "leave everything to the kernel",
            ),
            (
                "establish = \"no-syn-drop\"\nreject_syn = \"drop\"",
                "MPTCP",
            ),
            (
                "establish = \"abort\"\noverbook = 0.5",
                "overbook is unused",
            ),
            (
                "admit = \"queue\"\ntarget_wait = \"20ms\"",
                "target_wait is unused",
            ),
            (
                "admit = \"queue\"\ninterval = \"20ms\"",
                "interval is unused",
            ),
            ("residence_of = 8000", "residence_of is unused"),
            ("interval = \"10ms\"", "shorter than target_wait"),
            ("reason = true\nreject_syn = \"drop\"", "reason is unused"),
            ("half_close = \"reset\"", "breaks clients"),
            ("holder = \"server\"", "holder is unused"),
            (
                "timewait = \"negotiate\"\ninterfaces = [\"eth0\"]",
                "through every interface",
            ),
            (
                "timewait = \"negotiate\"\nmode = \"observe\"",
                "does nothing",
            ),
        ] {
            let said = warnings(keys);
            assert_eq!(said.len(), 1, "{keys}: {said:?}");
            assert!(said[0].contains(part), "{keys}: {said:?}");
        }
    }

    #[test]
    fn sensible_neighbours_are_not_odd() {
        for keys in [
            "establish = \"no-syn-drop\"",
            "timewait = \"negotiate\"\nholder = \"server\"",
            "admit = \"queue\"",
            "residence = \"observe\"\nresidence_of = 8000",
            "overbook = 0.5",
            "reason = true",
            "establish = \"abort\"\nreject_syn = \"drop\"\nreason = true",
        ] {
            assert_eq!(warnings(keys), Vec::<String>::new(), "{keys}");
        }
    }
}

//! From listeners to `struct policy`.

use std::collections::BTreeMap;

use weir_core::listener::{Front, Listener, Mode};
use weir_core::policy::{Table, table};

use super::skel::types;
use crate::error::{Error, Result};
use crate::probe;
use crate::sysctl::TcpOptions;

/// Where packets find their listener; fails on two listeners with one address.
pub(super) fn table_of(listeners: &[Listener]) -> Result<Table> {
    table(listeners).map_err(|e| Error::Failed {
        what: "put the policy in force".into(),
        cause: e.to_string(),
    })
}

/// Writes the whole policy but its generation. `slots`: counters slot of each listener, by name.
pub(super) fn fill(
    policy: &mut types::policy,
    listeners: &[Listener],
    table: &Table,
    slots: &BTreeMap<String, u16>,
) {
    policy.ports.fill(types::port_entry::default());
    policy.listeners.fill(types::listener_policy::default());
    policy.exact.fill(types::exact_entry::default());
    let options = TcpOptions::read();
    policy.cookies = (options.syncookies >= 1 && probe::has_cookie_kfunc()).into();
    policy.tcp_wscale = options.window_scaling.into();
    policy.tcp_sack = options.sack.into();
    policy.tcp_tstamp = options.timestamps.into();
    policy.exact_seed = table.seed;
    for (port, e) in &table.ports {
        policy.ports[usize::from(port.to_be())] = types::port_entry {
            any4: e.any4,
            any6: e.any6,
            exact: e.exact.into(),
            pad: 0,
        };
    }
    for e in &table.exact {
        policy.exact[e.slot] = types::exact_entry {
            addr: words(&e.address),
            port: e.port.to_be(),
            listener: e.listener,
        };
    }
    for (to, l) in policy.listeners.iter_mut().zip(listeners) {
        *to = listener_policy(l, slots[&l.name]);
    }
}

/// The four words of an address as they stand in memory and in packets.
fn words(address: &[u8; 16]) -> [u32; 4] {
    let (words, _) = address.as_chunks();
    std::array::from_fn(|i| u32::from_ne_bytes(words[i]))
}

/// Stands in the list of a listener none of whose interfaces exists (yet): matches no packet.
const NO_INTERFACE: u32 = u32::MAX;

fn listener_policy(l: &Listener, slot: u16) -> types::listener_policy {
    let mut p = types::listener_policy {
        target_wait_ns: l.target_wait.as_nanos() as u64,
        interval_ns: l.interval.as_nanos() as u64,
        overbook_1024: l.overbook_1024(),
        least_length: l.least_length,
        counters: slot as u8,
        steady: l.health_checks.into(),
        establish: l.establish as u8,
        reject_syn: l.reject_syn as u8,
        admit: l.admit as u8,
        half_close: l.half_close as u8,
        observe: (l.mode == Mode::Observe).into(),
        reason: l.reason.into(),
        front_xdp: (l.front == Front::Xdp).into(),
        ..Default::default()
    };
    for (to, name) in p.ifindex.iter_mut().zip(&l.interfaces) {
        *to = nix::net::if_::if_nametoindex(name.as_str()).unwrap_or(NO_INTERFACE);
        p.interfaces += 1;
    }
    p
}

#[cfg(test)]
mod tests {
    use weir_core::policy::mapped;

    use super::*;

    #[test]
    fn addresses_keep_the_order_of_their_bytes() {
        let w = words(&mapped("10.1.2.3".parse().unwrap()));
        assert_eq!(w[3].to_ne_bytes(), [10, 1, 2, 3]);
        assert_eq!(w[2].to_ne_bytes(), [0, 0, 0xff, 0xff]);
    }
}

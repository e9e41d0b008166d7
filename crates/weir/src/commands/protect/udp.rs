//! What `weir protect` guards by UDP: new QUIC connections (HTTP/3) to the ports at which a UDP socket is bound.
//!
//! Whether such a socket speaks QUIC weir does not know. So it says what it judges, and that the rest passes.

use std::collections::BTreeSet;

use weir_api::Quic;
use weir_core::listener::{Establish, Listener, Mode, RejectSyn};
use weir_core::quic::{QuicListener, QuicRefuse};
use weir_core::units::count;
use weir_core::workload::Where;
use weir_kernel::ListenSocket;

use crate::daemon::guard::Daemon;
use crate::daemon::quic::at;
use crate::failure::Result;
use crate::host::sockets::is_served;
use crate::host::udp::{self, UdpServer};
use crate::show::describe::list;
use crate::show::output::warn_text;
use crate::show::report::quic::policy;

/// UDP ports that a line names.
const SHOWN: usize = 12;

/// The UDP sockets at these ports in weir's own network namespace (`None`: at all ports), and which of the ports are published
/// from elsewhere.
pub fn servers(ports: Option<&[u16]>) -> (Vec<UdpServer>, BTreeSet<u16>) {
    let sockets = udp::sockets().unwrap_or_else(|error| {
        warn_text(format!(
            "UDP sockets cannot be read, so no QUIC is guarded: {error}"
        ));
        Vec::new()
    });
    let wanted = |port| ports.is_none_or(|ports| ports.contains(&port));
    let sockets = sockets.into_iter();
    let sockets = sockets.filter(|one| wanted(one.local.port()));
    udp::servers(sockets.collect())
}

/// Warns of UDP ports that are published from another network namespace, and not guarded there.
pub fn say_unguarded<'a>(published: impl IntoIterator<Item = &'a u16>) {
    for port in published {
        warn_text(format!(
            "UDP port {port} is published from another network namespace, and weir guards no QUIC there: it looks for a UDP socket \
             where TCP port {port} leads, at the same port as that of TCP. If the server opens it later, start weir again"
        ));
    }
}

/// Guards these too. Where this is not possible, what is guarded by TCP stays so.
///
/// # Errors
/// Nothing would be guarded.
pub fn guard(daemon: &mut Daemon, quic: Vec<QuicListener>) -> Result<()> {
    let (service, elsewhere) = (&daemon.service, daemon.service.elsewhere());
    let has_tcp = service.session.asked().next().is_some() || !elsewhere.asked().is_empty();
    match daemon.service.guard_quic(quic) {
        Err(failure) if has_tcp => {
            warn_text(format!("QUIC is not guarded: {failure}"));
            Ok(())
        }
        done => done,
    }
}

/// The QUIC listeners beside these listeners: one for each at whose address a UDP socket is bound. More than can be guarded
/// are left out, and said to be.
pub fn beside(
    listeners: &[Listener],
    template: &QuicListener,
    servers: &[UdpServer],
) -> Vec<QuicListener> {
    let here = listeners.iter().filter(|one| one.location == Where::Here);
    let bound = here.filter(|one| {
        let mut servers = servers.iter();
        servers.any(|server| udp::is_at(&server.socket, one.address))
    });
    let mut all: Vec<QuicListener> = bound.map(|one| at(template, one.address)).collect();
    fit(&mut all);
    all
}

/// Leaves out those that are too many, and says so.
fn fit(all: &mut Vec<QuicListener>) {
    let most = QuicListener::MOST;
    if all.len() > most {
        let more = count(all.len() - most, "UDP port");
        warn_text(format!(
            "no more than {most} QUIC listeners can be guarded: {more} left alone"
        ));
        all.truncate(most);
    }
}

/// These, and one for each listener of another place at whose port a UDP socket is bound there. Interfaces there have names of
/// their own, which a QUIC listener cannot name.
pub fn with_elsewhere(
    mut here: Vec<QuicListener>,
    listeners: &[Listener],
    template: &QuicListener,
    daemon: &Daemon,
) -> Vec<QuicListener> {
    let is_other = |one: &&Listener| one.location != Where::Here && one.interfaces.is_empty();
    let others = listeners.iter().filter(is_other);
    let others = others.map(|one| going_with(one, template)).collect();
    here.extend(daemon.service.with_udp_socket(others));
    fit(&mut here);
    here
}

/// A QUIC listener of this policy where a listener is, named after it.
fn going_with(listener: &Listener, template: &QuicListener) -> QuicListener {
    let name = match listener.name.strip_prefix("port-") {
        Some(port) => format!("quic-{port}"),
        None => format!("{}-quic", listener.name),
    };
    QuicListener {
        name,
        address: listener.address,
        location: listener.location.clone(),
        ..template.clone()
    }
}

/// Takes out the listeners of whose port only a UDP socket is there.
pub fn without_tcp(listeners: &mut Vec<Listener>, quic: &[QuicListener], there: &[ListenSocket]) {
    let by_udp = |one: &Listener| quic.iter().any(|quic| quic.address == one.address);
    let is_elsewhere = |one: &Listener| one.location != Where::Here;
    listeners.retain(|one| is_elsewhere(one) || !by_udp(one) || is_served(one, there));
}

/// The policy for UDP that follows from that for TCP: what it says of interfaces, of waits and of who is refused. `given`: the
/// keys that were set. What was not is as for a `[[quic]]`, which measures another wait.
pub fn template(listener: &Listener, given: &[&str]) -> QuicListener {
    let refuse = match listener.reject_syn {
        RejectSyn::Rst => QuicRefuse::Vn,
        RejectSyn::Drop => QuicRefuse::Drop,
    };
    // It leaves all to the kernel, and only counts.
    let only_counts =
        listener.establish == Establish::Default && listener.reject_syn == RejectSyn::Drop;
    let mut quic = QuicListener {
        interfaces: listener.interfaces.clone(),
        refuse,
        mode: match only_counts {
            true => Mode::Observe,
            false => listener.mode,
        },
        ..QuicListener::new("", listener.address)
    };
    if given.contains(&"name") {
        quic.name = format!("{}-quic", listener.name);
    }
    if given.contains(&"target_wait") {
        quic.target_wait = listener.target_wait;
    }
    if given.contains(&"interval") {
        quic.interval = listener.interval;
    }
    quic
}

/// The line for ports at which there is no TCP server.
pub fn line_alone(verb: &str, quic: &[Quic], interfaces: &str) -> String {
    let policy = quic.first().map_or(String::new(), policy);
    format!(
        "weir: {verb} {} ({policy}) on {interfaces}: new QUIC connections, other datagrams pass; no TCP server listens there; \
         Ctrl-C takes it off\n",
        object(quic)
    )
}

/// The lines below those of TCP: one for the UDP ports that are guarded, and one for each that is not.
pub fn lines(quic: &[Quic]) -> Vec<String> {
    let (on, off): (Vec<Quic>, Vec<Quic>) = quic.iter().cloned().partition(|one| one.in_force);
    let guarded = on.first().map(|first| {
        let policy = policy(first);
        let tail = "other datagrams pass (--no-quic: all do)";
        format!(
            "{} too: new QUIC connections ({policy}); {tail}",
            object(&on)
        )
    });
    let not = off.iter().map(|one| {
        let because = one.warning.as_deref().unwrap_or("on no interface");
        let head = object(std::slice::from_ref(one));
        format!("{head}: QUIC is not guarded: {because}")
    });
    guarded.into_iter().chain(not).collect()
}

/// `UDP port 443`, `UDP ports 443 and 8443`, `UDP 10.0.0.1:443`
pub fn object(quic: &[Quic]) -> String {
    if quic.len() > SHOWN {
        return count(quic.len(), "UDP port");
    }
    let port = |one: &Quic| one.address.strip_prefix("*:").map(str::to_owned);
    match quic.iter().map(port).collect::<Option<Vec<String>>>() {
        Some(ports) if ports.len() == 1 => format!("UDP port {}", ports[0]),
        Some(ports) => format!("UDP ports {}", list(&ports)),
        None => {
            let addresses: Vec<String> = quic.iter().map(|one| one.address.clone()).collect();
            format!("UDP {}", list(&addresses))
        }
    }
}

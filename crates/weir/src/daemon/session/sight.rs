//! Whether SYNs reach weir: which programs of others see a packet before it, and whether connections come that it has not
//! seen ([`weir_core::sight`]).

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Instant;

use weir_core::listener::Listener;
use weir_core::sight::{Change, Reading, Sight, cookies, seen, unheard};
use weir_kernel::{Established, Program};

use super::Session;
use super::glance::Glance;
use crate::daemon::attachment::carries;
use crate::daemon::backend::Backend;
use crate::daemon::filters::pause;
use crate::failure::Cause;
use crate::host::chains::Chains;
use crate::host::links::Link;
use crate::show::describe;

/// SYNs no longer reach weir at a listener, or they do again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SightChange {
    /// The listener.
    pub listener: String,
    /// Whether it is in force now.
    pub in_force: bool,
    /// A sentence about it.
    pub text: String,
}

impl<B: Backend> Session<B> {
    /// Looks, if it is time, which programs of others see packets before weir. True if they have changed.
    pub fn look_before(&mut self, now: Instant) -> bool {
        if now < self.sights.due {
            return false;
        }
        let begun = Instant::now();
        let (mut before, mut behind) = (BTreeMap::new(), Chains::new());
        for index in self.attached.keys() {
            let there = match self.backend.neighbours(*index) {
                Ok(neighbours) => {
                    behind.insert(*index, neighbours.behind);
                    neighbours.before
                }
                // Who stood there is not known to have gone.
                Err(error) => {
                    tracing::debug!("{error}");
                    let known = self.sights.before.get(index);
                    known.cloned().unwrap_or_default()
                }
            };
            if !there.is_empty() {
                before.insert(*index, there);
            }
        }
        self.sights.due = now + pause(begun.elapsed());
        let changed = before != self.sights.before;
        if changed && before.is_empty() {
            // Nobody is left who could have hidden SYNs; what comes now shows it.
            self.sights.forget();
        }
        (self.sights.before, self.sights.behind) = (before, behind);
        changed
    }

    /// The programs behind weir at tc ingress, by the interface's index, as the last look saw them.
    pub fn chains(&self) -> &Chains {
        &self.sights.behind
    }

    /// Judges by a look at all listeners whether their SYNs reach weir, and counts how fast their servers are.
    pub fn follow_sight(&mut self, glances: &[Glance], now: Instant) -> Vec<SightChange> {
        self.follow_pace(glances, now);
        let at = now.saturating_duration_since(self.sights.begun);
        let known = |name: &str| glances.iter().any(|glance| glance.name == name);
        self.sights.listeners.retain(|name, _| known(name));
        let mut changes = Vec::new();
        for glance in glances {
            let Some(came) = glance.came else { continue };
            let sight = self.sights.listeners.entry(glance.name.clone());
            let change = sight.or_default().take(Reading {
                at,
                came,
                seen: seen(&glance.counters),
                cookies: cookies(&glance.counters),
                unheard: unheard(&glance.counters),
                half_open: glance.half_open,
                half_open_full: glance.half_open >= glance.queue_limit && glance.half_open > 0,
            });
            if let Some(change) = change {
                changes.push((glance.name.clone(), change));
            }
        }
        if changes.iter().any(|(_, change)| *change == Change::Lost) {
            // Whoever hides the SYNs may have come since the last look.
            self.sights.due = now;
            self.look_before(now);
        }
        let told = |(name, change)| {
            let in_force = change == Change::Back;
            let text = match self.asked().find(|listener| listener.name == name) {
                Some(listener) if !in_force => {
                    let Cause { message, hint } = self.unseen(listener);
                    format!("{message} ({hint})")
                }
                _ => format!("listener {name:?} is in force again: SYNs reach weir"),
            };
            SightChange {
                listener: name,
                in_force,
                text,
            }
        };
        changes.into_iter().map(told).collect()
    }

    /// Connections that have come to this listener over interfaces on which it is guarded.
    pub(super) fn came_to(&self, listener: &Listener, established: &[Established]) -> u64 {
        let guarded =
            |link: &Link| carries(link, listener) && self.attached.contains_key(&link.index);
        let comes_over = |index: u32| {
            // The kernel says that packets of a VRF's interfaces come over the VRF. It stands for them if weir is on all.
            let its = self.links.iter().filter(|link| link.master == Some(index));
            let of_vrf = || its.clone().count() > 0 && its.clone().all(guarded);
            let link = self.links.iter().find(|link| link.index == index);
            link.is_some_and(|link| guarded(link) || link.vrf && of_vrf())
        };
        let here = |one: &&Established| {
            one.port == listener.address.port
                && comes_over(one.ifindex)
                && self.takes(listener, one.ip)
        };
        established.iter().filter(here).map(|one| one.count).sum()
    }

    /// Whether the listener, and no other one, is asked about connections to this address of its port.
    fn takes(&self, listener: &Listener, ip: IpAddr) -> bool {
        let others = self
            .asked()
            .filter(|l| l.address.port == listener.address.port);
        let best = others.map(|other| fit(other, ip)).max();
        let own = fit(listener, ip);
        own > 0 && Some(own) == best
    }

    /// Why a listener whose SYNs do not reach weir is not in force.
    pub(super) fn unseen(&self, listener: &Listener) -> Cause {
        let sight = self.sights.listeners.get(&listener.name);
        if sight.is_some_and(Sight::is_unheard) {
            return Cause {
                message: format!(
                    "listener {:?} is not in force: connections come whose SYNs met no listening socket (syn_unheard) that \
                     weir's look-up finds: the server's socket is bound to a VRF, or a rule hands it packets to another \
                     port (TPROXY)",
                    listener.name
                ),
                hint: "docs/limits.md says which sockets weir cannot guard".to_owned(),
            };
        }
        let before = self.before_on(|index| {
            let link = self.links.iter().find(|link| link.index == index);
            link.is_some_and(|link| carries(link, listener))
        });
        let (why, hint) = match before.is_empty() {
            false => (
                format!("{} and does not hand them on", before.join(" and ")),
                "`weir reload`, or weir started anew, goes first again; docs/troubleshooting.md",
            ),
            true => (
                "no program stands before weir at tc ingress, so something before that does, or changes their port (XDP, NAT)"
                    .to_owned(),
                "`weir doctor` lists the programs on each interface; docs/troubleshooting.md",
            ),
        };
        Cause {
            message: format!(
                "listener {:?} is not in force: connections come whose SYNs do not reach weir: {why}",
                listener.name
            ),
            hint: hint.to_owned(),
        }
    }

    /// What there is to say of programs that see packets before weir: a sentence for each interface.
    pub(super) fn goes_before(&self) -> impl Iterator<Item = String> {
        let sentences = self.before_on(|_| true).into_iter();
        sentences.map(|who| format!("{who}: weir sees only what it hands on (TCX_NEXT)"))
    }

    /// The same with one sentence for all interfaces of a program's name.
    pub(super) fn goes_before_in_short(&self) -> impl Iterator<Item = String> {
        let mut by_name: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (index, programs) in &self.sights.before {
            let interface = self.attached.get(index).map(|at| at.wanted.name.as_str());
            for program in programs {
                by_name.entry(&program.name).or_default().extend(interface);
            }
        }
        let sentences: Vec<String> = by_name
            .iter()
            .map(|(name, interfaces)| {
                let interfaces = describe::examples(interfaces);
                format!(
                    "{name} stands before weir at tc ingress of {interfaces}: weir sees only what it hands on (TCX_NEXT)"
                )
            })
            .collect();
        sentences.into_iter()
    }

    fn before_on(&self, which: impl Fn(u32) -> bool) -> Vec<String> {
        let mut all = Vec::new();
        for (index, programs) in self
            .sights
            .before
            .iter()
            .filter(|(index, _)| which(**index))
        {
            let interface = self.attached.get(index).map(|at| at.wanted.name.as_str());
            let interface = interface.unwrap_or("an interface");
            all.extend(programs.iter().map(|Program { id, name }| {
                format!("{name} (program {id}) stands before weir at tc ingress of {interface}")
            }));
        }
        all
    }
}

/// How well a listener's address fits one of its port; 0: not at all. The best one is asked.
fn fit(listener: &Listener, ip: IpAddr) -> u8 {
    const ANY4: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    const ANY6: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    match listener.address.ip {
        Some(own) if own == ip => 3,
        Some(ANY4) if ip.is_ipv4() => 2,
        Some(ANY6) if ip.is_ipv6() => 2,
        None | Some(ANY6) => 1,
        Some(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use weir_core::listener::ListenAddress;
    use weir_core::verdict::Verdict;
    use weir_kernel::Neighbours;

    use super::*;
    use crate::daemon::backend::fake::{Fake, NORMAL, socket};
    use crate::host::links::fake::link;

    fn web(ip: Option<&str>) -> Listener {
        let ip = ip.map(|ip| ip.parse().unwrap());
        let name = ip.map_or("any".to_owned(), |ip: IpAddr| ip.to_string());
        Listener::new(name, ListenAddress { ip, port: 80 })
    }

    fn start(fake: &Fake, listeners: Vec<Listener>) -> Session<Fake> {
        fake.0.borrow_mut().sockets = vec![socket("0.0.0.0", 80)];
        let links = vec![link(1, "lo"), link(2, "eth0")];
        Session::start(fake.clone(), NORMAL, listeners, Vec::new(), links).unwrap()
    }

    fn came(ip: &str, port: u16, ifindex: u32, count: u64) -> Established {
        let ip = ip.parse().unwrap();
        Established {
            ip,
            port,
            ifindex,
            count,
        }
    }

    fn program() -> Program {
        let name = "cil_from_netdev".to_owned();
        Program { id: 7, name }
    }

    #[test]
    fn a_listener_that_misses_syns_is_not_in_force_until_weir_goes_first_again() {
        let fake = Fake::default();
        let mut session = start(&fake, vec![web(None)]);
        let look = |session: &mut Session<Fake>, count, syns| {
            fake.0.borrow_mut().established = vec![came("192.0.2.1", 80, 2, count)];
            let mut counters = weir_core::verdict::Counters::default();
            counters.0[Verdict::SynAdmitted as usize] = syns;
            fake.0.borrow_mut().counters.insert("any".into(), counters);
            let glances = session.glances().unwrap();
            session.follow_sight(&glances, Instant::now())
        };
        assert!(look(&mut session, 5, 5).is_empty());
        assert!(look(&mut session, 10, 10).is_empty());
        let neighbours = Neighbours {
            before: vec![program()],
            behind: Vec::new(),
        };
        fake.0.borrow_mut().neighbours.insert(2, neighbours);
        session.sights.due = Instant::now();
        assert!(session.look_before(Instant::now()));
        let warning = "cil_from_netdev (program 7) stands before weir at tc ingress of eth0: weir sees only what it \
                       hands on (TCX_NEXT)";
        assert_eq!(session.warnings_apart(), [warning]);
        assert!(
            session.listeners().unwrap()[0].in_force,
            "it may hand all on"
        );
        let changes = look(&mut session, 30, 10);
        assert!(!changes[0].in_force, "{changes:?}");
        let report = session.listeners().unwrap().remove(0);
        assert!(!report.in_force);
        assert_eq!(
            report.not_in_force_because.unwrap(),
            "connections come whose SYNs do not reach weir: cil_from_netdev (program 7) stands before weir at tc ingress \
             of eth0 and does not hand them on"
        );
        assert!(session.not_in_force()[0].hint.contains("weir reload"));
        session.swap(NORMAL, vec![web(None)], Vec::new()).unwrap();
        assert!(
            !session.listeners().unwrap()[0].in_force,
            "weir does not fight"
        );
        session.go_first(Instant::now());
        assert!(session.listeners().unwrap()[0].in_force);
        assert!(session.warnings().is_empty());
    }

    #[test]
    fn who_stood_before_weir_is_not_gone_because_it_cannot_be_asked() {
        let fake = Fake::default();
        let mut session = start(&fake, vec![web(None)]);
        let neighbours = Neighbours {
            before: vec![program()],
            behind: Vec::new(),
        };
        fake.0.borrow_mut().neighbours.insert(2, neighbours);
        assert!(session.look_before(Instant::now()));
        fake.0.borrow_mut().cannot_ask = true;
        session.sights.due = Instant::now();
        assert!(!session.look_before(Instant::now()));
        assert_eq!(session.warnings_apart().len(), 1);
    }

    #[test]
    fn the_wait_of_a_full_queue_is_by_what_came_out_of_it() {
        let fake = Fake::default();
        let mut session = start(&fake, vec![web(None)]);
        let full = weir_kernel::ListenSocket {
            queue_length: 511,
            wait: Some(Duration::from_millis(4600)),
            service: Some(Duration::from_millis(9)),
            ..socket("0.0.0.0", 80)
        };
        fake.0.borrow_mut().sockets = vec![full];
        for quarter in 0..40 {
            // 43 accepts/s.
            let now = session.sights.begun + Duration::from_millis(250 * quarter);
            fake.0.borrow_mut().established =
                vec![came("192.0.2.1", 80, 2, 1000 + quarter * 43 / 4)];
            let glances = session.glances().unwrap();
            session.follow_sight(&glances, now);
        }
        let report = session.listeners().unwrap().remove(0);
        let seconds = |us: Option<u64>| us.unwrap() as f64 / 1e6;
        assert!(
            (11.0..13.0).contains(&seconds(report.wait_us)),
            "{report:?}"
        );
        assert!(
            (0.021..0.026).contains(&seconds(report.service_us)),
            "{report:?}"
        );
        let glance = session.glances().unwrap().remove(0);
        assert!(
            (11.0..13.0).contains(&glance.wait.unwrap().as_secs_f64()),
            "{glance:?}"
        );
    }

    #[test]
    fn connections_whose_syns_meet_no_socket_put_the_listener_out_of_force() {
        let fake = Fake::default();
        let mut session = start(&fake, vec![web(None)]);
        let mut look = |count| {
            fake.0.borrow_mut().established = vec![came("192.0.2.1", 80, 2, count)];
            let mut counters = weir_core::verdict::Counters::default();
            counters.0[Verdict::SynUnheard as usize] = count;
            fake.0.borrow_mut().counters.insert("any".into(), counters);
            let glances = session.glances().unwrap();
            session.follow_sight(&glances, Instant::now())
        };
        assert!(look(1).is_empty());
        let changes = look(5);
        assert!(
            !changes[0].in_force && changes[0].text.contains("syn_unheard"),
            "{changes:?}"
        );
        let report = session.listeners().unwrap().remove(0);
        assert!(
            report
                .not_in_force_because
                .unwrap()
                .contains("bound to a VRF")
        );
    }

    #[test]
    fn connections_over_a_vrf_count_where_weir_is_on_all_of_its_interfaces() {
        let fake = Fake::default();
        fake.0.borrow_mut().sockets = vec![socket("0.0.0.0", 80)];
        let vrf = Link {
            vrf: true,
            ..link(5, "red")
        };
        let in_it = |index, name| Link {
            master: Some(5),
            ..link(index, name)
        };
        let links = vec![vrf, in_it(6, "eth1"), in_it(7, "eth2")];
        let on = |interfaces: &[&str]| {
            let interfaces = interfaces.iter().map(|name| (*name).to_owned()).collect();
            let listeners = vec![Listener {
                interfaces,
                ..web(None)
            }];
            let session =
                Session::start(fake.clone(), NORMAL, listeners, Vec::new(), links.clone()).unwrap();
            let listener = session.asked().next().unwrap();
            session.came_to(listener, &[came("192.0.2.1", 80, 5, 1)])
        };
        assert_eq!(on(&[]), 1);
        assert_eq!(on(&["eth1", "eth2"]), 1);
        assert_eq!(on(&["eth1"]), 0, "they may have come over eth2");
    }

    #[test]
    fn only_connections_of_the_listener_s_own_address_and_interfaces_count() {
        let fake = Fake::default();
        let on_lo = Listener {
            interfaces: vec!["lo".into()],
            ..web(Some("127.0.0.1"))
        };
        let session = start(&fake, vec![web(None), web(Some("192.0.2.1")), on_lo]);
        let all = [
            came("192.0.2.1", 80, 2, 1),
            came("192.0.2.2", 80, 2, 10),
            came("192.0.2.2", 80, 9, 100),
            came("192.0.2.1", 81, 2, 1000),
            came("127.0.0.1", 80, 2, 10_000),
            came("127.0.0.1", 80, 1, 100_000),
        ];
        let counts: Vec<u64> = session
            .asked()
            .map(|listener| session.came_to(listener, &all))
            .collect();
        assert_eq!(counts, [10, 1, 100_000]);
    }
}

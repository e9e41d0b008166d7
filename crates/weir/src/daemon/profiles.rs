//! What each listener has gone through since weir looks at it, for `weir suggest`. [`weir_core::profile`] keeps it.

use std::collections::BTreeMap;
use std::time::Duration;

use weir_api::Suggestions;
use weir_core::listener::Listener;
use weir_core::profile::quic::QuicProfile;
use weir_core::profile::{Look, Profile};
use weir_core::quic::{QuicListener, QuicLook};
use weir_core::suggest::LEAST_TIME;
use weir_core::workload::Where;
use weir_kernel::monotonic;

use crate::daemon::quic::QuicGlance;
use crate::daemon::refusals::Refusals;
use crate::daemon::session::Glance;
use crate::host::udp::{self, UdpServer};
use crate::show::suggest::{self, quic::Machine};

/// How often the sources that are refused most are noted: a fraction of the minute over which they are averaged.
const SOURCES_EVERY: Duration = Duration::from_secs(10);

/// The profiles of all listeners, by name. At most 4 MiB, of 256 listeners.
#[derive(Default)]
pub struct Profiles {
    /// Each with the settings that the listener had meanwhile.
    listeners: BTreeMap<String, (Listener, Profile)>,
    /// The same of QUIC listeners, 64 at most.
    quic: BTreeMap<String, (QuicListener, QuicProfile)>,
    sources_seen: Duration,
}

/// The time to have looked at least, if a client asks for so many seconds.
pub fn least(seconds: Option<u64>) -> Duration {
    seconds.map_or(LEAST_TIME, Duration::from_secs)
}

impl Profiles {
    /// Takes a look at all listeners in. One with other settings than before begins anew: what it did followed from them.
    pub fn take<'a>(
        &mut self,
        listeners: impl Iterator<Item = &'a Listener>,
        glances: &[Glance],
        refusals: &Refusals,
    ) {
        let now = monotonic();
        self.listeners
            .retain(|name, _| glances.iter().any(|glance| glance.name == *name));
        for (listener, glance) in listeners.zip(glances) {
            let known = self.listeners.entry(listener.name.clone());
            let (settings, profile) =
                known.or_insert_with(|| (listener.clone(), Profile::default()));
            if settings != listener {
                (*settings, *profile) = (listener.clone(), Profile::default());
            }
            profile.take(Look {
                at: now,
                queue_length: glance.queue_length,
                queue_limit: glance.queue_limit,
                sockets: glance.sockets,
                half_open: glance.half_open,
                wait: glance.wait,
                counters: &glance.counters,
                rule: glance.rule,
                seen: glance.seen(now),
            });
        }
        self.see_sources(now, refusals);
    }

    /// Takes a look at the QUIC listeners of weir's own network namespace in.
    pub fn take_quic(&mut self, glances: &[QuicGlance]) {
        let now = monotonic();
        let here = |one: &&QuicGlance| one.listener.location == Where::Here;
        self.quic.retain(|name, _| {
            let mut here = glances.iter().filter(here);
            here.any(|one| one.listener.name == *name)
        });
        for glance in glances.iter().filter(here) {
            let listener = &glance.listener;
            let known = self.quic.entry(listener.name.clone());
            let (settings, profile) =
                known.or_insert_with(|| (listener.clone(), QuicProfile::default()));
            if settings != listener {
                (*settings, *profile) = (listener.clone(), QuicProfile::default());
            }
            profile.take(QuicLook {
                at: now,
                listener,
                counters: &glance.counters,
                sockets: &glance.sockets,
            });
        }
    }

    /// Whether there are QUIC listeners, of which it is asked who serves them.
    pub fn has_quic(&self) -> bool {
        !self.quic.is_empty()
    }

    fn see_sources(&mut self, now: Duration, refusals: &Refusals) {
        if now.saturating_sub(self.sources_seen) < SOURCES_EVERY {
            return;
        }
        self.sources_seen = now;
        for (listener, source) in refusals.largest() {
            if let Some((_, profile)) = self.listeners.get_mut(&*listener) {
                profile.see_source(source);
            }
        }
    }

    /// What follows for each listener. `least`: the time to have looked at least.
    pub fn suggestions(
        &mut self,
        least: Duration,
        refusals: &Refusals,
        beside: &Beside<'_>,
    ) -> Suggestions {
        // Sources of the last seconds, too.
        self.sources_seen = Duration::ZERO;
        self.see_sources(monotonic(), refusals);
        let listeners = self.listeners.values();
        let one = |(listener, profile): &(Listener, Profile)| {
            suggest::suggestion(listener, profile, least)
        };
        let quic = self.quic.values().map(|(listener, profile)| {
            let mut servers = beside.servers.iter();
            let its = servers.find(|one| udp::is_at(&one.socket, listener.address));
            let process = its.and_then(|one| one.process.as_ref());
            let machine = Machine {
                listeners: &beside.listeners,
                rmem_max: beside.rmem_max,
                server: process.map(|process| process.comm.as_str()),
            };
            suggest::quic::suggestion(listener, profile, least, &machine)
        });
        Suggestions {
            listeners: listeners.map(one).collect(),
            quic: quic.collect(),
        }
    }
}

/// What suggestions for QUIC listeners depend on, beside what they have gone through.
pub struct Beside<'a> {
    /// The listeners under guard in weir's own network namespace.
    pub listeners: Vec<&'a Listener>,
    /// `net.core.rmem_max`.
    pub rmem_max: Option<u32>,
    /// The UDP sockets that may be those of QUIC servers.
    pub servers: Vec<UdpServer>,
}

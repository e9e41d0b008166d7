//! What each listener has gone through since weir looks at it, for `weir suggest`. [`weir_core::profile`] keeps it.

use std::collections::BTreeMap;
use std::time::Duration;

use weir_api::Suggestions;
use weir_core::listener::Listener;
use weir_core::profile::{Look, Profile};
use weir_core::suggest::LEAST_TIME;
use weir_kernel::monotonic;

use crate::daemon::refusals::Refusals;
use crate::daemon::session::Glance;
use crate::show::suggest;

/// How often the sources that are refused most are noted: a fraction of the minute over which they are averaged.
const SOURCES_EVERY: Duration = Duration::from_secs(10);

/// The profiles of all listeners, by name. At most 4 MiB, of 256 listeners.
#[derive(Default)]
pub struct Profiles {
    /// Each with the settings that the listener had meanwhile.
    listeners: BTreeMap<String, (Listener, Profile)>,
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
    pub fn suggestions(&mut self, least: Duration, refusals: &Refusals) -> Suggestions {
        // Sources of the last seconds, too.
        self.sources_seen = Duration::ZERO;
        self.see_sources(monotonic(), refusals);
        let listeners = self.listeners.values();
        let one = |(listener, profile): &(Listener, Profile)| {
            suggest::suggestion(listener, profile, least)
        };
        Suggestions {
            listeners: listeners.map(one).collect(),
        }
    }
}

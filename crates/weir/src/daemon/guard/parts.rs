//! The parts of what a guard does, in one list. Start is the list put onto nothing, a reload is the list put, and what a
//! config has put that cannot be in force as a whole is undone from the end. The loop asks each part when it has work.

use std::time::{Duration, Instant};

use weir_config::Config;
use weir_core::controller::Settings;
use weir_core::listener::Listener;
use weir_core::quic::QuicListener;

use super::{GuardService, here};
use crate::daemon::backend::Backend;
use crate::daemon::controller::Control;
use crate::daemon::observing::Modes;
use crate::daemon::service::Put;
use crate::failure::Result;
use crate::host::environment;
use crate::host::links;
use crate::show::describe;

/// How what was in force of a part comes back.
type Undo<B> = Box<dyn FnOnce(&mut GuardService<B>) -> Result<()>>;

/// A part of a guard.
struct Part<B> {
    /// Puts what a config says of it in force. On an error it has left its part as it was.
    put: fn(&mut GuardService<B>, &Config, Instant) -> Result<Undo<B>>,
    /// When it has work without being woken; `None`: it has none.
    due_at: fn(&GuardService<B>) -> Option<Instant>,
    /// Works, if it is time to.
    work: fn(&mut GuardService<B>, Instant),
}

impl<B: Backend> Part<B> {
    /// In the order in which they are put, and work. What fails most often is first: then nothing else has changed.
    const ALL: [Part<B>; 12] = [
        Part {
            put: GuardService::put_shapes,
            due_at: |me| me.shaping.due_at(),
            work: |me, now| me.shaping.work(now),
        },
        // In other network namespaces; which of them are about servers of weir's own the next part needs to know.
        Part {
            put: GuardService::put_elsewhere,
            due_at: |me| me.elsewhere.due_at(),
            work: GuardService::follow_elsewhere,
        },
        // Which classes may name: the next part puts these in force.
        Part {
            put: GuardService::put_quic,
            due_at: |_| None,
            work: |_, _| {},
        },
        // With the requests that their servers have.
        Part {
            put: GuardService::put_listeners,
            due_at: |me| me.residences.due_at(),
            work: |me, now| me.residences.work(&mut me.session, now),
        },
        Part {
            put: GuardService::put_timewait,
            due_at: |me| me.timewait.due_at(),
            work: |me, now| me.timewait.work(now),
        },
        // What of their interfaces could not be done.
        Part {
            put: GuardService::put_nothing,
            due_at: |me| me.relook.due_at(),
            work: GuardService::look_again,
        },
        // What else of the namespace the listeners depend on.
        Part {
            put: GuardService::put_nothing,
            due_at: |me| Some(me.filters.due_at()),
            work: GuardService::follow_filters,
        },
        Part {
            put: GuardService::put_nothing,
            due_at: |me| Some(me.services.due_at()),
            work: GuardService::follow_services,
        },
        Part {
            put: GuardService::put_nothing,
            due_at: |me| Some(me.sysctls.due_at()),
            work: GuardService::follow_sysctls,
        },
        Part {
            put: GuardService::put_nothing,
            due_at: |me| me.follow.as_ref().map(|follow| follow.due),
            work: GuardService::look_for_servers,
        },
        // What happens.
        Part {
            put: GuardService::put_events,
            due_at: |me| Some(me.overload.due_at()),
            work: GuardService::look,
        },
        Part {
            put: GuardService::put_controller,
            due_at: |me| me.control.as_ref().map(Control::due_at),
            work: GuardService::control,
        },
    ];
}

impl<B: Backend> GuardService<B> {
    /// Puts a config in force.
    ///
    /// # Errors
    /// A part of it cannot be: then what was in force is, as a whole.
    pub(super) fn put(&mut self, config: &Config, now: Instant) -> Result<()> {
        // What can be told beforehand is.
        environment::check_fit(&self.environment(), &here(&config.listeners))?;
        let mut undo = Vec::new();
        for part in Part::ALL {
            match (part.put)(self, config, now) {
                Ok(step) => undo.push(step),
                Err(failure) => {
                    self.undo(undo);
                    return Err(failure);
                }
            }
        }
        Ok(())
    }

    /// Puts a config in force. Gives what that undoes of `weir class`: a sentence each.
    ///
    /// # Errors
    /// As of [`GuardService::put`]: what was in force stays.
    pub(super) fn put_as(
        &mut self,
        mut config: Config,
        now: Instant,
        put: Put,
    ) -> Result<Vec<String>> {
        let (mut undone, mut of_file, mut modes) = (Vec::new(), None, None);
        match put {
            Put::File => undone = self.session.undone_by(&config.classes),
            Put::Again { observes } => {
                of_file = Some(self.session.classes_of_file().to_vec());
                config.classes = self.session.classes().to_vec();
                modes = observes.then(|| Modes::take(&mut config));
            }
        }
        let before = std::mem::replace(&mut self.observes, modes);
        if let Err(failure) = self.put(&config, now) {
            self.observes = before;
            return Err(failure);
        }
        if let Some(of_file) = of_file {
            self.session.note_classes_of_file(of_file);
        }
        Ok(undone)
    }

    fn undo(&mut self, steps: Vec<Undo<B>>) {
        for step in steps.into_iter().rev() {
            if let Err(failure) = step(self) {
                tracing::error!("what was in force is not put back whole: {failure}");
            }
        }
    }

    /// When some part has work.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let due = Part::ALL.iter().map(|part| (part.due_at)(self));
        due.flatten().min()
    }

    /// Has each part work whose time has come.
    pub(super) fn work_all(&mut self, now: Instant) {
        for part in Part::ALL {
            (part.work)(self, now);
        }
    }

    fn put_nothing(&mut self, _config: &Config, _now: Instant) -> Result<Undo<B>> {
        Ok(Box::new(|_| Ok(())))
    }

    fn put_shapes(&mut self, config: &Config, _now: Instant) -> Result<Undo<B>> {
        let before = self.shaping.list().to_vec();
        self.shaping.set(config.shapes.clone(), &links::list()?)?;
        for warning in self.shaping.warnings() {
            tracing::warn!("{warning}");
        }
        let (in_force, all) = self.shaping.count();
        if all > 0 {
            tracing::info!("{} in force", describe::part(in_force, all, "shape"));
        }
        Ok(Box::new(|me| me.shaping.set(before, &links::list()?)))
    }

    fn put_elsewhere(&mut self, config: &Config, _now: Instant) -> Result<Undo<B>> {
        let before = self.elsewhere.all();
        self.set_elsewhere(&config.listeners)?;
        Ok(Box::new(move |me| me.set_elsewhere(&before)))
    }

    fn set_elsewhere(&mut self, listeners: &[Listener]) -> Result<()> {
        self.elsewhere.set(listeners, self.session.spaces_mut())?;
        self.session.know(self.elsewhere.asked().to_vec());
        Ok(())
    }

    fn put_listeners(&mut self, config: &Config, now: Instant) -> Result<Undo<B>> {
        let before = self.session.in_force();
        let (listeners, classes) = (self.elsewhere.own(), config.classes.clone());
        self.session.swap(self.environment(), listeners, classes)?;
        let next = self.filters.due_at().saturating_duration_since(now);
        self.session.looked_behind(Duration::ZERO, next);
        self.session.forget_gates();
        self.relook.note(self.session.lacks_interfaces(), now);
        self.residences.set(self.session.asked());
        Ok(Box::new(|me| {
            me.session.put_back(before)?;
            me.session.forget_gates();
            me.residences.set(me.session.asked());
            Ok(())
        }))
    }

    fn put_timewait(&mut self, config: &Config, _now: Instant) -> Result<Undo<B>> {
        // Its listeners too: those of the session are put back later.
        let (list, listeners) = (
            self.timewait.list().to_vec(),
            self.timewait.listeners().to_vec(),
        );
        self.set_timewait(config.destinations.clone())?;
        Ok(Box::new(|me| {
            me.timewait.set(list, listeners, &links::list()?)
        }))
    }

    fn put_quic(&mut self, config: &Config, _now: Instant) -> Result<Undo<B>> {
        let before = (self.quic.list().to_vec(), self.quic.controller());
        self.set_quic(config.quic.clone(), config.controller)?;
        for warning in self.quic.warnings() {
            tracing::warn!("{warning}");
        }
        if let Some(told) = self.quic.told() {
            tracing::info!("{told}");
        }
        Ok(Box::new(move |me| me.set_quic(before.0, before.1)))
    }

    pub(super) fn set_quic(
        &mut self,
        list: Vec<QuicListener>,
        controller: Option<Settings>,
    ) -> Result<()> {
        let backend = self.session.backend_mut();
        self.quic.set(list, controller, &links::list()?, backend)?;
        self.session.know_quic(self.quic.list());
        Ok(())
    }

    fn put_events(&mut self, config: &Config, _now: Instant) -> Result<Undo<B>> {
        let before = self.refusals.settings().cloned();
        self.refusals.set(config.events.as_ref());
        Ok(Box::new(move |me| {
            me.refusals.set(before.as_ref());
            Ok(())
        }))
    }

    /// A controller whose settings stay goes on as it is.
    fn put_controller(&mut self, config: &Config, now: Instant) -> Result<Undo<B>> {
        let before = self.control.as_ref().map(Control::settings).copied();
        // On an error another one is nobody's already.
        let undo: Undo<B> = Box::new(move |me| me.set_controller(before, now));
        match self.set_controller(config.controller, now) {
            Ok(()) => Ok(undo),
            Err(failure) => {
                self.undo(vec![undo]);
                Err(failure)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use weir_config::SynFilter;
    use weir_core::listener::ListenAddress;
    use weir_core::policy::Services;
    use weir_core::verdict::{Counters, Verdict};
    use weir_kernel::{Namespace, TcpOptions};

    use super::super::elsewhere::{Elsewhere, Machine};
    use super::*;
    use crate::daemon::backend::fake::{Fake, NORMAL, socket};
    use crate::daemon::events::Events;
    use crate::daemon::filters::FilterWatch;
    use crate::daemon::overload::OverloadLog;
    use crate::daemon::profiles::Profiles;
    use crate::daemon::quic::QuicGuard;
    use crate::daemon::refusals::Refusals;
    use crate::daemon::relook::Relook;
    use crate::daemon::residence::Residences;
    use crate::daemon::session::Session;
    use crate::daemon::shaping::Shaping;
    use crate::daemon::sysctls::SysctlWatch;
    use crate::daemon::timewait::TimeWaits;
    use crate::daemon::unjudged::Unjudged;
    use crate::host::filters::Filters;
    use crate::host::ipvs::ServiceWatch;
    use crate::host::links::LinkWatch;
    use crate::host::links::fake::link;

    /// A guard whose kernel half only remembers, and that guards nothing yet.
    fn guard(fake: &Fake, now: Instant) -> GuardService<Fake> {
        let folder = tempfile::tempdir().unwrap();
        GuardService {
            session: Session::none(fake.clone(), NORMAL, vec![link(1, "lo")]),
            residences: Residences::none(),
            filters: FilterWatch::new(None, now),
            behind: Filters::default(),
            services: ServiceWatch::new(Services::default(), now),
            sysctls: SysctlWatch::new(TcpOptions::read(), now),
            watch: LinkWatch::new().unwrap(),
            qdiscs: LinkWatch::of_qdiscs().unwrap(),
            relook: Relook::new(),
            command: "run",
            file: None,
            namespace: 1,
            refusals: Refusals::new(1, false),
            profiles: Profiles::default(),
            events: Events::new(),
            told: Vec::new(),
            overload: OverloadLog::new(),
            unjudged: Unjudged::default(),
            follow: None,
            elsewhere: Elsewhere::none(Machine::open, Namespace::with_cookie(0), true, now),
            timewait: TimeWaits::none(None),
            quic: QuicGuard::none(),
            shaping: Shaping::new(folder.path()).unwrap(),
            control: None,
            observes: None,
            end: None,
        }
    }

    fn web() -> Config {
        let address = ListenAddress { ip: None, port: 80 };
        Config {
            listeners: vec![Listener::new("web", address)],
            ..Config::default()
        }
    }

    /// The server refuses from the second second to the end of the tenth, and nothing comes after that.
    #[test]
    fn the_loop_runs_in_virtual_time_and_tells_an_overload_at_its_time() {
        let fake = Fake::default();
        fake.0.borrow_mut().sockets = vec![weir_kernel::ListenSocket {
            queue_length: 0,
            ..socket("0.0.0.0", 80)
        }];
        let mut service = guard(&fake, Instant::now());
        let begun = service.overload.due_at();
        service.put(&web(), begun).unwrap();
        let mut now = begun;
        while now < begun + Duration::from_secs(60) {
            now = service.next_due().unwrap().max(now);
            let second = (now - begun).as_secs();
            let mut counters = Counters::default();
            counters.0[Verdict::SynResetFull as usize] = second.clamp(1, 10) - 1;
            fake.0.borrow_mut().counters.insert("web".into(), counters);
            service.work_all(now);
        }
        let events = service.events.read(0, 100).events;
        let episodes = events.iter().filter_map(|event| event.episode.as_ref());
        let told: Vec<_> = episodes
            .map(|one| (one.state.as_str(), one.turned_away, one.duration_ms / 1000))
            .collect();
        // Since the look before the first refusal.
        assert_eq!(told, [("begins", 1, 1), ("ends", 9, 9)]);
    }

    /// The news of an interface is used up when it is read: what fails then is tried again without any.
    #[test]
    fn an_interface_that_could_not_be_guarded_is_tried_again_within_seconds() {
        let fake = Fake::default();
        let begun = Instant::now();
        let mut service = guard(&fake, begun);
        let lo = links::list()
            .unwrap()
            .into_iter()
            .find(|link| link.loopback);
        let lo = lo.unwrap().index;
        service.put(&web(), begun).unwrap();
        assert_eq!(service.relook.due_at(), None);
        fake.0.borrow_mut().attached.clear();
        service.session.forget_interfaces();
        fake.0.borrow_mut().broken = vec![lo];
        service.follow_links(begun);
        assert!(!fake.0.borrow().attached.contains_key(&lo));
        let due = service.relook.due_at().unwrap();
        assert_eq!(due, begun + Duration::from_secs(1));
        fake.0.borrow_mut().broken.clear();
        service.look_again(begun);
        assert!(!fake.0.borrow().attached.contains_key(&lo), "not due");
        service.look_again(due);
        assert!(fake.0.borrow().attached.contains_key(&lo));
    }

    /// A look is only worth its name when the policy follows it: cookies are not held on by one that does not.
    #[test]
    fn a_filter_whose_policy_could_not_be_put_in_force_is_tried_at_each_look_and_cookies_end() {
        let fake = Fake::default();
        let begun = Instant::now();
        let mut service = guard(&fake, begun);
        service.put(&web(), begun).unwrap();
        fake.0.borrow_mut().cookies_hold = None;
        service.filters = FilterWatch::new(Some(SynFilter::Conntrack), begun);
        fake.0.borrow_mut().refuse_apply = true;
        // The next look is as late as this one was slow, and what has been gone for long is none.
        for _ in 0..2 {
            service.filters.hurry();
            service.follow_filters(service.filters.due_at());
            assert_eq!(service.session.syn_filter(), None);
            assert_eq!(fake.0.borrow().cookies_hold, None);
        }
        fake.0.borrow_mut().refuse_apply = false;
        service.filters.hurry();
        service.follow_filters(service.filters.due_at());
        assert_eq!(service.session.syn_filter(), service.filters.found());
        assert!(service.session.syn_filter().is_some());
        assert!(fake.0.borrow().cookies_hold.is_some());
    }

    #[test]
    fn what_every_part_has_put_is_undone_from_the_end() {
        let fake = Fake::default();
        let begun = Instant::now();
        let mut service = guard(&fake, begun);
        service.put(&web(), begun).unwrap();
        let in_force = |service: &GuardService<Fake>| {
            let session = &service.session;
            let listeners: Vec<Listener> = session.asked().cloned().collect();
            let controller = service.control.as_ref().map(Control::settings).copied();
            let events = service.refusals.settings().cloned();
            (listeners, session.classes().to_vec(), controller, events)
        };
        let before = in_force(&service);
        let other = "[[listener]]\naddress = \"*:81\"\n[[class]]\nname = \"gold\"\n\
                     [controller]\ntarget_wait = \"35ms\"\n[events]\nrefusals = 0\n";
        let other = weir_config::parse("other", other).unwrap();
        let put = |part: Part<Fake>| (part.put)(&mut service, &other, begun).unwrap();
        let undo: Vec<_> = Part::ALL.into_iter().map(put).collect();
        let (listeners, classes, controller, events) = in_force(&service);
        assert_eq!((listeners, classes.len()), (other.listeners.clone(), 1));
        assert_eq!(
            (controller, events),
            (other.controller, other.events.clone())
        );
        service.undo(undo);
        assert_eq!(in_force(&service), before);
    }
}

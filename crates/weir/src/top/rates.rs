//! Events per second, from two reports. A counter may have restarted between them.

use std::collections::BTreeMap;
use std::time::Duration;

use weir_api::{Backend, Class, Listener, Proxy, Quic, Status, Workload};

/// The counters of a report, by name.
type Counters = BTreeMap<String, u64>;

/// A report, and the one before it.
#[derive(Clone, Copy)]
pub struct Pair<'a> {
    now: &'a Status,
    /// With the time between the two.
    before: Option<(&'a Status, Duration)>,
}

/// The counters of one thing at the end of an interval and at its beginning.
#[derive(Clone, Copy)]
pub struct Interval<'a> {
    now: &'a Counters,
    /// `None`: they began at 0 within the interval.
    before: Option<&'a Counters>,
    time: Duration,
}

impl Interval<'_> {
    /// The counter's events per second. Of a counter that is lower than before, what it has counted since it restarted
    /// (as `rate()` of Prometheus).
    pub fn rate(&self, name: &str) -> f64 {
        let count = |counters: &Counters| counters.get(name).copied().unwrap_or(0);
        let (now, before) = (count(self.now), self.before.map_or(0, count));
        let more = now.checked_sub(before).unwrap_or(now);
        more as f64 / self.time.as_secs_f64().max(1e-3)
    }

    /// The sum of several counters' events per second.
    pub fn rates<'n>(&self, names: impl IntoIterator<Item = &'n str>) -> f64 {
        names.into_iter().map(|name| self.rate(name)).sum()
    }
}

impl<'a> Pair<'a> {
    /// Without a report before, or with one at the same moment, there are no rates.
    pub fn new(now: &'a Status, before: Option<(&'a Status, Duration)>) -> Pair<'a> {
        let before = before.filter(|(_, time)| !time.is_zero());
        Pair { now, before }
    }

    /// The time between the reports.
    pub fn time(&self) -> Option<Duration> {
        self.before.map(|(_, time)| time)
    }

    /// Of a listener of the later report; a new one began within the interval.
    pub fn listener(&self, listener: &'a Listener) -> Option<Interval<'a>> {
        let (_, time) = self.before?;
        let earlier = self.listener_before(listener);
        Some(Interval {
            now: &listener.counters,
            before: earlier.map(|listener| &listener.counters),
            time,
        })
    }

    /// Of a QUIC listener of the later report; a new one began within the interval.
    pub fn quic(&self, quic: &'a Quic) -> Option<Interval<'a>> {
        let (_, time) = self.before?;
        let earlier = self.quic_before(quic);
        Some(Interval {
            now: &quic.counters,
            before: earlier.map(|quic| &quic.counters),
            time,
        })
    }

    fn quic_before(&self, quic: &Quic) -> Option<&'a Quic> {
        let (before, _) = self.before?;
        let mut all = self.guard_before(before)?.quic.iter();
        all.find(|other| other.name == quic.name)
    }

    /// Of a workload of a listener of the later report; a new one began within the interval. Its namespace may have another server
    /// now: that one's counters go on.
    pub fn workload(&self, listener: &Listener, workload: &'a Workload) -> Option<Interval<'a>> {
        let (_, time) = self.before?;
        let earlier = self.workload_before(listener, workload);
        Some(Interval {
            now: &workload.counters,
            before: earlier.map(|workload| &workload.counters),
            time,
        })
    }

    /// Of a listener of the later report that is only observed: connections a second that came, and of them those that
    /// enforcement would have refused. `None` of one that enforces.
    pub fn would(&self, listener: &Listener) -> Option<(f64, f64)> {
        let figures = |listener: &Listener| listener.offered.zip(listener.would_refuse);
        let earlier = self.listener_before(listener).and_then(figures);
        self.would_between(figures(listener)?, earlier)
    }

    /// The same of a QUIC listener.
    pub fn would_quic(&self, quic: &Quic) -> Option<(f64, f64)> {
        let figures = |quic: &Quic| quic.offered.zip(quic.would_refuse);
        let earlier = self.quic_before(quic).and_then(figures);
        self.would_between(figures(quic)?, earlier)
    }

    /// The same of a workload.
    pub fn would_there(&self, listener: &Listener, workload: &Workload) -> Option<(f64, f64)> {
        let figures = |one: &Workload| one.offered.zip(one.would_refuse);
        let earlier = self.workload_before(listener, workload).and_then(figures);
        self.would_between(figures(workload)?, earlier)
    }

    fn would_between(&self, now: (u64, u64), earlier: Option<(u64, u64)>) -> Option<(f64, f64)> {
        let (_, time) = self.before?;
        let earlier = earlier.unwrap_or_default();
        let rate = |now: u64, before: u64| {
            now.saturating_sub(before) as f64 / time.as_secs_f64().max(1e-3)
        };
        Some((rate(now.0, earlier.0), rate(now.1, earlier.1)))
    }

    fn listener_before(&self, listener: &Listener) -> Option<&'a Listener> {
        let (before, _) = self.before?;
        let mut listeners = self.guard_before(before)?.listeners.iter();
        listeners.find(|other| other.name == listener.name)
    }

    fn workload_before(&self, listener: &Listener, workload: &Workload) -> Option<&'a Workload> {
        let mut workloads = self.listener_before(listener)?.workloads.iter();
        workloads.find(|other| other.netns_cookie == workload.netns_cookie)
    }

    /// Of a class of the later report: of one listener, or of all (`None`). `None` if the report before left out
    /// classes, and this one may have been among them.
    pub fn class(&self, listener: Option<&str>, class: &'a Class) -> Option<Interval<'a>> {
        let (before, time) = self.before?;
        let (classes, left_out): (&[Class], usize) = match (self.guard_before(before), listener) {
            (None, _) => (&[], 0),
            (Some(status), None) => (&status.classes, status.classes_left_out),
            (Some(status), Some(name)) => {
                let mut listeners = status.listeners.iter();
                let found = listeners.find(|listener| listener.name == name);
                found.map_or((&[][..], 0), |l| (&l.classes, l.classes_left_out))
            }
        };
        let earlier = classes.iter().find(|other| other.name == class.name);
        (earlier.is_some() || left_out == 0).then_some(Interval {
            now: &class.counters,
            before: earlier.map(|class| &class.counters),
            time,
        })
    }

    /// Of a proxy of the later report. After a take-over two processes may have proxies of one name.
    pub fn proxy(&self, proxy: &'a Proxy) -> Option<Interval<'a>> {
        let (before, time) = self.before?;
        Some(Interval {
            now: &proxy.counters,
            before: proxy_before(before, proxy).map(|proxy| &proxy.counters),
            time,
        })
    }

    /// Of a backend of a proxy of the later report.
    pub fn backend(&self, proxy: &Proxy, backend: &'a Backend) -> Option<Interval<'a>> {
        let (before, time) = self.before?;
        let mut backends = proxy_before(before, proxy)
            .into_iter()
            .flat_map(|p| &p.backends);
        let earlier = backends.find(|other| other.address == backend.address);
        Some(Interval {
            now: &backend.counters,
            before: earlier.map(|backend| &backend.counters),
            time,
        })
    }

    /// The report before, if it is of the same process: the counters of another one began at 0.
    fn guard_before<'b>(&self, before: &'b Status) -> Option<&'b Status> {
        let same = match (&before.process, &self.now.process) {
            (Some(before), Some(now)) => {
                before.pid == now.pid && before.started_unix_ms == now.started_unix_ms
            }
            _ => false,
        };
        same.then_some(before)
    }
}

fn proxy_before<'a>(before: &'a Status, proxy: &Proxy) -> Option<&'a Proxy> {
    let mut proxies = before.proxies.iter();
    proxies.find(|other| other.name == proxy.name && other.pid == proxy.pid)
}

#[cfg(test)]
mod tests {
    use weir_api::Process;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn status(pid: u32, started_unix_ms: u64, count: u64) -> Status {
        let listener = Listener {
            name: "web".into(),
            counters: [("syn_admitted".to_owned(), count)].into(),
            ..Listener::default()
        };
        Status {
            running: true,
            process: Some(Process {
                pid,
                started_unix_ms,
                ..Process::default()
            }),
            listeners: vec![listener],
            ..Status::default()
        }
    }

    fn rate(before: &Status, now: &Status, time: Duration) -> Option<f64> {
        let pair = Pair::new(now, Some((before, time)));
        let interval = pair.listener(&now.listeners[0])?;
        Some(interval.rate("syn_admitted"))
    }

    #[test]
    fn a_rate_is_what_was_counted_over_the_time_between_the_reports() {
        let (before, now) = (status(7, 1, 100), status(7, 1, 250));
        assert_eq!(rate(&before, &now, SECOND), Some(150.0));
        assert_eq!(rate(&before, &now, SECOND / 2), Some(300.0));
        assert_eq!(rate(&before, &now, Duration::ZERO), None);
        assert!(Pair::new(&now, None).listener(&now.listeners[0]).is_none());
    }

    #[test]
    fn a_counter_that_restarted_is_never_negative_and_counts_from_its_start() {
        // A reload took the listener out and in again.
        assert_eq!(
            rate(&status(7, 1, 100), &status(7, 1, 40), SECOND),
            Some(40.0)
        );
        // Another process: its counter has already passed the old one.
        assert_eq!(
            rate(&status(7, 1, 100), &status(8, 2, 150), SECOND),
            Some(150.0)
        );
        // The first process of a container has the id 1, whenever it was started.
        assert_eq!(
            rate(&status(1, 1, 100), &status(1, 2, 150), SECOND),
            Some(150.0)
        );
        // None ran before.
        assert_eq!(
            rate(&Status::default(), &status(7, 1, 30), SECOND),
            Some(30.0)
        );
    }

    #[test]
    fn a_class_that_the_report_before_may_have_left_out_has_no_rate() {
        let class = |count| Class {
            name: "gold".into(),
            counters: [("syn_admitted".to_owned(), count)].into(),
            ..Class::default()
        };
        let mut now = status(7, 1, 0);
        now.listeners[0].classes = vec![class(500)];
        let mut before = status(7, 1, 0);
        let rate = |before: &Status, now: &Status| {
            let pair = Pair::new(now, Some((before, SECOND)));
            let interval = pair.class(Some("web"), &now.listeners[0].classes[0])?;
            Some(interval.rate("syn_admitted"))
        };
        assert_eq!(rate(&before, &now), Some(500.0), "a new class");
        before.listeners[0].classes_left_out = 1;
        assert_eq!(rate(&before, &now), None);
        before.listeners[0].classes = vec![class(400)];
        assert_eq!(rate(&before, &now), Some(100.0));
    }

    #[test]
    fn two_processes_may_have_proxies_of_one_name() {
        let proxy = |pid, requests| Proxy {
            name: "edge".into(),
            pid,
            counters: [("requests".to_owned(), requests)].into(),
            ..Proxy::default()
        };
        let of = |proxies| Status {
            proxies,
            ..Status::default()
        };
        let (before, now) = (
            of(vec![proxy(1, 90)]),
            of(vec![proxy(1, 100), proxy(2, 30)]),
        );
        let pair = Pair::new(&now, Some((&before, SECOND)));
        let rates = now
            .proxies
            .iter()
            .map(|p| pair.proxy(p).unwrap().rate("requests"));
        assert_eq!(rates.collect::<Vec<_>>(), [10.0, 30.0]);
    }
}

//! The names of backends: a thread for each looks it up again and again, and tells the [`BackendSet`] what it finds. No
//! thread that moves data waits for a look-up, and a name whose name server is silent holds no other name up.
//!
//! getaddrinfo(3) looks up, as for clients of mode forward: it knows hosts(5), nsswitch.conf(5) and what else an operator has
//! set up. It does not tell the time to live of the records.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use weir_core::units::count;

use super::backend_set::{AddressChange, BackendSet};
use super::recheck::Recheck;
use super::resolver::getaddrinfo;
use crate::metrics::NameCounters;

/// The time between two look-ups of a name at least: also of one that has no address yet, and when connections fail.
const SOONEST: Duration = Duration::from_secs(1);

/// A look-up that takes longer counts as one without an answer, until it has one.
const LATE: Duration = Duration::from_secs(5);

/// A look-up that takes longer is a failure in the log, too, though it may never be over. resolver(5) gives up before: after
/// 5 s, twice, for each of at most three name servers.
const SILENT: Duration = Duration::from_secs(30);

/// How a name is looked up. It may block.
#[derive(Clone)]
pub struct LookUp(Arc<Ask>);

type Ask = dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync;

impl Default for LookUp {
    /// By getaddrinfo(3).
    fn default() -> LookUp {
        LookUp::by(|host| getaddrinfo(host).map_err(in_words))
    }
}

impl LookUp {
    /// By this function, which may block.
    pub fn by(look_up: impl Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync + 'static) -> LookUp {
        LookUp(Arc::new(look_up))
    }

    /// The addresses of a name at which a server can be.
    ///
    /// # Errors
    /// It has none, or no name server answers.
    pub fn ask(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        // Name servers that block a name answer with 0.0.0.0, which would be this machine.
        let is_of_server = |ip: &IpAddr| !ip.is_unspecified() && !ip.is_multicast();
        let mut found = (self.0)(host)?;
        found.retain(is_of_server);
        match found.is_empty() {
            true => Err(io::Error::other("it has no address of a server")),
            false => Ok(found),
        }
    }
}

/// Looks names up at the same time, and waits for answers not longer than this. What takes longer goes on, and is left out.
pub fn resolve_all(
    names: impl IntoIterator<Item = String>,
    look_up: &LookUp,
    patience: Duration,
) -> BTreeMap<String, io::Result<Vec<IpAddr>>> {
    let until = Instant::now() + patience;
    let names: BTreeSet<String> = names.into_iter().collect();
    let (sender, answers) = mpsc::channel();
    for name in &names {
        // Without a thread it has no answer.
        let _ = ask_in_thread(name, look_up, &sender);
    }
    drop(sender);
    let left = || until.saturating_duration_since(Instant::now());
    let mut answered = BTreeMap::new();
    while let Ok((name, found)) = answers.recv_timeout(left()) {
        answered.insert(name, found);
    }
    answered
}

/// Looks a name up in a thread of its own, which sends the name and what it found.
fn ask_in_thread(
    host: &str,
    look_up: &LookUp,
    answers: &Sender<(String, io::Result<Vec<IpAddr>>)>,
) -> io::Result<()> {
    let (host, look_up, answers) = (host.to_owned(), look_up.clone(), answers.clone());
    let thread = std::thread::Builder::new().name("weir-look-up".to_owned());
    thread.spawn(move || {
        let found = look_up.ask(&host);
        let _ = answers.send((host, found));
    })?;
    Ok(())
}

impl fmt::Debug for LookUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LookUp")
    }
}

/// The look-ups of a proxy's names; they end when this is dropped.
pub struct Lookups(Vec<Arc<Name>>);

/// A name, and what its look-ups came to.
struct Name {
    host: String,
    proxy: String,
    recheck: Arc<Recheck>,
    counters: NameCounters,
    state: Mutex<NameState>,
    /// Its first look-up is over.
    is_answered: Condvar,
}

#[derive(Default)]
struct NameState {
    /// Of the look-up that runs.
    began: Option<Instant>,
    /// The last look-up that is over.
    last: Option<Result<(), String>>,
    /// Since when look-ups fail, or the one that runs is [`SILENT`].
    fails_since: Option<Instant>,
}

/// A name of a proxy's backends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameReport {
    /// The name.
    pub name: String,
    /// Its addresses that are in use: those that the last look-up with an answer found.
    pub addresses: Vec<IpAddr>,
    /// Whether the last look-up found them.
    pub is_resolved: bool,
    /// Why it did not; empty if it did.
    pub error: String,
    /// For how long look-ups have failed.
    pub fails_for: Option<Duration>,
}

impl Lookups {
    /// Looks up all names of these backends from now on.
    ///
    /// # Errors
    /// The kernel gives no thread.
    pub fn start(
        backends: &Arc<BackendSet>,
        proxy: &str,
        interval: Duration,
        look_up: &LookUp,
    ) -> io::Result<Lookups> {
        let mut lookups = Lookups(Vec::new());
        for (host, recheck) in backends.names() {
            let name = Arc::new(Name::new(host, proxy, recheck));
            lookups.0.push(name.clone());
            let (backends, look_up) = (Arc::downgrade(backends), look_up.clone());
            // Not waited for at the end: a look-up may take long.
            std::thread::Builder::new()
                .name("weir-name".to_owned())
                .spawn(move || name.run(&backends, interval, &look_up))?;
        }
        lookups.0.sort_by(|one, other| one.host.cmp(&other.host));
        Ok(lookups)
    }

    /// Waits until each name without an address has been looked up once, but not longer than this.
    pub fn wait_for_first(&self, backends: &BackendSet, most: Duration) {
        let until = Instant::now() + most;
        for name in &self.0 {
            if backends.addresses_of(&name.host).is_none() {
                name.wait_for_first(until);
            }
        }
    }

    /// What there is of each name, in the order of the alphabet.
    pub fn reports(&self, backends: &BackendSet) -> Vec<NameReport> {
        let report = |name: &Arc<Name>| {
            let addresses = backends.addresses_of(&name.host);
            name.report(addresses.unwrap_or_default())
        };
        self.0.iter().map(report).collect()
    }

    /// What was counted of each name, in the order of [`NameCounters::NAMES`].
    pub fn counts(&self) -> impl Iterator<Item = (&str, Vec<u64>)> {
        self.0
            .iter()
            .map(|name| (&*name.host, name.counters.values().collect()))
    }

    /// Looks nothing up any more.
    pub fn end(&self) {
        self.0.iter().for_each(|name| name.recheck.end());
    }
}

impl Drop for Lookups {
    fn drop(&mut self) {
        self.end();
    }
}

impl Name {
    fn new(host: &str, proxy: &str, recheck: &Arc<Recheck>) -> Name {
        Name {
            host: host.to_owned(),
            proxy: proxy.to_owned(),
            recheck: recheck.clone(),
            counters: NameCounters::default(),
            state: Mutex::default(),
            is_answered: Condvar::new(),
        }
    }

    /// The life of a thread.
    fn run(&self, backends: &Weak<BackendSet>, interval: Duration, look_up: &LookUp) {
        while let Some(has_address) = self.look_up(backends, look_up, SILENT) {
            let interval = match has_address {
                true => interval,
                false => interval.min(SOONEST),
            };
            if !self.recheck.wait(SOONEST, interval) {
                return;
            }
        }
    }

    /// Looks the name up once, and says whether it has an address then; `None`: nothing is to be looked up any more. After
    /// `patience` it says that there is no answer, and goes on waiting.
    fn look_up(
        &self,
        backends: &Weak<BackendSet>,
        look_up: &LookUp,
        patience: Duration,
    ) -> Option<bool> {
        self.lock().began = Some(Instant::now());
        let found = self.ask(backends, look_up, patience);
        let backends = self.still_wanted(backends)?;
        self.note(&backends, found);
        Some(backends.addresses_of(&self.host).is_some())
    }

    fn ask(
        &self,
        backends: &Weak<BackendSet>,
        look_up: &LookUp,
        patience: Duration,
    ) -> io::Result<Vec<IpAddr>> {
        let (sender, answers) = mpsc::channel();
        ask_in_thread(&self.host, look_up, &sender)?;
        drop(sender);
        let mut answer = answers.recv_timeout(patience);
        if matches!(answer, Err(RecvTimeoutError::Timeout)) {
            self.note_silence(backends, patience);
            answer = answers.recv().map_err(RecvTimeoutError::from);
        }
        // It panics.
        answer.map_err(io::Error::other)?.1
    }

    /// The backends, if addresses are still looked up for them.
    fn still_wanted(&self, backends: &Weak<BackendSet>) -> Option<Arc<BackendSet>> {
        backends.upgrade().filter(|_| !self.recheck.has_ended())
    }

    /// Takes note that the look-up that runs has had no answer for so long.
    fn note_silence(&self, backends: &Weak<BackendSet>, time: Duration) {
        let Some(backends) = self.still_wanted(backends) else {
            return;
        };
        let mut state = self.lock();
        let failed_since = state.fails_since;
        state.fails_since = failed_since.or(state.began);
        drop(state);
        let error = io::Error::other(format!("no answer for {} s", time.as_secs()));
        self.say(backends.addresses_of(&self.host), Err(error), failed_since);
    }

    /// Takes note of the end of a look-up.
    fn note(&self, backends: &BackendSet, found: io::Result<Vec<IpAddr>>) {
        self.counters.lookups.add(1);
        let before = backends.addresses_of(&self.host);
        let changed = found.map(|found| backends.found(&self.host, &found));
        let mut state = self.lock();
        let began = state.began.take();
        let failed_since = state.fails_since;
        match &changed {
            Ok(change) => {
                if change.is_some() {
                    self.counters.changes.add(1);
                }
                state.fails_since = None;
                state.last = Some(Ok(()));
            }
            Err(error) => {
                self.counters.lookups_failed.add(1);
                state.fails_since = failed_since.or(began);
                state.last = Some(Err(error.to_string()));
            }
        }
        drop(state);
        self.say(before, changed, failed_since);
        self.is_answered.notify_all();
    }

    fn say(
        &self,
        before: Option<Vec<IpAddr>>,
        changed: io::Result<Option<AddressChange>>,
        failed_since: Option<Instant>,
    ) {
        let (proxy, host) = (&self.proxy, &self.host);
        match (changed, before, failed_since) {
            (Err(error), None, None) => tracing::warn!(
                "proxy {proxy:?}: cannot resolve {host}: {error}\nhint: until it resolves it has no backend; \
                 `getent ahosts {host}` asks as weir does"
            ),
            (Err(error), Some(before), None) => tracing::warn!(
                "proxy {proxy:?}: cannot resolve {host}: {error}; it keeps {}",
                listed(&before)
            ),
            // It has been said.
            (Err(_), _, Some(_)) => {}
            (Ok(change), before, failed_since) => {
                if let Some(since) = failed_since {
                    let seconds = since.elapsed().as_secs_f64();
                    let again = before.as_ref().map_or("", |_| " again");
                    tracing::info!("proxy {proxy:?}: {host} resolves{again} after {seconds:.0} s");
                }
                if let Some(change) = change {
                    self.say_change(&change, before.is_none());
                }
            }
        }
    }

    fn say_change(&self, change: &AddressChange, is_first: bool) {
        let (proxy, host) = (&self.proxy, &self.host);
        let AddressChange { new, gone, unused } = change;
        match is_first {
            true => tracing::info!("proxy {proxy:?}: {host} is {}", listed(new)),
            false => {
                let part = |ips: &[IpAddr], what| {
                    (!ips.is_empty()).then(|| format!("{} {what}", listed(ips)))
                };
                let parts = [part(new, "new"), part(gone, "gone")];
                let parts: Vec<String> = parts.into_iter().flatten().collect();
                tracing::info!("proxy {proxy:?}: {host} has changed: {}", parts.join(", "));
            }
        }
        if *unused > 0 {
            tracing::warn!(
                "proxy {proxy:?}: {host} has {} too many, not used",
                count(*unused, "address")
            );
        }
    }

    fn wait_for_first(&self, until: Instant) {
        let mut state = self.lock();
        while state.last.is_none() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return tracing::warn!(
                    "proxy {:?}: no answer for the name {} yet; it has no backend until there is one",
                    self.proxy,
                    self.host
                );
            }
            let waited = self.is_answered.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn report(&self, addresses: Vec<IpAddr>) -> NameReport {
        let state = self.lock();
        let late = state.began.map(|began| began.elapsed());
        let late = late.filter(|late| *late >= LATE);
        let error = match (&state.last, late) {
            (_, Some(late)) => format!("no answer for {} s", late.as_secs()),
            (Some(Err(error)), None) => error.clone(),
            (Some(Ok(())), None) => String::new(),
            (None, None) => "no answer yet".to_owned(),
        };
        NameReport {
            name: self.host.clone(),
            addresses,
            is_resolved: error.is_empty(),
            error,
            fails_for: state.fails_since.map(|since| since.elapsed()).or(late),
        }
    }

    fn lock(&self) -> MutexGuard<'_, NameState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// As getaddrinfo(3) says it: `Name or service not known`.
fn in_words(error: io::Error) -> io::Error {
    let text = error.to_string();
    let cause = text.strip_prefix("failed to lookup address information: ");
    cause.map_or(error, io::Error::other)
}

/// A list for the log; of a long one the first few.
fn listed(ips: &[IpAddr]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<String> = ips.iter().take(SHOWN).map(IpAddr::to_string).collect();
    match ips.len().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use weir_core::proxy::{BackendAddress, BackendSetting, HostName, Proxy, ProxyMode};

    use super::super::backend_set::KnownAddresses;
    use super::*;

    /// What is logged.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Log {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }

        /// Has what `work` logs on this thread.
        fn of(&self, work: impl FnOnce()) {
            let log = self.clone();
            let subscriber = tracing_subscriber::fmt().with_writer(move || log.clone());
            tracing::subscriber::with_default(subscriber.without_time().finish(), work);
        }
    }

    /// A name, and the backends that have it.
    fn name() -> (Name, Arc<BackendSet>) {
        let mut settings = Proxy::new("edge", "127.0.0.1:0".parse().unwrap(), ProxyMode::Tcp);
        let (host, port) = ("app.internal".to_owned(), 80);
        settings.backends = vec![BackendSetting {
            address: BackendAddress::Name(HostName { host, port }),
            weight: 1,
        }];
        let known = KnownAddresses::new();
        let backends = BackendSet::new(Arc::new(settings), 1, None, None, known);
        let (host, recheck) = backends.names().next().unwrap();
        let name = Name::new(host, "edge", recheck);
        (name, Arc::new(backends))
    }

    #[test]
    fn a_look_up_without_an_answer_is_said_once_and_once_when_there_is_one() {
        let (log, (name, backends)) = (Log::default(), name());
        let weak = Arc::downgrade(&backends);
        let found = || Ok(vec![IpAddr::from([10, 0, 0, 1])]);
        let (answer, answers) = mpsc::channel::<io::Result<Vec<IpAddr>>>();
        let answers = Mutex::new(answers);
        let look_up = LookUp::by(move |_| answers.lock().unwrap().recv().unwrap());
        let (long, short) = (Duration::from_secs(20), Duration::from_millis(10));
        log.of(|| {
            // Without and with an address that it had before.
            for _ in 0..2 {
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        let until = Instant::now() + long;
                        while name.lock().fails_since.is_none() && Instant::now() < until {
                            std::thread::yield_now();
                        }
                        answer.send(Err(io::Error::other("no such name"))).unwrap();
                    });
                    name.look_up(&weak, &look_up, short);
                });
                answer.send(found()).unwrap();
                assert_eq!(name.look_up(&weak, &look_up, long), Some(true));
            }
        });
        let said = [
            "cannot resolve app.internal: no answer for 0 s",
            "hint: until it resolves it has no backend; `getent ahosts app.internal` asks as weir does",
            "app.internal resolves after 0 s",
            "app.internal is 10.0.0.1",
            "cannot resolve app.internal: no answer for 0 s; it keeps 10.0.0.1",
            "app.internal resolves again after 0 s",
        ];
        let text = log.text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), said.len(), "{text}");
        for (line, said) in lines.iter().zip(said) {
            assert!(line.ends_with(said), "{line}\n{said}");
        }
    }

    #[test]
    fn a_look_up_that_panics_is_a_failure() {
        let (name, backends) = name();
        let look_up = LookUp::by(|_| panic!("as the test wants"));
        let weak = Arc::downgrade(&backends);
        assert_eq!(name.look_up(&weak, &look_up, SILENT), Some(false));
        assert!(!name.report(Vec::new()).is_resolved);
    }
}

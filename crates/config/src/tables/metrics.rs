//! The keys of the `[metrics]` table: where Prometheus scrapes the guard and the proxies over TCP.

use std::net::SocketAddr;
use std::sync::LazyLock;

use crate::address::socket_address;
use crate::error::Fault;
use crate::key::Key;
use crate::table::Table;

/// The addresses of the metrics: the `[metrics]` table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricsSettings {
    /// Where `weir run` listens, and `weir proxy` with a file that has no listener.
    pub listen: SocketAddr,
    /// Where `weir proxy` listens; `None`: at [`listen`](Self::listen) if the file has no listener, else not.
    pub proxy_listen: Option<SocketAddr>,
}

impl MetricsSettings {
    /// Where `weir proxy` listens. Two processes cannot share one port, so the guard has `listen`.
    pub fn of_proxies(&self, is_for_run: bool) -> Option<SocketAddr> {
        self.proxy_listen.or((!is_for_run).then_some(self.listen))
    }
}

impl Default for MetricsSettings {
    /// Loopback: the port has no authentication.
    fn default() -> MetricsSettings {
        MetricsSettings {
            listen: SocketAddr::from(([127, 0, 0, 1], 9464)),
            proxy_listen: None,
        }
    }
}

static KEYS: LazyLock<Vec<Key<MetricsSettings>>> = LazyLock::new(keys);

#[rustfmt::skip] // A key a paragraph.
fn keys() -> Vec<Key<MetricsSettings>> {
    vec![
        Key::new("listen", field!(MetricsSettings, listen), socket_address(),
            "TCP address at which `weir run` answers GET /metrics; `weir proxy` too, if the file has no [[listener]]"),
        Key::new("proxy_listen", field!(MetricsSettings, proxy_listen), socket_address().or_none(),
            "TCP address at which `weir proxy` answers GET /metrics, if the file has a [[listener]] too"),
    ]
}

impl Table for MetricsSettings {
    const NAME: &'static str = "metrics";
    const TITLE: &'static str = "The metrics";
    const TEXT: &'static str =
        "The TCP addresses at which Prometheus scrapes the guard and the proxies.";
    const MOST: (usize, &'static str) = (1, "one table serves all listeners and proxies");
    const IS_SINGLE: bool = true;

    fn keys() -> &'static [Key<MetricsSettings>] {
        &KEYS
    }

    fn blank() -> MetricsSettings {
        MetricsSettings::default()
    }

    fn check(&self) -> Result<(), (&'static str, Fault)> {
        let hint = "give the guard and the proxies a port each: proxy_listen = \"127.0.0.1:9465\"";
        match self.proxy_listen == Some(self.listen) && self.listen.port() != 0 {
            true => Err((
                "proxy_listen",
                Fault::new("the guard listens at this address already", hint),
            )),
            false => Ok(()),
        }
    }

    fn lint(&self, _given: &[&str]) -> Vec<String> {
        let open = |(key, address): (&str, SocketAddr)| {
            let is_loopback = address.ip().to_canonical().is_loopback();
            (!is_loopback).then(|| {
                format!(
                    "metrics: {key} = {address} is not a loopback address: everyone who can connect to it can read the \
                     figures and the names of listeners, classes and backends"
                )
            })
        };
        let proxies = self.proxy_listen.map(|address| ("proxy_listen", address));
        let all = [Some(("listen", self.listen)), proxies];
        all.into_iter().flatten().filter_map(open).collect()
    }
}

/// Warns that nobody can scrape the proxies: the guard has the one address, and `weir proxy` reads the same file.
pub(crate) fn without_proxies(metrics: &MetricsSettings) -> Option<String> {
    metrics.proxy_listen.is_none().then(|| {
        "metrics: the proxies lack an address for their metrics: listen is that of the guard; add \
         proxy_listen = \"127.0.0.1:9465\""
            .to_owned()
    })
}

//! What a reload leaves as it was at the start: the sockets at which a service is asked, but for the control socket.

use std::net::SocketAddr;

use weir_config::{ApiSettings, Config, DashboardSettings};

/// Whose sockets they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Owner {
    /// `weir run`'s.
    #[default]
    Guard,
    /// `weir proxy`'s.
    Proxies {
        /// A flag says where the metrics are, and the file does not.
        metrics_by_flag: bool,
    },
}

/// What a config file says of these sockets.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AtStart {
    owner: Owner,
    /// The API; `None`: there is none.
    pub api: Option<ApiSettings>,
    /// Where the metrics are scraped over TCP; `None`: nowhere, or where a flag says.
    pub metrics: Option<SocketAddr>,
    /// The dashboard; `None`: there is none.
    pub dashboard: Option<DashboardSettings>,
}

impl AtStart {
    /// What the file says of the owner's sockets. The guard of a file has the addresses that one process can have.
    pub fn of(owner: Owner, config: &Config) -> AtStart {
        let has_guard = config.is_for_run();
        let (api, metrics) = (config.api.clone(), config.metrics.as_ref());
        match owner {
            Owner::Guard => AtStart {
                owner,
                api,
                metrics: metrics.map(|metrics| metrics.listen),
                dashboard: config.dashboard.clone(),
            },
            Owner::Proxies { metrics_by_flag } => AtStart {
                owner,
                api: api.map(|api| ApiSettings {
                    socket: api.socket.filter(|_| !has_guard),
                    ..api
                }),
                metrics: metrics
                    .filter(|_| !metrics_by_flag)
                    .and_then(|metrics| metrics.of_proxies(has_guard)),
                dashboard: None,
            },
        }
    }

    /// Whether a flag, and not the file, says where the metrics are.
    pub fn metrics_by_flag(&self) -> bool {
        matches!(self.owner, Owner::Proxies { metrics_by_flag } if metrics_by_flag)
    }

    /// The tables of which another file says something else: what it says needs a restart.
    pub fn changed_by(&self, config: &Config) -> Vec<&'static str> {
        let now = AtStart::of(self.owner, config);
        let tables = [
            ("api", self.api != now.api),
            ("metrics", self.metrics != now.metrics),
            ("dashboard", self.dashboard != now.dashboard),
        ];
        let changed = tables.into_iter().filter(|(_, changed)| *changed);
        changed.map(|(table, _)| table).collect()
    }

    /// A warning for each table of a file that a reload does not put in force.
    pub fn warnings(&self, config: &Config) -> Vec<String> {
        let warning =
            |table| format!("[{table}] stays as it was at the start: its change needs a restart");
        self.changed_by(config).into_iter().map(warning).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTENER: &str = "[[listener]]\naddress = \"*:80\"\n";
    const PROXY: &str = "[[proxy]]\nname = \"p\"\nlisten = \"*:81\"\nmode = \"reverse\"\nbackends = [\"127.0.0.1:82\"]\n";
    const PROXIES: Owner = Owner::Proxies {
        metrics_by_flag: false,
    };

    fn config(tables: &[&str]) -> Config {
        weir_config::parse("f", &tables.concat()).unwrap()
    }

    #[test]
    fn each_table_that_only_a_restart_puts_in_force_is_named() {
        let tables = ["api", "metrics", "dashboard"].map(|table| format!("[{table}]\n"));
        let all = config(&[LISTENER, &tables.concat()]);
        let none = config(&[LISTENER]);
        let names = ["api", "metrics", "dashboard"];
        assert_eq!(AtStart::of(Owner::Guard, &none).changed_by(&all), names);
        assert_eq!(AtStart::of(Owner::Guard, &all).changed_by(&none), names);
        assert!(AtStart::of(Owner::Guard, &all).changed_by(&all).is_empty());
    }

    #[test]
    fn what_is_of_the_guard_alone_is_no_change_to_the_proxies_of_its_file() {
        let before = config(&[LISTENER, PROXY]);
        let after = config(&[LISTENER, PROXY, "[metrics]\n[dashboard]\n"]);
        assert!(AtStart::of(PROXIES, &before).changed_by(&after).is_empty());
        let own = config(&[
            LISTENER,
            PROXY,
            "[metrics]\nproxy_listen = \"127.0.0.1:9\"\n",
        ]);
        assert_eq!(AtStart::of(PROXIES, &before).changed_by(&own), ["metrics"]);
        let by_flag = Owner::Proxies {
            metrics_by_flag: true,
        };
        assert!(AtStart::of(by_flag, &before).changed_by(&own).is_empty());
    }
}

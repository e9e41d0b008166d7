//! What `weir status` shows: made by the running process, sent over the control socket, printed
//! as it is with `--json` or as tables.

mod classes;
pub mod controller;
pub mod proxy;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use weir_core::verdict::{Counters, VERDICTS};

pub use classes::class_list;
pub use proxy::ProxyReport;

use classes::some_classes;

use crate::show::describe;
use crate::show::table::{Align, indent, table};

/// Everything about the weir of one network namespace.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Report {
    /// Whether a weir runs in this network namespace; if not, nothing is attached.
    pub running: bool,
    /// Its process; absent if none runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<Process>,
    /// Where it is attached.
    pub interfaces: Vec<InterfaceReport>,
    /// Where it stands otherwise than asked: interfaces, the XDP front, addresses.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// The listeners under guard.
    pub listeners: Vec<ListenerReport>,
    /// The controller; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<weir_client::Controller>,
    /// The proxies, of all processes.
    #[serde(default)]
    pub proxies: Vec<ProxyReport>,
}

/// The process that guards.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Process {
    /// Process id, as that process sees it.
    pub pid: u32,
    /// Its version.
    pub version: String,
    /// `protect` or `run`.
    pub command: String,
    /// The config file of `weir run`.
    pub config: Option<String>,
    /// Inode number of the network namespace.
    pub namespace: u64,
    /// Lines of its log that were lost, since nobody read them in time.
    #[serde(default)]
    pub log_lost: u64,
}

/// An interface with the guard on it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InterfaceReport {
    /// Its name.
    pub name: String,
    /// Its index.
    pub index: u32,
    /// With the XDP front.
    pub xdp: bool,
}

/// One listener.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ListenerReport {
    /// Its name.
    pub name: String,
    /// Its address and port.
    pub address: String,
    /// `enforce` or `observe`.
    pub mode: String,
    /// The policy in force, in words.
    pub policy: String,
    /// Whether it is guarded at the moment: false while none of its interfaces exists.
    pub in_force: bool,
    /// Whether a socket listens there at the moment.
    pub listening: bool,
    /// Connections that wait for accept(), over all sockets.
    pub queue_length: u32,
    /// Places in the listen queues, over all sockets.
    pub queue_limit: u32,
    /// Handshakes under way, over all sockets.
    pub half_open: u32,
    /// How waiting connections are put in order: `parking`, `exec` or `fifo`.
    #[serde(default)]
    pub queue_way: String,
    /// Why not as asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_way_because: Option<String>,
    /// Of those that wait, the ones before the server's own queue (queue = priority).
    #[serde(default)]
    pub parked: u32,
    /// Of those that were parked, how many went to the server so far.
    #[serde(default)]
    pub released: u64,
    /// How many went to the server, released or straight, before one that had come earlier.
    #[serde(default)]
    pub overtook: u64,
    /// Estimated wait in the queue, µs: the longest of the sockets; null while not known.
    pub wait_us: Option<u64>,
    /// The policy in its place, if the one asked for is not possible.
    pub fallback: Option<String>,
    /// Why.
    pub fallback_because: Option<String>,
    /// Every verdict counter by its name.
    pub counters: BTreeMap<String, u64>,
    /// Its classes, `other` last; empty if it has none. Their counters are of all of their listeners.
    pub classes: Vec<ClassReport>,
    /// Its classes that are not among these; `weir class list` has all.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub classes_left_out: usize,
    /// The listening sockets; several with SO_REUSEPORT or several addresses.
    pub sockets: Vec<SocketReport>,
    /// The config keys in effect (interfaces, establish, …).
    #[serde(flatten)]
    pub settings: Map<String, Value>,
}

/// One listening socket.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SocketReport {
    /// Its local address and port.
    pub address: String,
    /// Connections that wait for accept().
    pub queue_length: u32,
    /// Its backlog in force.
    pub queue_limit: u32,
    /// Handshakes under way.
    pub half_open: u32,
    /// Estimated wait, µs; null while not known.
    pub wait_us: Option<u64>,
    /// An MPTCP listener.
    pub mptcp: bool,
}

/// One class of connections.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ClassReport {
    /// Its name; `other` is what no rule fits.
    pub name: String,
    /// 1 is the highest; of `other` 64.
    pub priority: u8,
    /// Connections per second that may come; null: as many as do.
    pub rate: Option<f64>,
    /// Connections that may come at once; null without a rate.
    pub burst: Option<u32>,
    /// The controller's rate; null: it has set none.
    pub controlled_rate: Option<f64>,
    /// Its connections that wait before a server's own queue; null: no listener has queue = priority.
    #[serde(default)]
    pub waiting: Option<u32>,
    /// The verdicts that fell, by name.
    pub counters: BTreeMap<String, u64>,
    /// The other config keys in effect (from, to, …).
    #[serde(flatten)]
    pub settings: Map<String, Value>,
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// The counters that are not zero, by name: a file may have thousands of classes.
pub fn counters_that_fell(counters: &Counters) -> BTreeMap<String, u64> {
    let mut named = counters_by_name(counters);
    named.retain(|_, n| *n > 0);
    named
}

/// Counters by name.
pub fn counters_by_name(counters: &Counters) -> BTreeMap<String, u64> {
    counters
        .rows()
        .map(|(row, n)| (row.name.to_owned(), n))
        .collect()
}

impl Report {
    /// For people. `all` shows zero counters too.
    pub fn text(&self, all: bool) -> String {
        match (&self.process, self.proxies.as_slice()) {
            (None, []) => "no weir is running in this network namespace\n".to_owned(),
            (None, proxies) => proxy::text(proxies, all),
            (Some(process), []) => self.guard_text(process, all),
            (Some(process), proxies) => {
                self.guard_text(process, all) + "\n" + &proxy::text(proxies, all)
            }
        }
    }

    fn guard_text(&self, process: &Process, all: bool) -> String {
        let names = self
            .interfaces
            .iter()
            .map(|interface| interface.name.as_str());
        let warnings = self.warnings.iter();
        let mut warnings: String = warnings.map(|text| format!("warning: {text}\n")).collect();
        if process.log_lost > 0 {
            let lines = describe::count(process.log_lost as usize, "line");
            warnings += &format!("warning: {lines} of its log lost: nobody read them in time\n");
        }
        let mut text = format!(
            "weir {} (pid {}) guards {} on {}\n{}\n{}",
            match &process.config {
                Some(file) => format!("{} --config {file}", process.command),
                None => process.command.clone(),
            },
            process.pid,
            describe::count(self.listeners.len(), "listener"),
            describe::interfaces(names),
            warnings,
            self.listener_table(),
        );
        for listener in &self.listeners {
            text += &listener.details(all);
        }
        if let Some(controller) = &self.controller {
            text += &format!("\n{}", controller::text(controller, controller::RECENT));
        }
        text
    }

    fn listener_table(&self) -> String {
        use Align::{Left, Right};
        let head = [
            ("listener", Left),
            ("address", Left),
            ("mode", Left),
            ("queue", Right),
            ("half-open", Right),
            ("wait", Right),
            ("policy", Left),
        ];
        let mut rows = Vec::new();
        for listener in &self.listeners {
            rows.push(listener.row());
            if listener.sockets.len() > 1 {
                rows.extend(listener.sockets.iter().map(SocketReport::row));
            }
        }
        table(&head, &rows)
    }
}

fn queue(length: u32, limit: u32) -> String {
    format!("{length}/{limit}")
}

fn wait(wait_us: Option<u64>) -> String {
    wait_us.map_or("-".to_owned(), |us| {
        weir_core::units::format_duration(std::time::Duration::from_micros(us))
    })
}

impl ListenerReport {
    fn row(&self) -> Vec<String> {
        vec![
            self.name.clone(),
            self.address.clone(),
            self.mode.clone(),
            if self.listening {
                queue(self.queue_length, self.queue_limit)
            } else {
                "-".into()
            },
            self.half_open.to_string(),
            wait(self.wait_us),
            self.policy.clone(),
        ]
    }

    /// Notes and counters, below the table.
    fn details(&self, all: bool) -> String {
        let mut lines = Vec::new();
        if !self.in_force {
            lines.push("not in force: none of its interfaces exists".to_owned());
        }
        if !self.listening {
            lines.push("nothing listens there at the moment".to_owned());
        }
        if let (Some(policy), Some(because)) = (&self.fallback, &self.fallback_because) {
            lines.push(format!("fallback to {policy}: {because}"));
        }
        match (self.queue_way.as_str(), &self.queue_way_because) {
            ("parking", because) => lines.push(format!(
                "by priority: {} parked, {} released, {} overtook another{}",
                self.parked,
                self.released,
                self.overtook,
                because.as_ref().map_or(String::new(), |b| format!("; {b}")),
            )),
            ("fifo", Some(because)) => {
                lines.push(format!("not by priority: {because}"));
                if self.sockets.iter().any(|socket| socket.mptcp) {
                    lines.push(MPTCP_HINT.to_owned());
                }
            }
            (way, Some(because)) => lines.push(format!("by priority: {way}: {because}")),
            _ => {}
        }
        let counters = counter_table(&self.counters, all);
        if counters.is_empty() {
            lines.push("no verdict yet".to_owned());
        }
        let mut text = format!("\n{}\n", self.name);
        text += &indent(&lines.join("\n"));
        if !self.classes.is_empty() {
            text += &indent(&some_classes(&self.classes, self.classes_left_out));
        }
        text + &indent(&counters)
    }
}

/// What an operator can do about a server that listens with MPTCP.
const MPTCP_HINT: &str =
    "  hint: start the server with `weir exec -- SERVER`, or Go with GODEBUG=multipathtcp=0";

impl SocketReport {
    fn row(&self) -> Vec<String> {
        let mptcp = if self.mptcp { "MPTCP" } else { "" };
        vec![
            "  socket".to_owned(),
            self.address.clone(),
            String::new(),
            queue(self.queue_length, self.queue_limit),
            self.half_open.to_string(),
            wait(self.wait_us),
            mptcp.to_owned(),
        ]
    }
}

/// `name count text` lines in the order of the verdicts; empty if there is nothing to show.
pub fn counter_table(counters: &BTreeMap<String, u64>, all: bool) -> String {
    let rows: Vec<Vec<String>> = VERDICTS
        .iter()
        .map(|row| (row, counters.get(row.name).copied().unwrap_or(0)))
        .filter(|(_, n)| all || *n > 0)
        .map(|(row, n)| vec![row.name.to_owned(), n.to_string(), row.text.to_owned()])
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    table(
        &[
            ("verdict", Align::Left),
            ("count", Align::Right),
            ("text", Align::Left),
        ],
        &rows,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(address: &str, queue_length: u32) -> SocketReport {
        SocketReport {
            address: address.into(),
            queue_length,
            queue_limit: 511,
            half_open: 1,
            wait_us: Some(1500),
            mptcp: false,
        }
    }

    fn report() -> Report {
        let counters = VERDICTS
            .iter()
            .map(|row| (row.name.to_owned(), 0))
            .collect();
        let mut web = ListenerReport {
            name: "web".into(),
            address: "*:80".into(),
            mode: "enforce".into(),
            policy: "reserv rst-syn, admit wait 20ms".into(),
            in_force: true,
            listening: true,
            queue_length: 5,
            queue_limit: 1022,
            half_open: 2,
            wait_us: Some(1500),
            fallback: Some("reserv rst-syn".into()),
            fallback_because: Some("cookies are off".into()),
            counters,
            sockets: vec![socket("0.0.0.0:80", 5), socket("[::]:80", 0)],
            ..ListenerReport::default()
        };
        web.settings
            .insert("establish".into(), "no-syn-drop".into());
        web.counters.insert("syn_admitted".into(), 12345);
        Report {
            running: true,
            process: Some(Process {
                pid: 7,
                command: "run".into(),
                config: Some("/etc/weir/weir.toml".into()),
                log_lost: 3,
                ..Process::default()
            }),
            interfaces: vec![InterfaceReport {
                name: "eth0".into(),
                index: 2,
                xdp: false,
            }],
            warnings: vec!["interface eth7 does not exist yet".into()],
            listeners: vec![web],
            controller: None,
            proxies: Vec::new(),
        }
    }

    #[test]
    fn people_see_queues_fallback_and_the_verdicts_that_fell() {
        let expected = format!(
            "\
weir run --config /etc/weir/weir.toml (pid 7) guards 1 listener on eth0
warning: interface eth7 does not exist yet
warning: 3 lines of its log lost: nobody read them in time

listener  address     mode      queue  half-open   wait  policy
web       *:80        enforce  5/1022          2  1.5ms  reserv rst-syn, admit wait 20ms
  socket  0.0.0.0:80            5/511          1  1.5ms
  socket  [::]:80               0/511          1  1.5ms

web
  fallback to reserv rst-syn: cookies are off
  verdict       count  text
  syn_admitted  12345  {}
",
            VERDICTS[0].text
        );
        assert_eq!(report().text(false), expected);
    }

    #[test]
    fn who_listens_with_mptcp_is_told_of_weir_exec() {
        let mut report = report();
        let web = &mut report.listeners[0];
        web.queue_way = "fifo".into();
        web.queue_way_because = Some("its listening socket is MPTCP".into());
        assert!(!report.text(false).contains("weir exec"));
        report.listeners[0].sockets[0].mptcp = true;
        let text = report.text(false);
        let told = "not by priority: its listening socket is MPTCP\n    hint: start the server with `weir exec";
        assert!(text.contains(told), "{text}");
    }

    #[test]
    fn all_shows_every_counter() {
        let shown = |all| {
            let text = report().text(all);
            VERDICTS
                .iter()
                .filter(|row| text.contains(row.text))
                .count()
        };
        assert_eq!((shown(false), shown(true)), (1, VERDICTS.len()));
    }

    #[test]
    fn json_has_the_names_that_scripts_rely_on() {
        let json = serde_json::to_value(report()).unwrap();
        let listener = json["listeners"][0].as_object().unwrap();
        for name in [
            "name",
            "address",
            "mode",
            "queue_length",
            "queue_limit",
            "half_open",
            "counters",
            "classes",
            "sockets",
            "fallback",
            "establish",
        ] {
            assert!(listener.contains_key(name), "{name}");
        }
        assert_eq!(
            json["listeners"][0]["counters"].as_object().unwrap().len(),
            VERDICTS.len()
        );
    }

    #[test]
    fn what_is_sent_over_the_control_socket_arrives_whole() {
        let sent = serde_json::to_string(&report()).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&sent).unwrap(), report());
    }
}

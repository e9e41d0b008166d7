//! Recording rules, alerts and the Grafana dashboard, held to promtool and to a real Prometheus that scrapes a real
//! guard and real proxies.

#[allow(dead_code, reason = "the other tests use the rest of it")]
#[path = "../common/mod.rs"]
mod common;
#[allow(dead_code, reason = "the other tests use the rest of it")]
#[path = "../common/overload.rs"]
mod overload;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use weir_testbed::needs::{find_program, programs};

use common::PATIENCE;
use overload::{Bed, GUARD_METRICS, Load, PROXY_METRICS, quic_server};

const PACKAGING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging");
const ADDRESS: &str = "127.0.0.1:9090";
/// Between two looks at what Prometheus has: it scrapes once a second.
const PAUSE: Duration = Duration::from_millis(100);

fn promtool(arguments: &[&str]) -> Option<String> {
    if !programs(&["promtool"]) {
        return None;
    }
    let mut promtool = Command::new(find_program("promtool").unwrap());
    let folder = Path::new(PACKAGING).join("prometheus");
    let output = promtool
        .args(arguments)
        .current_dir(folder)
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8(said).unwrap();
    assert!(output.status.success(), "promtool {arguments:?}: {said}");
    Some(said)
}

#[test]
fn promtool_finds_no_fault_in_the_rules() {
    let Some(said) = promtool(&["check", "rules", "weir.rules.yml"]) else {
        return;
    };
    assert!(said.contains("SUCCESS"), "{said}");
}

#[test]
fn each_alert_fires_in_its_case_and_none_on_a_quiet_machine() {
    let Some(said) = promtool(&["test", "rules", "weir.rules.test.yml"]) else {
        return;
    };
    assert!(said.contains("SUCCESS"), "{said}");
    let folder = Path::new(PACKAGING).join("prometheus");
    let read = |file: &str| std::fs::read_to_string(folder.join(file)).unwrap();
    let (rules, cases) = (read("weir.rules.yml"), read("weir.rules.test.yml"));
    let alerts = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "));
    for alert in alerts {
        // Not `exp_alerts: []`.
        let fires = format!("alertname: {alert}\n        exp_alerts:\n");
        assert!(cases.contains(&fires), "{alert} has no case");
    }
}

/// A Prometheus that scrapes the guard and the proxies once a second; killed on drop.
struct Prometheus(Child);

impl Prometheus {
    fn start(folder: &Path) -> Prometheus {
        let rules = Path::new(PACKAGING).join("prometheus/weir.rules.yml");
        let config = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\n\
             rule_files: [{}]\n\
             scrape_configs:\n\
             - job_name: weir\n  static_configs: [{{targets: [\"{GUARD_METRICS}\", \"{PROXY_METRICS}\"]}}]\n",
            rules.display()
        );
        let file = folder.join("prometheus.yml");
        std::fs::write(&file, config).unwrap();
        let log = std::fs::File::create(folder.join("prometheus.log")).unwrap();
        let prometheus = Command::new(find_program("prometheus").unwrap())
            .arg(format!("--config.file={}", file.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                folder.join("tsdb").display()
            ))
            .arg(format!("--web.listen-address={ADDRESS}"))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        Prometheus(prometheus.unwrap())
    }

    /// The data of an answer; an error until it listens.
    fn get(&self, path: &str) -> Result<Value, String> {
        let ask = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(ADDRESS)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            write!(stream, "GET {path} HTTP/1.0\r\nHost: prometheus\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        let answer = ask().map_err(|error| error.to_string())?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or("no answer")?;
        let value: Value = serde_json::from_str(body).map_err(|_| format!("{head}\n{body}"))?;
        match value["status"] == "success" {
            true => Ok(value["data"].clone()),
            false => Err(value["error"].to_string()),
        }
    }

    /// How many series a query finds now.
    fn series(&self, query: &str) -> Result<usize, String> {
        let data = self.get(&format!("/api/v1/query?query={}", encoded(query)))?;
        Ok(data["result"].as_array().map_or(0, Vec::len))
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// RFC 3986: what is not unreserved stands as %XX.
fn encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' => encoded.push(byte.into()),
            byte => {
                let _ = write!(encoded, "%{byte:02X}");
            }
        }
    }
    encoded
}

/// Every query of the dashboard, with the names of what it is for.
fn queries() -> BTreeMap<String, String> {
    let file = Path::new(PACKAGING).join("grafana/weir.json");
    let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let mut queries = BTreeMap::new();
    let mut add = |what: String, query: &str| {
        let query = query
            .replace("$instance", ".*")
            .replace("$listener", ".*")
            .replace("$proxy", ".*")
            .replace("$quic", ".*")
            .replace("$__rate_interval", "15s")
            .replace("$__interval", "1m");
        assert!(
            !query.contains('$'),
            "{what}: a variable that the test does not know: {query}"
        );
        queries.insert(what, query);
    };
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let what = format!("panel {}, query {}", panel["title"], target["refId"]);
            add(what, target["expr"].as_str().unwrap());
        }
    }
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        // label_values(SERIES, LABEL)
        let query = variable["query"]["query"].as_str().unwrap_or_default();
        if let Some(arguments) = query.strip_prefix("label_values(") {
            let (series, label) = arguments.trim_end_matches(')').rsplit_once(", ").unwrap();
            let series = format!("count by ({label}) ({series})");
            add(format!("variable {}", variable["name"]), &series);
        }
    }
    for annotation in dashboard["annotations"]["list"].as_array().unwrap() {
        add(
            format!("annotation {}", annotation["name"]),
            annotation["expr"].as_str().unwrap(),
        );
    }
    queries
}

#[test]
fn the_dashboard_has_every_verdict_that_refuses() {
    let queries = queries();
    let quic = weir_core::quic::QUIC_VERDICTS.iter();
    let quic = quic.filter(|row| row.kind == weir_core::verdict::Kind::Refuse);
    let names = weir_core::verdict::refusals().map(|row| row.name);
    for name in names.chain(quic.map(|row| row.name)) {
        let name = format!("weir_{name}_total");
        let mut all = queries.values();
        assert!(all.any(|query| query.contains(&name)), "{name}");
    }
}

/// Requests through the proxy, so that its counters rise.
fn request() {
    let ask = || -> std::io::Result<()> {
        let mut stream = TcpStream::connect("127.0.0.1:8090")?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n")?;
        stream.read_to_end(&mut Vec::new()).map(drop)
    };
    let _ = ask();
}

#[test]
fn every_query_of_the_dashboard_and_every_rule_finds_what_weir_says() {
    if !programs(&["prometheus"]) {
        return;
    }
    const QUIC: &str = "[[quic]]\nname = \"h3\"\naddress = \"*:8443\"\n";
    let Some(bed) = Bed::with("prometheus", QUIC) else {
        return;
    };
    // Its buffer has a size once somebody has come.
    let _server = quic_server(SocketAddr::from(([127, 0, 0, 1], 8443)));
    let prometheus = Prometheus::start(&bed.folder.path);
    let _load = Load::start();
    let queries = queries();
    assert!(queries.len() > 40, "{}", queries.len());
    let records =
        std::fs::read_to_string(Path::new(PACKAGING).join("prometheus/weir.rules.yml")).unwrap();
    let records = records
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- record: "));
    let mut missing: BTreeMap<String, String> = queries;
    missing.extend(records.map(|name| (format!("rule {name}"), name.to_owned())));
    let mut has_reloaded = false;
    let mut faults = BTreeMap::new();
    let deadline = Instant::now() + 2 * PATIENCE;
    while !missing.is_empty() && Instant::now() < deadline {
        request();
        missing.retain(|what, query| match prometheus.series(query) {
            Ok(0) => true,
            Ok(_) => false,
            Err(error) => {
                faults.insert(what.clone(), error);
                true
            }
        });
        // Once the state before was scraped.
        if !has_reloaded && missing.len() < 10 {
            bed.folder
                .write_config("[[listener]]\nadress = \"*:8081\"\n");
            assert_eq!(bed.folder.weir("reload").status.code(), Some(2));
            has_reloaded = true;
        }
        std::thread::sleep(PAUSE);
    }
    let faults: Vec<_> = missing
        .keys()
        .map(|what| (what, faults.get(what)))
        .collect();
    assert!(missing.is_empty(), "no series: {missing:#?}\n{faults:#?}");
    rules_are_evaluated(&prometheus);
}

/// Without an error, and with the alerts that this bed gives.
fn rules_are_evaluated(prometheus: &Prometheus) {
    let expected = [
        "WeirNothingListens",
        "WeirProxyBackendDown",
        "WeirReloadFailed",
    ];
    let quiet = [
        "WeirListenerNotInForce",
        "WeirQuicNotInForce",
        "WeirQuicOverload",
        "WeirRestarts",
        "WeirProxyNoBackend",
        "WeirLogLost",
    ];
    let deadline = Instant::now() + PATIENCE;
    loop {
        let rules = prometheus.get("/api/v1/rules").unwrap();
        let groups = rules["groups"].as_array().unwrap().iter();
        let rules: Vec<&Value> = groups
            .flat_map(|group| group["rules"].as_array().unwrap())
            .collect();
        assert_eq!(rules.len(), 24, "{rules:#?}");
        for rule in &rules {
            assert_ne!(rule["health"], "err", "{rule:#}");
        }
        let state = |name: &str| {
            let rule = rules.iter().find(|rule| rule["name"] == name);
            rule.unwrap_or_else(|| panic!("no rule {name}"))["state"].clone()
        };
        let is_active = |name: &&str| state(name) == "pending" || state(name) == "firing";
        if expected.iter().all(is_active) {
            assert!(!quiet.iter().any(is_active), "{rules:#?}");
            return;
        }
        assert!(Instant::now() < deadline, "{rules:#?}");
        std::thread::sleep(PAUSE);
    }
}

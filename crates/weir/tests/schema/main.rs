//! What a real guard and real proxies say, held to the OpenAPI document and to the format of metrics by
//! programs that others wrote: jsonschema, the parser of the Prometheus project, and promtool.

#[allow(dead_code, reason = "the other tests use the rest of it")]
#[path = "../common/mod.rs"]
mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};
use weir_config::Table;
use weir_testbed::needs::{find_program, own_namespace, programs, skip};
use weir_testbed::wait;

use common::{Folder, PATIENCE, Running};

const CHECK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/schema/check.py");
/// Debian's own, which has Debian's modules.
const PYTHON: &str = "/usr/bin/python3";

const GUARD: &str = r#"
[[listener]]
name = "web"
address = "*:8081"
queue = "priority"
residence = "observe"

[[quic]]
name = "h3"
address = "*:8443"

# Its queue is full.
[[listener]]
name = "full"
address = "*:8083"
admit = "queue"

# Classes of all listeners are shown apart where there are several.
[[listener]]
name = "mail"
address = "*:8025"

[[class]]
name = "gold"
listener = "web"
from = "10.1.0.0/16"
priority = 1
rate = 300.0
burst = 30

[[destination]]
name = "backends"
to_port = 8082
timewait = "client-rst"
per_socket = true

[[shape]]
dev = "lo"
rate = "10gbit"
discipline = "syn-prio"

[controller]
target_wait = "20ms"

[api]
"#;

/// Fields that the reports of this test may lack.
const MAY_BE_ABSENT: [&str; 72] = [
    // Only while a name does not resolve.
    "ProxyName.failing_seconds",
    // More than 1000 classes have it.
    "Listener.classes_left_out",
    "Status.classes_left_out",
    // Only where the queue is not put in order as asked.
    "Listener.queue_way_because",
    // Only of a listener that is not in force.
    "Listener.not_in_force_because",
    // No QUIC server runs here.
    "Status.quic",
    "Quic.warning",
    // No class names one, and none is in another network namespace.
    "Quic.classes",
    "Quic.classes_left_out",
    "Quic.workloads",
    "QuicSocket.pending",
    "QuicSocket.wait_us",
    "QuicSocket.service_us",
    "QuicSocket.buffer",
    "QuicSocket.buffer_limit",
    "QuicSocket.standing",
    "QuicSocket.least",
    "Episode.peak_buffer",
    "Episode.peak_pending",
    "Event.protocol",
    "Refusal.buffer",
    "Refusal.buffer_limit",
    "Refusal.pending",
    // The controller decides nothing: the guard is idle.
    "Decision.at_unix_ms",
    "Decision.class",
    "Decision.from",
    "Decision.observed",
    "Decision.reason",
    "Decision.to",
    "Event.class",
    "Event.decision",
    "Event.observed",
    // Only where every listener is observed.
    "Why.observed",
    "TopSources.observed",
    // There are few refusals, so that each is sampled and kept.
    "Event.left_out",
    "RefusedMinute.at_unix_ms",
    "RefusedMinute.kept",
    "RefusedMinute.refused",
    "RefusedMinute.sampled",
    "RefusedMinute.verdicts",
    // It has not looked for long enough to suggest anything; guard/suggest.rs and guard/quic.rs have suggestions.
    "Profile.accepts_per_second",
    "QuicProfile.answers_per_second",
    "QuicProfile.buffer_limit",
    "QuicSuggestion.receive_buffer",
    "SuggestedKey.key",
    "SuggestedKey.now",
    "SuggestedKey.reason",
    "SuggestedKey.value",
    "Suggestion.backlog",
    // The reload of this test succeeds.
    "LastReload.failure",
    // Only of listeners with `where`; guard/elsewhere.rs has some.
    "Listener.workloads",
    "Event.workload",
    "Workload.name",
    "Workload.runtime",
    "Workload.container_id",
    "Workload.unit",
    "Workload.netns",
    "Workload.pod",
    "Workload.netns_cookie",
    "Workload.in_force",
    "Workload.not_in_force_because",
    "Workload.listening",
    "Workload.queue_length",
    "Workload.queue_limit",
    "Workload.half_open",
    "Workload.wait_us",
    "Workload.offered",
    "Workload.would_refuse",
    "Workload.fallback",
    "Workload.fallback_because",
    "Workload.attached_to",
    "Workload.counters",
];

/// What promtool finds. The names of metrics are stable, so this one keeps its unit.
const LINTS: &str =
    "promtool: weir_proxy_queue_wait_ns_total metric names should not contain abbreviated units";

/// A guard and a process of proxies in a network namespace of this thread, each with something to report.
struct Bed {
    folder: Folder,
    metrics: SocketAddr,
    clients: Vec<TcpStream>,
    _servers: [TcpListener; 2],
    _processes: [Running; 2],
}

impl Bed {
    /// `None` without root or the programs that judge; says so.
    fn new(name: &str) -> Option<Bed> {
        if !own_namespace() || !programs(&["promtool"]) || !has_modules() {
            return None;
        }
        let folder = Folder::new(name);
        let start = |file: &str, config: &str, command: &str| {
            std::fs::write(folder.path.join(file), config).unwrap();
            Running::start(&folder, command)
        };
        let metrics = free_address();
        let proxies = proxies(origin(), free_address());
        let processes = [
            start("weir.toml", GUARD, "run --config weir.toml"),
            start(
                "proxies.toml",
                &proxies,
                &format!("proxy --config proxies.toml --metrics {metrics}"),
            ),
        ];
        let server = TcpListener::bind(("127.0.0.1", 8081)).unwrap();
        let full = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], 8083));
        full.bind(&address.into()).unwrap();
        full.listen(1).unwrap();
        let status = folder.until(|status| {
            let proxies = status["proxies"].as_array();
            let backends = |health| {
                let mut all = proxies.into_iter().flatten();
                all.any(|proxy| proxy["backends"][0]["health"] == health)
            };
            status["running"] == true && backends("up") && backends("down")
        });
        let mut bed = Bed {
            folder,
            metrics,
            clients: Vec::new(),
            _servers: [server, full.into()],
            _processes: processes,
        };
        bed.use_proxies(&status);
        bed.fill(address);
        assert!(bed.folder.weir("reload").status.success());
        Some(bed)
    }

    /// A request for the cache, and more clients than the other proxy has connections.
    fn use_proxies(&mut self, status: &Value) {
        let address_of = |name: &str| -> SocketAddr {
            let mut proxies = status["proxies"].as_array().unwrap().iter();
            let found = proxies.find(|proxy| proxy["name"] == name).unwrap();
            found["address"].as_str().unwrap().parse().unwrap()
        };
        let answer = get(TcpStream::connect(address_of("site")).unwrap(), "/");
        assert!(answer.ends_with("\r\n\r\nhello"), "{answer}");
        let edge = address_of("edge");
        self.clients = (0..2).map(|_| TcpStream::connect(edge).unwrap()).collect();
        self.folder.until(|status| {
            let mut proxies = status["proxies"].as_array().unwrap().iter();
            proxies.any(|proxy| proxy["name"] == "edge" && proxy["waiting"] == 1)
        });
    }

    /// Connects until weir refuses, and waits for the event.
    fn fill(&mut self, address: SocketAddr) {
        let refused = (0..8).find_map(|_| match TcpStream::connect(address) {
            Ok(client) => {
                self.clients.push(client);
                None
            }
            Err(error) => Some(error),
        });
        assert!(refused.is_some(), "the queue holds one");
        wait::until("the refusal is an event", || {
            let output = self.folder.weir("events --json --kind overload");
            (!output.stdout.is_empty()).then_some(())
        });
    }

    /// The sockets of the guard's API and of the proxies'.
    fn sockets(&self) -> [PathBuf; 2] {
        let namespace = std::fs::metadata("/proc/thread-self/ns/net").unwrap();
        let names = [
            weir_client::default_socket_name(namespace.ino()),
            weir_client::default_proxy_socket_name(namespace.ino()),
        ];
        names.map(|name| self.folder.path.join(name))
    }
}

/// The status and the body of an answer of the API.
fn ask(socket: &Path, path: &str) -> (String, String) {
    let stream = wait::try_until(PATIENCE, || UnixStream::connect(socket).ok());
    let answer = get(stream.expect("the API listens"), path);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap();
    (status.to_owned(), body.to_owned())
}

fn ask_json(socket: &Path, path: &str) -> (String, Value) {
    let (status, body) = ask(socket, path);
    (status, serde_json::from_str(&body).unwrap())
}

fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

/// A proxy whose cache keeps what the origin sends, and one with a single connection to its backend. One backend is
/// up, one is down.
fn proxies(origin: SocketAddr, gone: SocketAddr) -> String {
    format!(
        r#"
[[proxy]]
name = "site"
listen = "127.0.0.1:0"
mode = "reverse"
backends = ["localhost:{port}"]
cache = "1MiB"
health_check = "tcp"
health_interval = "10ms"

[[proxy]]
name = "edge"
listen = "127.0.0.1:0"
mode = "tcp"
backends = ["{origin}"]
max_connections = 1

[[proxy]]
name = "down"
listen = "127.0.0.1:0"
mode = "tcp"
backends = ["{gone}"]
health_check = "tcp"
health_interval = "10ms"

[api]
"#,
        port = origin.port()
    )
}

/// A server that gives each request the same reply, which may be cached, and keeps its connections.
fn origin() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serve = |mut stream: TcpStream| {
        let mut buffer = [0; 4096];
        while stream.read(&mut buffer).is_ok_and(|read| read > 0) {
            let reply =
                b"HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 5\r\n\r\nhello";
            if stream.write_all(reply).is_err() {
                return;
            }
        }
    };
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || serve(stream));
        }
    });
    address
}

/// One request, and the whole answer.
fn get(stream: impl Read + Write, path: &str) -> String {
    get_as(
        stream,
        path,
        "application/json, application/openmetrics-text",
    )
}

fn get_as(mut stream: impl Read + Write, path: &str, kind: &str) -> String {
    let head = format!("Host: weir\r\nConnection: close\r\nAccept: {kind}");
    write!(stream, "GET {path} HTTP/1.1\r\n{head}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn has_modules() -> bool {
    let import = "import jsonschema, prometheus_client.openmetrics.parser";
    let python = Command::new(PYTHON).args(["-c", import]).output();
    let found = python.is_ok_and(|python| python.status.success());
    if !found {
        skip("Debian's Python has no modules jsonschema and prometheus_client");
    }
    found
}

/// Has the script judge, and fails with its findings.
#[track_caller]
fn check(what: &str, input: &str, expected: &str) {
    let promtool = find_program("promtool").unwrap();
    let mut script = Command::new(PYTHON)
        .args([CHECK, what])
        .env("PATH", promtool.parent().unwrap())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = script.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    let output = script.wait_with_output().unwrap();
    let findings = String::from_utf8(output.stdout).unwrap();
    assert_eq!(findings.trim(), expected, "{:?}\n{input}", output.status);
}

fn keys<T: Table>() -> Vec<&'static str> {
    T::keys().iter().map(|key| key.name).collect()
}

#[test]
fn reports_are_what_the_openapi_document_describes() {
    let Some(bed) = Bed::new("schema") else {
        return;
    };
    let [guard, proxies] = bed.sockets();
    let (_, document) = ask_json(&guard, "/v1/openapi.json");
    let mut reports = vec![json!({
        "what": "weir status --json",
        "schema": { "$ref": "#/components/schemas/Status" },
        "value": bed.folder.status(),
    })];
    let paths = document["paths"].as_object().unwrap().iter();
    let not_json = ["/v1/metrics", "/v1/openapi.json"];
    let read = paths
        .filter(|(path, methods)| methods["get"].is_object() && !not_json.contains(&path.as_str()));
    for (path, methods) in read {
        let name = match path.split('/').nth(2).unwrap() {
            "listeners" => "web",
            "classes" => "gold",
            _ => "site",
        };
        let mut answer = |socket: &Path, name: &str| {
            let asked = path.replace("{name}", name);
            let asked = asked.replace("{address}", "127.0.0.1");
            let (status, value) = ask_json(socket, &asked);
            let response = &methods["get"]["responses"][&status];
            reports.push(json!({
                "what": format!("GET {asked}: {status}"),
                "schema": response["content"]["application/json"]["schema"],
                "value": value,
            }));
            status
        };
        // The service that has it answers; the other one may say that it does not.
        let answers = [&guard, &proxies].map(|socket| answer(socket, name));
        assert!(answers.contains(&"200".to_owned()), "{path}: {answers:?}");
        if path.contains("{name}") {
            assert_eq!(answer(&guard, "unknown"), "404", "{path}");
        }
    }
    let done = weir_client::Client::new(&guard).remove_class("gold");
    reports.push(json!({
        "what": "DELETE /v1/classes/gold",
        "schema": { "$ref": "#/components/schemas/Done" },
        "value": serde_json::to_value(done.unwrap()).unwrap(),
    }));
    assert!(reports.len() > 8, "{reports:#?}");
    let input = json!({
        "document": document,
        "settings": {
            "Listener": keys::<weir_core::listener::Listener>(),
            "Quic": keys::<weir_core::quic::QuicListener>(),
            "Class": keys::<weir_core::class::Class>(),
            "Proxy": keys::<weir_core::proxy::Proxy>(),
            "Destination": keys::<weir_core::timewait::Destination>(),
        },
        "reports": reports,
        "may_be_absent": &MAY_BE_ABSENT[..],
    });
    check("reports", &input.to_string(), "");
}

#[test]
fn a_report_that_differs_from_the_document_is_found() {
    if !programs(&["promtool"]) || !has_modules() {
        return;
    }
    let schema = json!({
        "type": "object",
        "required": ["name"],
        "properties": { "name": { "type": "string" }, "port": { "type": "integer" } },
    });
    for (value, finding) in [
        (json!({ "name": "a", "port": 1 }), ""),
        (
            json!({ "name": "a", "port": "1" }),
            "a report: $.port: '1' is not of type 'integer'",
        ),
        (
            json!({ "port": 1 }),
            "a report: $: 'name' is a required property\nIts.name is declared, and no report has it",
        ),
        (
            json!({ "name": "a" }),
            "Its.port is declared, and no report has it",
        ),
        (
            json!({ "name": "a", "port": 1, "new": 1 }),
            "a report: $: Additional properties are not allowed ('new' was unexpected)",
        ),
    ] {
        let input = json!({
            "document": { "components": { "schemas": { "Its": schema } } },
            "settings": {},
            "reports": [{
                "what": "a report",
                "schema": { "$ref": "#/components/schemas/Its" },
                "value": value,
            }],
            "may_be_absent": [],
        });
        check("reports", &input.to_string(), finding);
    }
    check(
        "metrics",
        "# TYPE a gauge\na 1\n# EOF\n",
        "a has no HELP\npromtool: a no help text",
    );
}

#[test]
fn metrics_pass_the_parser_of_openmetrics_and_promtool() {
    let Some(bed) = Bed::new("metrics-format") else {
        return;
    };
    let [guard, _] = bed.sockets();
    let (status, guard) = ask(&guard, "/v1/metrics");
    assert_eq!(status, "200");
    assert!(
        guard.contains("weir_queue_length{listener=\"web\"}"),
        "{guard}"
    );
    check("metrics", &guard, "");
    let answer = get(TcpStream::connect(bed.metrics).unwrap(), "/metrics");
    let (_, proxies) = answer.split_once("\r\n\r\n").unwrap();
    assert!(
        proxies.contains("weir_proxy_queue_waiting{proxy=\"edge\""),
        "{proxies}"
    );
    check("metrics", proxies, LINTS);
    // What curl gets, promtool takes as it is.
    let answer = get_as(TcpStream::connect(bed.metrics).unwrap(), "/metrics", "*/*");
    let (head, proxies) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
    check("promtool", proxies, LINTS);
}

//! The API of the real daemon, asked over its socket: by root with the client crate, and by another user,
//! which a child of this test is.

#[allow(dead_code, reason = "the other tests use the rest of it")]
mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use weir_client::{ClassSettings, Client, Error};
use weir_testbed::needs::own_namespace;

use common::Folder;

/// The user of the server that is not root.
const SERVER_UID: u32 = 65_534;
/// Tells the child of this test which socket to ask.
const SOCKET: &str = "WEIR_TEST_API_SOCKET";
/// Its listener is at this port.
const ITS_PORT: u16 = 8082;

const CONFIG: &str = r#"
[[listener]]
name = "web"
address = "*:8081"

[[listener]]
name = "its"
address = "*:8082"

[[class]]
name = "gold"
listener = "web"
from = "10.1.0.0/16"
priority = 1

[[class]]
name = "own"
listener = "its"
from = "10.2.0.0/16"

[controller]
target_wait = "35ms"

[api]
permissions = "0666"
"#;

/// A daemon in a network namespace of this thread; killed on drop.
struct Bed {
    folder: Folder,
    daemon: Child,
}

impl Bed {
    /// `None` without root; says so.
    fn new(name: &str) -> Option<Bed> {
        if !own_namespace() {
            return None;
        }
        let folder = Folder::new(name);
        folder.write_config(CONFIG);
        let command = format!("run --config {}", folder.config().display());
        let daemon = folder
            .command(&command)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        folder.until(|status| status["running"] == true);
        let bed = Bed { folder, daemon };
        bed.folder.until(|_| bed.socket().exists());
        Some(bed)
    }

    fn socket(&self) -> PathBuf {
        let namespace = std::fs::metadata("/proc/thread-self/ns/net").unwrap();
        let inode = std::os::unix::fs::MetadataExt::ino(&namespace);
        self.folder
            .path
            .join(weir_client::default_socket_name(inode))
    }

    fn client(&self) -> Client {
        Client::new(self.socket())
    }

    /// Ends the daemon; what it has logged.
    fn log(mut self) -> String {
        kill(Pid::from_raw(self.daemon.id() as i32), Signal::SIGTERM).unwrap();
        let mut log = String::new();
        self.daemon
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut log)
            .unwrap();
        log
    }
}

impl Bed {
    /// Ends the daemon.
    fn end(mut self) {
        kill(Pid::from_raw(self.daemon.id() as i32), Signal::SIGTERM).unwrap();
        self.daemon.wait().unwrap();
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

fn status_of(result: Result<impl std::fmt::Debug, Error>) -> u16 {
    match result.unwrap_err() {
        Error::Refused { status, problem } => {
            assert!(!problem.causes.is_empty(), "{problem:?}");
            assert!(
                problem.causes.iter().all(|cause| !cause.hint.is_empty()),
                "{problem:?}"
            );
            status
        }
        error => panic!("{error}"),
    }
}

#[test]
fn what_is_asked_is_answered_and_what_is_written_is_in_force_and_logged() {
    let Some(bed) = Bed::new("api") else { return };
    let _server = TcpListener::bind(("127.0.0.1", 8081)).unwrap();
    let weir = bed.client();

    let status = weir.status().unwrap();
    assert_eq!(status.process.unwrap().command, "run");
    assert_eq!(status.listeners.len(), 2);
    let web = weir.listener("web").unwrap();
    assert!(web.listening && web.queue_limit > 0 && web.counters.contains_key("syn_admitted"));
    assert_eq!(
        web.policy, "reserv rst-syn, admit wait 20ms",
        "target_wait is shown as configured, though the rule yields to the controller"
    );
    assert_eq!(status_of(weir.listener("wbe")), 404);

    let controller = weir.controller().unwrap();
    assert_eq!(
        (controller.mode.as_str(), controller.target_wait.as_deref()),
        ("enforce", Some("35ms"))
    );
    assert_eq!(
        web.target_in_force_us,
        Some(35_000),
        "beside it, the controller's"
    );

    let silver = ClassSettings::new()
        .from("10.1.2.0/24")
        .listener("web")
        .rate(300.0)
        .burst(30);
    let added = weir.add_class("silver", &silver).unwrap();
    assert_eq!((added.rate, added.burst), (Some(300.0), Some(30)));
    assert_eq!(
        status_of(weir.add_class("silver", &silver)),
        409,
        "its name is taken"
    );
    assert_eq!(
        status_of(weir.add_class("tie", &silver)),
        409,
        "it fits the same connections"
    );
    let changed = weir
        .change_class("silver", &ClassSettings::new().rate(100.0))
        .unwrap();
    assert_eq!((changed.rate, changed.burst), (Some(100.0), Some(30)));
    let lifted = weir
        .change_class("silver", &ClassSettings::new().without("rate"))
        .unwrap();
    assert_eq!(lifted.rate, None);
    let put = weir
        .put_class(
            "silver",
            &ClassSettings::new().from("10.3.0.0/16").priority(2),
        )
        .unwrap();
    assert_eq!(
        (put.priority, put.settings["listener"].clone()),
        (2, Value::Null)
    );
    assert_eq!(
        status_of(weir.change_class("silver", &ClassSettings::new().rate(-1.0))),
        400
    );
    assert_eq!(
        status_of(weir.change_class("silver", &ClassSettings::new().with("rates", 1))),
        400
    );
    assert_eq!(
        status_of(weir.change_class("other", &ClassSettings::new().rate(1.0))),
        400
    );
    assert_eq!(
        status_of(weir.put_class("other", &ClassSettings::new())),
        400
    );
    let lost = ClassSettings::new().listener("wbe").from("10.6.0.0/16");
    assert_eq!(status_of(weir.add_class("lost", &lost)), 400);
    // One that the guard does not have is not answered as if it did.
    let of_proxy = ClassSettings::new().with("proxy", "edge");
    for settings in [of_proxy.clone(), of_proxy.clone().from("10.5.0.0/16")] {
        assert_eq!(status_of(weir.add_class("theirs", &settings)), 400);
    }
    assert_eq!(status_of(weir.change_class("gold", &of_proxy)), 400);
    let nameless = weir.add_class("silly", &ClassSettings::new().with("rats", 1));
    assert!(
        nameless
            .as_ref()
            .unwrap_err()
            .to_string()
            .contains("\"silly\""),
        "{nameless:?}"
    );
    // null takes prefixes away too: now it fits everybody, as "gold" does not.
    let to_all = ClassSettings::new().without("from").without("to");
    let all = weir.change_class("silver", &to_all).unwrap();
    assert_eq!(all.settings["from"], Value::Array(Vec::new()));
    let names: Vec<String> = weir
        .classes()
        .unwrap()
        .into_iter()
        .map(|class| class.name)
        .collect();
    assert_eq!(names, ["gold", "own", "silver", "other"]);
    weir.remove_class("silver").unwrap();
    assert!(weir.class("silver").unwrap_err().is_unknown());
    assert_eq!(status_of(weir.remove_class("silver")), 404);
    // What is done is an event, in the words of the log; what is refused is none.
    let events = weir.events(0).unwrap().events;
    let changes = events.iter().filter(|event| event.kind == "class_changed");
    let texts: Vec<&str> = changes.map(|event| event.text.as_str()).collect();
    assert_eq!(texts.len(), 6, "{texts:?}");
    assert!(texts[5].starts_with("class remove silver: done by uid "));

    let log = bed.log();
    let uid = nix::unistd::geteuid();
    for line in [
        format!(
            "class add silver burst=30 from=10.1.2.0/24 listener=web rate=300: done by uid {uid} (pid {})",
            std::process::id()
        ),
        format!("class set silver rate=none: done by uid {uid}"),
        format!("class put silver from=10.3.0.0/16 priority=2: done by uid {uid}"),
        format!("class remove silver: done by uid {uid}"),
        format!(
            "class add theirs proxy=edge: refused to uid {uid} (pid {})",
            std::process::id()
        ),
    ] {
        assert!(log.contains(&line), "{line}\n{log}");
    }
}

#[test]
fn the_document_and_the_metrics_are_served_and_what_is_no_path_is_said() {
    let Some(bed) = Bed::new("api-paths") else {
        return;
    };
    let ask = |options: &[&str], path: &str| {
        let output = Command::new("curl")
            .args(["--silent", "--show-error", "--include", "--unix-socket"])
            .arg(bed.socket())
            .args(options)
            .arg(format!("http://weir{path}"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let get = |path: &str| ask(&[], path);
    let document = get("/v1/openapi.json");
    let (_, body) = document.split_once("\r\n\r\n").unwrap();
    let document: Value = serde_json::from_str(body).unwrap();
    assert!(document["paths"]["/v1/classes/{name}"]["patch"].is_object());
    let metrics = get("/v1/metrics");
    assert!(
        metrics.contains("application/openmetrics-text"),
        "{metrics}"
    );
    assert!(
        metrics.contains("weir_syn_admitted_total{listener=\"web\"} 0"),
        "{metrics}"
    );
    let method = ask(&["--request", "PUT"], "/v1/classes");
    assert!(
        method.starts_with("HTTP/1.1 405") && method.contains("hint"),
        "{method}"
    );
    let long = bed.folder.path.join("long");
    std::fs::write(&long, vec![b' '; 129 << 10]).unwrap();
    let long = format!("@{}", long.display());
    let too_long = ask(
        &["--header", "Expect:", "--data-binary", &long],
        "/v1/classes",
    );
    assert!(
        too_long.starts_with("HTTP/1.1 413") && too_long.contains("hint"),
        "{too_long}"
    );
    // A terminal would take it for a colour.
    let coloured = ask(
        &["--request", "PUT", "--data", "{\"from\": \"10.9.0.0/16\"}"],
        "/v1/classes/%1b%5b31m",
    );
    assert!(
        coloured.starts_with("HTTP/1.1 400") && coloured.contains("is not a name"),
        "{coloured}"
    );
    for path in ["/v1/why/%ff", "/v1/classes/%ff", "/v1/listeners/%ff"] {
        let answer = get(path);
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 400"), "{path}: {answer}");
        let problem: weir_client::Problem = serde_json::from_str(body).unwrap();
        assert!(problem.causes[0].message.contains("UTF-8"), "{problem:?}");
    }
    let unknown = get("/v2/status");
    assert!(
        unknown.starts_with("HTTP/1.1 404") && unknown.contains("openapi.json"),
        "{unknown}"
    );
}

#[test]
fn a_client_that_has_no_more_to_ask_gets_its_answers() {
    let Some(bed) = Bed::new("api-half-close") else {
        return;
    };
    for _ in 0..50 {
        let mut client = UnixStream::connect(bed.socket()).unwrap();
        let request = "GET /v1/classes HTTP/1.1\r\nHost: weir\r\n\r\n";
        client.write_all(request.as_bytes()).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer:?}");
    }
}

/// Runs [`calls_of_the_servers_own_user`] as that user.
fn as_the_servers_user(socket: &Path) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "calls_of_the_servers_own_user", "--nocapture"])
        .env(SOCKET, socket)
        .uid(SERVER_UID)
        .gid(SERVER_UID)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{output:?}"
    );
}

#[test]
fn a_server_that_is_not_root_writes_its_own_classes_and_no_others() {
    let Some(bed) = Bed::new("api-user") else {
        return;
    };
    let _web = TcpListener::bind(("127.0.0.1", 8081)).unwrap();
    as_the_servers_user(&bed.socket());
    let own = bed.client().class("own").unwrap();
    assert_eq!(own.rate, Some(50.0), "what it wrote is in force");
    let gold = bed.client().class("gold").unwrap();
    assert_eq!(gold.rate, None);
    let log = bed.log();
    assert!(
        log.contains(&format!("class set own rate=50: done by uid {SERVER_UID}")),
        "{log}"
    );
    assert!(
        log.contains(&format!("refused to uid {SERVER_UID}"))
            && log.contains(&format!("user {SERVER_UID} may not write")),
        "{log}"
    );
}

/// What the other user does in the test above; by itself it has no socket to ask, and nothing to claim.
#[test]
fn calls_of_the_servers_own_user() {
    let Some(socket) = std::env::var_os(SOCKET) else {
        return;
    };
    let weir = Client::new(socket);
    let rate = |rate: f64| ClassSettings::new().rate(rate);
    assert!(
        weir.change_class("own", &rate(40.0))
            .unwrap_err()
            .is_denied(),
        "it does not listen yet"
    );
    let _server = TcpListener::bind(("127.0.0.1", ITS_PORT)).unwrap();
    assert!(
        weir.listener("its").unwrap().listening,
        "who is let in may read"
    );
    weir.change_class("own", &rate(50.0)).unwrap();
    for denied in [
        weir.change_class("gold", &rate(1.0)),
        weir.change_class("own", &ClassSettings::new().listener("web")),
        weir.change_class("own", &ClassSettings::new().without("listener")),
        weir.change_class("gold", &ClassSettings::new().listener("its")),
        weir.add_class("all", &ClassSettings::new().priority(1)),
        weir.add_class(
            "webs",
            &ClassSettings::new().listener("web").from("10.9.0.0/16"),
        ),
    ] {
        assert!(denied.unwrap_err().is_denied());
    }
    assert!(weir.remove_class("gold").unwrap_err().is_denied());
    let new = ClassSettings::new()
        .listener("its")
        .from("10.4.0.0/16")
        .rate(5.0);
    weir.add_class("new", &new).unwrap();
    weir.remove_class("new").unwrap();
}

#[test]
fn a_socket_for_root_only_lets_nobody_else_in() {
    if !own_namespace() {
        return;
    }
    let folder = Folder::new("api-root");
    folder.write_config("[[listener]]\naddress = \"*:8081\"\n[api]\n");
    let command = format!("run --config {}", folder.config().display());
    let daemon = folder
        .command(&command)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let bed = Bed { folder, daemon };
    bed.folder
        .until(|status| status["running"] == true && bed.socket().exists());
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(bed.socket()).unwrap().permissions(),
    );
    assert_eq!(mode & 0o777, 0o600);
    assert!(bed.client().status().is_ok());
    assert!(
        bed.client().controller().unwrap_err().is_unknown(),
        "there is none"
    );
    let curl = Command::new("curl")
        .args(["--silent", "--unix-socket"])
        .arg(bed.socket())
        .arg("http://weir/v1/status")
        .uid(SERVER_UID)
        .output()
        .unwrap();
    assert!(!curl.status.success() && curl.stdout.is_empty(), "{curl:?}");
}

#[test]
fn weir_class_is_logged_when_it_is_done_and_refused_when_it_is_not() {
    let Some(bed) = Bed::new("class-log") else {
        return;
    };
    let run = |arguments: &str| {
        let command = bed.folder.command(arguments);
        let child = { command }
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id();
        (pid, child.wait_with_output().unwrap())
    };
    let (adder, added) =
        run("class add tin --from 10.7.0.0/16 --to 10.9.9.9 --to-port 8080 --over-rate rst");
    let text = String::from_utf8(added.stdout).unwrap();
    assert!(
        added.status.success() && text.contains("from=10.7.0.0/16"),
        "{text}"
    );
    assert!(!text.contains("gold"), "only what has changed: {text}");
    let (tied, refused) = run("class add tied --from 10.7.0.0/16 --to 10.9.9.9 --to-port 8080");
    assert_eq!(refused.status.code(), Some(2));
    let (_, of_proxy) = run("class add theirs --proxy edge");
    assert_eq!(of_proxy.status.code(), Some(2), "{of_proxy:?}");
    let (_, other) = run("class set other --rate 5");
    let text = String::from_utf8(other.stderr).unwrap();
    assert!(text.contains("it has no settings"), "{text}");
    let (setter, set) = run("class set tin --to none");
    assert!(set.status.success(), "{set:?}");
    let shown = bed.client().class("tin").unwrap();
    assert_eq!(shown.settings["to"], Value::Array(Vec::new()));
    let uid = nix::unistd::geteuid();
    let log = bed.log();
    for line in [
        format!(
            "class add tin from=10.7.0.0/16 over_rate=rst to=10.9.9.9 to_port=8080: done by uid {uid} (pid {adder})"
        ),
        format!("class set tin to=none: done by uid {uid} (pid {setter})"),
        format!(
            "class add tied from=10.7.0.0/16 to=10.9.9.9 to_port=8080: refused to uid {uid} (pid {tied}): \
             class \"tied\": it ties with"
        ),
    ] {
        assert!(log.contains(&line), "{line}\n{log}");
    }
}

/// Config of a daemon with its API at this path.
fn config_with_socket(socket: &Path) -> String {
    format!(
        "[[listener]]\naddress = \"*:8081\"\n[api]\nsocket = {:?}\n",
        socket.display().to_string()
    )
}

#[test]
fn what_stands_at_the_path_of_the_api_is_somebody_elses_and_stays() {
    if !own_namespace() {
        return;
    }
    let folder = Folder::new("api-path-taken");
    let at = |name: &str| folder.path.join(name);
    std::fs::write(at("file"), "precious").unwrap();
    std::os::unix::fs::symlink(at("file"), at("link")).unwrap();
    let living = UnixListener::bind(at("living")).unwrap();
    for name in ["file", "link", "living", "missing/api.sock"] {
        folder.write_config(&config_with_socket(&at(name)));
        let output = folder.weir(&format!("run --config {}", folder.config().display()));
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{name}: {text}");
        assert!(
            text.contains("[api] socket") && text.contains("hint: "),
            "{name}: {text}"
        );
    }
    assert_eq!(std::fs::read(at("file")).unwrap(), b"precious");
    assert!(at("link").is_symlink());
    UnixStream::connect(at("living")).unwrap();
    living.accept().unwrap();
    assert!(!at("missing").exists(), "no folder is made");
}

#[test]
fn of_two_weirs_with_one_path_the_first_keeps_it() {
    if !own_namespace() {
        return;
    }
    let folder = Folder::new("api-two");
    let socket = folder.path.join("shared.sock");
    // What a killed one has left makes room.
    drop(UnixListener::bind(&socket).unwrap());
    folder.write_config(&config_with_socket(&socket));
    let command = format!("run --config {}", folder.config().display());
    let start = |folder: &Folder| {
        folder
            .command(&command)
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    };
    let daemon = start(&folder);
    let bed = Bed { folder, daemon };
    let pid = || Client::new(&socket).status().ok()?.process.map(|p| p.pid);
    bed.folder.until(|_| pid().is_some());
    let first = pid();
    let second = std::thread::scope(|scope| {
        let elsewhere = || {
            assert!(own_namespace());
            bed.folder.weir(&command)
        };
        scope.spawn(elsewhere).join().unwrap()
    });
    let text = String::from_utf8_lossy(&second.stderr);
    assert!(text.contains("another process listens there"), "{text}");
    assert_eq!(pid(), first, "it is asked as before");
    bed.end();
    assert!(!socket.exists(), "its own goes with it");
}

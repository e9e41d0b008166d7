//! What the services give up once they run, read from /proc, and that they work without it.

#[allow(dead_code, reason = "the other tests use the rest of it")]
mod common;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::process::{Child, Command, Stdio};

use common::{Folder, PATIENCE};
use serde_json::Value;
use weir_testbed::needs::{self, own_namespace};
use weir_testbed::wait;

/// Bits of <linux/capability.h>.
const CHOWN: u64 = 1;
const DAC_OVERRIDE: u64 = 1 << 1;
const DAC_READ_SEARCH: u64 = 1 << 2;
const NET_BIND_SERVICE: u64 = 1 << 10;
const NET_ADMIN: u64 = 1 << 12;
const SYS_PTRACE: u64 = 1 << 19;
const SYS_ADMIN: u64 = 1 << 21;
const SYS_NICE: u64 = 1 << 23;
const PERFMON: u64 = 1 << 38;
const BPF: u64 = 1 << 39;
/// CapabilityBoundingSet of packaging/weir.service.
const GUARD: u64 =
    BPF | NET_ADMIN | PERFMON | CHOWN | DAC_READ_SEARCH | SYS_PTRACE | NET_BIND_SERVICE | SYS_NICE;
/// `Seccomp:` of a thread with a filter.
const FILTERED: u64 = 2;
const NOBODY: u32 = 65534;

/// A running service; killed on drop.
struct Service(Child);

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(mut command: Command) -> Service {
    Service(
        command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap(),
    )
}

impl Service {
    /// What /proc says of each thread, by its name.
    fn threads(&self) -> BTreeMap<String, Thread> {
        threads_of(self.0.id())
    }

    /// Its threads, once each of them has given up what it does.
    fn settled(
        &self,
        is_settled: impl Fn(&BTreeMap<String, Thread>) -> bool,
    ) -> BTreeMap<String, Thread> {
        let mut last = BTreeMap::new();
        let found = wait::try_until(PATIENCE, || {
            last = self.threads();
            is_settled(&last).then(|| last.clone())
        });
        found.unwrap_or_else(|| panic!("not within {PATIENCE:?}: {last:x?}"))
    }
}

/// What /proc/PID/task/TID/status says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Thread {
    permitted: u64,
    effective: u64,
    inheritable: u64,
    ambient: u64,
    no_new_privileges: u64,
    seccomp: u64,
}

impl Thread {
    fn of(status: &str) -> Thread {
        let field = |name: &str, radix| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            u64::from_str_radix(line.unwrap().trim(), radix).unwrap()
        };
        Thread {
            permitted: field("CapPrm:", 16),
            effective: field("CapEff:", 16),
            inheritable: field("CapInh:", 16),
            ambient: field("CapAmb:", 16),
            no_new_privileges: field("NoNewPrivs:", 10),
            seccomp: field("Seccomp:", 10),
        }
    }

    /// One that has exactly these capabilities, and has given up what every thread of a service gives up.
    fn with(capabilities: u64) -> Thread {
        Thread {
            permitted: capabilities,
            effective: capabilities,
            inheritable: 0,
            ambient: 0,
            no_new_privileges: 1,
            seccomp: FILTERED,
        }
    }
}

/// Threads of one name are the same here.
fn threads_of(pid: u32) -> BTreeMap<String, Thread> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter();
    let mut threads = BTreeMap::new();
    for task in tasks.flatten().flatten() {
        // A thread may end between the two.
        let Ok(status) = std::fs::read_to_string(task.path().join("status")) else {
            continue;
        };
        let name = status
            .lines()
            .next()
            .unwrap()
            .trim_start_matches("Name:")
            .trim();
        let thread = Thread::of(&status);
        if let Some(other) = threads.insert(name.to_owned(), thread) {
            assert_eq!(other, thread, "two threads {name}");
        }
    }
    threads
}

fn own() -> Thread {
    Thread::of(&std::fs::read_to_string("/proc/thread-self/status").unwrap())
}

const LISTENER: &str = "[[listener]]\nname = \"web\"\naddress = \"*:8080\"\n";

#[test]
fn a_guard_keeps_what_its_unit_gives_it_and_its_talkers_keep_nothing() {
    if !own_namespace() {
        return;
    }
    let folder = Folder::new("privileges-guard");
    let config = format!("[api]\n[dashboard]\n[metrics]\nlisten = \"127.0.0.1:464\"\n{LISTENER}");
    folder.write_config(&config);
    let weir = start(folder.command(&format!("run --config {}", folder.config().display())));
    folder.until(|status| status["running"] == true);
    let threads = weir.settled(|threads| threads.values().all(|thread| thread.seccomp == FILTERED));
    let kept = own().permitted & GUARD;
    assert_eq!(threads["weir"], Thread::with(kept), "{threads:x?}");
    for name in ["weir-api", "weir-metrics", "weir-dashboard", "weir-log"] {
        assert_eq!(threads[name], Thread::with(0), "{name}: {threads:x?}");
    }

    // It goes on with all that a reload may ask of it: another listener, priority, a controller, the XDP front.
    let _server = TcpListener::bind("127.0.0.1:8081").unwrap();
    folder.write_config(&format!(
        "{config}[[listener]]\nname = \"more\"\naddress = \"127.0.0.1:8081\"\nqueue = \"priority\"\nfront = \"xdp\"\n\
         [controller]\ntarget_wait = \"20ms\"\n[[class]]\nname = \"gold\"\npriority = 1\nfrom = \"127.0.0.2\"\n"
    ));
    let reloaded = folder.weir("reload");
    assert!(reloaded.status.success(), "{reloaded:?}");
    let status = folder.until(|status| {
        status["listeners"]
            .as_array()
            .is_some_and(|all| all.len() == 2)
    });
    assert_eq!(status["listeners"][1]["in_force"], true, "{status:#}");
    assert_eq!(status["listeners"][1]["queue_way"], "parking", "{status:#}");
    assert_eq!(weir.threads()["weir-queue"], Thread::with(kept));
    let changed = folder.weir("class set gold --rate 10");
    assert!(changed.status.success(), "{changed:?}");
    TcpStream::connect("127.0.0.1:8081").unwrap();
    assert!(folder.weir("detach").status.success());
}

#[test]
fn a_guard_whose_events_go_to_a_folder_of_another_user_can_write_them() {
    if !own_namespace() {
        return;
    }
    let folder = Folder::new("privileges-events");
    let theirs = folder.path.join("events");
    std::fs::create_dir(&theirs).unwrap();
    std::fs::set_permissions(&theirs, std::fs::Permissions::from_mode(0o700)).unwrap();
    chown(&theirs, Some(NOBODY), Some(NOBODY)).unwrap();
    let file = theirs.join("events.jsonl");
    folder.write_config(&format!(
        "{LISTENER}[events]\nfile = \"{}\"\n",
        file.display()
    ));
    let weir = start(folder.command(&format!("run --config {}", folder.config().display())));
    folder.until(|status| status["running"] == true);
    let threads = weir.settled(|threads| threads["weir"].seccomp == FILTERED);
    let kept = own().permitted & (GUARD | DAC_OVERRIDE);
    assert_eq!(threads["weir"], Thread::with(kept));
    std::fs::remove_file(&file).unwrap();
    assert!(folder.weir("reload").status.success());
    wait::until("the reload's event in the new file", || {
        (std::fs::metadata(&file).ok()?.len() > 0).then_some(())
    });
}

#[test]
fn weir_protect_gives_up_the_same() {
    if !own_namespace() {
        return;
    }
    let folder = Folder::new("privileges-protect");
    let _server = TcpListener::bind("127.0.0.1:8080").unwrap();
    let weir = start(folder.command("protect 8080"));
    folder.until(|status| status["running"] == true);
    let threads = weir.settled(|threads| threads.values().all(|thread| thread.seccomp == FILTERED));
    assert_eq!(threads["weir"], Thread::with(own().permitted & GUARD));
}

#[test]
fn a_guard_of_other_network_namespaces_may_enter_them_besides() {
    if !own_namespace() {
        return;
    }
    let folder = Folder::new("privileges-elsewhere");
    let weir = start(folder.command("protect 8080 --where netns:nobody --anyway"));
    folder.until(|status| status["running"] == true);
    let threads = weir.settled(|threads| threads.values().all(|thread| thread.seccomp == FILTERED));
    let kept = own().permitted & (GUARD | SYS_ADMIN);
    assert_eq!(threads["weir"], Thread::with(kept), "{threads:x?}");
    assert_eq!(threads["weir-log"], Thread::with(0), "{threads:x?}");
}

fn proxy_on(port: u16, keys: &str) -> String {
    format!(
        "[[proxy]]\nname = \"p{port}\"\nlisten = \"127.0.0.1:{port}\"\nmode = \"forward\"\n{keys}\n"
    )
}

fn start_proxy(folder: &Folder, flags: &str) -> Service {
    let weir = start(folder.command(&format!("proxy --config weir.toml {flags}")));
    folder.until(|status| {
        status["proxies"].as_array().is_some_and(|all| {
            let pid = Value::from(weir.0.id());
            all.iter().any(|proxy| proxy["pid"] == pid)
        })
    });
    weir
}

/// Whether a proxy answers there.
fn answers(port: u16) -> bool {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).is_ok() && answer.starts_with("HTTP/1.1 ")
}

#[test]
fn a_proxy_keeps_the_right_to_low_ports_alone_and_hands_over_without_more() {
    if !own_namespace() {
        return;
    }
    let folder = Folder::new("privileges-proxy");
    folder.write_config(&format!(
        "[api]\n{}",
        proxy_on(880, "access_log = \"access.log\"")
    ));
    let old = start_proxy(&folder, "");
    let threads = old.settled(|threads| threads.values().all(|thread| thread.seccomp == FILTERED));
    let bind = own().permitted & NET_BIND_SERVICE;
    for (name, thread) in &threads {
        let expected = match name.as_str() {
            "weir-api" | "weir-log" => 0,
            _ => bind,
        };
        assert_eq!(*thread, Thread::with(expected), "{name}: {threads:x?}");
    }
    assert!(threads.len() > 3, "{threads:x?}");
    assert!(answers(880));
    // A reload to another low port, a log that was rotated, and a successor.
    std::fs::rename(
        folder.path.join("access.log"),
        folder.path.join("access.log.1"),
    )
    .unwrap();
    folder.write_config(&format!(
        "[api]\n{}{}",
        proxy_on(880, "access_log = \"access.log\""),
        proxy_on(881, "")
    ));
    assert!(folder.weir("reload").status.success());
    assert!(answers(880) && answers(881));
    wait::until("the new log", || {
        let log = std::fs::read_to_string(folder.path.join("access.log")).ok()?;
        (!log.is_empty()).then_some(())
    });
    let new = start_proxy(&folder, "--take-over");
    assert!(answers(880) && answers(881));
    let threads = new.settled(|threads| threads.values().all(|thread| thread.seccomp == FILTERED));
    assert_eq!(threads["weir"], Thread::with(bind));
}

#[test]
fn a_proxy_whose_log_belongs_to_another_user_can_open_it_again() {
    if !own_namespace() {
        return;
    }
    let folder = Folder::new("privileges-log");
    let logs = folder.path.join("logs");
    std::fs::create_dir(&logs).unwrap();
    std::fs::set_permissions(&logs, std::fs::Permissions::from_mode(0o700)).unwrap();
    chown(&logs, Some(NOBODY), Some(NOBODY)).unwrap();
    let log = logs.join("access.log");
    folder.write_config(&proxy_on(
        880,
        &format!("access_log = \"{}\"", log.display()),
    ));
    let proxy = start_proxy(&folder, "");
    let threads = proxy.settled(|threads| threads["weir"].seccomp == FILTERED);
    let kept = own().permitted & (NET_BIND_SERVICE | DAC_OVERRIDE);
    assert_eq!(threads["weir"], Thread::with(kept));
    let written = || (std::fs::metadata(&log).ok()?.len() > 0).then_some(());
    assert!(answers(880));
    wait::until("a line", written);
    std::fs::remove_file(&log).unwrap();
    assert!(folder.weir("reload").status.success());
    assert!(answers(880));
    wait::until("a line in the new file", written);
    assert_eq!(std::fs::metadata(&logs).unwrap().uid(), NOBODY);
}

#[test]
fn settings_that_need_more_rights_than_a_proxy_kept_are_refused_with_the_way_out() {
    if !own_namespace() {
        return;
    }
    let folder = Folder::new("privileges-more");
    let tunnel = |engine: &str| {
        format!(
            "[[proxy]]\nname = \"t\"\nlisten = \"127.0.0.1:880\"\nmode = \"tcp\"\n\
             backends = [\"127.0.0.1:1\"]\nengine = \"{engine}\"\n"
        )
    };
    folder.write_config(&tunnel("auto"));
    let old = start_proxy(&folder, "");
    old.settled(|threads| threads["weir"].seccomp == FILTERED);
    folder.write_config(&tunnel("sockmap"));
    let refused = folder.weir("reload");
    assert_eq!(refused.status.code(), Some(3), "{refused:?}");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("--take-over"), "{said}");
    TcpStream::connect("127.0.0.1:880").unwrap();
    if !said.contains("6.15") {
        let new = start_proxy(&folder, "--take-over");
        let threads = new.settled(|threads| threads["weir"].seccomp == FILTERED);
        let kept = own().permitted & (NET_BIND_SERVICE | BPF | NET_ADMIN | PERFMON);
        assert_eq!(threads["weir"], Thread::with(kept));
    }
}

#[test]
fn what_weir_exec_starts_has_the_rights_and_calls_that_it_had() {
    if !own_namespace() || !needs::programs(&["cat"]) {
        return;
    }
    let folder = Folder::new("privileges-exec");
    let output = folder.weir("exec -- cat /proc/self/status");
    assert!(output.status.success(), "{output:?}");
    let server = Thread::of(&String::from_utf8_lossy(&output.stdout));
    let own = own();
    assert_eq!(
        (server.permitted, server.effective, server.no_new_privileges),
        (own.permitted, own.effective, own.no_new_privileges)
    );
}

//! Servers of HTTP/3 behind weir: those of a Debian 13, for this machine's own may speak none.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;
use weir_testbed::needs;
use weir_testbed::netns::Netns;
use weir_testbed::process::members;
use weir_testbed::quic::{Crowd, CrowdResult, Request, Steady, SteadyResult};
use weir_testbed::sockets::within;
use weir_testbed::wait::{PATIENCE, Stops, until};

use super::block;
use super::servers::{SERVER, SOMAXCONN, host};
use super::site::{Network, Server, Shell, at, guards, nginx_server};

const PORT: u16 = 443;
/// Where the recipe of Caddy has the application.
const APP_PORT: u16 = 8000;
/// What becomes of a client that comes while the server reloads is known by then.
const SHORT: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Nginx,
    Haproxy,
    Caddy,
}

/// A server's files, in the root of the Debian 13 in which it runs.
struct Place {
    root: PathBuf,
    folder: TempDir,
}

impl Place {
    /// `None` where that is not there; says so.
    fn new() -> Option<Place> {
        let root = needs::debian_13()?;
        let folder = TempDir::with_prefix_in("weir-recipe-", root.join("opt")).unwrap();
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(folder.path(), open).unwrap();
        let place = Place { root, folder };
        let mut openssl = needs::command("sh");
        let make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=recipe -days 1 \
                    -keyout web.key -out web.pem && cat web.key web.pem >web-and-key.pem";
        openssl
            .args(["-c", make])
            .current_dir(place.folder.path())
            .stderr(Stdio::null());
        assert!(openssl.status().unwrap().success());
        Some(place)
    }

    /// The folder as a program in the root has it.
    fn inside(&self) -> String {
        let inside = self.folder.path().strip_prefix(&self.root).unwrap();
        format!("/{}", inside.display())
    }

    /// Writes a file; `FOLDER` and the page's folder of certificates are the place's. Gives its path in the root.
    fn write(&self, name: &str, text: &str) -> String {
        let inside = self.inside();
        let text = text.replace("FOLDER", &inside).replace("/etc/ssl", &inside);
        std::fs::write(self.folder.path().join(name), text).unwrap();
        format!("{inside}/{name}")
    }

    /// A program of the root's. It has /proc, where Go looks for the limit of listen queues.
    fn command(&self, words: &[&str]) -> Command {
        const ENTER: &str = "mount -t proc proc \"$0/proc\" && exec chroot \"$0\" \"$@\"";
        let mut command = needs::command("unshare");
        command.args(["--mount", "sh", "-c", ENTER]);
        command.arg(&self.root).args(words);
        command.env("HOME", self.inside());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// A server as its recipe sets it, and these lines of it.
    fn server(&self, kind: Kind, further: &str) -> Command {
        match kind {
            Kind::Nginx => {
                let lines = block("http3-in-nginx", "nginx", 0);
                let conf = format!(
                    "daemon off; user root; worker_processes 2; pid FOLDER/pid; error_log FOLDER/log;
                     events {{ worker_connections 1024; }}
                     http {{
                       access_log off; client_body_temp_path FOLDER/body; proxy_temp_path FOLDER/proxy;
                       fastcgi_temp_path FOLDER/fastcgi; uwsgi_temp_path FOLDER/uwsgi; scgi_temp_path FOLDER/scgi;
                       server {{ {lines} {further} return 200 hello; }}
                     }}\n"
                );
                let conf = self.write("nginx.conf", &conf);
                self.command(&["nginx", "-e", "stderr", "-c", &conf])
            }
            Kind::Haproxy => {
                let sections = block("http3-in-haproxy", "haproxy", 0);
                let conf = format!(
                    "defaults\n  mode http\n  timeout connect 5s\n  timeout client 30s\n  timeout server 5s\n\
                     {sections}\
                     backend app\n  http-request return status 200 content-type text/plain string hello\n"
                );
                let conf = self.write("haproxy.cfg", &conf);
                // As Debian's service does it: a master, which reloads.
                let master = format!("{}/master", self.inside());
                self.command(&["haproxy", "-W", "-S", &master, "-f", &conf])
            }
            Kind::Caddy => {
                let site = block("http3-in-caddy", "caddyfile", 0);
                let conf = format!(
                    "{{\n\tadmin unix/FOLDER/admin\n\tstorage file_system FOLDER/storage\n}}\n{site}"
                );
                let conf = self.write("Caddyfile", &conf);
                self.command(&["caddy", "run", "--config", &conf, "--adapter", "caddyfile"])
            }
        }
    }

    /// Has it read its configuration again, and waits until that is in force for every client that comes.
    fn reload(&self, kind: Kind, server: &Server) {
        let inside = self.inside();
        let end = |words: &[&str]| {
            let status = self.command(words).status().unwrap();
            assert!(status.success(), "{words:?}");
        };
        let workers = || {
            let mut pids = members(&[server.pid()]).unwrap();
            pids.retain(|pid| *pid != server.pid());
            pids
        };
        let old = workers();
        match kind {
            Kind::Nginx => end(&[
                "nginx",
                "-s",
                "reload",
                "-c",
                &format!("{inside}/nginx.conf"),
            ]),
            // The master takes nothing while it starts.
            Kind::Haproxy => until("the reload is done", || {
                let mut master = UnixStream::connect(self.folder.path().join("master")).ok()?;
                master.write_all(b"reload\n").ok()?;
                let mut said = String::new();
                master.read_to_string(&mut said).ok()?;
                said.contains("Success=1").then_some(())
            }),
            Kind::Caddy => end(&[
                "caddy",
                "reload",
                "--force",
                "--adapter",
                "caddyfile",
                "--config",
                &format!("{inside}/Caddyfile"),
                "--address",
                &format!("unix/{inside}/admin"),
            ]),
        }
        // An old worker of HAProxy's serves its connections to their end, and takes no new ones.
        let is_over = |now: Vec<u32>| match kind {
            Kind::Nginx => now.iter().all(|pid| !old.contains(pid)),
            Kind::Haproxy => now.iter().any(|pid| !old.contains(pid)),
            Kind::Caddy => true,
        };
        until("the new configuration is in force", || {
            is_over(workers()).then_some(())
        });
    }

    /// curl, which may only have this version of HTTP: the page, the version, and where else the server says it is.
    fn curl(&self, client: &Netns, version: &str) -> String {
        let mut curl = self.command(&[
            "curl",
            "--silent",
            "--insecure",
            "--max-time",
            "10",
            version,
        ]);
        curl.args(["--write-out", " %{http_version} %header{alt-svc}"]);
        curl.arg(format!("https://{SERVER}/"));
        curl.stdout(Stdio::piped());
        let output = within(client, || curl.output().unwrap());
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

fn start(place: &Place, kind: Kind, host: &Netns, further: &str) -> Server {
    let server = Server::start(host, place.server(kind, further), PORT);
    until("it has the UDP port", || udp_is_bound(host).then_some(()));
    server
}

fn udp_is_bound(host: &Netns) -> bool {
    let look = || {
        let mut ss = Command::new("ss");
        ss.args(["-ulnH", "sport = :443"]).output().unwrap()
    };
    !within(host, look).stdout.trim_ascii().is_empty()
}

/// A client that comes alone, and asks for a page.
fn come(client: &Netns, timeout: Duration) -> CrowdResult {
    let one = Crowd {
        to: at(SERVER, PORT),
        per_second: 1.0,
        seconds: 1.0,
        timeout,
        request: Some(Request::http3_get_root("localhost")),
    };
    one.run(client).unwrap()
}

fn is_answered(came: &CrowdResult) -> bool {
    came.answered.len() == 1
}

/// Counters of the one `[[quic]]` and of the one listener.
struct Counted {
    admitted: u64,
    answered: u64,
    unheard: u64,
    unjudged: u64,
    refused: u64,
    syn_admitted: u64,
}

fn counted(shell: &Shell<'_>) -> Counted {
    let status = shell.status();
    let all = |table: &str| {
        let counters = &status[table][0]["counters"];
        counters
            .as_object()
            .unwrap_or_else(|| panic!("{status:#}"))
            .clone()
    };
    let (quic, tcp) = (all("quic"), all("listeners"));
    let number = |value: &Value| value.as_u64().unwrap();
    let refusals = ["quic_vn_", "quic_dropped_", "syn_reset", "syn_dropped"];
    let is_refusal = |name: &str| refusals.iter().any(|start| name.starts_with(start));
    let both = quic.iter().chain(&tcp);
    Counted {
        admitted: number(&quic["quic_admitted"]),
        answered: number(&quic["quic_answered"]),
        unheard: number(&quic["quic_unheard"]),
        unjudged: number(&quic["quic_unjudged"]),
        refused: both
            .filter(|(name, _)| is_refusal(name))
            .map(|(_, n)| number(n))
            .sum(),
        syn_admitted: number(&tcp["syn_admitted"]),
    }
}

/// What becomes of an established connection when this is done; it asks all the while.
fn established_through(client: &Netns, act: impl FnOnce()) -> SteadyResult {
    let steady = Steady {
        to: at(SERVER, PORT),
        connections: 1,
        every: Duration::from_millis(50),
        late_after: PATIENCE,
        lost_after: PATIENCE,
        request: Request::http3_get_root("localhost"),
    };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (ready, is_ready) = std::sync::mpsc::channel();
        let (steady, stop) = (&steady, &stop);
        let asking = scope.spawn(move || {
            steady
                .run(client, stop, || ready.send(()).unwrap())
                .unwrap()
        });
        let stops = Stops(stop);
        is_ready.recv().unwrap();
        act();
        until("it ends", || asking.is_finished().then_some(()));
        drop(stops);
        asking.join().unwrap()
    })
}

/// Clients that come one after the other until `stop`: how many.
fn coming<'a>(
    scope: &'a std::thread::Scope<'a, '_>,
    client: &'a Netns,
    stop: &'a AtomicBool,
) -> ScopedJoinHandle<'a, u64> {
    scope.spawn(move || {
        let mut clients = 0;
        while !stop.load(Ordering::Relaxed) {
            let came = come(client, SHORT);
            assert_eq!(came.version_refused.len(), 0, "{came:?}");
            clients += 1;
        }
        clients
    })
}

/// The recipe's server and weir beside it: what a user sees, and what a reload and a restart of the server do.
fn guarded(kind: Kind, receive_buffer_bytes: u64) {
    const SECTION: &str = "http3";
    if !needs::programs(&["openssl", "unshare", "nginx"]) {
        return;
    }
    let Some(network) = Network::new() else {
        return;
    };
    let Some(place) = Place::new() else {
        return;
    };
    let server_host = host(&network, SOMAXCONN);
    let client = network.host("client", &["10.0.0.100/8"]);
    let mut shell = Shell::on(&server_host);
    let app = format!("listen {APP_PORT};");
    let app = nginx_server(&shell, "app", &app, "hello");
    let _app = (kind == Kind::Caddy).then(|| Server::start(&server_host, app, APP_PORT));
    let server = start(&place, kind, &server_host, "");

    // Without weir: what the server does with an established connection.
    until("it answers", || {
        is_answered(&come(&client, SHORT)).then_some(())
    });
    let alone = established_through(&client, || place.reload(kind, &server));

    shell.write("weir.toml", &block(SECTION, "toml", 0));
    shell.start(&block(SECTION, "sh", 0));
    let status = shell.until(&server_host, |status| {
        guards(status, 0) && status["quic"][0]["in_force"] == true
    });
    for socket in status["listeners"][0]["sockets"].as_array().unwrap() {
        assert_eq!(socket["queue_limit"], SOMAXCONN, "{status:#}");
    }
    let page = place.curl(&client, "--http3-only");
    assert!(page.starts_with("hello 3"), "{page}");
    let seen = shell.run(&block(SECTION, "", 0));
    let told = "admitted 1 (answered 1), refused 0 (0 %)";
    assert!(seen.contains(told), "{seen}");
    let page = place.curl(&client, "--http2");
    assert!(page.starts_with("hello 2 h3=\":443\""), "{page}");
    let first = counted(&shell);
    assert_eq!(
        (first.admitted, first.answered, first.syn_admitted),
        (1, 1, 1)
    );
    let sockets = shell.status()["quic"][0]["sockets"].clone();
    let most = std::fs::read_to_string("/proc/sys/net/core/rmem_max").unwrap();
    let most: u64 = most.trim().parse().unwrap();
    // The kernel doubles what a program asks for.
    let wanted = 2 * receive_buffer_bytes.min(most);
    for socket in sockets.as_array().unwrap() {
        assert_eq!(socket["buffer_limit"], wanted, "{sockets}");
    }
    for _ in 0..20 {
        let came = come(&client, PATIENCE);
        assert!(is_answered(&came), "{came:?}");
    }
    let one_by_one = counted(&shell);
    assert_eq!((one_by_one.admitted, one_by_one.answered), (21, 21));

    // A reload: nobody is passed unjudged, and established connections have the end that they had alone.
    let stop = AtomicBool::new(false);
    let came = std::thread::scope(|scope| {
        let stops = Stops(&stop);
        let coming = coming(scope, &client, &stop);
        let beside = established_through(&client, || place.reload(kind, &server));
        assert_eq!((beside.ended, alone.ended), (1, 1), "{beside:?} {alone:?}");
        drop(stops);
        coming.join().unwrap()
    });
    let reloaded = counted(&shell);
    assert!(came > 0);
    // With the established one.
    assert_eq!(reloaded.admitted, one_by_one.admitted + came + 1);
    assert_eq!((reloaded.unheard, reloaded.unjudged), (0, 0));
    for _ in 0..10 {
        let came = come(&client, PATIENCE);
        assert!(is_answered(&came), "{came:?}");
    }
    let after = counted(&shell);
    assert_eq!(after.admitted, reloaded.admitted + 10);
    assert_eq!(after.answered, reloaded.answered + 10);

    // A restart: meanwhile attempts pass, and the kernel refuses them.
    killpg(Pid::from_raw(server.pid() as i32), Signal::SIGTERM).unwrap();
    until("nobody has the port", || {
        (!udp_is_bound(&server_host)).then_some(())
    });
    drop(server);
    let came = come(&client, PATIENCE);
    assert!(
        came.answered.is_empty() && came.version_refused.is_empty(),
        "{came:?}"
    );
    let gap = counted(&shell);
    assert!(gap.unheard > 0 && gap.admitted == after.admitted);
    let _server = start(&place, kind, &server_host, "");
    let page = place.curl(&client, "--http3-only");
    assert!(page.starts_with("hello 3"), "{page}");
    let restarted = counted(&shell);
    assert_eq!((restarted.unheard, restarted.unjudged), (gap.unheard, 0));
    assert_eq!(restarted.admitted, after.admitted + 1);
    assert_eq!(restarted.answered, after.answered + 1);
    assert_eq!(restarted.refused, 0, "{:#}", shell.status());
}

#[test]
fn nginx_with_http3() {
    guarded(Kind::Nginx, 1 << 20);
}

#[test]
fn haproxy_with_http3() {
    guarded(Kind::Haproxy, 1 << 20);
}

#[test]
fn caddy_with_http3() {
    guarded(Kind::Caddy, 7 << 20);
}

/// What the recipe adds against floods.
#[test]
fn nginx_with_http3_and_retry() {
    let Some(network) = Network::new() else {
        return;
    };
    let Some(place) = Place::new() else {
        return;
    };
    let server_host = host(&network, SOMAXCONN);
    let client = network.host("client", &["10.0.0.100/8"]);
    let mut shell = Shell::on(&server_host);
    let _server = start(&place, Kind::Nginx, &server_host, "quic_retry on;");
    shell.write("weir.toml", &block("http3", "toml", 0));
    shell.start(&block("http3", "sh", 0));
    shell.until(&server_host, |status| status["quic"][0]["in_force"] == true);
    for _ in 0..20 {
        let came = come(&client, PATIENCE);
        assert!(is_answered(&came), "{came:?}");
    }
    let counted = counted(&shell);
    assert_eq!(
        (counted.admitted, counted.answered, counted.refused),
        (20, 20, 0)
    );
}

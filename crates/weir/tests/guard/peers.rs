//! Servers that people run, and curl, under guard.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use socket2::{Domain, Socket, Type};
use weir_testbed::needs;

use crate::common::{Bed, PORT, Path, Peer, Raw, accept, connect, greet, output, until, within};

/// A server in the bed's server namespace; killed on drop with its workers.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = killpg(Pid::from_raw(self.0.id() as i32), Signal::SIGKILL);
        let _ = self.0.wait();
    }
}

/// Starts the server and waits until it listens.
fn start(bed: &Bed, mut command: Command) -> Server {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0);
    let mut server = Server(within(bed.server(), || command.spawn().unwrap()));
    until("the server listens", || {
        let exit = server.0.try_wait().unwrap();
        assert!(exit.is_none(), "the server ended: {exit:?} {command:?}");
        let listening = bed.output("ss", &["-tlnH", &format!("sport = :{PORT}")]);
        (!listening.trim().is_empty()).then_some(())
    });
    server
}

/// Replies that curl gets, one connection each.
fn replies(path: &Path<'_>, times: usize) -> Vec<String> {
    let url = format!("http://{}/", path.at(PORT));
    let ask = |_| {
        output(
            path.client,
            "curl",
            &[
                "--silent",
                "--show-error",
                "--fail",
                "--max-time",
                "20",
                &url,
            ],
        )
    };
    (0..times).map(ask).collect()
}

/// Guarded by each policy, the server answers as it does without.
fn answers_under_guard(bed: &Bed, command: Command) {
    let _server = start(bed, command);
    let path = bed.veth4();
    let plain = replies(&path, 1);
    assert!(plain[0].contains("hello"), "{plain:?}");
    for policy in [
        "--establish reserv --half-close reset",
        "--establish no-syn-drop",
        "--establish abort",
    ] {
        let _weir = bed.protect(&format!("{PORT} {policy}"));
        assert_eq!(replies(&path, 5), vec![plain[0].clone(); 5], "{policy}");
        assert!(bed.counter(0, "syn_admitted") > 0);
    }
}

/// Writes a file into the bed's folder, with FOLDER and PORT replaced; gives its path.
fn write(bed: &Bed, name: &str, text: &str) -> String {
    let folder = bed.folder.path();
    let text = text.replace("FOLDER", &folder.display().to_string());
    let file = folder.join(name);
    std::fs::write(&file, text.replace("PORT", &PORT.to_string())).unwrap();
    file.display().to_string()
}

#[test]
fn nginx_answers_under_guard() {
    let Some(bed) = Bed::new() else { return };
    if !needs::programs(&["nginx"]) {
        return;
    }
    let config = write(
        &bed,
        "nginx.conf",
        "daemon off; master_process off; user root; pid FOLDER/nginx.pid; error_log stderr;\n\
         events {}\n\
         http { access_log off; server { listen PORT; return 200 hello; } }\n",
    );
    let mut nginx = needs::command("nginx");
    nginx.args(["-e", "stderr", "-c", &config]);
    answers_under_guard(&bed, nginx);
}

#[test]
fn apache_answers_under_guard() {
    let Some(bed) = Bed::new() else { return };
    if !needs::programs(&["apache2"]) {
        return;
    }
    write(&bed, "index.html", "hello");
    let config = write(
        &bed,
        "apache.conf",
        "ServerRoot FOLDER\nServerName localhost\nListen PORT\nPidFile FOLDER/apache.pid\n\
         DefaultRuntimeDir FOLDER\nMutex file:FOLDER default\nErrorLog FOLDER/apache.log\n\
         LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so\n\
         LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so\n\
         LoadModule dir_module /usr/lib/apache2/modules/mod_dir.so\n\
         User www-data\nGroup www-data\n\
         DocumentRoot FOLDER\nDirectoryIndex index.html\n",
    );
    // Its workers are not root.
    std::fs::set_permissions(
        bed.folder.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    let mut apache = needs::command("apache2");
    apache.args(["-D", "FOREGROUND", "-f", &config]);
    answers_under_guard(&bed, apache);
}

#[test]
fn haproxy_answers_under_guard() {
    let Some(bed) = Bed::new() else { return };
    if !needs::programs(&["haproxy"]) {
        return;
    }
    let config = write(
        &bed,
        "haproxy.cfg",
        "defaults\n  mode http\n  timeout client 10s\n  timeout connect 10s\n  timeout server 10s\n\
         frontend web\n  bind :PORT\n  \
         http-request return status 200 content-type text/plain string hello\n",
    );
    let mut haproxy = needs::command("haproxy");
    haproxy.args(["-db", "-f", &config]);
    answers_under_guard(&bed, haproxy);
}

#[test]
fn python_answers_under_guard() {
    let Some(bed) = Bed::new() else { return };
    if !needs::programs(&["python3"]) {
        return;
    }
    write(&bed, "index.html", "hello");
    let mut python = needs::command("python3");
    python
        .args(["-m", "http.server", &PORT.to_string(), "--directory"])
        .arg(bed.folder.path());
    answers_under_guard(&bed, python);
}

/// What status says about no-syn-drop on a listener whose sockets take no cookies.
fn says_mptcp_fallback(bed: &Bed) {
    let listener = bed.status()["listeners"][0].clone();
    assert_eq!(listener["establish"], "no-syn-drop");
    assert_eq!(listener["fallback"], "rst-syn", "{listener:#}");
    let because = listener["fallback_because"].as_str().unwrap();
    assert!(because.contains("MPTCP"), "{because}");
    assert_eq!(listener["sockets"][0]["mptcp"], true);
}

#[test]
fn go_answers_under_guard_on_its_mptcp_listener() {
    let Some(bed) = Bed::new() else { return };
    if !needs::programs(&["go"]) {
        return;
    }
    // From this version on, Go listens with MPTCP by default.
    write(&bed, "go.mod", "module server\n\ngo 1.24\n");
    write(
        &bed,
        "main.go",
        "package main\n\nimport (\n\t\"io\"\n\t\"net/http\"\n)\n\nfunc main() {\n\
         \thttp.HandleFunc(\"/\", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, \"hello\") })\n\
         \thttp.ListenAndServe(\":PORT\", nil)\n}\n",
    );
    let program = bed.folder.path().join("server");
    let mut build = needs::command("go");
    build.args(["build", "-o"]).arg(&program);
    build.env("CGO_ENABLED", "0").current_dir(bed.folder.path());
    assert!(build.status().unwrap().success());
    let server = || Command::new(&program);
    answers_under_guard(&bed, server());
    let _server = start(&bed, server());
    let _weir = bed.protect(&format!("{PORT} --establish no-syn-drop"));
    says_mptcp_fallback(&bed);
}

/// weir can send no cookie there. The kernel can.
#[test]
fn no_syn_drop_on_an_mptcp_listener_leaves_a_flood_to_the_kernel() {
    const PLACES: u32 = 16;
    const MPTCP: i32 = 262;
    let Some(bed) = Bed::new() else { return };
    let any: SocketAddr = (Ipv4Addr::UNSPECIFIED, PORT).into();
    let listener: TcpListener = within(bed.server(), || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(MPTCP.into())).unwrap();
        socket.bind(&any.into()).unwrap();
        socket.listen(PLACES as i32).unwrap();
        socket.into()
    });
    let _weir = bed.protect(&format!("{PORT} --establish no-syn-drop"));
    says_mptcp_fallback(&bed);
    let raw = Raw(&bed.links.wire);
    for number in 0..4 * PLACES {
        raw.syn(Peer::v4(number, PORT), number);
    }
    // Longer than handshakes on a local network last, shorter than the kernel waits for an ACK.
    until("spoofed handshakes hold the places", || {
        let held = bed.status()["listeners"][0]["half_open"].as_u64().unwrap();
        (held >= u64::from(PLACES) / 2).then_some(())
    });
    let path = bed.veth4();
    for round in 0..10 {
        let mut client = connect(path.client, path.at(PORT), 1);
        assert_eq!(client.counts(), (1, 0, 0), "{round}: {:?}", bed.verdicts(0));
        greet(&mut accept(&listener, 1));
        assert_eq!(client.fates(), (1, 0, 0), "{round}: {:?}", bed.verdicts(0));
    }
    assert!(bed.counter(0, "syn_left_flood") > 0);
    assert_eq!(bed.overflows(), 0);
}

#[test]
fn no_syn_drop_on_an_mptcp_listener_refuses_by_rst_and_counts_the_fallback() {
    let Some(bed) = Bed::new() else { return };
    if !needs::programs(&["python3"]) {
        return;
    }
    let script = write(
        &bed,
        "mptcp.py",
        "import socket, sys\nIPPROTO_MPTCP = 262\n\
         server = socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP)\n\
         server.bind(('0.0.0.0', PORT))\nserver.listen(4)\nsys.stdin.read()\n",
    );
    let mut python = needs::command("python3");
    python.arg(script);
    let _server = start(&bed, python);
    let _weir = bed.protect(&format!("{PORT} --establish no-syn-drop --admit queue"));
    let path = bed.veth4();
    assert_eq!(connect(path.client, path.at(PORT), 8).counts(), (4, 4, 0));
    let verdicts = [
        ("fallback_mptcp", 4),
        ("syn_admitted", 4),
        ("syn_reset_full", 4),
    ];
    assert_eq!(
        bed.verdicts(0),
        verdicts.map(|(name, n)| (name.to_owned(), n))
    );
    says_mptcp_fallback(&bed);
    assert_eq!(bed.overflows(), 0);
}

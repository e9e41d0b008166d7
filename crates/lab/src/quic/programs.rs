//! nginx, HAProxy, Caddy and a server on quic-go in the root of a Debian 13, with an RSA certificate.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::go;
use crate::bed::Bed;
use crate::error::{Context, Error, Result};
use crate::process::end_session;
use crate::{interrupt, needs};

/// Port of all servers.
pub const PORT: u16 = 443;
/// A signature of 3072 bits takes a worker 1 to 2 ms, so that one CPU has enough clients for it.
const KEY: &str = "rsa:3072";
/// Where the servers' files are in the root.
const FILES: &str = "opt";

const NGINX: &str = "\
user root; daemon off; worker_processes 1; pid FOLDER/nginx.pid; error_log stderr crit;
worker_rlimit_nofile 40000;
events { worker_connections 16384; }
http {
    access_log off;
    client_body_temp_path FOLDER; proxy_temp_path FOLDER; fastcgi_temp_path FOLDER;
    uwsgi_temp_path FOLDER; scgi_temp_path FOLDER;
    server {
        listen PORT quic; RETRY
        ssl_certificate FOLDER/cert.pem; ssl_certificate_key FOLDER/key.pem; ssl_protocols TLSv1.3;
        ssl_session_cache off; ssl_session_tickets off;
        location / { return 200 \"hello\\n\"; }
    }
}
";

/// A server of web pages by HTTP/2, which it says it has by HTTP/3 too. It ends each TCP connection behind its first answer,
/// so that a browser connects anew for the next page.
const NGINX_WEB: &str = "\
user root; daemon off; worker_processes 1; pid FOLDER/nginx.pid; error_log stderr crit;
worker_rlimit_nofile 40000;
events { worker_connections 16384; }
http {
    log_format report '$request_uri';
    access_log off;
    client_body_temp_path FOLDER; proxy_temp_path FOLDER; fastcgi_temp_path FOLDER;
    uwsgi_temp_path FOLDER; scgi_temp_path FOLDER;
    ssl_certificate FOLDER/cert.pem; ssl_certificate_key FOLDER/key.pem; ssl_protocols TLSv1.3;
    ssl_session_cache off; ssl_session_tickets off;
    HTTP3
    server {
        listen PORT ssl; http2 on;
        keepalive_requests 1;
        add_header Alt-Svc 'h3=\":PORT\"; ma=86400';
        location = /first { default_type text/html; alias FOLDER/first.html; }
        location = /report { access_log FOLDER/reports report; return 204; }
        location / { return 200 \"hello\\n\"; }
    }
}
";
/// Its page for a browser, which asks for more.
const FIRST_PAGE: &str = include_str!("first.html");
/// The same pages by HTTP/3.
const NGINX_WEB_QUIC: &str = "\
server {
        listen PORT quic;
        location = /report { access_log FOLDER/reports report; return 204; }
        location / { return 200 \"hello\\n\"; }
    }
";

/// limited-quic: Debian's OpenSSL has no QUIC API that HAProxy 3.0 knows, so there is no 0-RTT.
const HAPROXY: &str = "\
global
    maxconn 8000
    nbthread 1
    limited-quic
defaults
    mode http
    timeout client 30s
frontend web
    bind quic4@:PORT ssl crt FOLDER/both.pem alpn h3 BACKLOG
    http-request return status 200 content-type text/plain string \"hello\"
";

const CADDY: &str = "\
{
	admin off
	auto_https off
	storage file_system FOLDER/storage
}
https://:PORT {
	tls FOLDER/cert.pem FOLDER/key.pem
	respond \"hello\"
}
";

const QUIC_GO: go::Source = [
    ("main.go", include_str!("quic_go_server/main.go")),
    ("go.mod", include_str!("quic_go_server/go.mod")),
    ("go.sum", include_str!("quic_go_server/go.sum")),
];

/// A server in a root folder of its own; ended with its whole process group on drop, its files removed.
#[derive(Debug)]
pub struct Program {
    child: Child,
    /// Configuration, certificate and stderr.
    folder: tempfile::TempDir,
    shown: &'static str,
}

impl Program {
    /// nginx with one worker; with `retry` every client has to show by a Retry that it has its address.
    pub fn nginx(bed: &Bed, root: &Path, retry: bool) -> Result<Program> {
        let config = NGINX.replace("RETRY", if retry { "quic_retry on;" } else { "" });
        Program::start(bed, root, "nginx", &config, &["-c"])
    }

    /// nginx with one worker that serves web pages over TCP, and over QUIC as well if `both`. What a browser asks below
    /// `/report` is a line of [`Program::reports`].
    pub fn nginx_web(bed: &Bed, root: &Path, both: bool) -> Result<Program> {
        let quic = if both { NGINX_WEB_QUIC } else { "" };
        let config = NGINX_WEB.replace("HTTP3", quic);
        Program::start(bed, root, "nginx", &config, &["-c"])
    }

    /// HAProxy with one thread; with a backlog no more handshakes are under way.
    ///
    /// # Errors
    /// Unsupported where its build speaks no QUIC.
    pub fn haproxy(bed: &Bed, root: &Path, backlog: Option<u32>) -> Result<Program> {
        let mut version = needs::command("chroot");
        let output = version.arg(root).args(["haproxy", "-vv"]).output();
        let output = output.context("cannot run HAProxy")?;
        if !String::from_utf8_lossy(&output.stdout).contains("+QUIC") {
            let cause = "its build has no QUIC";
            return Err(Error::unsupported(
                "cannot have HAProxy of Debian 13",
                cause,
            ));
        }
        let backlog = backlog.map(|handshakes| format!("backlog {handshakes}"));
        let config = HAPROXY.replace("BACKLOG", &backlog.unwrap_or_default());
        Program::start(bed, root, "haproxy", &config, &["-db", "-f"])
    }

    /// Caddy.
    pub fn caddy(bed: &Bed, root: &Path) -> Result<Program> {
        let words = ["run", "--adapter", "caddyfile", "--config"];
        Program::start(bed, root, "caddy", CADDY, &words)
    }

    /// A Go program, which is built first.
    ///
    /// # Errors
    /// Unsupported where this machine cannot build it.
    pub fn quic_go(bed: &Bed, root: &Path) -> Result<Program> {
        let files = Files::new(root)?;
        go::build(QUIC_GO, &files.path("server"))?;
        let program = files.inside("server");
        let listen = format!(":{PORT}");
        let certificate = [files.inside("cert.pem"), files.inside("key.pem")];
        let words = [&listen, &certificate[0], &certificate[1]];
        files.start(bed, root, "quic-go", &program, &words.map(String::as_str))
    }

    fn start(
        bed: &Bed,
        root: &Path,
        shown: &'static str,
        config: &str,
        arguments: &[&str],
    ) -> Result<Program> {
        let files = Files::new(root)?;
        write(files.folder.path(), "first.html", FIRST_PAGE.as_bytes())?;
        let config = config
            .replace("FOLDER", &files.inside)
            .replace("PORT", &PORT.to_string());
        write(files.folder.path(), "config", config.as_bytes())?;
        let config = files.inside("config");
        let words = [arguments, &[&config]].concat();
        files.start(bed, root, shown, shown, &words)
    }

    /// What a browser has asked below `/report` so far.
    pub fn reports(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("reports")).unwrap_or_default()
    }

    /// Its certificate's key as Chromium wants it: base64 of the SHA-256 of the public key.
    pub fn key_hash(&self) -> Result<String> {
        const PIPE: &str = "openssl x509 -in cert.pem -noout -pubkey | openssl pkey -pubin -outform der \
             | openssl dgst -sha256 -binary | openssl base64";
        let mut shell = needs::command("sh");
        let output = shell.args(["-c", PIPE]).current_dir(self.folder.path());
        let output = output.output().context("cannot hash a key")?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// Fails with its stderr if it has ended.
    pub fn check_alive(&mut self) -> Result<()> {
        let status = self
            .child
            .try_wait()
            .context("cannot look after a server")?;
        let Some(status) = status else { return Ok(()) };
        interrupt::check()?;
        let stderr = std::fs::read_to_string(self.folder.path().join("stderr"));
        let stderr = stderr.unwrap_or_default();
        let cause = format!("it ended with {status}; its stderr: {}", stderr.trim());
        Err(Error::failed(format!("{} does not run", self.shown), cause))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        end_session(&mut self.child);
    }
}

/// What a server reads and writes: a certificate first.
struct Files {
    folder: tempfile::TempDir,
    /// Its path as the program in the root has it.
    inside: String,
}

impl Files {
    fn new(root: &Path) -> Result<Files> {
        let folder = tempfile::Builder::new()
            .prefix("weir-lab-server-")
            .tempdir_in(root.join(FILES))
            .context("cannot create a directory for the server")?;
        make_certificate(folder.path())?;
        let path = folder.path().strip_prefix(root);
        let path = path.context("the files are elsewhere")?;
        let inside = format!("/{}", path.display());
        Ok(Files { folder, inside })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn inside(&self, name: &str) -> String {
        format!("{}/{name}", self.inside)
    }

    /// `program` is one of the root; `shown` is what messages call it.
    fn start(
        self,
        bed: &Bed,
        root: &Path,
        shown: &'static str,
        program: &str,
        arguments: &[&str],
    ) -> Result<Program> {
        let stderr = self.path("stderr");
        let stderr =
            File::create(&stderr).context(format!("cannot create {}", stderr.display()))?;
        // A session of its own, as for the servers of TCP: a group to end, and an autogroup.
        let mut command = needs::command("setsid");
        command.arg("chroot").arg(root).arg(program).args(arguments);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr);
        let child = bed.server.run_on(Some(bed.layout.server_cpu), || {
            let started = command.spawn();
            started.context(format!("cannot start {shown}"))
        })?;
        Ok(Program {
            child,
            folder: self.folder,
            shown,
        })
    }
}

/// key.pem, cert.pem and both.pem.
fn make_certificate(folder: &Path) -> Result<()> {
    if needs::find_program("openssl").is_none() {
        return Err(Error::unsupported(
            "cannot make a certificate",
            "openssl is not installed",
        ));
    }
    let mut openssl: Command = needs::command("openssl");
    openssl.args(["req", "-x509", "-newkey", KEY, "-nodes", "-days", "2"]);
    openssl.args([
        "-subj",
        "/CN=localhost",
        "-keyout",
        "key.pem",
        "-out",
        "cert.pem",
    ]);
    let output = openssl.current_dir(folder).output();
    let output = output.context("cannot run openssl")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Error::failed("cannot make a certificate", said.trim()));
    }
    let read = |name: &str| {
        let path = folder.join(name);
        std::fs::read(&path).context(format!("cannot read {}", path.display()))
    };
    let both = [read("cert.pem")?, read("key.pem")?].concat();
    write(folder, "both.pem", &both)
}

fn write(folder: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    let path = folder.join(name);
    std::fs::write(&path, bytes).context(format!("cannot write {}", path.display()))
}

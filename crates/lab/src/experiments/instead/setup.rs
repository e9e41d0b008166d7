//! The server with its guard: files, programs, sysctls, rules.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use super::guards::{self, BACKLOG, BEHIND, Capacity, Guard};
use crate::bed::Bed;
use crate::error::{Context, Error, Result};
use crate::experiments::policy::{Policy, Protection};
use crate::experiments::slow_servers::PORT;
use crate::needs;
use crate::netns::Netns;
use crate::server::{BODY_BYTES, ServerProgram, Spec, Workers};

/// The slow pool: gunicorn with sync workers.
pub const POOL: Workers = Workers {
    count: 4,
    service_s: 0.1,
};

/// A server under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Kind {
    /// nginx with one worker, a file of one packet, and a list of robots
    Nginx,
    /// gunicorn with 4 sync workers that are busy for 100 ms with each request
    Pool,
}

impl Kind {
    /// Requests that it works on at the same time. nginx has one worker, which waits for no request: what counts is that
    /// it is never without work between two of a proxy's connections.
    pub fn at_once(self) -> u32 {
        match self {
            Kind::Nginx => 64,
            Kind::Pool => POOL.count as u32,
        }
    }
}

/// The files of a server and of the proxy before it; gone with this value.
#[derive(Debug)]
pub struct Setup {
    /// What to start.
    pub spec: Spec,
    _folder: tempfile::TempDir,
}

impl Setup {
    /// Writes the files.
    pub fn write(kind: Kind, guard: Guard, capacity: Capacity) -> Result<Setup> {
        let folder = tempfile::TempDir::with_prefix("weir-lab-instead-")
            .context("cannot create a directory for the server")?;
        let is_proxy = guard.is_proxy(kind == Kind::Nginx);
        let server = match kind {
            Kind::Nginx => nginx_server(folder.path(), guard, capacity, is_proxy)?,
            Kind::Pool => gunicorn(folder.path(), guard, is_proxy)?,
        };
        let command = match (is_proxy, guard.for_all()) {
            (false, _) => format!("exec {server}"),
            (true, Guard::Haproxy) => {
                let text = guards::haproxy(guard, capacity, PORT);
                let path = put(folder.path(), "haproxy.cfg", &text)?;
                let haproxy = program("haproxy")?;
                format!("{server} & exec {haproxy} -db -f {}", path.display())
            }
            (true, _) => {
                let text = guards::nginx(guard, capacity, PORT, &shown(folder.path()), true);
                let proxy = nginx(folder.path(), "front.conf", &text)?;
                format!("{server} & exec {proxy}")
            }
        };
        Ok(Setup {
            spec: Spec {
                program: ServerProgram::Command(command),
                port: PORT,
                backlog: guard.backlog(),
            },
            _folder: folder,
        })
    }
}

fn nginx_server(
    folder: &Path,
    guard: Guard,
    capacity: Capacity,
    is_behind: bool,
) -> Result<String> {
    let www = folder.join("www");
    std::fs::create_dir(&www).context(format!("cannot create {}", www.display()))?;
    put(&www, "index.html", &"x".repeat(BODY_BYTES))?;
    let (guard, port) = match is_behind {
        true => (Guard::Plain, BEHIND),
        false => (guard, PORT),
    };
    let text = guards::nginx(guard, capacity, port, &shown(folder), false);
    nginx(folder, "nginx.conf", &text)
}

fn nginx(folder: &Path, name: &str, text: &str) -> Result<String> {
    let path = put(folder, name, text)?;
    let nginx = program("nginx")?;
    Ok(format!(
        "{nginx} -p {} -c {}",
        folder.display(),
        path.display()
    ))
}

fn gunicorn(folder: &Path, guard: Guard, is_behind: bool) -> Result<String> {
    let app = format!(
        "import time
def app(environ, start_response):
    time.sleep({})
    start_response('200 OK', [('Content-Length', '6')])
    return [b'hello\\n']
",
        POOL.service_s
    );
    put(folder, "app.py", &app)?;
    let (address, backlog) = match is_behind {
        true => (format!("127.0.0.1:{BEHIND}"), BACKLOG),
        false => (format!("0.0.0.0:{PORT}"), guard.backlog()),
    };
    Ok(format!(
        "{} app:app --worker-class sync --workers {} --backlog {backlog} --bind {address} --chdir {}",
        program("gunicorn")?,
        POOL.count,
        folder.display()
    ))
}

fn shown(folder: &Path) -> String {
    folder.display().to_string()
}

fn put(folder: &Path, name: &str, text: &str) -> Result<PathBuf> {
    let path = folder.join(name);
    std::fs::write(&path, text).context(format!("cannot write {}", path.display()))?;
    Ok(path)
}

fn program(name: &str) -> Result<String> {
    let found = needs::find_program(name).ok_or_else(|| {
        Error::unsupported(format!("cannot start {name}"), "it is not installed")
            .hint("scripts/setup test installs it")
    })?;
    Ok(found.display().to_string())
}

/// Sets sysctls and rules. The namespace goes with its bed, and they with it.
pub fn set(bed: &Bed, guard: Guard, capacity: Capacity) -> Result<()> {
    for (name, value) in guard.sysctls() {
        bed.server.set_sysctl(name, value)?;
    }
    if let Some(rules) = guard.nft(capacity, PORT) {
        load(&bed.server, &rules)?;
    }
    for (name, value) in guard.conntrack_sysctls() {
        bed.server.set_sysctl(name, value)?;
    }
    Ok(())
}

/// Whether this machine has what a guard needs; why not is the error, of kind `Unsupported`.
pub fn probe(guard: Guard) -> Result<()> {
    let some = Capacity {
        per_s: 1000.0,
        at_once: 1,
    };
    match guard.nft(some, PORT) {
        Some(rules) => load(&Netns::create("probe")?, &rules),
        None if guard.for_all() == Guard::Haproxy => program("haproxy").map(drop),
        None => Ok(()),
    }
}

fn load(netns: &Netns, rules: &str) -> Result<()> {
    let nft = program("nft")?;
    let what = "cannot load nftables' rules";
    let mut file = tempfile::NamedTempFile::new().context(what)?;
    file.write_all(rules.as_bytes()).context(what)?;
    let mut command = needs::command(&nft);
    command.arg("-f").arg(file.path()).stdin(Stdio::null());
    let output = netns.run(|| command.output().context(what))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(match guards::lacking(&said) {
        Some(line) => Error::unsupported("not in this kernel", line),
        None => Error::failed(what, said.trim()),
    })
}

/// What weir does of it.
pub fn policy(guard: Guard) -> Policy {
    Policy {
        label: "weir protect".into(),
        protection: match guard.for_all() {
            Guard::Weir => Protection::Weir(Vec::new()),
            _ => Protection::None,
        },
    }
}

//! Real servers that accept at once, and whose requests then wait inside for one of a few workers: the queue that no listen
//! queue shows. And HAProxy, whose own queue before them is what else there is against it.

use std::path::Path;
use std::process::Command;

use super::files::{BEHIND, Files, installed, missing, replaced};
use super::spec::{Inside, Spec};
use crate::error::{Context, Error, Result};
use crate::{needs, tomcat};

const GO: &str = "\
package main

import (
	\"net/http\"
	\"time\"
)

func main() {
	pool := make(chan struct{}, WORKERS)
	http.HandleFunc(\"/\", func(w http.ResponseWriter, r *http.Request) {
		select {
		case pool <- struct{}{}:
			time.Sleep(SERVICE_MS * time.Millisecond)
			<-pool
			w.Write([]byte(\"hello\\n\"))
		case <-r.Context().Done():
		}
	})
	panic(http.ListenAndServe(\":PORT\", nil))
}
";
/// Go listens with MPTCP by default from this version on.
const GO_MODULE: &str = "module server\n\ngo 1.24\n";

const ASGI: &str = "\
import asyncio
pool = asyncio.Semaphore(WORKERS)
async def app(scope, receive, send):
    assert scope['type'] == 'http'
    async with pool:
        await asyncio.sleep(SERVICE_S)
    await send({'type': 'http.response.start', 'status': 200, 'headers': [(b'content-length', b'6')]})
    await send({'type': 'http.response.body', 'body': b'hello\\n'})
";

const NODE: &str = "\
const http = require('http');
http.createServer((request, reply) => setTimeout(() => reply.end('hello\\n'), SERVICE_MS)).listen(BEHIND, '127.0.0.1');
const agent = new http.Agent({ keepAlive: true, maxSockets: WORKERS });
http.createServer((request, reply) => {
    const failed = () => { reply.statusCode = 502; reply.end(); };
    const upstream = http.get({ host: '127.0.0.1', port: BEHIND, agent }, (answer) => answer.pipe(reply));
    upstream.on('error', failed);
}).listen(PORT, '0.0.0.0', BACKLOG);
";

const CONNECTOR: &str = "<Connector port='PORT' maxThreads='200' acceptCount='BACKLOG'/>";
const JSP: &str = "\
<%@ page session=\"false\" %><%!
static final java.util.concurrent.Semaphore POOL = new java.util.concurrent.Semaphore(WORKERS, true);
%><% POOL.acquire(); try { Thread.sleep(SERVICE_MS); } finally { POOL.release(); } %>hello
";
/// Java's heap, MB: room for the thousands of connections of an overload.
const HEAP_MB: u32 = 512;

const NGINX: &str = "\
user root; daemon off; worker_processes 1; pid FOLDER/nginx.pid; error_log stderr crit;
worker_rlimit_nofile 40000;
events { worker_connections 16384; }
http {
    access_log off;
    client_body_temp_path FOLDER; proxy_temp_path FOLDER; fastcgi_temp_path FOLDER;
    uwsgi_temp_path FOLDER; scgi_temp_path FOLDER;
    limit_conn_zone $server_port zone=all:1m; limit_conn_status 503;
    server {
        listen PORT backlog=BACKLOG;
        location / { LIMIT proxy_pass http://127.0.0.1:BEHIND; }
    }
}
";

const HAPROXY: &str = "\
global
    maxconn 8000
defaults
    mode http
    timeout connect 10s
    timeout client 30s
    timeout server 30s
    timeout queue LONGESTms
frontend web
    bind :PORT backlog BACKLOG
    default_backend servers
backend servers
    server one 127.0.0.1:SERVER maxconn PLACES
";

/// The command that runs it in the foreground.
pub(super) fn command(files: &Files<'_>, server: Inside) -> Result<Command> {
    match server {
        Inside::Go => go(files),
        Inside::Uvicorn => {
            files.write("app.py", ASGI)?;
            let mut command = installed("uvicorn")?;
            command.args(["app:app", "--host", "0.0.0.0", "--log-level", "critical"]);
            command.arg("--app-dir").arg(files.folder);
            command.args(["--port", &files.spec.port.to_string()]);
            command.args(["--backlog", &files.spec.backlog.to_string()]);
            Ok(command)
        }
        Inside::Node => {
            let mut command = installed("node")?;
            command.arg(files.write("app.js", NODE)?);
            Ok(command)
        }
        Inside::Tomcat if tomcat::is_installed() => {
            let page = files.fill(JSP);
            let connector = files.fill(CONNECTOR);
            tomcat::command(files.folder, &connector, ("index.jsp", &page), HEAP_MB)
                .context("cannot write Tomcat's files")
        }
        Inside::Tomcat => Err(missing("tomcat10")),
        Inside::Gunicorn { limit } => gunicorn(files, limit),
    }
}

/// Built anew for each start; Go's cache has all but the link.
fn go(files: &Files<'_>) -> Result<Command> {
    files.write("main.go", GO)?;
    files.write("go.mod", GO_MODULE)?;
    let program = files.folder.join("server");
    let mut build = installed("go")?;
    build.args(["build", "-o"]).arg(&program);
    build.env("CGO_ENABLED", "0").current_dir(files.folder);
    let built = build.output().context("cannot run go")?;
    match built.status.success() {
        true => Ok(Command::new(program)),
        false => {
            let said = String::from_utf8_lossy(&built.stderr);
            Err(Error::failed("cannot build the server in Go", said.trim()))
        }
    }
}

/// Both in one session.
fn gunicorn(files: &Files<'_>, limit: Option<u32>) -> Result<Command> {
    let gunicorn = files.gunicorn(&format!("127.0.0.1:{BEHIND}"))?;
    installed("nginx")?;
    let limit = limit.map_or(String::new(), |most| format!("limit_conn all {most};"));
    let conf = files.write("nginx.conf", &NGINX.replace("LIMIT", &limit))?;
    let mut command = needs::command("sh");
    command.args(["-c", "nginx -p \"$1\" -c \"$0\" & shift; exec \"$@\""]);
    command.arg(conf).arg(files.folder);
    command
        .arg(gunicorn.get_program())
        .args(gunicorn.get_args());
    Ok(command)
}

/// HAProxy with one thread before a server's port, with so many places there and so many ms in its queue.
pub(super) fn haproxy(
    spec: &Spec,
    folder: &Path,
    (server, places, longest_ms): (u16, usize, u32),
) -> Result<Command> {
    let words = [
        ("SERVER", server.to_string()),
        ("PORT", spec.port.to_string()),
        ("BACKLOG", spec.backlog.to_string()),
        ("PLACES", places.to_string()),
        ("LONGEST", longest_ms.to_string()),
    ];
    let text = replaced(HAPROXY, &words);
    let path = folder.join("haproxy.cfg");
    std::fs::write(&path, text).context(format!("cannot write {}", path.display()))?;
    let mut command = installed("haproxy")?;
    command.args(["-db", "-f"]).arg(path);
    Ok(command)
}

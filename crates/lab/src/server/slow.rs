//! Real servers of a few workers that are busy for a long time with each connection: what most overloads are about.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

pub use super::files::PHP_PORT;
use super::files::{Files, installed, missing};
use super::spec::{Slow, Spec, Workers};
use super::{apache, inside};
use crate::error::{Context, Result};
use crate::program;

/// A prefork server in a page of Python: each process accepts, is busy, replies, closes.
const PREFORK: &str = "\
import os, socket, time
listener = socket.create_server(('', PORT), backlog=BACKLOG)
for _ in range(WORKERS - 1):
    if os.fork() == 0:
        break
while True:
    stream, _ = listener.accept()
    try:
        stream.settimeout(10)
        stream.recv(65536)
        time.sleep(SERVICE_S)
        stream.sendall(b'HTTP/1.0 200 OK\\r\\nContent-Length: 6\\r\\n\\r\\nhello\\n')
    except OSError:
        pass
    stream.close()
";

const PHP: &str = "<?php usleep(SERVICE_S * 1000000); echo \"hello\\n\";\n";

const FPM: &str = "\
[global]
error_log = FOLDER/php.log
daemonize = no
[www]
user = root
group = root
listen = 127.0.0.1:PHP_PORT
listen.backlog = BACKLOG
pm = static
pm.max_children = WORKERS
";

/// Without a limit of nginx's own: what PHP does not take waits in PHP's listen queue.
const NGINX: &str = "\
user root; daemon off; worker_processes 1; pid FOLDER/nginx.pid; error_log stderr crit;
events { worker_connections 4096; }
http {
    access_log off;
    client_body_temp_path FOLDER; proxy_temp_path FOLDER; fastcgi_temp_path FOLDER;
    uwsgi_temp_path FOLDER; scgi_temp_path FOLDER;
    server {
        listen PORT backlog=BACKLOG;
        location / {
            fastcgi_pass 127.0.0.1:PHP_PORT;
            fastcgi_param SCRIPT_FILENAME FOLDER/app.php;
            fastcgi_param REQUEST_METHOD $request_method;
            fastcgi_param QUERY_STRING $query_string;
        }
    }
}
";

/// The command that runs it in the foreground; its files are in `folder`.
pub(super) fn command(spec: &Spec, folder: &Path, slow: Slow, workers: Workers) -> Result<Command> {
    let files = Files {
        spec,
        folder,
        workers,
    };
    match slow {
        Slow::Prefork => {
            let mut command = installed("python3")?;
            command.arg(files.write("prefork.py", PREFORK)?);
            Ok(command)
        }
        Slow::Gunicorn => files.gunicorn(&format!("0.0.0.0:{}", spec.port)),
        // A worker is busy while its client keeps the connection, and the client does until Apache closes.
        Slow::ApacheKeepAlive => {
            installed("apache2")?;
            apache::command(spec, folder, workers.count, workers.service_s as u32)
        }
        Slow::Php => php(&files),
        Slow::Inside(server) => inside::command(&files, server),
    }
}

/// PHP-FPM, and nginx before it, in one session.
fn php(files: &Files) -> Result<Command> {
    files.write("app.php", PHP)?;
    let open = PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(files.folder, open).context("cannot open the server's folder")?;
    installed("nginx")?;
    let mut command = Command::new("sh");
    // PHP-FPM makes a session of its own unless it leads one: then it would outlive the server.
    command.args([
        "-c",
        "nginx -p \"$3\" -c \"$2\" & exec \"$0\" --nodaemonize --allow-to-run-as-root --fpm-config \"$1\"",
    ]);
    command.arg(program::php_fpm().ok_or_else(|| missing("php-fpm"))?);
    command.arg(files.write("fpm.conf", FPM)?);
    command.arg(files.write("nginx.conf", NGINX)?);
    command.arg(files.folder);
    Ok(command)
}

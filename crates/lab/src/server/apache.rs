//! Apache with the prefork model: each process has one connection at a time, as in VTFM01.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use super::parts::write_document;
use super::spec::{FILE_BYTES, Spec};
use crate::error::{Context, Result};

/// Where Debian puts the modules.
const MODULES: &str = "/usr/lib/apache2/modules";
/// What Debian's processes run as; Apache refuses to serve as root.
const USER: &str = "www-data";

/// Apache in the foreground with so many processes, no more and no fewer. Each waits so long for a client's next
/// request; with 0 the server closes behind the reply (the paper's Webstone: a new connection for each request).
pub(super) fn command(
    spec: &Spec,
    directory: &Path,
    workers: usize,
    keep_alive_s: u32,
) -> Result<Command> {
    let (port, backlog) = (spec.port, spec.backlog);
    let root = directory.display();
    let keep_alive = match keep_alive_s {
        0 => "KeepAlive Off".to_owned(),
        seconds => format!("KeepAlive On\nKeepAliveTimeout {seconds}"),
    };
    let conf = format!(
        "ServerRoot {root}
ServerName weir-lab
PidFile {root}/apache.pid
DefaultRuntimeDir {root}
ErrorLog {root}/stderr
LogLevel crit
LoadModule mpm_prefork_module {MODULES}/mod_mpm_prefork.so
LoadModule authz_core_module {MODULES}/mod_authz_core.so
LoadModule dir_module {MODULES}/mod_dir.so
User {USER}
Group {USER}
Listen {port}
ListenBacklog {backlog}
ServerLimit {workers}
MaxRequestWorkers {workers}
StartServers {workers}
MinSpareServers {workers}
MaxSpareServers {workers}
MaxConnectionsPerChild 0
{keep_alive}
HostnameLookups Off
DocumentRoot {root}/www
DirectoryIndex index.html
"
    );
    let path = directory.join("apache.conf");
    let written = std::fs::write(&path, conf)
        .and_then(|()| write_document(directory, FILE_BYTES))
        // Its processes are another user's.
        .and_then(|()| std::fs::set_permissions(directory, PermissionsExt::from_mode(0o755)));
    written.context(format!("cannot write Apache's files in {root}"))?;
    let mut command = Command::new("apache2");
    command.arg("-f").arg(path).args(["-D", "FOREGROUND"]);
    Ok(command)
}

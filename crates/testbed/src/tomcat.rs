//! Debian's Tomcat in a folder of the test's own.

use std::io::Result;
use std::path::Path;
use std::process::Command;

use crate::needs;

/// Where Debian puts it.
const HOME: &str = "/usr/share/tomcat10";
/// What each application has by default: the servlet for files, and the one for JSP.
const DEFAULTS: &str = "/etc/tomcat10/web.xml";

/// Whether it is installed.
pub fn is_installed() -> bool {
    Path::new(HOME).join("bin/bootstrap.jar").exists() && needs::find_program("java").is_some()
}

/// The command that runs it in the foreground with one application, in `webapps/ROOT` of the folder: `page` under the
/// name `file`. `connector` is the XML of its port, `heap_mb` the most that Java may use.
pub fn command(
    folder: &Path,
    connector: &str,
    (file, page): (&str, &str),
    heap_mb: u32,
) -> Result<Command> {
    for name in ["conf", "webapps/ROOT", "temp", "logs"] {
        std::fs::create_dir_all(folder.join(name))?;
    }
    std::fs::write(folder.join("webapps/ROOT").join(file), page)?;
    std::fs::copy(DEFAULTS, folder.join("conf/web.xml"))?;
    let server = format!(
        "<Server port='-1'><Service name='Catalina'>{connector}<Engine name='Catalina' defaultHost='localhost'>\
         <Host name='localhost' appBase='webapps'/></Engine></Service></Server>"
    );
    std::fs::write(folder.join("conf/server.xml"), server)?;
    let mut java = needs::command("java");
    java.arg("-cp")
        .arg(format!(
            "{HOME}/bin/bootstrap.jar:{HOME}/bin/tomcat-juli.jar"
        ))
        .arg(format!("-Dcatalina.home={HOME}"))
        .arg(format!("-Dcatalina.base={}", folder.display()))
        // Quick to start.
        .args(["-XX:TieredStopAtLevel=1", &format!("-Xmx{heap_mb}m")])
        .args(["org.apache.catalina.startup.Bootstrap", "start"]);
    Ok(java)
}

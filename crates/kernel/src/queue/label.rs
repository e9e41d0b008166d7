//! Labels of security modules (SELinux, Smack, AppArmor). A socket has that of the process that made it, and its
//! connections have it too: a parking listener has weir's, by which the module lets packets through and reads succeed.

use super::owner;

/// Why nothing is parked before a server whose label is not weir's. `None`: all of the processes that have the sockets
/// with these inodes open have weir's, or no module gives labels.
pub(super) fn because(inodes: impl IntoIterator<Item = u64>) -> Option<String> {
    let own = of("self")?;
    let processes = inodes.into_iter().flat_map(owner::places);
    // One that is gone meanwhile holds no socket.
    let is_there = |pid: i32| std::path::Path::new(&format!("/proc/{pid}")).exists();
    let mut labels = processes.filter_map(|(pid, _)| {
        let label = of(&pid.to_string());
        (label.is_some() || is_there(pid)).then_some(label)
    });
    labels.find_map(|label| differing(&own, label.as_deref()))
}

/// `label`: the server's; `None`: it cannot be read.
fn differing(own: &str, label: Option<&str>) -> Option<String> {
    let label = label.unwrap_or("not known");
    let text = || {
        format!("its security label is {label}, and parked connections would have weir's, {own}")
    };
    (label != own).then(text)
}

/// `None`: no module gives labels, or the process is gone.
fn of(pid: &str) -> Option<String> {
    let bytes = std::fs::read(format!("/proc/{pid}/attr/current")).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let text = text.trim_end_matches(['\0', '\n']);
    (!text.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_server_with_weirs_label_is_parked_for() {
        let own = "system_u:system_r:unconfined_service_t:s0";
        assert_eq!(differing(own, Some(own)), None);
        let other = differing(own, Some("system_u:system_r:httpd_t:s0")).unwrap();
        assert!(other.contains("httpd_t:s0, and parked"), "{other}");
        assert!(other.ends_with(own), "{other}");
        assert!(differing(own, None).unwrap().contains("not known"));
    }

    /// Beside itself a process has the same label, also where there are none.
    #[test]
    fn this_process_has_its_own_label() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let inode = nix::sys::stat::fstat(&listener).unwrap().st_ino;
        assert!(!owner::places(inode).is_empty());
        assert_eq!(because([inode]), None);
    }
}

//! A control group (cgroup2) of a test's own.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};

use crate::{needs, wait};

/// Where systems mount cgroup2.
const MOUNTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A child of the root; removed on drop, when no process is in it any more.
pub struct Cgroup(PathBuf);

impl Cgroup {
    /// `None` where none is mounted; says so.
    ///
    /// # Panics
    /// It cannot be made.
    pub fn create() -> Option<Cgroup> {
        let is_root = |path: &&&str| {
            statfs(**path).is_ok_and(|found| found.filesystem_type() == CGROUP2_SUPER_MAGIC)
        };
        let Some(root) = MOUNTS.iter().find(is_root) else {
            needs::skip("cgroup2 is not mounted");
            return None;
        };
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = Path::new(root).join(format!("weir-test-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Some(Cgroup(path))
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A descriptor of it.
    ///
    /// # Panics
    /// It is gone.
    pub fn open(&self) -> File {
        File::open(&self.0).unwrap()
    }

    /// A command that runs a program in it.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("sh");
        let script = r#"echo $$ >"$0" && exec "$@""#;
        command
            .args(["-c", script])
            .arg(self.0.join("cgroup.procs"))
            .arg(program);
        command
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // A process that has just ended may be in it for a moment.
        wait::try_until(Duration::from_secs(1), || std::fs::remove_dir(&self.0).ok());
    }
}

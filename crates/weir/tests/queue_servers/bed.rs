//! The real weir with one runtime directory, in a namespace of the test's own.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;
use weir_kernel::exec::can_park;
use weir_testbed::netns::Netns;
use weir_testbed::{needs, wait};

pub use weir_testbed::wait::PATIENCE;

/// The classes by the third byte of the client's address, 127.0.THIRD.1: high, middle, low.
pub const CLASSES: [u8; 3] = [1, 10, 40];

/// A namespace, and a folder for the servers' files and weir's.
pub struct Bed {
    /// Where all of it runs.
    pub netns: Netns,
    folder: TempDir,
}

impl Bed {
    /// `None` without root, or where the kernel cannot hand a parked connection over; says so.
    pub fn new(role: &str) -> Option<Bed> {
        if !needs::mechanism(can_park()) {
            return None;
        }
        let netns = needs::namespace(role)?;
        let folder = TempDir::with_prefix("weir-queue-").unwrap();
        // Apache's processes are another user's.
        let anyone = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder.path(), anyone).unwrap();
        Some(Bed { netns, folder })
    }

    /// The folder; removed on drop.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Runs a closure inside the namespace.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.netns.run(|| Ok(work())).unwrap()
    }

    /// Writes the configuration: a listener with a prioritized queue on each port, and the three classes.
    pub fn configure(&self, ports: &[u16], settings: &str) {
        self.configure_listeners(
            ports,
            &format!("queue = \"priority\"\nadmit = \"queue\"\n{settings}"),
        );
    }

    /// The same with all keys of the listeners but their names and addresses.
    pub fn configure_listeners(&self, ports: &[u16], keys: &str) {
        let mut text = String::new();
        for port in ports {
            text +=
                &format!("[[listener]]\nname = \"port{port}\"\naddress = \"*:{port}\"\n{keys}\n");
        }
        for third in CLASSES {
            text += &format!(
                "[[class]]\nname = \"class{third}\"\nfrom = \"127.0.{third}.0/24\"\npriority = {third}\n"
            );
        }
        std::fs::write(self.folder().join("weir.toml"), text).unwrap();
    }

    /// Starts `weir run`; it may not be up yet.
    pub fn start(&self) -> Weir<'_> {
        let stderr = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.folder().join("weir.stderr"))
            .unwrap();
        let mut command = self.command(&["run", "--config"]);
        command
            .arg(self.folder().join("weir.toml"))
            .stdout(Stdio::null())
            .stderr(stderr);
        let child = self.within(|| command.spawn().unwrap());
        Weir { bed: self, child }
    }

    /// A weir command with the folder's runtime directory.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command
            .arg("--runtime-dir")
            .arg(self.folder())
            .args(arguments)
            .stdin(Stdio::null());
        command
    }

    fn status(&self) -> Option<Value> {
        let mut command = self.command(&["status", "--json"]);
        let output = self.within(|| command.output().unwrap());
        serde_json::from_slice(&output.stdout).ok()
    }

    /// What weir has written to stderr so far.
    pub fn weir_said(&self) -> String {
        std::fs::read_to_string(self.folder().join("weir.stderr")).unwrap_or_default()
    }
}

/// A running weir; killed (SIGKILL) on drop.
pub struct Weir<'a> {
    bed: &'a Bed,
    child: Child,
}

impl Weir<'_> {
    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the listener on this port is as wanted; gives its status.
    pub fn until(&mut self, what: &str, port: u16, wanted: impl Fn(&Value) -> bool) -> Value {
        let name = format!("port{port}");
        let mut last = None;
        until(what, || {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "weir ended: {}", self.bed.weir_said());
            let status = self.bed.status()?;
            let listeners = status["listeners"].as_array()?;
            let listener = listeners.iter().find(|l| l["name"] == name)?;
            if !wanted(listener) {
                last = Some(listener.clone());
                return None;
            }
            Some(listener.clone())
        })
        .unwrap_or_else(|| panic!("{what}, port {port}: {last:#?}\n{}", self.bed.weir_said()))
    }

    /// Waits until connections are parked before the server on this port.
    pub fn until_parking(&mut self, port: u16) -> Value {
        self.until("weir parks", port, |l| l["queue_way"] == "parking")
    }

    /// Has it read its configuration again, and waits for it.
    pub fn reload(&self) {
        let mut command = self.bed.command(&["reload"]);
        let output = self.bed.within(|| command.output().unwrap());
        assert!(output.status.success(), "{output:?}");
    }

    /// Ends it by SIGTERM, and waits for it. One that has just been started does not know the signal yet.
    pub fn stop(mut self) {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM).unwrap();
        let status = self.child.wait().unwrap();
        let in_order = status.success() || status.signal() == Some(Signal::SIGTERM as i32);
        assert!(in_order, "{status}: {}", self.bed.weir_said());
    }

    /// Ends it by SIGKILL, and waits for it.
    pub fn kill(self) {
        drop(self);
    }
}

impl Drop for Weir<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Beside the load a start of weir takes one slow CPU half a minute (scripts/test-vm).
const PATIENCE_WITH_WEIR: std::time::Duration = PATIENCE.saturating_mul(3);

/// Asks until there is an answer; `None` after [`PATIENCE_WITH_WEIR`].
pub fn until<T>(what: &str, answer: impl FnMut() -> Option<T>) -> Option<T> {
    let found = wait::try_until(PATIENCE_WITH_WEIR, answer);
    if found.is_none() {
        println!("not within {PATIENCE_WITH_WEIR:?}: {what}");
    }
    found
}

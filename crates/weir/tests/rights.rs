//! What weir says to a user who lacks a right, and the files that it leaves in its runtime directory.

#[allow(dead_code, reason = "the other tests use the rest of it")]
mod common;

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use common::Folder;
use weir_testbed::needs::{self, own_namespace};

const CONFIG: &str = "[api]\n[[listener]]\nname = \"web\"\naddress = \"*:8080\"\n";
const NOBODY: u32 = 65534;

/// A running weir; killed (SIGKILL) on drop.
struct Weir(Child);

impl Weir {
    fn start(folder: &Folder, mut command: Command) -> Weir {
        let weir = Weir(command.stderr(Stdio::null()).spawn().unwrap());
        folder.until(|status| status["running"] == true);
        weir
    }
}

impl Drop for Weir {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run(folder: &Folder) -> Command {
    folder.command(&format!("run --config {}", folder.config().display()))
}

/// The command as the user nobody, with exactly these capabilities.
fn as_nobody(command: &Command, capabilities: &str) -> Command {
    let mut setpriv = Command::new("setpriv");
    setpriv
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(format!("--inh-caps=-all{capabilities}"))
        .arg(format!("--ambient-caps=-all{capabilities}"))
        .arg("--")
        .arg(command.get_program())
        .args(command.get_args())
        .current_dir("/")
        .stdin(Stdio::null());
    setpriv
}

const THREE: &str = ",+bpf,+net_admin,+perfmon";

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The API's socket of this namespace.
fn api_socket(folder: &Folder) -> PathBuf {
    let namespace = std::fs::metadata("/proc/thread-self/ns/net").unwrap();
    folder
        .path
        .join(weir_client::default_socket_name(namespace.ino()))
}

#[test]
fn detach_removes_the_api_s_socket_of_a_weir_that_was_killed() {
    if !own_namespace() {
        return;
    }
    for command in ["detach --left-over", "detach"] {
        let folder = Folder::new("rights-socket");
        folder.write_config(CONFIG);
        let weir = Weir::start(&folder, run(&folder));
        folder.until(|_| api_socket(&folder).exists());
        drop(weir);
        assert!(api_socket(&folder).exists());
        assert!(folder.weir(command).status.success());
        let left = std::fs::read_dir(&folder.path).unwrap().flatten();
        let left: Vec<_> = left.map(|entry| entry.file_name()).collect();
        assert_eq!(left, ["weir.toml"], "after {command}");
    }
}

#[test]
fn the_documented_curl_finds_the_socket_of_its_namespace() {
    if !own_namespace() || !needs::programs(&["curl"]) {
        return;
    }
    let page = include_str!("../../../docs/api.md");
    let page = page.replace("\\\n", "");
    let curl = page.lines().map(str::trim);
    let curl = curl.filter(|line| line.contains("--unix-socket"));
    let folder = Folder::new("rights-curl");
    folder.write_config(&format!(
        "{CONFIG}[[class]]\nname = \"crawlers\"\nfrom = \"10.0.0.0/8\"\n"
    ));
    let _weir = Weir::start(&folder, run(&folder));
    folder.until(|_| api_socket(&folder).exists());
    // Another namespace's, which may come first.
    let _other = UnixListener::bind(folder.path.join("api-1.sock")).unwrap();
    let commands: Vec<&str> = curl.collect();
    assert!(commands.len() > 1);
    for command in commands {
        let command = command.replace("/run/weir", &folder.path.display().to_string());
        let mut shell = needs::command("sh");
        let output = shell
            .args(["-c", &format!("{command} --fail --max-time 10")])
            .output()
            .unwrap();
        assert!(output.status.success(), "{command}: {}", said(&output));
    }
}

#[test]
fn with_exactly_three_capabilities_it_guards_and_says_whose_folder_it_lacks() {
    if !own_namespace() {
        return;
    }
    let folder = Folder::new("rights-three");
    folder.write_config(CONFIG);
    std::fs::set_permissions(&folder.path, Permissions::from_mode(0o755)).unwrap();
    let refused = as_nobody(&run(&folder), THREE).output().unwrap();
    let text = said(&refused);
    assert!(text.contains("Permission denied"), "{text}");
    assert!(text.contains("belongs to root"), "{text}");
    assert!(text.contains("--runtime-dir"), "{text}");
    assert!(!text.contains("CAP_BPF"), "it has that: {text}");

    chown(&folder.path, Some(NOBODY), Some(NOBODY)).unwrap();
    let weir = Weir::start(&folder, as_nobody(&run(&folder), THREE));
    drop(weir);
}

#[test]
fn status_without_rights_says_whom_to_ask_as() {
    if !own_namespace() {
        return;
    }
    let folder = Folder::new("rights-status");
    folder.write_config(CONFIG);
    std::fs::set_permissions(&folder.path, Permissions::from_mode(0o755)).unwrap();
    let _weir = Weir::start(&folder, run(&folder));
    for command in ["status", "reload", "detach"] {
        let refused = as_nobody(&folder.command(command), "").output().unwrap();
        let text = said(&refused);
        assert!(text.contains("no right to ask"), "{text}");
        assert!(text.contains("as root (sudo)"), "{text}");
        assert!(!text.contains("CAP_BPF"), "it does not help: {text}");
    }
}

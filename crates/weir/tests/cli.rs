//! What the command prints and how it exits, held to files in `tests/golden`.
//!
//! `WEIR_BLESS=1 cargo test -p weir --test cli` writes them anew; read the difference then.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use weir_testbed::wait;

/// Golden file → arguments. Commands run in the folder of the golden files.
const CASES: &[(&str, &str)] = &[
    ("help", "--help"),
    ("help-protect", "protect --help"),
    ("help-proxy", "proxy --help"),
    ("help-run", "run --help"),
    ("help-exec", "exec --help"),
    ("help-check", "check --help"),
    ("help-status", "status --help"),
    ("help-top", "top --help"),
    ("top-none", "--runtime-dir none top"),
    ("top-every", "top --every 10ms"),
    ("top-api", "top --once --api none.sock"),
    ("help-reload", "reload --help"),
    ("help-observe", "observe --help"),
    ("help-events", "events --help"),
    ("help-why", "why --help"),
    ("help-suggest", "suggest --help"),
    ("suggest-none", "--runtime-dir none suggest"),
    ("help-class", "class --help"),
    ("help-class-add", "class add --help"),
    ("help-class-set", "class set --help"),
    ("class-set-nothing", "class set gold"),
    ("class-none", "--runtime-dir none class list"),
    ("class-rate", "class add gold --rate 0"),
    ("help-detach", "detach --help"),
    ("help-doctor", "doctor --help"),
    ("help-explain", "explain --help"),
    ("help-trace", "trace --help"),
    ("help-model", "model --help"),
    ("no-command", ""),
    ("check", "check two.toml"),
    ("check-json", "check --json two.toml"),
    ("check-proxies", "check proxies.toml"),
    ("check-proxies-json", "check --json proxies.toml"),
    ("check-destinations", "check destinations.toml"),
    ("check-destinations-json", "check --json destinations.toml"),
    ("check-quic", "check quic.toml"),
    ("check-quic-json", "check --json quic.toml"),
    ("check-elsewhere", "check elsewhere.toml"),
    ("check-odd", "check odd.toml"),
    ("check-bad", "check bad.toml"),
    ("check-syntax", "check syntax.toml"),
    ("check-missing", "check missing.toml"),
    ("check-example", "check --example"),
    ("explain", "explain"),
    ("explain-counter", "explain syn_reset_wait"),
    ("explain-quic", "explain quic_vn_wait"),
    ("explain-quic-metric", "explain weir_quic_wait_seconds"),
    ("explain-key", "explain target_wait"),
    ("explain-words", "explain reject-syn"),
    ("explain-both", "explain mode"),
    ("explain-word", "explain rst"),
    ("explain-slip", "explain syn_admited"),
    ("explain-stranger", "explain crawlers"),
    ("protect-policy", "protect 80 --establish reserve"),
    ("protect-port", "protect http"),
    ("protect-port-0", "protect 0"),
    ("protect-address", "protect 80 --address localhost"),
    ("protect-wait", "protect 80 --target-wait 20"),
    ("protect-overbook", "protect 80 --overbook 17"),
    ("protect-overbook-negative", "protect 80 --overbook -1"),
    (
        "protect-interface",
        "protect 80 --interface an-interface-name-that-is-too-long",
    ),
    ("proxy-nowhere", "proxy --listen 127.0.0.1:0 --mode tcp"),
    (
        "proxy-backend",
        "proxy --listen *:0 --mode forward --backend 10.0.0.1:80",
    ),
    ("proxy-listen", "proxy --listen localhost:80 --mode tcp"),
    (
        "proxy-address",
        "proxy --listen 192.0.2.1:0 --mode tcp --backend 10.0.0.1:80",
    ),
    (
        "proxy-limit",
        "proxy --listen *:0 --mode forward --idle-timeout 20",
    ),
    ("proxy-word", "proxy --listen *:0 --mode backward"),
    (
        "proxy-config-flags",
        "proxy --config proxies.toml --mode tcp",
    ),
    ("proxy-config-bad", "proxy --config proxies-bad.toml"),
    ("proxy-config-none", "proxy --config two.toml"),
    ("run-bad", "run --config bad.toml"),
    ("run-none", "run --config proxies.toml"),
    ("status-none", "--runtime-dir none status"),
    ("status-none-json", "--runtime-dir none status --json"),
    ("detach-none", "--runtime-dir none detach"),
    ("reload-none", "--runtime-dir none reload"),
    ("trace", "trace lossy.pcap"),
    ("trace-json", "trace --json lossy.pcap"),
    ("trace-cut", "trace --json cut.pcap"),
    ("trace-missing", "trace missing.pcap"),
    ("trace-text", "trace two.toml"),
    ("model", "model"),
    ("model-json", "model --json --rtt 50ms"),
    ("model-rtt", "model --rtt 50"),
    ("model-loss", "model --loss 2"),
];

fn golden_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn weir(arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(arguments.split_whitespace())
        .current_dir(golden_dir())
        .env("COLUMNS", "100")
        .output()
        .expect("weir starts")
}

fn transcript(arguments: &str) -> String {
    let output = weir(arguments);
    let text = |bytes| String::from_utf8(bytes).expect("output is UTF-8");
    // The absolute path is the machine's, not the command's.
    let here = format!("{}/", golden_dir().display());
    let stderr = text(output.stderr).replace(&here, "");
    let code = output.status.code().expect("weir is not killed");
    let stdout = text(output.stdout);
    format!("$ weir {arguments}\n{stdout}--- stderr\n{stderr}--- exit {code}\n")
}

#[test]
fn help_errors_and_tables_are_as_agreed() {
    let bless = std::env::var_os("WEIR_BLESS").is_some();
    let mut different = Vec::new();
    for (name, arguments) in CASES {
        let file = golden_dir().join(format!("{name}.txt"));
        let got = transcript(arguments);
        if bless {
            std::fs::write(&file, &got).expect("the golden file is written");
        }
        let agreed = std::fs::read_to_string(&file).unwrap_or_default();
        if got != agreed {
            different.push(format!(
                "{}\n--- agreed\n{agreed}--- got\n{got}",
                file.display()
            ));
        }
    }
    assert!(
        different.is_empty(),
        "{}\nWEIR_BLESS=1 accepts",
        different.join("\n")
    );
}

#[test]
fn every_golden_file_belongs_to_a_case() {
    for entry in std::fs::read_dir(golden_dir()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        let known = CASES.iter().any(|(case, _)| *case == name);
        assert!(
            known || ["toml", "pcap"].contains(&path.extension().unwrap().to_str().unwrap()),
            "{}",
            path.display()
        );
    }
}

#[test]
fn every_error_on_stderr_has_a_hint_or_is_claps_own() {
    for (name, arguments) in CASES {
        let output = weir(arguments);
        let stderr = String::from_utf8(output.stderr).unwrap();
        let guided = ["hint: ", "--help", "Usage: "]
            .iter()
            .any(|word| stderr.contains(word));
        assert!(output.status.success() || guided, "{name}: {stderr}");
    }
}

#[test]
fn json_is_json() {
    let parsed = |arguments: &str| -> serde_json::Value {
        serde_json::from_slice(&weir(arguments).stdout).expect("stdout is JSON")
    };
    assert_eq!(
        parsed("check --json two.toml")["listeners"][0]["establish"],
        "no-syn-drop"
    );
    let status = parsed("--runtime-dir none status --json");
    assert_eq!(status["running"], false);
    assert_eq!(status["listeners"], serde_json::json!([]));
}

/// A folder that is removed when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        Folder(std::env::temp_dir().join(format!("weir-{name}-{}", std::process::id())))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const VISIBLE: [&str; 13] = [
    "protect", "run", "reload", "observe", "proxy", "exec", "check", "status", "detach", "doctor",
    "explain", "trace", "model",
];

#[test]
fn every_command_has_a_man_page_that_names_its_flags() {
    let folder = Folder::new("man");
    assert!(
        weir(&format!("generate man {}", folder.0.display()))
            .status
            .success()
    );
    for command in VISIBLE {
        let page = std::fs::read_to_string(folder.0.join(format!("weir-{command}.8"))).unwrap();
        assert!(
            page.contains(&format!(".TH WEIR-{}", command.to_uppercase())),
            "{command}"
        );
    }
    let protect = std::fs::read_to_string(folder.0.join("weir-protect.8")).unwrap();
    assert!(protect.contains(r"\-\-target\-wait"));
    let main = std::fs::read_to_string(folder.0.join("weir.8")).unwrap();
    assert!(VISIBLE.iter().all(|command| main.contains(command)));
    assert!(!main.contains("generate"), "hidden commands stay hidden");
    assert!(!protect.contains("runtime"), "hidden flags too");
    for command in VISIBLE {
        let page = std::fs::read_to_string(folder.0.join(format!("weir-{command}.8"))).unwrap();
        for section in [
            ".SH EXAMPLES",
            ".SH FILES",
            ".SH \"EXIT STATUS\"",
            ".SH \"SEE ALSO\"",
        ] {
            assert_eq!(page.matches(section).count(), 1, "{command}: {section}");
        }
    }
}

#[test]
fn the_man_page_of_the_config_file_has_every_table_and_key() {
    let folder = Folder::new("man-config");
    let made = weir(&format!("generate man {}", folder.0.display()));
    assert!(made.status.success());
    let page = std::fs::read_to_string(folder.0.join("weir.toml.5")).unwrap();
    assert!(page.contains(".TH WEIR.TOML 5"), "{page}");
    let mut lines = page.lines();
    for table in weir_config::tables() {
        let head = table.head.replace('-', r"\-");
        assert!(lines.any(|line| line == head), "{head}");
        for key in &table.keys {
            let term = format!(r"\fB{}\fR = ", key.name.replace('-', r"\-"));
            assert!(lines.any(|line| line.starts_with(&term)), "{head} {term}");
        }
    }
    // A line that begins with a dot or an apostrophe and names no macro would vanish.
    let known = [
        ".TH", ".SH", ".PP", ".TP", ".br", ".RS", ".RE", ".IP", ".nf", ".fi",
    ];
    for line in page.lines().filter(|line| line.starts_with(['.', '\''])) {
        assert!(
            known.iter().any(|macro_| line.starts_with(macro_)),
            "{line}"
        );
    }
}

#[test]
fn completions_know_every_command() {
    let folder = Folder::new("completions");
    assert!(
        weir(&format!("generate completions {}", folder.0.display()))
            .status
            .success()
    );
    for file in ["weir.bash", "_weir", "weir.fish"] {
        let script = std::fs::read_to_string(folder.0.join(file)).unwrap();
        assert!(
            VISIBLE.iter().all(|command| script.contains(command)),
            "{file}"
        );
        for hidden in ["generate", "runtime-dir"] {
            assert!(!script.contains(hidden), "{file}: {hidden}");
        }
        for name in ["syn_reset_wait", "target_wait", "half_open"] {
            assert!(script.contains(name), "{file}: {name}");
        }
    }
}

/// How a command with a file that is none ends; `None`: not in time.
fn ends_with(arguments: &[&str]) -> Option<(i32, String)> {
    let mut child = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let ended = wait::try_until(wait::PATIENCE, || child.try_wait().unwrap());
    if ended.is_none() {
        child.kill().unwrap();
        child.wait().unwrap();
        return None;
    }
    let mut said = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    Some((ended.unwrap().code().unwrap(), said))
}

#[test]
fn a_file_that_is_none_is_an_error_at_once_whatever_command_it_is_given() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    nix::unistd::mkfifo(Path::new(&at("fifo")), nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::fs::File::create(at("huge"))
        .unwrap()
        .set_len(1 << 40)
        .unwrap();
    let files = [
        (at("fifo"), "it is a FIFO"),
        (at("huge"), "it is longer than"),
        ("/dev/zero".to_owned(), "it is a device"),
        (at(""), "it is a directory"),
    ];
    for (file, why) in &files {
        for command in [
            &["check"][..],
            &["check", "--diff"],
            &["run", "--config"],
            &["proxy", "--config"],
        ] {
            let arguments = [command, &[file.as_str()]].concat();
            let ended = ends_with(&arguments).unwrap_or_else(|| panic!("{arguments:?} hangs"));
            assert_eq!(ended.0, 2, "{arguments:?}: {}", ended.1);
            assert!(ended.1.contains(why), "{arguments:?}: {}", ended.1);
        }
    }
    // The packets of a directory or a device are none either; one may wait for those of a FIFO.
    for file in ["/dev/zero", at("").as_str()] {
        let (code, said) = ends_with(&["trace", file]).unwrap();
        assert_eq!(code, 1, "{said}");
    }
}

#[test]
fn the_output_of_a_program_is_checked_as_a_file_is() {
    let weir = env!("CARGO_BIN_EXE_weir");
    let script = format!("'{weir}' check <(printf '[[listener]]\\naddress = \"*:80\"\\n')");
    let checked = Command::new("bash").args(["-c", &script]).output().unwrap();
    assert!(checked.status.success(), "{checked:?}");
    let text = String::from_utf8(checked.stdout).unwrap();
    assert!(text.contains("*:80"), "{text}");
}

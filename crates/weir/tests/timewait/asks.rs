//! What an application asks for one socket of its own, by setsockopt(): programs in C, Go and Python.

use std::path::Path;
use std::process::Command;

use nix::errno::Errno;
use weir_core::abi;
use weir_testbed::needs;
use weir_testbed::netns::Netns;

use crate::bed::{First, Server, THERE_V4, run, time_waits_become};
use crate::common::{Bed, PORT, Weir, output, until, within};
use crate::negotiate::{listener, rule};
use crate::peers::{Started, start_there};

const LANGUAGES: [Language; 3] = [Language::C, Language::Go, Language::Python];
const OFF: u8 = abi::WISH_OFF;
const ANY: u8 = abi::WISH_ANY;
const CLIENT: u8 = abi::WISH_CLIENT;
const SERVER: u8 = abi::WISH_SERVER;
/// Rules that name none of the connections here.
const ELSEWHERE: &str = "[[destination]]\nname = \"backends\"\nto_port = 9\nper_socket = true\n";
const ELSEWHERE_THERE: &str =
    "[[listener]]\nname = \"web\"\naddress = \"*:9\"\nper_socket = true\n";

/// Starts a weir at both ends, with these rules.
fn ends(bed: &Bed, here: &str, there: &str) -> [Weir; 2] {
    [bed.run_there(there), run(bed, here)]
}

/// Rules of both ends that negotiate, with the client as holder, and let applications choose.
fn negotiating(bed: &Bed) -> [Weir; 2] {
    let per_socket = |rule: String| rule + "per_socket = true\n";
    ends(
        bed,
        &per_socket(rule("any")),
        &per_socket(listener("client")),
    )
}

#[derive(Debug, Clone, Copy)]
enum Language {
    C,
    Go,
    Python,
}

impl Language {
    /// The program, built in this folder; `None`: the language is not installed.
    fn program(self, folder: &Path) -> Option<Command> {
        let source = |name: &str| {
            Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("tests/timewait/asks")
                .join(name)
        };
        let built = folder.join("program");
        let (tool, name) = match self {
            Language::C => ("cc", "program.c"),
            Language::Go => ("go", "program.go"),
            Language::Python => ("/usr/bin/python3", "program.py"),
        };
        if !needs::programs(&[tool]) {
            return None;
        }
        let mut build = needs::command(tool);
        match self {
            Language::C => build.args(["-O1", "-o"]),
            Language::Go => build
                .args(["build", "-o"])
                .env("CGO_ENABLED", "0")
                .env("GOCACHE", std::env::temp_dir().join("weir-test-go")),
            Language::Python => {
                build.args(["-u".as_ref(), source(name).as_os_str()]);
                return Some(build);
            }
        };
        let status = build.arg(&built).arg(source(name)).status().unwrap();
        assert!(status.success(), "{self:?}");
        Some(Command::new(built))
    }

    fn command(self, bed: &Bed, role: &str, wish: u8) -> Option<Command> {
        let mut program = self.program(bed.folder.path())?;
        let numbers = [PORT.to_string(), wish.to_string()];
        program.args([role, &THERE_V4.to_string()]).args(numbers);
        Some(program)
    }

    /// What its client here prints; `None` if there is no such language.
    fn connects(self, bed: &Bed, wish: u8) -> Option<String> {
        let mut command = self.command(bed, "connect", wish)?;
        let output = within(bed.here(), || command.output().unwrap());
        assert!(output.status.success(), "{self:?}: {output:?}");
        assert!(output.stderr.is_empty(), "{self:?}: {output:?}");
        Some(String::from_utf8(output.stdout).unwrap())
    }

    fn listens(self, bed: &Bed, wish: u8) -> Option<Started> {
        Some(start_there(bed, self.command(bed, "listen", wish)?))
    }
}

fn served(wish: u8) -> String {
    format!("asked {wish}\nhello\n")
}

#[test]
fn a_client_negotiates_where_no_rule_does_if_it_asks() {
    let Some(bed) = Bed::new() else { return };
    let _ends = ends(&bed, ELSEWHERE, &listener("client"));
    let _servers = Server::start(&bed, PORT, First::Server);
    for language in LANGUAGES {
        assert_eq!(language.connects(&bed, 0).unwrap_or(served(0)), served(0));
    }
    // The server is in TIME-WAIT of each.
    let before = LANGUAGES.len();
    time_waits_become(bed.there(), before);
    for language in LANGUAGES {
        let said = language.connects(&bed, ANY);
        assert_eq!(said.unwrap_or(served(ANY)), served(ANY), "{language:?}");
    }
    time_waits_become(bed.there(), before);
    // No rule has them, and they are counted all the same.
    until("their records are counted", || {
        let asked = &bed.status()["timewait_asked"];
        (asked["held"] == LANGUAGES.len() && asked["fallback"] == 0).then_some(())
    });
    assert!(bed.status_there()["timewait_asked"].is_null());
}

#[test]
fn a_client_leaves_a_connection_alone_if_it_asks() {
    let Some(bed) = Bed::new() else { return };
    let _ends = negotiating(&bed);
    let _servers = Server::start(&bed, PORT, First::Server);
    for (count, language) in LANGUAGES.iter().enumerate() {
        let said = language.connects(&bed, OFF);
        assert_eq!(said.unwrap_or(served(OFF)), served(OFF), "{language:?}");
        time_waits_become(bed.there(), count + 1);
    }
}

#[test]
fn a_client_is_refused_where_the_server_chooses_another_holder_than_it_asks_for() {
    let Some(bed) = Bed::new() else { return };
    let _ends = negotiating(&bed);
    let _servers = Server::start(&bed, PORT, First::Server);
    for language in LANGUAGES {
        let said = language.connects(&bed, SERVER);
        let refused = format!("asked {SERVER}\nconnect: {}\n", Errno::ECONNREFUSED as i32);
        assert_eq!(said.unwrap_or(refused.clone()), refused, "{language:?}");
        let said = language.connects(&bed, CLIENT);
        assert_eq!(
            said.unwrap_or(served(CLIENT)),
            served(CLIENT),
            "{language:?}"
        );
    }
    time_waits_become(bed.there(), 0);
}

#[test]
fn a_server_chooses_the_holder_if_it_asks() {
    let Some(bed) = Bed::new() else { return };
    let _ends = negotiating(&bed);
    for (count, language) in LANGUAGES.iter().enumerate() {
        let Some(server) = language.listens(&bed, SERVER) else {
            return;
        };
        let said = Language::Python.connects(&bed, 0);
        assert_eq!(said, Some(served(0)), "{language:?}");
        // It closes first, and holds.
        bed.figure_becomes("held_by_peer", count as u64 + 1);
        drop(server);
    }
}

#[test]
fn a_server_negotiates_where_no_rule_does_if_it_asks() {
    let Some(bed) = Bed::new() else { return };
    let _ends = ends(&bed, &rule("any"), ELSEWHERE_THERE);
    for (count, language) in LANGUAGES.iter().enumerate() {
        let Some(server) = language.listens(&bed, ANY) else {
            continue;
        };
        assert_eq!(
            Language::Python.connects(&bed, 0),
            Some(served(0)),
            "{language:?}"
        );
        bed.figure_becomes("held", count as u64 + 1);
        drop(server);
    }
    time_waits_become(bed.there(), 0);
    let _server = Language::Python.listens(&bed, OFF);
    assert_eq!(Language::Python.connects(&bed, 0), Some(served(0)));
    time_waits_become(bed.there(), 1);
}

/// Asks in all kinds of ways, and prints the answers, one a line.
const WAYS: &str = r#"
import errno, socket, struct
def ask(s, wish=struct.pack("i", 1), option=1):
    try:
        s.setsockopt(0x57454952, option, wish)
        return "0"
    except OSError as error:
        return errno.errorcode[error.errno]
print("new", ask(socket.socket()))
print("new, IPv6", ask(socket.socket(socket.AF_INET6)))
print("UDP", ask(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)))
print("Unix", ask(socket.socket(socket.AF_UNIX)))
print("option 2", ask(socket.socket(), option=2))
print("value 5", ask(socket.socket(), struct.pack("i", 5)))
print("a byte", ask(socket.socket(), b"\2"))
server = socket.create_server(("127.0.0.1", 0))
print("listening", ask(server))
print("connected", ask(socket.create_connection(server.getsockname())))
large = socket.socket()
large.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, struct.pack("i", 50000) + bytes(8188))
print("others", large.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF))
"#;

fn ways(netns: &Netns) -> Vec<String> {
    let said = output(netns, "/usr/bin/python3", &["-c", WAYS]);
    said.lines().map(str::to_owned).collect()
}

#[test]
fn what_cannot_be_asked_is_refused_and_other_options_are_as_without_weir() {
    let Some(bed) = Bed::new() else { return };
    if !needs::programs(&["/usr/bin/python3"]) {
        return;
    }
    let _here = run(&bed, ELSEWHERE);
    let expected = [
        "new 0",
        "new, IPv6 0",
        "UDP ENOPROTOOPT",
        "Unix ENOTSUP",
        "option 2 ENOPROTOOPT",
        "value 5 EINVAL",
        "a byte EINVAL",
        "listening EISCONN",
        "connected EISCONN",
        "others 100000",
    ];
    assert_eq!(ways(bed.here()), expected);
    // No weir runs there.
    for (said, here) in ways(bed.there()).iter().zip(expected) {
        let (way, answer) = said.rsplit_once(' ').unwrap();
        let expected = match way {
            "Unix" | "others" => here,
            _ => &format!("{way} ENOPROTOOPT"),
        };
        assert_eq!(format!("{way} {answer}"), *expected);
    }
}

#[test]
fn without_the_key_nothing_can_be_asked() {
    let Some(bed) = Bed::new() else { return };
    if !needs::programs(&["/usr/bin/python3"]) {
        return;
    }
    let _here = run(&bed, &rule("any"));
    assert_eq!(ways(bed.here())[0], "new ENOPROTOOPT");
}

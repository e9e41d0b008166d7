//! Who may read the dashboard, over the wire.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;

use weir_testbed::needs::own_namespace;
use weir_testbed::wait;

use crate::common::{Folder, PATIENCE, Running};
use crate::overload::{Bed, DASHBOARD};

const LISTENER: &str = "[[listener]]\nname = \"web\"\naddress = \"*:8081\"\n";
const TOKEN: &str = "n2pGq8yRZ0o4Ww7bTq1sVx3u";

/// An answer: its status, its head, its body.
struct Answer {
    status: u16,
    head: String,
    body: String,
}

/// Sends a request with these header lines, each ended by CR LF.
fn ask(address: SocketAddr, method: &str, path: &str, headers: &str) -> std::io::Result<Answer> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n"
    )?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Ok(Answer {
        status,
        head: head.to_lowercase(),
        body: body.to_owned(),
    })
}

fn host(name: &str) -> String {
    format!("Host: {name}\r\n")
}

#[test]
fn without_a_token_only_this_machine_s_own_names_are_answered_and_nothing_can_be_changed() {
    let Some(bed) = Bed::new("dashboard-access") else {
        return;
    };
    let get = |path: &str, name: &str| ask(DASHBOARD, "GET", path, &host(name)).unwrap();
    for path in [
        "/",
        "/app.js",
        "/verdicts.json",
        "/v1/status",
        "/v1/events",
        "/v1/sources",
    ] {
        for own in ["localhost", "localhost:9466", "127.0.0.1:9466", "[::1]:80"] {
            assert_eq!(get(path, own).status, 200, "{path} as {own}");
        }
        for foreign in ["evil.example", "evil.example:9466", "10.0.0.1:9466", ""] {
            let refused = get(path, foreign);
            assert_eq!(refused.status, 403, "{path} as {foreign}");
            assert!(!refused.body.contains("web"), "{}", refused.body);
        }
        assert_ne!(
            ask(DASHBOARD, "GET", path, "").unwrap().status,
            200,
            "no Host"
        );
    }
    for (path, name) in [
        ("/", "localhost"),
        ("/v1/status", "localhost"),
        ("/nowhere", "localhost"),
        ("/", "evil.example"),
    ] {
        let head = get(path, name).head;
        for line in [
            "content-security-policy: default-src 'none'; script-src 'self'; ",
            "frame-ancestors 'none'",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
            "cross-origin-resource-policy: same-origin",
        ] {
            assert!(head.contains(line), "{path}: {line}\n{head}");
        }
    }
    assert!(
        get("/v1/status", "localhost")
            .head
            .contains("cache-control: no-store")
    );
    for (method, path) in [
        ("POST", "/v1/status"),
        ("POST", "/v1/classes"),
        ("PUT", "/v1/classes/gold"),
        ("DELETE", "/v1/classes/gold"),
        ("PATCH", "/v1/classes/gold"),
    ] {
        let refused = ask(DASHBOARD, method, path, &host("localhost")).unwrap();
        assert!(
            matches!(refused.status, 404 | 405),
            "{method} {path}: {}",
            refused.status
        );
    }
    // The whole schema, with the proxies of the other process.
    let said: serde_json::Value =
        serde_json::from_str(&get("/v1/status", "localhost").body).unwrap();
    assert_eq!(said["proxies"][0]["name"], "edge");
    assert_eq!(said["listeners"], bed.folder.status()["listeners"]);
}

#[test]
fn it_is_off_unless_the_file_has_it() {
    if !own_namespace() {
        return;
    }
    let folder = Folder::new("dashboard-off");
    folder.write_config(LISTENER);
    let _guard = Running::start(&folder, "run --config weir.toml");
    folder.until(|status| status["running"] == true);
    let refused = TcpStream::connect(DASHBOARD).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
}

#[test]
fn the_figures_of_a_dashboard_with_a_token_are_for_its_owner_alone() {
    if !own_namespace() {
        return;
    }
    let folder = Folder::new("dashboard-token");
    let file = folder.path.join("token");
    let table = format!(
        "[dashboard]\nlisten = \"*:9466\"\ntoken_file = {:?}\n",
        file.display().to_string()
    );
    folder.write_config(&format!("{LISTENER}{table}"));

    // Without the file it does not start, and `weir check` says so before.
    let started = folder.weir("run --config weir.toml");
    assert_eq!(started.status.code(), Some(2), "{started:?}");
    let said = String::from_utf8_lossy(&started.stderr).into_owned();
    assert!(
        said.contains("/dev/urandom") && said.contains(&file.display().to_string()),
        "{said}"
    );
    let checked = folder.weir("check weir.toml");
    let said = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert!(
        checked.status.success() && said.contains("/dev/urandom"),
        "{said}"
    );

    std::fs::write(&file, format!("{TOKEN}\n")).unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    let _guard = Running::start(&folder, "run --config weir.toml");
    folder.until(|status| status["running"] == true);
    let get = |path: &str, more: &str| {
        let headers = format!("Host: weir.example\r\n{more}");
        wait::until("the dashboard", || {
            ask(DASHBOARD, "GET", path, &headers).ok()
        })
    };
    // The page has nothing that is secret, and asks its reader for the token.
    for open in ["/", "/app.js", "/verdicts.json"] {
        assert_eq!(get(open, "").status, 200, "{open}");
    }
    for path in ["/v1/status", "/v1/events", "/v1/sources"] {
        for wrong in [
            String::new(),
            "Authorization: Bearer \r\n".to_owned(),
            format!("Authorization: Bearer {}\r\n", &TOKEN[1..]),
            format!("Authorization: Bearer {TOKEN}x\r\n"),
            format!("Authorization: Basic {TOKEN}\r\n"),
            format!("Cookie: token={TOKEN}\r\n"),
        ] {
            let refused = get(path, &wrong);
            assert_eq!(refused.status, 401, "{path} {wrong}");
            assert!(!refused.body.contains("web") && !refused.body.contains(TOKEN));
        }
        assert_eq!(get(&format!("{path}?token={TOKEN}"), "").status, 401);
        assert_eq!(
            get(path, &format!("Authorization: Bearer {TOKEN}\r\n")).status,
            200
        );
    }
}

#[test]
fn an_address_that_others_reach_is_refused_without_a_token() {
    let folder = Folder::new("dashboard-open");
    folder.write_config(&format!(
        "{LISTENER}[dashboard]\nlisten = \"0.0.0.0:9466\"\n"
    ));
    for command in ["check weir.toml", "run --config weir.toml"] {
        let refused = folder.weir(command);
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(
            said.contains("not a loopback address") && said.contains("token_file"),
            "{said}"
        );
    }
}

//! The page when weir is not there, does not let its reader in, guards nothing, or guards elsewhere.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use weir_testbed::needs::own_namespace;
use weir_testbed::netns::Netns;
use weir_testbed::sockets::within;

use crate::browser::Browser;
use crate::common::{Folder, Running};
use crate::overload::{DASHBOARD, quic_attempt, quic_server};
use crate::page::TOO_WIDE;

const LISTENER: &str = "[[listener]]\nname = \"web\"\naddress = \"*:8081\"\n";

/// A weir with a dashboard and this besides; `None` without root, or without a browser.
fn start(name: &str, config: &str) -> Option<(Folder, Running, Browser)> {
    if !own_namespace() {
        return None;
    }
    let browser = Browser::start()?;
    let folder = Folder::new(name);
    folder.write_config(&format!("{config}[dashboard]\n"));
    let guard = Running::start(&folder, "run --config weir.toml");
    folder.until(|status| status["running"] == true);
    Some((folder, guard, browser))
}

#[test]
fn a_weir_that_ends_and_comes_again_is_seen_to() {
    let Some((folder, guard, mut browser)) = start("dashboard-restart", LISTENER) else {
        return;
    };
    browser.open_dashboard(DASHBOARD);
    browser.until("document.getElementById('headline').className === 'good'");
    drop(guard);
    browser.until("!document.getElementById('banner').hidden");
    let banner = browser.text("#banner");
    assert!(
        banner.starts_with("No answer: ") && banner.contains("The figures are of "),
        "{banner}"
    );
    assert_eq!(browser.evaluate("document.title"), "weir: no answer");
    let _again = Running::start(&folder, "run --config weir.toml");
    browser.until("document.getElementById('banner').hidden && document.title === 'weir'");
    // No counter seems to run backwards.
    assert!(
        !browser.text("main").contains("-1"),
        "{}",
        browser.text("main")
    );
}

#[test]
fn a_listener_that_is_not_in_force_is_the_first_thing_to_see() {
    let config = format!("{LISTENER}interfaces = [\"nowhere0\"]\n");
    let Some((_folder, _guard, mut browser)) = start("dashboard-off", &config) else {
        return;
    };
    browser.open_dashboard(DASHBOARD);
    browser.until("document.getElementById('headline').className === 'bad'");
    assert!(browser.text("#headline").starts_with("Nothing is in force"));
    assert!(browser.text("#notes").contains("web: not in force"));
    assert_eq!(browser.text("#cards .pill"), "not in force");
    assert_eq!(browser.evaluate("document.title"), "● weir: not in force");
}

#[test]
fn without_listeners_it_says_what_there_is() {
    let destination =
        "[[destination]]\nname = \"backends\"\nto_port = 8082\ntimewait = \"client-rst\"\n";
    let Some((_folder, _guard, mut browser)) = start("dashboard-none", destination) else {
        return;
    };
    browser.open_dashboard(DASHBOARD);
    assert!(
        browser
            .text("#headline")
            .starts_with("Nothing is guarded here")
    );
    assert!(browser.text("#more").contains("no [[listener]]"));
    assert_eq!(browser.faults(), [""; 0]);
}

/// A QUIC server that reads nothing: what stands in its buffer is too much for the listener.
#[test]
fn a_quic_listener_has_a_card_beside_the_others_and_refuses_in_the_headline() {
    let config = format!(
        "{LISTENER}[[quic]]\nname = \"h3\"\naddress = \"*:8443\"\nroom = 0.001\nfloor = 0\n"
    );
    let Some((_folder, _guard, mut browser)) = start("dashboard-quic", &config) else {
        return;
    };
    let server = SocketAddr::from((Ipv4Addr::LOCALHOST, 8443));
    let _server = quic_server(server);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _end = EndsOnDrop(&over);
        let over = &over;
        // A client that comes again and again; each time it is another one.
        scope.spawn(move || {
            while !over.load(Ordering::Relaxed) {
                quic_attempt(server);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        browser.size(1440, 1150, 1.0);
        browser.open_dashboard(DASHBOARD);
        browser.until("document.getElementById('headline').className === 'busy'");
        for (selector, word) in [
            ("#headline", "h3 (QUIC) turns away 100 % of its connections"),
            ("#cards", "h3 (QUIC)"),
            ("#cards", "*:8443"),
            ("#cards", "not answered"),
            ("#cards", "room 0.001"),
            ("#cards", "wait for the answer"),
            ("#sums", "2 of 2"),
            ("#top-sources", "quic_vn_room"),
            ("#verdicts", "quic_vn_room"),
            ("#event-list", "h3 (QUIC): overload begins"),
        ] {
            browser.until(&format!(
                "document.querySelector({selector:?}).textContent.includes({word:?})"
            ));
        }
        crate::page::screenshot(&mut browser, "quic.png");
        for width in [1440, 800, 360] {
            browser.size(width, 900, 1.0);
            assert_eq!(browser.evaluate(TOO_WIDE), serde_json::json!([]), "{width}");
        }
        assert_eq!(browser.faults(), [""; 0]);
    });
}

/// A process that listens and accepts nothing.
fn serve(at: SocketAddr) -> Running {
    let program = format!(
        "import socket, time\ns = socket.socket()\ns.bind(('{}', {}))\ns.listen(4)\ntime.sleep(3600)",
        at.ip(),
        at.port()
    );
    let mut command = Command::new("python3");
    Running(command.args(["-c", &program]).spawn().unwrap())
}

/// A claim that does not hold ends the overload too.
struct EndsOnDrop<'a>(&'a AtomicBool);

impl Drop for EndsOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Twelve network namespaces with a server each; one of them refuses.
#[test]
fn the_workloads_of_a_listener_are_below_it_the_worst_first() {
    let config = "[[listener]]\nname = \"shop\"\naddress = \"*:8091\"\nwhere = \"netns:*replica*\"\nadmit = \"queue\"\n";
    let Some((folder, _guard, mut browser)) = start("dashboard-workloads", config) else {
        return;
    };
    let at = SocketAddr::from((Ipv4Addr::LOCALHOST, 8091));
    let replicas: Vec<(Netns, Running)> = (0..12)
        .map(|_| {
            let netns = Netns::create("replica").unwrap();
            let server = within(&netns, || serve(at));
            (netns, server)
        })
        .collect();
    folder.until(|status| {
        let workloads = status["listeners"][0]["workloads"].as_array();
        let on = |one: &serde_json::Value| one["in_force"] == true;
        workloads.is_some_and(|all| all.len() == 12 && all.iter().all(on))
    });
    let busy = &replicas[7].0;
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let overload = || {
                let mut kept = Vec::new();
                while !ends.load(Ordering::Relaxed) {
                    kept.extend(TcpStream::connect_timeout(&at, Duration::from_millis(50)).ok());
                }
            };
            within(busy, overload)
        });
        let _ends = EndsOnDrop(&ends);
        browser.open_dashboard(DASHBOARD);
        browser.until("document.querySelectorAll('#cards .workloads tbody tr').length === 8");
        let name = busy.name();
        let first = "document.querySelector('#cards .workloads tbody tr')";
        let refuses = format!(
            "{first}.cells[0].innerText === {name:?} && Number({first}.cells[5].innerText.replace(/\\s/g, '')) > 0"
        );
        browser.until(&refuses);
        assert_eq!(browser.text("#cards .workloads summary"), "12 workloads");
        assert!(
            browser
                .text("#cards .workloads .more")
                .starts_with("4 more workloads")
        );
        if let Some(folder) = std::env::var_os("WEIR_SCREENSHOTS") {
            for width in [1440, 360] {
                browser.size(width, if width < 500 { 2900 } else { 1150 }, 1.0);
                browser.next_report();
                let file = format!("dashboard-workloads-{width}.png");
                browser.screenshot(&std::path::Path::new(&folder).join(file));
            }
        }
        // All figures of a phone's width are there.
        browser.size(360, 780, 1.0);
        browser.next_report();
        let too_wide = browser.evaluate(TOO_WIDE);
        assert_eq!(too_wide, serde_json::json!([]));
        browser.size(1440, 1150, 1.0);
        // The last by its name.
        let other = replicas
            .iter()
            .map(|(netns, _)| netns.name())
            .max()
            .unwrap();
        browser.press("/");
        browser.type_text(other);
        browser.until(&format!("{first}.cells[0].innerText === {other:?}"));
    });
    assert_eq!(browser.faults(), [""; 0]);
}

#[test]
fn a_token_is_asked_for_and_kept_in_the_tab() {
    let token = "n2pGq8yRZ0o4Ww7bTq1sVx3u";
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, token).unwrap();
    if !own_namespace() {
        return;
    }
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let folder = Folder::new("dashboard-form");
    let path = file.path().display().to_string();
    folder.write_config(&format!("{LISTENER}[dashboard]\ntoken_file = {path:?}\n"));
    let _guard = Running::start(&folder, "run --config weir.toml");
    folder.until(|status| status["running"] == true);
    browser.open(&format!("http://{DASHBOARD}/"));
    browser.until("document.activeElement.id === 'token'");
    browser.type_text("not this one at all");
    browser.press("Enter");
    browser.until("!document.getElementById('wrong').hidden");
    browser.evaluate("document.getElementById('token').focus()");
    browser.type_text(token);
    browser.press("Enter");
    browser.until(
        "!document.getElementById('figures').hidden && document.getElementById('sign-in').hidden",
    );
    browser.open_dashboard(DASHBOARD);

    browser.evaluate("sessionStorage.clear()");
    browser.open("about:blank");
    browser.open(&format!("http://{DASHBOARD}/#token={token}"));
    browser.until("!document.getElementById('figures').hidden");
    assert_eq!(browser.evaluate("location.hash"), "");
}

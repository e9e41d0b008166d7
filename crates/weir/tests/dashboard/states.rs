//! The page when weir is not there, does not let its reader in, or guards nothing.

use weir_testbed::needs::own_namespace;

use crate::browser::Browser;
use crate::common::{Folder, Running};
use crate::overload::DASHBOARD;

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

//! The page in a browser, during an overload.

use std::path::{Path, PathBuf};

use crate::browser::Browser;
use crate::overload::{Bed, DASHBOARD, Load};

/// A folder to write screenshots of the overload to: docs/dashboard.md shows them.
const SCREENSHOTS: &str = "WEIR_SCREENSHOTS";

/// What has the focus, in a word.
const FOCUS: &str = "(() => { const it = document.activeElement; return it.id || it.getAttribute('class') || it.tagName; })()";

/// Whether something that is shown is wider than the window, and what. What a closed <details> has is laid out only when it is
/// asked for, and may first have the width of the window before.
pub const TOO_WIDE: &str = "[...document.querySelectorAll('body *')].filter((one) => { \
    const box = one.getBoundingClientRect(); \
    return one.checkVisibility() && !one.closest('.sr, .skip, dialog:not([open])') && box.width > 0 \
        && (box.right > innerWidth + 0.5 || (one.classList.contains('table') && one.scrollWidth > one.clientWidth)); \
    }).map((one) => `${one.tagName} ${one.id} ${one.className?.baseVal ?? one.className} \
    in #${one.parentElement.closest('[id]')?.id}: ${one.scrollWidth} of ${one.clientWidth}, ${one.textContent.slice(0, 200)}`)";

/// Writes one, where somebody has asked for them.
pub fn screenshot(browser: &mut Browser, name: &str) {
    if let Some(folder) = std::env::var_os(SCREENSHOTS) {
        browser.screenshot(&PathBuf::from(folder).join(Path::new(name)));
    }
}

#[test]
fn an_overload_is_shown_whole_and_nothing_is_asked_of_another_host() {
    let Some(bed) = Bed::new("dashboard-page") else {
        return;
    };
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let load = Load::start();
    browser.size(1440, 1150, 1.0);
    browser.open_dashboard(DASHBOARD);
    browser.until("document.getElementById('headline').className === 'busy'");
    browser.until("document.querySelectorAll('#top-sources tbody tr').length > 0");
    browser.until("document.querySelectorAll('#held li, #decisions tbody tr').length > 0");
    for (selector, words) in [
        ("#headline", &["web turns away"][..]),
        (
            "#flow",
            &[
                "police",
                "establish",
                "queue",
                "server",
                "close",
                "timewait",
                "SYNs/s",
                "syn_reset_",
            ],
        ),
        (
            "#cards",
            &[
                "web",
                "*:8081",
                "enforce",
                "mail",
                "nothing listens",
                "refused/s",
            ],
        ),
        ("#controller", &["Keeps wait 20ms", "target 20ms"]),
        ("#class-list", &["gold", "crawlers", "other"]),
        ("#top-sources", &["127.0.0.0/24", "127.0.0.1", "syn_reset"]),
        (
            "#proxy-list",
            &["edge", "accepting", "127.0.0.1:8083", "down"],
        ),
        ("#notes", &["backend 127.0.0.1:8083 is down"]),
        ("#event-list", &["start", "overload"]),
    ] {
        for word in words {
            browser.until(&format!(
                "document.querySelector({selector:?}).innerText.includes({word:?})"
            ));
        }
    }
    // Beside other tests the server may be so slow that a longer wait than 20 ms is kept.
    for (selector, target) in [("#headline", "the target is"), ("#cards", "of")] {
        browser.until(&format!(
            "/{target} [\\d.]+ m?s/.test(document.querySelector({selector:?}).innerText)"
        ));
    }
    // Every picture and control has a name, and the pictures have a table beside them.
    let tree = browser.command("Accessibility.getFullAXTree", serde_json::json!({}));
    let nodes = tree["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|node| node["ignored"] == false);
    let needs_name = [
        "image",
        "img",
        "button",
        "combobox",
        "searchbox",
        "textbox",
        "checkbox",
        "table",
        "article",
        "region",
        "list",
    ];
    for node in nodes {
        let role = node["role"]["value"].as_str().unwrap_or("");
        let name = node["name"]["value"].as_str().unwrap_or("");
        let is_shown_list = role == "list" && node["properties"].to_string().contains("focusable");
        if needs_name.contains(&role) && (role != "list" || is_shown_list) {
            assert!(!name.is_empty(), "{role} without a name: {node:#}");
        }
    }
    let label =
        browser.evaluate("document.querySelector('#cards .chart').getAttribute('aria-label')");
    assert!(
        label.as_str().unwrap().starts_with("wait for accept(): "),
        "{label}"
    );
    if std::env::var_os(SCREENSHOTS).is_some() {
        // As long as the charts are.
        browser.evaluate("document.getElementById('span').value = '60'");
        for turns in (10..=70).step_by(10) {
            browser.until(&format!("document.body.dataset.turns > {turns}"));
        }
    }
    browser.wishes("light", "no-preference");
    screenshot(&mut browser, "dashboard-light.png");
    browser.wishes("dark", "no-preference");
    screenshot(&mut browser, "dashboard-dark.png");
    browser.size(360, 1240, 1.5);
    browser.next_report();
    screenshot(&mut browser, "dashboard-phone.png");
    drop(load);

    let origin = format!("http://{DASHBOARD}/");
    let foreign = |url: &String| !url.starts_with(&origin) && url != "about:blank";
    let asked = browser.requests();
    assert!(asked.len() > 15, "{asked:?}");
    let foreign: Vec<String> = asked.into_iter().filter(foreign).collect();
    assert!(foreign.is_empty(), "{foreign:?}");
    assert_eq!(browser.faults(), [""; 0]);
    drop(bed);
}

#[test]
fn everything_is_reached_by_keys_and_every_key_does_what_the_help_says() {
    let Some(_bed) = Bed::new("dashboard-keys") else {
        return;
    };
    let Some(mut browser) = Browser::start() else {
        return;
    };
    browser.size(1440, 1000, 1.0);
    browser.open_dashboard(DASHBOARD);
    let mut reached = Vec::new();
    for _ in 0..40 {
        browser.press("Tab");
        let focus = browser.evaluate(FOCUS).as_str().unwrap().to_owned();
        if focus == "BODY" {
            break;
        }
        reached.push(focus);
    }
    assert_eq!(
        reached[..5],
        ["skip", "filter", "freeze", "theme", "keys"],
        "{reached:?}"
    );
    for wanted in ["whose", "SUMMARY", "span", "chart", "refusals"] {
        assert!(
            reached.iter().any(|one| one == wanted),
            "{wanted}: {reached:?}"
        );
    }
    browser.evaluate("document.activeElement.blur()");

    browser.press("?");
    browser.until("document.getElementById('help').open");
    browser.press("Escape");
    browser.until("!document.getElementById('help').open");
    for (key, part) in [
        "life",
        "listeners",
        "controller",
        "sources",
        "classes",
        "proxies",
        "events",
    ]
    .iter()
    .enumerate()
    {
        browser.press(&(key + 1).to_string());
        assert_eq!(browser.evaluate(FOCUS), *part);
    }
    browser.press("/");
    assert_eq!(browser.evaluate(FOCUS), "filter");
    browser.type_text("MAIL");
    browser.until("document.querySelectorAll('#cards article').length === 1");
    browser.press("Escape");
    browser.until("document.querySelectorAll('#cards article').length === 2");

    browser.press(" ");
    assert_eq!(browser.text("#freeze"), "Frozen");
    let shown = browser.text("#cards");
    browser.next_report();
    assert_eq!(browser.text("#cards"), shown);
    browser.press(" ");
    assert_eq!(browser.text("#freeze"), "Freeze");

    browser.evaluate("document.querySelector('.chart').focus()");
    browser.press("ArrowLeft");
    browser.until("document.querySelector('.read.then') !== null");
}

#[test]
fn it_fits_a_phone_and_takes_colours_and_motion_as_the_system_wishes() {
    let Some(_bed) = Bed::new("dashboard-phone") else {
        return;
    };
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let load = Load::start();
    browser.size(360, 780, 1.0);
    browser.open_dashboard(DASHBOARD);
    browser.until("document.getElementById('headline').className === 'busy'");
    browser.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })");
    browser.evaluate("document.getElementById('refusals').click()");
    browser.until("document.querySelectorAll('#event-list .kind').length > 3");
    for width in [360, 768, 1024, 1920] {
        browser.size(width, 780, 1.0);
        browser.until(&format!("innerWidth === {width}"));
        browser.next_report();
        let too_wide = browser.evaluate(TOO_WIDE);
        assert_eq!(too_wide, serde_json::json!([]), "at {width} px");
        assert_eq!(
            browser.evaluate("document.documentElement.scrollWidth"),
            width
        );
    }
    let paper = "getComputedStyle(document.body).backgroundColor";
    let motion = "getComputedStyle(document.querySelector('.drift')).animationName";
    browser.wishes("light", "no-preference");
    let (light, moving) = (browser.evaluate(paper), browser.evaluate(motion));
    browser.wishes("dark", "reduce");
    let (dark, still) = (browser.evaluate(paper), browser.evaluate(motion));
    assert_ne!(light, dark);
    assert_eq!(moving, "drift");
    assert_eq!(still, "none");
    // The reader's wish goes before the system's.
    browser.press("t");
    assert_eq!(browser.text("#theme"), "Light");
    assert_eq!(browser.evaluate(paper), light);
    browser.press("t");
    browser.wishes("light", "no-preference");
    assert_eq!(browser.text("#theme"), "Dark");
    assert_eq!(browser.evaluate(paper), dark);
    drop(load);
}

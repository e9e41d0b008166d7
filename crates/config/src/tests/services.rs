//! Claims about what a file has once: the controller, the API, events and metrics.

use std::time::Duration;

use weir_core::controller;
use weir_core::listener::Mode;

use super::{WEB, problems};
use crate::{ApiSettings, DashboardSettings, EventsSettings, MetricsSettings, Table, parse};

#[test]
fn the_controller_and_the_api_are_read_once_or_not_at_all() {
    let none = parse("f", WEB).unwrap();
    assert!(none.controller.is_none() && none.api.is_none());
    let file = format!(
        "{WEB}[controller]\ntarget_wait = \"30ms\"\nmax_cpu = 0.9\ninterval = \"50ms\"\nsamples = 9\n\
         mode = \"observe\"\n[api]\nsocket = \"/run/a.sock\"\npermissions = \"0660\"\ngroup = \"www-data\"\n"
    );
    let config = parse("f", &file).unwrap();
    let settings = weir_core::controller::Settings {
        target_wait: Some(Duration::from_millis(30)),
        max_cpu: Some(0.9),
        interval: Duration::from_millis(50),
        samples: 9,
        mode: Mode::Observe,
    };
    assert_eq!(config.controller, Some(settings));
    let api = ApiSettings {
        socket: Some("/run/a.sock".into()),
        permissions: 0o660,
        group: Some("www-data".into()),
    };
    assert_eq!(config.api, Some(api));
    assert_eq!(
        (
            controller::Settings::keys().len(),
            ApiSettings::keys().len()
        ),
        (5, 3),
        "this test must set every key"
    );
}

#[test]
fn what_is_wrong_with_the_controller_and_the_api_is_said_where_it_stands() {
    for (tables, expected) in [
        (
            "[controller]",
            "3:1: controller: target_wait: the controller needs an objective | add target_wait = \"20ms\", or max_cpu = 0.9, or both",
        ),
        (
            "[[controller]]\nmax_cpu = 0.5",
            "3:3: controller: is a list of tables | write [controller] once",
        ),
        (
            "[controller]\nmax_cpu = 1.5",
            "4:11: controller: max_cpu: 1.5 is out of range | a number from 0.05 to 1, or \"none\"",
        ),
        (
            "[controller]\ntarget_wait = \"20ms\"\ninterval = \"1ms\"",
            "5:12: controller: interval: \"1ms\" is out of range | a duration with its unit from 20ms to 10s, for example \"100ms\"",
        ),
        (
            "[controller]\nmax_cpu = 0.5\ntarget_wat = \"20ms\"",
            "5:1: controller: unknown key \"target_wat\" | did you mean target_wait?",
        ),
        (
            "[api]\nsocket = \"api.sock\"",
            "4:10: api: socket: \"api.sock\" is not the path of a socket | write an absolute path of at most 107 bytes: \"/run/weir/api.sock\", or \"none\"",
        ),
        (
            "[api]\npermissions = 660",
            "4:15: api: permissions: is a number, not a string | four octal digits in quotes: \"0660\" lets the group ask too",
        ),
        (
            "[api]\npermissions = \"0990\"",
            "4:15: api: permissions: \"0990\" are not permissions | four octal digits in quotes: \"0660\" lets the group ask too",
        ),
    ] {
        let file = format!("{WEB}{tables}\n");
        let found = problems(&file);
        assert_eq!(
            found.last().map(String::as_str),
            Some(expected),
            "{tables}: {found:?}"
        );
    }
}

#[test]
fn a_group_that_may_not_ask_is_odd() {
    let warnings = |permissions: &str| {
        let file = format!("{WEB}[api]\ngroup = \"www-data\"\npermissions = \"{permissions}\"\n");
        parse("f", &file).unwrap().warnings.len()
    };
    assert_eq!((warnings("0600"), warnings("0660")), (1, 0));
}

#[test]
fn events_have_a_file_and_a_bound() {
    let read = |keys: &str| parse("f", &format!("{WEB}[events]\n{keys}\n"));
    let events = read("file = \"/var/log/weir/events.jsonl\"\nrefusals = 0")
        .unwrap()
        .events;
    let expected = EventsSettings {
        file: Some("/var/log/weir/events.jsonl".into()),
        refusals: 0,
    };
    assert_eq!(events, Some(expected));
    assert_eq!(
        EventsSettings::keys().len(),
        2,
        "this test must set every key"
    );
    for wrong in [
        "file = \"events.jsonl\"",
        "file = \"\"",
        "refusals = 1001",
        "refusals = -1",
    ] {
        assert!(read(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn metrics_off_loopback_are_odd_and_so_is_one_port_for_two_processes() {
    let proxy = "[[proxy]]\nlisten = \"*:3128\"\nmode = \"forward\"\n";
    let read = |file: &str| parse("f", file).unwrap();
    let warnings = |metrics: &str| read(&format!("{WEB}[metrics]\n{metrics}\n")).warnings.len();
    assert_eq!(warnings("listen = \"127.0.0.1:9464\""), 0);
    assert_eq!(warnings("listen = \"[::1]:9464\""), 0);
    assert_eq!(warnings("listen = \"*:9464\""), 1);
    assert_eq!(warnings("proxy_listen = \"10.0.0.1:9465\""), 1);
    assert!(read(WEB).metrics.is_none());

    let both = read(&format!("{WEB}{proxy}[metrics]\n"));
    assert_eq!(both.warnings.len(), 1, "{:?}", both.warnings);
    let metrics = both.metrics.unwrap();
    assert_eq!(metrics, MetricsSettings::default());
    assert_eq!(metrics.of_proxies(true), None);
    assert_eq!(metrics.of_proxies(false), Some(metrics.listen));

    let apart = read(&format!(
        "{WEB}{proxy}[metrics]\nproxy_listen = \"127.0.0.1:9465\"\n"
    ));
    assert!(apart.warnings.is_empty(), "{:?}", apart.warnings);
    let metrics = apart.metrics.unwrap();
    assert_eq!(metrics.of_proxies(true), metrics.proxy_listen);
    assert!(metrics.proxy_listen.is_some());
    assert_eq!(
        (MetricsSettings::keys().len(), problems(&format!("{WEB}[metrics]\nproxy_listen = \"127.0.0.1:9464\"\n"))),
        (2, vec!["4:16: metrics: proxy_listen: the guard listens at this address already | give the guard and the proxies a port each: proxy_listen = \"127.0.0.1:9465\"".to_owned()])
    );
}

#[test]
fn a_dashboard_that_others_can_reach_needs_a_token() {
    let read = |keys: &str| parse("f", &format!("{WEB}[dashboard]\n{keys}\n"));
    assert_eq!(parse("f", WEB).unwrap().dashboard, None, "off by default");
    assert_eq!(
        read("").unwrap().dashboard,
        Some(DashboardSettings::default())
    );
    for loopback in [
        "127.0.0.1:80",
        "127.9.9.9:80",
        "[::1]:80",
        "[::ffff:127.0.0.1]:80",
    ] {
        let config = read(&format!("listen = \"{loopback}\"")).unwrap();
        assert!(
            config.warnings.is_empty(),
            "{loopback}: {:?}",
            config.warnings
        );
    }
    let token = "token_file = \"/etc/weir/dashboard.token\"";
    for open in [
        "*:9466",
        "0.0.0.0:9466",
        "10.0.0.1:9466",
        "[2001:db8::1]:9466",
    ] {
        let listen = format!("listen = \"{open}\"");
        let problem = problems(&format!("{WEB}[dashboard]\n{listen}\n")).join("\n");
        assert!(
            problem.starts_with("4:10: dashboard: listen: ") && problem.contains("token_file = "),
            "{problem}"
        );
        let config = read(&format!("{listen}\n{token}")).unwrap();
        assert_eq!(config.warnings.len(), 1, "it is not encrypted");
        assert_eq!(
            config.dashboard.unwrap().token_file,
            Some("/etc/weir/dashboard.token".into())
        );
    }
    assert!(read("token_file = \"token\"").is_err());
    assert_eq!(
        DashboardSettings::keys().len(),
        2,
        "this test must set every key"
    );
}

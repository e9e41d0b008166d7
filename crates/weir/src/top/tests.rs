//! The screen as it is drawn, held to files in `snapshots`; `WEIR_BLESS=1 cargo test -p weir top::` writes them anew.

use std::path::Path;
use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::style::Color;
use weir_api::{
    Backend, Class, ClassStatistics, Connections, Controller, Decision, LastReload, Listener,
    ListenerStatistics, Process, Proxy, ProxyThread, Quic, QuicSocket, Statistics, Status, Times,
    TopSource, TopSources, Workload,
};

use super::data::{Data, Report};
use super::model::{Key, Model, Pane};
use super::once;
use super::rows::Sort;
use super::theme::Theme;
use super::view;
use crate::commands::explain;

/// Reports of one overload: it begins in the tenth second.
const REPORTS: u64 = 70;
const BEGINS: u64 = 10;

fn listener(name: &str, address: &str, mode: &str) -> Listener {
    let settings = [
        ("admit", "wait"),
        ("target_wait", "20ms"),
        ("establish", "reserv"),
    ];
    Listener {
        name: name.into(),
        address: address.into(),
        mode: mode.into(),
        policy: "reserv rst-syn, admit wait 20ms".into(),
        in_force: true,
        listening: true,
        queue_limit: 511,
        wait_us: Some(0),
        settings: settings
            .map(|(key, value)| (key.to_owned(), value.into()))
            .into(),
        ..Listener::default()
    }
}

fn web(second: u64) -> Listener {
    let over = second.saturating_sub(BEGINS);
    let class = |name: &str, priority, rate, counters: [(&str, u64); 2]| Class {
        name: name.into(),
        priority,
        controlled_rate: rate,
        counters: counters
            .map(|(name, count)| (name.to_owned(), count))
            .into(),
        ..Class::default()
    };
    let admitted = 400 * second.min(BEGINS) + 480 * over;
    Listener {
        queue_length: (over * 60).min(511) as u32,
        half_open: 3,
        // A wave about the target.
        wait_us: Some(match over {
            0 => 300,
            over => 18_000 + (over * 7919 % 17) * 1200,
        }),
        counters: [
            ("syn_admitted", admitted),
            ("syn_reset_wait", 1400 * over),
            ("syn_reset_held", 40 * over),
        ]
        .map(|(name, count)| (name.to_owned(), count))
        .into(),
        classes: vec![
            class(
                "gold",
                1,
                None,
                [("syn_admitted", 80 * second), ("syn_reset_wait", 0)],
            ),
            class(
                "other",
                64,
                Some(48.25),
                [
                    ("syn_admitted", 400 * over),
                    ("syn_reset_wait", 1440 * over),
                ],
            ),
        ],
        ..listener("web", "*:80", "enforce")
    }
}

fn controller() -> Controller {
    let reason = "listener \"web\": wait 508 ms over 20 ms";
    Controller {
        mode: "enforce".into(),
        target_wait: Some("20ms".into()),
        interval: "100ms".into(),
        samples: 5,
        statistics: Statistics {
            cpu: Some(0.97),
            listeners: vec![ListenerStatistics {
                name: "web".into(),
                syns: 1920.0,
                admitted: 480.0,
                accepted: 480.0,
                capacity: Some(482.0),
                ..ListenerStatistics::default()
            }],
            classes: vec![ClassStatistics {
                name: "other".into(),
                syns: 1840.0,
                controlled_rate: Some(48.25),
                reason: Some(reason.into()),
                ..ClassStatistics::default()
            }],
            ..Statistics::default()
        },
        decisions: vec![Decision {
            at_unix_ms: 1_700_000_012_340,
            class: "other".into(),
            from: Some(96.5),
            to: Some(48.25),
            reason: reason.into(),
            ..Decision::default()
        }],
        ..Controller::default()
    }
}

fn proxy(second: u64) -> Proxy {
    let counters = |counters: &[(&str, u64)]| {
        let counted = counters.iter();
        counted
            .map(|(name, count)| ((*name).to_owned(), *count))
            .collect()
    };
    let times = |name: &str, p99_us| {
        let times = Times {
            p99_us: Some(p99_us),
            ..Times::default()
        };
        [(name.to_owned(), times)].into()
    };
    let backend = |address: &str, health: &str, connects| Backend {
        address: address.into(),
        health: health.into(),
        last_check: "connection refused".into(),
        connections: Connections { in_use: 4, idle: 2 },
        counters: counters(&[("connects", connects), ("connects_failed", connects / 10)]),
        times: times("first_byte", 4_200),
        ..Backend::default()
    };
    Proxy {
        name: "edge".into(),
        pid: 31,
        address: "0.0.0.0:8080".into(),
        accepting: true,
        clients: 120,
        waiting: 7,
        counters: counters(&[("requests", 250 * second), ("replies_5xx", 2 * second)]),
        times: times("request_duration", 23_000),
        connections: Connections { in_use: 8, idle: 4 },
        backends: vec![
            backend("10.0.0.5:80", "up", 125 * second),
            backend("10.0.0.6:80", "down", 0),
        ],
        threads: vec![ProxyThread {
            state: "accepting".into(),
            ..ProxyThread::default()
        }],
        ..Proxy::default()
    }
}

fn sources() -> TopSources {
    let source = |source: &str, per_second, class: Option<&str>, verdict: &str| TopSource {
        source: source.into(),
        share: per_second / 1440.0,
        per_second,
        verdict: verdict.into(),
        listener: "web".into(),
        class: class.map(str::to_owned),
        ..TopSource::default()
    };
    let other = Some("other");
    TopSources {
        half_life_s: 60,
        refused_per_second: 1440.0,
        addresses: vec![
            source("203.0.113.7", 610.0, other, "syn_reset_wait"),
            source("2001:db8:7:1::25", 144.0, None, "syn_reset_held"),
            source("203.0.113.8", 3.5, other, "syn_reset_wait"),
        ],
        networks: vec![
            source("203.0.113.0/24", 940.0, other, "syn_reset_wait"),
            source("2001:db8:7::/56", 144.0, None, "syn_reset_held"),
        ],
        ..TopSources::default()
    }
}

fn report(second: u64) -> Report {
    let mut mail = listener("mail", "192.0.2.7:25", "observe");
    mail.counters = [("syn_admitted".to_owned(), 3 * second)].into();
    let mut api = listener("api", "[2001:db8::7]:8443", "enforce");
    (api.in_force, api.listening, api.wait_us) = (false, false, None);
    Report {
        status: Status {
            running: true,
            process: Some(Process {
                pid: 812,
                version: "0.1.0".into(),
                command: "run".into(),
                ..Process::default()
            }),
            last_reload: Some(LastReload {
                at_unix_ms: 1_700_000_000_000,
                succeeded: false,
                failure: Some("/etc/weir/weir.toml:7: unknown key `targt_wait`".into()),
            }),
            listeners: vec![web(second), mail, api],
            controller: Some(controller()),
            proxies: vec![proxy(second)],
            ..Status::default()
        },
        sources: Some(sources()),
        at: Duration::from_secs(second),
        unix_ms: 1_700_000_000_000 + 1000 * second,
    }
}

fn model() -> Model {
    let mut model = Model::new("web1".into(), "1 s".into());
    (0..REPORTS).for_each(|second| model.take(report(second)));
    model
}

fn drawn(model: &Model, width: u16, height: u16, theme: Theme) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal
        .draw(|frame| view::draw(frame, model, theme))
        .unwrap();
    terminal.backend().buffer().clone()
}

fn text_of(buffer: &Buffer) -> String {
    let area = buffer.area;
    let line = |y| {
        let cells = (0..area.width).map(|x| buffer[(x, y)].symbol());
        cells.collect::<String>().trim_end().to_owned() + "\n"
    };
    (0..area.height).map(line).collect()
}

#[track_caller]
fn is_as_in(file: &str, text: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/top/snapshots");
    let path = folder.join(file);
    if std::env::var_os("WEIR_BLESS").is_some() {
        std::fs::create_dir_all(folder).unwrap();
        std::fs::write(path, text).unwrap();
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        text,
        expected,
        "{}: WEIR_BLESS=1 writes it anew",
        path.display()
    );
}

#[track_caller]
fn looks_as_in(file: &str, model: &Model, width: u16, height: u16) {
    let buffer = drawn(model, width, height, Theme::new(true));
    is_as_in(file, &text_of(&buffer));
}

#[test]
fn an_overload_is_seen_on_80_columns_and_24_lines() {
    let mut model = model();
    for pane in Pane::ALL {
        model.pane = pane;
        looks_as_in(&format!("{}.txt", pane.title()), &model, 80, 24);
    }
}

#[test]
fn a_large_terminal_shows_more_and_a_small_one_the_most_important() {
    let mut model = model();
    model.pane = Pane::Classes;
    looks_as_in("large.txt", &model, 140, 44);
    looks_as_in("small.txt", &model, 60, 14);
    looks_as_in("too-small.txt", &model, 40, 5);
}

/// As [`model`], with a listener of five containers, the fourth of which refuses most and the fifth of which is not guarded.
fn model_with_workloads() -> Model {
    let mut model = Model::new("node7".into(), "1 s".into());
    for second in 0..REPORTS {
        model.take(with_workloads(second));
    }
    model
}

fn with_workloads(second: u64) -> Report {
    let mut report = report(second);
    let over = second.saturating_sub(BEGINS);
    let workload = |number: u64| {
        let id = format!("{number:x}").repeat(64);
        let refused = [0, 3, 0, 90, 0][number as usize - 1];
        Workload {
            name: format!("shop-web-{number}"),
            runtime: Some("docker".into()),
            container_id: Some(id),
            netns_cookie: 100 + number,
            in_force: number != 5,
            not_in_force_because: (number == 5).then(|| "interface eth0 is not guarded".into()),
            listening: true,
            queue_length: if number == 4 { 511 } else { number as u32 },
            queue_limit: 511,
            half_open: number as u32,
            wait_us: Some(if number == 4 { 31_000 } else { 400 * number }),
            counters: [
                ("syn_admitted".to_owned(), 100 * second),
                ("syn_reset_wait".to_owned(), refused * over),
            ]
            .into(),
            ..Workload::default()
        }
    };
    let mut shop = listener("shop", "*:80", "enforce");
    shop.workloads = (1..=5).map(workload).collect();
    shop.queue_length = 521;
    shop.queue_limit = 5 * 511;
    shop.wait_us = Some(31_000);
    shop.in_force = false;
    shop.not_in_force_because = Some("shop-web-5: interface eth0 is not guarded".into());
    shop.counters = [
        ("syn_admitted".to_owned(), 500 * second),
        ("syn_reset_wait".to_owned(), 93 * over),
    ]
    .into();
    report.status.listeners.insert(0, shop);
    report
}

#[test]
fn the_workloads_of_a_listener_follow_it_the_worst_first() {
    let mut model = model_with_workloads();
    model.key(Key::Down);
    looks_as_in("folded.txt", &model, 80, 24);
    model.key(Key::Enter);
    model.key(Key::Down);
    model.key(Key::Down);
    looks_as_in("workloads.txt", &model, 80, 24);
    looks_as_in("workloads-large.txt", &model, 140, 44);
    model.key(Key::Enter);
    let folded = text_of(&drawn(&model, 80, 24, Theme::new(true)));
    assert!(
        folded.contains("shop ▸5") && !folded.contains("shop-web-1"),
        "{folded}"
    );
    for c in "/web-3".chars() {
        model.key(Key::Char(c));
    }
    let found = text_of(&drawn(&model, 80, 24, Theme::new(true)));
    assert!(
        found.contains("shop ▾1/5") && found.contains("  shop-web-3 "),
        "{found}"
    );
    assert!(
        !found.contains("shop-web-4") && !found.contains("mail"),
        "{found}"
    );
}

/// As [`report`], with a QUIC listener whose server is overloaded as that of the listener of its name is.
fn with_quic(second: u64) -> Report {
    let over = second.saturating_sub(BEGINS);
    let settings = [
        ("refuse", "vn".into()),
        ("target_wait", "20ms".into()),
        ("interval", "100ms".into()),
        ("room", 0.5.into()),
        ("floor", 0.125.into()),
    ];
    let quic = Quic {
        name: "web".into(),
        address: "*:443".into(),
        mode: "enforce".into(),
        in_force: true,
        counters: [
            ("quic_admitted", 200 * second.min(BEGINS)),
            ("quic_floor", 30 * over),
            ("quic_vn_wait", 1600 * over),
            ("quic_refused_again", 20 * over),
        ]
        .map(|(name, count)| (name.to_owned(), count))
        .into(),
        sockets: vec![QuicSocket {
            pending: (over * 4).min(12) as u32,
            wait_us: Some((over * 12_000).min(35_000)),
            service_us: Some(2_900),
            buffer: 130_000,
            buffer_limit: 212_992,
            standing: over > 0,
            least: 2,
        }],
        settings: settings
            .map(|(key, value): (&str, serde_json::Value)| (key.to_owned(), value))
            .into(),
        ..Quic::default()
    };
    let off = Quic {
        name: "test".into(),
        address: "192.0.2.7:4433".into(),
        in_force: false,
        warning: Some("not on eth7".into()),
        counters: Default::default(),
        sockets: Vec::new(),
        ..quic.clone()
    };
    let mut report = report(second);
    report.status.quic = vec![off, quic];
    report
}

#[test]
fn quic_listeners_stand_beside_the_others_with_charts_and_verdicts() {
    let mut model = Model::new("web1".into(), "1 s".into());
    (0..REPORTS).for_each(|second| model.take(with_quic(second)));
    looks_as_in("quic.txt", &model, 80, 24);
    looks_as_in("quic-large.txt", &model, 140, 44);
    model.pane = Pane::Notes;
    looks_as_in("quic-notes.txt", &model, 80, 24);
    for c in "/(quic)".chars() {
        model.key(Key::Char(c));
    }
    let found = text_of(&drawn(&model, 80, 24, Theme::new(true)));
    assert!(
        found.contains("test (QUIC)") && !found.contains("mail"),
        "{found}"
    );
    // Where nothing else is guarded they are what there is to see.
    let mut alone = Model::new("web1".into(), "1 s".into());
    let mut report = with_quic(60);
    report.status.listeners.clear();
    alone.take(report);
    assert_eq!(alone.pane, Pane::Verdicts);
    let text = text_of(&drawn(&alone, 80, 24, Theme::new(true)));
    assert!(text.contains("web (QUIC)"), "{text}");
    let mut data = Data::default();
    data.take(with_quic(60));
    data.take(with_quic(61));
    let order = once::Order {
        sort: Sort::Refused,
        filter: "",
    };
    is_as_in("once-quic.txt", &once::text(&data, order));
}

#[test]
fn help_filter_and_frozen_are_seen() {
    let mut model = model();
    model.key(Key::Char('?'));
    looks_as_in("help.txt", &model, 80, 24);
    model.key(Key::Esc);
    for c in " /mai".chars() {
        model.key(Key::Char(c));
    }
    model.take(report(REPORTS));
    looks_as_in("filter.txt", &model, 80, 24);
}

#[test]
fn nothing_that_is_not_there_is_drawn() {
    let mut model = Model::new("web1".into(), "1 s".into());
    looks_as_in("no-report.txt", &model, 80, 24);
    model.take(Report {
        status: Status {
            proxies: vec![proxy(1)],
            ..Status::default()
        },
        ..Report::default()
    });
    model.fail("no weir is running in this network namespace".into());
    looks_as_in("only-proxies.txt", &model, 80, 24);
}

#[test]
fn every_size_can_be_drawn() {
    let mut model = model();
    for pane in Pane::ALL {
        model.pane = pane;
        model.scroll = 1000;
        for width in [1, 49, 50, 60, 76, 110, 131] {
            for height in [1, 11, 12, 14, 17, 24, 45] {
                drawn(&model, width, height, Theme::new(true));
            }
        }
    }
    model.key(Key::Char('?'));
    for height in [1, 12, 15, 24] {
        drawn(&model, 50, height, Theme::new(true));
    }
}

#[test]
fn without_colour_no_cell_has_one_and_what_is_wrong_is_still_marked() {
    let model = model();
    let buffer = drawn(&model, 80, 24, Theme::new(false));
    let colours = buffer.content().iter();
    let coloured = colours.filter(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset);
    assert_eq!(coloured.count(), 0);
    let of_colour = drawn(&model, 80, 24, Theme::new(true));
    assert_eq!(text_of(&buffer), text_of(&of_colour));
    assert!(of_colour.content().iter().any(|cell| cell.fg == Color::Red));
}

#[test]
fn every_column_is_explained() {
    let order = once::Order {
        sort: Sort::Refused,
        filter: "",
    };
    let text = once::text(model().data(), order);
    let heads = text.split("\n\n").skip(1);
    let heads = heads.map(|table| table.lines().next().unwrap());
    // The controller's text is no table.
    let heads = heads.filter(|head| !head.starts_with("controller:") && !head.starts_with(' '));
    let names = heads.flat_map(|head| head.split("  ")).map(str::trim);
    let names: Vec<&str> = names.filter(|name| !name.is_empty()).collect();
    assert!(names.len() > 30 && names.contains(&"mean/s"), "{names:?}");
    for name in names {
        assert!(!explain::texts(name).is_empty(), "{name}");
    }
}

#[test]
fn once_is_plain_text_with_the_rates_of_the_last_interval() {
    let mut data = Data::default();
    data.take(report(60));
    data.take(report(61));
    let order = once::Order {
        sort: Sort::Refused,
        filter: "",
    };
    let text = once::text(&data, order);
    assert!(!text.contains('\u{1b}'));
    is_as_in("once.txt", &text);
    let filtered = once::Order {
        sort: Sort::Name,
        filter: "mail",
    };
    is_as_in("once-filter.txt", &once::text(&data, filtered));
    let mut data = Data::default();
    data.take(with_workloads(60));
    data.take(with_workloads(61));
    is_as_in("once-workloads.txt", &once::text(&data, order));
}

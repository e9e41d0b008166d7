use std::collections::BTreeSet;

use weir_core::quic::QUIC_VERDICTS;
use weir_core::verdict::VERDICTS;

use super::*;
use crate::{
    Backend, CacheMemory, Connections, ProxyName, ProxyQueue, ProxyThread, QuicSocket, TimeRange,
};

const COUNTERS: ProxyCounters = ProxyCounters {
    name: &[("lookups", "look-ups of the name that are over")],
    proxy: &[("requests", "HTTP requests whose head was read")],
    proxy_times: &[("request_duration", "time of a request")],
    backend: &[
        &[("connects", "connections opened")],
        &[("checks", "health checks made")],
    ],
    backend_times: &[("connect", "time that connections took to be opened")],
    queue: &[("late", "clients that waited in vain")],
};

fn process() -> Process {
    Process {
        version: "0.1.0".into(),
        command: "run".into(),
        started_unix_ms: 1_700_000_000_500,
        log_lost: 9,
        ..Process::default()
    }
}

#[track_caller]
fn assert_lines(text: &str, lines: &[&str]) {
    for line in lines {
        assert!(text.lines().any(|own| own == *line), "{line}\n{text}");
    }
}

#[test]
fn every_verdict_and_each_rate_of_the_guard_is_a_metric() {
    let web = Listener {
        name: "web".into(),
        counters: [
            ("syn_admitted", 7),
            ("cookie_accepted", 2),
            ("syn_reset_full", 4),
            ("ack_reset_wait", 1),
            ("fin_reset", 50),
        ]
        .map(|(name, count)| (name.to_owned(), count))
        .into(),
        queue_length: 3,
        wait_us: Some(20_000),
        address: "*:80".into(),
        mode: "observe".into(),
        listening: true,
        settings: [("admit", "wait"), ("target_wait", "20ms")]
            .map(|(key, value)| (key.to_owned(), value.into()))
            .into(),
        ..Listener::default()
    };
    let other = Class {
        name: "other".into(),
        controlled_rate: Some(1200.0),
        waiting: Some(4),
        counters: [("queue_reset_full".to_owned(), 2)].into(),
        ..Class::default()
    };
    let gold = Class {
        name: "gold".into(),
        waiting: Some(1),
        settings: [("listener".to_owned(), "web".into())].into(),
        ..Class::default()
    };
    let figures = Figures {
        listeners: vec![web],
        classes: vec![gold, other],
        timewait_asked: Some(TimeWait {
            held: 3,
            ..TimeWait::default()
        }),
        process: process(),
        ..Figures::default()
    };
    let text = text(guard(), &figures);
    assert_lines(
        &text,
        &[
            "# TYPE weir_syn_admitted counter",
            "weir_syn_admitted_total{listener=\"web\"} 7",
            "weir_admitted_total{listener=\"web\"} 9",
            "weir_refused_total{listener=\"web\"} 5",
            "weir_class_admitted_total{class=\"gold\",listener=\"web\"} 0",
            "weir_class_refused_total{class=\"other\"} 2",
            "weir_queue_length{listener=\"web\"} 3.0",
            "weir_wait_seconds{listener=\"web\"} 0.02",
            "weir_class_waiting{class=\"gold\",listener=\"web\"} 1.0",
            "weir_class_waiting{class=\"other\"} 4.0",
            "weir_class_queue_reset_full_total{class=\"other\"} 2",
            "weir_class_controlled_rate{class=\"other\"} 1200.0",
            "weir_log_lost_total 9",
            "weir_asked_timewait_held 3",
            "weir_in_force{listener=\"web\"} 0.0",
            "weir_listening{listener=\"web\"} 1.0",
            "weir_listener_info{listener=\"web\",address=\"*:80\",mode=\"observe\"} 1",
            "weir_target_wait_seconds{listener=\"web\"} 0.02",
            "weir_build_info{version=\"0.1.0\",command=\"run\"} 1",
            "weir_start_time_seconds 1700000000.5",
            "weir_last_reload_successful 1.0",
            "weir_last_reload_timestamp_seconds 1700000000.5",
            "# EOF",
        ],
    );
    for row in &VERDICTS {
        let series = format!("weir_{}_total{{listener=\"web\"}}", row.name);
        assert!(text.contains(&series), "{series}\n{text}");
    }
    assert!(
        !text.contains("weir_class_rate{"),
        "a class without a limit has no rate"
    );
}

#[test]
fn every_verdict_on_quic_is_a_metric_and_the_sockets_are_summed_up() {
    let socket = |pending, wait_us, standing| QuicSocket {
        pending,
        wait_us,
        service_us: Some(3000),
        buffer: 4096,
        buffer_limit: 425_984,
        standing,
        least: 2,
    };
    let h3 = Quic {
        name: "h3".into(),
        in_force: true,
        counters: [("quic_vn_wait".to_owned(), 5)].into(),
        sockets: vec![
            socket(12, Some(35_000), true),
            socket(1, Some(2000), false),
            socket(0, None, false),
        ],
        ..Quic::default()
    };
    let idle = Quic {
        name: "idle".into(),
        offered: Some(70),
        would_refuse: Some(30),
        ..Quic::default()
    };
    let figures = Figures {
        quic: vec![h3, idle],
        process: process(),
        ..Figures::default()
    };
    let text = text(guard(), &figures);
    assert_lines(
        &text,
        &[
            "# TYPE weir_quic_vn_wait counter",
            "weir_quic_vn_wait_total{quic=\"h3\"} 5",
            "weir_quic_in_force{quic=\"h3\"} 1.0",
            "weir_quic_pending{quic=\"h3\"} 13.0",
            "weir_quic_wait_seconds{quic=\"h3\"} 0.035",
            "weir_quic_buffer_bytes{quic=\"h3\"} 12288.0",
            "weir_quic_buffer_limit_bytes{quic=\"h3\"} 1277952.0",
            "weir_quic_standing{quic=\"h3\"} 1.0",
            "weir_quic_in_force{quic=\"idle\"} 0.0",
            "weir_quic_wait_seconds{quic=\"idle\"} 0.0",
            "weir_quic_offered_total{quic=\"idle\"} 70",
            "weir_quic_would_refuse_total{quic=\"idle\"} 30",
        ],
    );
    for row in &QUIC_VERDICTS {
        let series = format!("weir_{}_total{{quic=\"h3\"}}", row.name);
        let help = format!("# HELP weir_{} {}.", row.name, row.text);
        assert!(text.contains(&series), "{series}\n{text}");
        assert!(text.contains(&help), "{help}\n{text}");
    }
}

#[test]
fn a_reload_that_failed_is_seen_with_its_time() {
    let figures = Figures {
        process: process(),
        last_reload: Some(LastReload {
            at_unix_ms: 1_700_000_009_000,
            succeeded: false,
            failure: Some("a typo".into()),
        }),
        ..Figures::default()
    };
    for (metrics, prefix) in [(guard(), "weir_"), (&proxies(COUNTERS)[..], "weir_proxy_")] {
        let text = text(metrics, &figures);
        let lines = [
            "last_reload_successful 0.0",
            "last_reload_timestamp_seconds 1700000009.0",
            "start_time_seconds 1700000000.5",
        ];
        let lines = lines.map(|line| format!("{prefix}{line}"));
        assert_lines(&text, &lines.each_ref().map(String::as_str));
    }
}

#[test]
fn only_a_listener_that_refuses_by_the_wait_has_a_target() {
    let target = |admit: &str, establish: &str| {
        let settings = [
            ("admit", admit),
            ("establish", establish),
            ("target_wait", "1s"),
        ];
        target_wait(&Listener {
            settings: settings
                .map(|(key, value)| (key.to_owned(), value.into()))
                .into(),
            ..Listener::default()
        })
    };
    assert_eq!(
        target("wait", "reserv"),
        Some(std::time::Duration::from_secs(1))
    );
    assert_eq!(target("queue", "reserv"), None);
    assert_eq!(target("wait", "default"), None);
}

#[test]
fn beside_a_controller_the_target_is_the_one_in_force() {
    let listener = Listener {
        target_in_force_us: Some(50_000),
        settings: [
            ("admit".to_owned(), "wait".into()),
            ("target_wait".to_owned(), "20ms".into()),
        ]
        .into(),
        ..Listener::default()
    };
    let target = target_wait(&listener);
    assert_eq!(target, Some(std::time::Duration::from_millis(50)));
}

/// Some of 50 µs, and one of 90 s.
fn times(short: u64) -> Times {
    let range = |up_to_us, count| TimeRange { up_to_us, count };
    Times {
        count: short + 1,
        sum_us: short * 50 + 90_000_000,
        ranges: vec![range(Some(100), short), range(Some(200), 0), range(None, 1)],
        ..Times::default()
    }
}

fn proxy() -> Proxy {
    Proxy {
        name: "edge".into(),
        times: [("request_duration".to_owned(), times(11))].into(),
        queue: vec![ProxyQueue {
            priority: 64,
            waiting: 6,
            counters: [("late".to_owned(), 8)].into(),
        }],
        counters: [("requests".to_owned(), 7)].into(),
        cache_memory: Some(CacheMemory {
            held_bytes: 5,
            limit_bytes: 10,
            objects: 2,
        }),
        backends: vec![Backend {
            address: "10.0.0.5:80".into(),
            health: "down".into(),
            connections: Connections { in_use: 4, idle: 5 },
            counters: [("connects".to_owned(), 3)].into(),
            times: [("connect".to_owned(), times(12))].into(),
            ..Backend::default()
        }],
        names: vec![ProxyName {
            name: "app.internal".into(),
            addresses: vec!["10.0.0.5".into()],
            counters: [("lookups".to_owned(), 4)].into(),
            ..ProxyName::default()
        }],
        threads: vec![ProxyThread {
            state: "accepting".into(),
            clients: 2,
            restarts: 1,
        }],
        ..Proxy::default()
    }
}

#[test]
fn every_counter_of_a_proxy_is_a_metric_with_its_text() {
    let figures = Figures {
        proxies: vec![proxy()],
        process: process(),
        ..Figures::default()
    };
    let text = text(&proxies(COUNTERS), &figures);
    assert_lines(
        &text,
        &[
            "weir_proxy_requests_total{proxy=\"edge\"} 7",
            "weir_proxy_backend_connects_total{proxy=\"edge\",backend=\"10.0.0.5:80\"} 3",
            "weir_proxy_backend_up{proxy=\"edge\",backend=\"10.0.0.5:80\"} 0",
            "weir_proxy_backend_in_use{proxy=\"edge\",backend=\"10.0.0.5:80\"} 4",
            "weir_proxy_backend_idle{proxy=\"edge\",backend=\"10.0.0.5:80\"} 5",
            "weir_proxy_backend_checks_total{proxy=\"edge\",backend=\"10.0.0.5:80\"} 0",
            "weir_proxy_name_lookups_total{proxy=\"edge\",name=\"app.internal\"} 4",
            "weir_proxy_name_resolved{proxy=\"edge\",name=\"app.internal\"} 0",
            "weir_proxy_name_addresses{proxy=\"edge\",name=\"app.internal\"} 1",
            "weir_proxy_queue_waiting{proxy=\"edge\",priority=\"64\"} 6",
            "weir_proxy_queue_late_total{proxy=\"edge\",priority=\"64\"} 8",
            "weir_proxy_clients{proxy=\"edge\",thread=\"0\"} 2",
            "weir_proxy_restarts_total{proxy=\"edge\",thread=\"0\"} 1",
            "# TYPE weir_proxy_request_duration_seconds histogram",
            "weir_proxy_request_duration_seconds_count{proxy=\"edge\"} 12",
            "weir_proxy_request_duration_seconds_sum{proxy=\"edge\"} 90.00055",
            "weir_proxy_request_duration_seconds_bucket{le=\"0.0001\",proxy=\"edge\"} 11",
            "weir_proxy_request_duration_seconds_bucket{le=\"0.0002\",proxy=\"edge\"} 11",
            "weir_proxy_request_duration_seconds_bucket{le=\"+Inf\",proxy=\"edge\"} 12",
            "weir_proxy_backend_connect_seconds_count{proxy=\"edge\",backend=\"10.0.0.5:80\"} 13",
            "weir_proxy_cache_held_bytes{proxy=\"edge\"} 5",
            "weir_proxy_cache_limit_bytes{proxy=\"edge\"} 10",
            "weir_proxy_cache_objects{proxy=\"edge\"} 2",
            "# HELP weir_proxy_requests HTTP requests whose head was read.",
            "weir_proxy_log_lost_total 9",
            "# EOF",
        ],
    );
}

#[test]
fn in_the_older_format_counters_are_described_by_the_name_of_their_series() {
    let figures = Figures {
        proxies: vec![proxy()],
        process: process(),
        ..Figures::default()
    };
    let text = classic(&text(&proxies(COUNTERS), &figures));
    assert_lines(
        &text,
        &[
            "# HELP weir_proxy_requests_total HTTP requests whose head was read.",
            "# TYPE weir_proxy_requests_total counter",
            "weir_proxy_requests_total{proxy=\"edge\"} 7",
            "# TYPE weir_proxy_idle gauge",
            "# TYPE weir_proxy_request_duration_seconds histogram",
            "weir_proxy_request_duration_seconds_count{proxy=\"edge\"} 12",
        ],
    );
    assert!(
        !text.contains("# UNIT") && !text.contains("# EOF"),
        "{text}"
    );
}

#[test]
fn no_two_metrics_have_the_same_name() {
    let proxies = proxies(COUNTERS);
    let all = || guard().iter().chain(&proxies);
    let names: BTreeSet<&str> = all().map(|metric| metric.name.as_str()).collect();
    assert_eq!(names.len(), all().count());
}

#[test]
fn a_series_belongs_to_one_metric() {
    let proxies = proxies(COUNTERS);
    let name_of = |series: &str| {
        let mut all = guard().iter().chain(&proxies);
        let found = all.find(|metric| metric.has(series));
        found.map(|metric| metric.name.clone())
    };
    for (series, name) in [
        (
            "weir_syn_admitted_total{listener=\"web\"}",
            "weir_syn_admitted",
        ),
        (
            "weir_proxy_backend_connect_seconds_bucket",
            "weir_proxy_backend_connect_seconds",
        ),
        ("weir_queue_length", "weir_queue_length"),
    ] {
        assert_eq!(name_of(series).as_deref(), Some(name), "{series}");
    }
    assert_eq!(name_of("weir_queue_length_total"), None);
    assert_eq!(name_of("requests"), None);
}

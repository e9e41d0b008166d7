//! One overload, asked in every way: the dashboard in a browser, `weir top --once`, `weir status --json`, the API and the metrics.

use std::collections::BTreeMap;

use serde_json::Value;
use weir_testbed::wait;

use crate::browser::Browser;
use crate::common::{PATIENCE, scrape};
use crate::overload::{Bed, DASHBOARD, GUARD_METRICS, Load, PROXY_METRICS};

/// Counters by `OWNER NAME`: of listeners and of classes.
type Counters = BTreeMap<String, u64>;

/// The counters of a report, and queue limits beside them: those of zero are absent.
fn of_report(status: &Value) -> Counters {
    let mut all = Counters::new();
    for listener in status["listeners"].as_array().unwrap() {
        let name = listener["name"].as_str().unwrap();
        let counters = listener["counters"].as_object().unwrap();
        for (counter, count) in counters {
            all.insert(format!("{name} {counter}"), count.as_u64().unwrap());
        }
        all.insert(
            format!("{name} queue_limit"),
            listener["queue_limit"].as_u64().unwrap(),
        );
    }
    all.retain(|_, count| *count > 0);
    all
}

/// `weir_syn_admitted_total{listener="web"} 7`, of the names that the report has.
fn of_metrics(text: &str, names: &Counters) -> Counters {
    let mut all = Counters::new();
    for line in text.lines() {
        let Some((name, rest)) = line
            .strip_prefix("weir_")
            .and_then(|line| line.split_once("{listener=\""))
        else {
            continue;
        };
        let Some((listener, value)) = rest.split_once("\"} ") else {
            continue;
        };
        let name = format!("{listener} {}", name.strip_suffix("_total").unwrap_or(name));
        let value = value.parse::<f64>().unwrap() as u64;
        if names.contains_key(&name) && value > 0 {
            all.insert(name, value);
        }
    }
    all
}

/// The counts and rates of the table of verdicts, and the places of the table of listeners.
fn of_top(text: &str) -> (Counters, BTreeMap<String, f64>) {
    let (mut counts, mut rates) = (Counters::new(), BTreeMap::new());
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            [listener, verdict, count, rate] if count.parse::<u64>().is_ok() => {
                let name = format!("{listener} {verdict}");
                counts.insert(name.clone(), count.parse().unwrap());
                rates.insert(name, rate.parse().unwrap());
            }
            [listener, address, _, queue, ..] if address.starts_with("*:") => {
                let limit = queue
                    .split_once('/')
                    .map_or(0, |(_, limit)| limit.parse().unwrap());
                counts.insert(format!("{listener} queue_limit"), limit);
            }
            _ => {}
        }
    }
    counts.retain(|_, count| *count > 0);
    (counts, rates)
}

/// The counts of the page's table of verdicts, and the queue limits of its cards.
fn of_dashboard(browser: &mut Browser) -> Counters {
    let number = |text: &str| -> u64 { text.replace('\u{202f}', "").parse().unwrap() };
    let mut counts = Counters::new();
    for row in browser.table("#verdicts") {
        let [listener, _, verdict, count, ..] = &row[..] else {
            panic!("{row:?}");
        };
        counts.insert(format!("{listener} {verdict}"), number(count));
    }
    let cards = "Object.fromEntries([...document.querySelectorAll('#cards article')].map((card) => \
        [card.dataset.key, card.querySelectorAll('.gauges small')[1].textContent]))";
    for (listener, limit) in browser.evaluate(cards).as_object().unwrap() {
        if let Some(limit) = limit.as_str().unwrap().strip_prefix("of ") {
            counts.insert(format!("{listener} queue_limit"), number(limit));
        }
    }
    counts.retain(|_, count| *count > 0);
    counts
}

fn top(bed: &Bed) -> (Counters, BTreeMap<String, f64>, String) {
    let output = bed.folder.weir("top --once --every 500ms");
    let text = String::from_utf8(output.stdout).unwrap();
    let (counts, rates) = of_top(&text);
    (counts, rates, text)
}

/// Everything has at least what was counted before it was asked, and at most what was counted after.
#[track_caller]
fn lies_between(what: &str, before: &Counters, counters: &Counters, after: &Counters) {
    for (name, most) in after {
        let count = counters.get(name).copied().unwrap_or(0);
        let least = before.get(name).copied().unwrap_or(0);
        assert!(
            (least..=*most).contains(&count),
            "{what}: {name}: {least} <= {count} <= {most}"
        );
    }
}

#[test]
fn dashboard_top_status_api_and_metrics_agree_within_one_interval_and_exactly_at_rest() {
    let Some(bed) = Bed::new("top-agree") else {
        return;
    };
    let [guard, _] = bed.sockets();
    let client = weir_client::Client::new(guard);
    let Some(mut browser) = Browser::start() else {
        return;
    };
    browser.open_dashboard(DASHBOARD);
    let load = Load::start();
    bed.folder.until(|status| {
        let counters = of_report(status);
        let refused = counters
            .iter()
            .filter(|(name, _)| name.starts_with("web syn_reset"));
        refused.map(|(_, count)| count).sum::<u64>() > 100
    });
    let before = of_report(&bed.folder.status());
    let api = of_report(&serde_json::to_value(client.status().unwrap()).unwrap());
    let metrics = scrape(GUARD_METRICS).unwrap();
    let (counts, rates, text) = top(&bed);
    // The page asks once a second: this one has asked after `before`.
    browser.next_report();
    let page = of_dashboard(&mut browser);
    let after = of_report(&bed.folder.status());
    lies_between("the API", &before, &api, &after);
    lies_between(
        "the metrics",
        &before,
        &of_metrics(&metrics, &after),
        &after,
    );
    lies_between("top", &before, &counts, &after);
    lies_between("the dashboard", &before, &page, &after);
    let refused = rates
        .iter()
        .filter(|(name, _)| name.starts_with("web syn_reset"));
    assert!(refused.map(|(_, rate)| rate).sum::<f64>() > 0.0, "{text}");
    for (name, rate) in &rates {
        // A rate is of half a second within these two reports. Half an event is rounding.
        let more = after[name] - before.get(name).copied().unwrap_or(0);
        assert!(
            rate * 0.5 <= more as f64 + 0.5,
            "{name}: {rate}/s, but {more}\n{text}"
        );
    }

    drop(load);
    // What the last clients have sent is counted by now or soon; the metrics are as old as 100 ms at most.
    let agreed = wait::try_until(PATIENCE, || {
        let status = bed.folder.status();
        let report = of_report(&status);
        let metrics = scrape(GUARD_METRICS).unwrap();
        let api = serde_json::to_value(client.status().unwrap()).unwrap();
        let (counts, rates, text) = top(&bed);
        let at_rest = of_report(&bed.folder.status()) == report;
        at_rest.then_some((status, report, metrics, api, counts, rates, text))
    });
    let (status, report, metrics, api, counts, rates, text) = agreed.expect("the load has ended");
    assert_eq!(of_report(&api), report);
    assert_eq!(counts, report, "{text}");
    assert!(rates.values().all(|rate| *rate == 0.0), "{rates:?}");
    assert_eq!(of_metrics(&metrics, &report), report);
    browser.next_report();
    assert_eq!(of_dashboard(&mut browser), report);
    let page = browser.table("#proxy-list");
    let is_down = |row: &&Vec<String>| row[0] == "127.0.0.1:8083" && row[1] == "down";
    assert!(page.iter().any(|row| is_down(&row)), "{page:?}");
    let rates: Vec<String> = browser
        .table("#verdicts")
        .into_iter()
        .map(|row| row[4].clone())
        .collect();
    assert!(rates.iter().all(|rate| rate == "0"), "{rates:?}");
    let sources = client.top_sources().unwrap();
    let named = sources.networks.iter().chain(&sources.addresses);
    let named: Vec<&str> = named.map(|source| source.source.as_str()).collect();
    assert_eq!(named[0], "127.0.0.0/24", "{sources:#?}");
    assert!(named.contains(&"127.0.0.1"), "{sources:#?}");
    for source in named {
        let is_row = |line: &str| line.split_whitespace().next() == Some(source);
        assert!(text.lines().any(is_row), "{source}\n{text}");
    }
    assert_eq!(of_metrics(&scrape(GUARD_METRICS).unwrap(), &report), report);
    // Sums, and what is no counter.
    let web = &status["listeners"][0];
    assert!(metrics.contains(&format!(
        "weir_queue_length{{listener=\"web\"}} {}.0",
        web["queue_length"]
    )));
    let started = status["process"]["started_unix_ms"].as_u64().unwrap() as f64 / 1e3;
    assert!(
        metrics.contains(&format!("weir_start_time_seconds {started:?}")),
        "{started} {metrics}"
    );
    let proxies = scrape(PROXY_METRICS).unwrap();
    let down = "weir_proxy_backend_up{proxy=\"edge\",backend=\"127.0.0.1:8083\"} 0";
    assert!(
        proxies.contains(down) && text.contains("127.0.0.1:8083"),
        "{text}"
    );
}

//! What `weir status` shows of proxies.

use std::collections::BTreeMap;

use weir_api::{Backend, CacheMemory, Connections, Proxy, ProxyName, ProxyQueue, Times};
use weir_core::units::about_size;

use crate::show::describe::{count, failed_reload, unconfirmed};
use crate::show::table::{Align, indent, table};

/// Tables for people: the proxies, and below them what each counted. `all` shows zeros too.
pub fn text(proxies: &[Proxy], all: bool) -> String {
    use Align::{Left, Right};
    let head = [
        ("proxy", Left),
        ("address", Left),
        ("mode", Left),
        ("state", Left),
        ("clients", Right),
        ("threads", Right),
        ("pid", Right),
    ];
    let row = |proxy: &Proxy| {
        vec![
            proxy.name.clone(),
            proxy.address.clone(),
            proxy.mode.clone(),
            state(proxy).to_owned(),
            proxy.clients.to_string(),
            proxy.threads.len().to_string(),
            proxy.pid.to_string(),
        ]
    };
    let mut text = table(&head, &proxies.iter().map(row).collect::<Vec<_>>());
    for proxy in proxies {
        text += &format!("\n{}\n", proxy.name);
        text += &indent(&unconfirmed(proxy.unconfirmed_s, "warning: "));
        text += &indent(&failed_reload(proxy.last_reload.as_ref(), "warning: "));
        text += &proxy
            .cache_memory
            .map_or(String::new(), |cache| cache_line(&cache));
        if let Some(times) = times_line(&proxy.times) {
            text += &format!("  {times}\n");
        }
        text += &indent(&counters(&proxy.counters, all));
        text += &indent(&queue(&proxy.queue));
        for name in &proxy.names {
            text += &name_line(name);
        }
        for backend in &proxy.backends {
            text += &backend_line(backend);
            text += &indent(&indent(&counters(&backend.counters, all)));
        }
    }
    text
}

fn state(proxy: &Proxy) -> &'static str {
    match proxy.accepting {
        true if proxy.threads.iter().any(|thread| thread.state == "full") => "full",
        true => "accepting",
        false => "draining",
    }
}

/// Clients that had to wait for a connection to a backend, by priority; empty if none had to.
fn queue(queue: &[ProxyQueue]) -> String {
    use Align::Right;
    if queue.is_empty() {
        return String::new();
    }
    let count = |of: &ProxyQueue, name: &str| of.counters.get(name).copied().unwrap_or(0);
    let row = |of: &ProxyQueue| {
        let served = count(of, "served").max(1);
        let mean_ms = count(of, "wait_ns") as f64 / 1e6 / served as f64;
        vec![
            of.priority.to_string(),
            of.waiting.to_string(),
            count(of, "waited").to_string(),
            count(of, "served").to_string(),
            format!("{mean_ms:.1}"),
            count(of, "refused").to_string(),
            count(of, "late").to_string(),
            count(of, "gone").to_string(),
        ]
    };
    let head = [
        ("priority", Right),
        ("waiting", Right),
        ("waited", Right),
        ("served", Right),
        ("mean wait ms", Right),
        ("refused", Right),
        ("late", Right),
        ("gone", Right),
    ];
    table(&head, &queue.iter().map(row).collect::<Vec<_>>())
}

fn counters(counters: &BTreeMap<String, u64>, all: bool) -> String {
    let rows = counters.iter().filter(|(_, n)| all || **n > 0);
    let rows: Vec<Vec<String>> = rows
        .map(|(name, n)| vec![name.clone(), n.to_string()])
        .collect();
    if rows.is_empty() {
        return "nothing yet\n".to_owned();
    }
    table(&[("counter", Align::Left), ("count", Align::Right)], &rows)
}

/// `cache: 12.0 MiB of 256.0 MiB, 331 objects`
fn cache_line(memory: &CacheMemory) -> String {
    format!(
        "  cache: {} of {}, {}\n",
        about_size(memory.held_bytes),
        about_size(memory.limit_bytes),
        count(memory.objects as usize, "object")
    )
}

/// `app.internal: 2 addresses`, and whether it still has them.
fn name_line(name: &ProxyName) -> String {
    let addresses = match name.addresses.len() {
        1 => "1 address".to_owned(),
        count => format!("{count} addresses"),
    };
    let mut line = format!("  name {}: {addresses}", name.name);
    if !name.resolved {
        let since = name.failing_seconds;
        let since = since.map_or(String::new(), |seconds| format!(" for {seconds} s"));
        let kept = match name.addresses.is_empty() {
            true => "",
            false => ", which it keeps",
        };
        line += &format!("{kept}; not resolved{since} ({})", name.lookup_error);
    }
    line + "\n"
}

/// `up; 3 in use, 1 idle`, why it is down, and how long it takes.
fn backend_line(backend: &Backend) -> String {
    let Connections { in_use, idle } = backend.connections;
    let mut line = format!("  backend {}", backend.address);
    if let Some(name) = &backend.resolved_from {
        line += &format!(" ({name})");
    }
    line += ": ";
    if backend.weight > 1 {
        line += &format!("weight {}; ", backend.weight);
    }
    match backend.health.as_str() {
        "unchecked" => {}
        "down" => line += &format!("down ({}); ", backend.last_check),
        health => line += &format!("{health}; "),
    }
    let times = times_line(&backend.times);
    let times = times.map_or(String::new(), |times| format!("; {times}"));
    line + &format!("{in_use} in use, {idle} idle{times}\n")
}

/// `connect p50 0.2 ms, p99 1.8 ms; …` of what has happened; `None` if nothing has.
fn times_line(times: &BTreeMap<String, Times>) -> Option<String> {
    let part = |(name, times): (&String, &Times)| {
        let (p50, p99) = (millis(times.p50_us?), millis(times.p99_us?));
        Some(format!("{name} p50 {p50} ms, p99 {p99} ms"))
    };
    let parts: Vec<String> = times.iter().filter_map(part).collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// Two digits: the ranges tell no more.
fn millis(time_us: u64) -> String {
    let ms = time_us as f64 / 1000.0;
    match ms {
        ..1.0 => format!("{ms:.2}"),
        ..10.0 => format!("{ms:.1}"),
        _ => format!("{ms:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_the_median_and_the_99th_percentile_of_what_has_happened() {
        let happened = Times {
            count: 100,
            p50_us: Some(150),
            p99_us: Some(200),
            ..Times::default()
        };
        let times = [
            ("connect".to_owned(), Times::default()),
            ("first_byte".to_owned(), happened),
        ];
        let text = times_line(&times.into()).unwrap();
        assert_eq!(text, "first_byte p50 0.15 ms, p99 0.20 ms");
        assert_eq!(times_line(&BTreeMap::new()), None);
    }
}

//! A QUIC listener as every report has it.

use std::time::Duration;

use weir_core::quic::{QuicCounters, QuicListener, QuicSocket};
use weir_core::word::Word;

use crate::show::settings::settings;

/// Fields of a report that are config keys.
const FIELDS: [&str; 3] = ["name", "address", "mode"];

/// The report of a QUIC listener. `warning` says why it is not in force, or not as it was asked for.
pub fn report(
    listener: &QuicListener,
    counters: &QuicCounters,
    sockets: &[QuicSocket],
    in_force: bool,
    warning: Option<String>,
) -> weir_api::Quic {
    let mut settings = settings(listener);
    settings.retain(|key, _| !FIELDS.contains(&key.as_str()));
    let counters = counters.rows();
    weir_api::Quic {
        name: listener.name.clone(),
        address: listener.address.to_string(),
        mode: listener.mode.word().to_owned(),
        in_force,
        warning,
        counters: counters.map(|(row, n)| (row.name.to_owned(), n)).collect(),
        sockets: sockets.iter().map(socket).collect(),
        settings: settings.into_iter().collect(),
        ..weir_api::Quic::default()
    }
}

fn socket(socket: &QuicSocket) -> weir_api::QuicSocket {
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    weir_api::QuicSocket {
        pending: socket.pending,
        wait_us: socket.wait.map(micros),
        service_us: socket.service.map(micros),
        buffer: socket.buffer,
        buffer_limit: socket.buffer_limit,
        standing: socket.standing,
        least: socket.least,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use weir_core::quic::QuicVerdict;

    use super::*;

    #[test]
    fn a_report_has_the_verdicts_the_sockets_and_the_settings_once() {
        let address = weir_config::parse_listen_address("*:443").unwrap();
        let mut counters = QuicCounters::default();
        counters.0[QuicVerdict::QuicVnWait as usize] = 3;
        let socket = QuicSocket {
            pending: 12,
            wait: Some(Duration::from_micros(35_000)),
            service: None,
            buffer: 4096,
            buffer_limit: 212_992,
            standing: true,
            least: 2,
        };
        let listener = QuicListener::new("h3", address);
        let report = report(&listener, &counters, &[socket], true, None);
        assert_eq!(report.counters["quic_vn_wait"], 3);
        let counters = report.counters.len();
        assert_eq!(counters, weir_core::quic::QUIC_VERDICTS.len());
        let mut json = serde_json::to_value(&report).unwrap();
        json.as_object_mut().unwrap().remove("counters");
        let expected = json!({
            "name": "h3",
            "address": "*:443",
            "mode": "enforce",
            "in_force": true,
            "offered": null,
            "would_refuse": null,
            "sockets": [{
                "pending": 12,
                "wait_us": 35_000,
                "service_us": null,
                "buffer": 4096,
                "buffer_limit": 212_992,
                "standing": true,
                "least": 2,
            }],
            "where": "here",
            "interfaces": [],
            "refuse": "vn",
            "target_wait": "20ms",
            "interval": "100ms",
            "room": 0.5,
            "floor": 0.125,
        });
        assert_eq!(json, expected);
    }
}

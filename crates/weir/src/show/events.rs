//! An event as a line, as the log writes it.

use weir_api::Event;

/// `2026-11-24T16:20:04.123Z  WARN web: overload begins: …`
pub fn line(event: &Event) -> String {
    let severity = event.severity.to_uppercase();
    let text = event.text.replace('\n', " ");
    format!("{} {severity:>5} {text}\n", event.time)
}

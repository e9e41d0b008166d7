//! QUIC listeners as people read them.

use std::time::Duration;

use weir_api::{Quic, QuicSocket};
use weir_core::forecast::Would;
use weir_core::quic::{DEFAULT_FLOOR, DEFAULT_INTERVAL, QuicCounters, QuicVerdict};
use weir_core::units::{about_duration, count, format_duration, parse_duration};

use crate::show::describe;
use crate::show::table::{Align, table};

/// A table of all QUIC listeners, with a row for each socket where one has several; empty if there is none.
pub fn quic_table(all: &[Quic]) -> String {
    use Align::{Left, Right};
    let head = [
        ("quic", Left),
        ("address", Left),
        ("mode", Left),
        ("pending", Right),
        ("buffer", Right),
        ("wait", Right),
    ];
    let mut rows = Vec::new();
    for quic in all {
        rows.push(row(quic));
        if quic.sockets.len() > 1 {
            rows.extend(quic.sockets.iter().map(socket_row));
        }
    }
    match rows.is_empty() {
        true => String::new(),
        false => table(&head, &rows),
    }
}

/// What needs a sentence, below the table.
pub fn quic_lines(quic: &Quic) -> Vec<String> {
    let mut lines = vec![format!("policy: {}", policy(quic))];
    match (quic.in_force, &quic.warning) {
        (true, None) => {}
        (true, Some(warning)) => lines.push(format!("warning: {warning}")),
        (false, because) => lines.push(format!(
            "not in force: {}",
            because
                .as_deref()
                .unwrap_or("weir is attached to none of its interfaces")
        )),
    }
    lines.extend(unanswered(quic));
    lines.extend(refuses_by_wait(quic));
    lines.extend(refuses_by_room(quic));
    lines.push(totals(quic));
    lines.extend(observed_verdicts(quic).map(str::to_owned));
    lines
}

fn row(quic: &Quic) -> Vec<String> {
    let mode = match quic.in_force {
        true => quic.mode.as_str(),
        false => "not in force",
    };
    let what = [quic.name.as_str(), &quic.address, mode].map(str::to_owned);
    let figures = match quic.sockets.is_empty() {
        true => ["-", "-", "-"].map(str::to_owned),
        false => figures(pending(quic), fullest(quic), longest_wait(quic)),
    };
    what.into_iter().chain(figures).collect()
}

fn socket_row(socket: &QuicSocket) -> Vec<String> {
    let wait = socket.wait_us.map(Duration::from_micros);
    let what = ["  socket", "", ""].map(str::to_owned);
    let figures = figures(socket.pending.into(), fullness(socket), wait);
    what.into_iter().chain(figures).collect()
}

fn figures(pending: u64, fullness: f64, wait: Option<Duration>) -> [String; 3] {
    let wait = match wait {
        Some(wait) => about_duration(wait),
        None if pending > 0 => "?".to_owned(),
        None => "-".to_owned(),
    };
    [pending.to_string(), describe::percent(fullness), wait]
}

/// Attempts that are not answered, over all sockets.
pub fn pending(quic: &Quic) -> u64 {
    quic.sockets
        .iter()
        .map(|socket| u64::from(socket.pending))
        .sum()
}

/// The longest wait of its sockets; `None` while not known.
pub fn longest_wait(quic: &Quic) -> Option<Duration> {
    let waits = quic.sockets.iter().filter_map(|socket| socket.wait_us);
    waits.max().map(Duration::from_micros)
}

/// The largest share of a receive buffer of its sockets that was taken.
pub fn fullest(quic: &Quic) -> f64 {
    quic.sockets.iter().map(fullness).fold(0.0, f64::max)
}

/// The share of its receive buffer that was taken.
fn fullness(socket: &QuicSocket) -> f64 {
    f64::from(socket.buffer) / f64::from(socket.buffer_limit.max(1))
}

/// `vn, wait 20ms, room 0.5`, and whatever else is not the default.
pub fn policy(quic: &Quic) -> String {
    let word = |key: &str| text(quic, key).unwrap_or("?");
    let number = |key: &str| quic.settings.get(key).and_then(serde_json::Value::as_f64);
    let mut words = format!("{}, wait {}", word("refuse"), word("target_wait"));
    if let Some(room) = number("room") {
        words += &format!(", room {room}");
    }
    if time(quic, "interval").is_some_and(|interval| interval != DEFAULT_INTERVAL) {
        words += &format!(", interval {}", word("interval"));
    }
    if let Some(floor) = number("floor").filter(|floor| *floor != DEFAULT_FLOOR) {
        words += &format!(", floor {floor}");
    }
    words
}

fn text<'a>(quic: &'a Quic, key: &str) -> Option<&'a str> {
    quic.settings.get(key)?.as_str()
}

fn time(quic: &Quic, key: &str) -> Option<Duration> {
    parse_duration(text(quic, key)?).ok()
}

/// Who waits for the server's first answer, and how long who comes now would.
fn unanswered(quic: &Quic) -> Option<String> {
    let pending = pending(quic);
    let are = match pending {
        0 => return None,
        1 => "is",
        _ => "are",
    };
    let some = count(pending as usize, "attempt");
    let next = match (longest_wait(quic), quic.sockets.len()) {
        (None, _) => "weir has not seen yet how fast the server answers".to_owned(),
        (Some(wait), 1) => format!("the next waits about {}", about_duration(wait)),
        (Some(wait), _) => format!(
            "the next waits about {}, at the socket with the longest wait",
            about_duration(wait)
        ),
    };
    Some(format!("{some} {are} not answered; {next}"))
}

/// Why it refuses now, if it does by the wait.
fn refuses_by_wait(quic: &Quic) -> Option<String> {
    let (target, interval) = (time(quic, "target_wait")?, time(quic, "interval")?);
    let is_over = |socket: &&QuicSocket| {
        let wait = socket.wait_us.map(Duration::from_micros);
        let has_enough = socket.pending >= socket.least;
        socket.standing && has_enough && wait.is_none_or(|wait| wait >= target)
    };
    let refusing = quic.sockets.iter().filter(is_over).count();
    if refusing == 0 || !quic.in_force {
        return None;
    }
    let floor = quic.settings.get("floor").and_then(|floor| floor.as_f64());
    let floor = match floor.filter(|floor| *floor > 0.0) {
        Some(floor) => {
            format!("; {floor} of what the server can answer is let in all the same (floor)")
        }
        None => String::new(),
    };
    Some(format!(
        "{} new attempts{}: the wait has stood over target_wait ({}) for interval ({}) or longer{floor}",
        verb(quic, "refuses"),
        at_sockets(quic, refusing),
        format_duration(target),
        format_duration(interval),
    ))
}

/// Why it refused the last attempt, if it did by the buffer. How full that is now nobody has looked.
fn refuses_by_room(quic: &Quic) -> Option<String> {
    let room = quic.settings.get("room")?.as_f64()?;
    let fullest = quic.sockets.iter().map(fullness);
    let over: Vec<f64> = fullest.filter(|full| *full > room).collect();
    if room == 0.0 || over.is_empty() || !quic.in_force {
        return None;
    }
    Some(format!(
        "{} the last attempt{}: {} of the receive buffer was taken, and room is {}",
        verb(quic, "refused"),
        at_sockets(quic, over.len()),
        describe::percent(over.iter().copied().fold(0.0, f64::max)),
        describe::percent(room),
    ))
}

/// `refuses`, or what observing says instead.
fn verb(quic: &Quic, does: &'static str) -> &'static str {
    match (quic.mode.as_str(), does) {
        ("observe", "refuses") => "would refuse",
        ("observe", _) => "would have refused",
        _ => does,
    }
}

fn at_sockets(quic: &Quic, some: usize) -> String {
    match quic.sockets.len() {
        1 => String::new(),
        all => format!(" at {some} of {all} sockets"),
    }
}

/// `admitted 70 (answered 68), refused 30 (30 %)`; in observe mode what would have been done. Those that found no server are
/// said apart.
pub fn totals(quic: &Quic) -> String {
    let counters = counters_of(quic);
    if counters.let_in() + counters.refused() == 0 {
        return "no verdict yet".to_owned();
    }
    let answered = counters.get(QuicVerdict::QuicAnswered);
    let unheard = counters.get(QuicVerdict::QuicUnheard);
    let (let_in, refused) = match would(quic) {
        Some(would) => (would.offered.saturating_sub(would.refused), would.refused),
        None => (counters.let_in(), counters.refused()),
    };
    let admitted = let_in.saturating_sub(unheard);
    let percent = describe::percent(refused as f64 / (admitted + refused).max(1) as f64);
    let mut text = match verb(quic, "refused") {
        "refused" => {
            format!("admitted {admitted} (answered {answered}), refused {refused} ({percent})")
        }
        would => {
            format!("admitted {admitted}, {would} {refused} ({percent}); {answered} were answered")
        }
    };
    if unheard > 0 {
        text += &format!("; {unheard} found no server at the port");
    }
    text
}

fn would(quic: &Quic) -> Option<Would> {
    let (offered, refused) = quic.offered.zip(quic.would_refuse)?;
    Some(Would { offered, refused })
}

/// Why the verdicts of observe mode say more than what enforcing would have refused; `None` where they do not.
pub fn observed_verdicts(quic: &Quic) -> Option<&'static str> {
    let would = would(quic)?;
    (counters_of(quic).refused() > would.refused).then_some(
        "the verdicts are more: each judges an attempt by the wait as it is, which enforcing would have kept short",
    )
}

fn counters_of(quic: &Quic) -> QuicCounters {
    let mut counters = QuicCounters::default();
    for (index, row) in weir_core::quic::QUIC_VERDICTS.iter().enumerate() {
        counters.0[index] = quic.counters.get(row.name).copied().unwrap_or(0);
    }
    counters
}

#[cfg(test)]
mod tests {
    use weir_core::quic::{QuicListener, QuicSocket};

    use super::*;
    use crate::show::quic::report;

    fn socket(pending: u32, wait_ms: Option<u64>, buffer: u32, standing: bool) -> QuicSocket {
        QuicSocket {
            pending,
            wait: wait_ms.map(Duration::from_millis),
            service: None,
            buffer,
            buffer_limit: 1000,
            standing,
            least: 2,
        }
    }

    fn quic(keys: &str, sockets: &[QuicSocket]) -> Quic {
        let file = format!("[[quic]]\nname = \"h3\"\naddress = \"*:443\"\n{keys}\n");
        let listener: QuicListener = weir_config::parse("f", &file).unwrap().quic.remove(0);
        let mut counters = QuicCounters::default();
        counters.0[QuicVerdict::QuicAdmitted as usize] = 60;
        counters.0[QuicVerdict::QuicFloor as usize] = 10;
        counters.0[QuicVerdict::QuicAnswered as usize] = 68;
        counters.0[QuicVerdict::QuicVnWait as usize] = 30;
        counters.0[QuicVerdict::QuicRefusedAgain as usize] = 7;
        counters.0[QuicVerdict::QuicUnheard as usize] = 3;
        report(&listener, &counters, sockets, true, None)
    }

    #[test]
    fn an_overloaded_server_is_said_to_be_refused_for_and_why() {
        let quic = quic("", &[socket(12, Some(35), 612, true)]);
        let expected = "\
quic  address  mode     pending  buffer   wait
h3    *:443    enforce       12    61 %  35 ms
";
        assert_eq!(quic_table(std::slice::from_ref(&quic)), expected);
        let expected = [
            "policy: vn, wait 20ms, room 0.5",
            "12 attempts are not answered; the next waits about 35 ms",
            "refuses new attempts: the wait has stood over target_wait (20ms) for interval (100ms) or longer; 0.125 of what the server can \
             answer is let in all the same (floor)",
            "refused the last attempt: 61 % of the receive buffer was taken, and room is 50 %",
            "admitted 70 (answered 68), refused 30 (30 %); 3 found no server at the port",
        ];
        assert_eq!(quic_lines(&quic), expected);
        assert_eq!(quic_table(&[]), "");
    }

    #[test]
    fn observing_says_what_would_be_and_several_sockets_have_a_row_each() {
        let keys = "mode = \"observe\"\nfloor = 0\nroom = 0.25\ninterval = \"1s\"";
        let sockets = [
            socket(9, Some(90), 300, true),
            socket(3, None, 0, false),
            // It has stood, and the wait is under the target at the moment.
            socket(1, Some(5), 100, true),
        ];
        let quic = Quic {
            offered: Some(100),
            would_refuse: Some(12),
            ..quic(keys, &sockets)
        };
        let expected = "\
quic      address  mode     pending  buffer    wait
h3        *:443    observe       13    30 %   90 ms
  socket                          9    30 %   90 ms
  socket                          3     0 %       ?
  socket                          1    10 %  5.0 ms
";
        assert_eq!(quic_table(std::slice::from_ref(&quic)), expected);
        let expected = [
            "policy: vn, wait 20ms, room 0.25, interval 1s, floor 0",
            "13 attempts are not answered; the next waits about 90 ms, at the socket with the longest wait",
            "would refuse new attempts at 1 of 3 sockets: the wait has stood over target_wait (20ms) for interval (1s) or longer",
            "would have refused the last attempt at 1 of 3 sockets: 30 % of the receive buffer was taken, and room is 25 %",
            "admitted 85, would have refused 12 (12 %); 68 were answered; 3 found no server at the port",
            "the verdicts are more: each judges an attempt by the wait as it is, which enforcing would have kept short",
        ];
        assert_eq!(quic_lines(&quic), expected);
    }

    #[test]
    fn a_quiet_server_needs_no_sentence_and_one_that_is_not_guarded_says_why() {
        let one = quic("", &[socket(0, Some(3), 0, true)]);
        assert_eq!(quic_lines(&one).len(), 2, "{:?}", quic_lines(&one));
        let one = quic("", &[socket(1, None, 0, false)]);
        let expected =
            "1 attempt is not answered; weir has not seen yet how fast the server answers";
        assert_eq!(quic_lines(&one)[1], expected);
        let mut off = quic("", &[]);
        off.in_force = false;
        assert!(
            quic_table(std::slice::from_ref(&off)).contains("not in force        -       -     -")
        );
        assert!(quic_lines(&off)[1].starts_with("not in force: weir is attached to none"));
        off.warning = Some("the kernel is too old".into());
        assert_eq!(quic_lines(&off)[1], "not in force: the kernel is too old");
        (off.in_force, off.counters) = (true, Default::default());
        let expected = [
            "policy: vn, wait 20ms, room 0.5",
            "warning: the kernel is too old",
            "no verdict yet",
        ];
        assert_eq!(quic_lines(&off), expected);
    }
}

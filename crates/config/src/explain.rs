//! `weir explain`: what a counter counts and what to do about it, what a config key sets, what a
//! column of `weir status` shows.

mod columns;

use std::fmt::Write as _;

use crate::schema::{KeyDoc, tables};
use crate::suggest::did_you_mean;
use columns::COLUMNS;
pub use columns::Column;
use weir_core::verdict::{Kind, VERDICTS, Verdict, VerdictInfo};

/// What a name stands for that `weir explain` knows.
pub enum Topic {
    /// A verdict and its counter.
    Verdict(&'static VerdictInfo),
    /// A key or a column of `weir status`: a text for each kind of tables that has the key, then the column's.
    Texts(Vec<String>),
    /// A part of weir.
    Subject(&'static Subject),
}

/// A part of weir that has more to say than a key.
pub struct Subject {
    /// Its name.
    pub name: &'static str,
    /// What it is, in one line.
    pub text: &'static str,
    /// How it works.
    note: &'static str,
}

/// What is explained as a whole; the command adds what the running weir has to say.
const SUBJECTS: [Subject; 1] = [Subject {
    name: "controller",
    text: "Keeps the wait for accept(), or the CPU, at an objective: holds classes to rates, the lowest priority first",
    note: "A queue that stands over target_wait for three intervals, or two if it runs away, makes a budget: what the server accepts, corrected \
        by a bounded PID on the queue. Each class gets its min_rate, the rest goes by priority; what is held is held \
        at its controlled_rate. When clients ask for less than the budget, the limits go. docs/controller.md has it \
        all.",
}];

/// A name that stands for nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is no counter, no config key and no column of weir status")]
pub struct Unknown {
    /// As it was given.
    pub name: String,
    /// What was probably meant.
    pub did_you_mean: Option<&'static str>,
}

/// Finds a counter, a config key or a column by its name.
///
/// # Errors
/// None of them, with the name that was probably meant.
pub fn topic(name: &str) -> Result<Topic, Unknown> {
    let name = &name.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
    let name = &name.to_ascii_lowercase();
    if let Some(verdict) = Verdict::by_name(name) {
        return Ok(Topic::Verdict(verdict.info()));
    }
    let column = COLUMNS.iter().find(|column| column.name == name);
    if let Some(subject) = SUBJECTS.iter().find(|subject| subject.name == name) {
        return Ok(Topic::Subject(subject));
    }
    let mut texts = key_texts(name);
    texts.extend(column.map(column_text));
    if texts.is_empty() {
        let names: Vec<_> = list().into_iter().map(|(name, ..)| name).collect();
        return Err(Unknown {
            name: name.to_owned(),
            did_you_mean: did_you_mean(name, &names),
        });
    }
    Ok(Topic::Texts(texts))
}

impl Topic {
    /// The whole explanation, several lines.
    pub fn text(&self) -> String {
        match self {
            Topic::Verdict(row) => verdict_text(row),
            Topic::Texts(texts) => texts.join("\n"),
            Topic::Subject(Subject { name, text, note }) => {
                format!("{name}\n  {text}\n\n  {note}\n")
            }
        }
    }
}

/// The text of each kind of table that has a key of this name.
fn key_texts(name: &str) -> Vec<String> {
    let keys = tables().flat_map(|table| &table.keys);
    keys.filter(|key| key.name == name).map(key_text).collect()
}

fn verdict_text(row: &VerdictInfo) -> String {
    let mut text = format!("{} ({})\n  {}\n", row.name, kind_word(row.kind), row.text);
    let _ = writeln!(text, "  {}", kind_text(row.kind));
    if let Some(advice) = advice(row.name) {
        let _ = writeln!(text, "\n  {advice}");
    }
    text
}

fn key_text(key: &KeyDoc) -> String {
    let mut text = format!("{} (key of {})\n  {}\n", key.name, key.head, key.text);
    if key.words.is_empty() {
        let unit = match key.unit {
            "" => String::new(),
            unit => format!(" ({unit})"),
        };
        let _ = writeln!(text, "  values: {}{unit}", key.values);
    }
    let width = key.words.iter().map(|(word, _)| word.len()).max();
    let width = width.unwrap_or(0);
    for (word, meaning) in &key.words {
        let _ = writeln!(text, "    {word:<width$}  {meaning}");
    }
    let _ = match key.is_required {
        true => writeln!(text, "  required"),
        false => writeln!(text, "  default: {}", key.default),
    };
    if !key.note.is_empty() {
        let _ = writeln!(text, "\n  {}", key.note);
    }
    text
}

fn column_text(column: &Column) -> String {
    let Column { name, text, note } = column;
    let note = match note.is_empty() {
        true => String::new(),
        false => format!("\n  {note}\n"),
    };
    format!("{name} (column of weir status)\n  {text}\n{note}")
}

/// The word of a kind in lists.
pub fn kind_word(kind: Kind) -> &'static str {
    match kind {
        Kind::Pass => "pass",
        Kind::Refuse => "refuse",
        Kind::Answer => "answer",
        Kind::Note => "note",
    }
}

fn kind_text(kind: Kind) -> &'static str {
    match kind {
        Kind::Pass => "The packet goes on to the server's stack.",
        Kind::Refuse => {
            "The connection is turned away. In observe mode it is only counted, and passes."
        }
        Kind::Answer => {
            "weir itself continues the handshake. In observe mode it is only counted, and passes."
        }
        Kind::Note => "Counted beside another verdict; not a verdict of its own.",
    }
}

/// What the count means for the operator, and what to do about it.
fn advice(name: &str) -> Option<&'static str> {
    ADVICE
        .iter()
        .find(|(verdict, _)| *verdict == name)
        .map(|(_, text)| *text)
}

/// One row per verdict; the test `every_verdict_has_advice` holds it complete.
const ADVICE: [(&str, &str); 24] = [
    (
        "syn_admitted",
        "The good case: with reserv, a place is kept for this connection until it is accepted.",
    ),
    (
        "syn_repeated",
        "Many of these: SYN/ACKs are lost on their way, or clients are slow to answer them.",
    ),
    (
        "syn_unheard",
        "The server is down, or listens on another address: `ss -ltn` shows the listening sockets.",
    ),
    (
        "syn_left",
        "The client waits 1 s, 3 s, 7 s. reject_syn = rst tells it at once; reserv keeps the queue exact.",
    ),
    (
        "syn_dropped_full",
        "The server is slower than its clients. A larger backlog helps against bursts only; reject_syn = rst spares clients the wait.",
    ),
    (
        "syn_reset_full",
        "The server is slower than its clients, or its backlog is too small for bursts: `weir doctor` names small backlogs.",
    ),
    (
        "syn_dropped_wait",
        "Overload, not a burst: the wait stood over target_wait for a whole interval. A larger target_wait admits more and serves them later.",
    ),
    (
        "syn_reset_wait",
        "Overload, not a burst: the wait stood over target_wait for a whole interval. A larger target_wait admits more and serves them later.",
    ),
    (
        "cookie_sent",
        "Compare with cookie_accepted: the rest gave up, were spoofed, or were refused at their final ACK.",
    ),
    (
        "cookie_sent_flood",
        "Clients that never finish their handshake, as in a SYN flood. weir goes back to reservations by itself when they are gone.",
    ),
    (
        "cookie_accepted",
        "The server sees these as ordinary connections, with window scale and SACK as negotiated.",
    ),
    (
        "cookie_invalid",
        "Stray or forged ACKs, or ACKs to cookies that have expired. The kernel answers with its RST.",
    ),
    (
        "cookie_failed",
        "The kernel did not take the connection, mostly because the listen queue filled at that moment. Rare counts are harmless.",
    ),
    (
        "ack_reset_full",
        "The client believed in the connection for one round trip and then saw ECONNRESET; reserv refuses earlier, at the SYN.",
    ),
    (
        "ack_reset_wait",
        "The client believed in the connection for one round trip and then saw ECONNRESET; reserv refuses earlier, at the SYN.",
    ),
    (
        "fin_reset",
        "Clients that half-close and read on lose their answer: see `weir explain half_close`.",
    ),
    (
        "fallback_mptcp",
        "Go's net.Listen uses MPTCP by default; GODEBUG=multipathtcp=0 or SetMultipathTCP(false) allows cookies.",
    ),
    (
        "refused_at_xdp",
        "The earlier a refusal happens, the less it costs the server: these never reached its core's receive queue.",
    ),
    (
        "syn_left_flood",
        "As cookie_sent_flood, but by the kernel: its cookies keep SACK and window scale only with timestamps. Needs tcp_syncookies = 1.",
    ),
    (
        "syn_unjudged",
        "weir remembers the queues of 512 listening sockets in all, by a hash: with a few hundred some find no slot. Fewer SO_REUSEPORT sockets, or guard fewer ports.",
    ),
    (
        "syn_dropped_rate",
        "More connections of a class came than its rate allows; `weir status` shows which class. The client waits 1 s, 3 s, 7 s; over_rate = rst tells it at once.",
    ),
    (
        "syn_reset_rate",
        "More connections of a class came than its rate allows; `weir status` shows which class. A larger burst lets more of them come at once.",
    ),
    (
        "queue_reset_full",
        "It was the youngest of the lowest priority when one of higher priority came to a full queue. It counts as admitted too: weir itself counts it here, the guard let its SYN in. A longer backlog, or a rate for the higher classes, leaves the lower ones their places.",
    ),
    (
        "queue_reset_limit",
        "It was the youngest of its class when one more than `queue_limit` waited; it counts as admitted too. `weir status` shows how many of each class wait.",
    ),
];

/// All names with their one-line texts: counters first, then keys, then columns.
pub fn list() -> Vec<(&'static str, &'static str, &'static str)> {
    let verdicts = VERDICTS
        .iter()
        .map(|row| (row.name, kind_word(row.kind), row.text));
    let columns = COLUMNS
        .iter()
        .map(|column| (column.name, "column", column.text));
    let keys = tables().flat_map(|table| {
        let keys = table.keys.iter();
        keys.map(|key| (key.name, table.name, key.text))
    });
    let subjects = SUBJECTS
        .iter()
        .map(|subject| (subject.name, "subject", subject.text));
    verdicts
        .chain(keys)
        .chain(columns)
        .chain(subjects)
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_verdict_has_advice() {
        for row in &VERDICTS {
            assert!(
                advice(row.name).is_some(),
                "{} needs a row in ADVICE",
                row.name
            );
        }
        for (name, _) in ADVICE {
            assert!(
                Verdict::by_name(name).is_some(),
                "{name} is advice on no verdict"
            );
        }
    }

    #[test]
    fn every_listed_name_is_explained() {
        for (name, _, text) in list() {
            assert!(topic(name).ok().unwrap().text().contains(text), "{name}");
        }
    }

    #[test]
    fn no_name_has_two_meanings() {
        let names = |kind: &dyn Fn(&str) -> bool| -> BTreeSet<_> {
            let named = list().into_iter().filter(|(_, of, _)| kind(of));
            named.map(|(name, ..)| name).collect()
        };
        let not_keys = |kind: &str| {
            [kind_word(Kind::Pass), kind_word(Kind::Refuse)].contains(&kind)
                || [
                    kind_word(Kind::Answer),
                    kind_word(Kind::Note),
                    "column",
                    "subject",
                ]
                .contains(&kind)
        };
        let keys = names(&|kind| !not_keys(kind));
        // A column may have a key's name; both are explained.
        assert!(keys.is_disjoint(&names(&|kind| not_keys(kind) && kind != "column")));
        let others = names(&not_keys);
        assert_eq!(
            others.len(),
            VERDICTS.len() + COLUMNS.len() + SUBJECTS.len()
        );
    }

    #[test]
    fn a_key_of_several_tables_is_explained_for_each() {
        let text = topic("mode").ok().unwrap().text();
        assert!(text.contains("key of [[listener]]") && text.contains("key of [[proxy]]"));
        let text = topic("queue_limit").ok().unwrap().text();
        assert!(text.contains("key of [[class]]") && text.contains("key of [[proxy]]"));
    }

    #[test]
    fn names_may_be_written_as_flags() {
        assert!(topic("reject-syn").is_ok());
    }

    #[test]
    fn slips_get_a_suggestion() {
        let unknown = topic("syn_admited").err().unwrap();
        assert_eq!(unknown.did_you_mean, Some("syn_admitted"));
        assert_eq!(topic("gold").err().unwrap().did_you_mean, None);
    }
}

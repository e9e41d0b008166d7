//! `weir explain`: what a counter counts and what to do about it, what a config key sets, what a
//! column of `weir status` shows.
//!
//! Verdicts have their text in the BPF headers and their advice here. Keys are explained from their
//! declaration, columns from `columns`.

mod columns;

use std::fmt::Write as _;

use crate::schema::{KeyDoc, tables};
use crate::suggest::did_you_mean;
use columns::COLUMNS;
pub use columns::Column;
use weir_core::quic::QUIC_VERDICTS;
use weir_core::verdict::{Kind, VERDICTS};

/// What a name stands for that `weir explain` knows.
pub enum Topic {
    /// A verdict and its counter.
    Verdict(Counted),
    /// A key or a column of `weir status`: a text for each kind of tables that has the key, then the column's.
    Texts(Vec<String>),
    /// A part of weir.
    Subject(&'static Subject),
}

/// A verdict, on a SYN or on an attempt to open a QUIC connection.
#[derive(Debug, Clone, Copy)]
pub struct Counted {
    /// Its name in counters, metrics and status.
    pub name: &'static str,
    /// How it treats the packet.
    pub kind: Kind,
    /// One line that explains it.
    pub text: &'static str,
}

/// Every verdict of the guard, and then of QUIC listeners.
fn verdicts() -> impl Iterator<Item = Counted> {
    let guard = VERDICTS.iter().map(|row| Counted {
        name: row.name,
        kind: row.kind,
        text: row.text,
    });
    let quic = QUIC_VERDICTS.iter().map(|row| Counted {
        name: row.name,
        kind: row.kind,
        text: row.text,
    });
    guard.chain(quic)
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
const SUBJECTS: [Subject; 2] = [
    Subject {
        name: "controller",
        text: "Keeps the wait for accept(), or the CPU, at an objective: it limits the rates of classes, the lowest priority first",
        note: "The controller acts when a queue stands over target_wait for three intervals, or for two if the queue grows fast. It \
        then computes a budget: the rate at which the server accepts, corrected by a bounded PID on the queue. Each \
        class gets its min_rate, and priorities divide the rest. A class that the controller holds is limited to its \
        controlled_rate. The limits go once clients ask for less than the budget. At a server that accepts fewer \
        than 10 connections in target_wait, 10 connections wait, however long. See docs/controller.md.",
    },
    Subject {
        name: "overload",
        text: "A listener turns connections away; the log says when it begins, that it lasts, and when it has ended",
        note: "An overload begins with the first connection that is refused because the queue is full or stands, or because the \
            controller holds a class. It has ended once none was refused for 10 s; meanwhile the log has a line after 1, 3, 7 \
            minutes and so on, at least every hour. `SYN flood`, and `policing` of classes over their rate, are logged in the same way. The \
            shares are of connections let in and refused since it began, the queue and the wait are the longest that were \
            read. See docs/operating-watch.md.",
    },
];

/// A name that weir does not know.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is not a counter, a config key or a column of weir status")]
pub struct Unknown {
    /// As it was given.
    pub name: String,
    /// The name that the user probably meant.
    pub did_you_mean: Option<&'static str>,
}

/// Finds a counter, a config key or a column by its name.
///
/// # Errors
/// The name is unknown; the error has the name that the user probably meant.
pub fn topic(name: &str) -> Result<Topic, Unknown> {
    let name = &name.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
    let name = &name.to_ascii_lowercase();
    if let Some(verdict) = verdicts().find(|verdict| verdict.name == name) {
        return Ok(Topic::Verdict(verdict));
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

fn verdict_text(row: &Counted) -> String {
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
            "weir refuses the connection. In observe mode weir only counts it and lets it pass."
        }
        Kind::Answer => {
            "weir itself continues the handshake. In observe mode weir only counts the packet and lets it pass."
        }
        Kind::Note => "weir counts it beside another verdict; it is not a verdict of its own.",
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
const ADVICE: [(&str, &str); 48] = [
    (
        "syn_admitted",
        "The good case. With reserv, weir keeps a place for this connection until the server accepts it.",
    ),
    (
        "syn_repeated",
        "A high count means that SYN/ACKs get lost, or that clients answer them slowly. The kernel answers an old duplicate for a port in TIME-WAIT with an ACK.",
    ),
    (
        "syn_unheard",
        "The server is down or listens on another address. `ss -ltn` shows the listening sockets.",
    ),
    (
        "syn_left",
        "The client retransmits after 1 s, and again and again. reject_syn = rst refuses it at once; establish = reserv counts the queue exactly.",
    ),
    (
        "syn_dropped_full",
        "The server is slower than its clients. A larger backlog helps against bursts only. reject_syn = rst spares clients the wait.",
    ),
    (
        "syn_reset_full",
        "The server is slower than its clients, or its backlog is too small for bursts. `weir doctor` names small backlogs.",
    ),
    (
        "syn_dropped_wait",
        "Overload, not a burst: the wait stood over target_wait for a whole interval. A larger target_wait admits more connections, and each waits longer.",
    ),
    (
        "syn_reset_wait",
        "Overload, not a burst: the wait stood over target_wait for a whole interval. A larger target_wait admits more connections, and each waits longer.",
    ),
    (
        "cookie_sent",
        "Compare it with cookie_accepted. The other clients gave up, had a spoofed address, or were refused at their final ACK.",
    ),
    (
        "cookie_sent_flood",
        "Clients do not finish their handshakes, as in a SYN flood. weir returns to reservations by itself once they are gone.",
    ),
    (
        "cookie_accepted",
        "The server sees ordinary connections, with window scale and SACK as negotiated.",
    ),
    (
        "cookie_invalid",
        "Stray or forged ACKs, or ACKs to expired cookies. The kernel answers them with a RST.",
    ),
    (
        "cookie_failed",
        "The kernel did not take the connection, mostly because the listen queue filled at that moment. A low count is harmless.",
    ),
    (
        "ack_reset_full",
        "The client had its connection for one round trip and then saw ECONNRESET. establish = reserv refuses earlier, at the SYN.",
    ),
    (
        "ack_reset_wait",
        "The client had its connection for one round trip and then saw ECONNRESET. establish = reserv refuses earlier, at the SYN.",
    ),
    (
        "fin_reset",
        "Clients that half-close and read on lose their reply: see `weir explain half_close`.",
    ),
    (
        "fallback_mptcp",
        "Go's net.Listen uses MPTCP by default. GODEBUG=multipathtcp=0 or SetMultipathTCP(false) makes cookies possible.",
    ),
    (
        "refused_at_xdp",
        "An early refusal costs the server less: these packets never reached a receive queue of the kernel.",
    ),
    (
        "syn_left_flood",
        "As cookie_sent_flood, but the kernel sends the cookie: it keeps SACK and window scale only with timestamps. It needs tcp_syncookies = 1.",
    ),
    (
        "syn_unjudged",
        "weir remembers the queues of 1024 listening sockets in a hash table, or of 2048 where it guards other network namespaces; with more than half as many busy sockets some may not get a slot. Use fewer SO_REUSEPORT sockets, or guard fewer ports. Where a BPF program of the server's chooses the socket (SO_ATTACH_REUSEPORT_CBPF or _EBPF), weir cannot know whose queue a SYN will meet, and refuses nobody; `weir status` says so as a fallback.",
    ),
    (
        "syn_dropped_rate",
        "More connections of a class came than its rate allows; `weir status` shows the class. The client retransmits after 1 s, and again and again; over_rate = rst refuses it at once.",
    ),
    (
        "syn_reset_rate",
        "More connections of a class came than its rate allows; `weir status` shows the class. A larger burst admits more of them at once.",
    ),
    (
        "queue_reset_full",
        "The youngest connection of the lowest priority lost its place when one of higher priority came to a full queue. It counts as admitted too, because the guard let its SYN in. A longer backlog, or a rate for the higher classes, leaves the lower ones their places.",
    ),
    (
        "queue_reset_limit",
        "The youngest connection of the class lost its place when one more than `queue_limit` waited. It counts as admitted too. `weir status` shows how many connections of each class wait.",
    ),
    (
        "syn_time_wait",
        "A server that closes first keeps its clients' ports in TIME-WAIT for 60 s, and clients behind NAT use a port again sooner. A cookie would not reach the listening socket, so weir lets the SYN in, as the kernel does, and decides again at the final ACK.",
    ),
    (
        "syn_dropped_held",
        "The server is overloaded, and the controller limits the classes of the lowest priority first; the limit expires by itself. `weir status` shows controlled_rate. min_rate keeps a class a share; reject_syn = rst refuses at once.",
    ),
    (
        "syn_reset_held",
        "The server is overloaded, and the controller limits the classes of the lowest priority first; the limit expires by itself. `weir status` shows controlled_rate. min_rate keeps a class a share.",
    ),
    (
        "syn_not_plain",
        "Ordinary clients send no such SYNs; a client does that tries to evade a rate. Over its rate weir drops the SYN, also with over_rate = rst. The kernel's own limits hold for the queue.",
    ),
    (
        "syn_in_fragments",
        "No ordinary client sends a TCP header in two fragments; it evades every rate. A firewall rule can drop fragments: `ip frag-off & 0x1fff != 0 drop` before defragmentation.",
    ),
    (
        "syn_steady",
        "A load balancer keeps a server whose health checks come in. A source is steady when it came in 3 different half seconds, at most 8 times in each and at most 2 minutes apart. Steady sources get an eighth of what the server accepts, and those that came in 16 half seconds an eighth of their own. Many clients behind one address (a NAT, a proxy) that connect up to about 15 times a second pass for such a source; `health_checks = false` ends that.",
    ),
    (
        "syn_join",
        "MPTCP clients add a path when they change their network, and the connection ends if the new path is refused. At most 1000 a second pass for all listeners together; others are refused as any SYN. The kernel resets those of connections that it does not know. A class's rate holds for them too.",
    ),
    (
        "syn_retried",
        "In observe mode the kernel drops what finds the queue full, and its client tries again after 1 s, and again and again. would_refuse counts each client once.",
    ),
    (
        "syn_dropped_residence",
        "The server accepts at once and queues inside: `weir status` shows how many requests it has, how many it answers and how long each stays. Clients that are let in wait about residence, or twice the least residence. reject_syn = rst refuses at once. Give the server more of what it waits for.",
    ),
    (
        "syn_reset_residence",
        "The server accepts at once and queues inside: `weir status` shows how many requests it has, how many it answers and how long each stays. Clients that are let in wait about residence, or twice the least residence. Give the server more of what it waits for.",
    ),
    (
        "quic_admitted",
        "The good case. Compare it with quic_answered: a server leaves unanswered what is no valid Initial, and packets that its receive buffer had no place for.",
    ),
    (
        "quic_floor",
        "The server is overloaded, and these attempts are the share that `floor` keeps for new connections. Without it, established connections that keep the server busy would shut everybody new out.",
    ),
    (
        "quic_unheard",
        "The server is down, or its socket has another address. `ss -lun` shows the UDP sockets.",
    ),
    (
        "quic_unjudged",
        "The kernel joins packets of one source address and port (GRO). Where these are of several connections, as of a proxy or a load generator with one socket, one verdict does not fit all of them. weir remembers 8192 sockets of QUIC servers. A low count is harmless.",
    ),
    (
        "quic_vn_wait",
        "Overload, not a burst: the wait for the server's answer stood over target_wait for a whole interval. The client gives up at once, and browsers take HTTP/2, so guard the TCP port by a [[listener]] too. A larger target_wait admits more connections, and each waits longer.",
    ),
    (
        "quic_dropped_wait",
        "Overload, not a burst: the wait for the server's answer stood over target_wait for a whole interval. The client repeats its Initial, and gives up after seconds; refuse = vn tells it at once. A larger target_wait admits more connections, and each waits longer.",
    ),
    (
        "quic_vn_room",
        "More came at once than the server reads from its socket. If bursts do it, a larger receive buffer helps: nginx has `rcvbuf` of listen, others take net.core.rmem_default. If the buffer stays full, the server is overloaded, and a larger one only makes clients wait longer.",
    ),
    (
        "quic_dropped_room",
        "More came at once than the server reads from its socket. If bursts do it, a larger receive buffer helps: nginx has `rcvbuf` of listen, others take net.core.rmem_default. refuse = vn tells the client at once that it was refused.",
    ),
    (
        "quic_refused_again",
        "The second datagram of a large hello, and 0-RTT data: what follows a refused Initial within 250 ms shares its fate. What a client sends again later is judged, and counted, anew.",
    ),
    (
        "quic_vn_rate",
        "Raise rate or burst of the class (`weir class set NAME --rate N`), or leave it: the limit is yours. Attempts over TCP take from the same rate.",
    ),
    (
        "quic_dropped_rate",
        "As of quic_vn_rate. With over_rate = \"rst\" these clients would know at once, and take TCP.",
    ),
    (
        "quic_vn_held",
        "The controller gives the server's capacity to higher classes: see `weir status`. A higher priority or a min_rate of the class lets more of it in.",
    ),
    (
        "quic_dropped_held",
        "As of quic_vn_held. With refuse = \"vn\" of the [[quic]] these clients would know at once.",
    ),
    (
        "quic_answered",
        "weir saw the server's first packet to the client. How long that took, and how many attempts wait for it, decide whether weir refuses: `weir status` shows both.",
    ),
];

/// All names with their one-line texts: counters first, then keys, then columns.
pub fn list() -> Vec<(&'static str, &'static str, &'static str)> {
    let verdicts = verdicts().map(|row| (row.name, kind_word(row.kind), row.text));
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
        for row in verdicts() {
            assert!(
                advice(row.name).is_some(),
                "{} needs a row in ADVICE",
                row.name
            );
        }
        for (name, _) in ADVICE {
            let mut verdicts = verdicts();
            assert!(
                verdicts.any(|row| row.name == name),
                "{name} is not a verdict"
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
            verdicts().count() + COLUMNS.len() + SUBJECTS.len()
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
    fn a_verdict_on_a_quic_connection_has_its_sentence_and_what_to_do() {
        let text = topic("quic_vn_wait").ok().unwrap().text();
        for part in [
            "quic_vn_wait (refuse)\n  weir answered the Initial with a Version Negotiation packet",
            "guard the TCP port by a [[listener]] too",
        ] {
            assert!(text.contains(part), "{text}");
        }
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

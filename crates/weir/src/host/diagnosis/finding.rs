//! What the doctor found: rows of its table.

use serde::Serialize;

/// The figures of a queue that is full, or in which clients wait for long.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct QueueFigures {
    /// The socket's local address and port.
    pub address: String,
    /// The process that listens; null: not known.
    pub process: Option<String>,
    /// Its id; null likewise.
    pub pid: Option<u32>,
    /// Connections that wait for accept().
    pub queue_length: u32,
    /// Places in the queue. The kernel takes one more.
    pub queue_limit: u32,
    /// Of them, those whose client has closed or reset; null: not known.
    pub gone: Option<u32>,
    /// SYNs and final ACKs that the kernel has dropped there since the socket listens, several of each client: each costs its
    /// client a second or more.
    pub packets_dropped: u32,
    /// Connections that the server accepts a second, about; null: not known.
    pub accepts_per_second: Option<f64>,
    /// When that process was started, in ms since 1970 UTC; null: not known. The socket may be older, as it is inherited, or younger.
    pub started_unix_ms: Option<u64>,
    /// The wait for accept(), in microseconds; of a server that accepts nothing, that of the first one at least; null: not known.
    pub wait_us: Option<u64>,
}

/// How a finding is to be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As it should be.
    Ok,
    /// Works, but something should be changed or known.
    Warn,
    /// Does not work here.
    No,
}

impl State {
    /// Its word in tables.
    pub fn word(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Warn => "warn",
            State::No => "no",
        }
    }
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    /// The setting or object.
    pub name: String,
    /// How it is to be taken.
    pub state: State,
    /// What was found, and what follows from it.
    pub text: String,
    /// What to do; empty if nothing.
    pub hint: String,
    /// The figures of a listen queue that is full, or in which clients wait for long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueFigures>,
    /// What the name ends with, where several objects are looked at in the same way.
    #[serde(skip)]
    pub object: Option<Object>,
}

/// One of several objects of a kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// Its own name.
    pub name: String,
    /// What it is one of, in the plural: `interfaces`, `sockets`.
    pub kind: &'static str,
}

impl Finding {
    /// Whether the two differ in their objects at most.
    fn same_but_for_object(&self, other: &Finding) -> bool {
        let kind = |finding: &Finding| finding.object.as_ref().map(|object| object.kind);
        (self.state, &self.text, &self.hint, kind(self))
            == (other.state, &other.text, &other.hint, kind(other))
            && self.topic() == other.topic()
    }

    /// The name without the object at its end.
    fn topic(&self) -> &str {
        let object = self.object.as_ref().map_or("", |object| &object.name);
        self.name.strip_suffix(object).unwrap_or(&self.name)
    }

    /// The name of a row that stands for so many findings like this one.
    pub fn name_for(&self, count: usize) -> String {
        match &self.object {
            Some(object) if count > 1 => format!("{}{count} {}", self.topic(), object.kind),
            _ => self.name.clone(),
        }
    }
}

/// Puts findings together that differ in their objects only; in the order of the first of each.
pub fn fold(findings: &[Finding]) -> Vec<Vec<&Finding>> {
    let mut folded: Vec<Vec<&Finding>> = Vec::new();
    for finding in findings {
        match folded
            .iter_mut()
            .find(|like| like[0].same_but_for_object(finding))
        {
            Some(like) => like.push(finding),
            None => folded.push(vec![finding]),
        }
    }
    folded
}

/// One about the machine.
pub fn finding(
    name: &str,
    state: State,
    text: impl Into<String>,
    hint: impl Into<String>,
) -> Finding {
    Finding {
        name: name.to_owned(),
        state,
        text: text.into(),
        hint: hint.into(),
        queue: None,
        object: None,
    }
}

/// A finding about one of several objects of a kind: `backlog of` a socket.
pub fn finding_about(
    what: &str,
    object: Object,
    state: State,
    text: impl Into<String>,
    hint: impl Into<String>,
) -> Finding {
    Finding {
        object: Some(object.clone()),
        ..finding(&format!("{what} {}", object.name), state, text, hint)
    }
}

//! What a running weir is asked, and what it answers. The control socket has both as they are, one line of JSON each; the
//! paths of the API and the page of metrics are questions too.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Cause, Class, ClassSettings, Events, Status, Suggestions, TopSources, Why};

/// What can be asked of a running weir.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "command")]
pub enum Question {
    /// The report of `weir status`.
    Status,
    /// All figures, as OpenMetrics text.
    Metrics,
    /// Every class that can be changed while the process runs, `other` last.
    Classes,
    /// The events after the one with this number.
    Events {
        /// The number; 0: all that are kept.
        after: u64,
        /// So many at most.
        most: usize,
    },
    /// Why an address was refused.
    Why {
        /// The address.
        address: IpAddr,
    },
    /// The sources that are refused most.
    Sources,
    /// Settings that fit what the listeners have gone through.
    Suggest {
        /// In so many seconds at least; `None`: as many as are usual.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        least_s: Option<u64>,
    },
    /// A change of a class in force.
    Class(ClassChange),
    /// Read the config file again.
    Reload {
        /// For so many seconds; then what was in force before comes back, unless another reload confirms it. `None`:
        /// for good.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        confirm_s: Option<u64>,
    },
    /// Have every listener only observe for a while; the answer is that to a reload.
    Observe {
        /// For so many seconds; a reload ends it sooner.
        for_s: u64,
    },
    /// The config file that is in force, as it was read.
    Config,
    /// Take all protection off and exit.
    Detach,
    /// From `weir exec --order exact`, now and then: for which sockets it answers accept().
    Exec(ExecReport),
    /// To a process of proxies: hand the listening sockets over, which follow the answer.
    HandOver,
    /// After [`Question::HandOver`]: the successor accepts; accept no more, serve to the end, exit.
    Retire,
}

/// A server whose accept() calls are answered.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecReport {
    /// Its process.
    pub server: u32,
    /// Inodes of its listening sockets, with how many connections are held for each.
    pub held: Vec<(u64, u32)>,
}

/// What is to become of a class. Keys are those of `[[class]]`, with values as in the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "action")]
pub enum ClassChange {
    /// Add one.
    Add {
        /// Its name.
        name: String,
        /// Its other keys.
        keys: ClassSettings,
    },
    /// Add it, or replace the one of this name.
    Put {
        /// Its name.
        name: String,
        /// Its other keys; those that are left out have their defaults.
        keys: ClassSettings,
    },
    /// Change these keys; the others keep their values.
    Set {
        /// Its name.
        name: String,
        /// The keys.
        keys: ClassSettings,
    },
    /// Remove it.
    Remove {
        /// Its name.
        name: String,
    },
}

impl ClassChange {
    /// The class that is to change.
    pub fn class(&self) -> &str {
        match self {
            ClassChange::Add { name, .. }
            | ClassChange::Put { name, .. }
            | ClassChange::Set { name, .. }
            | ClassChange::Remove { name } => name,
        }
    }
}

impl fmt::Display for ClassChange {
    /// As `weir class` has it: `class set gold rate=300`. In one line, whatever the client has sent.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (action, keys) = match self {
            ClassChange::Add { keys, .. } => ("add", Some(keys)),
            ClassChange::Put { keys, .. } => ("put", Some(keys)),
            ClassChange::Set { keys, .. } => ("set", Some(keys)),
            ClassChange::Remove { .. } => ("remove", None),
        };
        write!(f, "class {action} {}", self.class().escape_debug())?;
        for (key, value) in keys.into_iter().flat_map(ClassSettings::keys) {
            write!(f, " {}={}", key.escape_debug(), word(value).escape_debug())?;
        }
        Ok(())
    }
}

/// A value as a flag has it.
fn word(value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        Value::String(text) => text.clone(),
        // Without the fraction of a whole number.
        Value::Number(number) => number.as_f64().unwrap_or(f64::NAN).to_string(),
        Value::Array(items) => items.iter().map(word).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

/// What a running weir answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// To [`Question::Status`].
    Status(Box<Status>),
    /// To [`Question::Metrics`].
    Metrics(Arc<str>),
    /// To [`Question::Classes`].
    Classes(Vec<Class>),
    /// To [`Question::Events`].
    Events(Events),
    /// To [`Question::Why`].
    Why(Box<Why>),
    /// To [`Question::Sources`].
    Sources(TopSources),
    /// To [`Question::Suggest`].
    Suggestions(Suggestions),
    /// To [`Question::Class`].
    Changed(Changed),
    /// To [`Question::Reload`] and [`Question::Observe`].
    Reloaded(Reloaded),
    /// To [`Question::Config`].
    Config(InForce),
    /// To [`Question::Detach`], once nothing is attached any more.
    Detached {
        /// The process, which exits now.
        pid: u32,
    },
    /// To [`Question::Exec`]: the keys of every class in force, without `other`; null where one has no value.
    Exec {
        /// By key.
        classes: Vec<Map<String, Value>>,
    },
    /// To [`Question::HandOver`]; so many sockets of each follow, in this order.
    HandedOver(Vec<HandedOver>),
    /// To [`Question::Retire`].
    Retired {
        /// The process, which serves its clients to the end.
        pid: u32,
    },
}

/// What became of a class.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Changed {
    /// In a word.
    pub done: ClassDone,
    /// The class as it is now; `None`: it was removed.
    #[serde(default)]
    pub class: Option<Class>,
    /// The config file, in which the change stands only if somebody writes it there; `None`: the process has flags only.
    #[serde(default)]
    pub config: Option<String>,
}

/// What was done to a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClassDone {
    /// It is new.
    Added,
    /// It has other settings.
    Changed,
    /// It has gone.
    Removed,
}

/// What is in force after a reload.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reloaded {
    /// Listeners of the file.
    pub listeners: usize,
    /// QUIC listeners.
    pub quic: usize,
    /// Those of them that are not in force.
    #[serde(default)]
    pub quic_not_in_force: usize,
    /// Destinations.
    pub destinations: usize,
    /// Proxies.
    pub proxies: usize,
    /// The listeners among them that are not in force, with the reason.
    pub not_in_force: Vec<Cause>,
    /// What is hardly meant in the file, and what is in force otherwise than asked, a sentence each.
    pub warnings: Vec<String>,
    /// Of a reload: as asked for in the question.
    pub confirm_s: Option<u64>,
    /// Seconds for which every listener only observes, as asked for in the question; `None`: it was a reload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observes_s: Option<u64>,
}

/// The config that is in force.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct InForce {
    /// The file; `None`: the process has flags only.
    pub file: Option<PathBuf>,
    /// What stood there when it was read.
    pub text: String,
    /// The classes in force that can be changed while the process runs, with all of their keys; `None`: there are none
    /// such, or an older weir does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classes: Option<Vec<Map<String, Value>>>,
    /// What the file said when the process started, which holds for what needs a restart; `None`: the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_start: Option<String>,
    /// A flag, and not the file, says where the metrics are.
    #[serde(default)]
    pub metrics_by_flag: bool,
    /// Every listener only observes, whatever its mode in the text.
    #[serde(default)]
    pub observes: bool,
}

/// The sockets of one proxy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandedOver {
    /// Where its settings say that it listens; port 0 is any.
    pub listen: SocketAddr,
    /// How many they are.
    pub sockets: usize,
    /// What is known of the names of its backends: the successor has them before its first look-up.
    #[serde(default)]
    pub addresses: BTreeMap<String, Vec<IpAddr>>,
}

/// What a kind of answer carries, or another answer back.
macro_rules! carries {
    ($($kind:ident($it:ident) -> $carried:ty { $out:expr })*) => {$(
        impl TryFrom<Answer> for $carried {
            type Error = Answer;

            fn try_from(answer: Answer) -> Result<$carried, Answer> {
                match answer {
                    Answer::$kind($it) => Ok($out),
                    other => Err(other),
                }
            }
        }
    )*};
}

carries! {
    Status(it) -> Status { *it }
    Metrics(it) -> Arc<str> { it }
    Classes(it) -> Vec<Class> { it }
    Events(it) -> Events { it }
    Why(it) -> Why { *it }
    Sources(it) -> TopSources { it }
    Suggestions(it) -> Suggestions { it }
    Changed(it) -> Changed { it }
    Reloaded(it) -> Reloaded { it }
    Config(it) -> InForce { it }
    HandedOver(it) -> Vec<HandedOver> { it }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_told_as_it_would_be_asked_for() {
        let keys = ClassSettings::new()
            .from("10.1.0.0/16")
            .from("10.2.0.1")
            .rate(0.5)
            .with("to_port", 8080.0)
            .with("burst", "none")
            .without("min_rate");
        let name = "gold".to_owned();
        assert_eq!(
            ClassChange::Set { name, keys }.to_string(),
            "class set gold burst=none from=10.1.0.0/16,10.2.0.1 min_rate=none rate=0.5 to_port=8080"
        );
    }

    #[test]
    fn an_answer_gives_what_it_carries_and_another_one_nothing() {
        let answer = Answer::Status(Box::default());
        assert_eq!(Status::try_from(answer.clone()), Ok(Status::default()));
        assert_eq!(Events::try_from(answer.clone()), Err(answer));
    }
}

//! The values of keys: as the file, the flags and the API give them ([`Given`]), and as `weir check` and the
//! API show them ([`Setting`]).
//!
//! Neither knows what a key means: [`crate::types`] turns one into a typed value and back.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::Fault;

/// A value as the user wrote it, in one of the forms that TOML and JSON have in common.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Given {
    /// A string.
    Text(String),
    /// An integer or a float.
    Number(f64),
    /// `true` or `false`.
    Flag(bool),
    /// An array of strings.
    List(Vec<String>),
    /// Anything else, by the name of its type: "a date".
    #[serde(skip)]
    Other(#[serde(skip)] &'static str),
}

impl Given {
    /// The fault of a value that has another form than its key takes: `wanted` with its article, and
    /// what to write.
    pub(crate) fn mismatch(&self, wanted: &str, hint: impl Into<String>) -> Fault {
        let own = match self {
            Given::Text(_) => "a string",
            Given::Number(_) => "a number",
            Given::Flag(_) => "true or false",
            Given::List(_) => "a list of strings",
            Given::Other(name) => name,
        };
        Fault::new(format!("is {own}, not {wanted}"), hint)
    }

    /// The string.
    ///
    /// # Errors
    /// The value has another form.
    pub(crate) fn text(&self) -> Result<&str, Fault> {
        match self {
            Given::Text(text) => Ok(text),
            other => Err(other.mismatch("a string", "write the value in double quotes")),
        }
    }

    /// The number.
    ///
    /// # Errors
    /// The value has another form.
    pub(crate) fn number(&self) -> Result<f64, Fault> {
        match self {
            Given::Number(number) => Ok(*number),
            other => Err(other.mismatch("a number", "write the number without quotes")),
        }
    }

    /// The list.
    ///
    /// # Errors
    /// The value has another form.
    pub(crate) fn list(&self) -> Result<&[String], Fault> {
        match self {
            Given::List(list) => Ok(list),
            other => Err(other.mismatch("a list of strings", "write a list: [\"eth0\"]")),
        }
    }
}

impl fmt::Display for Given {
    /// As a flag has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Given::Text(text) => f.write_str(text),
            Given::Number(number) => write!(f, "{number}"),
            Given::Flag(on) => write!(f, "{on}"),
            Given::List(list) => f.write_str(&list.join(",")),
            Given::Other(name) => f.write_str(name),
        }
    }
}

/// A setting in force. Its `Display` is TOML, its serde form the plain value.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Setting {
    /// A word, a name, an address or a value with its unit.
    Text(String),
    /// A number that may have a fraction.
    Number(f64),
    /// A whole number.
    Whole(u64),
    /// On or off.
    Flag(bool),
    /// Names, addresses or prefixes.
    List(Vec<String>),
    /// The key has no value: no limit, any, all. In JSON null; the example file leaves the value out.
    None,
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Setting::Text(text) => write!(f, "{text:?}"),
            Setting::Number(number) => write!(f, "{number:?}"),
            Setting::Whole(number) => write!(f, "{number}"),
            Setting::Flag(flag) => write!(f, "{flag}"),
            Setting::List(list) => write!(f, "{list:?}"),
            Setting::None => write!(f, "{NONE:?}"),
        }
    }
}

/// The word that takes a value away, for keys that need none.
pub(crate) const NONE: &str = "none";

//! The values of keys: as the file and the flags give them, and as they are shown.

use std::fmt;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::error::Fault;
use crate::suggest::did_you_mean;
use weir_core::word::Word;

/// A value as the file has it, with the types that keys can have.
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
    /// Anything else, by the name of its type.
    #[serde(skip)]
    Other(#[serde(skip)] &'static str),
}

impl Given {
    fn type_name(&self) -> &'static str {
        match self {
            Given::Text(_) => "a string",
            Given::Number(_) => "a number",
            Given::Flag(_) => "true or false",
            Given::List(_) => "a list of strings",
            Given::Other(name) => name,
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
    /// A share.
    Number(f64),
    /// How many.
    Whole(u64),
    /// On or off.
    Flag(bool),
    /// Names.
    List(Vec<String>),
    /// Nothing: no limit, any, all. In JSON null; in TOML the key is left out.
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

/// The word that takes a value away again, where there may be none.
pub(crate) const NONE: &str = "none";

/// Reads a value that there may be none of.
pub(crate) fn maybe<T>(
    value: &Given,
    read: impl FnOnce(&Given) -> Result<T, Fault>,
) -> Result<Option<T>, Fault> {
    match value {
        Given::Text(word) if word == NONE => Ok(None),
        value => read(value).map(Some),
    }
}

/// Shows a value that there may be none of.
pub(crate) fn shown<T>(value: Option<T>, show: impl FnOnce(T) -> Setting) -> Setting {
    value.map_or(Setting::None, show)
}

/// Reads one of a setting's words.
///
/// # Errors
/// Not one of them; the hint lists them, or names the one that was probably meant.
pub fn parse_word<T: Word>(text: &str) -> Result<T, Fault> {
    T::from_word(text).ok_or_else(|| {
        let words: Vec<&str> = T::WORDS.iter().map(|row| row.word).collect();
        let hint = match did_you_mean(text, &words) {
            Some(word) => format!("did you mean {word:?}?"),
            None => format!("one of {}", words.join(", ")),
        };
        Fault::new(format!("{text:?} is not known"), hint)
    })
}

pub(crate) fn word<T: Word>(value: &Given) -> Result<T, Fault> {
    text(value).and_then(parse_word)
}

pub(crate) fn mismatch(value: &Given, wanted: &str, hint: &str) -> Fault {
    Fault::new(format!("is {}, not {wanted}", value.type_name()), hint)
}

pub(crate) fn text(value: &Given) -> Result<&str, Fault> {
    match value {
        Given::Text(text) => Ok(text),
        _ => Err(mismatch(
            value,
            "a string",
            "write the value in double quotes",
        )),
    }
}

pub(crate) fn number(value: &Given) -> Result<f64, Fault> {
    match value {
        Given::Number(number) => Ok(*number),
        _ => Err(mismatch(
            value,
            "a number",
            "write the number without quotes",
        )),
    }
}

/// Reads a number of this range.
pub(crate) fn ranged(value: &Given, range: RangeInclusive<f64>) -> Result<f64, Fault> {
    let number = number(value)?;
    if range.contains(&number) {
        return Ok(number);
    }
    let hint = format!("a number from {} to {}", range.start(), range.end());
    Err(Fault::new(format!("{number} is out of range"), hint))
}

/// Reads a whole number of this range.
pub(crate) fn whole(value: &Given, range: RangeInclusive<u64>) -> Result<u64, Fault> {
    let number = number(value)?;
    let whole = number as u64;
    if whole as f64 == number && range.contains(&whole) {
        return Ok(whole);
    }
    let hint = format!("a whole number from {} to {}", range.start(), range.end());
    Err(Fault::new(format!("{number} is out of range"), hint))
}

pub(crate) fn flag(value: &Given) -> Result<bool, Fault> {
    match value {
        Given::Flag(on) => Ok(*on),
        _ => Err(mismatch(
            value,
            "true or false",
            "write true or false without quotes",
        )),
    }
}

pub(crate) fn list(value: &Given) -> Result<&[String], Fault> {
    match value {
        Given::List(list) => Ok(list),
        _ => Err(mismatch(
            value,
            "a list of strings",
            "write a list: [\"eth0\"]",
        )),
    }
}

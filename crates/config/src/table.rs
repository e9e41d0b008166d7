//! What every kind of table in the file has: keys that are declared once, a name, and an address
//! that no other table of its kind may have.

use std::str::FromStr;

use crate::error::Fault;
use crate::suggest::did_you_mean;
use crate::value::{Given, NONE, Setting};
use weir_core::word::Word;

/// A word that a key takes, and its text.
pub type WordText = (&'static str, &'static str);

/// The words of a setting with their texts.
pub fn words_of<T: Word>() -> Vec<WordText> {
    T::WORDS.iter().map(|row| (row.word, row.text)).collect()
}

/// What sort of value a key takes.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// A name.
    Name,
    /// An address with a port.
    Address,
    /// A list of names.
    Names,
    /// A list of addresses with ports.
    Addresses,
    /// A list of IP addresses.
    Ips,
    /// A list of prefixes of IP addresses.
    Prefixes,
    /// A list of prefixes of IP addresses, or the word none.
    MaybePrefixes,
    /// One of these words.
    Word(fn() -> Vec<WordText>),
    /// A duration with its unit.
    Time,
    /// A number of bytes with its unit.
    Size,
    /// A size, a share in percent or a duration, each with its unit.
    Amount,
    /// A number.
    Number,
    /// A number, or two with `-` between.
    Range,
    /// A number, or the word none.
    Limit,
    /// A name, or the word none.
    MaybeName,
    /// A duration with its unit, or the word none.
    MaybeTime,
    /// true or false.
    Flag,
    /// The path of a file.
    Path,
    /// The path of a URI.
    UriPath,
}

impl Kind {
    /// What stands for the value in the help of the key's flag.
    pub fn placeholder(self) -> &'static str {
        match self {
            Kind::Name | Kind::MaybeName => "NAME",
            Kind::Address | Kind::Addresses => "ADDR:PORT",
            Kind::Names => "NAMES",
            Kind::Ips => "ADDR",
            Kind::Prefixes | Kind::MaybePrefixes => "PREFIX",
            Kind::Word(_) => "WORD",
            Kind::Time | Kind::MaybeTime => "TIME",
            Kind::Size => "SIZE",
            Kind::Amount => "AMOUNT",
            Kind::Range => "N|N-N",
            Kind::Number | Kind::Limit => "N",
            Kind::Flag => "true|false",
            Kind::Path => "FILE",
            Kind::UriPath => "PATH",
        }
    }

    /// Whether it takes several values, and its flag may be repeated.
    pub fn is_list(self) -> bool {
        matches!(
            self,
            Kind::Names | Kind::Addresses | Kind::Ips | Kind::Prefixes | Kind::MaybePrefixes
        )
    }

    /// Whether there may be none, which is then the default.
    pub fn may_be_none(self) -> bool {
        matches!(
            self,
            Kind::Limit | Kind::MaybeName | Kind::MaybePrefixes | Kind::MaybeTime
        )
    }

    /// The value of a flag, as the file would have it. One of a list is a list of one.
    ///
    /// # Errors
    /// A number or a truth value that is none.
    pub fn given(self, text: &str) -> Result<Given, Fault> {
        fn read<T: FromStr>(text: &str, what: &str, hint: &str) -> Result<T, Fault> {
            let fault = |_| Fault::new(format!("{text:?} is {what}"), hint);
            text.parse().map_err(fault)
        }
        Ok(match self {
            Kind::Limit | Kind::MaybePrefixes if text == NONE => Given::Text(text.to_owned()),
            Kind::Number | Kind::Limit => {
                Given::Number(read(text, "no number", "write digits only")?)
            }
            Kind::Flag => Given::Flag(read(text, "neither true nor false", "write true or false")?),
            kind if kind.is_list() => Given::List(vec![text.to_owned()]),
            _ => Given::Text(text.to_owned()),
        })
    }
}

/// One key of the tables that describe a `T`.
pub struct Key<T> {
    /// Its name in the file; flags have `-` for `_`.
    pub name: &'static str,
    /// What sort of value it takes.
    pub kind: Kind,
    /// The values it takes, in words.
    pub values: &'static str,
    /// What it sets, in one line.
    pub text: &'static str,
    /// Checks the value and sets it.
    pub set: fn(&mut T, &Given) -> Result<(), Fault>,
    /// The value in force.
    pub show: fn(&T) -> Setting,
}

impl<T: Table> Key<T> {
    /// The key with this name.
    pub fn by_name(name: &str) -> Option<&'static Key<T>> {
        T::keys().iter().find(|key| key.name == name)
    }
}

impl<T> Key<T> {
    /// The words that it takes, each with its text; none if it takes other values.
    pub fn words(&self) -> Vec<WordText> {
        match self.kind {
            Kind::Word(words) => words(),
            _ => Vec::new(),
        }
    }
}

/// What a table of the file describes.
pub trait Table: Clone + 'static {
    /// The table's name: `[[NAME]]`.
    const NAME: &'static str;
    /// The keys that have no default, each with a line to write.
    const REQUIRED: &'static [(&'static str, &'static str)];
    /// So many tables may be in a file, and what to do with more.
    const MOST: (usize, &'static str);
    /// Whether the file has at most one, `[NAME]`, and not a list of them.
    const IS_SINGLE: bool = false;
    /// Whether each is somewhere, where no other may be.
    const HAS_ADDRESS: bool = true;
    /// What to do when two have one address.
    const ONE_ADDRESS_HINT: &'static str;

    /// The line that begins it.
    fn head() -> String {
        match Self::IS_SINGLE {
            true => format!("[{}]", Self::NAME),
            false => format!("[[{}]]", Self::NAME),
        }
    }
    /// Every key, in the order of the example file.
    fn keys() -> &'static [Key<Self>];
    /// Every setting at its default; what is required has no meaning yet.
    fn blank() -> Self;
    /// Its name; unique among its kind.
    fn name(&self) -> &str;
    /// Takes the name that it has if none is given.
    fn take_default_name(&mut self);
    /// Where it is.
    fn address(&self) -> String;
    /// Whether both cannot be there.
    fn collides(&self, other: &Self) -> bool;
    /// What is wrong with the keys together, and the key at which to say it.
    fn check(&self) -> Result<(), (&'static str, Fault)>;
    /// What is odd, one sentence each; `given` are the keys that were set.
    fn lint(&self, given: &[&str]) -> Vec<String>;
}

/// The table with these keys changed.
///
/// # Errors
/// A key that is none, a bad value, or keys that do not go together; the cause begins with the key.
pub fn change<'a, T: Table>(
    table: &T,
    keys: impl IntoIterator<Item = (&'a str, &'a Given)>,
) -> Result<T, Fault> {
    let at = |key: &str, fault: Fault| Fault::new(format!("{key}: {}", fault.cause), fault.hint);
    let mut table = table.clone();
    for (name, given) in keys {
        let key = Key::<T>::by_name(name).ok_or_else(|| unknown_key::<T>(name))?;
        (key.set)(&mut table, given).map_err(|fault| at(name, fault))?;
    }
    table.check().map_err(|(key, fault)| at(key, fault))?;
    Ok(table)
}

/// What is wrong with a key of this name, which there is not.
pub(crate) fn unknown_key<T: Table>(name: &str) -> Fault {
    let names: Vec<&str> = T::keys().iter().map(|key| key.name).collect();
    let hint = match did_you_mean(name, &names) {
        Some(meant) => format!("did you mean {meant}?"),
        None => format!("the keys are {}", names.join(", ")),
    };
    Fault::new(format!("unknown key {name:?}"), hint)
}

//! The types of values: how each is read from what the user gave, checked, shown, and described.
//!
//! A [`Type<V>`] does this for the Rust type `V`. A key pairs it with a field of that type, so a type that
//! does not fit the field does not compile. The functions here make the types that keys share: words,
//! numbers, durations, sizes, flags, lists. A table with a type of its own makes it by [`text`], [`list`] or
//! [`Type::new`], beside its keys.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::error::Fault;
use crate::suggest::did_you_mean;
use crate::value::{Given, NONE, Setting};
use weir_core::prefix::{Prefix, parse_prefix};
use weir_core::units::{format_duration, format_size, parse_duration, parse_size};
use weir_core::word::Word;

/// A word that a key takes, and what it does, in one line.
pub type WordText = (&'static str, &'static str);

type Read<V> = Box<dyn Fn(&Given) -> Result<V, Fault> + Send + Sync>;
type Show<V> = Box<dyn Fn(&V) -> Setting + Send + Sync>;

/// How a value of type `V` stands in files, flags and the API.
pub struct Type<V> {
    pub(crate) form: Form,
    pub(crate) read: Read<V>,
    pub(crate) show: Show<V>,
}

/// What people read of a type.
#[derive(Debug, Clone)]
pub struct Form {
    /// What sort of value it is.
    pub kind: Kind,
    /// The values that it takes, in words: `1ms to 10s`.
    pub values: String,
    /// The unit of a bare number, `connections/s`; empty where the value has its unit, or needs none.
    pub unit: &'static str,
    /// The words that it takes; empty if it takes other values.
    pub words: Vec<WordText>,
    /// The word that it takes in place of a value: `none`, `off`, `system`.
    pub instead: Option<&'static str>,
}

/// What sort of value a key takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A name.
    Name,
    /// An address with a port.
    Address,
    /// Which network namespaces.
    Place,
    /// A list of names.
    Names,
    /// A list of addresses or names with ports.
    Servers,
    /// A list of IP addresses.
    Ips,
    /// A list of prefixes of IP addresses.
    Prefixes,
    /// One of a few words.
    Word,
    /// A duration with its unit.
    Time,
    /// A number of bytes with its unit.
    Size,
    /// A rate with its unit.
    Rate,
    /// A size, a share in percent or a duration, each with its unit.
    Amount,
    /// A number.
    Number,
    /// A number, or two with `-` between.
    Range,
    /// A list of such.
    Ranges,
    /// `true` or `false`.
    Flag,
    /// The path of a file.
    Path,
    /// The path of a URI.
    UriPath,
}

impl Kind {
    /// What stands for the value in the help of the key's flag. Of a list, for one element.
    pub fn placeholder(self) -> &'static str {
        match self {
            Kind::Name | Kind::Names => "NAME",
            Kind::Address => "ADDR:PORT",
            Kind::Place => "PLACE",
            Kind::Servers => "HOST:PORT",
            Kind::Ips => "ADDR",
            Kind::Prefixes => "PREFIX",
            Kind::Word => "WORD",
            Kind::Time => "TIME",
            Kind::Size => "SIZE",
            Kind::Rate => "RATE",
            Kind::Amount => "AMOUNT",
            Kind::Range | Kind::Ranges => "N|N-N",
            Kind::Number => "N",
            Kind::Flag => "true|false",
            Kind::Path => "FILE",
            Kind::UriPath => "PATH",
        }
    }

    /// The type as the reference page names it.
    pub fn type_name(self) -> &'static str {
        match self {
            Kind::Name => "string",
            Kind::Address => "address with port",
            Kind::Place => "place",
            Kind::Names => "list of names",
            Kind::Servers => "list of addresses or names with ports",
            Kind::Ips => "list of addresses",
            Kind::Prefixes => "list of prefixes",
            Kind::Word => "word",
            Kind::Time => "duration",
            Kind::Size => "size",
            Kind::Rate => "rate of a link",
            Kind::Amount => "size, share or duration",
            Kind::Number => "number",
            Kind::Range => "number or range",
            Kind::Ranges => "list of numbers or ranges",
            Kind::Flag => "true or false",
            Kind::Path => "path",
            Kind::UriPath => "path of a URI",
        }
    }

    /// Whether it takes several values, and its flag may be repeated.
    pub fn is_list(self) -> bool {
        matches!(
            self,
            Kind::Names | Kind::Servers | Kind::Ips | Kind::Prefixes | Kind::Ranges
        )
    }
}

impl Form {
    /// Whether the word `none` takes the value away.
    pub fn may_be_none(&self) -> bool {
        self.instead == Some(NONE)
    }

    /// The value of a flag, as the file would have it. One value of a list is a list of one.
    ///
    /// # Errors
    /// The text is not a number or a truth value where the key takes one.
    pub fn given(&self, text: &str) -> Result<Given, Fault> {
        if self.instead == Some(text) {
            return Ok(Given::Text(text.to_owned()));
        }
        Ok(match self.kind {
            Kind::Number => {
                let fault = |_| Fault::new(format!("{text:?} is not a number"), &self.values);
                Given::Number(text.parse().map_err(fault)?)
            }
            Kind::Flag => {
                let fault = |_| {
                    let cause = format!("{text:?} is neither true nor false");
                    Fault::new(cause, "write true or false")
                };
                Given::Flag(text.parse().map_err(fault)?)
            }
            kind if kind.is_list() => Given::List(vec![text.to_owned()]),
            _ => Given::Text(text.to_owned()),
        })
    }
}

impl<V: 'static> Type<V> {
    /// A type by its sort, its values in words, and the functions that read and show a value. The text that
    /// `show` gives must read back as the same value.
    pub fn new(
        kind: Kind,
        values: impl Into<String>,
        read: impl Fn(&Given) -> Result<V, Fault> + Send + Sync + 'static,
        show: impl Fn(&V) -> Setting + Send + Sync + 'static,
    ) -> Type<V> {
        Type {
            form: Form {
                kind,
                values: values.into(),
                unit: "",
                words: Vec::new(),
                instead: None,
            },
            read: Box::new(read),
            show: Box::new(show),
        }
    }

    /// The unit of a bare number.
    pub fn in_unit(mut self, unit: &'static str) -> Type<V> {
        self.form.unit = unit;
        self
    }

    /// What a value means, said behind the hint of each fault.
    pub fn meaning(mut self, text: &'static str) -> Type<V> {
        let read = self.read;
        self.read = Box::new(move |given| {
            read(given).map_err(|fault| Fault::new(fault.cause, format!("{}: {text}", fault.hint)))
        });
        self
    }

    /// This type, or a word that stands for `None`.
    pub fn or(self, word: &'static str) -> Type<Option<V>> {
        let Type { form, read, show } = self;
        let reader = move |given: &Given| match given {
            Given::Text(text) if text == word => Ok(None),
            given => read(given)
                .map(Some)
                .map_err(|fault| Fault::new(fault.cause, format!("{}, or {word:?}", fault.hint))),
        };
        let shower = move |value: &Option<V>| match value {
            Some(value) => show(value),
            None if word == NONE => Setting::None,
            None => Setting::Text(word.to_owned()),
        };
        Type {
            form: Form {
                values: format!("{}, or {word}", form.values),
                instead: Some(word),
                ..form
            },
            read: Box::new(reader),
            show: Box::new(shower),
        }
    }

    /// This type, or the word that takes the value away.
    pub fn or_none(self) -> Type<Option<V>> {
        self.or(NONE)
    }
}

/// Reads one of a setting's words.
///
/// # Errors
/// The text is none of them; the hint lists them, or names the one that the user probably meant.
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

/// One of the words of an enum.
pub fn word<W: Word>() -> Type<W> {
    let words: Vec<WordText> = W::WORDS.iter().map(|row| (row.word, row.text)).collect();
    let spelt: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
    let mut word = Type::new(
        Kind::Word,
        spelt.join(" | "),
        |given| given.text().and_then(parse_word),
        |value: &W| Setting::Text(value.word().into()),
    );
    word.form.words = words;
    word
}

/// A string that `parse` checks; `show` writes it back.
pub fn text<V: 'static>(
    kind: Kind,
    values: impl Into<String>,
    parse: impl Fn(&str) -> Result<V, Fault> + Send + Sync + 'static,
    show: impl Fn(&V) -> String + Send + Sync + 'static,
) -> Type<V> {
    let read = move |given: &Given| given.text().and_then(&parse);
    Type::new(kind, values, read, move |value| Setting::Text(show(value)))
}

/// A list of strings, each of which `parse` checks; `show` writes one back.
pub fn list<V: 'static>(
    kind: Kind,
    values: impl Into<String>,
    parse: impl Fn(&str) -> Result<V, Fault> + Send + Sync + 'static,
    show: impl Fn(&V) -> String + Send + Sync + 'static,
) -> Type<Vec<V>> {
    let read = move |given: &Given| given.list()?.iter().map(|text| parse(text)).collect();
    let show = move |values: &Vec<V>| Setting::List(values.iter().map(&show).collect());
    Type::new(kind, values, read, show)
}

/// A list of prefixes.
pub fn prefixes() -> Type<Vec<Prefix>> {
    let parse = |text: &str| Ok(parse_prefix(text)?);
    list(
        Kind::Prefixes,
        "a list of prefixes",
        parse,
        Prefix::to_string,
    )
}

/// `true` or `false`.
pub fn flag() -> Type<bool> {
    let read = |given: &Given| match given {
        Given::Flag(on) => Ok(*on),
        other => Err(other.mismatch("true or false", "write true or false without quotes")),
    };
    Type::new(Kind::Flag, "true | false", read, |on| Setting::Flag(*on))
}

/// A number, which may have a fraction.
pub fn number(range: RangeInclusive<f64>) -> Type<f64> {
    let values = format!("{} to {}", range.start(), range.end());
    let hint = format!("a number from {values}");
    let read = move |given: &Given| {
        let number = given.number()?;
        let fault = || Fault::new(format!("{number} is out of range"), &hint);
        range.contains(&number).then_some(number).ok_or_else(fault)
    };
    Type::new(Kind::Number, values, read, |number| {
        Setting::Number(*number)
    })
}

/// A whole number.
pub fn whole<V>(range: RangeInclusive<V>) -> Type<V>
where
    V: Copy + PartialOrd + TryFrom<u64> + Into<u64> + Send + Sync + 'static,
{
    let values = format!("{} to {}", (*range.start()).into(), (*range.end()).into());
    let hint = format!("a whole number from {values}");
    let read = move |given: &Given| {
        let number = given.number()?;
        let whole = number as u64;
        let fits = V::try_from(whole).ok().filter(|_| whole as f64 == number);
        fits.filter(|value| range.contains(value))
            .ok_or_else(|| Fault::new(format!("{number} is out of range"), &hint))
    };
    Type::new(Kind::Number, values, read, |value: &V| {
        Setting::Whole((*value).into())
    })
}

/// A duration with its unit. `example` stands in hints.
pub fn duration(range: RangeInclusive<Duration>, example: &str) -> Type<Duration> {
    let limits = format!("{} to {}", limit(*range.start()), limit(*range.end()));
    let hint = format!("a duration with its unit from {limits}, for example {example:?}");
    let read = move |given: &Given| {
        let Given::Text(text) = given else {
            return Err(given.mismatch("a duration", &hint));
        };
        let time = parse_duration(text).map_err(|cause| Fault::new(cause, &hint))?;
        let fault = || Fault::new(format!("{text:?} is out of range"), &hint);
        range.contains(&time).then_some(time).ok_or_else(fault)
    };
    Type::new(Kind::Time, limits, read, |time| {
        Setting::Text(format_duration(*time))
    })
}

/// A limit of a duration, in the largest unit that it is a whole number of.
fn limit(duration: Duration) -> String {
    match (duration.as_secs(), duration.subsec_nanos()) {
        (0, 0) => "0s".to_owned(),
        (s, 0) if s % 3600 == 0 => format!("{}h", s / 3600),
        (s, 0) if s % 60 == 0 => format!("{}min", s / 60),
        _ => format_duration(duration),
    }
}

/// A number of bytes with its unit.
pub fn size<V>(range: RangeInclusive<V>) -> Type<V>
where
    V: Copy + PartialOrd + TryFrom<u64> + Into<u64> + Send + Sync + 'static,
{
    let low = format_size((*range.start()).into());
    let limits = format!("{low} to {}", format_size((*range.end()).into()));
    let hint = format!("a size with its unit from {limits}, for example {low:?}");
    let read = move |given: &Given| {
        let Given::Text(text) = given else {
            return Err(given.mismatch("a size", &hint));
        };
        let bytes = parse_size(text).map_err(|cause| Fault::new(cause, &hint))?;
        let fits = V::try_from(bytes).ok().filter(|size| range.contains(size));
        fits.ok_or_else(|| Fault::new(format!("{text:?} is out of range"), &hint))
    };
    Type::new(Kind::Size, limits, read, |bytes: &V| {
        Setting::Text(format_size((*bytes).into()))
    })
}

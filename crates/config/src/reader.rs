//! Reads the tables of one kind from a parsed file, and collects everything that is wrong with them.
//!
//! It knows tables and keys in general ([`Table`]), and no kind in particular. The kinds are in
//! [`crate::schema`], what they mean to each other in [`mod@crate::parse`].

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::config::Warning;
use crate::error::{Fault, Location, Problem};
use crate::key::Key;
use crate::table::{Table, unknown_key};
use crate::types::Kind;
use crate::value::Given;
use weir_core::units::count;

/// A key of the file, with the bytes where it stands.
pub(crate) type FileKey<'a> = Spanned<Cow<'a, str>>;
/// A value of the file, with the bytes where it stands.
pub(crate) type FileValue<'a> = Spanned<DeValue<'a>>;

/// A table as it was read.
pub(crate) struct Read<T> {
    /// The table, all defaults filled in.
    pub table: T,
    /// Where it stands in the file.
    pub origin: Origin,
}

/// Where a table and its keys stand in the file.
pub(crate) struct Origin {
    /// The keys that the table sets, and where their values stand.
    pub given: Vec<(&'static str, Range<usize>)>,
    /// Where the table begins.
    pub span: Range<usize>,
}

impl Origin {
    /// Where the value of the key stands; where the table begins if it does not set the key.
    pub fn of_key(&self, key: &str) -> Range<usize> {
        let given = self.given.iter().find(|(given, _)| *given == key);
        given.map_or(&self.span, |(_, span)| span).clone()
    }

    /// The keys that the table sets.
    pub fn keys(&self) -> Vec<&'static str> {
        self.given.iter().map(|(name, _)| *name).collect()
    }

    fn has(&self, key: &str) -> bool {
        self.given.iter().any(|(given, _)| *given == key)
    }
}

/// A file under way, with what is wrong in it so far.
pub(crate) struct Reader<'a> {
    /// The file's name as the user gave it.
    pub file: &'a str,
    /// Its text.
    pub source: &'a str,
    /// What is wrong.
    pub problems: Vec<Problem>,
    /// What is odd.
    pub warnings: Vec<Warning>,
    /// How many problems there are besides.
    pub unlisted_problems: usize,
    /// How many oddities there are besides.
    pub unlisted_warnings: usize,
}

/// Problems and warnings that are listed; the others are counted. To find the place of one takes a look at all that stands before
/// it, and a file of many MiB may have a million.
const MOST_LISTED: usize = 100;

impl<'a> Reader<'a> {
    /// At the begin of a file.
    pub fn new(file: &'a str, source: &'a str) -> Reader<'a> {
        Reader {
            file,
            source,
            problems: Vec::new(),
            warnings: Vec::new(),
            unlisted_problems: 0,
            unlisted_warnings: 0,
        }
    }
}

impl Reader<'_> {
    /// Notes a problem at these bytes; without them, at the begin of the file. `object` is a prefix that
    /// ends in `": "`, or empty.
    pub fn problem(&mut self, span: Option<Range<usize>>, object: impl Into<String>, fault: Fault) {
        if self.problems.len() >= MOST_LISTED {
            self.unlisted_problems += 1;
            return;
        }
        let location = self.location(span);
        let Fault { cause, hint } = fault;
        self.problems.push(Problem {
            location,
            object: object.into(),
            cause,
            hint,
        });
    }

    /// As [`problem`](Self::problem), for a fault that takes a search to describe.
    pub fn problem_with(
        &mut self,
        span: Option<Range<usize>>,
        object: impl Into<String>,
        fault: impl FnOnce() -> Fault,
    ) {
        if self.problems.len() >= MOST_LISTED {
            self.unlisted_problems += 1;
            return;
        }
        self.problem(span, object, fault());
    }

    /// Notes an oddity of the table that stands there.
    pub fn warn(&mut self, origin: &Origin, text: String) {
        if self.warnings.len() >= MOST_LISTED {
            self.unlisted_warnings += 1;
            return;
        }
        let location = Some(self.location(Some(origin.span.clone())));
        self.warnings.push(Warning { location, text });
    }

    fn location(&self, span: Option<Range<usize>>) -> Location {
        Location::of(self.file, self.source, span)
    }

    /// The tables under this key of the file, without those that lack a required key.
    pub fn tables<T: Table>(&mut self, key: &FileKey<'_>, value: &FileValue<'_>) -> Vec<Read<T>> {
        let mut read: Vec<Read<T>> = match (value.get_ref(), T::IS_SINGLE) {
            (DeValue::Array(_), true) => {
                let fault = Fault::new("is a list of tables", format!("write {} once", T::head()));
                self.problem(Some(key.span()), format!("{}: ", T::NAME), fault);
                Vec::new()
            }
            (_, true) => self.table(value).into_iter().collect(),
            (DeValue::Array(tables), false) => {
                let read = tables.iter().filter_map(|table| self.table(table));
                read.collect()
            }
            (_, false) => {
                let fault = Fault::new("is not a list of tables", format!("write {}", T::head()));
                self.problem(Some(key.span()), format!("{}: ", T::NAME), fault);
                Vec::new()
            }
        };
        self.collisions(&read);
        // Those beyond the most are a fault already, and each of them would be compared with all others.
        let (most, _) = T::MOST;
        read.truncate(most.max(1));
        for Read { table, origin } in &read {
            for text in table.lint(&origin.keys()) {
                self.warn(origin, text);
            }
        }
        read
    }

    /// `None` if the value is not a table or lacks a required key; the problems say why.
    fn table<T: Table>(&mut self, value: &FileValue<'_>) -> Option<Read<T>> {
        let DeValue::Table(file) = value.get_ref() else {
            let fault = Fault::new("is not a table", format!("write {}", T::head()));
            self.problem(Some(value.span()), format!("{}: ", T::NAME), fault);
            return None;
        };
        let object = object_name::<T>(file);
        let mut table = T::blank();
        let mut origin = Origin {
            given: Vec::new(),
            span: value.span(),
        };
        let mut bad = Vec::new();
        for (name, value) in file {
            let Some(key) = T::key(name.get_ref()) else {
                let fault = || unknown_key::<T>(name.get_ref());
                self.problem_with(Some(name.span()), format!("{object}: "), fault);
                continue;
            };
            origin.given.push((key.name, value.span()));
            if let Err(fault) = set(key, &mut table, &given(value.get_ref())) {
                bad.push(key.name);
                let object = format!("{object}: {}: ", key.name);
                self.problem(Some(value.span()), object, fault);
            }
        }
        let mut is_complete = true;
        for key in T::keys() {
            let Some(line) = key.required else { continue };
            if !origin.has(key.name) {
                let cause = format!("{} is missing", key.name);
                let fault = Fault::new(cause, format!("add it: {line}"));
                self.problem(Some(value.span()), format!("{object}: "), fault);
            }
            is_complete &= origin.has(key.name) && !bad.contains(&key.name);
        }
        if !is_complete {
            return None;
        }
        if !origin.has("name") {
            table.take_default_name();
        }
        // A key that could not be read is not also missing.
        if let Err((key, fault)) = table.check()
            && !bad.contains(&key)
        {
            let object = format!("{object}: {key}: ");
            self.problem(Some(origin.of_key(key)), object, fault);
        }
        Some(Read { table, origin })
    }

    fn collisions<T: Table>(&mut self, read: &[Read<T>]) {
        let (most, hint) = T::MOST;
        if read.len() > most {
            let cause = format!("{} are too many", count(read.len(), T::NAME));
            let fault = Fault::new(cause, format!("at most {most}; {hint}"));
            self.problem(Some(read[most].origin.span.clone()), "", fault);
        }
        let mut first: HashMap<&str, &Read<T>> = HashMap::new();
        for (i, one) in read.iter().take(most.max(1)).enumerate() {
            let namesake = first.get(one.table.name()).copied();
            self.collision(one, namesake, &read[..i]);
            first.entry(one.table.name()).or_insert(one);
        }
    }

    /// Says with which earlier table this one collides: the first of its name, the first of its
    /// address. All of them would be a line for every pair.
    fn collision<T: Table>(
        &mut self,
        one: &Read<T>,
        namesake: Option<&Read<T>>,
        earlier: &[Read<T>],
    ) {
        let (kind, mine) = (T::NAME, &one.table);
        let object = format!("{kind} {:?}: ", mine.name());
        let span = one.origin.span.clone();
        if let Some(other) = namesake {
            let fault = Fault::new(
                format!("the {kind} on line {} has the same name", self.line(other)),
                T::NAMESAKE_HINT.map_or_else(
                    || format!("give each {kind} a name of its own: name = \"web\""),
                    str::to_owned,
                ),
            );
            self.problem(Some(span.clone()), object.clone(), fault);
        }
        let neighbour = |other: &&Read<T>| mine.collides(&other.table);
        if let Some(other) = earlier.iter().find(neighbour) {
            let cause = format!(
                "its address {} collides with {} of {kind} {:?} on line {}",
                mine.address(),
                other.table.address(),
                other.table.name(),
                self.line(other),
            );
            let fault = Fault::new(cause, T::COLLISION_HINT);
            self.problem(Some(span), object, fault);
        }
    }

    fn line<T>(&self, read: &Read<T>) -> usize {
        self.location(Some(read.origin.span.clone())).line
    }
}

/// Sets what the file says. An empty list of prefixes would be every address, and its user hardly means
/// that: what fills the list may have found nothing.
fn set<T: Table>(key: &Key<T>, table: &mut T, given: &Given) -> Result<(), Fault> {
    match (key.form.kind, given) {
        (Kind::Prefixes, Given::List(list)) if list.is_empty() && key.form.may_be_none() => {
            Err(Fault::new(
                "is an empty list, which would be every address",
                format!("name a prefix, or remove {} for every address", key.name),
            ))
        }
        _ => key.set(table, given),
    }
}

/// The table for messages: by its name, or by the first key that it must have.
fn object_name<T: Table>(table: &DeTable<'_>) -> String {
    let text = |key: &str| {
        let value: Option<&FileValue<'_>> = table.get(key);
        value.and_then(|value| value.get_ref().as_str())
    };
    let required = T::keys().iter().find(|key| key.required.is_some());
    match text("name").or(required.and_then(|key| text(key.name))) {
        Some(name) => format!("{} {name:?}", T::NAME),
        None => T::NAME.to_owned(),
    }
}

fn given(value: &DeValue<'_>) -> Given {
    match value {
        DeValue::String(text) => Given::Text(text.to_string()),
        DeValue::Boolean(on) => Given::Flag(*on),
        DeValue::Float(number) => number
            .as_str()
            .parse()
            .map_or(Given::Other("a malformed number"), Given::Number),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map_or(Given::Other("a number out of range"), |n| {
                Given::Number(n as f64)
            }),
        DeValue::Array(items) => {
            let texts: Option<Vec<String>> = items
                .iter()
                .map(|item| item.get_ref().as_str().map(str::to_owned))
                .collect();
            texts.map_or(
                Given::Other("a list with other things than strings"),
                Given::List,
            )
        }
        DeValue::Datetime(_) => Given::Other("a date"),
        DeValue::Table(_) => Given::Other("a table"),
    }
}

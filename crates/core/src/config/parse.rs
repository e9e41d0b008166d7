//! From the text of `weir.toml` to listeners, with the place of everything that is wrong.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{Fault, Place, Problem, Problems};
use super::keys::{Given, Key, LISTENER_KEYS};
use super::lint::lint;
use super::suggest::did_you_mean;
use super::{Config, Warning};
use crate::listener::{ListenAddress, Listener, MAX_LISTENERS};

/// Reads a config file. `file` is its name for messages.
///
/// # Errors
/// Everything that is wrong in it: syntax, unknown tables and keys, values, and listeners that
/// collide.
pub fn parse(file: &str, source: &str) -> Result<Config, Problems> {
    let mut reader = Reader {
        file,
        source,
        problems: Vec::new(),
    };
    let listeners = reader.file();
    if !reader.problems.is_empty() {
        reader
            .problems
            .sort_by_key(|p| (p.place.line, p.place.column));
        return Err(Problems(reader.problems));
    }
    let mut config = Config {
        listeners: Vec::new(),
        warnings: Vec::new(),
    };
    for read in listeners {
        let place = Place::of(file, source, Some(read.span));
        config.warnings.extend(
            lint(&read.listener, &read.given)
                .into_iter()
                .map(|text| Warning {
                    place: Some(place.clone()),
                    text,
                }),
        );
        config.listeners.push(read.listener);
    }
    Ok(config)
}

/// A listener as it was read.
struct Read {
    listener: Listener,
    given: Vec<&'static str>,
    span: Range<usize>,
}

struct Reader<'a> {
    file: &'a str,
    source: &'a str,
    problems: Vec<Problem>,
}

impl Reader<'_> {
    fn problem(&mut self, span: Option<Range<usize>>, object: impl Into<String>, fault: Fault) {
        let place = Place::of(self.file, self.source, span);
        let Fault { cause, hint } = fault;
        self.problems.push(Problem {
            place,
            object: object.into(),
            cause,
            hint,
        });
    }

    fn file(&mut self) -> Vec<Read> {
        let table = match DeTable::parse(self.source) {
            Ok(table) => table,
            Err(error) => {
                let hint = "the file is TOML: `weir check --example` prints one to start from";
                let cause = error.message().trim().replace('\n', "; ");
                self.problem(error.span(), "", Fault::new(cause, hint));
                return Vec::new();
            }
        };
        let mut read = Vec::new();
        for (key, value) in table.get_ref() {
            match (key.get_ref().as_ref(), value.get_ref()) {
                ("listener", DeValue::Array(tables)) => {
                    read = tables
                        .iter()
                        .filter_map(|table| self.listener(table))
                        .collect();
                }
                ("listener", _) => {
                    let fault = Fault::new("is not a list of tables", "write [[listener]]");
                    self.problem(Some(key.span()), "listener: ", fault);
                }
                (name, _) => self.problem(Some(key.span()), "", unknown_table(name)),
            }
        }
        if read.is_empty() && self.problems.is_empty() {
            let hint = "add one: [[listener]] with address = \"*:80\"";
            self.problem(None, "", Fault::new("there is no listener in it", hint));
        }
        self.collisions(&read);
        read
    }

    /// `None` if it is no table or has no good address; the problems say why.
    fn listener(&mut self, value: &Spanned<DeValue<'_>>) -> Option<Read> {
        let DeValue::Table(table) = value.get_ref() else {
            let fault = Fault::new("is not a table", "write [[listener]]");
            self.problem(Some(value.span()), "listener: ", fault);
            return None;
        };
        let object = object_name(table);
        let nowhere = ListenAddress { ip: None, port: 0 };
        let mut listener = Listener::new("", nowhere);
        let mut given = Vec::new();
        for (name, value) in table {
            match Key::by_name(name.get_ref()) {
                None => {
                    let fault = unknown_key(name.get_ref());
                    self.problem(Some(name.span()), format!("{object}: "), fault);
                }
                Some(key) => {
                    given.push(key.name);
                    if let Err(fault) = (key.set)(&mut listener, &given_value(value.get_ref())) {
                        let object = format!("{object}: {}: ", key.name);
                        self.problem(Some(value.span()), object, fault);
                    }
                }
            }
        }
        if !given.contains(&"address") {
            let hint = "add the address and port to guard: address = \"*:80\"";
            let fault = Fault::new("it has no address", hint);
            self.problem(Some(value.span()), format!("{object}: "), fault);
        }
        if listener.address == nowhere {
            return None;
        }
        if !given.contains(&"name") {
            listener.name = default_name(listener.address);
        }
        Some(Read {
            listener,
            given,
            span: value.span(),
        })
    }

    fn collisions(&mut self, read: &[Read]) {
        if read.len() > MAX_LISTENERS {
            let hint = format!("at most {MAX_LISTENERS}; \"*:PORT\" covers every address in one");
            let fault = Fault::new(format!("{} listeners are too many", read.len()), hint);
            self.problem(Some(read[MAX_LISTENERS].span.clone()), "", fault);
        }
        for (i, one) in read.iter().enumerate() {
            self.collision(one, &read[..i]);
        }
    }

    /// Says with which earlier listener this one collides: the first of its name, the first of its
    /// address. All of them would be a line for every pair.
    fn collision(&mut self, one: &Read, earlier: &[Read]) {
        let object = format!("listener {:?}: ", one.listener.name);
        let (name, mine) = (&one.listener.name, one.listener.address);
        if let Some(namesake) = earlier.iter().find(|other| other.listener.name == *name) {
            let line = self.line(namesake);
            let cause = format!("the listener on line {line} has the same name");
            let hint = "give each listener a name of its own: name = \"web\"";
            self.problem(
                Some(one.span.clone()),
                object.clone(),
                Fault::new(cause, hint),
            );
        }
        if let Some(other) = earlier
            .iter()
            .find(|other| mine.conflicts(&other.listener.address))
        {
            let (line, theirs) = (self.line(other), other.listener.address);
            let cause = format!(
                "its address {mine} collides with {theirs} of listener {:?} on line {line}",
                other.listener.name
            );
            let hint =
                "one listener for each address and port: \"*\" covers \"0.0.0.0\" and \"[::]\"";
            self.problem(Some(one.span.clone()), object, Fault::new(cause, hint));
        }
    }

    fn line(&self, read: &Read) -> usize {
        Place::of(self.file, self.source, Some(read.span.clone())).line
    }
}

/// The name of a listener that was given none.
pub fn default_name(address: ListenAddress) -> String {
    format!("port-{}", address.port)
}

fn object_name(table: &DeTable<'_>) -> String {
    let text = |key| {
        table
            .get(key)
            .and_then(|v: &Spanned<DeValue<'_>>| v.get_ref().as_str())
    };
    match text("name").or_else(|| text("address")) {
        Some(name) => format!("listener {name:?}"),
        None => "listener".to_owned(),
    }
}

fn unknown_table(name: &str) -> Fault {
    let hint = match did_you_mean(name, &["listener"]) {
        Some(_) => "did you mean [[listener]]?".to_owned(),
        None if Key::by_name(name).is_some() => {
            format!("{name} belongs below a line [[listener]]")
        }
        None => "this version knows [[listener]]".to_owned(),
    };
    Fault::new(format!("unknown table or key {name:?}"), hint)
}

fn unknown_key(name: &str) -> Fault {
    let names: Vec<&str> = LISTENER_KEYS.iter().map(|key| key.name).collect();
    let hint = match did_you_mean(name, &names) {
        Some(meant) => format!("did you mean {meant}?"),
        None => format!("the keys are {}", names.join(", ")),
    };
    Fault::new(format!("unknown key {name:?}"), hint)
}

fn given_value(value: &DeValue<'_>) -> Given {
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

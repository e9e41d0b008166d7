//! From the text of `weir.toml` to listeners and proxies, with the place of everything that is wrong.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::class_check::{self, Owners};
use crate::error::{Fault, Place, Problem, Problems};
use crate::metrics_keys::{MetricsSettings, without_proxies};
use crate::suggest::did_you_mean;
use crate::table::{Key, Kind, Table, unknown_key};
use crate::unused::{Around, unused};
use crate::value::Given;
use crate::{ApiSettings, Config, Warning};
use weir_core::class::Class;
use weir_core::controller;
use weir_core::listener::Listener;
use weir_core::proxy::Proxy;

/// Reads a config file. `file` is its name for messages.
///
/// # Errors
/// Everything that is wrong in it: syntax, unknown tables and keys, values, and tables that
/// collide.
pub fn parse(file: &str, source: &str) -> Result<Config, Problems> {
    let mut reader = Reader {
        file,
        source,
        problems: Vec::new(),
    };
    let Tables {
        listeners,
        proxies,
        classes,
        controller,
        api,
        metrics,
    } = reader.file();
    reader.classes(&classes, &listeners, &proxies);
    if !reader.problems.is_empty() {
        reader
            .problems
            .sort_by_key(|p| (p.place.line, p.place.column));
        return Err(Problems(reader.problems));
    }
    let mut warnings = reader.warnings(&listeners);
    warnings.extend(reader.warnings(&proxies));
    warnings.extend(reader.warnings(&classes));
    let around = Around {
        listeners: listeners.iter().map(|read| &read.table).collect(),
        proxies: proxies.iter().map(|read| &read.table).collect(),
        has_controller: controller.is_some(),
    };
    warnings.extend(reader.unused(&classes, &around));
    warnings.extend(reader.warnings(controller.as_slice()));
    warnings.extend(reader.warnings(api.as_slice()));
    warnings.extend(reader.warnings(metrics.as_slice()));
    if !listeners.is_empty()
        && !proxies.is_empty()
        && let Some(read) = &metrics
        && let Some(text) = without_proxies(&read.table)
    {
        let place = Some(reader.place(Some(read.span.clone())));
        warnings.push(Warning { place, text });
    }
    let classes: Vec<Class> = classes.into_iter().map(|read| read.table).collect();
    let classed = |mut proxy: Proxy| {
        let is_its = |class: &&Class| class.is_of_proxy(&proxy.name);
        proxy.classes = classes.iter().filter(is_its).cloned().collect();
        proxy
    };
    let proxies = proxies.into_iter().map(|read| classed(read.table));
    Ok(Config {
        listeners: listeners.into_iter().map(|read| read.table).collect(),
        proxies: proxies.collect(),
        classes,
        controller: controller.map(|read| read.table),
        api: api.map(|read| read.table),
        metrics: metrics.map(|read| read.table),
        warnings,
    })
}

/// All tables of a file.
#[derive(Default)]
struct Tables {
    listeners: Vec<Read<Listener>>,
    proxies: Vec<Read<Proxy>>,
    classes: Vec<Read<Class>>,
    controller: Option<Read<controller::Settings>>,
    api: Option<Read<ApiSettings>>,
    metrics: Option<Read<MetricsSettings>>,
}

/// A table as it was read.
struct Read<T> {
    table: T,
    /// The keys that it sets, and where their values stand.
    given: Vec<(&'static str, Range<usize>)>,
    span: Range<usize>,
}

struct Reader<'a> {
    file: &'a str,
    source: &'a str,
    problems: Vec<Problem>,
}

impl Reader<'_> {
    fn place(&self, span: Option<Range<usize>>) -> Place {
        Place::of(self.file, self.source, span)
    }

    fn problem(&mut self, span: Option<Range<usize>>, object: impl Into<String>, fault: Fault) {
        let place = self.place(span);
        let Fault { cause, hint } = fault;
        self.problems.push(Problem {
            place,
            object: object.into(),
            cause,
            hint,
        });
    }

    fn file(&mut self) -> Tables {
        let mut tables = Tables::default();
        let table = match DeTable::parse(self.source) {
            Ok(table) => table,
            Err(error) => {
                let hint = "the file is TOML: `weir check --example` prints one to start from";
                let cause = error.message().trim().replace('\n', "; ");
                self.problem(error.span(), "", Fault::new(cause, hint));
                return tables;
            }
        };
        for (key, value) in table.get_ref() {
            match key.get_ref().as_ref() {
                Listener::NAME => tables.listeners = self.tables(key, value),
                Proxy::NAME => tables.proxies = self.tables(key, value),
                Class::NAME => tables.classes = self.tables(key, value),
                controller::Settings::NAME => tables.controller = self.single(key, value),
                ApiSettings::NAME => tables.api = self.single(key, value),
                MetricsSettings::NAME => tables.metrics = self.single(key, value),
                name => self.problem(Some(key.span()), "", unknown_table(name)),
            }
        }
        if tables.listeners.is_empty() && tables.proxies.is_empty() && self.problems.is_empty() {
            let hint = "add one: [[listener]] with address = \"*:80\", \
                        or [[proxy]] with listen = \"*:3128\" and mode = \"forward\"";
            let fault = Fault::new("there is neither a listener nor a proxy in it", hint);
            self.problem(None, "", fault);
        }
        tables
    }

    fn classes(
        &mut self,
        classes: &[Read<Class>],
        listeners: &[Read<Listener>],
        proxies: &[Read<Proxy>],
    ) {
        let tables: Vec<Class> = classes.iter().map(|read| read.table.clone()).collect();
        let listeners: Vec<&Listener> = listeners.iter().map(|read| &read.table).collect();
        let proxies: Vec<&str> = proxies.iter().map(|read| read.table.name()).collect();
        let owners = Owners {
            listeners: &listeners,
            proxies: &proxies,
        };
        for (index, key, fault) in class_check::check(&tables, &owners) {
            let Read { table, given, span } = &classes[index];
            let at_key = given.iter().find(|(given, _)| Some(*given) == key);
            let span = at_key.map_or(span, |(_, span)| span).clone();
            let key = key.map(|key| format!("{key}: ")).unwrap_or_default();
            self.problem(Some(span), format!("class {:?}: {key}", table.name), fault);
        }
    }

    /// The tables of one kind; those that lack what is required are left out.
    fn tables<T: Table>(
        &mut self,
        key: &Spanned<Cow<'_, str>>,
        value: &Spanned<DeValue<'_>>,
    ) -> Vec<Read<T>> {
        let DeValue::Array(tables) = value.get_ref() else {
            let fault = Fault::new("is not a list of tables", format!("write [[{}]]", T::NAME));
            self.problem(Some(key.span()), format!("{}: ", T::NAME), fault);
            return Vec::new();
        };
        let read: Vec<Read<T>> = tables
            .iter()
            .filter_map(|table| self.table(table))
            .collect();
        self.collisions(&read);
        read
    }

    /// The table of which a file has one.
    fn single<T: Table>(
        &mut self,
        key: &Spanned<Cow<'_, str>>,
        value: &Spanned<DeValue<'_>>,
    ) -> Option<Read<T>> {
        if let DeValue::Array(_) = value.get_ref() {
            let fault = Fault::new("is a list of tables", format!("write {} once", T::head()));
            self.problem(Some(key.span()), format!("{}: ", T::NAME), fault);
            return None;
        }
        self.table(value)
    }

    /// `None` if it is no table or lacks what is required; the problems say why.
    fn table<T: Table>(&mut self, value: &Spanned<DeValue<'_>>) -> Option<Read<T>> {
        let DeValue::Table(table) = value.get_ref() else {
            let fault = Fault::new("is not a table", format!("write {}", T::head()));
            self.problem(Some(value.span()), format!("{}: ", T::NAME), fault);
            return None;
        };
        let object = object_name::<T>(table);
        let mut read = Read {
            table: T::blank(),
            given: Vec::new(),
            span: value.span(),
        };
        let mut bad = Vec::new();
        for (name, value) in table {
            let Some(key) = Key::<T>::by_name(name.get_ref()) else {
                let fault = unknown_key::<T>(name.get_ref());
                self.problem(Some(name.span()), format!("{object}: "), fault);
                continue;
            };
            read.given.push((key.name, value.span()));
            if let Err(fault) = set(key, &mut read.table, &given_value(value.get_ref())) {
                bad.push(key.name);
                let object = format!("{object}: {}: ", key.name);
                self.problem(Some(value.span()), object, fault);
            }
        }
        for (name, line) in T::REQUIRED {
            if !read.has(name) {
                let fault = Fault::new(format!("it has no {name}"), format!("add it: {line}"));
                self.problem(Some(value.span()), format!("{object}: "), fault);
            }
        }
        if T::REQUIRED
            .iter()
            .any(|(name, _)| !read.has(name) || bad.contains(name))
        {
            return None;
        }
        if !read.has("name") {
            read.table.take_default_name();
        }
        // A key that could not be read is not also missing.
        if let Err((key, fault)) = read.table.check()
            && !bad.contains(&key)
        {
            let span = read.given.iter().find(|(given, _)| *given == key);
            let span = span.map_or(read.span.clone(), |(_, span)| span.clone());
            self.problem(Some(span), format!("{object}: {key}: "), fault);
        }
        Some(read)
    }

    fn collisions<T: Table>(&mut self, read: &[Read<T>]) {
        let (most, hint) = T::MOST;
        if read.len() > most {
            let cause = format!("{} {}s are too many", read.len(), T::NAME);
            let fault = Fault::new(cause, format!("at most {most}; {hint}"));
            self.problem(Some(read[most].span.clone()), "", fault);
        }
        let mut first: HashMap<&str, &Read<T>> = HashMap::new();
        for (i, one) in read.iter().enumerate() {
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
        if let Some(other) = namesake {
            let line = self.line(other);
            let fault = Fault::new(
                format!("the {kind} on line {line} has the same name"),
                format!("give each {kind} a name of its own: name = \"web\""),
            );
            self.problem(Some(one.span.clone()), object.clone(), fault);
        }
        if !T::HAS_ADDRESS {
            return;
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
            let fault = Fault::new(cause, T::ONE_ADDRESS_HINT);
            self.problem(Some(one.span.clone()), object, fault);
        }
    }

    fn warnings<T: Table>(&self, read: &[Read<T>]) -> Vec<Warning> {
        let of_one = |one: &Read<T>| {
            let given: Vec<&str> = one.given.iter().map(|(name, _)| *name).collect();
            let span = one.span.clone();
            let warning = move |text| Warning {
                place: Some(self.place(Some(span.clone()))),
                text,
            };
            one.table.lint(&given).into_iter().map(warning)
        };
        read.iter().flat_map(of_one).collect()
    }

    fn unused(&self, classes: &[Read<Class>], around: &Around<'_>) -> Vec<Warning> {
        let of_one = |read: &'_ Read<Class>| read.given.iter().map(|(name, _)| *name).collect();
        let given: Vec<(&Class, Vec<&str>)> = classes
            .iter()
            .map(|read| (&read.table, of_one(read)))
            .collect();
        let odd = unused(&given, around).into_iter();
        odd.map(|(index, text)| Warning {
            place: Some(self.place(Some(classes[index].span.clone()))),
            text,
        })
        .collect()
    }

    fn line<T>(&self, read: &Read<T>) -> usize {
        self.place(Some(read.span.clone())).line
    }
}

/// Sets what the file says. An empty list of prefixes is every address, and hardly meant: what fills the
/// list may have found nothing.
fn set<T: Table>(key: &Key<T>, table: &mut T, given: &Given) -> Result<(), Fault> {
    match (key.kind, given) {
        (Kind::MaybePrefixes, Given::List(list)) if list.is_empty() => Err(Fault::new(
            "is an empty list, which would be every address",
            format!("name a prefix, or leave {} out for every address", key.name),
        )),
        _ => (key.set)(table, given),
    }
}

impl<T> Read<T> {
    fn has(&self, key: &str) -> bool {
        self.given.iter().any(|(given, _)| *given == key)
    }
}

fn object_name<T: Table>(table: &DeTable<'_>) -> String {
    let text = |key: &str| {
        table
            .get(key)
            .and_then(|v: &Spanned<DeValue<'_>>| v.get_ref().as_str())
    };
    let address = T::REQUIRED.first().and_then(|(address, _)| text(address));
    match text("name").or(address) {
        Some(name) => format!("{} {name:?}", T::NAME),
        None => T::NAME.to_owned(),
    }
}

/// The tables that a file may have: each name, and the line that begins it.
fn known_tables() -> [(&'static str, String); 6] {
    fn of<T: Table>() -> (&'static str, String) {
        (T::NAME, T::head())
    }
    [
        of::<Listener>(),
        of::<Proxy>(),
        of::<Class>(),
        of::<controller::Settings>(),
        of::<ApiSettings>(),
        of::<MetricsSettings>(),
    ]
}

fn unknown_table(name: &str) -> Fault {
    fn owner<T: Table>(name: &str) -> Option<String> {
        Key::<T>::by_name(name).map(|_| T::head())
    }
    let owners = [
        owner::<Listener>(name),
        owner::<Proxy>(name),
        owner::<Class>(name),
        owner::<controller::Settings>(name),
        owner::<ApiSettings>(name),
        owner::<MetricsSettings>(name),
    ];
    let owners: Vec<String> = owners.into_iter().flatten().collect();
    let tables = known_tables();
    let names = tables.each_ref().map(|(name, _)| *name);
    let heads = tables.each_ref().map(|(_, head)| head.as_str());
    let meant =
        did_you_mean(name, &names).and_then(|meant| tables.iter().find(|(name, _)| *name == meant));
    let hint = match meant {
        Some((_, head)) => format!("did you mean {head}?"),
        None if !owners.is_empty() => {
            format!("{name} belongs below a line {}", owners.join(" or "))
        }
        None => format!("this version knows {}", heads.join(", ")),
    };
    Fault::new(format!("unknown table or key {name:?}"), hint)
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

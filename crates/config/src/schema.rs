//! Every kind of table that a file may have, in the order of the example file.
//!
//! This list is the only one: the reader, `weir explain`, the example file and the reference page go
//! through it. What they show of a kind is its [`TableDoc`].

use std::sync::LazyLock;

use crate::config::Config;
use crate::reader::{FileKey, FileValue, Origin, Reader};
use crate::table::Table;
use crate::tables::api::ApiSettings;
use crate::tables::dashboard::DashboardSettings;
use crate::tables::events::EventsSettings;
use crate::tables::metrics::MetricsSettings;
use crate::types::WordText;
use crate::value::Setting;
use weir_core::class::Class;
use weir_core::controller;
use weir_core::listener::Listener;
use weir_core::proxy::Proxy;
use weir_core::quic::QuicListener;
use weir_core::shape::Shape;
use weir_core::timewait::Destination;

/// One kind of table: what it is, and how its tables get into a [`Config`].
pub(crate) struct Section {
    /// What people read of it.
    pub doc: TableDoc,
    /// Reads the tables under this key of the file into the config, and says where each stands.
    pub read: ReadSection,
}

type ReadSection = Box<
    dyn Fn(&mut Reader<'_>, &FileKey<'_>, &FileValue<'_>, &mut Config) -> Vec<Origin> + Send + Sync,
>;

static SECTIONS: LazyLock<Vec<Section>> = LazyLock::new(|| {
    vec![
        Section::new(|config, tables: Vec<Listener>| config.listeners = tables),
        Section::new(|config, tables: Vec<Class>| config.classes = tables),
        Section::new(|config, tables: Vec<QuicListener>| config.quic = tables),
        Section::new(|config, tables: Vec<Proxy>| config.proxies = tables),
        Section::new(|config, tables: Vec<Destination>| config.destinations = tables),
        Section::new(|config, tables: Vec<Shape>| config.shapes = tables),
        Section::new(|config, mut tables: Vec<controller::Settings>| {
            config.controller = tables.pop();
        }),
        Section::new(|config, mut tables: Vec<ApiSettings>| config.api = tables.pop()),
        Section::new(|config, mut tables: Vec<MetricsSettings>| config.metrics = tables.pop()),
        Section::new(|config, mut tables: Vec<DashboardSettings>| config.dashboard = tables.pop()),
        Section::new(|config, mut tables: Vec<EventsSettings>| config.events = tables.pop()),
    ]
});

/// Every kind of table.
pub(crate) fn sections() -> &'static [Section] {
    &SECTIONS
}

/// What people read of every kind of table, in the order of the example file.
pub fn tables() -> impl Iterator<Item = &'static TableDoc> {
    sections().iter().map(|section| &section.doc)
}

impl Section {
    fn new<T: Table>(put: impl Fn(&mut Config, Vec<T>) + Send + Sync + 'static) -> Section {
        let read = move |reader: &mut Reader<'_>,
                         key: &FileKey<'_>,
                         value: &FileValue<'_>,
                         config: &mut Config| {
            let read = reader.tables::<T>(key, value).into_iter();
            let (tables, origins) = read.map(|read| (read.table, read.origin)).unzip();
            put(config, tables);
            origins
        };
        Section {
            doc: TableDoc::of::<T>(),
            read: Box::new(read),
        }
    }
}

/// What people read of a kind of table.
pub struct TableDoc {
    /// Its name.
    pub name: &'static str,
    /// The line that begins it.
    pub head: String,
    /// What it describes, as a heading.
    pub title: &'static str,
    /// What it describes and what it is for, in a sentence or two.
    pub text: &'static str,
    /// Its keys, in the order of the example file.
    pub keys: Vec<KeyDoc>,
}

/// What people read of a key.
pub struct KeyDoc {
    /// Its name.
    pub name: &'static str,
    /// The line that begins its table.
    pub head: String,
    /// What it sets, in one line without a full stop.
    pub text: &'static str,
    /// What else to know; may be empty.
    pub note: &'static str,
    /// The type of its value: "duration".
    pub type_name: &'static str,
    /// The unit of a bare number; empty where the value has its unit, or needs none.
    pub unit: &'static str,
    /// The values that it takes, in words.
    pub values: String,
    /// The words that it takes, each with its text; empty if it takes other values.
    pub words: Vec<WordText>,
    /// Whether its table needs it.
    pub is_required: bool,
    /// What holds without it, in words; `required` if its table needs it.
    pub default: String,
    /// What holds without it, where the example's value does not say it.
    pub absent: Option<&'static str>,
    /// The version that had it first.
    pub since: &'static str,
    /// Its line in the example file; a comment where there is no value to write.
    pub example: String,
}

impl KeyDoc {
    /// Whether its line in the example file has the value that holds without it.
    pub fn example_is_default(&self) -> bool {
        let value = self.example.split_once(" = ").map(|(_, value)| value);
        value.is_some_and(|value| value.trim_matches('"') == self.default)
    }
}

impl TableDoc {
    /// What people read of the tables that describe a `T`.
    pub fn of<T: Table>() -> TableDoc {
        TableDoc {
            name: T::NAME,
            head: T::head(),
            title: T::TITLE,
            text: T::TEXT,
            keys: key_docs::<T>(),
        }
    }
}

fn key_docs<T: Table>() -> Vec<KeyDoc> {
    let (blank, example) = (T::blank(), T::example());
    let keys = T::keys().iter().map(|key| KeyDoc {
        name: key.name,
        head: T::head(),
        text: key.text,
        note: key.note,
        type_name: key.form.kind.type_name(),
        unit: key.form.unit,
        values: key.form.values.clone(),
        words: key.words().to_vec(),
        is_required: key.required.is_some(),
        default: key.default_text(&blank),
        absent: key.absent,
        since: key.since,
        example: example_line(
            key.name,
            key.example,
            key.form.may_be_none(),
            key.show(&example),
        ),
    });
    keys.collect()
}

/// A key with its value. Where no value says what holds, a comment with an example of one.
fn example_line(name: &str, example: Option<&str>, may_be_none: bool, setting: Setting) -> String {
    match (setting, example) {
        (Setting::None, _) => format!("# {name} ="),
        (Setting::List(list), Some(example)) if list.is_empty() => format!("# {name} = {example}"),
        (Setting::List(list), None) if list.is_empty() && may_be_none => format!("# {name} ="),
        (setting, _) => format!("{name} = {setting}"),
    }
}

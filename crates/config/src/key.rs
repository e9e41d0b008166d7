//! One key of a table: its name, its field, its type and its texts, declared once.
//!
//! ```
//! use weir_config::types::whole;
//! use weir_config::{Given, Key, field};
//!
//! #[derive(Clone, Default)]
//! struct Shape { burst: u32 }
//!
//! let key = Key::new("burst", field!(Shape, burst), whole(1..=1000), "Packets that may come at once");
//! let mut shape = Shape::default();
//! key.set(&mut shape, &Given::Number(5.0)).unwrap();
//! assert_eq!(shape.burst, 5);
//! assert_eq!(key.form.values, "1 to 1000");
//! ```
//!
//! A type that does not fit the field does not compile:
//!
//! ```compile_fail,E0308
//! use weir_config::{Key, field, types::flag};
//!
//! #[derive(Clone, Default)]
//! struct Shape { burst: u32 }
//!
//! Key::new("burst", field!(Shape, burst), flag(), "Packets that may come at once");
//! ```

use crate::error::Fault;
use crate::types::{Form, Type, WordText};
use crate::value::{Given, Setting};

/// The version whose keys say nothing else.
const FIRST_VERSION: &str = "0.1.0";

/// A field of a table's settings struct, for reading and for writing. [`field!`](crate::field!) makes it.
pub struct Field<T, V> {
    /// The field.
    pub get: fn(&T) -> &V,
    /// The field, to be changed.
    pub get_mut: fn(&mut T) -> &mut V,
}

/// The [`Field`] of a struct: `field!(Proxy, health.interval)`.
#[macro_export]
macro_rules! field {
    ($table:ty, $($path:ident).+) => {
        $crate::key::Field {
            get: |table: &$table| &table.$($path).+,
            get_mut: |table: &mut $table| &mut table.$($path).+,
        }
    };
}

type Set<T> = Box<dyn Fn(&mut T, &Given) -> Result<(), Fault> + Send + Sync>;
type Show<T> = Box<dyn Fn(&T) -> Setting + Send + Sync>;

/// One key of the tables that describe a `T`.
pub struct Key<T> {
    /// Its name in the file, in JSON and in status; flags have `-` for `_`.
    pub name: &'static str,
    /// What it sets, in one line without a full stop.
    pub text: &'static str,
    /// What else a reader of the reference page should know; may be empty.
    pub note: &'static str,
    /// What holds without the key, in words, where the value in effect does not say it.
    pub absent: Option<&'static str>,
    /// The line to write if the key is required and missing.
    pub required: Option<&'static str>,
    /// An example of its value, as TOML, where its default is an empty list.
    pub example: Option<&'static str>,
    /// What an empty list means, in a word.
    pub empty: &'static str,
    /// The version that had it first.
    pub since: &'static str,
    /// The sort of values that it takes.
    pub form: Form,
    set: Set<T>,
    show: Show<T>,
}

impl<T: 'static> Key<T> {
    /// The key `name`, which sets this field to values of this type. `text` says in one line what it sets.
    pub fn new<V: 'static>(
        name: &'static str,
        field: Field<T, V>,
        kind: Type<V>,
        text: &'static str,
    ) -> Key<T> {
        let Type { form, read, show } = kind;
        let Field { get, get_mut } = field;
        Key {
            name,
            text,
            note: "",
            absent: None,
            required: None,
            example: None,
            empty: "none",
            since: FIRST_VERSION,
            form,
            set: Box::new(move |table, given| {
                *get_mut(table) = read(given)?;
                Ok(())
            }),
            show: Box::new(move |table| show(get(table))),
        }
    }

    /// What else a reader of the reference page should know.
    pub fn note(self, note: &'static str) -> Key<T> {
        Key { note, ..self }
    }

    /// What holds without the key, in words.
    pub fn absent(self, absent: &'static str) -> Key<T> {
        let absent = Some(absent);
        Key { absent, ..self }
    }

    /// The table needs the key: `line` is an example of it.
    pub fn required(self, line: &'static str) -> Key<T> {
        let required = Some(line);
        Key { required, ..self }
    }

    /// An example of its value for the example file, as TOML.
    pub fn example(self, example: &'static str) -> Key<T> {
        let example = Some(example);
        Key { example, ..self }
    }

    /// What an empty list means, in a word: `all`.
    pub fn empty(self, empty: &'static str) -> Key<T> {
        Key { empty, ..self }
    }

    /// The keys of a table that this version had first.
    pub fn all_since(since: &'static str, keys: Vec<Key<T>>) -> Vec<Key<T>> {
        keys.into_iter().map(|key| key.since(since)).collect()
    }

    /// The version that had it first, if that is not the first of all.
    pub fn since(self, since: &'static str) -> Key<T> {
        Key { since, ..self }
    }

    /// Another way to show the value, where the one in effect is not that of the field.
    pub fn shown(self, show: impl Fn(&T) -> Setting + Send + Sync + 'static) -> Key<T> {
        let show = Box::new(show);
        Key { show, ..self }
    }
}

impl<T> Key<T> {
    /// Checks the value and sets it.
    ///
    /// # Errors
    /// What is wrong with the value. The table is then as before.
    pub fn set(&self, table: &mut T, given: &Given) -> Result<(), Fault> {
        (self.set)(table, given)
    }

    /// The value in effect.
    pub fn show(&self, table: &T) -> Setting {
        (self.show)(table)
    }

    /// The words that it takes, each with its text; empty if it takes other values.
    pub fn words(&self) -> &[WordText] {
        &self.form.words
    }

    /// What holds without the key, given the table with all defaults; empty if there is nothing to say.
    pub fn default_text(&self, blank: &T) -> String {
        if self.required.is_some() {
            return "required".to_owned();
        }
        match (self.absent, self.show(blank)) {
            (Some(absent), _) => absent.to_owned(),
            (None, Setting::Text(text)) => text,
            (None, Setting::List(list)) if list.is_empty() => self.empty.to_owned(),
            (None, Setting::None) => "none".to_owned(),
            (None, other) => other.to_string(),
        }
    }
}

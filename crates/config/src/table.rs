//! A kind of table in the file: its name, its keys, and the checks that one key alone cannot make.
//!
//! A new kind is one file in `tables/` that implements [`Table`], a field of [`crate::Config`], and a line in
//! [`crate::schema`]. File, flags, `weir explain`, the example file and the reference page follow from these.

use crate::error::Fault;
use crate::key::Key;
use crate::suggest::did_you_mean;
use crate::value::Given;

/// What a table of the file describes.
pub trait Table: Clone + 'static {
    /// The table's name: `[[NAME]]`, or `[NAME]` if a file has at most one.
    const NAME: &'static str;
    /// What it describes, as the heading of its comments in the example file: "A proxy".
    const TITLE: &'static str;
    /// What it describes and what it is for, in a sentence or two, for the reference page.
    const TEXT: &'static str;
    /// So many of these tables may be in a file, and what to do with more.
    const MOST: (usize, &'static str);
    /// Whether a file has at most one.
    const IS_SINGLE: bool = false;
    /// What to do when two tables have the same name, where it is not a key `name`.
    const NAMESAKE_HINT: Option<&'static str> = None;
    /// What to do when two tables have colliding addresses.
    const COLLISION_HINT: &'static str = "";

    /// Every key, in the order of the example file.
    fn keys() -> &'static [Key<Self>];
    /// Every setting at its default; required settings have no meaning yet.
    fn blank() -> Self;
    /// A table for the example file.
    fn example() -> Self {
        Self::blank()
    }
    /// Its name; unique among its kind.
    fn name(&self) -> &str {
        Self::NAME
    }
    /// Takes the name that it has if the file gives none.
    fn take_default_name(&mut self) {}
    /// The address that no other table of its kind may have; empty if it has none.
    fn address(&self) -> String {
        String::new()
    }
    /// Whether a file cannot have both, because one connection would belong to both addresses.
    fn collides(&self, _other: &Self) -> bool {
        false
    }
    /// Checks the keys together.
    ///
    /// # Errors
    /// What is wrong, with the key at which to say it.
    fn check(&self) -> Result<(), (&'static str, Fault)> {
        Ok(())
    }
    /// What is valid and odd, one sentence each; `given` are the keys that the user set.
    fn lint(&self, _given: &[&str]) -> Vec<String> {
        Vec::new()
    }

    /// The line that begins it.
    fn head() -> String {
        match Self::IS_SINGLE {
            true => format!("[{}]", Self::NAME),
            false => format!("[[{}]]", Self::NAME),
        }
    }
    /// The key with this name.
    fn key(name: &str) -> Option<&'static Key<Self>> {
        Self::keys().iter().find(|key| key.name == name)
    }
}

/// The table with these keys changed.
///
/// # Errors
/// An unknown key, a bad value, or keys that do not go together; the cause begins with the key.
pub fn change<'a, T: Table>(
    table: &T,
    keys: impl IntoIterator<Item = (&'a str, &'a Given)>,
) -> Result<T, Fault> {
    let at = |key: &str, fault: Fault| Fault::new(format!("{key}: {}", fault.cause), fault.hint);
    let mut table = table.clone();
    for (name, given) in keys {
        let key = T::key(name).ok_or_else(|| unknown_key::<T>(name))?;
        key.set(&mut table, given)
            .map_err(|fault| at(name, fault))?;
    }
    table.check().map_err(|(key, fault)| at(key, fault))?;
    Ok(table)
}

/// The fault of a key that this kind of table does not have.
pub(crate) fn unknown_key<T: Table>(name: &str) -> Fault {
    let names: Vec<&str> = T::keys().iter().map(|key| key.name).collect();
    let hint = match did_you_mean(name, &names) {
        Some(meant) => format!("did you mean {meant}?"),
        None => format!("the keys are {}", names.join(", ")),
    };
    Fault::new(format!("unknown key {name:?}"), hint)
}

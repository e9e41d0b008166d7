//! Flags that are the keys of a table of the config file, made from the list of its keys.

use std::fmt;
use std::ops::Deref;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Args, Command, FromArgMatches};
use weir_api::ClassSettings;
use weir_config::{Fault, Given, Key, Kind, Setting, Table, parse_name};
use weir_core::listener::Listener;

/// The flag of a key: of a list, one flag for each element.
pub fn long<T>(key: &Key<T>) -> String {
    let name = match key.form.kind.is_list() {
        true => key.name.strip_suffix('s').unwrap_or(key.name),
        false => key.name,
    };
    name.replace('_', "-")
}

/// A key's text and its default.
fn help<T: Table>(key: &Key<T>) -> String {
    let text = match key.form.kind.is_list() {
        true => format!("{} (may be repeated)", key.text),
        false => key.text.to_owned(),
    };
    if key.required.is_some() {
        return format!("{text} [required]");
    }
    match (key.absent, key.show(&T::blank())) {
        (Some(absent), _) => format!("{text} [default: {absent}]"),
        (None, Setting::Flag(false) | Setting::None) => text,
        (None, Setting::List(list)) if list.is_empty() => text,
        (None, Setting::Text(word)) => format!("{text} [default: {word}]"),
        (None, other) => format!("{text} [default: {other}]"),
    }
}

/// The flags that were given, each with its key.
pub struct KeyFlags<T: Table>(Vec<(&'static Key<T>, Given)>);

impl<T: Table> KeyFlags<T> {
    /// What the flags describe.
    ///
    /// # Errors
    /// What is wrong with them together, with the flag at which to say it.
    pub fn table(&self) -> Result<T, (String, Fault)> {
        self.applied_to(T::blank())
    }

    /// The table with the flags set.
    ///
    /// # Errors
    /// What is wrong with them together, with the flag at which to say it.
    pub fn applied_to(&self, mut table: T) -> Result<T, (String, Fault)> {
        for (key, given) in &self.0 {
            key.set(&mut table, given)
                .map_err(|fault| (flag(key), fault))?;
        }
        if table.name().is_empty() {
            table.take_default_name();
        }
        table.check().map_err(|(name, fault)| {
            let key = T::key(name).expect("faults name keys");
            (flag(key), fault)
        })?;
        Ok(table)
    }

    /// The keys that the flags set.
    pub fn given(&self) -> Vec<&'static str> {
        self.0.iter().map(|(key, _)| key.name).collect()
    }
}

/// The keys of a listener that `weir protect` has as flags. Its address is an argument, its mode
/// `--observe`, and its connections have one class, so that an order by priority means nothing.
fn is_policy(key: &&'static Key<Listener>) -> bool {
    !["address", "mode", "queue", "ageing"].contains(&key.name)
}

/// The flags of a listener's policy.
#[derive(Debug)]
pub struct PolicyFlags(KeyFlags<Listener>);

impl Deref for PolicyFlags {
    type Target = KeyFlags<Listener>;

    fn deref(&self) -> &KeyFlags<Listener> {
        &self.0
    }
}

impl Args for PolicyFlags {
    fn augment_args(command: Command) -> Command {
        command.args(Listener::keys().iter().filter(is_policy).map(switch))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for PolicyFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let keys = Listener::keys().iter().filter(is_policy);
        let flags = keys.filter_map(|key| given(key, matches)).collect();
        Ok(PolicyFlags(KeyFlags(flags)))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The flag of a key; that of a truth value which is false by default takes no value and means true.
fn switch<T: Table>(key: &'static Key<T>) -> Arg {
    match key.show(&T::blank()) {
        Setting::Flag(false) => arg(key).num_args(0).default_missing_value("true"),
        _ => arg(key),
    }
}

/// A name, and the flags that were given with it.
pub struct NamedFlags<T: Table> {
    /// The name.
    pub name: String,
    flags: KeyFlags<T>,
}

impl<T: Table> NamedFlags<T> {
    /// The keys that were given, as the file would have them.
    pub fn settings(&self) -> ClassSettings {
        let value =
            |given| serde_json::to_value(given).expect("flags are strings, numbers and lists");
        let flags = self.flags.0.iter();
        flags
            .map(|(key, given)| (key.name.to_owned(), value(given)))
            .collect()
    }
}

/// A name, and the flags that were given with it; keys without a flag keep their values.
pub struct Changes<T: Table>(pub NamedFlags<T>);

impl<T: Table> fmt::Debug for Changes<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T: Table> Args for Changes<T> {
    fn augment_args(command: Command) -> Command {
        let keys = T::keys().iter().filter(|key| key.name != "name");
        // Keys without a flag stay as they are, so a default would mislead; `none` takes a value away.
        let help = |key: &Key<T>| match (key.absent, key.form.may_be_none()) {
            (Some(absent), true) => format!("{} [none: {absent}]", key.text),
            _ => key.text.to_owned(),
        };
        keys.fold(NamedFlags::<T>::augment_args(command), |command, key| {
            command.mut_arg(key.name, |arg| arg.help(help(key)))
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<T: Table> FromArgMatches for Changes<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        NamedFlags::from_arg_matches(matches).map(Changes)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.update_from_arg_matches(matches)
    }
}

impl<T: Table> fmt::Debug for NamedFlags<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.name, self.flags)
    }
}

impl<T: Table> Args for NamedFlags<T> {
    fn augment_args(command: Command) -> Command {
        let name = Arg::new("name")
            .value_name("NAME")
            .help(format!("The {}'s name", T::NAME))
            .required(true)
            .value_parser(super::value::parsed(parse_name));
        let keys = T::keys().iter().filter(|key| key.name != "name");
        // The command accepts it, so that its refusal can say why.
        let arg = |key: &'static Key<T>| arg(key).hide(key.name == "proxy");
        command.arg(name).args(keys.map(arg))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<T: Table> FromArgMatches for NamedFlags<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let keys = T::keys().iter().filter(|key| key.name != "name");
        Ok(NamedFlags {
            name: matches
                .get_one::<String>("name")
                .cloned()
                .unwrap_or_default(),
            flags: KeyFlags(keys.filter_map(|key| given(key, matches)).collect()),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// As the user writes it.
fn flag<T>(key: &Key<T>) -> String {
    format!("--{}", long(key))
}

impl<T: Table> fmt::Debug for KeyFlags<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = self.0.iter().map(|(key, given)| (key.name, given));
        f.debug_map().entries(flags).finish()
    }
}

impl<T: Table> Args for KeyFlags<T> {
    fn augment_args(command: Command) -> Command {
        let names = T::keys().iter().map(|key| key.name);
        let group = ArgGroup::new("settings").multiple(true).args(names);
        command.args(T::keys().iter().map(arg)).group(group)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn arg<T: Table>(key: &'static Key<T>) -> Arg {
    let arg = Arg::new(key.name)
        .long(long(key))
        .value_name(key.form.kind.placeholder())
        .help(help(key))
        .allow_negative_numbers(key.form.kind == Kind::Number)
        .action(match key.form.kind.is_list() {
            true => ArgAction::Append,
            false => ArgAction::Set,
        })
        .value_parser(Parser(key));
    match key.required.is_some() {
        true => arg.required_unless_present("config"),
        false => arg,
    }
}

/// Checks a flag as the file's value is checked.
struct Parser<T: Table>(&'static Key<T>);

impl<T: Table> Clone for Parser<T> {
    fn clone(&self) -> Self {
        Parser(self.0)
    }
}

impl<T: Table> TypedValueParser for Parser<T> {
    type Value = Given;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<Given, clap::Error> {
        let parse = |text: &str| {
            let given = self.0.form.given(text)?;
            self.0.set(&mut T::blank(), &given)?;
            Ok(given)
        };
        super::value::parsed(parse).parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let words = self.0.words();
        let value =
            |(word, text): &(&'static str, &'static str)| PossibleValue::new(word).help(text);
        (!words.is_empty()).then(|| Box::new(words.iter().map(value)) as Box<_>)
    }
}

impl<T: Table> FromArgMatches for KeyFlags<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let keys = T::keys().iter();
        Ok(KeyFlags(
            keys.filter_map(|key| given(key, matches)).collect(),
        ))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// A key with the value of its flag, if that was given.
fn given<T: Table>(key: &'static Key<T>, matches: &ArgMatches) -> Option<(&'static Key<T>, Given)> {
    let values = matches.get_many::<Given>(key.name)?.cloned();
    Some((key, values.reduce(joined)?))
}

/// Lists are put together; of anything else there is only one.
fn joined(all: Given, next: Given) -> Given {
    match (all, next) {
        (Given::List(mut all), Given::List(next)) => {
            all.extend(next);
            Given::List(all)
        }
        (_, last) => last,
    }
}

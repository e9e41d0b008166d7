//! Names of listeners, proxies, classes and interfaces.

use crate::error::Fault;
use crate::types::{Kind, Type, text};
use crate::value::{Given, Setting};

/// A name as status, metrics and shells take it without quotes.
pub(crate) fn name() -> Type<String> {
    let values = "letters, digits, '.', '_', '-'; at most 64";
    text(Kind::Name, values, parse_name, String::clone)
}

/// Checks the name of a listener, a proxy or a class.
///
/// # Errors
/// The name is empty, has over 64 characters, or a character that metrics and shells would need quoted.
pub fn parse_name(name: &str) -> Result<String, Fault> {
    let good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if (1..=64).contains(&name.len()) && name.chars().all(good) {
        return Ok(name.to_owned());
    }
    let hint = "a name has 1 to 64 letters, digits, '.', '_' or '-'";
    Err(Fault::new(format!("{name:?} is not a name"), hint))
}

/// Checks the name of one interface (not whether it exists).
///
/// # Errors
/// A name that the kernel never gives (dev_valid_name: 1..=15 bytes, without '/', ':' and space).
pub fn parse_interface(name: &str) -> Result<String, Fault> {
    let bad = |c: char| c == '/' || c == ':' || c.is_whitespace();
    if name.is_empty() || name.len() > 15 || name.contains(bad) || name == "." || name == ".." {
        let hint =
            "an interface name has 1 to 15 characters; `ip link` lists those of this machine";
        let cause = format!("{name:?} is not an interface name");
        return Err(Fault::new(cause, hint));
    }
    Ok(name.to_owned())
}

/// At most so many interfaces.
pub(crate) fn interfaces(most: usize) -> Type<Vec<String>> {
    Type::new(
        Kind::Names,
        format!("a list of at most {most} interface names"),
        move |given: &Given| {
            let names = given.list()?;
            parse_interfaces(names, most)
        },
        |names: &Vec<String>| Setting::List(names.clone()),
    )
}

/// Checks a list of interfaces: 1..=`most` names, each once.
///
/// # Errors
/// What is wrong with which name.
fn parse_interfaces(names: &[String], most: usize) -> Result<Vec<String>, Fault> {
    if names.is_empty() {
        let hint = "leave the key out to guard every interface";
        return Err(Fault::new("the list is empty", hint));
    }
    if names.len() > most {
        let cause = format!("{} interfaces are too many", names.len());
        let hint = format!("at most {most}; leave the key out to guard every interface");
        return Err(Fault::new(cause, hint));
    }
    for (i, name) in names.iter().enumerate() {
        if names[..i].contains(name) {
            let cause = format!("the list has {name:?} twice");
            return Err(Fault::new(cause, "name it once"));
        }
    }
    names.iter().map(|name| parse_interface(name)).collect()
}

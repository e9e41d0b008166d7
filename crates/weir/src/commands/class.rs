//! `weir class`: the classes in force, changed while they are, without the config file.

use std::path::Path;

use crate::cli::Class;
use crate::control::{Answer, ClassChange, Request, ask, namespace};
use crate::failure::{Failure, Result};
use crate::output::{print, print_json, warn_text};
use crate::report::{ClassReport, class_table};

/// Runs the command.
pub fn run(runtime_dir: &Path, args: &Class) -> Result<()> {
    let (config, classes) = change(runtime_dir, &wanted(args))?;
    let done = match args {
        Class::List { json: true } => return print_json(&classes),
        Class::List { json: false } => return print(&class_table(&classes)),
        Class::Add(flags) => format!("class {} added", flags.name),
        Class::Set(flags) => format!("class {} changed", flags.name),
        Class::Remove { name } => format!("class {name} removed"),
    };
    print(&format!("{done}\n{}", class_table(&classes)))?;
    if let Some(file) = config {
        warn_text(format!(
            "a reload takes the classes of {file}, without this change"
        ));
    }
    Ok(())
}

fn wanted(args: &Class) -> ClassChange {
    match args {
        Class::List { .. } => ClassChange::List,
        Class::Add(flags) => ClassChange::Add {
            name: flags.name.clone(),
            keys: flags.keys(),
        },
        Class::Set(flags) => ClassChange::Set {
            name: flags.name.clone(),
            keys: flags.keys(),
        },
        Class::Remove { name } => ClassChange::Remove { name: name.clone() },
    }
}

fn change(runtime_dir: &Path, change: &ClassChange) -> Result<(Option<String>, Vec<ClassReport>)> {
    match ask(runtime_dir, namespace()?, Request::Class(change.clone()))? {
        Some(Answer::Classes { config, classes }) => Ok((config, classes)),
        Some(_) => Err(Failure::failed("the running weir gave another answer", "")),
        None => Err(Failure::failed(
            "no weir is guarding this network namespace",
            "start it: `weir run --config FILE` or `weir protect PORT`",
        )),
    }
}

//! `weir class`: the classes in force, changed while they are, without the config file.

use std::path::Path;

use crate::cli::{Changes, Class};
use crate::failure::{Failure, Result};
use crate::ipc::control::{Answer, ClassChange, Request, another_answer, ask, namespace};
use crate::show::output::{print, print_json, warn_text};
use crate::show::report::class_list;

/// Runs the command.
pub fn run(runtime_dir: &Path, args: &Class) -> Result<()> {
    let (config, classes) = change(runtime_dir, &wanted(args)?)?;
    let done = match args {
        Class::List { json: true } => return print_json(&classes),
        Class::List { json: false } => return print(&class_list(&classes)),
        Class::Add(flags) => shown("added", &flags.name, &classes),
        Class::Set(Changes(flags)) => shown("changed", &flags.name, &classes),
        Class::Remove { name } => format!("class {name} removed\n"),
    };
    print(&done)?;
    if let Some(file) = config {
        warn_text(format!(
            "a reload takes the classes of {file}, without this change"
        ));
    }
    Ok(())
}

/// What was done, and the class as it is now.
fn shown(done: &str, name: &str, classes: &[weir_api::Class]) -> String {
    let its = classes.iter().find(|class| class.name == name);
    format!(
        "class {name} {done}\n{}",
        class_list(its.map_or(&[], std::slice::from_ref))
    )
}

fn wanted(args: &Class) -> Result<ClassChange> {
    Ok(match args {
        Class::List { .. } => ClassChange::List,
        Class::Add(flags) => ClassChange::Add {
            name: flags.name.clone(),
            keys: flags.keys(),
        },
        Class::Set(Changes(flags)) if flags.keys().is_empty() => {
            let hint = "`weir class set --help` lists the keys: `weir class set gold --rate 300`";
            let message = format!("nothing is to change of class {:?}", flags.name);
            return Err(Failure::usage(message, hint));
        }
        Class::Set(Changes(flags)) => ClassChange::Set {
            name: flags.name.clone(),
            keys: flags.keys(),
        },
        Class::Remove { name } => ClassChange::Remove { name: name.clone() },
    })
}

fn change(
    runtime_dir: &Path,
    change: &ClassChange,
) -> Result<(Option<String>, Vec<weir_api::Class>)> {
    match ask(runtime_dir, namespace()?, Request::Class(change.clone()))? {
        Some(Answer::Classes { config, classes }) => Ok((config, classes)),
        Some(_) => Err(another_answer()),
        None => Err(Failure::not_running(
            "no weir is guarding this network namespace",
            "start it: `weir run --config FILE` or `weir protect PORT`",
        )),
    }
}

//! `weir class`: the classes in force, changed while they are, without the config file.

use std::path::Path;

use weir_api::{Answer, Changed, ClassChange, ClassDone, Question};

use crate::cli::{Changes, Class};
use crate::failure::{Failure, Result};
use crate::ipc::control::{ask, namespace};
use crate::show::output::{print, print_json, warn_text};
use crate::show::report::class_list;

/// Runs the command.
pub fn run(runtime_dir: &Path, args: &Class) -> Result<()> {
    let Some(change) = wanted(args)? else {
        let classes: Vec<weir_api::Class> = answer(runtime_dir, Question::Classes)?;
        return match args {
            Class::List { json: true } => print_json(&classes),
            _ => print(&class_list(&classes)),
        };
    };
    let name = change.class().to_owned();
    let changed: Changed = answer(runtime_dir, Question::Class(change))?;
    let done = match changed.done {
        ClassDone::Added => "added",
        ClassDone::Changed => "changed",
        ClassDone::Removed => "removed",
    };
    let now = changed.class.map(|class| class_list(&[class]));
    print(&format!("class {name} {done}\n{}", now.unwrap_or_default()))?;
    if let Some(file) = changed.config {
        warn_text(format!(
            "a reload takes the classes of {file}, without this change"
        ));
    }
    Ok(())
}

/// What is to change; `None`: nothing.
fn wanted(args: &Class) -> Result<Option<ClassChange>> {
    Ok(Some(match args {
        Class::List { .. } => return Ok(None),
        Class::Add(flags) => ClassChange::Add {
            name: flags.name.clone(),
            keys: flags.settings(),
        },
        Class::Set(Changes(flags)) if flags.settings().keys().is_empty() => {
            let hint = "`weir class set --help` lists the keys: `weir class set gold --rate 300`";
            let message = format!("nothing is to change of class {:?}", flags.name);
            return Err(Failure::usage(message, hint));
        }
        Class::Set(Changes(flags)) => ClassChange::Set {
            name: flags.name.clone(),
            keys: flags.settings(),
        },
        Class::Remove { name } => ClassChange::Remove { name: name.clone() },
    }))
}

fn answer<T: TryFrom<Answer>>(runtime_dir: &Path, question: Question) -> Result<T> {
    ask(runtime_dir, namespace()?, &question)?.ok_or_else(|| {
        Failure::not_running(
            "no weir is guarding this network namespace",
            "start it: `weir run --config FILE` or `weir protect PORT`",
        )
    })
}

//! `weir explain`: what a counter counts, what a config key sets, what a column of `weir status` shows.

use weir_core::explain::{list, topic};

use crate::cli::Explain;
use crate::failure::{Failure, Result};
use crate::output::print;
use crate::table::{Align, table};

/// Runs the command.
pub fn run(args: &Explain) -> Result<()> {
    let Some(name) = &args.name else {
        return print(&all());
    };
    let topic = topic(name).map_err(|unknown| {
        let hint = match unknown.did_you_mean {
            Some(meant) => format!("did you mean {meant}?"),
            None => "`weir explain` lists all names".to_owned(),
        };
        Failure::usage(unknown.to_string(), hint)
    })?;
    print(&topic.text())
}

fn all() -> String {
    let head = [
        ("name", Align::Left),
        ("kind", Align::Left),
        ("text", Align::Left),
    ];
    let row = |(name, kind, text): (&str, &str, &str)| vec![name.into(), kind.into(), text.into()];
    table(&head, &list().into_iter().map(row).collect::<Vec<_>>())
}

//! `weir explain`: what a counter counts, what a config key sets, what a column of `weir status` shows.

use std::path::Path;

use weir_core::explain::{Topic, list, topic};

use crate::cli::Explain;
use crate::control::{self, Answer, Request};
use crate::failure::{Failure, Result};
use crate::output::print;
use crate::report;
use crate::table::{Align, table};

/// Runs the command.
pub fn run(runtime_dir: &Path, args: &Explain) -> Result<()> {
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
    let mut text = topic.text();
    if let Topic::Subject(_) = topic
        && let Some(live) = running_controller(runtime_dir)
    {
        text += &format!("\n{}", report::controller::text(&live, usize::MAX));
    }
    print(&text)
}

/// What the controller of this namespace does. Without one, or without the right to ask, there is only
/// the explanation.
fn running_controller(runtime_dir: &Path) -> Option<weir_client::Controller> {
    let namespace = control::namespace().ok()?;
    match control::ask(runtime_dir, namespace, Request::Status) {
        Ok(Some(Answer::Status(report))) => report.controller,
        _ => None,
    }
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

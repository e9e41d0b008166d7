//! `weir shape`: shapes what an interface sends and receives, so that short connections cross a slow link at once.

use std::path::Path;

use weir_api::{Question, Status};
use weir_core::shape::{LEAST_RATE, MOST_RATE};
use weir_core::units::format_bit_rate;

use crate::cli::{Shape, ShapeBackend, ShapeInstall};
use crate::failure::{Failure, Result};
use crate::host::links::{self, Link};
use crate::ipc::control::{ask, namespace};
use crate::shape::install::Wish;
use crate::shape::lock::Changes;
use crate::shape::{Backend, Owner, ifb, ingress, interface, show};
use crate::show::output::{print, print_json, warn_text};
use crate::show::report::shapes_text;

/// Runs the command.
pub fn run(runtime_dir: &Path, args: &Shape) -> Result<()> {
    match args {
        Shape::Install(args) => put_on(runtime_dir, args),
        Shape::Show { dev, json } => print_shapes(dev.as_deref(), *json),
        Shape::Remove { dev } => take_off(runtime_dir, dev),
    }
}

fn put_on(runtime_dir: &Path, args: &ShapeInstall) -> Result<()> {
    let link = find_foreign(&args.dev)?;
    let rates = [("--rate", Some(args.rate)), ("--ingress", args.ingress)];
    for (flag, rate) in rates {
        let Some(rate) = rate.filter(|rate| !(LEAST_RATE..=MOST_RATE).contains(rate)) else {
            continue;
        };
        let (is, hint) = match rate < LEAST_RATE {
            true => (
                "too little",
                "a full packet would take a second; the least is 12kbit",
            ),
            false => ("too much", "the most is 100gbit"),
        };
        let message = format!("{flag} {} is {is}", format_bit_rate(rate));
        return Err(Failure::usage(message, hint));
    }
    let running = running(runtime_dir);
    let _lock = Changes::new(runtime_dir)?.begin()?;
    refuse_those_of(running, &link)?;
    ingress::remove_unused()?;
    let wish = Wish {
        discipline: args.discipline,
        rate: args.rate / 8,
        backend: match args.backend {
            ShapeBackend::Auto => None,
            ShapeBackend::Tc => Some(Backend::Tc),
            ShapeBackend::Bpf => Some(Backend::Bpf),
        },
        owner: Owner::User,
    };
    let backend = interface::install(&link, wish, args.ingress.map(|rate| rate / 8))?;
    if link.loopback {
        warn_text(
            "lo is the loopback interface: this slows down what local programs say to each other",
        );
    }
    let received = args.ingress.map(format_bit_rate);
    let received = received.map_or(String::new(), |rate| format!(", what comes in at {rate}"));
    print(&format!(
        "{}: {} at {}{received}, by {}; `weir shape remove --dev {}` takes it off\n",
        link.name,
        args.discipline,
        format_bit_rate(args.rate),
        backend.name(),
        link.name
    ))
}

fn take_off(runtime_dir: &Path, dev: &str) -> Result<()> {
    let running = running(runtime_dir);
    let _lock = Changes::new(runtime_dir)?.begin()?;
    // Before the interface is looked for: it may be the one that has gone.
    ingress::remove_unused()?;
    let link = find_foreign(dev)?;
    refuse_those_of(running, &link)?;
    match interface::remove(&link)? {
        true => print(&format!("{dev}: is as it was before\n")),
        false => print(&format!(
            "{dev}: weir does not shape it; nothing is changed\n"
        )),
    }
}

/// The process id of the weir that guards this network namespace, if one does and can be asked.
fn running(runtime_dir: &Path) -> Option<u32> {
    let status: Result<Option<Status>> = ask(runtime_dir, namespace().ok()?, &Question::Status);
    status.ok()??.process.map(|process| process.pid)
}

/// What a `weir run` shapes is its own, which it would put back.
fn refuse_those_of(running: Option<u32>, link: &Link) -> Result<()> {
    match running {
        Some(pid) if interface::is_of(Owner::Run, link)? => {
            let name = &link.name;
            let message = format!("`weir run` (pid {pid}) shapes {name}");
            let hint = format!("change the [[shape]] of {name} in its file, then `weir reload`");
            Err(Failure::failed(message, hint))
        }
        _ => Ok(()),
    }
}

fn print_shapes(dev: Option<&str>, json: bool) -> Result<()> {
    let mut shapes = show::shapes()?;
    if let Some(dev) = dev {
        find(dev)?;
        shapes.retain(|shape| shape.dev == dev);
    }
    if json {
        return print_json(&shapes);
    }
    match shapes[..] {
        [] => print("weir shapes no interface here\n")?,
        _ => print(&shapes_text(&shapes))?,
    }
    // Of an interface that has gone.
    for left in shapes.iter().filter(|shape| ifb::is_name(&shape.dev)) {
        warn_text(format!(
            "the interface of {} is gone; the next `weir shape install` or `weir shape remove` of any interface removes it",
            left.dev
        ));
    }
    Ok(())
}

/// Finds an interface that is not one of weir's own.
fn find_foreign(dev: &str) -> Result<Link> {
    let link = find(dev)?;
    if ifb::index_behind(&link).is_none() {
        return Ok(link);
    }
    let message = format!("{dev} is weir's own, for what another interface receives");
    let hint = "name that interface; `--ingress` of `install` shapes what it receives";
    Err(Failure::usage(message, hint))
}

fn find(dev: &str) -> Result<Link> {
    let links = links::list()?;
    let foreign = links
        .iter()
        .filter(|link| ifb::index_behind(link).is_none());
    let names: Vec<_> = foreign.map(|link| link.name.clone()).collect();
    let link = links.into_iter().find(|link| link.name == dev);
    link.ok_or_else(|| {
        let message = format!("there is no interface {dev:?} in this network namespace");
        Failure::usage(message, format!("there are {}", names.join(", ")))
    })
}

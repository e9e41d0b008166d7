//! `weir shape`: shapes what an interface sends and receives, so that short connections cross a slow link at once.

use weir_core::shape::LEAST_RATE;
use weir_core::units::format_bit_rate;

use crate::cli::{Shape, ShapeBackend, ShapeInstall};
use crate::failure::{Failure, Result};
use crate::host::links::{self, Link};
use crate::shape::install::Wish;
use crate::shape::{Backend, Owner, ifb, ingress, interface, show};
use crate::show::output::{print, print_json, warn_text};
use crate::show::report::shapes_text;

/// Runs the command.
pub fn run(args: &Shape) -> Result<()> {
    match args {
        Shape::Install(args) => put_on(args),
        Shape::Show { dev, json } => print_shapes(dev.as_deref(), *json),
        Shape::Remove { dev } => take_off(dev),
    }
}

fn put_on(args: &ShapeInstall) -> Result<()> {
    let link = find(&args.dev)?;
    let rates = [("--rate", Some(args.rate)), ("--ingress", args.ingress)];
    for (flag, rate) in rates {
        let Some(rate) = rate.filter(|rate| *rate < LEAST_RATE) else {
            continue;
        };
        let message = format!("{flag} {} is too little", format_bit_rate(rate));
        return Err(Failure::usage(
            message,
            "a full packet would take a second; the least is 12kbit",
        ));
    }
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

fn take_off(dev: &str) -> Result<()> {
    // Before the interface is looked for: it may be the one that has gone.
    ingress::remove_unused()?;
    let link = find(dev)?;
    match interface::remove(&link)? {
        true => print(&format!("{dev}: is as it was before\n")),
        false => print(&format!(
            "{dev}: weir does not shape it; nothing is changed\n"
        )),
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
        [] => print("weir shapes no interface here\n"),
        _ => print(&shapes_text(&shapes)),
    }
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

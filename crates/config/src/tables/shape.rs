//! The keys of a `[[shape]]` table: an interface before a slow link, and how its traffic is shaped.

use std::sync::LazyLock;

use crate::error::Fault;
use crate::key::Key;
use crate::names::parse_interface;
use crate::suggest::did_you_mean;
use crate::table::Table;
use crate::types::{Kind, Type, text, word};
use weir_core::aqm::Discipline;
use weir_core::shape::{
    Backend, DISCIPLINES, DISCIPLINES_IN_BPF, LEAST_RATE, MAX_SHAPES, MOST_RATE, Shape,
};
use weir_core::units::{format_bit_rate, parse_bit_rate};

static KEYS: LazyLock<Vec<Key<Shape>>> = LazyLock::new(|| Key::all_since("0.2.0", keys()));

#[rustfmt::skip] // A key a paragraph.
fn keys() -> Vec<Key<Shape>> {
    vec![
        Key::new("dev", field!(Shape, dev), interface(),
            "The interface before the slow link; it may come later")
            .required("dev = \"ppp0\""),
        Key::new("rate", field!(Shape, rate_bits_per_s), rate(),
            "What the link carries; a little less than it has, so that the queue is here")
            .required("rate = \"9.5mbit\""),
        Key::new("ingress", field!(Shape, ingress_bits_per_s), rate().or_none(),
            "The same for what the interface receives, through an ifb device; better: shape at the other end"),
        Key::new("discipline", field!(Shape, discipline), discipline(),
            "The queueing discipline"),
        Key::new("backend", field!(Shape, backend), word(),
            "What does the work"),
    ]
}

fn interface() -> Type<String> {
    let values = "the name of an interface";
    text(Kind::Name, values, parse_interface, String::clone)
}

fn rate() -> Type<u64> {
    let (least, most) = (format_bit_rate(LEAST_RATE), format_bit_rate(MOST_RATE));
    let values = format!("{least} to {most}");
    let hint = format!("a number and bit, kbit, mbit or gbit, {values}: 10mbit");
    let parse = move |text: &str| {
        let rate = parse_bit_rate(text).map_err(|cause| Fault::new(cause, &hint))?;
        match (LEAST_RATE..=MOST_RATE).contains(&rate) {
            true => Ok(rate),
            false => Err(Fault::new(format!("{text} is out of range"), &hint)),
        }
    };
    let show = |rate: &u64| format_bit_rate(*rate);
    text(Kind::Rate, values, parse, show)
}

fn discipline() -> Type<Discipline> {
    let names = DISCIPLINES.map(Discipline::name);
    let parse = move |text: &str| {
        let found = DISCIPLINES.into_iter().find(|one| one.name() == text);
        found.ok_or_else(|| {
            let hint = match did_you_mean(text, &names) {
                Some(name) => format!("did you mean {name:?}?"),
                None => format!("one of {}", names.join(", ")),
            };
            Fault::new(format!("{text:?} is not known"), hint)
        })
    };
    let show = |one: &Discipline| one.name().to_owned();
    text(Kind::Word, names.join(", "), parse, show)
}

impl Table for Shape {
    const NAME: &'static str = "shape";
    const TITLE: &'static str = "A shaped interface";
    const TEXT: &'static str = "Interfaces before a slow link. `weir run` lets control segments leave before data, and keeps the \
                                queue of the data short, as `weir shape install` does, for as long as it runs.";
    const MOST: (usize, &'static str) =
        (MAX_SHAPES, "shape the interfaces before a slow link only");
    const NAMESAKE_HINT: Option<&'static str> =
        Some("an interface has one [[shape]]: remove the other");

    fn keys() -> &'static [Key<Shape>] {
        &KEYS
    }

    fn blank() -> Shape {
        Shape::new("", LEAST_RATE)
    }

    fn example() -> Shape {
        Shape::new("ppp0", 9_500_000)
    }

    fn name(&self) -> &str {
        &self.dev
    }

    fn check(&self) -> Result<(), (&'static str, Fault)> {
        if self.backend == Backend::Bpf && !DISCIPLINES_IN_BPF.contains(&self.discipline) {
            let message = format!("weir's qdisc in BPF has no {}", self.discipline);
            let names = DISCIPLINES_IN_BPF.map(Discipline::name).join(", ");
            return Err((
                "discipline",
                Fault::new(message, format!("there are {names}")),
            ));
        }
        Ok(())
    }
}

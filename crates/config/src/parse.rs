//! From the text of `weir.toml` to a [`Config`], with the location of everything that is wrong.
//!
//! [`crate::reader`] reads each kind of table by its keys. Here are the checks of tables of different kinds
//! together: a class names listeners and proxies, and some of its keys need others of these.

use std::collections::HashMap;

use toml::de::DeTable;

use crate::class_check::{self, Owners};
use crate::config::{Config, Warning};
use crate::error::{Fault, Location, Problem, Problems};
use crate::reader::{Origin, Reader};
use crate::schema::{sections, tables};
use crate::suggest::did_you_mean;
use crate::table::Table;
use crate::tables::metrics::{MetricsSettings, without_proxies};
use crate::unused::{Around, unused};
use weir_core::class::Class;
use weir_core::controller::Settings;
use weir_core::proxy::Proxy;
use weir_core::quic::QuicListener;
use weir_core::timewait::{Destination, MAX_PREFIXES};
use weir_core::units::count;
use weir_core::workload::Where;

/// Reads a config file. `file` is its name for messages.
///
/// # Errors
/// Everything that is wrong in it: syntax, unknown tables and keys, values, and tables that
/// collide.
pub fn parse(file: &str, source: &str) -> Result<Config, Problems> {
    let mut reader = Reader::new(file, source);
    let (mut config, origins) = read(&mut reader);
    check_quic_names(&mut reader, &config, origins.of::<QuicListener>());
    check_quic_places(&mut reader, &config, origins.of::<QuicListener>());
    check_classes(&mut reader, &config, origins.of::<Class>());
    check_prefixes(&mut reader, &config, origins.of::<Destination>());
    check_controller(&mut reader, &config, origins.of::<Settings>());
    if !reader.problems.is_empty() {
        return Err(problems(reader));
    }
    warn_of_unused(&mut reader, &config, origins.of::<Class>());
    warn_of_quic_alone(&mut reader, &config, origins.of::<QuicListener>());
    warn_of_metrics(&mut reader, &config, origins.of::<MetricsSettings>());
    config.warnings = warnings(reader);
    for proxy in &mut config.proxies {
        let classes = config.classes.iter();
        let own = classes.filter(|class| class.is_of_proxy(&proxy.name));
        proxy.classes = own.cloned().collect();
    }
    Ok(config)
}

/// What is wrong, in the order of the lines.
fn problems(reader: Reader<'_>) -> Problems {
    let Reader {
        mut problems,
        unlisted_problems: more,
        ..
    } = reader;
    problems.sort_by_key(|problem| line(&problem.location));
    if let (1.., Some(last)) = (more, problems.last()) {
        problems.push(Problem {
            location: last.location.clone(),
            object: String::new(),
            cause: format!("there are {} besides", count(more, "fault")),
            hint: "mend those that are listed, and check the file again".to_owned(),
        });
    }
    Problems(problems)
}

/// What is odd, in the order of the lines.
fn warnings(reader: Reader<'_>) -> Vec<Warning> {
    let Reader {
        mut warnings,
        unlisted_warnings: more,
        ..
    } = reader;
    warnings.sort_by_key(|warning| warning.location.as_ref().map(line));
    if more > 0 {
        warnings.push(Warning {
            location: None,
            text: format!("there are {} besides", count(more, "warning")),
        });
    }
    warnings
}

/// The order of messages.
fn line(location: &Location) -> (usize, usize) {
    (location.line, location.column)
}

/// Where the tables of each kind stand, by the kind's name.
#[derive(Default)]
struct Origins(HashMap<&'static str, Vec<Origin>>);

impl Origins {
    fn of<T: Table>(&self) -> &[Origin] {
        self.0.get(T::NAME).map_or(&[], Vec::as_slice)
    }
}

fn read(reader: &mut Reader<'_>) -> (Config, Origins) {
    let mut config = Config::default();
    let mut origins = Origins::default();
    let file = match DeTable::parse(reader.source) {
        Ok(file) => file,
        Err(error) => {
            let fault = twice(reader.source, &error).unwrap_or_else(|| {
                let hint = "the file is TOML: `weir check --example` prints one to start from";
                Fault::new(error.message().trim().replace('\n', "; "), hint)
            });
            reader.problem(error.span(), "", fault);
            return (config, origins);
        }
    };
    for (key, value) in file.get_ref() {
        let name = key.get_ref().as_ref();
        match sections().iter().find(|section| section.doc.name == name) {
            Some(section) => {
                let read = (section.read)(reader, key, value, &mut config);
                origins.0.insert(section.doc.name, read);
            }
            None => reader.problem_with(Some(key.span()), "", || unknown_table(name)),
        }
    }
    if !config.is_for_run() && config.proxies.is_empty() && reader.problems.is_empty() {
        let hint = "add one: [[listener]] with address = \"*:80\", \
                    [[quic]] with address = \"*:443\", \
                    [[proxy]] with listen = \"*:3128\" and mode = \"forward\", \
                    [[destination]] with timewait = \"client-rst\", \
                    or [[shape]] with dev = \"ppp0\" and rate = \"9.5mbit\"";
        let cause = "the file has no listener, QUIC listener, proxy, destination or shape";
        reader.problem(None, "", Fault::new(cause, hint));
    }
    (config, origins)
}

/// A key or a table that the file has twice, by its name; the parser says only where.
fn twice(source: &str, error: &toml::de::Error) -> Option<Fault> {
    if error.message().trim() != "duplicate key" {
        return None;
    }
    let span = error.span()?;
    let name = source.get(span.clone())?;
    let begin = source[..span.start].rfind('\n').map_or(0, |end| end + 1);
    let line = source[begin..].lines().next().unwrap_or_default();
    let is_table = line.trim_start().starts_with('[');
    let what = if is_table { "table" } else { "key" };
    // Another spelling of the same name, and one in a table of one line, are not found.
    let says_it = |line: &str| {
        let line = line.trim_start();
        let rest = match is_table {
            true => line.strip_prefix('[').map(str::trim_start),
            false => Some(line),
        };
        let rest = rest.and_then(|rest| rest.strip_prefix(name));
        rest.is_some_and(|rest| {
            rest.trim_start()
                .starts_with(if is_table { ']' } else { '=' })
        })
    };
    let before: Vec<&str> = source[..begin].lines().collect();
    let same_table = |line: &&str| is_table || !line.trim_start().starts_with('[');
    let first = before.iter().rev().take_while(|line| same_table(line));
    let first = first.map(|line| says_it(line)).position(|says| says);
    let hint = match first {
        Some(above) => format!("line {} has it too: keep one of them", before.len() - above),
        None => "keep one of them".to_owned(),
    };
    Some(Fault::new(
        format!("the {what} {name} stands here twice"),
        hint,
    ))
}

/// Servers in other network namespaces are found by their TCP sockets.
fn check_quic_places(reader: &mut Reader<'_>, config: &Config, origins: &[Origin]) {
    for (quic, origin) in config.quic.iter().zip(origins) {
        let mut listeners = config.listeners.iter();
        if quic.location == Where::Here || listeners.any(|listener| quic.goes_with(listener)) {
            continue;
        }
        let cause = format!(
            "no [[listener]] has where = \"{}\" and port {}",
            quic.location, quic.address.port
        );
        let hint = "add one: weir finds servers in other network namespaces by the TCP port, and refused clients come there";
        let fault = Fault::new(cause, hint);
        reader.problem(
            Some(origin.of_key("where")),
            format!("quic {:?}: ", quic.name),
            fault,
        );
    }
}

/// Classes name listeners and QUIC listeners by one key.
fn check_quic_names(reader: &mut Reader<'_>, config: &Config, origins: &[Origin]) {
    for (quic, origin) in config.quic.iter().zip(origins) {
        if config.listeners.iter().any(|one| one.name == quic.name) {
            let cause = format!("a [[listener]] is named {:?} too", quic.name);
            let fault = Fault::new(
                cause,
                "give one of them another name: classes name both alike",
            );
            reader.problem(
                Some(origin.of_key("name")),
                format!("quic {:?}: ", quic.name),
                fault,
            );
        }
    }
}

fn check_classes(reader: &mut Reader<'_>, config: &Config, origins: &[Origin]) {
    let tcp = config.listeners.iter();
    let tcp = tcp.map(|one| (one.name.as_str(), one.address.port));
    let quic = config.quic.iter();
    let quic = quic.map(|one| (one.name.as_str(), one.address.port));
    let listeners: Vec<(&str, u16)> = tcp.chain(quic).collect();
    let proxies: Vec<&str> = config.proxies.iter().map(Proxy::name).collect();
    let owners = Owners {
        listeners: &listeners,
        proxies: &proxies,
    };
    for (index, key, fault) in class_check::check(&config.classes, &owners) {
        let (class, origin) = (&config.classes[index], &origins[index]);
        let span = origin.of_key(key.unwrap_or_default());
        let key = key.map(|key| format!("{key}: ")).unwrap_or_default();
        reader.problem(Some(span), format!("class {:?}: {key}", class.name), fault);
    }
}

/// The prefixes of all destinations share one table of the kernel.
fn check_prefixes(reader: &mut Reader<'_>, config: &Config, origins: &[Origin]) {
    let counts = config.destinations.iter().map(|one| one.prefixes().len());
    let total: usize = counts.sum();
    if let (true, Some(origin)) = (total > MAX_PREFIXES, origins.last()) {
        let cause = format!("all destinations together have {total} prefixes, which are too many");
        let fault = Fault::new(
            cause,
            format!("at most {MAX_PREFIXES}: use shorter prefixes"),
        );
        reader.problem(Some(origin.of_key("to")), "", fault);
    }
}

/// The controller reads queues of weir's own network namespace only.
fn check_controller(reader: &mut Reader<'_>, config: &Config, origins: &[Origin]) {
    let mut listeners = config.listeners.iter();
    let elsewhere = listeners.find(|listener| listener.location != Where::Here);
    if let (Some(_), Some(listener), [origin]) = (&config.controller, elsewhere, origins) {
        let cause = format!(
            "the controller is not there yet in other network namespaces, and listener {:?} has where = \"{}\"",
            listener.name, listener.location
        );
        let hint = "leave [controller] out, or have a weir of its own for these listeners";
        reader.problem(Some(origin.of_key("")), "", Fault::new(cause, hint));
    }
}

fn warn_of_unused(reader: &mut Reader<'_>, config: &Config, origins: &[Origin]) {
    let around = Around {
        listeners: config.listeners.iter().collect(),
        quic: &config.quic,
        proxies: config.proxies.iter().collect(),
        has_controller: config.controller.is_some(),
    };
    let given = origins.iter().map(Origin::keys);
    let classes: Vec<(&Class, Vec<&str>)> = config.classes.iter().zip(given).collect();
    for (index, text) in unused(&classes, &around) {
        reader.warn(&origins[index], text);
    }
}

/// Clients that are refused by UDP take TCP.
fn warn_of_quic_alone(reader: &mut Reader<'_>, config: &Config, origins: &[Origin]) {
    for (quic, origin) in config.quic.iter().zip(origins) {
        let port = quic.address.port;
        let mut listeners = config.listeners.iter();
        if !listeners.any(|listener| listener.address.port == port) {
            let text = format!(
                "quic {:?}: no [[listener]] guards TCP port {port}: if a server listens there, clients that are refused come to it",
                quic.name
            );
            reader.warn(origin, text);
        }
    }
}

/// The guard and the proxies of one file are two processes, which cannot share an address.
fn warn_of_metrics(reader: &mut Reader<'_>, config: &Config, origins: &[Origin]) {
    let has_both = config.is_for_run() && !config.proxies.is_empty();
    let metrics = config.metrics.as_ref().filter(|_| has_both);
    if let (Some(text), [origin]) = (metrics.and_then(without_proxies), origins) {
        reader.warn(origin, text);
    }
}

fn unknown_table(name: &str) -> Fault {
    let names: Vec<&str> = tables().map(|table| table.name).collect();
    let meant = did_you_mean(name, &names);
    let meant = meant.and_then(|meant| tables().find(|table| table.name == meant));
    let owners = tables().filter(|table| table.keys.iter().any(|key| key.name == name));
    let owners: Vec<&str> = owners.map(|table| table.head.as_str()).collect();
    let all: Vec<&str> = tables().map(|table| table.head.as_str()).collect();
    let hint = match meant {
        Some(meant) => format!("did you mean {}?", meant.head),
        None if !owners.is_empty() => {
            format!("{name} belongs below a line {}", owners.join(" or "))
        }
        None => format!("this version knows {}", all.join(", ")),
    };
    Fault::new(format!("unknown table or key {name:?}"), hint)
}

//! The rows: which stages of a connection's life weir has a hand in, and the configuration that says so.
//!
//! One file configures both programs of a row: `weir proxy` takes its `[[proxy]]`, `weir run` all the rest.

use super::site::{DEVICE, HELD, WORKERS};

/// Clients that a proxy with `max_clients` has at the same time. A reply needs a round trip over the full link before its
/// client has gone, and meanwhile keeps its place: so many that the pool never lacks work.
const MAX_CLIENTS: u32 = 64;
/// What the shaper is told of the link, which has 10 Mbit/s: a twentieth less, so that the queue is before it.
const SHAPED: &str = "9.5mbit";

/// A row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Row {
    /// The proxy without limits, and nothing else
    Plain,
    /// The proxy lets those wait in its listen queue whom it has no room for
    MaxClients,
    /// Police: classes with rates
    Police,
    /// Establish: reservations, and a refusal while the wait stands
    Establish,
    /// Establish by no-syn-drop: SYN cookies instead of refused SYNs
    Cookies,
    /// Queue: accept() in the order of the classes
    Queue,
    /// Control: the controller holds the lowest classes
    Control,
    /// Transfer: the proxy has so many connections to its server, and a queue by class before them
    Transfer,
    /// Close: a client's FIN ends its connection
    Close,
    /// TIME-WAIT: the clients' machine remembers closed connections
    Timewait,
    /// Shape: SYNs and SYN/ACKs before data
    Shape,
    /// All of them
    All,
}

/// What a row has.
#[derive(Debug, Clone, Copy, Default)]
struct Parts {
    max_clients: bool,
    /// The proxy's limit of connections, and its queue.
    limits: bool,
    /// Keys of the `[[listener]]`, if there is one.
    listener: Option<&'static str>,
    classes: bool,
    rates: bool,
    controller: bool,
    shape: bool,
    timewait: bool,
}

/// Of a listener whose connections the kernel establishes, as without weir.
const LEFT_TO_THE_KERNEL: &str = "establish = \"default\"\nreject_syn = \"drop\"\n";

impl Row {
    fn parts(self) -> Parts {
        let none = Parts::default();
        let listens = |keys| Parts {
            max_clients: true,
            listener: Some(keys),
            ..none
        };
        match self {
            Row::Plain => none,
            Row::MaxClients => Parts {
                max_clients: true,
                ..none
            },
            Row::Police => Parts {
                listener: Some(LEFT_TO_THE_KERNEL),
                classes: true,
                rates: true,
                ..none
            },
            Row::Establish => listens(""),
            Row::Cookies => listens("establish = \"no-syn-drop\"\n"),
            Row::Queue => Parts {
                classes: true,
                ..listens("admit = \"queue\"\nqueue = \"priority\"\nageing = \"off\"\n")
            },
            Row::Control => Parts {
                classes: true,
                controller: true,
                ..listens("establish = \"default\"\n")
            },
            Row::Transfer => Parts {
                limits: true,
                classes: true,
                ..none
            },
            Row::Close => Parts {
                listener: Some(
                    "establish = \"default\"\nreject_syn = \"drop\"\nhalf_close = \"reset\"\n",
                ),
                ..none
            },
            Row::Timewait => Parts {
                timewait: true,
                ..none
            },
            Row::Shape => Parts {
                shape: true,
                ..none
            },
            Row::All => Parts {
                max_clients: true,
                limits: true,
                listener: Some("queue = \"priority\"\nageing = \"off\"\nhalf_close = \"reset\"\n"),
                classes: true,
                rates: true,
                controller: true,
                shape: true,
                timewait: true,
            },
        }
    }

    /// The file of the server's machine.
    pub fn config(self) -> String {
        let parts = self.parts();
        let mut text = proxy(parts);
        if let Some(keys) = parts.listener {
            text += &format!("\n[[listener]]\nname = \"web\"\naddress = \"*:80\"\n{keys}");
        }
        if parts.classes {
            text.extend(HELD.iter().zip(1..).map(|(class, priority)| {
                let (name, from) = (class.name, class.from);
                let rate = class.rate_per_s.filter(|_| parts.rates);
                let rate = rate.map_or(String::new(), |rate| format!("rate = {rate}\n"));
                format!(
                    "\n[[class]]\nname = \"{name}\"\nfrom = \"{from}\"\npriority = {priority}\n{rate}over_rate = \"rst\"\n"
                )
            }));
        }
        if parts.controller {
            text += "\n[controller]\ntarget_wait = \"50ms\"\n";
        }
        if parts.shape {
            text += &format!(
                "\n[[shape]]\ndev = \"{DEVICE}\"\nrate = \"{SHAPED}\"\ndiscipline = \"syn-prio\"\n"
            );
        }
        text
    }

    /// Whether `weir run` has a part in it at the server, beside the proxy.
    pub fn has_guard(self) -> bool {
        let parts = self.parts();
        parts.listener.is_some() || parts.shape
    }

    /// The file of the clients' machine, if weir runs there.
    pub fn clients_config(self) -> Option<&'static str> {
        self.parts().timewait.then_some(
            "[[destination]]\nname = \"site\"\nto = \"10.128.0.1\"\nto_port = 80\ntimewait = \"client-rst\"\n",
        )
    }
}

/// One thread, as there is one listen queue for each; and a queue of nginx's default length.
fn proxy(parts: Parts) -> String {
    let mut text = "[[proxy]]
name = \"edge\"
listen = \"*:80\"
mode = \"reverse\"
backends = [\"127.0.0.1:8080\"]
threads = 1
backlog = 511
"
    .to_owned();
    if parts.max_clients {
        text += &format!("max_clients = {MAX_CLIENTS}\n");
    }
    if parts.limits {
        text += &format!("max_connections = {WORKERS}\nqueue_limit = 32\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;
    use crate::run::experiment::word;

    /// A table of a file with its keys, or the keys of the proxy that only some rows have.
    fn pieces(row: Row) -> Vec<String> {
        let texts = [
            row.config(),
            row.clients_config().unwrap_or_default().into(),
        ];
        let tables = texts.iter().flat_map(|text| text.split("\n\n"));
        tables
            .map(|table| table.trim().to_owned())
            .filter(|table| !table.is_empty())
            .collect()
    }

    /// The page has each line of each file, indented as code.
    #[test]
    fn the_page_has_the_lines_that_are_used() {
        let page = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../experiments/whole-life/README.md"
        );
        let page = std::fs::read_to_string(page).unwrap();
        for row in Row::value_variants() {
            assert!(page.contains(&format!("`{}`", word(row))), "{row:?}");
            for line in pieces(*row).iter().flat_map(|piece| piece.lines()) {
                let is_there =
                    page.contains(&format!("    {line}\n")) || page.contains(&format!("`{line}`"));
                assert!(is_there, "{row:?}: {line}");
            }
        }
        let all = Row::All.config();
        let indented: Vec<String> = all.lines().map(|line| format!("    {line}")).collect();
        let whole = indented.join("\n").replace("    \n", "\n");
        assert!(page.contains(&whole), "the whole file of `all`:\n{whole}");
    }

    #[test]
    fn each_row_has_one_stage_and_the_last_has_all_of_them() {
        let has = |row: Row, what: &str| row.config().contains(what);
        for (row, what) in [
            (Row::Police, "rate = "),
            (Row::Queue, "queue = \"priority\""),
            (Row::Control, "[controller]"),
            (Row::Transfer, "max_connections"),
            (Row::Close, "half_close"),
            (Row::Shape, "[[shape]]"),
        ] {
            // Of the shaper there is a rate too.
            let what = if row == Row::Police {
                "\nrate = 6"
            } else {
                what
            };
            for other in Row::value_variants() {
                let expected = *other == row || *other == Row::All;
                assert_eq!(has(*other, what), expected, "{what} of {other:?}");
            }
        }
        assert_eq!(Row::Plain.config(), proxy(Parts::default()));
        assert!(!Row::Plain.has_guard() && !Row::Transfer.has_guard() && Row::Shape.has_guard());
        let remembers = |row: &&Row| row.clients_config().is_some();
        let rows: Vec<&Row> = Row::value_variants().iter().filter(remembers).collect();
        assert_eq!(rows, [&Row::Timewait, &Row::All]);
    }
}

//! Adding a key and a table: a `[[tunnel]]` that weir does not have, in one file. What a file, a flag and the
//! documents need follows from the declarations.

use std::sync::LazyLock;
use std::time::Duration;

use toml::de::DeTable;

use crate::key::Key;
use crate::names::name;
use crate::reader::Reader;
use crate::schema::TableDoc;
use crate::table::{Table, change};
use crate::types::{duration, flag, whole};
use crate::value::{Given, Setting};

/// The settings struct: a field for each key.
#[derive(Debug, Clone, PartialEq)]
struct Tunnel {
    name: String,
    packets: u32,
    target: Option<Duration>,
    ecn: bool,
}

static KEYS: LazyLock<Vec<Key<Tunnel>>> = LazyLock::new(|| {
    let target = duration(Duration::from_millis(1)..=Duration::from_secs(1), "5ms");
    vec![
        Key::new("name", field!(Tunnel, name), name(), "The tunnel's name")
            .required("name = \"up\""),
        Key::new(
            "packets",
            field!(Tunnel, packets),
            whole(1..=1000).in_unit("packets"),
            "Packets that may wait",
        ),
        Key::new(
            "target",
            field!(Tunnel, target),
            target.or("off"),
            "Wait at which dropping begins",
        )
        .note("off drops only from a full queue")
        .since("0.2.0"),
        Key::new(
            "ecn",
            field!(Tunnel, ecn),
            flag(),
            "Mark packets instead of dropping them",
        ),
    ]
});

impl Table for Tunnel {
    const NAME: &'static str = "tunnel";
    const TITLE: &'static str = "A tunnel";
    const TEXT: &'static str = "A bottleneck.";
    const MOST: (usize, &'static str) = (2, "use fewer tunnels");

    fn keys() -> &'static [Key<Tunnel>] {
        &KEYS
    }

    fn blank() -> Tunnel {
        Tunnel {
            name: String::new(),
            packets: 100,
            target: None,
            ecn: false,
        }
    }

    fn name(&self) -> &str {
        &self.name
    }
}

/// The tunnels of a file, and what is wrong in it as `location: object: cause | hint`.
fn read(source: &str) -> (Vec<Tunnel>, Vec<String>) {
    let mut reader = Reader::new("f", source);
    let file = DeTable::parse(source).expect("the test's file is TOML");
    let (key, value) = file.get_ref().iter().next().expect("it has a table");
    let tunnels = reader.tables::<Tunnel>(key, value);
    let tunnels = tunnels.into_iter().map(|read| read.table).collect();
    let problems = reader.problems.iter();
    let problems = problems.map(|problem| format!("{problem} | {}", problem.hint));
    (tunnels, problems.collect())
}

#[test]
fn a_file_sets_the_fields_of_declared_keys() {
    let source = "[[tunnel]]\nname = \"up\"\npackets = 7\ntarget = \"5ms\"\necn = true\n\
                  [[tunnel]]\nname = \"down\"\n";
    let up = Tunnel {
        name: "up".into(),
        packets: 7,
        target: Some(Duration::from_millis(5)),
        ecn: true,
    };
    let down = Tunnel {
        name: "down".into(),
        ..Tunnel::blank()
    };
    assert_eq!(read(source), (vec![up, down], Vec::new()));
}

#[test]
fn mistakes_have_their_location_cause_and_hint() {
    let source = "[[tunnel]]\nname = \"up\"\npackets = 0\ntarget = 5\nenc = true\n[[tunnel]]\n";
    let (tunnels, mut problems) = read(source);
    problems.sort();
    assert_eq!(tunnels.len(), 1);
    assert_eq!(
        problems,
        [
            "f:3:11: tunnel \"up\": packets: 0 is out of range | a whole number from 1 to 1000",
            "f:4:10: tunnel \"up\": target: is a number, not a duration | a duration with its unit from 1ms to 1s, \
             for example \"5ms\", or \"off\"",
            "f:5:1: tunnel \"up\": unknown key \"enc\" | did you mean ecn?",
            "f:6:1: tunnel: name is missing | add it: name = \"up\"",
        ]
    );
}

#[test]
fn flags_and_the_api_change_declared_keys() {
    let key = Tunnel::key("packets").unwrap();
    let given = key.form.given("9").unwrap();
    let changed = change(&Tunnel::blank(), [("packets", &given)]).unwrap();
    assert_eq!(key.show(&changed), Setting::Whole(9));
    let off = Given::Text("off".into());
    let target = Tunnel::key("target").unwrap();
    let changed = change(&changed, [("target", &off)]).unwrap();
    assert_eq!(target.show(&changed), Setting::Text("off".into()));
    let fault = change(&changed, [("packets", &off)]).unwrap_err();
    assert_eq!(fault.cause, "packets: is a string, not a number");
}

#[test]
fn documents_have_type_unit_range_default_and_version_of_declared_keys() {
    let doc = TableDoc::of::<Tunnel>();
    let rows = doc.keys.iter().map(|key| {
        let of_type = (key.type_name, key.unit, key.values.as_str());
        (key.name, of_type, key.default.as_str(), key.since)
    });
    let names = "letters, digits, '.', '_', '-'; at most 64";
    assert_eq!(
        rows.collect::<Vec<_>>(),
        [
            ("name", ("string", "", names), "required", "0.1.0"),
            (
                "packets",
                ("number", "packets", "1 to 1000"),
                "100",
                "0.1.0"
            ),
            (
                "target",
                ("duration", "", "1ms to 1s, or off"),
                "off",
                "0.2.0"
            ),
            (
                "ecn",
                ("true or false", "", "true | false"),
                "false",
                "0.1.0"
            ),
        ]
    );
    assert_eq!(doc.keys[2].note, "off drops only from a full queue");
    assert_eq!(doc.keys[1].example, "packets = 100");
}

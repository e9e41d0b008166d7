//! Claims about `[[shape]]`.

use weir_core::aqm::Discipline;
use weir_core::shape::{Backend, Shape};

use super::problems;
use crate::{Table, parse};

#[test]
fn a_shape_is_read_and_an_interface_has_one() {
    let file = r#"
        [[shape]]
        dev = "ppp0"
        rate = "2.4mbit"
        ingress = "20mbit"
        discipline = "spa"
        backend = "bpf"
    "#;
    let expected = Shape {
        dev: "ppp0".into(),
        rate_bits_per_s: 2_400_000,
        ingress_bits_per_s: Some(20_000_000),
        discipline: Discipline::Spa,
        backend: Backend::Bpf,
    };
    let config = parse("f", file).unwrap();
    assert!(config.is_for_run());
    assert_eq!(config.shapes, [expected]);
    assert_eq!(Shape::keys().len(), 5, "this test must set every key");
    let table = |lines: &str| problems(&format!("[[shape]]\n{lines}"));
    for (lines, expected) in [
        (
            "dev = \"a\"\nrate = \"10\"\n",
            "3:8: shape \"a\": rate: \"10\" has no unit | a number and bit, kbit, mbit or gbit, 12kbit to 100gbit: 10mbit",
        ),
        (
            "dev = \"a\"\nrate = \"1kbit\"\n",
            "3:8: shape \"a\": rate: 1kbit is out of range | a number and bit, kbit, mbit or gbit, 12kbit to 100gbit: 10mbit",
        ),
        (
            "dev = \"a\"\nrate = \"1mbit\"\ndiscipline = \"spafq\"\n",
            "4:14: shape \"a\": discipline: \"spafq\" is not known | did you mean \"spa-fq\"?",
        ),
        (
            "dev = \"a\"\nrate = \"1mbit\"\ndiscipline = \"pie\"\nbackend = \"bpf\"\n",
            "4:14: shape \"a\": discipline: weir's qdisc in BPF has no pie | there are spa-fq, spa, spa-paper, syn-prio, syn-fin-prio",
        ),
        (
            "rate = \"1mbit\"\n",
            "1:1: shape: dev is missing | add it: dev = \"ppp0\"",
        ),
    ] {
        assert_eq!(table(lines), [expected], "{lines}");
    }
    let twice = "dev = \"a\"\nrate = \"1mbit\"\n[[shape]]\ndev = \"a\"\nrate = \"1mbit\"\n";
    let expected = "4:1: shape \"a\": the shape on line 1 has the same name | an interface has one [[shape]]: remove the other";
    assert_eq!(table(twice), [expected]);
}

//! Claims about whole files.

mod declare;
mod destinations;
mod listeners;
mod proxies;
mod quic;
mod services;
mod shapes;

use super::*;
use weir_core::controller;
use weir_core::listener::Listener;
use weir_core::proxy::Proxy;
use weir_core::quic::QuicListener;
use weir_core::shape::Shape;
use weir_core::timewait::Destination;

/// The problems of a file, as `line:column: object: cause | hint`.
fn problems(source: &str) -> Vec<String> {
    let problems = parse("f", source).expect_err("the file is wrong").0;
    problems
        .iter()
        .map(|p| format!("{p} | {}", p.hint).replacen("f:", "", 1))
        .collect()
}

#[test]
fn a_hundred_thousand_faults_are_counted_and_not_all_looked_up() {
    let tables: String = (0..100_000).map(|n| format!("[x{n}]\n")).collect();
    let began = std::time::Instant::now();
    let problems = parse("weir.toml", &tables).unwrap_err().0;
    // Each look-up reads all that stands before the fault: all of them would take minutes.
    assert!(began.elapsed() < std::time::Duration::from_secs(30));
    assert_eq!(problems.len(), 101);
    let last = problems.last().unwrap();
    assert!(
        last.to_string().ends_with("there are 99900 faults besides"),
        "{last}"
    );
}

#[test]
fn too_many_of_a_thing_are_named_in_english_and_not_compared_with_each_other() {
    let class = |n| format!("[[class]]\nname = \"c{n}\"\nfrom = \"10.0.0.1/32\"\npriority = 1\n");
    let classes: String = (0..20_000).map(class).collect();
    let file = format!("[[listener]]\naddress = \"*:80\"\n{classes}");
    let problems = parse("weir.toml", &file).unwrap_err();
    assert!(
        problems.to_string().contains("20000 classes are too many"),
        "{}",
        problems.0[0]
    );
}

#[test]
fn tables_of_other_versions_are_refused() {
    let file = "[[listener]]\naddress = \"*:80\"\n[[tunnel]]\nname = \"gold\"\n";
    assert_eq!(
        problems(file),
        [
            "3:3: unknown table or key \"tunnel\" | this version knows [[listener]], [[class]], [[quic]], [[proxy]], [[destination]], [[shape]], [controller], [api], [metrics], [dashboard], [events]"
        ]
    );
    assert_eq!(
        problems("[[listner]]\naddress = \"*:80\"\n"),
        ["1:3: unknown table or key \"listner\" | did you mean [[listener]]?"]
    );
}

#[test]
fn a_key_outside_a_listener_is_sent_below_its_header() {
    assert_eq!(
        problems("address = \"*:80\"\n"),
        [
            "1:1: unknown table or key \"address\" | address belongs below a line [[listener]] or [[quic]]"
        ]
    );
}

#[test]
fn syntax_errors_have_their_place() {
    let found = problems("[[listener]]\naddress = \n");
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("2:"), "{found:?}");
}

#[test]
fn what_stands_twice_is_named_with_the_first_place() {
    let first = "[[listener]]\naddress = \"*:80\"\nadmit = \"wait\"\n";
    for (more, found) in [
        (
            "admit = \"queue\"\n",
            "4:1: the key admit stands here twice | line 3 has it too: keep one of them",
        ),
        (
            "  address  = \"*:81\"\n",
            "4:3: the key address stands here twice | line 2 has it too: keep one of them",
        ),
        (
            "[[listener]]\naddress = \"*:81\"\n'address' = \"*:82\"\n",
            "6:1: the key 'address' stands here twice | keep one of them",
        ),
        (
            "[metrics]\n[api]\n[ metrics ]\n",
            "6:3: the table metrics stands here twice | line 4 has it too: keep one of them",
        ),
    ] {
        assert_eq!(problems(&format!("{first}{more}")), [found]);
    }
}

#[test]
fn every_mistake_is_reported_at_once_in_the_order_of_the_lines() {
    let file = "[[listener]]\naddress = \"*:80\"\nfront = \"dpdk\"\nadmit = \"never\"\n[x]\n";
    let lines: Vec<String> = problems(file)
        .iter()
        .map(|p| p.split(':').next().unwrap().to_owned())
        .collect();
    assert_eq!(lines, ["3", "4", "5"]);
}

#[test]
fn an_empty_file_has_no_table() {
    let found = problems("");
    let cause = "1:1: the file has no listener, QUIC listener, proxy, destination or shape";
    assert!(found[0].starts_with(cause), "{found:?}");
}

proptest::proptest! {
    #[test]
    fn no_text_makes_the_reader_panic(source in "(\\[\\[(listener|proxy)\\]\\]\n)?(\\PC|\n|=|\"){0,60}") {
        let _ = parse("f", &source);
    }
}

const WEB: &str = "[[listener]]\naddress = \"*:80\"\n";

fn as_given(setting: Setting) -> Given {
    match setting {
        Setting::Text(text) => Given::Text(text),
        Setting::Whole(number) => Given::Number(number as f64),
        Setting::Number(number) => Given::Number(number),
        Setting::Flag(on) => Given::Flag(on),
        Setting::List(list) => Given::List(list),
        Setting::None => Given::Text("none".into()),
    }
}

fn keys_read_back_what_they_show<T: Table + PartialEq + std::fmt::Debug>() {
    let example = T::example();
    for key in T::keys() {
        let mut read = example.clone();
        let shown = key.show(&example);
        if shown == Setting::List(Vec::new()) && !key.form.may_be_none() && key.empty == "all" {
            continue; // A list that must not be empty where it is given.
        }
        assert_eq!(key.set(&mut read, &as_given(shown)), Ok(()), "{}", key.name);
        assert_eq!(read, example, "{}", key.name);
    }
}

#[test]
fn the_values_of_every_key_contain_its_default_and_are_read_back_as_they_are_shown() {
    keys_read_back_what_they_show::<Listener>();
    keys_read_back_what_they_show::<QuicListener>();
    keys_read_back_what_they_show::<Proxy>();
    keys_read_back_what_they_show::<Destination>();
    keys_read_back_what_they_show::<Shape>();
    keys_read_back_what_they_show::<weir_core::class::Class>();
    keys_read_back_what_they_show::<controller::Settings>();
    keys_read_back_what_they_show::<ApiSettings>();
    keys_read_back_what_they_show::<MetricsSettings>();
    keys_read_back_what_they_show::<DashboardSettings>();
    keys_read_back_what_they_show::<EventsSettings>();
}

#[test]
fn the_texts_of_keys_are_one_line_without_a_full_stop() {
    for key in tables().flat_map(|table| &table.keys) {
        let text = key.text;
        let is_line = !text.is_empty() && !text.ends_with('.') && !text.contains('\n');
        assert!(
            is_line && !text.contains("Left out"),
            "{}: {text}",
            key.name
        );
    }
}

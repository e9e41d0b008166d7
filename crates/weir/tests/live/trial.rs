//! What a reload would change, reloads that go back, and observing for a while.

use serde_json::json;
use weir_client::Client;

use super::{Bed, DEFAULT, PORT, RESERV, idle_server, stderr};

fn establish(bed: &Bed) -> String {
    bed.status()["listeners"][0]["establish"]
        .as_str()
        .unwrap()
        .to_owned()
}

#[test]
fn check_shows_what_a_reload_would_change() {
    let Some(bed) = Bed::new("diff") else { return };
    let diff = |flags: &str| {
        let file = bed.config();
        bed.weir(&format!("check --diff {} {flags}", file.display()))
    };
    bed.write_config(RESERV);
    assert_eq!(diff("").status.code(), Some(4), "no weir runs here");
    let _server = idle_server(PORT);
    let _weir = bed.run(RESERV);
    let none = diff("");
    let text = String::from_utf8(none.stdout).unwrap();
    assert!(
        text.ends_with(": a reload would change nothing\n"),
        "{text}"
    );
    bed.write_config(DEFAULT);
    let json: serde_json::Value = serde_json::from_slice(&diff("--json").stdout).unwrap();
    let keys = &json[0]["changes"][0]["keys"];
    let wanted = json!({"key": "establish", "before": "reserv", "after": "default"});
    assert!(keys.as_array().unwrap().contains(&wanted), "{json}");
    assert_eq!(establish(&bed), "reserv", "nothing has changed");
}

#[test]
fn what_needs_a_restart_is_said_by_each_reload() {
    let Some(bed) = Bed::new("restart") else {
        return;
    };
    let _server = idle_server(PORT);
    let weir = bed.run(RESERV);
    bed.write_config(&format!("{RESERV}\n[metrics]\n"));
    let file = bed.config();
    let diff = bed.weir(&format!("check --diff {}", file.display()));
    let text = String::from_utf8(diff.stdout).unwrap();
    assert!(
        text.ends_with(": only a restart would change\n~ metrics\n"),
        "{text}"
    );
    let said = "[metrics] stays as it was at the start: its change needs a restart";
    for _ in 0..2 {
        let reload = bed.weir("reload");
        assert!(reload.status.success(), "{}", stderr(&reload));
        assert!(stderr(&reload).contains(said), "{}", stderr(&reload));
    }
    assert!(weir.log().contains(said), "{}", weir.log());
    bed.write_config(RESERV);
    let reload = stderr(&bed.weir("reload"));
    assert!(!reload.contains("restart"), "{reload}");
}

#[test]
fn what_weir_class_has_changed_is_among_what_a_reload_changes() {
    let Some(bed) = Bed::new("undone") else {
        return;
    };
    let _server = idle_server(PORT);
    let class = |name: &str, rate: u32, from: &str| {
        format!("[[class]]\nname = {name:?}\nrate = {rate}\nfrom = {from:?}\n")
    };
    let classes = class("kept", 5, "10.1.0.0/16") + &class("slow", 7, "10.2.0.0/16");
    let weir = bed.run(&format!("{RESERV}\n{classes}"));
    let diff = || {
        let file = bed.config();
        let diff = bed.weir(&format!("check --diff {}", file.display()));
        String::from_utf8(diff.stdout).unwrap()
    };
    assert!(diff().ends_with(": a reload would change nothing\n"));
    for change in [
        "add gold --from 10.3.0.0/16 --rate 10 --burst 20",
        "set slow --rate 70",
        "remove kept",
    ] {
        assert!(bed.weir(&format!("class {change}")).status.success());
    }
    let text = diff();
    for line in [
        "- class gold",
        "~ class slow",
        "    rate: 70",
        "+ class kept",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let reload = stderr(&bed.weir("reload"));
    for warning in [
        "class \"gold\" has gone: it is not in the file, and was added while weir ran",
        "class \"kept\" is in force again: it is in the file, and was removed while weir ran",
        "class \"slow\" has the keys of the file again, and was changed while weir ran",
    ] {
        assert!(reload.contains(warning), "{reload}");
    }
    assert!(diff().ends_with(": a reload would change nothing\n"));
    let again = stderr(&bed.weir("reload"));
    assert!(!again.contains("while weir ran"), "{again}");
    let log = weir.log();
    assert!(log.contains("and was added while weir ran"), "{log}");
}

#[test]
fn a_reload_that_nobody_confirms_goes_back() {
    let Some(bed) = Bed::new("trial") else { return };
    let _server = idle_server(PORT);
    let socket = bed.config().with_file_name("api.sock");
    let weir = bed.run(&format!("{RESERV}\n[api]\nsocket = {socket:?}\n"));
    bed.write_config(DEFAULT);
    let reload = bed.weir("reload --confirm 2s");
    assert!(reload.status.success(), "{}", stderr(&reload));
    let text = String::from_utf8(reload.stdout).unwrap();
    assert!(text.contains("for 2 s"), "{text}");
    let status = bed.status();
    assert_eq!(status["listeners"][0]["establish"], "default");
    assert!(status["process"]["unconfirmed_s"].as_u64().unwrap() <= 2);
    let over_http = Client::new(socket).status().unwrap();
    assert!(over_http.process.unwrap().unconfirmed_s.is_some());
    bed.until(|status| status["listeners"][0]["establish"] == "reserv");
    let status = bed.status();
    assert!(status["process"]["unconfirmed_s"].is_null());
    let last = &status["last_reload"];
    assert_eq!(last["succeeded"], false, "the file is not in force");
    let failure = last["failure"].as_str().unwrap();
    assert!(failure.contains("not confirmed"), "{failure}");
    let log = weir.log();
    assert!(log.contains("not confirmed"), "{log}");
}

#[test]
fn another_reload_confirms_it() {
    let Some(bed) = Bed::new("confirm") else {
        return;
    };
    let _server = idle_server(PORT);
    let weir = bed.run(RESERV);
    bed.write_config(DEFAULT);
    assert!(bed.weir("reload --confirm 1h").status.success());
    assert!(bed.status()["process"]["unconfirmed_s"].as_u64().unwrap() > 3500);
    bed.write_config("nonsense");
    assert!(!bed.weir("reload").status.success());
    assert!(
        bed.status()["process"]["unconfirmed_s"].is_u64(),
        "a file that is not in force confirms nothing"
    );
    bed.write_config(DEFAULT);
    assert!(bed.weir("reload").status.success());
    assert!(bed.status()["process"]["unconfirmed_s"].is_null());
    assert_eq!(establish(&bed), "default");
    assert_eq!(bed.weir("reload --confirm 0s").status.code(), Some(2));
    let log = weir.log();
    assert!(!log.contains("not confirmed"), "{log}");
}

/// Of its listener and of its QUIC listener.
fn modes(bed: &Bed) -> [String; 2] {
    let status = bed.status();
    ["listeners", "quic"].map(|kind| status[kind][0]["mode"].as_str().unwrap().to_owned())
}

fn with_quic() -> String {
    format!("{RESERV}[[quic]]\nname = \"h3\"\naddress = \"*:{PORT}\"\n")
}

#[test]
fn observe_refuses_nobody_for_its_time_and_leaves_the_classes() {
    let Some(bed) = Bed::new("observe-for") else {
        return;
    };
    assert_eq!(bed.weir("observe").status.code(), Some(4), "no weir here");
    let _server = idle_server(PORT);
    let weir = bed.run(&with_quic());
    let add = bed.weir("class add gold --from 10.3.0.0/16 --rate 10 --burst 20");
    assert!(add.status.success(), "{}", stderr(&add));
    // The file is not read: it may be half written at that hour.
    bed.write_config("nonsense");
    let observe = bed.weir("observe --for 2s");
    assert!(observe.status.success(), "{}", stderr(&observe));
    let text = String::from_utf8(observe.stdout).unwrap();
    assert!(text.contains("refuses nobody for 2 s"), "{text}");
    assert_eq!(modes(&bed), ["observe"; 2]);
    let status = bed.status();
    assert!(status["process"]["observes_s"].as_u64().unwrap() <= 2);
    assert!(status["process"]["unconfirmed_s"].is_null());
    assert!(status["last_reload"].is_null(), "{status}");
    bed.until(|status| status["listeners"][0]["mode"] == "enforce");
    assert_eq!(modes(&bed), ["enforce"; 2]);
    assert!(bed.status()["process"]["observes_s"].is_null());
    let classes = bed.weir("class list");
    let classes = String::from_utf8(classes.stdout).unwrap();
    assert!(classes.contains("gold"), "{classes}");
    let events = String::from_utf8(bed.weir("events").stdout).unwrap();
    for said in ["refuses nobody for 2 s", "is in force as before"] {
        assert!(events.contains(said), "{events}");
    }
    let log = weir.log();
    assert!(log.contains("the time of `weir observe` is over"), "{log}");
}

#[test]
fn a_reload_ends_observing_and_observing_does_not_end_a_trial() {
    let Some(bed) = Bed::new("observe-end") else {
        return;
    };
    let _server = idle_server(PORT);
    let weir = bed.run(&with_quic());
    assert!(bed.weir("observe").status.success());
    assert!(bed.status()["process"]["observes_s"].as_u64().unwrap() > 3500);
    let status = String::from_utf8(bed.weir("status").stdout).unwrap();
    assert!(status.contains("weir refuses nobody"), "{status}");
    assert!(bed.weir("reload").status.success());
    assert_eq!(modes(&bed), ["enforce"; 2]);
    assert!(bed.status()["process"]["observes_s"].is_null());
    assert!(bed.weir("reload --confirm 1h").status.success());
    let refused = bed.weir("observe");
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        stderr(&refused).contains("on trial"),
        "{}",
        stderr(&refused)
    );
    assert_eq!(modes(&bed), ["enforce"; 2]);
    let log = weir.log();
    assert!(log.contains("`weir observe` has ended"), "{log}");
}

#[test]
fn a_protect_without_a_file_cannot_observe_for_a_while() {
    let Some(bed) = Bed::new("observe-flags") else {
        return;
    };
    let _server = idle_server(PORT);
    let _protect = bed.protect("");
    let refused = bed.weir("observe");
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        stderr(&refused).contains("no config file"),
        "{}",
        stderr(&refused)
    );
}

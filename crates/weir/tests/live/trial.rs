//! What a reload would change, and reloads that go back.

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
    let diff = || {
        let file = bed.config();
        let diff = bed.weir(&format!("check --diff {}", file.display()));
        String::from_utf8(diff.stdout).unwrap()
    };
    bed.write_config(&format!("{RESERV}\n[metrics]\n"));
    let only = ": only a restart would change\n~ metrics\n";
    assert!(diff().ends_with(only), "{}", diff());
    let said = "[metrics] stays as it was at the start: its change needs a restart";
    for _ in 0..2 {
        let reload = bed.weir("reload");
        assert!(reload.status.success(), "{}", stderr(&reload));
        assert!(stderr(&reload).contains(said), "{}", stderr(&reload));
        assert!(diff().ends_with(only), "{}", diff());
    }
    bed.write_config(RESERV);
    assert!(diff().ends_with(": a reload would change nothing\n"));
    let reload = bed.weir("reload");
    assert!(reload.status.success(), "{}", stderr(&reload));
    assert!(!stderr(&reload).contains("restart"), "{}", stderr(&reload));
    let log = weir.log();
    assert_eq!(log.matches(said).count(), 2, "{log}");
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

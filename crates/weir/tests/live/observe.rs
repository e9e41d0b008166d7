//! `weir observe`: for a while weir refuses nobody.

use super::{Bed, PORT, RESERV, idle_server, stderr};

/// Of its listener and of its QUIC listener.
fn modes(bed: &Bed) -> [String; 2] {
    let status = bed.status();
    ["listeners", "quic"].map(|kind| status[kind][0]["mode"].as_str().unwrap().to_owned())
}

fn with_quic() -> String {
    format!("{RESERV}[[quic]]\nname = \"h3\"\naddress = \"*:{PORT}\"\n")
}

fn says(bed: &Bed, command: &str) -> String {
    let output = bed.weir(command);
    assert!(output.status.success(), "{command}: {}", stderr(&output));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn it_refuses_nobody_for_its_time_and_leaves_the_classes() {
    let Some(bed) = Bed::new("observe-for") else {
        return;
    };
    assert_eq!(bed.weir("observe").status.code(), Some(4), "no weir here");
    let _server = idle_server(PORT);
    let weir = bed.run(&with_quic());
    says(
        &bed,
        "class add gold --from 10.3.0.0/16 --rate 10 --burst 20",
    );
    // The file is not read: it may be half written at that hour.
    bed.write_config("nonsense");
    let answer = says(&bed, "observe --for 5s --json");
    let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer["observes_s"], 5);
    assert!(answer["confirm_s"].is_null(), "{answer}");
    let status = bed.status();
    assert_eq!(status["listeners"][0]["mode"], "observe");
    assert_eq!(status["quic"][0]["mode"], "observe");
    assert!(status["process"]["observes_s"].as_u64().unwrap() <= 5);
    assert!(status["process"]["unconfirmed_s"].is_null());
    assert!(status["last_reload"].is_null(), "{status}");
    bed.until(|status| status["listeners"][0]["mode"] == "enforce");
    assert_eq!(modes(&bed), ["enforce"; 2]);
    assert!(bed.status()["process"]["observes_s"].is_null());
    assert!(says(&bed, "class list").contains("gold"));
    let events = says(&bed, "events");
    for said in ["refuses nobody for 5 s", "is in force as before"] {
        assert!(events.contains(said), "{events}");
    }
    bed.write_config(&with_quic());
    let reload = stderr(&bed.weir("reload"));
    let undone = "class \"gold\" has gone: it is not in the file, and was added while weir ran";
    assert!(reload.contains(undone), "{reload}");
    let log = weir.log();
    assert!(log.contains("the time of `weir observe` is over"), "{log}");
}

#[test]
fn a_reload_ends_it_and_check_says_that_it_would() {
    let Some(bed) = Bed::new("observe-end") else {
        return;
    };
    let _server = idle_server(PORT);
    let weir = bed.run(&with_quic());
    says(&bed, "observe --for 10m");
    says(&bed, "observe");
    let left = bed.status()["process"]["observes_s"].as_u64().unwrap();
    assert!(left > 3500, "the second one counts: {left}");
    assert!(says(&bed, "status").contains("weir refuses nobody"));
    let diff = says(&bed, &format!("check --diff {}", bed.config().display()));
    assert_eq!(
        diff.matches("mode: observe -> enforce").count(),
        2,
        "{diff}"
    );
    says(&bed, "reload");
    assert_eq!(modes(&bed), ["enforce"; 2]);
    assert!(bed.status()["process"]["observes_s"].is_null());
    let log = weir.log();
    assert!(log.contains("`weir observe` has ended"), "{log}");
}

#[test]
fn a_trial_is_confirmed_first_and_one_may_end_it() {
    let Some(bed) = Bed::new("observe-trial") else {
        return;
    };
    let _server = idle_server(PORT);
    let _weir = bed.run(&with_quic());
    let on_trial = || bed.status()["process"]["unconfirmed_s"].is_u64();
    says(&bed, "reload --confirm 1h");
    let refused = bed.weir("observe");
    assert_eq!(refused.status.code(), Some(1));
    let why = stderr(&refused);
    assert!(why.contains("a reload is on trial"), "{why}");
    assert!(on_trial());
    assert_eq!(modes(&bed), ["enforce"; 2]);
    says(&bed, "reload");
    says(&bed, "observe");
    says(&bed, "reload --confirm 1h");
    assert!(on_trial());
    assert_eq!(modes(&bed), ["enforce"; 2]);
}

#[test]
fn a_reload_that_fails_leaves_it_as_it_is() {
    let Some(bed) = Bed::new("observe-fails") else {
        return;
    };
    let _server = idle_server(PORT);
    let _weir = bed.run(&with_quic());
    says(&bed, "observe");
    bed.write_config("nonsense");
    assert_eq!(bed.weir("reload").status.code(), Some(2));
    assert_eq!(modes(&bed), ["observe"; 2]);
    assert!(bed.status()["process"]["observes_s"].is_u64());
}

#[test]
fn a_protect_without_a_file_cannot() {
    let Some(bed) = Bed::new("observe-flags") else {
        return;
    };
    let _server = idle_server(PORT);
    let _protect = bed.protect("");
    let refused = bed.weir("observe");
    assert_eq!(refused.status.code(), Some(1));
    let why = stderr(&refused);
    assert!(why.contains("no config file"), "{why}");
}

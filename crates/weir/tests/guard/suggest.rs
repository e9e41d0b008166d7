//! `weir suggest`: what an operator learns from watching a real server.

use std::net::TcpListener;
use std::time::Duration;

use weir_client::{Client, Suggestion, Suggestions};

use crate::common::{BACKLOG, Bed, PORT, accept, connect, listen, until};

/// Connections at once: all that the kernel takes into the queue by itself, one more than weir would let in.
const BURST: usize = BACKLOG as usize + 1;

impl Bed {
    /// What `weir suggest --json` prints, and how it ends.
    fn suggestions(&self, least: &str) -> (Suggestions, i32, String) {
        let output = self.weir(&format!("suggest --json --least {least}"));
        let suggestions = serde_json::from_slice(&output.stdout);
        (
            suggestions.unwrap_or_else(|e| panic!("{e}: {output:?}")),
            output.status.code().unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    }

    /// A burst of clients, all of which the server gets.
    fn burst(&self, listener: &TcpListener) {
        let path = self.veth4();
        let clients = connect(path.client, path.at(PORT), BURST);
        let served = accept(listener, clients.counts().0);
        drop((clients, served));
    }
}

#[test]
fn after_real_load_the_suggested_config_names_the_short_backlog_and_weir_accepts_it() {
    let Some(bed) = Bed::new() else { return };
    let listener = listen(bed.server(), bed.veth4().at(PORT), BACKLOG);
    let socket = bed.folder.path().join("api.sock");
    let _weir = bed.run(&format!(
        "[[listener]]\nname = \"web\"\naddress = \"*:{PORT}\"\nmode = \"observe\"\nreason = true\n\
         [api]\nsocket = {socket:?}\n"
    ));
    let (first, code, stderr) = bed.suggestions("10m");
    assert_eq!(code, 1, "{first:#?}");
    assert!(stderr.contains("web: weir has looked for"), "{stderr}");
    assert!(first.listeners[0].missing_s > Some(500), "{first:#?}");
    assert!(first.listeners[0].toml.is_empty());

    let web: Suggestion = until("weir suggests something", || {
        bed.burst(&listener);
        let (suggestions, code, _) = bed.suggestions("3s");
        let web = suggestions.listeners.into_iter().next().unwrap();
        assert_eq!(code, i32::from(web.missing.is_some()), "{web:#?}");
        web.missing.is_none().then_some(web)
    });
    assert!(
        web.looked_s >= 2 && web.profile.connections >= 100,
        "{web:#?}"
    );
    assert_eq!(
        (web.profile.queue_limit, web.profile.mode.as_str()),
        (BACKLOG as u32, "observe")
    );
    assert!(web.profile.refused_full > 0 && web.profile.full_seconds > 0);
    assert!(web.backlog >= Some(2 * BACKLOG as u32), "{web:#?}");
    let source = &web.profile.sources[0];
    assert_eq!(source.source, "10.66.1.2", "{web:#?}");
    assert!(source.per_second > 0.0);

    // What it prints is a config file that weir check takes, with the settings that were asked for.
    let output = bed.weir("suggest --least 3s");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    for part in [
        "backlog of 4 is too small",
        "reason = true",
        "mode = \"enforce\"",
        "# What weir cannot know:",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let file = bed.folder.path().join("suggested.toml");
    std::fs::write(&file, &text).unwrap();
    let check = bed.weir(&format!("check {}", file.display()));
    let said = String::from_utf8_lossy(&check.stderr);
    assert!(check.status.success() && said.is_empty(), "{said}\n{text}");

    // In a file of the operator's it changes what it suggests, and nothing else.
    let own = bed.folder.path().join("own.toml");
    let written = format!(
        "# Ask Ann.\n[[listener]]\naddress = \"*:{PORT}\"   # the shop\nmode = \"observe\" # for now\n"
    );
    std::fs::write(&own, &written).unwrap();
    let output = bed.weir(&format!("suggest --least 3s --config {}", own.display()));
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("mode \"observe\" becomes \"enforce\""),
        "{said}"
    );
    let changed = String::from_utf8(output.stdout).unwrap();
    assert!(
        changed.contains("#> The server's backlog of 4 is too small"),
        "{changed}"
    );
    assert!(
        changed.contains("\nmode = \"enforce\" # for now\n"),
        "{changed}"
    );
    std::fs::write(&own, &changed).unwrap();
    let check = bed.weir(&format!("check {}", own.display()));
    assert!(check.status.success(), "{check:?}\n{changed}");
    let left = changed.lines().filter(|line| !line.starts_with("#>"));
    let left: Vec<&str> = left
        .filter(|line| !line.starts_with("target_wait"))
        .collect();
    let written = written.replace("observe", "enforce");
    assert_eq!(left, written.lines().collect::<Vec<_>>());
    // A shell that writes to the file that is read has emptied it before.
    std::fs::write(&own, "").unwrap();
    let output = bed.weir(&format!("suggest --least 3s --config {}", own.display()));
    assert_eq!(output.status.code(), Some(2), "{output:?}");

    // The API has the same.
    let client = Client::new(&socket);
    let of_api = client.suggestions(Some(Duration::from_secs(3))).unwrap();
    assert_eq!(of_api.listeners[0].listener, "web");
    assert_eq!(of_api.listeners[0].backlog, web.backlog);
    let usual = client.suggestions(None).unwrap();
    assert!(usual.listeners[0].missing.is_some(), "{usual:#?}");

    // Another setting: what was seen does not follow from it.
    bed.write_config(&format!(
        "[[listener]]\nname = \"web\"\naddress = \"*:{PORT}\"\nmode = \"observe\"\ntarget_wait = \"50ms\"\n\
         [api]\nsocket = {socket:?}\n"
    ));
    assert!(bed.weir("reload").status.success());
    let (anew, code, _) = bed.suggestions("3s");
    assert_eq!((anew.listeners[0].profile.connections, code), (0, 1));
}

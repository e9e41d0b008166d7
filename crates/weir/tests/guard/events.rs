//! `weir events` and `weir why`: what an operator learns of a real overload.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use weir_client::{Client, Event, TopSources, Why};

use crate::common::{BACKLOG, Bed, PORT, Peer, Raw, Weir, accept, connect, listen, until, within};

/// The bed's client.
const CLIENT: &str = "10.66.1.2";

/// Events as lines of JSON.
fn parsed(text: &str) -> Vec<Event> {
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

impl Bed {
    /// What `weir events --json` prints, and how it ends.
    fn events(&self) -> Vec<Event> {
        let output = self.weir("events --json");
        parsed(&String::from_utf8(output.stdout).unwrap())
    }

    /// The first event of a kind, once there is one.
    fn event(&self, kind: &str) -> Event {
        until(kind, || {
            let mut events = self.events().into_iter();
            events.find(|event| event.kind == kind)
        })
    }

    /// `weir why ADDRESS --json` and its exit code.
    fn why(&self, address: &str) -> (Why, i32) {
        let output = self.weir(&format!("why {address} --json"));
        let why = serde_json::from_slice(&output.stdout);
        (
            why.unwrap_or_else(|e| panic!("{e}: {output:?}")),
            output.status.code().unwrap(),
        )
    }

    fn run_web(&self, further: &str) -> Weir {
        self.run(&format!(
            "[[listener]]\nname = \"web\"\naddress = \"*:{PORT}\"\nadmit = \"queue\"\n{further}\n"
        ))
    }
}

#[test]
fn an_overload_is_told_from_its_beginning_to_its_end_and_why_names_the_client() {
    let Some(bed) = Bed::new() else { return };
    let file = bed.folder.path().join("events.jsonl");
    let path = bed.veth4();
    let listener = listen(bed.server(), path.at(PORT), BACKLOG);
    let weir = bed.run_web(&format!(
        "[events]\nfile = {:?}\n[api]\n",
        file.display().to_string()
    ));
    let (why, code) = bed.why(CLIENT);
    assert_eq!((why.answer.as_str(), code), ("not_refused", 6));

    let clients = connect(path.client, path.at(PORT), 7);
    assert_eq!(clients.counts(), (4, 3, 0), "the server accepts none");
    let (why, code) = bed.why(CLIENT);
    assert_eq!((why.answer.as_str(), code), ("refused", 0), "at once");

    let begins = bed.event("overload");
    let episode = begins.episode.unwrap();
    assert_eq!(
        (begins.severity.as_str(), begins.listener.as_deref()),
        ("warn", Some("web"))
    );
    assert_eq!(
        (episode.state.as_str(), episode.peak_queue_length),
        ("begins", 4)
    );
    let refusal = bed.event("refusal");
    let seen = refusal.refusal.unwrap();
    assert_eq!(
        (seen.source.as_str(), seen.verdict.as_str()),
        (CLIENT, "syn_reset_full")
    );
    assert_eq!((seen.queue_length, seen.queue_limit), (Some(4), Some(4)));
    assert_eq!(seen.destination, path.at(PORT).to_string());

    let (why, code) = bed.why(CLIENT);
    assert_eq!((why.answer.as_str(), code), ("refused", 0), "{why:#?}");
    assert_eq!(
        why.refusals[0].sampled, 3,
        "below the bound each is sampled: {why:#?}"
    );
    assert_eq!(why.refusals[0].refusal.verdict, "syn_reset_full");
    assert!(why.gaps.is_empty(), "{why:#?}");
    let (other, code) = bed.why("198.51.100.7");
    assert_eq!((other.answer.as_str(), code), ("not_refused", 6));
    let text = String::from_utf8(bed.weir(&format!("why {CLIENT}")).stdout).unwrap();
    assert!(text.contains("3 times") && text.contains("4/4"), "{text}");
    let other = bed.weir("why 198.51.100.7");
    assert_eq!(other.status.code(), Some(6));
    assert_eq!(
        String::from_utf8_lossy(&other.stderr),
        "",
        "an answer is no error"
    );

    let waited = until("its clients have waited for two seconds", || {
        let wait = bed.status()["listeners"][0]["wait_us"].as_u64();
        wait.filter(|us| *us >= 2_000_000)
    });
    let served = accept(&listener, 4);
    let ends = until("the overload ends", || {
        let of = |event: &Event| event.episode.as_ref().map(|e| e.state.clone());
        let mut events = bed.events().into_iter();
        events.find(|event| of(event).as_deref() == Some("ends"))
    });
    let episode = ends.episode.unwrap();
    assert_eq!(episode.turned_away, 3);
    // Nobody was refused any more, and four waited.
    assert!(episode.duration_ms + 600 >= waited / 1000, "{episode:#?}");
    drop(served);
    weir.signal(Signal::SIGTERM);
    weir.end();
    let text = std::fs::read_to_string(&file).unwrap();
    let events = parsed(&text);
    let numbers: Vec<u64> = events.iter().map(|event| event.number).collect();
    assert_eq!(numbers, (1..=events.len() as u64).collect::<Vec<u64>>());
    let kinds: Vec<&str> = events.iter().map(|event| event.kind.as_str()).collect();
    assert_eq!(
        (kinds[0], kinds[kinds.len() - 1]),
        ("start", "stop"),
        "{kinds:?}"
    );
    assert_eq!(kinds.iter().filter(|kind| **kind == "refusal").count(), 3);
    assert_eq!(bed.weir("events").status.code(), Some(4));
    assert_eq!(bed.weir("why 192.0.2.1").status.code(), Some(4));
}

#[test]
fn who_follows_events_sees_a_killed_weir_and_the_next_one() {
    let Some(bed) = Bed::new() else { return };
    let mut command: Command = bed.command("events --follow --json --kind start");
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut follower = within(bed.server(), || command.spawn().unwrap());
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    let mut next = || -> Event { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    for _ in 0..2 {
        let weir = bed.run_web("");
        let event = next();
        assert_eq!(
            (event.kind.as_str(), event.pid, event.number),
            ("start", weir.pid(), 1)
        );
        weir.signal(Signal::SIGKILL);
        weir.end();
    }
    follower.kill().unwrap();
    follower.wait().unwrap();
}

#[test]
fn a_reload_is_an_event_and_so_is_one_that_fails() {
    let Some(bed) = Bed::new() else { return };
    let _weir = bed.run_web("");
    bed.write_config("[[listener]]\nnmae = \"web\"\n");
    assert_eq!(bed.weir("reload").status.code(), Some(2));
    let failed = bed.event("reload_failed");
    assert_eq!(failed.severity, "error");
    let errors = failed.reload.unwrap().errors;
    let names_it = |cause: &weir_client::Cause| cause.message.contains("nmae");
    assert!(errors.iter().any(names_it), "{errors:?}");
    let file = bed.folder.path().join("later.jsonl");
    bed.write_config(&format!(
        "[[listener]]\nname = \"web\"\naddress = \"*:{PORT}\"\n[[class]]\nname = \"gold\"\nrate = 5.0\n\
         [events]\nfile = {:?}\n",
        file.display().to_string()
    ));
    assert!(bed.weir("reload").status.success());
    assert_eq!(bed.event("reload").reload.unwrap().listeners, 1);
    assert!(bed.weir("class set gold --rate 7").status.success());
    let changed = bed.event("class_changed");
    assert_eq!(changed.class.as_deref(), Some("gold"));
    until("the file has the events since", || {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        text.contains("class_changed").then_some(())
    });
}

/// A client is refused, and then ten thousand addresses are, each once, faster than weir samples.
#[test]
fn a_spoofed_flood_does_not_displace_a_client_that_was_refused_before_it() {
    let Some(bed) = Bed::new() else { return };
    let path = bed.veth4();
    let any: SocketAddr = (std::net::Ipv6Addr::UNSPECIFIED, PORT).into();
    let _listener = listen(bed.server(), any, BACKLOG);
    let socket = bed.folder.path().join("api.sock");
    let _weir = bed.run_web(&format!("[api]\nsocket = {socket:?}\n"));
    let clients = connect(path.client, path.at(PORT), 6);
    assert_eq!(clients.counts(), (4, 2, 0));
    until("the client's refusal is kept", || {
        (bed.why(CLIENT).1 == 0).then_some(())
    });

    let raw = Raw(&bed.links.wire);
    let mut spoofed = 0;
    let mut send = |syns: u64| {
        for _ in 0..syns {
            raw.syn(Peer::v4(spoofed, PORT), spoofed);
            spoofed += 1;
            if spoofed % 64 == 0 {
                raw.discard();
            }
        }
    };
    send(10_000);
    let mut before = 0;
    let refused = until("weir has counted the flood", || {
        let refused = bed.counter(0, "syn_reset_full");
        let missing = 10_002_u64.saturating_sub(refused);
        // A queue of the kernel may have been full.
        if std::mem::replace(&mut before, refused) == refused {
            send(missing);
        }
        (missing == 0).then_some(refused)
    });
    let why = until("weir has read its samples", || {
        let (why, _) = bed.why("198.51.100.7");
        (!why.gaps.is_empty()).then_some(why)
    });
    assert_eq!(why.answer, "not_known");
    let gap = &why.gaps[0];
    assert!(gap.kept < gap.refused && gap.kept >= 500, "{why:#?}");
    assert!(gap.verdicts["syn_reset_full"] <= refused);
    let (why, code) = bed.why(CLIENT);
    assert_eq!((why.answer.as_str(), code), ("refused", 0), "{why:#?}");
    let top: TopSources = serde_json::from_slice(&bed.weir("why --top --json").stdout).unwrap();
    assert!((5_000.0..20_000.0).contains(&top.refused), "{top:#?}");
    let share: f64 = top.networks.iter().map(|network| network.share).sum();
    assert!(share > 0.5, "they are of few networks: {top:#?}");
    // Crowds are bounded, and what was left out is counted.
    let events = Client::new(&socket).events(0).unwrap();
    let refusals = events.events.iter().filter(|event| event.kind == "refusal");
    assert!(refusals.count() <= 400);
    assert!(bed.event("left_out").left_out > Some(0));
}

//! `weir doctor` during an incident: a server whose queue is full, and that accepts far more slowly than clients come.

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use weir_testbed::sockets::Attempts;
use weir_testbed::wait::Stops;

use crate::common::{Bed, PORT, connect, listen};

/// The default of Node, nginx and Apache.
const BACKLOG: i32 = 511;
/// Clients: more than the queue holds.
const CLIENTS: usize = 520;

impl Bed {
    fn doctor(&self) -> Value {
        let output = self.weir("doctor --json");
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

/// One a second.
fn accept_slowly(listener: &TcpListener, stop: &AtomicBool) {
    listener.set_nonblocking(true).unwrap();
    let mut taken = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        taken.extend(listener.accept());
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Looks while the queue is full.
fn during_the_incident(bed: &Bed, look: impl FnOnce()) {
    let path = bed.veth4();
    let listener = listen(bed.server(), path.at(PORT), BACKLOG);
    let clients: Attempts = connect(path.client, path.at(PORT), CLIENTS);
    assert!(
        clients.counts().0 > BACKLOG as usize,
        "{:?}",
        clients.counts()
    );
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| accept_slowly(&listener, &stop));
        let _stops = Stops(&stop);
        look();
    });
    drop(clients);
}

/// What the first finding must say, with or without a weir.
fn names_the_trouble(doctor: &Value) -> String {
    let first = &doctor["advice"][0];
    let queue = &first["queue"];
    let address = format!("10.66.1.1:{PORT}");
    assert_eq!(queue["address"], address, "{doctor:#}");
    assert_eq!(queue["pid"], std::process::id(), "{doctor:#}");
    assert!(queue["queue_length"].as_u64() >= Some(460), "{first:#}");
    assert_eq!(queue["queue_limit"], 511);
    assert!(queue["packets_dropped"].as_u64() > Some(0), "{first:#}");
    assert!(queue["started_unix_ms"].as_u64() > Some(0), "{first:#}");
    let name = first["name"].as_str().unwrap();
    let process = queue["process"].as_str().unwrap();
    assert_eq!(
        name,
        format!("queue of {address} ({process}, pid {})", std::process::id())
    );
    let text = first["text"].as_str().unwrap();
    assert!(text.contains(" of 511 places are taken"), "{text}");
    first["hint"].as_str().unwrap().to_owned()
}

#[test]
fn a_full_queue_is_the_first_that_the_doctor_says() {
    let Some(bed) = Bed::new() else { return };
    during_the_incident(&bed, || {
        let hint = names_the_trouble(&bed.doctor());
        assert!(hint.contains(&format!("`weir protect {PORT}`")), "{hint}");
        let text = String::from_utf8(bed.weir("doctor").stdout).unwrap();
        let lines: Vec<&str> = text.lines().take(2).collect();
        assert!(lines[0].contains("trouble"), "{text}");
        let queue = format!("queue of 10.66.1.1:{PORT} (");
        assert!(
            lines[1].contains(&queue) && lines[1].starts_with("no "),
            "{text}"
        );
    });
}

#[test]
fn of_a_server_that_weir_observes_the_doctor_says_how_long_clients_wait() {
    let Some(bed) = Bed::new() else { return };
    let _weir = bed.protect(&format!("{PORT} --observe --anyway"));
    during_the_incident(&bed, || {
        let doctor = bed.doctor();
        let hint = names_the_trouble(&doctor);
        assert!(hint.contains("weir only observes it"), "{hint}");
        let wait = doctor["advice"][0]["queue"]["wait_us"].as_u64();
        assert!(wait > Some(100_000), "{doctor:#}");
    });
}

#[test]
fn a_queue_with_places_in_which_clients_wait_for_long_is_trouble_too() {
    let Some(bed) = Bed::new() else { return };
    let path = bed.veth4();
    let _listener = listen(bed.server(), path.at(PORT), BACKLOG);
    let clients: Attempts = connect(path.client, path.at(PORT), 40);
    assert_eq!(clients.counts().0, 40, "{:?}", clients.counts());
    let doctor = bed.doctor();
    let first = &doctor["advice"][0];
    let queue = &first["queue"];
    assert_eq!(first["state"], "warn", "{doctor:#}");
    assert_eq!(
        (&queue["queue_length"], &queue["gone"]),
        (&40.into(), &0.into())
    );
    assert_eq!(queue["accepts_per_second"], 0.0, "{first:#}");
    assert!(queue["wait_us"].as_u64() >= Some(1_000_000), "{first:#}");
    drop(clients);
    let gone = bed.doctor()["advice"][0]["queue"]["gone"].as_u64();
    assert_eq!(gone, Some(40), "whether they close or reset");
}

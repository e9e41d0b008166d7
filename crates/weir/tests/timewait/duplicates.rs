//! Old duplicates: segments of a closed connection that come late, within the window of a later connection with the same
//! addresses and ports. The other ends are made of frames. `weir-lab timewait-duplicates` makes ten thousand tries of each
//! kind.

use serde_json::Value;
use weir_testbed::duplicates::{Clock, Duplicates, Outcome, Side};

use crate::bed::run;
use crate::common::{Bed, Raw, Tunnel, until};

/// A port here that no other socket has.
const PORT: u16 = 20_000;
/// Of each kind.
const TRIES: u32 = 300;
const DESTINATION: &str =
    "[[destination]]\nname = \"backends\"\nto = \"10.128.0.0/9\"\ntimewait = \"client-rst\"\n";
const LISTENER: &str = "[[listener]]\nname = \"web\"\naddress = \"*:20000\"\nestablish = \"default\"\n\
                        reject_syn = \"drop\"\nadmit = \"queue\"\ntimewait = \"negotiate\"\nholder = \"server\"\n";
const CLOCKS: [Clock; 4] = [Clock::Off, Clock::Later, Clock::Next, Clock::Earlier];

/// Other hosts for each clock: their records last.
fn tries(bed: &Bed, side: Side, clock: Clock, enforced: bool) -> Outcome {
    let duplicates = Duplicates {
        netns: bed.here(),
        raw: Raw(&bed.links.wire),
        side,
        clock,
        port: PORT,
        enforced,
        first: clock as u32 * TRIES,
        seed: 1,
    };
    duplicates.run(TRIES)
}

/// What comes of them without a record: a later timestamp alone keeps old duplicates out, if it is later by more than 1 ms.
fn without_records(clock: Clock) -> Outcome {
    let all = u64::from(TRIES);
    match clock {
        Clock::Later => Outcome {
            fresh: all,
            ..Outcome::default()
        },
        Clock::Off | Clock::Next | Clock::Earlier => Outcome {
            stale: all,
            ..Outcome::default()
        },
    }
}

fn with_records(clock: Clock) -> Outcome {
    let without = without_records(clock);
    Outcome {
        stale: 0,
        refused: without.stale,
        ..without
    }
}

fn no_program_reads_one(side: Side, config: &str, figure: impl Fn(&Value, &str) -> u64) {
    let Some(bed) = Bed::new() else { return };
    for clock in CLOCKS {
        let outcome = tries(&bed, side, clock, false);
        assert_eq!(outcome, without_records(clock), "{clock:?} without weir");
    }
    let _weir = bed.run(config);
    until("weir runs", || {
        (bed.status()["running"] == true).then_some(())
    });
    for clock in CLOCKS {
        let outcome = tries(&bed, side, clock, true);
        assert_eq!(outcome, with_records(clock), "{clock:?}");
    }
    let (status, all) = (bed.status(), u64::from(TRIES));
    assert_eq!(figure(&status, "refused"), 3 * all, "{status:#}");
    assert_eq!(figure(&status, "reused"), all, "{status:#}");
}

#[test]
fn a_destination_s_record_keeps_old_duplicates_from_programs() {
    no_program_reads_one(Side::Client, DESTINATION, |status, name| {
        let figures = &status["destinations"][0]["timewait"];
        figures[name].as_u64().unwrap()
    });
}

#[test]
fn a_listener_s_record_keeps_old_duplicates_from_programs() {
    no_program_reads_one(Side::Server, LISTENER, |status, name| {
        let figures = &status["listeners"][0]["timewait"];
        figures[name].as_u64().unwrap()
    });
}

#[test]
fn a_device_without_a_link_header_carries_it_too() {
    let Some(bed) = Bed::new() else { return };
    let tun = Tunnel::create(bed.here(), "tun0").unwrap();
    let lines =
        "link set tun0 up\naddr add 10.66.0.1/32 dev tun0\nroute replace 10.128.0.0/9 dev tun0";
    bed.here().ip_batch(lines).unwrap();
    let _weir = run(&bed, DESTINATION);
    let duplicates = Duplicates {
        netns: bed.here(),
        raw: Raw(&tun),
        side: Side::Client,
        clock: Clock::Off,
        port: PORT,
        enforced: true,
        first: 0,
        seed: 1,
    };
    assert_eq!(duplicates.run(1).refused, 1);
    bed.figure_becomes("swapped", 1);
}

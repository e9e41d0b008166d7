//! How soon a server in another network namespace is guarded.

use std::time::{Duration, Instant};

use weir_testbed::netns::Netns;

use crate::common::{Bed, PORT, until};
use crate::elsewhere::{Server, listener};

/// From listen() to the first moment at which `weir status` says that it is in force.
const MOST: Duration = Duration::from_millis(100);
const RESTARTS: usize = 9;

#[test]
fn a_server_that_starts_again_is_guarded_within_a_tenth_of_a_second() {
    let Some(bed) = Bed::new() else { return };
    let _weir = bed.run(&listener("web", "netns:weir-lab-*-again-*", ""));
    let mut times: Vec<Duration> = Vec::new();
    for _ in 0..RESTARTS {
        let netns = Netns::create("again").unwrap();
        let _server = Server::inside(&netns, PORT);
        let begun = Instant::now();
        until("it is in force", || {
            let status = bed.status();
            let workloads = status["listeners"][0]["workloads"].as_array()?;
            let its = workloads.iter().find(|one| one["name"] == netns.name())?;
            (its["in_force"] == true).then_some(())
        });
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    println!("in force after {times:?}");
    assert!(times[RESTARTS / 2] < MOST, "{times:?}");
}

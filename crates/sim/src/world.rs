//! Two links, and the connections that share them.

use crate::aqm::Ecn;
use crate::aqm::control::SYN;

use crate::clock::Clock;
use crate::connection::{Connection, Sends, TcpSpec};
use crate::link::{Departure, Drops, Link, LinkSpec};
use crate::outcome::Outcome;
use crate::segment::{SACK_BLOCKS, Segment, Side};
use crate::traffic::Plan;

/// A SYN flood towards the clients, through the downlink.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Flood {
    /// SYNs per second.
    pub per_s: f64,
    /// When it begins, s from the start.
    pub from_s: f64,
    /// When it ends, s from the start.
    pub to_s: f64,
    /// Each SYN has another source; if not, all have one.
    pub spoofed: bool,
}

/// What is simulated.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// From the servers to the clients.
    pub down: LinkSpec,
    /// From the clients to the servers.
    pub up: LinkSpec,
    /// TCP of all hosts.
    pub tcp: TcpSpec,
    /// Connections.
    pub plan: Plan,
    /// A flood.
    pub flood: Option<Flood>,
    /// How long after the last arrival connections may still finish, s.
    pub drain_s: f64,
    /// When to note how much has been received, s.
    pub marks_s: Vec<f64>,
}

#[derive(Debug, Clone, Copy)]
enum Event {
    Start(u32),
    /// The link towards this side is free.
    Free(Side),
    Arrive(Segment),
    Wake(u32, Side),
    Flood,
    Mark,
}

/// The hash of the one source of a flood.
const FLOOD_SOURCE: u32 = 12_345;

struct World {
    clock: Clock<Event>,
    /// Towards the client, and towards the server.
    links: [Link<Segment, Drops>; 2],
    connections: Vec<Connection>,
    /// The time for which each end's waking is set, ns; [`u64::MAX`]: it is not.
    wakes: Vec<[u64; 2]>,
    rng: fastrand::Rng,
    out: Sends,
}

fn index(side: Side) -> usize {
    match side {
        Side::Client => 0,
        Side::Server => 1,
    }
}

/// Runs a scenario. One seed, one outcome; the arrivals depend on nothing else.
pub fn run(scenario: &Scenario, seed: u64) -> Outcome {
    let specs = scenario.plan.connections(seed);
    let ns = |seconds: f64| (seconds * 1e9) as u64;
    let link = |spec, seed: u64| Link::new(spec, Drops::new(seed), !seed);
    let mut world = World {
        clock: Clock::default(),
        links: [
            link(scenario.down, seed ^ 0x5bd1_e995),
            link(scenario.up, seed ^ 0x1b87_3593),
        ],
        wakes: vec![[u64::MAX; 2]; specs.len()],
        connections: (0..)
            .zip(specs)
            .map(|(n, spec)| Connection::new(n, spec, scenario.tcp))
            .collect(),
        rng: fastrand::Rng::with_seed(seed ^ 0xcc9e_2d51),
        out: Vec::new(),
    };
    if let Some(flood) = &scenario.flood {
        world.clock.set(ns(flood.from_s), Event::Flood);
    }
    for mark in &scenario.marks_s {
        world.clock.set(ns(*mark), Event::Mark);
    }
    // One start sets the next: the queue of events stays short.
    world.set_start(0);
    let until_ns = ns(scenario.plan.seconds + scenario.drain_s);
    let mut received_at = Vec::new();
    while let Some(event) = world.clock.next(until_ns) {
        match event {
            Event::Mark => {
                let received = world.connections.iter().map(Connection::received);
                received_at.push(received.map(u64::from).sum());
            }
            Event::Flood => {
                if let Some(flood) = &scenario.flood {
                    world.flood(flood);
                }
            }
            event => world.handle(event),
        }
    }
    world
        .connections
        .iter_mut()
        .for_each(Connection::close_record);
    Outcome {
        records: world.connections.iter().map(|one| one.record).collect(),
        queues: [0, 1].map(|link| *world.links[link].stats()),
        dropped_syns: [0, 1].map(|link| world.links[link].hooks().syns),
        received_at,
    }
}

impl World {
    fn set_start(&mut self, connection: u32) {
        if let Some(next) = self.connections.get(connection as usize) {
            self.clock
                .set(next.record.start_ns, Event::Start(connection));
        }
    }

    fn handle(&mut self, event: Event) {
        let now_ns = self.clock.now_ns();
        match event {
            Event::Start(at) => {
                self.set_start(at + 1);
                self.connections[at as usize].start(now_ns, &mut self.out);
                self.settle(at, Side::Client);
            }
            Event::Free(to) => {
                let departure = self.links[index(to)].free(now_ns);
                self.depart(to, departure);
            }
            Event::Arrive(segment) => {
                let to = segment.from.other();
                if let Some(at) = segment.connection {
                    let connection = &mut self.connections[at as usize];
                    connection.arrive(&segment, to, now_ns, &mut self.out);
                    self.settle(at, to);
                }
            }
            Event::Wake(at, side) => {
                let set_ns = &mut self.wakes[at as usize][index(side)];
                // Set earlier since then: that event has its own time.
                if *set_ns != now_ns {
                    return;
                }
                *set_ns = u64::MAX;
                self.connections[at as usize].wake(side, now_ns, &mut self.out);
                self.settle(at, side);
            }
            Event::Flood | Event::Mark => {}
        }
    }

    /// Sends what an end wants to send, and sets its waking.
    fn settle(&mut self, at: u32, side: Side) {
        let mut out = std::mem::take(&mut self.out);
        for segment in out.drain(..) {
            self.offer(segment);
        }
        self.out = out;
        let set_ns = &mut self.wakes[at as usize][index(side)];
        if let Some(alarm_ns) = self.connections[at as usize].alarm_ns(side)
            && alarm_ns < *set_ns
        {
            let alarm_ns = alarm_ns.max(self.clock.now_ns());
            *set_ns = alarm_ns;
            self.clock.set(alarm_ns, Event::Wake(at, side));
        }
    }

    fn offer(&mut self, segment: Segment) {
        let to = segment.from.other();
        let departure = self.links[index(to)].offer(segment, self.clock.now_ns());
        self.depart(to, departure);
    }

    fn depart(&mut self, to: Side, departure: Option<Departure<Segment>>) {
        let Some(departure) = departure else {
            return;
        };
        self.clock.set(departure.free_ns, Event::Free(to));
        if let Some(at_ns) = departure.arrives_ns {
            self.clock.set(at_ns, Event::Arrive(departure.packet));
        }
    }

    /// One SYN of a flood, and the time of the next.
    fn flood(&mut self, flood: &Flood) {
        let now_ns = self.clock.now_ns();
        let next_ns = now_ns + (1e9 / flood.per_s) as u64;
        if (next_ns as f64) < flood.to_s * 1e9 {
            self.clock.set(next_ns, Event::Flood);
        }
        let flow_hash = self.rng.u32(..);
        let source_hash = if flood.spoofed {
            self.rng.u32(..)
        } else {
            FLOOD_SOURCE
        };
        self.offer(Segment {
            connection: None,
            from: Side::Server,
            flags: SYN,
            seq: 0,
            payload: 0,
            ack: 0,
            sack: [(0, 0); SACK_BLOCKS],
            sent_ns: now_ns,
            echo_ns: 0,
            ece: false,
            cwr: false,
            ecn: Ecn::NotEct,
            flow_hash,
            source_hash,
            destination_hash: flow_hash,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aqm::{Discipline, Setup};
    use crate::connection::{Job, Spec};
    use crate::link::Loss;
    use crate::outcome::Record;
    use crate::tcp::Algorithm;
    use crate::traffic::{Kind, LONG};

    const MS: u64 = 1_000_000;

    fn link(discipline: Discipline, bits_per_s: u64, delay_ms: u64) -> LinkSpec {
        LinkSpec {
            discipline,
            setup: Setup::of_ip(bits_per_s / 8),
            delay_ns: delay_ms * MS,
            loss: Loss::default(),
            passes_at_once: false,
        }
    }

    /// BHD18's links for a kind of traffic, with this discipline on the downlink.
    fn scenario(kind: Kind, discipline: Discipline, seconds: f64) -> Scenario {
        let (down, up) = kind.rates();
        Scenario {
            down: link(discipline, down, 42),
            up: link(Discipline::Fifo, up, 52),
            tcp: TcpSpec {
                algorithm: Algorithm::Cubic,
                initial_window: 10.0,
                ecn: false,
            },
            plan: Plan::of(kind, seconds),
            flood: None,
            drain_s: 200.0,
            marks_s: Vec::new(),
        }
    }

    /// So many connections, too seldom to meet on the link.
    fn alone(loss: Loss) -> Outcome {
        let mut scenario = scenario(Kind::Short, Discipline::Fifo, 4000.0);
        scenario.plan.law.between_s = 20.0;
        (scenario.down.loss, scenario.up.loss) = (loss, loss);
        run(&scenario, 1)
    }

    fn mean_ms(records: &[Record], of: impl Fn(&Record) -> Option<u64>) -> f64 {
        let times: Vec<u64> = records.iter().filter_map(of).collect();
        times.iter().sum::<u64>() as f64 / times.len() as f64 / MS as f64
    }

    #[test]
    fn a_connection_alone_takes_its_round_trips() {
        let outcome = alone(Loss::default());
        assert!(outcome.records.len() > 150);
        for record in &outcome.records {
            // 94 ms of wires; 60 bytes take 0.2 ms down and 1.2 ms up.
            let connect_ms = record.connect_ns.unwrap() as f64 / MS as f64;
            assert!((95.0..96.0).contains(&connect_ms), "{connect_ms}");
            // Up to the initial window it takes one more, and 5 ms for each segment.
            if record.segments <= 10 {
                let least = 2.0 * 94.0 + 5.0 * f64::from(record.segments);
                let took = record.response_ns.unwrap() as f64 / MS as f64;
                assert!((least..least + 7.0).contains(&took), "{took} {least}");
            }
            assert_eq!(
                (record.syn_repeats, record.repeats, record.timeouts),
                (0, 0, 0)
            );
        }
    }

    #[test]
    fn every_reply_arrives_over_a_lossy_wire_and_a_lost_syn_costs_a_second() {
        let outcome = alone(Loss {
            first: 0.05,
            next: 0.3,
        });
        let mut lost_syn = 0;
        for record in &outcome.records {
            assert!(record.response_ns.is_some(), "{record:?}");
            if record.syn_repeats > 0 {
                lost_syn += 1;
                assert!(record.connect_ns.unwrap() >= 1000 * MS, "{record:?}");
            } else {
                assert!(record.connect_ns.unwrap() < 100 * MS, "{record:?}");
            }
        }
        // One of the two is lost: 0.1, and at least so often within three standard deviations.
        assert!((8..40).contains(&lost_syn), "{lost_syn}");
    }

    #[test]
    fn a_seed_gives_one_outcome_and_arrivals_do_not_depend_on_the_discipline() {
        let of = |discipline, seed| run(&scenario(Kind::Real, discipline, 60.0), seed);
        assert_eq!(of(Discipline::Pie, 5), of(Discipline::Pie, 5));
        assert_ne!(of(Discipline::Pie, 5), of(Discipline::Pie, 6));
        let came = |outcome: Outcome| {
            let arrival = |record: &Record| (record.start_ns, record.segments);
            outcome.records.iter().map(arrival).collect::<Vec<_>>()
        };
        for discipline in Discipline::ALL {
            assert_eq!(
                came(of(discipline, 5)),
                came(of(Discipline::Fifo, 5)),
                "{discipline}"
            );
        }
    }

    /// What one long download has of the link, in each discipline.
    #[test]
    fn one_download_fills_the_link() {
        for algorithm in [Algorithm::Reno, Algorithm::Cubic] {
            for discipline in Discipline::ALL {
                let mut scenario = scenario(Kind::Real, discipline, 0.0);
                scenario.tcp.algorithm = algorithm;
                scenario.plan.downloads = 1;
                scenario.marks_s = vec![10.0, 130.0];
                let outcome = run(&scenario, 1);
                let segments = outcome.received_at[1] - outcome.received_at[0];
                // 200 full segments a second. What waited for a hole counts when the hole is filled.
                let share = segments as f64 / (120.0 * 200.0);
                // CoDel's 5 ms is one full segment here, and 94 ms of wire need a buffer (RFC 8289, Section 4.4).
                let least = if algorithm == Algorithm::Reno {
                    0.7
                } else {
                    0.78
                };
                assert!(
                    (least..=1.01).contains(&share),
                    "{discipline} {algorithm:?}: {share}"
                );
            }
        }
    }

    #[test]
    fn many_downloads_share_the_link_evenly_under_flow_queues() {
        let mut scenario = scenario(Kind::TenM, Discipline::SpaFq, 0.0);
        scenario.plan.downloads = 8;
        scenario.marks_s = vec![20.0, 80.0];
        let outcome = run(&scenario, 1);
        let segments = outcome.received_at[1] - outcome.received_at[0];
        let share = segments as f64 / (60.0 * 10e6 / 12_000.0);
        // What waits for an earlier one at the first mark counts when that has come: a few segments of 50 000.
        assert!((0.95..=1.001).contains(&share), "{share}");
    }

    /// BHD18, Figures 5 and 6, in short: the direction of the paper.
    #[test]
    fn spa_loses_no_syn_and_answers_short_requests_before_fifo_codel_and_pie() {
        let of = |discipline| run(&scenario(Kind::Real, discipline, 300.0), 2);
        let spa = of(Discipline::Spa);
        assert_eq!(spa.dropped_syns[0], 0);
        let short = |record: &Record| record.response_ns.filter(|_| record.segments <= 3);
        let spa_ms = mean_ms(&spa.records, short);
        for other in [Discipline::Fifo, Discipline::Codel, Discipline::Pie] {
            let outcome = of(other);
            assert!(outcome.dropped_syns[0] > 0, "{other}");
            let other_ms = mean_ms(&outcome.records, short);
            assert!(spa_ms * 1.2 < other_ms, "{other}: {spa_ms} {other_ms}");
        }
    }

    /// "Short" beside an upload: the link is overloaded, and what is sent twice decides. The median of the seeds' ratios.
    #[test]
    fn spa_over_the_kernel_s_fq_codel_answers_short_requests_before_fq_codel_beside_an_upload() {
        let of = |discipline, seed| {
            let mut scenario = scenario(Kind::Short, discipline, 200.0);
            scenario.plan.upload = true;
            let short = |record: &Record| record.response_ns.filter(|_| record.segments <= 3);
            mean_ms(&run(&scenario, seed).records, short)
        };
        let ratio = |seed| of(Discipline::SpaFqTc, seed) / of(Discipline::FqCodel, seed);
        let mut ratios = [1, 2, 3, 4, 5, 6, 7].map(ratio);
        ratios.sort_by(f64::total_cmp);
        assert!(ratios[3] < 0.95, "{ratios:?}");
    }

    #[test]
    fn a_flood_does_not_keep_connections_out_whether_its_sources_are_forged_or_one() {
        for spoofed in [false, true] {
            let mut scenario = scenario(Kind::Real, Discipline::SpaFq, 30.0);
            scenario.flood = Some(Flood {
                per_s: 10_000.0,
                from_s: 5.0,
                to_s: 30.0,
                spoofed,
            });
            let outcome = run(&scenario, 1);
            let connect_ms = mean_ms(&outcome.records, |record| record.connect_ns);
            assert!(connect_ms < 150.0, "spoofed {spoofed}: {connect_ms} ms");
            let down = outcome.queues[0];
            assert!(down.demoted > 200_000, "{down:?}");
        }
    }

    #[test]
    fn an_upload_has_no_reply_and_a_long_download_no_end() {
        let mut scenario = scenario(Kind::Real, Discipline::Codel, 5.0);
        scenario.plan.upload = true;
        scenario.plan.downloads = 1;
        let specs = scenario.plan.connections(1);
        assert!(specs.iter().any(|Spec { job, .. }| *job == Job::Upload));
        let outcome = run(&scenario, 1);
        let endless = outcome
            .records
            .iter()
            .filter(|record| record.segments == 0 || record.segments == LONG);
        assert!(
            endless.clone().count() == 2
                && endless.clone().all(|record| record.response_ns.is_none())
        );
    }
}

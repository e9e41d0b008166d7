use crate::residence::sim::{Front, Gone, Polling, TICK, World, always};
use crate::residence::{DEFAULT_TARGET, Residence};

/// What the server can do is used, nobody gives up, and none waits for much longer than the target.
fn holds(world: &World, capacity: f64, longest: f64, what: &str) {
    let truth = &world.truth;
    let seen = format!(
        "{what}: {:.3} of capacity, {} timed out, {} of {} refused, p50 {:.3} p99 {:.3}",
        truth.per_s() / capacity,
        truth.timed_out,
        truth.refused,
        truth.offered,
        truth.quantile(0.5),
        truth.quantile(0.99),
    );
    assert!(truth.per_s() >= 0.95 * capacity, "{seen}");
    assert_eq!(truth.timed_out, 0, "{seen}");
    assert!(truth.quantile(0.99) <= longest, "{seen}");
}

fn pool(seed: u64, workers: usize, service: f64, load: f64) -> World {
    let rate = load * workers as f64 / service;
    World::new(seed, workers, always(service), always(rate)).limited()
}

#[test]
fn a_server_that_waits_for_something_is_kept_busy_and_its_clients_wait_for_the_target() {
    for load in [1.1, 1.5, 3.0, 10.0] {
        for uneven in [false, true] {
            for round_trip in [0.0, 0.2] {
                let mut world = pool(5, 8, 0.05, load);
                world.round_trip = round_trip;
                if uneven {
                    world = world.uneven();
                }
                world.run(25.0);
                world.begin();
                world.run(55.0);
                holds(&world, 160.0, 1.0, &format!("{load} {uneven} {round_trip}"));
            }
        }
    }
}

#[test]
fn below_its_capacity_nobody_is_refused() {
    for (workers, service) in [(8, 0.05), (64, 2.0), (1, 0.005), (32, 0.3)] {
        for load in [0.5, 0.8] {
            let mut world = pool(9, workers, service, load).uneven();
            world.run(60.0 + 20.0 * service);
            let truth = &world.truth;
            assert_eq!(truth.refused, 0, "{workers} {service} {load}");
        }
    }
}

#[test]
fn a_burst_on_an_idle_server_is_let_in() {
    let mut world = pool(1, 8, 0.05, 0.0);
    for n in 1..=20 {
        world.run(20.0 * f64::from(n));
        for _ in 0..100 {
            world.arrive();
        }
    }
    world.run(500.0);
    assert_eq!((world.truth.refused, world.truth.served), (0, 2000));
}

/// Half idle, half overloaded, a window says nothing of the server.
#[test]
fn an_overload_of_a_server_that_was_idle_from_the_start_is_over_within_eight_seconds() {
    for idle in [0.0, 2.0, 4.5, 7.3] {
        for load in [1.5, 3.0] {
            let rate = move |t: f64| if t < idle { 0.0 } else { 160.0 * load };
            let mut world = World::new(4, 8, always(0.05), Box::new(rate)).limited();
            world.run(idle + 8.0);
            world.begin();
            world.run(idle + 18.0);
            holds(&world, 160.0, 0.6, &format!("{load} after {idle} s"));
        }
    }
}

#[test]
fn an_hour_of_nothing_changes_nothing() {
    let rate = |t: f64| match t {
        ..20.0 | 3620.0.. => 480.0,
        _ => 0.0,
    };
    let mut world = World::new(1, 8, always(0.05), Box::new(rate)).limited();
    world.run(3630.0);
    world.begin();
    world.run(3650.0);
    holds(&world, 160.0, 0.8, "after an hour");
}

/// What had come before is served first: then nobody has waited for it any more.
#[test]
fn a_start_in_the_middle_of_an_overload_is_over_within_ten_seconds() {
    let mut world = pool(1, 8, 0.05, 3.0);
    world.limiter = None;
    world.run(3.0);
    world.watch = Residence::new(TICK, DEFAULT_TARGET);
    world = world.limited();
    world.run(13.0);
    world.begin();
    world.run(40.0);
    holds(&world, 160.0, 0.8, "attached late");
}

#[test]
fn many_slow_workers_are_all_kept_busy() {
    for load in [1.5, 3.0] {
        let mut world = pool(3, 64, 2.0, load);
        world.run(40.0);
        world.begin();
        world.run(140.0);
        holds(&world, 32.0, 8.0, &format!("64 x 2 s at {load}"));
    }
}

#[test]
fn a_deploy_ten_times_slower_and_faster_is_followed_within_ten_or_fifteen_seconds() {
    // With 64 workers a limit of a quarter of a second of answers keeps half of them idle: that takes trials to find.
    for (workers, before, after, within) in [
        (8usize, 0.05f64, 0.5f64, 10.0),
        (8, 0.5, 0.05, 10.0),
        (64, 0.05, 0.5, 15.0),
        (64, 0.5, 0.05, 10.0),
    ] {
        let service = move |t: f64| if t < 30.0 { before } else { after };
        // Three times what it can do, and more after it has become slower.
        let rate = move |t: f64| 3.0 * workers as f64 / f64::min(service(t), before);
        let mut world = World::new(2, workers, Box::new(service), Box::new(rate)).limited();
        world.run(30.0 + within);
        world.begin();
        world.run(60.0 + within);
        let (capacity, longest) = (workers as f64 / after, 4.0 * after + 0.8);
        holds(
            &world,
            capacity,
            longest,
            &format!("{workers}: {before} to {after}"),
        );
    }
}

#[test]
fn long_polls_beside_it_take_no_place() {
    let mut world = pool(3, 8, 0.05, 1.5).with_long_polls(60);
    world.run(40.0);
    world.begin();
    world.run(80.0);
    holds(&world, 160.0, 0.8, "with 60 long polls");
}

/// Some of the clients ask for what the front has itself, or ask several times, and all handshakes take round trips.
#[test]
fn clients_of_a_front_are_refused_for_the_server_behind_it() {
    let alone = Front {
        handshake: 0.0,
        share: 1.0,
        requests: 1,
        every: 0.0,
    };
    let files = Front {
        share: 0.2,
        ..alone
    };
    let again = Front {
        share: 0.5,
        requests: 4,
        every: 2.0,
        ..alone
    };
    for (front, round_trip, least) in [
        (alone, 0.0, 0.95),
        (alone, 0.2, 0.95),
        (files, 0.0, 0.95),
        (files, 0.05, 0.95),
        (again, 0.0, 0.95),
        (again, 0.05, 0.9),
    ] {
        for load in [0.8, 1.5, 3.0] {
            let front = Front {
                handshake: round_trip,
                ..front
            };
            let rate = load * 160.0 / front.share / f64::from(front.requests);
            let world = World::new(5, 8, always(0.05), always(rate));
            let mut world = world.behind(front).limited();
            world.round_trip = round_trip;
            world.run(25.0);
            world.begin();
            world.run(55.0);
            let what = format!("{front:?} {load}");
            match load < 1.0 {
                true => assert_eq!(world.truth.refused, 0, "{what}"),
                false => holds(&world, least / 0.95 * 160.0, 0.8, &what),
            }
        }
    }
}

/// A queue of a burst's length is what the server answers in 0.6 s; it comes before anybody is refused.
#[test]
fn of_an_overload_that_begins_no_more_than_a_bursts_length_queues() {
    for (before, load, longest) in [(0.5, 3.0, 0.6), (0.5, 10.0, 1.5), (0.0, 3.0, 1.8)] {
        let rate = move |t: f64| 160.0 * if t < 30.0 { before } else { load };
        let mut world = World::new(4, 8, always(0.05), Box::new(rate)).limited();
        world.run(30.0);
        world.begin();
        world.run(40.0);
        holds(&world, 160.0, longest, &format!("{before} to {load}"));
    }
}

/// When an incident begins at a server whose requests are only observed, s.
const INCIDENT: f64 = 40.0;

/// An overload of so many times, in which the limit is put on after so long.
fn put_on_after(s: f64, gone: Gone, load: f64) -> World {
    let rate = move |t: f64| 160.0 * if t < INCIDENT { 0.5 } else { load };
    let mut world = World::new(1, 8, always(0.05), Box::new(rate)).limited();
    world.gone = gone;
    world.enforces = false;
    world.run(INCIDENT + s);
    world.enforces = true;
    world
}

/// Refuses so many of those that come in this second that the queue does not grow.
fn refuses_within(world: &mut World, from: f64, s: f64, what: &str) {
    world.run(from + s);
    world.begin();
    world.run(from + s + 1.0);
    let truth = &world.truth;
    let (refused, offered) = (truth.refused, truth.offered);
    assert!(5 * refused > offered, "{what}: {refused} of {offered}");
}

#[test]
fn put_on_when_clients_have_given_up_for_long_it_refuses_within_seconds() {
    for gone in [Gone::Skipped, Gone::WorkedOn, Gone::Stay] {
        for on in [8.0, 15.0, 36.0, 65.0] {
            for load in [1.5, 3.0] {
                let mut world = put_on_after(on, gone, load);
                // With 20 000 connections a pass comes once a second.
                let s = if gone == Gone::Stay { 8.0 } else { 3.0 };
                refuses_within(
                    &mut world,
                    INCIDENT + on,
                    s,
                    &format!("{gone:?} {on} {load}"),
                );
            }
        }
    }
}

/// The last of those that came before gives up ten seconds after the first was refused.
#[test]
fn a_server_that_skips_the_gone_is_at_its_capacity_when_the_last_has_given_up() {
    for (on, load) in [
        (8.0, 3.0),
        (15.0, 3.0),
        (36.0, 3.0),
        (65.0, 1.5),
        (65.0, 10.0),
    ] {
        let mut world = put_on_after(on, Gone::Skipped, load);
        world.run(INCIDENT + on + 12.0);
        world.begin();
        world.run(INCIDENT + on + 32.0);
        holds(&world, 160.0, 0.8, &format!("from {on} s on at {load}"));
    }
}

#[test]
fn a_server_that_works_for_the_gone_is_at_its_capacity_as_soon_as_they_are_worked_off() {
    for on in [8.0, 15.0, 65.0] {
        let mut world = put_on_after(on, Gone::WorkedOn, 3.0);
        let begun = INCIDENT + on;
        let mut now = begun + 10.0;
        world.run(now);
        while world.ghosts() > 0 && now < begun + 400.0 {
            now += 1.0;
            world.run(now);
        }
        // In 5 s of each 65 it lets all in.
        let worked_off = now - begun;
        assert!(
            worked_off < 2.0 * 320.0 * on / 160.0 + 20.0,
            "{on}: {worked_off}"
        );
        // It may just have let all in.
        world.run(now + 16.0);
        world.begin();
        world.run(now + 36.0);
        holds(
            &world,
            160.0,
            0.8,
            &format!("from {on} s on, worked off at {now}"),
        );
    }
}

#[test]
fn of_a_server_that_hangs_clients_are_let_in_every_minute_and_all_are_when_it_recovers() {
    for gone in [Gone::Skipped, Gone::Stay] {
        let service = |t: f64| {
            if !(20.0..200.0).contains(&t) {
                0.05
            } else {
                0.5 * (200.0 - t) + 0.05
            }
        };
        let mut world = World::new(6, 8, Box::new(service), always(80.0)).limited();
        world.gone = gone;
        world.run(40.0);
        for minute in 0..2 {
            world.begin();
            world.run(110.0 + 70.0 * f64::from(minute));
            let let_in = world.truth.offered - world.truth.refused;
            assert!(let_in >= 50, "{gone:?} {let_in}");
        }
        world.run(230.0);
        world.begin();
        world.run(260.0);
        assert_eq!(
            (world.truth.refused, world.truth.timed_out),
            (0, 0),
            "{gone:?}"
        );
    }
}

#[test]
fn long_polls_alone_are_no_queue() {
    let mut world = pool(3, 8, 0.05, 0.0).with_long_polls(600);
    world.run(100.0);
    for _ in 0..20 {
        world.arrive();
    }
    world.run(200.0);
    assert_eq!((world.truth.refused, world.truth.served), (0, 20));
}

/// Each poll comes on a connection of its own. Clients stay for so long, s; the server answers after so long, or with news.
fn polls(stays: f64, news: f64, holds: f64) -> Polling {
    Polling {
        news,
        holds,
        ..Polling::of(always(10.0), stays)
    }
}

/// Most clients leave without an answer, as they do when a server queues. The limit is there from the start, or is put on
/// later.
#[test]
fn long_polls_whose_clients_come_and_go_refuse_nobody() {
    let never = f64::INFINITY;
    for (load, kinds) in [
        (
            0.0,
            &[
                (60.0, never, 30.0),
                (20.0, never, 30.0),
                (20.0, 60.0, 1e6),
                (5.0, never, 3.0),
            ][..],
        ),
        (
            0.5,
            &[(20.0, never, 30.0), (20.0, 60.0, 1e6), (5.0, never, 3.0)],
        ),
    ] {
        for (stays, news, holds) in kinds {
            for on in [0.0, 50.0] {
                let mut world = pool(3, 8, 0.05, load).polled(polls(*stays, *news, *holds));
                let limiter = world.limiter.take();
                world.run(on);
                world.limiter = limiter;
                world.watch = Residence::new(TICK, DEFAULT_TARGET);
                world.run(300.0);
                let truth = &world.truth;
                let refused = (truth.polls_refused, truth.refused);
                let what = format!("{load} {stays} {news} {holds} from {on}: {}", truth.polls);
                assert_eq!(refused, (0, 0), "{what}");
            }
        }
    }
}

/// Of an incident that was there before nothing shows that it is one and no long polls.
#[test]
fn of_what_was_never_seen_without_clients_that_leave_nobody_is_refused() {
    let mut world = pool(1, 8, 0.05, 3.0);
    world.gone = Gone::Skipped;
    let limiter = world.limiter.take();
    world.run(40.0);
    world.limiter = limiter;
    world.watch = Residence::new(TICK, DEFAULT_TARGET);
    world.run(100.0);
    assert_eq!(world.truth.refused, 0);
}

/// Of the high class nobody is refused as long as there is room for it, and the server is kept busy as without classes.
#[test]
fn a_high_class_is_let_in_while_others_give_way() {
    for (load, share) in [(1.5, 0.2), (3.0, 0.2), (3.0, 0.05), (10.0, 0.05)] {
        for uneven in [false, true] {
            let mut world = pool(5, 8, 0.05, load).shared(share);
            if uneven {
                world = world.uneven();
            }
            world.run(10.0);
            world.begin();
            world.run(60.0);
            let what = format!("{load} {share} {uneven}");
            holds(&world, 160.0, 0.8, &what);
            let (high, refused) = (world.truth.high, world.truth.high_refused);
            assert!(100 * refused <= high, "{what}: {refused} of {high}");
        }
    }
}

#[test]
fn a_high_class_that_asks_for_more_than_there_is_room_for_takes_all_of_it() {
    let mut world = pool(5, 8, 0.05, 3.0).shared(0.5);
    world.run(10.0);
    world.begin();
    world.run(60.0);
    holds(&world, 160.0, 0.8, "half are of the high class");
    let let_in = world.truth.high - world.truth.high_refused;
    assert!(
        let_in as f64 >= 0.93 * world.truth.served as f64,
        "{let_in} of {}",
        world.truth.served
    );
}

/// A server that works on all of them at once.
fn at_once(seed: u64, rate: f64) -> World {
    World::new(seed, 1000, always(0.02), always(rate)).limited()
}

#[test]
fn halves_of_requests_shut_nobody_out_of_a_server_that_answers() {
    for rate in [0.3, 3.0, 40.0] {
        for number in [12, 30, 90] {
            for idle in [0.0, 20.0] {
                let mut world = at_once(3, rate);
                world.run(idle);
                // Again and again.
                for more in 0..5 {
                    world.begin_halves(number);
                    world.run(idle + 4.0 * f64::from(more + 1));
                }
                world.begin();
                world.run(idle + 60.0);
                let refused = world.truth.refused as f64 / world.truth.offered as f64;
                assert!(refused <= 0.02, "{rate} {number} {idle}: {refused}");
            }
        }
    }
}

#[test]
fn web_sockets_whose_clients_speak_last_refuse_nobody() {
    for (opened, pings_every) in [(40.0, 3.0), (5.0, 1.0), (40.0, 30.0), (0.5, 3.0)] {
        for rate in [0.0, 10.0] {
            let mut world = at_once(7, rate).with_web_sockets(opened, pings_every);
            world.run(120.0);
            let truth = &world.truth;
            assert_eq!(
                truth.refused, 0,
                "{opened} {pings_every} {rate} of {}",
                truth.offered
            );
        }
    }
}

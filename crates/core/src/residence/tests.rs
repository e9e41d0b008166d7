use proptest::prelude::*;

use super::sim::{Gone, TICK, World, always};
use super::*;
use crate::controller::sim::worlds;

fn near(seen: f64, truth: f64, share: f64) -> bool {
    (seen - truth).abs() <= share * truth
}

/// A world whose server has this many workers of so many seconds, at a multiple of what they can do.
fn pool(seed: u64, workers: usize, service_s: f64, load: f64) -> World {
    let rate = workers as f64 / service_s * load;
    World::new(seed, workers, always(service_s), always(rate))
}

proptest! {
    #![proptest_config(worlds(24))]

    /// From 40 answers a second on: of few, chance makes more than that of any estimate.
    #[test]
    fn what_is_outstanding_and_how_long_it_stays_is_seen_within_a_quarter(
        workers in 1usize..64, load in 0.3f64..0.9, per_s in 40f64..2000.0, even: bool, seed: u64,
    ) {
        let service = workers as f64 / per_s;
        let mut world = pool(seed, workers, service, load);
        if !even {
            world = world.uneven();
        }
        let (begin, end) = (5.0 + 10.0 * service, 45.0 + 20.0 * service);
        world.run(begin);
        world.begin();
        world.windows.clear();
        world.run(end);
        let mut all = Window::default();
        world.windows.iter().for_each(|window| all.add(window));
        let truth = &world.truth;
        prop_assert!(near(all.outstanding(), truth.outstanding(), 0.25), "L {} {}", all.outstanding(), truth.outstanding());
        let seen = all.residence().unwrap().as_secs_f64();
        prop_assert!(near(seen, truth.residence_s(), 0.25), "W {seen} {}", truth.residence_s());
        prop_assert!(near(all.answers_per_s(), truth.per_s(), 0.1));
        prop_assert!(!world.watch.estimate().blind);
    }
}

#[test]
fn a_queue_inside_is_told_from_a_busy_server() {
    for (load, queue) in [
        (0.3, Queue::None),
        (0.8, Queue::None),
        (1.5, Queue::Inside),
        (3.0, Queue::Inside),
    ] {
        let mut world = pool(7, 8, 0.05, load);
        world.run(15.0);
        let seen = world.watch.estimate();
        assert_eq!(seen.queue, queue, "{load}: {seen:?}");
        // Of an overload that was there from the beginning there is no least.
        let least = seen.least.unwrap_or_default().as_secs_f64();
        assert!(load > 1.0 || near(least, 0.055, 0.3), "{least}");
    }
}

#[test]
fn a_queue_that_grows_is_shown_as_it_is_now() {
    let mut world = pool(7, 8, 0.05, 3.0);
    for t in [6.0, 10.0, 20.0] {
        world.run(t);
        let seen = world.watch.estimate();
        let now = world.inside() as f64;
        assert!(near(seen.outstanding, now, 0.35), "{t}: {now} {seen:?}");
        assert!(near(seen.answers_per_s, 160.0, 0.1), "{t}: {seen:?}");
    }
}

#[test]
fn clients_that_wait_for_accept_are_not_inside() {
    let mut watch = Residence::new(TICK, DEFAULT_TARGET);
    for n in 0..200u32 {
        let request = |i: u32| Request {
            age: Duration::from_millis(10 * u64::from(i)),
            queued: i > 8,
        };
        let pass = Pass {
            at: Duration::from_millis(50) * n,
            turns: u64::from(n) * 5,
            requests: (0..if n < 100 { 9 } else { 90 }).map(request).collect(),
            ..Pass::default()
        };
        watch.take(&pass);
    }
    let seen = watch.estimate();
    assert_eq!(seen.queue, Queue::Listen);
    assert!(near(seen.queued, 81.0, 0.01) && near(seen.outstanding, 90.0, 0.01));
}

#[test]
fn long_polls_are_no_queue_and_their_age_does_not_count() {
    let mut world = pool(3, 8, 0.05, 0.5).with_long_polls(60);
    world.run(90.0);
    let seen = world.watch.estimate();
    assert_eq!(seen.queue, Queue::None);
    assert!(seen.old >= 55, "{seen:?}");
    assert!(near(seen.outstanding, 6.0, 0.35), "{seen:?}");
}

/// The watch begins when all is lost already, and a deploy makes the server ten times slower and faster.
#[test]
fn residences_are_followed_up_and_down() {
    let rate = |t: f64| match t {
        ..20.0 => 480.0,
        ..60.0 => 8.0,
        _ => 80.0,
    };
    let service = |t: f64| if t < 60.0 { 0.5 } else { 0.05 };
    let mut world = World::new(1, 8, Box::new(service), Box::new(rate));
    world.run(20.0);
    let seen = world.watch.estimate();
    let seen_s = seen.residence.unwrap().as_secs_f64();
    assert!((15.0..=20.0).contains(&seen_s), "{seen:?}");
    world.run(1000.0);
    let seen = world.watch.estimate();
    assert_eq!(seen.queue, Queue::None, "{seen:?}");
    assert!(near(seen.residence.unwrap().as_secs_f64(), 0.05, 0.25));
}

#[test]
fn an_idle_port_has_no_residence_and_is_looked_at_seldom() {
    let mut world = pool(5, 8, 0.05, 0.0);
    world.run(3600.0);
    let seen = world.watch.estimate();
    let idle = Estimate {
        listening: true,
        ..Estimate::default()
    };
    assert_eq!(seen, idle);
    assert!(world.windows.iter().all(|w| w.residence().is_none()));
    let cost = Duration::from_millis(1);
    assert_eq!(pause(cost, 0, 0, Purpose::Observe), Duration::from_secs(1));
    assert_eq!(
        pause(cost, 3, 9, Purpose::Observe),
        Duration::from_millis(250)
    );
    assert_eq!(
        pause(cost, 300, 900, Purpose::Observe),
        Duration::from_millis(100)
    );
    assert_eq!(
        pause(6 * cost, 300, 9000, Purpose::Observe),
        Duration::from_millis(600)
    );
}

#[test]
fn sockets_are_looked_at_more_often_the_more_depends_on_it() {
    let cost = Duration::from_millis(4);
    let ms = |pace, outstanding| pause(cost, outstanding, 900, pace).as_millis();
    assert_eq!(ms(Purpose::Ready, 0), 400);
    assert_eq!(ms(Purpose::Decide, 300), 80);
    assert_eq!(ms(Purpose::Refuse, 300), 400);
    assert_eq!(pause(cost / 10, 0, 0, Purpose::Ready).as_millis(), 100);
    assert_eq!(pause(cost / 10, 300, 900, Purpose::Decide).as_millis(), 50);
    assert_eq!(
        pause(100 * cost, 300, 900, Purpose::Refuse).as_millis(),
        1000
    );
}

#[test]
fn where_an_answer_seems_to_begin_at_once_the_signal_is_blind() {
    let mut world = pool(11, 8, 0.05, 1.5);
    world.tickets = true;
    world.run(10.0);
    let seen = world.watch.estimate();
    assert!(seen.blind, "{seen:?}");
    let mut world = pool(11, 8, 0.05, 1.5);
    world.run(10.0);
    assert!(!world.watch.estimate().blind);
}

#[test]
fn a_server_that_answers_nothing_at_all_keeps_its_requests() {
    let mut world = World::new(1, 8, always(1e6), always(100.0));
    world.run(60.0);
    let seen = world.watch.estimate();
    assert_eq!(seen.queue, Queue::Inside, "{seen:?}");
    let seen_s = seen.residence.unwrap().as_secs_f64();
    assert!((50.0..=60.0).contains(&seen_s), "{seen:?}");
    assert_eq!(seen.answers_per_s, 0.0);
}

/// Clients give up after ten seconds, and of those who are served nobody waits for longer.
#[test]
fn of_an_incident_no_residence_is_longer_than_a_request_has_taken_and_the_queue_is_inside() {
    for gone in [Gone::Skipped, Gone::WorkedOn] {
        let mut world = pool(7, 8, 0.05, 3.0);
        world.gone = gone;
        world.run(40.0);
        world.watch = Residence::new(TICK, DEFAULT_TARGET);
        for t in [45.0, 60.0, 90.0] {
            world.run(t);
            let seen = world.watch.estimate();
            assert!(
                seen.residence.unwrap() <= Duration::from_secs(10),
                "{gone:?} {t}: {seen:?}"
            );
            assert_eq!(seen.least, None, "{gone:?} {t}: {seen:?}");
            assert_eq!(seen.queue, Queue::Inside, "{gone:?} {t}: {seen:?}");
        }
    }
}

#[test]
fn another_target_forgets_nothing() {
    let rate = |t: f64| if t < 20.0 { 80.0 } else { 480.0 };
    let mut world = World::new(7, 8, always(0.05), Box::new(rate));
    world.run(25.0);
    let before = world.watch.estimate();
    world.watch = world.watch.clone().counted_anew(DEFAULT_TARGET * 2);
    assert_eq!(world.watch.estimate(), before);
    world.run(28.0);
    let seen = world.watch.estimate();
    assert_eq!(
        (seen.least, seen.queue),
        (before.least, Queue::Inside),
        "{seen:?}"
    );
}

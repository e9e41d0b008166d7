//! The rule of [`super::QuicWait`] before servers in virtual time, and what is read of a datagram.

use std::collections::VecDeque;

use super::*;

const MS: u64 = 1_000_000;
const RULE: QuicRule = QuicRule {
    target_ns: 20 * MS,
    interval_ns: 100 * MS,
    room_1024: 512,
    floor_1024: 128,
    refuse: QuicRefuse::Vn,
};

fn initial(version: u32, to: &[u8], from: &[u8]) -> Vec<u8> {
    let flags = if version == V2 { 0xd0 } else { 0xc0 };
    let mut datagram = vec![flags];
    datagram.extend(version.to_be_bytes());
    for id in [to, from] {
        datagram.push(id.len() as u8);
        datagram.extend(id);
    }
    datagram.resize(1200, 7);
    datagram
}

#[test]
fn an_initial_of_either_version_may_begin_a_connection() {
    for version in [V1, V2] {
        let datagram = initial(version, &[1; 8], &[2; 5]);
        let packet = LongPacket::read(&datagram).unwrap();
        assert_eq!((packet.to, packet.from), (&[1; 8][..], &[2; 5][..]));
        assert!(packet.may_begin(1200) && !packet.may_begin(1199));
    }
    // After a Retry the server has chosen.
    let later = initial(V1, &[1; 4], &[2; 5]);
    assert!(!LongPacket::read(&later).unwrap().may_begin(1200));
    assert_eq!(LongPacket::read(&initial(5, &[1; 8], &[])), None);
}

#[test]
fn a_refusal_lists_no_version_of_the_client_and_names_it_by_its_id() {
    let datagram = initial(V1, &[1; 20], &[2; 20]);
    let answer = LongPacket::read(&datagram).unwrap().refusal(0xff);
    let read = LongPacket::read(&answer).unwrap();
    assert_eq!(read.kind, PacketKind::Negotiation);
    assert_eq!((read.to, read.from), (&[2; 20][..], &[1; 20][..]));
    assert!(answer.ends_with(&NO_VERSION.to_be_bytes()) && answer.len() == 51);
}

/// One worker that answers in its order, each in the same time.
struct Server {
    wait: QuicWait,
    rule: QuicRule,
    /// So long after its Initial a client repeats it.
    repeats_ns: u64,
    service_ns: u64,
    /// Number, when it came, how many before it.
    queue: VecDeque<(u32, u64, u32)>,
    free_at: u64,
    let_in: usize,
    refused: usize,
    longest: u64,
}

impl Server {
    fn new(service_ns: u64) -> Server {
        Server {
            wait: QuicWait {
                buffer_limit: 1 << 20,
                ..QuicWait::default()
            },
            rule: RULE,
            repeats_ns: u64::MAX,
            service_ns,
            queue: VecDeque::new(),
            free_at: 0,
            let_in: 0,
            refused: 0,
            longest: 0,
        }
    }

    fn work(&mut self, now: u64) {
        while let Some(&(number, came, behind)) = self.queue.front() {
            let done = self.free_at.max(came) + self.service_ns;
            if done > now {
                return;
            }
            self.queue.pop_front();
            self.free_at = done;
            self.longest = self.longest.max(done - came);
            match came.saturating_add(self.repeats_ns) {
                repeated if repeated < done => {
                    self.wait.answer_late(number, done, repeated, behind)
                }
                _ => self.wait.answer(number, done, done - came, behind),
            }
        }
    }

    /// Attempts each so many ns, for so long.
    fn offer(&mut self, from: u64, each: u64, until: u64) {
        for now in (from..until).step_by(each as usize) {
            match self.attempt(now, OTHER_PRIORITY) {
                true => self.let_in += 1,
                false => self.refused += 1,
            }
        }
    }

    /// It does nothing for so long.
    fn stop(&mut self, now: u64, for_ns: u64) {
        self.free_at = self.free_at.max(now) + for_ns;
    }

    /// The longest wait of those who are answered in this time.
    fn longest_wait(&mut self, from: u64, each: u64, until: u64) -> u64 {
        self.work(from);
        self.longest = 0;
        self.offer(from, each, until);
        self.longest
    }

    /// One attempt; whether it is let in.
    fn attempt(&mut self, now: u64, priority: u8) -> bool {
        self.work(now);
        self.wait.look(now, &self.rule);
        let verdict = self.wait.judge(now, &self.rule, priority);
        let lets_in = [QuicVerdict::QuicAdmitted, QuicVerdict::QuicFloor].contains(&verdict);
        if lets_in {
            let behind = self.wait.pending();
            let number = self.wait.let_in(now);
            self.queue.push_back((number, now, behind));
        }
        lets_in
    }
}

#[test]
fn below_capacity_and_in_bursts_nobody_is_refused() {
    let mut server = Server::new(2 * MS);
    server.offer(MS, 5 * MS / 2, 20_000 * MS);
    // 60 in 20 ms, on an idle server.
    server.offer(30_000 * MS, MS / 3, 30_020 * MS);
    assert_eq!(server.refused, 0);
}

#[test]
fn a_higher_priority_gets_in_while_lower_ones_are_refused() {
    let mut server = Server::new(2 * MS);
    // Four times what it can serve, an eighth of that by a class of its own.
    let (mut let_in, mut of) = ([0; 2], [0; 2]);
    for attempt in 0..20_000u64 {
        let class = usize::from(attempt % 8 == 0);
        let now = MS + attempt * MS / 2;
        let in_time = server.attempt(now, [OTHER_PRIORITY, 1][class]);
        // Once the wait stands.
        if attempt > 2000 {
            of[class] += 1;
            let_in[class] += usize::from(in_time);
        }
    }
    assert_eq!(let_in[1], of[1], "of the higher class");
    assert!(let_in[0] * 3 < of[0], "{let_in:?} of {of:?}");
}

#[test]
fn in_overload_the_server_stays_busy_and_its_wait_near_the_target() {
    for times in [2, 4, 20] {
        let mut server = Server::new(2 * MS);
        server.offer(MS, 2 * MS / times, 10_000 * MS);
        // As many as it can serve in ten seconds, and those that wait.
        assert!((4950..5100).contains(&server.let_in), "{}", server.let_in);
        let refused = server.refused;
        server.longest = 0;
        server.offer(10_000 * MS, 2 * MS / times, 20_000 * MS);
        assert!(server.refused > refused);
        assert!(server.longest < 60 * MS, "{} ns", server.longest);
    }
}

/// A server of 4 ms that stands still now and then, for longer than `interval`, at 0.8 of what it can answer.
#[test]
fn a_server_that_stops_for_moments_refuses_nobody() {
    for stop in [50, 100, 150, 200] {
        let mut server = Server::new(4 * MS);
        for stops in 0..20 {
            let begins = stops * 3_000 * MS + MS;
            let ends = begins + 3_000 * MS;
            server.offer(begins, 5 * MS, ends);
            server.stop(ends, stop * MS);
        }
        assert_eq!(server.refused, 0, "{stop} ms");
    }
}

#[test]
fn it_lets_in_again_when_the_load_has_gone() {
    let mut server = Server::new(2 * MS);
    server.offer(MS, MS / 2, 5_000 * MS);
    assert!(server.wait.standing);
    server.offer(5_300 * MS, 5 * MS / 2, 5_500 * MS);
    let refused = server.refused;
    server.offer(5_500 * MS, 5 * MS / 2, 10_000 * MS);
    assert_eq!(server.refused, refused);
}

#[test]
fn a_server_that_never_answers_refuses_nobody_for_the_wait() {
    let mut server = Server::new(u64::MAX >> 2);
    server.offer(MS, MS, 1_000 * MS);
    assert_eq!(server.refused, 0);
}

/// Half of the time nobody but the floor: without an answer no restriction lasts.
#[test]
fn a_server_that_has_stopped_is_not_offered_everything() {
    for each in [5 * MS, MS] {
        let mut server = Server::new(2 * MS);
        server.offer(MS, each, 1_000 * MS);
        server.service_ns = u64::MAX >> 2;
        let before = server.let_in;
        server.offer(1_000 * MS, 5 * MS, 21_000 * MS);
        let share = (server.let_in - before) as f64 / 4000.0;
        assert!((0.4..0.75).contains(&share), "{share}");
    }
}

/// However slow it was.
#[test]
fn a_slow_server_that_has_stopped_is_not_offered_everything_either() {
    let mut server = Server::new(200 * MS);
    server.offer(MS, 150 * MS, 10_000 * MS);
    server.service_ns = u64::MAX >> 2;
    let before = server.let_in;
    server.offer(10_000 * MS, 20 * MS, 40_000 * MS);
    let share = (server.let_in - before) as f64 / 1500.0;
    assert!((0.4..0.9).contains(&share), "{share}");
}

/// A firewall behind weir drops a flood: what real clients wait for is answered at once.
#[test]
fn what_is_dropped_before_the_server_sees_it_refuses_nobody() {
    let mut wait = QuicWait::default();
    for now in (MS..10_000 * MS).step_by(MS as usize / 5) {
        wait.look(now, &RULE);
        assert_eq!(
            wait.judge(now, &RULE, OTHER_PRIORITY),
            QuicVerdict::QuicAdmitted
        );
        let (behind, number) = (wait.pending(), wait.let_in(now));
        if now % (200 * MS) < MS / 5 {
            wait.answer(number, now, MS, behind.min(1));
        }
    }
}

#[test]
fn an_answer_to_an_attempt_of_another_life_of_the_state_says_nothing() {
    let mut wait = QuicWait::default();
    wait.let_in(MS);
    wait.answer(1_000_000, 2 * MS, MS, 0);
    wait.answer_late(1_000_000, 2 * MS, MS, 0);
    assert_eq!(wait.pending(), 1);
}

#[test]
fn a_retry_excuses_the_server_and_those_before_it_still_wait() {
    let mut wait = QuicWait::default();
    for _ in 0..3 {
        wait.let_in(MS);
    }
    wait.excuse(2, 2 * MS);
    assert_eq!(wait.pending(), 2);
}

#[test]
fn the_floor_lets_in_before_the_speed_of_the_server_is_known() {
    let mut wait = QuicWait {
        buffer: 900,
        buffer_limit: 1000,
        ..QuicWait::default()
    };
    let verdicts = [1, 2].map(|n| wait.judge(n * MS, &RULE, OTHER_PRIORITY));
    assert_eq!(verdicts, [QuicVerdict::QuicFloor, QuicVerdict::QuicVnRoom]);
}

#[test]
fn what_the_socket_drops_waits_for_no_answer() {
    let mut wait = QuicWait {
        buffer: 800,
        buffer_limit: 1000,
        ..QuicWait::default()
    };
    assert!(wait.is_lost(201) && !wait.is_lost(200));
    let number = wait.let_in(MS);
    assert_ne!(wait.lose(2 * MS), number);
    assert_eq!(wait.pending(), 1);
    // However much memory it takes: an empty socket takes it.
    (wait.buffer, wait.buffer_limit) = (0, 100);
    assert!(!wait.is_lost(201));
}

#[test]
fn a_full_buffer_refuses_whatever_the_wait() {
    let mut wait = QuicWait {
        buffer: 600,
        buffer_limit: 1000,
        ..QuicWait::default()
    };
    let mut judge = |room_1024| {
        wait.judge(
            MS,
            &QuicRule {
                room_1024,
                floor_1024: 0,
                ..RULE
            },
            OTHER_PRIORITY,
        )
    };
    assert_eq!(judge(512), QuicVerdict::QuicVnRoom);
    assert_eq!(judge(700), QuicVerdict::QuicAdmitted);
    assert_eq!(judge(0), QuicVerdict::QuicAdmitted);
}

/// Answers that take longer than any of a busy server's say so, too.
#[test]
fn a_server_that_hung_for_seconds_refuses_again_when_it_answers() {
    for hang_s in [3, 5, 7, 10] {
        let mut server = Server::new(2 * MS);
        server.offer(MS, MS, 2_000 * MS);
        server.stop(2_000 * MS, hang_s * 1_000 * MS);
        server.offer(2_000 * MS, MS, 30_000 * MS);
        let longest = server.longest_wait(30_000 * MS, MS, 35_000 * MS);
        assert!(longest < 60 * MS, "{hang_s} s: {} ms", longest / MS);
    }
}

/// Nobody was forgotten, so what it tells counts.
#[test]
fn a_server_is_known_by_clients_that_come_rarely() {
    let mut server = Server::new(2 * MS);
    server.offer(MS, 3_000 * MS, 30_000 * MS);
    assert_eq!(server.wait.service_ns / MS, 2);
}

#[test]
fn clients_that_repeat_their_initial_are_no_cover_for_a_long_wait() {
    let patient = QuicRule {
        target_ns: 500 * MS,
        interval_ns: 500 * MS,
        ..RULE
    };
    for (rule, stop, most) in [(patient, 0, 800), (RULE, 400, 60)] {
        let mut server = Server::new(2 * MS);
        (server.rule, server.repeats_ns) = (rule, 300 * MS);
        server.offer(MS, 5 * MS / 2, 2_000 * MS);
        server.stop(2_000 * MS, stop * MS);
        server.offer(2_000 * MS, 4 * MS / 3, 20_000 * MS);
        let longest = server.longest_wait(20_000 * MS, 4 * MS / 3, 30_000 * MS);
        assert!(longest < most * MS, "{} ms", longest / MS);
    }
}

/// Its first answers are all late.
#[test]
fn a_server_that_begins_late_is_known_by_its_late_answers() {
    let mut server = Server::new(2 * MS);
    server.repeats_ns = 300 * MS;
    server.stop(MS, 400 * MS);
    server.offer(MS, 3 * MS / 2, 10_000 * MS);
    let longest = server.longest_wait(10_000 * MS, 3 * MS / 2, 15_000 * MS);
    assert!(longest < 60 * MS, "{} ms", longest / MS);
}

/// That one answer with nobody before it took long, since the server began or stood still.
#[test]
fn one_slow_answer_makes_no_server_that_answers_several_at_a_time() {
    for first in [50, 300] {
        let mut server = Server::new(2 * MS);
        server.stop(MS, first * MS);
        server.offer(MS, MS, 10_000 * MS);
        let longest = server.longest_wait(10_000 * MS, MS, 20_000 * MS);
        assert!(longest < 60 * MS, "{} ms", longest / MS);
    }
    for stop in [800, 3_000] {
        let mut server = Server::new(2 * MS);
        server.offer(MS, 4 * MS, 10_000 * MS);
        server.stop(10_000 * MS, stop * MS);
        server.offer(10_000 * MS, MS, 20_000 * MS);
        let longest = server.longest_wait(20_000 * MS, MS, 25_000 * MS);
        assert!(longest < 60 * MS, "{} ms", longest / MS);
    }
}

#[test]
fn time_to_catch_up_is_for_waits_of_about_the_stop() {
    let wait = QuicWait {
        service_ns: MS,
        stop_ns: 100 * MS,
        ..QuicWait::default()
    };
    let patience = |latency_ns| QuicWait { latency_ns, ..wait }.patience(&RULE);
    assert_eq!(patience(220 * MS), 900 * MS as i64);
    assert_eq!(patience(221 * MS), 100 * MS as i64);
}

#[test]
fn with_a_long_interval_a_server_that_has_stopped_is_not_offered_everything() {
    let mut server = Server::new(2 * MS);
    server.rule.interval_ns = 5_000 * MS;
    server.offer(MS, 5 * MS, 1_000 * MS);
    server.service_ns = u64::MAX >> 2;
    let before = server.let_in;
    server.offer(1_000 * MS, 5 * MS, 21_000 * MS);
    let share = (server.let_in - before) as f64 / 4000.0;
    assert!(share < 0.8, "{share}");
}

/// One that answers in its order drops those that it has overtaken: they wait for nothing.
#[test]
fn whom_a_server_in_order_overtakes_is_forgotten() {
    let mut wait = QuicWait::default();
    let numbers: Vec<u32> = (0..100).map(|_| wait.let_in(MS)).collect();
    wait.answer(numbers[97], 3 * MS, 2 * MS, 97);
    assert_eq!(wait.pending(), 2);
}

#[test]
fn whom_a_server_out_of_order_overtakes_waits_until_its_answer_or_too_long() {
    let mut wait = QuicWait::default();
    let numbers: Vec<u32> = (0..100).map(|_| wait.let_in(MS)).collect();
    wait.answer(numbers[97], 3 * MS, 2 * MS, 97);
    wait.answer(numbers[96], 4 * MS, 3 * MS, 96);
    assert_eq!(wait.pending(), 2 + 96);
    wait.answer(numbers[98], 5 * MS, 4 * MS, 98);
    assert_eq!(wait.pending(), 1 + 96);
    // Nobody answers the others: after twice 100 ms they are forgotten.
    for now in [105, 206] {
        let number = wait.let_in(now * MS);
        wait.answer(number, (now + 1) * MS, MS, 0);
    }
    assert_eq!(wait.pending(), 0);
}

/// Clients of a server out of order, beside a flood of made-up Initials that it never answers.
#[test]
fn a_flood_does_not_wait_at_a_server_that_answers_out_of_order() {
    let mut wait = QuicWait::default();
    let mut refused = 0;
    for now in (MS..20_000 * MS).step_by(10 * MS as usize) {
        let mut attempt = |wait: &mut QuicWait| {
            wait.look(now, &RULE);
            let verdict = wait.judge(now, &RULE, OTHER_PRIORITY);
            refused += u32::from(verdict != QuicVerdict::QuicAdmitted);
            (wait.pending(), wait.let_in(now))
        };
        let clients = [0; 2].map(|_| {
            for _ in 0..4 {
                attempt(&mut wait);
            }
            attempt(&mut wait)
        });
        for (behind, number) in clients.into_iter().rev() {
            wait.answer(number, now + 2 * MS, 2 * MS, behind);
        }
    }
    assert_eq!(refused, 0);
    let most = 8 * 100 * 2;
    assert!(
        wait.pending() < most / 4,
        "{} of {most} wait",
        wait.pending()
    );
}

/// A server in Go begins with all of a crowd, and answers the first one after hundreds of milliseconds: how many are let in until
/// then, of 240 in 300 ms? `made_up` Initials that it does not answer come before each of its answers.
fn of_a_crowd_before_the_first_answer(made_up: u32) -> usize {
    let mut wait = QuicWait::default();
    for now in (MS..1_000 * MS).step_by(30 * MS as usize) {
        for _ in 0..made_up {
            wait.let_in(now);
        }
        let (behind, number) = (wait.pending(), wait.let_in(now));
        wait.answer(number, now + 5 * MS, 5 * MS, behind);
    }
    let comes = |now: &u64| {
        wait.look(*now, &RULE);
        let verdict = wait.judge(*now, &RULE, OTHER_PRIORITY);
        let lets_in = verdict == QuicVerdict::QuicAdmitted;
        if lets_in {
            wait.let_in(*now);
        }
        lets_in
    };
    let crowd = (2_000 * MS..2_300 * MS).step_by(5 * MS as usize / 4);
    crowd.filter(comes).count()
}

#[test]
fn a_crowd_is_seen_before_its_first_answer_where_attempts_were_answered() {
    let let_in = of_a_crowd_before_the_first_answer(0);
    // Those of the target and of the interval.
    assert!((80..=110).contains(&let_in), "{let_in}");
    assert_eq!(of_a_crowd_before_the_first_answer(1), 240);
}

/// Clients of a server that takes `service_ns` for each and is not overloaded, beside a flood of made-up Initials that cost it
/// nothing, for 30 s: how many were refused, and of how many.
fn refused_beside_a_flood(
    service_ns: u64,
    each_ns: u64,
    flood_ns: u64,
    standing: bool,
) -> [u32; 2] {
    let mut server = Server::new(service_ns);
    server.offer(MS, each_ns, 10_000 * MS);
    assert_eq!(server.refused, 0);
    server.wait.standing = standing;
    (server.wait.above_ns, server.wait.last_above_ns) = (u64::from(standing), 10_000 * MS);
    let (mut refused, mut of) = (0, 0);
    let mut next = 10_000 * MS;
    for now in (10_000 * MS..40_000 * MS).step_by(flood_ns as usize) {
        server.work(now);
        if now < next {
            server.wait.look(now, &server.rule);
            let verdict = server.wait.judge(now, &server.rule, OTHER_PRIORITY);
            if [QuicVerdict::QuicAdmitted, QuicVerdict::QuicFloor].contains(&verdict) {
                server.wait.let_in(now);
            }
            continue;
        }
        next += each_ns;
        let lets_in = server.attempt(now, OTHER_PRIORITY);
        of += 1;
        refused += u32::from(!lets_in);
    }
    [refused, of]
}

/// Of one whose answers take longer than the target, more: while they take so long, each attempt of the flood may wait too.
#[test]
fn a_flood_does_not_shut_a_server_that_answers_in_time() {
    for standing in [false, true] {
        for (service, each, flood, most_percent) in [
            (12 * MS, 50 * MS, MS, 3),
            (MS, 200 * MS, MS / 3, 3),
            (25 * MS, 100 * MS, 10 * MS, 10),
            (25 * MS, 100 * MS, MS, 10),
            (45 * MS, 100 * MS, 5 * MS, 16),
        ] {
            let [refused, of] = refused_beside_a_flood(service, each, flood, standing);
            let shown = format!("{service} ns, one each {flood} ns: {refused} of {of}");
            println!("{shown}");
            assert!(refused * 100 <= of * most_percent, "{shown}");
        }
    }
}

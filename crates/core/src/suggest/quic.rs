//! Settings for a QUIC listener from what it has gone through ([`crate::profile::quic`]).
//!
//! What is decided, each with the figures that it comes from:
//!
//! - **target_wait**: the time of ten answers at least, as for TCP, if fewer are refused then. Never shorter than it is, and never
//!   made longer than [`LONGEST_TARGET`]: clients then repeat their Initial, and the answer to a repeated one tells nothing of the
//!   server's speed.
//! - **interval** is no shorter than target_wait.
//! - The **receive buffer** of the server: 1 MiB at least, and more if bursts find no room in the part that is for them.
//! - **room**: what bursts need, if the buffer is large and they did not find it in half of it. A quarter stays for packets of
//!   established connections.
//! - **mode**: enforce, once weir has seen the server answer. Without answers weir knows no wait.
//! - A **`[[listener]]`** for the TCP port, if nothing guards it: clients that are refused come there.

use std::time::Duration;

use crate::listener::{Listener, Mode};
use crate::profile::TARGETS_MS;
use crate::profile::quic::{LONGEST_TARGET, QuicProfile};
use crate::quic::QuicListener;
use crate::suggest::least_target;
use crate::workload::Where;

/// A smaller receive buffer has no room for a burst of new connections: an Initial takes about 2.3 KiB of it, and a post-quantum
/// hello has two.
pub const SMALL_RECEIVE_BUFFER: u32 = 1 << 20;
/// The largest one that is suggested.
pub const RECEIVE_BUFFER_MAX: u32 = 1 << 25;
/// The largest room that is suggested.
pub const ROOM_FOR_BURSTS: f64 = 0.75;
/// A longer target is suggested if it refuses this share of the attempts less, 0 to 1.
pub const LEAST_GAIN: f64 = 0.01;

/// What is suggested for a QUIC listener.
#[derive(Debug, Clone, PartialEq)]
pub struct QuicSuggestion {
    /// The listener with the suggested settings.
    pub listener: QuicListener,
    /// Why this target.
    pub target_wait: QuicTargetWait,
    /// About this share of the attempts, 0 to 1, would be refused with each of these targets: the suggested one, if it is
    /// another one than that in force, and the one after it.
    pub over: Vec<(Duration, f64)>,
    /// Ten answers take longer than the longest target that is suggested.
    pub is_too_slow: bool,
    /// Why this room.
    pub room: Room,
    /// The receive buffer; `None`: no attempt has come to a socket.
    pub buffer: Option<ReceiveBuffer>,
    /// Whether the server was seen to answer. If not, the mode stays as it is.
    pub answers: bool,
    /// A listener for its TCP port, which nothing guards.
    pub tcp: Option<Listener>,
}

/// Where a room comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// The operator does not want the buffer to count.
    Unused,
    /// Bursts found it.
    Enough,
    /// So many attempts did not find it, in a buffer that is too small.
    SmallBuffer(u64),
    /// So many attempts did not find it, in a large buffer.
    Bursts(u64),
}

/// What the receive buffer of a server's sockets is and should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiveBuffer {
    /// Bytes that the smallest one takes, as the kernel counts them: twice what the server has asked for.
    pub now: u32,
    /// Bytes that the server is to ask for; `None`: it is large enough.
    pub raise_to: Option<u32>,
}

/// Where a target comes from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum QuicTargetWait {
    /// No attempt was seen to wait.
    NothingWaited,
    /// The server, which answers so many a second while it is busy, needs no more than the target in force.
    Enough(f64),
    /// The server is slow, so many a second, and a longer target would refuse hardly fewer.
    NoGain(f64),
    /// The server is slow: so many a second.
    Slow(f64),
}

/// Settings for this QUIC listener, which had `asked` while it was looked at. `listeners` are those under guard.
pub fn suggest<'a>(
    asked: &QuicListener,
    profile: &QuicProfile,
    listeners: impl IntoIterator<Item = &'a Listener>,
) -> QuicSuggestion {
    let service = profile.service();
    let needed = service.map_or(Duration::ZERO, least_target);
    let longer = asked.target_wait.max(needed.min(LONGEST_TARGET));
    let is_gain = gains(profile, asked.target_wait, longer);
    let target = if is_gain { longer } else { asked.target_wait };
    let per_second = service.map_or(0.0, |service| 1.0 / service.as_secs_f64().max(1e-9));
    let target_wait = match service {
        None => QuicTargetWait::NothingWaited,
        Some(_) if longer == asked.target_wait => QuicTargetWait::Enough(per_second),
        Some(_) if !is_gain => QuicTargetWait::NoGain(per_second),
        Some(_) => QuicTargetWait::Slow(per_second),
    };
    let room = room(asked, profile);
    let answers = profile.answered() > 0;
    let listener = QuicListener {
        target_wait: target,
        interval: asked.interval.max(target),
        room: match room {
            Room::Bursts(_) => asked.room.max(ROOM_FOR_BURSTS),
            _ => asked.room,
        },
        mode: if answers { Mode::Enforce } else { asked.mode },
        ..asked.clone()
    };
    QuicSuggestion {
        target_wait,
        over: shares_over(profile, asked.target_wait, target),
        is_too_slow: is_gain && needed > target,
        room,
        buffer: buffer(asked, profile, room),
        answers,
        tcp: tcp(asked, listeners),
        listener,
    }
}

/// Whether the longer target refuses fewer; where nothing is known of either, it may.
fn gains(profile: &QuicProfile, now: Duration, longer: Duration) -> bool {
    let shares = (profile.share_with(now), profile.share_with(longer));
    let (Some(now), Some(longer)) = shares else {
        return true;
    };
    now - longer >= LEAST_GAIN
}

fn shares_over(profile: &QuicProfile, now: Duration, suggested: Duration) -> Vec<(Duration, f64)> {
    let mut targets = TARGETS_MS.map(Duration::from_millis).into_iter();
    let next = targets.find(|target| *target > suggested);
    let all = [suggested].into_iter().filter(|target| *target != now);
    let share = |target| Some((target, profile.share_with(target)?));
    all.chain(next).filter_map(share).collect()
}

fn room(asked: &QuicListener, profile: &QuicProfile) -> Room {
    let bursts = profile.refused_in_bursts();
    // Where no answer is seen, no wait is: an overload looks like a burst.
    let is_known = bursts > 0 && profile.service().is_some();
    let small = profile.buffer_limit() < Some(SMALL_RECEIVE_BUFFER);
    match asked.room == 0.0 {
        true => Room::Unused,
        false if !is_known => Room::Enough,
        false if small => Room::SmallBuffer(bursts),
        false => Room::Bursts(bursts),
    }
}

fn buffer(asked: &QuicListener, profile: &QuicProfile, room: Room) -> Option<ReceiveBuffer> {
    let now = profile.buffer_limit()?;
    let raise_to = match room {
        _ if now < SMALL_RECEIVE_BUFFER => Some(SMALL_RECEIVE_BUFFER),
        // What it asks for the kernel doubles: this is twice what there is.
        Room::Bursts(_) if asked.room >= ROOM_FOR_BURSTS && now <= RECEIVE_BUFFER_MAX => {
            Some(now.next_power_of_two())
        }
        _ => None,
    };
    Some(ReceiveBuffer { now, raise_to })
}

fn tcp<'a>(
    asked: &QuicListener,
    listeners: impl IntoIterator<Item = &'a Listener>,
) -> Option<Listener> {
    let mut listeners = listeners.into_iter();
    let is_guarded = listeners.any(|one| one.address.port == asked.address.port);
    (!is_guarded && asked.location == Where::Here).then(|| Listener {
        interfaces: asked.interfaces.clone(),
        ..Listener::new(format!("port-{}", asked.address.port), asked.address)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::profile::quic::tests::{Watch, h3, socket};
    use crate::quic::{QuicSocket, QuicVerdict};

    const NONE: (QuicVerdict, u64) = (QuicVerdict::QuicVnWait, 0);

    fn observed() -> QuicListener {
        QuicListener {
            mode: Mode::Observe,
            ..h3()
        }
    }

    fn seen(
        seconds: u32,
        let_in: u64,
        refused: (QuicVerdict, u64),
        socket: QuicSocket,
    ) -> QuicProfile {
        let mut watch = Watch::new();
        for _ in 0..seconds {
            watch.second(let_in, refused, &[socket]);
        }
        watch.profile
    }

    fn decide(asked: &QuicListener, profile: &QuicProfile) -> QuicSuggestion {
        suggest(asked, profile, &[])
    }

    #[test]
    fn a_quick_server_keeps_what_it_has_and_is_protected() {
        let profile = seen(10, 100, NONE, socket(0, 0, 1));
        let suggestion = decide(&observed(), &profile);
        assert_eq!(suggestion.listener, h3());
        assert_eq!(suggestion.target_wait, QuicTargetWait::NothingWaited);
        assert_eq!(suggestion.room, Room::Enough);
        let buffer = suggestion.buffer.unwrap();
        assert_eq!((buffer.now, buffer.raise_to), (2 << 20, None));
    }

    /// Some are, or would be, refused: their wait stood over 20 ms.
    fn stands(pending: u32, service_us: u64) -> QuicProfile {
        let socket = QuicSocket {
            standing: true,
            ..socket(pending, service_us, 0)
        };
        seen(10, 5, (QuicVerdict::QuicVnWait, 2), socket)
    }

    #[test]
    fn the_target_of_a_slow_server_is_the_time_of_ten_answers_and_half_a_second_at_most() {
        for (service_us, ms, too_slow) in [
            (200, 20, false),
            (2_000, 20, false),
            (3_000, 50, false),
            (40_000, 500, false),
            (90_000, 500, true),
        ] {
            // So many wait that a longer target would let in more.
            let suggestion = decide(&h3(), &stands((ms * 600 / service_us) as u32, service_us));
            let listener = suggestion.listener;
            assert_eq!(
                listener.target_wait,
                Duration::from_millis(ms),
                "{service_us}"
            );
            assert_eq!(listener.interval, Duration::from_millis(ms.max(100)));
            assert_eq!(suggestion.is_too_slow, too_slow);
            let is_slow = matches!(suggestion.target_wait, QuicTargetWait::Slow(_));
            assert_eq!(is_slow, ms > 20);
        }
        let patient = QuicListener {
            target_wait: Duration::from_secs(2),
            ..h3()
        };
        let suggestion = decide(&patient, &stands(5, 90_000));
        assert_eq!(suggestion.listener.target_wait, patient.target_wait);
        assert!(!suggestion.is_too_slow);
    }

    #[test]
    fn a_slow_server_keeps_a_target_with_which_nobody_is_refused() {
        for service_us in [3_000, 40_000, 90_000] {
            let suggestion = decide(&h3(), &seen(10, 5, NONE, socket(1, service_us, 0)));
            assert_eq!(suggestion.listener.target_wait, h3().target_wait);
            assert!(matches!(suggestion.target_wait, QuicTargetWait::NoGain(_)));
            assert!(!suggestion.is_too_slow);
        }
    }

    #[test]
    fn a_small_buffer_is_raised_and_bursts_that_a_large_one_has_no_room_for_have_more_of_it() {
        let no_room = (QuicVerdict::QuicVnRoom, 5);
        let busy = socket(1, 100, 60);
        let small = QuicSocket {
            buffer_limit: 212_992,
            ..busy
        };
        let suggestion = decide(&h3(), &seen(3, 100, no_room, small));
        assert_eq!(suggestion.room, Room::SmallBuffer(15));
        assert_eq!(suggestion.listener.room, h3().room);
        let buffer = suggestion.buffer.unwrap();
        assert_eq!(buffer.raise_to, Some(SMALL_RECEIVE_BUFFER));
        let suggestion = decide(&h3(), &seen(3, 100, no_room, busy));
        assert_eq!(suggestion.room, Room::Bursts(15));
        assert_eq!(suggestion.listener.room, 0.75);
        assert_eq!(suggestion.buffer.unwrap().raise_to, None);
        // It has that already.
        let roomy = QuicListener { room: 0.8, ..h3() };
        let suggestion = decide(&roomy, &seen(3, 100, no_room, busy));
        assert_eq!(suggestion.listener.room, 0.8);
        assert_eq!(suggestion.buffer.unwrap().raise_to, Some(2 << 20));
        let unused = QuicListener { room: 0.0, ..h3() };
        assert_eq!(
            decide(&unused, &seen(3, 100, no_room, busy)).room,
            Room::Unused
        );
    }

    #[test]
    fn a_full_buffer_in_an_overload_is_no_burst() {
        let no_room = (QuicVerdict::QuicVnRoom, 50);
        let overload = QuicSocket {
            standing: true,
            least: 2,
            ..socket(300, 2000, 90)
        };
        let suggestion = decide(&h3(), &seen(30, 500, no_room, overload));
        assert_eq!(suggestion.room, Room::Enough);
        assert_eq!(suggestion.listener.room, h3().room);
    }

    #[test]
    fn where_no_answer_is_seen_the_mode_and_the_room_stay() {
        let mut watch = Watch::new();
        for _ in 0..10 {
            let no_room = (QuicVerdict::QuicVnRoom, 50);
            watch.second(0, no_room, &[socket(30, 0, 90)]);
        }
        let suggestion = decide(&observed(), &watch.profile);
        assert!(!suggestion.answers);
        assert_eq!(suggestion.listener, observed());
    }

    #[test]
    fn a_tcp_port_that_nothing_guards_gets_a_listener() {
        let profile = seen(1, 5, NONE, socket(0, 0, 0));
        let on = QuicListener {
            interfaces: vec!["eth0".to_owned()],
            ..h3()
        };
        let at = |port| Listener::new("web", crate::listener::ListenAddress { port, ..on.address });
        let tcp = suggest(&on, &profile, &[at(80)]).tcp.unwrap();
        assert_eq!((tcp.address, &tcp.interfaces), (on.address, &on.interfaces));
        assert_eq!(suggest(&on, &profile, &[at(80), at(443)]).tcp, None);
    }

    proptest! {
        /// Whatever was seen, the settings are within the ranges of their keys.
        #[test]
        fn settings_are_in_their_ranges(
            looks in prop::collection::vec((0_u64..1000, 0_u64..1000, any::<u32>(), any::<u32>(), any::<u32>()), 1..40),
            target_ms in 1_u64..=10_000,
            room in 0.0..=1.0,
        ) {
            let mut watch = Watch::new();
            for (let_in, refused, pending, service_us, buffer_limit) in looks {
                let one = QuicSocket { buffer_limit, ..socket(pending, 0, 0) };
                let service = Some(Duration::from_micros(service_us.into()));
                watch.second(let_in, (QuicVerdict::QuicVnRoom, refused), &[QuicSocket { service, ..one }]);
            }
            let asked = QuicListener { target_wait: Duration::from_millis(target_ms), room, ..h3() };
            let suggestion = decide(&asked, &watch.profile);
            let listener = suggestion.listener;
            let range = asked.target_wait..=Duration::from_secs(10);
            prop_assert!(range.contains(&listener.target_wait));
            prop_assert!(range.contains(&listener.interval));
            prop_assert!(listener.interval >= listener.target_wait);
            prop_assert!((asked.room..=1.0).contains(&listener.room));
            let raised = suggestion.buffer.and_then(|buffer| buffer.raise_to);
            prop_assert!(raised.is_none_or(|bytes| (SMALL_RECEIVE_BUFFER..=RECEIVE_BUFFER_MAX).contains(&bytes)));
        }
    }
}

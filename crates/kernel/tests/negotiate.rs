//! bpf/lib/negotiate.h against its Rust model on random input. The seed is printed; set WEIR_SEED to run one again.

use proptest::prelude::*;
use weir_core::timewait::{Accept, Holder, state};
use weir_kernel::testing::negotiate as c;
use weir_models::timewait::negotiate::{
    self as model, Answered, End, Phase, Segment, Socket, Step,
};

mod seed;
use seed::runner;

const PHASES: [Phase; 5] = [
    Phase::Offer,
    Phase::Choice,
    Phase::Agreed,
    Phase::WillHold,
    Phase::Holds,
];
const ACCEPTS: [Accept; 4] = [Accept::Any, Accept::Server, Accept::Client, Accept::None];
const ENDS: [End; 2] = [End::This, End::Other];

#[test]
fn c_and_rust_negotiate_alike() {
    for accept in ACCEPTS {
        assert_eq!(c::offer(accept), model::offer(accept), "{accept:?}");
        let phases = PHASES
            .iter()
            .flat_map(|phase| ENDS.map(|end| Some((*phase, end))));
        for option in phases.chain([None]) {
            for larger in [false, true] {
                let agreed = model::agreed(option, model::offer(accept), larger);
                let expected = (agreed, model::accepts(accept, agreed));
                let given = (accept, option, larger);
                assert_eq!(c::agreed(accept, option, larger), expected, "{given:?}");
            }
        }
    }
    for holder in [Holder::Client, Holder::Server] {
        assert_eq!(c::choice(holder), model::choice(holder));
    }
    for from in 0..=12 {
        assert_eq!(c::phase_of(from), model::phase_of(from) as u8, "{from}");
        for to in 0..=12 {
            assert_eq!(c::hold(from, to), model::hold(from, to), "{from} {to}");
        }
    }
}

/// Once its acknowledgement may be out, the other end does not send it again: as it is, or spoilt, it ends here.
#[test]
fn a_fin_goes_on_only_if_its_acknowledgement_was_not_sent() {
    for (answered, goes_on) in [
        (Answered::Sent, false),
        (Answered::Unsent, true),
        (Answered::Spoilt, false),
    ] {
        assert_eq!(c::fin_goes_on(answered), goes_on, "{answered:?}");
        assert_eq!(model::fin_goes_on(answered), goes_on, "{answered:?}");
    }
}

#[test]
fn the_option_is_read_among_others_and_a_signature_is_seen() {
    let nop = [1u8];
    let stamps = [8u8, 10, 1, 2, 3, 4, 5, 6, 7, 8];
    for phase in PHASES {
        for end in ENDS {
            let option = c::option(phase, end);
            let bytes = [&nop[..], &nop, &stamps, &option].concat();
            // What the sender calls "this" is "the other one" to the one that reads it.
            let expected = Some((phase as u8, end.seen_from_there()));
            assert_eq!(c::read(&bytes), (expected, false));
        }
    }
    let mut others = c::option(Phase::Holds, End::This);
    others[5] = b'X';
    assert_eq!(c::read(&others), (None, false), "another ExID");
    for kind in [19, 29] {
        let signature = [&[kind, 18][..], &[0; 16]].concat();
        assert_eq!(c::read(&signature), (None, true));
    }
}

#[test]
fn c_and_rust_end_the_same_sockets() {
    let states = prop_oneof![Just(0u8), 1..=12u8];
    let substates = prop_oneof![Just(state::TIME_WAIT), Just(state::FIN_WAIT2)];
    // Small numbers, so that what is in order and acknowledged is met often.
    let socket = (
        (0u32..4, 0u32..3, states, substates),
        (0u32..3, 0u32..3),
        any::<(bool, bool)>(),
        prop::bool::weighted(0.1),
    )
        .prop_map(
            |((rcv_nxt, write_seq, state, substate), (window, behind), (orphan, holds), mptcp)| {
                Socket {
                    rcv_nxt,
                    window,
                    write_seq,
                    oldest: write_seq.wrapping_sub(behind),
                    state,
                    substate,
                    orphan,
                    holds,
                    mptcp,
                }
            },
        );
    let phases = prop::option::of(prop::sample::select(&PHASES[..]));
    let segment = (
        (0u32..4, 0u32..3, 0u32..2, phases),
        any::<(bool, bool, bool)>(),
        prop::bool::weighted(0.1),
    )
        .prop_map(
            |((seq, ack, data, phase), (fin, awaited, has_ended), sealed)| Segment {
                seq,
                ack,
                data,
                fin,
                phase,
                sealed,
                awaited,
                has_ended,
            },
        );
    runner(300_000)
        .run(&(socket, segment), |(socket, segment)| {
            let step = model::step(&socket, &segment);
            prop_assert_eq!(c::step(&socket, &segment), step);
            prop_assert_eq!(c::may_step(&segment), model::may_step(&segment));
            prop_assert!(model::may_step(&segment) || step == model::Step::Pass);
            prop_assert_eq!(c::shields(&socket), model::shields(&socket));
            let seq = segment.seq;
            prop_assert_eq!(c::missed(&socket, seq), model::missed(&socket, seq));
            let ends = model::ends(&socket, seq, segment.ack);
            prop_assert_eq!(c::ends(&socket, seq, segment.ack), ends);
            Ok(())
        })
        .unwrap();
}

/// Of all numbers that a stranger may try: those of a segment that the connection's own other end could send.
#[test]
fn a_fin_with_numbers_that_are_not_the_connection_s_does_nothing() {
    const WINDOW: u32 = 1 << 16;
    let states = 0..=12u8;
    let substates = [state::TIME_WAIT, state::FIN_WAIT2];
    for socket in states.flat_map(|state| substates.map(|substate| (state, substate))) {
        let socket = Socket {
            rcv_nxt: u32::MAX - 9,
            window: WINDOW,
            write_seq: 7,
            oldest: 7u32.wrapping_sub(WINDOW),
            state: socket.0,
            substate: socket.1,
            orphan: true,
            ..Socket::default()
        };
        let has_socket = ![0, state::LISTEN].contains(&socket.state);
        for phase in [Phase::WillHold, Phase::Holds] {
            for (seq, ack) in [
                (socket.rcv_nxt.wrapping_add(WINDOW + 1), 7),
                (socket.rcv_nxt.wrapping_add(1 << 31), 7),
                (socket.rcv_nxt.wrapping_sub(2), 7),
                (socket.rcv_nxt, 8),
                (socket.rcv_nxt, 8 + (1 << 31)),
                (socket.rcv_nxt, 6u32.wrapping_sub(WINDOW)),
                (socket.rcv_nxt.wrapping_sub(1), 8),
                (socket.rcv_nxt.wrapping_sub(1), 6),
            ] {
                let segment = Segment {
                    seq,
                    ack,
                    fin: true,
                    phase: Some(phase),
                    ..Segment::default()
                };
                let expected = if has_socket { Step::Pass } else { Step::HandOn };
                assert_eq!(
                    c::step(&socket, &segment),
                    expected,
                    "{socket:?} {segment:?}"
                );
                let after = seq.wrapping_add(1);
                let remembers =
                    (socket.state, socket.substate) == (state::TIME_WAIT, state::TIME_WAIT);
                let is_last = remembers && after == socket.rcv_nxt && ack == 6;
                assert_eq!(
                    c::ends(&socket, after, ack),
                    is_last,
                    "{socket:?} {segment:?}"
                );
            }
        }
    }
}

//! bpf/lib/negotiate.h, compiled natively (bpf/tests/pure.c), for property tests against `weir_models::timewait::negotiate`.

use weir_core::timewait::{Accept, Holder};
use weir_models::timewait::negotiate::{Answered, End, Hold, Phase, Segment, Socket, Step};

use super::pure::raw_options;
use super::skel::types::{syn_options, tw_segment, tw_socket};

unsafe extern "C" {
    fn pure_tw_offer(accept: u8) -> u8;
    fn pure_tw_choice(holder: u8) -> u8;
    fn pure_tw_accepts(accept: u8, o: *const syn_options, larger: u8) -> u8;
    fn pure_tw_agreed(accept: u8, o: *const syn_options, larger: u8) -> u8;
    fn pure_tw_may_step(segment: *const tw_segment) -> u8;
    fn pure_tw_step(socket: *const tw_socket, segment: *const tw_segment) -> u8;
    fn pure_tw_ends(socket: *const tw_socket, seq: u32, ack: u32) -> u8;
    fn pure_tw_missed(socket: *const tw_socket, seq: u32) -> u8;
    fn pure_tw_fin_goes_on(answered: i32) -> u8;
    fn pure_tw_hold(from: u8, to: u8) -> u8;
    fn pure_tw_shields(socket: *const tw_socket) -> u8;
    fn pure_tw_phase_of(state: u8) -> u8;
}

/// `enum tw_end` and, of what is sent, `enum tw_wire`: both are 0 for none, 1 for the first, 2 for the other end.
fn end(number: u8) -> Option<End> {
    match number {
        0 => None,
        1 => Some(End::This),
        2 => Some(End::Other),
        _ => panic!("no end: {number}"),
    }
}

fn number(end: End) -> u8 {
    match end {
        End::This => 1,
        End::Other => 2,
    }
}

/// The bytes of the option: `end` is as its sender sees it.
pub fn option(phase: Phase, end: End) -> [u8; 8] {
    let [kind, length] = [253, 8];
    let [a, b, c, d] = *b"TWNG";
    [kind, length, a, b, c, d, phase as u8, number(end)]
}

fn raw(option: Option<(Phase, End)>) -> syn_options {
    let mut raw = syn_options::default();
    if let Some((phase, end)) = option {
        raw.phase = phase as u8;
        // As it is sent.
        raw.holder = number(end.seen_from_there());
    }
    raw
}

/// Reads the option from TCP options as the programs do: its phase, its holder as this end sees it, and whether a
/// signature covers the header.
pub fn read(bytes: &[u8]) -> (Option<(u8, End)>, bool) {
    let raw = raw_options(bytes);
    let end = end(raw.holder).map(End::seen_from_there);
    (end.map(|end| (raw.phase, end)), raw.sealed != 0)
}

/// `tw_offer()`
pub fn offer(accept: Accept) -> End {
    // SAFETY: it takes no pointers.
    end(unsafe { pure_tw_offer(accept as u8) }).expect("an end")
}

/// `tw_choice()`
pub fn choice(holder: Holder) -> End {
    // SAFETY: it takes no pointers.
    end(unsafe { pure_tw_choice(holder as u8) }).expect("an end")
}

/// `tw_agreed()` and `tw_accepts()` of its result, for an end that agrees to these holders.
pub fn agreed(accept: Accept, option: Option<(Phase, End)>, larger: bool) -> (Option<End>, bool) {
    let (raw, accept, larger) = (raw(option), accept as u8, u8::from(larger));
    // SAFETY: the structure lives through the calls.
    unsafe {
        let accepts = pure_tw_accepts(accept, &raw, larger) != 0;
        (end(pure_tw_agreed(accept, &raw, larger)), accepts)
    }
}

fn raw_socket(socket: &Socket) -> tw_socket {
    tw_socket {
        rcv_nxt: socket.rcv_nxt,
        window: socket.window,
        write_seq: socket.write_seq,
        oldest: socket.oldest,
        state: socket.state,
        substate: socket.substate,
        orphan: socket.orphan.into(),
        holds: socket.holds.into(),
        mptcp: socket.mptcp.into(),
    }
}

/// `tw_shields()`
pub fn shields(socket: &Socket) -> bool {
    // SAFETY: the structure lives through the call.
    unsafe { pure_tw_shields(&raw_socket(socket)) != 0 }
}

fn raw_segment(segment: &Segment) -> tw_segment {
    tw_segment {
        seq: segment.seq,
        ack: segment.ack,
        data: segment.data,
        fin: segment.fin.into(),
        phase: segment.phase.map_or(0, |phase| phase as u8),
        sealed: segment.sealed.into(),
        awaited: segment.awaited.into(),
        has_ended: segment.has_ended.into(),
    }
}

/// `tw_may_step()`
pub fn may_step(segment: &Segment) -> bool {
    // SAFETY: the structure lives through the call.
    unsafe { pure_tw_may_step(&raw_segment(segment)) != 0 }
}

/// `tw_step()`
pub fn step(socket: &Socket, segment: &Segment) -> Step {
    const STEPS: [Step; 8] = [
        Step::Pass,
        Step::Note,
        Step::Answer,
        Step::HandOn,
        Step::End,
        Step::EndOrphan,
        Step::EndAfter,
        Step::Await,
    ];
    let (socket, segment) = (raw_socket(socket), raw_segment(segment));
    // SAFETY: both structures live through the call.
    STEPS[usize::from(unsafe { pure_tw_step(&socket, &segment) })]
}

/// `tw_ends()`
pub fn ends(socket: &Socket, seq: u32, ack: u32) -> bool {
    // SAFETY: the structure lives through the call.
    unsafe { pure_tw_ends(&raw_socket(socket), seq, ack) != 0 }
}

/// `tw_missed()`
pub fn missed(socket: &Socket, seq: u32) -> bool {
    // SAFETY: the structure lives through the call.
    unsafe { pure_tw_missed(&raw_socket(socket), seq) != 0 }
}

/// `tw_fin_goes_on()`
pub fn fin_goes_on(answered: Answered) -> bool {
    // SAFETY: it takes no pointers.
    unsafe { pure_tw_fin_goes_on(answered as i32) != 0 }
}

/// `tw_hold()`
pub fn hold(from: u8, to: u8) -> Hold {
    const HOLDS: [Hold; 4] = [Hold::NoChange, Hold::SayWill, Hold::Reserve, Hold::Begin];
    // SAFETY: it takes no pointers.
    HOLDS[usize::from(unsafe { pure_tw_hold(from, to) })]
}

/// `tw_phase_of()`
pub fn phase_of(state: u8) -> u8 {
    // SAFETY: it takes no pointers.
    unsafe { pure_tw_phase_of(state) }
}

//! Which end of a connection holds its TIME-WAIT, and what each end does about it at the close (FTY99, Section 3). The
//! model of bpf/lib/negotiate.h.

use weir_core::timewait::{Accept, Holder, state};

/// An end of a connection, as one of them sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum End {
    /// The one that looks.
    This,
    /// Its peer.
    Other,
}

impl End {
    /// The same end, as the other one sees it. So the option says who holds: "the sender" or "the receiver".
    pub fn seen_from_there(self) -> End {
        match self {
            End::This => End::Other,
            End::Other => End::This,
        }
    }
}

/// What kind of segment has the option.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Phase {
    /// SYN of the end that opens, and its SYN/ACK if both ends open: whom it would like to hold.
    Offer = 1,
    /// SYN/ACK of a server: who holds.
    Choice,
    /// The ACK of it: the same.
    Agreed,
    /// FIN of the holder that closes first: the kernel's TIME-WAIT is going to be there.
    WillHold,
    /// FIN of the holder that closes second: it has a record.
    Holds,
}

/// What an end that opens puts in its SYN: itself, if it agrees to that, so that servers have the least load.
pub fn offer(accept: Accept) -> End {
    match accept {
        Accept::Server => End::Other,
        _ => End::This,
    }
}

/// What a server puts in its SYN/ACK if the SYN has an offer.
pub fn choice(holder: Holder) -> End {
    match holder {
        Holder::Client => End::Other,
        Holder::Server => End::This,
    }
}

/// Whether an end that opens agrees to this holder. `None` is TCP as it always was: all agree to that.
pub fn accepts(accept: Accept, holder: Option<End>) -> bool {
    match (accept, holder) {
        (_, None) | (Accept::Any, _) => true,
        (Accept::Client, Some(end)) => end == End::This,
        (Accept::Server, Some(end)) => end == End::Other,
        (Accept::None, Some(_)) => false,
    }
}

/// Table 1: both ends open at once. `larger`: this end's address is the larger one.
pub fn of_both(mine: Option<End>, theirs: Option<End>, larger: bool) -> Option<End> {
    let (mine, theirs) = (mine?, theirs?);
    Some(match (mine == theirs, larger) {
        (true, _) => mine,
        (false, true) => End::This,
        (false, false) => End::Other,
    })
}

/// The holder, by the option of a SYN/ACK, or of the ACK of this end's own one if both open; its end is as this one sees
/// it. `offered`: what this end's SYN said.
pub fn agreed(option: Option<(Phase, End)>, offered: End, larger: bool) -> Option<End> {
    match option? {
        (Phase::Choice | Phase::Agreed, end) => Some(end),
        (Phase::Offer, end) => of_both(Some(offered), Some(end), larger),
        _ => None,
    }
}

/// The socket for which a segment comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Socket {
    /// The next sequence number of the other end.
    pub rcv_nxt: u32,
    /// How many bytes from there on it may send.
    pub window: u32,
    /// The next one of this end, its FIN counted.
    pub write_seq: u32,
    /// The lowest number that the other end may acknowledge: older ones are stale or forged.
    pub oldest: u32,
    /// One of [`state`]; 0: there is no socket.
    pub state: u8,
    /// Of a TIME-WAIT socket: [`state::FIN_WAIT2`] until the other end has closed.
    pub substate: u8,
    /// No program has it; not of TIME-WAIT sockets.
    pub orphan: bool,
    /// This end is the holder.
    pub holds: bool,
    /// A subflow of MPTCP.
    pub mptcp: bool,
}

/// A segment of the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Segment {
    /// Its sequence number.
    pub seq: u32,
    /// What it acknowledges.
    pub ack: u32,
    /// Bytes of data.
    pub data: u32,
    /// It has a FIN.
    pub fin: bool,
    /// Of its option, if that says that its sender holds.
    pub phase: Option<Phase>,
    /// A signature covers its header.
    pub sealed: bool,
    /// Its connection is among those that are ending here.
    pub awaited: bool,
    /// It is a FIN that has ended its connection here already.
    pub has_ended: bool,
}

/// What the end does that is to forget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// Nothing.
    Pass,
    /// The other end closes first, and holds: count it.
    Note,
    /// Acknowledge the FIN once more; there is no socket any more.
    Answer,
    /// Hand it on, then end a socket that has come meanwhile.
    HandOn,
    /// The same, and end the socket.
    End,
    /// The same, and look later whether it has ended: see [`missed`].
    EndOrphan,
    /// Hand it on, then end the socket.
    EndAfter,
    /// TIME-WAIT comes with a later segment.
    Await,
}

/// Whether [`step`] may say anything but [`Step::Pass`], whatever the socket.
pub fn may_step(segment: &Segment) -> bool {
    match segment.fin {
        true => matches!(segment.phase, Some(Phase::Holds | Phase::WillHold)),
        false => segment.awaited,
    }
}

/// Whether a number that the other end acknowledges is one of the connection.
fn may_acknowledge(socket: &Socket, ack: u32) -> bool {
    ack.wrapping_sub(socket.oldest) <= socket.write_seq.wrapping_sub(socket.oldest)
}

/// Whether the numbers of a segment are those of the connection (RFC 9293, Section 3.10.7.4; RFC 5961, Section 5): its last
/// byte is within the window, and it acknowledges what was sent, not too long ago.
fn is_of(socket: &Socket, segment: &Segment) -> bool {
    let last = segment.seq.wrapping_add(segment.data);
    last.wrapping_sub(socket.rcv_nxt) <= socket.window && may_acknowledge(socket, segment.ack)
}

/// See [`Step`]. A socket without a program is ended in place of the FIN. One with a program gets the FIN, as the program
/// waits for it.
pub fn step(socket: &Socket, segment: &Segment) -> Step {
    let in_order = segment.seq == socket.rcv_nxt;
    let acked = segment.ack == socket.write_seq;
    if socket.mptcp || segment.sealed {
        return Step::Pass;
    }
    if !segment.fin {
        let closing = socket.state == state::CLOSING && segment.data == 0 && in_order && acked;
        return match segment.awaited && closing {
            false => Step::Pass,
            true => Step::EndAfter,
        };
    }
    let holds = match segment.phase {
        Some(Phase::Holds) => true,
        Some(Phase::WillHold) => false,
        _ => return Step::Pass,
    };
    match socket.state {
        // Nobody else's FIN is acknowledged: its data may be lost.
        0 | state::LISTEN if segment.data == 0 => match segment.has_ended {
            true => Step::Answer,
            false => Step::HandOn,
        },
        state::ESTABLISHED if in_order && is_of(socket, segment) => Step::Note,
        // Both ends think that they hold: then both do.
        state::FIN_WAIT1 | state::FIN_WAIT2 | state::CLOSE
            if !holds && socket.holds || !is_of(socket, segment) =>
        {
            Step::Pass
        }
        state::FIN_WAIT1 if !acked => Step::Await,
        state::FIN_WAIT1 | state::FIN_WAIT2 | state::CLOSE if !in_order => Step::Await,
        // CLOSE since it was found: there is a TIME-WAIT socket in FIN-WAIT-2 in its place.
        state::FIN_WAIT1 | state::FIN_WAIT2 | state::CLOSE => {
            match socket.orphan && segment.data == 0 {
                true => Step::EndOrphan,
                false => Step::EndAfter,
            }
        }
        state::TIME_WAIT if socket.substate == state::FIN_WAIT2 => {
            match in_order && segment.data == 0 && is_of(socket, segment) {
                true => Step::End,
                false => Step::Pass,
            }
        }
        state::TIME_WAIT => {
            // Its FIN once more: the first one found the socket in use.
            let after = segment.seq.wrapping_add(segment.data).wrapping_add(1);
            match holds && acked && after == socket.rcv_nxt {
                true => Step::EndAfter,
                false => Step::Pass,
            }
        }
        _ => Step::Pass,
    }
}

/// Whether a RST of this end's own, behind the last segment of a connection, ends the socket that it meets: the kernel has all
/// up to the other end's FIN, which has the number before the RST's.
pub fn ends(socket: &Socket, seq: u32, ack: u32) -> bool {
    let remembers = (socket.state, socket.substate) == (state::TIME_WAIT, state::TIME_WAIT);
    remembers && socket.rcv_nxt == seq && may_acknowledge(socket, ack)
}

/// Whether the RST in place of a FIN with this number has missed: the socket waits for that FIN still. While another CPU puts
/// a TIME-WAIT socket in FIN-WAIT-2 in the place of an orphan, the RST is dropped with the orphan. Its FIN has been
/// acknowledged: nobody sends it again.
pub fn missed(socket: &Socket, seq: u32) -> bool {
    let state = match socket.state {
        state::TIME_WAIT => socket.substate,
        state => state,
    };
    [state::FIN_WAIT1, state::FIN_WAIT2].contains(&state) && socket.rcv_nxt == seq
}

/// What has become of an answer beside a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answered {
    /// It is out, and the packet is as it was.
    Sent = 0,
    /// It was not sent, and the packet is as it was.
    Unsent = -1,
    /// It may be out, and the packet is spoilt.
    Spoilt = -2,
}

/// Whether a FIN may go on that was to be acknowledged in a socket's place. Once the ACK may be out the other end does not
/// send the FIN again: the socket that waits for it is one that user space has to end.
pub fn fin_goes_on(answered: Answered) -> bool {
    answered == Answered::Unsent
}

/// What the holder does when its socket changes its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Hold {
    /// Nothing.
    NoChange,
    /// It closes first: its FIN is to have [`Phase::WillHold`].
    SayWill,
    /// It closes second: a record, and [`Phase::Holds`] in its FIN if there is one.
    Reserve,
    /// Its record begins.
    Begin,
}

/// See [`Hold`].
pub fn hold(from: u8, to: u8) -> Hold {
    match (from, to) {
        (_, state::FIN_WAIT1) => Hold::SayWill,
        (_, state::LAST_ACK) => Hold::Reserve,
        (state::LAST_ACK, _) => Hold::Begin,
        _ => Hold::NoChange,
    }
}

/// Whether a RST is not for the holder's socket. After a simultaneous close the other end may have no socket any more while
/// this one waits for the ACK of its FIN: a RST for a stray ACK would end it before its TIME-WAIT.
pub fn shields(socket: &Socket) -> bool {
    socket.state == state::CLOSING && socket.holds
}

/// The phase in a segment that the holder sends in this state.
pub fn phase_of(state: u8) -> Phase {
    match state {
        state::LAST_ACK => Phase::Holds,
        state::FIN_WAIT1 | state::CLOSING => Phase::WillHold,
        _ => Phase::Agreed,
    }
}

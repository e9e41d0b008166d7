//! Two ends that negotiate TIME-WAIT, with the decisions of bpf/lib/negotiate.h, over a network that loses, duplicates
//! and reorders: from the first SYN to the last ACK, in a million interleavings. What the kernel does by itself is that of
//! RFC 9293 and of `tcp_timewait_state_process()`, without data.
//!
//! The seed is printed; set WEIR_SEED to run the interleavings again, and WEIR_INTERLEAVINGS for another number of them.

use weir_core::timewait::{Accept, Holder, state};
use weir_kernel::testing::negotiate::{
    agreed, choice, ends, hold, missed, phase_of, shields, step,
};
use weir_models::timewait::negotiate::{End, Hold, Phase, Segment, Socket, Step, offer};
use weir_testbed::seed::seed;

const CLOSED: u8 = 0;
const SYN_SENT: u8 = 2;
const SYN_RECEIVED: u8 = 3;

/// Of each end.
const WINDOW: u32 = 1 << 16;

/// Retransmissions of a FIN. The network of a run is better than this long before.
const GIVES_UP_AFTER: u32 = 500;

/// xorshift64*
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32
    }

    fn below(&mut self, end: usize) -> usize {
        self.next() as usize % end
    }

    fn one_in(&mut self, number: usize) -> bool {
        self.below(number) == 0
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Packet {
    syn: bool,
    ack: Option<u32>,
    fin: bool,
    rst: bool,
    seq: u32,
    /// As its sender sees the holder.
    option: Option<(Phase, End)>,
    /// A RST for this end's own stack (end_after()).
    own: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Record {
    #[default]
    None,
    Reserved,
    Begun,
}

/// What a network and its ends may do in a run.
#[derive(Debug, Clone, Copy, Default)]
struct Conditions {
    accept: [Option<Accept>; 2],
    /// `None`: the server does not negotiate, or there is none: both ends open.
    holder: Option<Holder>,
    both_open: bool,
    /// Options do not pass: of SYNs, and of other segments.
    strips: [bool; 2],
    full: bool,
    kills: bool,
    /// The other kernel's socket is often in use when a RST of weir's own comes.
    busy: bool,
}

#[derive(Debug, Clone, Default)]
struct OneEnd {
    weir: bool,
    accept: Option<Accept>,
    holder: Option<Holder>,
    larger: bool,
    full: bool,

    state: u8,
    substate: u8,
    orphan: bool,
    seq: u32,
    /// Next sequence number of this end, and what the other one has acknowledged.
    write_seq: u32,
    acknowledged: u32,
    rcv_nxt: u32,
    /// The program has closed.
    closed: bool,
    was_established: bool,
    was_refused: bool,

    write: bool,
    syn_offered: bool,
    holds: bool,
    record: Record,
    ending: bool,
    /// Of a FIN that a RST stood in for, until the socket has been looked for once more.
    reset: Option<u32>,
    /// Of the FIN that has ended its connection: its number, and what it acknowledges.
    mark: Option<(u32, u32)>,
    /// A kill took a record away.
    lost_record: bool,
    /// tcp_rfc1337 = 0, and what came of it.
    dies_of_rst: bool,
    lost_time_wait: bool,
    retries: u32,
    gave_up: bool,
    sent: Vec<Packet>,
    own: Vec<Packet>,
}

impl OneEnd {
    fn set_state(&mut self, to: u8) {
        let from = std::mem::replace(&mut self.state, to);
        if to == state::ESTABLISHED {
            self.was_established = true;
        }
        if !self.weir || !self.holds {
            return;
        }
        // As the kernel reports it: TIME-WAIT is another socket, the old one is closed.
        let to = match to {
            state::TIME_WAIT | CLOSED => state::CLOSE,
            to => to,
        };
        match hold(from, to) {
            Hold::NoChange => {}
            Hold::SayWill => self.write = true,
            Hold::Reserve if self.full => {}
            Hold::Reserve => (self.record, self.write) = (Record::Reserved, true),
            Hold::Begin if self.full => {}
            Hold::Begin => self.record = Record::Begun,
        }
    }

    fn open(&mut self) {
        self.state = SYN_SENT;
        self.write = self.weir && self.accept.is_some();
        self.write_seq = self.seq + 1;
        self.acknowledged = self.seq;
        self.send_syn();
    }

    fn send_syn(&mut self) {
        let option = self
            .accept
            .filter(|_| self.write)
            .map(|accept| (Phase::Offer, offer(accept)));
        let ack = (self.state == SYN_RECEIVED).then_some(self.rcv_nxt);
        let (syn, seq) = (true, self.seq);
        self.sent.push(Packet {
            syn,
            seq,
            ack,
            option,
            ..Packet::default()
        });
    }

    /// The SYN/ACK of a listening socket.
    fn send_choice(&mut self) {
        let choice = self
            .holder
            .filter(|_| self.weir && self.syn_offered)
            .map(choice);
        self.sent.push(Packet {
            syn: true,
            seq: self.seq,
            ack: Some(self.rcv_nxt),
            option: choice.map(|end| (Phase::Choice, end)),
            ..Packet::default()
        });
    }

    fn send(&mut self, fin: bool) {
        let mut option = None;
        // A TIME-WAIT socket has no options of ours.
        if self.write && self.state != state::TIME_WAIT && self.state != CLOSED {
            let end = if self.holds { End::This } else { End::Other };
            let phases = [Phase::Agreed, Phase::WillHold, Phase::Holds];
            let number = phase_of(self.state);
            let phase = phases
                .into_iter()
                .find(|p| self.holds && *p as u8 == number);
            let phase = phase.unwrap_or(Phase::Agreed);
            option = Some((phase, end));
            if phase == Phase::Agreed {
                self.write = false;
            }
        }
        let seq = self.write_seq - u32::from(fin);
        let ack = Some(self.rcv_nxt);
        self.sent.push(Packet {
            fin,
            seq,
            ack,
            option,
            ..Packet::default()
        });
    }

    /// An end that opened, and put no offer in its SYN, differs in nothing that matters here.
    fn has_listened(&self) -> bool {
        self.holder.is_some() || self.accept.is_none() && !self.write
    }

    fn has_fin_out(&self) -> bool {
        [state::FIN_WAIT1, state::CLOSING, state::LAST_ACK].contains(&self.state)
    }

    /// What the retransmission timer does.
    fn retransmit(&mut self) {
        self.retries += u32::from(self.has_fin_out());
        if self.retries > GIVES_UP_AFTER {
            // tcp_orphan_retries: after 100 s. It has been closing for longer than TIME-WAIT lasts.
            self.gave_up = true;
            return self.forget();
        }
        match self.state {
            SYN_SENT => self.send_syn(),
            SYN_RECEIVED if self.has_listened() => self.send_choice(),
            SYN_RECEIVED => self.send_syn(),
            _ if self.has_fin_out() => self.send(true),
            _ => {}
        }
    }

    fn waits(&self) -> bool {
        [SYN_SENT, SYN_RECEIVED].contains(&self.state) || self.has_fin_out()
    }

    /// close() or shutdown(), and close() later.
    fn close(&mut self, orphan: bool) {
        if !self.was_established {
            // Still in connect() or accept().
            return;
        }
        self.orphan |= orphan;
        if std::mem::replace(&mut self.closed, true) {
            if self.state == state::FIN_WAIT2 && self.orphan {
                (self.state, self.substate) = (state::TIME_WAIT, state::FIN_WAIT2);
            }
            return;
        }
        let next = match self.state {
            state::ESTABLISHED => state::FIN_WAIT1,
            state::CLOSE_WAIT => state::LAST_ACK,
            _ => return,
        };
        self.write_seq += 1;
        self.set_state(next);
        self.send(true);
    }

    fn socket(&self) -> Socket {
        Socket {
            rcv_nxt: self.rcv_nxt,
            window: WINDOW,
            write_seq: self.write_seq,
            oldest: self.acknowledged.wrapping_sub(WINDOW),
            state: self.state,
            substate: self.substate,
            orphan: self.orphan && self.state != state::TIME_WAIT,
            holds: self.holds && self.state != state::TIME_WAIT,
            mptcp: false,
        }
    }

    fn rst_for(&mut self, packet: &Packet) {
        let (seq, rst) = (packet.ack.unwrap_or(0), true);
        self.sent.push(Packet {
            seq,
            rst,
            ..Packet::default()
        });
    }

    fn forget(&mut self) {
        self.set_state(CLOSED);
    }

    /// timewait_tc, then the kernel.
    fn receive(&mut self, packet: Packet, random: &mut Random, busy: bool) {
        // As this end sees the holder.
        let option = packet
            .option
            .map(|(phase, end)| (phase, end.seen_from_there()));
        if packet.own {
            let ack = packet.ack.unwrap_or(0);
            let is_there = ends(&self.socket(), packet.seq, ack);
            if self.weir && is_there && !(busy && random.one_in(2)) {
                self.ending = false;
                self.mark = Some((packet.seq - 1, ack));
                self.forget();
            }
            return;
        }
        let refuses = |accept| !agreed(accept, option, self.larger).1;
        let answers = packet.syn && packet.ack.is_some() && self.state == SYN_SENT;
        if self.weir && answers && self.accept.is_some_and(refuses) {
            self.was_refused = true;
            self.rst_for(&packet);
            return self.forget();
        }
        if packet.rst && self.weir && shields(&self.socket()) {
            return;
        }
        let closes = !packet.syn && !packet.rst && (packet.fin || self.ending);
        if self.weir && (self.accept.is_some() || self.holder.is_some()) && closes {
            let none = self.state == CLOSED || self.state == state::LISTEN;
            if packet.fin && none && self.record == Record::Begun && packet.seq + 1 == self.rcv_nxt
            {
                self.acknowledge(&packet);
                return;
            }
            let ack = packet.ack.unwrap_or(0);
            let segment = Segment {
                seq: packet.seq,
                ack,
                data: 0,
                fin: packet.fin,
                phase: option.and_then(|(phase, end)| (end == End::Other).then_some(phase)),
                sealed: false,
                awaited: self.ending,
                has_ended: none && self.mark == Some((packet.seq, ack)),
            };
            let mut socket = self.socket();
            let waits = (self.state, self.substate) == (state::TIME_WAIT, state::FIN_WAIT2);
            if waits && busy && random.one_in(2) {
                // Found is the one in whose place it has just come.
                socket.state = state::CLOSE;
                socket.orphan = self.orphan;
                socket.holds = self.holds;
            }
            match step(&socket, &segment) {
                Step::Pass | Step::Note => {}
                Step::Answer => return self.acknowledge(&packet),
                Step::HandOn => self.reset_after(&packet),
                Step::End => {
                    self.acknowledge(&packet);
                    self.mark = Some((packet.seq, ack));
                    return self.forget();
                }
                Step::EndOrphan => {
                    self.acknowledge(&packet);
                    self.mark = Some((packet.seq, ack));
                    self.reset = Some(packet.seq);
                    if !(busy && random.one_in(2)) {
                        return self.forget();
                    }
                    // An earlier ACK, which another CPU works on, came first: the RST goes with the old socket.
                    self.set_state(state::TIME_WAIT);
                    self.substate = state::FIN_WAIT2;
                    return;
                }
                Step::EndAfter => {
                    self.ending = true;
                    self.reset_after(&packet);
                }
                Step::Await => self.ending = true,
            }
        }
        self.kernel(&packet, option);
    }

    /// A RST for this end's own stack, behind a segment that is handed on.
    fn reset_after(&mut self, packet: &Packet) {
        self.own.push(Packet {
            own: true,
            rst: true,
            seq: packet.seq + u32::from(packet.fin),
            ack: packet.ack,
            ..Packet::default()
        });
    }

    /// An ACK made from a FIN.
    fn acknowledge(&mut self, packet: &Packet) {
        let (seq, ack) = (packet.ack.unwrap_or(0), Some(packet.seq + 1));
        self.sent.push(Packet {
            seq,
            ack,
            ..Packet::default()
        });
    }

    /// RFC 9293, Section 3.10.7.
    fn kernel(&mut self, packet: &Packet, option: Option<(Phase, End)>) {
        match self.state {
            CLOSED => {
                if !packet.rst && packet.ack.is_some() {
                    self.rst_for(packet);
                }
            }
            state::LISTEN if packet.syn && packet.ack.is_none() => {
                self.rcv_nxt = packet.seq + 1;
                self.syn_offered = option.is_some_and(|(phase, _)| phase == Phase::Offer);
                (self.write_seq, self.acknowledged) = (self.seq + 1, self.seq);
                self.state = SYN_RECEIVED;
                self.send_choice();
            }
            state::LISTEN => {}
            SYN_SENT => self.in_syn_sent(packet, option),
            state::TIME_WAIT => self.in_time_wait(packet),
            _ => self.synchronized(packet, option),
        }
    }

    fn in_syn_sent(&mut self, packet: &Packet, option: Option<(Phase, End)>) {
        if packet.rst {
            return self.forget();
        }
        if !packet.syn {
            return;
        }
        self.rcv_nxt = packet.seq + 1;
        if packet.ack.is_none() {
            self.state = SYN_RECEIVED;
            return self.send_syn();
        }
        self.acknowledged = self.write_seq;
        self.opened(option);
        self.set_state(state::ESTABLISHED);
        self.send(false);
    }

    /// on_opened()
    fn opened(&mut self, option: Option<(Phase, End)>) {
        let Some(accept) = self.accept.filter(|_| self.write) else {
            return;
        };
        match agreed(accept, option, self.larger) {
            (None, _) | (_, false) => self.write = false,
            (Some(end), true) => self.holds = end == End::This,
        }
    }

    /// on_accepted()
    fn accepted(&mut self, option: Option<(Phase, End)>) {
        let Some(holder) = self.holder.filter(|_| self.weir) else {
            return;
        };
        let choice = choice(holder);
        let confirms = option == Some((Phase::Agreed, choice));
        self.holds = (confirms || self.syn_offered) && choice == End::This;
    }

    fn in_time_wait(&mut self, packet: &Packet) {
        if packet.rst {
            // RFC 1337: a duplicate ACK that meets a closed port. TCP has it without weir too.
            if packet.seq == self.rcv_nxt && self.dies_of_rst {
                self.lost_time_wait = true;
                self.forget();
            }
        } else if packet.fin && self.substate == state::FIN_WAIT2 && packet.seq == self.rcv_nxt {
            self.rcv_nxt += 1;
            self.substate = state::TIME_WAIT;
            self.send(false);
        } else if packet.fin || packet.syn {
            self.send(false);
        }
    }

    fn synchronized(&mut self, packet: &Packet, option: Option<(Phase, End)>) {
        if packet.rst {
            if packet.seq == self.rcv_nxt {
                self.forget();
            }
            return;
        }
        if packet.syn && self.state == SYN_RECEIVED && packet.ack.is_none() {
            return self.retransmit();
        }
        if packet.syn && self.state != SYN_RECEIVED {
            return self.send(false);
        }
        let Some(ack) = packet.ack else { return };
        let acks_all = ack == self.write_seq;
        if self.state == SYN_RECEIVED {
            if !acks_all {
                return;
            }
            match self.has_listened() {
                true => self.accepted(option),
                false => self.opened(option),
            }
            self.acknowledged = ack;
            self.set_state(state::ESTABLISHED);
            if packet.syn {
                return self.send(false);
            }
        }
        if acks_all && self.has_fin_out() {
            self.acknowledged = ack;
            match self.state {
                state::FIN_WAIT1 if self.orphan && !packet.fin => {
                    self.set_state(state::TIME_WAIT);
                    self.substate = state::FIN_WAIT2;
                }
                state::FIN_WAIT1 => self.set_state(state::FIN_WAIT2),
                state::CLOSING => self.enter_time_wait(),
                _ => return self.forget(),
            }
        }
        if !packet.fin {
            return;
        }
        if packet.seq != self.rcv_nxt {
            // Once more, or before what it follows.
            return self.send(false);
        }
        self.rcv_nxt += 1;
        match self.state {
            state::ESTABLISHED => self.set_state(state::CLOSE_WAIT),
            state::FIN_WAIT1 => self.set_state(state::CLOSING),
            state::FIN_WAIT2 => self.enter_time_wait(),
            _ => {}
        }
        self.send(false);
    }

    fn enter_time_wait(&mut self) {
        self.set_state(state::TIME_WAIT);
        self.substate = state::TIME_WAIT;
    }

    /// sweep_endings()
    fn sweep(&mut self) {
        let there = self.state == state::TIME_WAIT && self.substate == state::TIME_WAIT;
        if self.weir && self.ending && there {
            self.forget();
        }
        let closes = [
            state::FIN_WAIT1,
            state::FIN_WAIT2,
            state::CLOSING,
            state::TIME_WAIT,
        ];
        self.ending &= closes.contains(&self.state);
        let reset = self.reset.take();
        if reset.is_some_and(|seq| self.weir && missed(&self.socket(), seq)) {
            self.forget();
        }
    }

    fn kill(&mut self) {
        let has_said = [state::FIN_WAIT1, state::CLOSING].contains(&self.state);
        self.lost_record |= self.record != Record::None || self.holds && has_said;
        self.weir = false;
        self.record = Record::None;
        (self.write, self.holds, self.ending) = (false, false, false);
        self.reset = None;
        self.mark = None;
    }

    fn remembers(&self) -> bool {
        let kernel = self.state == state::TIME_WAIT && self.substate == state::TIME_WAIT;
        kernel || self.record == Record::Begun || self.gave_up
    }
}

struct Run {
    ends: [OneEnd; 2],
    /// Packets to each end.
    wire: [Vec<Packet>; 2],
    conditions: Conditions,
    agreed_at_the_start: bool,
}

impl Run {
    fn new(conditions: Conditions, random: &mut Random) -> Run {
        let mut end = |index: usize| OneEnd {
            weir: true,
            accept: conditions.accept[index],
            holder: if index == 1 { conditions.holder } else { None },
            larger: index == 0,
            full: conditions.full && random.one_in(2),
            dies_of_rst: random.one_in(4),
            seq: [100, 200][index],
            state: CLOSED,
            ..OneEnd::default()
        };
        let mut ends = [end(0), end(1)];
        ends[0].open();
        match conditions.both_open {
            true => ends[1].open(),
            false => ends[1].state = state::LISTEN,
        }
        Run {
            ends,
            wire: [Vec::new(), Vec::new()],
            conditions,
            agreed_at_the_start: false,
        }
    }

    fn collect(&mut self) {
        for from in 0..2 {
            for mut packet in std::mem::take(&mut self.ends[from].sent) {
                let [syns, others] = self.conditions.strips;
                let stripped = if packet.syn { syns } else { others };
                packet.option = packet.option.filter(|_| !stripped);
                self.wire[1 - from].push(packet);
            }
            let own = std::mem::take(&mut self.ends[from].own);
            self.wire[from].extend(own);
        }
    }

    /// Something happens. `bad`: packets get lost and duplicated.
    fn turn(&mut self, random: &mut Random, bad: bool) {
        let to = random.below(2);
        let busy = self.conditions.busy && bad;
        match random.below(if bad { 12 } else { 9 }) {
            0..5 if !self.wire[to].is_empty() => {
                let at = random.below(self.wire[to].len());
                let packet = match bad && random.one_in(6) {
                    true => self.wire[to][at],
                    false => self.wire[to].swap_remove(at),
                };
                self.ends[to].receive(packet, random, busy);
            }
            0..5 => {}
            5 | 6 => self.ends[to].retransmit(),
            7 => self.ends[to].close(random.one_in(2)),
            8 => self.ends[to].sweep(),
            9 | 10 if !self.wire[to].is_empty() => {
                let at = random.below(self.wire[to].len());
                self.wire[to].swap_remove(at);
            }
            11 if self.conditions.kills && random.one_in(8) => self.ends[to].kill(),
            _ => {}
        }
        self.collect();
    }

    fn is_over(&self) -> bool {
        let quiet = |end: &OneEnd| !end.waits() && !end.ending && end.reset.is_none();
        self.wire.iter().all(Vec::is_empty)
            && self.ends.iter().all(quiet)
            && self
                .ends
                .iter()
                .all(|end| [CLOSED, state::LISTEN, state::TIME_WAIT].contains(&end.state))
    }

    /// To its end, over a network that loses nothing any more.
    fn finish(&mut self, random: &mut Random) {
        for _ in 0..10_000 {
            if self.is_over() {
                return;
            }
            self.turn(random, false);
            for end in &mut self.ends {
                // Every program closes at last.
                if random.one_in(8) {
                    end.close(true);
                }
            }
            self.collect();
        }
        panic!("it does not end: {:?} {:?}", self.ends, self.wire);
    }

    fn check(&self) {
        let [one, other] = &self.ends;
        if self.ends.iter().any(|end| end.was_refused) {
            // Neither end has anything of it, and both would have if the holder had been agreed to.
            return;
        }
        let open = |end: &OneEnd| end.was_established;
        assert!(
            open(one) && open(other),
            "a connection failed: {one:?} {other:?}"
        );
        for end in self.ends.iter().filter(|end| end.weir) {
            let waits = (end.state, end.substate) == (state::TIME_WAIT, state::FIN_WAIT2);
            assert!(!waits, "a socket waits for a FIN: {one:?} {other:?}");
        }
        let holders = self.ends.iter().filter(|end| end.remembers()).count();
        if self.ends.iter().any(|end| end.lost_time_wait) {
            return;
        }
        if !self.ends.iter().any(|end| end.lost_record) {
            assert!(holders > 0, "nobody remembers: {one:?} {other:?}");
        }
        // If both open, an ACK that is lost leaves one of them without the knowledge.
        let both_know = !self.conditions.both_open || one.holds != other.holds;
        if self.agreed_at_the_start && both_know {
            assert_eq!(holders, 1, "{one:?} {other:?}");
        }
    }
}

fn conditions(random: &mut Random) -> Conditions {
    let accept = |random: &mut Random| {
        let all = [
            Accept::Any,
            Accept::Any,
            Accept::Server,
            Accept::Client,
            Accept::None,
        ];
        (!random.one_in(8)).then(|| all[random.below(5)])
    };
    let both_open = random.one_in(6);
    let holder = [Holder::Client, Holder::Server][random.below(2)];
    let strips = random.one_in(4);
    Conditions {
        accept: [accept(random), accept(random).filter(|_| both_open)],
        holder: (!both_open && !random.one_in(8)).then_some(holder),
        both_open,
        strips: [strips && random.one_in(2), strips && random.one_in(2)],
        full: random.one_in(6),
        kills: random.one_in(4),
        busy: random.one_in(4),
    }
}

#[test]
fn one_end_remembers_every_connection_and_no_connection_fails() {
    let runs = std::env::var("WEIR_INTERLEAVINGS")
        .ok()
        .and_then(|n| n.parse().ok());
    let seed = seed();
    let mut random = Random(seed | 1);
    let mut with_one = 0u64;
    for number in 0..runs.unwrap_or(1_000_000u64) {
        let conditions = conditions(&mut random);
        let mut run = Run::new(conditions, &mut random);
        run.collect();
        // Nothing stands in the way of what is agreed on.
        let plain = !conditions.full && !conditions.kills && conditions.strips == [false; 2];
        let both = conditions.accept[0].is_some()
            && (conditions.holder.is_some() || conditions.accept[1].is_some());
        run.agreed_at_the_start = plain && both;
        with_one += u64::from(run.agreed_at_the_start);
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..random.below(60) {
                run.turn(&mut random, true);
            }
            run.finish(&mut random);
            run.check();
        }));
        if let Err(failure) = checked {
            println!("interleaving {number}: {conditions:?}");
            std::panic::resume_unwind(failure);
        }
    }
    assert!(with_one > 0);
}

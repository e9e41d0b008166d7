//! Follows connections from packet to packet, within a bound of memory.
//!
//! A connection stays in memory to the end of the capture, because the SYN-flood filter needs all of it to judge one
//! host. When there are as many as allowed, the eighth of them that has been silent for longest is judged by what is
//! known then, and its figures go into the sums. [`Counts`] says of how many that was done.

use std::hash::BuildHasher;
use std::net::Ipv6Addr;

use hashbrown::hash_table::Entry;
use hashbrown::{DefaultHashBuilder, HashTable};
use serde::Serialize;
use weir_wire::{Frame, Packet, Segment, flag};

use crate::connection::{Answer, Connection, Ends, SynMeans};
use crate::direction::Seen;
use crate::figures::{Figures, Name};
use crate::hosts::Hosts;
use crate::sums::Sums;

/// What is to be counted, and how much may be remembered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Only connections whose handshake was seen whole, and data after it (BHD18, Figure 2).
    pub established_only: bool,
    /// Leave out the hosts that show the signs of a SYN flood (BHD18, Table II).
    pub flood_filter: bool,
    /// Connections in memory at most, 8 to 2^31; each takes about 190 bytes with all that belongs to it.
    pub connections_max: usize,
}

/// At 10^6 connections everything fits into 200 MiB.
const CONNECTIONS_MAX: usize = 1_000_000;

impl Default for Options {
    fn default() -> Options {
        Options {
            established_only: false,
            flood_filter: true,
            connections_max: CONNECTIONS_MAX,
        }
    }
}

/// What became of the packets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Packets of the capture.
    pub packets: u64,
    /// TCP segments among them.
    pub tcp: u64,
    /// TCP segments of connections whose SYN was not seen. They count nowhere.
    pub without_syn: u64,
    /// Packets that are not TCP over IP.
    pub other: u64,
    /// Later fragments of IP packets.
    pub fragments: u64,
    /// Packets cut before the TCP flags by the snap length.
    pub cut: u64,
    /// Packets whose lengths contradict each other.
    pub malformed: u64,
    /// TCP segments that the capture had before, from another interface or from a mirror port.
    pub copies: u64,
    /// Packets of links of a kind that weir does not read.
    pub unknown_link: u64,
    /// Blocks of pcapng of a kind that weir does not know. They are no packets.
    pub unknown_blocks: u64,
    /// Segments that came late, but too soon to have been sent again.
    pub out_of_order: u64,
    /// Segments that only ask whether the other end is there, or whether it takes data again.
    pub keep_alives: u64,
    /// Acknowledgements of data that are not in the capture.
    pub acks_of_unseen: u64,
    /// Segments that were sent again within 1 ms, which hardly any sender does.
    pub rtx_at_once: u64,
    /// Segments far from all that their connection has sent.
    pub stray: u64,
    /// Connections whose first SYN was answered.
    pub syns_answered: u64,
    /// Of these, those where the answer came within 1 ms: the capture is at the server, or near it.
    pub syns_answered_at_once: u64,
    /// SYNs that came again, because no SYN/ACK to the first one is in the capture.
    pub syns_unanswered: u64,
    /// SYN/ACKs that came again, although the final ACK was there: the server had no room for the connection.
    pub final_acks_unheeded: u64,
    /// Connections: of all packets of a 4-tuple, those from one SYN to the next new one.
    pub connections: u64,
    /// Connections judged before the end of the capture, to make room.
    pub judged_early: u64,
    /// Of these, connections that had not ended: their later packets count as `without_syn`.
    pub judged_open: u64,
    /// Hosts whose connections the SYN-flood filter no longer knows, to make room.
    pub hosts_forgotten: u64,
}

/// What comes after less comes from a machine nearby, ns. A retransmission that does is mostly a copy that was not recognised: no
/// sender knows of a loss so soon, but for those of one data centre.
const AT_ONCE_NS: u64 = 1_000_000;

impl Counts {
    fn note_answer(&mut self, answer: Answer) {
        match answer {
            Answer::Given(after_ns) => {
                self.syns_answered += 1;
                self.syns_answered_at_once += u64::from(after_ns < AT_ONCE_NS);
            }
            Answer::NotGiven => self.syns_unanswered += 1,
            Answer::Unheeded => self.final_acks_unheeded += 1,
        }
    }

    fn note(&mut self, seen: Seen) {
        match seen {
            Seen::Again(Some(age_ns)) if age_ns < AT_ONCE_NS => self.rtx_at_once += 1,
            Seen::New | Seen::Again(_) => {}
            Seen::OutOfOrder => self.out_of_order += 1,
            Seen::Probe => self.keep_alives += 1,
            Seen::Stray => self.stray += 1,
        }
    }
}

/// What the SYN-flood filter did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FloodFilter {
    /// It looked at every host.
    On,
    /// It was told not to.
    Off,
    /// It could not, because the capture has one direction only: whether a connection has data is not known.
    OneDirection,
}

/// Figures of a capture.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// What became of the packets.
    pub counts: Counts,
    /// Time of the first packet, ns since 1970; `None` without any.
    pub first_ns: Option<u64>,
    /// Time of the last packet, ns since 1970.
    pub last_ns: Option<u64>,
    /// Only connections count whose handshake was seen whole, and data after it.
    pub established_only: bool,
    /// What the SYN-flood filter did.
    pub flood_filter: FloodFilter,
    /// Connections left out because they are not established.
    pub filtered_not_established: u64,
    /// From clients to servers, and back.
    pub directions: [Figures; 2],
}

/// Follows the connections of one capture.
#[derive(Debug)]
pub struct Tracker {
    options: Options,
    index: HashTable<u32>,
    hasher: DefaultHashBuilder,
    /// All that are in memory. `index` has the newest of each pair of ends.
    connections: Vec<Connection>,
    memory: Memory,
    /// Connections that are in the sums already.
    judged: Judged,
    counts: Counts,
    first_ns: Option<u64>,
    last_ns: Option<u64>,
}

/// What is remembered of sent segments, bytes.
#[derive(Debug, Default)]
struct Memory {
    held: usize,
    /// Packets until the next look for what may be forgotten. While it lasts nothing new is remembered.
    short_for: u32,
}

#[derive(Debug, Default)]
struct Judged {
    hosts: Hosts,
    sums: [Sums; 2],
    not_established: u64,
    /// Connections with data, and those of them with packets in both directions.
    with_data: u64,
    both_ways: u64,
    /// Connections without data with packets in both directions.
    answered: u64,
}

/// For what connections have sent lately, of each million that may be in memory. An allocator keeps what it got once:
/// a larger part while there are few connections would be missing when there are many.
const SENT_BYTES: usize = 24 << 20;
/// Packets between two looks at all connections for memory.
const SHORT_FOR: u32 = 500_000;
/// The part of all connections that makes room at once.
const MAKES_ROOM: usize = 8;
/// Hosts of connections that made room, as a part of the connections in memory.
const HOSTS: usize = 4;

impl Tracker {
    /// Follows connections from the first packet on.
    pub fn new(options: Options) -> Tracker {
        Tracker {
            options: Options {
                connections_max: options.connections_max.clamp(MAKES_ROOM, 1 << 31),
                ..options
            },
            index: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            connections: Vec::new(),
            memory: Memory::default(),
            judged: Judged::default(),
            counts: Counts::default(),
            first_ns: None,
            last_ns: None,
        }
    }

    /// The next packet.
    pub fn packet(&mut self, packet: &Packet) {
        if packet.frame == Frame::UnknownBlock {
            self.counts.unknown_blocks += 1;
            return;
        }
        self.counts.packets += 1;
        self.first_ns = Some(
            self.first_ns
                .map_or(packet.at_ns, |first| first.min(packet.at_ns)),
        );
        self.last_ns = self.last_ns.max(Some(packet.at_ns));
        match &packet.frame {
            Frame::Tcp(segment) => self.segment(packet.at_ns, segment),
            Frame::Other => self.counts.other += 1,
            Frame::Fragment => self.counts.fragments += 1,
            Frame::Cut => self.counts.cut += 1,
            Frame::Malformed => self.counts.malformed += 1,
            Frame::Copy => self.counts.copies += 1,
            Frame::UnknownLink => self.counts.unknown_link += 1,
            // Returned above.
            Frame::UnknownBlock => {}
        }
    }

    fn segment(&mut self, at_ns: u64, segment: &Segment) {
        self.counts.tcp += 1;
        let (ends, from) = Ends::of(segment);
        if segment.has(flag::SYN) && !segment.has(flag::RST) {
            return self.syn(ends, from, at_ns, segment);
        }
        let Some(at) = self.find(&ends) else {
            self.counts.without_syn += 1;
            return;
        };
        let may_remember = self.memory.short_for == 0;
        let connection = &mut self.connections[at];
        let before = connection.held_bytes();
        let seen = connection.segment(from, segment, at_ns, may_remember);
        if seen != Seen::Stray && connection.acknowledges_unseen(from, segment, at_ns, may_remember)
        {
            self.counts.acks_of_unseen += 1;
        }
        self.counts.note(seen);
        self.memory.held = (self.memory.held + connection.held_bytes()).saturating_sub(before);
        self.watch_memory(at_ns);
    }

    fn syn(&mut self, ends: Ends, from: usize, at_ns: u64, segment: &Segment) {
        if let Some(at) = self.find(&ends) {
            let connection = &mut self.connections[at];
            let means = connection.syn_means(from, segment);
            if means != SynMeans::Another {
                if let Some(answer) = connection.answer(from, means, at_ns) {
                    self.counts.note_answer(answer);
                }
                let seen = connection.syn(from, segment, means, at_ns);
                return self.counts.note(seen);
            }
        }
        if self.connections.len() >= self.options.connections_max {
            self.make_room();
        }
        self.counts.connections += 1;
        let new = self.connections.len() as u32;
        self.connections
            .push(Connection::open(ends, from, segment, at_ns));
        self.point_to(new);
    }

    fn find(&self, ends: &Ends) -> Option<usize> {
        let hash = self.hasher.hash_one(ends);
        let found = self
            .index
            .find(hash, |&at| self.connections[at as usize].ends == *ends);
        found.map(|&at| at as usize)
    }

    /// Makes a connection the newest between its ends. The one before has no use for what it has sent.
    fn point_to(&mut self, new: u32) {
        let (connections, hasher) = (&self.connections, &self.hasher);
        let ends = connections[new as usize].ends;
        let entry = self.index.entry(
            hasher.hash_one(ends),
            |&at| connections[at as usize].ends == ends,
            |&at| hasher.hash_one(connections[at as usize].ends),
        );
        match entry {
            Entry::Vacant(entry) => {
                entry.insert(new);
            }
            Entry::Occupied(mut entry) => {
                let old = std::mem::replace(entry.get_mut(), new) as usize;
                self.memory.held -= self.connections[old].drop_sent();
            }
        }
    }

    /// Keeps what is remembered of sent segments within its bound.
    fn watch_memory(&mut self, now_ns: u64) {
        if self.memory.short_for > 0 {
            self.memory.short_for -= 1;
            return;
        }
        let bound = self.sent_bytes_max();
        if self.memory.held <= bound {
            return;
        }
        for connection in &mut self.connections {
            connection.forget_sent(now_ns);
        }
        self.weigh();
        if self.memory.held > bound / 4 * 3 {
            for connection in &mut self.connections {
                connection.coarsen_sent(now_ns);
            }
            self.weigh();
        }
        if self.memory.held > bound / 4 * 3 {
            self.memory.short_for = SHORT_FOR;
        }
    }

    fn weigh(&mut self) {
        self.memory.held = self.connections.iter().map(Connection::held_bytes).sum();
    }

    fn sent_bytes_max(&self) -> usize {
        let millions = self.options.connections_max.div_ceil(CONNECTIONS_MAX);
        SENT_BYTES.saturating_mul(millions)
    }

    /// Judges the connections that have been silent for longest, by what is known of their hosts: from these connections
    /// and those that were judged before.
    fn make_room(&mut self) {
        // It is made anew below. Until then its memory is for the hosts.
        self.index = HashTable::new();
        let count = self.connections.len() / MAKES_ROOM;
        let last = self.silent_since(count);
        let goes = |connection: &Connection, left: &mut usize| {
            let goes = *left > 0 && connection.last() <= last;
            *left -= usize::from(goes);
            goes
        };
        let (options, counts, judged) = (&self.options, &mut self.counts, &mut self.judged);
        let mut left = count;
        for connection in &self.connections {
            if goes(connection, &mut left) {
                judged.hosts.add(connection);
                judged.note(connection);
            }
        }
        let filters_floods =
            options.flood_filter && !judged.is_one_way() && judged.hosts.has_flood();
        let mut left = count;
        self.connections.retain(|connection| {
            if !goes(connection, &mut left) {
                return true;
            }
            counts.judged_early += 1;
            counts.judged_open += u64::from(!connection.has_ended());
            judged.sum(connection, options, filters_floods);
            false
        });
        counts.hosts_forgotten += judged.hosts.forget(options.connections_max / HOSTS) as u64;
        self.weigh();
        self.index_anew();
    }

    /// The time since which so many connections have been silent.
    fn silent_since(&self, count: usize) -> u32 {
        let mut lasts: Vec<u32> = self.connections.iter().map(Connection::last).collect();
        let (_, last, _) = lasts.select_nth_unstable(count - 1);
        *last
    }

    /// Later connections come behind earlier ones, so the newest between two ends is the last one put in.
    fn index_anew(&mut self) {
        self.index.clear();
        for at in 0..self.connections.len() as u32 {
            self.point_to(at);
        }
    }

    /// The figures.
    pub fn report(mut self) -> Report {
        // Their memory is for the hosts from now on.
        self.index = HashTable::new();
        for connection in &mut self.connections {
            connection.drop_sent();
        }
        let mut judged = self.judged;
        for connection in &self.connections {
            judged.note(connection);
        }
        let flood_filter = match (self.options.flood_filter, judged.is_one_way()) {
            (false, _) => FloodFilter::Off,
            (true, true) => FloodFilter::OneDirection,
            (true, false) => FloodFilter::On,
        };
        if flood_filter == FloodFilter::On {
            for connection in &self.connections {
                judged.hosts.add(connection);
            }
        }
        let has_flood = flood_filter == FloodFilter::On && judged.hosts.has_flood();
        for connection in &self.connections {
            judged.sum(connection, &self.options, has_flood);
        }
        let [to_server, to_client] = &judged.sums;
        Report {
            directions: [
                Figures::of(Name::ToServer, to_server),
                Figures::of(Name::ToClient, to_client),
            ],
            counts: self.counts,
            first_ns: self.first_ns,
            last_ns: self.last_ns,
            established_only: self.options.established_only,
            flood_filter,
            filtered_not_established: judged.not_established,
        }
    }
}

impl Judged {
    /// Notes what tells a capture of one direction from one of both.
    fn note(&mut self, connection: &Connection) {
        let both = u64::from(connection.has_both_directions());
        match connection.has_data() {
            true => {
                self.with_data += 1;
                self.both_ways += both;
            }
            false => self.answered += both,
        }
    }

    /// Whether the capture has one direction only: hardly any connection with data has the other one. Without any data,
    /// whether nothing at all is answered.
    fn is_one_way(&self) -> bool {
        match self.with_data {
            0 => self.answered == 0,
            with_data => self.both_ways * 2 < with_data,
        }
    }

    fn sum(&mut self, connection: &Connection, options: &Options, filter_floods: bool) {
        let opener = connection.opener();
        if filter_floods {
            let hosts: Vec<Ipv6Addr> = self.hosts.floods(connection).collect();
            if !hosts.is_empty() {
                for (sums, from) in self.sums.iter_mut().zip([opener, 1 - opener]) {
                    sums.filter_flood(connection, from, &hosts);
                }
                return;
            }
        }
        if options.established_only && !connection.is_established() {
            self.not_established += 1;
            return;
        }
        for (sums, from) in self.sums.iter_mut().zip([opener, 1 - opener]) {
            sums.add(&connection.directions[from]);
        }
    }
}

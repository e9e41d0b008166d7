//! Where waiting packets lie: one pool for all queues of a discipline, and queues as linked lists in it.
//!
//! As in the kernel, where a packet carries its own link, a queue costs two indices however long it is. So many
//! queues cost little, and a freed place is used again before new memory is asked for.

use super::packet::Packet;
use super::queue::Count;

/// No place.
const NONE: u32 = u32::MAX;

/// A place, with the packet in it.
#[derive(Debug)]
struct Node<P> {
    packet: Option<P>,
    enqueued_ns: u64,
    /// The next of its queue, or of the free places.
    next: u32,
}

/// The waiting packets of a discipline.
#[derive(Debug)]
pub struct Pool<P> {
    nodes: Vec<Node<P>>,
    free: u32,
    count: Count,
}

impl<P> Default for Pool<P> {
    fn default() -> Self {
        Pool {
            nodes: Vec::new(),
            free: NONE,
            count: Count::default(),
        }
    }
}

impl<P: Packet> Pool<P> {
    /// What waits in all its queues.
    pub fn count(&self) -> Count {
        self.count
    }

    fn put(&mut self, packet: P, now_ns: u64) -> u32 {
        let node = Node {
            packet: Some(packet),
            enqueued_ns: now_ns,
            next: NONE,
        };
        let at = self.free;
        match self.nodes.get_mut(at as usize) {
            Some(place) => {
                self.free = place.next;
                *place = node;
                at
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
        }
    }
}

/// A queue: first in, first out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct List {
    head: u32,
    tail: u32,
    packets: u32,
    bytes: u32,
}

impl Default for List {
    fn default() -> Self {
        List {
            head: NONE,
            tail: NONE,
            packets: 0,
            bytes: 0,
        }
    }
}

impl List {
    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.packets == 0
    }

    /// Packets that wait.
    pub fn packets(&self) -> u32 {
        self.packets
    }

    /// Their lengths together, bytes.
    pub fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Adds a packet at the end.
    pub fn push<P: Packet>(&mut self, pool: &mut Pool<P>, packet: P, now_ns: u64) {
        let len = packet.len_bytes();
        let at = pool.put(packet, now_ns);
        match self.packets {
            0 => self.head = at,
            _ => pool.nodes[self.tail as usize].next = at,
        }
        self.tail = at;
        self.packets += 1;
        self.bytes += len;
        pool.count.add(len);
    }

    /// Takes the first packet, and the time at which it came, ns.
    pub fn pop<P: Packet>(&mut self, pool: &mut Pool<P>) -> Option<(P, u64)> {
        if self.packets == 0 {
            return None;
        }
        let at = self.head;
        let node = &mut pool.nodes[at as usize];
        let packet = node.packet.take()?;
        let enqueued_ns = node.enqueued_ns;
        self.head = node.next;
        node.next = pool.free;
        pool.free = at;
        let len = packet.len_bytes();
        self.packets -= 1;
        self.bytes -= len;
        pool.count.sub(len);
        Some((packet, enqueued_ns))
    }

    /// Takes the newest packet. It looks for it from the head: for short queues, and seldom.
    pub fn pop_newest<P: Packet>(&mut self, pool: &mut Pool<P>) -> Option<P> {
        if self.packets <= 1 {
            return self.pop(pool).map(|(packet, _)| packet);
        }
        let mut before = self.head;
        while pool.nodes[before as usize].next != self.tail {
            before = pool.nodes[before as usize].next;
        }
        let mut last = List {
            head: self.tail,
            tail: self.tail,
            packets: 1,
            bytes: self.bytes,
        };
        let (packet, _) = last.pop(pool)?;
        self.tail = before;
        self.packets -= 1;
        self.bytes = last.bytes;
        Some(packet)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Segment;
    use super::*;

    #[test]
    fn queues_of_one_pool_keep_their_order_and_use_places_again() {
        let mut pool = Pool::default();
        let mut lists = [List::default(); 3];
        for round in 0..100u32 {
            for n in 0..9 {
                let list = &mut lists[n as usize % 3];
                list.push(&mut pool, Segment::data(n % 3, round * 9 + n), u64::from(n));
            }
            for n in [2u32, 1, 0, 0, 1, 2, 1, 0, 2] {
                let (packet, _) = lists[n as usize].pop(&mut pool).unwrap();
                assert_eq!(packet.flow, n);
            }
        }
        assert_eq!(pool.nodes.len(), 9);
        assert_eq!(pool.count(), Count::default());
        assert!(lists.iter().all(List::is_empty));
    }
}

//! What a discipline asks of a packet.

use super::control::Control;

/// The ECN field of the IP header (RFC 3168).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ecn {
    /// The sender does not understand marks: to signal congestion its packet is dropped.
    #[default]
    NotEct,
    /// ECT(0) or ECT(1): it can be marked.
    Ect,
    /// It is marked.
    Ce,
}

/// A packet in a queue.
pub trait Packet {
    /// Length on the link, bytes.
    fn len_bytes(&self) -> u32;

    /// Hash of the 5-tuple, over the whole range of `u32`. Packets of one flow have the same.
    fn flow_hash(&self) -> u32;

    /// Hash of the source: of an IPv4 address, or of the /64 of an IPv6 address.
    fn source_hash(&self) -> u32;

    /// Hash of the destination, made in the same way.
    fn destination_hash(&self) -> u32;

    /// What it controls: [`super::control::control_of`].
    fn control(&self) -> Control;

    /// Its ECN field.
    fn ecn(&self) -> Ecn;

    /// Marks it: congestion experienced. Called only if it is ECN-capable.
    fn set_ce(&mut self);
}

/// Marks the packet, if its sender understands that; whether it carries a mark now.
pub fn mark<P: Packet>(packet: &mut P) -> bool {
    match packet.ecn() {
        Ecn::NotEct => false,
        Ecn::Ect => {
            packet.set_ce();
            true
        }
        Ecn::Ce => true,
    }
}

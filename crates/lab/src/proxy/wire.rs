//! The wire from the proxy to its clients: two TUN devices, and the lab that carries packets from one to the
//! other on the clients' CPU.
//!
//! To the proxy its end is a network card with TSO: a packet of up to 64 KiB is handed over by reference, and
//! what becomes of it costs the proxy's CPU nothing more. At the other end it comes in as a packet that a card
//! has joined.

use crate::bed::{Tap, Tun};
use crate::error::{Context, Result};
use crate::netns::Netns;

use super::bed::{Bed, CLIENT, FRONT};

/// Its name at both ends.
pub const DEVICE: &str = "wire";
/// Packets that wait on the wire at most: more than all clients together can have in flight.
const QUEUE_PACKETS: u32 = 10_000;
/// An IP packet with its virtio_net_hdr.
const PACKET_BYTES: usize = 65_536 + 16;
/// Packets carried by one turn.
const TURN_PACKETS: usize = 64;

/// Both ends of the wire.
#[derive(Debug)]
pub struct Wire {
    proxy: Tap,
    client: Tap,
    packet: Box<[u8]>,
}

impl Wire {
    /// Lays the wire and routes the proxy's packets for the clients over it.
    pub fn lay(bed: &Bed) -> Result<Wire> {
        let wire = Wire {
            proxy: end(&bed.proxy)?,
            client: end(&bed.client)?,
            packet: vec![0; PACKET_BYTES].into(),
        };
        // The clients' own packets take the other way, so the way back to the sender is not this device.
        for conf in ["all", DEVICE] {
            let name = format!("net.ipv4.conf.{conf}.rp_filter");
            bed.client.set_sysctl(&name, "0")?;
        }
        bed.proxy.ip_batch(&format!(
            "route replace {CLIENT} dev {DEVICE} src {FRONT} congctl cubic"
        ))?;
        Ok(wire)
    }

    /// Carries what there is, without waiting; returns the number of packets.
    pub fn turn(&mut self) -> Result<usize> {
        for carried in 0..TURN_PACKETS {
            let packet = self.proxy.receive(&mut self.packet);
            let Some(packet) = packet.context("cannot read from the wire")? else {
                return Ok(carried);
            };
            self.client
                .send(packet)
                .context("cannot write to the wire")?;
        }
        Ok(TURN_PACKETS)
    }
}

fn end(netns: &Netns) -> Result<Tap> {
    let tap = Tap::create(netns, DEVICE, Tun::LargePackets)?;
    netns.ip_batch(&format!(
        "link set {DEVICE} mtu 1500 txqueuelen {QUEUE_PACKETS} up"
    ))?;
    Ok(tap)
}

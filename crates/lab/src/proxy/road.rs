//! A bed whose links are slow and lose packets: clients, proxy and origin in a row, or clients and origin alone.
//!
//! ```text
//!   client namespace             proxy namespace                  origin namespace
//!   10.77.0.2 [link0]──front──[front] 10.77.0.1
//!                              [back] 10.78.0.1 ──back── [link0]  10.78.0.2
//!
//!   10.77.0.2 [link0]──────────────────direct─────────── [link0]  10.78.0.2
//! ```
//!
//! The addresses are those of [`super::bed`], and the links those of [`crate::link`]: TUN devices and a thread for each
//! link. There is no segmentation offload and no GRO, so the stacks handle every segment by itself.

use std::net::Ipv4Addr;

use super::bed::{self, BACK, CLIENT, FRONT, ORIGIN};
use crate::bed::{Tap, Tun};
use crate::error::Result;
use crate::link::carrier::Carrier;
use crate::link::report::Report;
use crate::link::{DEVICE_QUEUE_PACKETS, Spec};
use crate::netns::{self, Netns};

/// What is between clients and origin. The near side of each link is that of the clients.
#[derive(Debug, Clone, Copy)]
pub enum Between {
    /// One link.
    Direct(Spec),
    /// A proxy, and a link on either side of it.
    Proxy {
        /// To the clients.
        front: Spec,
        /// To the origin.
        back: Spec,
    },
}

/// The namespaces and their links; removed on drop.
#[derive(Debug)]
pub struct Road {
    /// End first.
    links: Vec<Carrier>,
    /// Where the clients run.
    pub client: Netns,
    /// Where the proxy runs, if there is one.
    pub proxy: Option<Netns>,
    /// Where the origin runs.
    pub origin: Netns,
}

impl Road {
    /// Makes the namespaces and begins to carry packets. The hosts have CUBIC; proxy and origin have SACK if `sack` says
    /// so, the clients never. Needs root and /dev/net/tun. Who calls it has removed what killed labs have left behind
    /// ([`netns::sweep_stale`]).
    ///
    /// # Errors
    /// They cannot be made; without /dev/net/tun with exit code 3.
    pub fn build(between: &Between, sack: bool) -> Result<Road> {
        netns::require_root()?;
        let host = |role, sack: bool| -> Result<Netns> {
            let netns = Netns::create(role)?;
            bed::prepare(&netns)?;
            netns.set_sysctl("net.ipv4.tcp_sack", if sack { "1" } else { "0" })?;
            Ok(netns)
        };
        let (client, origin) = (host("client", false)?, host("origin", sack)?);
        let (links, proxy) = match *between {
            Between::Direct(spec) => {
                let ends = [
                    end(&client, "link0", CLIENT, ORIGIN)?,
                    end(&origin, "link0", ORIGIN, CLIENT)?,
                ];
                (vec![Carrier::start(ends, spec)?], None)
            }
            Between::Proxy { front, back } => {
                let proxy = host("proxy", sack)?;
                let near = [
                    end(&client, "link0", CLIENT, FRONT)?,
                    end(&proxy, "front", FRONT, CLIENT)?,
                ];
                let far = [
                    end(&proxy, "back", BACK, ORIGIN)?,
                    end(&origin, "link0", ORIGIN, BACK)?,
                ];
                let links = vec![Carrier::start(near, front)?, Carrier::start(far, back)?];
                (links, Some(proxy))
            }
        };
        Ok(Road {
            links,
            client,
            proxy,
            origin,
        })
    }

    /// Ends the links, and gives what each has counted, that of the clients first.
    ///
    /// # Errors
    /// A link could not go on carrying packets; the cause says why.
    pub fn stop(self) -> Result<Vec<Report>> {
        self.links.into_iter().map(Carrier::stop).collect()
    }
}

/// One end of a link, with its address and the way to the other end.
fn end(netns: &Netns, device: &str, own: Ipv4Addr, peer: Ipv4Addr) -> Result<Tap> {
    let tap = Tap::create(netns, device, Tun::Packets)?;
    netns.ip_batch(&format!(
        "link set {device} txqueuelen {DEVICE_QUEUE_PACKETS}
         addr add {own}/32 dev {device}
         link set {device} up
         route add {peer} dev {device} src {own} congctl cubic"
    ))?;
    Ok(tap)
}

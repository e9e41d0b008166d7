//! Which end remembers connections, and what that costs: many of them at once, weir at both ends.

pub mod duplicates;
pub mod holders;
pub mod load;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use serde_json::Value;
use weir_testbed::bed::{Bed, SERVER_VETH_V4};
use weir_testbed::netns::Netns;
use weir_testbed::tcp_table::sockets_in_state;
use weir_testbed::weir::Weir;

use crate::error::Result;
use crate::run::experiment::Program;

/// The first port at which a server listens.
pub const FIRST_SERVER_PORT: u16 = 8080;
/// The server's address towards the clients.
const SERVER_V6: Ipv6Addr = Ipv6Addr::new(0xfd66, 0, 0, 1, 0, 0, 0, 1);
/// include/net/tcp_states.h, as /proc/net/tcp has it.
const TIME_WAIT: &[u8] = &[0x06];

/// The addresses at which so many servers listen.
pub fn servers(v6: bool, count: u16) -> Vec<SocketAddr> {
    let ip: IpAddr = match v6 {
        true => SERVER_V6.into(),
        false => Ipv4Addr::into(SERVER_VETH_V4),
    };
    let ports = FIRST_SERVER_PORT..FIRST_SERVER_PORT + count;
    ports.map(|port| SocketAddr::new(ip, port)).collect()
}

/// Sockets of a namespace in TIME-WAIT.
pub fn time_waits(netns: &Netns) -> Result<usize> {
    netns.run(|| sockets_in_state(TIME_WAIT, None))
}

/// A listener whose handshakes are the kernel's own, with these lines more.
fn listener(port: u16, more: &str) -> String {
    format!(
        "[[listener]]\nname = \"web-{port}\"\naddress = \"*:{port}\"\nestablish = \"default\"\n\
         reject_syn = \"drop\"\nadmit = \"queue\"\n{more}"
    )
}

/// weir at both ends, which agree on a holder; where they would not, the kernel's own handshakes stay as they are.
pub struct Negotiating<'a> {
    clients: Weir<'a>,
    server: Weir<'a>,
}

impl<'a> Negotiating<'a> {
    /// At a server with so many ports. `holder`: `client` or `server`.
    pub fn start(
        bed: &'a Bed,
        program: &Program,
        ports: u16,
        holder: &str,
    ) -> Result<Negotiating<'a>> {
        let negotiates = format!("timewait = \"negotiate\"\nholder = \"{holder}\"\n");
        let ports = FIRST_SERVER_PORT..FIRST_SERVER_PORT + ports;
        let listeners: String = ports.map(|port| listener(port, &negotiates)).collect();
        let destination = "[[destination]]\nname = \"backends\"\ntimewait = \"negotiate\"\n";
        Ok(Negotiating {
            clients: Weir::run(&bed.clients, program.path(), destination)?,
            server: Weir::run(&bed.server, program.path(), &listeners)?,
        })
    }

    /// A figure of the clients' end, and of the server's end over all its ports.
    pub fn figures(&self, name: &str) -> Result<(f64, f64)> {
        let (clients, server) = (self.clients.status()?, self.server.status()?);
        Ok((
            sum(&clients["destinations"], name),
            sum(&server["listeners"], name),
        ))
    }

    /// Ends both.
    pub fn end(self) -> Result<()> {
        self.clients.end()?;
        self.server.end()
    }
}

fn sum(list: &Value, name: &str) -> f64 {
    let all = list.as_array().into_iter().flatten();
    all.filter_map(|one| one["timewait"][name].as_f64()).sum()
}

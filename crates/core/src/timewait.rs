//! Which end of a connection remembers it once it is closed (FTY99), for the connections of a `[[destination]]`.
//! What the kernel half decides, bpf/lib/timewait.h and negotiate.h, has its models in `weir-models`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::abi;
use crate::prefix::Prefix;

/// What weir does about TIME-WAIT on the connections of a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum TimeWaitMode {
    /// Nothing: the end that closes first is in TIME-WAIT.
    Off = abi::TIMEWAIT_OFF,
    /// Where the server has closed first, its TIME-WAIT is ended by a RST, and a record here stands for it (FTY99,
    /// Section 4.1).
    ClientRst = abi::TIMEWAIT_CLIENT_RST,
    /// The ends agree at the handshake which of them is in TIME-WAIT (FTY99, Section 3).
    Negotiate = abi::TIMEWAIT_NEGOTIATE,
}

/// What weir does about TIME-WAIT on the connections of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ListenerTimeWait {
    /// Nothing.
    Off,
    /// As [`TimeWaitMode::Negotiate`]: this end chooses.
    Negotiate,
}

/// Which end a listener chooses to hold TIME-WAIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Holder {
    /// The client.
    Client = abi::HOLDER_CLIENT,
    /// The server.
    Server = abi::HOLDER_SERVER,
}

/// Which holders a destination agrees to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Accept {
    /// The one that the server chooses.
    Any = abi::ACCEPT_ANY,
    /// The server.
    Server = abi::ACCEPT_SERVER,
    /// The client, which is this end.
    Client = abi::ACCEPT_CLIENT,
    /// None: servers that negotiate are refused.
    None = abi::ACCEPT_NONE,
}

/// Connections that this machine opens, by where they go, and what is done about their TIME-WAIT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    /// Its name in status and metrics; unique.
    pub name: String,
    /// Addresses of the servers; empty: every address.
    pub to: Vec<Prefix>,
    /// Port of the servers, 1..=65535; `None`: every port.
    pub to_port: Option<u16>,
    /// What is done about TIME-WAIT.
    pub timewait: TimeWaitMode,
    /// Which holders are agreed to, with [`TimeWaitMode::Negotiate`].
    pub accept: Accept,
    /// How long a record stays: 2 MSL. 1 s..=10 min.
    pub timewait_length: Duration,
    /// Applications may choose for single sockets.
    pub per_socket: bool,
}

/// Destinations that one network namespace can have.
pub const MAX_DESTINATIONS: usize = abi::MAX_DESTINATIONS as usize;
/// Prefixes of all destinations together.
pub const MAX_PREFIXES: usize = abi::MAX_DESTINATION_PREFIXES as usize;
/// The kernel's TCP_TIMEWAIT_LEN.
pub const DEFAULT_LENGTH: Duration = Duration::from_secs(60);

impl Destination {
    /// A destination with every server, that changes nothing.
    pub fn new(name: impl Into<String>) -> Destination {
        Destination {
            name: name.into(),
            to: Vec::new(),
            to_port: None,
            timewait: TimeWaitMode::Off,
            accept: Accept::Any,
            timewait_length: DEFAULT_LENGTH,
            per_socket: false,
        }
    }

    /// Its prefixes as the kernel half has them: of both families if it names none.
    pub fn prefixes(&self) -> Vec<Prefix> {
        match self.to.is_empty() {
            true => ["0.0.0.0/0", "::/0"]
                .map(|every| every.parse().expect("a prefix"))
                .to_vec(),
            false => self.to.clone(),
        }
    }

    /// A prefix that both name for the same port: nothing says to which of the two a connection there belongs.
    pub fn tie(&self, other: &Destination) -> Option<Prefix> {
        let theirs = other.prefixes();
        let mut both = self
            .prefixes()
            .into_iter()
            .filter(|prefix| theirs.contains(prefix));
        (self.to_port == other.to_port)
            .then(|| both.next())
            .flatten()
    }
}

/// States of a socket that matter here: `include/net/tcp_states.h`.
pub mod state {
    /// Both ends may send.
    pub const ESTABLISHED: u8 = 1;
    /// This end has sent a SYN, and has no answer.
    pub const SYN_SENT: u8 = 2;
    /// Both ends have sent one.
    pub const SYN_RECV: u8 = 3;
    /// This end has closed first, and its FIN is not acknowledged.
    pub const FIN_WAIT1: u8 = 4;
    /// It is acknowledged.
    pub const FIN_WAIT2: u8 = 5;
    /// A TIME-WAIT socket, whose substate says whether the other end has closed.
    pub const TIME_WAIT: u8 = 6;
    /// The socket is closed.
    pub const CLOSE: u8 = 7;
    /// The other end has closed.
    pub const CLOSE_WAIT: u8 = 8;
    /// And then this one.
    pub const LAST_ACK: u8 = 9;
    /// It listens.
    pub const LISTEN: u8 = 10;
    /// Both ends have closed first.
    pub const CLOSING: u8 = 11;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn destination(to: &[&str], to_port: Option<u16>) -> Destination {
        let to = to.iter().map(|prefix| prefix.parse().unwrap()).collect();
        Destination {
            to,
            to_port,
            ..Destination::new("backends")
        }
    }

    #[test]
    fn destinations_tie_if_they_name_one_prefix_for_one_port() {
        let web = destination(&["10.0.0.0/8", "10.1.0.0/16"], Some(80));
        let tie = |to: &[&str], port| web.tie(&destination(to, port)).map(|p| p.to_string());
        assert_eq!(tie(&["10.1.0.0/16"], Some(80)).unwrap(), "10.1.0.0/16");
        assert_eq!(tie(&["10.1.0.0/16"], Some(81)), None);
        assert_eq!(tie(&["10.1.0.0/16"], None), None, "the port decides");
        assert_eq!(tie(&["10.1.0.0/17"], Some(80)), None, "the longer one wins");
        let all = destination(&[], None);
        assert_eq!(
            all.tie(&destination(&["::/0"], None)).unwrap().to_string(),
            "::/0"
        );
    }
}

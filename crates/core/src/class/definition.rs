//! What a class is, and the limits that bpf/abi/class.h sets.

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::bucket::{BucketLimit, default_burst};
use crate::abi;
use crate::prefix::Prefix;

/// The lowest priority that a class can have.
pub const LOWEST_PRIORITY: u8 = OTHER_PRIORITY - 1;
/// The class of the connections that no rule fits; no class of the operator's can have this name.
pub const OTHER: &str = "other";
/// The priority of [`OTHER`].
pub const OTHER_PRIORITY: u8 = abi::PRIORITIES as u8;
/// Classes in one file or one network namespace , without [`OTHER`].
pub const MAX_CLASSES: usize = abi::MAX_CLASSES as usize;
/// Distinct masks of one family that the guard looks up.
pub const MAX_MASKS: usize = abi::MAX_MASKS as usize;
/// Rules of all classes.
pub const MAX_RULES: usize = abi::MAX_RULES as usize;

/// What a SYN over its class's rate gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum OverRate {
    /// Nothing; the client retransmits after 1 s, and again and again
    Drop = abi::OVER_RATE_DROP,
    /// A RST; `connect()` fails at once with ECONNREFUSED.
    Rst = abi::OVER_RATE_RST,
}

/// Some of the connections, by the four fields that a SYN has, and what they are worth.
#[derive(Debug, Clone, PartialEq)]
pub struct Class {
    /// Its name; unique.
    pub name: String,
    /// The listener or QUIC listener whose connections it is of; `None`: of all, unless `proxy` is given.
    pub listener: Option<String>,
    /// The proxy whose clients it is of; `None`: of all, unless `listener` is given.
    pub proxy: Option<String>,
    /// Where the client is; empty: anywhere.
    pub from: Vec<Prefix>,
    /// The address that it connects to; empty: any.
    pub to: Vec<Prefix>,
    /// The client's port; `None`: any.
    pub from_port: Option<u16>,
    /// The port that it connects to; `None`: any.
    pub to_port: Option<u16>,
    /// 1 is the highest, [`LOWEST_PRIORITY`] the lowest of a class; what no rule fits comes last.
    pub priority: u8,
    /// Connections per second at most, 0.1..=10 million; `None`: as many as come.
    pub rate: Option<f64>,
    /// Connections that may come at once; `None`: [`default_burst`] of the rate.
    pub burst: Option<u32>,
    /// What a SYN over the rate gets.
    pub over_rate: OverRate,
    /// Connections per second that the controller leaves it while lower classes can give way.
    pub min_rate: Option<f64>,
    /// How long its connections may wait for accept().
    pub max_wait: Option<Duration>,
    /// How many of its connections may wait for accept(); `None`: no limit of its own.
    pub queue_limit: Option<u32>,
}

impl Class {
    /// A class of all connections, of the lowest priority and without limits.
    pub fn new(name: impl Into<String>) -> Class {
        Class {
            name: name.into(),
            listener: None,
            proxy: None,
            from: Vec::new(),
            to: Vec::new(),
            from_port: None,
            to_port: None,
            priority: LOWEST_PRIORITY,
            rate: None,
            burst: None,
            over_rate: OverRate::Drop,
            min_rate: None,
            max_wait: None,
            queue_limit: None,
        }
    }

    /// Whether the guard has it: unless it is of a proxy.
    pub fn is_guarded(&self) -> bool {
        self.proxy.is_none()
    }

    /// Whether connections to this listener can be of it.
    pub fn is_of_listener(&self, name: &str) -> bool {
        self.is_guarded() && self.listener.as_deref().is_none_or(|own| own == name)
    }

    /// Whether clients of this proxy can be of it.
    pub fn is_of_proxy(&self, name: &str) -> bool {
        self.listener.is_none() && self.proxy.as_deref().is_none_or(|own| own == name)
    }

    /// The burst of its rate; `None`: it has no rate.
    pub fn burst_in_force(&self) -> Option<u32> {
        let rate = self.rate?;
        Some(self.burst.unwrap_or_else(|| default_burst(rate)))
    }

    /// Its rate as the bucket takes it; `None`: no limit.
    pub fn limit(&self) -> Option<BucketLimit> {
        Some(BucketLimit::new(self.rate?, self.burst_in_force()?))
    }
}

/// The number of a listener or a proxy, from 1; 0: none that a rule can name.
pub type OwnerId = u16;

/// A connection as rules see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuple {
    /// The client. An IPv4 address as IPv6 sockets have it is the IPv4 address.
    pub from: SocketAddr,
    /// Where it connects to.
    pub to: SocketAddr,
    /// Number of the listener or proxy, as given to [`super::Rules::compile`].
    pub owner: OwnerId,
}

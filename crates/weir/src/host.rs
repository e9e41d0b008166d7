//! What is asked of the machine: interfaces, listening sockets, sysctls, limits.

pub mod chains;
pub mod clock;
pub mod config;
pub mod containers;
pub mod descriptors;
pub mod diagnosis;
pub mod environment;
pub mod file;
pub mod filters;
pub mod ipsec;
pub mod ipvs;
pub mod links;
pub mod lock;
pub mod namespaces;
pub mod netlink;
pub mod nftables;
pub mod ports;
pub mod privileges;
pub mod processes;
pub mod published;
pub mod qdiscs;
pub mod shortcomings;
pub mod sockets;
pub mod translation;
pub mod udp;
pub mod vrf;

//! What is asked of the machine: interfaces, listening sockets, sysctls, limits.

pub mod clock;
pub mod config;
pub mod descriptors;
pub mod diagnosis;
pub mod environment;
pub mod links;
pub mod lock;
pub mod namespaces;
pub mod netlink;
pub mod ports;
pub mod privileges;
pub mod processes;
pub mod qdiscs;
pub mod shortcomings;
pub mod sockets;

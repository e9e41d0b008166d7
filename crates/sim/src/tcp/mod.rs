//! One direction of a TCP connection: what its sender and its receiver do.

pub mod congestion;
pub mod receiver;
pub mod rtt;
pub mod sender;

pub use congestion::{Algorithm, Congestion};
pub use receiver::Receiver;
pub use rtt::Rtt;
pub use sender::Sender;

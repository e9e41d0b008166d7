//! The requests that a server has and has not answered.

use serde::{Deserialize, Serialize};

/// The requests on the port of a listener, or on that of residence_of, that the server has not answered, on average over some seconds (residence).
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Residence {
    /// Whether anybody listens on the port of the requests
    ///
    /// If not, weir refuses nobody for them. A server that listens on a Unix socket is not seen.
    pub listening: bool,
    /// Requests that came and whose answers have not begun
    ///
    /// Of all connections to the port, also those that wait for accept(). Without long polls: outstanding_old counts them.
    pub outstanding: f64,
    /// Of them, those whose connections wait for accept(): the others the server has accepted
    pub outstanding_queued: f64,
    /// Requests that are outstanding for so long that they are no queue: long polls, and halves of requests
    ///
    /// For 1 s and eight times the residence.
    pub outstanding_old: u32,
    /// Requests that the server answers in a second
    pub answers_per_second: f64,
    /// How long a request is outstanding, in microseconds: outstanding by answers_per_second; null while none comes
    pub residence_us: Option<u64>,
    /// The least residence of the last 5 to 10 minutes, in microseconds: the server without a queue, if it was; null while not known
    pub least_residence_us: Option<u64>,
    /// Whether clients wait inside the server: it has accepted their connections, and does not come to their requests
    ///
    /// More than 10 requests are outstanding, more than it answers in 250 ms (or in the time that residence sets) and in twice the least residence, and it has accepted most of them.
    pub queue_inside: bool,
    /// Outstanding requests from which on weir refuses connections (residence = TIME); null while it refuses none
    ///
    /// It is null although a time is set if blind is true or listening false, if queue_inside is false, or while weir does not know yet whether requests queue or are worked on. As many as the server answers within residence, or within twice the least residence that it had without a queue where that is known and longer; at least 10.
    pub outstanding_limit: Option<f64>,
    /// Whether the connections do not show what is outstanding: most answers came much later (TLS 1.3 with session tickets)
    ///
    /// The other figures are then of no use, and weir refuses nobody for them. Watch the plain port of the server behind TLS instead (residence_of).
    pub blind: bool,
}

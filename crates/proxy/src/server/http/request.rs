//! A request on its way.

use super::cached::Asked;
use super::forecast::ForecastSlot;
use super::scratch::Head;
use super::target::Destination;
use crate::http::RequestFacts;

/// A request whose head has been read and taken out of the buffer.
pub struct Request {
    /// What it is.
    pub facts: RequestFacts,
    /// The head that goes to the server.
    pub head: Head,
    /// Where it goes.
    pub destination: Destination,
    /// Where the size of its reply is foretold.
    pub forecast_slot: ForecastSlot,
    /// What the cache knows of it; `None` if the cache has no part in it.
    pub asked: Option<Box<Asked>>,
}

//! A request on its way.

use super::cached::Asked;
use super::forecast::ForecastSlot;
use super::scratch::Head;
use super::target::Destination;
use crate::http::RequestFacts;

/// A request whose head has been read and taken out of the buffer.
pub struct Request {
    /// What its head says of its body and its connection.
    pub facts: RequestFacts,
    /// The head that goes to the server.
    pub head: Head,
    /// Where it goes.
    pub destination: Destination,
    /// Its client may be asked to close: the settings say so, it knows how, and it was not asked before.
    pub may_ask: bool,
    /// Where the size of its reply is forecast.
    pub forecast_slot: ForecastSlot,
    /// What the cache knows of it; `None` if the cache has no part in it.
    pub asked: Option<Box<Asked>>,
}

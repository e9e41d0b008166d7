//! What the cache knows of a request while it is under way.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use super::status::Forward;
use crate::cache::conditions::Conditions;
use crate::cache::control::RequestControl;
use crate::cache::policy::ExchangeTimes;
use crate::cache::{Entry, Lead, key, wall_clock};
use crate::http::Method;

/// What the cache knows of a request while it is under way.
pub struct Asked {
    /// The URI, with its realm.
    pub uri: Vec<u8>,
    /// Its `Cache-Control`.
    pub control: RequestControl,
    /// Its conditions and its range.
    pub conditions: Conditions,
    /// Why it goes to a server.
    pub why: Cell<Forward>,
    /// Held by the request whose reply is for others too.
    pub lead: Cell<Option<Lead>>,
    /// What the server is asked to confirm, or what stands in if it fails.
    pub stale: RefCell<Option<Arc<Entry>>>,
    /// It asks the server to confirm that.
    pub validates: Cell<bool>,
    /// When it went out, in seconds since 1970.
    pub sent: u64,
    /// The server's reply was about something else: it is to be asked again.
    pub again: Cell<bool>,
}

impl Asked {
    /// Of this head. `realm`: see [`in_realm`].
    pub fn of(head: &[u8], realm: u8) -> Asked {
        Asked {
            uri: in_realm(realm, &key::uri(head)),
            control: RequestControl::of(head),
            conditions: Conditions::of(head),
            why: Cell::new(Forward::UriMiss),
            lead: Cell::new(None),
            stale: RefCell::new(None),
            validates: Cell::new(false),
            sent: wall_clock(),
            again: Cell::new(false),
        }
    }

    /// Of a request that asks for the same anew, with this head, after `stale` was served.
    pub fn again(head: &[u8], asked: &Asked, stale: Arc<Entry>) -> Asked {
        Asked {
            uri: asked.uri.clone(),
            why: Cell::new(Forward::Stale),
            stale: RefCell::new(Some(stale)),
            ..Asked::of(head, 0)
        }
    }

    /// Whether its reply may be kept. The cache fetches whole replies with GET.
    pub fn may_lead(&self, method: Method) -> bool {
        method == Method::Get && !self.control.no_store && !self.conditions.wants_part()
    }

    /// It went out, and the head of its reply is there now.
    pub fn exchange(&self) -> ExchangeTimes {
        ExchangeTimes {
            sent: self.sent,
            received: wall_clock(),
        }
    }
}

/// The key of a URI for the clients of one realm.
pub fn in_realm(realm: u8, uri: &[u8]) -> Vec<u8> {
    [&[realm], uri].concat()
}

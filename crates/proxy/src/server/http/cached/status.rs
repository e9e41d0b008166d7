//! `Cache-Status` (RFC 9211): what the cache did for a request.

use std::io::Write;

use crate::http::rewrite::append_field;
use crate::server::http::pseudonym::PSEUDONYM;

/// Why a request went to a server (Section 2.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forward {
    /// Nothing was kept for its URI.
    UriMiss,
    /// What was kept is for requests with other fields.
    VaryMiss,
    /// What was kept is stale, or the client wants it validated.
    Stale,
    /// The request does not let the cache answer.
    Request,
}

impl Forward {
    fn name(self) -> &'static str {
        match self {
            Forward::UriMiss => "uri-miss",
            Forward::VaryMiss => "vary-miss",
            Forward::Stale => "stale",
            Forward::Request => "request",
        }
    }
}

/// How a client got its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheStatus {
    /// From the cache; fresh for so many seconds yet, or stale for so many.
    Hit(i64),
    /// From a server, and it is kept now.
    Stored(Forward),
    /// From the cache, after a server confirmed it.
    Confirmed,
    /// From another request's fetch.
    Collapsed(Forward),
    /// From the cache, as the server failed.
    StandIn,
    /// From a server, and it is not kept; why not.
    Passed(Forward, Option<&'static str>),
}

impl CacheStatus {
    /// Whether a server has made or confirmed the reply for this request.
    pub fn is_news(self) -> bool {
        matches!(
            self,
            CacheStatus::Stored(_) | CacheStatus::Confirmed | CacheStatus::Passed(..)
        )
    }

    /// Appends the field.
    pub fn write(self, out: &mut Vec<u8>) {
        let mut value = Vec::with_capacity(64);
        let written = match self {
            CacheStatus::Hit(ttl) => write!(value, "{PSEUDONYM}; hit; ttl={ttl}"),
            CacheStatus::Stored(why) => write!(value, "{PSEUDONYM}; fwd={}; stored", why.name()),
            CacheStatus::Confirmed => write!(value, "{PSEUDONYM}; fwd=stale; fwd-status=304"),
            CacheStatus::Collapsed(why) => {
                write!(value, "{PSEUDONYM}; fwd={}; collapsed", why.name())
            }
            CacheStatus::StandIn => write!(value, "{PSEUDONYM}; fwd=stale; detail=stale-if-error"),
            CacheStatus::Passed(why, None) => write!(value, "{PSEUDONYM}; fwd={}", why.name()),
            CacheStatus::Passed(why, Some(detail)) => {
                write!(value, "{PSEUDONYM}; fwd={}; detail={detail}", why.name())
            }
        };
        written.expect("a vector takes every write");
        append_field(out, "Cache-Status", &value);
    }
}

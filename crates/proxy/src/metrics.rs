//! Counters of a proxy: each thread has its own and adds without a lock; readers sum them.

pub use crate::counter::{Counter, Gauge};
use crate::histogram::{Histogram, Times};

/// Declares the counters and histograms once: field, name and text.
macro_rules! counters {
    (
        $(#[$of:meta])* $name:ident { $($field:ident: $text:literal,)* }
        $(times { $($time:ident: $time_text:literal,)* })?
    ) => {
        $(#[$of])*
        #[derive(Debug, Default)]
        pub struct $name {
            $(#[doc = $text] pub $field: Counter,)*
            $($(#[doc = $time_text] pub $time: Histogram,)*)?
        }

        $(impl $name {
            /// Name and text of each histogram.
            pub const TIMES: &'static [(&'static str, &'static str)] =
                &[$((stringify!($time), $time_text),)*];

            /// What was observed, in the order of [`TIMES`](Self::TIMES).
            pub fn times(&self) -> impl Iterator<Item = Times> {
                [$(self.$time.times(),)*].into_iter()
            }
        })?

        impl $name {
            /// Name and text of each counter.
            pub const NAMES: &'static [(&'static str, &'static str)] =
                &[$((stringify!($field), $text),)*];

            /// The values, in the order of [`NAMES`](Self::NAMES).
            pub fn values(&self) -> impl Iterator<Item = u64> {
                [$(self.$field.get(),)*].into_iter()
            }
        }
    };
}

counters! {
    /// What one thread did for the clients.
    ListenerCounters {
        clients_accepted: "connections of clients accepted",
        clients_refused: "connections of clients that may not come, or come without their PROXY header",
        accepts_failed: "attempts to accept a connection that failed for want of descriptors or memory; it waits on",
        clients_closed: "connections of clients closed",
        requests: "HTTP requests whose head was read",
        fields_dropped: "fields of requests that servers did not get, as their names have other characters than letters, digits and - (odd_field_names)",
        client_closes: "requests CLIENT_CLOSE, by which clients ended their connections (accept_client_close)",
        client_closes_asked: "replies that asked their client to close its connection (accept_client_close = ask)",
        tunnels: "tunnels opened: CONNECT, Upgrade, and every connection of mode tcp",
        bytes_up: "bytes of bodies and tunnels from clients to servers",
        bytes_down: "bytes of bodies and tunnels from servers to clients",
        bytes_spliced: "of these, bytes that splice(2) moved",
        bytes_redirected: "of these, bytes that went from socket to socket inside the kernel (engine sockmap)",
        replies_2xx: "replies with a status of 200 to 299, from servers, the cache and the proxy itself",
        replies_3xx: "replies with a status of 300 to 399",
        replies_4xx: "replies with a status of 400 to 499",
        replies_5xx: "replies with a status of 500 to 599",
        replies_refused: "replies that the proxy itself gave: bad requests, no backend, timeouts",
        refused_address: "of these, requests for servers that a forward proxy does not take the client to (allow_to, deny_to)",
        refused_own_listener: "of these, requests for servers where the proxy's own process listens",
        refused_port: "of these, tunnels to ports that are not in connect_ports",
        transfers_broken: "transfers that a connection's failure ended early",
        timed_out: "connections closed because nothing came for too long",
        access_log_lost: "lines of the access log that its writer was too slow for, or that could not be written",
        retries: "requests that were sent again to another connection or backend",
        cache_hits: "requests answered from the cache without asking a server",
        cache_misses: "requests that the cache had nothing for, and that went to a server",
        cache_revalidations: "stale replies that servers were asked to confirm",
        cache_collapsed: "requests answered from what another request fetched",
        cache_stored: "replies that were kept",
        cache_evicted: "replies that had to make room for others",
        cache_finished: "replies received to their end after all their clients were gone",
        cache_bytes: "bytes of bodies sent from the cache",
    }
    times {
        request_duration: "time from a request's first byte to the last one of its reply that the kernel took; not of tunnels",
    }
}

counters! {
    /// What one thread did with one backend.
    BackendCounters {
        connects: "connections opened",
        connects_failed: "connections that could not be opened",
        no_local_port: "of these, connections for which this machine had no local port or address left (source)",
        reused: "requests on a connection that was open already",
        failures: "replies that broke, were late or were no HTTP",
        client_closes_sent: "connections that ended with CLIENT_CLOSE (send_client_close)",
        asked_to_close: "replies that asked the proxy to close the connection",
    }
    times {
        connect: "time that connections took to be opened",
        first_byte: "time from a connection's being there for a request to its reply's first byte",
    }
}

counters! {
    /// What health checks found of one backend. One thread checks.
    HealthCounters {
        checks: "health checks made",
        checks_failed: "health checks that failed",
        checks_not_made: "health checks for which this machine had no local port, descriptor or memory: they say nothing of the backend",
        downs: "times that health checks took the backend out",
    }
}

counters! {
    /// What look-ups of one name of backends came to. One thread looks it up.
    NameCounters {
        lookups: "look-ups of the name that are over",
        lookups_failed: "look-ups that found no address: the name keeps those that it had",
        changes: "look-ups that found other addresses than the one before",
    }
}

counters! {
    /// What became of clients of one priority that had to wait for a connection to a backend. Written
    /// under the lock of the queue.
    QueueCounters {
        waited: "clients that had to wait for a connection",
        served: "of these, clients that got one",
        refused: "clients that a full queue had no room for, or no longer",
        late: "clients that waited for queue_timeout in vain",
        gone: "clients that went away while they waited",
        wait_ns: "time that the served clients waited, in ns",
    }
}

/// What one thread has of one backend now.
#[derive(Debug, Default)]
pub struct BackendGauges {
    /// Connections that carry something, or are being made.
    pub in_use: Gauge,
    /// Connections that are kept for the next request.
    pub idle: Gauge,
}

impl ListenerCounters {
    /// A reply with this status is sent to a client.
    pub fn count_reply(&self, status: u16) {
        match status {
            200..300 => self.replies_2xx.add(1),
            300..400 => self.replies_3xx.add(1),
            400..500 => self.replies_4xx.add(1),
            500..600 => self.replies_5xx.add(1),
            // To another protocol, or of no class that is known.
            _ => {}
        }
    }

    /// A reply was kept, and so many others had to go for it; `None` if it was not kept after all.
    pub fn count_kept(&self, evicted: Option<u64>) {
        if let Some(evicted) = evicted {
            self.cache_evicted.add(evicted);
            self.cache_stored.add(1);
        }
    }
}

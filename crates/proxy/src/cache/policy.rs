//! What may be kept, and how a kept reply may be used (RFC 9111 Sections 3 and 4). All times are in
//! seconds.

use super::control::{ReplyControl, RequestControl, delta_seconds};
use super::fields::{date, fields, members, only_value, values};

/// A reply without a lifetime of its own is fresh for this part of the time since it last changed
/// (Section 4.2.2 suggests a tenth), and for a day at most: beyond, the RFC used to want a warning.
const HEURISTIC_PART: u64 = 10;
const HEURISTIC_MOST: u64 = 24 * 3600;

/// Why a reply is not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotKept {
    /// One side said `no-store`, or the server `private`.
    Forbidden,
    /// The request had credentials, and the reply does not say that it is for others too.
    Authorized,
    /// It sets a cookie.
    Cookie,
    /// Its status is not one that is kept.
    Status,
    /// It says nothing of its lifetime, and nothing that it could be validated by.
    NoLifetime,
    /// `Vary: *`, or too many fields.
    Vary,
    /// Nothing says where it ends: what is there may not be all.
    Unbounded,
    /// It is longer than the limit, or there is no memory for it.
    TooLarge,
}

impl NotKept {
    /// One word for `Cache-Status`.
    pub fn name(self) -> &'static str {
        match self {
            NotKept::Forbidden => "forbidden",
            NotKept::Authorized => "authorized",
            NotKept::Cookie => "set-cookie",
            NotKept::Status => "status",
            NotKept::NoLifetime => "no-lifetime",
            NotKept::Vary => "vary",
            NotKept::Unbounded => "unbounded",
            NotKept::TooLarge => "too-large",
        }
    }
}

/// When a request was sent and its reply received, in seconds since 1970.
#[derive(Debug, Clone, Copy)]
pub struct ExchangeTimes {
    /// The request went out.
    pub sent: u64,
    /// The reply's head came in.
    pub received: u64,
}

/// On what terms a reply is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Fresh up to this age.
    pub lifetime: u64,
    /// Its age when it was received.
    pub initial_age: u64,
    /// It said its age: it came from another cache.
    pub has_age: bool,
    /// Must be validated before each use.
    pub always_validate: bool,
    /// Must not be used stale, whatever else allows it: a server that says `must-revalidate` and
    /// `stale-if-error` is taken at the stricter word.
    pub never_stale: bool,
    /// Beyond its lifetime: may be used while it is being validated.
    pub stale_while_revalidate: u64,
    /// Beyond its lifetime: may be used if the server fails.
    pub stale_if_error: u64,
}

/// Section 3: whether a reply to GET is kept, and on what terms. `request` and `reply` are the heads
/// that went out.
///
/// Stricter than it has to be in three things. Errors that one odd request may have caused are not
/// kept whatever they say, because all clients would get them. A reply that sets a cookie is one user's. And
/// one that says nothing of its lifetime is not kept if the request had a cookie.
///
/// # Errors
/// Why not.
pub fn terms(
    request: &[u8],
    reply: &[u8],
    status: u16,
    exchange: ExchangeTimes,
) -> Result<Terms, NotKept> {
    let control = ReplyControl::of(reply);
    if control.no_store || control.private || RequestControl::of(request).no_store {
        return Err(NotKept::Forbidden);
    }
    let for_all = control.public || control.must_revalidate || control.s_maxage.is_some();
    if has(request, "authorization") && !for_all {
        return Err(NotKept::Authorized);
    }
    if has(reply, "set-cookie") {
        return Err(NotKept::Cookie);
    }
    let may_guess = match status {
        200 | 203 | 204 | 300 | 301 | 308 | 404 | 410 => !has(request, "cookie"),
        302 | 303 | 307 => false,
        _ => return Err(NotKept::Status),
    };
    let lifetime = match explicit_lifetime(reply, &control, exchange.received) {
        Some(lifetime) => lifetime,
        None if may_guess || control.public => heuristic_lifetime(reply, exchange.received),
        None => return Err(NotKept::NoLifetime),
    };
    if lifetime == 0 && !has(reply, "etag") && !has(reply, "last-modified") {
        return Err(NotKept::NoLifetime);
    }
    Ok(Terms {
        lifetime,
        initial_age: initial_age(reply, exchange),
        has_age: fields(reply).any(|field| field.is("age")),
        always_validate: control.no_cache,
        never_stale: control.no_cache
            || control.must_revalidate
            || control.proxy_revalidate
            || control.s_maxage.is_some(),
        stale_while_revalidate: control.stale_while_revalidate,
        stale_if_error: control.stale_if_error,
    })
}

fn has(head: &[u8], name: &str) -> bool {
    fields(head).any(|field| field.is(name))
}

/// Section 4.2.1, without the guess.
fn explicit_lifetime(reply: &[u8], control: &ReplyControl, received: u64) -> Option<u64> {
    if let Some(lifetime) = control.s_maxage.or(control.max_age) {
        return Some(lifetime);
    }
    if !has(reply, "expires") {
        return None;
    }
    // What is no date, as "0", has expired (Section 5.3).
    let expires = only_value(reply, "expires").and_then(date).unwrap_or(0);
    Some(expires.saturating_sub(date_of(reply).unwrap_or(received)))
}

/// Section 4.2.2. Zero if nothing is known of its last change.
fn heuristic_lifetime(reply: &[u8], received: u64) -> u64 {
    let modified = only_value(reply, "last-modified").and_then(date);
    let unchanged = modified.map_or(0, |modified| {
        date_of(reply).unwrap_or(received).saturating_sub(modified)
    });
    (unchanged / HEURISTIC_PART).min(HEURISTIC_MOST)
}

fn date_of(reply: &[u8]) -> Option<u64> {
    only_value(reply, "date").and_then(date)
}

/// `corrected_initial_age` of Section 4.2.3.
fn initial_age(reply: &[u8], exchange: ExchangeTimes) -> u64 {
    // The first member of a list counts, and what is no number does not (Section 5.1).
    let told = values(reply, "age").flat_map(members).next();
    let told = told.and_then(delta_seconds);
    let delay = exchange.received.saturating_sub(exchange.sent);
    let apparent = date_of(reply).map_or(0, |date| exchange.received.saturating_sub(date));
    apparent.max(told.unwrap_or(0).saturating_add(delay))
}

/// How a kept reply may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// As it is.
    Serve,
    /// As it is, while another request validates it; else only after that.
    ServeWhileValidating,
    /// Once it has been validated.
    Validate,
}

impl Terms {
    /// Section 4.2: how a reply of this age may be used for a request.
    pub fn usage(&self, age: u64, request: &RequestControl) -> Use {
        if self.always_validate || request.no_cache {
            return Use::Validate;
        }
        if request.max_age.is_some_and(|most| age > most) {
            return Use::Validate;
        }
        let left = self.lifetime.saturating_sub(age);
        if self.lifetime > age {
            return match left < request.min_fresh {
                true => Use::Validate,
                false => Use::Serve,
            };
        }
        let stale = age - self.lifetime;
        if request.min_fresh > 0 {
            Use::Validate
        } else if !self.never_stale && stale < request.max_stale {
            Use::Serve
        } else if !self.never_stale && stale < self.stale_while_revalidate {
            Use::ServeWhileValidating
        } else {
            Use::Validate
        }
    }

    /// RFC 5861 Section 4: whether a reply of this age may be used because the server failed.
    pub fn usable_after_error(&self, age: u64, request: &RequestControl) -> bool {
        let allowed = self.stale_if_error.max(request.stale_if_error);
        !self.never_stale && age < self.lifetime.saturating_add(allowed) && allowed > 0
    }

    /// Seconds that it will yet be fresh; negative when it is stale.
    pub fn time_to_live(&self, age: u64) -> i64 {
        self.lifetime as i64 - age as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sun, 06 Nov 1994 08:49:37 GMT
    const NOW: u64 = 784_111_777;
    const DATE: &str = "Date: Sun, 06 Nov 1994 08:49:37 GMT";
    const ARRIVED: ExchangeTimes = ExchangeTimes {
        sent: NOW,
        received: NOW,
    };

    fn judged(request: &str, status: u16, reply: &str) -> Result<Terms, NotKept> {
        let request = format!("GET / HTTP/1.1\r\nHost: a\r\n{request}\r\n\r\n");
        let reply = format!("HTTP/1.1 {status} X\r\n{DATE}\r\n{reply}\r\n\r\n");
        terms(request.as_bytes(), reply.as_bytes(), status, ARRIVED)
    }

    fn why_not(request: &str, status: u16, reply: &str) -> Option<NotKept> {
        judged(request, status, reply).err()
    }

    fn lifetime(reply: &str) -> Option<u64> {
        judged("", 200, reply).ok().map(|terms| terms.lifetime)
    }

    #[test]
    fn section_3_what_is_kept() {
        use NotKept::*;
        let fresh = "Cache-Control: max-age=60";
        for (request, status, reply, expected) in [
            ("", 200, fresh, None),
            ("", 404, fresh, None),
            ("", 302, fresh, None),
            ("", 200, "ETag: \"a\"", None),
            ("", 302, "ETag: \"a\"", Some(NoLifetime)),
            ("", 200, "", Some(NoLifetime)),
            ("", 200, "Cache-Control: max-age=0", Some(NoLifetime)),
            ("", 200, "Cache-Control: max-age=0\r\nETag: \"a\"", None),
            ("", 200, "Cache-Control: no-cache\r\nETag: \"a\"", None),
            (
                "",
                200,
                "Cache-Control: max-age=60, no-store",
                Some(Forbidden),
            ),
            (
                "",
                200,
                "Cache-Control: max-age=60, private",
                Some(Forbidden),
            ),
            (
                "",
                200,
                "Cache-Control: max-age=60, private=\"x\"",
                Some(Forbidden),
            ),
            ("Cache-Control: no-store", 200, fresh, Some(Forbidden)),
            ("", 206, fresh, Some(Status)),
            ("", 304, fresh, Some(Status)),
            (
                "",
                200,
                "Cache-Control: max-age=60\r\nSet-Cookie: a=b",
                Some(Cookie),
            ),
            ("Cookie: a=b", 200, fresh, None),
            (
                "Cookie: a=b",
                200,
                "Last-Modified: Sun, 06 Nov 1993 08:49:37 GMT",
                Some(NoLifetime),
            ),
        ] {
            assert_eq!(
                why_not(request, status, reply),
                expected,
                "{request} {status} {reply}"
            );
        }
    }

    #[test]
    fn errors_that_one_request_may_have_caused_are_not_for_everyone() {
        for status in [400, 403, 405, 413, 414, 416, 431, 500, 501, 502, 503] {
            let said = why_not("", status, "Cache-Control: public, max-age=60");
            assert_eq!(said, Some(NotKept::Status), "{status}");
        }
    }

    #[test]
    fn section_3_5_replies_to_credentials_are_kept_only_if_they_say_so() {
        let request = "Authorization: Basic x";
        for (reply, kept) in [
            ("max-age=60", false),
            ("public, max-age=60", true),
            ("must-revalidate, max-age=60", true),
            ("s-maxage=60", true),
            ("proxy-revalidate, max-age=60", false),
        ] {
            let why_not = why_not(request, 200, &format!("Cache-Control: {reply}"));
            let expected = (!kept).then_some(NotKept::Authorized);
            assert_eq!(why_not, expected, "{reply}");
        }
    }

    #[test]
    fn section_4_2_1_which_lifetime_holds() {
        let expires = "Expires: Sun, 06 Nov 1994 08:50:37 GMT";
        for (reply, expected) in [
            (
                format!("Cache-Control: max-age=5, s-maxage=7\r\n{expires}"),
                7,
            ),
            (format!("Cache-Control: max-age=5\r\n{expires}"), 5),
            (expires.to_owned(), 60),
            ("Expires: 0\r\nETag: \"a\"".to_owned(), 0),
            (format!("{expires}\r\n{expires}\r\nETag: \"a\""), 0),
            (
                "Expires: Sun, 06 Nov 1994 08:49:36 GMT\r\nETag: \"a\"".to_owned(),
                0,
            ),
        ] {
            assert_eq!(lifetime(&reply), Some(expected), "{reply}");
        }
    }

    #[test]
    fn section_4_2_2_a_lifetime_is_guessed_from_the_last_change() {
        let hour_ago = "Last-Modified: Sun, 06 Nov 1994 07:49:37 GMT";
        let years_ago = "Last-Modified: Sun, 06 Nov 1988 08:49:37 GMT";
        assert_eq!(lifetime(hour_ago), Some(360));
        assert_eq!(lifetime(years_ago), Some(HEURISTIC_MOST));
        let explicit = format!("{hour_ago}\r\nCache-Control: max-age=0");
        assert_eq!(lifetime(&explicit), Some(0), "what is said comes first");
    }

    #[test]
    fn section_4_2_3_age_is_the_larger_of_what_is_told_and_what_the_date_shows() {
        for (fields, sent, expected) in [
            ("Date: Sun, 06 Nov 1994 08:49:37 GMT", NOW, 0),
            ("Date: Sun, 06 Nov 1994 08:49:07 GMT", NOW, 30),
            ("Date: Sun, 06 Nov 1994 08:49:07 GMT\r\nAge: 40", NOW, 40),
            (
                "Date: Sun, 06 Nov 1994 08:49:07 GMT\r\nAge: 40",
                NOW - 5,
                45,
            ),
            ("Date: Sun, 06 Nov 1994 09:49:37 GMT", NOW, 0),
            ("Age: x", NOW, 0),
            ("Age: 7, 9", NOW, 7),
            ("Age: x, 9", NOW, 0),
            ("Age: , 7", NOW, 7),
            ("Age: 7\r\nAge: 9", NOW, 7),
        ] {
            let head = format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n");
            let exchange = ExchangeTimes {
                sent,
                received: NOW,
            };
            assert_eq!(initial_age(head.as_bytes(), exchange), expected, "{fields}");
        }
    }

    fn usage(reply: &str, age: u64, request: &str) -> Use {
        let terms = judged("", 200, &format!("Cache-Control: {reply}\r\nETag: \"a\"")).unwrap();
        let head = format!("GET / HTTP/1.1\r\nCache-Control: {request}\r\n\r\n");
        terms.usage(age, &RequestControl::of(head.as_bytes()))
    }

    #[test]
    fn section_4_2_and_5_2_1_how_a_kept_reply_is_used() {
        use Use::*;
        for (reply, age, request, expected) in [
            ("max-age=10", 9, "", Serve),
            ("max-age=10", 10, "", Validate),
            ("no-cache, max-age=10", 0, "", Validate),
            ("max-age=10", 0, "no-cache", Validate),
            ("max-age=10", 3, "max-age=3", Serve),
            ("max-age=10", 4, "max-age=3", Validate),
            ("max-age=10", 7, "min-fresh=3", Serve),
            ("max-age=10", 8, "min-fresh=3", Validate),
            ("max-age=10", 12, "max-stale=3", Serve),
            ("max-age=10", 13, "max-stale=3", Validate),
            ("max-age=10", 9999, "max-stale", Serve),
            ("max-age=10", 12, "max-stale, max-age=11", Validate),
            ("max-age=10", 12, "max-stale, min-fresh=1", Validate),
            ("max-age=10, must-revalidate", 12, "max-stale", Validate),
            ("max-age=10, proxy-revalidate", 12, "max-stale", Validate),
            ("s-maxage=10", 12, "max-stale", Validate),
            (
                "max-age=10, stale-while-revalidate=5",
                14,
                "",
                ServeWhileValidating,
            ),
            ("max-age=10, stale-while-revalidate=5", 15, "", Validate),
            (
                "max-age=10, stale-while-revalidate=5, must-revalidate",
                12,
                "",
                Validate,
            ),
        ] {
            assert_eq!(
                usage(reply, age, request),
                expected,
                "{reply} {age} {request}"
            );
        }
    }

    #[test]
    fn rfc_5861_a_stale_reply_stands_in_for_a_server_that_failed() {
        for (reply, age, request, usable) in [
            ("max-age=10", 11, "", false),
            ("max-age=10, stale-if-error=5", 14, "", true),
            ("max-age=10, stale-if-error=5", 15, "", false),
            ("max-age=10", 14, "stale-if-error=5", true),
            (
                "max-age=10, must-revalidate, stale-if-error=5",
                11,
                "",
                false,
            ),
        ] {
            let terms = judged("", 200, &format!("Cache-Control: {reply}")).unwrap();
            let head = format!("GET / HTTP/1.1\r\nCache-Control: {request}\r\n\r\n");
            let control = RequestControl::of(head.as_bytes());
            assert_eq!(
                terms.usable_after_error(age, &control),
                usable,
                "{reply} {age} {request}"
            );
        }
    }
}

//! `Cache-Control` (RFC 9111 Section 5.2).

use super::fields::{fields, members, values};

/// What a request allows and asks of caches (Section 5.2.1). Times are in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestControl {
    /// The reply must not be kept.
    pub no_store: bool,
    /// A kept reply must be validated first.
    pub no_cache: bool,
    /// Nothing but a kept reply is wanted.
    pub only_if_cached: bool,
    /// No older than this.
    pub max_age: Option<u64>,
    /// Fresh for at least this long yet.
    pub min_fresh: u64,
    /// Stale for at most this long; [`u64::MAX`] when any will do.
    pub max_stale: u64,
    /// Stale for at most this long if the server fails (RFC 5861).
    pub stale_if_error: u64,
}

/// What a reply allows and asks of caches (Section 5.2.2). Times are in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReplyControl {
    /// Must not be kept.
    pub no_store: bool,
    /// Must be validated before each use.
    pub no_cache: bool,
    /// For one user only.
    pub private: bool,
    /// May be kept though it would not be otherwise.
    pub public: bool,
    /// Must be validated once it is stale.
    pub must_revalidate: bool,
    /// The same, for shared caches.
    pub proxy_revalidate: bool,
    /// Fresh for so long.
    pub max_age: Option<u64>,
    /// Fresh for so long in shared caches.
    pub s_maxage: Option<u64>,
    /// May be used for so long after, while it is being validated (RFC 5861).
    pub stale_while_revalidate: u64,
    /// May be used for so long after, if the server fails (RFC 5861).
    pub stale_if_error: u64,
}

impl RequestControl {
    /// Reads them from a request's head. `Pragma: no-cache` counts where there is no `Cache-Control`
    /// (Section 5.4).
    pub fn of(head: &[u8]) -> RequestControl {
        let mut control = RequestControl::default();
        let mut pragma = false;
        let mut told = false;
        for field in fields(head) {
            if field.is("cache-control") {
                told = true;
                members(field.value).for_each(|member| control.read(member));
            } else if field.is("pragma") {
                pragma |=
                    members(field.value).any(|member| member.eq_ignore_ascii_case(b"no-cache"));
            }
        }
        control.no_cache |= pragma && !told;
        control
    }

    fn read(&mut self, member: &[u8]) {
        let directive = Directive::of(member);
        match directive.name.to_ascii_lowercase().as_slice() {
            b"no-store" => self.no_store = true,
            b"no-cache" => self.no_cache = true,
            b"only-if-cached" => self.only_if_cached = true,
            b"max-age" => shorten(&mut self.max_age, directive.seconds_or(0)),
            b"min-fresh" => self.min_fresh = self.min_fresh.max(directive.seconds_or(FOREVER)),
            b"max-stale" if directive.argument.is_none() => self.max_stale = u64::MAX,
            b"max-stale" => self.max_stale = directive.seconds_or(0),
            b"stale-if-error" => self.stale_if_error = directive.seconds_or(0),
            _ => {}
        }
    }
}

impl ReplyControl {
    /// Reads them from a reply's head.
    pub fn of(head: &[u8]) -> ReplyControl {
        let mut control = ReplyControl::default();
        let lists = values(head, "cache-control");
        lists
            .flat_map(members)
            .for_each(|member| control.read(member));
        control
    }

    /// `no-cache` and `private` may name fields; here they hold for the whole reply then too, which
    /// Sections 5.2.2.4 and 5.2.2.7 let a cache do.
    fn read(&mut self, member: &[u8]) {
        let directive = Directive::of(member);
        match directive.name.to_ascii_lowercase().as_slice() {
            b"no-store" => self.no_store = true,
            b"no-cache" => self.no_cache = true,
            b"private" => self.private = true,
            b"public" => self.public = true,
            b"must-revalidate" => self.must_revalidate = true,
            b"proxy-revalidate" => self.proxy_revalidate = true,
            b"max-age" => shorten(&mut self.max_age, directive.seconds_or(0)),
            b"s-maxage" => shorten(&mut self.s_maxage, directive.seconds_or(0)),
            b"stale-while-revalidate" => self.stale_while_revalidate = directive.seconds_or(0),
            b"stale-if-error" => self.stale_if_error = directive.seconds_or(0),
            _ => {}
        }
    }
}

/// A time beyond all others: about 68 years (Section 1.2.2).
const FOREVER: u64 = 1 << 31;

/// Where a time stands twice, the shorter one holds (Section 4.2.1 lets a cache choose).
fn shorten(time: &mut Option<u64>, seconds: u64) {
    *time = Some(time.map_or(seconds, |time| time.min(seconds)));
}

struct Directive<'a> {
    name: &'a [u8],
    argument: Option<&'a [u8]>,
}

impl<'a> Directive<'a> {
    fn of(member: &'a [u8]) -> Directive<'a> {
        let Some(equals) = memchr::memchr(b'=', member) else {
            return Directive {
                name: member,
                argument: None,
            };
        };
        let argument = &member[equals + 1..];
        let unquoted = argument
            .strip_prefix(b"\"")
            .and_then(|quoted| quoted.strip_suffix(b"\""));
        Directive {
            name: &member[..equals],
            argument: Some(unquoted.unwrap_or(argument)),
        }
    }

    /// A delta-seconds; `otherwise` when it is none.
    fn seconds_or(&self, otherwise: u64) -> u64 {
        self.argument.and_then(delta_seconds).unwrap_or(otherwise)
    }
}

/// A number of seconds; one that is too large is [`FOREVER`] (Section 1.2.2).
pub fn delta_seconds(value: &[u8]) -> Option<u64> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = std::str::from_utf8(value).ok()?.parse().unwrap_or(FOREVER);
    Some(number.min(FOREVER))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(values: &str) -> ReplyControl {
        ReplyControl::of(format!("HTTP/1.1 200 OK\r\n{values}\r\n\r\n").as_bytes())
    }

    fn request(values: &str) -> RequestControl {
        RequestControl::of(format!("GET / HTTP/1.1\r\n{values}\r\n\r\n").as_bytes())
    }

    #[test]
    fn directives_are_read_in_any_case_quoted_or_not_over_several_lines() {
        let control = reply("Cache-Control: Public, MAX-AGE=\"60\"\r\ncache-control: s-maxage=5");
        assert!(control.public);
        assert_eq!((control.max_age, control.s_maxage), (Some(60), Some(5)));
    }

    #[test]
    fn fields_of_private_and_no_cache_count_as_the_whole_reply() {
        assert!(reply("Cache-Control: private=\"set-cookie, x\"").private);
        assert!(reply("Cache-Control: no-cache=\"x\", max-age=1").no_cache);
    }

    #[test]
    fn times_that_are_none_are_zero_and_the_shorter_of_two_holds() {
        for (value, seconds) in [
            ("max-age=-1", 0),
            ("max-age=1.5", 0),
            ("max-age", 0),
            ("max-age=", 0),
            ("max-age=5, max-age=3", 3),
            ("max-age=3, max-age=x", 0),
            ("max-age=99999999999999999999", FOREVER),
        ] {
            let control = reply(&format!("Cache-Control: {value}"));
            assert_eq!(control.max_age, Some(seconds), "{value}");
        }
    }

    #[test]
    fn names_inside_quotes_are_no_directives() {
        let control = reply("Cache-Control: ext=\"no-store, private\", max-age=1");
        assert!(!control.no_store && !control.private);
    }

    #[test]
    fn a_request_may_take_any_stale_reply_or_a_little_stale_one() {
        assert_eq!(request("Cache-Control: max-stale").max_stale, u64::MAX);
        assert_eq!(request("Cache-Control: max-stale=9").max_stale, 9);
        assert_eq!(request("Cache-Control: max-stale=x").max_stale, 0);
    }

    #[test]
    fn pragma_counts_only_without_cache_control() {
        assert!(request("Pragma: no-cache").no_cache);
        assert!(!request("Pragma: no-cache\r\nCache-Control: max-age=5").no_cache);
    }
}

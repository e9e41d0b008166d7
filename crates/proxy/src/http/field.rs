//! Field names that mean something to an intermediary, and lists in field values.

/// A field that an intermediary looks at; all others pass unread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    Connection,
    ContentLength,
    Date,
    Expect,
    Forwarded,
    Host,
    Http2Settings,
    KeepAlive,
    MaxForwards,
    Proxy,
    ProxyAuthenticate,
    ProxyAuthenticationInfo,
    ProxyAuthorization,
    ProxyConnection,
    Te,
    TransferEncoding,
    Upgrade,
    Via,
    XForwardedFor,
    Other,
}

impl Known {
    /// The length leaves one or two candidates, so most names cost no comparison.
    #[inline]
    pub(super) fn of(name: &str) -> Self {
        let candidates: &[(&str, Self)] = match name.len() {
            2 => &[("te", Self::Te)],
            3 => &[("via", Self::Via)],
            4 => &[("host", Self::Host), ("date", Self::Date)],
            5 => &[("proxy", Self::Proxy)],
            6 => &[("expect", Self::Expect)],
            7 => &[("upgrade", Self::Upgrade)],
            9 => &[("forwarded", Self::Forwarded)],
            10 => &[
                ("connection", Self::Connection),
                ("keep-alive", Self::KeepAlive),
            ],
            12 => &[("max-forwards", Self::MaxForwards)],
            14 => &[
                ("content-length", Self::ContentLength),
                ("http2-settings", Self::Http2Settings),
            ],
            15 => &[("x-forwarded-for", Self::XForwardedFor)],
            16 => &[("proxy-connection", Self::ProxyConnection)],
            17 => &[("transfer-encoding", Self::TransferEncoding)],
            18 => &[("proxy-authenticate", Self::ProxyAuthenticate)],
            19 => &[("proxy-authorization", Self::ProxyAuthorization)],
            25 => &[("proxy-authentication-info", Self::ProxyAuthenticationInfo)],
            _ => return Self::Other,
        };
        for &(known, value) in candidates {
            if name.eq_ignore_ascii_case(known) {
                return value;
            }
        }
        Self::Other
    }

    /// Fields that say where the message goes or where it ends: neither a trailer nor what
    /// `Connection` names may take their place (RFC 9110 Sections 6.5.1 and 7.6.1). `Content_Length` is
    /// one of them, because servers that make variables of fields read it so.
    pub(super) fn frames_or_routes(name: &[u8]) -> bool {
        let is = |known: &[u8]| {
            let same = |(&byte, known): (&u8, &u8)| match byte {
                b'_' => *known == b'-',
                byte => byte.eq_ignore_ascii_case(known),
            };
            name.len() == known.len() && name.iter().zip(known).all(same)
        };
        is(b"content-length") || is(b"transfer-encoding") || is(b"host")
    }

    /// The value of a field on which the next reader's view of the message or its connection depends, as
    /// it is sent: as most peers write it, and so as every reader understands it. `value` has no whitespace
    /// around it. `None` for all other fields.
    pub(super) fn canonical_value(self, value: &[u8]) -> Option<&[u8]> {
        match self {
            // Some read a number that begins with 0 as octal.
            Self::ContentLength => {
                let zeros = value.iter().take_while(|&&byte| byte == b'0').count();
                Some(&value[zeros.min(value.len().saturating_sub(1))..])
            }
            Self::TransferEncoding if value.eq_ignore_ascii_case(b"chunked") => Some(b"chunked"),
            Self::Expect if value.eq_ignore_ascii_case(b"100-continue") => Some(b"100-continue"),
            Self::TransferEncoding | Self::Expect | Self::Host | Self::Upgrade => Some(value),
            _ => None,
        }
    }
}

/// Whether a field name, a token, has another character than letters, digits and `-`. Servers that make
/// variables of fields (CGI, FastCGI, WSGI) write `_` for `-`, and some for every such character: there
/// `X_Forwarded_For` is `X-Forwarded-For`, and `Transfer.Encoding` may be `Transfer-Encoding`.
#[inline]
pub fn is_odd_name(name: &[u8]) -> bool {
    let (words, rest) = name.as_chunks::<8>();
    match (words.is_empty(), name.last_chunk::<8>()) {
        // The last word may have bytes of the one before it again.
        (false, Some(last)) => words.iter().chain([last]).copied().any(has_odd_byte),
        _ => {
            let mut word = [b'a'; 8];
            for (to, from) in word.iter_mut().zip(rest) {
                *to = *from;
            }
            has_odd_byte(word)
        }
    }
}

/// Whether one of eight bytes of a token is neither a letter, nor a digit, nor `-`; all eight at once.
#[inline]
fn has_odd_byte(bytes: [u8; 8]) -> bool {
    const fn all(byte: u8) -> u64 {
        u64::from_ne_bytes([byte; 8])
    }
    // Every byte is below 0x80, so no sum reaches into its neighbour, and bit 7 of each is free for the answer.
    let word = u64::from_ne_bytes(bytes);
    let upper_half = word << 1 & all(0x80);
    // From 0x40 on: letters are 1 to 26 in the lower five bits.
    let letter_less_1 = ((word & all(0x1f)) + all(0x1f)) & all(0x1f);
    let no_letter = letter_less_1 + all(0x80 - 26);
    // Below 0x40: digits are all tokens from 0x30 on, and `-` is the only other.
    let no_digit = !(word << 3) & !upper_half;
    let no_hyphen = (word ^ all(b'-')) + all(0x7f);
    (upper_half & no_letter | no_digit & no_hyphen) & all(0x80) != 0
}

/// A set of the fields of one head, by position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct FieldSet(u128);

impl FieldSet {
    /// How many fields a set can hold.
    pub(super) const CAPACITY: usize = u128::BITS as usize;

    pub(super) fn insert(&mut self, index: usize) {
        self.0 |= 1 << index;
    }

    pub(super) fn insert_all(&mut self, others: Self) {
        self.0 |= others.0;
    }

    pub(super) fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }

    pub(super) fn contains(self, index: usize) -> bool {
        self.0 >> index & 1 == 1
    }
}

/// The members in ascending order.
impl Iterator for FieldSet {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let first = self.0.trailing_zeros();
        self.0 &= self.0.wrapping_sub(1);
        (first < u128::BITS).then_some(first as usize)
    }
}

/// The members of a comma-separated list (RFC 9110 Section 5.6.1): trimmed, without the empty ones.
/// Must not be used where quoted strings may contain commas.
pub(super) fn members(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value
        .split(|&byte| byte == b',')
        .map(trimmed)
        .filter(|member| !member.is_empty())
}

/// Without optional whitespace (SP and HTAB) at both ends.
pub(super) fn trimmed(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = value {
        value = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// A number of decimal digits and nothing else; `None` also when it does not fit 64 bits.
pub(super) fn decimal(value: &[u8]) -> Option<u64> {
    if value.is_empty() {
        return None;
    }
    value.iter().try_fold(0_u64, |number, &byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

/// A set of bytes that is looked up in one load.
pub(super) struct ByteSet([bool; 256]);

impl ByteSet {
    /// ASCII letters and digits, and the given bytes.
    pub(super) const fn alphanumeric_and(others: &[u8]) -> Self {
        let mut set = [false; 256];
        let mut byte = 0;
        while byte < 256 {
            set[byte] = (byte as u8).is_ascii_alphanumeric();
            byte += 1;
        }
        let mut at = 0;
        while at < others.len() {
            set[others[at] as usize] = true;
            at += 1;
        }
        Self(set)
    }

    #[inline]
    pub(super) fn contains(&self, byte: u8) -> bool {
        self.0[byte as usize]
    }
}

/// The bytes of a token (RFC 9110 Section 5.6.2).
pub(super) static TOKEN: ByteSet = ByteSet::alphanumeric_and(b"!#$%&'*+-.^_`|~");

/// A byte that may stand in a field value: HTAB, SP, VCHAR and obs-text (RFC 9110 Section 5.5).
pub(super) fn is_value_byte(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_known_in_any_case_and_only_whole() {
        assert_eq!(Known::of("Content-Length"), Known::ContentLength);
        assert_eq!(Known::of("cOnTeNt-LeNgTh"), Known::ContentLength);
        assert_eq!(Known::of("Content_Length"), Known::Other);
        assert_eq!(Known::of("Content-Lengt"), Known::Other);
        assert_eq!(Known::of("TE"), Known::Te);
    }

    #[test]
    fn names_that_frame_or_route_are_known_in_the_form_of_a_variable_too() {
        for name in [
            "Content-Length",
            "TRANSFER_ENCODING",
            "transfer_Encoding",
            "host",
        ] {
            assert!(Known::frames_or_routes(name.as_bytes()), "{name}");
        }
        for name in [
            "Content-Lengths",
            "Content.Length",
            "h_st",
            "ContentLength",
            "",
        ] {
            assert!(!Known::frames_or_routes(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn a_name_is_odd_if_any_of_its_characters_is() {
        let tokens: Vec<u8> = (0..=255).filter(|byte| TOKEN.contains(*byte)).collect();
        for len in 1..=40 {
            for at in 0..len {
                for &byte in &tokens {
                    let mut name = vec![b"aZ-9"[len % 4]; len];
                    name[at] = byte;
                    let wanted = !byte.is_ascii_alphanumeric() && byte != b'-';
                    assert_eq!(is_odd_name(&name), wanted, "{}", name.escape_ascii());
                }
            }
        }
        assert!(!is_odd_name(b""));
    }

    #[test]
    fn a_canonical_length_has_no_zeros_in_front() {
        for (value, canonical) in [
            ("0", "0"),
            ("000", "0"),
            ("010", "10"),
            ("3", "3"),
            ("", ""),
        ] {
            let got = Known::ContentLength.canonical_value(value.as_bytes());
            assert_eq!(got, Some(canonical.as_bytes()), "{value:?}");
        }
    }

    #[test]
    fn a_set_gives_its_members_in_order() {
        let mut set = FieldSet::default();
        for index in [127, 0, 64] {
            set.insert(index);
        }
        let members: Vec<_> = set.collect();
        assert_eq!(members, [0, 64, 127]);
    }

    #[test]
    fn decimals_are_digits_that_fit() {
        assert_eq!(decimal(b"18446744073709551615"), Some(u64::MAX));
        for not in [
            "",
            "18446744073709551616",
            "+1",
            "-1",
            " 1",
            "1 ",
            "0x1",
            "1_0",
            "1.0",
        ] {
            assert_eq!(decimal(not.as_bytes()), None, "{not:?}");
        }
    }

    #[test]
    fn lists_may_have_empty_members() {
        let list: Vec<_> = members(b" ,close,, \tupgrade ,").collect();
        assert_eq!(list, [&b"close"[..], b"upgrade"]);
    }
}

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
    /// `name` is a token. The length leaves one or two candidates, so most names cost no comparison.
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
            if is(name, known) {
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

/// Whether a token is this name of the same length, in small letters, in any case.
#[inline]
fn is(name: &str, known: &str) -> bool {
    // The standard library compares so many bytes at once, but takes long for fewer.
    if name.len() >= 16 {
        return name.eq_ignore_ascii_case(known);
    }
    // Small letters, digits and `-` have bit 5. No two characters of tokens differ in it alone but the two cases of a
    // letter, and `^` and `~`.
    let mut bytes = name.bytes().zip(known.bytes());
    bytes.all(|(byte, known)| byte | 0x20 == known)
}

/// Whether a field name has another character than letters, digits and `-`. Servers that make variables of fields (CGI,
/// FastCGI, WSGI) write `_` for `-`, and some for every such character: there `X_Forwarded_For` is `X-Forwarded-For`, and
/// `Transfer.Encoding` may be `Transfer-Encoding`.
pub fn is_odd_name(name: &[u8]) -> bool {
    !name
        .iter()
        .all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-')
}

/// Bytes that [`has_odd_byte`] looks at together.
pub(super) const BLOCK: usize = 16;

/// Blocks whose first 0 to [`BLOCK`] bytes are ones, the others zeros.
static FIRST: [[u8; BLOCK]; BLOCK + 1] = {
    let mut blocks = [[0; BLOCK]; BLOCK + 1];
    let mut len = 0;
    while len <= BLOCK {
        let mut at = 0;
        while at < len {
            blocks[len][at] = 0xff;
            at += 1;
        }
        len += 1;
    }
    blocks
};

/// [`is_odd_name`] of the first `len` bytes of a block, [`BLOCK`] at most. Each step is one for all bytes, and the compiler
/// makes one instruction of it: nearly every field of every request is looked at.
#[inline]
pub(super) fn has_odd_byte(block: &[u8; BLOCK], len: usize) -> bool {
    let first = &FIRST[len];
    let mut odd = [0_u8; BLOCK];
    for at in 0..BLOCK {
        let byte = block[at];
        // Each is 0 unless the byte is of its kind.
        let letter = 26_u8.saturating_sub((byte | 0x20).wrapping_sub(b'a'));
        let digit = 10_u8.saturating_sub(byte.wrapping_sub(b'0'));
        let hyphen = 1_u8.saturating_sub(byte ^ b'-');
        odd[at] = 1_u8.saturating_sub(letter | digit | hyphen) & first[at];
    }
    u128::from_ne_bytes(odd) != 0
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
        for len in 1..=16 {
            for at in 0..len {
                for byte in 0..=255 {
                    // What stands behind the name is no part of it.
                    let mut block = [b':'; 16];
                    block[..len].fill(b"aZ-9"[len % 4]);
                    block[at] = byte;
                    let wanted = !byte.is_ascii_alphanumeric() && byte != b'-';
                    let name = &block[..len];
                    assert_eq!(has_odd_byte(&block, len), wanted, "{}", name.escape_ascii());
                    assert_eq!(is_odd_name(name), wanted, "{}", name.escape_ascii());
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

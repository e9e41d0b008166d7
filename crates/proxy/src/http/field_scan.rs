//! One pass over the fields of a head: what an intermediary must know of them.

use weir_core::client_close;

use super::Refusal;
use super::field::{self, FieldSet, Known};
use super::framing::{BodyKind, LENGTH_LIMIT, Method, ReplyFacts, RequestFacts, Version};
use super::lines::Lines;
use super::target::Authority;

/// More connection options than any peer sends; each costs a look at every field.
const MAX_OPTIONS: usize = 16;

/// Whose head it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Request,
    Reply,
}

/// What the fields of one head say, before the start line is taken into account.
#[derive(Debug, Default)]
pub(super) struct FieldScan {
    /// Fields that end at this proxy.
    pub(super) dropped: FieldSet,
    /// All lines of `Forwarded`: for whom the client says it speaks.
    pub(super) forwarded: FieldSet,
    /// All lines of `X-Forwarded-For`.
    pub(super) x_forwarded_for: FieldSet,
    /// The line of `Host`.
    pub(super) host_line: FieldSet,
    pub(super) has_date: bool,
    pub(super) has_via: bool,
    /// The client takes trailers.
    pub(super) te_trailers: bool,
    /// The lines of `Content-Length` and `Transfer-Encoding`.
    pub(super) framing: FieldSet,
    /// Lines that are sent in another form than they came in, such as `Content-Length:\t010 `: a reader
    /// that is lenient in another way would see another message in them.
    pub(super) anew: FieldSet,
    /// Fields of a request whose name has another character than letters, digits and `-`.
    pub(super) odd_names: FieldSet,
    host: Option<usize>,
    length: Option<u64>,
    coding: Option<Coding>,
    upgrade_lines: FieldSet,
    upgrade_is_hidden_http: bool,
    expect_lines: FieldSet,
    expectation: Option<Expectation>,
    max_forwards: Option<usize>,
    options: Options,
}

/// What `Transfer-Encoding` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Coding {
    Chunked,
    Refused(Refusal),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expectation {
    Continue,
    Unknown,
}

/// What `Connection` says.
#[derive(Debug, Default)]
struct Options {
    count: usize,
    close: bool,
    keep_alive: bool,
    upgrade: bool,
    client_close: bool,
    /// It names further fields that end here.
    nominates: bool,
}

impl FieldScan {
    pub(super) fn of(lines: &Lines, side: Side) -> Result<Self, Refusal> {
        let mut scan = Self::default();
        for (index, field) in lines.fields.iter().enumerate() {
            let name = Known::of(field.name);
            scan.visit(index, name, field.value, side)?;
            if name == Known::Other {
                if side == Side::Request && lines.has_odd_name(field) {
                    scan.odd_names.insert(index);
                }
            } else if let Some(value) = name.canonical_value(field.value)
                && !lines.is_written_as(field, value)
            {
                scan.anew.insert(index);
            }
        }
        if scan.options.nominates {
            scan.drop_nominated(lines, side)?;
        }
        if scan.length.is_some() && scan.coding.is_some() {
            return Err(Refusal::LengthAndCoding);
        }
        Ok(scan)
    }

    #[inline]
    fn visit(
        &mut self,
        index: usize,
        name: Known,
        value: &[u8],
        side: Side,
    ) -> Result<(), Refusal> {
        match name {
            Known::Other => {}
            Known::Connection => {
                self.dropped.insert(index);
                self.options.read(value)?;
            }
            Known::KeepAlive | Known::ProxyConnection | Known::Http2Settings => {
                self.dropped.insert(index);
            }
            // Credentials for a proxy must not reach the origin, nor an origin's demand for them the
            // client. `Proxy` would be HTTP_PROXY to a CGI program.
            Known::Proxy | Known::ProxyAuthorization if side == Side::Request => {
                self.dropped.insert(index);
            }
            Known::ProxyAuthenticate | Known::ProxyAuthenticationInfo if side == Side::Reply => {
                self.dropped.insert(index);
            }
            Known::Te => {
                self.dropped.insert(index);
                self.te_trailers |=
                    field::members(value).any(|coding| coding.eq_ignore_ascii_case(b"trailers"));
            }
            Known::ContentLength => self.read_length(index, value)?,
            Known::TransferEncoding => self.read_coding(index, value),
            Known::Host if side == Side::Request => {
                if self.host.replace(index).is_some() {
                    return Err(Refusal::HostTwice);
                }
                self.host_line.insert(index);
            }
            Known::Upgrade => {
                self.upgrade_lines.insert(index);
                self.upgrade_is_hidden_http |= field::members(value).any(is_http);
            }
            Known::Expect => {
                self.expect_lines.insert(index);
                let only =
                    self.expectation.is_none() && value.eq_ignore_ascii_case(b"100-continue");
                self.expectation = Some(match only {
                    true => Expectation::Continue,
                    false => Expectation::Unknown,
                });
            }
            Known::MaxForwards => self.max_forwards = Some(index),
            Known::Forwarded => self.forwarded.insert(index),
            Known::XForwardedFor => self.x_forwarded_for.insert(index),
            Known::Via => self.has_via = true,
            Known::Date => self.has_date = true,
            _ => {}
        }
        Ok(())
    }

    fn read_length(&mut self, index: usize, value: &[u8]) -> Result<(), Refusal> {
        let length = field::decimal(value).filter(|&length| length < LENGTH_LIMIT);
        let length = length.ok_or(Refusal::Length)?;
        self.framing.insert(index);
        match self.length.replace(length) {
            Some(_) => Err(Refusal::LengthTwice),
            None => Ok(()),
        }
    }

    /// A message with both a length and a coding is refused for that, whatever the coding: so the
    /// coding's own fault is only noted.
    fn read_coding(&mut self, index: usize, value: &[u8]) {
        self.framing.insert(index);
        self.coding = Some(match self.coding {
            Some(_) => Coding::Refused(Refusal::CodingTwice),
            None => Coding::of(value),
        });
    }

    /// Drops the fields that `Connection` names (RFC 9110 Section 7.6.1).
    #[cold]
    fn drop_nominated(&mut self, lines: &Lines, side: Side) -> Result<(), Refusal> {
        for option in lines.values("connection").flat_map(field::members) {
            // Upgrade has a meaning of its own, decided elsewhere.
            if option.eq_ignore_ascii_case(b"upgrade") {
                continue;
            }
            if Known::frames_or_routes(option) {
                match side {
                    Side::Request => return Err(Refusal::Nominated),
                    // Servers that follow RFC 2616 name Transfer-Encoding; it is heeded here.
                    Side::Reply => continue,
                }
            }
            for (index, field) in lines.fields.iter().enumerate() {
                if field.name.as_bytes().eq_ignore_ascii_case(option) {
                    self.dropped.insert(index);
                }
            }
        }
        Ok(())
    }

    /// What a request's fields say of its body and its connection. `len`: bytes of the head.
    pub(super) fn request_facts(
        &mut self,
        method: Method,
        version: Version,
        len: usize,
    ) -> Result<RequestFacts, Refusal> {
        let body = self.request_body(method, version)?;
        let upgrade = self.upgrade(version);
        let expects_continue = self.expects_continue(version, body)?;
        Ok(RequestFacts {
            len,
            method,
            version,
            body,
            keep_alive: self.options.persist(version),
            expects_continue,
            upgrade,
            client_close: self.options.is_client_close(version),
        })
    }

    /// The authority in `Host`.
    pub(super) fn host<'a>(
        &self,
        lines: &Lines<'a>,
        version: Version,
    ) -> Result<Option<Authority<'a>>, Refusal> {
        let Some(index) = self.host else {
            return match version {
                Version::Http10 => Ok(None),
                Version::Http11 => Err(Refusal::HostMissing),
            };
        };
        let text = std::str::from_utf8(lines.fields[index].value);
        let authority = text.ok().and_then(Authority::parse);
        authority.map(Some).ok_or(Refusal::Host)
    }

    fn request_body(&self, method: Method, version: Version) -> Result<BodyKind, Refusal> {
        let body = match self.coding {
            Some(_) if version == Version::Http10 => return Err(Refusal::CodingVersion),
            Some(Coding::Refused(reason)) => return Err(reason),
            Some(Coding::Chunked) => BodyKind::Chunked,
            None => match self.length {
                None | Some(0) => BodyKind::None,
                Some(length) => BodyKind::Length(length),
            },
        };
        match method {
            Method::Connect | Method::Trace | Method::ClientClose if body != BodyKind::None => {
                Err(Refusal::BodyNotAllowed)
            }
            _ => Ok(body),
        }
    }

    /// Whether the client may leave HTTP. It may not for another HTTP (`h2c`), whose requests would
    /// pass through the tunnel unseen; such an offer is taken as not made.
    fn upgrade(&mut self, version: Version) -> bool {
        let upgrade = self.options.upgrade
            && self.upgrade_lines != FieldSet::default()
            && !self.upgrade_is_hidden_http
            && version == Version::Http11;
        if !upgrade {
            self.dropped.insert_all(self.upgrade_lines);
        }
        upgrade
    }

    /// A 1.0 client's expectation is ignored (RFC 9110 Section 10.1.1), and one without a body is void.
    fn expects_continue(&mut self, version: Version, body: BodyKind) -> Result<bool, Refusal> {
        let heeded = version == Version::Http11;
        if heeded && self.expectation == Some(Expectation::Unknown) {
            return Err(Refusal::Expectation);
        }
        let expects = heeded && body != BodyKind::None && self.expectation.is_some();
        if !expects {
            self.dropped.insert_all(self.expect_lines);
        }
        Ok(expects)
    }

    /// What `Max-Forwards` says, if the method heeds it: the line is written anew then.
    pub(super) fn max_forwards(&mut self, method: Method, lines: &Lines) -> Option<u64> {
        let index = self.max_forwards?;
        if !matches!(method, Method::Trace | Method::Options) {
            return None;
        }
        let count = field::decimal(lines.fields[index].value)?;
        self.dropped.insert(index);
        Some(count)
    }

    /// The outgoing head says nothing of a body's end.
    fn drop_framing(&mut self) {
        self.dropped.insert_all(self.framing);
    }

    pub(super) fn has_coding(&self) -> bool {
        self.coding.is_some()
    }

    /// What a reply's fields say of its body and its connection. `len`: bytes of the head.
    pub(super) fn reply_facts(
        &mut self,
        status: u16,
        version: Version,
        request: &RequestFacts,
        len: usize,
    ) -> Result<ReplyFacts, Refusal> {
        if status < 100 {
            return Err(Refusal::Status);
        }
        let body = self.reply_body(status, version, request)?;
        if status != 101 {
            self.dropped.insert_all(self.upgrade_lines);
        }
        let framed = self.length.is_some_and(|length| length > 0) || self.coding.is_some();
        let has_no_framing = status < 200 || status == 204;
        // A server that stays with HTTP may have taken the body of such a request for the first bytes of the other protocol,
        // and so for no part of the request, or for the next one.
        let is_ambiguous = request.upgrade && request.body != BodyKind::None;
        if has_no_framing || body == BodyKind::Tunnel {
            self.drop_framing();
        }
        Ok(ReplyFacts {
            len,
            status,
            version,
            body,
            // A server that gives 204 a body may send it, too.
            keep_alive: self.options.persist(version)
                && !matches!(body, BodyKind::UntilClose | BodyKind::Tunnel)
                && !(has_no_framing && framed || is_ambiguous),
            client_close: self.options.is_client_close(version),
        })
    }

    /// RFC 9112 Section 6.3, in its order.
    fn reply_body(
        &self,
        status: u16,
        version: Version,
        request: &RequestFacts,
    ) -> Result<BodyKind, Refusal> {
        match (status, request.method) {
            (101, _) if !request.upgrade => return Err(Refusal::Switch),
            (101, _) if self.upgrade_lines == FieldSet::default() => {
                return Err(Refusal::SwitchUnnamed);
            }
            (101, _) => return Ok(BodyKind::Tunnel),
            (200..300, Method::Connect) => return Ok(BodyKind::Tunnel),
            (100..200 | 204, _) => return Ok(BodyKind::None),
            _ => {}
        }
        let body = match self.coding {
            Some(_) if version == Version::Http10 => return Err(Refusal::CodingVersion),
            Some(Coding::Refused(reason)) => return Err(reason),
            Some(Coding::Chunked) => BodyKind::Chunked,
            None => match self.length {
                None => BodyKind::UntilClose,
                Some(0) => BodyKind::None,
                Some(length) => BodyKind::Length(length),
            },
        };
        match (status, request.method) {
            (304, _) | (_, Method::Head) => Ok(BodyKind::None),
            _ => Ok(body),
        }
    }
}

impl Coding {
    fn of(value: &[u8]) -> Self {
        if value.eq_ignore_ascii_case(b"chunked") {
            return Self::Chunked;
        }
        let is_chunked = |coding: &[u8]| coding.eq_ignore_ascii_case(b"chunked");
        let chunked = field::members(value)
            .filter(|coding| is_chunked(coding))
            .count();
        let ends_in_chunked = field::members(value).last().is_some_and(is_chunked);
        let several = field::members(value).count() > 1;
        Self::Refused(match chunked == 1 && ends_in_chunked && several {
            true => Refusal::Coding,
            false => Refusal::CodingFinal,
        })
    }
}

impl Options {
    fn read(&mut self, value: &[u8]) -> Result<(), Refusal> {
        for option in field::members(value) {
            self.count += 1;
            if option.eq_ignore_ascii_case(b"close") {
                self.close = true;
            } else if option.eq_ignore_ascii_case(b"keep-alive") {
                self.keep_alive = true;
            } else if option.eq_ignore_ascii_case(b"upgrade") {
                self.upgrade = true;
            } else {
                self.client_close |= client_close::is_option(option);
                self.nominates = true;
            }
        }
        match self.count > MAX_OPTIONS {
            true => Err(Refusal::TooManyOptions),
            false => Ok(()),
        }
    }

    /// RFC 9112 Section 9.3, without what is special to a proxy.
    fn persist(&self, version: Version) -> bool {
        !self.close && (version == Version::Http11 || self.keep_alive)
    }

    fn is_client_close(&self, version: Version) -> bool {
        self.client_close && version == Version::Http11
    }
}

/// Whether an upgrade's protocol is HTTP again, or hides it.
fn is_http(protocol: &[u8]) -> bool {
    let starts_with = |name: &[u8]| {
        let start = protocol.get(..name.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(name))
    };
    starts_with(b"h2") || starts_with(b"http/") || starts_with(b"tls/")
}

//! Reads the head of a request or a reply: strict where two readers could disagree.
//!
//! httparse splits the lines; what it accepts beyond RFC 9112 (lines that end in a bare LF, several
//! empty lines in front, targets outside ASCII) is refused here. Then one pass over the fields finds
//! what an intermediary must know: where the body ends, whether the connection lives on, and which
//! fields end here. Whatever is ambiguous is refused, not repaired: a repair is a guess at what the
//! next reader will see.

use std::mem::MaybeUninit;

use httparse::{Header, Status};

use super::Refusal;
use super::diagnosis;
use super::field::{self, FieldSet};
use super::field_scan::{FieldScan, Side};
use super::framing::{Method, ReplyFacts, RequestFacts, Version};
use super::limits::Limits;
use super::lines::Lines;
use super::target::{Authority, Target};

/// A method and the version beside a target in the longest first line that is waited for.
const LONGEST_AROUND_TARGET: usize = 256;

/// Memory for the fields of one head: 4 KiB that cost nothing to make. Best kept on the stack of a
/// function that does not await, so that it is no part of a connection's memory.
pub struct FieldSlots<'b>([MaybeUninit<Header<'b>>; FieldSet::CAPACITY]);

impl FieldSlots<'_> {
    /// The largest number of fields in one head.
    pub const CAPACITY: usize = FieldSet::CAPACITY;

    /// Empty slots.
    #[inline]
    pub fn new() -> Self {
        Self([const { MaybeUninit::uninit() }; FieldSet::CAPACITY])
    }
}

impl<'b> FieldSlots<'b> {
    fn up_to(&mut self, limits: &Limits) -> &mut [MaybeUninit<Header<'b>>] {
        &mut self.0[..limits.fields.min(Self::CAPACITY)]
    }
}

impl Default for FieldSlots<'_> {
    fn default() -> Self {
        Self::new()
    }
}

/// A request's head that is fit to be passed on.
#[derive(Debug)]
pub struct RequestHead<'a> {
    /// What is needed after the buffer is gone.
    pub facts: RequestFacts,
    /// The method as written.
    pub method: &'a str,
    /// What is asked for.
    pub target: Target<'a>,
    /// The authority in `Host`; absent only from HTTP/1.0 requests.
    pub host: Option<Authority<'a>>,
    /// How many more proxies TRACE and OPTIONS may cross (RFC 9110 Section 7.6.2); at 0 this proxy
    /// answers. `None` for all other methods.
    pub max_forwards: Option<u64>,
    pub(super) lines: Lines<'a>,
    pub(super) scan: FieldScan,
}

/// A reply's head that is fit to be passed on.
#[derive(Debug)]
pub struct ReplyHead<'a> {
    /// What is needed after the buffer is gone.
    pub facts: ReplyFacts,
    pub(super) lines: Lines<'a>,
    pub(super) scan: FieldScan,
}

impl RequestHead<'_> {
    /// The request line as it came, without its CRLF.
    pub fn request_line(&self) -> &[u8] {
        self.lines.start_line()
    }

    /// The values of all lines with this name, in order.
    pub fn values<'s>(&'s self, name: &'s str) -> impl Iterator<Item = &'s [u8]> {
        self.lines.values(name)
    }

    /// The names with another character than letters, digits and `-`, in order.
    pub fn odd_names(&self) -> impl Iterator<Item = &str> {
        let fields = self.lines.fields;
        self.scan.odd_names.map(|index| fields[index].name)
    }
}

impl ReplyHead<'_> {
    /// Whether 101 goes over to what the request offered (RFC 9110 Section 7.8), given the values of
    /// its `Upgrade`.
    ///
    /// # Errors
    /// [`Refusal::SwitchOther`]: the server may take the client's bytes in the tunnel for something else.
    pub fn switches_to<'o>(
        &self,
        offered: impl Iterator<Item = &'o [u8]> + Clone,
    ) -> Result<(), Refusal> {
        let is_offered = |protocol: &[u8]| {
            let mut offers = offered.clone().flat_map(field::members);
            offers.any(|offer| offer.eq_ignore_ascii_case(protocol))
        };
        let mut taken = self.values("upgrade").flat_map(field::members).peekable();
        match taken.peek().is_some() && taken.all(is_offered) {
            true => Ok(()),
            false => Err(Refusal::SwitchOther),
        }
    }

    /// The values of all lines with this name, in order.
    pub fn values<'s>(&'s self, name: &'s str) -> impl Iterator<Item = &'s [u8]> {
        self.lines.values(name)
    }
}

/// Reads the head of a request at the start of `buf`; `None` when more bytes are needed.
///
/// `seen` is how many bytes of `buf` an earlier call has found too few, 0 in the first: a head that
/// arrives byte by byte is then not read anew for each. One empty line in front is skipped
/// (RFC 9112 Section 2.2).
///
/// # Errors
/// The request must be refused with [`Refusal::status`], and the connection closed: where the
/// request ends is not known.
pub fn read_request<'h, 'b: 'h>(
    buf: &'b [u8],
    seen: usize,
    limits: &Limits,
    slots: &'h mut FieldSlots<'b>,
) -> Result<Option<RequestHead<'h>>, Refusal> {
    let start = match buf {
        [b'\r'] => return Ok(None),
        [b'\r', b'\n', ..] => 2,
        _ => 0,
    };
    let bytes = &buf[start..];
    if let [b'\r' | b'\n', ..] = bytes {
        return Err(Refusal::RequestLine);
    }
    if no_new_line(buf, seen) {
        return unfinished(bytes, limits);
    }
    let mut parsed = httparse::Request::new(&mut []);
    let len = match parsed.parse_with_uninit_headers(bytes, slots.up_to(limits)) {
        Ok(Status::Complete(len)) => len,
        Ok(Status::Partial) => return unfinished(bytes, limits),
        Err(error) => return Err(diagnosis::of_request(bytes, error)),
    };
    let (Some(method), Some(target), Some(minor)) = (parsed.method, parsed.path, parsed.version)
    else {
        return Err(Refusal::RequestLine);
    };
    if target.len() > limits.target_bytes {
        return Err(Refusal::TargetTooLong);
    }
    let start_line = method.len() + target.len() + "  HTTP/1.1".len();
    let lines = Lines::new(&bytes[..len], start_line, parsed.headers, limits)?;
    let (kind, version) = (Method::of(method), version(minor));
    let mut scan = FieldScan::of(&lines, Side::Request)?;
    let target = Target::parse(target, kind)?;
    let host = scan.host(&lines, version)?;
    let facts = scan.request_facts(kind, version, start + len)?;
    let max_forwards = scan.max_forwards(kind, &lines);
    Ok(Some(RequestHead {
        facts,
        method,
        target,
        host,
        max_forwards,
        lines,
        scan,
    }))
}

/// Reads the head of a reply to `request` at the start of `buf`; `None` when more bytes are needed.
/// `seen` is as for [`read_request`].
///
/// # Errors
/// The client gets 502, and the server's connection must be closed.
pub fn read_reply<'h, 'b: 'h>(
    buf: &'b [u8],
    seen: usize,
    request: &RequestFacts,
    limits: &Limits,
    slots: &'h mut FieldSlots<'b>,
) -> Result<Option<ReplyHead<'h>>, Refusal> {
    if let [b'\r' | b'\n', ..] = buf {
        return Err(Refusal::StatusLine);
    }
    if no_new_line(buf, seen) {
        return unfinished(buf, limits);
    }
    let mut parsed = httparse::Response::new(&mut []);
    let len = match httparse::ParserConfig::default().parse_response_with_uninit_headers(
        &mut parsed,
        buf,
        slots.up_to(limits),
    ) {
        Ok(Status::Complete(len)) => len,
        Ok(Status::Partial) => return unfinished(buf, limits),
        Err(error) => return Err(diagnosis::of_reply(buf, error)),
    };
    let (Some(status), Some(minor)) = (parsed.code, parsed.version) else {
        return Err(Refusal::StatusLine);
    };
    let start_line = match memchr::memchr(b'\n', buf) {
        Some(lf) if lf > 0 => lf - 1,
        _ => return Err(Refusal::StatusLine),
    };
    let lines = Lines::new(&buf[..len], start_line, parsed.headers, limits)?;
    let mut scan = FieldScan::of(&lines, Side::Reply)?;
    let facts = scan.reply_facts(status, version(minor), request, len)?;
    Ok(Some(ReplyHead { facts, lines, scan }))
}

fn version(minor: u8) -> Version {
    match minor {
        0 => Version::Http10,
        _ => Version::Http11,
    }
}

/// A head that was found unfinished stays so until another line ends.
fn no_new_line(buf: &[u8], seen: usize) -> bool {
    seen > 0 && memchr::memchr(b'\n', buf.get(seen..).unwrap_or_default()).is_none()
}

/// More bytes may come, unless there are too many already.
fn unfinished<T>(bytes: &[u8], limits: &Limits) -> Result<Option<T>, Refusal> {
    let line_is_open = |longest| bytes.len() > longest && memchr::memchr(b'\n', bytes).is_none();
    if line_is_open(limits.target_bytes + LONGEST_AROUND_TARGET) {
        return Err(Refusal::TargetTooLong);
    }
    if bytes.len() > limits.head_bytes {
        return Err(Refusal::HeadTooLong);
    }
    Ok(None)
}

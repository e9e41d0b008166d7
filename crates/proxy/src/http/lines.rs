//! The lines of a head, as bytes of the buffer they arrived in.

use httparse::Header;

use super::Refusal;
use super::field::{BLOCK, FieldSet, Known, has_odd_byte, is_odd_name};
use super::limits::Limits;

/// A head whose every line ends in CRLF.
#[derive(Debug)]
pub(super) struct Lines<'a> {
    /// From the start line to the empty line, which is included.
    pub(super) raw: &'a [u8],
    /// Bytes of the start line without its CRLF.
    pub(super) start_line: usize,
    pub(super) fields: &'a [Header<'a>],
}

impl<'a> Lines<'a> {
    /// `raw` and `fields` as httparse left them: it takes a bare LF for a line's end, but no CR
    /// without LF.
    pub(super) fn new(
        raw: &'a [u8],
        start_line: usize,
        fields: &'a [Header<'a>],
        limits: &Limits,
    ) -> Result<Self, Refusal> {
        if raw.len() > limits.head_bytes {
            return Err(Refusal::HeadTooLong);
        }
        let lines = Self {
            raw,
            start_line,
            fields,
        };
        let all_end_in_cr = raw[start_line] == b'\r'
            && raw[raw.len() - 2] == b'\r'
            && fields.iter().all(|field| lines.value_ends_in_cr(field));
        if all_end_in_cr {
            Ok(lines)
        } else {
            Err(Refusal::BareLf)
        }
    }

    /// The first line without its CRLF.
    pub(super) fn start_line(&self) -> &'a [u8] {
        &self.raw[..self.start_line]
    }

    fn value_ends_in_cr(&self, field: &Header) -> bool {
        let end = self.offset(field.value) + field.value.len();
        let after = self.raw[end..].iter();
        after.copied().find(|byte| !matches!(byte, b' ' | b'\t')) == Some(b'\r')
    }

    fn offset(&self, part: &[u8]) -> usize {
        part.as_ptr() as usize - self.raw.as_ptr() as usize
    }

    /// Where the line of a field begins; of the number of fields: where the empty line begins.
    fn line(&self, index: usize) -> usize {
        match self.fields.get(index) {
            Some(field) => self.offset(field.name.as_bytes()),
            None => self.raw.len() - "\r\n".len(),
        }
    }

    /// Whether a field's line is its name, `: `, this value and CRLF, and no more.
    #[inline]
    pub(super) fn is_written_as(&self, field: &Header, value: &[u8]) -> bool {
        let colon = self.offset(field.name.as_bytes()) + field.name.len();
        let start = self.offset(field.value);
        start == colon + ": ".len()
            && self.raw[colon + 1] == b' '
            && self.raw[start + field.value.len()] == b'\r'
            && (std::ptr::eq(value, field.value) || value == field.value)
    }

    /// Whether a field's name has another character than letters, digits and `-`.
    #[inline]
    pub(super) fn has_odd_name(&self, field: &Header) -> bool {
        let mut name = field.name.as_bytes();
        let mut rest = &self.raw[self.offset(name)..];
        // There is nearly always as much behind a name: its value and other lines.
        while let Some(block) = rest.first_chunk::<BLOCK>() {
            let len = name.len().min(BLOCK);
            if has_odd_byte(block, len) {
                return true;
            }
            (name, rest) = (&name[len..], &rest[len..]);
            if name.is_empty() {
                return false;
            }
        }
        is_odd_name(name)
    }

    /// Appends the lines from `from` on, without those of `dropped` and without the empty line; those of
    /// `anew` with their canonical value. Lines that stand together are copied together.
    pub(super) fn copy(&self, from: usize, dropped: FieldSet, anew: FieldSet, out: &mut Vec<u8>) {
        let anew = anew.without(dropped);
        let has_anew = anew != FieldSet::default();
        let mut not_copied = dropped;
        not_copied.insert_all(anew);
        let mut start = from;
        for index in not_copied {
            let end = self.line(index);
            if start < end {
                out.extend_from_slice(&self.raw[start..end]);
            }
            if has_anew && anew.contains(index) {
                self.write_anew(index, out);
            }
            start = self.line(index + 1);
        }
        out.extend_from_slice(&self.raw[start..self.line(self.fields.len())]);
    }

    #[cold]
    fn write_anew(&self, index: usize, out: &mut Vec<u8>) {
        let Header { name, value } = self.fields[index];
        let canonical = Known::of(name).canonical_value(value).unwrap_or(value);
        for part in [name.as_bytes(), b": ", canonical, b"\r\n"] {
            out.extend_from_slice(part);
        }
    }

    /// Where the first field's line begins.
    pub(super) fn after_start_line(&self) -> usize {
        self.start_line + "\r\n".len()
    }

    /// The values of all lines with this name, in order.
    pub(super) fn values<'s>(&'s self, name: &'s str) -> impl Iterator<Item = &'a [u8]> + 's {
        let fields = self.fields.iter();
        fields
            .filter(|field| field.name.eq_ignore_ascii_case(name))
            .map(|field| field.value)
    }
}

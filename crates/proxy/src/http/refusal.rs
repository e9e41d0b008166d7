//! Why a message is not forwarded.

reasons! {
    /// Why a message is refused.
    ///
    /// In a request it is answered with [`Refusal::status`]; a reply that is refused becomes 502
    /// (RFC 9112 Section 6.3), whatever the reason. The name is in kebab case.
    pub enum Refusal {
        // The start line (RFC 9112 Sections 3 and 4).
        RequestLine, 400, "request-line", "the first line is not a method, a target and HTTP/1.x with one space between";
        StatusLine, 502, "status-line", "the first line is not HTTP/1.x, a status and a reason with one space between";
        Version, 505, "version", "the protocol version is neither HTTP/1.0 nor HTTP/1.1";
        Http2, 505, "http2", "this is HTTP/2, and the proxy speaks HTTP/1.0 and HTTP/1.1 here (mode tcp passes HTTP/2 through)";
        Tls, 400, "tls", "this is TLS, and the proxy speaks plain HTTP here (mode tcp passes TLS through)";
        Target, 400, "target", "the request target has a form or a character that is not allowed here";
        TargetTooLong, 414, "target-too-long", "the request target is longer than the limit";
        Scheme, 501, "scheme", "the scheme of the request target is not http";

        // Lines and fields (RFC 9112 Sections 2.2 and 5).
        BareLf, 400, "bare-lf", "a line ends in LF without CR";
        BareCr, 400, "bare-cr", "a CR is not followed by LF";
        FieldName, 400, "field-name", "a field name is not a token followed by a colon";
        FieldNameSpace, 400, "field-name-space", "whitespace stands between a field name and its colon";
        Folded, 400, "folded", "a line begins with whitespace (obs-fold)";
        FieldValue, 400, "field-value", "a control character stands in a field value";
        TooManyFields, 431, "too-many-fields", "there are more fields than the limit";
        HeadTooLong, 431, "head-too-long", "the head is longer than the limit";

        // Routing (RFC 9112 Section 3.2).
        HostMissing, 400, "host-missing", "an HTTP/1.1 request has no Host";
        HostTwice, 400, "host-twice", "there is more than one Host";
        Host, 400, "host", "Host is not a host with an optional port";
        Loop, 508, "loop", "the request passed through this proxy too often";

        // Framing (RFC 9112 Sections 6 and 7).
        Length, 400, "length", "Content-Length is not one decimal number below 2^53";
        LengthTwice, 400, "length-twice", "there is more than one Content-Length";
        LengthAndCoding, 400, "length-and-coding", "there are both Content-Length and Transfer-Encoding";
        Coding, 501, "coding", "Transfer-Encoding names a coding other than `chunked`";
        CodingTwice, 400, "coding-twice", "there is more than one Transfer-Encoding";
        CodingFinal, 400, "coding-final", "`chunked` is not the last transfer coding, or not the only one of its name";
        CodingVersion, 400, "coding-version", "Transfer-Encoding in HTTP/1.0";
        BodyNotAllowed, 400, "body-not-allowed", "CONNECT, TRACE and CLIENT_CLOSE have no body";
        Nominated, 400, "nominated", "Connection names a field that is not only for this connection";
        TooManyOptions, 400, "too-many-options", "Connection has more than 16 options";
        ChunkSize, 400, "chunk-size", "a chunk size is not 1 to 16 hexadecimal digits, below 2^53";
        ChunkExtension, 400, "chunk-extension", "a chunk extension is malformed or too long";
        ChunkEnd, 400, "chunk-end", "chunk data is not followed by CRLF";
        Trailer, 400, "trailer", "a trailer field is malformed, or names a field that is not allowed there";
        TrailersTooLong, 431, "trailers-too-long", "the trailer section is longer than the limit";

        // Conversation (RFC 9110 Sections 7.8, 10.1.1 and 15).
        Expectation, 417, "expectation", "Expect is not `100-continue`";
        Status, 502, "status", "the status is below 100";
        TooManyInterim, 502, "too-many-interim", "there are more than 1000 interim replies";
        Switch, 502, "switch", "101 to a request that did not ask for an upgrade";
        SwitchUnnamed, 502, "switch-unnamed", "101 without Upgrade";
        SwitchOther, 502, "switch-other", "101 to a protocol that was not offered";
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.text())
    }
}

impl std::error::Error for Refusal {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_is_in_the_documentation() {
        let table = include_str!("../../../../docs/design/http.md");
        for reason in Refusal::ALL {
            let (name, status, text) = (reason.name(), reason.status(), reason.text());
            let row = format!("| `{name}` | {status} | {text} |");
            assert!(
                table.lines().any(|line| line == row),
                "docs/design/http.md lacks {row}"
            );
        }
    }
}

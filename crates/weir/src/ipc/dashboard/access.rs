//! Who may read the dashboard, and what its page may do.
//!
//! Without a token only programs of this machine can connect. A page of a foreign site in a browser of this machine is such a
//! program, but its questions name that site as `Host`, also if the site's name leads here (DNS rebinding): they are refused.
//! With a token, its owner may read from anywhere: a foreign page has no token, whatever its name leads to.

use std::hint::black_box;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::failure::{Code, Failure, Result};
use crate::host::file::read_text;
use crate::ipc::reply::Refused;

/// Shorter tokens can be guessed; longer ones are another file.
const TOKEN_BYTES: std::ops::RangeInclusive<usize> = 16..=512;

/// What else may stand behind the token's line.
const MOST_FILE_BYTES: u64 = 64 << 10;

/// How a token is made, for hints.
const MAKE: &str = "make one: `(umask 077; head -c 24 /dev/urandom | base64 >FILE)`";

/// What a browser lets the page do: nothing but to load its own files and to ask this address.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// What who reads the dashboard must know.
#[derive(Clone)]
pub struct Token(Arc<[u8]>);

impl Token {
    /// Reads it: the first line of a file.
    ///
    /// # Errors
    /// There is no such file, or no token in it.
    pub fn read(file: &Path) -> Result<Token> {
        let name = file.display();
        let text = read_text(file, MOST_FILE_BYTES).map_err(|error| {
            let failure = Failure::io(format_args!("read the dashboard's token {name}"), error);
            usage(failure, &MAKE.replace("FILE", &name.to_string()))
        })?;
        let others_may = std::fs::metadata(file).is_ok_and(|file| file.mode() & 0o077 != 0);
        if others_may {
            tracing::warn!(
                "{name}: other users may read the dashboard's token: `chmod 600 {name}`"
            );
        }
        Token::parse(&text).ok_or_else(|| {
            let what = "has no token: a line of 16 to 512 visible ASCII characters";
            Failure::usage(
                format!("[dashboard] token_file: {name} {what}"),
                MAKE.replace("FILE", &name.to_string()),
            )
        })
    }

    fn parse(text: &str) -> Option<Token> {
        let line = text.lines().next()?.trim();
        let is_token =
            TOKEN_BYTES.contains(&line.len()) && line.bytes().all(|b| b.is_ascii_graphic());
        is_token.then(|| Token(line.as_bytes().into()))
    }

    /// Whether a request brings it. The time that this takes says nothing of how much of a guess was right.
    fn is_in(&self, authorization: Option<&HeaderValue>) -> bool {
        let given = authorization.and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
        let Some(given) = given.filter(|given| given.len() == self.0.len()) else {
            return false;
        };
        let different = given
            .iter()
            .zip(self.0.iter())
            .fold(0, |different, (a, b)| different | black_box(a ^ b));
        black_box(different) == 0
    }
}

/// A missing file is a wrong config; what to do about it depends on why it cannot be read.
fn usage(failure: Failure, make: &str) -> Failure {
    let mut failure = failure;
    failure.code = Code::Usage;
    for cause in &mut failure.causes {
        if cause.hint.is_empty() {
            make.clone_into(&mut cause.hint);
        }
    }
    failure
}

/// Lets by who has the token.
pub async fn by_token(State(token): State<Token>, request: Request, next: Next) -> Response {
    if token.is_in(request.headers().get(header::AUTHORIZATION)) {
        return next.run(request).await;
    }
    let hint = "send `Authorization: Bearer TOKEN`, with the token in the file that [dashboard] token_file names";
    let refused = refuse(
        StatusCode::UNAUTHORIZED,
        "the dashboard's figures need its token",
        hint,
    );
    ([(header::WWW_AUTHENTICATE, "Bearer")], refused).into_response()
}

/// Lets by who asks this machine by a name that only it has.
pub async fn by_host(request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST);
    if host.is_some_and(|host| host.to_str().is_ok_and(is_this_machine)) {
        return next.run(request).await;
    }
    let hint = "ask http://localhost or http://127.0.0.1; behind a proxy with another name set [dashboard] token_file";
    refuse(
        StatusCode::FORBIDDEN,
        "the Host of the request is not this machine",
        hint,
    )
}

/// Whether a `Host` is `localhost` or a loopback address, at any port: it may be forwarded.
fn is_this_machine(host: &str) -> bool {
    let is_port = |port: &str| port.parse::<u16>().is_ok();
    let name = match host.rsplit_once(':') {
        Some((name, port)) if is_port(port) && !name.is_empty() => name,
        _ => host,
    };
    if name.eq_ignore_ascii_case("localhost") {
        return true;
    }
    let in_brackets = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'));
    let address = match in_brackets {
        Some(v6) => v6.parse().ok().map(IpAddr::V6),
        None => name.parse().ok().map(IpAddr::V4),
    };
    address.is_some_and(|address| address.to_canonical().is_loopback())
}

fn refuse(status: StatusCode, message: &str, hint: &str) -> Response {
    Refused(status, Failure::usage(message, hint)).into_response()
}

/// Tells the browser what the page may do; nothing is kept in caches but the page's files.
pub async fn say_what_the_page_may(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    for name in ["cross-origin-opener-policy", "cross-origin-resource-policy"] {
        headers.insert(name, HeaderValue::from_static("same-origin"));
    }
    headers
        .entry(header::CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_a_foreign_site_cannot_have_are_this_machine() {
        for host in [
            "localhost",
            "LocalHost:9466",
            "127.0.0.1",
            "127.0.0.1:80",
            "127.1.2.3:80",
            "[::1]",
            "[::1]:9466",
            "[::ffff:127.0.0.1]:80",
        ] {
            assert!(is_this_machine(host), "{host}");
        }
        for host in [
            "",
            ":80",
            "evil.example",
            "evil.example:9466",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "10.0.0.1:9466",
            "[2001:db8::1]:9466",
            "::1",
            "localhost:x",
            "localhost:",
            "localhost:80:80",
            "[127.0.0.1]",
            "0.0.0.0",
            "127.0.0.1:99999",
            "2130706433",
            "user@localhost",
        ] {
            assert!(!is_this_machine(host), "{host}");
        }
    }

    #[test]
    fn only_the_whole_token_is_let_by() {
        let token = Token::parse("0123456789abcdef\n").unwrap();
        let with = |value: &'static str| token.is_in(Some(&HeaderValue::from_static(value)));
        assert!(with("Bearer 0123456789abcdef"));
        for wrong in [
            "",
            "Bearer",
            "Bearer ",
            "0123456789abcdef",
            "Basic 0123456789abcdef",
            "Bearer 0123456789abcdeg",
            "Bearer 1123456789abcdef",
            "Bearer 0123456789abcdef0",
            "Bearer 0123456789abcde",
        ] {
            assert!(!with(wrong), "{wrong}");
        }
        assert!(!token.is_in(None));
    }

    #[test]
    fn a_file_without_a_token_says_how_to_make_one() {
        for text in [
            "",
            "\n0123456789abcdef\n",
            "short\n",
            "sixteen with blanks in",
            &"x".repeat(513),
        ] {
            assert!(Token::parse(text).is_none(), "{text:?}");
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        let failure = Token::read(&file).err().unwrap();
        assert_eq!(failure.code, Code::Usage);
        assert!(failure.to_string().contains("/dev/urandom"), "{failure}");
        std::fs::write(&file, "short").unwrap();
        let failure = Token::read(&file).err().unwrap().to_string();
        assert!(failure.contains("16 to 512"), "{failure}");
        std::fs::write(&file, "0123456789abcdef\nwhat follows does not count\n").unwrap();
        assert!(Token::read(&file).is_ok());
    }
}

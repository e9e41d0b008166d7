//! What crates/fuzz reaches that is otherwise private to this crate.

use crate::cache::conditions::{self, Conditions, Part};
use crate::cache::control::RequestControl;
use crate::cache::fields::start_line;
use crate::cache::key;
use crate::cache::policy::{ExchangeTimes, terms};
use crate::http::rewrite::{self, ReplyEdit, RequestEdit};
use crate::http::{Delivery, FieldSlots, Limits, Role, read_reply, read_request};

/// Some second of 2026, and bytes of a kept body.
const NOW: u64 = 1_795_000_000;
const BODY_BYTES: u64 = 1000;

/// What the cache reads of heads: a request's, its reply's, and that of a 304, one behind the other.
///
/// # Panics
/// A head that the cache makes is none, or a part is not one of the body.
pub fn cache(data: &[u8]) {
    let limits = Limits::default();
    let mut slots = FieldSlots::new();
    let Ok(Some(asked)) = read_request(data, 0, &limits, &mut slots) else {
        return;
    };
    let edit = RequestEdit {
        via: "weir",
        default_host: "default.example",
        announce: None,
        close: false,
        drop_odd_names: true,
        client_close: false,
    };
    let (to, mut request) = (asked.facts, Vec::new());
    if rewrite::request(&asked, &edit, &mut request).is_err() {
        return;
    }
    is_request(&request);
    is_request(&conditions::unconditional(&request));
    let uri = key::uri(&request);
    assert_eq!(key::family(&uri), key::own_family(&request));
    let control = RequestControl::of(&request);
    let wanted = Conditions::of(&request);
    let _ = (
        conditions::is_for_the_server(&request),
        key::overrides_method(&request),
    );

    let mut heads = Vec::new();
    let mut rest = &data[to.len..];
    for _ in 0..2 {
        let mut slots = FieldSlots::new();
        let Ok(Some(head)) = read_reply(rest, 0, &to, &limits, &mut slots) else {
            break;
        };
        let delivery = Delivery::of(&to, &head.facts, Role::Reverse, false);
        let edit = ReplyEdit {
            via: "weir",
            date: Some("Thu, 01 Jan 1970 00:00:00 GMT"),
            delivery,
            client: to.version,
        };
        let mut out = Vec::new();
        rewrite::reply(&head, &edit, &mut out);
        heads.push((head.facts.status, out));
        rest = &rest[head.facts.len..];
    }
    let Some((status, reply)) = heads.first() else {
        return;
    };
    for field in ["location", "content-location"] {
        for target in crate::cache::fields::values(reply, field) {
            let sibling = key::sibling(&request, target);
            assert!(sibling.is_none_or(|sibling| key::family(&sibling) == sibling));
        }
    }
    if let Some(vary) = key::vary(reply) {
        assert_eq!(key::variant(&request, &vary), key::variant(&request, &vary));
    }
    let exchange = ExchangeTimes {
        sent: NOW,
        received: NOW + 1,
    };
    let kept = conditions::kept(reply);
    assert!(start_line(&kept) == start_line(reply) && kept.ends_with(b"\r\n"));
    if let Ok(terms) = terms(&request, reply, *status, exchange) {
        for age in [0, terms.lifetime, u64::from(u32::MAX)] {
            let _ = (
                terms.usage(age, &control),
                terms.usable_after_error(age, &control),
            );
            assert_eq!(terms.time_to_live(age) > 0, age < terms.lifetime);
        }
    }
    match wanted.part(&kept, BODY_BYTES) {
        Part::Bytes(range) => assert!(range.start < range.end && range.end <= BODY_BYTES),
        Part::Whole | Part::Outside => {}
    }
    let _ = wanted.met_by(&kept);
    if let Some(asks) = conditions::validating(&request, &kept) {
        is_request(&asks);
    }
    if let Some((_, not_modified)) = heads.get(1)
        && let Some(fresh) = conditions::freshened(&kept, not_modified)
    {
        assert!(start_line(&fresh) == start_line(&kept) && fresh.ends_with(b"\r\n"));
        let again = conditions::freshened(&fresh, not_modified);
        assert!(
            again.is_some_and(|again| again.len() == fresh.len()),
            "once is enough"
        );
    }
}

/// What goes to a server is a whole head, and the server reads no byte more.
fn is_request(head: &[u8]) {
    let mut slots = FieldSlots::new();
    let read = read_request(head, 0, &Limits::default(), &mut slots);
    let read = read.expect("valid").expect("whole");
    assert_eq!(read.facts.len, head.len());
}

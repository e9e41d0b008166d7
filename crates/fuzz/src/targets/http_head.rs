//! Heads of requests and replies: what goes out is one message, of the meaning with which it came.

use weir_proxy::http::rewrite::{self, AddressField, Announcement, ReplyEdit, RequestEdit};
use weir_proxy::http::{
    BodyKind, Delivery, FieldSlots, Limits, ReplyFacts, RequestFacts, Role, read_reply,
    read_request,
};

/// What must not become a message of its own.
const HIDDEN: &[u8] = b"GET /hidden HTTP/1.1\r\nHost: victim\r\n\r\n";

/// The first byte chooses the side and the edit; the rest is a head and what follows it.
pub fn run(data: &[u8]) {
    let Some((&choice, head)) = data.split_first() else {
        return;
    };
    arrives_in_pieces(head);
    match choice & 1 {
        0 => request(head, choice),
        _ => reply(head, choice),
    }
}

fn facts_of_request(bytes: &[u8], seen: usize) -> Result<Option<RequestFacts>, &'static str> {
    let mut slots = FieldSlots::new();
    let head = read_request(bytes, seen, &Limits::default(), &mut slots);
    let head = head.map_err(|refusal| refusal.name())?;
    Ok(head.map(|head| head.facts))
}

fn facts_of_reply(bytes: &[u8], to: &RequestFacts) -> Result<Option<ReplyFacts>, &'static str> {
    let mut slots = FieldSlots::new();
    let head = read_reply(bytes, 0, to, &Limits::default(), &mut slots);
    let head = head.map_err(|refusal| refusal.name())?;
    Ok(head.map(|head| head.facts))
}

/// A request that is taken is taken in any pieces, with the same facts.
fn arrives_in_pieces(head: &[u8]) {
    let Ok(Some(whole)) = facts_of_request(head, 0) else {
        return;
    };
    let mut seen = 0;
    for have in (1..=head.len()).step_by(7).chain([head.len()]) {
        match facts_of_request(&head[..have], seen) {
            Ok(None) => seen = have,
            taken => return assert_eq!(taken, Ok(Some(whole))),
        }
    }
    panic!("it is never taken");
}

fn request(bytes: &[u8], choice: u8) {
    let mut slots = FieldSlots::new();
    let Ok(Some(head)) = read_request(bytes, 0, &Limits::default(), &mut slots) else {
        return;
    };
    assert!(head.facts.len <= bytes.len());
    let announce = (choice & 2 != 0).then_some(Announcement {
        field: match choice & 4 {
            0 => AddressField::XForwardedFor,
            _ => AddressField::Forwarded,
        },
        client: "192.0.2.1",
        trusted: choice & 8 != 0,
    });
    let edit = RequestEdit {
        via: "weir",
        default_host: "default.example",
        announce,
        close: choice & 16 != 0,
        drop_odd_names: choice & 32 != 0,
        client_close: choice & 64 != 0,
    };
    let mut out = Vec::new();
    if rewrite::request(&head, &edit, &mut out).is_err() {
        assert!(out.is_empty(), "what is refused is not written");
        return;
    }
    let sent = head.facts;
    let len = out.len();
    is_one_head(&out);
    out.extend_from_slice(HIDDEN);
    let received = facts_of_request(&out, 0)
        .expect("valid again")
        .expect("whole again");
    let expected = RequestFacts {
        len,
        version: received.version,
        keep_alive: !edit.close,
        client_close: edit.client_close,
        ..sent
    };
    assert_eq!(received, expected);
}

fn reply(bytes: &[u8], choice: u8) {
    let to = request_like(choice);
    let mut slots = FieldSlots::new();
    let Ok(Some(head)) = read_reply(bytes, 0, &to, &Limits::default(), &mut slots) else {
        return;
    };
    assert!(head.facts.len <= bytes.len());
    let delivery = Delivery::of(&to, &head.facts, Role::Reverse, choice & 16 != 0);
    let edit = ReplyEdit {
        via: "weir",
        date: Some("Thu, 01 Jan 1970 00:00:00 GMT"),
        delivery,
        client: to.version,
    };
    let mut out = Vec::new();
    rewrite::reply(&head, &edit, &mut out);
    is_one_head(&out);
    let (sent, len) = (head.facts, out.len());
    if delivery.dechunk {
        return;
    }
    out.extend_from_slice(HIDDEN);
    let received = facts_of_reply(&out, &to)
        .expect("valid again")
        .expect("whole again");
    assert_eq!(received.len, len);
    assert_eq!((received.status, received.body), (sent.status, sent.body));
    if !sent.is_interim() && sent.body != BodyKind::Tunnel {
        assert_eq!(received.keep_alive, delivery.keep_alive);
    }
}

/// The request that is answered: with each method and version that changes how a reply is read.
fn request_like(choice: u8) -> RequestFacts {
    let text = match choice >> 5 {
        0 => "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n",
        1 => "CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n",
        2 => "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
        3 => "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
        _ => "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    };
    facts_of_request(text.as_bytes(), 0)
        .expect("valid")
        .expect("whole")
}

/// Lines end in CRLF only, and there is one empty one, at the end.
fn is_one_head(out: &[u8]) {
    let ends = out.windows(2).filter(|bytes| bytes == b"\r\n").count();
    let count = |wanted| out.iter().filter(|&&byte| byte == wanted).count();
    assert_eq!((count(b'\n'), count(b'\r')), (ends, ends), "only CRLF");
    let empty = out.windows(4).filter(|bytes| bytes == b"\r\n\r\n").count();
    assert_eq!(empty, 1, "one end");
    assert!(out.ends_with(b"\r\n\r\n"));
}

//! ns per message of reading and rewriting HTTP/1: `cargo bench -p weir-proxy --bench http`.
//!
//! Each row is beside its floor, what httparse alone needs for the same head. Row and floor take
//! turns; the medians of many rounds are printed with the quartiles.

use std::hint::black_box;
use std::time::Instant;

use weir_proxy::http::rewrite::{self, ReplyEdit, RequestEdit};
use weir_proxy::http::{
    ChunkScanner, Delivery, FieldSlots, Limits, Next, RequestFacts, Role, Version, read_reply,
    read_request,
};

const ROUNDS: usize = 41;
const REPEAT: u32 = 20_000;

const CURL: &str = "GET /index.html HTTP/1.1\r\nHost: www.example.com\r\n\
    User-Agent: curl/8.14.1\r\nAccept: */*\r\n\r\n";

const BROWSER: &str = "GET /assets/app.js?v=1 HTTP/1.1\r\nHost: www.example.com\r\n\
    Connection: keep-alive\r\n\
    User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0\r\n\
    Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\n\
    Accept-Language: en-US,en;q=0.5\r\nAccept-Encoding: gzip, deflate, br, zstd\r\n\
    Referer: http://www.example.com/\r\nCookie: session=0123456789abcdef0123456789abcdef\r\n\
    Upgrade-Insecure-Requests: 1\r\nCache-Control: max-age=0\r\n\r\n";

const FORWARD: &str = "GET http://www.example.com/index.html HTTP/1.1\r\nHost: www.example.com\r\n\
    User-Agent: curl/8.14.1\r\nAccept: */*\r\nProxy-Connection: Keep-Alive\r\n\r\n";

const REPLY: &str = "HTTP/1.1 200 OK\r\nServer: nginx/1.26.3\r\n\
    Date: Sun, 22 Nov 2026 00:00:00 GMT\r\nContent-Type: text/html; charset=utf-8\r\n\
    Content-Length: 10240\r\nLast-Modified: Sat, 21 Nov 2026 00:00:00 GMT\r\n\
    Connection: keep-alive\r\nETag: \"6740a000-2800\"\r\nVary: Accept-Encoding\r\n\
    Cache-Control: max-age=3600\r\nAccept-Ranges: bytes\r\n\r\n";

const EDIT: RequestEdit = RequestEdit {
    via: "weir",
    default_host: "www.example.com",
    announce: None,
    close: false,
    drop_odd_names: true,
    client_close: false,
};

struct Row {
    name: &'static str,
    limit_ns: f64,
    subject: Box<dyn FnMut()>,
    floor: Box<dyn FnMut()>,
}

fn main() {
    println!("ns per message; medians of {ROUNDS} rounds of {REPEAT}\n");
    println!(
        "{:<36}{:>8}{:>16}{:>8}{:>12}",
        "message", "ns", "spread", "limit", "httparse"
    );
    let mut missed = 0;
    for mut row in rows() {
        let (mut times, mut floors) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            times.push(ns_per_call(&mut row.subject));
            floors.push(ns_per_call(&mut row.floor));
        }
        let (low, median, high) = quartiles(&mut times);
        let floor = quartiles(&mut floors).1;
        let spread = format!("{low:.0} .. {high:.0}");
        let is_over = median > row.limit_ns;
        missed += usize::from(is_over);
        println!(
            "{:<36}{median:>8.0}{spread:>16}{:>8.0}{floor:>12.0}  {}",
            row.name,
            row.limit_ns,
            if is_over { "OVER" } else { "" }
        );
    }
    if missed > 0 {
        println!("\n{missed} over its limit");
        std::process::exit(1);
    }
}

fn rows() -> Vec<Row> {
    vec![
        request_row("request of curl, 3 fields", CURL, 300.0),
        request_row("request of a browser, 10 fields", BROWSER, 500.0),
        request_row("request to a forward proxy", FORWARD, 350.0),
        reply_row("reply, 10 fields", 500.0),
        chunks_row("8 chunks of 1 KiB", 300.0),
    ]
}

fn request_row(name: &'static str, head: &'static str, limit_ns: f64) -> Row {
    let mut out = Vec::with_capacity(4096);
    Row {
        name,
        limit_ns,
        subject: Box::new(move || {
            out.clear();
            let mut slots = FieldSlots::new();
            let read = read_request(
                black_box(head.as_bytes()),
                0,
                &Limits::default(),
                &mut slots,
            );
            let head = read.expect("a valid head").expect("a whole head");
            rewrite::request(&head, &EDIT, &mut out).expect("no loop");
            black_box(&out);
        }),
        floor: Box::new(move || {
            let mut fields = [const { std::mem::MaybeUninit::uninit() }; 100];
            let mut request = httparse::Request::new(&mut []);
            let parsed = request.parse_with_uninit_headers(black_box(head.as_bytes()), &mut fields);
            black_box(&parsed).expect("a valid head");
            black_box(&request);
        }),
    }
}

fn reply_row(name: &'static str, limit_ns: f64) -> Row {
    let request = facts_of(CURL);
    let mut out = Vec::with_capacity(4096);
    Row {
        name,
        limit_ns,
        subject: Box::new(move || {
            out.clear();
            let mut slots = FieldSlots::new();
            let bytes = black_box(REPLY.as_bytes());
            let read = read_reply(bytes, 0, &request, &Limits::default(), &mut slots);
            let head = read.expect("a valid head").expect("a whole head");
            let edit = ReplyEdit {
                via: "weir",
                date: None,
                delivery: Delivery::of(&request, &head.facts, Role::Reverse, false),
                client: Version::Http11,
            };
            rewrite::reply(&head, &edit, &mut out);
            black_box(&out);
        }),
        floor: Box::new(|| {
            let mut fields = [const { std::mem::MaybeUninit::uninit() }; 100];
            let mut response = httparse::Response::new(&mut []);
            let parsed = httparse::ParserConfig::default().parse_response_with_uninit_headers(
                &mut response,
                black_box(REPLY.as_bytes()),
                &mut fields,
            );
            black_box(&parsed).expect("a valid head");
            black_box(&response);
        }),
    }
}

fn chunks_row(name: &'static str, limit_ns: f64) -> Row {
    let chunk = format!("400\r\n{}\r\n", "x".repeat(1024));
    let body = chunk.repeat(8) + "0\r\n\r\n";
    let sizes = "400\r\n".repeat(8) + "0\r\n";
    Row {
        name,
        limit_ns,
        subject: Box::new(move || {
            let scanned = ChunkScanner::new().scan(black_box(body.as_bytes()));
            assert_eq!(scanned.expect("a valid body").next, Next::End);
        }),
        floor: Box::new(move || {
            for line in black_box(sizes.as_bytes()).chunks(5) {
                black_box(httparse::parse_chunk_size(line)).expect("a valid size");
            }
        }),
    }
}

fn facts_of(head: &str) -> RequestFacts {
    let mut slots = FieldSlots::new();
    let read = read_request(head.as_bytes(), 0, &Limits::default(), &mut slots);
    read.expect("a valid head").expect("a whole head").facts
}

fn ns_per_call(call: &mut dyn FnMut()) -> f64 {
    let start = Instant::now();
    for _ in 0..REPEAT {
        call();
    }
    start.elapsed().as_nanos() as f64 / f64::from(REPEAT)
}

fn quartiles(values: &mut [f64]) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    let at = |share: f64| values[((values.len() - 1) as f64 * share).round() as usize];
    (at(0.25), at(0.5), at(0.75))
}

//! What is asked and what is replied, all of it from the seed and the numbers.

use fastrand::Rng;

use super::super::outgoing::Outgoing;
use super::super::plan::{self, Cut, Leave, Manner};

/// Exchanges on one connection at most.
pub const MOST: u64 = 16;
/// Numbers from here on are those of objects that many clients ask for: no call has so high a number.
const SHARED: u64 = 1 << 40;
/// How many such objects there are.
const OBJECTS: u64 = 64;

/// Where a body ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// There is none, and none is announced.
    None,
    /// Content-Length.
    Length(u64),
    /// Chunks of random lengths up to the second number.
    Chunked(u64, u64),
    /// At the connection's end.
    Close(u64),
}

impl Framing {
    /// Bytes of the body.
    pub fn bytes(self) -> u64 {
        match self {
            Framing::None => 0,
            Framing::Length(bytes) | Framing::Chunked(bytes, _) | Framing::Close(bytes) => bytes,
        }
    }

    fn field(self) -> String {
        match self {
            Framing::None | Framing::Close(_) => String::new(),
            Framing::Length(bytes) => format!("Content-Length: {bytes}\r\n"),
            Framing::Chunked(..) => "Transfer-Encoding: chunked\r\n".into(),
        }
    }

    fn push_body(self, stream: u64, outgoing: &mut Outgoing) {
        match self {
            Framing::None => {}
            Framing::Length(bytes) | Framing::Close(bytes) => {
                outgoing.push_pattern(stream, 0, bytes)
            }
            Framing::Chunked(bytes, most) => push_chunks(stream, bytes, most, outgoing),
        }
    }
}

fn push_chunks(stream: u64, bytes: u64, most: u64, outgoing: &mut Outgoing) {
    let mut rng = Rng::with_seed(stream);
    let mut from = 0;
    while from < bytes {
        let length = rng.u64(1..=most).min(bytes - from);
        let extension = match rng.u32(..8) {
            0 => ";of=no-interest",
            _ => "",
        };
        outgoing.push(format!("{length:x}{extension}\r\n"));
        outgoing.push_pattern(stream, from, length);
        outgoing.push("\r\n");
        from += length;
    }
    outgoing.push(match rng.u32(..4) {
        0 => "0\r\nX-Trailer: seen\r\n\r\n",
        _ => "0\r\n\r\n",
    });
}

/// What comes when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Habit {
    /// The request, then its reply.
    Plain,
    /// The client holds its body back until the origin has sent 100.
    Continue,
    /// It holds its body back, and the origin replies without asking for it.
    Declined,
    /// The origin replies once it has the request's head.
    Early,
    /// The request is to leave HTTP: behind its head, and behind that of the reply, both send their
    /// bodies at once, up to the end. `hasty`: the client does not wait for the reply's head.
    Upgrade {
        /// See above.
        hasty: bool,
    },
}

impl Habit {
    /// Whether the request says `Expect: 100-continue`.
    pub fn expects(self) -> bool {
        matches!(self, Habit::Continue | Habit::Declined)
    }

    /// Whether the reply may be there before the request is.
    pub fn replies_early(self) -> bool {
        matches!(self, Habit::Declined | Habit::Early)
    }

    fn of(rng: &mut Rng, request: Framing) -> Habit {
        match rng.u32(..12) {
            _ if request.bytes() == 0 => Habit::Plain,
            0 => Habit::Continue,
            1 => Habit::Declined,
            2 | 3 => Habit::Early,
            _ => Habit::Plain,
        }
    }
}

/// One request and its reply.
#[derive(Debug, Clone, Copy)]
pub struct Exchange {
    /// Unique in a run, but for objects that many ask for.
    pub id: u64,
    /// The run: a cache must not take the exchange of another for this one.
    pub run: u64,
    /// GET, HEAD, POST or PUT.
    pub method: &'static str,
    /// The request's body.
    pub request: Framing,
    /// The reply's status.
    pub status: u16,
    /// The reply's body; to HEAD and of 304 only the fields are sent.
    pub reply: Framing,
    /// What comes when.
    pub habit: Habit,
    /// The client speaks HTTP/1.0: it knows no chunks and no interim replies.
    pub is_old: bool,
    /// The reply may be kept.
    pub is_kept: bool,
    /// The origin ends its connection after the reply, and says so.
    pub closes: bool,
    /// An interim reply goes first.
    pub hints: bool,
    /// The origin leaves after this part of its reply, in 1/1000.
    pub cut: Option<(u64, Leave)>,
}

impl Exchange {
    /// The exchange of this number; `last` on its connection.
    pub fn new(seed: u64, id: u64, last: bool) -> Exchange {
        if id >= SHARED {
            return Exchange::shared(seed, id);
        }
        let mut rng = plan::rng(!seed, id);
        let is_old = is_old(seed, id / MOST);
        if last && !is_old && rng.u32(..6) == 0 {
            return Exchange {
                run: seed,
                ..Exchange::upgrade(&mut rng, id)
            };
        }
        if rng.u32(..6) == 0 {
            let object = SHARED + rng.u64(..OBJECTS);
            return Exchange {
                is_old,
                ..Exchange::shared(seed, object)
            };
        }
        let (method, request) = match rng.u32(..10) {
            0..5 => ("GET", Framing::None),
            5 => ("HEAD", Framing::None),
            6 => ("PUT", request_framing(&mut rng, is_old)),
            _ => ("POST", request_framing(&mut rng, is_old)),
        };
        let (status, reply) = match rng.u32(..20) {
            0 => (204, Framing::None),
            1 => (304, framing(&mut rng)),
            2..5 if last && method != "HEAD" => (200, Framing::Close(plan::size(&mut rng))),
            _ => (200, framing(&mut rng)),
        };
        Exchange {
            id,
            run: seed,
            method,
            request,
            status,
            reply,
            habit: match Habit::of(&mut rng, request) {
                habit if is_old && habit.expects() => Habit::Plain,
                habit => habit,
            },
            is_old,
            is_kept: rng.bool(),
            closes: matches!(reply, Framing::Close(_)) || rng.u32(..12) == 0,
            hints: rng.u32(..20) == 0,
            cut: cut(&mut rng),
        }
    }

    /// An object that many clients ask for, several at a time: a cache may give it to all of them.
    fn shared(seed: u64, id: u64) -> Exchange {
        let mut rng = plan::rng(!seed, id);
        Exchange {
            id,
            run: seed,
            method: "GET",
            request: Framing::None,
            status: 200,
            reply: framing(&mut rng),
            habit: Habit::Plain,
            is_old: false,
            is_kept: true,
            closes: false,
            hints: false,
            cut: None,
        }
    }

    fn upgrade(rng: &mut Rng, id: u64) -> Exchange {
        Exchange {
            id,
            run: 0,
            method: "GET",
            request: Framing::Close(plan::size(rng)),
            status: 101,
            reply: Framing::Close(plan::size(rng)),
            habit: Habit::Upgrade { hasty: rng.bool() },
            is_old: false,
            is_kept: false,
            closes: true,
            hints: rng.u32(..20) == 0,
            cut: cut(rng),
        }
    }

    /// The stream of the request's body.
    pub fn asked(&self) -> u64 {
        self.id * 2
    }

    /// The stream of the reply's body.
    pub fn replied(&self) -> u64 {
        self.id * 2 + 1
    }

    /// Bytes of the reply's body that come.
    pub fn reply_bytes(&self) -> u64 {
        match self.is_bodiless() {
            true => 0,
            false => self.reply.bytes(),
        }
    }

    /// Whether the reply is a head alone, whatever its fields announce.
    pub fn is_bodiless(&self) -> bool {
        self.method == "HEAD" || matches!(self.status, 204 | 304)
    }

    /// Whether the connection's end is the reply's end, so that only a RST tells that it broke off.
    pub fn ends_with_connection(&self) -> bool {
        match self.reply {
            Framing::Close(_) => true,
            Framing::Chunked(..) => self.is_old && !self.is_bodiless(),
            Framing::None | Framing::Length(_) => false,
        }
    }

    /// The request's head, to `authority`; with `absolute` in the form for a forward proxy.
    pub fn ask(&self, authority: &str, absolute: bool, last: bool, outgoing: &mut Outgoing) {
        let origin = match absolute {
            true => format!("http://{authority}"),
            false => String::new(),
        };
        let (method, id, last, run) = (self.method, self.id, u8::from(last), self.run);
        let field = match self.habit {
            Habit::Upgrade { .. } => "Connection: upgrade\r\nUpgrade: pattern\r\n".into(),
            habit if habit.expects() => self.request.field() + "Expect: 100-continue\r\n",
            _ => self.request.field(),
        };
        let place = match self.id >= SHARED {
            true => 0,
            false => last,
        };
        let (version, keep) = match (self.is_old, last) {
            (false, _) => ("1.1", ""),
            (true, 0) => ("1.0", "Connection: keep-alive\r\n"),
            (true, _) => ("1.0", ""),
        };
        outgoing.push(format!(
            "{method} {origin}/{id}/{place}?{run} HTTP/{version}\r\nHost: {authority}\r\n{keep}{field}\r\n"
        ));
    }

    /// The request's body.
    pub fn ask_body(&self, outgoing: &mut Outgoing) {
        self.request.push_body(self.asked(), outgoing);
    }

    /// The reply; says when the origin leaves.
    pub fn answer(&self, outgoing: &mut Outgoing) -> Option<Cut> {
        let before = outgoing.planned();
        if self.hints {
            outgoing.push("HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n");
        }
        let close = match (self.habit, self.closes) {
            (Habit::Upgrade { .. }, _) => "Connection: upgrade\r\nUpgrade: pattern\r\n",
            (_, true) => "Connection: close\r\n",
            (_, false) => "",
        };
        let kept = match self.is_kept {
            true => "Cache-Control: max-age=60\r\n",
            false => "",
        };
        let (status, id, field) = (self.status, self.id, self.reply.field());
        outgoing.push(format!(
            "HTTP/1.1 {status} Fine\r\nX-Exchange: {id}\r\n{kept}{close}{field}\r\n"
        ));
        if !self.is_bodiless() {
            self.reply.push_body(self.replied(), outgoing);
        }
        if self.closes {
            outgoing.finish();
        }
        let length = outgoing.planned() - before;
        self.cut
            .map(|(part, how)| Cut::Sent(before + length * part / 1000, how))
    }
}

fn cut(rng: &mut Rng) -> Option<(u64, Leave)> {
    match rng.u32(..25) {
        0 => Some((rng.u64(..1000), Leave::Reset)),
        1 => Some((rng.u64(..1000), Leave::Close)),
        _ => None,
    }
}

/// Whether the client of a call speaks HTTP/1.0.
fn is_old(seed: u64, call: u64) -> bool {
    plan::rng(seed.rotate_left(7), call).u32(..6) == 0
}

fn request_framing(rng: &mut Rng, is_old: bool) -> Framing {
    match framing(rng) {
        Framing::Chunked(bytes, _) if is_old => Framing::Length(bytes),
        framing => framing,
    }
}

fn framing(rng: &mut Rng) -> Framing {
    let bytes = plan::size(rng);
    match rng.bool() {
        true => Framing::Length(bytes),
        false => Framing::Chunked(bytes, (bytes / 3).clamp(1, 100_000)),
    }
}

/// A client's connection.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// Unique in a run.
    pub id: u64,
    /// Exchanges on it.
    pub exchanges: u64,
    /// Requests that it sends ahead of their replies.
    pub ahead: u64,
    /// How it treats its socket.
    pub manner: Manner,
    /// When it leaves before it is due.
    pub cut: Option<Cut>,
}

impl Call {
    /// The call of this number.
    pub fn new(seed: u64, id: u64) -> Call {
        let mut rng = plan::rng(seed, id);
        let exchanges = rng.u64(1..=MOST);
        let ahead = match rng.u32(..3) {
            0 => exchanges,
            _ => 1,
        };
        let sum = |of: fn(&Exchange) -> u64| {
            let exchange = |index| Exchange::new(seed, id * MOST + index, index + 1 == exchanges);
            (0..exchanges).map(|index| of(&exchange(index))).sum()
        };
        let sends: u64 = sum(|exchange| exchange.request.bytes() + 60);
        let receives: u64 = sum(|exchange| exchange.reply_bytes() + 120);
        Call {
            id,
            exchanges,
            ahead,
            manner: plan::manner(&mut rng, sends, receives),
            cut: plan::cut(&mut rng, sends, receives),
        }
    }

    /// Its exchange of this index.
    pub fn exchange(&self, seed: u64, index: u64) -> Exchange {
        Exchange::new(seed, self.id * MOST + index, index + 1 == self.exchanges)
    }
}

//! What QUIC clients do when their attempt is refused: each client alone, once after a Version Negotiation packet and once
//! after silence.
//!
//! Every attempt is refused, for the receive buffer of the socket that weir guards is full, and no program reads it. The
//! same port has web pages over TCP.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use super::slow_servers::unless_missing;
use crate::bed::{Bed, Layout, SERVER_VETH_V4};
use crate::error::{Context, Error, Kind, Result};
use crate::interrupt;
use crate::quic::clients::{Client, Clients, End, How};
use crate::quic::watch::{Packet, Watch, What};
use crate::quic::{PORT, Program, debian};
use crate::run::experiment::{
    Entry, Experiment, Flags, Program as Weirs, Turn, check_seconds, chosen, word,
};
use crate::run::results::{Case, Claim, Facts, Parameters, Results, Sample, Show, parameters};
use crate::weir::Weir;

/// The experiment.
pub const ENTRIES: &[Entry] = &[Entry::new::<Args>(
    "quic-clients",
    "How soon do QUIC clients give a refused attempt up, and what do they do then?",
)
.source("beyond the papers")
.flags(
    "--rounds 7",
    "--clients quinn --answers vn,drop --patience 1",
)];

/// Arguments of `weir-lab quic-clients`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Clients
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "curl,curl-http3-only,chromium,quic-go,quinn,aioquic,ngtcp2"
    )]
    pub clients: Vec<Client>,
    /// What they get
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "server,vn,drop"
    )]
    pub answers: Vec<Answer>,
    /// A client that has not ended after so many s is ended
    #[arg(long, default_value_t = 40.0)]
    pub patience: f64,
    /// Folder for the Debian 13 that nginx and some clients run in; it is made once
    #[arg(long, default_value = "out/systems", value_name = "DIR")]
    pub systems: PathBuf,
}

/// What an attempt gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Answer {
    /// The server's own: nothing refuses it
    Server,
    /// weir's Version Negotiation packet
    Vn,
    /// Nothing: weir drops it
    Drop,
}

/// What two CPUs see at once may be in either order; more than this is a wrong time.
const OUT_OF_ORDER: Duration = Duration::from_millis(1);

impl Answer {
    /// weir.toml; `None` without weir.
    fn config(self) -> Option<String> {
        let refuse = match self {
            Answer::Server => return None,
            Answer::Vn => "vn",
            Answer::Drop => "drop",
        };
        Some(format!(
            "[[quic]]\nname = \"lab\"\naddress = \"*:{PORT}\"\nrefuse = \"{refuse}\"\nfloor = 0.0\n"
        ))
    }
}

impl Flags for Args {
    fn experiment(self, program: &Weirs) -> Result<Box<dyn Experiment>> {
        check_seconds("--patience", self.patience)?;
        Ok(Box::new(QuicClients {
            args: self,
            program: program.clone(),
            clients: Err("not opened".into()),
            missing: BTreeMap::new(),
        }))
    }
}

struct QuicClients {
    args: Args,
    program: Weirs,
    /// The programs, or why this machine cannot have them.
    clients: std::result::Result<Clients, String>,
    /// Why this machine cannot have a client.
    missing: BTreeMap<Client, String>,
}

impl Experiment for QuicClients {
    fn groups(&self) -> Vec<Vec<Parameters>> {
        let group = |client: &Client| {
            let case =
                |answer: &Answer| parameters([("client", word(client)), ("answer", word(answer))]);
            self.args.answers.iter().map(case).collect()
        };
        self.args.clients.iter().map(group).collect()
    }

    fn open(&mut self, facts: &mut Facts) -> Result<()> {
        let text = "each client alone; times from its first Initial on";
        facts.insert("load".into(), text.into());
        self.clients = or_missing(debian::root(&self.args.systems).and_then(Clients::new))?;
        let Ok(clients) = &self.clients else {
            return Ok(());
        };
        for client in &self.args.clients {
            if let Err(reason) = or_missing(clients.prepare(*client))? {
                facts.insert(format!("skipped: {}", word(client)), reason.clone().into());
                self.missing.insert(*client, reason);
            }
        }
        Ok(())
    }

    fn measure(&mut self, case: &Parameters, _turn: Turn) -> Result<Sample> {
        unless_missing(self.sample(case))
    }

    fn claims(&self, results: &Results) -> Vec<Claim> {
        let of = |answer: &'static str| {
            let cases = results.cases.iter();
            cases.filter(move |case| case.parameter("answer") == answer)
        };
        let refused = of("vn").chain(of("drop"));
        let all = |claim, case, metric| Claim::about(claim, case, metric, |n| n.mean == 1.0);
        let served = of("server").map(|case| {
            all(
                "the client is served where nobody refuses it",
                case,
                "served",
            )
        });
        let refused = refused.map(|case| all("weir refuses the attempt", case, "refused"));
        served.chain(refused).chain(of("vn").map(at_once)).collect()
    }

    fn rounds(&self) -> usize {
        3
    }

    fn show(&self) -> Show {
        Show::columns(&[
            ("client", "{client}"),
            ("answer", "{answer}"),
            ("datagrams sent", "{datagrams|n}"),
            ("first TCP SYN after, ms", "{tcp_ms:cell|.1}"),
            ("end after, ms", "{end_ms:cell|.1}"),
            ("served", "{served|%}"),
            ("given up", "{given_up|%}"),
            ("still trying", "{out_of_patience|%}"),
            ("datagrams after the end", "{later|n}"),
        ])
    }
}

fn at_once(case: &Case) -> Claim {
    let claim = "the client ends the attempt at once, or has the page by TCP within 200 ms";
    Claim::about(claim, case, "end_ms", |ms| ms.median <= 200.0)
}

/// The reason, where this machine lacks something.
fn or_missing<T>(made: Result<T>) -> Result<std::result::Result<T, String>> {
    match made {
        Ok(made) => Ok(Ok(made)),
        Err(error) if error.kind == Kind::Unsupported => {
            eprintln!("  SKIP: {error}");
            Ok(Err(error.to_string()))
        }
        Err(error) => Err(error),
    }
}

impl QuicClients {
    fn sample(&self, case: &Parameters) -> Result<Sample> {
        let client: Client = chosen(case, "client")?;
        let answer: Answer = chosen(case, "answer")?;
        let missing = |reason: &String| {
            Error::unsupported(format!("skipped {}", word(&client)), reason.as_str())
        };
        let clients = self.clients.as_ref().map_err(missing)?;
        if let Some(reason) = self.missing.get(&client) {
            return Err(missing(reason));
        }
        let bed = Bed::build(Layout::of_this_machine())?;
        for netns in [&bed.server, &bed.clients] {
            netns.ip(&["link", "set", "lo", "up"])?;
        }
        // Now, for the kernel gives packets their times only from a moment later on.
        let watch = Watch::open(&bed.clients)?;
        let root = debian::root(&self.args.systems)?;
        let mut web = Program::nginx_web(&bed, &root, answer == Answer::Server)?;
        await_web(&bed, &mut web)?;
        let _full = match answer {
            Answer::Server => None,
            Answer::Vn | Answer::Drop => Some(full_socket(&bed)?),
        };
        let mut weir = match answer.config() {
            Some(config) => Some(Weir::run(&bed.server, self.program.path(), &config)?),
            None => None,
        };
        watch.take()?;
        let patience = Duration::from_secs_f64(self.args.patience);
        let end = clients.attempt(client, &bed, &web, patience)?;
        let packets = watch.take()?;
        web.check_alive()?;
        let status = match &mut weir {
            Some(weir) => {
                weir.check_alive()?;
                weir.status()?
            }
            None => Value::Null,
        };
        weir.map_or(Ok(()), Weir::end)?;
        let mut sample = sample(&packets, &end);
        if answer != Answer::Server {
            let is_refused = refusals(&status) > 0;
            sample.add([("refused", f64::from(u8::from(is_refused)))]);
        }
        sample.detail = json!({ "weir_status": status, "end": format!("{end:?}") });
        Ok(sample)
    }
}

/// Waits until the server takes TCP connections.
fn await_web(bed: &Bed, web: &mut Program) -> Result<()> {
    let to = (SERVER_VETH_V4, PORT);
    loop {
        interrupt::check()?;
        web.check_alive()?;
        let connected = bed
            .clients
            .run(|| Ok(std::net::TcpStream::connect(to).is_ok()))?;
        if connected {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The server's UDP socket, whose buffer has no room.
fn full_socket(bed: &Bed) -> Result<UdpSocket> {
    const WHAT: &str = "cannot fill a socket";
    /// Each takes some KiB of the buffer, which has some hundred.
    const DATAGRAMS: usize = 1000;
    let socket = bed
        .server
        .run(|| UdpSocket::bind(("0.0.0.0", PORT)).context(WHAT))?;
    bed.server.run(|| {
        let from = UdpSocket::bind(("0.0.0.0", 0)).context(WHAT)?;
        for _ in 0..DATAGRAMS {
            let sent = from.send_to(&[0; 1000], (SERVER_VETH_V4, PORT));
            sent.context(WHAT)?;
        }
        Ok(())
    })?;
    Ok(socket)
}

/// Attempts that weir says it has refused.
fn refusals(status: &Value) -> u64 {
    let counters = &status["quic"][0]["counters"];
    let of = |name| counters[name].as_u64().unwrap_or(0);
    of("quic_vn_room") + of("quic_dropped_room")
}

fn sample(packets: &[Packet], end: &End) -> Sample {
    let first_datagram = |packet: &&Packet| packet.goes && packet.what == What::Datagram;
    let flawed = |flaw: String| Sample {
        flaw: Some(flaw),
        ..Sample::default()
    };
    let Some(first) = packets.iter().find(first_datagram) else {
        return flawed(format!("the client has sent no datagram: {:?}", end.how));
    };
    let is_wrong = |pair: &[Packet]| pair[0].at > pair[1].at + OUT_OF_ORDER;
    if packets.windows(2).any(is_wrong) {
        return flawed("the kernel gave the packets no times yet".into());
    }
    let ms = |at: Duration| (at.as_secs_f64() - first.at.as_secs_f64()) * 1e3;
    let count = |is: &dyn Fn(&Packet) -> bool| packets.iter().filter(|one| is(one)).count() as f64;
    let sent = |packet: &Packet| packet.goes && packet.what == What::Datagram;
    let is = |yes: bool| f64::from(u8::from(yes));
    let mut sample = Sample::of([
        ("datagrams", count(&|one| sent(one) && one.at <= end.at)),
        ("later", count(&|one| sent(one) && one.at > end.at)),
        ("end_ms", ms(end.at)),
        ("served", is(matches!(end.how, How::Served(_)))),
        ("given_up", is(matches!(end.how, How::GivenUp(_)))),
        ("out_of_patience", is(end.how == How::OutOfPatience)),
    ]);
    let mut since = packets.iter().filter(|one| one.at >= first.at);
    if let Some(answer) = since
        .clone()
        .find(|one| !one.goes && one.what == What::Datagram)
    {
        sample.add([("answer_ms", ms(answer.at))]);
    }
    if let Some(syn) = since.find(|one| one.goes && one.what == What::Syn) {
        sample.add([("tcp_ms", ms(syn.at))]);
    }
    let next = end.next.as_ref();
    let next = next.map_or(String::new(), |next| format!("; the next page by {next}"));
    sample.notes.push(match &end.how {
        How::Served(by) => format!("served by {by}{next}"),
        How::GivenUp(reason) => format!("given up: {}", reason.lines().last().unwrap_or("")),
        How::OutOfPatience => "still trying".into(),
    });
    sample
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_count_from_the_first_initial_on() {
        let packet = |ms: u64, goes, what| Packet {
            at: Duration::from_millis(1_000_000 + ms),
            goes,
            what,
        };
        // A browser's first page comes by TCP.
        let packets = [
            packet(0, true, What::Syn),
            packet(100, true, What::Datagram),
            packet(101, false, What::Datagram),
            packet(103, true, What::Syn),
            packet(120, false, What::Segment),
            packet(200, true, What::Datagram),
        ];
        let end = End {
            at: Duration::from_millis(1_000_125),
            how: How::Served("HTTP/2".into()),
            next: None,
        };
        let sample = super::sample(&packets, &end);
        let figures = ["datagrams", "later", "answer_ms", "tcp_ms", "end_ms"];
        let figures = figures.map(|name| sample.get(name).round());
        assert_eq!(figures, [1.0, 1.0, 1.0, 3.0, 25.0]);
        assert_eq!(sample.notes, ["served by HTTP/2"]);
        // The kernel did not know the time of the first packet, and took that at which it was read.
        let late = [packets[3], packets[1], packets[2]];
        assert!(super::sample(&late, &end).flaw.is_some());
    }
}

//! `weir doctor`: what this kernel and this network namespace can do, and why not.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;
use weir_api::{Question, Status};
use weir_config::SynFilter;
use weir_core::listener::Mode;
use weir_core::word::Word;
use weir_kernel::{
    Guard, ListenQueue, Mechanism, Unaccepted, listen_queues, probe_all, unaccepted,
};

mod scope;
mod udp;

use scope::Scope;

use crate::cli::Doctor;
use crate::failure::{Failure, ROOT_HINT, Result};
use crate::host::chains::{self, Chain};
use crate::host::diagnosis::{
    Facts, Finding, Guarded, Passage, Queue, Receiver, Socket, State, advise, fold,
};
use crate::host::environment::sysctl;
use crate::host::filters::Filters;
use crate::host::links::{self, Link};
use crate::host::ports;
use crate::host::processes::{Process, owners};
use crate::host::vrf;
use crate::ipc::control::{self, ask, namespace};
use crate::show::describe;
use crate::show::output::{print, print_json};
use crate::show::table::{Align, table};

/// Runs the command.
pub fn run(runtime_dir: &Path, args: &Doctor) -> Result<()> {
    let begun = Glimpse::take();
    let mechanisms = probe_all();
    let diagnosis = Diagnosis {
        ok: mechanisms.iter().all(|m| m.state.is_ok() || !m.needed),
        mechanisms: mechanisms.iter().map(Row::of).collect(),
        advice: advise(&facts(runtime_dir, &begun)?),
        namespace: scope::looked_at(),
    };
    match args.json {
        true => print_json(&diagnosis)?,
        false => print(&diagnosis.text())?,
    }
    verdict(&mechanisms)
}

/// The exit code: whether the basics work, and if not, whether only root is missing.
fn verdict(mechanisms: &[Mechanism]) -> Result<()> {
    let Some(missing) = mechanisms.iter().find(|m| m.needed && m.state.is_err()) else {
        return Ok(());
    };
    let message = format!(
        "weir does not work here: the kernel has no {}, or refuses it",
        missing.name
    );
    match nix::unistd::geteuid().is_root() {
        true => {
            let hint = format!("it needs Linux {}", missing.min_kernel);
            Err(Failure::unsupported(message, hint))
        }
        false => Err(Failure::failed(
            format!("{message}, or cannot be seen without root"),
            ROOT_HINT,
        )),
    }
}

#[derive(Serialize)]
struct Diagnosis {
    /// Everything that weir cannot do without is there.
    ok: bool,
    mechanisms: Vec<Row>,
    advice: Vec<Finding>,
    /// Where it has looked.
    namespace: Scope,
}

/// A mechanism of the kernel.
#[derive(Serialize)]
struct Row {
    name: &'static str,
    state: State,
    needed: bool,
    purpose: &'static str,
    min_kernel: &'static str,
    /// Why not.
    cause: Option<String>,
    /// What happens without it.
    without: &'static str,
}

impl Row {
    fn of(mechanism: &Mechanism) -> Row {
        let state = match (&mechanism.state, mechanism.needed) {
            (Ok(()), _) => State::Ok,
            (Err(_), true) => State::No,
            (Err(_), false) => State::Warn,
        };
        Row {
            name: mechanism.name,
            state,
            needed: mechanism.needed,
            purpose: mechanism.purpose,
            min_kernel: mechanism.min_kernel,
            cause: mechanism.state.clone().err(),
            without: mechanism.without,
        }
    }

    fn cells(&self) -> Vec<Vec<String>> {
        let line = |text: String| vec![String::new(), String::new(), text];
        let first = vec![
            self.state.word().into(),
            self.name.into(),
            self.purpose.into(),
        ];
        match &self.cause {
            None => vec![first],
            Some(cause) => vec![
                first,
                line(format!("{cause}; needs Linux {}", self.min_kernel)),
                line(format!("without it: {}", self.without)),
            ],
        }
    }
}

impl Diagnosis {
    fn text(&self) -> String {
        let head = |what| {
            [
                ("state", Align::Left),
                (what, Align::Left),
                ("", Align::Left),
            ]
        };
        let mechanisms: Vec<_> = self.mechanisms.iter().flat_map(Row::cells).collect();
        let (trouble, advice): (Vec<_>, Vec<_>) = fold(&self.advice)
            .into_iter()
            .partition(|alike| alike[0].queue.is_some());
        let trouble: Vec<_> = trouble
            .iter()
            .flat_map(|alike| advice_cells(alike))
            .collect();
        let trouble = match trouble.is_empty() {
            true => String::new(),
            false => table(&head("trouble"), &trouble) + "\n",
        };
        let advice: Vec<_> = advice
            .iter()
            .flat_map(|alike| advice_cells(alike))
            .collect();
        let mechanisms = table(&head("mechanism"), &mechanisms);
        let advice = table(&head("advice"), &advice);
        format!("{trouble}{mechanisms}\n{advice}{}", self.namespace.text())
    }
}

/// The row of findings that differ in their objects only, of which it names some.
fn advice_cells(alike: &[&Finding]) -> Vec<Vec<String>> {
    let finding = alike[0];
    let line = |text: String| vec![String::new(), String::new(), text];
    let mut rows = vec![vec![
        finding.state.word().into(),
        finding.name_for(alike.len()),
        finding.text.clone(),
    ]];
    if alike.len() > 1 {
        let objects = alike.iter().filter_map(|finding| finding.object.as_ref());
        let mut names: Vec<&str> = objects.map(|object| object.name.as_str()).collect();
        names.dedup();
        rows.push(line(describe::examples(&names)));
    }
    if !finding.hint.is_empty() {
        rows.push(line(format!("hint: {}", finding.hint)));
    }
    rows
}

fn facts(runtime_dir: &Path, begun: &Glimpse) -> Result<Facts> {
    let links = links::list()?;
    let softnet = std::fs::read_to_string("/proc/net/softnet_stat").ok();
    let range = ports::range();
    let local_ports = range.as_ref().map_or(0, |range| range.len() as u32);
    // What cannot be read is with the filters.
    let chains = chains::all().unwrap_or_default();
    let guarded_from_outside = guarded_from_outside(runtime_dir, &chains);
    let is_guarded_outside = !guarded_from_outside.is_empty();
    let status = status(runtime_dir);
    let sockets = sockets(status.as_ref(), begun, is_guarded_outside);
    let tcp = sockets.as_deref().unwrap_or_default();
    Ok(Facts {
        rmem_max: sysctl("net/core/rmem_max"),
        udp: udp::found(tcp, status.as_ref()),
        tw_reuse: sysctl("net/ipv4/tcp_tw_reuse"),
        timestamps: sysctl("net/ipv4/tcp_timestamps"),
        rfc1337: sysctl("net/ipv4/tcp_rfc1337"),
        local_ports,
        ports: range.map_or_else(Vec::new, |range| ports::taken(&range, local_ports / 2)),
        syn_cookies: sysctl("net/ipv4/tcp_syncookies"),
        somaxconn: sysctl("net/core/somaxconn"),
        netdev_max_backlog: sysctl("net/core/netdev_max_backlog"),
        abort_on_overflow: sysctl("net/ipv4/tcp_abort_on_overflow"),
        syn_filters: syn_filters(),
        receive_drops: softnet.as_deref().and_then(receive_drops),
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        receivers: receivers(&links, Path::new("/sys/class/net")),
        chains,
        guarded_from_outside,
        lonely_veths: lonely_veths(&links),
        sockets: sockets.map_err(|error| error.to_string()),
    })
}

/// Without root weir cannot read rules, but for a few, whether there are some or not.
fn syn_filters() -> Vec<SynFilter> {
    let mut found = Filters::default().all();
    if !nix::unistd::geteuid().is_root() {
        found.retain(|filter| !matches!(filter, SynFilter::Unread { .. }));
    }
    found
}

/// The time for which the doctor looks at least where somebody waits: slow servers accept in turns.
const LOOK: Duration = Duration::from_secs(1);

/// The listen queues at one moment.
struct Glimpse {
    at: Instant,
    /// By the sockets' inode numbers.
    queues: BTreeMap<u64, ListenQueue>,
    /// Who waits in them; `None` where the kernel does not say.
    waiting: Option<Vec<Unaccepted>>,
}

impl Glimpse {
    fn take() -> Glimpse {
        // Where the kernel does not say, nothing is said of queues.
        let queues = listen_queues().unwrap_or_default();
        let some_wait = queues.iter().any(|queue| queue.length > 0);
        Glimpse {
            at: Instant::now(),
            waiting: match some_wait {
                true => unaccepted().ok(),
                false => Some(Vec::new()),
            },
            queues: queues
                .into_iter()
                .map(|queue| (queue.inode, queue))
                .collect(),
        }
    }

    /// The next one, after a while if somebody waits at this one.
    fn next(&self) -> Glimpse {
        if self.waiting.as_ref().is_some_and(|all| !all.is_empty()) {
            std::thread::sleep(LOOK.saturating_sub(self.at.elapsed()));
        }
        Glimpse::take()
    }

    /// What has come of a socket's queue between two moments.
    fn until(&self, then: &Glimpse, inode: u64) -> Option<Queue> {
        let now = then.queues.get(&inode)?;
        let before = self.queues.get(&inode).unwrap_or(now);
        let (was, is) = (self.waiting_for(now), then.waiting_for(now));
        let left: Option<BTreeSet<_>> = is
            .as_ref()
            .map(|all| all.iter().map(|one| one.cookie).collect());
        let passage = was.zip(left).map(|(was, left)| Passage {
            length: before.length,
            waited: was.len() as u32,
            accepted: was.iter().filter(|one| !left.contains(&one.cookie)).count() as u32,
        });
        // Those that a client has reset are in the length only. Of several sockets nobody says who waits for which.
        let of_address = then.queues.values().filter(|one| one.local == now.local);
        let is_alone = of_address.count() == 1;
        let gone = is.filter(|_| is_alone).map(|is| {
            let there = is.iter().filter(|one| !one.closed).count() as u32;
            now.length.saturating_sub(there)
        });
        Some(Queue {
            length: now.length.max(before.length),
            length_now: now.length,
            dropped: now.drops,
            dropped_now: now.drops.wrapping_sub(before.drops),
            time: then.at - self.at,
            passage,
            gone,
        })
    }

    /// Who waits for this socket; for all those that listen on one address and port together.
    fn waiting_for(&self, socket: &ListenQueue) -> Option<Vec<&Unaccepted>> {
        let waiting = self.waiting.as_ref()?;
        Some(
            waiting
                .iter()
                .filter(|one| self.takes(socket.local, one.local))
                .collect(),
        )
    }

    /// Whether a socket that listens on `listens` has the connection to `named`: no other one is bound to that address itself,
    /// or to all of IPv4 while this one is of IPv6.
    fn takes(&self, listens: SocketAddr, named: SocketAddr) -> bool {
        let ip = |address: SocketAddr| -> IpAddr { address.ip().to_canonical() };
        let is_its =
            |listens: SocketAddr| listens.port() == named.port() && ip(listens) == ip(named);
        let is_any =
            |listens: SocketAddr| listens.ip().is_unspecified() && listens.port() == named.port();
        let is_v4 = ip(named).is_ipv4();
        let is_nearer = |other: SocketAddr| {
            is_its(other) || is_v4 && listens.is_ipv6() && other.is_ipv4() && is_any(other)
        };
        let may = is_any(listens) && (listens.is_ipv6() || is_v4);
        is_its(listens) || may && !self.queues.values().any(|other| is_nearer(other.local))
    }
}

/// Interfaces on which programs of a weir are, if none runs in this network namespace: another one's weir guards it, as that of
/// the host guards a container.
fn guarded_from_outside(runtime_dir: &Path, chains: &[Chain]) -> Vec<String> {
    let runs_here = namespace().is_ok_and(|here| control::guarded(runtime_dir).contains(&here));
    let its = chains
        .iter()
        .filter(|chain| !runs_here && chain.is_guarded());
    its.map(|chain| chain.interface.clone()).collect()
}

fn sockets(
    status: Option<&Status>,
    begun: &Glimpse,
    is_guarded_outside: bool,
) -> weir_kernel::Result<Vec<Socket>> {
    let listening = Guard::load()?.listen_sockets()?;
    let now = begun.next();
    let mut owners = owners(&listening.iter().map(|socket| socket.inode).collect());
    let guarded = status.map_or_else(BTreeMap::new, guarded);
    let mut vrfs = vrf::bound_sockets();
    let socket = |socket: weir_kernel::ListenSocket| {
        let owner = owners.remove(&socket.inode);
        let address = SocketAddr::new(socket.ip, socket.port).to_string();
        Socket {
            limit: socket.queue_limit,
            pid: owner.as_ref().map(|process| process.pid),
            started: owner.as_ref().and_then(Process::started),
            server: owner.map(|process| process.comm),
            mptcp: socket.mptcp,
            vrf: vrfs.remove(&socket.inode),
            queue: begun.until(&now, socket.inode),
            guarded: guarded.get(&address).cloned(),
            is_guarded_outside,
            address,
        }
    };
    Ok(listening.into_iter().map(socket).collect())
}

/// What a weir that runs here says; `None` if none runs or answers.
fn status(runtime_dir: &Path) -> Option<Status> {
    let asked = namespace().and_then(|here| ask(runtime_dir, here, &Question::Status));
    asked.ok().flatten()
}

/// What it does for each socket, by its address.
fn guarded(status: &Status) -> BTreeMap<String, Guarded> {
    let of = |listener: &weir_api::Listener| {
        let would = listener.offered.zip(listener.would_refuse);
        let guarded = Guarded {
            listener: listener.name.clone(),
            enforces: listener.mode == Mode::Enforce.word(),
            wait: listener.wait_us.map(Duration::from_micros),
            would_refuse: would.filter(|(offered, _)| *offered > 0),
            fifo_because: listener
                .queue_way_because
                .clone()
                .filter(|_| listener.queue_way == "fifo"),
        };
        let addresses = listener.sockets.iter().map(|socket| socket.address.clone());
        let each: Vec<_> = addresses
            .map(|address| (address, guarded.clone()))
            .collect();
        each
    };
    status.listeners.iter().flat_map(of).collect()
}

/// Sum of the second column (dropped) of /proc/net/softnet_stat, a line of hex words per CPU.
fn receive_drops(softnet: &str) -> Option<u64> {
    let dropped = |line: &str| u64::from_str_radix(line.split_whitespace().nth(1)?, 16).ok();
    softnet.lines().map(dropped).sum()
}

/// Receive queues of the devices that have hardware (or a hypervisor) behind them. /sys may show
/// another network namespace than ours; only interfaces with the same index count.
fn receivers(links: &[Link], sys: &Path) -> Vec<Receiver> {
    let ours = links.iter().filter(|link| {
        let index = std::fs::read_to_string(sys.join(&link.name).join("ifindex"));
        let same = index.is_ok_and(|text| text.trim() == link.index.to_string());
        same && sys.join(&link.name).join("device").exists()
    });
    ours.map(|link| receiver(&link.name, &sys.join(&link.name).join("queues")))
        .collect()
}

/// Ends of veth pairs that would be guarded and on which the XDP front could not answer.
fn lonely_veths(links: &[Link]) -> Vec<String> {
    let lonely = links
        .iter()
        .filter(|link| !link.port && link.peer.is_some_and(|peer| !links::runs_xdp(&peer)));
    lonely.map(|link| link.name.clone()).collect()
}

fn receiver(interface: &str, queues: &Path) -> Receiver {
    let entries = std::fs::read_dir(queues).into_iter().flatten().flatten();
    let receive: Vec<_> = entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("rx-"))
        .collect();
    let rps = |entry: &std::fs::DirEntry| {
        let mask = std::fs::read_to_string(entry.path().join("rps_cpus")).unwrap_or_default();
        mask.chars().any(|c| c.is_ascii_hexdigit() && c != '0')
    };
    Receiver {
        interface: interface.to_owned(),
        queues: receive.len(),
        rps: receive.iter().any(rps),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::diagnosis::Object;

    #[test]
    fn drops_of_all_cpus_are_summed_in_hex() {
        let line = |dropped| format!("0000a3f1 {dropped} 00000002 00000000 00000000\n");
        assert_eq!(
            receive_drops(&(line("00000010") + &line("0000000a"))),
            Some(26)
        );
        assert_eq!(receive_drops(""), Some(0));
        assert_eq!(receive_drops("nonsense\n"), None);
    }

    fn mechanism(needed: bool, state: std::result::Result<(), String>) -> Mechanism {
        Mechanism {
            name: "tcx",
            purpose: "judging packets",
            min_kernel: "6.6",
            state,
            without: "nothing works",
            needed,
        }
    }

    #[test]
    fn only_a_needed_mechanism_fails_the_doctor() {
        let missing = || Err("no tcx".to_owned());
        assert!(verdict(&[mechanism(true, Ok(())), mechanism(false, missing())]).is_ok());
        assert!(verdict(&[mechanism(true, missing())]).is_err());
    }

    #[test]
    fn a_crowd_of_veths_is_one_row_that_names_some() {
        let veth = |i: usize| Finding {
            name: format!("XDP front on veth{i}"),
            state: State::Warn,
            text: "alone".into(),
            hint: "company".into(),
            queue: None,
            object: Some(Object {
                name: format!("veth{i}"),
                kind: "interfaces",
            }),
        };
        let diagnosis = Diagnosis {
            ok: true,
            mechanisms: Vec::new(),
            advice: (0..40).map(veth).collect(),
            namespace: Scope::default(),
        };
        let expected = "state  advice\n\
            warn   XDP front on 40 interfaces  alone\n\
            \x20                                  veth0, veth1, veth2, veth3, veth4, veth5 and 34 more\n\
            \x20                                  hint: company\n";
        assert!(diagnosis.text().ends_with(expected), "{}", diagnosis.text());
    }

    #[test]
    fn a_missing_mechanism_says_why_and_what_happens_without_it() {
        let diagnosis = Diagnosis {
            ok: false,
            mechanisms: vec![Row::of(&mechanism(true, Err("no tcx links".into())))],
            advice: Vec::new(),
            namespace: Scope::default(),
        };
        let expected = "state  mechanism\nno     tcx        judging packets\n\
                        \x20                 no tcx links; needs Linux 6.6\n\
                        \x20                 without it: nothing works\n";
        assert!(
            diagnosis.text().starts_with(expected),
            "{}",
            diagnosis.text()
        );
    }
}

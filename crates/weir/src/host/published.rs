//! Whether a port of this network namespace is published from another one: a container's, to which address translation
//! or docker-proxy leads.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt;

use weir_core::units::count;
use weir_core::workload::{Where, Workload};

use crate::host::namespaces::{self, Space};
use crate::host::nftables::nat::End;
use crate::host::processes::{self, Process};
use crate::host::translation;
use crate::host::{containers, links};

/// What Docker starts for a port that it publishes.
pub const DOCKER_PROXY: &str = "docker-proxy";
/// What Podman starts for each container; it keeps published ports from others.
const CONMON: &str = "conmon";
/// Docker itself does that where `userland-proxy` is off,
const DOCKERD: &str = "dockerd";
/// and CRI-O for a `hostPort`. Their own ports are published from nowhere.
const CRIO: &str = "crio";
/// Ends that a sentence names.
const SHOWN: usize = 3;

/// Where connections to a port go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leads {
    /// To this network namespace, as far as weir knows.
    Here,
    /// To a server elsewhere.
    To(Server),
    /// Somewhere else, but weir cannot tell which server gets them: why.
    Unclear(String),
}

/// A server in another network namespace, and only it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Server {
    /// Where it is, as `where` takes it.
    pub place: String,
    /// The port inside.
    pub port: u16,
    /// The place is a container by its id: weir cannot read the name that its engine has for it.
    pub is_nameless: bool,
    /// The ports at which somebody listens in its network namespace.
    pub heard: BTreeSet<u16>,
}

impl Server {
    /// The same as a listener has it.
    pub fn location(&self) -> Where {
        Where::parse(&self.place).unwrap_or_default()
    }
}

/// Where an end of a connection is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Found {
    At(Server),
    /// No single server: why.
    Not(String),
}

/// Where connections to a port of an address (`None`: of every one) go, as long as no server of this network namespace has the
/// port.
pub fn leads(ip: Option<IpAddr>, port: u16) -> Leads {
    let Some(proxies) = placeholders(&namespaces::sockets_here(port)) else {
        return Leads::Here;
    };
    let mut ends = match translation::ends(ip, port) {
        Ok(ends) => ends,
        Err(error) => {
            BTreeSet::from([End::Unclear(format!("rules that cannot be read ({error})"))])
        }
    };
    let its = proxies
        .iter()
        .filter(|one| one.port == port && one.is_for(ip));
    ends.extend(its.map(|one| End::At(one.container)));
    if ends.is_empty() {
        return Leads::Here;
    }
    // The kernel numbers a namespace that an interface leads to when it lists that interface.
    let _ = links::list();
    let spaces = namespaces::others();
    decide(&ends, |end| locate(end, &spaces))
}

/// One server that all ends are at, and nothing else.
fn decide(ends: &BTreeSet<End>, locate: impl Fn(SocketAddr) -> Found) -> Leads {
    let mut servers = BTreeSet::new();
    let mut other = Vec::new();
    for end in ends {
        match end {
            End::Unclear(by) => other.push(format!("where {by} leads them")),
            End::At(at) => match locate(*at) {
                Found::At(server) => drop(servers.insert(server)),
                Found::Not(why) => other.push(why),
            },
        }
    }
    match (servers.len(), other.is_empty(), servers.first()) {
        (1, true, Some(only)) => Leads::To(only.clone()),
        _ => Leads::Unclear(several(&servers, other)),
    }
}

fn several(servers: &BTreeSet<Server>, other: Vec<String>) -> String {
    let place =
        |server: &Server| format!("to {}, port {}", server.location().describe(), server.port);
    let mut all: Vec<String> = servers.iter().map(place).chain(other).collect();
    all.dedup();
    let more = all.len().saturating_sub(SHOWN);
    all.truncate(SHOWN);
    if more > 0 {
        all.push(count(more, "more place"));
    }
    all.join(", or ")
}

/// The namespace with this address, and who listens there.
fn locate(at: SocketAddr, spaces: &[Space]) -> Found {
    if translation::is_own(at.ip()) {
        return Found::Not(format!("to port {} of this network namespace", at.port()));
    }
    let has = |space: &&Space| space.has_address(at.ip()) && space.is_next();
    let found: Vec<&Space> = spaces.iter().filter(has).collect();
    let [space] = found[..] else {
        return Found::Not(match found.len() {
            0 => format!("to {at}, which is in no network namespace next to this one"),
            n => format!("to {at}, which {} have", count(n, "network namespace")),
        });
    };
    let sockets = space.sockets(at);
    let mut owners = processes::owners(&sockets).into_values();
    // Its server may not have started yet.
    let process = owners.next().or_else(|| space.process.clone());
    let workload = process.and_then(|one| containers::workload(one.pid, &namespaces::names()));
    let place = |workload: Workload| {
        let place = workload.place()?;
        let container = workload.container.as_ref();
        let is_nameless = container.is_some_and(|one| one.name.is_none());
        Some((
            place.to_string(),
            is_nameless && matches!(place, Where::Container(_)),
        ))
    };
    match workload.and_then(place) {
        Some((place, is_nameless)) => Found::At(Server {
            place,
            port: at.port(),
            is_nameless,
            heard: space.ports(),
        }),
        None => Found::Not(format!(
            "to port {} in {}, which has no name",
            at.port(),
            space.describe()
        )),
    }
}

/// The processes that have these sockets only to keep the port, if each socket has one; `None`: some socket is a server's.
fn placeholders(sockets: &BTreeSet<u64>) -> Option<Vec<Proxy>> {
    if sockets.is_empty() {
        return Some(Vec::new());
    }
    let mut proxies = Vec::new();
    let mut kept = BTreeSet::new();
    for process in processes::ids().into_iter().filter_map(Process::of) {
        if !is_keeper(&process) {
            continue;
        }
        let its = processes::sockets_of(process.pid);
        if its.is_disjoint(sockets) {
            continue;
        }
        kept.extend(its);
        proxies.extend(Proxy::of(&process.arguments()));
    }
    sockets.is_subset(&kept).then_some(proxies)
}

/// Whether a process is of a container engine, and has published ports only to keep them from others.
pub fn keeps_ports(pid: u32) -> bool {
    Process::of(pid).is_some_and(|process| is_keeper(&process))
}

fn is_keeper(process: &Process) -> bool {
    let names = [DOCKER_PROXY, CONMON, DOCKERD, CRIO];
    // Anybody may call a program so.
    names.contains(&&*process.comm) && is_root_s(process.pid)
}

fn is_root_s(pid: u32) -> bool {
    fs::metadata(format!("/proc/{pid}")).is_ok_and(|process| process.uid() == 0)
}

/// A docker-proxy: a port that Docker publishes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Proxy {
    host_ip: Option<IpAddr>,
    /// The port of the host.
    pub port: u16,
    /// What it is in the container.
    pub container: SocketAddr,
}

impl Proxy {
    /// Reads the arguments of docker-proxy, or of whatever calls itself so.
    pub fn of(arguments: &[String]) -> Option<Proxy> {
        let after = |flag: &str| {
            let at = arguments.iter().position(|word| word == flag)?;
            arguments.get(at + 1)
        };
        let ip: IpAddr = after("-container-ip")?.parse().ok()?;
        let container = SocketAddr::new(ip, after("-container-port")?.parse().ok()?);
        Some(Proxy {
            host_ip: after("-host-ip").and_then(|ip| ip.parse().ok()),
            port: after("-host-port")?.parse().ok()?,
            container,
        })
    }

    fn is_for(&self, ip: Option<IpAddr>) -> bool {
        let any = |ip: IpAddr| ip.is_unspecified();
        match (ip, self.host_ip) {
            (Some(ip), Some(host)) => any(ip) || any(host) || ip == host,
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> End {
        End::At(text.parse().unwrap())
    }

    /// 10.0.0.N is container web-N; 10.9.0.0/16 is on no namespace of this machine.
    fn find(at: SocketAddr) -> Found {
        match at.ip() {
            IpAddr::V4(ip) if ip.octets()[1] == 0 => Found::At(Server {
                place: format!("container:web-{}", ip.octets()[3]),
                port: at.port(),
                is_nameless: false,
                heard: BTreeSet::from([at.port()]),
            }),
            IpAddr::V6(_) => find("10.0.0.1:80".parse().unwrap()),
            IpAddr::V4(_) => Found::Not(format!("to {at}, elsewhere")),
        }
    }

    #[test]
    fn only_one_server_is_guarded_behind_a_published_port() {
        let leads = |ends: &[End]| decide(&ends.iter().cloned().collect(), find);
        let web = Server {
            is_nameless: false,
            place: "container:web-1".into(),
            port: 80,
            heard: BTreeSet::from([80]),
        };
        assert_eq!(leads(&[at("10.0.0.1:80")]), Leads::To(web.clone()));
        // Docker has a rule for each family.
        assert_eq!(
            leads(&[at("10.0.0.1:80"), at("[fd00::1]:80")]),
            Leads::To(web)
        );
        let unclear = End::Unclear("the chain c".into());
        for (ends, expected) in [
            (
                &[at("10.0.0.1:80"), at("10.0.0.2:80")][..],
                "to container web-1, port 80, or to container web-2, port 80",
            ),
            (
                &[at("10.0.0.1:80"), at("10.0.0.1:81")],
                "to container web-1, port 80, or to container web-1, port 81",
            ),
            (
                &[at("10.0.0.1:80"), unclear.clone()],
                "to container web-1, port 80, or where the chain c leads them",
            ),
            (&[at("10.9.0.1:80")], "to 10.9.0.1:80, elsewhere"),
            (
                &[1, 2, 3, 4, 5].map(|n| at(&format!("10.0.0.{n}:80"))),
                "to container web-1, port 80, or to container web-2, port 80, or to container web-3, port 80, or 2 more places",
            ),
        ] {
            assert_eq!(leads(ends), Leads::Unclear(expected.into()));
        }
    }

    #[test]
    fn docker_proxy_s_arguments_say_what_it_publishes() {
        let line = "/usr/bin/docker-proxy -proto tcp -host-ip 0.0.0.0 -host-port 8080 \
                    -container-ip 192.0.2.7 -container-port 80";
        let of = |line: &str| {
            let arguments: Vec<String> = line.split(' ').map(str::to_owned).collect();
            Proxy::of(&arguments)
        };
        let proxy = of(line).unwrap();
        assert_eq!(
            (proxy.port, proxy.container.to_string().as_str()),
            (8080, "192.0.2.7:80")
        );
        assert!(proxy.is_for(None) && proxy.is_for(Some("10.0.0.1".parse().unwrap())));
        let one = of(&line.replace("0.0.0.0", "127.0.0.1")).unwrap();
        assert!(one.is_for(None) && !one.is_for(Some("10.0.0.1".parse().unwrap())));
        assert_eq!(
            of(&line.replace("8080", "8\u{1b}[0m")),
            None,
            "anybody may take the name"
        );
    }
}

//! One guard for many network namespaces, with the same addresses and ports in each. Needs root.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::Duration;

use etherparse::PacketBuilder;
use nix::net::if_::if_nametoindex;
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrIn6, bind, listen, socket,
};
use proptest::prelude::Rng as _;
use proptest::test_runner::{RngAlgorithm, TestRng};
use weir_core::class::Class;
use weir_core::listener::{ListenAddress, Listener, Mode, RejectSyn};
use weir_core::policy::table;
use weir_core::verdict::{VERDICTS, Verdict};
use weir_kernel::{Guard, Limits, Namespace, NamespacePath};
use weir_models::admit::{QueueSpace, QueueView};
use weir_models::packet::{Fate, fate};
use weir_testbed::netns::Netns;
use weir_testbed::seed::seed;
use weir_testbed::{needs, netns, wait};

const PORTS: [u16; 3] = [8080, 8081, 8082];
const LIMITS: Limits = Limits {
    namespaces: 16,
    listeners: 64,
    sockets: 128,
};

/// A guard in a namespace of its own, with room for others. `None` without root.
fn guard() -> Option<Guard> {
    if !needs::root("network namespaces") {
        return None;
    }
    netns::enter_new().expect("a network namespace of our own");
    Some(Guard::load_for(LIMITS).expect("the guard loads"))
}

fn path_of(netns: &Netns) -> NamespacePath {
    NamespacePath::at(netns.path())
}

fn on(name: &str, ip: Option<IpAddr>, port: u16) -> Listener {
    Listener::new(name, ListenAddress { ip, port })
}

fn web() -> Listener {
    on("web", None, 8080)
}

/// How many connections wait at a listening socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Server {
    None,
    Idle,
    Full,
}

/// A network namespace with servers, in which this thread can be.
struct World {
    file: File,
    servers: [Server; 3],
    guarded: Vec<Listener>,
    _sockets: Vec<TcpListener>,
    _held: Vec<TcpStream>,
    netns: Option<Netns>,
}

impl World {
    /// With servers on the three ports, in this order. The calling thread is in it.
    fn here(servers: [Server; 3], netns: Option<Netns>) -> World {
        let mut world = World {
            file: File::open("/proc/thread-self/ns/net").unwrap(),
            servers,
            guarded: Vec::new(),
            _sockets: Vec::new(),
            _held: Vec::new(),
            netns,
        };
        for (server, port) in servers.into_iter().zip(PORTS) {
            world.serve(server, port);
        }
        world
    }

    fn new(servers: [Server; 3]) -> World {
        let netns = Netns::create("guarded").unwrap();
        enter(&File::open(netns.path()).unwrap());
        World::here(servers, Some(netns))
    }

    /// Dual-stack; of a full one the whole queue is taken (backlog 1 holds two).
    fn serve(&mut self, server: Server, port: u16) {
        let backlog = match server {
            Server::None => return,
            Server::Idle => 4000,
            Server::Full => 1,
        };
        let flags = SockFlag::empty();
        let fd = socket(AddressFamily::Inet6, SockType::Stream, flags, None).unwrap();
        let any = std::net::SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0);
        bind(fd.as_raw_fd(), &SockaddrIn6::from(any)).unwrap();
        listen(&fd, Backlog::new(backlog).unwrap()).unwrap();
        self._sockets.push(TcpListener::from(fd));
        if server == Server::Full {
            let connect = || TcpStream::connect(("127.0.0.1", port)).expect("room for two");
            self._held.extend((0..2).map(|_| connect()));
        }
    }

    fn path(&self) -> NamespacePath {
        path_of(self.netns.as_ref().expect("another namespace"))
    }

    /// What becomes of a SYN here, and the name of the listener that counts it.
    fn verdict(&self, to: IpAddr, port: u16) -> Option<(Verdict, &Listener)> {
        let number = table(&self.guarded).unwrap().listener_of(to, port);
        let listener = &self.guarded[usize::from(number.checked_sub(1)?)];
        let at = PORTS.iter().position(|one| *one == port).unwrap();
        let queue = match self.servers[at] {
            Server::None => return Some((Verdict::SynUnheard, listener)),
            Server::Idle => QueueView {
                limit: 4000,
                ..Default::default()
            },
            Server::Full => QueueView {
                length: 2,
                limit: 1,
                ..Default::default()
            },
        };
        let verdict = QueueSpace::from(listener).syn_verdict(&queue, false, true, false);
        Some((verdict, listener))
    }
}

fn enter(file: &File) {
    setns(file, CloneFlags::CLONE_NEWNET).unwrap();
}

fn syn(to: IpAddr, port: u16, from_port: u16) -> Vec<u8> {
    let ethernet = PacketBuilder::ethernet2([0; 6], [0; 6]);
    let ip = match to {
        IpAddr::V4(to) => ethernet.ipv4([127, 0, 0, 9], to.octets(), 64),
        IpAddr::V6(to) => ethernet.ipv6(Ipv6Addr::LOCALHOST.octets(), to.octets(), 64),
    };
    let mut frame = Vec::new();
    let tcp = ip.tcp(from_port, port, 1, 65_535).syn();
    tcp.write(&mut frame, &[]).expect("a vector");
    frame
}

fn pick<T: Copy>(random: &mut TestRng, from: &[T]) -> T {
    from[random.next_u32() as usize % from.len()]
}

const ADDRESSES: [IpAddr; 4] = [
    IpAddr::V4(Ipv4Addr::LOCALHOST),
    IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2)),
    IpAddr::V4(Ipv4Addr::new(127, 0, 0, 3)),
    IpAddr::V6(Ipv6Addr::LOCALHOST),
];

/// Listeners on some of the same few addresses and ports, by the same few names.
fn random_listeners(random: &mut TestRng) -> Vec<Listener> {
    let any4 = Some(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let any6 = Some(IpAddr::V6(Ipv6Addr::UNSPECIFIED));
    let mut listeners: Vec<Listener> = Vec::new();
    for _ in 0..random.next_u32() % 5 {
        let ip = pick(
            random,
            &[None, any4, any6, Some(ADDRESSES[0]), Some(ADDRESSES[1])],
        );
        let address = ListenAddress {
            ip,
            port: pick(random, &PORTS),
        };
        let name = format!("listener{}", listeners.len());
        if listeners.iter().any(|l| l.address.conflicts(&address)) {
            continue;
        }
        listeners.push(Listener {
            reject_syn: pick(random, &[RejectSyn::Rst, RejectSyn::Drop]),
            mode: pick(random, &[Mode::Enforce, Mode::Enforce, Mode::Observe]),
            ..Listener::new(name, address)
        });
    }
    listeners
}

/// The counters of all listeners everywhere, by namespace and name.
fn counts(guard: &Guard, worlds: &[World], ids: &[Namespace]) -> Vec<(usize, String, Vec<u64>)> {
    let mut counts = Vec::new();
    for (at, world) in worlds.iter().enumerate() {
        for listener in &world.guarded {
            let counters = match at {
                0 => guard.counters(&listener.name),
                _ => guard.counters_in(ids[at], &listener.name),
            };
            let counters = counters.unwrap();
            let each = VERDICTS.iter().map(|row| counters.get(row.verdict));
            counts.push((at, listener.name.clone(), each.collect()));
        }
    }
    counts
}

#[test]
fn no_syn_is_judged_by_another_namespace_s_policy() {
    const CHANGES: usize = 80;
    const SYNS: usize = 60;
    let Some(mut guard) = guard() else { return };
    let seed = seed();
    let mut bytes = [0u8; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let mut random = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let kinds = [Server::None, Server::Idle, Server::Full];
    let own = World::here([(); 3].map(|()| pick(&mut random, &kinds)), None);
    let mut worlds = vec![own];
    for _ in 0..8 {
        let servers = [(); 3].map(|()| pick(&mut random, &kinds));
        worlds.push(World::new(servers));
    }
    let ids: Vec<Namespace> = worlds
        .iter()
        .map(|world| {
            enter(&world.file);
            Namespace::current().unwrap()
        })
        .collect();
    let (mut judged, mut port) = ([0u32; VERDICTS.len()], 1024u16);
    for change in 0..CHANGES {
        let at = random.next_u32() as usize % worlds.len();
        let listeners = random_listeners(&mut random);
        enter(&worlds[0].file);
        match at {
            0 => guard.apply(&listeners, &[]).unwrap(),
            _ if listeners.is_empty() => guard.remove(&ids[at..=at]),
            _ => {
                let id = guard.apply_in(&worlds[at].path(), &listeners, true);
                assert_eq!(id.unwrap(), ids[at]);
            }
        }
        worlds[at].guarded = listeners;
        let before = counts(&guard, &worlds, &ids);
        let mut expected = before.clone();
        for _ in 0..SYNS {
            let at = random.next_u32() as usize % worlds.len();
            let (to, dport) = (pick(&mut random, &ADDRESSES), pick(&mut random, &PORTS));
            port = port.wrapping_add(1).max(1024);
            let frame = syn(to, dport, port);
            enter(&worlds[at].file);
            let action = guard.judge_tc(&frame).unwrap().action;
            let verdict = worlds[at].verdict(to, dport);
            let context =
                || format!("change {change} of seed {seed}: to {to}:{dport} in {at}: {verdict:?}");
            let fate = match verdict {
                Some((verdict, listener)) if listener.mode == Mode::Enforce => fate(verdict),
                _ => Fate::Pass,
            };
            let action_of = [(Fate::Pass, -1), (Fate::Drop, 2), (Fate::Answer, 7)];
            let expected_action = action_of
                .into_iter()
                .find(|(one, _)| *one == fate)
                .unwrap()
                .1;
            assert_eq!(action, expected_action, "{}", context());
            if let Some((verdict, listener)) = verdict {
                judged[verdict as usize] += 1;
                let mut its = expected.iter_mut();
                let its = its.find(|(world, name, _)| *world == at && *name == listener.name);
                its.unwrap().2[verdict as usize] += 1;
            }
        }
        assert_eq!(
            counts(&guard, &worlds, &ids),
            expected,
            "change {change} of seed {seed}"
        );
    }
    for verdict in [
        Verdict::SynAdmitted,
        Verdict::SynUnheard,
        Verdict::SynResetFull,
        Verdict::SynDroppedFull,
    ] {
        let times = judged[verdict as usize];
        assert!(times > 20, "{verdict:?} was met {times} times only");
    }
}

#[test]
fn a_class_has_one_rate_for_the_listeners_of_its_name_in_all_namespaces() {
    let Some(mut guard) = guard() else { return };
    let own = File::open("/proc/thread-self/ns/net").unwrap();
    let worlds = [(); 2].map(|()| World::new([Server::Idle; 3]));
    enter(&own);
    let slow = Class {
        listener: Some("web".into()),
        rate: Some(0.1),
        burst: Some(2),
        ..Class::new("slow")
    };
    // Its listeners come later.
    guard.apply(&[], std::slice::from_ref(&slow)).unwrap();
    let ids = worlds.each_ref().map(|world| {
        let listeners = [web(), on("other", None, 8081)];
        guard.apply_in(&world.path(), &listeners, true).unwrap()
    });
    let mut actions = Vec::new();
    for from in 0..2 {
        for world in &worlds {
            enter(&world.file);
            for port in [8080, 8081] {
                let frame = syn(ADDRESSES[0], port, 2000 + from);
                actions.push(guard.judge_tc(&frame).unwrap().action);
            }
        }
    }
    assert_eq!(actions, [-1, -1, -1, -1, 2, -1, 2, -1]);
    let refused = |id| {
        guard
            .counters_in(id, "web")
            .unwrap()
            .get(Verdict::SynDroppedRate)
    };
    assert_eq!(ids.map(refused), [1, 1]);
    // Nor is a listener of another name that comes in the place of these.
    enter(&own);
    guard.remove(&ids);
    let another = [on("another", None, 8080)];
    guard.apply_in(&worlds[0].path(), &another, true).unwrap();
    enter(&worlds[0].file);
    for from in 0..4 {
        let frame = syn(ADDRESSES[0], 8080, 4000 + from);
        assert_eq!(guard.judge_tc(&frame).unwrap().action, -1);
    }
    enter(&own);
    for world in &worlds {
        guard.apply_in(&world.path(), &[web()], true).unwrap();
    }
    // Without the class none is refused: every namespace goes by the rules that are in force.
    guard.set_classes(&[]).unwrap();
    for world in &worlds {
        enter(&world.file);
        let frame = syn(ADDRESSES[0], 8080, 3000);
        assert_eq!(guard.judge_tc(&frame).unwrap().action, -1);
    }
}

#[test]
fn a_refusal_says_in_which_namespace_it_was() {
    let Some(mut guard) = guard() else { return };
    let own = File::open("/proc/thread-self/ns/net").unwrap();
    let world = World::new([Server::Full, Server::None, Server::None]);
    enter(&own);
    let id = guard.apply_in(&world.path(), &[web()], true).unwrap();
    enter(&world.file);
    guard.judge_tc(&syn(ADDRESSES[0], 8080, 2000)).unwrap();
    let events = guard.all_events().unwrap();
    assert_eq!(events.len(), 1);
    assert_eq!((events[0].0, &*events[0].1.listener), (id, "web"));
    guard.judge_tc(&syn(ADDRESSES[0], 8080, 2001)).unwrap();
    assert_eq!(guard.events().unwrap(), [], "none of weir's own");
}

#[test]
fn listening_sockets_are_those_of_the_namespace_that_is_asked_for() {
    let Some(guard) = guard() else { return };
    let own = File::open("/proc/thread-self/ns/net").unwrap();
    let _ours = TcpListener::bind("127.0.0.1:99").unwrap();
    let world = World::new([Server::Idle, Server::Full, Server::None]);
    let id = Namespace::current().unwrap();
    enter(&own);
    let sockets = guard.listen_sockets_in(&world.path(), id).unwrap();
    let mut found: Vec<_> = sockets.iter().map(|s| (s.port, s.queue_length)).collect();
    found.sort_unstable();
    assert_eq!(found, [(8080, 0), (8081, 2)]);
    assert_eq!(guard.listen_sockets().unwrap().len(), 1);
}

#[test]
fn queues_of_another_namespace_are_seen_without_entering_it() {
    let Some(mut guard) = guard() else { return };
    let own = File::open("/proc/thread-self/ns/net").unwrap();
    let world = World::new([Server::Idle, Server::None, Server::None]);
    let address = ("127.0.0.1", 8080);
    let mut clients = vec![TcpStream::connect(address).unwrap()];
    enter(&own);
    let id = guard.apply_in(&world.path(), &[web()], true).unwrap();
    let nowhere = NamespacePath::named("weir-there-is-none");
    guard.known_sockets_in(&nowhere, id).unwrap_err();
    let waiting = |guard: &Guard, at: &NamespacePath| -> Vec<u32> {
        let sockets = guard.known_sockets_in(at, id).unwrap();
        sockets.iter().map(|one| one.queue_length).collect()
    };
    assert_eq!(waiting(&guard, &world.path()), [1]);
    enter(&world.file);
    clients.push(TcpStream::connect(address).unwrap());
    enter(&own);
    assert_eq!(waiting(&guard, &nowhere), [2]);
    drop(world);
    guard.known_sockets_in(&nowhere, id).unwrap_err();
}

#[test]
fn what_cannot_be_guarded_is_refused_and_changes_nothing() {
    let Some(mut guard) = guard() else { return };
    let own = NamespacePath::at("/proc/thread-self/ns/net");
    let error = guard.apply_in(&own, &[web()], true).unwrap_err();
    assert!(error.to_string().contains("weir's own"), "{error}");
    let missing = NamespacePath::named("weir-there-is-none");
    guard.apply_in(&missing, &[web()], true).unwrap_err();
    let netns = [(); 17].map(|()| Netns::create("many").unwrap());
    let (last, rest) = netns.split_last().unwrap();
    let ids: Vec<Namespace> = rest
        .iter()
        .map(|one| guard.apply_in(&path_of(one), &[web()], true).unwrap())
        .collect();
    let error = guard.apply_in(&path_of(last), &[web()], true).unwrap_err();
    assert!(error.to_string().contains("room for 16"), "{error}");
    // 48 more find room, 49 do not.
    let many = |count: u16| -> Vec<Listener> {
        let other = (0..count).map(|n| on(&format!("l{n}"), None, 9000 + n));
        other.chain([web()]).collect()
    };
    let error = guard.apply_in(&path_of(&rest[0]), &many(49), true);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("room for 64"), "{error}");
    guard.counters_in(ids[0], "l0").unwrap_err();
    guard.counters_in(ids[0], "web").unwrap();
    guard.apply_in(&path_of(&rest[0]), &many(48), true).unwrap();
    // A namespace that is taken out leaves room.
    guard.remove(&ids[1..2]);
    guard.apply_in(&path_of(last), &[web()], true).unwrap();
    // Another namespace than the one that is meant is not attached to.
    let error = attach_in(&mut guard, &path_of(&rest[2]), ids[0], 1).unwrap_err();
    assert!(error.to_string().contains("has ended"), "{error}");
    attach_in(&mut guard, &path_of(&rest[0]), ids[0], 1).unwrap();
    assert_eq!(guard.devices_in(ids[0]), [1].into());
}

/// Attaches, and waits until it is done.
fn attach_in(
    guard: &mut Guard,
    at: &NamespacePath,
    namespace: Namespace,
    ifindex: u32,
) -> weir_kernel::Result<()> {
    guard.attach_in(at, namespace, ifindex, true)?;
    let done = wait::until("it is attached", || guard.attached().pop());
    assert_eq!((done.namespace, done.ifindex), (namespace, ifindex));
    done.outcome
}

/// Two namespaces and a client's, with a device from the client's to the first.
struct Move {
    guarded: Netns,
    other: Netns,
    client: Netns,
}

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

impl Move {
    fn new() -> Move {
        let [guarded, other, client] =
            ["guarded", "other", "client"].map(|role| Netns::create(role).unwrap());
        guarded
            .ip(&[
                "link",
                "add",
                "v0",
                "type",
                "veth",
                "peer",
                "v1",
                "netns",
                client.name(),
            ])
            .unwrap();
        client
            .ip_batch("addr add 10.77.0.2/24 dev v1\n link set v1 up")
            .unwrap();
        let moved = Move {
            guarded,
            other,
            client,
        };
        Move::open(&moved.guarded);
        moved
    }

    fn open(netns: &Netns) {
        netns
            .ip_batch("addr add 10.77.0.1/24 dev v0\n link set v0 up")
            .unwrap();
    }

    fn connects(&self) -> bool {
        let to = SocketAddr::from((SERVER, 8080));
        let connect = || Ok(TcpStream::connect_timeout(&to, Duration::from_secs(5)).is_ok());
        self.client.run(connect).unwrap()
    }
}

fn serve_in(netns: &Netns) -> TcpListener {
    let bind = || Ok(TcpListener::bind("0.0.0.0:8080").unwrap());
    netns.run(bind).unwrap()
}

#[test]
fn a_device_that_moves_is_judged_by_the_policy_of_where_it_is() {
    let Some(mut guard) = guard() else { return };
    let world = Move::new();
    let (_first, _second) = (serve_in(&world.guarded), serve_in(&world.other));
    let at = path_of(&world.guarded);
    let id = guard.apply_in(&at, &[web()], true).unwrap();
    let ifindex = at.enter(|_| Ok(if_nametoindex("v0").unwrap())).unwrap();
    attach_in(&mut guard, &at, id, ifindex).unwrap();
    let admitted = |guard: &Guard, id| {
        let counters = guard.counters_in(id, "web").unwrap();
        counters.get(Verdict::SynAdmitted)
    };
    assert!(world.connects());
    assert_eq!(admitted(&guard, id), 1);
    let other = world.other.name();
    world
        .guarded
        .ip(&["link", "set", "v0", "netns", other])
        .unwrap();
    Move::open(&world.other);
    assert!(world.connects());
    assert_eq!(
        admitted(&guard, id),
        1,
        "nothing is guarded where it is now"
    );
    let theirs = guard
        .apply_in(&path_of(&world.other), &[web()], true)
        .unwrap();
    assert!(world.connects());
    assert_eq!((admitted(&guard, id), admitted(&guard, theirs)), (1, 1));
}

/// As an engine moves that of a container which starts, and which ends.
#[test]
fn a_device_that_moves_takes_its_link_along() {
    let Some(mut guard) = guard() else { return };
    let world = Move::new();
    guard.apply(&[web()], &[]).unwrap();
    let at = path_of(&world.guarded);
    let id = guard.apply_in(&at, &[web()], true).unwrap();
    let ifindex = at.enter(|_| Ok(if_nametoindex("v0").unwrap())).unwrap();
    attach_in(&mut guard, &at, id, ifindex).unwrap();
    // ip takes the id of a thread, too.
    let here = nix::unistd::gettid().to_string();
    let to_here = ["link", "set", "v0", "netns", &here];
    world.guarded.ip(&to_here).unwrap();
    let moved = if_nametoindex("v0").unwrap();
    let programs = || weir_kernel::chain(moved).unwrap().len();
    assert_eq!(programs(), 1, "it has the program already");
    guard.attach(moved, false).unwrap();
    assert_eq!((programs(), guard.devices_in(id).len()), (1, 0));
    guard.remove(&[id]);
    assert_eq!(programs(), 1, "it is this namespace's now");
    // And back, before weir has let it go here.
    let id = guard.apply_in(&at, &[web()], true).unwrap();
    let back = ["link", "set", "v0", "netns", world.guarded.name()];
    let ip = Command::new("ip").args(back).status().unwrap();
    assert!(ip.success());
    let ifindex = at.enter(|_| Ok(if_nametoindex("v0").unwrap())).unwrap();
    attach_in(&mut guard, &at, id, ifindex).unwrap();
    guard.detach(moved);
    assert_eq!(guard.devices_in(id), [ifindex].into());
}

#[test]
fn a_namespace_ends_while_it_is_guarded() {
    let Some(mut guard) = guard() else { return };
    let world = Move::new();
    let at = path_of(&world.guarded);
    let id = guard.apply_in(&at, &[web()], true).unwrap();
    let ifindex = at.enter(|_| Ok(if_nametoindex("v0").unwrap())).unwrap();
    for device in [1, ifindex] {
        attach_in(&mut guard, &at, id, device).unwrap();
    }
    assert_eq!(guard.devices_in(id), [1, ifindex].into());
    guard.listen_sockets_in(&at, id).unwrap();
    let Move {
        guarded, client, ..
    } = world;
    drop(guarded);
    // Its devices end with it, and this one's other end with that.
    wait::until("the namespace ends", || {
        let gone = || Ok(if_nametoindex("v1").is_err());
        client.run(gone).unwrap().then_some(())
    });
    wait::until("its devices are gone", || {
        guard.devices_in(id).is_empty().then_some(())
    });
    guard.apply_in(&at, &[web()], true).unwrap_err();
    attach_in(&mut guard, &at, id, ifindex).unwrap_err();
    // What the others need is not in the way.
    guard.set_classes(&[Class::new("a")]).unwrap();
    guard.remove(&[id]);
    assert_eq!(guard.namespaces().count(), 0);
    guard.counters_in(id, "web").unwrap_err();
}

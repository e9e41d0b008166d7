//! Parking listeners beside real listening sockets, on loopback. Needs root.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore, MapHandle};
use weir_core::queue::ParkingRule;
use weir_kernel::queue::{Event, Parking, Slot};
use weir_kernel::testing::calls::refuse_call;
use weir_kernel::testing::migration::wakes;
use weir_kernel::{Guard, ListenSocket};
use weir_testbed::cgroup::Cgroup;
use weir_testbed::needs;
use weir_testbed::sockets::SILENCE;
use weir_testbed::sys::{self, Classic, TcpOption};

const PATIENCE: Duration = Duration::from_secs(20);

struct Bed {
    guard: Guard,
    queue: Parking,
}

fn bed() -> Option<Bed> {
    if !needs::root("parking") {
        return None;
    }
    let guard = Guard::load().unwrap();
    let queue = Parking::load(guard.queue_maps().unwrap()).unwrap();
    Some(Bed { guard, queue })
}

impl Bed {
    fn sockets(&self, port: u16) -> Vec<ListenSocket> {
        let all = self.guard.listen_sockets().unwrap();
        all.into_iter()
            .filter(|s| s.port == port && !s.parked)
            .collect()
    }

    fn attach(&mut self, server: &TcpListener) -> u32 {
        let port = server.local_addr().unwrap().port();
        let sockets = self.sockets(port);
        let group = self.queue.attach(&sockets, 0).unwrap();
        self.renew(group, 0);
        group
    }

    fn renew(&self, group: u32, depth: u32) {
        let rule = ParkingRule {
            depth,
            ..ParkingRule::default()
        };
        self.queue.renew(group, PATIENCE, None, rule);
    }

    /// How many listening sockets of this group have ceased to be since this was asked last. Those of other
    /// tests come and go.
    fn ceased(&mut self, group: u32) -> usize {
        let told = self.queue.wait(Some(Duration::ZERO)).unwrap();
        let its = |event: &Event| matches!(event, Event::ListenersChanged { ceased_in: Some(g), .. } if *g == group);
        told.into_iter().filter(its).count()
    }

    /// The same of a port on which one has begun to be or has ceased.
    fn changed(&mut self, port: u16) -> usize {
        let told = self.queue.wait(Some(Duration::ZERO)).unwrap();
        let its =
            |event: &Event| matches!(event, Event::ListenersChanged { port: p, .. } if *p == port);
        told.into_iter().filter(its).count()
    }

    fn arrivals(&mut self, n: usize) -> Vec<Slot> {
        let mut slots = Vec::new();
        let end = Instant::now() + PATIENCE;
        while slots.len() < n && Instant::now() < end {
            for event in self.queue.wait(Some(Duration::from_millis(1))).unwrap() {
                if let Event::Arrived(slot) = event {
                    slots.push(slot);
                }
            }
        }
        assert_eq!(slots.len(), n);
        slots
    }
}

fn server() -> TcpListener {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    server.set_nonblocking(true).unwrap();
    server
}

fn connect(server: &TcpListener) -> TcpStream {
    TcpStream::connect_timeout(&server.local_addr().unwrap(), PATIENCE).unwrap()
}

/// Accepts within a moment.
fn accepted(server: &TcpListener) -> (TcpStream, SocketAddr) {
    let end = Instant::now() + PATIENCE;
    loop {
        match server.accept() {
            Ok(got) => return got,
            Err(e) if e.kind() == ErrorKind::WouldBlock => assert!(Instant::now() < end),
            Err(e) => panic!("{e}"),
        }
    }
}

fn nothing_waits(server: &TcpListener) -> bool {
    server
        .accept()
        .is_err_and(|e| e.kind() == ErrorKind::WouldBlock)
}

#[test]
fn a_parked_connection_reaches_the_server_when_it_is_released_and_not_before() {
    let Some(mut bed) = bed() else { return };
    let server = server();
    bed.attach(&server);
    let mut client = connect(&server);
    client.write_all(b"early").unwrap();
    let slots = bed.arrivals(1);
    assert!(nothing_waits(&server));
    bed.queue.release(slots[0]).unwrap();
    let (mut connection, from) = accepted(&server);
    assert_eq!(from, client.local_addr().unwrap());
    let mut got = [0; 5];
    connection.set_nonblocking(false).unwrap();
    connection.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"early");
}

#[test]
fn slots_are_used_again_and_release_is_in_the_order_asked_for() {
    let Some(mut bed) = bed() else { return };
    let server = server();
    let group = bed.attach(&server);
    for round in 0..5 {
        let clients: Vec<TcpStream> = (0..40)
            .map(|_| {
                bed.queue.grow(group).unwrap();
                connect(&server)
            })
            .collect();
        let slots = bed.arrivals(40);
        for slot in slots.iter().rev() {
            bed.queue.release(*slot).unwrap();
        }
        for client in clients.iter().rev() {
            let (_, from) = accepted(&server);
            assert_eq!(from, client.local_addr().unwrap(), "round {round}");
        }
    }
}

#[test]
fn what_is_parked_is_among_the_known_sockets_at_once() {
    let Some(mut bed) = bed() else { return };
    let server = server();
    bed.attach(&server);
    let port = server.local_addr().unwrap().port();
    let waiting = |bed: &Bed| -> Vec<(bool, u32)> {
        let known = bed.guard.known_sockets().unwrap();
        let mut its: Vec<_> = known
            .iter()
            .filter(|socket| socket.port == port)
            .map(|socket| (socket.parked, socket.queue_length))
            .collect();
        its.sort_unstable();
        its
    };
    assert_eq!(waiting(&bed), [(false, 0)]);
    let _clients = [connect(&server), connect(&server)];
    let slots = bed.arrivals(2);
    assert_eq!(waiting(&bed), [(false, 0), (true, 1), (true, 1)]);
    slots
        .into_iter()
        .for_each(|slot| bed.queue.release(slot).unwrap());
    assert_eq!(waiting(&bed), [(false, 2)]);
}

#[test]
fn with_room_in_the_servers_queue_a_connection_goes_straight_there() {
    let Some(mut bed) = bed() else { return };
    let server = server();
    let group = bed.attach(&server);
    bed.renew(group, 1);
    let _first = connect(&server);
    accepted(&server);
    let _second = connect(&server);
    let _third = connect(&server);
    bed.arrivals(1);
    bed.queue.look(false).unwrap();
    assert_eq!(bed.queue.servers(group)[0].length, 1);
}

#[test]
fn a_new_connection_is_not_taken_for_a_listening_socket_that_ceases() {
    let Some(mut bed) = bed() else { return };
    let server = server();
    let group = bed.attach(&server);
    bed.renew(group, 100);
    let port = server.local_addr().unwrap().port();
    bed.changed(port);
    let clients: Vec<TcpStream> = (0..50).map(|_| connect(&server)).collect();
    assert_eq!(bed.changed(port), 0);
    drop(server);
    assert_eq!(bed.ceased(group), 1);
    drop(clients);
}

#[test]
fn what_is_parked_goes_to_the_server_when_the_queue_goes() {
    let Some(mut bed) = bed() else { return };
    let server = server();
    bed.attach(&server);
    let clients: Vec<TcpStream> = (0..10).map(|_| connect(&server)).collect();
    bed.arrivals(10);
    drop(bed);
    for _ in &clients {
        accepted(&server);
    }
    let _more = connect(&server);
    accepted(&server);
}

/// Why nothing is parked before the server on this port; nothing has changed then.
fn refused(bed: &mut Bed, port: u16) -> String {
    let sockets = bed.sockets(port);
    let refused = bed.queue.attach(&sockets, 0);
    refused
        .expect_err("a connection would come to it unfiltered")
        .to_string()
}

#[test]
fn a_server_whose_socket_has_a_filter_of_its_own_is_left_alone() {
    let Some(mut bed) = bed() else { return };
    let server = server();
    let address = server.local_addr().unwrap();
    sys::attach_classic(&server, Classic::Filter, 0).unwrap();
    let said = refused(&mut bed, address.port());
    assert!(said.contains("SO_ATTACH_FILTER"), "{said}");
    // As without weir.
    TcpStream::connect_timeout(&address, SILENCE).unwrap_err();
}

#[test]
fn a_server_that_takes_signed_segments_only_is_left_alone() {
    let Some(mut bed) = bed() else { return };
    let mut tried = 0;
    for (kind, name) in [(TcpOption::Md5, "TCP-MD5"), (TcpOption::Ao, "TCP-AO")] {
        let server = server();
        let peer = "127.0.0.1:0".parse().unwrap();
        // Not every kernel has both.
        if sys::set_tcp_option(&server, kind, &kind.key_for(peer)).is_ok() {
            let said = refused(&mut bed, server.local_addr().unwrap().port());
            assert!(said.contains(name), "{said}");
            tried += 1;
        }
    }
    if tried == 0 {
        needs::lacking("CONFIG_TCP_MD5SIG and CONFIG_TCP_AO");
    }
}

/// A server in a cgroup; ended on drop.
struct InCgroup(Child);

impl InCgroup {
    /// Starts it; gives its port.
    fn start(cgroup: &Cgroup) -> (InCgroup, u16) {
        let script = "import socket, sys\n\
                      s = socket.create_server(('127.0.0.1', 0))\n\
                      print(s.getsockname()[1], flush=True)\n\
                      sys.stdin.read()";
        let mut command = cgroup.command("python3");
        command.args(["-c", script]);
        let (stdin, stdout) = (Stdio::piped(), Stdio::piped());
        let mut child = command.stdin(stdin).stdout(stdout).spawn().unwrap();
        let mut port = String::new();
        let said = child.stdout.take().unwrap();
        BufReader::new(said).read_line(&mut port).unwrap();
        (InCgroup(child), port.trim().parse().unwrap())
    }
}

impl Drop for InCgroup {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_server_in_a_cgroup_with_programs_for_its_packets_is_left_alone_as_soon_as_it_has_them() {
    /// include/uapi/linux/bpf.h: BPF_PROG_TYPE_CGROUP_SKB; its attach types are the first two.
    const CGROUP_SKB: u32 = 8;
    if !needs::programs(&["python3"]) {
        return;
    }
    let (Some(mut bed), Some(cgroup)) = (bed(), Cgroup::create()) else {
        return;
    };
    let (_server, port) = InCgroup::start(&cgroup);
    let sockets = bed.sockets(port);
    let group = bed.queue.attach(&sockets, 0).unwrap();
    let filters = |bed: &mut Bed, group: u32| {
        bed.queue.look(true).unwrap();
        bed.queue.servers(group)[0].own_filters.because()
    };
    assert_eq!(
        filters(&mut bed, group),
        None,
        "a cgroup alone filters nothing"
    );
    let deny = sys::load_constant("deny", CGROUP_SKB, 0, 0).unwrap();
    let target = cgroup.open();
    for way in [0, 1] {
        let link = sys::attach_program(&deny, target.as_raw_fd() as u32, way, 0).unwrap();
        assert!(filters(&mut bed, group).is_some(), "attach type {way}");
        drop(link);
        assert_eq!(filters(&mut bed, group), None);
    }
    let _denied = sys::attach_program(&deny, target.as_raw_fd() as u32, 0, 0).unwrap();
    let changed = bed.queue.change(group, &bed.sockets(port));
    changed.expect_err("it is as a new one");
    bed.queue.detach(group);
    let said = refused(&mut bed, port);
    assert!(said.contains("IPAddressDeny"), "{said}");
}

/// As of `ip netns exec`, which mounts a /sys without it.
#[test]
fn a_server_gets_its_port_back_at_once_also_where_the_usual_mount_of_cgroup2_is_hidden() {
    let Some(netns) = needs::namespace("cgroups") else {
        return;
    };
    let loaded = netns.run_with_sysfs(|| {
        let guard = Guard::load().unwrap();
        let queue = Parking::load(guard.queue_maps().unwrap()).unwrap();
        Ok(queue.holds_ports_because().map(ToString::to_string))
    });
    assert_eq!(loaded.unwrap(), None);
}

/// Entries of the table of this name that this process has loaded.
fn entries(name: &str) -> usize {
    let infos = std::fs::read_dir("/proc/self/fdinfo").unwrap().flatten();
    let texts = infos.filter_map(|info| std::fs::read_to_string(info.path()).ok());
    let ids = texts.filter_map(|text| {
        let id = text.lines().find_map(|line| line.strip_prefix("map_id:"))?;
        id.trim().parse().ok()
    });
    let maps = ids.filter_map(|id| MapHandle::from_map_id(id).ok());
    let mut named = maps.filter(|map| map.name() == name);
    named.next().expect("it is loaded").keys().count()
}

#[test]
fn a_parking_listener_that_cannot_be_waited_for_is_forgotten_and_its_connection_served() {
    let Some(mut bed) = bed() else { return };
    let server = server();
    bed.attach(&server);
    let client = connect(&server);
    let slots = bed.arrivals(1);
    let known = entries("group_of");
    // For this thread alone.
    refuse_call(libc::SYS_epoll_ctl, libc::ENOSPC).unwrap();
    assert!(bed.queue.release(slots[0]).is_err());
    assert_eq!(accepted(&server).1, client.local_addr().unwrap());
    assert_eq!(entries("group_of"), known - 1);
}

/// Distributions bring the fix to kernels whose version does not tell.
#[test]
fn whether_a_server_is_woken_at_migration_is_tried_in_a_moment_and_leaves_no_socket() {
    if !needs::own_namespace() {
        return;
    }
    let sockets = || std::fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
    let none = sockets();
    let began = Instant::now();
    let woken = wakes().expect("a connection comes about on the loopback device");
    println!("woken: {woken}, after {:?}", began.elapsed());
    assert_eq!(sockets(), none);
    assert!(woken || !needs::linux_is_at_least(7, 1), "7.1 has the fix");
}

#[test]
fn where_no_connection_can_be_made_the_trial_fails_and_decides_nothing() {
    let Some(netns) = needs::namespace("migration") else {
        return;
    };
    netns.ip(&["link", "set", "lo", "down"]).unwrap();
    let tried = netns.run(|| Ok(wakes())).unwrap();
    println!("{tried:?}");
    tried.expect_err("there is no address to connect to");
}

//! Listeners of all network namespaces are found, those that are there and those that come. Needs root.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixListener;

use nix::net::if_::if_nametoindex;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, bind, listen, socket,
};
use socket2::{Domain, Protocol, Socket, Type};
use weir_kernel::{Discovery, FoundListener, Namespace, NamespacePath, Notice};
use weir_testbed::netns::Netns;
use weir_testbed::{needs, netns, wait};

/// `None` without root.
fn discovery() -> Option<Discovery> {
    if !needs::root("programs that are told of sockets") {
        return None;
    }
    netns::enter_new().expect("a network namespace of our own");
    Some(Discovery::load().expect("it loads"))
}

fn listen_in(netns: &Netns, address: &str) -> TcpListener {
    netns
        .run(|| Ok(TcpListener::bind(address).unwrap()))
        .unwrap()
}

fn namespace_of(netns: &Netns) -> Namespace {
    NamespacePath::at(netns.path()).enter(Ok).unwrap()
}

/// Those in these namespaces: the machine has others.
fn found_in(discovery: &Discovery, namespaces: &[Namespace]) -> Vec<FoundListener> {
    let all = discovery.listeners().unwrap().into_iter();
    let mut found: Vec<_> = all
        .filter(|one| namespaces.contains(&one.namespace))
        .collect();
    found.sort_by_key(|one| (one.namespace, one.port));
    found
}

/// The notices of a namespace, once there are so many.
fn notices_of(discovery: &Discovery, namespace: Namespace, count: usize) -> Vec<Notice> {
    let mut notices = Vec::new();
    wait::until("the notices come", || {
        let of = |notice: &Notice| match notice {
            Notice::Listens(found) => found.namespace == namespace,
            Notice::Ceased { namespace: of, .. } => *of == namespace,
        };
        notices.extend(discovery.notices().into_iter().filter(of));
        (notices.len() >= count).then_some(())
    });
    notices
}

#[test]
fn listeners_that_are_there_are_found_in_every_namespace() {
    let Some(discovery) = discovery() else { return };
    let netns = [(); 3].map(|()| Netns::create("found").unwrap());
    let mut ids = netns.each_ref().map(namespace_of);
    let _same = netns.each_ref().map(|one| listen_in(one, "0.0.0.0:8080"));
    let six = listen_in(&netns[0], "[::]:8081");
    let _inherited = six.try_clone().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let _local = UnixListener::bind(folder.path().join("socket")).unwrap();
    ids.sort_unstable();
    let found = found_in(&discovery, &ids);
    let mut places: Vec<_> = found.iter().map(|one| (one.namespace, one.port)).collect();
    assert_eq!(places.len(), 4, "{found:?}");
    places.dedup();
    places.retain(|(_, port)| *port == 8080);
    assert_eq!(places, ids.map(|id| (id, 8080)));
    for one in &found {
        assert_eq!(one.pid, std::process::id());
        let any = if one.port == 8081 { "::" } else { "0.0.0.0" };
        assert_eq!(one.ip.to_string(), any);
        assert!(one.backlog > 0 && one.cgroup > 0, "{one:?}");
    }
}

#[test]
fn a_listener_is_told_when_it_comes_and_when_it_goes() {
    let Some(discovery) = discovery() else { return };
    let netns = Netns::create("told").unwrap();
    let id = namespace_of(&netns);
    assert_eq!(found_in(&discovery, &[id]), []);
    let listener = listen_in(&netns, "127.0.0.1:8080");
    let mut ready = [PollFd::new(discovery.as_fd(), PollFlags::POLLIN)];
    assert_eq!(poll(&mut ready, PollTimeout::from(5000u16)).unwrap(), 1);
    let notices = notices_of(&discovery, id, 1);
    // The same in both ways, but for what neither says of the other.
    let found = found_in(&discovery, &[id]);
    assert_eq!(notices, [Notice::Listens(found[0].clone())]);
    assert_eq!((found.len(), found[0].port), (1, 8080));
    // A connection is no listener, nor is its end one's.
    netns
        .run(|| {
            let client = std::net::TcpStream::connect("127.0.0.1:8080").unwrap();
            let (server, _) = listener.accept().unwrap();
            drop((client, server));
            Ok(())
        })
        .unwrap();
    let socket = found[0].socket;
    drop(listener);
    let ceased = Notice::Ceased {
        namespace: id,
        socket,
        port: 8080,
    };
    assert_eq!(notices_of(&discovery, id, 1), [ceased]);
    assert_eq!(found_in(&discovery, &[id]), []);
    assert_eq!(discovery.lost(), 0);
}

/// As Go's servers are. The kernel makes two sockets for it.
#[test]
fn an_mptcp_listener_is_one_whether_it_is_told_or_found() {
    const MPTCP: i32 = 262;
    let Some(discovery) = discovery() else { return };
    let id = Namespace::current().unwrap();
    let Ok(socket) = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::from(MPTCP))) else {
        needs::skip("kernel without MPTCP");
        return;
    };
    let at = SocketAddr::from((Ipv4Addr::LOCALHOST, 8080));
    socket.bind(&at.into()).unwrap();
    socket.listen(7).unwrap();
    let found = found_in(&discovery, &[id]);
    assert_eq!((found.len(), found[0].port), (1, 8080));
    let [Notice::Listens(told)] = &notices_of(&discovery, id, 1)[..] else {
        panic!("one notice of one listener")
    };
    let of = |one: &FoundListener| (one.socket, one.ip, one.port, one.pid);
    assert_eq!(of(told), of(&found[0]));
    let client = std::net::TcpStream::connect(at).unwrap();
    let server = socket.accept().unwrap();
    drop((client, server));
    drop(socket);
    let ceased = Notice::Ceased {
        namespace: id,
        socket: found[0].socket,
        port: 8080,
    };
    assert_eq!(notices_of(&discovery, id, 1), [ceased]);
}

#[test]
fn a_port_that_listen_chooses_is_known_by_a_second_look() {
    let Some(discovery) = discovery() else { return };
    let id = Namespace::current().unwrap();
    let flags = SockFlag::empty();
    let fd = socket(AddressFamily::Inet, SockType::Stream, flags, None).unwrap();
    listen(&fd, Backlog::new(7).unwrap()).unwrap();
    let notices = notices_of(&discovery, id, 1);
    let port = TcpListener::from(fd.try_clone().unwrap());
    let port = port.local_addr().unwrap().port();
    let Notice::Listens(told) = &notices[0] else {
        panic!("{notices:?}")
    };
    let found = found_in(&discovery, &[id]);
    assert_eq!((told.port, told.backlog), (0, 7));
    assert_eq!((found[0].port, found[0].socket), (port, told.socket));
}

#[test]
fn notices_that_find_no_room_are_counted() {
    let Some(discovery) = discovery() else { return };
    let any = SockaddrIn::new(127, 0, 0, 1, 0);
    for _ in 0..1200 {
        let flags = SockFlag::empty();
        let fd = socket(AddressFamily::Inet, SockType::Stream, flags, None).unwrap();
        bind(fd.as_raw_fd(), &any).unwrap();
        listen(&fd, Backlog::new(1).unwrap()).unwrap();
    }
    assert!(discovery.lost() > 1000, "{} lost", discovery.lost());
    assert!(discovery.notices().len() > 900);
}

#[test]
fn a_namespace_ends_although_its_listeners_were_found() {
    let Some(discovery) = discovery() else { return };
    let (netns, other) = (
        Netns::create("ends").unwrap(),
        Netns::create("stays").unwrap(),
    );
    let id = namespace_of(&netns);
    netns
        .ip(&[
            "link",
            "add",
            "v0",
            "type",
            "veth",
            "peer",
            "v1",
            "netns",
            other.name(),
        ])
        .unwrap();
    let listener = listen_in(&netns, "0.0.0.0:8080");
    assert_eq!(found_in(&discovery, &[id]).len(), 1);
    notices_of(&discovery, id, 1);
    drop(listener);
    drop(netns);
    // This device ends with its other end, and that with the namespace.
    wait::until("the namespace ends", || {
        let gone = || Ok(if_nametoindex("v1").is_err());
        other.run(gone).unwrap().then_some(())
    });
}

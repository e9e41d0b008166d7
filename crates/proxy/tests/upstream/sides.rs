//! TCP options of the two sides of a proxy.

use std::fs;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::sockopt;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use weir_core::proxy::{Proxy, ProxyMode, SideOptions};
use weir_proxy::{Error, Server};

use crate::common::{Origin, connect};

/// The socket of this process, which is the proxy's too, with this address and peer.
fn socket_of(is_it: impl Fn(SocketAddr, SocketAddr) -> bool) -> OwnedFd {
    let own = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
    let numbers = fs::read_dir("/proc/self/fd").unwrap();
    let numbers = numbers.map(|entry| entry.unwrap().file_name());
    let copies = numbers.filter_map(|number| {
        let number = number.to_str().unwrap().parse().unwrap();
        pidfd_getfd(&own, number, PidfdGetfdFlags::empty()).ok()
    });
    let ends = |fd: &OwnedFd| {
        let local = rustix::net::getsockname(fd).ok()?.try_into().ok()?;
        let peer = rustix::net::getpeername(fd).ok()??.try_into().ok()?;
        Some((local, peer))
    };
    let mut found = copies.filter(|fd| ends(fd).is_some_and(|(local, peer)| is_it(local, peer)));
    found.next().unwrap()
}

fn options(congestion: &str, seconds: u64, buffer: u32) -> SideOptions {
    SideOptions {
        congestion: Some(congestion.to_owned()),
        tcp_keepalive: Some(Duration::from_secs(seconds)),
        user_timeout: Some(Duration::from_secs(seconds + 1)),
        send_buffer: Some(buffer),
        receive_buffer: Some(buffer / 2),
    }
}

fn assert_has(socket: &OwnedFd, options: &SideOptions) {
    let congestion = sockopt::tcp_congestion(socket).unwrap();
    assert_eq!(Some(congestion), options.congestion);
    assert!(sockopt::socket_keepalive(socket).unwrap());
    assert_eq!(sockopt::tcp_keepidle(socket).ok(), options.tcp_keepalive);
    let millis = options.user_timeout.map(|time| time.as_millis() as u32);
    assert_eq!(sockopt::tcp_user_timeout(socket).ok(), millis);
    // socket(7): the kernel doubles them.
    let [send, receive] = [options.send_buffer, options.receive_buffer];
    let doubled = |bytes: Option<u32>| bytes.map(|bytes| 2 * bytes as usize);
    assert_eq!(sockopt::socket_send_buffer_size(socket).ok(), doubled(send));
    assert_eq!(
        sockopt::socket_recv_buffer_size(socket).ok(),
        doubled(receive)
    );
}

#[test]
fn each_side_has_its_own_options() {
    let known = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap();
    let mut known = known.split_whitespace();
    let first = known.next().unwrap();
    let second = known.next().unwrap_or(first);
    let origin = Origin::start();
    let mut settings = Proxy::new("test", "127.0.0.1:0".parse().unwrap(), ProxyMode::Reverse);
    settings.backends = vec![origin.address.into()];
    settings.client = options(first, 10, 40_000);
    settings.server = options(second, 20, 80_000);
    let proxy = Server::start(settings.clone()).unwrap();
    let mut client = connect(proxy.address());
    assert_eq!(client.get("/length/1").status(), 200);
    let own = client.0.get_ref().local_addr().unwrap();
    let accepted = socket_of(|local, peer| local == proxy.address() && peer == own);
    assert_has(&accepted, &settings.client);
    let connected = socket_of(|_, peer| peer == origin.address);
    assert_has(&connected, &settings.server);
}

#[test]
fn a_congestion_control_that_the_kernel_lacks_is_refused_at_start() {
    let mut settings = Proxy::new("test", "127.0.0.1:0".parse().unwrap(), ProxyMode::Tcp);
    settings.server.congestion = Some("nonesuch".to_owned());
    match Server::start(settings) {
        Err(Error::Setting { key, value, .. }) => {
            assert_eq!(
                (key.as_str(), value.as_str()),
                ("server_congestion", "nonesuch")
            );
        }
        other => panic!("{other:?}"),
    }
}

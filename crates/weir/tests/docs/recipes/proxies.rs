//! Proxies before guarded servers, and a router.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use weir_testbed::needs;
use weir_testbed::netns::Netns;
use weir_testbed::sockets::within;
use weir_testbed::wait::until;

use super::block;
use super::site::{
    Network, Server, Shell, at, crowd, get, guards, haproxy, nginx, nginx_server, served,
};

const SECTION: &str = "a-proxy-before-a-guarded-server";
const PROXY: &str = "10.0.0.2";
/// Places in the listen queues of the servers behind the proxy.
const PLACES: usize = 16;

/// A server behind the proxy, guarded as the recipe says; it replies with its name.
struct Behind<'a> {
    shell: Shell<'a>,
    server: Server,
}

impl<'a> Behind<'a> {
    fn start(host: &'a Netns, name: &str) -> Behind<'a> {
        host.set_sysctl("net.core.somaxconn", &PLACES.to_string())
            .unwrap();
        let mut shell = Shell::on(host);
        let nginx = nginx_server(&shell, "nginx", &block(SECTION, "nginx", 0), name);
        let server = Server::start(host, nginx, 8080);
        shell.start(&block(SECTION, "", 0));
        shell.until(host, |status| guards(status, 0));
        Behind { shell, server }
    }
}

/// While weir refuses at one server, the proxy serves every client from the other at once.
fn takes_the_other(
    proxy: impl Fn(&Shell<'_>) -> std::process::Command,
    check: impl Fn(&Shell<'_>),
) {
    let Some(network) = Network::new() else {
        return;
    };
    let hosts = [("one", "10.0.0.5/8"), ("two", "10.0.0.6/8")];
    let [one, two] = hosts.map(|(role, address)| network.host(role, &[address]));
    let proxy_host = network.host("proxy", &["10.0.0.2/8"]);
    let client = network.host("client", &["10.0.0.100/8"]);
    let one = Behind::start(&one, "one");
    let _two = Behind::start(&two, "two");
    let shell = Shell::on(&proxy_host);
    let _proxy = Server::start(&proxy_host, proxy(&shell), 80);
    let mut seen = [false; 2];
    until("the proxy uses both servers", || {
        match served(&client, at(PROXY, 80)).as_str() {
            "one" => seen[0] = true,
            _ => seen[1] = true,
        }
        (seen == [true; 2]).then_some(())
    });
    let _inside = crowd(&one.server, &client, at("10.0.0.5", 8080), PLACES);
    let refused = || {
        let status = one.shell.status();
        status["listeners"][0]["counters"]["syn_reset_full"].as_u64()
    };
    let before = refused();
    // nginx may have found it closed when it started, and tries it again after 10 s (`fail_timeout`).
    until("the proxy tries the full server", || {
        assert_eq!(get(&client, at(PROXY, 80)), Some((200, "two".to_owned())));
        (refused() > before).then_some(())
    });
    check(&shell);
}

#[test]
fn haproxy_before_guarded_servers() {
    if !needs::programs(&["haproxy", "nginx"]) {
        return;
    }
    let front = "frontend front\n  bind :80\n  default_backend app\n";
    let is_up = |shell: &Shell<'_>| {
        let mut socket = UnixStream::connect(shell.path("stats")).unwrap();
        socket.write_all(b"show stat\n").unwrap();
        let mut table = String::new();
        socket.read_to_string(&mut table).unwrap();
        let one = table
            .lines()
            .find(|line| line.starts_with("app,one,"))
            .unwrap();
        assert!(one.contains(",UP,"), "{one}");
    };
    takes_the_other(
        |shell| haproxy(shell, &(front.to_owned() + &block(SECTION, "haproxy", 0))),
        is_up,
    );
}

#[test]
fn nginx_before_guarded_servers() {
    if !needs::programs(&["nginx"]) {
        return;
    }
    let proxy = |shell: &Shell<'_>| {
        let upstream = block(SECTION, "nginx", 1);
        let server = "server { listen 80; location / { proxy_pass http://app; } }";
        nginx(shell, "proxy", &format!("{upstream} {server}"))
    };
    takes_the_other(proxy, |_| {});
}

#[test]
fn a_fleet_of_proxies_before_one_backend() {
    const SECTION: &str = "a-fleet-of-proxies-before-one-backend";
    if !needs::programs(&["nginx"]) {
        return;
    }
    let Some(network) = Network::new() else {
        return;
    };
    let backend = network.host("backend", &["10.0.0.9/8"]);
    let client = network.host("client", &["10.0.0.100/8"]);
    let mut at_backend = Shell::on(&backend);
    let nginx = nginx_server(&at_backend, "nginx", "listen 8080 backlog=4096;", "hello");
    let _server = Server::start(&backend, nginx, 8080);
    at_backend.write("weir.toml", &block(SECTION, "toml", 1));
    at_backend.start("sudo systemctl enable --now weir");
    at_backend.until(&backend, |status| guards(status, 0));

    let addresses = ["10.0.0.11", "10.0.0.12", "10.0.0.13"];
    let hosts = addresses.map(|address| network.host("proxy", &[&format!("{address}/8")]));
    let shells = hosts.each_ref().map(|host| {
        let mut shell = Shell::on(host);
        shell.write("weir.toml", &block(SECTION, "toml", 0));
        shell.start(&block(SECTION, "", 0));
        shell
    });
    for address in addresses {
        for _ in 0..10 {
            assert_eq!(served(&client, at(address, 80)), "hello");
        }
    }
    let proxy = &shells[0].status()["proxies"][0];
    assert_eq!(proxy["name"], "edge", "{proxy:#}");
    // Directly, as no client should.
    served(&client, at("10.0.0.9", 8080));
    let classes = at_backend.status()["listeners"][0]["classes"].clone();
    let admitted = |name: &str| {
        let class = classes
            .as_array()
            .unwrap()
            .iter()
            .find(|class| class["name"] == name);
        class.unwrap()["counters"]["syn_admitted"]
            .as_u64()
            .unwrap_or(0)
    };
    assert!(
        admitted("proxies") >= 3 && admitted("other") >= 1,
        "{classes:#}"
    );
}

/// The kernel may lack the default discipline; then another one stands for it.
#[test]
fn a_home_router() {
    if !needs::programs(&["tc"]) {
        return;
    }
    let Some(router) = needs::namespace("router") else {
        return;
    };
    router
        .ip_batch("link add ppp0 type veth peer name line\nlink set ppp0 up\nlink set line up")
        .unwrap();
    let shell = Shell::on(&router);
    let lines = block("a-home-router", "", 0);
    let lines: Vec<&str> = lines
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    let [install, show, remove] = lines[..] else {
        panic!("{lines:?}")
    };
    let qdiscs = || within(&router, || shell.run("tc qdisc show dev ppp0"));
    let before = qdiscs();
    let (code, _, errors) = shell.end(install);
    if code != Some(0) {
        assert!(
            code == Some(3) && errors.contains("fq_codel"),
            "{code:?} {errors}"
        );
        println!("no fq_codel here: with syn-prio");
        shell.run(&format!("{install} --discipline syn-prio"));
    }
    assert!(shell.run(show).contains("ppp0"));
    assert_ne!(qdiscs(), before);
    shell.run(remove);
    assert_eq!(qdiscs(), before);
}

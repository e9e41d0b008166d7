//! Servers behind weir, classes, and cloud load balancers.

use std::process::Command;

use serde_json::Value;
use weir_testbed::needs;
use weir_testbed::netns::Netns;
use weir_testbed::sockets::{connect, within};
use weir_testbed::wait::until;

use super::block;
use super::site::{
    Network, Server, Shell, at, crowd, get, go, guards, haproxy, nginx_server, served,
};

pub const SERVER: &str = "10.0.0.1";
/// The limit of every queue of a host, the kernel's default; and a short one, which a test can fill.
pub const SOMAXCONN: usize = 4096;
pub const SHORT: usize = 16;

/// A host with so many places in each listen queue.
pub fn host(network: &Network, places: usize) -> Netns {
    let host = network.host("server", &["10.0.0.1/8", "192.0.2.1/24"]);
    host.set_sysctl("net.core.somaxconn", &places.to_string())
        .unwrap();
    host
}

/// The server as the recipe sets it has the queue that the recipe promises, and weir protects it by the page's command.
pub fn protects(program: &str, command: impl Fn(&Shell<'_>) -> Command) {
    if !needs::programs(&[program]) {
        return;
    }
    for places in [SOMAXCONN, SHORT] {
        let Some(network) = Network::new() else {
            return;
        };
        let server_host = host(&network, places);
        let client = network.host("client", &["10.0.0.100/8"]);
        let mut shell = Shell::on(&server_host);
        let server = Server::start(&server_host, command(&shell), 80);
        shell.start(&block("the-same-for-every-server", "", 0));
        let status = shell.until(&server_host, |status| guards(status, 0));
        let sockets = status["listeners"][0]["sockets"].as_array().unwrap();
        let limits: Vec<&Value> = sockets
            .iter()
            .map(|socket| &socket["queue_limit"])
            .collect();
        assert!(
            !limits.is_empty() && limits.iter().all(|limit| **limit == places),
            "{limits:?}"
        );
        assert_eq!(served(&client, at(SERVER, 80)).trim(), "hello");
        if places == SHORT {
            let inside = crowd(&server, &client, at(SERVER, 80), SHORT);
            server.go_on();
            drop(inside);
            served(&client, at(SERVER, 80));
        }
    }
}

#[test]
fn nginx() {
    protects("nginx", |shell| {
        nginx_server(shell, "nginx", &block("nginx", "nginx", 0), "hello")
    });
}

#[test]
fn apache_event() {
    protects("apache2", |shell| {
        apache(shell, "event", &block("apache", "apache", 0))
    });
}

/// Apache with this model of processes and these lines.
pub fn apache(shell: &Shell<'_>, model: &str, lines: &str) -> Command {
    std::fs::write(shell.path("index.html"), "hello").unwrap();
    let file = shell.write(
        "apache.conf",
        &format!(
            "ServerRoot FOLDER\nServerName localhost\nPidFile FOLDER/apache.pid\nDefaultRuntimeDir FOLDER\n\
             Mutex file:FOLDER default\nErrorLog FOLDER/apache.log\n\
             LoadModule mpm_{model}_module /usr/lib/apache2/modules/mod_mpm_{model}.so\n\
             LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so\n\
             LoadModule dir_module /usr/lib/apache2/modules/mod_dir.so\n\
             User www-data\nGroup www-data\nDocumentRoot FOLDER\nDirectoryIndex index.html\n{lines}"
        ),
    );
    let mut apache = needs::command("apache2");
    apache.args(["-D", "FOREGROUND", "-f"]).arg(file);
    apache
}

#[test]
fn haproxy_as_the_server() {
    let backend =
        "backend app\n  http-request return status 200 content-type text/plain string hello\n";
    protects("haproxy", |shell| {
        haproxy(shell, &(block("haproxy", "haproxy", 0) + backend))
    });
}

#[test]
fn go_with_a_listener_that_limits() {
    protects("go", |shell| go(&shell.path("go"), &block("go", "go", 0)));
}

/// What the recipe promises of its listener: connections beyond its places wait in the kernel.
#[test]
fn go_leaves_the_queue_to_the_kernel() {
    if !needs::programs(&["go"]) {
        return;
    }
    let Some(network) = Network::new() else {
        return;
    };
    let server_host = host(&network, SOMAXCONN);
    let client = network.host("client", &["10.0.0.100/8"]);
    let shell = Shell::on(&server_host);
    let source = block("go", "go", 0);
    let few = source.replace("500)", "5)");
    assert_ne!(source, few, "the recipe has 500 places");
    let _server = Server::start(&server_host, go(&shell.path("go"), &few), 80);
    let idle = connect(&client, at(SERVER, 80), 12);
    assert_eq!(idle.counts(), (12, 0, 0));
    let waiting = || {
        let output = Command::new("ss")
            .args(["-tlnH", "sport = :80"])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.split_whitespace().nth(1).map(str::to_owned)
    };
    // One more than its places: it waits for a place with a connection in hand, or before it has taken one.
    until("connections wait in the kernel", || {
        let waiting = within(&server_host, waiting)?;
        ["6", "7"].contains(&waiting.as_str()).then_some(())
    });
    drop(idle);
    assert_eq!(served(&client, at(SERVER, 80)).trim(), "hello");
}

#[test]
fn node() {
    protects("node", |shell| {
        let mut node = needs::command("node");
        node.arg(shell.write("server.js", &block("node", "js", 0)));
        node
    });
}

#[test]
fn the_file_for_every_server_runs() {
    let Some(network) = Network::new() else {
        return;
    };
    let server_host = host(&network, SOMAXCONN);
    let mut shell = Shell::on(&server_host);
    shell.write("weir.toml", &block("the-same-for-every-server", "toml", 0));
    shell.start(&block("the-same-for-every-server", "", 1));
    let status = shell.until(&server_host, |status| guards(status, 0));
    assert_eq!(status["listeners"][0]["name"], "web");
}

#[test]
fn two_classes_of_clients() {
    const SECTION: &str = "two-classes-of-clients";
    if !needs::programs(&["nginx"]) {
        return;
    }
    let Some(network) = Network::new() else {
        return;
    };
    let server_host = host(&network, SOMAXCONN);
    let member = network.host("member", &["10.1.0.2/8"]);
    let crawler = network.host("crawler", &["192.0.2.2/24"]);
    let mut shell = Shell::on(&server_host);
    let nginx = nginx_server(&shell, "nginx", &block("nginx", "nginx", 0), "hello");
    let _server = Server::start(&server_host, nginx, 80);
    shell.write("weir.toml", &block(SECTION, "toml", 0));
    shell.start(&block(SECTION, "", 0).replace("sudo weir status", ""));
    let listener = |status: &Value| status["listeners"][0].clone();
    let status = shell.until(&server_host, |status| {
        let one = listener(status);
        guards(status, 0) && (one["queue_way"] == "parking" || !one["queue_way_because"].is_null())
    });
    println!("queue_way {}", listener(&status)["queue_way"]);
    // Without a pause: 10 at once and 20 a second.
    let (inside, refused, silent) = connect(&crawler, at("192.0.2.1", 80), 40).counts();
    assert!(
        silent == 0 && (10..40).contains(&inside) && refused > 0,
        "{inside} {refused} {silent}"
    );
    assert_eq!(connect(&member, at(SERVER, 80), 40).counts(), (40, 0, 0));
    assert_eq!(served(&member, at(SERVER, 80)), "hello");
    let classes = listener(&shell.status())["classes"].clone();
    let of = |name: &str| {
        let all = classes.as_array().unwrap();
        all.iter()
            .find(|class| class["name"] == name)
            .unwrap()
            .clone()
    };
    assert_eq!(of("crawlers")["counters"]["syn_reset_rate"], refused);
    assert!(
        of("members")["counters"]["syn_admitted"].as_u64() >= Some(41),
        "{classes:#}"
    );
    shell.run(&block(SECTION, "", 1));
    let list = shell.run("weir class list --json");
    let list: Value = serde_json::from_str(&list).unwrap();
    let mut list = list.as_array().unwrap().iter();
    let crawlers = list.find(|class| class["name"] == "crawlers").unwrap();
    assert_eq!(crawlers["rate"], 50.0);
}

/// Clients and checks come from one address, as from a balancer that relays; only the checks' port stays open.
#[test]
fn cloud_load_balancers_with_a_port_for_checks() {
    const SECTION: &str = "cloud-load-balancers";
    if !needs::programs(&["nginx"]) {
        return;
    }
    let Some(network) = Network::new() else {
        return;
    };
    let server_host = host(&network, SHORT);
    let balancer = network.host("balancer", &["10.0.0.100/8"]);
    let mut shell = Shell::on(&server_host);
    let nginx = nginx_server(&shell, "nginx", &block(SECTION, "nginx", 0), "hello");
    let server = Server::start(&server_host, nginx, 80);
    shell.start(&block(SECTION, "", 0));
    shell.until(&server_host, |status| guards(status, 0));
    let inside = crowd(&server, &balancer, at(SERVER, 80), SHORT);
    assert_eq!(connect(&balancer, at(SERVER, 8081), 3).counts(), (3, 0, 0));
    server.go_on();
    assert_eq!(
        get(&balancer, at(SERVER, 8081)),
        Some((200, "hello".to_owned()))
    );
    drop(inside);
}

//! Containers: a namespace in a container's place, and stand-ins for the programs that name its process.

use weir_testbed::needs;

use super::block;
use super::site::{Network, Server, Shell, at, crowd, guards, nginx_server, served};

/// Places in the listen queue of the container.
const PLACES: usize = 16;

/// The recipe's commands on the node protect the container.
fn guarded_from_the_node(script: &str, stand_in: (&str, &str)) {
    if !needs::programs(&["nginx", "nsenter"]) {
        return;
    }
    let Some(network) = Network::new() else {
        return;
    };
    let node = network.host("node", &["10.0.0.1/8"]);
    let container = network.host("container", &["10.0.0.2/8"]);
    container
        .set_sysctl("net.core.somaxconn", &PLACES.to_string())
        .unwrap();
    let client = network.host("client", &["10.0.0.100/8"]);
    let mut shell = Shell::on(&node);
    let nginx = nginx_server(&shell, "nginx", "listen 80;", "hello");
    let server = Server::start(&container, nginx, 80);
    let (name, said) = stand_in;
    shell.stand_in(name, &said.replace("PID", &server.pid().to_string()));
    shell.start(script);
    shell.until(&container, |status| guards(status, 0));
    served(&client, at("10.0.0.2", 80));
    drop(crowd(&server, &client, at("10.0.0.2", 80), PLACES));
    server.go_on();
    served(&client, at("10.0.0.2", 80));
}

#[test]
fn docker() {
    let inspect =
        "[ \"$1 $2 $4\" = 'inspect -f web' ] && [ \"$3\" = '{{.State.Pid}}' ] && echo PID";
    guarded_from_the_node(&block("docker", "sh", 0), ("docker", inspect));
}

#[test]
fn kubernetes() {
    let crictl = "case \"$*\" in
        'ps --name web --quiet') echo 0123abc ;;
        'inspect --output go-template --template {{.info.pid}} 0123abc') echo PID ;;
        *) exit 1 ;;
    esac";
    guarded_from_the_node(&block("kubernetes", "sh", 0), ("crictl", crictl));
}

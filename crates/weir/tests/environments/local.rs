//! A proxy before the server, on the same host: weir guards the server's port on the loopback device, and the proxy
//! meets weir's RST.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;
use weir_testbed::needs;
use weir_testbed::netns::Netns;
use weir_testbed::sockets::{listen, within};

use crate::bed::{Bed, PORT, SERVER, assert_untouched, at, serve, without_and_with};
use crate::load::{self, Outcome};

/// The port of the proxy, and of a second server that has room.
const FRONT: u16 = 80;
const SECOND: u16 = 8081;

/// A proxy in the foreground; killed on drop.
pub struct Proxy {
    child: Child,
    folder: TempDir,
}

impl Proxy {
    fn start(netns: &Netns, program: &str, arguments: &[&str], config: &str) -> Proxy {
        let folder = TempDir::with_prefix("weir-environment-").unwrap();
        let file = folder.path().join("config");
        std::fs::write(
            &file,
            config.replace("FOLDER", &folder.path().display().to_string()),
        )
        .unwrap();
        let mut command: Command = needs::command(program);
        command.args(arguments).arg(&file);
        command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .stdin(Stdio::null());
        let child = within(netns, || command.spawn().unwrap());
        Proxy { child, folder }
    }

    fn nginx(netns: &Netns, servers: &str) -> Proxy {
        let config = format!(
            "daemon off; master_process off; pid FOLDER/pid; error_log FOLDER/log;
             events {{ worker_connections 4096; }}
             http {{
               access_log off; client_body_temp_path FOLDER/body; proxy_temp_path FOLDER/proxy;
               fastcgi_temp_path FOLDER/fastcgi; uwsgi_temp_path FOLDER/uwsgi; scgi_temp_path FOLDER/scgi;
               upstream back {{ {servers} }}
               server {{
                 listen {FRONT} backlog=1024; listen [::]:{FRONT} backlog=1024;
                 location / {{ proxy_pass http://back; }}
               }}
             }}\n"
        );
        Proxy::start(netns, "nginx", &["-c"], &config)
    }

    /// A file in its folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// One with these sections behind its defaults.
    pub fn haproxy(netns: &Netns, sections: &str) -> Proxy {
        let config = format!(
            "global
               maxconn 2000
               stats socket FOLDER/stats
             defaults
               mode http
               timeout connect 5s
               timeout client 5s
               timeout server 5s
             {sections}\n"
        );
        Proxy::start(netns, "haproxy", &["-db", "-f"], &config)
    }
}

/// HAProxy's sections of a front before this backend.
fn before(settings: &str) -> String {
    format!(
        "frontend front
           bind :::{FRONT} v4v6
           default_backend back
         backend back
           {settings}"
    )
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the clients of a proxy saw while its server was guarded and overloaded.
fn through(bed: &Bed, name: &str) -> Outcome {
    let to: Vec<SocketAddr> = at(SERVER, FRONT);
    let guarded = [(&bed.server, PORT)];
    let seen = without_and_with(name, &bed.client, &to, &guarded, &load::plain);
    let over = seen.over;
    assert_untouched(&seen.light);
    assert!(seen.weirs[0].refused() > 0 && over.served > 0, "{over}");
    assert_eq!((over.refused, over.silent), (0, 0), "{over}");
    over
}

/// A refused connection becomes 502 for the client at once.
#[test]
fn nginx_with_one_server_says_502_at_once() {
    let Some((bed, _server)) = bed("nginx") else {
        return;
    };
    let _proxy = Proxy::nginx(&bed.server, "server 127.0.0.1:8080 max_fails=0;");
    let over = through(&bed, "nginx, one server");
    assert!(over.errors.get(&502).copied() > Some(0), "{over}");
    assert_eq!(over.errors.values().sum::<usize>(), over.failed, "{over}");
}

/// It tries the next server for a refused connection, as it does by default: no client sees an error.
#[test]
fn nginx_with_two_servers_tries_the_next() {
    let Some((bed, _server)) = bed("nginx") else {
        return;
    };
    let _second = second_server(&bed);
    let _proxy = Proxy::nginx(
        &bed.server,
        "server 127.0.0.1:8080 max_fails=0; server 127.0.0.1:8081 max_fails=0;",
    );
    let over = through(&bed, "nginx, two servers");
    assert_eq!((over.failed, over.late), (0, 0), "{over}");
}

/// It tries again a second later, three times, and then says 503.
#[test]
fn haproxy_with_one_server_tries_again() {
    let Some((bed, _server)) = bed("haproxy") else {
        return;
    };
    let _proxy = Proxy::haproxy(&bed.server, &before("server one 127.0.0.1:8080"));
    let over = through(&bed, "HAProxy, one server");
    assert!(over.errors.keys().all(|status| *status == 503), "{over}");
}

/// `option redispatch 1` has it try the next server: no client sees an error.
#[test]
fn haproxy_with_two_servers_tries_the_next() {
    let Some((bed, _server)) = bed("haproxy") else {
        return;
    };
    let _second = second_server(&bed);
    let _proxy = Proxy::haproxy(
        &bed.server,
        &before("option redispatch 1\nserver one 127.0.0.1:8080\nserver two 127.0.0.1:8081"),
    );
    let over = through(&bed, "HAProxy, two servers");
    assert_eq!((over.failed, over.late), (0, 0), "{over}");
}

/// One that has room for all clients.
fn second_server(bed: &Bed) -> load::Workers {
    let any = format!("[::]:{SECOND}").parse().unwrap();
    load::Workers::start_many(listen(&bed.server, any, 1024), 24)
}

fn bed(program: &str) -> Option<(Bed, load::Workers)> {
    if !needs::programs(&[program]) {
        return None;
    }
    let bed = Bed::new()?;
    let server = serve(&bed.server, PORT);
    Some((bed, server))
}

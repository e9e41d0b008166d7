//! nginx with TLS 1.3 before a server that queues inside: weir measures at the server and refuses at nginx (`residence_of`).

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Child, Command};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use weir_testbed::needs;

use super::{CAPACITY, Pool, figure, is_near, residence};
use crate::common::{Bed, PORT, connect, listen, output, until, within};

const FRONT: u16 = 443;
const CLIENTS: &str = include_str!("clients.py");

fn config(residence_of: u16) -> String {
    format!(
        "[[listener]]\nname = \"tls\"\naddress = \"*:{FRONT}\"\nresidence = \"250ms\"\nresidence_of = {residence_of}\n"
    )
}

/// nginx; killed on drop with its workers.
struct Nginx(Child);

impl Nginx {
    /// With these lines for its connections to the server.
    fn start(bed: &Bed, upstream: &str, location: &str) -> Nginx {
        let folder = bed.folder.path().display();
        let key = format!(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=test -days 1 \
             -keyout {folder}/key.pem -out {folder}/cert.pem"
        );
        let words: Vec<&str> = key.split_whitespace().collect();
        output(bed.server(), "openssl", &words);
        let text = format!(
            "daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/nginx.log;
             events {{ worker_connections 8192; }}
             http {{
               access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
               fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
               upstream server {{ server 127.0.0.1:{PORT} max_fails=0; {upstream} }}
               server {{
                 listen {FRONT} ssl backlog=1024;
                 ssl_certificate {folder}/cert.pem; ssl_certificate_key {folder}/key.pem;
                 ssl_protocols TLSv1.3;
                 location / {{ proxy_pass http://server; {location} }}
               }}
             }}\n"
        );
        let config = bed.folder.path().join("nginx.conf");
        std::fs::write(&config, text).unwrap();
        let mut command = needs::command("nginx");
        command.arg("-c").arg(&config);
        let nginx = Nginx(within(bed.server(), || command.spawn().unwrap()));
        let at = bed.veth4().at(FRONT);
        until("nginx listens", || {
            connect(bed.client(), at, 1).connected.pop()
        });
        nginx
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Clients that ask nginx, `rate` a second; those that come in the warm-up do not count.
fn come(bed: &Bed, rate: f64, warm_up: Duration, length: Duration) -> Value {
    let address = bed.veth4().at(FRONT);
    let mut python = Command::new("/usr/bin/python3");
    python.arg("-c").arg(CLIENTS);
    python.arg(address.ip().to_string());
    python.arg(address.port().to_string());
    for figure in [rate, warm_up.as_secs_f64(), length.as_secs_f64()] {
        python.arg(figure.to_string());
    }
    let output = within(bed.client(), || python.output().unwrap());
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn bed() -> Option<Bed> {
    let programs = ["nginx", "openssl", "/usr/bin/python3"];
    needs::programs(&programs).then(Bed::new)?
}

/// A connection for each request, and connections that stay.
const UPSTREAMS: [(&str, &str); 2] = [
    ("", ""),
    (
        "keepalive 64;",
        "proxy_http_version 1.1; proxy_set_header Connection \"\";",
    ),
];

#[test]
fn behind_tls_a_server_that_queues_inside_is_kept_busy_and_nobody_gives_up() {
    let Some(bed) = bed() else { return };
    for (upstream, location) in UPSTREAMS {
        let _nginx = Nginx::start(&bed, upstream, location);
        for load in [0.8, 3.0] {
            let _weir = bed.run(&config(PORT));
            let pool = Pool::of_http(&bed);
            pool.serve(|| {
                let (warm_up, length) = (Duration::from_secs(8), Duration::from_secs(10));
                let (fates, truth) = thread::scope(|scope| {
                    let clients = scope.spawn(|| come(&bed, load * CAPACITY, warm_up, length));
                    thread::sleep(warm_up);
                    let truth = pool.truth(length);
                    if load < 1.0 {
                        // The server's end of each connection of nginx counts, and nginx's does not.
                        is_near(&bed, truth);
                    }
                    (clients.join().unwrap(), truth)
                });
                let seen = format!(
                    "{upstream:?} {load}: {:.1}/s, {fates}\n{:#}",
                    truth.1,
                    residence(&bed)
                );
                println!("{seen}");
                assert_eq!(fates["lost"], 0, "{seen}");
                let (served, refused) = (figure(&fates, "served"), figure(&fates, "refused"));
                if load < 1.0 {
                    assert_eq!(refused, 0.0, "{seen}");
                    return;
                }
                assert!(truth.1 >= 0.95 * CAPACITY, "{seen}");
                assert!(figure(&fates, "p50") <= 0.4, "{seen}");
                assert!(figure(&fates, "p99") <= 0.6, "{seen}");
                let share = refused / (served + refused);
                assert!((share - (1.0 - 1.0 / load)).abs() <= 0.1, "{seen}");
            });
        }
    }
}

#[test]
fn where_nobody_listens_nobody_is_refused_and_status_says_so() {
    let Some(bed) = Bed::new() else { return };
    let _weir = bed.run(&config(PORT));
    let said = || String::from_utf8(bed.weir("status").stdout).unwrap();
    until("weir says that nobody listens", || {
        let nobody = "requests at port 8080 cannot be seen, so weir refuses nobody for them: nobody listens there";
        said().contains(nobody).then_some(())
    });
    assert_eq!(residence(&bed)["listening"], false);
    let any = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), PORT);
    let _server: TcpListener = listen(bed.server(), any, 16);
    until("weir sees the server", || {
        said()
            .contains("requests at port 8080: none came")
            .then_some(())
    });
    assert_eq!(residence(&bed)["listening"], true);
}

//! Servers of a few workers behind weir, and servers with queues of their own.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use weir_testbed::netns::Netns;
use weir_testbed::sockets::{connect, within};
use weir_testbed::wait::until;
use weir_testbed::{needs, program, tomcat};

use super::block;
use super::servers::{SERVER, SHORT, SOMAXCONN, apache, host, protects};
use super::site::{Network, Server, Shell, at, guards, nginx, served};

const CLIENTS_WITH_TLS: &str = include_str!("../../guard/measured/residence/clients.py");
const TLS_PORT: u16 = 443;
const APP_PORT: u16 = 8000;
const PHP_PORT: u16 = 9000;
const REDIS_PORT: u16 = 6379;
const POSTGRES_PORT: u16 = 5432;

/// A command of the page, whose programs are Debian's.
fn page_command(folder: &Path, line: &str) -> Command {
    let mut words = line.split_whitespace();
    let mut command = needs::command(words.next().unwrap());
    command.args(words).current_dir(folder);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}

#[test]
fn apache_prefork_with_keep_alive() {
    protects("apache2", |shell| {
        let recipe = block("apache-prefork-with-keepalive", "apache", 0);
        apache(shell, "prefork", &recipe)
    });
}

#[test]
fn gunicorn() {
    protects("gunicorn", |shell| {
        shell.write("gunicorn.conf.py", &block("gunicorn", "python", 0));
        shell.write(
            "app.py",
            "def app(environ, start_response):\n    start_response('200 OK', [('Content-Length', '5')])\n    return [b'hello']\n",
        );
        page_command(&shell.path(""), &block("gunicorn", "", 0))
    });
}

#[test]
fn uvicorn() {
    protects("uvicorn", |shell| {
        shell.write(
            "app.py",
            "async def app(scope, receive, send):\n    assert scope['type'] == 'http'\n    \
             await send({'type': 'http.response.start', 'status': 200, 'headers': [(b'content-length', b'5')]})\n    \
             await send({'type': 'http.response.body', 'body': b'hello'})\n",
        );
        page_command(&shell.path(""), &block("uvicorn", "", 0))
    });
}

#[test]
fn tomcat() {
    if !tomcat::is_installed() {
        return needs::skip("tomcat10 is not installed");
    }
    protects("java", |shell| {
        let connector = block("tomcat", "xml", 0);
        let page = ("index.html", "hello");
        let mut java = tomcat::command(&shell.path(""), &connector, page, 64).unwrap();
        java.stdout(Stdio::null()).stderr(Stdio::null());
        java
    });
}

/// Clients that have asked: of how many the connection has a reply with this status by now.
fn replies(streams: &mut [(TcpStream, Vec<u8>)], status: &str) -> usize {
    let head = format!("HTTP/1.1 {status} ");
    let mut count = 0;
    for (stream, reply) in streams {
        let mut bytes = [0; 4096];
        match stream.read(&mut bytes) {
            Ok(length) => reply.extend_from_slice(&bytes[..length]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
        count += usize::from(reply.starts_with(head.as_bytes()));
    }
    count
}

/// Asks nginx, which takes every client at once.
fn asking(client: &Netns) -> (TcpStream, Vec<u8>) {
    let mut stream = within(client, || TcpStream::connect(at(SERVER, 80)).unwrap());
    let request = b"GET / HTTP/1.1\r\nHost: recipe\r\nConnection: close\r\n\r\n";
    stream.write_all(request).unwrap();
    stream.set_nonblocking(true).unwrap();
    (stream, Vec::new())
}

/// While PHP takes nothing, clients beyond the places of its queue have a 503 at once, and the others their page later.
#[test]
fn php_fpm_behind_nginx() {
    const SECTION: &str = "php-fpm-behind-nginx";
    if !needs::programs(&["nginx"]) {
        return;
    }
    let Some(fpm) = program::php_fpm() else {
        return needs::skip("PHP-FPM is not installed");
    };
    let Some(network) = Network::new() else {
        return;
    };
    let server_host = host(&network, SHORT);
    let client = network.host("client", &["10.0.0.100/8"]);
    let mut shell = Shell::on(&server_host);
    let pool = block(SECTION, "ini", 0);
    let conf = format!("[global]\nerror_log = FOLDER/php.log\n{pool}user = root\ngroup = root\n");
    let conf = shell.write("fpm.conf", &conf);
    let mut command = Command::new(fpm);
    command.args(["--nodaemonize", "--allow-to-run-as-root", "--fpm-config"]);
    let php = Server::start(
        &server_host,
        {
            command.arg(conf);
            command
        },
        PHP_PORT,
    );
    let app = shell.write(
        "app.php",
        "<?php header('Content-Length: 5'); echo 'hello';",
    );
    let lines = block(SECTION, "nginx", 0).replace("/var/www/app.php", &app.display().to_string());
    let front = nginx(&shell, "nginx", &format!("server {{ {lines} }}"));
    let _front = Server::start(&server_host, front, 80);
    shell.start(&block(SECTION, "", 0));
    shell.until(&server_host, |status| guards(status, 0));
    assert_eq!(served(&client, at(SERVER, 80)), "hello");

    php.stand_still();
    let mut clients: Vec<_> = (0..3 * SHORT).map(|_| asking(&client)).collect();
    // The kernel holds one connection more than the places.
    until("those beyond the places are told", || {
        (replies(&mut clients, "503") >= 2 * SHORT - 1).then_some(())
    });
    php.go_on();
    // On a busy machine the last to be told may be so only now.
    until("every client has an answer", || {
        let answers = ["503", "200"].map(|status| replies(&mut clients, status));
        (answers.iter().sum::<usize>() == 3 * SHORT).then_some(())
    });
    // weir holds a place back for each other CPU that let SYNs in, up to an eighth of the backlog.
    let served = replies(&mut clients, "200");
    let places = SHORT - SHORT / 8..=SHORT + 1;
    assert!(places.contains(&served), "{served}");
}

/// More clients than gunicorn can serve: those that are let in are served, and the others are refused at nginx.
#[test]
fn gunicorn_behind_nginx_with_tls() {
    const SECTION: &str = "gunicorn-behind-nginx-with-tls";
    if !needs::programs(&["gunicorn", "nginx", "openssl", "/usr/bin/python3"]) {
        return;
    }
    let Some(network) = Network::new() else {
        return;
    };
    let server_host = host(&network, SOMAXCONN);
    let client = network.host("client", &["10.0.0.100/8"]);
    let mut shell = Shell::on(&server_host);
    let commands = block(SECTION, "", 0);
    let (gunicorn, service) = commands.trim().split_once('\n').unwrap();
    shell.write("gunicorn.conf.py", &block(SECTION, "python", 0));
    shell.write(
        "app.py",
        "import time\ndef app(environ, start_response):\n    time.sleep(0.2)\n    start_response('200 OK', [('Content-Length', '5')])\n    return [b'hello']\n",
    );
    let _gunicorn = Server::start(
        &server_host,
        page_command(&shell.path(""), gunicorn),
        APP_PORT,
    );
    let key = format!(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=recipe -days 1 \
         -keyout {0}/web.key -out {0}/web.pem",
        shell.path("").display()
    );
    shell.run(&key);
    let lines =
        block(SECTION, "nginx", 0).replace("/etc/ssl", &shell.path("").display().to_string());
    let front = nginx(&shell, "nginx", &format!("server {{ {lines} }}"));
    let _front = Server::start(&server_host, front, TLS_PORT);
    shell.write("weir.toml", &block(SECTION, "toml", 0));
    shell.start(service.trim());
    shell.until(&server_host, |status| {
        guards(status, 0) && status["listeners"][0]["residence"]["listening"] == true
    });

    until("weir refuses clients at nginx", || {
        let mut python = Command::new("/usr/bin/python3");
        // 20 requests a second are what gunicorn can serve.
        python.args(["-c", CLIENTS_WITH_TLS, SERVER, "443", "100", "0", "5"]);
        let output = within(&client, || python.output().unwrap());
        let fates: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(fates["served"].as_u64() > Some(0), "{fates}");
        let counters = &shell.status()["listeners"][0]["counters"];
        let refused = counters["syn_reset_residence"].as_u64();
        (fates["refused"].as_u64() > Some(0) && refused > Some(0)).then_some(())
    });
}

#[test]
fn redis() {
    if !needs::programs(&["redis-server"]) {
        return;
    }
    let Some(network) = Network::new() else {
        return;
    };
    let server_host = host(&network, SHORT);
    let client = network.host("client", &["10.0.0.100/8"]);
    let mut shell = Shell::on(&server_host);
    let conf = block("redis", "redis", 0) + "protected-mode no\nsave \"\"\n";
    let mut command = needs::command("redis-server");
    command.arg(shell.write("redis.conf", &conf));
    command.stdout(Stdio::null()).current_dir(shell.path(""));
    let server = Server::start(&server_host, command, REDIS_PORT);
    shell.start(&block("redis", "", 0));
    shell.until(&server_host, |status| guards(status, 0));
    let limits = || answer(&client, REDIS_PORT, b"CONFIG GET tcp-backlog\r\n");
    assert!(limits().contains("4096"), "{}", limits());
    server.stand_still();
    let (inside, refused, silent) = connect(&client, at(SERVER, REDIS_PORT), 3 * SHORT).counts();
    assert!(
        inside <= SHORT + 1 && refused >= 2 * SHORT - 1 && silent == 0,
        "{inside} {refused} {silent}"
    );
    server.go_on();
    until("Redis goes on", || {
        let told = answer(&client, REDIS_PORT, b"PING\r\n");
        told.contains("PONG").then_some(())
    });
}

/// What a server tells first; empty if it refuses.
fn answer(client: &Netns, port: u16, request: &[u8]) -> String {
    let told = within(client, || -> std::io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect(at(SERVER, port))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(request)?;
        let mut bytes = vec![0; 1024];
        let length = stream.read(&mut bytes)?;
        Ok(bytes[..length].to_vec())
    });
    String::from_utf8_lossy(&told.unwrap_or_default()).into_owned()
}

/// "Too many clients" comes after accept, and weir refuses nobody for it; it holds a storm of connections to its rate.
#[test]
fn postgresql() {
    const SECTION: &str = "postgresql";
    let of_version = |path: &Path| {
        let programs = path.join("bin");
        programs.join("postgres").exists().then_some(programs)
    };
    let Some(programs) = program::versioned("/usr/lib/postgresql", of_version) else {
        return needs::skip("PostgreSQL is not installed");
    };
    let Some(network) = Network::new() else {
        return;
    };
    let server_host = host(&network, SOMAXCONN);
    let client = network.host("client", &["10.0.0.100/8"]);
    let mut shell = Shell::on(&server_host);
    let _server = Server::start(&server_host, postgres(&shell, &programs), POSTGRES_PORT);
    shell.write("weir.toml", &block(SECTION, "toml", 0));
    shell.start(&block(SECTION, "", 0));
    shell.until(&server_host, |status| guards(status, 0));

    // Four places, which superusers do not keep for themselves.
    until("it has started", || {
        log_in(&client).1.starts_with('R').then_some(())
    });
    let kept: Vec<(TcpStream, String)> = (0..6).map(|_| log_in(&client)).collect();
    let full = kept
        .iter()
        .filter(|(_, told)| told.contains("too many clients"));
    assert!(full.count() >= 2, "{kept:?}");
    // A class has those of its counters that are not 0.
    let refusals = || {
        let status = shell.status();
        let counters = &status["listeners"][0]["classes"][0]["counters"];
        assert!(counters["syn_admitted"].as_u64() >= Some(7), "{status:#}");
        counters["syn_reset_rate"].as_u64().unwrap_or(0) as usize
    };
    assert_eq!(refusals(), 0);
    drop(kept);

    let (inside, refused, _) = connect(&client, at(SERVER, POSTGRES_PORT), 100).counts();
    assert!(inside >= 20 && refused >= 30, "{inside} {refused}");
    // Its listen queue has twice as many places as it has connections: a few more are refused there.
    let by_rate = refusals();
    assert!((30..=refused).contains(&by_rate), "{by_rate} of {refused}");
}

/// A cluster of its own, with four connections, as the user that Debian has for it: PostgreSQL refuses to be root.
fn postgres(shell: &Shell<'_>, programs: &Path) -> Command {
    let data = shell.path("data");
    std::fs::create_dir(&data).unwrap();
    let user = nix::unistd::User::from_name("postgres").unwrap().unwrap();
    std::os::unix::fs::chown(&data, Some(user.uid.as_raw()), Some(user.gid.as_raw())).unwrap();
    let as_user = |program: &str| {
        let mut command = Command::new(programs.join(program));
        command.arg("-D").arg(&data).current_dir(&data);
        command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
        command.stdout(Stdio::null());
        command
    };
    let mut init = as_user("initdb");
    init.args(["--auth=trust", "--no-sync", "--username=postgres"]);
    assert!(init.status().unwrap().success());
    let rule = "host all all 10.0.0.0/8 trust\n";
    std::fs::write(data.join("pg_hba.conf"), rule).unwrap();
    let mut command = as_user("postgres");
    for setting in [
        "listen_addresses=*",
        "max_connections=4",
        "superuser_reserved_connections=0",
        "max_wal_senders=0",
        "unix_socket_directories=",
        "fsync=off",
    ] {
        command.args(["-c", setting]);
    }
    command.stderr(Stdio::null());
    command
}

/// A connection with its log-in, and what PostgreSQL says to it: `R` and more, or `E` and why.
fn log_in(client: &Netns) -> (TcpStream, String) {
    let body = b"\0\x03\0\0user\0postgres\0database\0postgres\0\0";
    let message = [&(body.len() as u32 + 4).to_be_bytes()[..], body].concat();
    let mut stream = within(client, || {
        TcpStream::connect(at(SERVER, POSTGRES_PORT)).unwrap()
    });
    stream
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    stream.write_all(&message).unwrap();
    let mut bytes = [0; 1024];
    let length = stream.read(&mut bytes).unwrap();
    (
        stream,
        String::from_utf8_lossy(&bytes[..length]).into_owned(),
    )
}

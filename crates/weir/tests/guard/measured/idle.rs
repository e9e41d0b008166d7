//! What a weir costs that has nothing to do.

use std::net::{Ipv6Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::TcpRepair;
use weir_testbed::process::{Usage, rss_kib};

use super::page::{DASHBOARD, Page};
use crate::common::{BACKLOG, Bed, PORT, listen, within};

const MEASURED: Duration = Duration::from_secs(10);
/// Of one core, and in KiB.
const MOST: f64 = 0.005;
const MOST_KIB: u64 = 30 * 1024;

/// The share of a core that the process takes.
fn share(pid: u32) -> f64 {
    let (begun, used) = (Instant::now(), Usage::of(pid).unwrap());
    // Nothing is waited for here: this is the time in which nothing is to happen.
    std::thread::sleep(MEASURED);
    let used = Usage::of(pid).unwrap().since(&used);
    used.cpu.as_secs_f64() / begun.elapsed().as_secs_f64()
}

#[test]
fn an_idle_daemon_takes_under_half_a_percent_of_a_core_and_30_mib() {
    let Some(bed) = Bed::new() else { return };
    let any: SocketAddr = (Ipv6Addr::UNSPECIFIED, PORT).into();
    let _listener = listen(bed.server(), any, BACKLOG);
    let file = format!(
        "[[listener]]\nname = \"web\"\naddress = \"*:{PORT}\"\n[metrics]\n[api]\n{DASHBOARD}"
    );
    let weir = bed.run(&file);
    let closed = share(weir.pid());
    let page = Page::open(&bed, None);
    let open = share(weir.pid());
    let reports = page.close();
    let kib = rss_kib(weir.pid()).unwrap();
    // The controller looks ten times a second.
    bed.write_config(&format!("{file}[controller]\ntarget_wait = \"20ms\"\n"));
    assert!(bed.weir("reload").status.success());
    let controlled = share(weir.pid());
    println!(
        "idle: {:.3} % of a core, with the dashboard open {:.3} % ({reports} reports), with a controller {:.3} %; {kib} KiB",
        closed * 100.0,
        open * 100.0,
        controlled * 100.0
    );
    assert!(reports >= 9, "{reports} reports");
    assert!(closed < MOST, "{:.3} % of a core", closed * 100.0);
    // Unoptimized, a look takes three times as long.
    let most = if cfg!(debug_assertions) {
        3.0 * MOST
    } else {
        MOST
    };
    assert!(
        controlled < most,
        "with a controller {:.3} % of a core",
        controlled * 100.0
    );
    // Without optimization the program itself is five times as long, and most of what is resident.
    if !cfg!(debug_assertions) {
        assert!(kib < MOST_KIB, "{kib} KiB");
    }
}

/// Connections that a server has, and whose requests weir watches.
const CONNECTIONS: usize = 10_000;
/// The passes take 1 % by themselves, and a share is known to a tenth of that.
const MOST_WATCHING: f64 = 0.013;
/// Less says that no pass was made.
const LEAST_WATCHING: f64 = 0.003;

#[test]
fn to_watch_ten_thousand_idle_connections_takes_one_percent_of_a_core() {
    let Some(bed) = Bed::new() else { return };
    let path = bed.veth4();
    let any: SocketAddr = (Ipv6Addr::UNSPECIFIED, PORT).into();
    let listener = listen(bed.server(), any, BACKLOG);
    let _connections: Vec<TcpStream> = (0..CONNECTIONS)
        .map(|_| {
            let client = within(path.client, || TcpStream::connect(path.at(PORT)).unwrap());
            let (server, _) = listener.accept().unwrap();
            // It goes without a word, for both ends together would be more descriptors than a process may have.
            setsockopt(&client, TcpRepair, &1).unwrap();
            server
        })
        .collect();
    let share_with = |residence: &str| {
        let weir = bed.run(&format!(
            "[[listener]]\nname = \"web\"\naddress = \"*:{PORT}\"\nresidence = \"{residence}\"\n"
        ));
        let share = share(weir.pid());
        println!("residence = {residence}: {:.3} % of a core", share * 100.0);
        share
    };
    let off = share_with("off");
    for residence in ["observe", "250ms"] {
        let watching = share_with(residence) - off;
        let possible = LEAST_WATCHING..=MOST_WATCHING;
        assert!(possible.contains(&watching), "{residence}: {watching}");
    }
}

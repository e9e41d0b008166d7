//! What refusals cost the daemon, with somebody who follows its events and somebody who has the dashboard open.

use std::net::{Ipv6Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::page::{DASHBOARD, Page};
use crate::common::{BACKLOG, Bed, PORT, Peer, Raw, connect, listen, within};
use weir_testbed::cpu::{pin_process, pin_this_thread, quieter_and_busier_receiver};
use weir_testbed::process::{Usage, rss_kib};
use weir_testbed::raw::{Segment, Shape, frame};

const REFUSALS_PER_S: f64 = 100_000.0;
const FLOOD: Duration = Duration::from_secs(10);
/// What is kept of refusals, events and sources, at most; unoptimized code and the allocator's rests are in it.
const MOST_KIB: u64 = 16 * 1024;
/// Of one core.
const MOST: f64 = 0.02;

#[test]
fn at_100_000_refusals_a_second_the_daemon_takes_under_2_percent_of_a_core() {
    let Some(bed) = Bed::new() else { return };
    let path = bed.veth4();
    let any: SocketAddr = (Ipv6Addr::UNSPECIFIED, PORT).into();
    let _listener = listen(bed.server(), any, BACKLOG);
    let weir = bed.run(&format!(
        "[[listener]]\nname = \"web\"\naddress = \"*:{PORT}\"\nadmit = \"queue\"\n[events]\nfile = {:?}\n{DASHBOARD}",
        bed.folder.path().join("events.jsonl").display().to_string()
    ));
    let idle_kib = rss_kib(weir.pid()).unwrap();
    let clients = connect(path.client, path.at(PORT), 4);
    assert_eq!(clients.counts(), (4, 0, 0));
    let mut follow: Command = bed.command("events --follow --json");
    follow.stdout(Stdio::null());
    let mut follower = within(bed.server(), || follow.spawn().unwrap());

    let frames: Vec<Vec<u8>> = (0..1 << 16)
        .map(|number| {
            let syn = Segment {
                seq: number,
                syn: true,
                ..Segment::default()
            };
            frame(Peer::v4(number, PORT), Shape::Plain, &syn)
        })
        .collect();
    // The kernel works off the flood's packets in the time of whatever runs on the CPU that receives them: that
    // must not be the daemon. It is the sender's CPU, or another where packets are steered.
    let raw = Raw(&bed.links.wire);
    pin_this_thread(0).unwrap();
    let (own, the_flood_s) = quieter_and_busier_receiver(|| {
        frames[..10_000]
            .iter()
            .for_each(|frame| raw.send_frame(frame));
    })
    .unwrap();
    pin_this_thread(the_flood_s).unwrap();
    pin_process(weir.pid(), own).unwrap();
    pin_process(follower.id(), own).unwrap();
    let refused = bed.counter(0, "syn_reset_full");
    let page = Page::open(&bed, Some(own));
    let (begun, used) = (Instant::now(), Usage::of(weir.pid()).unwrap());
    let mut sent = 0;
    while begun.elapsed() < FLOOD {
        let due = (begun.elapsed().as_secs_f64() * REFUSALS_PER_S) as usize;
        while sent < due {
            raw.send_frame(&frames[sent % frames.len()]);
            sent += 1;
        }
        // The answers fill the wire's queue, and the kernel drops the others.
        std::hint::spin_loop();
    }
    let time = begun.elapsed();
    let used = Usage::of(weir.pid()).unwrap().since(&used);
    let reports = page.close();
    follower.kill().unwrap();
    follower.wait().unwrap();
    let refused = bed.counter(0, "syn_reset_full") - refused;
    let rate = refused as f64 / time.as_secs_f64();
    let share = used.cpu.as_secs_f64() / time.as_secs_f64();
    let more_kib = rss_kib(weir.pid()).unwrap() - idle_kib;
    println!(
        "{rate:.0} refusals/s: {:.2} % of a core; memory {idle_kib} KiB before, {more_kib} more after; the page had \
         {reports} reports",
        share * 100.0
    );
    assert!(reports >= 9, "the page had {reports} reports");
    assert!(more_kib < MOST_KIB, "{more_kib} KiB");
    assert!(
        rate > REFUSALS_PER_S * 0.8,
        "the generator is too slow: {rate:.0}/s"
    );
    // Unoptimized, the daemon takes three times as long for each sample.
    let most = if cfg!(debug_assertions) {
        2.0 * MOST
    } else {
        MOST
    };
    assert!(
        share < most,
        "{:.2} % of a core at {rate:.0} refusals/s",
        share * 100.0
    );
}

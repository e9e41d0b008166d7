//! Classes at a server that queues inside: the controller holds the others, and the high class comes in.

use std::net::{IpAddr, Ipv6Addr};
use std::thread;
use std::time::Duration;

use super::super::fates::Fates;
use super::{CAPACITY, Pool, REQUEST, limited, residence};
use crate::common::{Bed, PATIENCE, PORT, within};

/// Of the clients, so many are of the high class; all together ask for so many times what the server can do.
const GOLD: f64 = 0.2;
const ALL: f64 = 3.0;

#[test]
fn a_high_class_is_let_in_while_others_give_way_and_the_server_is_kept_busy() {
    let Some(bed) = Bed::new() else { return };
    let config = format!(
        "{}[[class]]\nname = \"gold\"\nfrom = \"fd66::/16\"\npriority = 1\n[controller]\ntarget_wait = \"20ms\"\n",
        limited("enforce")
    );
    let pool = Pool::at(&bed, IpAddr::V6(Ipv6Addr::UNSPECIFIED), false);
    let _weir = bed.run(&config);
    let (warm_up, length) = (Duration::from_secs(8), Duration::from_secs(10));
    let [gold, other] = [(); 2].map(|()| Fates::asking(PATIENCE, &REQUEST, 1));
    let per_s = pool.serve(|| {
        thread::scope(|scope| {
            let clients = [
                (&gold, bed.veth6(), GOLD),
                (&other, bed.veth4(), 1.0 - GOLD),
            ];
            for (fates, path, share) in clients {
                let (address, rate) = (path.at(PORT), share * ALL * CAPACITY);
                scope.spawn(move || {
                    within(path.client, || {
                        fates.come(share.to_bits(), rate, address, warm_up, length);
                    });
                });
            }
            thread::sleep(warm_up);
            let per_s = pool.truth(length).1;
            let status = String::from_utf8(bed.weir("status").stdout).unwrap();
            assert!(
                status.contains("requests that the server has not answered"),
                "{status}"
            );
            per_s
        })
    });
    let seen = format!(
        "{per_s:.1}/s; gold {:?}, p50 {:?}, p99 {:?}; other {:?}, p99 {:?}\n{:#}",
        gold.counts(),
        gold.quantile(0.5),
        gold.quantile(0.99),
        other.counts(),
        other.quantile(0.99),
        residence(&bed),
    );
    println!("{seen}");
    let [served, refused, lost] = gold.counts();
    let came = (served + refused + lost) as f64;
    assert!(served as f64 >= 0.95 * came, "{seen}");
    assert_eq!((lost, other.counts()[2]), (0, 0), "{seen}");
    assert!(per_s >= 0.95 * CAPACITY, "{seen}");
    assert!(gold.quantile(0.99) <= Duration::from_millis(600), "{seen}");
}

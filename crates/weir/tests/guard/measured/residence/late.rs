//! A limit that is put on in the middle of an incident, and what looks like one: long polls whose clients leave.

use std::collections::VecDeque;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::super::fates::Fates;
use super::{CAPACITY, CONFIG, POLL, Pool, REQUEST, come, limited, refused, residence};
use crate::common::{Bed, PORT, within};

/// Clients that give up after 3 s have done so for long. Of those that are inside when the limit comes, the last gives up 3 s
/// later.
#[test]
fn put_on_after_clients_have_given_up_it_serves_at_capacity_when_the_last_has() {
    let Some(bed) = Bed::new() else { return };
    let path = bed.veth4();
    let pool = Pool {
        skips: true,
        ..Pool::new(&bed, false)
    };
    let patience = Duration::from_secs(3);
    let (calm, before, drains, length) = (
        Duration::from_secs(8),
        Duration::from_secs(10),
        patience * 2,
        Duration::from_secs(10),
    );
    let _weir = bed.run(CONFIG);
    pool.serve(|| {
        let address = path.at(PORT);
        within(path.client, || come(0.5 * CAPACITY, address, 1, calm));
        let fates = Fates::asking(patience, &REQUEST, 1);
        thread::scope(|scope| {
            scope.spawn(|| {
                within(path.client, || {
                    fates.come(33, 3.0 * CAPACITY, address, before + drains, length);
                });
            });
            thread::sleep(before);
            bed.write_config(&limited("enforce"));
            assert!(bed.weir("reload").status.success());
        });
        let [served, refused, lost] = fates.counts();
        let seen = format!(
            "{served} served, {refused} refused, {lost} lost\n{:#}",
            residence(&bed)
        );
        println!("{seen}");
        let could = CAPACITY * length.as_secs_f64();
        assert!(served as f64 >= 0.95 * could, "{seen}");
        assert_eq!(lost, 0, "{seen}");
    });
}

/// Clients that poll and leave, one after the other; the number of those that could not connect.
fn poll(address: SocketAddr, rate: f64, stays: Duration, length: Duration) -> usize {
    let mut polls: VecDeque<(Instant, TcpStream)> = VecDeque::new();
    let (begun, mut came, mut turned_away) = (Instant::now(), 0.0, 0);
    while begun.elapsed() < length {
        while came < begun.elapsed().as_secs_f64() * rate {
            came += 1.0;
            match TcpStream::connect(address) {
                Ok(mut stream) => {
                    stream.write_all(&[POLL; 16]).unwrap();
                    polls.push_back((Instant::now(), stream));
                }
                Err(_) => turned_away += 1,
            }
        }
        while polls
            .front()
            .is_some_and(|(since, _)| since.elapsed() >= stays)
        {
            polls.pop_front();
        }
        thread::sleep(Duration::from_millis(5));
    }
    turned_away
}

#[test]
fn long_polls_whose_clients_come_and_go_refuse_nobody() {
    let Some(bed) = Bed::new() else { return };
    let path = bed.veth4();
    let _weir = bed.run(&limited("enforce"));
    let pool = Pool::new(&bed, false);
    let (stays, length) = (Duration::from_secs(4), Duration::from_secs(15));
    pool.serve(|| {
        let (fates, turned_away) = thread::scope(|scope| {
            let polls =
                scope.spawn(|| within(path.client, || poll(path.at(PORT), 20.0, stays, length)));
            let fates = within(path.client, || {
                come(0.5 * CAPACITY, path.at(PORT), 1, length)
            });
            (fates, polls.join().unwrap())
        });
        let seen = format!("{:?} {turned_away} {:#}", fates.counts(), residence(&bed));
        println!("{seen}");
        assert_eq!((refused(&bed), turned_away), (0, 0), "{seen}");
        assert_eq!(fates.counts()[1..], [0, 0], "{seen}");
    });
}

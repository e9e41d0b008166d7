//! Connections that look as if the server owed them an answer for ever.

use std::io::Write;
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use super::{CAPACITY, POLL, Pool, come_after, limited, residence};
use crate::common::{Bed, PORT, within};

/// More than a server may have that is a quarter busy.
const HALVES: usize = 30;

#[test]
fn clients_that_never_end_their_request_shut_nobody_out_for_long() {
    let Some(bed) = Bed::new() else { return };
    let path = bed.veth4();
    let _weir = bed.run(&limited("enforce"));
    let pool = Pool::new(&bed, false);
    let (calm, settles, length) = (
        Duration::from_secs(6),
        Duration::from_secs(4),
        Duration::from_secs(8),
    );
    pool.serve(|| {
        let (fates, halves) = thread::scope(|scope| {
            let others = scope.spawn(|| {
                within(path.client, || {
                    come_after(calm + settles, 0.25 * CAPACITY, path.at(PORT), 1, length)
                })
            });
            thread::sleep(calm);
            let begin = |_| {
                let mut stream = TcpStream::connect(path.at(PORT)).ok()?;
                stream.write_all(&[POLL]).unwrap();
                Some(stream)
            };
            let halves = within(path.client, || {
                (0..HALVES).filter_map(begin).collect::<Vec<_>>()
            });
            (others.join().unwrap(), halves)
        });
        let [served, refused, lost] = fates.counts();
        let seen = format!(
            "{} halves; {served} served, {refused} refused, {lost} lost\n{:#}",
            halves.len(),
            residence(&bed)
        );
        println!("{seen}");
        assert!(halves.len() > 12, "{seen}");
        assert_eq!((refused, lost), (0, 0), "{seen}");
    });
}

//! `mode = "observe"`: decides and counts, and touches nothing.

use std::io::Read;
use std::net::Shutdown;

use weir_kernel::has_cookie_kfunc;

use crate::common::{BACKLOG, Bed, PATIENCE, PORT, accept, connect, greet, listen};

#[test]
fn observe_counts_refusals_and_its_clients_fare_as_without_weir() {
    let Some(bed) = Bed::new() else { return };
    for (number, path) in [bed.veth4(), bed.loopback6()].iter().enumerate() {
        let outcome = |port: u16| {
            let listener = listen(bed.server(), path.at(port), BACKLOG);
            let before = bed.overflows();
            let mut clients = connect(path.client, path.at(port), 6);
            greet(&mut accept(&listener, 5));
            (clients.counts(), clients.fates(), bed.overflows() - before)
        };
        let plain = outcome(PORT);
        assert_eq!(plain, ((5, 0, 1), (5, 0, 0), 1));
        let port = PORT + 1 + number as u16;
        for establish in ["reserv", "no-syn-drop", "abort"] {
            let _weir = bed.protect(&format!(
                "{port} --anyway --observe --admit queue --establish {establish}"
            ));
            assert_eq!(outcome(port), plain, "{establish} on {}", path.name);
            let verdicts = bed.verdicts(0);
            let expected = match establish {
                // Without cookies of BPF it is as reserv.
                "no-syn-drop" if has_cookie_kfunc() => [("cookie_sent", 2), ("syn_admitted", 4)],
                "abort" => [("syn_admitted", 5), ("syn_reset_full", 1)],
                _ => [("syn_admitted", 4), ("syn_reset_full", 2)],
            };
            assert_eq!(
                verdicts,
                expected.map(|(name, n)| (name.to_owned(), n)),
                "{establish}"
            );
        }
    }
}

#[test]
fn observe_counts_a_half_close_and_lets_it_work() {
    let Some(bed) = Bed::new() else { return };
    let path = bed.veth4();
    let listener = listen(bed.server(), path.at(PORT), BACKLOG);
    let _weir = bed.protect(&format!("{PORT} --observe --half-close reset"));
    let mut clients = connect(path.client, path.at(PORT), 1);
    let mut server = accept(&listener, 1);
    clients.connected[0].shutdown(Shutdown::Write).unwrap();
    server[0].set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(server[0].read(&mut [0]).unwrap(), 0);
    greet(&mut server);
    assert_eq!(clients.fates(), (1, 0, 0));
    assert_eq!(bed.counter(0, "fin_reset"), 1);
}

//! On veth the XDP front is there only if its answers arrive.

use weir_kernel::Guard;

use weir_testbed::stranger::Stranger;

use crate::common::{
    BACKLOG, Bed, PORT, Weir, accept, connect, echo_both_ways, listen, output, within,
};

/// Two clients more than there are places, of a weir that was asked for the front: all six hear.
fn two_are_refused_aloud(bed: &Bed, weir: &Weir) {
    let path = bed.veth4();
    let clients = connect(path.client, path.at(PORT), BACKLOG as usize + 2);
    assert_eq!(clients.counts(), (4, 2, 0), "{}", weir.line);
}

/// Whether the front is on the bed's veth.
fn front_is_on_veth(bed: &Bed) -> bool {
    let status = bed.status();
    let interfaces = status["interfaces"].as_array().unwrap();
    let veth = interfaces.iter().find(|i| i["name"] == "veth0").unwrap();
    let says_tc = status["warnings"].to_string().contains("on veth0");
    assert_ne!(veth["xdp"], says_tc, "{status:#}");
    !says_tc
}

#[test]
fn on_a_veth_whose_peer_runs_no_xdp_the_front_stays_at_tc_and_refusals_arrive() {
    let Some(bed) = Bed::new() else { return };
    let _listener = listen(bed.server(), bed.veth4().at(PORT), BACKLOG);
    let weir = bed.protect(&format!("{PORT} --admit queue --front xdp"));
    assert!(!front_is_on_veth(&bed));
    two_are_refused_aloud(&bed, &weir);
    assert_eq!(bed.counter(0, "refused_at_xdp"), 0);
}

#[test]
fn on_a_veth_whose_peer_runs_xdp_the_front_refuses_in_the_driver_and_is_heard() {
    let Some(bed) = Bed::new() else { return };
    let _listener = listen(bed.server(), bed.veth4().at(PORT), BACKLOG);
    within(bed.client(), || {
        // A guard without listeners passes everything.
        let mut passes_all = Guard::load().unwrap();
        let peer = nix::net::if_::if_nametoindex("veth0").unwrap();
        passes_all.attach(peer, true).unwrap();
        let weir = bed.protect(&format!("{PORT} --admit queue --front xdp"));
        assert!(front_is_on_veth(&bed));
        two_are_refused_aloud(&bed, &weir);
        assert_eq!(bed.counter(0, "refused_at_xdp"), 2);
    });
}

/// An MTU that is larger than a page has the driver hand packets over in several buffers.
#[test]
fn with_jumbo_frames_the_front_refuses_in_the_driver_all_the_same() {
    let Some(bed) = Bed::new() else { return };
    let jumbo = ["link", "set", "veth0", "mtu", "9000"];
    output(bed.server(), "ip", &jumbo);
    output(bed.client(), "ip", &jumbo);
    let _peer = within(bed.client(), || Stranger::at_xdp("veth0", "passes_all")).unwrap();
    let listener = listen(bed.server(), bed.veth4().at(PORT), BACKLOG);
    let weir = bed.protect(&format!("{PORT} --admit queue --front xdp"));
    assert!(front_is_on_veth(&bed));
    two_are_refused_aloud(&bed, &weir);
    assert_eq!(bed.counter(0, "refused_at_xdp"), 2);
    accept(&listener, BACKLOG as usize);
    // Segments of several buffers reach the server whole.
    let path = bed.veth4();
    let mut client = connect(path.client, path.at(PORT), 1).connected.remove(0);
    let mut server = accept(&listener, 1).remove(0);
    echo_both_ways(&mut client, &mut server, 1 << 20);
}

#[test]
fn where_another_has_the_driver_s_place_weir_names_it_and_refuses_at_tc() {
    let Some(bed) = Bed::new() else { return };
    let _listener = listen(bed.server(), bed.veth4().at(PORT), BACKLOG);
    let _peer = within(bed.client(), || Stranger::at_xdp("veth0", "passes_all")).unwrap();
    let _other = within(bed.server(), || Stranger::at_xdp("veth0", "xdp_dispatcher")).unwrap();
    let weir = bed.protect(&format!("{PORT} --admit queue --front xdp"));
    assert!(!front_is_on_veth(&bed));
    let warnings = bed.status()["warnings"].to_string();
    assert!(warnings.contains("xdp_dispatcher (program "), "{warnings}");
    two_are_refused_aloud(&bed, &weir);
    let doctor = String::from_utf8(bed.weir("doctor").stdout).unwrap();
    assert!(
        doctor.contains(
            "XDP (driver): xdp_dispatcher, which runs others (libxdp); tcx: weir (guard_tc)"
        ),
        "{doctor}"
    );
}

//! Interfaces that belong to others: over which of them the server's packets come to this host.

use weir_testbed::needs::kernel_can;

use crate::common::{BACKLOG, Bed, PORT, connect, listen, until};

/// Makes the server's link a port of a bridge that has its addresses. False: this kernel has none.
fn bridged(bed: &Bed) -> bool {
    if !kernel_can(
        bed.server(),
        "CONFIG_BRIDGE",
        "link add name br0 type bridge",
    ) {
        return false;
    }
    let address = bed.veth4().address;
    let lines = format!(
        "link set br0 up\nlink set veth0 master br0\naddr flush dev veth0\naddr add {address}/24 dev br0"
    );
    bed.server().ip_batch(&lines).unwrap();
    true
}

#[test]
fn a_port_of_a_bridge_is_refused_with_the_name_of_the_bridge_which_is_guarded() {
    let Some(bed) = Bed::new() else { return };
    if !bridged(&bed) {
        return;
    }
    let path = bed.veth4();
    let _listener = listen(bed.server(), path.at(PORT), BACKLOG);
    let refused = bed.weir(&format!("protect {PORT} --interface veth0"));
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(
        said.contains("interface veth0 is a port of br0") && said.contains("hint: name"),
        "{said}"
    );
    let _weir = bed.protect(&format!("{PORT} --interface br0 --admit queue"));
    let counts = connect(path.client, path.at(PORT), 6).counts();
    assert_eq!(counts, (4, 2, 0));
}

#[test]
fn a_listener_whose_interface_becomes_a_port_is_no_longer_in_force() {
    let Some(bed) = Bed::new() else { return };
    let path = bed.veth4();
    let _listener = listen(bed.server(), path.at(PORT), BACKLOG);
    let config = format!("[[listener]]\naddress = \"*:{PORT}\"\ninterfaces = [\"veth0\"]\n");
    let _weir = bed.run(&config);
    assert_eq!(bed.status()["listeners"][0]["in_force"], true);
    if !bridged(&bed) {
        return;
    }
    let because = until("weir has seen the bridge", || {
        let listener = bed.status()["listeners"][0].clone();
        let because = listener["not_in_force_because"].as_str()?.to_owned();
        (listener["in_force"] == false).then_some(because)
    });
    assert!(because.contains("veth0 is a port of br0"), "{because}");
    let checked = bed.weir(&format!("check {}", bed.config().display()));
    let said = String::from_utf8(checked.stderr).unwrap();
    assert!(said.contains("veth0 is a port of br0"), "{said}");
}

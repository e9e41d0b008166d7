//! `reason`: a RST may say why.

use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv6Addr, SocketAddr, TcpListener};
use std::process::{Command, Stdio};

use crate::common::{BACKLOG, Bed, PORT, Peer, Raw, Segment, Shape, connect, listen, within};

const FULL: &[u8] = b"server overloaded: queue is full";
const HALF_CLOSED: &[u8] = b"half-closed connections: refused";

fn server_of_both_families(bed: &Bed) -> TcpListener {
    let any: SocketAddr = (Ipv6Addr::UNSPECIFIED, PORT).into();
    listen(bed.server(), any, BACKLOG)
}

/// What the RST to a SYN that finds the queue full, and what the RST to a half-close carry.
fn texts_of_resets(bed: &Bed, peers: [Peer; 2]) -> [Vec<u8>; 2] {
    let raw = Raw(&bed.links.wire);
    let [closing, refused] = peers;
    let server_seq = raw.half_open(closing);
    raw.final_ack(closing, server_seq);
    let clients = connect(bed.server(), bed.loopback4().at(PORT), BACKLOG as usize - 1);
    assert_eq!(clients.counts(), (BACKLOG as usize - 1, 0, 0));
    raw.syn(refused, 7);
    let to_syn = raw.answer(refused);
    assert!(to_syn.header.rst && to_syn.sound, "{to_syn:?}");
    assert_eq!(to_syn.header.acknowledgment_number, 8);
    let ack = Some(server_seq.wrapping_add(1));
    raw.send(
        closing,
        Shape::Plain,
        &Segment {
            seq: 1,
            ack,
            fin: true,
            ..Segment::default()
        },
    );
    let to_fin = raw.answer(closing);
    assert!(to_fin.header.rst && to_fin.sound, "{to_fin:?}");
    [to_syn.payload, to_fin.payload]
}

#[test]
fn with_reason_every_rst_carries_its_text_and_without_it_none_does() {
    let Some(bed) = Bed::new() else { return };
    let families = [
        [Peer::v4(0, PORT), Peer::v4(1, PORT)],
        [Peer::v6(0, PORT), Peer::v6(1, PORT)],
    ];
    for (flag, expected) in [("--reason", [FULL, HALF_CLOSED]), ("", [b"".as_slice(); 2])] {
        for peers in families {
            let _listener = server_of_both_families(&bed);
            let _weir = bed.protect(&format!("{PORT} --half-close reset --admit queue {flag}"));
            assert_eq!(texts_of_resets(&bed, peers), expected, "{flag} {peers:?}");
        }
    }
}

/// The first RST from the server's port that tcpdump sees in the client namespace, with what it carries.
fn captured_rst(bed: &Bed, make: impl FnOnce()) -> String {
    let mut tcpdump = Command::new("tcpdump");
    tcpdump.args(["-i", "veth0", "-n", "-A", "-vv", "-c", "1", "-l"]);
    // Nothing else comes from this port (tcpdump reads no TCP flags over IPv6).
    tcpdump.arg(format!("tcp src port {PORT}"));
    tcpdump.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = within(bed.client(), || {
        tcpdump.spawn().expect("tcpdump is installed")
    });
    let mut stderr = BufReader::new(child.stderr.take().unwrap()).lines();
    stderr
        .find(|line| line.as_ref().unwrap().contains("listening on"))
        .expect("tcpdump listens")
        .unwrap();
    make();
    let mut capture = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut capture)
        .unwrap();
    child.wait().unwrap();
    capture
}

#[test]
fn a_reason_reaches_real_clients_with_a_right_checksum_and_they_are_refused_as_ever() {
    let Some(bed) = Bed::new() else { return };
    let _listener = server_of_both_families(&bed);
    let _weir = bed.protect(&format!("{PORT} --admit queue --reason"));
    let _full = connect(bed.server(), bed.loopback4().at(PORT), BACKLOG as usize);
    for path in [bed.veth4(), bed.veth6()] {
        let refuse = || assert_eq!(connect(path.client, path.at(PORT), 1).counts(), (0, 1, 0));
        let capture = captured_rst(&bed, refuse);
        assert!(
            capture.contains("server overloaded: queue is full"),
            "{capture}"
        );
    }
}

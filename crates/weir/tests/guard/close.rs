//! `half_close`: is a half-closed connection worth work?

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};

use socket2::{Domain, Socket, Type};
use weir_testbed::needs;
use weir_testbed::sys::{TcpOption, set_tcp_option};

use crate::common::{
    Bed, PATIENCE, PORT, Path, Peer, Raw, Segment, Shape, accept, connect, listen, within,
};

struct Pair {
    client: TcpStream,
    server: TcpStream,
}

fn pair(path: &Path<'_>, listener: &TcpListener) -> Pair {
    let client = connect(path.client, path.at(PORT), 1).connected.remove(0);
    let server = accept(listener, 1).remove(0);
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    Pair { client, server }
}

fn read_all(stream: &mut TcpStream) -> Result<Vec<u8>, ErrorKind> {
    let mut all = Vec::new();
    stream.read_to_end(&mut all).map_err(|error| error.kind())?;
    Ok(all)
}

/// The client asks, says that it has said all, and still gets its reply.
fn serve_half_closed(mut client: TcpStream, mut server: TcpStream) {
    client.write_all(b"request").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&mut server).as_deref(), Ok(&b"request"[..]));
    server.write_all(b"reply").unwrap();
    drop(server);
    assert_eq!(read_all(&mut client).as_deref(), Ok(&b"reply"[..]));
}

fn read_error(stream: &mut TcpStream) -> Option<ErrorKind> {
    read_all(stream).err()
}

#[test]
fn reset_ends_a_half_closed_connection_on_both_sides() {
    let Some(bed) = Bed::new() else { return };
    let listeners = bed
        .paths()
        .map(|path| listen(bed.server(), path.at(PORT), 16));
    let _weir = bed.protect(&format!("{PORT} --half-close reset"));
    for (path, listener) in bed.paths().iter().zip(&listeners) {
        let mut pair = pair(path, listener);
        pair.client.write_all(b"request").unwrap();
        let mut request = [0; 7];
        pair.server.read_exact(&mut request).unwrap();
        pair.client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(
            read_error(&mut pair.server),
            Some(ErrorKind::ConnectionReset),
            "{}",
            path.name
        );
        assert_eq!(
            read_error(&mut pair.client),
            Some(ErrorKind::ConnectionReset),
            "{}",
            path.name
        );
    }
    assert_eq!(bed.counter(0, "fin_reset"), 4);
    let sockets = bed.output(
        "ss",
        &["-tanH", "state", "connected", &format!("sport = :{PORT}")],
    );
    assert_eq!(sockets.trim(), "", "no FIN_WAIT, no TIME_WAIT");
}

#[test]
fn reset_lets_a_fin_with_data_and_one_that_answers_the_server_s_own_pass() {
    let Some(bed) = Bed::new() else { return };
    let path = bed.veth4();
    let listener = listen(bed.server(), path.at(PORT), 16);
    let _weir = bed.protect(&format!("{PORT} --half-close reset"));
    // The server says good-bye first, as in HTTP/1.0.
    let Pair {
        mut client,
        mut server,
    } = pair(&path, &listener);
    server.write_all(b"reply").unwrap();
    server.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&mut client).as_deref(), Ok(&b"reply"[..]));
    drop(client);
    assert_eq!(read_all(&mut server).as_deref(), Ok(&b""[..]));
    assert_eq!(bed.counter(0, "fin_reset"), 0);
}

/// A host on the wire with an established connection; gives the server's next sequence number.
fn establish(raw: &Raw<'_>, peer: Peer) -> u32 {
    let server_seq = raw.half_open(peer);
    raw.final_ack(peer, server_seq);
    server_seq.wrapping_add(1)
}

#[test]
fn reset_passes_a_fin_that_carries_data_or_before_which_data_is_missing() {
    let Some(bed) = Bed::new() else { return };
    let raw = Raw(&bed.links.wire);
    let listener = listen(bed.server(), Peer::v4(0, PORT).server, 16);
    let _weir = bed.protect(&format!("{PORT} --half-close reset"));
    let fin = |seq, payload: &[u8], ack| Segment {
        seq,
        ack: Some(ack),
        fin: true,
        payload: payload.to_vec(),
        ..Segment::default()
    };
    let data_and_fin = Peer::v4(0, PORT);
    let ack = establish(&raw, data_and_fin);
    let mut server = accept(&listener, 1).remove(0);
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    raw.send(data_and_fin, Shape::Plain, &fin(1, b"last words", ack));
    assert_eq!(read_all(&mut server).as_deref(), Ok(&b"last words"[..]));

    let gap_and_fin = Peer::v4(1, PORT);
    let ack = establish(&raw, gap_and_fin);
    let mut server = accept(&listener, 1).remove(0);
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    raw.send(gap_and_fin, Shape::Plain, &fin(6, b"", ack));
    let answers = raw.answers_until_now(gap_and_fin);
    assert!(
        answers.iter().all(|answer| !answer.header.rst),
        "{answers:?}"
    );
    let missing = Segment {
        seq: 1,
        ack: Some(ack),
        payload: b"first".to_vec(),
        ..Segment::default()
    };
    raw.send(gap_and_fin, Shape::Plain, &missing);
    assert_eq!(read_all(&mut server).as_deref(), Ok(&b"first"[..]));
    assert_eq!(bed.counter(0, "fin_reset"), 0);
}

/// weir has no key: neither end would hear its RST, and the server not the FIN that it was made of.
#[test]
fn reset_passes_the_fin_of_a_connection_whose_segments_are_signed() {
    let Some(bed) = Bed::new() else { return };
    let path = bed.veth4();
    let listener = listen(bed.server(), path.at(PORT), 16);
    let _weir = bed.protect(&format!("{PORT} --half-close reset"));
    let key = |peer: IpAddr| TcpOption::Md5.key_for(SocketAddr::new(peer, 0));
    let peer = connect(path.client, path.at(PORT), 1).connected.remove(0);
    drop(accept(&listener, 1));
    let from = peer.local_addr().unwrap().ip();
    if set_tcp_option(&listener, TcpOption::Md5, &key(from)).is_err() {
        return needs::lacking("CONFIG_TCP_MD5SIG");
    }
    let client = within(path.client, || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        set_tcp_option(&socket, TcpOption::Md5, &key(path.at(PORT).ip())).unwrap();
        socket
            .connect_timeout(&path.at(PORT).into(), PATIENCE)
            .unwrap();
        TcpStream::from(socket)
    });
    let server = accept(&listener, 1).remove(0);
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    serve_half_closed(client, server);
    assert_eq!(bed.counter(0, "fin_reset"), 0);
}

#[test]
fn keep_serves_half_closed_clients_to_the_end() {
    let Some(bed) = Bed::new() else { return };
    let path = bed.veth6();
    let listener = listen(bed.server(), path.at(PORT), 16);
    let _weir = bed.protect(&PORT.to_string());
    let Pair { client, server } = pair(&path, &listener);
    serve_half_closed(client, server);
    assert_eq!(bed.counter(0, "fin_reset"), 0);
}

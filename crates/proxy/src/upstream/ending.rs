//! The end of a connection to a server that carries nothing, by CLIENT_CLOSE ([`weir_core::client_close`]).
//!
//! A server that does not know the request replies to it. A close would answer that reply with a RST, which ends the
//! TIME-WAIT here and may be an error in the server's log. So the proxy ends its half and throws away what comes, until
//! the server has ended too. No request can be paired with that reply: the connection carries none any more.

use std::net::SocketAddr;
use std::time::Duration;

use weir_core::client_close::ClientClose;

use crate::runtime::TcpStream;

/// How long a server may take for its end. Longer than a lost FIN takes to be sent again.
const SERVER_ENDS_IN: Duration = Duration::from_secs(2);
/// Bytes that it may send until then: an error page.
const MOST_BYTES: usize = 64 << 10;

/// Says that the proxy closes, and closes. False if the server cannot be told: then the connection is closed all the same.
pub fn end(stream: TcpStream, server: SocketAddr) -> bool {
    let host = server.to_string();
    let request = ClientClose { host: &host }.to_string();
    // With more to follow, so that the FIN goes in the same segment.
    let sent = stream.try_send(request.as_bytes(), true);
    if !matches!(sent, Ok(Some(bytes)) if bytes == request.len()) {
        return false;
    }
    stream.shut_down_write();
    let handle = stream.handle().clone();
    handle.spawn(await_end(stream));
    true
}

async fn await_end(stream: TcpStream) {
    stream.handle().set_deadline(SERVER_ENDS_IN);
    let (mut buffer, mut received) = ([0; 1024], 0);
    while received < MOST_BYTES
        && let Ok(bytes @ 1..) = stream.receive(&mut buffer).await
    {
        received += bytes;
    }
}

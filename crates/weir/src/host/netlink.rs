//! Requests to the kernel over rtnetlink.

use std::io;

use netlink_packet_core::{
    NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

/// What the kernel answers.
pub struct Answers {
    /// The messages, without the final acknowledgement.
    pub messages: Vec<RouteNetlinkMessage>,
    /// They are all of one moment. A dump that a change interrupted lacks some or has some twice.
    pub whole: bool,
}

/// Sends one request with these flags of linux/netlink.h besides `NLM_F_REQUEST`, and waits for the answers. The
/// flags must ask for a dump or an acknowledgement, or there is no end of them.
///
/// # Errors
/// The kernel's error, or an answer in a form that is not known.
pub fn exchange(flags: u16, request: RouteNetlinkMessage) -> io::Result<Answers> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.send(&serialized(flags, request), 0)?;
    let mut answers = Answers {
        messages: Vec::new(),
        whole: true,
    };
    loop {
        let (bytes, _) = socket.recv_from_full()?;
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
            answers.whole &= message.header.flags & NLM_F_DUMP_INTR == 0;
            // Messages are padded to four bytes (NLMSG_ALIGN).
            let length = (message.header.length as usize).next_multiple_of(4).max(4);
            rest = rest.get(length..).unwrap_or_default();
            match message.payload {
                NetlinkPayload::Done(_) => return Ok(answers),
                NetlinkPayload::Error(error) => {
                    // Code 0 acknowledges.
                    return error.code.map_or(Ok(answers), |_| Err(error.to_io()));
                }
                NetlinkPayload::InnerMessage(inner) => answers.messages.push(inner),
                _ => {}
            }
        }
    }
}

fn serialized(flags: u16, request: RouteNetlinkMessage) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    header.flags = flags | NLM_F_REQUEST;
    let mut message = NetlinkMessage::new(header, NetlinkPayload::from(request));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

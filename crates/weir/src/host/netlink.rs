//! Requests to the kernel over netlink.

use std::convert::Infallible;
use std::io;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader,
    NetlinkMessage, NetlinkPayload, NetlinkSerializable, NlasIterator,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

/// Of an attribute: its length and its kind.
const HEADER: usize = 4;
/// A dump that a change interrupts is asked for again, so often.
pub const TRIES: usize = 4;
/// Of longer answers nothing is kept: in a network namespace of his own anybody may have made as many rules as he likes.
const MOST_BYTES: usize = 64 << 20;

/// What the kernel answers.
pub struct Answers<M = RouteNetlinkMessage> {
    /// The messages, without the final acknowledgement.
    pub messages: Vec<M>,
    /// They are all of one moment. A dump that a change interrupted lacks some or has some twice.
    pub whole: bool,
}

/// Sends one request over rtnetlink with these flags of linux/netlink.h besides `NLM_F_REQUEST`, and waits for the
/// answers. The flags must ask for a dump or an acknowledgement, or there is no end of them.
///
/// # Errors
/// The kernel's error, or an answer in a form that is not known, or one of more than 64 MiB.
pub fn exchange(flags: u16, request: RouteNetlinkMessage) -> io::Result<Answers> {
    exchange_over(NETLINK_ROUTE, flags, request)
}

/// All objects that the kernel has of one kind, at one moment, over a protocol of netlink (`NETLINK_*`).
///
/// # Errors
/// The kernel's error; or they change faster than they are read.
pub fn dump(protocol: isize, request: Plain) -> io::Result<Vec<Plain>> {
    for _ in 0..TRIES {
        let answers = exchange_over(protocol, NLM_F_DUMP, request.clone())?;
        if answers.whole {
            return Ok(answers.messages);
        }
    }
    Err(io::ErrorKind::Interrupted.into())
}

/// What the kernel answers to a request that asks for no dump, over a protocol of netlink (`NETLINK_*`).
///
/// # Errors
/// The kernel's error.
pub fn ask(protocol: isize, request: Plain) -> io::Result<Vec<Plain>> {
    exchange_over(protocol, NLM_F_ACK, request).map(|answers| answers.messages)
}

fn exchange_over<M: NetlinkSerializable + NetlinkDeserializable>(
    protocol: isize,
    flags: u16,
    request: M,
) -> io::Result<Answers<M>> {
    let mut socket = Socket::new(protocol)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.send(&serialized(flags, request), 0)?;
    let mut answers = Answers {
        messages: Vec::new(),
        whole: true,
    };
    let mut received = 0;
    loop {
        let (bytes, _) = socket.recv_from_full()?;
        received += bytes.len();
        if received > MOST_BYTES {
            let message = format!("there is more of it than {} MiB", MOST_BYTES >> 20);
            return Err(io::Error::other(message));
        }
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let message = NetlinkMessage::<M>::deserialize(rest)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
            answers.whole &= message.header.flags & NLM_F_DUMP_INTR == 0;
            // Messages are padded to four bytes (NLMSG_ALIGN).
            let length = (message.header.length as usize).next_multiple_of(4).max(4);
            rest = rest.get(length..).unwrap_or_default();
            match message.payload {
                NetlinkPayload::Done(done) => {
                    // A dump that fails on its way says so at its end.
                    answers.whole &= done.code == 0;
                    return Ok(answers);
                }
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

fn serialized<M: NetlinkSerializable>(flags: u16, request: M) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    header.flags = flags | NLM_F_REQUEST;
    let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(request));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

/// A message as it is on the wire, behind its header.
#[derive(Debug, Clone)]
pub struct Plain {
    /// `nlmsg_type`.
    pub kind: u16,
    /// A structure of fixed length, then attributes.
    pub payload: Vec<u8>,
}

impl NetlinkSerializable for Plain {
    fn message_type(&self) -> u16 {
        self.kind
    }

    fn buffer_len(&self) -> usize {
        self.payload.len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(&self.payload);
    }
}

impl NetlinkDeserializable for Plain {
    type Error = Infallible;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Plain, Infallible> {
        Ok(Plain {
            kind: header.message_type,
            payload: payload.to_vec(),
        })
    }
}

/// Attributes by kind; those that do not parse are left out.
pub fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let all = NlasIterator::new(bytes).filter_map(Result::ok);
    all.map(|one| {
        let (kind, length) = (one.kind(), usize::from(one.length()));
        (kind, &one.into_inner()[HEADER..length])
    })
}

/// The first attribute of a kind.
pub fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find_map(|(k, value)| (k == kind).then_some(value))
}

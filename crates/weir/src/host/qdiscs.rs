//! Queueing disciplines, classes and filters of an interface, over rtnetlink.
//!
//! Options are as linux/pkt_sched.h lays them out: a structure, or attributes made with [`attribute`].

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_core::{
    DefaultNla, Emitable, NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, Nla, NlasIterator,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{
    TcAttribute, TcFilterBpfOption, TcHandle, TcHeader, TcMessage, TcOption, TcStats2,
};
use weir_kernel::shape::qdisc::Counts;

use super::netlink::exchange;

/// TCA_OPTIONS of linux/rtnetlink.h.
const TCA_OPTIONS: u16 = 2;
/// ETH_P_ALL of linux/if_ether.h, big endian.
const EVERY_PROTOCOL: u32 = 0x0003_u16.to_be() as u32;

/// A qdisc or a class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Index of its interface.
    pub index: u32,
    /// Its handle, or the class's id; 0: the kernel's own default.
    pub handle: u32,
    /// What it belongs to.
    pub parent: u32,
    /// Its kind: `htb`.
    pub kind: String,
    /// Its options as they came; empty for kinds that the library knows.
    pub options: Vec<u8>,
    /// What it has counted.
    pub counts: Counts,
}

/// The parent of an interface's root qdisc.
pub const ROOT: u32 = u32::MAX;

/// An attribute: its kind and its value.
pub fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let nla = DefaultNla::new(kind, value.to_vec());
    let mut bytes = vec![0; nla.buffer_len()];
    nla.emit(&mut bytes);
    bytes
}

/// The value of the attribute of this kind among options.
pub fn find(options: &[u8], kind: u16) -> Option<Vec<u8>> {
    let mut attributes = NlasIterator::new(options).filter_map(Result::ok);
    attributes
        .find(|nla| nla.kind() == kind)
        .map(|nla| nla.value().to_vec())
}

/// Where a qdisc or a class comes, and its handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Index of the interface.
    pub index: u32,
    /// What it belongs to; [`ROOT`]: the interface itself.
    pub parent: u32,
    /// Its handle, the class's id; 0: the kernel chooses.
    pub handle: u32,
}

/// Makes a qdisc.
///
/// # Errors
/// The kernel's: ENOENT if it has no such kind, EEXIST if the parent has one.
pub fn add_qdisc(place: Place, kind: &str, options: &[u8]) -> io::Result<()> {
    let message = message(place, kind, options);
    create(RouteNetlinkMessage::NewQueueDiscipline(message))
}

/// Makes a class of a qdisc.
///
/// # Errors
/// The kernel's.
pub fn add_class(place: Place, kind: &str, options: &[u8]) -> io::Result<()> {
    let message = message(place, kind, options);
    create(RouteNetlinkMessage::NewTrafficClass(message))
}

/// Has a qdisc ask a BPF program for the class of each packet. `name` is shown in its dump.
///
/// # Errors
/// The kernel's.
pub fn add_classifier(
    index: u32,
    parent: u32,
    program: BorrowedFd<'_>,
    name: &str,
) -> io::Result<()> {
    let place = Place {
        index,
        parent,
        handle: 0,
    };
    let mut message = message(place, "bpf", &[]);
    // Priority in the upper half, protocol in the lower.
    message.header.info = 1 << 16 | EVERY_PROTOCOL;
    message.attributes.push(TcAttribute::Options(vec![
        TcOption::Bpf(TcFilterBpfOption::ProgFd(program.as_raw_fd() as u32)),
        TcOption::Bpf(TcFilterBpfOption::ProgName(name.to_owned())),
    ]));
    create(RouteNetlinkMessage::NewTrafficFilter(message))
}

/// Removes an interface's root qdisc with all that belongs to it; the kernel puts its default in its place.
///
/// # Errors
/// The kernel's: ENOENT if it has only the default.
pub fn remove_root(index: u32) -> io::Result<()> {
    let mut message = TcMessage::with_index(index as i32);
    message.header.parent = TcHandle::from(ROOT);
    exchange(NLM_F_ACK, RouteNetlinkMessage::DelQueueDiscipline(message)).map(drop)
}

/// The qdiscs of all interfaces of this network namespace.
///
/// # Errors
/// The kernel's.
pub fn qdiscs() -> io::Result<Vec<Node>> {
    nodes(RouteNetlinkMessage::GetQueueDiscipline(TcMessage::default()))
}

/// The classes of an interface.
///
/// # Errors
/// The kernel's.
pub fn classes(index: u32) -> io::Result<Vec<Node>> {
    let message = TcMessage::with_index(index as i32);
    nodes(RouteNetlinkMessage::GetTrafficClass(message))
}

fn nodes(request: RouteNetlinkMessage) -> io::Result<Vec<Node>> {
    let node = |message| match message {
        RouteNetlinkMessage::NewQueueDiscipline(message)
        | RouteNetlinkMessage::NewTrafficClass(message) => Some(read(message)),
        _ => None,
    };
    Ok(dump(request)?.into_iter().filter_map(node).collect())
}

/// The names of the BPF classifiers of an interface's root qdisc.
///
/// # Errors
/// The kernel's.
pub fn classifiers(index: u32) -> io::Result<Vec<String>> {
    let message = TcMessage::with_index(index as i32);
    let messages = dump(RouteNetlinkMessage::GetTrafficFilter(message))?;
    let names = messages.into_iter().filter_map(|message| match message {
        RouteNetlinkMessage::NewTrafficFilter(message) => classifier_name(&message),
        _ => None,
    });
    Ok(names.collect())
}

fn classifier_name(message: &TcMessage) -> Option<String> {
    message.attributes.iter().find_map(|attribute| {
        let TcAttribute::Options(options) = attribute else {
            return None;
        };
        options.iter().find_map(|option| match option {
            TcOption::Bpf(TcFilterBpfOption::ProgName(name)) => Some(name.clone()),
            _ => None,
        })
    })
}

fn dump(request: RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
    Ok(exchange(NLM_F_DUMP, request)?.messages)
}

fn create(request: RouteNetlinkMessage) -> io::Result<()> {
    exchange(NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, request).map(drop)
}

fn message(place: Place, kind: &str, options: &[u8]) -> TcMessage {
    let header = TcHeader {
        index: place.index as i32,
        handle: TcHandle::from(place.handle),
        parent: TcHandle::from(place.parent),
        ..TcHeader::default()
    };
    let mut attributes = vec![TcAttribute::Kind(kind.to_owned())];
    if !options.is_empty() {
        let options = DefaultNla::new(TCA_OPTIONS, options.to_vec());
        attributes.push(TcAttribute::Other(options));
    }
    TcMessage::from_parts(header, attributes)
}

fn read(message: TcMessage) -> Node {
    let (header, attributes) = message.into_parts();
    let mut node = Node {
        index: header.index as u32,
        handle: header.handle.into(),
        parent: header.parent.into(),
        kind: String::new(),
        options: Vec::new(),
        counts: Counts::default(),
    };
    for attribute in attributes {
        match attribute {
            TcAttribute::Kind(kind) => node.kind = kind,
            TcAttribute::Options(options) => node.options = raw(&options),
            TcAttribute::Stats2(all) => all.iter().for_each(|stats| count(&mut node.counts, stats)),
            _ => {}
        }
    }
    node
}

fn raw(options: &[TcOption]) -> Vec<u8> {
    match options {
        [TcOption::Other(all)] if all.kind() == TCA_OPTIONS => {
            let mut value = vec![0; all.value_len()];
            all.emit_value(&mut value);
            value
        }
        _ => Vec::new(),
    }
}

fn count(counts: &mut Counts, stats: &TcStats2) {
    match stats {
        TcStats2::Basic(basic) => {
            counts.sent_packets = basic.packets.into();
            counts.sent_bytes = basic.bytes;
        }
        TcStats2::Queue(queue) => {
            counts.dropped_packets = queue.drops.into();
            counts.waiting_packets = queue.qlen.into();
            counts.waiting_bytes = queue.backlog.into();
        }
        _ => {}
    }
}

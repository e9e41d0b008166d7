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
    TcAction, TcActionAttribute, TcActionGeneric, TcActionMirrorOption, TcActionOption,
    TcActionType, TcAttribute, TcFilterBpfOption, TcFilterU32Option, TcHandle, TcHeader, TcMessage,
    TcMirror, TcMirrorActionType, TcOption, TcStats2, TcU32Key, TcU32Selector, TcU32SelectorFlags,
};
use weir_kernel::shape::qdisc::Counts;

use super::netlink::{TRIES, exchange};

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
/// The parent of an interface's clsact or ingress qdisc, and the handle of that.
pub const CLSACT: u32 = 0xffff_fff1;
/// See [`CLSACT`].
pub const CLSACT_HANDLE: u32 = 0xffff_0000;
/// What filters of received and of sent packets belong to.
pub const INGRESS: u32 = 0xffff_fff2;
/// See [`INGRESS`].
pub const EGRESS: u32 = 0xffff_fff3;

/// A filter of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filter {
    /// Its priority; the lowest is asked first.
    pub priority: u16,
    /// The index of the interface that it redirects to, 0 if that is gone; `None`: it does something else.
    pub redirects_to: Option<u32>,
}

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

/// Removes an interface's clsact qdisc with all filters.
///
/// # Errors
/// The kernel's: ENOENT if it has none.
pub fn remove_clsact(index: u32) -> io::Result<()> {
    let mut message = TcMessage::with_index(index as i32);
    message.header.parent = TcHandle::from(CLSACT);
    message.header.handle = TcHandle::from(CLSACT_HANDLE);
    exchange(NLM_F_ACK, RouteNetlinkMessage::DelQueueDiscipline(message)).map(drop)
}

/// Redirects every packet that an interface receives to what another one sends. Needs a clsact or ingress qdisc.
///
/// # Errors
/// The kernel's: ENOENT if it has no u32 or no mirred.
pub fn add_redirect(index: u32, priority: u16, to: u32) -> io::Result<()> {
    let place = Place {
        index,
        parent: INGRESS,
        handle: 0,
    };
    let mut message = message(place, "u32", &[]);
    message.header.info = u32::from(priority) << 16 | EVERY_PROTOCOL;
    // A key without a mask: it fits every packet.
    let mut selector = TcU32Selector::default();
    selector.flags = TcU32SelectorFlags::Terminal;
    selector.nkeys = 1;
    selector.keys = vec![TcU32Key::default()];
    let mut generic = TcActionGeneric::default();
    generic.action = TcActionType::Stolen;
    let mut mirror = TcMirror::default();
    (mirror.generic, mirror.ifindex) = (generic, to);
    mirror.eaction = TcMirrorActionType::EgressRedir;
    let mut action = TcAction::default();
    action.attributes = vec![
        TcActionAttribute::Kind("mirred".to_owned()),
        TcActionAttribute::Options(vec![TcActionOption::Mirror(TcActionMirrorOption::Parms(
            mirror,
        ))]),
    ];
    message.attributes.push(TcAttribute::Options(vec![
        TcOption::U32(TcFilterU32Option::Selector(selector)),
        TcOption::U32(TcFilterU32Option::Action(vec![action])),
    ]));
    create(RouteNetlinkMessage::NewTrafficFilter(message))
}

/// The filters of an interface that belong to [`INGRESS`] or [`EGRESS`]; none without clsact. One filter may be there
/// several times: u32 has tables of its own.
///
/// # Errors
/// The kernel's.
pub fn filters(index: u32, parent: u32) -> io::Result<Vec<Filter>> {
    let mut message = TcMessage::with_index(index as i32);
    message.header.parent = TcHandle::from(parent);
    let messages = dump(RouteNetlinkMessage::GetTrafficFilter(message))?;
    let filters = messages.into_iter().filter_map(|message| match message {
        RouteNetlinkMessage::NewTrafficFilter(message) => Some(Filter {
            priority: (message.header.info >> 16) as u16,
            redirects_to: message.attributes.iter().find_map(redirects_to),
        }),
        _ => None,
    });
    Ok(filters.collect())
}

fn redirects_to(attribute: &TcAttribute) -> Option<u32> {
    let TcAttribute::Options(options) = attribute else {
        return None;
    };
    let actions = options.iter().filter_map(|option| match option {
        TcOption::U32(TcFilterU32Option::Action(actions)) => Some(actions),
        _ => None,
    });
    let attributes = actions.flatten().flat_map(|action| &action.attributes);
    let options = attributes.filter_map(|attribute| match attribute {
        TcActionAttribute::Options(options) => Some(options),
        _ => None,
    });
    let mut mirrors = options.flatten().filter_map(|option| match option {
        TcActionOption::Mirror(TcActionMirrorOption::Parms(mirror)) => Some(mirror),
        _ => None,
    });
    mirrors.next().map(|mirror| mirror.ifindex)
}

/// The filters of an interface at clsact or ingress, by priority: each one's name (BPF) or its kind; none without such a
/// qdisc.
///
/// # Errors
/// The kernel's.
pub fn filter_names(index: u32) -> io::Result<Vec<(u16, String)>> {
    let mut message = TcMessage::with_index(index as i32);
    message.header.parent = TcHandle::from(INGRESS);
    let mut names = Vec::new();
    for message in dump(RouteNetlinkMessage::GetTrafficFilter(message))? {
        let RouteNetlinkMessage::NewTrafficFilter(message) = message else {
            continue;
        };
        let priority = (message.header.info >> 16) as u16;
        let kind = message.attributes.iter().find_map(|one| match one {
            TcAttribute::Kind(kind) => Some(kind.clone()),
            _ => None,
        });
        // Tables of u32, and what a filter of the same kind and priority adds, are no further ones to a reader.
        if let Some(name) = classifier_name(&message).or(kind)
            && names.last() != Some(&(priority, name.clone()))
        {
            names.push((priority, name));
        }
    }
    names.sort();
    names.dedup();
    Ok(names)
}

/// Removes an interface's filters of this priority.
///
/// # Errors
/// The kernel's: ENOENT if there is none.
pub fn remove_filters(index: u32, parent: u32, priority: u16) -> io::Result<()> {
    let mut message = TcMessage::with_index(index as i32);
    message.header.parent = TcHandle::from(parent);
    message.header.info = u32::from(priority) << 16 | EVERY_PROTOCOL;
    exchange(NLM_F_ACK, RouteNetlinkMessage::DelTrafficFilter(message)).map(drop)
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

/// All of one moment: one that is missing would be taken for none.
fn dump(request: RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
    for _ in 0..TRIES {
        let answers = exchange(NLM_F_DUMP, request.clone())?;
        if answers.whole {
            return Ok(answers.messages);
        }
    }
    Err(io::ErrorKind::Interrupted.into())
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

//! The interfaces of this network namespace, over rtnetlink: listed, and watched for change.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    InfoKind, InfoPortKind, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage, LinkXdp,
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use super::netlink::exchange;
use crate::failure::{Failure, Result};

/// RTMGRP_LINK of linux/rtnetlink.h: links that appear, change and disappear.
const LINK_GROUP: u32 = 1;
/// RTMGRP_TC: qdiscs, classes and filters likewise.
const TC_GROUP: u32 = 8;
/// Dumps that a change of the links may interrupt before it is an error.
const DUMP_ATTEMPTS: usize = 10;

/// One interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Its index, unique while it exists.
    pub index: u32,
    /// Its name; may change.
    pub name: String,
    /// Whether it is up: one that is down takes no packets.
    pub up: bool,
    /// The loopback interface.
    pub loopback: bool,
    /// A port of a bridge, bond, team or the like: its master hands the traffic to the stack.
    pub port: bool,
    /// The index of its master: that of a port, or a VRF.
    pub master: Option<u32>,
    /// A VRF: a routing domain whose interfaces have it as their master.
    pub vrf: bool,
    /// An intermediate functional block: what is redirected into it passes its queueing discipline, and goes on where it
    /// was.
    pub ifb: bool,
    /// Longest packet that it sends, with its link header, bytes.
    pub packet_bytes: u32,
    /// Its group: 0, unless somebody has put it in another one.
    pub group: u32,
    /// The other end, if this is one of a veth pair.
    pub peer: Option<Peer>,
    /// The interface whose frames with a tag this one receives, if it is a VLAN's and both are in this namespace.
    pub vlan_of: Option<u32>,
}

/// The other end of a veth pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Its index in its network namespace.
    pub index: u32,
    /// That namespace, as an id of ours; `None` if it is ours.
    pub netns: Option<i32>,
}

/// All interfaces, ordered by index.
///
/// # Errors
/// The kernel does not answer, or in a form that is not known.
pub fn list() -> Result<Vec<Link>> {
    for _ in 0..DUMP_ATTEMPTS {
        let dumped = dump().map_err(|error| Failure::io("list the network interfaces", error))?;
        if let Some(mut links) = dumped {
            links.sort_by_key(|link| link.index);
            return Ok(links);
        }
    }
    let hint = "something adds and removes interfaces all the time; try again";
    Err(Failure::failed(
        "cannot list the network interfaces: they keep changing",
        hint,
    ))
}

/// `None` if the links changed during the dump, which then may lack some.
fn dump() -> io::Result<Option<Vec<Link>>> {
    let (messages, whole) = request(NLM_F_DUMP, LinkMessage::default())?;
    Ok(whole.then(|| messages.iter().filter_map(read_link).collect()))
}

/// Whether the peer has a native XDP program. Without one, veth throws away what an XDP program on
/// this end sends back. Also `false` where we have no right to ask the peer's namespace.
pub fn runs_xdp(peer: &Peer) -> bool {
    let mut message = LinkMessage::default();
    message.header.index = peer.index;
    // IFLA_IF_NETNSID is IFLA_TARGET_NETNSID by its older name.
    message.attributes = peer
        .netns
        .map(LinkAttribute::IfNetnsId)
        .into_iter()
        .collect();
    match request(NLM_F_ACK, message) {
        Ok((answers, _)) => answers.iter().any(has_native_xdp),
        Err(error) => {
            tracing::debug!(
                "the peer with index {} cannot be looked at: {error}",
                peer.index
            );
            false
        }
    }
}

fn has_native_xdp(message: &LinkMessage) -> bool {
    let native = |xdp: &LinkXdp| matches!(xdp, LinkXdp::DrvProgId(id) if *id != 0);
    message.attributes.iter().any(|attribute| match attribute {
        LinkAttribute::Xdp(xdp) => xdp.iter().any(native),
        _ => false,
    })
}

/// The links that a request is answered with, and whether they are all of one moment.
fn request(flags: u16, message: LinkMessage) -> io::Result<(Vec<LinkMessage>, bool)> {
    let answers = exchange(flags, RouteNetlinkMessage::GetLink(message))?;
    let link = |message| match message {
        RouteNetlinkMessage::NewLink(link) => Some(link),
        _ => None,
    };
    let links = answers.messages.into_iter().filter_map(link).collect();
    Ok((links, answers.whole))
}

/// Makes an ifb of this name in this group, up.
///
/// # Errors
/// The kernel's: EOPNOTSUPP if it has no ifb.
pub fn add_ifb(name: &str, group: u32) -> io::Result<()> {
    let mut message = LinkMessage::default();
    message.header.flags = LinkFlags::Up;
    message.header.change_mask = LinkFlags::Up;
    message.attributes = vec![
        LinkAttribute::IfName(name.to_owned()),
        LinkAttribute::Group(group),
        LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Ifb)]),
    ];
    let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
    exchange(flags, RouteNetlinkMessage::NewLink(message)).map(drop)
}

/// Sets the interface of this index up.
///
/// # Errors
/// The kernel's: ENODEV if there is none.
pub fn set_up(index: u32) -> io::Result<()> {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.header.flags = LinkFlags::Up;
    message.header.change_mask = LinkFlags::Up;
    exchange(NLM_F_ACK, RouteNetlinkMessage::SetLink(message)).map(drop)
}

/// Removes the interface of this index.
///
/// # Errors
/// The kernel's: ENODEV if there is none.
pub fn remove(index: u32) -> io::Result<()> {
    let mut message = LinkMessage::default();
    message.header.index = index;
    exchange(NLM_F_ACK, RouteNetlinkMessage::DelLink(message)).map(drop)
}

/// `None` for a link without a name, which the kernel does not send.
fn read_link(message: &LinkMessage) -> Option<Link> {
    let (mut name, mut master, mut receives) = (None, None, false);
    let (mut ifb, mut veth, mut vlan, mut vrf) = (false, false, false, false);
    let (mut other_end, mut netns) = (None, None);
    let (mut group, mut mtu) = (0, 0);
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(text) => name = Some(text.clone()),
            LinkAttribute::Controller(index) => master = Some(*index).filter(|index| *index != 0),
            LinkAttribute::LinkInfo(infos) => {
                receives = infos.iter().any(receives_for_itself);
                vrf = infos.contains(&LinkInfo::Kind(InfoKind::Vrf));
                veth = infos.contains(&LinkInfo::Kind(InfoKind::Veth));
                ifb = infos.contains(&LinkInfo::Kind(InfoKind::Ifb));
                vlan = infos.contains(&LinkInfo::Kind(InfoKind::Vlan));
            }
            LinkAttribute::Group(number) => group = *number,
            LinkAttribute::Mtu(bytes) => mtu = *bytes,
            LinkAttribute::Link(index) => other_end = Some(*index),
            LinkAttribute::LinkNetNsId(id) => netns = Some(*id),
            _ => {}
        }
    }
    Some(Link {
        index: message.header.index,
        name: name?,
        up: message.header.flags.contains(LinkFlags::Up),
        loopback: message.header.flags.contains(LinkFlags::Loopback),
        port: master.is_some() && !receives,
        master,
        vrf,
        ifb,
        packet_bytes: mtu + link_header_bytes(message.header.link_layer_type),
        group,
        peer: other_end
            .filter(|_| veth)
            .map(|index| Peer { index, netns }),
        vlan_of: other_end.filter(|_| vlan && netns.is_none()),
    })
}

/// Of an interface that has a master: a VRF is routing only, and batman-adv takes the frames of its own protocol. All other
/// packets are still received on the interface.
fn receives_for_itself(info: &LinkInfo) -> bool {
    match info {
        LinkInfo::PortKind(InfoPortKind::Vrf) => true,
        LinkInfo::PortKind(InfoPortKind::Other(kind)) => kind == "batadv",
        _ => false,
    }
}

/// What an interface of this kind puts before its packets: an Ethernet header, or nothing, as PPP and tunnels.
fn link_header_bytes(kind: LinkLayerType) -> u32 {
    match kind {
        LinkLayerType::Ether | LinkLayerType::Loopback => 14,
        _ => 0,
    }
}

/// Becomes readable when a link appears, changes or disappears.
pub struct LinkWatch {
    socket: Socket,
}

impl LinkWatch {
    /// Watches from now on: list the links after this, not before.
    ///
    /// # Errors
    /// No netlink socket.
    pub fn new() -> Result<LinkWatch> {
        LinkWatch::of(LINK_GROUP)
    }

    /// The same for qdiscs and filters.
    ///
    /// # Errors
    /// No netlink socket.
    pub fn of_qdiscs() -> Result<LinkWatch> {
        LinkWatch::of(TC_GROUP)
    }

    fn of(group: u32) -> Result<LinkWatch> {
        let open = || -> io::Result<Socket> {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.bind(&SocketAddr::new(0, group))?;
            socket.set_non_blocking(true)?;
            Ok(socket)
        };
        let socket = open().map_err(|error| Failure::io("watch the network interfaces", error))?;
        Ok(LinkWatch { socket })
    }

    /// Throws away what was notified. A notification only says that something changed (the kernel
    /// drops some when there are many, with ENOBUFS); [`list`] then says what is there.
    pub fn clear(&mut self) {
        let mut buffer = Vec::with_capacity(1 << 16);
        loop {
            buffer.clear();
            match self.socket.recv(&mut buffer, 0) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.raw_os_error() == Some(nix::libc::ENOBUFS) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::warn!("cannot watch the network interfaces: {error}");
                    return;
                }
            }
        }
    }
}

impl AsFd for LinkWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(any(test, feature = "fuzzing"))]
pub mod fake {
    use super::Link;

    /// An interface like a network card's; `lo` is the loopback one.
    pub fn link(index: u32, name: &str) -> Link {
        Link {
            index,
            name: name.into(),
            up: true,
            loopback: name == "lo",
            port: false,
            master: None,
            vrf: false,
            ifb: false,
            packet_bytes: 1514,
            group: 0,
            peer: None,
            vlan_of: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_listed() {
        let links = list().unwrap();
        let lo = links
            .iter()
            .find(|link| link.name == "lo")
            .expect("every namespace has lo");
        assert!(lo.loopback && !lo.port);
    }

    #[test]
    fn a_full_packet_has_the_link_s_header() {
        let of = |kind, mtu| {
            let mut message = LinkMessage::default();
            message.header.link_layer_type = kind;
            message.attributes = vec![LinkAttribute::IfName("d0".into()), LinkAttribute::Mtu(mtu)];
            read_link(&message).unwrap().packet_bytes
        };
        assert_eq!(of(LinkLayerType::Ether, 1500), 1514);
        assert_eq!(of(LinkLayerType::Ppp, 1492), 1492);
        assert_eq!(of(LinkLayerType::None, 1420), 1420);
    }

    #[test]
    fn only_interfaces_in_a_vrf_or_a_mesh_still_receive_for_themselves() {
        let port = |kind| {
            let mut message = LinkMessage::default();
            message.attributes = vec![
                LinkAttribute::IfName("p0".into()),
                LinkAttribute::Controller(7),
                LinkAttribute::LinkInfo(vec![LinkInfo::PortKind(kind)]),
            ];
            let link = read_link(&message).unwrap();
            assert_eq!(link.master, Some(7));
            link.port
        };
        assert!(port(InfoPortKind::Bridge));
        assert!(port(InfoPortKind::Bond));
        assert!(port(InfoPortKind::Team));
        assert!(port(InfoPortKind::Other("openvswitch".into())));
        assert!(!port(InfoPortKind::Vrf));
        assert!(!port(InfoPortKind::Other("batadv".into())));
    }

    /// One of this kind whose link is number 7, in another namespace if an id is given.
    fn above(kind: InfoKind, netns: Option<i32>) -> Link {
        let mut message = LinkMessage::default();
        message.attributes = vec![
            LinkAttribute::IfName("p0".into()),
            LinkAttribute::Link(7),
            LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind)]),
        ];
        message
            .attributes
            .extend(netns.map(LinkAttribute::LinkNetNsId));
        read_link(&message).unwrap()
    }

    #[test]
    fn only_a_veth_has_a_peer() {
        let (index, netns) = (7, Some(3));
        let veth = above(InfoKind::Veth, netns);
        assert_eq!(veth.peer, Some(Peer { index, netns }));
        assert_eq!(
            above(InfoKind::Vlan, None).peer,
            None,
            "its link is the device below"
        );
    }

    #[test]
    fn only_a_vlan_takes_frames_from_a_device_of_the_same_namespace() {
        assert_eq!(above(InfoKind::Vlan, None).vlan_of, Some(7));
        assert_eq!(above(InfoKind::Vlan, Some(3)).vlan_of, None);
        assert_eq!(above(InfoKind::MacVlan, None).vlan_of, None);
        assert_eq!(above(InfoKind::Veth, None).vlan_of, None);
    }
}

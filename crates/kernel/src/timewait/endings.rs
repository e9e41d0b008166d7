//! Connections that are to be forgotten here and that the programs could not end: found and ended by sock_diag(7).

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6, IPPROTO_TCP};
use netlink_packet_sock_diag::inet::{ExtensionFlags, InetRequest, SocketId, StateFlags};
use netlink_packet_sock_diag::{SockDiagDestroy, SockDiagMessage};
use netlink_sys::{Socket, SocketAddr as NetlinkAddr, protocols::NETLINK_SOCK_DIAG};
use weir_core::timewait::state;

use super::skel::types::timewait_tuple;

/// The programs end nearly all of them within this time.
const LEFT_ALONE_NS: u64 = 100_000_000;
/// The kernel has given up a closing socket by then.
const FORGOTTEN_AFTER_NS: u64 = 120_000_000_000;
/// Of any socket (INET_DIAG_NOCOOKIE).
const NO_COOKIE: [u8; 8] = [0xff; 8];

/// What became of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// It was in TIME-WAIT, or waited for a FIN that has come already, and is no more.
    Ended,
    /// It is still closing.
    Closing,
    /// There is none, or another one by now.
    Gone,
}

/// What one round over the connections that are to end has come to.
#[derive(Debug, Default)]
pub(super) struct Round {
    /// Those that are still there.
    pub(super) left: u32,
    /// Those that were ended, by the index of their rule.
    pub(super) ended: BTreeMap<u16, u64>,
    /// Why the round stopped before its end.
    pub(super) failed: Option<io::Error>,
}

/// Goes over connections with the index of their rule and how long ago they were to end, in ns. `end` tries to end one,
/// `forget` takes it off the list. At the first failure the rest are left for the next round.
pub(super) fn round<T>(
    connections: impl IntoIterator<Item = (T, u16, u64)>,
    mut end: impl FnMut(&T) -> io::Result<Fate>,
    mut forget: impl FnMut(T),
) -> Round {
    let mut round = Round::default();
    for (connection, rule, age_ns) in connections {
        let fate = match age_ns < LEFT_ALONE_NS || round.failed.is_some() {
            true => Fate::Closing,
            false => end(&connection).unwrap_or_else(|error| {
                round.failed = Some(error);
                Fate::Closing
            }),
        };
        match fate {
            Fate::Closing if age_ns < FORGOTTEN_AFTER_NS => {
                round.left += 1;
                continue;
            }
            Fate::Ended => *round.ended.entry(rule).or_default() += 1,
            Fate::Closing | Fate::Gone => {}
        }
        forget(connection);
    }
    round
}

/// A socket of the kernel.
struct Found {
    /// include/net/tcp_states.h; of a TIME-WAIT socket FIN-WAIT-2 until the other end has closed.
    state: u8,
    cookie: [u8; 8],
    /// No program has it.
    is_orphan: bool,
}

/// What is to become of a socket.
fn fate(state: u8, is_orphan: bool, is_answered: bool) -> Fate {
    match state {
        state::TIME_WAIT if !is_answered => Fate::Ended,
        state::FIN_WAIT2 if is_answered && is_orphan => Fate::Ended,
        // A RST was to end it.
        state::FIN_WAIT1 if is_orphan => Fate::Closing,
        state::FIN_WAIT1 | state::FIN_WAIT2 | state::CLOSING if !is_answered => Fate::Closing,
        _ => Fate::Gone,
    }
}

/// A connection to the kernel's table of sockets.
pub(super) struct Table(Socket);

impl Table {
    /// Of the calling thread's network namespace.
    pub(super) fn open() -> io::Result<Table> {
        let mut socket = Socket::new(NETLINK_SOCK_DIAG)?;
        socket.bind_auto()?;
        socket.connect(&NetlinkAddr::new(0, 0))?;
        Ok(Table(socket))
    }

    /// Ends this connection if it is in TIME-WAIT; or, if the other end's FIN was acknowledged without it (`is_answered`),
    /// if it is in FIN-WAIT-2 and no program has it.
    pub(super) fn end(&mut self, tuple: &timewait_tuple, is_answered: bool) -> io::Result<Fate> {
        let request = request(tuple);
        let ask = NetlinkPayload::from(SockDiagMessage::InetRequest(request.clone()));
        let Some(found) = self.call(ask, NLM_F_REQUEST)? else {
            return Ok(Fate::Gone);
        };
        let fate = fate(found.state, found.is_orphan, is_answered);
        if fate != Fate::Ended {
            return Ok(fate);
        }
        // By its cookie: a new connection with the same addresses and ports has another one.
        let socket_id = SocketId {
            cookie: found.cookie,
            ..request.socket_id
        };
        let message = SockDiagMessage::InetRequest(InetRequest {
            socket_id,
            ..request
        });
        self.call(
            SockDiagDestroy::new(message).into(),
            NLM_F_REQUEST | NLM_F_ACK,
        )?;
        Ok(Fate::Ended)
    }

    /// Sends a request. `None`: it finds nothing, or what it names was ended.
    fn call<T>(&mut self, payload: NetlinkPayload<T>, flags: u16) -> io::Result<Option<Found>>
    where
        T: netlink_packet_core::NetlinkSerializable,
    {
        let mut header = NetlinkHeader::default();
        header.flags = flags;
        let mut message = NetlinkMessage::new(header, payload);
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.0.send(&bytes, 0)?;
        let (bytes, _) = self.0.recv_from_full()?;
        let answer = NetlinkMessage::<SockDiagMessage>::deserialize(&bytes)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
        match answer.payload {
            NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(response)) => {
                let header = response.header;
                Ok(Some(Found {
                    state: header.state,
                    cookie: header.socket_id.cookie,
                    is_orphan: header.inode == 0,
                }))
            }
            NetlinkPayload::Error(error) => match error.to_io() {
                error if error.raw_os_error() == Some(0) => Ok(None),
                error if error.kind() == io::ErrorKind::NotFound => Ok(None),
                error => Err(error),
            },
            _ => Ok(None),
        }
    }
}

fn request(tuple: &timewait_tuple) -> InetRequest {
    let [source_address, destination_address] = [tuple.local, tuple.remote].map(address);
    let family = match source_address {
        IpAddr::V4(_) => AF_INET,
        IpAddr::V6(_) => AF_INET6,
    };
    InetRequest {
        family,
        protocol: IPPROTO_TCP,
        extensions: ExtensionFlags::empty(),
        states: StateFlags::all(),
        socket_id: SocketId {
            source_port: u16::from_be(tuple.local_port),
            destination_port: u16::from_be(tuple.remote_port),
            source_address,
            destination_address,
            interface_id: 0,
            cookie: NO_COOKIE,
        },
    }
}

fn address(words: [u32; 4]) -> IpAddr {
    let mut octets = [0; 16];
    for (to, word) in octets.chunks_mut(4).zip(words) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    Ipv6Addr::from(octets).to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_ended_before_a_failure_counts_and_the_rest_is_left_for_the_next_round() {
        const RULE: u16 = 7;
        let old = |number: u32| (number, RULE, LEFT_ALONE_NS);
        let mut forgotten = Vec::new();
        let end = |number: &u32| match number {
            3 => Err(io::Error::from_raw_os_error(libc::ENOMEM)),
            2 => Ok(Fate::Gone),
            _ => Ok(Fate::Ended),
        };
        let young = (6, RULE, LEFT_ALONE_NS - 1);
        let all = (0..6).map(old).chain([young]);
        let round = round(all, end, |number| forgotten.push(number));
        assert_eq!(round.ended, BTreeMap::from([(RULE, 2)]));
        assert_eq!(forgotten, [0, 1, 2]);
        assert_eq!(round.left, 4);
        assert!(round.failed.is_some());
    }

    #[test]
    fn fin_wait_2_ends_only_where_the_fin_has_come_and_no_program_waits() {
        for (state, is_orphan, is_answered, expected) in [
            (state::TIME_WAIT, true, false, Fate::Ended),
            (state::FIN_WAIT2, true, false, Fate::Closing),
            (state::FIN_WAIT2, true, true, Fate::Ended),
            (state::FIN_WAIT2, false, true, Fate::Gone),
            (state::FIN_WAIT1, true, true, Fate::Closing),
            (state::FIN_WAIT1, false, true, Fate::Gone),
            (state::TIME_WAIT, true, true, Fate::Gone),
            (state::ESTABLISHED, false, true, Fate::Gone),
        ] {
            let case = (state, is_orphan, is_answered);
            assert_eq!(fate(state, is_orphan, is_answered), expected, "{case:?}");
        }
    }

    #[test]
    fn one_that_does_not_come_to_its_end_is_given_up() {
        let mut forgotten = Vec::new();
        let all = [(1, 0, FORGOTTEN_AFTER_NS), (2, 0, FORGOTTEN_AFTER_NS - 1)];
        let round = round(all, |_| Ok(Fate::Closing), |number| forgotten.push(number));
        assert_eq!((forgotten, round.left), (vec![1], 1));
    }
}

//! Where nftables translates the destination of a connection to (`dnat`, `redirect`), those rules of iptables-nft among
//! them.
//!
//! The rules are carried out for one destination, as the kernel would. What they ask besides (the interface, the source,
//! a mark) is not known: such a rule may hold. So the result is every end that some connection may have.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use netlink_sys::protocols::NETLINK_NETFILTER;
use weir_kernel::is_mere_target;

use super::*;
use crate::host::netlink::Plain;

/// Where a connection is translated to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// This address and port.
    At(SocketAddr),
    /// Somewhere that weir cannot tell, or one of several places, by the rules of this chain or table.
    Unclear(String),
}

const NFT_MSG_GETSETELEM: u16 = 13;
const NFTA_CHAIN_TYPE: u16 = 7;
const NF_PREROUTING: u32 = 0;

const NFTA_DATA_VALUE: u16 = 1;
const NFT_RETURN: i32 = -5;
const NFT_GOTO: i32 = -4;
const NFT_JUMP: i32 = -3;
const NFT_BREAK: i32 = -2;
const NFT_CONTINUE: i32 = -1;

const NFTA_PAYLOAD_DREG: u16 = 1;
const NFTA_PAYLOAD_BASE: u16 = 2;
const NFTA_PAYLOAD_OFFSET: u16 = 3;
const NFTA_PAYLOAD_LEN: u16 = 4;
const NFT_PAYLOAD_NETWORK_HEADER: u32 = 1;
const NFT_PAYLOAD_TRANSPORT_HEADER: u32 = 2;
const NFTA_META_DREG: u16 = 1;
const NFTA_META_KEY: u16 = 2;
const NFT_META_NFPROTO: u32 = 15;
const NFT_META_L4PROTO: u32 = 16;
const NFTA_FIB_DREG: u16 = 1;
const NFTA_FIB_RESULT: u16 = 2;
const NFTA_FIB_FLAGS: u16 = 3;
const NFT_FIB_RESULT_ADDRTYPE: u32 = 3;
const NFTA_FIB_F_DADDR: u32 = 2;
/// Of the types of routes (linux/rtnetlink.h) that of this host's addresses.
const RTN_LOCAL: u32 = 2;
const NFTA_IMMEDIATE_DREG: u16 = 1;
const NFTA_BITWISE_SREG: u16 = 1;
const NFTA_BITWISE_DREG: u16 = 2;
const NFTA_BITWISE_MASK: u16 = 4;
const NFTA_BITWISE_XOR: u16 = 5;
const NFTA_CMP_SREG: u16 = 1;
const NFTA_CMP_OP: u16 = 2;
const NFTA_CMP_DATA: u16 = 3;
const NFTA_RANGE_SREG: u16 = 1;
const NFTA_RANGE_OP: u16 = 2;
const NFTA_RANGE_FROM_DATA: u16 = 3;
const NFTA_RANGE_TO_DATA: u16 = 4;
const NFTA_LOOKUP_SET: u16 = 1;
const NFTA_LOOKUP_SREG: u16 = 2;
const NFTA_LOOKUP_FLAGS: u16 = 5;
const NFT_LOOKUP_F_INV: u32 = 1;
const NFTA_NAT_TYPE: u16 = 1;
const NFTA_NAT_FAMILY: u16 = 2;
const NFTA_NAT_REG_ADDR_MIN: u16 = 3;
const NFTA_NAT_REG_PROTO_MIN: u16 = 5;
const NFTA_NAT_FLAGS: u16 = 7;
const NFT_NAT_DNAT: u32 = 1;
const NFTA_REDIR_REG_PROTO_MIN: u16 = 1;
const NF_NAT_RANGE_NETMAP: u32 = 1 << 6;

const NFTA_SET_ELEM_LIST_TABLE: u16 = 1;
const NFTA_SET_ELEM_LIST_SET: u16 = 2;
const NFTA_SET_ELEM_LIST_ELEMENTS: u16 = 3;
const NFTA_SET_ELEM_KEY: u16 = 1;
const NFTA_SET_ELEM_DATA: u16 = 2;
const NFTA_SET_ELEM_FLAGS: u16 = 3;
const NFTA_SET_ELEM_KEY_END: u16 = 10;

/// Of `struct xt_entry_match` and `xt_entry_target` in a rule of iptables-nft.
const NFTA_XT_NAME: u16 = 1;
const NFTA_XT_REVISION: u16 = 2;
const NFTA_XT_INFO: u16 = 3;

/// Chains within chains that are followed: as many as nf_tables allows (NFT_JUMP_STACK_SIZE).
const DEPTH: usize = 16;
const TCP: u8 = 6;

/// The rules of the calling thread's network namespace.
#[derive(Default)]
pub struct Rules {
    /// Chains of type nat at the prerouting hook.
    bases: Vec<Place>,
    /// The expressions of each rule, in their order.
    chains: BTreeMap<Place, Vec<Vec<u8>>>,
    /// Elements of sets that have been asked for; `None`: they are no plain list.
    sets: RefCell<BTreeMap<Place, Option<Vec<Element>>>>,
}

/// An element of a set: its key, and what a map has for it.
type Element = (Vec<u8>, Option<Vec<u8>>);

impl Rules {
    /// Reads them.
    ///
    /// # Errors
    /// The kernel does not give them.
    pub fn read() -> io::Result<Rules> {
        let chains = all(NFT_MSG_GETCHAIN)?;
        let bases: Vec<Place> = chains.iter().filter_map(base).collect();
        let mut chains: BTreeMap<Place, Vec<Vec<u8>>> = BTreeMap::new();
        if !bases.is_empty() {
            for message in all(NFT_MSG_GETRULE)? {
                if let Some((place, expressions)) = expressions(&message) {
                    chains.entry(place).or_default().push(expressions);
                }
            }
        }
        Ok(Rules {
            bases,
            chains,
            sets: RefCell::default(),
        })
    }

    /// Where connections to an address of this host and a port are translated to.
    pub fn ends(&self, to: SocketAddr) -> BTreeSet<End> {
        let family = if to.is_ipv4() { "ip" } else { "ip6" };
        let sees = |base: &&Place| {
            let its = family_name(base.family);
            its == Some("inet") || its == Some(family)
        };
        let mut walk = Walk {
            rules: self,
            to,
            ends: BTreeSet::new(),
        };
        for base in self.bases.iter().filter(sees) {
            walk.chain(base, 0);
        }
        walk.ends
    }

    /// The elements of a set of the chain's table.
    fn elements(&self, chain: &Place, set: String) -> Option<Vec<Element>> {
        let place = Place {
            chain: set,
            ..chain.clone()
        };
        let mut known = self.sets.borrow_mut();
        let read = || elements_of(&place).ok().flatten();
        known.entry(place.clone()).or_insert_with(read).clone()
    }
}

fn base(message: &Plain) -> Option<Place> {
    let (_, attributes) = parts(message)?;
    let hook = attribute(attributes, NFTA_CHAIN_HOOK)?;
    let hook = number(attribute(hook, NFTA_HOOK_HOOKNUM)?)?;
    let kind = text(attribute(attributes, NFTA_CHAIN_TYPE)?);
    (kind == "nat" && hook == NF_PREROUTING).then_some(chain(message)?.place)
}

fn expressions(message: &Plain) -> Option<(Place, Vec<u8>)> {
    let (_, attributes) = parts(message)?;
    let expressions = attribute(attributes, NFTA_RULE_EXPRESSIONS)?.to_vec();
    Some((rule(message)?.place, expressions))
}

/// `set.chain` is the set's name. `None`: it has intervals.
fn elements_of(set: &Place) -> io::Result<Option<Vec<Element>>> {
    let mut payload = vec![set.family, 0, 0, 0];
    for (kind, name) in [
        (NFTA_SET_ELEM_LIST_TABLE, &set.table),
        (NFTA_SET_ELEM_LIST_SET, &set.chain),
    ] {
        put(&mut payload, kind, format!("{name}\0").as_bytes());
    }
    let request = Plain {
        kind: NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETSETELEM,
        payload,
    };
    let mut found = Vec::new();
    for message in dump(NETLINK_NETFILTER, request)? {
        let list = parts(&message).and_then(|(_, a)| attribute(a, NFTA_SET_ELEM_LIST_ELEMENTS));
        for (_, element) in attributes(list.unwrap_or_default()) {
            let flags = attribute(element, NFTA_SET_ELEM_FLAGS).and_then(number);
            let key = attribute(element, NFTA_SET_ELEM_KEY).and_then(value);
            let is_plain = attribute(element, NFTA_SET_ELEM_KEY_END).is_none()
                && flags.is_none_or(|flags| flags == 0);
            let (true, Some(key)) = (is_plain, key) else {
                return Ok(None);
            };
            let data = attribute(element, NFTA_SET_ELEM_DATA).map(<[u8]>::to_vec);
            found.push((key.to_vec(), data));
        }
    }
    Ok(Some(found))
}

fn put(bytes: &mut Vec<u8>, kind: u16, value: &[u8]) {
    bytes.extend((value.len() as u16 + 4).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

fn value(data: &[u8]) -> Option<&[u8]> {
    attribute(data, NFTA_DATA_VALUE)
}

/// Whether a rule is about the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fits {
    Yes,
    Maybe,
    No,
}

impl From<bool> for Fits {
    fn from(is: bool) -> Fits {
        if is { Fits::Yes } else { Fits::No }
    }
}

impl Fits {
    /// The same of the opposite, if asked so.
    fn inverted(self, is: bool) -> Fits {
        match (self, is) {
            (Fits::Yes, true) => Fits::No,
            (Fits::No, true) => Fits::Yes,
            _ => self,
        }
    }
}

/// What a rule does.
enum Act {
    Nothing,
    Returns,
    /// The chain has decided: no translation, or this one.
    Ends(Option<End>),
    Jumps(String),
    Goes(String),
}

/// What follows a chain.
#[derive(PartialEq, Eq)]
enum After {
    /// The rule behind the jump.
    GoesOn,
    /// Nothing: every connection has met its end.
    Ended,
}

/// One destination on its way through the rules.
struct Walk<'a> {
    rules: &'a Rules,
    to: SocketAddr,
    ends: BTreeSet<End>,
}

impl Walk<'_> {
    fn chain(&mut self, place: &Place, depth: usize) -> After {
        if depth > DEPTH {
            return After::GoesOn;
        }
        for expressions in self.rules.chains.get(place).into_iter().flatten() {
            let (act, is_certain) = self.rule(place, expressions);
            let chain = |name: String| Place {
                chain: name,
                ..place.clone()
            };
            let (after, leaves) = match act {
                Act::Nothing => continue,
                Act::Returns => (After::GoesOn, true),
                Act::Ends(end) => {
                    self.ends.extend(end);
                    (After::Ended, true)
                }
                Act::Jumps(name) => (self.chain(&chain(name), depth + 1), false),
                Act::Goes(name) => (self.chain(&chain(name), depth + 1), true),
            };
            if is_certain && (leaves || after == After::Ended) {
                return after;
            }
        }
        After::GoesOn
    }

    /// What a rule does with the connection, and whether it does so for certain.
    fn rule(&self, place: &Place, expressions: &[u8]) -> (Act, bool) {
        let mut registers = Registers::default();
        let mut is_certain = true;
        for (_, expression) in attributes(expressions) {
            let name = attribute(expression, NFTA_EXPR_NAME).map(text);
            let name = name.unwrap_or_default();
            let data = attribute(expression, NFTA_EXPR_DATA).unwrap_or_default();
            let fits = match &*name {
                "counter" | "log" | "notrack" | "last" => Fits::Yes,
                "payload" | "meta" | "fib" => {
                    self.load(&name, data, &mut registers);
                    Fits::Yes
                }
                "bitwise" => registers.mask(data),
                "cmp" => registers.compare(data),
                "range" => registers.range(data),
                "match" => xtables::fits(data, self.to.port()),
                "limit" | "quota" | "connlimit" => Fits::Maybe,
                "immediate" => {
                    let its = attribute(data, NFTA_IMMEDIATE_DATA).unwrap_or_default();
                    if let Some(verdict) = attribute(its, NFTA_DATA_VERDICT) {
                        return (act(verdict), is_certain);
                    }
                    registers.set(field(data, NFTA_IMMEDIATE_DREG), value(its));
                    Fits::Yes
                }
                "lookup" => match self.lookup(place, data, &mut registers) {
                    Ok(fits) => fits,
                    Err(act) => return (act, is_certain),
                },
                "nat" => return (self.nat(place, data, &registers), is_certain),
                "redir" => {
                    let to = registers.port(data, NFTA_REDIR_REG_PROTO_MIN, self.to.port());
                    return (
                        self.ends_at(place, Some(self.to.ip()), to, true),
                        is_certain,
                    );
                }
                "target" => match self.target(place, data) {
                    Some(act) => return (act, is_certain),
                    None => Fits::Yes,
                },
                // Whatever it has written.
                _ => {
                    registers = Registers::default();
                    Fits::Maybe
                }
            };
            match fits {
                Fits::Yes => {}
                Fits::Maybe => is_certain = false,
                Fits::No => return (Act::Nothing, is_certain),
            }
        }
        (Act::Nothing, is_certain)
    }

    /// What is known of the packet.
    fn load(&self, name: &str, data: &[u8], registers: &mut Registers) {
        let ip: Vec<u8> = match self.to.ip() {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        let ip_at: u32 = if self.to.is_ipv4() { 16 } else { 24 };
        let field = |kind| field(data, kind);
        match name {
            "payload" => {
                let (at, length) = (field(NFTA_PAYLOAD_OFFSET), field(NFTA_PAYLOAD_LEN));
                let (at, length) = (at.unwrap_or(0), length.unwrap_or(0));
                let header = field(NFTA_PAYLOAD_BASE);
                let known = match header {
                    // A prefix of whole bytes is loaded by its bytes alone.
                    Some(NFT_PAYLOAD_NETWORK_HEADER) if at == ip_at => ip.get(..length as usize),
                    _ => None,
                };
                let port = self.to.port().to_be_bytes();
                let known = match (header, at, length) {
                    (Some(NFT_PAYLOAD_TRANSPORT_HEADER), 2, 2) => Some(&port[..]),
                    _ => known,
                };
                registers.set(field(NFTA_PAYLOAD_DREG), known);
            }
            "meta" => {
                let protocol = if self.to.is_ipv4() { 2 } else { 10 };
                let known: Option<&[u8]> = match field(NFTA_META_KEY) {
                    Some(NFT_META_L4PROTO) => Some(&[TCP]),
                    Some(NFT_META_NFPROTO) => Some(if protocol == 2 { &[2] } else { &[10] }),
                    _ => None,
                };
                registers.set(field(NFTA_META_DREG), known);
            }
            _ => {
                let asked = (field(NFTA_FIB_RESULT), field(NFTA_FIB_FLAGS));
                let local = RTN_LOCAL.to_ne_bytes();
                let is_known = asked == (Some(NFT_FIB_RESULT_ADDRTYPE), Some(NFTA_FIB_F_DADDR));
                registers.set(field(NFTA_FIB_DREG), is_known.then_some(&local[..]));
            }
        }
    }

    /// # Errors
    /// What a map of verdicts says.
    fn lookup(&self, place: &Place, data: &[u8], registers: &mut Registers) -> Result<Fits, Act> {
        let set = attribute(data, NFTA_LOOKUP_SET).map(text);
        let elements = self.rules.elements(place, set.unwrap_or_default());
        let is_inverted =
            field(data, NFTA_LOOKUP_FLAGS).is_some_and(|flags| flags & NFT_LOOKUP_F_INV != 0);
        let from = field(data, NFTA_LOOKUP_SREG);
        let to = field(data, NFTA_LOOKUP_DREG);
        let found = elements.and_then(|all| {
            let length = all.first().map_or(0, |(key, _)| key.len());
            let key = registers.get(from, length)?;
            Some(all.into_iter().find(|(its, _)| *its == key))
        });
        match (found, to) {
            (None, Some(NFT_REG_VERDICT)) => Err(Act::Ends(Some(unclear(place)))),
            (None, None) => Ok(Fits::Maybe),
            (None, Some(to)) => {
                registers.set(Some(to), None);
                Ok(Fits::Maybe)
            }
            (Some(None), _) => Ok(Fits::from(is_inverted)),
            (Some(Some(_)), None) => Ok(Fits::from(!is_inverted)),
            (Some(Some((_, its))), Some(to)) => {
                let its = its.unwrap_or_default();
                match attribute(&its, NFTA_DATA_VERDICT) {
                    Some(verdict) => Err(act(verdict)),
                    None => {
                        registers.set(Some(to), value(&its));
                        Ok(Fits::Yes)
                    }
                }
            }
        }
    }

    fn nat(&self, place: &Place, data: &[u8], registers: &Registers) -> Act {
        let family = field(data, NFTA_NAT_FAMILY);
        // NFPROTO_INET is both: it gives a port alone.
        let is_its = [1, if self.to.is_ipv4() { 2 } else { 10 }]
            .map(Some)
            .contains(&family);
        if field(data, NFTA_NAT_TYPE) != Some(NFT_NAT_DNAT) || !is_its {
            return Act::Nothing;
        }
        let maps = field(data, NFTA_NAT_FLAGS).is_some_and(|f| f & NF_NAT_RANGE_NETMAP != 0);
        let ip = match registers.one_of(data, NFTA_NAT_REG_ADDR_MIN, self.ip_length()) {
            None => Some(self.to.ip()),
            Some(bytes) => bytes.and_then(|bytes| ip(&bytes)),
        };
        let port = registers.port(data, NFTA_NAT_REG_PROTO_MIN, self.to.port());
        self.ends_at(place, ip, port, !maps)
    }

    fn ip_length(&self) -> usize {
        if self.to.is_ipv4() { 4 } else { 16 }
    }

    fn ends_at(&self, place: &Place, ip: Option<IpAddr>, port: Option<u16>, is_one: bool) -> Act {
        let end = match (ip, port, is_one) {
            (Some(ip), Some(port), true) => End::At(SocketAddr::new(ip, port)),
            _ => unclear(place),
        };
        Act::Ends(Some(end))
    }

    /// Of a target of iptables; `None`: the packet goes on.
    fn target(&self, place: &Place, data: &[u8]) -> Option<Act> {
        let name = attribute(data, NFTA_XT_NAME).map(text)?;
        let info = attribute(data, NFTA_XT_INFO).unwrap_or_default();
        let revision = field(data, NFTA_XT_REVISION).unwrap_or(0);
        match &*name {
            "DNAT" | "REDIRECT" => {
                let is_compat = revision == 0 && self.to.is_ipv4();
                let end = xtables::translated(info, is_compat, self.to);
                Some(Act::Ends(Some(end.map_or(unclear(place), End::At))))
            }
            "NETMAP" => Some(Act::Ends(Some(unclear(place)))),
            other if is_mere_target(other) => None,
            _ => Some(Act::Ends(None)),
        }
    }
}

fn act(verdict: &[u8]) -> Act {
    let code = attribute(verdict, NFTA_VERDICT_CODE).and_then(number);
    let chain = || {
        let name = attribute(verdict, NFTA_VERDICT_CHAIN).map(text);
        name.unwrap_or_default()
    };
    match code.map(u32::cast_signed) {
        Some(NFT_CONTINUE | NFT_BREAK) => Act::Nothing,
        Some(NFT_JUMP) => Act::Jumps(chain()),
        Some(NFT_GOTO) => Act::Goes(chain()),
        Some(NFT_RETURN) => Act::Returns,
        _ => Act::Ends(None),
    }
}

fn unclear(place: &Place) -> End {
    let Place {
        family,
        table,
        chain,
    } = place;
    let family = family_name(*family).unwrap_or("?");
    End::Unclear(format!("the nftables chain {family} {table} {chain}"))
}

fn field(data: &[u8], kind: u16) -> Option<u32> {
    attribute(data, kind).and_then(|value| match value {
        [byte] => Some(u32::from(*byte)),
        more => number(more),
    })
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).ok().map(Ipv4Addr::from);
    let v6 = <[u8; 16]>::try_from(bytes).ok().map(Ipv6Addr::from);
    v4.map(IpAddr::V4).or(v6.map(IpAddr::V6))
}

/// What is known of the registers of a rule, byte by byte: 16 of four bytes each, or four of 16.
struct Registers([Option<u8>; 64]);

impl Default for Registers {
    fn default() -> Registers {
        Registers([None; 64])
    }
}

impl Registers {
    /// Where a register begins; `None`: there is none of this number.
    fn at(register: Option<u32>) -> Option<usize> {
        let register = register? as usize;
        // NFT_REG_1 to 4, and NFT_REG32_00 to 15 from 8 on.
        match register {
            1..=4 => Some((register - 1) * 16),
            8..=23 => Some((register - 8) * 4),
            _ => None,
        }
    }

    /// A value; its last word is filled up with zeros, as the kernel does. `None`: it is not known.
    fn set(&mut self, register: Option<u32>, value: Option<&[u8]>) {
        let Some(at) = Registers::at(register) else {
            return;
        };
        let Some(value) = value else {
            let end = self.0.len().min(at + 16);
            self.0[at..end].fill(None);
            return;
        };
        for index in 0..value.len().next_multiple_of(4) {
            if let Some(byte) = self.0.get_mut(at + index) {
                *byte = Some(value.get(index).copied().unwrap_or(0));
            }
        }
    }

    fn get(&self, register: Option<u32>, length: usize) -> Option<Vec<u8>> {
        let at = Registers::at(register)?;
        self.0.get(at..at + length)?.iter().copied().collect()
    }

    fn mask(&mut self, data: &[u8]) -> Fits {
        let of = |kind| attribute(data, kind).and_then(value).unwrap_or_default();
        let (mask, xor) = (of(NFTA_BITWISE_MASK), of(NFTA_BITWISE_XOR));
        let from = self.get(field(data, NFTA_BITWISE_SREG), mask.len());
        let masked = from.filter(|_| !mask.is_empty()).map(|from| {
            let xor = xor.iter().chain(std::iter::repeat(&0));
            let all = from.iter().zip(mask).zip(xor);
            all.map(|((byte, mask), xor)| byte & mask ^ xor).collect()
        });
        let masked: Option<Vec<u8>> = masked;
        self.set(field(data, NFTA_BITWISE_DREG), masked.as_deref());
        Fits::Yes
    }

    fn compare(&self, data: &[u8]) -> Fits {
        let with = attribute(data, NFTA_CMP_DATA).and_then(value);
        let with = with.unwrap_or_default();
        let Some(its) = self.get(field(data, NFTA_CMP_SREG), with.len()) else {
            return Fits::Maybe;
        };
        let its = its.as_slice();
        match field(data, NFTA_CMP_OP) {
            Some(0) => (its == with).into(),
            Some(1) => (its != with).into(),
            Some(2) => (its < with).into(),
            Some(3) => (its <= with).into(),
            Some(4) => (its > with).into(),
            Some(5) => (its >= with).into(),
            _ => Fits::Maybe,
        }
    }

    fn range(&self, data: &[u8]) -> Fits {
        let of = |kind| attribute(data, kind).and_then(value).unwrap_or_default();
        let (from, to) = (of(NFTA_RANGE_FROM_DATA), of(NFTA_RANGE_TO_DATA));
        let Some(its) = self.get(field(data, NFTA_RANGE_SREG), from.len()) else {
            return Fits::Maybe;
        };
        let is_inverted = field(data, NFTA_RANGE_OP) == Some(1);
        Fits::from(from <= its.as_slice() && its.as_slice() <= to).inverted(is_inverted)
    }

    /// The value of the registers that an expression names by this attribute and the next, which are the ends of a range.
    /// `None`: it names none. `Some(None)`: it is not known, or they differ.
    fn one_of(&self, data: &[u8], kind: u16, length: usize) -> Option<Option<Vec<u8>>> {
        let from = field(data, kind)?;
        let to = field(data, kind + 1).unwrap_or(from);
        let of = |register| self.get(Some(register), length);
        Some(of(from).filter(|from| of(to).as_ref() == Some(from)))
    }

    /// The port that an expression gives; `otherwise` if it gives none, `None` if it is not one.
    fn port(&self, data: &[u8], kind: u16, otherwise: u16) -> Option<u16> {
        match self.one_of(data, kind, 2) {
            None => Some(otherwise),
            Some(bytes) => bytes.and_then(|b| Some(u16::from_be_bytes(b.try_into().ok()?))),
        }
    }
}

/// What iptables has in its own form.
mod xtables {
    use super::*;

    /// Whether a match may hold for a TCP packet to this port.
    pub fn fits(data: &[u8], port: u16) -> Fits {
        let name = attribute(data, NFTA_XT_NAME).map(text);
        let info = attribute(data, NFTA_XT_INFO).unwrap_or_default();
        match name.as_deref() {
            Some("comment") => Fits::Yes,
            Some("tcp") => weir_kernel::tcp_match(info, port).map_or(Fits::Maybe, Fits::from),
            _ => Fits::Maybe,
        }
    }

    /// Where DNAT or REDIRECT leads; `None`: to several places.
    pub fn translated(info: &[u8], is_compat: bool, to: SocketAddr) -> Option<SocketAddr> {
        weir_kernel::nat_target(info, is_compat, to)
    }
}

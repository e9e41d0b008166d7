//! Rules of different classes that could both decide.
//!
//! Two rules tie if some connection fits both, neither is the more specific, and no third rule is for
//! exactly the connections that both fit. That connections can fit two rules is seen by what their
//! masks have in common: so each pair of masks is one join over that, and not each pair of rules.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::definition::OwnerId;
use super::rules::{Fields, Rule, Rules, V6};

/// Two classes with rules that tie, by their index, and a connection that fits both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tie {
    /// The class that comes first.
    pub earlier: usize,
    /// The other one.
    pub later: usize,
    /// The client of a connection that fits both.
    pub from: SocketAddr,
    /// Where it connects to; port 0: to any.
    pub to: SocketAddr,
    /// The listener or proxy that a rule of the two names; 0: none.
    pub owner: OwnerId,
}

impl Rules {
    /// Pairs of rules of different classes that could both decide: one for each pair of masks and
    /// `most` in all.
    pub fn ties(&self, most: usize) -> Vec<Tie> {
        ties(self, most)
    }
}

fn ties(rules: &Rules, most: usize) -> Vec<Tie> {
    let by_mask = by_mask(rules);
    let mut found = equals(rules, &by_mask);
    let masks = rules.masks();
    for (a, one) in masks.iter().enumerate() {
        for (b, other) in masks.iter().enumerate().skip(a + 1) {
            if found.len() >= most {
                break;
            }
            // The order of the masks is such that the later one cannot be the more specific.
            if !one.covers_bits_of(*other) && !one.are_apart(*other) {
                let pair = Pair {
                    rules,
                    common: one.masked(*other),
                    both: masks.iter().position(|mask| *mask == one.joined(*other)),
                };
                found.extend(pair.tie(&by_mask[a], &by_mask[b]));
            }
        }
    }
    found.truncate(most);
    found
}

fn by_mask(rules: &Rules) -> Vec<Vec<Rule>> {
    let mut by_mask = vec![Vec::new(); rules.masks().len()];
    for rule in rules.rules() {
        by_mask[rule.mask].push(*rule);
    }
    by_mask
}

/// Rules of two classes that are the same rule.
fn equals(rules: &Rules, by_mask: &[Vec<Rule>]) -> Vec<Tie> {
    let mut found = Vec::new();
    for rule in by_mask.iter().flatten() {
        let owner = rules.class_of_value(rule.mask, rule.value);
        if let Some(owner) = owner.filter(|owner| *owner != rule.class) {
            found.push(tie(
                rules,
                rule,
                &Rule {
                    class: owner,
                    ..*rule
                },
            ));
        }
    }
    found
}

/// Two masks of which neither is the more specific.
struct Pair<'a> {
    rules: &'a Rules,
    /// The bits that both look at.
    common: Fields,
    /// The mask of exactly those connections that fit a rule of each.
    both: Option<usize>,
}

impl Pair<'_> {
    fn tie(&self, ones: &[Rule], others: &[Rule]) -> Option<Tie> {
        let mut groups: HashMap<Fields, Vec<&Rule>> = HashMap::new();
        for rule in ones {
            let group = groups.entry(rule.value.masked(self.common)).or_default();
            group.push(rule);
        }
        let mut pairs = others.iter().flat_map(|other| {
            let group = groups.get(&other.value.masked(self.common));
            group.into_iter().flatten().map(move |one| (*one, other))
        });
        let (one, other) = pairs.find(|(one, other)| self.is_open(one, other))?;
        Some(tie(self.rules, one, other))
    }

    /// Whether no rule decides between two that fit the same connections. As many pairs as there are
    /// rules of the mask of both can be decided, so the search ends soon: but for those of one class,
    /// which are few lists of different lengths.
    fn is_open(&self, one: &Rule, other: &Rule) -> bool {
        let decided = |mask| {
            let value = one.value.joined(other.value);
            self.rules.class_of_value(mask, value).is_some()
        };
        one.class != other.class && !self.both.is_some_and(decided)
    }
}

fn tie(rules: &Rules, one: &Rule, other: &Rule) -> Tie {
    let (mask, value) = (
        rules.masks()[one.mask].joined(rules.masks()[other.mask]),
        one.value.joined(other.value),
    );
    let is_v6 = value.family == V6;
    let port = |mask: u16, value: u16, any: u16| if mask == 0 { any } else { value };
    Tie {
        earlier: one.class.min(other.class),
        later: one.class.max(other.class),
        from: SocketAddr::new(
            address(is_v6, mask.from, value.from, CLIENT),
            port(mask.from_port, value.from_port, 40_000),
        ),
        to: SocketAddr::new(
            address(is_v6, mask.to, value.to, SERVER),
            port(mask.to_port, value.to_port, 0),
        ),
        owner: value.owner,
    }
}

/// Host numbers of the examples in prefixes for documentation (RFC 5737, RFC 3849).
const CLIENT: u8 = 7;
const SERVER: u8 = 1;

/// An address that fits, and that looks like one.
fn address(is_v6: bool, mask: u128, value: u128, host: u8) -> IpAddr {
    // The last bit alone, where it is free, makes an address of a network's number.
    let host_bit = |value: u128| value | (!mask & 1);
    match (is_v6, mask) {
        (false, 0) => Ipv4Addr::new(192, 0, 2, host).into(),
        (true, 0) => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, host.into()).into(),
        (false, _) => Ipv4Addr::from(host_bit(value) as u32).into(),
        (true, _) => Ipv6Addr::from(host_bit(value)).into(),
    }
}

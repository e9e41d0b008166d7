//! The rules of classes as masks and values, and the lookup: one table access for each mask, the
//! most specific first. bpf/lib/classify.bpf.h does the same.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use super::definition::{Class, MAX_CLASSES, MAX_MASKS, MAX_RULES, OwnerId, Tuple};
use crate::prefix::Prefix;

/// [`Fields::family`]: a bit each, so that the mask of a rule of one family finds none of the other.
pub(super) const V4: u8 = 1;
pub(super) const V6: u8 = 2;

/// The fields of a connection, or which of their bits count. An IPv4 address is the low 32 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Fields {
    /// 1 for IPv4, 2 for IPv6; in a mask the one that it is for, or 0 for both.
    pub family: u8,
    /// The client's address.
    pub from: u128,
    /// The address that it connects to.
    pub to: u128,
    /// The client's port.
    pub from_port: u16,
    /// The port that it connects to.
    pub to_port: u16,
    /// The listener or proxy.
    pub owner: OwnerId,
}

impl Fields {
    fn of(tuple: &Tuple) -> Fields {
        let (from, to) = (tuple.from.ip().to_canonical(), tuple.to.ip().to_canonical());
        Fields {
            family: if from.is_ipv4() { V4 } else { V6 },
            from: bits(from),
            to: bits(to),
            from_port: tuple.from.port(),
            to_port: tuple.to.port(),
            owner: tuple.owner,
        }
    }

    /// Each field of both, with this operation.
    fn with(self, other: Fields, op: impl Fn(u128, u128) -> u128) -> Fields {
        Fields {
            family: op(self.family.into(), other.family.into()) as u8,
            from: op(self.from, other.from),
            to: op(self.to, other.to),
            from_port: op(self.from_port.into(), other.from_port.into()) as u16,
            to_port: op(self.to_port.into(), other.to_port.into()) as u16,
            owner: op(self.owner.into(), other.owner.into()) as u16,
        }
    }

    /// What the mask lets through.
    pub fn masked(self, mask: Fields) -> Fields {
        self.with(mask, |a, b| a & b)
    }

    pub(super) fn joined(self, other: Fields) -> Fields {
        self.with(other, |a, b| a | b)
    }

    /// As masks: whether one is for IPv4 only and the other for IPv6.
    pub(super) fn are_apart(self, other: Fields) -> bool {
        self.family != 0 && other.family != 0 && self.family != other.family
    }

    /// As masks: whether every rule of this one that agrees with a rule of the other is the more
    /// specific, or the same.
    pub(super) fn covers_bits_of(self, other: Fields) -> bool {
        self.masked(other) == other
    }

    fn bits(self) -> u32 {
        let ports = self.from_port.count_ones() + self.to_port.count_ones();
        let addresses = self.from.count_ones() + self.to.count_ones();
        self.family.count_ones() + addresses + ports + self.owner.count_ones()
    }

    /// As a mask: whether it is for IPv4, for IPv6.
    pub fn families(self) -> [bool; 2] {
        [V4, V6].map(|family| self.family == 0 || self.family == family)
    }
}

fn bits(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u32::from(ip).into(),
        IpAddr::V6(ip) => ip.into(),
    }
}

/// What fits one rule is of its class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// Index of its mask.
    pub mask: usize,
    /// What the masked fields must be.
    pub value: Fields,
    /// Index of its class.
    pub class: usize,
}

/// More than the tables hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TooMany {
    /// Classes.
    #[error("{0} classes are too many")]
    Classes(usize),
    /// Rules.
    #[error("the classes have {0} rules, one for each pair of their prefixes")]
    Rules(usize),
    /// Distinct masks of one family.
    #[error(
        "the rules have {0} masks (lengths of from and to, with or without each port and \
         listener), and each is a lookup for a SYN"
    )]
    Masks(usize),
}

/// The rules of some classes.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    masks: Vec<Fields>,
    rules: Vec<Rule>,
    table: HashMap<(usize, Fields), usize>,
    asks_for_to: bool,
}

impl Rules {
    /// Makes the rules of these classes. `owner` is the number of the listener or proxy that a class
    /// names: `None` if it names none, and `Some(0)` if the one that it names is not there; no
    /// connection is of it then. Of rules that tie any may win: see [`Rules::ties`].
    pub fn compile(classes: &[Class], owner: impl Fn(&Class) -> Option<OwnerId>) -> Rules {
        let mut numbers: HashMap<Fields, usize> = HashMap::new();
        let mut masks = Vec::new();
        let mut rules = Vec::new();
        for (index, class) in classes.iter().enumerate() {
            let owner = owner(class);
            if owner == Some(0) {
                continue;
            }
            for (mask, value) in rules_of(class, owner) {
                let mask = *numbers.entry(mask).or_insert_with(|| {
                    masks.push(mask);
                    masks.len() - 1
                });
                let class = index;
                rules.push(Rule { mask, value, class });
            }
        }
        let mut rules = Rules {
            masks,
            rules,
            ..Rules::default()
        };
        rules.order();
        rules
    }

    /// Puts the masks into the order of the lookup, and makes the table.
    fn order(&mut self) {
        let mut order: Vec<usize> = (0..self.masks.len()).collect();
        order.sort_by_key(|mask| std::cmp::Reverse(self.masks[*mask].bits()));
        let mut rank = vec![0; order.len()];
        for (new, old) in order.iter().enumerate() {
            rank[*old] = new;
        }
        self.masks = order.iter().map(|old| self.masks[*old]).collect();
        for rule in &mut self.rules {
            rule.mask = rank[rule.mask];
        }
        let entry = |rule: &Rule| ((rule.mask, rule.value), rule.class);
        self.table = self.rules.iter().map(entry).collect();
        self.asks_for_to = self
            .masks
            .iter()
            .any(|mask| mask.to != 0 || mask.to_port != 0);
    }

    /// Index of the class that a connection is of; `None`: of none.
    pub fn classify(&self, tuple: &Tuple) -> Option<usize> {
        let fields = Fields::of(tuple);
        let found = |(number, mask): (usize, &Fields)| {
            self.table.get(&(number, fields.masked(*mask))).copied()
        };
        self.masks.iter().enumerate().find_map(found)
    }

    /// As [`Rules::classify`], for one whose destination may take a call to be found out.
    pub fn classify_with(
        &self,
        from: SocketAddr,
        to: impl Fn() -> Option<SocketAddr>,
        owner: OwnerId,
    ) -> Option<usize> {
        let nowhere = SocketAddr::new([0u8; 4].into(), 0);
        let to = match self.asks_for_to {
            true => to().unwrap_or(nowhere),
            false => nowhere,
        };
        self.classify(&Tuple { from, to, owner })
    }

    /// The masks, most specific first.
    pub fn masks(&self) -> &[Fields] {
        &self.masks
    }

    /// Every rule once for each of its prefixes.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Whether the guard's tables hold them.
    ///
    /// # Errors
    /// Too many.
    pub fn fit_tables(&self, classes: usize) -> Result<(), TooMany> {
        if classes > MAX_CLASSES {
            return Err(TooMany::Classes(classes));
        }
        if self.rules.len() > MAX_RULES {
            return Err(TooMany::Rules(self.rules.len()));
        }
        let of = |family| {
            self.masks
                .iter()
                .filter(|mask| mask.families()[family])
                .count()
        };
        match of(0).max(of(1)) {
            most if most > MAX_MASKS => Err(TooMany::Masks(most)),
            _ => Ok(()),
        }
    }

    pub(super) fn class_of_value(&self, mask: usize, value: Fields) -> Option<usize> {
        self.table.get(&(mask, value)).copied()
    }
}

/// Mask and value of each pair of a class's prefixes; of one whose families differ nothing can be.
fn rules_of(class: &Class, owner: Option<OwnerId>) -> Vec<(Fields, Fields)> {
    let mut rules = Vec::with_capacity(class.from.len().max(1) * class.to.len().max(1));
    for from in choices(&class.from) {
        for to in choices(&class.to) {
            if let (Some(from), Some(to)) = (from, to)
                && from.addr().is_ipv4() != to.addr().is_ipv4()
            {
                continue;
            }
            rules.push(rule(class, owner, from, to));
        }
    }
    rules
}

/// Each of a list, or `None` for an empty one: any.
fn choices(prefixes: &[Prefix]) -> Vec<Option<&Prefix>> {
    match prefixes {
        [] => vec![None],
        some => some.iter().map(Some).collect(),
    }
}

fn rule(
    class: &Class,
    owner: Option<OwnerId>,
    from: Option<&Prefix>,
    to: Option<&Prefix>,
) -> (Fields, Fields) {
    let family = from.or(to).map(|prefix| prefix.addr().is_ipv4());
    let all = |given: bool| if given { u16::MAX } else { 0 };
    let mask = Fields {
        family: family.map_or(0, |is_v4| if is_v4 { V4 } else { V6 }),
        from: from.map_or(0, |prefix| bits(prefix.netmask())),
        to: to.map_or(0, |prefix| bits(prefix.netmask())),
        from_port: all(class.from_port.is_some()),
        to_port: all(class.to_port.is_some()),
        owner: all(owner.is_some()),
    };
    let value = Fields {
        family: mask.family,
        from: from.map_or(0, |prefix| bits(prefix.addr())),
        to: to.map_or(0, |prefix| bits(prefix.addr())),
        from_port: class.from_port.unwrap_or(0),
        to_port: class.to_port.unwrap_or(0),
        owner: owner.unwrap_or(0),
    };
    (mask, value.masked(mask))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;
    use crate::prefix::parse_prefix;

    fn prefix(text: &str) -> Prefix {
        parse_prefix(text).unwrap()
    }

    fn tuple(from: &str, to: &str, owner: OwnerId) -> Tuple {
        Tuple {
            from: from.parse().unwrap(),
            to: to.parse().unwrap(),
            owner,
        }
    }

    fn compile(classes: &[Class]) -> Rules {
        // A listener's name is its number.
        Rules::compile(classes, |class| {
            class.listener.as_ref().map(|name| name.parse().unwrap())
        })
    }

    #[test]
    fn the_most_specific_rule_decides_in_any_order_of_the_file() {
        let mut classes = vec![
            Class {
                from: vec![prefix("10.0.0.0/8")],
                ..Class::new("ten")
            },
            Class {
                from: vec![prefix("10.1.0.0/16"), prefix("2001:db8::/32")],
                ..Class::new("net")
            },
            Class {
                from: vec![prefix("10.1.0.0/16")],
                to_port: Some(443),
                ..Class::new("net-tls")
            },
            Class {
                from: vec![prefix("10.1.2.3/32")],
                to: vec![prefix("192.0.2.1/32")],
                from_port: Some(1024),
                to_port: Some(443),
                listener: Some("1".into()),
                ..Class::new("all fields")
            },
            Class {
                from: vec![prefix("0.0.0.0/0")],
                ..Class::new("v4")
            },
            Class::new("everything"),
        ];
        for _ in 0..classes.len() {
            classes.rotate_left(1);
            let rules = compile(&classes);
            assert_eq!(rules.ties(9), []);
            for (from, to, owner, expected) in [
                ("10.9.0.1:1", "192.0.2.1:80", 1, "ten"),
                ("10.1.9.9:1", "192.0.2.1:80", 1, "net"),
                ("[::ffff:10.1.9.9]:1", "[::ffff:192.0.2.1]:80", 1, "net"),
                ("10.1.9.9:1", "192.0.2.1:443", 1, "net-tls"),
                ("10.1.2.3:1024", "192.0.2.1:443", 1, "all fields"),
                ("10.1.2.3:1024", "192.0.2.1:443", 2, "net-tls"),
                ("10.1.2.3:1025", "192.0.2.1:443", 1, "net-tls"),
                ("[2001:db8::1]:1", "[2001:db8:9::1]:80", 1, "net"),
                ("192.0.2.7:1", "192.0.2.1:80", 1, "v4"),
                ("[2001:db9::1]:1", "[2001:db8:9::1]:80", 1, "everything"),
            ] {
                let class = rules.classify(&tuple(from, to, owner));
                assert_eq!(
                    class.map(|c| classes[c].name.as_str()),
                    Some(expected),
                    "{from} {to}"
                );
            }
        }
    }

    #[test]
    fn what_fits_no_rule_is_of_no_class() {
        let class = Class {
            from: vec![prefix("10.1.0.0/16")],
            ..Class::new("net")
        };
        let rules = compile(&[class]);
        assert_eq!(
            rules.classify(&tuple("10.2.0.1:1", "192.0.2.1:80", 1)),
            None
        );
        assert_eq!(
            Rules::default().classify(&tuple("10.2.0.1:1", "192.0.2.1:80", 1)),
            None
        );
    }

    #[test]
    fn ten_thousand_rules_are_checked_in_a_moment() {
        let class = |n: u32| {
            let net = |len: u32| Ipv4Addr::from((10 << 24 | n << 8) & (u32::MAX << (32 - len)));
            let prefix = |len: u32| prefix(&format!("{}/{len}", net(len)));
            Class {
                from: vec![prefix(32 - n % 8)],
                to: vec![prefix(24)],
                to_port: n.is_multiple_of(3).then_some(80),
                ..Class::new(format!("c{n}"))
            }
        };
        let classes: Vec<Class> = (0..10_000).map(class).collect();
        let start = std::time::Instant::now();
        let rules = compile(&classes);
        assert_eq!(rules.ties(9), []);
        assert_eq!(rules.fit_tables(classes.len()), Ok(()));
        // Without optimisation; by pairs of rules it takes minutes.
        assert!(start.elapsed().as_secs() < 10, "{:?}", start.elapsed());
    }

    #[test]
    fn more_masks_than_the_guard_looks_up_do_not_fit() {
        let class = |(from, to): (u8, u8)| Class {
            from: vec![prefix(&format!("{}/{from}", Ipv4Addr::from(0)))],
            to: vec![prefix(&format!("{}/{to}", Ipv4Addr::from(0)))],
            ..Class::new(format!("c{from}-{to}"))
        };
        let pairs = (0..8).flat_map(|from| (0..9).map(move |to| (from, to)));
        let classes: Vec<Class> = pairs.map(class).collect();
        let rules = compile(&classes);
        assert_eq!(rules.fit_tables(classes.len()), Err(TooMany::Masks(72)));
        assert_eq!(compile(&classes[..64]).fit_tables(64), Ok(()));
    }

    /// Few values for each field, so that rules meet.
    fn any_class() -> impl Strategy<Value = Class> {
        let prefixes = |which: &'static [&'static str]| {
            prop::collection::vec(prop::sample::select(which), 0..3)
                .prop_map(|texts| texts.into_iter().map(prefix).collect::<Vec<_>>())
        };
        let from = &[
            "10.0.0.0/8",
            "10.1.0.0/16",
            "10.1.1.1/32",
            "0.0.0.0/0",
            "2001:db8::/32",
            "::/0",
        ];
        let to = &["192.0.2.0/24", "192.0.2.1/32", "2001:db8::/32"];
        let port = prop::option::of(80u16..82);
        let owner = prop::option::of(1u16..3);
        (prefixes(from), prefixes(to), port.clone(), port, owner).prop_map(
            |(from, to, from_port, to_port, owner)| Class {
                from,
                to,
                from_port,
                to_port,
                listener: owner.map(|owner| owner.to_string()),
                ..Class::new("")
            },
        )
    }

    fn any_tuple() -> impl Strategy<Value = Tuple> {
        let v4 = (
            prop::sample::select(&["10.1.1.1", "10.1.0.9", "10.9.0.1", "192.0.2.7"][..]),
            prop::sample::select(&["192.0.2.1", "192.0.2.9", "192.0.3.1"][..]),
        );
        let v6 = (
            prop::sample::select(&["2001:db8::1", "2001:db9::1"][..]),
            prop::sample::select(&["2001:db8::9", "2001:db9::9"][..]),
        );
        (prop_oneof![v4, v6], 80u16..83, 80u16..83, 0u16..3).prop_map(
            |((from, to), from_port, to_port, owner)| Tuple {
                from: SocketAddr::new(from.parse().unwrap(), from_port),
                to: SocketAddr::new(to.parse().unwrap(), to_port),
                owner,
            },
        )
    }

    /// The definition, without masks: what a class says of a connection.
    fn fits(class: &Class, tuple: &Tuple) -> bool {
        let within = |prefixes: &[Prefix], ip: IpAddr| {
            prefixes.is_empty() || prefixes.iter().any(|prefix| prefix.contains(&ip))
        };
        within(&class.from, tuple.from.ip())
            && within(&class.to, tuple.to.ip())
            && class.from_port.is_none_or(|port| port == tuple.from.port())
            && class.to_port.is_none_or(|port| port == tuple.to.port())
            && class
                .listener
                .as_ref()
                .is_none_or(|name| *name == tuple.owner.to_string())
    }

    /// Each class with one prefix of each list.
    fn single(classes: &[Class]) -> Vec<(usize, Class)> {
        let one = |prefix: Option<&Prefix>| prefix.into_iter().copied().collect::<Vec<_>>();
        let mut singles = Vec::new();
        for (index, class) in classes.iter().enumerate() {
            for from in choices(&class.from) {
                for to in choices(&class.to) {
                    let (from, to) = (one(from), one(to));
                    singles.push((
                        index,
                        Class {
                            from,
                            to,
                            ..class.clone()
                        },
                    ));
                }
            }
        }
        singles
    }

    /// Whether all that fits one fits the other too, field by field.
    fn is_within(one: &Class, other: &Class) -> bool {
        let prefixes = |one: &[Prefix], other: &[Prefix]| match (one, other) {
            (_, []) => true,
            ([], _) => false,
            ([one], [other]) => other.contains(one),
            _ => unreachable!("one prefix each"),
        };
        // An address says the family of both.
        let family = |class: &Class| {
            let prefix = class.from.iter().chain(&class.to).next()?;
            Some(prefix.addr().is_ipv4())
        };
        let everything = |class: &Class, which: &[Prefix]| {
            which.iter().all(|p| p.prefix_len() == 0) && family(class).is_some()
        };
        let same_family = family(other).is_none() || family(one) == family(other);
        let wide = |own: &[Prefix], others: &[Prefix]| {
            prefixes(own, others) || (everything(other, others) && same_family)
        };
        wide(&one.from, &other.from)
            && wide(&one.to, &other.to)
            && same_family
            && (other.from_port.is_none() || one.from_port == other.from_port)
            && (other.to_port.is_none() || one.to_port == other.to_port)
            && (other.listener.is_none() || one.listener == other.listener)
    }

    proptest! {
        #[test]
        fn without_ties_the_lookup_finds_the_one_that_is_within_all_others_that_fit(
            classes in prop::collection::vec(any_class(), 1..6),
            tuples in prop::collection::vec(any_tuple(), 20),
        ) {
            let rules = compile(&classes);
            let is_tied = !rules.ties(1).is_empty();
            for tuple in &tuples {
                let singles = single(&classes);
                let fitting: Vec<_> = singles.iter().filter(|(_, c)| fits(c, tuple)).collect();
                let found = rules.classify(tuple);
                prop_assert_eq!(found.is_some(), !fitting.is_empty());
                if is_tied {
                    continue;
                }
                if let Some(found) = found {
                    let best = fitting.iter().any(|(index, one)| {
                        *index == found && fitting.iter().all(|(owner, other)| {
                            owner == index || is_within(one, other)
                        })
                    });
                    prop_assert!(best, "{tuple:?}: {found} of {fitting:?}");
                }
            }
        }

        #[test]
        fn a_tie_is_told_with_a_connection_that_fits_both_and_neither_is_within_the_other(
            classes in prop::collection::vec(any_class(), 2..6),
        ) {
            for tie in compile(&classes).ties(9) {
                let mut tuple = Tuple { from: tie.from, to: tie.to, owner: tie.owner };
                if tuple.to.port() == 0 {
                    tuple.to.set_port(80);
                }
                prop_assert!(tie.earlier < tie.later);
                for index in [tie.earlier, tie.later] {
                    prop_assert!(fits(&classes[index], &tuple), "{tuple:?} {:?}", classes[index]);
                }
            }
        }
    }
}

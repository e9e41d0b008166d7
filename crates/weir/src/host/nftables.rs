//! Base chains of nftables that could drop a packet on its way to a socket of this host, or the answer to it. Rules of
//! iptables-nft are among them. Numbers are those of include/uapi/linux/netfilter/nf_tables.h.

pub mod nat;

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use netlink_sys::protocols::NETLINK_NETFILTER;
use weir_config::SynFilter;
use weir_kernel::is_mere_target;

use crate::host::netlink::{Plain, ask, attribute, attributes, dump};

const NFNL_SUBSYS_NFTABLES: u16 = 10;
const NFT_MSG_GETCHAIN: u16 = 4;
const NFT_MSG_GETRULE: u16 = 7;
const NFT_MSG_GETGEN: u16 = 16;
/// `struct nfgenmsg`: family, version and resource, before the attributes of each message.
const HEAD: usize = 4;

const NFTA_GEN_ID: u16 = 1;
const NFTA_CHAIN_TABLE: u16 = 1;
const NFTA_CHAIN_NAME: u16 = 3;
const NFTA_CHAIN_HOOK: u16 = 4;
const NFTA_CHAIN_POLICY: u16 = 5;
const NFTA_HOOK_HOOKNUM: u16 = 1;
const NFTA_RULE_TABLE: u16 = 1;
const NFTA_RULE_CHAIN: u16 = 2;
const NFTA_RULE_EXPRESSIONS: u16 = 4;
const NFTA_EXPR_NAME: u16 = 1;
const NFTA_EXPR_DATA: u16 = 2;
const NFTA_IMMEDIATE_DATA: u16 = 2;
const NFTA_DATA_VERDICT: u16 = 2;
const NFTA_VERDICT_CODE: u16 = 1;
const NFTA_VERDICT_CHAIN: u16 = 2;
const NFTA_LOOKUP_DREG: u16 = 3;
const NFT_REG_VERDICT: u32 = 0;
const NFTA_TARGET_NAME: u16 = 1;
const NFTA_OBJREF_IMM_TYPE: u16 = 1;
/// `NFT_OBJECT_SYNPROXY`: of the kinds of objects the first that ends a packet.
const NFT_OBJECT_SYNPROXY: u32 = 10;

const NF_DROP: u32 = 0;
const NF_ACCEPT: u32 = 1;
/// NFT_CONTINUE, NFT_BREAK, NFT_JUMP, NFT_GOTO and NFT_RETURN: the packet goes on.
const GOES_ON: std::ops::RangeInclusive<i32> = -5..=-1;

/// Expressions that match, count, mark or change a packet, and give no verdict but to leave their rule.
const MERE: [&str; 30] = [
    "bitwise",
    "byteorder",
    "cmp",
    "connlimit",
    "counter",
    "ct",
    "dup",
    "dynset",
    "exthdr",
    "fib",
    "hash",
    "inner",
    "last",
    "limit",
    "log",
    "masq",
    "match",
    "meta",
    "nat",
    "notrack",
    "numgen",
    "osf",
    "payload",
    "quota",
    "range",
    "redir",
    "rt",
    "socket",
    "tunnel",
    "xfrm",
];

/// What was found at the last look. All rules are read again only after a change of them: a host may have thousands.
#[derive(Debug, Default)]
pub struct Ruleset {
    /// The generation of the rules, and the chains.
    known: Option<(Vec<u8>, Vec<SynFilter>)>,
}

impl Ruleset {
    /// The base chains of the calling thread's network namespace, the same at each call, that could drop such a packet:
    /// by their policy, or by a rule that they have or jump to. What a rule does that is not known could be that.
    ///
    /// # Errors
    /// The kernel does not give them.
    pub fn that_drop(&mut self) -> io::Result<Vec<SynFilter>> {
        let generation = generation()?;
        if let Some((of, chains)) = &self.known
            && *of == generation
        {
            return Ok(chains.clone());
        }
        let chains = chains_that_drop()?;
        // A change while they were read is seen at the next look.
        self.known = Some((generation, chains.clone()));
        Ok(chains)
    }
}

/// Another one after each change of rules or chains.
fn generation() -> io::Result<Vec<u8>> {
    let answer = ask(NETLINK_NETFILTER, request(NFT_MSG_GETGEN))?;
    let id = answer
        .first()
        .and_then(|message| attribute(message.payload.get(HEAD..)?, NFTA_GEN_ID));
    Ok(id.ok_or(io::ErrorKind::InvalidData)?.to_vec())
}

fn chains_that_drop() -> io::Result<Vec<SynFilter>> {
    let chains: Vec<Chain> = all(NFT_MSG_GETCHAIN)?.iter().filter_map(chain).collect();
    if chains.iter().all(|chain| chain.hook.is_none()) {
        return Ok(Vec::new());
    }
    let rules: Vec<Rule> = all(NFT_MSG_GETRULE)?.iter().filter_map(rule).collect();
    let rules = Rules::of(&rules);
    let dropping = chains.iter().filter(|chain| drops(chain, &rules));
    Ok(dropping.filter_map(Chain::named).collect())
}

fn all(message: u16) -> io::Result<Vec<Plain>> {
    dump(NETLINK_NETFILTER, request(message))
}

fn request(message: u16) -> Plain {
    Plain {
        kind: NFNL_SUBSYS_NFTABLES << 8 | message,
        payload: vec![0; HEAD],
    }
}

/// A chain of a table of a family (`NFPROTO_*`).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    family: u8,
    table: String,
    chain: String,
}

#[derive(Debug)]
struct Chain {
    place: Place,
    /// Of a base chain on the way of such packets.
    hook: Option<&'static str>,
    /// By its policy.
    drops: bool,
}

#[derive(Debug)]
struct Rule {
    place: Place,
    effect: Effect,
}

/// What a rule may do with a packet.
#[derive(Debug, Default, PartialEq, Eq)]
struct Effect {
    drops: bool,
    /// Chains that it jumps or goes to.
    jumps: Vec<String>,
}

impl Chain {
    fn named(&self) -> Option<SynFilter> {
        Some(SynFilter::Chain {
            family: family_name(self.place.family)?,
            table: self.place.table.clone(),
            chain: self.place.chain.clone(),
            hook: self.hook?,
        })
    }
}

/// What the rules of each chain may do.
struct Rules<'a>(BTreeMap<&'a Place, Vec<&'a Effect>>);

impl<'a> Rules<'a> {
    fn of(rules: &'a [Rule]) -> Rules<'a> {
        let mut chains: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for rule in rules {
            chains.entry(&rule.place).or_default().push(&rule.effect);
        }
        Rules(chains)
    }
}

/// Whether a base chain that is on the way drops something.
fn drops(base: &Chain, rules: &Rules) -> bool {
    if base.hook.is_none() {
        return false;
    }
    let mut reached = BTreeSet::from([base.place.clone()]);
    let mut next = vec![base.place.clone()];
    while let Some(place) = next.pop() {
        for effect in rules.0.get(&place).into_iter().flatten() {
            if effect.drops {
                return true;
            }
            for chain in &effect.jumps {
                let target = Place {
                    chain: chain.clone(),
                    ..place.clone()
                };
                if reached.insert(target.clone()) {
                    next.push(target);
                }
            }
        }
    }
    base.drops
}

fn chain(message: &Plain) -> Option<Chain> {
    let (family, attributes) = parts(message)?;
    let hook = attribute(attributes, NFTA_CHAIN_HOOK);
    let hook = hook.and_then(|hook| number(attribute(hook, NFTA_HOOK_HOOKNUM)?));
    Some(Chain {
        place: Place {
            family,
            table: text(attribute(attributes, NFTA_CHAIN_TABLE)?),
            chain: text(attribute(attributes, NFTA_CHAIN_NAME)?),
        },
        hook: hook.and_then(|hook| hook_name(family, hook)),
        drops: attribute(attributes, NFTA_CHAIN_POLICY).and_then(number) == Some(NF_DROP),
    })
}

fn rule(message: &Plain) -> Option<Rule> {
    let (family, attributes) = parts(message)?;
    let expressions = attribute(attributes, NFTA_RULE_EXPRESSIONS).unwrap_or_default();
    Some(Rule {
        place: Place {
            family,
            table: text(attribute(attributes, NFTA_RULE_TABLE)?),
            chain: text(attribute(attributes, NFTA_RULE_CHAIN)?),
        },
        effect: effect(expressions),
    })
}

fn parts(message: &Plain) -> Option<(u8, &[u8])> {
    Some((*message.payload.first()?, message.payload.get(HEAD..)?))
}

/// Of a list of expressions.
fn effect(expressions: &[u8]) -> Effect {
    let mut effect = Effect::default();
    for (_, expression) in attributes(expressions) {
        let name = attribute(expression, NFTA_EXPR_NAME).map(text);
        let data = attribute(expression, NFTA_EXPR_DATA).unwrap_or_default();
        let value = |kind| attribute(data, kind).and_then(number);
        match name.as_deref() {
            Some("immediate") => {
                let data = attribute(data, NFTA_IMMEDIATE_DATA).unwrap_or_default();
                // Without a verdict it loads a value.
                if let Some(verdict) = attribute(data, NFTA_DATA_VERDICT) {
                    add_verdict(&mut effect, verdict);
                }
            }
            // A map of verdicts has them in its elements.
            Some("lookup") => effect.drops |= value(NFTA_LOOKUP_DREG) == Some(NFT_REG_VERDICT),
            Some("target") => {
                let target = attribute(data, NFTA_TARGET_NAME).map(text);
                effect.drops |= !target.is_some_and(|name| is_mere_target(&name));
            }
            // Without a kind it takes one from a map.
            Some("objref") => {
                let kind = value(NFTA_OBJREF_IMM_TYPE);
                effect.drops |= kind.is_none_or(|kind| kind >= NFT_OBJECT_SYNPROXY);
            }
            Some(name) => effect.drops |= !MERE.contains(&name),
            None => effect.drops = true,
        }
    }
    effect
}

fn add_verdict(effect: &mut Effect, verdict: &[u8]) {
    let code = attribute(verdict, NFTA_VERDICT_CODE).and_then(number);
    effect.drops |= code.is_none_or(|c| c != NF_ACCEPT && !GOES_ON.contains(&c.cast_signed()));
    let chain = attribute(verdict, NFTA_VERDICT_CHAIN).map(text);
    effect.jumps.extend(chain);
}

/// `NFPROTO_*` of the families whose packets TCP may get.
fn family_name(family: u8) -> Option<&'static str> {
    match family {
        1 => Some("inet"),
        2 => Some("ip"),
        5 => Some("netdev"),
        7 => Some("bridge"),
        10 => Some("ip6"),
        _ => None,
    }
}

/// A hook on the way to a socket of this host or back: not that of packets that are forwarded. What leaves by
/// netdev's egress meets it also if weir has sent it.
fn hook_name(family: u8, hook: u32) -> Option<&'static str> {
    match (family_name(family)?, hook) {
        ("netdev", 0) | ("inet", 5) => Some("ingress"),
        ("netdev", _) => None,
        (_, 0) => Some("prerouting"),
        (_, 1) => Some("input"),
        (_, 3) => Some("output"),
        (_, 4) => Some("postrouting"),
        _ => None,
    }
}

/// Numbers of nf_tables are big-endian.
fn number(value: &[u8]) -> Option<u32> {
    value.try_into().ok().map(u32::from_be_bytes)
}

fn text(value: &[u8]) -> String {
    let end = value.iter().position(|byte| *byte == 0);
    String::from_utf8_lossy(&value[..end.unwrap_or(value.len())]).into_owned()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use weir_testbed::needs;
    use weir_testbed::netns::run_in_new;

    fn attribute_of(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend((value.len() as u16 + 4).to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn expression(name: &str, data: &[u8]) -> Vec<u8> {
        let name = attribute_of(NFTA_EXPR_NAME, format!("{name}\0").as_bytes());
        let data = attribute_of(NFTA_EXPR_DATA, data);
        attribute_of(1, &[name, data].concat())
    }

    fn verdict(code: i32) -> Vec<u8> {
        let code = attribute_of(NFTA_VERDICT_CODE, &code.to_be_bytes());
        let verdict = attribute_of(NFTA_DATA_VERDICT, &code);
        expression("immediate", &attribute_of(NFTA_IMMEDIATE_DATA, &verdict))
    }

    #[test]
    fn what_a_rule_does_that_is_not_known_could_drop() {
        let drops = |expression: &[u8]| effect(expression).drops;
        assert!(drops(&verdict(0)) && drops(&verdict(3)) && drops(&verdict(0x1_0003)));
        for code in [1, -1, -2, -3, -4, -5] {
            assert!(!drops(&verdict(code)), "{code}");
        }
        assert!(drops(&verdict(-6)));
        assert!(drops(&expression("flow_offload", &[])) && drops(&expression("reject", &[])));
        assert!(!drops(&expression("counter", &[])));
        let lookup = |register: u32| {
            expression(
                "lookup",
                &attribute_of(NFTA_LOOKUP_DREG, &register.to_be_bytes()),
            )
        };
        assert!(drops(&lookup(0)) && !drops(&lookup(1)));
        assert!(drops(&attribute_of(1, &[])), "an expression without a name");
    }

    fn found(chains: &mut Ruleset, rules: &str) -> Vec<String> {
        let status = Command::new("nft").arg(rules).status().unwrap();
        assert!(status.success(), "nft: {rules}");
        let chains = chains.that_drop().unwrap();
        let status = Command::new("nft").arg("flush ruleset").status().unwrap();
        assert!(status.success());
        chains.iter().map(ToString::to_string).collect()
    }

    /// Against the kernel's own dumps.
    #[test]
    fn chains_that_could_drop_a_syn_are_told_from_chains_that_cannot() {
        if !needs::root("a network namespace") || !needs::programs(&["nft"]) {
            return;
        }
        const INPUT: &str = "add table ip t; add chain ip t side; \
            add chain ip t c { type filter hook input priority 0; }; add set ip t s { type ipv4_addr; flags dynamic; };";
        run_in_new(|| {
            let mut chains = Ruleset::default();
            let mut found = |rules: &str| found(&mut chains, rules);
            for (rules, drops) in [
                ("", false),
                ("add rule ip t c ip saddr 192.0.2.1 drop", true),
                ("add rule ip t c ip saddr @s drop", true),
                ("add rule ip t c ip saddr 192.0.2.1 counter accept", false),
                ("add rule ip t c ip saddr 192.0.2.1 reject", true),
                ("add rule ip t c jump side", false),
                ("add rule ip t side drop", false),
                ("add rule ip t side drop; add rule ip t c jump side", true),
                ("add rule ip t side drop; add rule ip t c goto side", true),
                ("add rule ip t c ip saddr vmap { 192.0.2.1 : drop }", true),
                ("add rule ip t c limit rate over 9/second drop", true),
                ("add rule ip t c update @s { ip saddr limit rate over 9/second } drop", true),
                ("add rule ip t c update @s { ip saddr } counter", false),
                ("add rule ip t c meta mark set 7", false),
                ("add rule ip t c log prefix \"x\"", false),
                ("add rule ip t c tcp dport 80 notrack", false),
                ("add chain ip t c { policy drop; }", true),
            ] {
                let expected: &[&str] = match drops {
                    true => &["the nftables chain ip t c (hook input)"],
                    false => &[],
                };
                assert_eq!(found(&format!("{INPUT} {rules}")), expected, "{rules}");
            }
            for family in ["ip", "ip6", "inet", "bridge"] {
                for hook in ["prerouting", "input", "forward", "output", "postrouting"] {
                    let rules = format!(
                        "add table {family} t; \
                         add chain {family} t c {{ type filter hook {hook} priority 0; policy drop; }}"
                    );
                    let expected = format!("the nftables chain {family} t c (hook {hook})");
                    let expected = (hook != "forward").then_some(expected);
                    assert_eq!(found(&rules), Vec::from_iter(expected), "{family} {hook}");
                }
            }
            for family in ["netdev", "inet"] {
                let rules = format!(
                    "add table {family} t; \
                     add chain {family} t c {{ type filter hook ingress device lo priority 0; }}; \
                     add rule {family} t c tcp dport 80 drop"
                );
                let expected = format!("the nftables chain {family} t c (hook ingress)");
                assert_eq!(found(&rules), [expected]);
            }
        })
        .unwrap();
    }
}

//! What filters packets is known by the kernel's lists, before any packet has met it.

use std::process::Command;

use weir_kernel::{packet_filters, tables_that_drop};
use weir_testbed::needs;
use weir_testbed::netns::run_in_new;

const RULES: &str = "add table inet t
    add chain inet t input { type filter hook input priority 2147483647; }
    add chain inet t late { type filter hook input priority -200; }";

fn run(program: &str, arguments: &str) {
    let arguments = arguments.split_whitespace();
    let status = Command::new(program).args(arguments).status().unwrap();
    assert!(status.success(), "{program}");
}

fn nft(rules: &str) {
    let status = Command::new("nft").arg(rules).status().unwrap();
    assert!(status.success(), "nft: {rules}");
}

fn conntrack_follows() -> bool {
    packet_filters().conntrack
}

#[test]
fn conntrack_is_seen_from_the_first_rule_that_needs_it_to_the_last() {
    if !needs::root("a network namespace") || !needs::programs(&["nft"]) {
        return;
    }
    run_in_new(|| {
        assert!(!conntrack_follows());
        nft(RULES);
        assert!(!conntrack_follows(), "chains without state");
        for family in ["inet", "ip", "ip6"] {
            nft(&format!(
                "add table {family} u; add chain {family} u input {{ type filter hook input priority 0; }}; \
                 add rule {family} u input ct state new accept"
            ));
            assert!(conntrack_follows(), "{family}");
            nft(&format!("delete table {family} u"));
            assert!(!conntrack_follows(), "{family}");
        }
    })
    .unwrap();
    assert!(!conntrack_follows(), "of another namespace");
}

/// br_netfilter hooks into the namespace with its first bridge.
#[test]
fn a_bridge_is_not_taken_for_conntrack() {
    let Some(netns) = needs::namespace("bridge") else {
        return;
    };
    if !needs::kernel_can(&netns, "CONFIG_BRIDGE", "link add br0 type bridge") {
        return;
    }
    assert!(!netns.run(|| Ok(conntrack_follows())).unwrap());
}

#[test]
fn chains_are_seen_at_every_hook_on_the_way_of_a_packet_and_its_answer() {
    if !needs::root("a network namespace") || !needs::programs(&["nft", "ip"]) {
        return;
    }
    run_in_new(|| {
        let seen = || packet_filters().nftables;
        assert!(!seen());
        for family in ["inet", "ip", "ip6"] {
            for hook in ["prerouting", "input", "output", "postrouting", "forward"] {
                nft(&format!(
                    "add table {family} u; add chain {family} u c {{ type filter hook {hook} priority 0; }}"
                ));
                assert_eq!(seen(), hook != "forward", "{family} {hook}");
                nft(&format!("delete table {family} u"));
                assert!(!seen(), "{family} {hook}");
            }
        }
        run("ip", "link add d0 type veth peer name d1");
        for family in ["netdev", "inet"] {
            nft(&format!(
                "add table {family} u; add chain {family} u c {{ type filter hook ingress device d0 priority 0; }}"
            ));
            assert!(seen(), "{family}");
            nft(&format!("delete table {family} u"));
            assert!(!seen(), "{family}");
        }
    })
    .unwrap();
}

#[test]
fn ipsec_is_seen_by_its_policies_and_its_default() {
    if !needs::root("a network namespace") || !needs::programs(&["ip"]) {
        return;
    }
    run_in_new(|| {
        let seen = || (packet_filters().ipsec, packet_filters().ipsec_blocks);
        assert_eq!(seen(), (false, false));
        for (dir, expected) in [("in", true), ("out", true), ("fwd", false)] {
            let policy = format!("src 192.0.2.1 dst 192.0.2.2 dir {dir}");
            run("ip", &format!("xfrm policy add {policy} action block"));
            assert_eq!(seen(), (expected, false), "{dir}");
            run("ip", &format!("xfrm policy delete {policy}"));
            assert_eq!(seen(), (false, false), "{dir}");
        }
        run("ip", "xfrm policy setdefault in block");
        assert_eq!(seen(), (false, true));
        run("ip", "xfrm policy setdefault in accept");
        assert_eq!(seen(), (false, false));
    })
    .unwrap();
}

#[test]
fn tables_of_legacy_iptables_are_read_with_their_rules_and_policies() {
    let programs = ["iptables-legacy", "ip6tables-legacy"];
    if !needs::root("a network namespace") || !needs::programs(&programs) {
        return;
    }
    run_in_new(|| {
        let has = |program| {
            Command::new(program)
                .arg("-L")
                .output()
                .unwrap()
                .status
                .success()
        };
        if !programs.into_iter().all(has) {
            needs::skip("kernel without the tables of legacy iptables");
            return;
        }
        for (program, family) in programs.into_iter().zip(["iptables", "ip6tables"]) {
            let seen = || tables_that_drop().unwrap();
            let table = |name: &str| vec![(family, name.to_owned())];
            let none: Vec<(&str, String)> = Vec::new();
            run(program, "-A FORWARD -p tcp --dport 80 -j DROP");
            run(program, "-P FORWARD DROP");
            run(program, "-t mangle -A PREROUTING -j MARK --set-mark 1");
            assert_eq!(seen(), none, "{program}");
            run(program, "-t raw -A PREROUTING -p tcp --syn -j DROP");
            assert_eq!(seen(), table("raw"));
            run(program, "-t raw -F");
            assert_eq!(seen(), none, "{program}");
            run(program, "-P INPUT DROP");
            assert_eq!(seen(), table("filter"));
            run(program, "-P INPUT ACCEPT");
            run(program, "-N blocked");
            run(program, "-A INPUT -p tcp --syn -j blocked");
            assert_eq!(seen(), none, "{program}");
            run(program, "-A blocked -j REJECT");
            assert_eq!(seen(), table("filter"));
            run(program, "-F");
        }
    })
    .unwrap();
}

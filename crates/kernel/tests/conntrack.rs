//! Whether conntrack follows connections is known by its hooks, before it has seen any.

use std::process::Command;

use weir_kernel::conntrack_follows;
use weir_testbed::needs;
use weir_testbed::netns::run_in_new;

const RULES: &str = "add table inet t
    add chain inet t input { type filter hook input priority 2147483647; }
    add chain inet t late { type filter hook input priority -200; }";

fn nft(rules: &str) {
    let status = Command::new("nft").arg(rules).status().unwrap();
    assert!(status.success(), "nft: {rules}");
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

//! Limits by single address, by guards that have such, and weir's class: the lines of each.
//!
//! What one user needs does not depend on what the server can do, so these are numbers.

use super::guards::{Guard, SYN};
use super::loads::{GREEDY, GREEDY_ADDRESSES};

/// Connections that an address may have at the same time.
const AT_ONCE: u32 = 1;
/// Connections/s that an address may make.
pub const PER_S: u32 = 1;
/// Connections that it may make at once after a pause.
const BURST: u32 = 5;
/// Over so many seconds HAProxy counts: `BURST` in it are `PER_S`.
const PERIOD_S: u32 = BURST / PER_S;
/// Addresses that nftables remembers.
const ADDRESSES: u32 = 65_536;
/// What the greedy may make together: as much as their addresses may elsewhere.
pub const CLASS_PER_S: u32 = PER_S * GREEDY_ADDRESSES;

impl Guard {
    /// The guard without its limit by address or its class: the limit for all is the same.
    pub fn for_all(self) -> Guard {
        match self {
            Guard::LimitConnEach => Guard::LimitConn,
            Guard::LimitReqEach => Guard::LimitReq,
            Guard::HaproxyEach => Guard::Haproxy,
            Guard::NftLimitEach => Guard::NftLimit,
            Guard::NftConnlimitEach => Guard::NftConnlimit,
            Guard::WeirClass => Guard::Weir,
            other => other,
        }
    }

    /// nginx's lines for the block http, and for the server.
    pub fn nginx_each(self) -> Option<(String, String)> {
        match self {
            Guard::LimitConnEach => Some((
                "limit_conn_zone $binary_remote_addr zone=each:10m;".into(),
                format!("limit_conn each {AT_ONCE};"),
            )),
            Guard::LimitReqEach => Some((
                format!("limit_req_zone $binary_remote_addr zone=each:10m rate={PER_S}r/s;"),
                format!("limit_req zone=each burst={BURST} nodelay;"),
            )),
            _ => None,
        }
    }

    /// HAProxy's lines for its frontend.
    pub fn haproxy_each(self) -> Option<String> {
        (self == Guard::HaproxyEach).then(|| {
            format!(
                "
    stick-table type ip size 100k expire 1m store conn_cur,conn_rate({PERIOD_S}s)
    tcp-request connection track-sc0 src
    http-request deny deny_status 429 if {{ sc_conn_cur(0) gt {AT_ONCE} }}
    http-request deny deny_status 429 if {{ sc_conn_rate(0) gt {BURST} }}"
            )
        })
    }

    /// nftables' set of addresses, and the rule that stands before the one for all.
    pub fn nft_each(self, port: u16) -> Option<(String, String)> {
        let set = |flags| format!("set each {{ type ipv4_addr; size {ADDRESSES}; {flags}; }}");
        match self {
            Guard::NftLimitEach => Some((
                set("flags dynamic,timeout; timeout 1m"),
                format!(
                    "tcp dport {port} {SYN} update @each {{ ip saddr limit rate over {PER_S}/second burst {BURST} packets }} counter reject with tcp reset"
                ),
            )),
            Guard::NftConnlimitEach => Some((
                set("flags dynamic"),
                format!(
                    "tcp dport {port} ct state new add @each {{ ip saddr ct count over {AT_ONCE} }} counter reject with tcp reset"
                ),
            )),
            _ => None,
        }
    }

    /// What is said to weir once it guards the server.
    pub fn class(self) -> Option<String> {
        (self == Guard::WeirClass).then(|| {
            format!("class add greedy --from {GREEDY} --rate {CLASS_PER_S} --over-rate rst")
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn a_limit_by_address_stands_beside_the_limit_for_all() {
        for guard in Guard::value_variants() {
            let has = [
                guard.nginx_each().is_some(),
                guard.haproxy_each().is_some(),
                guard.nft_each(80).is_some(),
                guard.class().is_some(),
            ];
            let is_beside = guard.for_all() != *guard;
            assert_eq!(
                has.into_iter().filter(|has| *has).count(),
                usize::from(is_beside)
            );
            assert_eq!(guard.for_all().for_all(), guard.for_all());
            assert_eq!(
                guard.conntrack_sysctls(),
                guard.for_all().conntrack_sysctls()
            );
        }
    }

    #[test]
    fn the_class_gives_the_greedy_what_their_addresses_have_elsewhere() {
        let words = Guard::WeirClass.class().unwrap();
        assert_eq!(
            words,
            "class add greedy --from 10.98.0.0/29 --rate 6 --over-rate rst"
        );
    }
}

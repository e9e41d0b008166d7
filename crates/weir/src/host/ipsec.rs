//! IPsec policies that want the packets of TCP connections protected or blocked. Layouts are those of
//! include/uapi/linux/xfrm.h.

use std::io;

use netlink_sys::protocols::NETLINK_XFRM;

use crate::host::netlink::{Plain, attribute, dump};

const XFRM_MSG_GETPOLICY: u16 = 0x15;
/// Of `struct xfrm_userpolicy_id`, which a request begins with.
const REQUEST: usize = 64;
/// Of `struct xfrm_userpolicy_info`, which an answer begins with, and of its fields.
const INFO: usize = 168;
const PROTO: usize = 44;
const DIR: usize = 160;
const ACTION: usize = 161;
const XFRM_POLICY_BLOCK: u8 = 1;
/// XFRM_POLICY_FWD. Policies of sockets come after the three directions, in the same order.
const FORWARD: u8 = 2;
const DIRECTIONS: u8 = 3;
const XFRMA_TMPL: u16 = 5;
/// Of `struct xfrm_user_tmpl`, and of its `optional`.
const TEMPLATE: usize = 64;
const OPTIONAL: usize = 50;
const IPPROTO_TCP: u8 = 6;

/// Whether the calling thread's network namespace has such a policy for packets to its sockets or for the answers.
///
/// # Errors
/// The kernel does not give them.
pub fn guards_tcp() -> io::Result<bool> {
    let request = Plain {
        kind: XFRM_MSG_GETPOLICY,
        payload: vec![0; REQUEST],
    };
    let policies = dump(NETLINK_XFRM, request)?;
    Ok(policies.iter().any(|policy| is_guard(&policy.payload)))
}

/// Blocks, or wants a transformation. A policy that allows without one is a hole in others.
fn is_guard(policy: &[u8]) -> bool {
    let Some(info) = policy.get(..INFO) else {
        return true;
    };
    let is_for_tcp = matches!(info[PROTO], 0 | IPPROTO_TCP) && info[DIR] % DIRECTIONS != FORWARD;
    let templates = attribute(&policy[INFO..], XFRMA_TMPL).unwrap_or_default();
    let mut templates = templates.chunks_exact(TEMPLATE);
    is_for_tcp && (info[ACTION] == XFRM_POLICY_BLOCK || templates.any(|one| one[OPTIONAL] == 0))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use weir_testbed::needs;
    use weir_testbed::netns::run_in_new;

    fn ip(arguments: &str) {
        let arguments = arguments.split_whitespace();
        assert!(
            Command::new("ip")
                .args(arguments)
                .status()
                .unwrap()
                .success()
        );
    }

    /// Against the kernel's own dumps.
    #[test]
    fn a_policy_guards_tcp_if_it_blocks_or_wants_a_transformation() {
        if !needs::root("a network namespace") || !needs::programs(&["ip"]) {
            return;
        }
        let esp = "tmpl src 192.0.2.1 dst 192.0.2.2 proto esp mode transport";
        let optional = format!("{esp} level use");
        run_in_new(|| {
            for (selector, rest, guards) in [
                ("dir in", "action block", true),
                ("dir out", esp, true),
                ("dir in", esp, true),
                ("dir in", &optional, false),
                ("dir in", "", false),
                ("dir fwd", "action block", false),
                ("proto udp dir in", "action block", false),
                ("proto tcp dir in", "action block", true),
            ] {
                let selector = format!("src 192.0.2.1 dst 192.0.2.2 {selector}");
                ip(&format!("xfrm policy add {selector} {rest}"));
                assert_eq!(guards_tcp().unwrap(), guards, "{selector} {rest}");
                ip("xfrm policy flush");
            }
        })
        .unwrap();
    }
}

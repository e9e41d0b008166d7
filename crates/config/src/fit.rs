//! Fits a policy to what this network namespace allows.
//!
//! weir never writes a sysctl. Where a sysctl or the kernel rules a policy out, weir falls back to the nearest
//! policy that is possible, or refuses with a hint.

use crate::error::Fault;
use crate::syn_filter::SynFilter;
use weir_core::listener::{Establish, Listener, RejectSyn};
use weir_core::word::Word;

/// `net.ipv4.tcp_syncookies` of the network namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SynCookies {
    /// 0: the kernel takes no cookie, not even weir's.
    Never,
    /// 1: when the SYN queue overflows (the kernel's default).
    WhenNeeded,
    /// 2: always; half-open connections then do not hold a place in the listen queue, and the kernel does not count them.
    Always,
}

impl SynCookies {
    /// From the sysctl's value; `None` if the kernel does not have such a value.
    pub fn from_sysctl(value: u32) -> Option<SynCookies> {
        [
            SynCookies::Never,
            SynCookies::WhenNeeded,
            SynCookies::Always,
        ]
        .get(value as usize)
        .copied()
    }
}

/// What a policy has to fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Environment {
    /// `net.ipv4.tcp_syncookies` of the network namespace.
    pub syn_cookies: SynCookies,
    /// The kernel takes cookies from BPF (`bpf_sk_assign_tcp_reqsk`, Linux 6.9).
    pub bpf_cookies: bool,
    /// What behind weir could drop a SYN, if anything.
    pub syn_filter: Option<SynFilter>,
}

impl Environment {
    /// Whether weir answers SYNs with cookies of its own. What filters behind weir sees no SYN that weir answers. Rules
    /// that drop SYNs would let in by its final ACK whom they keep out; conntrack would take that ACK for a connection
    /// without a SYN, which many rules drop.
    pub fn sends_cookies(&self) -> bool {
        self.syn_filter.is_none()
    }

    /// Why a cookie of weir's cannot become a connection, and what would change that.
    fn no_cookies_because(&self) -> Option<&'static str> {
        if !self.bpf_cookies {
            return Some(
                "this kernel does not take cookies from BPF; no-syn-drop needs Linux 6.9 or newer",
            );
        }
        (self.syn_cookies == SynCookies::Never).then_some(
            "net.ipv4.tcp_syncookies is 0, so the kernel does not take cookies; \
             no-syn-drop needs `sysctl -w net.ipv4.tcp_syncookies=1`",
        )
    }
}

/// A policy that this namespace can carry out.
#[derive(Debug, Clone, PartialEq)]
pub struct Fitted {
    /// The policy to put in force.
    pub listener: Listener,
    /// Why it is not the configured one.
    pub fallback: Option<Fallback>,
}

/// What takes the place of a policy that cannot be carried out, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fallback {
    /// The policy in its place, in words (`reserv rst-syn`).
    pub policy: String,
    /// Why, and what would make the asked one possible.
    pub because: String,
}

/// Fits one listener.
///
/// # Errors
/// A policy of the same effect is impossible: `reserv` cannot count with tcp_syncookies = 2.
pub fn fit(asked: &Listener, environment: &Environment) -> Result<Fitted, Fault> {
    let mut listener = asked.clone();
    let mut fallback = None;
    if asked.establish == Establish::NoSynDrop
        && let Some(because) = environment.no_cookies_because()
    {
        listener.establish = Establish::Reserv;
        fallback = Some(Fallback {
            policy: policy_words(&listener),
            because: because.to_owned(),
        });
    } else if let Some(filter) = &environment.syn_filter {
        fallback = fit_beside(&mut listener, environment, filter);
    }
    if listener.establish == Establish::Reserv && environment.syn_cookies == SynCookies::Always {
        return Err(Fault::new(
            "reserv cannot count half-open connections: net.ipv4.tcp_syncookies is 2, \
             so they do not take places in the listen queue",
            "`sysctl -w net.ipv4.tcp_syncookies=1`, or establish = no-syn-drop (Linux 6.9)",
        ));
    }
    Ok(Fitted { listener, fallback })
}

/// Leaves SYN cookies to the kernel. `abort` then decides at the final ACK, as no-syn-drop does; `reserv` reserves,
/// and leaves what a flood brings on top to the kernel.
fn fit_beside(
    listener: &mut Listener,
    environment: &Environment,
    filter: &SynFilter,
) -> Option<Fallback> {
    let own = environment.bpf_cookies && environment.syn_cookies == SynCookies::WhenNeeded;
    let policy = match listener.establish {
        Establish::NoSynDrop => {
            listener.establish = Establish::Abort;
            policy_words(listener)
        }
        Establish::Reserv if own => {
            format!("{} with the kernel's SYN cookies", policy_words(listener))
        }
        _ => return None,
    };
    Some(Fallback {
        policy,
        because: format!("{filter} could drop a SYN, but not one that weir answers with a cookie"),
    })
}

/// What no-syn-drop becomes on an MPTCP listener, whose cookies the kernel does not take.
pub fn mptcp_fallback(listener: &Listener) -> Option<Fallback> {
    (listener.establish == Establish::NoSynDrop).then(|| Fallback {
        policy: format!("{}-syn", listener.reject_syn.word()),
        because:
            "the server listens with MPTCP, where the kernel does not take cookies from weir; \
                  weir refuses SYNs while the queue is full instead"
                .into(),
    })
}

/// What any policy becomes where each connection may be one of IPVS's.
pub fn services_fallback(listener: &Listener) -> Fallback {
    Fallback {
        policy: "none".to_owned(),
        because: format!(
            "IPVS takes the connections to {}, or may take any of them (services of marks, or too many at guarded \
             ports): weir passes all packets there",
            listener.address
        ),
    }
}

/// What any policy becomes where a program of the server's own chooses the socket of each connection.
pub fn steered_fallback(listener: &Listener) -> Option<Fallback> {
    (listener.establish != Establish::Default).then(|| Fallback {
        policy: Establish::Default.word().to_owned(),
        because:
            "a BPF program of the server's own chooses the socket in its SO_REUSEPORT group, so weir does not know \
             whose queue a SYN will meet, and refuses nobody for it, nor for residence"
                .into(),
    })
}

/// A policy in the papers' words: `default`, `abort rst-syn`, `reserv`, `no-syn-drop`.
pub fn policy_words(listener: &Listener) -> String {
    let establish = listener.establish.word();
    match (listener.establish, listener.reject_syn) {
        (Establish::NoSynDrop, _) | (_, RejectSyn::Drop) => establish.to_owned(),
        (_, RejectSyn::Rst) => format!("{establish} rst-syn"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_core::listener::ListenAddress;

    fn asked(establish: Establish) -> Listener {
        let address = ListenAddress { ip: None, port: 80 };
        Listener {
            establish,
            reject_syn: RejectSyn::Drop,
            ..Listener::new("web", address)
        }
    }

    fn environment(syn_cookies: SynCookies) -> Environment {
        Environment {
            syn_cookies,
            bpf_cookies: true,
            syn_filter: None,
        }
    }

    #[test]
    fn without_cookies_no_syn_drop_becomes_reserv_with_its_reject_syn_and_says_so() {
        let old = Environment {
            syn_cookies: SynCookies::WhenNeeded,
            bpf_cookies: false,
            syn_filter: None,
        };
        for (environment, word) in [(environment(SynCookies::Never), "sysctl"), (old, "6.9")] {
            for (reject_syn, policy) in [
                (RejectSyn::Rst, "reserv rst-syn"),
                (RejectSyn::Drop, "reserv"),
            ] {
                let asked = Listener {
                    reject_syn,
                    ..asked(Establish::NoSynDrop)
                };
                let fitted = fit(&asked, &environment).unwrap();
                assert_eq!(fitted.listener.establish, Establish::Reserv);
                assert_eq!(fitted.listener.reject_syn, reject_syn);
                let fallback = fitted.fallback.unwrap();
                assert_eq!(fallback.policy, policy);
                assert!(fallback.because.contains(word), "{}", fallback.because);
            }
        }
    }

    #[test]
    fn reserv_is_refused_where_half_open_connections_are_not_counted() {
        assert!(fit(&asked(Establish::Reserv), &environment(SynCookies::Always)).is_err());
        let old = Environment {
            syn_cookies: SynCookies::Always,
            bpf_cookies: false,
            syn_filter: None,
        };
        assert!(
            fit(&asked(Establish::NoSynDrop), &old).is_err(),
            "its fallback is reserv"
        );
    }

    #[test]
    fn beside_conntrack_weir_sends_no_cookies_and_says_so() {
        let beside = Environment {
            syn_filter: Some(SynFilter::Conntrack),
            ..environment(SynCookies::WhenNeeded)
        };
        assert!(!beside.sends_cookies());
        for (establish, in_force, policy) in [
            (Establish::NoSynDrop, Establish::Abort, "abort"),
            (
                Establish::Reserv,
                Establish::Reserv,
                "reserv with the kernel's SYN cookies",
            ),
        ] {
            let fitted = fit(&asked(establish), &beside).unwrap();
            assert_eq!(fitted.listener.establish, in_force);
            let fallback = fitted.fallback.unwrap();
            assert_eq!(fallback.policy, policy);
            assert!(fallback.because.contains("conntrack"));
        }
        for establish in [Establish::Default, Establish::Abort] {
            assert_eq!(fit(&asked(establish), &beside).unwrap().fallback, None);
        }
        let without = Environment {
            syn_cookies: SynCookies::Never,
            ..beside.clone()
        };
        let fitted = fit(&asked(Establish::Reserv), &without).unwrap();
        assert_eq!(fitted.fallback, None, "there were no cookies anyway");
    }

    #[test]
    fn everything_else_stays_as_asked() {
        use Establish::*;
        let all = [
            SynCookies::Never,
            SynCookies::WhenNeeded,
            SynCookies::Always,
        ];
        for establish in [Default, Abort, Reserv, NoSynDrop] {
            for cookies in all {
                if matches!((establish, cookies), (NoSynDrop, SynCookies::Never))
                    || matches!((establish, cookies), (Reserv, SynCookies::Always))
                {
                    continue;
                }
                let listener = asked(establish);
                let fitted = Fitted {
                    listener: listener.clone(),
                    fallback: None,
                };
                assert_eq!(fit(&listener, &environment(cookies)), Ok(fitted));
            }
        }
    }

    #[test]
    fn the_sysctl_has_three_values() {
        assert_eq!(SynCookies::from_sysctl(0), Some(SynCookies::Never));
        assert_eq!(SynCookies::from_sysctl(2), Some(SynCookies::Always));
        assert_eq!(SynCookies::from_sysctl(3), None);
    }
}

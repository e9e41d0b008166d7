//! Fits a policy to what this network namespace allows. weir never writes a sysctl: what a sysctl
//! forbids falls back, or is refused with a hint.

use super::error::Fault;
use super::word::Word;
use crate::listener::{Establish, Listener, RejectSyn};

/// `net.ipv4.tcp_syncookies` of the network namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SynCookies {
    /// 0: the kernel takes no cookie, not even weir's.
    Never,
    /// 1: when the SYN queue overflows (the kernel's default).
    WhenNeeded,
    /// 2: always; half-open connections then hold no place in the listen queue and are not counted.
    Always,
}

impl SynCookies {
    /// From the sysctl's value; `None` if the kernel has no such value.
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

/// A policy that this namespace can carry out.
#[derive(Debug, Clone, PartialEq)]
pub struct Fitted {
    /// What is to be put in force.
    pub listener: Listener,
    /// Why it is not what was asked for.
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
/// No policy of the same effect is possible: `reserv` cannot count with tcp_syncookies = 2.
pub fn fit(asked: &Listener, syn_cookies: SynCookies) -> Result<Fitted, Fault> {
    let mut listener = asked.clone();
    match (asked.establish, syn_cookies) {
        (Establish::NoSynDrop, SynCookies::Never) => {
            listener.establish = Establish::Reserv;
            listener.reject_syn = RejectSyn::Rst;
            let fallback = Fallback {
                policy: policy_words(&listener),
                because: "net.ipv4.tcp_syncookies is 0, so the kernel takes no cookie; \
                          no-syn-drop needs `sysctl -w net.ipv4.tcp_syncookies=1`"
                    .into(),
            };
            Ok(Fitted {
                listener,
                fallback: Some(fallback),
            })
        }
        (Establish::Reserv, SynCookies::Always) => Err(Fault::new(
            "reserv cannot count half-open connections: net.ipv4.tcp_syncookies is 2, \
             so none of them takes a place in the listen queue",
            "`sysctl -w net.ipv4.tcp_syncookies=1`, or establish = no-syn-drop",
        )),
        _ => Ok(Fitted {
            listener,
            fallback: None,
        }),
    }
}

/// What no-syn-drop becomes on an MPTCP listener, whose cookies the kernel does not take.
pub fn mptcp_fallback(listener: &Listener) -> Option<Fallback> {
    (listener.establish == Establish::NoSynDrop).then(|| Fallback {
        policy: format!("{}-syn", listener.reject_syn.word()),
        because: "the server listens with MPTCP, where the kernel takes no cookie from weir; \
                  SYNs that find no room are refused instead"
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
    use crate::listener::ListenAddress;

    fn asked(establish: Establish) -> Listener {
        let address = ListenAddress { ip: None, port: 80 };
        Listener {
            establish,
            reject_syn: RejectSyn::Drop,
            ..Listener::new("web", address)
        }
    }

    #[test]
    fn without_cookies_no_syn_drop_becomes_reserv_with_rst_and_says_so() {
        let fitted = fit(&asked(Establish::NoSynDrop), SynCookies::Never).unwrap();
        assert_eq!(fitted.listener.establish, Establish::Reserv);
        assert_eq!(fitted.listener.reject_syn, RejectSyn::Rst);
        assert_eq!(fitted.fallback.unwrap().policy, "reserv rst-syn");
    }

    #[test]
    fn reserv_is_refused_where_half_open_connections_are_not_counted() {
        assert!(fit(&asked(Establish::Reserv), SynCookies::Always).is_err());
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
                assert_eq!(fit(&listener, cookies), Ok(fitted));
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

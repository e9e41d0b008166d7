//! Who may ask what. One table for all ways to ask:
//!
//! | who | watch | read | write classes | command |
//! |---|---|---|---|---|
//! | over the control socket (its permissions let root and weir's own user in) | yes | yes | yes | yes |
//! | over the API: root, and weir's own user | yes | yes | yes | yes |
//! | over the API: another user, whom the socket's permissions let in | yes | yes | of its own listeners | no |
//! | over TCP: whoever knows the dashboard's token, or scrapes | yes | no | no | no |
//!
//! A user's own listener is one whose listening sockets all belong to that user: it is the server itself.

use std::collections::BTreeSet;

use weir_api::Question;
use weir_core::class::Class;
use weir_kernel::{ListenSocket, OwnedSocket, owned_sockets};

use crate::failure::{Failure, Result};
use crate::ipc::peer::{Asker, Peer};

/// What a question takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Right {
    /// To see how the server does.
    Watch,
    /// To see all that weir knows and suggests.
    Read,
    /// To write the class: [`check_class`] says whether it is one's own.
    Write,
    /// To say what weir does.
    Command,
}

fn needed(question: &Question) -> Right {
    match question {
        Question::Status | Question::Metrics | Question::Events { .. } | Question::Sources => {
            Right::Watch
        }
        Question::Classes | Question::Why { .. } | Question::Suggest { .. } => Right::Read,
        Question::Class(_) => Right::Write,
        Question::Reload { .. }
        | Question::Observe { .. }
        | Question::Config
        | Question::Detach
        | Question::Exec(_)
        | Question::HandOver
        | Question::Retire => Right::Command,
    }
}

/// Checks that who asks may ask that.
///
/// # Errors
/// Who asks may not.
pub fn check(asker: Asker, question: &Question) -> Result<()> {
    let right = needed(question);
    let may = match asker {
        Asker::Tcp => right == Right::Watch,
        _ if is_master(asker) => true,
        _ => right != Right::Command,
    };
    let hint = "root may, and weir's own user";
    let denied = || Failure::denied(format!("{asker} may not ask for that"), hint);
    may.then_some(()).ok_or_else(denied)
}

/// Checks that who asks may write this class. `users` are those of a listener's sockets; they are looked up only for whom
/// they matter to.
///
/// # Errors
/// Who asks may not, or the users cannot be read.
pub fn check_class(
    asker: Asker,
    class: &Class,
    users: impl FnOnce(&str) -> Result<BTreeSet<u32>>,
) -> Result<()> {
    if is_master(asker) {
        return Ok(());
    }
    let uid = match asker {
        Asker::Control(peer) | Asker::Api(peer) => peer.uid,
        Asker::Tcp => Peer::UNKNOWN.uid,
    };
    let Some(listener) = &class.listener else {
        let message = format!("user {uid} may not write classes of all listeners");
        let hint = "name one whose sockets this user owns: \"listener\": \"web\"; or ask as root";
        return Err(Failure::denied(message, hint));
    };
    let users = users(listener)?;
    match users.contains(&uid) && users.len() == 1 {
        true => Ok(()),
        false => Err(Failure::denied(
            format!("user {uid} may not write classes of listener {listener:?}"),
            "the user that owns all of its listening sockets may (`ss -ltne` shows their uid), and root",
        )),
    }
}

/// Whether who asks may do everything.
fn is_master(asker: Asker) -> bool {
    match asker {
        Asker::Control(_) => true,
        Asker::Api(peer) => peer.uid == 0 || peer.uid == nix::unistd::geteuid().as_raw(),
        Asker::Tcp => false,
    }
}

/// The listening TCP sockets of this network namespace and their users. Where the kernel does not tell them, no
/// user owns any: root alone may write then.
pub fn owners() -> Vec<OwnedSocket> {
    owned_sockets().unwrap_or_else(|error| {
        tracing::warn!("cannot read the users of listening sockets (sock_diag): {error}");
        Vec::new()
    })
}

/// The users of these sockets.
pub fn users_of(sockets: &[ListenSocket], owners: &[OwnedSocket]) -> BTreeSet<u32> {
    let is_same = |socket: &ListenSocket, owned: &OwnedSocket| {
        socket.port == owned.local.port()
            && socket.ip.to_canonical() == owned.local.ip().to_canonical()
    };
    let of = |owned: &&OwnedSocket| sockets.iter().any(|socket| is_same(socket, owned));
    owners.iter().filter(of).map(|owned| owned.uid).collect()
}

#[cfg(test)]
mod tests {
    use weir_api::ClassChange;

    use super::*;
    use crate::failure::Code;

    /// No user of this machine, and not the one that runs the test.
    const SERVER: u32 = 4_000_000_033;

    fn api(uid: u32) -> Asker {
        Asker::Api(Peer { uid, pid: None })
    }

    #[test]
    fn a_server_may_write_its_own_listeners_classes_and_no_others() {
        let of = |listener: Option<&str>| Class {
            listener: listener.map(str::to_owned),
            ..Class::new("gold")
        };
        let may = |asker, listener, users: &[u32]| {
            let users = users.iter().copied().collect();
            let checked = check_class(asker, &of(listener), |_| Ok(users));
            checked.map_err(|failure| failure.code)
        };
        let server = api(SERVER);
        assert_eq!(may(server, Some("web"), &[SERVER]), Ok(()));
        let denied = Err(Code::Denied);
        assert_eq!(may(server, Some("web"), &[SERVER, 34]), denied, "shared");
        assert_eq!(may(server, Some("web"), &[]), denied);
        assert_eq!(may(server, None, &[SERVER]), denied);
        assert_eq!(may(api(Peer::UNKNOWN.uid), Some("web"), &[SERVER]), denied);
        assert_eq!(may(Asker::Tcp, Some("web"), &[SERVER]), denied);
        let own = api(nix::unistd::geteuid().as_raw());
        let control = Asker::Control(Peer::UNKNOWN);
        for master in [api(0), own, control] {
            assert_eq!(may(master, None, &[]), Ok(()), "{master:?}");
        }
    }

    #[test]
    fn each_way_to_ask_has_the_rights_of_the_table() {
        let name = "gold".to_owned();
        let columns = [
            Question::Status,
            Question::Classes,
            Question::Class(ClassChange::Remove { name }),
            Question::Reload { confirm_s: None },
            Question::Observe { for_s: 1 },
        ];
        let control = Asker::Control(Peer::UNKNOWN);
        for (asker, row) in [
            (control, [true; 5]),
            (api(0), [true; 5]),
            (api(SERVER), [true, true, true, false, false]),
            (api(Peer::UNKNOWN.uid), [true, true, true, false, false]),
            (Asker::Tcp, [true, false, false, false, false]),
        ] {
            let may = columns
                .each_ref()
                .map(|question| check(asker, question).is_ok());
            assert_eq!(may, row, "{asker:?}");
        }
    }
}

//! What a proxy does about CLIENT_CLOSE ([`crate::client_close`]) on its two sides.

use serde::{Deserialize, Serialize};

/// What it does with a CLIENT_CLOSE of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AcceptClientClose {
    /// It answers 501.
    Off,
    /// It sends no reply, waits for the client's FIN and closes.
    On,
    /// The same. When it is about to end, it asks clients that know CLIENT_CLOSE to close.
    Ask,
}

/// When it sends a server CLIENT_CLOSE before it closes a connection that carries no request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SendClientClose {
    /// Never. It does not close because a server asks for it.
    Off,
    /// When the server has asked for it.
    Asked,
    /// Always.
    Always,
}

impl SendClientClose {
    /// Whether a connection ends with CLIENT_CLOSE. `is_asked`: its server has asked for it.
    pub fn applies(self, is_asked: bool) -> bool {
        match self {
            SendClientClose::Off => false,
            SendClientClose::Asked => is_asked,
            SendClientClose::Always => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_gets_it_always_or_if_it_asked() {
        use SendClientClose::{Always, Asked, Off};
        assert_eq!(
            [Off, Asked, Always].map(|send| send.applies(false)),
            [false, false, true]
        );
        assert_eq!(
            [Off, Asked, Always].map(|send| send.applies(true)),
            [false, true, true]
        );
    }
}

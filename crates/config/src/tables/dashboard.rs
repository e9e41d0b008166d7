//! The keys of the `[dashboard]` table: where the page is, and the file of its token.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use crate::address::socket_address;
use crate::error::Fault;
use crate::key::Key;
use crate::table::Table;
use crate::types::{Kind, Type, text};

/// The dashboard: the `[dashboard]` table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DashboardSettings {
    /// Where `weir run` listens.
    pub listen: SocketAddr,
    /// The file with the token that readers must have; `None`: there is no token, and `listen` is a loopback address.
    pub token_file: Option<PathBuf>,
}

impl DashboardSettings {
    /// Whether only programs of this machine can connect.
    pub fn is_loopback(&self) -> bool {
        self.listen.ip().to_canonical().is_loopback()
    }
}

impl Default for DashboardSettings {
    /// Loopback, where no token is needed.
    fn default() -> DashboardSettings {
        DashboardSettings {
            listen: SocketAddr::from(([127, 0, 0, 1], 9466)),
            token_file: None,
        }
    }
}

static KEYS: LazyLock<Vec<Key<DashboardSettings>>> =
    LazyLock::new(|| Key::all_since("0.2.0", keys()));

#[rustfmt::skip] // A key a paragraph.
fn keys() -> Vec<Key<DashboardSettings>> {
    vec![
        Key::new("listen", field!(DashboardSettings, listen), socket_address(),
            "TCP address of the dashboard; any but a loopback address needs a token_file"),
        Key::new("token_file", field!(DashboardSettings, token_file), file().or_none(),
            "The file with the token that the dashboard asks its readers for, read at the start")
            .absent("no token: everybody who can connect may read"),
    ]
}

fn file() -> Type<PathBuf> {
    let parse = |path: &str| match Path::new(path).is_absolute() {
        true => Ok(PathBuf::from(path)),
        false => Err(Fault::new(
            format!("{path:?} is not an absolute path"),
            "write the whole path: \"/etc/weir/dashboard.token\"",
        )),
    };
    let show = |path: &PathBuf| path.display().to_string();
    text(Kind::Path, "an absolute path", parse, show)
}

impl Table for DashboardSettings {
    const NAME: &'static str = "dashboard";
    const TITLE: &'static str = "The dashboard";
    const TEXT: &'static str =
        "The page on which a browser shows what `weir status` says, live. It only reads.";
    const MOST: (usize, &'static str) = (1, "one dashboard shows all listeners and proxies");
    const IS_SINGLE: bool = true;

    fn keys() -> &'static [Key<DashboardSettings>] {
        &KEYS
    }

    fn blank() -> DashboardSettings {
        DashboardSettings::default()
    }

    fn check(&self) -> Result<(), (&'static str, Fault)> {
        if self.is_loopback() || self.token_file.is_some() {
            return Ok(());
        }
        let cause = format!(
            "{} is not a loopback address, and there is no token",
            self.listen
        );
        let hint = "add token_file = \"/etc/weir/dashboard.token\"; or listen on 127.0.0.1 and forward the port: \
                    `ssh -L 9466:127.0.0.1:9466 HOST`";
        Err(("listen", Fault::new(cause, hint)))
    }

    fn lint(&self, _given: &[&str]) -> Vec<String> {
        let open = (!self.is_loopback()).then(|| {
            format!(
                "dashboard: listen = {} is not a loopback address: the token and all figures cross the network \
                 unencrypted, unless a proxy with TLS is in front",
                self.listen
            )
        });
        open.into_iter().collect()
    }
}

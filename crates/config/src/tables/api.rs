//! The keys of the `[api]` table: where the API listens, and who may connect.

use std::path::PathBuf;
use std::sync::LazyLock;

use crate::error::Fault;
use crate::key::Key;
use crate::names::parse_name;
use crate::table::Table;
use crate::types::{Kind, Type, text};
use crate::value::{Given, Setting};

/// The API socket: the `[api]` table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiSettings {
    /// Its path; `None`: in the runtime directory, by the network namespace.
    pub socket: Option<PathBuf>,
    /// Permission bits of the socket, 0o600..=0o777; a process that may write to it may ask.
    pub permissions: u32,
    /// Its group; `None`: that of the process.
    pub group: Option<String>,
}

impl Default for ApiSettings {
    fn default() -> ApiSettings {
        ApiSettings {
            socket: None,
            permissions: 0o600,
            group: None,
        }
    }
}

static KEYS: LazyLock<Vec<Key<ApiSettings>>> = LazyLock::new(keys);

#[rustfmt::skip] // A key a paragraph.
fn keys() -> Vec<Key<ApiSettings>> {
    vec![
        Key::new("socket", field!(ApiSettings, socket), socket().or_none(),
            "The Unix socket of the API")
            .absent("api-NAMESPACE.sock in the runtime directory"),
        Key::new("permissions", field!(ApiSettings, permissions), permissions(),
            "Permissions of the API's socket: write permission allows a user to ask, and the server's own user to change its listener's classes"),
        Key::new("group", field!(ApiSettings, group), group().or_none(),
            "Group of the API's socket")
            .absent("the group of weir"),
    ]
}

fn socket() -> Type<PathBuf> {
    let show = |path: &PathBuf| path.display().to_string();
    text(Kind::Path, "an absolute path", parse_socket, show)
}

fn parse_socket(path: &str) -> Result<PathBuf, Fault> {
    /// sun_path with its closing zero (unix(7)).
    const LONGEST: usize = 107;
    if path.starts_with('/') && path.len() <= LONGEST {
        return Ok(PathBuf::from(path));
    }
    let hint = "write an absolute path of at most 107 bytes: \"/run/weir/api.sock\"";
    Err(Fault::new(
        format!("{path:?} is not the path of a socket"),
        hint,
    ))
}

fn permissions() -> Type<u32> {
    let show = |bits: &u32| Setting::Text(format!("{bits:04o}"));
    Type::new(
        Kind::Name,
        "\"0600\" to \"0777\", octal",
        read_permissions,
        show,
    )
}

fn read_permissions(given: &Given) -> Result<u32, Fault> {
    let hint = "four octal digits in quotes: \"0660\" lets the group ask too";
    let text = given
        .text()
        .map_err(|fault| Fault::new(fault.cause, hint))?;
    let is_octal = text.len() == 4 && text.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
    match u32::from_str_radix(text, 8) {
        Ok(bits) if is_octal && (0o600..=0o777).contains(&bits) => Ok(bits),
        _ => Err(Fault::new(format!("{text:?} are not permissions"), hint)),
    }
}

fn group() -> Type<String> {
    text(Kind::Name, "the name of a group", parse_name, String::clone)
}

impl Table for ApiSettings {
    const NAME: &'static str = "api";
    const TITLE: &'static str = "The API";
    const TEXT: &'static str =
        "The Unix socket on which `weir run` answers HTTP requests: status, metrics, classes.";
    const MOST: (usize, &'static str) = (1, "one API serves all listeners");
    const IS_SINGLE: bool = true;

    fn keys() -> &'static [Key<ApiSettings>] {
        &KEYS
    }

    fn blank() -> ApiSettings {
        ApiSettings::default()
    }

    fn lint(&self, given: &[&str]) -> Vec<String> {
        let for_group = self.permissions & 0o060 != 0;
        match (given.contains(&"group"), for_group) {
            (true, false) => vec![format!(
                "api: group is unused: permissions {:04o} do not let its members ask",
                self.permissions
            )],
            _ => Vec::new(),
        }
    }
}

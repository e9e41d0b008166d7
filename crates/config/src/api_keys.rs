//! The keys of the `[api]` table: where the API listens, and who may connect.

use std::path::PathBuf;

use crate::error::Fault;
use crate::keys::parse_name;
use crate::table::{Key, Kind, Table};
use crate::value::{Given, Setting, maybe, shown, text};

/// The API socket: the `[api]` table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiSettings {
    /// Its path; `None`: in the runtime directory, by the network namespace.
    pub socket: Option<PathBuf>,
    /// Permission bits of the socket; who may write to it may ask.
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

/// Every key of the `[api]` table.
pub static API_KEYS: &[Key<ApiSettings>] = &[
    Key {
        name: "socket",
        kind: Kind::MaybeName,
        values: "an absolute path, or none",
        text: "The Unix socket of the API. Left out: api-NAMESPACE.sock in the runtime directory",
        set: |a, v| maybe(v, path).map(|path| a.socket = path),
        show: |a| {
            shown(a.socket.as_ref(), |path| {
                Setting::Text(path.display().to_string())
            })
        },
    },
    Key {
        name: "permissions",
        kind: Kind::Name,
        values: "\"0600\" to \"0777\", octal",
        text: "Permissions of the API's socket: who may write to it may ask, and the server's own user may change its listener's classes",
        set: |a, v| permissions(v).map(|bits| a.permissions = bits),
        show: |a| Setting::Text(format!("{:04o}", a.permissions)),
    },
    Key {
        name: "group",
        kind: Kind::MaybeName,
        values: "the name of a group, or none",
        text: "Group of the API's socket. Left out: that of weir",
        set: |a, v| maybe(v, |v| text(v).and_then(parse_name)).map(|group| a.group = group),
        show: |a| shown(a.group.clone(), Setting::Text),
    },
];

fn path(value: &Given) -> Result<PathBuf, Fault> {
    /// sun_path with its closing zero (unix(7)).
    const LONGEST: usize = 107;
    let path = text(value)?;
    let hint = "write an absolute path of at most 107 bytes: \"/run/weir/api.sock\"";
    match path.starts_with('/') && path.len() <= LONGEST {
        true => Ok(PathBuf::from(path)),
        false => Err(Fault::new(
            format!("{path:?} is no path for a socket"),
            hint,
        )),
    }
}

fn permissions(value: &Given) -> Result<u32, Fault> {
    let hint = "four octal digits in quotes: \"0660\" lets the group ask too";
    let text = text(value).map_err(|fault| Fault::new(fault.cause, hint))?;
    let is_octal = text.len() == 4 && text.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
    match u32::from_str_radix(text, 8) {
        Ok(bits) if is_octal && (0o600..=0o777).contains(&bits) => Ok(bits),
        _ => Err(Fault::new(format!("{text:?} are no permissions"), hint)),
    }
}

impl Table for ApiSettings {
    const NAME: &'static str = "api";
    const REQUIRED: &'static [(&'static str, &'static str)] = &[];
    const MOST: (usize, &'static str) = (1, "it is for all listeners");
    const ONE_ADDRESS_HINT: &'static str = "";
    const IS_SINGLE: bool = true;
    const HAS_ADDRESS: bool = false;

    fn keys() -> &'static [Key<ApiSettings>] {
        API_KEYS
    }

    fn blank() -> ApiSettings {
        ApiSettings::default()
    }

    fn name(&self) -> &str {
        Self::NAME
    }

    fn take_default_name(&mut self) {}

    fn address(&self) -> String {
        String::new()
    }

    fn collides(&self, _other: &ApiSettings) -> bool {
        false
    }

    fn check(&self) -> Result<(), (&'static str, Fault)> {
        Ok(())
    }

    fn lint(&self, given: &[&str]) -> Vec<String> {
        let for_group = self.permissions & 0o060 != 0;
        match (given.contains(&"group"), for_group) {
            (true, false) => vec![format!(
                "api: group is unused: with permissions {:04o} its members may not ask",
                self.permissions
            )],
            _ => Vec::new(),
        }
    }
}

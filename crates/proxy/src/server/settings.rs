//! Finds out at start what would fail at the first client.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use weir_core::proxy::{BackendSetting, Proxy, ProxyMode, SendProxy, SideOptions};

use super::error::Error;
use crate::runtime::{OptionError, bind_source, set_side_options, tcp_socket};
use crate::upstream::CheckQuestion;

/// Whether the settings go together, and this machine can do what they ask for.
pub fn check(settings: &Proxy) -> Result<(), Error> {
    if settings.mode == ProxyMode::Forward && settings.send_proxy != SendProxy::Off {
        return Err(Error::Conflict {
            key: "send_proxy",
            cause: "mode forward goes to servers that do not expect a PROXY header",
        });
    }
    check_health(settings)?;
    check_options("client", &settings.client)?;
    check_options("server", &settings.server)?;
    settings.source.iter().try_for_each(|ip| check_source(*ip))
}

/// A check must ask what any server would read as a request.
fn check_health(settings: &Proxy) -> Result<(), Error> {
    let ask =
        |backend: &BackendSetting| CheckQuestion::new(&settings.health, &backend.address).map(drop);
    settings
        .backends
        .iter()
        .try_for_each(ask)
        .map_err(|refusal| {
            let cause = io::Error::new(io::ErrorKind::InvalidInput, refusal);
            setting(
                "health_path".to_owned(),
                settings.health.path.clone(),
                cause,
            )
        })
}

fn check_source(ip: IpAddr) -> Result<(), Error> {
    let socket = tcp_socket(SocketAddr::new(ip, 0));
    let bound = socket.and_then(|fd| bind_source(fd, ip));
    bound.map_err(|cause| setting("source".to_owned(), ip.to_string(), cause))
}

fn check_options(side: &str, options: &SideOptions) -> Result<(), Error> {
    let fd = tcp_socket((Ipv4Addr::UNSPECIFIED, 0).into()).map_err(|cause| Error::System {
        what: "open a socket",
        cause,
    })?;
    set_side_options(&fd, options).map_err(|OptionError { name, value, cause }| {
        setting(format!("{side}_{name}"), value, cause)
    })
}

fn setting(key: String, value: String, cause: io::Error) -> Error {
    Error::Setting { key, value, cause }
}

//! Where a request goes.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use weir_core::client_close;
use weir_core::proxy::access::{Scope, may_reach};
use weir_core::proxy::{AcceptClientClose, Proxy};

use super::prohibited::Prohibited;
use crate::http::answer::{Answer, ProxyError};
use crate::http::{Authority, BodyKind, Method, RequestHead, Role, Scheme, Target, Version};
use crate::own_listeners::OwnListeners;
use crate::runtime::{Clock, Handle};
use crate::upstream::{Backend, BackendWalk, Backends, Link, Names, Origins, Requester, race};

/// Most addresses of one name that the proxy tries.
const MOST_ADDRESSES: usize = 8;

/// Where a request goes.
#[derive(Clone)]
pub enum Destination {
    /// To one of the backends.
    Backend,
    /// To the server that it names.
    Origin(Origin),
    /// To the server that it names, as a tunnel.
    Tunnel(Origin),
    /// Nowhere: OPTIONS for the proxy itself.
    Proxy,
    /// Nowhere: CLIENT_CLOSE, which has no reply.
    End,
    /// Nowhere.
    Refused(Answer<'static>),
}

/// A server by name.
#[derive(Clone)]
pub struct Origin {
    /// A name in lower case, or an IP address: so a name is looked up once, however it is written.
    pub host: String,
    /// Its TCP port.
    pub port: u16,
}

impl Origin {
    fn of(authority: Authority<'_>, scheme: Scheme) -> Origin {
        Origin {
            host: authority.host.to_ascii_lowercase(),
            port: authority.port.unwrap_or(scheme.default_port()),
        }
    }
}

const NOT_FOR_A_PROXY: Answer<'static> = Answer {
    status: 400,
    error: ProxyError::HttpRequestError,
    details: "a forward proxy wants an absolute URI or CONNECT",
};
const NO_SUCH_METHOD: Answer<'static> = Answer {
    status: 405,
    error: ProxyError::HttpRequestDenied,
    details: "this proxy does not take the method",
};
const NO_CLIENT_CLOSE: Answer<'static> = Answer {
    status: 501,
    error: ProxyError::HttpRequestDenied,
    details: "this proxy does not take CLIENT_CLOSE, or not in this form",
};
const NO_TLS: Answer<'static> = Answer {
    status: 501,
    error: ProxyError::HttpRequestError,
    details: "https is for CONNECT: this proxy does not speak TLS",
};

/// Reads the destination from the head.
pub fn destination(
    head: &RequestHead<'_>,
    role: Role,
    accept_client_close: AcceptClientClose,
) -> Destination {
    // It is for this connection, and never goes on.
    if head.facts.method == Method::ClientClose {
        let is_off = accept_client_close == AcceptClientClose::Off;
        return match !is_off && is_client_close(head) {
            true => Destination::End,
            false => Destination::Refused(NO_CLIENT_CLOSE),
        };
    }
    if head.max_forwards == Some(0) {
        return match head.facts.method {
            Method::Options => Destination::Proxy,
            _ => Destination::Refused(NO_SUCH_METHOD),
        };
    }
    match (role, head.target) {
        (Role::Reverse, Target::Authority(_)) => Destination::Refused(NO_SUCH_METHOD),
        (Role::Reverse, _) => Destination::Backend,
        (Role::Forward, Target::Authority(authority)) => {
            Destination::Tunnel(Origin::of(authority, Scheme::Https))
        }
        (
            Role::Forward,
            Target::Absolute {
                scheme, authority, ..
            },
        ) => match scheme {
            Scheme::Http => Destination::Origin(Origin::of(authority, scheme)),
            Scheme::Https => Destination::Refused(NO_TLS),
        },
        (Role::Forward, Target::Asterisk) => Destination::Proxy,
        (Role::Forward, Target::Origin(_)) => Destination::Refused(NOT_FOR_A_PROXY),
    }
}

fn is_client_close(head: &RequestHead<'_>) -> bool {
    let received = client_close::Received {
        is_http_1_1: head.facts.version == Version::Http11,
        is_asterisk: matches!(head.target, Target::Asterisk),
        has_option: head.facts.client_close,
        has_body: head.facts.body != BodyKind::None,
    };
    received.ends()
}

/// The servers of the proxy: its backends, and in mode forward those that clients name.
pub struct Upstreams {
    /// Of mode reverse and tcp.
    pub backends: Backends,
    /// Of mode forward.
    pub origins: Origins,
    /// Of mode forward; `None` in the others.
    pub names: Option<Names>,
    /// Where clients may go.
    pub settings: Arc<Proxy>,
    /// Where they may not go in any case.
    pub own: OwnListeners,
}

/// The connections that a request may be sent on, one after the other.
pub enum Choice<'a> {
    /// The backends in turn.
    Backends(BackendWalk),
    /// The one server, until it was tried.
    Origin(Option<&'a Origin>),
}

impl Upstreams {
    /// An open connection, or a new one, to the next server of the choice. `None` when there is none
    /// left to try.
    pub async fn next(
        &self,
        handle: &Handle,
        choice: &mut Choice<'_>,
        requester: Requester<'_>,
    ) -> Option<io::Result<Link>> {
        match choice {
            Choice::Backends(walk) => self.backends.next(handle, walk, requester).await,
            Choice::Origin(origin) => {
                let origin = origin.take()?;
                Some(
                    match self.find(handle, origin, requester.source.ip()).await {
                        Ok(addresses) => match addresses.iter().find_map(Backend::reuse) {
                            Some(link) => Ok(link),
                            None => race(handle, &addresses, requester).await,
                        },
                        Err(error) => Err(error),
                    },
                )
            }
        }
    }

    /// Closes connections that were not used since `then`.
    pub fn sweep(&self, then: Clock) {
        self.backends.sweep(then);
        self.origins.sweep(then);
    }

    /// A new connection to a server by its name.
    ///
    /// # Errors
    /// It has no address, or none that this client may go to, or does not take the connection in
    /// time.
    pub async fn connect(
        &self,
        handle: &Handle,
        origin: &Origin,
        requester: Requester<'_>,
    ) -> io::Result<Link> {
        let addresses = self.find(handle, origin, requester.source.ip()).await?;
        race(handle, &addresses, requester).await
    }

    /// The addresses of a server that this client may go to, those that did not just fail first.
    /// What is checked here is what is connected to: the name is not looked up again.
    async fn find(
        &self,
        handle: &Handle,
        origin: &Origin,
        client: IpAddr,
    ) -> io::Result<Vec<Rc<Backend>>> {
        let names = self.names.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        let found = names
            .resolve(handle, client, &origin.host, origin.port)
            .await?;
        if found.is_empty() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let open = self.open_to(client, &found)?;
        let open = open.into_iter().take(MOST_ADDRESSES);
        let mut backends: Vec<Rc<Backend>> = open.map(|address| self.origins.at(address)).collect();
        backends.sort_by_key(|backend| backend.was_down(handle.now()));
        Ok(backends)
    }

    /// Those of the addresses that this client is taken to; at least one.
    fn open_to(&self, client: IpAddr, found: &[SocketAddr]) -> io::Result<Vec<SocketAddr>> {
        let (rules, scope) = (self.settings.destinations(), Scope::of(client));
        let may_reach = |address: &&SocketAddr| may_reach(rules, scope, address.ip());
        let (own, open): (Vec<SocketAddr>, Vec<SocketAddr>) = found
            .iter()
            .filter(may_reach)
            .partition(|address| self.own.reached_by(**address));
        match (open.is_empty(), own.is_empty()) {
            (false, _) => Ok(open),
            (true, true) => Err(Prohibited::Address.into()),
            (true, false) => Err(Prohibited::OwnListener.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_server_however_it_is_written() {
        let origin = |text, scheme| {
            let origin = Origin::of(Authority::parse(text).unwrap(), scheme);
            (origin.host, origin.port)
        };
        let server = ("a.example".to_owned(), 80);
        assert_eq!(origin("A.Example", Scheme::Http), server);
        assert_eq!(origin("a.example:80", Scheme::Https), server);
        assert_eq!(origin("a.example", Scheme::Https).1, 443);
    }
}

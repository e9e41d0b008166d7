//! Ports that are published from another network namespace (`docker run -p 8080:80`): guarded where the server is.

use std::collections::BTreeSet;

use weir_config::Table;
use weir_core::listener::{ListenAddress, Listener};
use weir_core::workload::Where;

use crate::failure::{Code, Failure, Result};
use crate::host::published::{Leads, Server};
use crate::show::describe;
use crate::show::output::print;

/// A port that is published from another network namespace.
pub struct Published {
    /// The port here.
    pub port: u16,
    /// The listener there.
    pub listener: Listener,
    /// The sentence that says so.
    pub text: String,
    /// The ports at which somebody listens there.
    pub heard: BTreeSet<u16>,
}

impl Published {
    /// Nobody listens at the port inside: the engine publishes it all the same.
    pub fn nobody_listens(&self) -> Failure {
        let (port, inside) = (self.port, self.listener.address.port);
        let message = format!(
            "{port} is published from {}, port {inside}, and nothing listens on port {inside} there",
            self.listener.location.describe()
        );
        let heard: Vec<String> = self.heard.iter().map(u16::to_string).collect();
        let heard: Vec<&str> = heard.iter().map(String::as_str).collect();
        let remedy = match heard.is_empty() {
            true => "no server listens there for connections from outside: start it".to_owned(),
            false => format!(
                "servers there listen on {0}: publish such a port (`docker run -p {port}:{1}`), or have the server listen on {inside}",
                describe::examples(&heard),
                heard[0]
            ),
        };
        Failure::failed(
            message,
            format!("{remedy}; --anyway protects what comes later"),
        )
    }
}

/// Says where they are guarded.
pub fn say(published: &[Published]) -> Result<()> {
    let mut all = published.iter();
    all.try_for_each(|one| print(&format!("weir: {}\n", one.text)))
}

/// A listener where its server is, and the sentence that says so; the listener itself if it is here.
///
/// # Errors
/// Connections do not go to one server, or the policy is not possible there. With `anyway` the former is only said, and the
/// listener stays here.
pub fn follow(
    listener: Listener,
    leads: Leads,
    anyway: bool,
) -> Result<(Listener, Option<String>)> {
    match leads {
        Leads::Here => Ok((listener, None)),
        Leads::To(server) => {
            let text = sentence(listener.address.port, &server);
            Ok((moved(listener, &server)?, Some(text)))
        }
        Leads::Unclear(why) if anyway => {
            let text = format!(
                "warning: {}; guarded here all the same",
                unclear(&listener, &why)
            );
            Ok((listener, Some(text)))
        }
        Leads::Unclear(why) => Err(Failure::failed(
            unclear(&listener, &why),
            "`weir protect PORT --where container:NAME`, with the port inside, guards a place that is named; \
             `--where here` guards the port of this network namespace",
        )),
    }
}

fn sentence(port: u16, server: &Server) -> String {
    let (place, inside) = (&server.place, server.port);
    let lasts = match server.is_nameless {
        false => "",
        true => {
            ". weir cannot read the name that its engine has for it, so this is by its id: one that is created anew, with another \
             id, is not guarded"
        }
    };
    format!(
        "{port} is published from {}, port {inside}: guarded there, as `--where {place} {inside}`{lasts}",
        server.location().describe()
    )
}

fn unclear(listener: &Listener, why: &str) -> String {
    let port = listener.address.port;
    format!(
        "connections to port {port} are forwarded, and weir knows no single server that gets them: they go {why}"
    )
}

fn moved(listener: Listener, server: &Server) -> Result<Listener> {
    if !listener.interfaces.is_empty() {
        let port = listener.address.port;
        return Err(Failure::usage(
            format!("--interface: {}", sentence(port, server)),
            format!(
                "the interfaces there have names of their own: `weir protect {} --where {} --interface NAME`",
                server.port, server.place
            ),
        ));
    }
    let address = ListenAddress {
        ip: None,
        port: server.port,
    };
    let moved = Listener {
        address,
        location: server.location(),
        ..listener
    };
    debug_assert_ne!(moved.location, Where::Here, "a place reads back");
    let fault = |(key, fault): (&str, _)| {
        let flag = format!("--{}", key.replace('_', "-"));
        Failure::fault(Code::Usage, flag, fault)
    };
    moved.check().map_err(fault)?;
    Ok(moved)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listener() -> Listener {
        let address = ListenAddress {
            ip: "192.0.2.1".parse().ok(),
            port: 8080,
        };
        Listener::new("port-8080", address)
    }

    fn web() -> Leads {
        Leads::To(Server {
            place: "container:web".into(),
            port: 80,
            is_nameless: false,
            heard: BTreeSet::from([80]),
        })
    }

    #[test]
    fn a_container_without_a_name_is_said_to_be_guarded_only_as_long_as_it_is_there() {
        let nameless = Leads::To(Server {
            place: "container:dc5f85a3d196".into(),
            port: 80,
            is_nameless: true,
            heard: BTreeSet::new(),
        });
        let (_, said) = follow(listener(), nameless, false).unwrap();
        assert!(said.unwrap().contains("created anew"));
    }

    #[test]
    fn a_published_port_is_guarded_at_its_server_under_the_name_of_the_port() {
        let (moved, said) = follow(listener(), web(), false).unwrap();
        assert_eq!(
            said.as_deref(),
            Some(
                "8080 is published from container web, port 80: guarded there, as `--where container:web 80`"
            )
        );
        assert_eq!(
            (&*moved.name, moved.address.to_string()),
            ("port-8080", "*:80".into())
        );
        assert_eq!(moved.location.to_string(), "container:web");
        let here = follow(listener(), Leads::Here, false).unwrap();
        assert_eq!(here, (listener(), None));
    }

    #[test]
    fn a_published_port_at_which_nobody_listens_inside_is_said_with_those_at_which_somebody_does() {
        let said = |heard: &[u16]| {
            let (listener, text) = follow(listener(), web(), false).unwrap();
            let published = Published {
                port: 8080,
                listener,
                text: text.unwrap(),
                heard: heard.iter().copied().collect(),
            };
            published.nobody_listens().to_string()
        };
        let other = said(&[3000]);
        assert!(
            other.contains("8080 is published from container web, port 80, and nothing listens on port 80 there"),
            "{other}"
        );
        assert!(
            other.contains("listen on 3000: publish such a port (`docker run -p 8080:3000`)"),
            "{other}"
        );
        assert!(
            said(&[]).contains("no server listens there"),
            "{}",
            said(&[])
        );
    }

    #[test]
    fn several_servers_are_said_and_none_is_guarded() {
        let why = || Leads::Unclear("to 10.0.0.1:80, or to 10.0.0.2:80".into());
        let failure = follow(listener(), why(), false).unwrap_err().to_string();
        assert!(
            failure.contains("port 8080 are forwarded") && failure.contains("10.0.0.2:80"),
            "{failure}"
        );
        let (stays, said) = follow(listener(), why(), true).unwrap();
        assert_eq!(stays, listener());
        assert!(said.unwrap().starts_with("warning: "));
    }

    #[test]
    fn what_is_not_possible_there_is_refused_by_its_flag() {
        let with = |change: fn(&mut Listener)| {
            let mut listener = listener();
            change(&mut listener);
            follow(listener, web(), false).unwrap_err().to_string()
        };
        let said = with(|l| l.interfaces = vec!["eth0".into()]);
        assert!(said.starts_with("--interface: 8080 is published"), "{said}");
        let said = with(|l| l.per_socket = true);
        assert!(said.starts_with("--per-socket: "), "{said}");
    }
}

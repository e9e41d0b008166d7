//! A client: its connection, its address, and what is kept for it.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;

use weir_core::class::LOWEST_PRIORITY;
use weir_core::prefix::covers;
use weir_core::proxy::{Forwarded, Proxy, SendProxy};

use super::peer::ReadHalf;
use super::read_buffer::ReadBuffer;
use crate::access_log::{Entry, LoggedRequest};
use crate::address::canonical;
use crate::http::rewrite::{AddressField, Announcement};
use crate::metrics::ListenerCounters;
use crate::proxy_protocol::{self, Endpoints, ProxyProtocol};
use crate::runtime::TcpStream;
use crate::transfer::Buffers;
use crate::upstream::{Link, Requester};

/// A client's connection. There are as many as idle clients, so it is small.
pub struct Client {
    /// The connection.
    pub stream: TcpStream,
    /// What was received of it and not yet used.
    pub buffer: ReadBuffer,
    /// Its address: that of the peer, or the one that the proxy in front has sent. Never an IPv4 address in IPv6 form.
    pub source: SocketAddr,
    pub(super) admission: Admission,
    /// It was asked to close the connection.
    pub close_asked: Cell<bool>,
    /// What only some settings ask for.
    rare: Option<Box<Rare>>,
}

/// What is known of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It was not checked yet: see [`Client::is_admitted`].
    Unchecked,
    /// It may use the proxy.
    Admitted,
    /// It may not use the proxy. Its first request gets a 403.
    Denied,
}

/// What only some settings ask for.
#[derive(Default)]
pub struct Rare {
    /// The address that it connected to, if the proxy in front has sent it.
    pub(super) destination: Option<SocketAddr>,
    /// Its rank in the queues of backends, 0 the first; set where connections are limited.
    pub(super) rank: u8,
    /// Its IP address as text, if requests are to name it.
    pub(super) announced: Option<String>,
    /// The connection to a server that only it may use again, because that began with its address.
    link: Option<Link>,
    /// What is to be logged of its request.
    entry: Option<Box<Entry>>,
}

impl Client {
    /// Begins what is logged of its request, or of its tunnel if there is no `request`.
    pub fn begin_entry(&mut self, request: Option<LoggedRequest>) {
        let entry = Box::new(Entry::new(self.source, request));
        self.rare().entry = Some(entry);
    }

    /// Adds to what is logged of its request, if anything is.
    pub fn note(&self, add: impl FnOnce(&Entry)) {
        if let Some(entry) = self.rare.as_ref().and_then(|rare| rare.entry.as_ref()) {
            add(entry);
        }
    }

    /// What is to be logged, at the end.
    pub fn take_entry(&mut self) -> Option<Box<Entry>> {
        self.rare.as_mut()?.entry.take()
    }

    /// A client that has connected.
    pub fn new(stream: TcpStream, peer: SocketAddr) -> Client {
        Client {
            stream,
            buffer: ReadBuffer::default(),
            source: canonical(peer),
            admission: Admission::Unchecked,
            close_asked: Cell::new(false),
            rare: None,
        }
    }

    /// A client that asks in the place of this one, on another connection.
    pub fn stand_in(&self, stream: TcpStream) -> Client {
        let rare = self.rare.as_ref();
        Client {
            stream,
            buffer: ReadBuffer::default(),
            source: self.source,
            admission: self.admission,
            close_asked: Cell::new(false),
            rare: Some(Box::new(Rare {
                destination: self.destination(),
                rank: rare.map_or(LOWEST_PRIORITY, |rare| rare.rank),
                announced: rare.and_then(|rare| rare.announced.clone()),
                ..Rare::default()
            })),
        }
    }

    /// Whether it was not checked yet.
    pub fn is_unchecked(&self) -> bool {
        self.admission == Admission::Unchecked
    }

    /// Whether it may not use the proxy, and its request gets a 403.
    pub fn is_denied(&self) -> bool {
        self.admission == Admission::Denied
    }

    pub(super) fn rare(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    /// Keeps a connection to a server for this client alone.
    pub fn keep_link(&mut self, link: Link) {
        self.rare().link = Some(link);
    }

    /// The connection that was kept for it.
    pub fn take_link(&mut self) -> Option<Link> {
        self.rare.as_mut()?.link.take()
    }

    /// Ends the connection that was kept for it.
    pub fn end_link(&mut self) {
        if let Some(Link { stream, lease, .. }) = self.take_link() {
            lease.end(stream, false);
        }
    }

    /// Takes note that its reply asked it to close.
    pub fn ask_to_close(&self, counters: &ListenerCounters) {
        counters.client_closes_asked.add(1);
        self.close_asked.set(true);
    }

    /// The half of the connection that is read.
    pub fn read_half(&mut self) -> ReadHalf<'_> {
        ReadHalf {
            stream: &self.stream,
            buffer: &mut self.buffer,
        }
    }

    /// Receives more behind what is there: see [`ReadBuffer::receive`].
    pub async fn receive(&mut self, buffers: &Buffers) -> io::Result<usize> {
        self.buffer.receive(buffers, &self.stream).await
    }

    /// The address that it connected to. A connection that was reset meanwhile has none any more.
    pub fn destination(&self) -> Option<SocketAddr> {
        let told = self.rare.as_ref().and_then(|rare| rare.destination);
        told.or_else(|| self.stream.local().ok())
    }

    /// The client as it asks for a connection to a server.
    pub fn requester(&self) -> Requester<'_> {
        let rare = self.rare.as_ref();
        let entry = rare.and_then(|rare| rare.entry.as_ref());
        Requester {
            client: &self.stream,
            source: &self.source,
            rank: rare.map_or(LOWEST_PRIORITY, |rare| rare.rank),
            tried: entry.map(|entry| &entry.backend),
        }
    }

    /// The PROXY header that a connection made for this client begins with; empty if none is sent.
    pub fn proxy_header(&self, send_proxy: SendProxy) -> Vec<u8> {
        let mut header = Vec::new();
        if let Some(version) = version(send_proxy) {
            let endpoints = self.destination().map(|destination| Endpoints {
                source: self.source,
                destination,
            });
            proxy_protocol::write(version, endpoints, &mut header);
        }
        header
    }

    /// What requests to servers say of this client; `None` if nothing.
    pub fn announcement(&self, settings: &Proxy) -> Option<Announcement<'_>> {
        let field = match settings.forwarded {
            Forwarded::Off => return None,
            Forwarded::XForwardedFor => AddressField::XForwardedFor,
            Forwarded::Forwarded => AddressField::Forwarded,
        };
        Some(Announcement {
            field,
            client: self.rare.as_ref()?.announced.as_deref()?,
            trusted: covers(&settings.trust, self.source.ip()),
        })
    }
}

/// The version of the PROXY header that is sent; `None` if none is.
pub fn version(send_proxy: SendProxy) -> Option<ProxyProtocol> {
    match send_proxy {
        SendProxy::Off => None,
        SendProxy::V1 => Some(ProxyProtocol::V1),
        SendProxy::V2 => Some(ProxyProtocol::V2),
    }
}

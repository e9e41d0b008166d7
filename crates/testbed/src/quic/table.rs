//! The connections of one end: which datagram is whose, what is to be sent, whose timer has run out.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::{SocketAddr, UdpSocket};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use quinn_proto::{
    ClientConfig, Connection, ConnectionEvent, ConnectionHandle, DatagramEvent, Endpoint,
    EndpointConfig, EndpointEvent, Event, Incoming, ServerConfig, VarInt,
};

use super::tls::SERVER_NAME;
use crate::error::{Context, Result};

/// A number of a connection; used again when the connection has gone.
pub(super) type Key = usize;

/// Larger than any datagram that either end sends.
pub(super) const DATAGRAM_BYTES: usize = 2048;

/// The connections of one end.
pub(super) struct Table {
    endpoint: Endpoint,
    entries: HashMap<Key, Entry>,
    /// When which connection wants to be looked at. What a connection wanted earlier stays here, and does no harm.
    timers: BinaryHeap<Reverse<(Instant, Key)>>,
    /// What is to be sent next.
    buffer: Vec<u8>,
}

struct Entry {
    connection: Connection,
    socket: Rc<UdpSocket>,
    /// The timer that is in [`Table::timers`] for it.
    timer: Option<Instant>,
}

/// What a datagram was about.
pub(super) enum Datagram {
    /// A connection that is known, and has to be driven.
    Of(Key),
    /// A new connection, which waits to be accepted.
    New(Box<Incoming>),
    /// Nothing that needs anything.
    Nothing,
}

impl Table {
    /// Without a server's configuration it is an end that only opens connections.
    pub(super) fn new(server: Option<Arc<ServerConfig>>) -> Table {
        Table {
            endpoint: Endpoint::new(Arc::new(EndpointConfig::default()), server, false, None),
            entries: HashMap::new(),
            timers: BinaryHeap::new(),
            buffer: Vec::with_capacity(DATAGRAM_BYTES),
        }
    }

    /// Opens a connection, whose datagrams go through this socket. The first is sent by [`Table::drive`].
    pub(super) fn connect(
        &mut self,
        now: Instant,
        config: ClientConfig,
        to: SocketAddr,
        socket: Rc<UdpSocket>,
    ) -> Result<Key> {
        let opened = self.endpoint.connect(now, config, to, SERVER_NAME);
        let (handle, connection) = opened.context(format!("cannot open a connection to {to}"))?;
        self.insert(handle, connection, socket);
        Ok(handle.0)
    }

    /// Accepts a new connection; `None` where there is none left to accept, because its client has gone or broke the rules.
    pub(super) fn accept(
        &mut self,
        now: Instant,
        incoming: Incoming,
        socket: &Rc<UdpSocket>,
    ) -> Option<Key> {
        self.buffer.clear();
        match self.endpoint.accept(incoming, now, &mut self.buffer, None) {
            Ok((handle, connection)) => {
                self.insert(handle, connection, socket.clone());
                Some(handle.0)
            }
            Err(error) => {
                if let Some(answer) = error.response {
                    send(socket, &self.buffer[..answer.size], answer.destination);
                }
                None
            }
        }
    }

    /// Answers a new connection with nothing, ever.
    pub(super) fn ignore(&mut self, incoming: Incoming) {
        self.endpoint.ignore(incoming);
    }

    fn insert(&mut self, handle: ConnectionHandle, connection: Connection, socket: Rc<UdpSocket>) {
        let entry = Entry {
            connection,
            socket,
            timer: None,
        };
        self.entries.insert(handle.0, entry);
    }

    /// Takes a datagram that this socket has received.
    pub(super) fn receive(
        &mut self,
        now: Instant,
        from: SocketAddr,
        bytes: &[u8],
        socket: &UdpSocket,
    ) -> Datagram {
        self.buffer.clear();
        let data = bytes.into();
        let event = self
            .endpoint
            .handle(now, from, None, None, data, &mut self.buffer);
        match event {
            Some(DatagramEvent::ConnectionEvent(handle, event)) => self.tell(handle.0, event),
            Some(DatagramEvent::NewConnection(incoming)) => Datagram::New(Box::new(incoming)),
            Some(DatagramEvent::Response(answer)) => {
                send(socket, &self.buffer[..answer.size], answer.destination);
                Datagram::Nothing
            }
            None => Datagram::Nothing,
        }
    }

    fn tell(&mut self, key: Key, event: ConnectionEvent) -> Datagram {
        let Some(entry) = self.entries.get_mut(&key) else {
            return Datagram::Nothing;
        };
        entry.connection.handle_event(event);
        Datagram::Of(key)
    }

    /// Sends what a connection has to send, and returns what happened to it.
    pub(super) fn drive(&mut self, now: Instant, key: Key) -> Vec<Event> {
        let mut events = Vec::new();
        let Some(entry) = self.entries.get_mut(&key) else {
            return events;
        };
        entry.transmit(now, &mut self.buffer);
        while let Some(event) = entry.connection.poll_endpoint_events() {
            let answer = self.endpoint.handle_event(ConnectionHandle(key), event);
            if let Some(answer) = answer {
                entry.connection.handle_event(answer);
            }
        }
        events.extend(std::iter::from_fn(|| entry.connection.poll()));
        if entry.connection.is_drained() {
            self.entries.remove(&key);
            return events;
        }
        let timer = entry.connection.poll_timeout();
        if timer != entry.timer {
            entry.timer = timer;
            self.timers.extend(timer.map(|at| Reverse((at, key))));
        }
        events
    }

    /// The connections whose timers have run out; each has to be driven.
    pub(super) fn due(&mut self, now: Instant) -> Vec<Key> {
        let mut due = Vec::new();
        while let Some(&Reverse((at, key))) = self.timers.peek() {
            if at > now {
                break;
            }
            self.timers.pop();
            let Some(entry) = self.entries.get_mut(&key) else {
                continue;
            };
            if entry.timer == Some(at) {
                entry.timer = None;
                entry.connection.handle_timeout(now);
                due.push(key);
            }
        }
        due
    }

    /// When the next timer runs out.
    pub(super) fn next_timer(&self) -> Option<Instant> {
        self.timers.peek().map(|Reverse((at, _))| *at)
    }

    /// A connection that has not gone.
    pub(super) fn connection(&mut self, key: Key) -> Option<&mut Connection> {
        Some(&mut self.entries.get_mut(&key)?.connection)
    }

    /// The socket of a connection that has not gone.
    pub(super) fn socket(&self, key: Key) -> Option<Rc<UdpSocket>> {
        Some(self.entries.get(&key)?.socket.clone())
    }

    /// Tells the other end that this connection ends, once, and forgets it with its socket.
    pub(super) fn end(&mut self, now: Instant, key: Key) {
        let Some(mut entry) = self.entries.remove(&key) else {
            return;
        };
        entry
            .connection
            .close(now, VarInt::from_u32(0), b"".as_slice().into());
        entry.transmit(now, &mut self.buffer);
        self.endpoint
            .handle_event(ConnectionHandle(key), EndpointEvent::drained());
    }

    /// Keys of all connections.
    pub(super) fn keys(&self) -> Vec<Key> {
        self.entries.keys().copied().collect()
    }
}

impl Entry {
    fn transmit(&mut self, now: Instant, buffer: &mut Vec<u8>) {
        loop {
            buffer.clear();
            let Some(next) = self.connection.poll_transmit(now, 1, buffer) else {
                break;
            };
            send(&self.socket, &buffer[..next.size], next.destination);
        }
    }
}

/// What cannot be sent is lost, as it may be anywhere on its way. A refusal by ICMP that this reports stays no secret: the
/// next datagram brings another.
fn send(socket: &UdpSocket, bytes: &[u8], to: SocketAddr) {
    let _ = socket.send_to(bytes, to);
}

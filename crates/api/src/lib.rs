//! The schema of what weir says. Each type is declared once and serialised everywhere in the same way:
//! `weir status --json`, the answers of the API and its OpenAPI document, the control socket, the
//! client library.
//!
//! The first paragraph of a field's comment is its text in `weir explain`; the whole comment is its
//! description in the OpenAPI document. A field has its unit in its name or in its text.
//!
//! The crate does no I/O. Without features it depends on serde alone, because servers link it through
//! the client.
#![forbid(unsafe_code)]

mod class;
mod controller;
mod destination;
mod event;
#[cfg(feature = "openapi")]
pub mod fields;
mod listener;
#[cfg(feature = "metrics")]
pub mod metrics;
mod problem;
mod process;
mod proxy;
mod question;
mod quic;
mod residence;
mod shape;
mod status;
mod suggestion;
mod workload;

pub use class::{Class, ClassSettings};
pub use controller::{ClassStatistics, Controller, Decision, ListenerStatistics, Statistics};
pub use destination::{Destination, TimeWait};
pub use event::{
    EVENT_KINDS, Episode, Event, Events, KeptRefusal, Refusal, RefusedMinute, Reload,
    SourceNetwork, TopSource, TopSources, Why,
};
pub use listener::{Listener, Socket};
pub use problem::{Cause, Done, Problem};
pub use process::{LastReload, Process};
pub use proxy::{
    Backend, CacheMemory, Connections, Proxy, ProxyName, ProxyQueue, ProxyThread, TimeRange, Times,
};
pub use question::{
    Answer, Changed, ClassChange, ClassDone, ExecReport, HandedOver, InForce, Question, Reloaded,
};
pub use quic::{Quic, QuicSocket};
pub use residence::Residence;
pub use shape::{Shape, ShapeQueue};
pub use status::{Interface, Status};
pub use suggestion::{
    Profile, QuicProfile, QuicSuggestion, RefusedSource, ShareOver, SuggestedKey, Suggestion,
    Suggestions,
};
pub use workload::Workload;

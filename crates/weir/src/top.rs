//! `weir top`: the listeners, classes and proxies of a weir, live.
//!
//! Reports come in ([`source`]), are kept with a history ([`data`]), become rows ([`rows`], with the rates between two
//! reports, [`rates`]), and are drawn ([`view`]) as the user wants to see them ([`model`]), or printed once
//! ([`once`]), with the same [`columns`]. All but [`source`] and [`terminal`] is pure: no clock, no terminal, no sockets.

pub mod columns;
pub mod data;
pub mod model;
pub mod once;
pub mod proxy_rows;
pub mod rates;
pub mod rows;
pub mod source;
pub mod terminal;
pub mod theme;
pub mod view;

#[cfg(test)]
mod tests;

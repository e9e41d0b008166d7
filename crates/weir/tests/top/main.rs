//! `weir top` on a real overload: in a terminal, as plain text, through the API of another host; and what it says
//! against all other ways to ask.

#[allow(dead_code, reason = "the other tests use the rest of it")]
#[path = "../common/browser.rs"]
mod browser;
#[allow(dead_code, reason = "the other tests use the rest of it")]
#[path = "../common/mod.rs"]
mod common;
#[allow(dead_code, reason = "the other tests use the rest of it")]
#[path = "../common/overload.rs"]
mod overload;

mod agree;
mod once;
mod pty;
mod screen;
mod svg;

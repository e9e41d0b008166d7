//! The dashboard of a real weir: who may read it, and what a real browser shows of a real overload. The test program `top`
//! holds its figures against those of all other ways to ask.

#[allow(dead_code, reason = "the other tests use the rest of it")]
#[path = "../common/browser.rs"]
mod browser;
#[allow(dead_code, reason = "the other tests use the rest of it")]
#[path = "../common/mod.rs"]
mod common;
#[allow(dead_code, reason = "the other tests use the rest of it")]
#[path = "../common/overload.rs"]
mod overload;

mod access;
mod page;
mod states;

//! `weir-lab papers`: does what the five papers report hold on this kernel?
//!
//! [`list`] has every table and figure of the papers, from `experiments/papers`: what the paper says, the experiment
//! that answers it, the numbers to compare, and the limits that decide the verdict. [`measured`] runs the experiments, each
//! once however many parts it answers; their cases, rounds and resumption are those of [`crate::run`]. [`judge`] holds the
//! numbers to the limits ([`verdict`]), [`page`], [`terminal`] and [`markdown`] show the [`report`].

pub mod clock;
pub mod command;
pub mod html;
pub mod judge;
pub mod list;
pub mod markdown;
pub mod measured;
pub mod page;
pub mod report;
pub mod terminal;
pub mod verdict;

#[cfg(test)]
mod tests;

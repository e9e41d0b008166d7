//! `queue = "priority"` before servers that people run: the order in which they accept, what faults do to
//! their connections, and who starves. Each test has a network namespace of its own.
//!
//! `WEIR_LONG=10` has each fault happen ten times as often.

mod bed;
mod faults;
mod load;
mod measured;
mod order;
mod servers;

//! The programs and the pure C code under test and under measurement.

pub mod pure;
pub mod run;

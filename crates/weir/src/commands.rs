//! One module per command.

pub mod check;
pub mod class;
pub mod detach;
pub mod doctor;
pub mod events;
pub mod exec;
pub mod explain;
pub mod generate;
pub mod model;
pub mod observe;
pub mod protect;
pub mod proxy;
pub mod reload;
pub mod run;
pub mod shape;
pub mod status;
pub mod suggest;
pub mod top;
pub mod trace;
pub mod why;

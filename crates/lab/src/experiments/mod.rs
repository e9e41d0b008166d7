//! What `weir-lab` measures.

pub mod bursts;
pub mod crosscheck;
pub mod demo;
pub mod flash_crowd;
pub mod point;
pub mod policy;
pub mod proxy_bench;
pub mod proxy_delay;
pub mod proxy_idle;
pub mod proxy_matrix;
pub mod proxy_mixed;
pub mod proxy_slow;
pub mod saturation;
pub mod vtfm01;

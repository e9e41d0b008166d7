//! The kernel's own qdiscs, in network namespaces: as the judge ([`judge`]), with [`replay`] of fixed arrivals through one of
//! them and [`hosts`] with the kernel's TCP on both sides; and beside weir's own ([`contest`]).
//!
//! It needs a kernel that has the qdiscs and a clock that does not run while the machine is busy: `scripts/lab-vm` runs it
//! in QEMU, which counts instructions.

pub mod contest;
pub mod hosts;
pub mod instructions;
pub mod judge;
pub mod qdiscs;
pub mod replay;

//! Values of which an array map has one for each CPU.

use libbpf_rs::{MapCore, MapFlags};

use super::Plain;

/// Sets the values at this index to zero, on all CPUs.
pub(crate) fn reset<T: Plain>(array: &impl MapCore, index: u16) -> libbpf_rs::Result<()> {
    let zeros = vec![T::zero().bytes().to_vec(); libbpf_rs::num_possible_cpus()?];
    array.update_percpu(u32::from(index).bytes(), &zeros, MapFlags::ANY)
}

/// The values at this index, one for each CPU; none behind the end of the array.
pub(crate) fn values<T: Plain>(array: &impl MapCore, index: u16) -> libbpf_rs::Result<Vec<T>> {
    let cpus = array.lookup_percpu(u32::from(index).bytes(), MapFlags::ANY)?;
    let cpus = cpus.unwrap_or_default();
    Ok(cpus.iter().filter_map(|cpu| T::read(cpu)).collect())
}

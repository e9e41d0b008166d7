//! What the programs have counted for listeners.

use weir_core::verdict::Counters;

use super::classes::counters_of;
use super::skel::GuardMaps;
use super::skel::types::guard_counters;
use crate::error::{Error, Result, of_libbpf};
use crate::object::percpu;

/// What the CPUs have counted in this slot together; `None`: there is no listener of this name.
pub(super) fn sum_of(maps: &GuardMaps<'_>, name: &str, slot: Option<u16>) -> Result<Counters> {
    let what = format!("count for \"{name}\"");
    let Some(slot) = slot else {
        return Err(Error::Failed {
            what,
            cause: "no such listener".into(),
        });
    };
    let counters = percpu::values::<guard_counters>(&maps.counters, slot);
    let mut sum = Counters::default();
    for one in counters.map_err(of_libbpf(what))? {
        sum.add(&counters_of(one));
    }
    Ok(sum)
}

/// All zero, for the listener that gets this slot.
pub(super) fn clear(maps: &GuardMaps<'_>, slot: u16) -> Result<()> {
    percpu::reset::<guard_counters>(&maps.counters, slot).map_err(of_libbpf("reset the counters"))
}

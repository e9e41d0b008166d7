//! What the kernel half counts, by the names of the schema.

use std::collections::BTreeMap;

use weir_core::verdict::Counters;
use weir_kernel::ClassCounters;

/// Every counter by its name.
pub fn counters_by_name(counters: &Counters) -> BTreeMap<String, u64> {
    let rows = counters.rows();
    rows.map(|(row, n)| (row.name.to_owned(), n)).collect()
}

/// The counters that are not zero, by name.
pub fn counters_that_fell(counters: &Counters) -> BTreeMap<String, u64> {
    let mut named = counters_by_name(counters);
    named.retain(|_, n| *n > 0);
    named
}

/// The same of a class: a file may have thousands of them.
pub fn class_counters_that_fell(counters: &ClassCounters) -> BTreeMap<String, u64> {
    let quic = counters.quic.rows().filter(|(_, n)| *n > 0);
    let mut named = counters_that_fell(&counters.syns);
    named.extend(quic.map(|(row, n)| (row.name.to_owned(), n)));
    named
}

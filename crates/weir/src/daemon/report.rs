//! What the kernel half counts, by the names of the schema.

use std::collections::BTreeMap;

use weir_core::verdict::Counters;

/// Every counter by its name.
pub fn counters_by_name(counters: &Counters) -> BTreeMap<String, u64> {
    let rows = counters.rows();
    rows.map(|(row, n)| (row.name.to_owned(), n)).collect()
}

/// The counters that are not zero, by name: a file may have thousands of classes.
pub fn counters_that_fell(counters: &Counters) -> BTreeMap<String, u64> {
    let mut named = counters_by_name(counters);
    named.retain(|_, n| *n > 0);
    named
}

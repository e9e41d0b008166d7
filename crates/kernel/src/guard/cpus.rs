//! Numbers of CPUs.

/// The highest of a list of CPUs as the kernel writes it: `0-3,8`. A claim's place goes by the number of its CPU.
pub(super) fn highest_cpu(list: &str) -> Option<u32> {
    let last = list.trim().rsplit([',', '-']).next()?;
    last.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_cpu_counts_and_not_how_many_there_are() {
        for (list, highest) in [
            ("0\n", 0),
            ("0-127\n", 127),
            ("0-3,128-131\n", 131),
            ("0,200", 200),
        ] {
            assert_eq!(highest_cpu(list), Some(highest), "{list}");
        }
        assert_eq!(highest_cpu("\n"), None);
    }
}

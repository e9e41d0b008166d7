//! The names of weir's ifbs, through which what an interface has received goes. A name has the index of the interface, so
//! that the two are found again without a note.

use crate::host::links::Link;

/// The interface's index follows.
const NAME: &str = "weir-in-";

/// Of the ifb of an interface; 15 characters at most with an index below ten million.
pub fn name(link: &Link) -> String {
    format!("{NAME}{}", link.index)
}

/// Whether a name is as those of our ifbs.
pub fn is_name(name: &str) -> bool {
    index_in(name).is_some()
}

/// Index of the interface whose received packets go through this one, if it is one of ours.
pub fn index_behind(link: &Link) -> Option<u32> {
    index_in(&link.name).filter(|_| link.ifb)
}

fn index_in(name: &str) -> Option<u32> {
    name.strip_prefix(NAME)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::links::fake::link;

    #[test]
    fn only_an_ifb_with_our_name_is_ours() {
        let ifb = |name: &str| Link {
            ifb: true,
            ..link(9, name)
        };
        assert_eq!(index_behind(&ifb(&name(&link(7, "ppp0")))), Some(7));
        for other in [
            ifb("ifb0"),
            ifb("weir-in-"),
            ifb("weir-in-x"),
            link(9, "weir-in-7"),
        ] {
            assert_eq!(index_behind(&other), None, "{other:?}");
        }
    }
}

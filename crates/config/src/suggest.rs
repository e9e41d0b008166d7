//! "Did you mean …?"

/// The candidate that `given` was probably meant to be: a third of its characters may be wrong
/// (at least two; where there are at most three, one, or two that were left out), and `-` counts as `_`.
pub fn did_you_mean<'a>(given: &str, candidates: &[&'a str]) -> Option<&'a str> {
    let plain = |text: &str| text.to_lowercase().replace('-', "_");
    let given = plain(given);
    let length = given.chars().count();
    let allowed = |candidate: &str| match length {
        0..=3 if !is_part(&given, candidate) => 1,
        _ => (length / 3).max(2),
    };
    candidates
        .iter()
        .map(|candidate| {
            (
                strsim::damerau_levenshtein(&given, &plain(candidate)),
                *candidate,
            )
        })
        .filter(|(distance, candidate)| {
            *distance <= allowed(candidate) && *distance < candidate.len()
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Whether these characters stand in the other text in this order.
fn is_part(part: &str, text: &str) -> bool {
    let mut text = text.chars();
    part.chars()
        .all(|character| text.any(|other| other == character))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_recognised_and_strangers_are_not() {
        let keys = ["establish", "reject_syn", "target_wait"];
        assert_eq!(did_you_mean("estabish", &keys), Some("establish"));
        assert_eq!(did_you_mean("reject-syn", &keys), Some("reject_syn"));
        assert_eq!(did_you_mean("taget_wiat", &keys), Some("target_wait"));
        assert_eq!(did_you_mean("backlog", &keys), None);
        assert_eq!(did_you_mean("", &["rst"]), None);
        assert_eq!(did_you_mean("rst", &["reset"]), Some("reset"));
        assert_eq!(did_you_mean("wbe", &["web"]), Some("web"));
        assert_eq!(did_you_mean("foo", &["from", "to"]), None);
    }
}

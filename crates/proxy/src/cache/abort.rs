//! Whether a reply is received to its end though no client waits for it any more.

use std::time::Duration;

use weir_core::proxy::FinishOnAbort;

/// What there is of a reply when it is abandoned, or later.
#[derive(Debug, Clone, Copy)]
pub struct AbandonedReply {
    /// Bytes of the body that are there.
    pub received: u64,
    /// Bytes that it will have; `None` if that is not known.
    pub length: Option<u64>,
    /// Bytes that came since it was abandoned.
    pub since: u64,
    /// Time since then.
    pub elapsed: Duration,
}

/// Whether it is worth going on. A reply of unknown length may have as much to come as the setting
/// allows, and no share of it is known.
pub fn finishes(setting: FinishOnAbort, reply: AbandonedReply) -> bool {
    let AbandonedReply {
        received,
        length,
        since,
        elapsed,
    } = reply;
    match setting {
        FinishOnAbort::Off => false,
        FinishOnAbort::Left(most) => match length {
            Some(length) => length - received + since <= most,
            None => since <= most,
        },
        FinishOnAbort::Share(percent) => length.is_some_and(|length| {
            let before = u128::from(received - since);
            before * 100 >= u128::from(length) * u128::from(percent)
        }),
        FinishOnAbort::Time(most) => elapsed <= most,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_finished_while_the_setting_allows_it() {
        use FinishOnAbort::*;
        let second = Duration::from_secs(1);
        for (setting, received, length, since, elapsed, expected) in [
            (Off, 99, Some(100), 0, Duration::ZERO, false),
            (Left(10), 90, Some(100), 0, Duration::ZERO, true),
            (Left(10), 89, Some(100), 0, Duration::ZERO, false),
            (Left(10), 95, Some(100), 5, Duration::ZERO, true),
            (Left(10), 95, Some(100), 6, Duration::ZERO, false),
            (Left(10), 1000, None, 10, Duration::ZERO, true),
            (Left(10), 1000, None, 11, Duration::ZERO, false),
            (Share(50), 50, Some(100), 0, Duration::ZERO, true),
            (Share(50), 49, Some(100), 0, Duration::ZERO, false),
            (Share(50), 99, Some(100), 50, Duration::ZERO, false),
            (Share(50), 99, None, 0, Duration::ZERO, false),
            (Time(second), 0, None, 0, second, true),
            (Time(second), 0, Some(9), 0, second * 2, false),
        ] {
            let reply = AbandonedReply {
                received,
                length,
                since,
                elapsed,
            };
            assert_eq!(finishes(setting, reply), expected, "{setting:?} {reply:?}");
        }
    }
}

//! Why the kernel refuses a program: libbpf's error is a number, the reason is in the verifier's log, which libbpf prints.

use std::cell::RefCell;

use libbpf_rs::PrintLevel;

/// Has libbpf's warnings on standard error too, with the verifier's whole log: for a kernel that nobody has tried.
const SHOW_LIBBPF: &str = "WEIR_SHOW_LIBBPF";

thread_local! {
    static LAST: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Has libbpf tell its warnings to [`take`], and print none, unless the environment has [`SHOW_LIBBPF`].
pub(super) fn listen() {
    let show = |_: PrintLevel, text: String| {
        if std::env::var_os(SHOW_LIBBPF).is_some() {
            eprint!("{text}");
        }
        if let Some(refusal) = refusal(&text) {
            LAST.set(Some(refusal));
        }
    };
    libbpf_rs::set_print(Some((PrintLevel::Warn, show)));
}

/// The last refusal on this thread since the last call: the program, and what the verifier says of it.
pub(super) fn take() -> Option<String> {
    LAST.take()
}

/// What libbpf prints when the verifier refuses a program, in bpf_object_load_prog() of its libbpf.c: the log between two
/// lines. The reason is the log's last line but statistics.
fn refusal(text: &str) -> Option<String> {
    let (head, rest) = text.split_once("-- BEGIN PROG LOAD LOG --\n")?;
    let (log, _) = rest.split_once("-- END PROG LOAD LOG --")?;
    let program = head.split('\'').nth(1)?;
    let said = |line: &&str| !line.trim().is_empty() && !line.starts_with("processed ");
    let reason = log.lines().rev().find(said)?;
    Some(format!("the verifier refuses {program}: {}", reason.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_the_last_line_of_the_log_that_is_no_statistic() {
        let printed = |log: &str| {
            format!(
                "libbpf: prog 'guard_tc': -- BEGIN PROG LOAD LOG --\n{log}-- END PROG LOAD LOG --\n"
            )
        };
        let log = "29: (0f) r0 += r1\nR0 pointer arithmetic prohibited for !root\n\
                   processed 28 insns (limit 1000000) max_states_per_insn 0\n";
        assert_eq!(
            refusal(&printed(log)).unwrap(),
            "the verifier refuses guard_tc: R0 pointer arithmetic prohibited for !root"
        );
        assert_eq!(refusal(&printed("")), None);
        assert_eq!(refusal("libbpf: failed to load object 'guard_bpf'\n"), None);
    }
}

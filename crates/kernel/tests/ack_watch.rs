//! The watch of ACKs (bpf/lib/ack_watch.h), with another CPU's work in the midst of one's.

use std::path::Path;
use std::process::Command;

#[test]
fn a_watch_that_one_cpu_begins_is_not_ended_by_another_that_saw_the_old_one_over() {
    let bpf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bpf");
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("ack_watch");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-fno-strict-aliasing"])
        .arg(format!("-I{}", bpf.display()))
        .arg(bpf.join("tests/ack_watch.c"));
    let compiled = cc.arg("-o").arg(&program).output().expect("cc runs");
    assert!(compiled.status.success(), "{compiled:?}");
    let ran = Command::new(program).output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
}

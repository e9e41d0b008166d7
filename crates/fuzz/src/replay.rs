//! The committed inputs of every target, and each of them damaged in small ways, on the stable toolchain.

mod targets;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use targets::TARGETS;
use weir_fuzz::{INPUT_BYTES_MAX, corpus, folder};

/// Every input as it is, cut at each of some places, and with some bytes changed.
fn replay(name: &str) {
    let target = TARGETS.iter().find(|target| target.name == name);
    let run = target.expect("a target of this name").run;
    let inputs = corpus(name);
    assert!(inputs.len() > 3, "{name} has {} inputs", inputs.len());
    run(&[]);
    for (file, input) in &inputs {
        println!("{}", folder(name).join(file).display());
        assert!(input.len() as u64 <= INPUT_BYTES_MAX, "it is too long");
        run(input);
        for step in 1..=CHANGES {
            // Odd factors, so that the places differ from input to input.
            let at = step * 2_654_435_761 % input.len().max(1);
            run(&input[..at.min(input.len())]);
            let mut changed = input.clone();
            if let Some(byte) = changed.get_mut(at) {
                *byte ^= 1 << (step % 8);
                run(&changed);
            }
        }
    }
}

/// Damaged copies of each input.
const CHANGES: usize = 16;

macro_rules! replays {
    ($($test:ident: $name:literal),* $(,)?) => {
        $(
            #[test]
            fn $test() {
                replay($name);
            }
        )*

        #[test]
        fn every_target_is_replayed_and_has_its_folder() {
            let replayed: BTreeSet<&str> = [$($name),*].into();
            let targets: BTreeSet<&str> = TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(replayed, targets);
            let folders = std::fs::read_dir(folder("")).unwrap().flatten();
            let folders = folders.map(|entry| entry.file_name().into_string().unwrap());
            let folders: BTreeSet<String> = folders.collect();
            assert_eq!(folders, targets.iter().map(|&name| name.to_owned()).collect());
        }
    };
}

replays! {
    config_files_are_read_or_refused_with_a_place: "config",
    frames_are_read_alike_by_the_c_core_and_its_model: "packet",
    heads_go_out_with_the_meaning_with_which_they_came: "http_head",
    chunked_bodies_end_at_one_place_however_they_arrive: "chunked",
    cache_decisions_are_made_on_any_heads: "cache",
    proxy_headers_are_read_in_one_way: "proxy_protocol",
    bodies_of_the_api_change_classes_or_nothing: "api",
    lines_of_the_control_socket_are_answered: "control",
    captures_are_followed_to_their_end: "trace",
}

/// The C core alone under gcc's or clang's sanitizers, on the same frames. make fuzz looks for new ones.
#[test]
fn the_c_core_computes_nothing_that_c_leaves_undefined() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let program =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("core-{}", std::process::id()));
    let compiled = Command::new("cc")
        .args(["-g", "-O1", "-DREPLAY", "-fno-strict-aliasing", "-w"])
        .args(["-fsanitize=address,undefined", "-fno-sanitize-recover=all"])
        // IP headers lie on odd words, and BPF and the machines that weir runs on read those.
        .arg("-fno-sanitize=alignment")
        .arg(format!("-I{}", root.join("bpf").display()))
        .arg("-o")
        .args([&program, &root.join("bpf/tests/fuzz.c")])
        .output()
        .expect("the build of weir has a C compiler");
    let said = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{said}");
    let inputs = corpus("packet");
    let files = inputs.iter().map(|(file, _)| folder("packet").join(file));
    let run = Command::new(&program).args(files).output();
    std::fs::remove_file(&program).expect("it was compiled");
    let run = run.expect("it was compiled");
    assert!(
        run.status.success(),
        "{}",
        String::from_utf8_lossy(&run.stderr)
    );
}

//! A process with few descriptors.

use std::io::Read;
use std::process::Stdio;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::sys::signal::Signal;

use crate::bed::{Bed, ask, echo};

#[test]
fn the_limit_of_descriptors_is_raised_and_one_that_is_too_low_is_said() {
    let bed = Bed::new("descriptors");
    // The default of 100 000 clients is a bound that nobody has asked for.
    let cases = [
        ("max_clients = 100", false),
        ("max_clients = 300", true),
        ("", false),
    ];
    for (key, said) in cases {
        bed.configure(echo(b'a'), key);
        let mut command = bed.limited("ulimit -Sn 64; ulimit -Hn 512");
        command.stderr(Stdio::piped());
        let mut proxy = Bed::started(command);
        let limits = std::fs::read_to_string(format!("/proc/{}/limits", proxy.child.id()));
        let limits = limits.unwrap();
        let files = limits
            .lines()
            .find(|line| line.starts_with("Max open files"));
        let files: Vec<&str> = files.unwrap().split_whitespace().collect();
        assert_eq!(files[3..5], ["512", "512"]);
        proxy.signal(Signal::SIGTERM);
        let mut stderr = String::new();
        let mut pipe = proxy.child.stderr.take().unwrap();
        pipe.read_to_string(&mut stderr).unwrap();
        assert_eq!(stderr.contains("need 600 descriptors"), said, "{stderr}");
        assert_eq!(stderr.contains("descriptors"), said, "{stderr}");
    }
}

#[test]
fn a_process_with_200_descriptors_serves_400_clients_that_come_at_once() {
    const CLIENTS: usize = 400;
    let bed = Bed::new("few");
    // Two proxies share the descriptors; the clients of one must not take those of the other's servers.
    let table = |name: &str| {
        let backend = echo(b'a');
        format!(
            "[[proxy]]\nname = \"{name}\"\nlisten = \"127.0.0.1:0\"\nmode = \"tcp\"\n\
             backends = [\"{backend}\"]\n"
        )
    };
    for proxies in [&["one"][..], &["one", "two"]] {
        let tables: String = proxies.iter().map(|name| table(name)).collect();
        bed.write_config(&tables);
        let proxy = Bed::started(bed.limited("ulimit -n 200"));
        let served = AtomicUsize::new(0);
        let all_have_come = Barrier::new(CLIENTS);
        std::thread::scope(|scope| {
            for _ in 0..CLIENTS {
                scope.spawn(|| {
                    let mut client = proxy.connect();
                    all_have_come.wait();
                    served.fetch_add(usize::from(ask(&mut client).is_ok()), Ordering::Relaxed);
                });
            }
        });
        assert_eq!(served.into_inner(), CLIENTS);
    }
}

//! `weir top` for scripts, and against the API.

use std::io::copy;
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use crate::overload::Bed;

#[test]
fn once_is_plain_text_and_so_is_everything_that_is_no_terminal() {
    let Some(bed) = Bed::new("top-once") else {
        return;
    };
    for arguments in ["top --once --every 100ms", "top --every 100ms --sort name"] {
        let output = bed.folder.weir(arguments);
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(!text.contains('\x1b'), "{text:?}");
        for word in [
            "rates over",
            "web",
            "mail",
            "edge",
            "127.0.0.1:8083",
            "down",
            "controller: wait 20ms",
        ] {
            assert!(text.contains(word), "{word}\n{text}");
        }
    }
    let output = bed.folder.weir("top --once --every 100ms --filter mail");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("*:8025") && !text.contains("*:8081"),
        "{text}"
    );
}

/// All bytes and the end, from one to the other.
fn relay(mut from: UnixStream, mut to: UnixStream) {
    std::thread::spawn(move || {
        let _ = copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Write);
    });
}

/// Forwards connections from one socket to another, as `ssh -L FROM:TO` does.
fn forward(from: &Path, to: &Path) {
    let listener = UnixListener::bind(from).unwrap();
    let to = to.to_owned();
    std::thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let far = UnixStream::connect(&to).unwrap();
            relay(near.try_clone().unwrap(), far.try_clone().unwrap());
            relay(far, near);
        }
    });
}

#[test]
fn the_api_of_another_host_says_the_same_through_a_forwarded_socket() {
    let Some(bed) = Bed::new("top-api") else {
        return;
    };
    let [guard, proxies] = bed.sockets();
    forward(&bed.folder.path.join("guard.sock"), &guard);
    forward(&bed.folder.path.join("proxies.sock"), &proxies);
    let asked = "top --once --every 100ms --api guard.sock --api proxies.sock";
    let output = bed.folder.weir(asked);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    for word in [
        "web",
        "mail",
        "edge",
        "127.0.0.1:8083",
        "controller: wait 20ms",
    ] {
        assert!(text.contains(word), "{word}\n{text}");
    }
    let output = bed.folder.weir("top --once --every 100ms --api guard.sock");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("mail") && !text.contains("edge"), "{text}");
}

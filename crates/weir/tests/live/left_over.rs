//! What a weir that was killed leaves, and who removes it.

use super::*;

/// What is in the folder, but for the config file.
fn left(bed: &Bed) -> Vec<String> {
    let entries = std::fs::read_dir(&bed.path).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name != "weir.toml").collect();
    names.sort();
    names
}

fn killed(mut daemon: Daemon) {
    daemon.signal(Signal::SIGKILL);
    daemon.wait();
}

/// The guard's config with its API at a place of its own.
fn with_api(bed: &Bed, name: &str) -> String {
    let socket = bed.path.join(name);
    format!("{RESERV}[api]\nsocket = \"{}\"\n", socket.display())
}

#[test]
fn detach_removes_the_api_s_socket_wherever_it_was() {
    let Some(bed) = Bed::new("left-over") else {
        return;
    };
    let daemon = bed.run(&with_api(&bed, "own.socket"));
    assert!(bed.path.join("own.socket").exists());
    killed(daemon);
    assert!(left(&bed).contains(&"own.socket".to_owned()));
    assert_eq!(bed.weir("detach").status.code(), Some(0));
    assert_eq!(left(&bed), Vec::<String>::new());
}

#[test]
fn so_does_the_next_start_and_an_orderly_end_leaves_nothing() {
    let Some(bed) = Bed::new("left-over-start") else {
        return;
    };
    killed(bed.run(&with_api(&bed, "first.socket")));
    let daemon = bed.run(&with_api(&bed, "second.socket"));
    assert!(!left(&bed).contains(&"first.socket".to_owned()));
    daemon.log();
    assert_eq!(left(&bed), Vec::<String>::new());
}

#[test]
fn detach_removes_the_sockets_of_proxies_that_were_killed() {
    let Some(bed) = Bed::new("left-over-proxy") else {
        return;
    };
    for api in ["", "socket = \"PATH/own.socket\"\n"] {
        let proxy = "[[proxy]]\nlisten = \"127.0.0.1:8000\"\nmode = \"tcp\"\nbackends = [\"127.0.0.1:1\"]\n";
        let api = api.replace("PATH", &bed.path.display().to_string());
        bed.write_config(&format!("{proxy}[api]\n{api}"));
        let mut command = bed.command("proxy --config weir.toml");
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let daemon = Daemon(command.spawn().unwrap());
        bed.until(|status| status["proxies"][0]["name"].is_string() && left(&bed).len() >= 2);
        killed(daemon);
        assert!(!left(&bed).is_empty());
        assert_eq!(bed.weir("detach").status.code(), Some(0));
        assert_eq!(left(&bed), Vec::<String>::new());
    }
}

#[test]
fn detach_leaves_the_sockets_of_what_runs() {
    let Some(bed) = Bed::new("left-over-living") else {
        return;
    };
    let _daemon = bed.run(&with_api(&bed, "own.socket"));
    let before = left(&bed);
    assert_eq!(bed.weir("detach --left-over").status.code(), Some(0));
    assert_eq!(left(&bed), before);
}

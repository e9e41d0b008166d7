use std::net::SocketAddr;

use super::*;
use crate::listener::{ListenAddress, Listener};

const A: &str = "aaaaaaaaaaaabbbbbbbbbbbbccccccccccccddddddddddddeeeeeeeeeeee0123";
const B: &str = "0123456789ab0123456789ab0123456789ab0123456789ab0123456789abcdef";

fn of_path(path: &str) -> Workload {
    workload_of(&format!("0::{path}\n"))
}

fn said(path: &str) -> (Option<(&'static str, String)>, Option<String>) {
    let found = of_path(path);
    let container = found.container.map(|c| (c.runtime.name(), c.id));
    (container, found.unit)
}

#[test]
fn every_engine_s_cgroup_names_its_container() {
    for (path, runtime) in [
        (format!("/docker/{A}"), "docker"),
        (format!("/system.slice/docker-{A}.scope"), "docker"),
        (format!("/docker/{A}/init.scope"), "docker"),
        (format!("/libpod_parent/libpod-{A}"), "podman"),
        (
            format!("/machine.slice/libpod-{A}.scope/container"),
            "podman",
        ),
        (format!("/kubepods/besteffort/pod1-2/{A}"), "containerd"),
        (
            format!("/kubepods.slice/kubepods-pod1.slice/cri-containerd-{A}.scope"),
            "containerd",
        ),
        (format!("/kubepods.slice/crio-{A}.scope"), "cri-o"),
    ] {
        assert_eq!(said(&path), (Some((runtime, A.into())), None), "{path}");
    }
    assert_eq!(said("/lxc.payload.web").0, Some(("lxc", "web".into())));
}

#[test]
fn what_is_beside_a_container_is_in_none() {
    for path in [
        "/".to_owned(),
        "/user.slice/user-0.slice/session-1.scope".to_owned(),
        format!("/machine.slice/libpod-conmon-{A}.scope"),
        "/docker/buildkit".to_owned(),
        format!("/elsewhere/{A}"),
        format!("/system.slice/docker-{}.scope", &A[1..]),
    ] {
        assert_eq!(said(&path), (None, None), "{path}");
    }
}

#[test]
fn the_innermost_container_and_the_machine_s_unit_count() {
    assert_eq!(
        said(&format!("/docker/{A}/docker/{B}")).0,
        Some(("docker", B.into()))
    );
    assert_eq!(
        said(&format!("/docker/{A}/system.slice/nginx.service")),
        (Some(("docker", A.into())), None),
        "a unit of the container's own systemd"
    );
    assert_eq!(
        said(&format!("/system.slice/web.service/libpod-payload-{A}")),
        (Some(("podman", A.into())), Some("web.service".into()))
    );
    assert_eq!(
        said("/system.slice/nginx.service/workers").1,
        Some("nginx.service".into())
    );
}

#[test]
fn a_label_s_value_decides_and_its_key_is_whole() {
    let mut web = of_path(&format!("/docker/{A}"));
    let container = web.container.as_mut().unwrap();
    container.name = Some("shop-web-1".into());
    for (key, value) in [("com.docker.compose.service", "web"), ("a/b", "x y")] {
        container.labels.insert(key.into(), value.into());
    }
    for (place, matches) in [
        ("label:com.docker.compose.service=web", true),
        ("label:com.docker.compose.service=w*", true),
        ("label:com.docker.compose.service=*", true),
        ("label:com.docker.compose.service=db", false),
        ("label:com.docker.compose=web", false),
        ("label:com.docker.*=web", false),
        ("label:a/b=x*", true),
    ] {
        let place = Where::parse(place).unwrap();
        assert_eq!(place.matches(&web), matches, "{place}");
        assert_eq!(Where::parse(&place.to_string()), Some(place.clone()));
        assert_eq!(web.name(&place), Some("shop-web-1"));
        assert!(!place.matches(&of_path("/system.slice/nginx.service")));
    }
    for none in [
        "label:",
        "label:web",
        "label:=web",
        "label:app=",
        "label:a b=c",
    ] {
        assert_eq!(Where::parse(none), None, "{none}");
    }
}

#[test]
fn of_several_hierarchies_the_one_that_says_most_counts() {
    let text = format!("12:pids:/docker/{A}\n1:name=systemd:/system.slice/x.service\n0::/\n");
    assert_eq!(workload_of(&text).container.unwrap().id, A);
    assert_eq!(workload_of("garbage\n0::/\n"), Workload::default());
}

#[test]
fn a_pattern_is_of_the_whole_name() {
    let fits = |pattern: &str, name: &str| Pattern::new(pattern).unwrap().matches(name);
    for (pattern, name) in [
        ("web", "web"),
        ("web-*", "web-"),
        ("web-*", "web-12"),
        ("*-web-?", "shop-web-1"),
        ("*", "anything"),
        ("*a*b*", "xxaxxabx"),
        ("a*aab", "aaaab"),
    ] {
        assert!(fits(pattern, name), "{pattern} {name}");
    }
    for (pattern, name) in [
        ("web", "web-1"),
        ("web-?", "web-12"),
        ("web-*", "aweb-1"),
        ("*a*b", "ba"),
        ("?", ""),
    ] {
        assert!(!fits(pattern, name), "{pattern} {name}");
    }
    for odd in ["", "a b", "a/b", &"x".repeat(256)] {
        assert_eq!(Pattern::new(odd), None, "{odd:?}");
    }
}

#[test]
fn a_place_reads_back_as_it_is_shown() {
    for text in [
        "here",
        "machine",
        "netns:blue",
        "container:web-*",
        "unit:a@b.service",
        "pod:shop/web-*",
    ] {
        assert_eq!(Where::parse(text).unwrap().to_string(), text);
    }
    for odd in [
        "",
        "Here",
        "container",
        "container:",
        "pod:web",
        "pod:/web",
        "pod:a/b/c",
        "netns:a/b",
    ] {
        assert_eq!(Where::parse(odd), None, "{odd:?}");
    }
}

const UID: &str = "0f6b1c2d-1111-2222-3333-444455556666";

#[test]
fn every_driver_s_cgroup_names_the_pod() {
    let uid = |path: &str| of_path(path).pod.map(|pod| pod.uid);
    let escaped = UID.replace('-', "_");
    for path in [
        format!("/kubepods/burstable/pod{UID}/{A}"),
        format!("/kubepods/pod{UID}/{A}"),
        format!(
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{escaped}.slice/cri-containerd-{A}.scope"
        ),
        format!("/kubepods.slice/kubepods-pod{escaped}.slice/crio-{A}.scope"),
        format!("/docker/{B}/kubelet/kubepods/besteffort/pod{UID}/{A}"),
    ] {
        assert_eq!(uid(&path).as_deref(), Some(UID), "{path}");
        assert_eq!(of_path(&path).container.unwrap().id, A, "{path}");
    }
    let of_static = format!("/kubepods/burstable/pod{}/{A}", &A[..32]);
    assert_eq!(uid(&of_static).as_deref(), Some(&A[..32]));
    for path in [
        "/kubepods/burstable",
        "/machine.slice/podman-123.scope",
        "/pods/podium",
    ] {
        assert_eq!(uid(path), None, "{path}");
    }
}

#[test]
fn a_pod_is_found_by_its_namespace_and_its_name() {
    let mut web = of_path(&format!("/kubepods/burstable/pod{UID}/{A}"));
    let is = |text: &str, workload: &Workload| Where::parse(text).unwrap().matches(workload);
    assert!(!is("pod:*/*", &web), "its name is not known");
    assert!(is(&format!("container:{}", &A[..SHOWN_ID]), &web));
    web.pod.as_mut().unwrap().name = Some("shop/web-7d4b9".into());
    for (text, expected) in [
        ("pod:shop/web-7d4b9", true),
        ("pod:shop/web-*", true),
        ("pod:*/web-*", true),
        ("pod:sh*/*", true),
        ("pod:shop/web", false),
        ("pod:sho/web-*", false),
        ("pod:shop*/db-*", false),
        ("machine", true),
    ] {
        assert_eq!(is(text, &web), expected, "{text}");
    }
    assert_eq!(web.place().unwrap().to_string(), "pod:shop/web-7d4b9");
    let name = |text: &str| web.name(&Where::parse(text).unwrap()).map(str::to_owned);
    assert_eq!(name("pod:shop/*").as_deref(), Some("shop/web-7d4b9"));
    assert_eq!(name("machine").as_deref(), Some("shop/web-7d4b9"));
    assert_eq!(name("container:*").as_deref(), Some(&A[..SHOWN_ID]));
}

fn docker(name: Option<&str>) -> Workload {
    let mut found = of_path(&format!("/docker/{A}"));
    found.container.as_mut().unwrap().name = name.map(str::to_owned);
    found
}

#[test]
fn a_container_is_found_by_its_name_its_id_and_the_beginning_of_it() {
    let is = |text: &str, workload: &Workload| Where::parse(text).unwrap().matches(workload);
    let web = docker(Some("web-1"));
    for text in ["container:web-1", "container:web-*", "machine"] {
        assert!(is(text, &web), "{text}");
    }
    assert!(is(&format!("container:{A}"), &web));
    assert!(is(&format!("container:{}", &A[..SHOWN_ID]), &docker(None)));
    for text in [
        "here",
        "container:web",
        "container:aaaa",
        "unit:web-1",
        "netns:*",
    ] {
        assert!(!is(text, &web), "{text}");
    }
    let nginx = of_path("/system.slice/nginx.service");
    for (text, found) in [
        ("unit:nginx.service", true),
        ("unit:nginx", true),
        ("unit:ngin?", true),
        ("unit:nginx.socket", false),
        ("container:*", false),
    ] {
        assert_eq!(is(text, &nginx), found, "{text}");
    }
}

#[test]
fn a_name_alone_is_of_every_kind_that_fits() {
    let names = |text: &str, name: &str| Where::parse(text).unwrap().names(name);
    for (text, name, expected) in [
        ("here", "web-1", false),
        ("machine", "web-1", true),
        ("container:web-*", "web-1", true),
        ("container:web-*", "db", false),
        ("netns:blue", "blue", true),
        ("unit:nginx", "nginx.service", true),
        ("unit:nginx", "nginx.socket", false),
        ("pod:shop/web-*", "shop/web-1", true),
        ("pod:shop/web-*", "web-1", false),
    ] {
        assert_eq!(names(text, name), expected, "{text} {name}");
    }
    for runtime in Runtime::ALL {
        assert_eq!(Runtime::named(runtime.name()), Some(runtime));
    }
}

#[test]
fn a_workload_is_called_by_what_the_listener_goes_by() {
    let mut web = docker(None);
    web.netns = Some("blue".into());
    let name = |text: &str| web.name(&Where::parse(text).unwrap()).map(str::to_owned);
    assert_eq!(name("container:*").as_deref(), Some(&A[..SHOWN_ID]));
    assert_eq!(name("machine").as_deref(), Some(&A[..SHOWN_ID]));
    assert_eq!(name("netns:*").as_deref(), Some("blue"));
    assert_eq!(Workload::default().name(&Where::Machine), None);
}

#[test]
fn the_place_of_a_workload_is_about_it() {
    let mut web = docker(Some("web-1"));
    web.netns = Some("blue".into());
    let place = |workload: &Workload| workload.place().map(|place| place.to_string());
    assert_eq!(place(&web).as_deref(), Some("container:web-1"));
    web.container = None;
    assert_eq!(place(&web).as_deref(), Some("netns:blue"));
    assert!(web.place().unwrap().matches(&web));
    web.netns = Some("b*".into());
    assert_eq!(place(&web), None, "others are called so too");
    let nginx = of_path("/system.slice/nginx.service");
    assert_eq!(place(&nginx).as_deref(), Some("unit:nginx.service"));
    assert_eq!(place(&Workload::default()), None);
}

fn listener(name: &str, address: &str, location: &str) -> Listener {
    let ip = address.rsplit_once(':').unwrap();
    let address = ListenAddress {
        ip: ip.0.parse().ok(),
        port: ip.1.parse().unwrap(),
    };
    Listener {
        location: Where::parse(location).unwrap(),
        ..Listener::new(name, address)
    }
}

#[test]
fn the_first_listener_that_is_about_a_socket_has_its_address() {
    let all = [
        listener("own", "*:80", "here"),
        listener("web", "*:80", "container:web-*"),
        listener("one", "10.0.0.1:80", "container:web-*"),
        listener("rest", "*:80", "machine"),
        listener("tls", "*:443", "machine"),
    ];
    let names = |workload: &Workload, sockets: &[&str]| -> Vec<(String, usize)> {
        let sockets: Vec<(&Workload, SocketAddr)> = sockets
            .iter()
            .map(|at| (workload, at.parse().unwrap()))
            .collect();
        let found = in_force(&all, &sockets).into_iter();
        found.map(|(l, at)| (l.name.clone(), at)).collect()
    };
    let web = docker(Some("web-1"));
    assert_eq!(
        names(&web, &["0.0.0.0:22", "0.0.0.0:80", "[::]:443"]),
        [("web".into(), 1), ("one".into(), 1), ("tls".into(), 2)]
    );
    assert_eq!(
        names(&docker(Some("db")), &["127.0.0.1:80"]),
        [("rest".into(), 0)]
    );
    assert_eq!(names(&web, &["0.0.0.0:8080"]), []);
}

#[test]
fn an_address_is_served_by_sockets_of_its_family() {
    let serves = |address: &str, socket: &str| {
        may_serve(
            &listener("l", address, "machine").address,
            &socket.parse().unwrap(),
        )
    };
    for (address, socket) in [
        ("*:80", "127.0.0.1:80"),
        ("0.0.0.0:80", "[::]:80"),
        ("0.0.0.0:80", "10.0.0.1:80"),
        ("10.0.0.1:80", "[::]:80"),
        ("10.0.0.1:80", "0.0.0.0:80"),
        ("10.0.0.1:80", "[::ffff:10.0.0.1]:80"),
        (":::80", "10.0.0.1:80"),
    ] {
        assert!(serves(address, socket), "{address} {socket}");
    }
    for (address, socket) in [
        ("*:80", "0.0.0.0:81"),
        ("0.0.0.0:80", "[::1]:80"),
        ("10.0.0.1:80", "10.0.0.2:80"),
        ("fd00::1:80", "0.0.0.0:80"),
    ] {
        assert!(!serves(address, socket), "{address} {socket}");
    }
}

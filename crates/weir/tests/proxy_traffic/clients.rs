//! Real clients: what they get through the proxy is what they get from the origin itself.
//!
//! Each client is a small program in `clients/`, called with the URLs of the origin, of a reverse
//! proxy in front of it, and of a forward proxy. It compares, and says what it has compared.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use weir_testbed::error::Context;
use weir_testbed::needs::{self, namespace};
use weir_testbed::proxy::Proxy;

use super::{WEIR, origin};

/// Runs `program` with these arguments and the URLs, once with each engine.
fn expect_equal(program: &str, arguments: &[&str], script: &str) {
    let Some(netns) = namespace("clients") else {
        return;
    };
    if !needs::programs(&[program]) {
        return;
    }
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/proxy_traffic/clients")
        .join(script);
    for engine in ["auto", "copy", "splice"] {
        let output = netns.run(|| {
            let listener = TcpListener::bind("127.0.0.1:0").context("no origin")?;
            let address = listener.local_addr().context("no address")?;
            origin::serve(listener);
            let start = |words: String| {
                let words: Vec<String> = words.split(' ').map(ToOwned::to_owned).collect();
                Proxy::start(Path::new(WEIR), &words)
            };
            let reverse = start(format!(
                "--mode reverse --backend {address} --engine {engine}"
            ))?;
            // The browser's origin over https listens where the kernel lets it.
            let forward = start(format!(
                "--mode forward --connect-port 1-65535 --engine {engine}"
            ))?;
            let urls = [address, reverse.address, forward.address];
            Command::new("timeout")
                .args(["120", program])
                .args(arguments)
                .arg(&script)
                .args(urls.map(|address| format!("http://{address}")))
                .env("PATH", needs::path())
                .env("GOCACHE", std::env::temp_dir().join("weir-test-go"))
                .output()
                .context(program)
        });
        let output = output.unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && said.contains("compared"),
            "{program}, engine {engine}: {said}\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

#[test]
fn curl_gets_what_the_origin_sends() {
    expect_equal("bash", &[], "curl.sh");
}

#[test]
fn wget_gets_what_the_origin_sends() {
    expect_equal("bash", &[], "wget.sh");
}

#[test]
fn pythons_requests_and_http_client_get_what_the_origin_sends() {
    expect_equal("python3", &[], "client.py");
}

/// By the names of Debian's packages and of others.
const BROWSERS: [&str; 4] = [
    "chromium-headless-shell",
    "chromium-shell",
    "chromium",
    "google-chrome",
];

#[test]
fn a_browser_loads_pages_and_their_parts_over_http_and_through_connect() {
    if !BROWSERS
        .iter()
        .any(|name| needs::find_program(name).is_some())
    {
        needs::skip("no Chromium is installed");
        return;
    }
    expect_equal("python3", &[], "browser.py");
}

#[test]
fn go_gets_what_the_origin_sends() {
    expect_equal("go", &["run"], "client.go");
}

#[test]
fn node_gets_what_the_origin_sends() {
    expect_equal("node", &[], "client.mjs");
}

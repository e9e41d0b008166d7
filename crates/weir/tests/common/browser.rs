//! A headless Chromium, driven over the DevTools protocol: JSON through two pipes, each message ended by a zero byte.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use serde_json::{Value, json};
use tempfile::TempDir;
use weir_testbed::needs::{BROWSER_FLAGS, find_browser, skip};
use weir_testbed::wait::{self, PATIENCE};

/// Beside those that every test has.
const OWN_FLAGS: [&str; 2] = ["--hide-scrollbars", "--remote-debugging-pipe"];

/// A browser with one page. Killed on drop.
pub struct Browser {
    child: Child,
    to: ChildStdin,
    from: Receiver<Value>,
    next: u64,
    page: String,
    /// What the page has done: requests, messages of the console, faults.
    events: VecDeque<Value>,
    _profile: TempDir,
}

impl Browser {
    /// Starts one in the network namespace of this thread; `None` where there is none, and says so.
    pub fn start() -> Option<Browser> {
        let Some(program) = find_browser() else {
            skip("no Chromium is installed");
            return None;
        };
        let profile = TempDir::with_prefix("weir-browser-").unwrap();
        // The browser wants its pipes as descriptors 3 and 4, which a shell can arrange.
        let mut command = Command::new("sh");
        command
            .args(["-c", r#"exec "$0" "$@" 3<&0 4>&1 </dev/null >/dev/null"#])
            .arg(program)
            .args(BROWSER_FLAGS)
            .args(OWN_FLAGS)
            .arg(format!("--user-data-dir={}", profile.path().display()));
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let (to, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (sender, from) = channel();
        std::thread::spawn(move || {
            for message in BufReader::new(output).split(0).map_while(Result::ok) {
                let message = serde_json::from_slice(&message).unwrap();
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let mut browser = Browser {
            child,
            to,
            from,
            next: 0,
            page: String::new(),
            events: VecDeque::new(),
            _profile: profile,
        };
        let target = browser.command("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let session = browser.command("Target.attachToTarget", attach);
        browser.page = session["sessionId"].as_str().unwrap().to_owned();
        for domain in [
            "Page",
            "Runtime",
            "Log",
            "Network",
            "Audits",
            "Accessibility",
        ] {
            browser.command(&format!("{domain}.enable"), json!({}));
        }
        Some(browser)
    }

    /// Sends a command, and gives its result.
    pub fn command(&mut self, method: &str, parameters: Value) -> Value {
        self.next += 1;
        let mut message = json!({ "id": self.next, "method": method, "params": parameters });
        if !self.page.is_empty() {
            message["sessionId"] = json!(self.page);
        }
        let mut bytes = serde_json::to_vec(&message).unwrap();
        bytes.push(0);
        self.to.write_all(&bytes).unwrap();
        loop {
            let answer = self.from.recv_timeout(PATIENCE);
            let answer = answer.unwrap_or_else(|error| panic!("{method}: {error}"));
            if answer["id"] == self.next {
                assert!(answer["error"].is_null(), "{method}: {answer:#}");
                return answer["result"].clone();
            }
            self.events.push_back(answer);
        }
    }

    /// Opens a page and waits until it is loaded.
    pub fn open(&mut self, url: &str) {
        self.command("Page.navigate", json!({ "url": url }));
        self.until("document.readyState === 'complete'");
    }

    /// Opens the dashboard and waits for its figures and rates.
    pub fn open_dashboard(&mut self, address: SocketAddr) {
        self.open(&format!("http://{address}/"));
        self.until("!document.getElementById('figures').hidden && document.body.dataset.turns > 2");
    }

    /// Waits for figures that the page has asked for after this call.
    pub fn next_report(&mut self) {
        let turns = self.evaluate("Number(document.body.dataset.turns)");
        // A question may be on its way now.
        self.until(&format!("document.body.dataset.turns > {turns} + 1"));
    }

    /// What the page makes of an expression.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let parameters =
            json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let answer = self.command("Runtime.evaluate", parameters);
        let fault = &answer["exceptionDetails"];
        assert!(fault.is_null(), "{expression}: {fault:#}");
        answer["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    #[track_caller]
    pub fn until(&mut self, expression: &str) {
        let found = wait::try_until(PATIENCE, || {
            (self.evaluate(&format!("Boolean({expression})")) == true).then_some(())
        });
        if found.is_none() {
            let shown = self.evaluate("document.body.innerText");
            panic!(
                "not within {PATIENCE:?}: {expression}\n{}",
                shown.as_str().unwrap_or("")
            );
        }
    }

    /// The text of what a selector finds first.
    pub fn text(&mut self, selector: &str) -> String {
        let text = self.evaluate(&format!("document.querySelector({selector:?}).innerText"));
        text.as_str().unwrap().to_owned()
    }

    /// The rows of a table, each with the texts of its cells.
    pub fn table(&mut self, selector: &str) -> Vec<Vec<String>> {
        let cells = format!(
            "[...document.querySelectorAll('{selector} tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent))"
        );
        serde_json::from_value(self.evaluate(&cells)).unwrap()
    }

    /// Presses a key: a character, or `Tab`, `Enter`, `Escape`, `ArrowLeft`.
    pub fn press(&mut self, key: &str) {
        let mut down = json!({ "type": "keyDown", "key": key });
        let code = match key {
            "Tab" => 9,
            "Enter" => 13,
            "Escape" => 27,
            "ArrowLeft" => 37,
            _ => 0,
        };
        match (key, code) {
            ("Enter", _) => down["text"] = json!("\r"),
            (_, 0) => down["text"] = json!(key),
            _ => {}
        }
        down["windowsVirtualKeyCode"] = json!(code);
        self.command("Input.dispatchKeyEvent", down);
        let up = json!({ "type": "keyUp", "key": key, "windowsVirtualKeyCode": code });
        self.command("Input.dispatchKeyEvent", up);
    }

    /// Types into what has the focus.
    pub fn type_text(&mut self, text: &str) {
        self.command("Input.insertText", json!({ "text": text }));
    }

    /// Gives the window a size, in CSS px; screenshots have `scale` times as many.
    pub fn size(&mut self, width: u32, height: u32, scale: f64) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": scale, "mobile": false });
        self.command("Emulation.setDeviceMetricsOverride", size);
    }

    /// What the system wishes: `prefers-color-scheme` and `prefers-reduced-motion`.
    pub fn wishes(&mut self, colours: &str, motion: &str) {
        let features = json!({ "features": [
            { "name": "prefers-color-scheme", "value": colours },
            { "name": "prefers-reduced-motion", "value": motion },
        ]});
        self.command("Emulation.setEmulatedMedia", features);
    }

    /// Writes what the window shows as PNG.
    pub fn screenshot(&mut self, file: &Path) {
        let shot = self.command("Page.captureScreenshot", json!({ "format": "png" }));
        let mut decode = Command::new("base64");
        let out = std::fs::File::create(file).unwrap();
        decode.arg("-d").stdin(Stdio::piped()).stdout(out);
        let mut decode = decode.spawn().unwrap();
        let data = shot["data"].as_str().unwrap();
        decode
            .stdin
            .take()
            .unwrap()
            .write_all(data.as_bytes())
            .unwrap();
        assert!(decode.wait().unwrap().success());
    }

    /// All that has come meanwhile without a question.
    fn events(&mut self) -> impl Iterator<Item = &Value> {
        self.events.extend(self.from.try_iter());
        self.events.iter()
    }

    /// The addresses that the page has asked for so far.
    pub fn requests(&mut self) -> Vec<String> {
        let requests = self
            .events()
            .filter(|event| event["method"] == "Network.requestWillBeSent");
        let urls = requests.map(|event| {
            event["params"]["request"]["url"]
                .as_str()
                .unwrap()
                .to_owned()
        });
        urls.collect()
    }

    /// What is wrong with the page: exceptions, errors and warnings of the console, what its policy blocked.
    pub fn faults(&mut self) -> Vec<String> {
        let is_fault = |event: &&Value| {
            let parameters = &event["params"];
            match event["method"].as_str() {
                Some("Runtime.exceptionThrown" | "Audits.issueAdded") => true,
                Some("Runtime.consoleAPICalled") => {
                    matches!(
                        parameters["type"].as_str(),
                        Some("error" | "warning" | "assert")
                    )
                }
                Some("Log.entryAdded") => {
                    matches!(
                        parameters["entry"]["level"].as_str(),
                        Some("error" | "warning")
                    )
                }
                _ => false,
            }
        };
        self.events()
            .filter(is_fault)
            .map(|event| format!("{event:#}"))
            .collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

//! A real browser, spoken with by the DevTools protocol: messages of JSON over a pipe, each with a zero byte behind it.
//!
//! The pipe needs no port and no crate, and the browser ends when it is closed. Each device is a browser context, with
//! storage of its own; what a user does goes in as keys and clicks, not as calls of the page's functions.

use serde_json::{Value as Json, json};
use std::cell::{Cell, RefCell};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Far more than anything here takes; what is not there by then will not come.
const LIMIT: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);

/// The protocol is on the descriptors 3 and 4 of the browser, which are our ends of its standard input and output.
const PIPED: &str = "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>/dev/null";
const ARGUMENTS: [&str; 10] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
];

pub(crate) struct Browser {
    process: Child,
    to: RefCell<ChildStdin>,
    from: Receiver<Json>,
    sent: Cell<u64>,
    /// Exceptions that no page has caught.
    thrown: RefCell<Vec<Json>>,
    _profile: tempfile::TempDir,
}

impl Browser {
    pub(crate) fn start() -> Browser {
        let profile = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", PIPED, "sh", "chromium"]).args(ARGUMENTS);
        command.arg(format!("--user-data-dir={}", profile.path().display()));
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (to, from) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            for message in BufReader::new(from).split(0) {
                let message = serde_json::from_slice(&message.unwrap()).unwrap();
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let (to, sent, thrown) = (RefCell::new(to), Cell::new(0), RefCell::default());
        Browser { process, to, from: receiver, sent, thrown, _profile: profile }
    }

    fn call(&self, session: Option<&str>, method: &str, params: Json) -> Json {
        self.sent.set(self.sent.get() + 1);
        let mut message = json!({ "id": self.sent.get(), "method": method, "params": params });
        if let Some(session) = session {
            message["sessionId"] = json!(session);
        }
        let mut to = self.to.borrow_mut();
        let sent = write!(to, "{message}\0").and_then(|()| to.flush());
        sent.unwrap_or_else(|error| panic!("{method}: {error}; is chromium there? ./test installs what it needs"));
        loop {
            let got = self.from.recv_timeout(LIMIT);
            let mut got = got.unwrap_or_else(|error| panic!("{method}: {error}; is chromium there?"));
            if got["method"] == "Runtime.exceptionThrown" {
                self.thrown.borrow_mut().push(got["params"]["exceptionDetails"].take());
            } else if got["id"] == self.sent.get() {
                assert!(got["error"].is_null(), "{method}: {}", got["error"]);
                return got["result"].take();
            }
        }
    }

    /// A device: its pages have storage of their own.
    pub(crate) fn device(&self) -> String {
        let made = self.call(None, "Target.createBrowserContext", json!({}));
        made["browserContextId"].as_str().unwrap().to_owned()
    }

    pub(crate) fn open(&self, device: &str, url: &str) -> Page<'_> {
        let target = self.call(None, "Target.createTarget", json!({ "url": url, "browserContextId": device }));
        let params = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = self.call(None, "Target.attachToTarget", params);
        let page = Page { browser: self, session: attached["sessionId"].as_str().unwrap().to_owned() };
        page.call("Runtime.enable", json!({}));
        page.until_loaded();
        page
    }

    pub(crate) fn assert_nothing_was_thrown(&self) {
        let thrown = self.thrown.borrow();
        assert!(thrown.is_empty(), "{thrown:#?}");
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It is a fresh profile of a test: nothing of it is to be kept.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(crate) struct Page<'a> {
    browser: &'a Browser,
    session: String,
}

impl Page<'_> {
    fn call(&self, method: &str, params: Json) -> Json {
        self.browser.call(Some(&self.session), method, params)
    }

    pub(crate) fn evaluate(&self, expression: &str) -> Json {
        let params = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let mut answer = self.call("Runtime.evaluate", params);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].take()
    }

    /// Waits until an expression is true.
    pub(crate) fn until(&self, expression: &str) {
        let began = Instant::now();
        while self.evaluate(expression) != json!(true) {
            let shown = || self.evaluate("document.body.innerText");
            assert!(began.elapsed() < LIMIT, "{expression} does not become true; the page shows {}", shown());
            std::thread::sleep(LOOK);
        }
    }

    /// Clicks on what a selector finds.
    pub(crate) fn click(&self, selector: &str) {
        let place = format!(
            "(() => {{ const it = document.querySelector({}).getBoundingClientRect(); \
             return [it.x + it.width / 2, it.y + it.height / 2]; }})()",
            json!(selector)
        );
        let place = self.evaluate(&place);
        for kind in ["mousePressed", "mouseReleased"] {
            let params = json!({ "type": kind, "x": place[0], "y": place[1], "button": "left", "clickCount": 1 });
            self.call("Input.dispatchMouseEvent", params);
        }
    }

    /// Types a text, and the return key behind it.
    pub(crate) fn enter(&self, text: &str) {
        self.call("Input.insertText", json!({ "text": text }));
        for (kind, text) in [("keyDown", "\r"), ("keyUp", "")] {
            let key =
                json!({ "type": kind, "key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": text });
            self.call("Input.dispatchKeyEvent", key);
        }
    }

    /// From now on requests to such addresses fail as they do without a network.
    pub(crate) fn block(&self, pattern: &str) {
        self.call("Network.enable", json!({}));
        self.call("Network.setBlockedURLs", json!({ "urls": [pattern] }));
    }

    /// Loads the page anew.
    pub(crate) fn reload(&self) {
        self.evaluate("window.isOld = true");
        self.call("Page.reload", json!({}));
        self.until_loaded();
    }

    /// Before, between and behind documents there are moments without one, in which nothing else can be asked.
    fn until_loaded(&self) {
        let began = Instant::now();
        let loaded = "!window.isOld && location.protocol === 'http:' && document.readyState === 'complete'";
        while self.call("Runtime.evaluate", json!({ "expression": loaded }))["result"]["value"] != json!(true) {
            assert!(began.elapsed() < LIMIT, "the page is not loaded");
            std::thread::sleep(LOOK);
        }
    }

    /// A picture of the page, as PNG.
    pub(crate) fn picture(&self) -> Vec<u8> {
        use base64::Engine as _;
        let shot = self.call("Page.captureScreenshot", json!({}));
        base64::engine::general_purpose::STANDARD.decode(shot["data"].as_str().unwrap()).unwrap()
    }
}

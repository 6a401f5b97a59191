//! The page of the example `tasks` in a real browser, as people use it.
//!
//! The last picture of each page is kept in the target directory.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall say where")]

mod chromium;
#[allow(dead_code, reason = "it is started by a test here, and not by its main")]
#[path = "../../examples/tasks.rs"]
mod tasks;

use chromium::{Browser, Page};
use serde_json::json;
use std::net::Ipv4Addr;
use std::path::Path;

/// The service of the example on a port of its own, in threads of its own.
struct Service {
    address: String,
    _runtime: tokio::runtime::Runtime,
    _folder: tempfile::TempDir,
}

impl Service {
    fn start() -> Service {
        let folder = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let listener = runtime.block_on(async {
            let routes = tasks::service(folder.path().to_str().unwrap()).await.unwrap();
            let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            let address = listener.local_addr().unwrap();
            tokio::spawn(async move { axum::serve(listener, routes).await });
            address
        });
        Service { address: format!("http://{listener}"), _runtime: runtime, _folder: folder }
    }

    fn page_of(&self, tenant: &str) -> String {
        format!("{}/?tenant={tenant}", self.address)
    }
}

/// Waits until the page shows exactly these tasks, and whether each is done, and has nothing that is not sent.
fn shows(page: &Page<'_>, tasks: &[(&str, bool)]) {
    let seen = "JSON.stringify([...document.querySelectorAll('#list li')].map((li) => \
                [li.querySelector('span').textContent, li.querySelector('input').checked]))";
    page.until(&format!("{seen} === {}", json!(json!(tasks).to_string())));
    page.until("!document.querySelector('.waiting') && document.getElementById('state').textContent === 'up to date'");
    assert_eq!(page.evaluate("document.getElementById('problem').textContent"), json!(""), "nothing went wrong");
}

fn add(page: &Page<'_>, title: &str) {
    page.click("#title");
    page.enter(title);
}

/// Keeps a picture, for those who want to see what the page looks like.
fn keep_picture(page: &Page<'_>, name: &str) {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let picture = page.picture();
    assert!(picture.starts_with(b"\x89PNG"), "a picture of the page");
    std::fs::write(file, picture).unwrap();
}

/// I-34, I-41: what one does in a page is there after a reload and on another device of the tenant, also what was done
/// offline; a page of another tenant, in the same browser, shows nothing of it.
#[test]
fn the_page_of_the_example_works_in_a_browser() {
    let service = Service::start();
    let browser = Browser::start();
    let (laptop, phone) = (browser.device(), browser.device());
    let acme = browser.open(&laptop, &service.page_of("acme"));
    let globex = browser.open(&laptop, &service.page_of("globex"));
    for (page, tenant) in [(&acme, "acme"), (&globex, "globex")] {
        shows(page, &[]);
        page.until(&format!("document.querySelector('h1').textContent === 'Tasks of {tenant}'"));
    }

    add(&acme, "water the plants of acme");
    add(&acme, "buy <b>bread</b> & \"salt\"");
    add(&globex, "a secret of globex");
    let two = [("water the plants of acme", false), ("buy <b>bread</b> & \"salt\"", false)];
    shows(&acme, &two);
    shows(&globex, &[("a secret of globex", false)]);
    for (page, expected) in [(&acme, &two[..]), (&globex, &[("a secret of globex", false)])] {
        page.reload();
        shows(page, expected);
    }

    // Another device knows it from the server alone, and the first one follows what is done there.
    let elsewhere = browser.open(&phone, &service.page_of("acme"));
    shows(&elsewhere, &two);
    elsewhere.click("#list li:nth-child(1) input");
    shows(&elsewhere, &[(two[0].0, true), two[1]]);
    shows(&acme, &[(two[0].0, true), two[1]]);

    // Offline: what is added is shown and waits, and is sent when there is a network again.
    acme.click("#network");
    acme.until("document.getElementById('state').textContent === 'offline'");
    add(&acme, "written offline");
    acme.until("document.querySelectorAll('#list li.waiting').length === 1");
    elsewhere.click("#list li:nth-child(2) button");
    shows(&elsewhere, &[(two[0].0, true)]);
    keep_picture(&acme, "tasks-offline.png");
    acme.click("#network");
    for page in [&acme, &elsewhere] {
        shows(page, &[(two[0].0, true), ("written offline", false)]);
    }
    keep_picture(&acme, "tasks.png");

    globex.reload();
    shows(&globex, &[("a secret of globex", false)]);
    for (page, other) in [(&acme, "globex"), (&elsewhere, "globex"), (&globex, "acme")] {
        assert_eq!(page.evaluate(&format!("document.body.innerText.includes('{other}')")), json!(false));
    }
    browser.assert_nothing_was_thrown();
}

/// The first change of a tenant is known to be made by the answer to it, though its log has no beginning to be known by.
#[test]
fn a_first_change_is_known_by_its_answer() {
    let service = Service::start();
    let browser = Browser::start();
    let page = browser.open(&browser.device(), &service.page_of("acme"));
    shows(&page, &[]);
    page.block("*/outbox*");
    // What was asked before is not waited for.
    page.click("#network");
    page.click("#network");
    add(&page, "the first");
    page.until("document.querySelectorAll('#list li').length === 1 && !document.querySelector('.waiting')");
    assert_eq!(page.evaluate("document.getElementById('problem').textContent"), json!(""));
    browser.assert_nothing_was_thrown();
}

/// A name that no tenant can have is refused, and the page says why.
#[test]
fn the_page_says_what_is_refused() {
    let service = Service::start();
    let browser = Browser::start();
    let page = browser.open(&browser.device(), &service.page_of(&"x".repeat(65)));
    page.until("document.getElementById('state').textContent.includes('64')");
    assert_eq!(page.evaluate("document.getElementById('list').children.length"), json!(0));
    browser.assert_nothing_was_thrown();
}

//! The core can be driven by a browser: nothing that it is made of needs a system below it.
//!
//! What is compiled for browsers is not compiled here, where there may be no such target. What keeps it from being
//! compiled is looked for instead: crates that ask a system for something, and their use in the core's own sources.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall say where")]

use std::path::Path;
use std::process::Command;

/// Crates that need threads, files, sockets or a source of randomness, each by how its line begins.
const NEED_A_SYSTEM: [&str; 9] =
    ["tokio ", "mio ", "rusqlite ", "libsqlite3-sys ", "getrandom ", "rand ", "hyper ", "socket2 ", "libc "];
/// Features of `uuid` that ask for randomness or time.
const UUID_FEATURES: [&str; 4] = ["v1", "v4", "v7", "rng"];
/// Files of the core's folder that are behind features.
const BEHIND_FEATURES: [&str; 3] = ["client.rs", "http.rs", "sqlite.rs"];
/// What asks a system for something.
const CALLS: [&str; 9] = [
    "std::fs",
    "std::net",
    "std::thread",
    "std::process",
    "Instant",
    "SystemTime",
    "new_v4",
    "now_v7",
    "Timestamp::now",
];

/// The crates that the core is made of, with their features.
fn tree() -> Vec<String> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["tree", "--offline", "--locked", "-p", "isles-lofi", "--no-default-features", "-e", "normal"]);
    // Not for a browser's target, whose own crates are only there where something is compiled for it.
    cargo.args(["--prefix", "none", "-f", "{p} features: {f}"]);
    let told = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    String::from_utf8(told.stdout).unwrap().lines().map(str::to_string).collect()
}

#[test]
fn the_core_is_made_of_nothing_that_needs_a_system() {
    let tree = tree();
    assert!(tree.iter().any(|line| line.starts_with("isles-kernel ")), "{tree:#?}");
    for line in &tree {
        let needs = NEED_A_SYSTEM.iter().find(|name| line.starts_with(**name));
        assert!(needs.is_none(), "the core is made of {line}");
    }
    let uuid = tree.iter().find(|line| line.starts_with("uuid ")).expect("ids are UUIDs");
    let features = uuid.split_once("features: ").unwrap().1;
    let asks = features.split(',').find(|feature| UUID_FEATURES.contains(feature));
    assert!(asks.is_none(), "{uuid}");
}

#[test]
fn the_core_asks_no_system_for_anything() {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let kernel = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernel/src");
    let mut read = 0;
    let mut folders = vec![own, kernel];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                folders.push(path);
            } else if !BEHIND_FEATURES.contains(&name.as_str()) {
                let text = std::fs::read_to_string(&path).unwrap();
                let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
                for line in code {
                    let asks = CALLS.iter().find(|call| line.contains(**call));
                    assert!(asks.is_none(), "{}: {line}", path.display());
                }
                read += 1;
            }
        }
    }
    assert!(read > 20, "{read} files");
}

//! Builds all tests and runs their binaries side by side.
//!
//!     cargo test --no-run ─► binaries ─► as many at once as there are cores, the long ones first ─► what each printed
//!
//! `cargo test` runs one binary after the other, and most of them wait for servers, disks and clocks half of the time.
//! A runner with a process for each test would start a PostgreSQL server for each, too.

use crate::run::cargo;
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Instant;

/// Those that take minutes. One of them begun last would be waited for alone.
const LONG: [&str; 6] = ["isolation", "session", "moves", "indexes", "sqlalchemy", "canaries"];

/// A test binary, and where it is run.
#[derive(Debug, PartialEq, Eq)]
struct Binary {
    name: String,
    package: PathBuf,
    path: PathBuf,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Counted {
    passed: u64,
    failed: u64,
}

pub(crate) fn run(root: &Path) -> bool {
    let Some(mut binaries) = build(root) else { return false };
    binaries.sort_by_key(|binary| LONG.iter().position(|name| *name == binary.name).unwrap_or(LONG.len()));
    let logs = root.join("target").join("test-logs");
    if let Err(error) = std::fs::create_dir_all(&logs) {
        eprintln!("cannot make {}: {error}", logs.display());
        return false;
    }
    run_all(binaries, &logs)
}

/// Builds the tests of all packages. None if they do not compile.
fn build(root: &Path) -> Option<Vec<Binary>> {
    let args = ["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"];
    println!("$ cargo {}", args.join(" "));
    let mut building = cargo().args(args).current_dir(root).stdout(Stdio::piped()).spawn().ok()?;
    let messages = BufReader::new(building.stdout.take()?).lines().map_while(Result::ok);
    let binaries = messages.filter_map(|line| binary_of(&line)).collect();
    building.wait().ok()?.success().then_some(binaries)
}

/// The test binary that a message of cargo tells of, if it does.
fn binary_of(message: &str) -> Option<Binary> {
    let message: Value = serde_json::from_str(message).ok()?;
    let is_test = message["reason"] == "compiler-artifact" && message["profile"]["test"] == true;
    let path = message["executable"].as_str().filter(|_| is_test)?;
    Some(Binary {
        name: message["target"]["name"].as_str()?.to_owned(),
        package: Path::new(message["manifest_path"].as_str()?).parent()?.to_owned(),
        path: path.into(),
    })
}

fn run_all(binaries: Vec<Binary>, logs: &Path) -> bool {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (count, left, done) = (binaries.len(), Mutex::new(binaries.into_iter()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                let next = || left.lock().ok()?.next();
                while let Some(binary) = next() {
                    let (ok, counted) = run_one(&binary, logs);
                    if let Ok(mut done) = done.lock() {
                        done.push((binary, ok, counted));
                    }
                }
            });
        }
    });
    let done = done.into_inner().unwrap_or_default();
    let sum = |of: fn(&Counted) -> u64| done.iter().map(|(.., counted)| of(counted)).sum::<u64>();
    for (binary, ..) in done.iter().filter(|(_, ok, _)| !ok) {
        println!("failed: {} of {}", binary.name, binary.package.display());
    }
    println!("\n{} passed, {} failed", sum(|counted| counted.passed), sum(|counted| counted.failed));
    done.len() == count && done.iter().all(|(_, ok, _)| *ok)
}

/// Runs one binary as cargo would, and shows what it printed when it has ended.
fn run_one(binary: &Binary, logs: &Path) -> (bool, Counted) {
    let log = logs.join(binary.path.file_name().unwrap_or_default()).with_extension("log");
    let began = Instant::now();
    let ran = File::create(&log).and_then(|file| {
        Command::new(&binary.path)
            .current_dir(&binary.package)
            .env("CARGO_MANIFEST_DIR", &binary.package)
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .status()
    });
    let printed = std::fs::read(&log).unwrap_or_default();
    let printed = String::from_utf8_lossy(&printed);
    let ok = match ran {
        Ok(status) => status.success(),
        Err(error) => {
            println!("cannot run {}: {error}", binary.path.display());
            false
        }
    };
    println!("\n--- {}, {:.1} s\n{}", binary.path.display(), began.elapsed().as_secs_f64(), printed.trim_end());
    (ok, counted(&printed))
}

/// What the closing lines of a test binary say.
fn counted(printed: &str) -> Counted {
    let number = |line: &str, word: &str| {
        let before = line.split(word).next()?;
        before.trim_end().rsplit(' ').next()?.parse::<u64>().ok()
    };
    let results = printed.lines().filter(|line| line.starts_with("test result: "));
    results.fold(Counted::default(), |sum, line| Counted {
        passed: sum.passed + number(line, " passed").unwrap_or(0),
        failed: sum.failed + number(line, " failed").unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_binaries_are_told_from_other_artifacts() {
        let message = |test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/isles/crates/sql/Cargo.toml","target":{{"name":"plans"}},
                   "profile":{{"test":{test}}},"executable":{executable}}}"#
            )
        };
        let binary = binary_of(&message(true, "\"/isles/target/plans-1\"")).unwrap();
        assert_eq!((binary.name.as_str(), binary.package.as_path()), ("plans", Path::new("/isles/crates/sql")));
        assert_eq!(binary_of(&message(false, "\"/isles/target/isles\"")), None);
        assert_eq!(binary_of(&message(true, "null")), None);
        assert_eq!(binary_of("not a message"), None);
    }

    #[test]
    fn closing_lines_are_added_up() {
        let printed = "test a ... ok\ntest result: ok. 2 passed; 0 failed; 0 ignored\n\
                       test result: FAILED. 3 passed; 1 failed; 0 ignored";
        assert_eq!(counted(printed), Counted { passed: 5, failed: 1 });
        assert_eq!(counted("nothing"), Counted::default());
    }
}

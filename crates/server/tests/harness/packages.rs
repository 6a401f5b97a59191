//! Packages of other languages for tests, installed once and kept under the target directory.
//!
//! A folder is named after a hash of the pins, so a changed pin makes a new one. Several test processes may want the
//! same folder at once: whoever has its lock installs, the others wait and find it done.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The Python of a venv that has what the text of a requirements file names.
pub(crate) fn python(requirements: &str) -> PathBuf {
    let folder = installed("python", &[requirements], |folder| {
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(folder.join("venv")));
        let pins = folder.join("requirements.txt");
        std::fs::write(&pins, requirements).expect("the folder can be written");
        let mut pip = Command::new(folder.join("venv/bin/python"));
        run(pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--requirement"]).arg(pins));
    });
    folder.join("venv/bin/python")
}

/// A folder with the `node_modules` that a package.json and its lock name.
pub(crate) fn node(package: &str, lock: &str) -> PathBuf {
    installed("node", &[package, lock], |folder| {
        std::fs::write(folder.join("package.json"), package).expect("the folder can be written");
        std::fs::write(folder.join("package-lock.json"), lock).expect("the folder can be written");
        let mut npm = Command::new("npm");
        run(npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]).current_dir(folder));
    })
}

fn installed(kind: &str, pins: &[&str], install: impl FnOnce(&Path)) -> PathBuf {
    let hash = pins
        .concat()
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{kind}-{hash:016x}"));
    std::fs::create_dir_all(&folder).expect("the target directory can be written");
    let lock = File::create(folder.join("lock")).expect("the folder can be written");
    lock.lock().expect("a file can be locked");
    let done = folder.join("done");
    if !done.exists() {
        install(&folder);
        std::fs::write(done, "").expect("the folder can be written");
    }
    folder
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}; ./test installs what it needs"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{said}", output.status);
}

//! Starts cargo for one step, and says how long it took.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// One call of cargo.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) name: &'static str,
    args: Vec<String>,
    envs: Vec<(&'static str, String)>,
}

impl Step {
    pub(crate) fn cargo(name: &'static str, args: &[&str]) -> Step {
        Step { name, args: args.iter().map(ToString::to_string).collect(), envs: Vec::new() }
    }

    pub(crate) fn env(mut self, name: &'static str, value: impl ToString) -> Step {
        self.envs.push((name, value.to_string()));
        self
    }

    /// The step as one would type it.
    pub(crate) fn line(&self) -> String {
        let envs = self.envs.iter().map(|(name, value)| format!("{name}={value}"));
        let args = self.args.iter().cloned();
        envs.chain(["cargo".to_string()]).chain(args).collect::<Vec<_>>().join(" ")
    }

    /// Runs it in `root`; false if it failed or could not be started.
    pub(crate) fn run(&self, root: &Path) -> bool {
        println!("$ {}", self.line());
        let status = cargo().args(&self.args).envs(self.envs.iter().cloned()).current_dir(root).status();
        match status {
            Ok(status) => status.success(),
            Err(error) => {
                eprintln!("cannot start cargo: {error}");
                false
            }
        }
    }
}

/// The cargo that runs us, so that a toolchain chosen with `cargo +name` is kept. It is not told that we are a package
/// being run: some dependencies are built again when that changes, so our steps and a developer's own would take turns.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    let of_package = |name: &OsString| {
        name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"))
    };
    for (name, _) in std::env::vars_os().filter(|(name, _)| of_package(name)) {
        command.env_remove(name);
    }
    command
}

/// Runs `work` and returns what it gave and the time it took.
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let began = Instant::now();
    let value = work();
    (value, began.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_shown_as_one_would_type_it() {
        let step = Step::cargo("sim", &["test", "--release"]).env("ISLES_SIM_SEED", 7);
        assert_eq!(step.line(), "ISLES_SIM_SEED=7 cargo test --release");
    }
}

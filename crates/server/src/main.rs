//! The `isles` binary: the server and the commands, with no workflows of its own.

use isles_workflows::Registry;
use std::process::ExitCode;

/// Statements allocate much that is small and short-lived, on whichever thread they are served. The C library's
/// allocator took a fifth of the time of one that had to be planned.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    isles_server::run(Registry::new())
}

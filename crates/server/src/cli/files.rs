//! Reading files that people name, within a limit.

use super::output::Failure;
use isles_kernel::placement::{ConfigErrors, MAX_CONFIG_BYTES, Placement};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The text of a configuration file.
pub(crate) fn read_config(path: &Path) -> Result<String, Failure> {
    read_text(path, MAX_CONFIG_BYTES)
}

/// The text of a file of at most so many bytes.
///
/// The limit is held while reading and not asked of the file's size, which says nothing about a pipe.
pub(crate) fn read_text(path: &Path, bytes_max: usize) -> Result<String, Failure> {
    let shown = path.display();
    let unreadable = |fault: std::io::Error| {
        let reason = match fault.kind() {
            std::io::ErrorKind::NotFound => "there is no such file".to_owned(),
            std::io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
            std::io::ErrorKind::IsADirectory => "it is a directory".to_owned(),
            _ => fault.to_string(),
        };
        Failure::usage(format!("cannot read {shown}: {reason}")).code("unreadable_file")
    };
    let file = File::open(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    file.take(bytes_max as u64 + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() > bytes_max {
        let message = format!("{shown} is larger than {bytes_max} bytes");
        return Err(Failure::usage(message).code("file_too_large"));
    }
    String::from_utf8(bytes).map_err(|fault| {
        let message = format!("{shown} is not UTF-8 at byte {}", fault.utf8_error().valid_up_to());
        Failure::usage(message).code("not_utf8")
    })
}

/// The placement in a file. For modes that need a valid one and do not list what is wrong.
pub(crate) fn read_placement(path: &Path) -> Result<Placement, Failure> {
    Placement::from_json(&read_config(path)?).map_err(|errors| invalid(path, &errors))
}

fn invalid(path: &Path, errors: &ConfigErrors) -> Failure {
    let count = errors.errors().len();
    let first = &errors.errors()[0];
    let more = if count > 1 { format!(" (and {} more)", count - 1) } else { String::new() };
    Failure::check(format!("{} is not valid: {first}{more}", path.display()))
        .code("invalid_config")
        .field(first.field.clone())
        .hint(format!("isles placement check {} lists every error", path.display()))
}

//! `isles verify` and `isles backup`: the files of SQLite shards.

use super::output::{Failure, Format, FormatArgument, Outcome, complain, say, say_json};
use indicatif::{ProgressBar, ProgressStyle};
use isles_engine::env::{Env, TokioEnv};
use isles_engine::error::ShardError;
use isles_engine::shard::Shard;
use isles_engine::sqlite::backup::{BackupReport, OnProgress};
use isles_engine::sqlite::vfs::checksum::{Report, VerifyError, verify_file};
use isles_engine::sqlite::{SqliteOptions, SqliteShard};
use isles_kernel::names::ShardId;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The file of a shard within its folder.
const FILE: &str = "shard.db";
/// Folders that are looked into: a data folder, its shards, and no further.
const DEPTH: usize = 3;
/// Files checked by one command.
const MAX_FILES: usize = 100_000;

#[derive(clap::Args)]
pub(crate) struct VerifyArguments {
    /// Shard files, backups, or folders of them
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    #[command(flatten)]
    format: FormatArgument,
}

impl VerifyArguments {
    pub(crate) fn format(&self) -> Format {
        self.format.format()
    }
}

#[derive(clap::Args)]
pub(crate) struct BackupArguments {
    /// The shard's file
    shard: PathBuf,
    /// The new file that becomes the backup
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
    #[command(flatten)]
    format: FormatArgument,
}

impl BackupArguments {
    pub(crate) fn format(&self) -> Format {
        self.format.format()
    }
}

/// Checks every page of the given files; says what is wrong with each.
pub(crate) fn verify(arguments: VerifyArguments) -> Result<Outcome, Failure> {
    let mut files = Vec::new();
    for path in &arguments.paths {
        collect(path, DEPTH, &mut files)?;
    }
    if files.is_empty() {
        return Err(Failure::usage("there is no shard file here").hint(format!("a shard's file is called {FILE}")));
    }
    let mut outcome = Outcome::Done;
    for file in &files {
        if verify_one(file, arguments.format())? == Outcome::CheckFailed {
            outcome = Outcome::CheckFailed;
        }
    }
    Ok(outcome)
}

fn collect(path: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<(), Failure> {
    let cannot = |fault: std::io::Error| Failure::usage(format!("cannot read {}: {fault}", path.display())).code("io");
    if !std::fs::metadata(path).map_err(cannot)?.is_dir() {
        files.push(path.to_path_buf());
        return Ok(());
    }
    if depth == 0 {
        return Ok(());
    }
    let mut entries: Vec<PathBuf> = std::fs::read_dir(path)
        .map_err(cannot)?
        .map(|entry| entry.map(|e| e.path()))
        .collect::<Result<_, _>>()
        .map_err(cannot)?;
    entries.sort();
    for entry in entries {
        let is_shard = entry.file_name().is_some_and(|name| name == FILE);
        if entry.is_dir() || is_shard {
            collect(&entry, depth - 1, files)?;
        }
        if files.len() > MAX_FILES {
            return Err(Failure::usage(format!("more than {MAX_FILES} files")).hint("name fewer folders at once"));
        }
    }
    Ok(())
}

fn verify_one(file: &Path, format: Format) -> Result<Outcome, Failure> {
    let found = verify_file(file);
    let outcome = match &found {
        Ok(report) if report.bad_pages.is_empty() => Outcome::Done,
        _ => Outcome::CheckFailed,
    };
    match format {
        Format::Json => say_json(&verdict_json(file, &found))?,
        Format::Text => say_verdict(file, &found),
    }
    Ok(outcome)
}

fn verdict_json(file: &Path, found: &Result<Report, VerifyError>) -> Value {
    match found {
        Ok(report) => json!({"file": file, "valid": report.bad_pages.is_empty(), "pages": report.pages,
                             "replacedByLog": report.replaced_by_log, "badPages": report.bad_pages}),
        Err(error) => json!({"file": file, "valid": false, "error": error.to_string()}),
    }
}

fn say_verdict(file: &Path, found: &Result<Report, VerifyError>) {
    let name = file.display();
    match found {
        Ok(report) if report.bad_pages.is_empty() => say(&format!("{name}: {} pages, all sound", report.pages)),
        Ok(report) => {
            let first: Vec<String> = report.bad_pages.iter().take(10).map(u32::to_string).collect();
            let more = if report.bad_pages.len() > 10 { ", …" } else { "" };
            complain(&format!(
                "{name}: {} of {} pages damaged: {}{more}",
                report.bad_pages.len(),
                report.pages,
                first.join(", ")
            ));
            complain("hint: restore the shard from a backup");
        }
        Err(error) => complain(&format!("{name}: {error}")),
    }
}

/// Copies a shard that no other process has open.
pub(crate) fn backup(arguments: BackupArguments) -> Result<Outcome, Failure> {
    if !arguments.shard.is_file() {
        return Err(Failure::usage(format!("there is no shard {}", arguments.shard.display())).code("io"));
    }
    let runtime = tokio::runtime::Runtime::new().map_err(|fault| Failure::usage(fault.to_string()))?;
    let bar = progress_bar(arguments.format());
    let report = runtime.block_on(copy(&arguments, &bar)).map_err(|error| refusal(&error))?;
    bar.finish_and_clear();
    let (pages, seq, path) = (report.pages, report.seq, report.path.display());
    match arguments.format() {
        Format::Text => say(&format!("{path}: {pages} pages, every change up to {seq}")),
        Format::Json => say_json(&json!({"file": report.path, "pages": pages, "seq": seq}))?,
    }
    Ok(Outcome::Done)
}

async fn copy(arguments: &BackupArguments, bar: &ProgressBar) -> Result<BackupReport, ShardError> {
    let env: Arc<dyn Env> = Arc::new(TokioEnv::current());
    let id = ShardId::new("backup").map_err(|error| ShardError::invalid(error.to_string()))?;
    let shard = SqliteShard::open(id, &arguments.shard, env, SqliteOptions::default()).await?;
    let shown = bar.clone();
    let on_progress: OnProgress = Arc::new(move |progress| {
        shown.set_length(progress.pages_total);
        shown.set_position(progress.pages_copied);
    });
    let report = shard.backup(&arguments.to, on_progress).await;
    shard.close().await?;
    report
}

/// Shown on a terminal only.
fn progress_bar(format: Format) -> ProgressBar {
    if format == Format::Json {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} pages {per_sec} {eta}");
    let bar = ProgressBar::new(0);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

fn refusal(error: &ShardError) -> Failure {
    let people = error.for_people();
    let failure = Failure::usage(people.message).code(people.sqlstate);
    match people.hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

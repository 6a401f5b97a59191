//! The comparison of the index with the runs themselves.
//!
//! ```text
//! every run    ─► its entry, if it is missing or of an earlier version
//! every entry  ─► gone, if its run is; of the run's state, if the run is in an earlier version or differs in the same one
//! ```
//!
//! An entry is of a version that its run has had, and versions only rise: a run that is read after its entry has at least
//! that version. If it has an earlier one, its shard has gone back in time (it was restored from a backup), and the entry
//! is of a future that does not come. Nothing is changed of an entry that is not as it was read.

use super::follow::{Indexed, drop_copy, put};
use crate::engine::Engine;
use crate::error::Result;
use crate::lines::{Lines, Reply, Said, params, text};
use isles_kernel::runs::names::RunKey;
use isles_kernel::runs::places::Spread;
use isles_kernel::value::Value;
use std::collections::BTreeMap;

/// Runs or entries of one page of a comparison.
const PAGE: i64 = 1_000;

const PAGE_OF_RUNS: &str = "SELECT run, type, id, status, version, created_at, updated_at, attributes FROM isles.runs \
    WHERE run > $1 ORDER BY run LIMIT $2";
const RUNS: &str = "SELECT run, type, id, status, version, created_at, updated_at, attributes FROM isles.runs \
    WHERE run = ANY($1)";
// The first column is where a run has its key.
const ENTRIES: &str = "SELECT index_shard, type, id, status, version, created_at, updated_at, attributes \
    FROM isles.run_index WHERE index_shard = $1 AND id > $2 ORDER BY id LIMIT $3";
const CORRECT: &str = "UPDATE isles.run_index SET status = $4, version = $5, created_at = $6, updated_at = $7, \
    attributes = $8 WHERE index_shard = $1 AND id = $2 AND version = $3";

/// What a comparison has put right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mended {
    /// Entries that were written.
    pub written: u64,
    /// Entries that were removed, since there is no such run.
    pub removed: u64,
}

/// Compares the index with all runs, and puts right what differs.
pub(crate) async fn mend(engine: &Engine) -> Result<Mended> {
    super::resize::learn(engine).await?;
    let mut mended = Mended { written: from_runs(engine).await?, removed: 0 };
    for (kind, spread) in engine.spreads() {
        for name in spread.all(&kind) {
            from_entries(engine, &kind, spread, &name, &mut mended).await?;
        }
    }
    Ok(mended)
}

/// Writes the entries of all runs that are missing or of an earlier version.
pub(crate) async fn from_runs(engine: &Engine) -> Result<u64> {
    let (mut after, mut written) = (String::new(), 0);
    loop {
        let page = engine.lines.one(PAGE_OF_RUNS, params![after.as_str(), PAGE]).await?;
        let Some(last) = page.rows.last().and_then(|row| text(row.first()?)) else { return Ok(written) };
        after = last.to_owned();
        // A type that nobody has registered has no index shards; nobody lists it either.
        let runs = read(&page).into_values().filter(|run| engine.spread(&run.kind).is_ok());
        written += put(engine, runs).await?;
    }
}

fn read(reply: &Reply) -> BTreeMap<String, Indexed> {
    let run = |row: &Vec<Value>| Some((text(row.first()?)?.to_owned(), Indexed::read(row, false)?));
    reply.rows.iter().filter_map(run).collect()
}

async fn from_entries(engine: &Engine, kind: &str, spread: Spread, name: &str, mended: &mut Mended) -> Result<()> {
    let (lines, mut after) = (&engine.lines, String::new());
    loop {
        let page = lines.one(ENTRIES, params![name, after.as_str(), PAGE]).await?;
        let Some(last) = page.rows.last().and_then(|row| text(row.get(2)?)) else { return Ok(()) };
        after = last.to_owned();
        let entries = page.rows.iter().filter_map(|row| Indexed::read(row, false)).filter(|entry| entry.kind == kind);
        // Read after the entries: each run is at least as late as its entry.
        let entries: Vec<(String, Indexed)> = entries.filter_map(keyed).collect();
        let runs = runs_of(lines, &entries).await?;
        let (mut gone, mut wrong) = (Vec::new(), Vec::new());
        for (key, entry) in &entries {
            match runs.get(key) {
                // What earlier systems have left has no run here.
                None if spread.is_legacy() => {}
                None => gone.push(drop_copy(name, entry)),
                Some(run) if run.version < entry.version || (run.version == entry.version && run != entry) => {
                    wrong.push(correct(name, entry.version, run));
                }
                Some(_) => {}
            }
        }
        mended.removed += say(lines, gone).await?;
        mended.written += say(lines, wrong).await?;
    }
}

fn keyed(entry: Indexed) -> Option<(String, Indexed)> {
    let key = RunKey::new(&entry.kind, &entry.id).ok()?;
    Some((key.as_str().to_owned(), entry))
}

async fn runs_of(lines: &Lines, entries: &[(String, Indexed)]) -> Result<BTreeMap<String, Indexed>> {
    let keys = entries.iter().map(|(key, _)| Value::Text(key.clone())).collect();
    Ok(read(&lines.one(RUNS, vec![Value::Array(keys)]).await?))
}

fn correct(name: &str, seen: i64, run: &Indexed) -> Said {
    let params = params![
        name,
        run.id.as_str(),
        seen,
        run.status.as_str(),
        run.version,
        run.created_at,
        run.updated_at,
        run.attributes.as_str()
    ];
    (CORRECT, params)
}

async fn say(lines: &Lines, all: Vec<Said>) -> Result<u64> {
    if all.is_empty() {
        return Ok(0);
    }
    Ok(lines.together(all).await?.iter().map(|reply| reply.affected).sum())
}

//! PostgreSQL is the oracle: random statements run on plain PostgreSQL and on Isles, and the answers agree.
//!
//! Isles runs over SQLite with 1, 3 and 8 shards, and over PostgreSQL shards. What Isles refuses (0A000) is not run
//! on the oracle either, and is counted: a test that only refuses proves nothing.
//!
//! `ISLES_FUZZ_SEED` replays one history, `ISLES_FUZZ_STATEMENTS` sets how many statements each setup runs.

mod compare;
#[path = "../harness/mod.rs"]
mod harness;
mod tenants;
mod texts;

use compare::History;
use harness::Setup;

/// Statements of one setup in CI; four setups make ten thousand.
const STATEMENTS: u64 = 2_500;
/// Statements of one history: a schema, its data, and what is done to them.
const HISTORY: u64 = 250;
/// Of a hundred statements, at most so many may be refused.
const REFUSED_PERCENT: u64 = 15;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text}")))
}

async fn agree(setup: Setup, first_seed: u64) {
    if let Some(seed) = number("ISLES_FUZZ_SEED") {
        let history = History::run(setup, seed, HISTORY).await;
        println!("{}", history.counts);
        history.assert_agreed();
        return;
    }
    let statements = number("ISLES_FUZZ_STATEMENTS").unwrap_or(STATEMENTS);
    let mut total = compare::Counts::default();
    for seed in first_seed..first_seed + statements.div_ceil(HISTORY) {
        let history = History::run(setup, seed, HISTORY).await;
        history.assert_agreed();
        total.add(&history.counts);
    }
    println!("{total}");
    assert!(total.refused * 100 <= total.statements * REFUSED_PERCENT, "too much is refused: {total}");
    assert!(total.rows > total.statements, "hardly any statement returned rows: {total}");
}

async fn neighbours_agree(setup: Setup, first_seed: u64) {
    let statements = number("ISLES_FUZZ_STATEMENTS").unwrap_or(STATEMENTS) / 2;
    let seeds = match number("ISLES_FUZZ_SEED") {
        Some(seed) => seed..seed + 1,
        None => first_seed..first_seed + statements.div_ceil(HISTORY),
    };
    let mut total = compare::Counts::default();
    for seed in seeds {
        for history in tenants::run(setup, seed, HISTORY).await {
            history.assert_agreed();
            total.add(&history.counts);
        }
    }
    println!("{total}");
    assert!(total.rows > total.statements, "hardly any statement returned rows: {total}");
}

/// I-41: whatever others do, a tenant sees what a database of its own would show.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenants_of_sqlite_shards_do_not_notice_each_other() {
    neighbours_agree(Setup::Sqlite { shards: 1 }, 5_000).await;
    neighbours_agree(Setup::Sqlite { shards: 3 }, 5_500).await;
}

/// I-41
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenants_of_postgresql_shards_do_not_notice_each_other() {
    neighbours_agree(Setup::Postgres { shards: 1 }, 6_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_sqlite_shard_agrees_with_postgresql() {
    agree(Setup::Sqlite { shards: 1 }, 1_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_sqlite_shards_agree_with_postgresql() {
    agree(Setup::Sqlite { shards: 3 }, 2_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_sqlite_shards_agree_with_postgresql() {
    agree(Setup::Sqlite { shards: 8 }, 3_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgresql_shards_agree_with_postgresql() {
    agree(Setup::Postgres { shards: 2 }, 4_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn texts_that_differ_in_their_values_agree_with_postgresql() {
    texts::texts_agree(Setup::Sqlite { shards: 3 }).await;
    texts::texts_agree(Setup::Postgres { shards: 2 }).await;
}

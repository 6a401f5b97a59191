//! Nothing of a tenant reaches a session that is not its own, with either fence taken away.
//!
//!     victim    ── rows whose every value is a canary ──► shard
//!     intruders ── generated statements, as another tenant, as the null tenant, and as nobody ──► no canary comes back
//!
//! The intruders are no administrators, and try to be taken for one: an administrator may read all tenants, and does.
//!
//! There are two fences: planning puts the tenant into every statement and proves that it is there, and the shard shows and
//! changes the rows of one tenant. The statements run with both, and with each one alone. With neither they find canaries,
//! which shows that they would.
//!
//! Planted bugs are for the whole process, so this program has one test, and its parts follow one another.
//! `ISLES_CANARY_STATEMENTS` sets how many statements each of the first parts runs.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall say where")]

#[path = "../session/harness.rs"]
#[allow(dead_code, reason = "other programs use the rest")]
mod harness;
mod intrusion;

use intrusion::{Found, Intrusion};
use isles_sim::pgserver;
use isles_sql::planted::{self, Bug};

/// Statements of each of the nine parts that must find nothing: over a hundred thousand in all.
const STATEMENTS: u64 = 17_000;
/// Of those, on PostgreSQL shards, which take longer.
const ON_POSTGRES: u64 = STATEMENTS / 8;
/// Statements within which a bug must show.
const SOON: u64 = 3_000;

fn statements() -> u64 {
    let text = std::env::var("ISLES_CANARY_STATEMENTS").ok();
    text.map_or(STATEMENTS, |text| text.parse().expect("ISLES_CANARY_STATEMENTS is a number"))
}

async fn over_sqlite(seed: u64, statements: u64) -> Found {
    let db = harness::Db::sqlite(1).await;
    Intrusion::prepare(&db, seed).await.run(&db, statements).await
}

async fn over_postgres(seed: u64, statements: u64) -> Found {
    let db = harness::Db::postgres(vec![pgserver::shared().create_database()]).await;
    Intrusion::prepare(&db, seed).await.run(&db, statements).await
}

/// I-41, I-42, I-44, I-69, planted bug 17: with either fence, and with the tenant missing in UNION, in WITH or in a subquery.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_canary_reaches_another_tenant() {
    let one_fence: [&[Bug]; 3] = [&[], &[Bug::Unscoped, Bug::Unproven], &[Bug::OpenStorage]];
    let mut total = 0;
    for (part, bugs) in (0..).zip(one_fence) {
        planted::plant(bugs);
        let found = over_sqlite(100 + part, statements() * 2).await;
        found.assert_none(bugs);
        total += found.statements;
        let found = over_postgres(200 + part, statements() / STATEMENTS.div_ceil(ON_POSTGRES)).await;
        found.assert_none(bugs);
        total += found.statements;
    }
    assert!(total >= 100_000 || statements() != STATEMENTS, "only {total} statements were run");

    let forgotten = [Bug::UnscopedSetOperation, Bug::UnscopedCte, Bug::UnscopedSubquery];
    for (part, bug) in (0..).zip(forgotten) {
        planted::plant(&[bug]);
        let found = over_sqlite(300 + part, SOON).await;
        found.assert_none(&[bug]);
        assert!(found.unproven > 0, "nobody noticed {bug:?}");
        planted::plant(&[bug, Bug::Unproven]);
        over_sqlite(400 + part, SOON).await.assert_none(&[bug, Bug::Unproven]);
        planted::plant(&[bug, Bug::Unproven, Bug::OpenStorage]);
        assert!(over_sqlite(500 + part, SOON).await.is_some(), "{bug:?} is there, and no statement shows it");
    }
    planted::plant(&[Bug::Unscoped, Bug::Unproven, Bug::OpenStorage]);
    assert!(over_sqlite(600, SOON).await.is_some(), "without fences there is nothing to see");
    assert!(over_postgres(601, SOON).await.is_some(), "without fences there is nothing to see");
    planted::plant(&[]);
}

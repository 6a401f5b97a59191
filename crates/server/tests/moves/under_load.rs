//! Clients that do not notice that their tenant moves: a server, as a process, kept busy while a tenant goes there and
//! back. How long anybody waits is measured by `cargo xtask bench moves`; here it counts what is right.

use crate::harness::{Server, Setup};
use crate::load::meter::{Whose, pauses};
use crate::load::moving::move_tenant;
use crate::load::{Load, Shape, World};
use std::time::Duration;

/// There and back so often: some seconds for each pair of engines.
const ROUNDS: usize = 2;
const SHAPE: Shape = Shape { movers: 6, others: 4, still_rows: 1_000 };
/// Of the capacity, which is measured first.
const SHARE: f64 = 0.7;

/// One load at a time: two at once would each find a capacity that the other one takes away.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// No client sees an error, and each has exactly what was acknowledged to it.
async fn clients_do_not_notice_moves(setup: Setup) {
    let _alone = ALONE.lock().await;
    let server = Server::start(setup).await;
    let world = World::make(server.url(), ("s0", "s1"), SHAPE).await.unwrap();
    let load = Load::start(&world).await.unwrap();
    let capacity = load.capacity(Duration::from_secs(1)).await;
    load.pace(capacity * SHARE);
    let mut moves = Vec::new();
    for to in ["s1", "s0"].into_iter().cycle().take(2 * ROUNDS) {
        let moved = move_tenant(&world.admin, load.origin(), &world.mover, to, |_| {}).await.unwrap();
        assert!(moved.rows >= SHAPE.still_rows as u64, "{moved:?}");
        moves.push(moved);
    }
    let outcome = load.finish(&world).await.unwrap();
    assert!(outcome.is_exact(), "{} errors, {} wrong: {:#?}", outcome.errors, outcome.wrong, outcome.texts);
    // All of this happened while clients worked.
    let noticed = pauses(&outcome.samples, &moves);
    assert!(noticed.len() >= moves.len(), "{} of {} moves met a client", noticed.len(), moves.len());
    for whose in [Whose::Mover, Whose::Other] {
        let during = |moved: &crate::load::moving::Moved| {
            outcome.samples.iter().any(|sample| sample.whose == whose && sample.is_within(moved.copying))
        };
        assert!(moves.iter().all(during), "{whose:?} worked during every copy");
    }
    assert!(outcome.writes > 100, "{} writes", outcome.writes);
}

/// I-1, I-11, I-14
#[tokio::test(flavor = "multi_thread")]
async fn clients_do_not_notice_moves_between_sqlite_files() {
    clients_do_not_notice_moves(Setup::Sqlite { shards: 2 }).await;
}

/// I-1, I-11, I-14
#[tokio::test(flavor = "multi_thread")]
async fn clients_do_not_notice_moves_between_postgresql_servers() {
    clients_do_not_notice_moves(Setup::Postgres { shards: 2 }).await;
}

/// I-1, I-11, I-14
#[tokio::test(flavor = "multi_thread")]
async fn clients_do_not_notice_moves_from_sqlite_to_postgresql() {
    clients_do_not_notice_moves(Setup::Both { each: 1 }).await;
}

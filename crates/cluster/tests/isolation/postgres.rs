//! Histories over PostgreSQL shards: real servers, real time, and the level that was asked for.

use crate::client::{Client, Looks, Record, SCHEMA, Shared, ask, lists, session};
use isles_cluster::database::{Config, Database};
use isles_engine::env::TokioEnv;
use isles_sim::check::{Checked, Kind, Level, check};
use isles_sim::pgserver;
use isles_sim::rng::Rng;
use std::sync::Arc;

const CLIENTS: u64 = 6;
const TXNS: u64 = 40;

/// Runs clients at a level, and returns what the checker says, and how often a transaction was refused.
async fn history(shards: usize, level: &str, looks: Looks) -> (Result<Checked, Kind>, u64) {
    let urls = (0..shards).map(|_| pgserver::shared().create_database()).collect();
    let folder = tempfile::tempdir().unwrap();
    let config = Config::postgres(folder.path(), urls);
    let database = Database::open(config, Arc::new(TokioEnv::current())).await.unwrap();
    ask(&mut session(&database).unwrap(), SCHEMA).await.unwrap();
    let record = Shared::default();
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        let (mut session, record, rng) = (session(&database).unwrap(), record.clone(), Rng::new(number));
        // Of statements that are alone, too: what is not serializable itself makes others see that it is not.
        let said = format!("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {level}");
        ask(&mut session, &said).await.unwrap();
        // Two that wait for each other on different servers wait until then: neither server sees the ring.
        ask(&mut session, "SET statement_timeout = '1s'").await.unwrap();
        clients.push(tokio::spawn(
            Client { number, session, record, rng, looks, is_brief: false, thinks: None }.run(TXNS),
        ));
    }
    for client in clients {
        client.await.unwrap();
    }
    let rows = ask(&mut session(&database).unwrap(), "SELECT k, v FROM lists").await.unwrap();
    database.close().await.unwrap();
    let Record { mut history, errors, .. } = std::mem::take(&mut *record.lock().unwrap());
    history.final_state = Some(lists(&rows));
    println!("{shards} shards, {level}: {errors:?}");
    let verdict = check(&history, Level::Serializable).map_err(|failure| failure.kind().expect("well formed"));
    (verdict, errors.get("40001").copied().unwrap_or(0))
}

/// I-19: at `serializable` some serial order explains everything; the transactions really met.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgresql_shard_is_serializable_when_asked() {
    let (verdict, refused) = history(1, "SERIALIZABLE", Looks::Any).await;
    let checked = verdict.expect("serializable");
    assert!(checked.txns > 50 && checked.reads > 100 && refused > 0, "{checked:?}, {refused} refused");
}

/// I-19: at `repeatable read`, which is snapshot isolation, only write skew may be seen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgresql_shard_has_snapshots_when_asked() {
    let (verdict, refused) = history(1, "REPEATABLE READ", Looks::Any).await;
    assert!(matches!(verdict, Ok(_) | Err(Kind::G2Item)), "{verdict:?}");
    assert!(refused > 0, "nobody met");
}

/// I-19, I-20: at `read committed`, over several shards, nothing is lost, half seen, or seen of what was rolled back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgresql_shards_show_what_is_committed() {
    for shards in [1, 2] {
        let (verdict, _) = history(shards, "READ COMMITTED", Looks::Once).await;
        assert!(matches!(verdict, Ok(_) | Err(Kind::GSingle | Kind::G2Item)), "{verdict:?}");
    }
}

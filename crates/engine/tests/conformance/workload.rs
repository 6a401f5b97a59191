//! Writers that do a bit of everything to one table, from a seed.

use crate::given::*;
use crate::random;
use isles_engine::error::{Result, ShardError};
use isles_engine::fence::Access;
use isles_engine::shard::Statement;
use isles_sim::rng::Rng;

/// Few keys, so that writers meet.
const KEYS: u64 = 24;

const UPSERT: &str = "INSERT INTO users (_bucket, id, email, n) VALUES ($1, $2, $3, $4) \
                      ON CONFLICT (id) DO UPDATE SET n = users.n + 1, email = excluded.email";

/// Runs `writers` tasks, each with `count` transactions on `users`, and waits for them.
pub(crate) async fn run(db: &Db, rng: Rng, writers: usize, count: usize) {
    let tasks: Vec<_> =
        (0..writers).map(|at| tokio::spawn(writer(db.clone(), rng.fork(&format!("writer {at}")), count))).collect();
    for task in tasks {
        task.await.expect("a writer");
    }
}

async fn writer(db: Db, mut rng: Rng, count: usize) {
    for _ in 0..count {
        match step(&db, &mut rng).await {
            Ok(()) | Err(ShardError::Conflict(_)) => {}
            // Two rows with one key: an error that the workload is meant to make.
            Err(ShardError::Statement(error)) if error.sqlstate == "23505" => {}
            Err(other) => panic!("{other:?}"),
        }
    }
}

async fn step(db: &Db, rng: &mut Rng) -> Result<()> {
    let statements = match rng.below(9) {
        0 | 1 => vec![some_insert(rng)],
        2 => vec![Statement::new(UPSERT, some_insert(rng).params)],
        3 => vec![Statement::new("UPDATE users SET n = n + 1 WHERE id = $1", values![key(rng)])],
        4 => vec![Statement::new("UPDATE users SET n = n + 1 WHERE id < $1", values![key(rng)])],
        5 => vec![delete(key(rng))],
        6 => {
            let id = key(rng);
            vec![delete(id), insert_user(id, "again", 0), delete(id), insert_user(id, "and again", 1)]
        }
        7 => {
            let (old, new) = (key(rng), key(rng));
            let sql = "UPDATE users SET id = $1, _bucket = $2 WHERE id = $3";
            vec![Statement::new(sql, values![new, i64::from(bucket_of(new).0), old])]
        }
        _ => return interactive(db, rng).await,
    };
    db.write(statements).await.map(drop)
}

/// Some work, a part of which is rolled back.
async fn interactive(db: &Db, rng: &mut Rng) -> Result<()> {
    let mut open = db.transaction(Access::Write).await;
    let upsert = Statement::new(UPSERT, some_insert(rng).params);
    open.execute(&upsert).await?;
    open.savepoint("s").await?;
    let tried = match open.execute(&some_insert(rng)).await {
        Ok(_) => open.execute(&delete(key(rng))).await,
        error => error,
    };
    match tried {
        Err(error @ ShardError::Conflict(_)) => return Err(error),
        Err(_) => open.rollback_to("s").await?,
        Ok(_) if rng.chance(1, 2) => open.rollback_to("s").await?,
        Ok(_) => open.release("s").await?,
    }
    if rng.chance(1, 4) { open.rollback().await } else { open.commit().await }
}

fn key(rng: &mut Rng) -> i64 {
    rng.below(KEYS) as i64
}

fn delete(id: i64) -> Statement {
    Statement::new("DELETE FROM users WHERE id = $1", values![id])
}

fn some_insert(rng: &mut Rng) -> Statement {
    insert_user(key(rng), &random::text(rng, 6), rng.below(100) as i64)
}

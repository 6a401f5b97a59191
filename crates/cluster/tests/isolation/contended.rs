//! Clients who want the same few keys of a unique global index, beside those of [`crate::keyed`].
//!
//! None of them knows who has a key. What must hold is that nobody ever sees two rows with one, and that in the end every
//! key can be had (I-26).

use crate::client::ask;
use crate::keyed::{Shared, object, saw};
use isles_cluster::session::Session;
use isles_engine::env::Env;
use isles_kernel::error::SqlError;
use isles_kernel::value::Value;
use isles_sim::rng::Rng;
use std::sync::Arc;
use std::time::Duration;

pub(crate) const GROUP: &str = "u";
pub(crate) const INDEX: &str = "u_k";
pub(crate) const CREATE: [&str; 2] = [
    "CREATE TABLE IF NOT EXISTS u (id int PRIMARY KEY, k int NOT NULL) WITH (\"group\" = 'u', buckets = 16)",
    "CREATE UNIQUE INDEX IF NOT EXISTS u_k ON u (k) WITH (global)",
];
pub(crate) const CONTENDERS: u64 = 2;
/// So few that two want the same one at a time.
const KEYS: u64 = 4;

pub(crate) struct Contender {
    pub(crate) session: Session,
    pub(crate) told: Shared,
    pub(crate) rng: Rng,
    pub(crate) env: Arc<dyn Env>,
    /// How long it thinks at most between two transactions.
    pub(crate) thinks: Duration,
}

impl Contender {
    pub(crate) async fn run(mut self, transactions: u64) {
        for _ in 0..transactions {
            if let Err(error) = self.transaction().await {
                let what =
                    if error.sqlstate == "23505" { "key refused".into() } else { format!("key: {}", error.sqlstate) };
                saw(&self.told, what);
                // It may be in no transaction.
                let _ = ask(&mut self.session, "ROLLBACK").await;
            }
            self.look().await;
            let thinks = Duration::from_micros(self.rng.below(self.thinks.as_micros() as u64));
            self.env.sleep(thinks).await;
        }
        self.told.lock().unwrap().ended += 1;
    }

    fn draw(&mut self) -> String {
        let (id, key, other) = (self.rng.below(1 << 30), self.rng.below(KEYS), self.rng.below(KEYS));
        match self.rng.below(6) {
            0 => format!("DELETE FROM u WHERE k = {key}"),
            1 => format!("UPDATE u SET k = {other} WHERE k = {key}"),
            _ => format!("INSERT INTO u VALUES ({id}, {key})"),
        }
    }

    async fn transaction(&mut self) -> Result<(), SqlError> {
        if self.rng.chance(2, 3) {
            let sql = self.draw();
            ask(&mut self.session, &sql).await?;
        } else {
            ask(&mut self.session, "BEGIN").await?;
            for _ in 0..2 {
                let sql = self.draw();
                ask(&mut self.session, &sql).await?;
            }
            let end = if self.rng.chance(1, 4) { "ROLLBACK" } else { "COMMIT" };
            ask(&mut self.session, end).await?;
        }
        saw(&self.told, "key taken");
        Ok(())
    }

    /// Nobody sees a key twice.
    async fn look(&mut self) {
        let sql = "SELECT k, count(*) FROM u GROUP BY k HAVING count(*) > 1";
        match ask(&mut self.session, sql).await {
            Ok(twice) if !twice.is_empty() => object(&self.told, format!("I-26: keys with several rows: {twice:?}")),
            Ok(_) => saw(&self.told, "keys looked at"),
            Err(error) => saw(&self.told, format!("keys not looked at: {}", error.sqlstate)),
        }
    }
}

/// Every key can be had, or is: none is held by somebody who has gone.
pub(crate) async fn check_keys(session: &mut Session) -> Result<(), String> {
    for key in 0..KEYS {
        match ask(session, &format!("INSERT INTO u VALUES ({}, {key})", -1 - key as i64)).await {
            Err(error) if error.sqlstate != "23505" => return Err(format!("I-26: key {key} cannot be had: {error}")),
            _ => {}
        }
    }
    let found =
        ask(session, "SELECT k, count(*) FROM u GROUP BY k ORDER BY k").await.map_err(|error| error.to_string())?;
    let wanted: Vec<Vec<Value>> = (0..KEYS as i64).map(|key| vec![Value::Int(key), Value::Int(1)]).collect();
    if found == wanted { Ok(()) } else { Err(format!("I-26: keys and their rows are {found:?}")) }
}

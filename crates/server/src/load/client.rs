//! One client: a connection, statements one after the other, and the record of what they were answered.

use super::meter::{Sample, Whose};
use super::record::{Act, Held, Record};
use super::{Fault, Shared, connect};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;
use tokio_postgres::{Client, Error, Row, Statement};

/// A client at full speed looks up from its work so often, to see whether it is to stop or to slow down.
const FULL_SPEED: Duration = Duration::ZERO;
/// Errors and contradictions whose texts are kept for each client; all are counted.
const MAX_KEPT: usize = 5;

/// What became of a client.
pub(crate) struct Told {
    pub(crate) tenant: String,
    pub(crate) record: Record,
    /// Statements that failed, and answers that cannot be.
    pub(crate) errors: u64,
    pub(crate) wrong: u64,
    /// The first of both.
    pub(crate) texts: Vec<String>,
}

/// A connected client.
pub(crate) struct Worker {
    number: usize,
    whose: Whose,
    connection: Client,
    read: Statement,
    insert: Statement,
    count_up: Statement,
    delete: Statement,
    told: Told,
}

/// What a row holds, if there is one.
fn held(rows: &[Row]) -> Option<Held> {
    rows.first().map(|row| Held { life: row.get(0), n: row.get(1) })
}

impl Worker {
    pub(crate) async fn open(url: &str, number: usize, tenant: &str, whose: Whose) -> Result<Worker, Fault> {
        let connection = connect(url, Some(tenant)).await?;
        let mut prepared = Vec::new();
        for sql in [
            "SELECT life, n FROM entries WHERE id = $1",
            "INSERT INTO entries (id, life, n) VALUES ($1, $2, 0) RETURNING life, n",
            "UPDATE entries SET n = n + 1 WHERE id = $1 RETURNING life, n",
            "DELETE FROM entries WHERE id = $1 RETURNING life, n",
        ] {
            prepared.push(connection.prepare(sql).await.map_err(|error| Fault::of(sql, &error))?);
        }
        let [read, insert, count_up, delete] = <[Statement; 4]>::try_from(prepared).expect("there are four");
        let record = Record::new(number);
        let told = Told { tenant: tenant.to_owned(), record, errors: 0, wrong: 0, texts: Vec::new() };
        Ok(Worker { number, whose, connection, read, insert, count_up, delete, told })
    }

    /// Works until it is told to stop, at the pace of the moment.
    pub(crate) async fn work(mut self, shared: Arc<Shared>) -> Told {
        let mut due = Instant::now();
        while !shared.is_over.load(Ordering::Relaxed) {
            let interval = Duration::from_micros(shared.interval_micros.load(Ordering::Relaxed));
            if interval > FULL_SPEED {
                // One who was held does not make up for it: that would be more than its share afterwards.
                due = Instant::now().max(due + interval);
                tokio::time::sleep_until(due).await;
            }
            let sent = shared.origin.elapsed();
            self.act().await;
            let took = shared.origin.elapsed().saturating_sub(sent);
            shared.meter.note(Sample { client: self.number, whose: self.whose, sent, took });
            if self.connection.is_closed() {
                break;
            }
        }
        self.told
    }

    async fn act(&mut self) {
        let (id, act) = self.told.record.draw();
        match self.perform(id, act).await {
            Ok(answer) => {
                if let Err(contradiction) = self.told.record.settle(id, act, answer) {
                    self.told.wrong += 1;
                    self.keep(contradiction);
                }
            }
            Err(error) => {
                self.told.record.doubt(id);
                self.told.errors += 1;
                self.keep(Fault::of(&format!("{act:?}"), &error).0);
                // Of a transaction that has failed nothing is left; outside of one this is only remarked on.
                let _ = self.connection.batch_execute("ROLLBACK").await;
            }
        }
    }

    fn keep(&mut self, text: String) {
        if self.told.texts.len() < MAX_KEPT {
            self.told.texts.push(format!("client {}: {text}", self.number));
        }
    }

    async fn perform(&self, id: i64, act: Act) -> Result<Option<Held>, Error> {
        let connection = &self.connection;
        let rows = match act {
            Act::Read => connection.query(&self.read, &[&id]).await?,
            Act::Insert { life } => connection.query(&self.insert, &[&id, &life]).await?,
            Act::CountUp => connection.query(&self.count_up, &[&id]).await?,
            Act::Delete => connection.query(&self.delete, &[&id]).await?,
            Act::CountUpTwice => {
                connection.batch_execute("BEGIN").await?;
                connection.query(&self.count_up, &[&id]).await?;
                let rows = connection.query(&self.count_up, &[&id]).await?;
                connection.batch_execute("COMMIT").await?;
                rows
            }
        };
        Ok(held(&rows))
    }
}

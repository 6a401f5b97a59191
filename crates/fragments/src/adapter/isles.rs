//! A whole Isles database: the shard of a fragment is the tenant of a session.
//!
//! Tables are tenant tables, so the database itself scopes every statement, leads every key by the tenant, and moves the
//! rows of a tenant together: its clock, outbox and hooks go where its rows go, and cursors go on (I-31). Tables that
//! belong to the database are global tables.

use super::sql::transaction::{Link, SqlTransaction};
use super::sql::{Dialect, Print, Statement, ddl, quoted};
use super::sqlite::shard_of;
use super::{Access, Adapter, Assign, Mode, Note, Row, Select, Siblings, Step, Tables, Transaction};
use crate::condition::Condition;
use crate::error::{Code, Error, Result, refused};
use crate::query::Direction;
use crate::schema::{ID, Owner, Table};
use crate::shard::Shard;
use async_trait::async_trait;
use isles_cluster::database::Database;
use isles_cluster::roles::Role;
use isles_cluster::session::{Answer, Login, Session};
use isles_engine::postgres::wire::type_of;
use isles_kernel::value::Value;
use isles_sql::types::Oid;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Rows that are taken from a result at a time.
const BATCH: usize = 1_000;
/// Tenants that are remembered for the time in which they cannot be listed; beyond that some wait until they can.
const MAX_KNOWN: usize = 100_000;
/// Rows that get their shard in one transaction.
const ASSIGN_ROWS: usize = 500;

/// An Isles database as a database for fragments.
pub struct Isles {
    database: Arc<Database>,
    name: String,
    /// Tenants that were listed last, or have been written to since. A list asks all shards; when one of them is away,
    /// those of the others are found here.
    known: Mutex<BTreeSet<Shard>>,
    /// Held by the one who changes the schema: several at once would wait for each other until one of them is ended, and
    /// again.
    changing: tokio::sync::Mutex<()>,
}

impl Isles {
    /// A database that is open in this process, by the name that clients call it.
    pub fn new(database: Arc<Database>, name: &str) -> Isles {
        Isles { database, name: name.into(), known: Mutex::default(), changing: tokio::sync::Mutex::default() }
    }

    fn session(&self, shard: Option<&Shard>) -> Result<Session> {
        self.session_with(match shard {
            None => None,
            Some(Shard::None) => Some(("isles.null_tenant".into(), "on".into())),
            Some(Shard::Named(name)) => Some(("isles.tenant".into(), name.as_str().into())),
        })
    }

    fn session_with(&self, setting: Option<(String, String)>) -> Result<Session> {
        let login = Login {
            user: "fragments".into(),
            database: self.name.clone(),
            settings: setting.into_iter().collect(),
            role: Role { admin: true, ..Role::default() },
        };
        Ok(self.database.session(login)?)
    }

    async fn texts(&self, sql: &str) -> Result<Vec<Vec<Value>>> {
        let mut session = self.session(None)?;
        run(&mut session, sql, &[], &[]).await.map(|(rows, _)| rows)
    }

    fn known(&self) -> MutexGuard<'_, BTreeSet<Shard>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All tenants that there are, and the null tenant; those that are known, if they cannot be listed.
    async fn shards(&self) -> Result<BTreeSet<Shard>> {
        let rows = match self.texts("SHOW TENANTS").await {
            Ok(rows) => rows,
            Err(error) => {
                let known = self.known().clone();
                return if known.is_empty() { Err(error) } else { Ok(known) };
            }
        };
        let listed = rows.into_iter().map(|row| shard_of(row.into_iter().next()));
        let shards = listed.chain([Ok(Shard::None)]).collect::<Result<BTreeSet<_>>>()?;
        *self.known() = shards.iter().take(MAX_KNOWN).cloned().collect();
        Ok(shards)
    }
}

/// Runs a statement: its rows, and how many it has changed.
async fn run(
    session: &mut Session,
    sql: &str,
    params: &[Value],
    types: &[isles_kernel::value::DataType],
) -> Result<(Vec<Vec<Value>>, u64)> {
    let types: Vec<Oid> = types.iter().map(|ty| Oid(type_of(*ty).oid())).collect();
    let prepared = session.prepare(sql, &types).await?;
    match session.execute(&prepared, params.to_vec()).await? {
        Answer::Rows(mut rows) => {
            let mut found = Vec::new();
            while let Some(batch) = rows.next(BATCH).await? {
                found.extend(batch);
            }
            let count = found.len() as u64;
            Ok((found, count))
        }
        Answer::Done { tag } => {
            let count = tag.rsplit(' ').next().and_then(|count| count.parse().ok());
            Ok((Vec::new(), count.unwrap_or(0)))
        }
        _ => Ok((Vec::new(), 0)),
    }
}

struct IslesLink {
    /// Dropping it undoes what is open.
    session: Session,
}

#[async_trait]
impl Link for IslesLink {
    async fn query(&mut self, statement: &Statement) -> Result<Vec<Vec<Value>>> {
        run(&mut self.session, &statement.sql, &statement.params, &statement.types).await.map(|(rows, _)| rows)
    }

    async fn execute(&mut self, statement: &Statement) -> Result<u64> {
        run(&mut self.session, &statement.sql, &statement.params, &statement.types).await.map(|(_, count)| count)
    }

    async fn command(&mut self, sql: &str) -> Result<()> {
        run(&mut self.session, sql, &[], &[]).await.map(|_| ())
    }

    async fn commit(mut self: Box<Self>) -> Result<()> {
        self.command("COMMIT").await
    }

    async fn roll_back(mut self: Box<Self>) {
        // A session that is dropped undoes what it has not.
        let _ = self.command("ROLLBACK").await;
    }
}

#[async_trait]
impl Adapter for Isles {
    fn name(&self) -> &'static str {
        "isles"
    }

    async fn begin(&self, access: &Access, mode: Mode) -> Result<Box<dyn Transaction>> {
        if *access == Access::Global {
            return Err(refused(Code::GlobalScope, "an Isles database is read one tenant at a time")
                .with_hint("use `with` for each shard"));
        }
        if mode == Mode::Write {
            let mut known = self.known();
            if known.len() < MAX_KNOWN && !known.contains(access.owner()) {
                known.insert(access.owner().clone());
            }
        }
        let session = self.session(Some(access.owner()))?;
        let mut link = IslesLink { session };
        link.command(match mode {
            Mode::Read => "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
            // A writer that has waited for the clock must see what the one before it has done.
            Mode::Write => "BEGIN ISOLATION LEVEL READ COMMITTED",
        })
        .await?;
        let (link, dialect) = (Box::new(link), Dialect::Isles);
        Ok(Box::new(SqlTransaction { link, dialect, access: access.clone(), planted: None }))
    }

    async fn shards_with(
        &self,
        table: &Arc<Table>,
        condition: &Condition,
        after: Option<&Shard>,
        limit: usize,
    ) -> Result<Vec<Shard>> {
        let print = Print { dialect: Dialect::Isles, access: &Access::Global, planted: None };
        let statement = print.shards_with(table, condition, after, limit)?;
        match self.ask_all(&statement).await {
            Ok(shards) => Ok(shards),
            // Some of it is away; the others are asked one by one.
            Err(_) => self.ask_each(table, condition, after, limit).await,
        }
    }

    fn tables(&self) -> &dyn Tables {
        self
    }
}

impl Isles {
    /// The shards that a statement over all tenants finds.
    async fn ask_all(&self, statement: &Statement) -> Result<Vec<Shard>> {
        let mut session = self.session_with(Some(("isles.tenant_scope".into(), "all".into())))?;
        let (rows, _) = run(&mut session, &statement.sql, &statement.params, &statement.types).await?;
        let name = |row: Vec<Value>| match row.into_iter().next() {
            Some(Value::Text(name)) if !name.is_empty() => Shard::named(name),
            _ => Ok(Shard::None),
        };
        rows.into_iter().map(name).collect()
    }

    async fn ask_each(
        &self,
        table: &Arc<Table>,
        condition: &Condition,
        after: Option<&Shard>,
        limit: usize,
    ) -> Result<Vec<Shard>> {
        let (mut found, mut silent) = (Vec::new(), Vec::new());
        for shard in self.shards().await?.into_iter().filter(|shard| after.is_none_or(|after| shard > after)) {
            let access = Access::Shard(shard.clone());
            let select = Select {
                table: table.clone(),
                condition: condition.clone(),
                order: vec![(ID.into(), Direction::Asc)],
                after: None,
                limit: 1,
            };
            let print = Print { dialect: Dialect::Isles, access: &access, planted: None };
            let statement = print.select(&select)?;
            let mut session = self.session(Some(&shard))?;
            match run(&mut session, &statement.sql, &statement.params, &statement.types).await {
                Ok((rows, _)) if rows.is_empty() => {}
                Ok(_) => found.push(shard),
                // It may have some; whoever goes there is told why it cannot be asked.
                Err(_) => silent.push(shard),
            }
            if found.len() + silent.len() >= limit {
                break;
            }
        }
        found.extend(silent);
        Ok(found)
    }

    /// Moves a page of rows of the null tenant to their shards; how many. What is there already was moved before.
    async fn assign_page(&self, table: &Arc<Table>, by: &Assign, after: &mut Option<String>) -> Result<u64> {
        let select = Select {
            table: table.clone(),
            condition: Condition::All,
            order: vec![(ID.into(), Direction::Asc)],
            after: after.clone().map(|id| vec![Value::Text(id)]),
            limit: ASSIGN_ROWS,
        };
        let mut read = self.begin(&Access::Shard(Shard::None), Mode::Read).await?;
        let rows = read.select(&select).await?;
        read.commit().await?;
        *after = rows.last().map(|row| row.id.clone());
        let mut targets: BTreeMap<Shard, Vec<Row>> = BTreeMap::new();
        for row in rows {
            match target(&row, by)? {
                Shard::None => {}
                shard => targets.entry(shard).or_default().push(row),
            }
        }
        let mut count = 0;
        for (shard, rows) in targets {
            let mut write = self.begin(&Access::Shard(shard), Mode::Write).await?;
            for row in rows {
                let there =
                    Select { condition: crate::condition::eq(ID, row.id.as_str()), after: None, ..select.clone() };
                if write.select(&there).await?.is_empty() {
                    write.insert(table, &row).await?;
                    count += 1;
                }
            }
            write.commit().await?;
        }
        Ok(count)
    }

    async fn forget_assigned(&self, table: &Arc<Table>, by: &Assign) -> Result<()> {
        let mut write = self.begin(&Access::Shard(Shard::None), Mode::Write).await?;
        let mut after = None;
        loop {
            let order = vec![(ID.into(), Direction::Asc)];
            let (condition, limit) = (Condition::All, ASSIGN_ROWS);
            let rows = write.select(&Select { table: table.clone(), condition, order, after, limit }).await?;
            let Some(last) = rows.last() else { break };
            after = Some(vec![Value::Text(last.id.clone())]);
            for row in rows {
                if target(&row, by)? != Shard::None {
                    write.delete(table, &row.id, row.version).await?;
                }
            }
        }
        write.commit().await
    }

    async fn kind(&self, table: &Table) -> Result<Option<String>> {
        let rows = self.texts("SHOW TABLES").await?;
        let own = rows.into_iter().find(|row| row.first() == Some(&Value::text(table.physical.as_str())));
        Ok(own.and_then(|row| match row.into_iter().nth(1) {
            Some(Value::Text(kind)) => Some(kind),
            _ => None,
        }))
    }
}

fn target(row: &Row, by: &Assign) -> Result<Shard> {
    match by {
        Assign::To(shard) => Ok(shard.clone()),
        Assign::Column(column) => match row.values.text(column) {
            Some(name) if !name.is_empty() => Shard::named(name),
            _ => Ok(Shard::None),
        },
    }
}

#[async_trait]
impl Tables for Isles {
    fn create(&self, table: &Table, siblings: &Siblings) -> Vec<Step> {
        ddl::create(Dialect::Isles, table, siblings)
    }

    fn alter(&self, before: &Table, after: &Table, siblings: &Siblings) -> Vec<Step> {
        ddl::alter(Dialect::Isles, before, after, siblings)
    }

    /// The database makes tenant tables of others by itself, while they are used; their references go before and come
    /// back behind.
    async fn shard(&self, tables: &Siblings) -> Result<Vec<Step>> {
        let mut old = Vec::new();
        for table in tables.values().filter(|table| table.owner == Owner::Shards) {
            if self.kind(table).await?.is_some_and(|kind| kind != "tenant") {
                old.push(table);
            }
        }
        let referring = "SELECT constraint_name, table_name FROM information_schema.table_constraints \
                         WHERE constraint_type = 'FOREIGN KEY'";
        let there = self.texts(referring).await?;
        let is_there = |table: &Table, name: &str| {
            there.iter().any(|row| *row == [Value::text(name), Value::text(table.physical.as_str())])
        };
        let mut steps = Vec::new();
        for table in tables.values().filter(|_| !old.is_empty()) {
            for row in there.iter().filter(|row| row.get(1) == Some(&Value::text(table.physical.as_str()))) {
                let Some(Value::Text(name)) = row.first() else { continue };
                steps.push(Step::new(format!(
                    "ALTER TABLE {} DROP CONSTRAINT {};",
                    quoted(&table.physical),
                    quoted(name)
                )));
            }
        }
        for table in &old {
            let name = quoted(&table.physical);
            steps.push(Step::new(format!(
                "ALTER TABLE {name} SET (kind = 'tenant', tenant_by = 'nullif(\"id\", \"id\")');"
            )));
        }
        let indexes = self.texts("SELECT relname FROM pg_class WHERE relkind = 'i'").await?;
        for table in tables.values().filter(|table| table.owner == Owner::Shards) {
            let missing = |index: &&crate::schema::Index| {
                ddl::has_index(Dialect::Isles, index)
                    && !indexes.contains(&vec![Value::text(ddl::index_name(table, &index.name))])
            };
            if self.kind(table).await?.is_some() && table.indexes.iter().any(|index| missing(&index)) {
                steps.push(Step::new(ddl::indexes(Dialect::Isles, table)));
            }
            for column in table.columns.iter().filter(|column| column.reference.is_some()) {
                let gone = !old.is_empty() || !is_there(table, &ddl::reference_name(table, &column.name));
                if gone && self.kind(table).await?.is_some() {
                    steps.extend(ddl::add_isles_reference(table, column, tables));
                }
            }
        }
        Ok(steps)
    }

    async fn run(&self, step: &Step, note: Option<&Note>) -> Result<bool> {
        let _one_at_a_time = self.changing.lock().await;
        let mut session = self.session(None)?;
        let texts: Vec<String> = session.statements(&step.sql)?.iter().map(|text| text.to_string()).collect();
        let note = note.map(|note| ddl::note(Dialect::Isles, note));
        // A table becomes a tenant table while it is used, not within a transaction.
        let alone = step.sql.contains("tenant_by");
        for text in texts.iter().filter(|_| alone) {
            run(&mut session, text, &[], &[]).await?;
        }
        run(&mut session, "BEGIN", &[], &[]).await?;
        if let Some(note) = note
            && run(&mut session, &note, &[], &[]).await?.1 == 0
        {
            // A session that is dropped undoes what it has not.
            return Ok(false);
        }
        for text in texts.iter().filter(|_| !alone) {
            run(&mut session, text, &[], &[]).await?;
        }
        run(&mut session, "COMMIT", &[], &[]).await.map(|_| true)
    }

    async fn exists(&self, table: &Table) -> Result<bool> {
        Ok(self.kind(table).await?.is_some())
    }

    /// Rows are copied to their tenants and then deleted: a tenant may be on another shard. It may be repeated.
    async fn assign(&self, tables: &[Arc<Table>], by: &Assign) -> Result<u64> {
        let mut count = 0;
        for table in tables {
            let mut after = None;
            loop {
                count += self.assign_page(table, by, &mut after).await?;
                if after.is_none() {
                    break;
                }
            }
        }
        for table in tables.iter().rev() {
            self.forget_assigned(table, by).await?;
        }
        Ok(count)
    }
}

impl From<isles_engine::error::ShardError> for Error {
    fn from(error: isles_engine::error::ShardError) -> Error {
        error.for_people().into()
    }
}

//! Sessions that try to see what is not theirs.

use crate::harness::{Client, Db};
use isles_cluster::roles::Role;
use isles_cluster::session::{Answer, Status};
use isles_kernel::error::SqlError;
use isles_sim::rng::Rng;
use isles_sim::sqlgen::{Column, Generator, Kind, Table, Ty};
use isles_sql::planted::Bug;
use isles_sql::text;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What the victim's values look like when they are printed, in lower case. No other value does.
const CANARIES: [&str; 5] = ["canary", "yranac", "770077", "7707-07-07", "7707 years"];
/// What no client is shown.
const HIDDEN: [&str; 2] = ["_shard", "_tenant"];
/// Rows of the victim in each table.
const VICTIMS: u64 = 5;

/// As whom an intruder comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Guise {
    OtherTenant,
    NullTenant,
    Nobody,
}

impl Guise {
    const ALL: [Guise; 3] = [Guise::OtherTenant, Guise::NullTenant, Guise::Nobody];

    fn settings(self) -> &'static str {
        match self {
            Guise::OtherTenant => "SET isles.tenant = 'intruder'",
            Guise::NullTenant => "SET isles.null_tenant = on",
            Guise::Nobody => "RESET isles.tenant",
        }
    }
}

/// What came back that should not have.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) statements: u64,
    /// Answers that were not errors.
    pub(crate) answered: u64,
    /// Statements that planning refused since they were not scoped.
    pub(crate) unproven: u64,
    /// The first answers with a canary, or that nobody should have had.
    leaks: Vec<String>,
}

impl Found {
    pub(crate) fn is_some(&self) -> bool {
        !self.leaks.is_empty()
    }

    pub(crate) fn assert_none(&self, bugs: &[Bug]) {
        assert!(self.leaks.is_empty(), "with {bugs:?}:\n{}", self.leaks.join("\n"));
        assert!(self.answered * 3 > self.statements, "with {bugs:?} hardly any statement is answered: {self:?}");
    }

    fn add(&mut self, other: Found) {
        self.statements += other.statements;
        self.answered += other.answered;
        self.unproven += other.unproven;
        self.leaks.extend(other.leaks);
    }
}

pub(crate) struct Intrusion {
    seed: u64,
    generator: Generator,
    /// All that the victim has.
    before: Vec<String>,
}

/// A value that gives itself away.
fn canary(column: &Column, n: u64) -> String {
    match column.ty {
        Ty::Bool => "true".into(),
        Ty::Int2 => (7_700 + n).to_string(),
        Ty::Int4 => (770_077_000 + n).to_string(),
        Ty::Int8 => (770_077_007_700 + n).to_string(),
        Ty::Numeric => format!("770077.{n:03}"),
        Ty::Float8 => format!("77007700.{n}"),
        Ty::Text | Ty::Varchar => format!("'CANARY {n}'"),
        Ty::Date => "'7707-07-07'".into(),
        Ty::Timestamp | Ty::TimestampTz => format!("'7707-07-07 07:07:{n:02}'"),
        Ty::Interval => "'7707 years'".into(),
        Ty::Uuid => format!("'77007700-7700-7700-7700-7700770077{n:02}'"),
        Ty::Bytea => format!("'\\x7700770077{n:02}'"),
    }
}

fn canaries(table: &Table) -> String {
    let row = |n| {
        let values: Vec<String> = table.columns.iter().map(|column| canary(column, n)).collect();
        format!("({})", values.join(", "))
    };
    let rows: Vec<String> = (0..VICTIMS).map(row).collect();
    format!("INSERT INTO {} VALUES {}", table.name, rows.join(", "))
}

async fn belongings(client: &mut Client, tables: &[Table]) -> Vec<String> {
    let mut all = Vec::new();
    for table in tables.iter().filter(|table| table.kind == Kind::Tenant) {
        all.extend(client.run(&format!("SELECT * FROM {} ORDER BY k", table.name)).await);
    }
    // Without any fence the victim sees the others' rows as well.
    all.retain(|row| is_canary(row));
    all
}

impl Intrusion {
    /// Makes tables, and gives rows to the victim, to the intruder and to the null tenant.
    pub(crate) async fn prepare(db: &Db, seed: u64) -> Intrusion {
        let kinds = [Kind::Tenant, Kind::Tenant, Kind::Tenant, Kind::Tenant, Kind::Tenant, Kind::Reference];
        let generator = Generator::over(kinds, seed);
        let mut client = db.client();
        client.run("SET isles.tenant = 'victim'").await;
        for table in generator.tables() {
            client.run(&table.create().0).await;
            if table.kind == Kind::Tenant {
                client.run(&canaries(table)).await;
                client.run(&format!("CREATE VIEW v_{0} AS SELECT * FROM {0}", table.name)).await;
            }
        }
        for guise in [Guise::OtherTenant, Guise::NullTenant] {
            client.run(guise.settings()).await;
            for sql in generator.beside(seed).fill() {
                client.run(&sql).await;
            }
        }
        client.run("SET isles.tenant = 'victim'").await;
        let before = belongings(&mut client, generator.tables()).await;
        assert_eq!(before.len() as u64, 5 * VICTIMS);
        Intrusion { seed, generator, before }
    }

    pub(crate) async fn run(self, db: &Db, statements: u64) -> Found {
        let mut found = Found::default();
        let each = statements.div_ceil(Guise::ALL.len() as u64);
        let intruders = Guise::ALL.map(|guise| {
            let generator = self.generator.beside(self.seed * 10 + guise as u64);
            let client = db.client_as(Role::default(), &[]).expect("an owner's session");
            let (mut client, rng) = (client, Rng::new(self.seed * 77 + guise as u64));
            tokio::spawn(async move {
                client.run(guise.settings()).await;
                Intruder { guise, client, generator, rng, found: Found::default() }.intrude(each).await
            })
        });
        let ends = Arc::new(AtomicBool::new(false));
        let administrator = tokio::spawn(administrate(db.client(), self.generator.tables().to_vec(), ends.clone()));
        for intruder in intruders {
            found.add(intruder.await.expect("an intruder comes back"));
        }
        ends.store(true, Ordering::SeqCst);
        assert!(administrator.await.expect("the administrator comes back") > 0, "who may see canaries sees none");
        let mut client = db.client();
        client.run("SET isles.tenant = 'victim'").await;
        if belongings(&mut client, self.generator.tables()).await != self.before {
            found.leaks.push("the victim's rows have changed".into());
        }
        found
    }
}

/// Reads all tenants, meanwhile, by texts that the intruders use as well: nothing that is kept of them, in plans or on the
/// shards' connections, is for anyone else. Returns how many answers had canaries.
async fn administrate(mut client: Client, tables: Vec<Table>, ends: Arc<AtomicBool>) -> u64 {
    client.run("SET isles.tenant_scope = 'all'").await;
    let mut seen = 0;
    while !ends.load(Ordering::SeqCst) {
        for name in tables.iter().filter(|table| table.kind == Kind::Tenant).map(|table| &table.name) {
            for sql in [
                format!("SELECT * FROM {name} UNION ALL SELECT * FROM {name}"),
                format!("SELECT (SELECT max(c1) FROM {name}), array(SELECT c0 FROM {name})"),
                format!("SELECT a.* FROM {name} a FULL JOIN {name} b ON a.k = b.k"),
                format!("SELECT * FROM {name} WHERE _tenant = 'victim'"),
            ] {
                // What is asked while others write may have to be asked again.
                if let Ok(rows) = client.try_run(&sql).await {
                    seen += u64::from(rows.iter().any(|row| is_canary(row)));
                }
            }
        }
    }
    seen
}

struct Intruder {
    guise: Guise,
    client: Client,
    generator: Generator,
    rng: Rng,
    found: Found,
}

fn is_canary(text: &str) -> bool {
    let text = text.to_lowercase();
    CANARIES.iter().any(|canary| text.contains(canary))
}

impl Intruder {
    async fn intrude(mut self, statements: u64) -> Found {
        while self.found.statements < statements && self.found.leaks.len() < 3 {
            let sql = self.next_statement();
            self.attempt(&sql).await;
            if self.client.status() == Status::Failed {
                self.generator.abandon_transaction();
                self.attempt("ROLLBACK").await;
            }
        }
        self.found
    }

    /// A generated statement, as it is or in one of the ways in which a statement can be had.
    fn next_statement(&mut self) -> String {
        let plain = self.generator.statement().sql;
        let reads = plain.starts_with("SELECT") || plain.starts_with("WITH");
        let table = self.rng.pick(self.generator.tables()).clone();
        let (name, key) = (&table.name, &table.columns[0]);
        let victim = self.rng.below(VICTIMS);
        match self.rng.below(30) {
            0 => format!("EXPLAIN (VERBOSE, ANALYZE) {plain}"),
            1 if reads => format!("COPY ({plain}) TO STDOUT"),
            2 => format!("COPY {name} TO STDOUT WITH (FORMAT csv, HEADER)"),
            3 => format!("SELECT * FROM v_{name} ORDER BY 1"),
            4 => format!("SELECT * FROM {name} WHERE k = {}", canary(key, victim)),
            5 => format!("DELETE FROM {name} WHERE k = {} RETURNING *", canary(key, victim)),
            6 => format!("UPDATE {name} SET c0 = 1 WHERE k >= {} RETURNING *", canary(key, 0)),
            7 => format!("SELECT * FROM {name} UNION ALL SELECT * FROM v_{name}"),
            8 => format!("WITH w AS (SELECT * FROM {name}) SELECT * FROM w UNION SELECT * FROM w"),
            9 => format!("SELECT (SELECT max(c1) FROM {name}), array(SELECT c0 FROM {name})"),
            10 => format!("SELECT c1 FROM {name} WHERE c1 > (SELECT min(c1) FROM {name})"),
            11 => format!("SELECT a.* FROM {name} a FULL JOIN {name} b ON a.k = b.k"),
            12 => format!("SELECT x.c1 FROM {name} a, LATERAL (SELECT b.c1 FROM {name} b WHERE b.c0 <> a.c0) x"),
            13 => format!("PREPARE p AS {plain}"),
            14 => "EXECUTE p".into(),
            15 => "DEALLOCATE p".into(),
            16 => format!("SELECT row_to_json(a) FROM {name} a"),
            17 => format!("SELECT c1, _tenant, _shard FROM {name}"),
            18 => format!("INSERT INTO {name} SELECT * FROM {name} ON CONFLICT DO NOTHING RETURNING *"),
            19 => "SET isles.tenant_scope = 'all'".into(),
            20 => format!("SELECT set_config('isles.tenant_scope', 'all', {}), 1", victim.is_multiple_of(2)),
            21 => format!("SELECT count(*) FROM {name} WHERE set_config('isles.tenant_scope', 'all', true) = 'all'"),
            _ => plain,
        }
    }

    async fn attempt(&mut self, sql: &str) {
        self.found.statements += 1;
        let answer = self.answer(sql).await;
        let notices = self.client.session.take_notices();
        let (text, is_error) = match &answer {
            Ok(text) => (text.clone(), false),
            Err(error) => (format!("{error:?}"), true),
        };
        self.found.answered += u64::from(!is_error);
        self.found.unproven += u64::from(matches!(&answer, Err(error) if error.message.contains("is not scoped")));
        // An error may repeat what the intruder has written.
        let is_own_word = is_error && is_canary(sql);
        if is_canary(&text) && !is_own_word || is_canary(&format!("{notices:?}")) {
            self.leak(sql, &text);
        }
        if !is_error && HIDDEN.iter().any(|column| text.contains(column)) {
            self.leak(sql, &text);
        }
        if self.guise == Guise::Nobody && !is_error && self.uses_tenant_table(sql) {
            self.leak(sql, &format!("answered to nobody: {text}"));
        }
    }

    fn leak(&mut self, sql: &str, answer: &str) {
        self.found.leaks.push(format!("{:?} ran\n  {sql}\nand got\n  {answer}", self.guise));
    }

    fn uses_tenant_table(&self, sql: &str) -> bool {
        let mut tenants = self.generator.tables().iter().filter(|table| table.kind == Kind::Tenant);
        let words = || sql.split(|c: char| !c.is_alphanumeric() && c != '_');
        let is_prepared = sql.starts_with("PREPARE") || sql.starts_with("EXPLAIN");
        !is_prepared && tenants.any(|table| words().any(|word| word.trim_start_matches("v_") == table.name))
    }

    /// All that a client would be sent.
    async fn answer(&mut self, sql: &str) -> Result<String, SqlError> {
        let prepared = self.client.session.prepare(sql, &[]).await?;
        let mut out = Vec::new();
        match self.client.session.execute(&prepared, Vec::new()).await? {
            Answer::Rows(mut rows) => {
                let fields = rows.fields.clone();
                fields.iter().for_each(|field| out.extend(field.name.bytes().chain(*b"|")));
                while let Some(batch) = rows.next(100).await? {
                    for (value, field) in batch.iter().flat_map(|row| row.iter().zip(&*fields)) {
                        text::output(value, field.ty, &text::Settings::default(), &mut out);
                        out.push(b'|');
                    }
                }
            }
            Answer::Done { tag } => out.extend(tag.bytes()),
            Answer::CopyOut(mut copy) => {
                while let Some(messages) = copy.next().await? {
                    out.extend(messages.concat());
                }
            }
            Answer::Empty => {}
            Answer::CopyIn(_) => panic!("{sql} wants rows"),
        }
        Ok(String::from_utf8_lossy(&out).into_owned())
    }
}

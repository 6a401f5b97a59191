//! The second fence around tenants, on a real PostgreSQL server: statements here carry no tenant, as if planning had
//! forgotten it.

use isles_engine::env::{Env, TokioEnv};
use isles_engine::error::{Result, ShardError};
use isles_engine::fence::{Access, Claim, Claimed, Fence, FenceMode, FenceScope};
use isles_engine::postgres::{PostgresOptions, PostgresShard};
use isles_engine::shard::{
    ActsFor, Batch, Begin, ImportMode, Incoming, Isolation, KeyRange, Limits, Request, Row, RowVersion, SchemaStep,
    Shard, Statement, StoredRow, Transaction,
};
use isles_kernel::names::{PledgeId, RoutingVersion, SchemaVersion, Seq, ShardId, StreamId, TenantId};
use isles_kernel::schema::{
    Column, Deferral, ForeignKey, Key, Object, ObjectKind, OnChange, SchemaChange, Table, TableKind, Unit,
};
use isles_kernel::value::{DataType, Value};
use isles_sim::pgserver::{self, PgOptions, PgServer};
use std::sync::Arc;
use std::time::Duration;

const INT8: DataType = DataType::Int8;
const TEXT: DataType = DataType::Text;

fn table(name: &str, kind: TableKind, columns: &[(&str, DataType)]) -> Table {
    let column = |(name, ty): &(&str, DataType)| {
        let column = Column::new(name, *ty);
        if *name == "id" { column.not_null() } else { column }
    };
    Table {
        name: name.into(),
        kind,
        columns: columns.iter().map(column).collect(),
        primary_key: vec!["id".into()],
        keys: vec![],
        foreign_keys: vec![],
        checks: vec![],
        primary_key_name: None,
        hidden_key: false,
    }
}

fn notes() -> Table {
    let keys = vec![Key::unique("notes_body", &["body"])];
    Table { keys, ..table("notes", TableKind::Tenant, &[("id", INT8), ("body", TEXT)]) }
}

/// Each refers to a note, and goes with it.
fn tags() -> Table {
    let note = ForeignKey {
        name: "tags_note".into(),
        columns: vec!["note".into()],
        table: "notes".into(),
        references: vec!["id".into()],
        on_delete: OnChange::Cascade,
        on_update: OnChange::NoAction,
        deferral: Deferral::None,
    };
    Table { foreign_keys: vec![note], ..table("tags", TableKind::Tenant, &[("id", INT8), ("note", INT8)]) }
}

fn colors() -> Table {
    table("colors", TableKind::Reference, &[("id", INT8), ("name", TEXT)])
}

fn tenant(name: &str) -> TenantId {
    TenantId::new(name).expect("valid")
}

fn acting(name: Option<&str>) -> ActsFor {
    ActsFor::Tenant(name.map(tenant))
}

fn claim() -> Claim {
    Claim::new(RoutingVersion(1), vec![Claimed::Shared])
}

fn sql(text: &str) -> Statement {
    Statement::new(text, vec![])
}

async fn try_open(url: &str, connections: usize) -> Result<PostgresShard> {
    let env: Arc<dyn Env> = Arc::new(TokioEnv::current());
    let options = PostgresOptions { connections, ..PostgresOptions::default() };
    PostgresShard::open(ShardId::new("s1").expect("valid"), url, env, options).await
}

async fn open(url: &str) -> PostgresShard {
    try_open(url, 4).await.expect("the shard opens")
}

/// A shard with notes and tags 1 and 2 of three tenants: the null one, `a` and `b'`.
async fn prepare(shard: &PostgresShard) {
    let changes = [notes(), tags(), colors()].map(SchemaChange::CreateTable).to_vec();
    shard.apply_schema(SchemaVersion(0), changes).await.expect("the schema applies");
    let fence = Fence { scope: FenceScope::Shared, version: RoutingVersion(1), mode: FenceMode::Open };
    shard.set_fences(vec![fence], Duration::from_secs(5)).await.expect("the fence is set");
    for name in OWNERS {
        let row = |id: i64, last: Value| StoredRow {
            unit: Unit::Tenant(name.map(tenant)),
            values: vec![Value::Int(id), last],
        };
        let body = |id: i64| Value::text(format!("{id} of {}", name.unwrap_or("nobody")));
        let rows = [1, 2].map(|id| row(id, body(id))).to_vec();
        shard.import("notes", rows, ImportMode::Insert).await.expect("notes are imported");
        let rows = [1, 2].map(|id| row(id, Value::Int(id))).to_vec();
        shard.import("tags", rows, ImportMode::Insert).await.expect("tags are imported");
    }
}

const OWNERS: [Option<&str>; 3] = [None, Some("a"), Some("b'")];

async fn new_shard() -> (PostgresShard, String) {
    let url = pgserver::shared().create_database();
    let shard = open(&url).await;
    prepare(&shard).await;
    (shard, url)
}

async fn client(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.expect("it connects");
    tokio::spawn(connection);
    client
}

async fn admin(url: &str, text: &str) {
    client(url).await.batch_execute(text).await.unwrap_or_else(|error| panic!("{text}: {error}"));
}

/// Rows of one text each, by each way there is to read them.
async fn read(shard: &PostgresShard, acts_for: &ActsFor, text: &str) -> Vec<Row> {
    let statement = sql(text).returning(vec![TEXT]);
    let one = |statement: Statement| Request::read(claim(), statement).acting_for(acts_for.clone());
    let plain = shard.execute(one(statement.clone())).await.expect("a request runs").remove(0).rows;
    let alone = shard.execute(one(statement.clone().composed())).await.expect("a read alone runs").remove(0).rows;
    assert_eq!(alone, plain, "{acts_for:?} {text}");
    for isolation in [Isolation::ReadCommitted, Isolation::RepeatableRead, Isolation::Serializable] {
        let begin = Begin { isolation, ..Begin::new(claim(), Access::Read) }.acting_for(acts_for.clone());
        let mut tx = shard.begin(begin).await.expect("it begins");
        assert_eq!(tx.execute(&statement).await.expect("it runs").rows, plain, "{acts_for:?} {isolation:?} {text}");
        let cursor = tx.open(&statement).await.expect("a cursor opens");
        let mut fetched = Vec::new();
        loop {
            let page = tx.fetch(cursor, 1).await.expect("it fetches");
            fetched.extend(page.rows);
            if page.done {
                break;
            }
        }
        assert_eq!(fetched, plain, "{acts_for:?} {isolation:?} by a cursor: {text}");
        tx.rollback().await.expect("it ends");
    }
    plain
}

fn texts(expected: &[String]) -> Vec<Row> {
    expected.iter().map(|text| vec![Value::text(text)]).collect()
}

/// Whom a statement may act for, and whose rows it then reaches.
fn cases() -> Vec<(ActsFor, Option<&'static str>)> {
    let of = |name: Option<&'static str>| (acting(name), Some(name.unwrap_or("nobody")));
    vec![
        (ActsFor::Nobody, None),
        (acting(Some("c")), None),
        of(Some("a")),
        of(Some("b'")),
        of(None),
        (ActsFor::Nobody, None),
    ]
}

/// I-44: reads without a tenant in them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_reaches_the_rows_of_its_tenant_and_no_others() {
    let (shard, _) = new_shard().await;
    // A view would show what its owner sees.
    let view = Object {
        name: "bodies".into(),
        kind: ObjectKind::View,
        sqlite: String::new(),
        postgres: "CREATE VIEW bodies AS SELECT body FROM notes".into(),
        postgres_drop: "DROP VIEW bodies".into(),
    };
    shard.apply_schema(SchemaVersion(1), vec![SchemaChange::CreateObject(view)]).await.expect("the view is made");
    for (acts_for, owner) in cases() {
        let own: Vec<String> =
            owner.into_iter().flat_map(|owner| [1, 2].map(|id| format!("{id} of {owner}"))).collect();
        for text in [
            "SELECT body FROM notes ORDER BY body",
            "SELECT body FROM (SELECT * FROM notes UNION SELECT * FROM notes) AS n ORDER BY body",
            "WITH n AS (SELECT * FROM notes) SELECT body FROM n ORDER BY body",
            "SELECT body FROM bodies ORDER BY body",
            "SELECT n.body FROM notes AS n JOIN tags AS t ON t.note = n.id ORDER BY 1",
            "SELECT n.body FROM notes AS n WHERE EXISTS (SELECT FROM tags) ORDER BY 1",
            "SELECT n.body FROM tags AS t LEFT JOIN LATERAL (SELECT body FROM notes WHERE id = t.id) AS n ON true ORDER BY 1",
        ] {
            assert_eq!(read(&shard, &acts_for, text).await, texts(&own), "{acts_for:?}: {text}");
        }
        let counted = read(&shard, &acts_for, "SELECT count(*)::text FROM notes").await;
        assert_eq!(counted, texts(&[own.len().to_string()]), "{acts_for:?}");
    }
}

async fn write(shard: &PostgresShard, acts_for: &ActsFor, text: &str) -> Result<Vec<i64>> {
    let statement = sql(text).returning(vec![INT8]);
    let outcomes = shard.execute(Request::write(claim(), vec![statement]).acting_for(acts_for.clone())).await?;
    Ok(outcomes[0].rows.iter().map(|row| int(&row[0])).collect())
}

fn int(value: &Value) -> i64 {
    match value {
        Value::Int(n) => *n,
        other => panic!("{other:?} is no integer"),
    }
}

/// All notes as (tenant, id, body), by a snapshot, which sees everything.
async fn all_notes(shard: &PostgresShard) -> Vec<(Unit, i64, Value)> {
    let mut snapshot = shard.snapshot().await.expect("a snapshot");
    let page = snapshot.page(&KeyRange::table("notes"), 100).await.expect("a page");
    page.rows.iter().map(|row| (row.unit.clone(), int(&row.values[0]), row.values[1].clone())).collect()
}

/// I-44: writes without a tenant in them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_reaches_the_rows_of_its_tenant_and_no_others() {
    let (shard, _) = new_shard().await;
    let before = all_notes(&shard).await;
    for (acts_for, owner) in cases() {
        let own: Vec<i64> = owner.map_or(vec![], |_| vec![1, 2]);
        let mut tx =
            shard.begin(Begin::new(claim(), Access::Write).acting_for(acts_for.clone())).await.expect("it begins");
        for text in [
            "UPDATE notes SET body = body || '!' RETURNING id",
            "UPDATE notes SET body = notes.body || '!' FROM tags WHERE tags.note = notes.id RETURNING notes.id",
            "SELECT id FROM notes FOR UPDATE",
            "WITH gone AS (DELETE FROM tags RETURNING id) SELECT id FROM gone",
            "DELETE FROM notes RETURNING id",
        ] {
            let outcome = tx.execute(&sql(text).returning(vec![INT8])).await.unwrap_or_else(|e| panic!("{text}: {e}"));
            let ids: Vec<i64> = outcome.rows.iter().map(|row| int(&row[0])).collect();
            assert_eq!(ids, own, "{acts_for:?}: {text}");
        }
        tx.rollback().await.expect("it ends");
    }
    assert_eq!(all_notes(&shard).await, before);
    assert_eq!(write(&shard, &acting(Some("a")), "DELETE FROM notes RETURNING id").await.expect("it runs"), vec![1, 2]);
    let left: Vec<_> = before.into_iter().filter(|(unit, ..)| *unit != Unit::Tenant(Some(tenant("a")))).collect();
    assert_eq!(all_notes(&shard).await, left, "a cascade stays within the tenant, too");
}

fn is_beyond(error: &ShardError) -> bool {
    let shown = error.for_people();
    assert!(shown.table.is_none() && shown.detail.is_none() && shown.constraint.is_none(), "{shown:?}");
    shown.sqlstate == "XX000" && shown.message == "a statement reached beyond its tenant"
}

/// I-44: nobody writes a row of another tenant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_of_another_tenant_is_refused() {
    let (shard, _) = new_shard().await;
    let before = all_notes(&shard).await;
    let insert = |name: Option<&str>, id: i64| {
        let name = name.map_or("NULL".to_string(), |name| format!("'{}'", name.replace('\'', "''")));
        format!("INSERT INTO notes (_shard, id, body) VALUES ({name}, {id}, 'new') RETURNING id")
    };
    for (acts_for, _) in cases() {
        for name in OWNERS.into_iter().filter(|name| acts_for != acting(*name)) {
            let upsert = insert(name, 1)
                .replace(" RETURNING", " ON CONFLICT (_tenant, id) DO UPDATE SET body = 'taken' RETURNING");
            let nothing = insert(name, 7).replace(" RETURNING", " ON CONFLICT DO NOTHING RETURNING");
            let from = format!("WITH n AS ({}) SELECT id FROM n", insert(name, 8));
            for text in [insert(name, 9), upsert, nothing, from] {
                let error = write(&shard, &acts_for, &text).await.expect_err(&text);
                assert!(is_beyond(&error), "{acts_for:?}: {text}: {error:?}");
            }
        }
    }
    for to in ["NULL", "'b'''", "'c'"] {
        let text = format!("UPDATE notes SET _shard = {to}, body = 'moved' || id RETURNING id");
        assert!(
            is_beyond(&write(&shard, &acting(Some("a")), &text).await.expect_err("a row stays where it is")),
            "{to}"
        );
        assert_eq!(write(&shard, &ActsFor::Nobody, &text).await.expect("there are no rows"), Vec::<i64>::new());
    }
    assert_eq!(all_notes(&shard).await, before);
    for name in OWNERS {
        let upsert =
            insert(name, 1).replace(" RETURNING", " ON CONFLICT (_tenant, id) DO UPDATE SET body = 'own' RETURNING");
        assert_eq!(write(&shard, &acting(name), &upsert).await.expect("its own"), vec![1]);
        assert_eq!(write(&shard, &acting(name), &insert(name, 9)).await.expect("its own"), vec![9]);
    }
    assert_eq!(all_notes(&shard).await.len(), before.len() + 3);
}

async fn bodies(tx: &mut Box<dyn Transaction>) -> usize {
    tx.execute(&sql("SELECT body FROM notes").returning(vec![TEXT])).await.expect("it reads").rows.len()
}

/// I-44, I-43: whom a transaction acts for is as long as the transaction, and no longer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whom_a_transaction_acts_for_ends_with_it() {
    let url = pgserver::shared().create_database();
    let shard = try_open(&url, 1).await.expect("the shard opens");
    prepare(&shard).await;
    let begin = async |acts_for: ActsFor| {
        shard.begin(Begin::new(claim(), Access::Write).acting_for(acts_for)).await.expect("it begins")
    };
    for end in 0..4 {
        let mut tx = begin(acting(Some("a"))).await;
        tx.savepoint("s").await.expect("a savepoint");
        assert!(tx.execute(&sql("INSERT INTO notes (_shard, id) VALUES ('b''', 9)")).await.is_err());
        tx.rollback_to("s").await.expect("back to it");
        assert_eq!(bodies(&mut tx).await, 2, "after ROLLBACK TO");
        match end {
            0 => tx.commit().await.expect("it commits"),
            1 => tx.rollback().await.expect("it rolls back"),
            2 => drop(tx),
            _ => {
                assert!(tx.execute(&sql("SELECT 1/0")).await.is_err());
                assert!(tx.commit().await.is_err());
            }
        }
        let mut next = begin(ActsFor::Nobody).await;
        assert_eq!(bodies(&mut next).await, 0, "the next one on the connection, after end {end}");
        next.commit().await.expect("it commits");
        let alone = Request::read(claim(), sql("SELECT body FROM notes").returning(vec![TEXT]).composed());
        assert_eq!(shard.execute(alone.clone()).await.expect("it runs")[0].rows.len(), 0);
        let own = shard.execute(alone.clone().acting_for(acting(None))).await.expect("it runs");
        assert_eq!(own[0].rows.len(), 2);
        assert_eq!(shard.execute(alone).await.expect("it runs")[0].rows.len(), 0, "after a read alone for a tenant");
    }
}

/// I-45: a read alone for a tenant that passes a limit, or fails, leaves a connection that can be used.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_alone_for_a_tenant_fails_by_itself() {
    let url = pgserver::shared().create_database();
    let shard = try_open(&url, 1).await.expect("the shard opens");
    prepare(&shard).await;
    let alone =
        |text: &str| Request::read(claim(), sql(text).returning(vec![TEXT]).composed()).acting_for(acting(Some("a")));
    for _ in 0..3 {
        let failed = shard.execute(alone("SELECT (1 / (length(body) - length(body)))::text FROM notes")).await;
        assert_eq!(failed.expect_err("no number").for_people().sqlstate, "22012");
        let many = Request {
            limits: Limits { rows: 10, ..Limits::default() },
            ..alone("SELECT n::text FROM notes, generate_series(1, 1000000) AS n")
        };
        assert!(matches!(shard.execute(many).await, Err(ShardError::Limit { .. })));
        let slow = Request {
            limits: Limits { time: Duration::from_millis(50), ..Limits::default() },
            ..alone("SELECT pg_sleep(20)::text AS s")
        };
        assert!(matches!(shard.execute(slow).await, Err(ShardError::TimedOut)));
        assert_eq!(shard.execute(alone("SELECT body FROM notes")).await.expect("it runs")[0].rows.len(), 2);
    }
    let closed = Fence { scope: FenceScope::Shared, version: RoutingVersion(2), mode: FenceMode::Open };
    shard.set_fences(vec![closed], Duration::from_secs(5)).await.expect("the fence is set");
    assert!(matches!(shard.execute(alone("SELECT body FROM notes")).await, Err(ShardError::Moved { .. })));
}

/// I-44: clients' statements see nothing of ours but the fences, and cannot borrow the owner's rights.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_reach_our_own_tables_no_further_than_the_fences() {
    let (shard, _) = new_shard().await;
    let from = shard.add_consumer(&StreamId::new("reader").expect("valid")).await.expect("capture is on");
    for text in [
        "SELECT secret FROM _isles.meta",
        "SELECT * FROM _isles.log",
        "INSERT INTO _isles.log (tab) VALUES ('notes')",
        "DELETE FROM _isles.log",
        "SELECT nextval('_isles.log_seq')",
        "UPDATE _isles.fence SET version = 9",
        "UPDATE _isles.fence_token SET token = 9",
        "SELECT * FROM _isles.row_version",
        "SELECT * FROM _isles.schema",
        "INSERT INTO _isles.consumer VALUES ('x', 0)",
        "SELECT _isles.foreign_rows()",
        "SELECT _isles.row_now('notes', 'true', '{}')",
        "CREATE TEMP TABLE own (id int); CREATE TRIGGER t AFTER INSERT ON own FOR EACH ROW \
         EXECUTE FUNCTION _isles.capture('row', 'pg_sleep(0) IS NULL')",
        "CREATE TABLE _isles.mine (id int)",
        "TRUNCATE notes",
        "ALTER TABLE notes DISABLE ROW LEVEL SECURITY",
        "DROP POLICY isles_tenant ON notes",
        "DROP TABLE notes",
    ] {
        let mut tx =
            shard.begin(Begin::new(claim(), Access::Write).acting_for(acting(Some("a")))).await.expect("it begins");
        let mut refused = Ok(());
        for part in text.split("; ") {
            refused = tx.execute(&sql(part)).await.map(drop);
        }
        let error = refused.expect_err(text);
        assert_eq!(error.for_people().sqlstate, "42501", "{text}: {error}");
    }
    // The log is written for them all the same, with a type of the same name as one that its trigger uses.
    let mut tx =
        shard.begin(Begin::new(claim(), Access::Write).acting_for(acting(Some("a")))).await.expect("it begins");
    tx.execute(&sql("CREATE TEMP TABLE bytea (a int)")).await.expect("a temporary table");
    tx.execute(&sql("INSERT INTO notes (_shard, id) VALUES ('a', 3)")).await.expect("it writes");
    tx.execute(&sql("DELETE FROM notes WHERE id = 1")).await.expect("it deletes, and a tag with it");
    tx.commit().await.expect("it commits");
    let page = shard.changes(from, 10).await.expect("a page");
    let mut seen: Vec<String> =
        page.changes.iter().map(|change| format!("{} {:?} {:?}", change.table, change.op, change.key[1])).collect();
    seen.sort();
    assert_eq!(seen, ["notes Delete Int(1)", "notes Insert Int(3)", "tags Delete Int(1)"]);
}

/// The policy must not turn a lookup by key into a scan.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lookups_by_key_use_the_index() {
    let (shard, url) = new_shard().await;
    admin(
        &url,
        "INSERT INTO notes (_shard, id, body) SELECT 't' || n / 100, n % 100, 'body ' || n FROM generate_series(1000, 20000) AS n; \
         ANALYZE notes",
    )
    .await;
    let explain = async |text: &str, params: Vec<Value>| {
        let statement = Statement::new(format!("EXPLAIN {text}"), params).returning(vec![TEXT]);
        let request = Request::read(claim(), statement).acting_for(acting(Some("t50")));
        let rows = shard.execute(request).await.unwrap_or_else(|error| panic!("{text}: {error}")).remove(0).rows;
        rows.iter()
            .map(|row| if let Value::Text(line) = &row[0] { line.clone() } else { String::new() })
            .collect::<Vec<_>>()
            .join("\n")
    };
    for (text, wanted) in [
        ("SELECT body FROM notes WHERE _tenant = 't50' AND id = 7", "(id = 7)"),
        ("SELECT body FROM notes WHERE id = 7", "(id = 7)"),
        ("SELECT body FROM notes WHERE _tenant = 't50' AND id BETWEEN 5 AND 7", "(id >= 5) AND (id <= 7)"),
        ("SELECT id FROM notes WHERE _tenant = 't50' AND body = 'body 5007'", "(body = 'body 5007'::text)"),
        ("UPDATE notes SET body = 'x' WHERE _tenant = 't50' AND id = 7", "(id = 7)"),
        ("DELETE FROM notes WHERE id = 7", "(id = 7)"),
    ] {
        let plan = explain(text, vec![]).await;
        let condition =
            plan.lines().find(|line| line.contains("Index Cond:")).unwrap_or_else(|| panic!("{text}:\n{plan}"));
        assert!(condition.contains("_tenant") && condition.contains(wanted), "{text}:\n{plan}");
        assert!(!plan.contains("Seq Scan on notes"), "{text}:\n{plan}");
    }
    let plan = explain("SELECT body FROM notes ORDER BY id LIMIT 3", vec![]).await;
    assert!(plan.contains("Index Scan using notes_pkey") && !plan.contains("Sort"), "{plan}");
}

fn step(from: u64, changes: Vec<SchemaChange>) -> SchemaStep {
    SchemaStep { from: SchemaVersion(from), changes, fences: vec![] }
}

fn count(table: &str) -> Statement {
    sql(&format!("SELECT count(*) FROM {table}")).returning(vec![INT8])
}

/// I-44: a table that a transaction makes is fenced from its first moment, and a failed change leaves the client's role.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_made_in_a_transaction_is_fenced_at_once() {
    let (shard, url) = new_shard().await;
    changes_in_transactions(&shard).await;
    drop(shard);
    open(&url).await;
}

async fn changes_in_transactions(shard: &PostgresShard) {
    let of = |name: &str, kind: TableKind| SchemaChange::CreateTable(table(name, kind, &[("id", INT8)]));
    write(shard, &ActsFor::Nobody, "INSERT INTO colors (id, name) VALUES (2, 'blue') RETURNING id")
        .await
        .expect("a color");
    let a = || Begin::new(claim(), Access::Write).acting_for(acting(Some("a")));
    let insert = |table: &str, name: &str| sql(&format!("INSERT INTO {table} (_shard, id) VALUES ('{name}', 1)"));
    let mut tx = shard.begin(a()).await.expect("it begins");
    let namespace = SchemaChange::CreateNamespace { namespace: "more".into() };
    let changes = vec![namespace, of("more.drafts", TableKind::Tenant), of("plain", TableKind::Reference)];
    tx.change_schema(step(1, changes)).await.expect("the tables are made");
    tx.execute(&insert("more.drafts", "a")).await.expect("its own row");
    tx.execute(&sql("INSERT INTO plain (id) VALUES (1)")).await.expect("everyone's row");
    tx.savepoint("s").await.expect("a savepoint");
    assert!(is_beyond(&tx.execute(&insert("more.drafts", "c")).await.expect_err("another's row")));
    tx.rollback_to("s").await.expect("back to it");
    // A change that fails in its midst, in the owner's role.
    let taken = vec![
        of("other", TableKind::Tenant),
        SchemaChange::AddForeignKey { table: "colors".into(), foreign_key: color_is_plain() },
    ];
    assert_eq!(
        tx.change_schema(step(2, taken)).await.expect_err("a color refers to none").for_people().sqlstate,
        "23503"
    );
    tx.rollback_to("s").await.expect("back to it");
    assert!(tx.execute(&sql("SELECT secret FROM _isles.meta")).await.is_err(), "the role is the client's again");
    tx.rollback_to("s").await.expect("back to it");
    let rename = SchemaChange::RenameTable { table: "more.drafts".into(), to: "more.papers".into() };
    tx.change_schema(step(2, vec![rename, of("other", TableKind::Tenant)])).await.expect("the change is made");
    assert_eq!(tx.execute(&count("more.papers")).await.expect("it reads").rows, [[Value::Int(1)]]);
    tx.execute(&insert("other", "a")).await.expect("its own row");
    tx.commit().await.expect("it commits");
    for table in ["more.papers", "other"] {
        let own =
            shard.execute(Request::read(claim(), count(table)).acting_for(acting(Some("a")))).await.expect("it reads");
        assert_eq!(own[0].rows, [[Value::Int(1)]], "{table}");
        let none =
            shard.execute(Request::read(claim(), count(table)).acting_for(acting(None))).await.expect("it reads");
        assert_eq!(none[0].rows, [[Value::Int(0)]], "{table}");
    }
}

/// A color must have a row in `plain`, and 2 has none.
fn color_is_plain() -> ForeignKey {
    ForeignKey {
        name: "colors_plain".into(),
        columns: vec!["id".into()],
        table: "plain".into(),
        references: vec!["id".into()],
        on_delete: OnChange::NoAction,
        on_update: OnChange::NoAction,
        deferral: Deferral::None,
    }
}

/// I-44: an owner that is no superuser is bound by FORCE, and does its own work all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_is_no_superuser_does_everything() {
    let server = PgServer::start(PgOptions { fsync: false, ..PgOptions::default() });
    server.run_sql("postgres", "CREATE ROLE keeper LOGIN CREATEROLE");
    server.run_sql("postgres", "CREATE DATABASE kept OWNER keeper");
    server.run_sql("postgres", "GRANT SET ON PARAMETER session_replication_role TO keeper");
    let url = server.url("kept").replace("postgres@", "keeper@");
    let shard = open(&url).await;
    prepare(&shard).await;
    assert_eq!(all_notes(&shard).await.len(), 6, "a snapshot has everyone's rows");
    let seen = read(&shard, &acting(Some("a")), "SELECT body FROM notes ORDER BY body").await;
    assert_eq!(seen, texts(&["1 of a".into(), "2 of a".into()]));
    let reader = StreamId::new("reader").expect("valid");
    let from = shard.add_consumer(&reader).await.expect("capture is on");
    assert_eq!(
        write(&shard, &acting(Some("a")), "DELETE FROM notes WHERE id = 1 RETURNING id").await.expect("it runs"),
        vec![1]
    );
    let logged = shard.changes(from, 10).await.expect("a page");
    assert_eq!(logged.changes.len(), 2, "a note and its tag");
    shard.advance(&reader, logged.through).await.expect("it moves on");
    applies(&shard).await;
    pledges(&shard).await;
    changes_in_transactions(&shard).await;
    shard.remove_consumer(&reader).await.expect("capture is off");
    drop(shard);
    // Once the role is there, no right to make one is needed.
    server.run_sql("postgres", "ALTER ROLE keeper NOCREATEROLE");
    open(&url).await;
}

async fn applies(shard: &PostgresShard) {
    let note = |name: Option<&str>, id: i64, seq: u64| Incoming {
        table: "notes".into(),
        unit: Unit::Tenant(name.map(tenant)),
        key: vec![Value::text(name.unwrap_or("")), Value::Int(id)],
        version: RowVersion { epoch: RoutingVersion(1), seq: Seq(seq) },
        row: Some(vec![Value::Int(id), Value::text(format!("{id} applied"))]),
    };
    let rows = vec![note(Some("a"), 2, 1), note(None, 5, 2), note(Some("new"), 5, 3)];
    let batch = Batch::new(&StreamId::new("s").expect("valid"), rows);
    assert_eq!(shard.apply(batch).await.expect("rows are applied").written, 3);
    let seen = read(shard, &acting(Some("new")), "SELECT body FROM notes").await;
    assert_eq!(seen, texts(&["5 applied".into()]));
}

async fn pledges(shard: &PostgresShard) {
    let id = |n: u64| PledgeId::new(format!("p{n}")).expect("valid");
    let pledge = async |n: u64| {
        let begin = Begin::new(claim(), Access::Write).acting_for(acting(Some("a")));
        let mut tx = shard.begin(begin).await.expect("it begins");
        let text = format!("INSERT INTO notes (_shard, id, body) VALUES ('a', {n}, 'pledged {n}')");
        tx.execute(&sql(&text)).await.expect("it writes");
        tx.pledge(&id(n), vec![]).await.expect("it pledges")
    };
    pledge(20).await.commit().await.expect("the word is said");
    pledge(21).await.rollback().await.expect("the word is said");
    let redo = pledge(22).await.redo().map(<[u8]>::to_vec);
    drop(pledge(23).await);
    assert_eq!(shard.pledges("p").await.expect("they are kept").len(), 2);
    shard.redeem(&id(22), redo).await.expect("the word is said later");
    shard.revoke(&id(23)).await.expect("the word is said later");
    let seen = read(shard, &acting(Some("a")), "SELECT body FROM notes WHERE id >= 20 ORDER BY id").await;
    assert_eq!(seen, texts(&["pledged 20".into(), "pledged 22".into()]));
}

/// What a shard of format 2 does not have.
const BEFORE: &str = "
    DROP POLICY isles_tenant ON notes; DROP POLICY isles_owner ON notes;
    ALTER TABLE notes NO FORCE ROW LEVEL SECURITY, DISABLE ROW LEVEL SECURITY;
    DROP POLICY isles_tenant ON tags; DROP POLICY isles_owner ON tags;
    ALTER TABLE tags NO FORCE ROW LEVEL SECURITY, DISABLE ROW LEVEL SECURITY;
    REVOKE ALL ON ALL TABLES IN SCHEMA public FROM isles_tenant;
    REVOKE ALL ON ALL TABLES IN SCHEMA more FROM isles_tenant;
    REVOKE ALL ON SCHEMA more FROM isles_tenant;
    REVOKE ALL ON ALL TABLES IN SCHEMA _isles FROM isles_tenant;
    REVOKE ALL ON ALL FUNCTIONS IN SCHEMA _isles FROM isles_tenant;
    GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA _isles TO PUBLIC;
    REVOKE ALL ON SCHEMA _isles FROM isles_tenant;
    ALTER FUNCTION _isles.capture() SECURITY INVOKER;
    DROP FUNCTION _isles.verify();
    DROP TRIGGER renew_token ON _isles.fence;
    DROP FUNCTION _isles.renew_token();
    DROP TABLE _isles.fence_token;
    ALTER TABLE _isles.meta DROP COLUMN bound;
    ALTER TABLE _isles.stream DROP COLUMN driver;
    UPDATE _isles.meta SET format = 2";

/// I-44: a shard that was set up before there was this fence has it once it is opened.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_shard_is_fenced_when_it_is_opened() {
    let (shard, url) = new_shard().await;
    let namespace = SchemaChange::CreateNamespace { namespace: "more".into() };
    let global = SchemaChange::CreateTable(table("more.things", TableKind::Global, &[("id", INT8)]));
    shard.apply_schema(SchemaVersion(1), vec![namespace, global]).await.expect("the schema applies");
    let reader = StreamId::new("reader").expect("valid");
    let from = shard.add_consumer(&reader).await.expect("capture is on");
    drop(shard);
    admin(&url, BEFORE).await;
    // Several processes may be started anew at once.
    let opened = futures::future::join_all((0..3).map(|_| try_open(&url, 4))).await;
    let shards: Vec<PostgresShard> = opened.into_iter().map(|shard| shard.expect("it opens")).collect();
    for shard in &shards {
        for (acts_for, owner) in cases() {
            let own: Vec<String> =
                owner.into_iter().flat_map(|owner| [1, 2].map(|id| format!("{id} of {owner}"))).collect();
            assert_eq!(read(shard, &acts_for, "SELECT body FROM notes ORDER BY body").await, texts(&own));
        }
    }
    let shard = &shards[0];
    write(shard, &acting(Some("a")), "DELETE FROM notes WHERE id = 1 RETURNING id").await.expect("it runs");
    write(shard, &ActsFor::Nobody, "INSERT INTO more.things (id) VALUES (1) RETURNING id").await.expect("it runs");
    assert_eq!(shard.changes(from, 10).await.expect("a page").changes.len(), 3);
    open(&url).await;
}

/// I-44: a shard whose tables do not keep tenants apart is not opened.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_with_a_broken_fence_is_not_opened() {
    let (shard, url) = new_shard().await;
    drop(shard);
    let repair = "DROP POLICY IF EXISTS isles_tenant ON tags; DROP POLICY IF EXISTS other ON tags; \
                  ALTER TABLE tags ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY; \
                  REVOKE TRUNCATE ON tags FROM PUBLIC; \
                  CREATE POLICY isles_tenant ON tags TO isles_tenant \
                  USING (_tenant = substr(nullif(current_setting('isles.tenant', true), ''), 2)) \
                  WITH CHECK (_tenant = substr(nullif(current_setting('isles.tenant', true), ''), 2))";
    for broken in [
        "DROP POLICY isles_tenant ON tags",
        "ALTER POLICY isles_tenant ON tags USING (true)",
        "ALTER POLICY isles_tenant ON tags WITH CHECK (true)",
        "ALTER POLICY isles_tenant ON tags TO PUBLIC",
        "ALTER POLICY isles_owner ON tags TO PUBLIC; ALTER POLICY isles_owner ON tags TO CURRENT_USER, isles_tenant",
        "CREATE POLICY other ON tags USING (id = 1)",
        "ALTER TABLE tags DISABLE ROW LEVEL SECURITY",
        "ALTER TABLE tags NO FORCE ROW LEVEL SECURITY",
        "GRANT TRUNCATE ON tags TO PUBLIC",
    ] {
        admin(&url, broken).await;
        let error = try_open(&url, 4).await.map(drop).expect_err(broken).for_people();
        assert_eq!(error.sqlstate, "55000", "{broken}: {error:?}");
        assert!(error.message.contains("table \"tags\" does not keep tenants apart"), "{broken}: {error:?}");
        assert!(error.hint.is_some_and(|hint| hint.contains("CREATE POLICY isles_tenant")), "{broken}");
        admin(&url, repair).await;
        admin(&url, "ALTER POLICY isles_owner ON tags TO CURRENT_USER").await;
        open(&url).await;
    }
}

/// I-44: a role that policies do not bind is refused, whatever the tables say.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_that_no_policy_binds_is_refused() {
    let server = PgServer::start(PgOptions { fsync: false, ..PgOptions::default() });
    server.run_sql("postgres", "CREATE ROLE keeper LOGIN CREATEROLE");
    server.run_sql("postgres", "CREATE DATABASE kept OWNER keeper");
    let url = server.url("kept").replace("postgres@", "keeper@");
    drop(open(&url).await);
    for (broken, repaired, said) in [
        ("ALTER ROLE isles_tenant BYPASSRLS", "ALTER ROLE isles_tenant NOBYPASSRLS", "exempt from row level security"),
        ("ALTER ROLE isles_tenant SUPERUSER", "ALTER ROLE isles_tenant NOSUPERUSER", "exempt from row level security"),
        (
            "REVOKE isles_tenant, isles_everyone FROM keeper; GRANT keeper TO isles_tenant; ALTER ROLE keeper SUPERUSER",
            "REVOKE keeper FROM isles_tenant; GRANT isles_tenant, isles_everyone TO keeper; ALTER ROLE keeper NOSUPERUSER",
            "rights that no policy bounds",
        ),
        (
            "ALTER ROLE isles_everyone BYPASSRLS",
            "ALTER ROLE isles_everyone NOBYPASSRLS",
            "does not keep tenants apart on the shard's server",
        ),
    ] {
        server.run_sql("postgres", broken);
        let error = try_open(&url, 4).await.map(drop).expect_err(broken).for_people();
        assert!(error.message.contains(said), "{broken}: {error:?}");
        server.run_sql("postgres", repaired);
        drop(open(&url).await);
    }
}

/// Databases of one server share the role: whoever sets one up second finds it made, also at the same moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn databases_of_one_server_are_set_up_at_once() {
    for _ in 0..3 {
        let server = PgServer::start(PgOptions { fsync: false, ..PgOptions::default() });
        server.run_sql("postgres", "CREATE ROLE keeper LOGIN CREATEROLE");
        let urls: Vec<String> = (0..8)
            .map(|n| {
                server.run_sql("postgres", &format!("CREATE DATABASE kept{n} OWNER keeper"));
                server.url(&format!("kept{n}")).replace("postgres@", "keeper@")
            })
            .collect();
        for opened in futures::future::join_all(urls.iter().map(|url| try_open(url, 4))).await {
            opened.expect("it opens");
        }
    }
}

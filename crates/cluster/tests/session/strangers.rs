//! Strangers: rows that a shard has and does not own, because their bucket is being moved here or away. No statement
//! sees or changes them, whatever shards it goes to.
//!
//! Each test has two databases with the same rows. In one of them every row is on another shard, too, and some copies
//! are older versions; both must answer alike. Shards are changed while the database is closed, so it learns of its
//! strangers by being refused.

use crate::harness::{Client, Db};
use crate::worlds::{Pair, World, close, open, shard};
use isles_cluster::catalog::{Key, Transaction};
use isles_cluster::database::Config;
use isles_cluster::session::Answer;
use isles_engine::fence::{Fence, FenceMode, FenceScope};
use isles_engine::shard::{Batch, Incoming, KeyRange, RowVersion, Shard, StoredRow};
use isles_kernel::names::{BucketId, GroupName, RoutingVersion, Seq, ShardId, StreamId};
use isles_kernel::routing::{RoutingChange, RoutingMove, RoutingPolicy};
use isles_kernel::schema::{Schema, TableKind};
use isles_kernel::value::Value;
use isles_sim::sqlgen::Generator;
use std::collections::BTreeSet;
use std::time::Duration;

const TIME: Duration = Duration::from_secs(20);
const TABLES: [&str; 5] = [
    "CREATE TABLE users (id bigint PRIMARY KEY, name text, age int) WITH (\"group\" = 'users')",
    "CREATE TABLE orders (user_id bigint, id bigint, total int, PRIMARY KEY (user_id, id)) \
     WITH (shard_by = 'user_id', \"group\" = 'users')",
    "CREATE TABLE events (id bigint PRIMARY KEY, user_id bigint) WITH (\"group\" = 'events')",
    "CREATE TABLE plans (id int PRIMARY KEY, name text) WITH (kind = 'reference')",
    "CREATE TABLE notes (id bigint PRIMARY KEY, body text) WITH (kind = 'tenant')",
];
const ROWS: [&str; 4] = [
    "INSERT INTO users SELECT n, 'user' || n, n % 7 FROM generate_series(1, 40) n",
    "INSERT INTO orders SELECT 5 + n % 50, n, n FROM generate_series(1, 90) n",
    "INSERT INTO events SELECT n, n % 45 FROM generate_series(1, 60) n",
    "INSERT INTO plans SELECT n, 'plan' || n FROM generate_series(0, 4) n",
];
const READS: [&str; 30] = [
    "SELECT count(*) FROM users",
    "SELECT sum(age), avg(age), max(name), count(DISTINCT age) FROM users",
    "SELECT * FROM users ORDER BY id",
    "SELECT id, age FROM users ORDER BY age DESC, id LIMIT 7 OFFSET 3",
    "SELECT age, count(*), string_agg(name, ',' ORDER BY id) FROM users GROUP BY age ORDER BY age",
    "SELECT DISTINCT age FROM users ORDER BY age",
    "SELECT DISTINCT ON (age) age, id FROM users ORDER BY age, id",
    "SELECT id, row_number() OVER (PARTITION BY age ORDER BY id) FROM users ORDER BY id",
    "SELECT id FROM users WHERE id = 7",
    "SELECT id, age FROM users WHERE id IN (1, 2, 3, 4, 5, 6, 7, 8, 9) ORDER BY id",
    "SELECT count(*), sum(age) FROM users WHERE id = ANY (ARRAY[11, 12, 13, 14, 15, 16])",
    "SELECT count(*), sum(o.total) FROM users u JOIN orders o ON o.user_id = u.id",
    "SELECT u.id, o.id FROM users u LEFT JOIN orders o ON o.user_id = u.id AND o.total > 60 ORDER BY 1, 2",
    "SELECT u.id, o.id FROM users u RIGHT JOIN orders o ON o.user_id = u.id ORDER BY 2",
    "SELECT u.id, o.id FROM users u FULL JOIN orders o ON o.user_id = u.id ORDER BY 1, 2",
    "SELECT u.id, v.id FROM users u LEFT JOIN (orders o JOIN users v ON v.id = o.user_id) ON o.user_id = u.id ORDER BY 1, 2",
    "SELECT u.id, p.name FROM users u LEFT JOIN plans p ON p.id = u.age ORDER BY 1",
    "SELECT count(*) FROM users a JOIN users b ON a.age = b.age",
    "SELECT u.id, e.id FROM users u JOIN events e ON e.user_id = u.id ORDER BY 1, 2",
    "SELECT u.id, e.id FROM users u FULL JOIN events e ON e.user_id = u.id ORDER BY 1, 2",
    "SELECT id FROM users u WHERE EXISTS (SELECT 1 FROM orders o WHERE o.user_id = u.id) ORDER BY id",
    "SELECT id FROM users u WHERE NOT EXISTS (SELECT 1 FROM orders o WHERE o.user_id = u.id) ORDER BY id",
    "SELECT id, (SELECT sum(total) FROM orders o WHERE o.user_id = u.id) FROM users u ORDER BY id",
    "SELECT id FROM users WHERE age IN (SELECT max(age) FROM users) ORDER BY id",
    "SELECT max(n) FROM (SELECT age, count(*) AS n FROM users GROUP BY age) s",
    "WITH old AS (SELECT * FROM users WHERE age > 3) SELECT count(*), sum(a.id) FROM old a JOIN old b ON a.id = b.id",
    "SELECT id FROM users UNION ALL SELECT user_id FROM orders ORDER BY 1",
    "SELECT id FROM users INTERSECT SELECT user_id FROM orders ORDER BY 1",
    "SELECT u.id, s.n FROM users u, LATERAL (SELECT count(*) AS n FROM orders o WHERE o.user_id = u.id) s ORDER BY 1",
    "SELECT count(*) FROM users WHERE 10 / (age + 1) >= 0",
];
const WRITES: [&str; 14] = [
    "UPDATE users SET age = age + 1",
    "UPDATE users SET age = age + 1 WHERE name LIKE 'user1%' RETURNING id, age",
    "UPDATE users SET age = age + 1 WHERE id IN (1, 2, 3, 4, 5, 6, 7, 8)",
    "UPDATE users SET age = o.total FROM orders o WHERE o.user_id = users.id AND o.id = 17",
    "UPDATE users SET age = (SELECT count(*) FROM orders o WHERE o.user_id = users.id) WHERE age < 4",
    "UPDATE users SET id = id + 1000 WHERE age = 2 RETURNING id",
    "UPDATE users SET age = e.n FROM (SELECT max(id) AS n FROM events) e WHERE users.age = 3",
    "DELETE FROM orders WHERE total > 80 RETURNING user_id, id",
    "DELETE FROM orders WHERE user_id IN (1, 2, 3, 4, 5, 6)",
    "DELETE FROM orders USING users u WHERE u.id = orders.user_id AND u.age > 5",
    "INSERT INTO users SELECT id + 5000, name, age FROM users",
    "INSERT INTO users (id, age) SELECT id, 1 FROM users ON CONFLICT (id) DO UPDATE SET age = users.age + excluded.age",
    "DELETE FROM events",
    "TRUNCATE orders",
];

/// How a query is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Alone,
    /// As the first statement of a transaction.
    Within(&'static str),
    Cursor,
    Copy,
}

const WAYS: [Way; 6] = [
    Way::Alone,
    Way::Within("READ COMMITTED"),
    Way::Within("REPEATABLE READ"),
    Way::Within("SERIALIZABLE"),
    Way::Cursor,
    Way::Copy,
];

async fn read(client: &mut Client, sql: &str, way: Way) -> Vec<String> {
    match way {
        Way::Alone => client.run(sql).await,
        Way::Within(level) => {
            client.run(&format!("BEGIN ISOLATION LEVEL {level}")).await;
            let rows = client.run(sql).await;
            client.run("COMMIT").await;
            rows
        }
        Way::Cursor => {
            client.run("BEGIN").await;
            client.run(&format!("DECLARE c CURSOR FOR {sql}")).await;
            let rows = client.run("FETCH ALL FROM c").await;
            client.run("COMMIT").await;
            rows
        }
        Way::Copy => {
            let prepared = client.session.prepare(&format!("COPY ({sql}) TO STDOUT"), &[]).await.unwrap();
            let Answer::CopyOut(mut copy) = client.session.execute(&prepared, vec![]).await.unwrap() else { panic!() };
            let mut bytes = Vec::new();
            while let Some(piece) = copy.next().await.unwrap() {
                bytes.extend(piece.concat());
            }
            String::from_utf8(bytes).unwrap().lines().map(String::from).collect()
        }
    }
}

/// Tables whose rows move, and their groups.
fn moving(schema: &Schema) -> Vec<String> {
    let moves = |kind: &TableKind| matches!(kind, TableKind::Hash { .. } | TableKind::Tenant);
    schema.tables.values().filter(|table| moves(&table.kind)).map(|table| table.name.clone()).collect()
}

fn groups(schema: &Schema) -> BTreeSet<GroupName> {
    let group = |kind: &TableKind| match kind {
        TableKind::Hash { group, .. } => Some(group.clone()),
        _ => None,
    };
    schema.tables.values().filter_map(|table| group(&table.kind)).collect()
}

/// All rows of a table, whatever the fences say.
async fn stored(shard: &dyn Shard, table: &str) -> Vec<StoredRow> {
    let mut snapshot = shard.snapshot().await.unwrap();
    let (mut rows, mut range) = (Vec::new(), KeyRange::table(table));
    loop {
        let page = snapshot.page(&range, 1_000).await.unwrap();
        rows.extend(page.rows);
        match page.next {
            Some(next) => range.after = Some(next),
            None => return rows,
        }
    }
}

/// A row of `table` where it does not belong.
#[derive(Debug, Clone, PartialEq)]
struct Stranger {
    shard: usize,
    table: String,
    row: StoredRow,
}

/// The copy of a row: as it is, or for some tables an older version.
fn copied(table: &str, mut row: StoredRow) -> StoredRow {
    let is_odd = |value: &Value| matches!(value, Value::Int(n) if n % 2 == 1);
    if table == "users" && is_odd(&row.values[0]) {
        row.values[2] = Value::Int(-1);
    }
    row
}

/// Copies all rows of each shard to the next one.
async fn plant(config: &Config) -> Vec<Stranger> {
    let count = config.shards.len();
    let mut strangers = Vec::new();
    for at in 0..count {
        let shard = shard(config, at).await;
        for table in moving(&shard.schema().await.unwrap()) {
            let rows = stored(&*shard, &table).await.into_iter().map(|row| copied(&table, row));
            strangers.extend(rows.map(|row| Stranger { shard: (at + 1) % count, table: table.clone(), row }));
        }
        shard.close().await.unwrap();
    }
    assert!(strangers.len() >= 20, "only {} strangers", strangers.len());
    for at in 0..count {
        let shard = shard(config, at).await;
        let schema = shard.schema().await.unwrap();
        let version = RowVersion { epoch: RoutingVersion(1), seq: Seq(1) };
        let incoming = |of: &Stranger| Incoming {
            table: of.table.clone(),
            unit: of.row.unit.clone(),
            key: schema.table(&of.table).unwrap().key_of(&of.row.unit, &of.row.values),
            version,
            row: Some(of.row.values.clone()),
        };
        let rows: Vec<Incoming> = strangers.iter().filter(|of| of.shard == at).map(incoming).collect();
        let stream = StreamId::new("copy").unwrap();
        for rows in rows.chunks(1_000) {
            assert_eq!(shard.apply(Batch::new(&stream, rows.to_vec())).await.unwrap().written, rows.len() as u64);
        }
        shard.close().await.unwrap();
    }
    strangers
}

/// Closes the fence around these groups on all shards.
async fn fence(config: &Config, wanted: impl Fn(&GroupName) -> bool) {
    for at in 0..config.shards.len() {
        let shard = shard(config, at).await;
        let groups = groups(&shard.schema().await.unwrap());
        let closed =
            |group| Fence { scope: FenceScope::Whole { group }, version: RoutingVersion(1), mode: FenceMode::Closed };
        shard.set_fences(groups.into_iter().filter(&wanted).map(closed).collect(), TIME).await.unwrap();
        shard.close().await.unwrap();
    }
}

/// Every stranger is where it was, as it was.
async fn check_untouched(config: &Config, strangers: &[Stranger]) {
    for at in 0..config.shards.len() {
        let shard = shard(config, at).await;
        for table in moving(&shard.schema().await.unwrap()) {
            let rows = stored(&*shard, &table).await;
            let gone: Vec<&Stranger> =
                strangers.iter().filter(|of| of.shard == at && of.table == table && !rows.contains(&of.row)).collect();
            assert!(gone.is_empty(), "{table} on s{at}: {gone:?}");
        }
        shard.close().await.unwrap();
    }
}

struct Two {
    configs: [Config; 2],
    _folders: [tempfile::TempDir; 2],
}

impl Two {
    /// Two databases with the same rows.
    async fn new(world: &World, shards: usize) -> Two {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let configs = [0, 1].map(|n: usize| world.config(folders[n].path(), shards));
        for config in &configs {
            let db = open(config).await;
            let mut client = db.client();
            for sql in TABLES.iter().chain(&ROWS) {
                client.run(sql).await;
            }
            for tenant in ["acme", "beta", "gamma", "delta"] {
                client.run(&format!("SET isles.tenant = '{tenant}'")).await;
                client.run("INSERT INTO notes SELECT n, 'note ' || n FROM generate_series(1, 9) n").await;
            }
            drop(client);
            close(db).await;
        }
        Two { configs, _folders: folders }
    }

    /// The one without strangers, and the one with them.
    async fn open(&self) -> (Db, Db) {
        (open(&self.configs[0]).await, open(&self.configs[1]).await)
    }

    fn other(&self) -> &Config {
        &self.configs[1]
    }
}

/// I-11, I-21
#[tokio::test(flavor = "multi_thread")]
async fn strangers_are_in_no_answer() {
    for world in World::both() {
        let two = Two::new(&world, 3).await;
        let strangers = plant(two.other()).await;
        let (one, other) = two.open().await;
        let count = "SELECT count(*) FROM users";
        assert_eq!(
            (one.client().run(count).await, other.client().run(count).await),
            (vec!["40".into()], vec!["80".into()])
        );
        close(other).await;
        fence(two.other(), |_| true).await;
        for way in WAYS {
            // It has forgotten that there are strangers, and is refused once more.
            let other = open(two.other()).await;
            for sql in READS {
                let expected = read(&mut one.client(), sql, way).await;
                assert_eq!(read(&mut other.client(), sql, way).await, expected, "{sql} {way:?}");
                assert!(!expected.is_empty());
            }
            close(other).await;
        }
        close(one).await;
        check_untouched(two.other(), &strangers).await;
    }
}

/// I-11
#[tokio::test(flavor = "multi_thread")]
async fn writes_leave_strangers_alone() {
    for world in World::both() {
        for block in [false, true] {
            let two = Two::new(&world, 3).await;
            let strangers = plant(two.other()).await;
            fence(two.other(), |_| true).await;
            let (one, mut other) = two.open().await;
            for sql in WRITES {
                let mut answers = Vec::new();
                for db in [&one, &other] {
                    let mut client = db.client();
                    if block {
                        client.run("BEGIN").await;
                    }
                    let mut lines = client.run(sql).await;
                    lines.sort();
                    if block {
                        client.run("COMMIT").await;
                    }
                    for table in ["users", "orders", "events"] {
                        lines.extend(client.run(&format!("SELECT * FROM {table} ORDER BY 1, 2")).await);
                    }
                    answers.push(lines);
                }
                assert_eq!(answers[0], answers[1], "{sql}");
                // The next one is refused first, too.
                if !block {
                    close(other).await;
                    other = open(two.other()).await;
                }
            }
            close(one).await;
            close(other).await;
            check_untouched(two.other(), &strangers).await;
        }
    }
}

/// I-9, I-11: a transaction that was on a shard before it learns of strangers there is tried again by its client, once
/// for each such shard, and then it knows.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_has_begun_is_tried_again() {
    for world in World::both() {
        let two = Two::new(&world, 2).await;
        plant(two.other()).await;
        fence(two.other(), |group| group.as_str() == "users").await;
        for (second, expected) in [("SELECT count(*) FROM users", "40"), ("UPDATE users SET age = 5", "UPDATE 40")] {
            for first in ["SELECT sum(id) FROM events WHERE user_id < 0", "UPDATE plans SET name = name"] {
                let other = open(two.other()).await;
                let mut client = other.client();
                let mut refused = 0;
                loop {
                    client.run("BEGIN ISOLATION LEVEL SERIALIZABLE").await;
                    client.run(first).await;
                    match client.try_run(second).await {
                        Ok(lines) => break assert_eq!(lines, [expected]),
                        Err(error) => {
                            let hint = error.hint.as_deref();
                            assert_eq!((error.sqlstate, hint), ("40001", Some("retry the transaction")), "{error}");
                            refused += 1;
                        }
                    }
                    client.run("ROLLBACK").await;
                }
                assert_eq!(refused, 2, "{first} {second}");
                client.run("ROLLBACK").await;
                close(other).await;
            }
        }
    }
}

/// I-11, I-21: results that are read as the client reads them.
#[tokio::test(flavor = "multi_thread")]
async fn large_results_have_no_strangers() {
    for world in World::both() {
        let folder = tempfile::tempdir().unwrap();
        let config = world.config(folder.path(), 2);
        let db = open(&config).await;
        db.client().run("CREATE TABLE t (id int PRIMARY KEY)").await;
        db.client().run("INSERT INTO t SELECT n FROM generate_series(1, 11000) n").await;
        close(db).await;
        plant(&config).await;
        fence(&config, |_| true).await;
        let db = open(&config).await;
        let ids = db.client().run("SELECT id FROM t ORDER BY id").await;
        assert!(ids.len() == 11_000 && ids.iter().enumerate().all(|(at, id)| *id == (at + 1).to_string()));
        assert_eq!(db.client().run("SELECT id FROM t").await.len(), 11_000);
        close(db).await;
    }
}

/// I-11, I-21: all of a group has come to one shard, whose fence is closed for as long as others have what is left.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_has_come_to_one_shard_is_asked_there() {
    for world in World::both() {
        let folder = tempfile::tempdir().unwrap();
        let config = world.config(folder.path(), 2);
        let db = open(&config).await;
        db.client().run("CREATE TABLE t (id int PRIMARY KEY, n int) WITH (\"group\" = 'g', buckets = 16)").await;
        db.client().run("INSERT INTO t SELECT n, 0 FROM generate_series(1, 100) n").await;
        let version = move_all(&db, &GroupName::new("g").unwrap()).await;
        close(db).await;
        plant(&config).await;
        for (at, mode) in [(0, FenceMode::Open), (1, FenceMode::Closed)] {
            let group = GroupName::new("g").unwrap();
            let buckets = FenceScope::Buckets { group: group.clone(), first: BucketId(0), last: BucketId(15) };
            let whole = Fence { scope: FenceScope::Whole { group }, version, mode: FenceMode::Closed };
            let shard = shard(&config, at).await;
            shard.set_fences(vec![Fence { scope: buckets, version, mode }, whole], TIME).await.unwrap();
            shard.close().await.unwrap();
        }
        for way in [Way::Alone, Way::Within("READ COMMITTED")] {
            let db = open(&config).await;
            assert_eq!(read(&mut db.client(), "SELECT count(*), sum(n) FROM t", way).await.len(), 1);
            assert_eq!(read(&mut db.client(), "SELECT id FROM t", way).await.len(), 100);
            close(db).await;
        }
        let db = open(&config).await;
        assert_eq!(db.client().run("UPDATE t SET n = 1").await, ["UPDATE 100"]);
        assert_eq!(db.client().run("SELECT count(*), sum(n) FROM t").await, ["100|100"]);
        close(db).await;
        let left = stored(&*shard(&config, 1).await, "t").await;
        assert!(left.len() == 100 && left.iter().all(|row| row.values[1] == Value::Int(0)));
    }
}

/// Routes all buckets of a group to the first shard.
async fn move_all(db: &Db, group: &GroupName) -> RoutingVersion {
    let (catalog, key) = (db.database.catalog(), Key::new("routing/current").unwrap());
    let stored = catalog.get(&key).await.unwrap().value.unwrap();
    let policy: RoutingPolicy = stored.json().unwrap();
    let [to, from] = ["s0", "s1"].map(|name| ShardId::new(name).unwrap());
    let ranges = policy.ranges(group).unwrap().iter().filter(|range| range.shard == from);
    let moved = |range: &isles_kernel::routing::BucketRange| RoutingMove::Buckets {
        group: group.clone(),
        first: range.first,
        last: range.last,
        from: from.clone(),
        to: to.clone(),
    };
    let next = policy.apply(&RoutingChange { moves: ranges.map(moved).collect() }).unwrap();
    catalog.commit(Transaction::new().when(stored.unchanged()).put_json(key, &next).unwrap()).await.unwrap();
    next.version()
}

/// A tenant's rows are counted where it lives, and not what another shard has of it.
#[tokio::test(flavor = "multi_thread")]
async fn tenants_are_counted_where_they_live() {
    for world in World::both() {
        let two = Two::new(&world, 2).await;
        let strangers = plant(two.other()).await;
        fence(two.other(), |_| true).await;
        let (one, other) = two.open().await;
        // Without the number of statements, which the databases have not in common.
        let shown = async |db: &Db, sql: &str| -> Vec<String> {
            let lines = db.client().run(sql).await;
            lines.iter().map(|line| line.split('|').take(4).collect::<Vec<_>>().join("|")).collect()
        };
        for sql in ["SHOW TENANTS", "SHOW TENANT beta"] {
            let expected = shown(&one, sql).await;
            assert!(expected.iter().all(|line| line.contains("|9|")), "{expected:?}");
            assert_eq!(shown(&other, sql).await, expected, "{sql}");
        }
        let bytes: u64 = shown(&one, "SHOW TENANT beta").await[0].rsplit('|').next().unwrap().parse().unwrap();
        for db in [&one, &other] {
            let mut client = db.client();
            client.run(&format!("ALTER TENANT beta SET (max_bytes = {})", bytes + 1)).await;
            client.run("SET isles.tenant = 'beta'").await;
            assert_eq!(client.run("SELECT count(*), max(id) FROM notes").await, ["9|9"]);
            client.run("INSERT INTO notes VALUES (10, 'one more is just beyond what it may store')").await;
            assert_eq!(client.fails("INSERT INTO notes VALUES (11, '')").await, "53100");
            drop(client);
            db.client().run("DROP TENANT gamma").await;
        }
        assert_eq!(shown(&other, "SHOW TENANTS").await, shown(&one, "SHOW TENANTS").await);
        assert_eq!(other.client().fails("SHOW TENANT gamma").await, "42704");
        close(one).await;
        close(other).await;
        check_untouched(two.other(), &strangers).await;
    }
}

/// What people are shown does not depend on strangers, and work is counted in either form.
#[tokio::test(flavor = "multi_thread")]
async fn plans_are_shown_as_ever() {
    for world in World::both() {
        let two = Two::new(&world, 2).await;
        plant(two.other()).await;
        fence(two.other(), |_| true).await;
        let (one, other) = two.open().await;
        for sql in READS.iter().chain(&WRITES[..WRITES.len() - 1]) {
            let explain = format!("EXPLAIN {sql}");
            assert_eq!(one.client().run(&explain).await, other.client().run(&explain).await);
        }
        let analyzed = other.client().run("EXPLAIN ANALYZE SELECT id FROM users").await.join("\n");
        let shards = analyzed.lines().filter(|line| line.trim_start().starts_with("Shard s")).count();
        assert!(shards == 2 && !analyzed.contains("_bucket") && !analyzed.contains("owns"), "{analyzed}");
        let rows = |line: &str| line.split([':', ' ']).filter_map(|word| word.parse::<u64>().ok()).next();
        let read: u64 = analyzed.lines().filter(|line| line.contains("Shard s")).filter_map(rows).sum();
        assert_eq!(read, 40, "{analyzed}");
        close(one).await;
        close(other).await;
    }
}

/// I-11, I-21
#[tokio::test(flavor = "multi_thread")]
async fn random_statements_answer_alike_with_strangers_and_without() {
    let seeds: [&[u64]; 2] = [&[81, 82, 83], &[84]];
    for ((world, seeds), steps) in World::both().into_iter().zip(seeds).zip([300, 100]) {
        for &seed in seeds {
            let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
            let configs = [0, 1].map(|n: usize| world.config(folders[n].path(), 3));
            let generator = Generator::new(seed);
            for config in &configs {
                let db = open(config).await;
                let mut client = db.client();
                client.run("SET isles.tenant = 'acme'").await;
                for table in generator.tables() {
                    client.run(&table.create().0).await;
                }
                for sql in generator.beside(seed).fill() {
                    client.run(&sql).await;
                }
                drop(client);
                close(db).await;
            }
            let strangers = plant(&configs[1]).await;
            fence(&configs[1], |_| true).await;
            let (one, other) = (open(&configs[0]).await, open(&configs[1]).await);
            let mut pair = Pair { one: one.client(), other: other.client(), generator: generator.beside(seed * 10) };
            for client in [&mut pair.one, &mut pair.other] {
                client.run("SET isles.tenant = 'acme'").await;
            }
            // A transaction that learns of strangers later than with its first statement would be told to try again.
            for table in generator.tables() {
                pair.other.run(&format!("SELECT count(*) FROM {}", table.name)).await;
            }
            let mut rows = 0;
            for _ in 0..steps {
                rows += pair.step().await;
            }
            assert!(rows * 5 > steps, "{rows} answers with rows say little");
            drop(pair);
            close(one).await;
            close(other).await;
            check_untouched(&configs[1], &strangers).await;
        }
    }
}

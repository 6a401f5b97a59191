//! Schema changes inside of transactions, on both engines.

use crate::harness::{Client, Db, env};
use crate::postgres::{server, urls};
use isles_cluster::commit::Planted;
use isles_cluster::database::{Config, Database};
use isles_cluster::session::Status;
use isles_kernel::value::Value;
use isles_sim::pgserver::PgServer;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A database of each engine.
struct Both {
    sqlite: Db,
    postgres: Db,
    _server: PgServer,
}

impl Both {
    async fn open() -> Both {
        let server = server();
        let postgres = Db::postgres(urls(&server, 2)).await;
        Both { sqlite: Db::sqlite(4).await, postgres, _server: server }
    }

    fn each(&self) -> [(&'static str, &Db); 2] {
        [("sqlite", &self.sqlite), ("postgres", &self.postgres)]
    }
}

const TABLES: &str = "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 2200 ORDER BY 1";

async fn numbers(client: &mut Client, table: &str) -> String {
    client.run(&format!("SELECT count(*), sum(id) FROM {table}")).await.concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_is_made_filled_and_read_in_one_transaction_and_seen_by_others_after_it() {
    let both = Both::open().await;
    for (engine, db) in both.each() {
        let (mut client, mut other) = (db.client(), db.client());
        client.run("CREATE TABLE old (id int PRIMARY KEY)").await;
        client.run("INSERT INTO old SELECT generate_series(1, 20)").await;
        client.run("BEGIN").await;
        client.run("CREATE TABLE t (id serial PRIMARY KEY, v text)").await;
        client.run("INSERT INTO t (v) SELECT 'v' || id FROM old").await;
        assert_eq!(numbers(&mut client, "t").await, "20|210", "{engine}");
        client.run("ALTER TABLE t ADD COLUMN w int NOT NULL DEFAULT 7").await;
        client.run("CREATE UNIQUE INDEX t_id_v ON t (id, v)").await;
        client.run("UPDATE t SET w = id WHERE id > 10").await;
        assert_eq!(client.run("SELECT sum(w) FROM t").await, vec!["225"], "{engine}");
        assert_eq!(client.run(TABLES).await, vec!["old", "t"], "{engine}");
        let seen = other.session.prepare("SELECT 1 FROM t", &[]).await.map(drop);
        assert_eq!(seen.unwrap_err().sqlstate, "42P01", "{engine}");
        assert_eq!(client.run("COMMIT").await, vec!["COMMIT"]);
        assert_eq!(numbers(&mut other, "t").await, "20|210", "{engine}");
        assert_eq!(other.run("SELECT sum(w) FROM t").await, vec!["225"], "{engine}");
        assert_eq!(other.fails("INSERT INTO t VALUES (3, 'x')").await, "23505", "{engine}");
        assert_eq!(other.run("INSERT INTO t (v) VALUES ('next') RETURNING id").await, vec!["21"], "{engine}");
    }
}

/// What psql, ORMs and pg_dump ask for is what was declared, and not how the shards keep it.
#[tokio::test(flavor = "multi_thread")]
async fn a_primary_key_without_the_shard_key_is_in_the_catalogs_as_declared() {
    let both = Both::open().await;
    for (engine, db) in both.each() {
        let mut client = db.client();
        client
            .run("CREATE TABLE files (no bigserial, owner text, name text, PRIMARY KEY (no)) WITH (shard_by = 'owner')")
            .await;
        let indexes = "SELECT c2.relname, i.indisprimary, i.indisunique, pg_catalog.pg_get_indexdef(i.indexrelid, 0, true), \
            pg_catalog.pg_get_constraintdef(con.oid, true), contype FROM pg_catalog.pg_class c, pg_catalog.pg_class c2, \
            pg_catalog.pg_index i LEFT JOIN pg_catalog.pg_constraint con ON (conrelid = i.indrelid AND conindid = i.indexrelid \
            AND contype IN ('p','u','x')) WHERE c.relname = 'files' AND c.oid = i.indrelid AND i.indexrelid = c2.oid";
        let shown = "files_pkey|t|t|CREATE UNIQUE INDEX files_pkey ON files USING btree (no) WITH (global='true')|PRIMARY KEY (no)|p";
        assert_eq!(client.run(indexes).await, [shown], "{engine}");
        let key = "SELECT a.attname, a.attnotnull FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid \
            AND a.attnum = ANY (i.indkey) WHERE i.indrelid = 'files'::regclass AND i.indisprimary";
        assert_eq!(client.run(key).await, ["no|t"], "{engine}");
        let usage = "SELECT constraint_name, column_name, ordinal_position FROM information_schema.key_column_usage";
        assert_eq!(client.run(usage).await, ["files_pkey|no|1"], "{engine}");
        let nullable = "SELECT column_name, is_nullable FROM information_schema.columns WHERE table_name = 'files'";
        assert_eq!(client.run(nullable).await, ["no|NO", "owner|NO", "name|YES"], "{engine}");
        client.run("COMMENT ON CONSTRAINT files_pkey ON files IS 'by number'").await;
        client.run("ALTER TABLE files RENAME CONSTRAINT files_pkey TO by_no").await;
        let comment = "SELECT conname, obj_description(oid, 'pg_constraint') FROM pg_constraint WHERE contype = 'p'";
        assert_eq!(client.run(comment).await, ["by_no|by number"], "{engine}");
        assert_eq!(client.fails("ALTER TABLE files DROP CONSTRAINT by_no").await, "0A000", "{engine}");
        assert_eq!(client.fails("ALTER TABLE files ADD PRIMARY KEY (name)").await, "42P16", "{engine}");
        client.run("INSERT INTO files (owner) VALUES ('ann'), ('bob')").await;
        let error = client.try_run("INSERT INTO files VALUES (2, 'cid')").await.unwrap_err();
        assert_eq!((error.sqlstate, error.constraint.as_deref()), ("23505", Some("by_no")), "{engine}");
        client.run("BEGIN").await;
        client.run("CREATE TABLE more (a int PRIMARY KEY, b int) WITH (shard_by = 'b')").await;
        client.run("INSERT INTO more VALUES (1, 1), (2, 1)").await;
        assert_eq!(client.fails("INSERT INTO more VALUES (2, 2)").await, "23505", "{engine}");
        client.run("ROLLBACK").await;
        assert_eq!(client.run(TABLES).await, ["files"], "{engine}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollback_leaves_nothing() {
    let both = Both::open().await;
    for (engine, db) in both.each() {
        let mut client = db.client();
        client.run("CREATE TABLE kept (id serial PRIMARY KEY, v text)").await;
        client.run("INSERT INTO kept (v) VALUES ('a'), ('b'), ('c')").await;
        let routes = client.run("SHOW ROUTES").await;
        client.run("BEGIN").await;
        client.run("CREATE TABLE t (id serial PRIMARY KEY)").await;
        client.run("INSERT INTO t DEFAULT VALUES").await;
        client.run("ALTER TABLE kept DROP COLUMN v").await;
        client.run("ALTER SEQUENCE kept_id_seq RESTART WITH 100").await;
        assert_eq!(client.run("INSERT INTO kept DEFAULT VALUES RETURNING id").await, vec!["100"], "{engine}");
        client.run("ROLLBACK").await;
        assert_eq!(client.fails("SELECT * FROM t").await, "42P01", "{engine}");
        assert_eq!(client.run("SELECT * FROM kept ORDER BY id").await, vec!["1|a", "2|b", "3|c"], "{engine}");
        assert_eq!(client.run("INSERT INTO kept (v) VALUES ('d') RETURNING id").await, vec!["4"], "{engine}");
        assert_eq!(client.run("SHOW ROUTES").await, routes, "{engine}");
        // The same name again, with other columns and another number of buckets.
        client.run("CREATE TABLE t (a serial, id text PRIMARY KEY) WITH (buckets = 8)").await;
        assert_eq!(client.run("INSERT INTO t (id) VALUES ('x') RETURNING a, id").await, vec!["1|x"], "{engine}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_savepoint_has_its_own_schema() {
    let both = Both::open().await;
    for (engine, db) in both.each() {
        let mut client = db.client();
        client.run("BEGIN").await;
        client.run("CREATE TABLE a (id int PRIMARY KEY)").await;
        client.run("INSERT INTO a SELECT generate_series(1, 10)").await;
        client.run("SAVEPOINT s").await;
        client.run("INSERT INTO a SELECT generate_series(11, 15)").await;
        client.run("ALTER TABLE a ADD COLUMN v text DEFAULT 'x'").await;
        client.run("CREATE TABLE b (id int PRIMARY KEY)").await;
        client.run("INSERT INTO b VALUES (1), (2)").await;
        client.run("ROLLBACK TO s").await;
        assert_eq!(client.run(TABLES).await, vec!["a"], "{engine}");
        assert_eq!(numbers(&mut client, "a").await, "10|55", "{engine}");
        assert_eq!(client.fails("SELECT v FROM a").await, "42703", "{engine}");
        assert_eq!(client.status(), Status::Failed);
        client.run("ROLLBACK TO s").await;
        client.run("CREATE TABLE b (id text PRIMARY KEY)").await;
        client.run("INSERT INTO b VALUES ('b')").await;
        client.run("ALTER TABLE a ADD COLUMN v int").await;
        client.run("UPDATE a SET v = id").await;
        client.run("RELEASE s").await;
        client.run("COMMIT").await;
        assert_eq!(client.run("SELECT sum(v) FROM a").await, vec!["55"], "{engine}");
        assert_eq!(client.run("SELECT id FROM b").await, vec!["b"], "{engine}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_rows_do_not_allow_fails_the_transaction() {
    let both = Both::open().await;
    for (engine, db) in both.each() {
        let mut client = db.client();
        client.run("CREATE TABLE t (id int PRIMARY KEY, v int)").await;
        client.run("INSERT INTO t VALUES (1, 1), (2, 2), (3, NULL), (4, 4), (5, 5)").await;
        client.run("BEGIN").await;
        client.run("CREATE TABLE u (id int PRIMARY KEY)").await;
        assert_eq!(client.fails("ALTER TABLE t ALTER COLUMN v SET NOT NULL").await, "23502", "{engine}");
        assert_eq!(client.fails("SELECT 1").await, "25P02", "{engine}");
        assert_eq!(client.run("COMMIT").await, vec!["ROLLBACK"]);
        client.run("BEGIN").await;
        client.run("SAVEPOINT s").await;
        let check = "ALTER TABLE t ADD CONSTRAINT small CHECK (v < 5)";
        assert_eq!(client.fails(check).await, "23514", "{engine}");
        client.run("ROLLBACK TO s").await;
        client.run("DELETE FROM t WHERE v = 5").await;
        client.run(check).await;
        client.run("COMMIT").await;
        assert_eq!(client.run(TABLES).await, vec!["t"], "{engine}");
        assert_eq!(client.fails("INSERT INTO t VALUES (6, 6)").await, "23514", "{engine}");
        assert_eq!(client.fails("ALTER TABLE t ALTER COLUMN v SET NOT NULL").await, "23502", "{engine}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_that_another_session_has_prepared_is_planned_anew() {
    let both = Both::open().await;
    for (engine, db) in both.each() {
        let (mut client, mut other) = (db.client(), db.client());
        client.run("CREATE TABLE t (id int PRIMARY KEY, v int)").await;
        client.run("INSERT INTO t VALUES (1, 10), (2, 20)").await;
        let insert = other.session.prepare("INSERT INTO t (id) VALUES ($1)", &[]).await.unwrap();
        let all = other.session.prepare("SELECT * FROM t", &[]).await.unwrap();
        other.session.execute(&insert, vec![Value::Int(3)]).await.unwrap();
        client.run("BEGIN").await;
        client.run("ALTER TABLE t ADD COLUMN w text DEFAULT 'w'").await;
        // Prepared under the transaction's own schema, and used when another one has its version.
        let own = client.session.prepare("SELECT w FROM t WHERE id = 1", &[]).await.unwrap();
        client.run("ROLLBACK").await;
        client.run("ALTER TABLE t ADD COLUMN u int DEFAULT 5").await;
        assert_eq!(client.session.execute(&own, vec![]).await.err().unwrap().sqlstate, "42703", "{engine}");
        client.run("BEGIN").await;
        client.run("ALTER TABLE t ALTER COLUMN v SET DEFAULT 99").await;
        client.run("COMMIT").await;
        other.session.execute(&insert, vec![Value::Int(4)]).await.unwrap();
        assert_eq!(other.run("SELECT v, u FROM t WHERE id = 4").await, vec!["99|5"], "{engine}");
        let stale = other.session.execute(&all, vec![]).await.err().unwrap();
        assert_eq!(stale.sqlstate, "0A000", "{engine}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_that_have_read_and_both_change_the_schema_are_a_deadlock() {
    let both = Both::open().await;
    for (engine, db) in both.each() {
        let (mut first, mut second) = (db.client(), db.client());
        first.run("CREATE TABLE t (id int PRIMARY KEY)").await;
        for client in [&mut first, &mut second] {
            client.run("BEGIN").await;
            client.run("SELECT count(*) FROM t").await;
        }
        let waiting = tokio::spawn(async move {
            let done = first.try_run("CREATE TABLE a (id int PRIMARY KEY)").await;
            (first, done)
        });
        // The first is waiting once nobody new comes in.
        let mut probe = db.client();
        while tokio::time::timeout(std::time::Duration::from_millis(50), probe.try_run("SELECT 1")).await.is_ok() {}
        assert_eq!(second.fails("CREATE TABLE b (id int PRIMARY KEY)").await, "40P01", "{engine}");
        let (mut first, done) = waiting.await.unwrap();
        assert_eq!(done.map_err(|error| error.to_string()), Ok(vec!["CREATE TABLE".to_string()]), "{engine}");
        first.run("COMMIT").await;
        second.run("ROLLBACK").await;
        assert_eq!(second.run(TABLES).await, vec!["a", "t"], "{engine}");
    }
}

/// Those that begin with the change take turns, and no one is refused.
#[tokio::test(flavor = "multi_thread")]
async fn transactions_that_begin_with_a_change_wait_for_each_other() {
    let both = Both::open().await;
    for (engine, db) in both.each() {
        let mut all = Vec::new();
        for n in 0..6 {
            let mut client = db.client();
            all.push(tokio::spawn(async move {
                client.run("BEGIN").await;
                client.run(&format!("CREATE TABLE t{n} (id int PRIMARY KEY)")).await;
                client.run(&format!("INSERT INTO t{n} VALUES (1), (2), (3), (4), (5)")).await;
                client.run("COMMIT").await;
            }));
        }
        for one in all {
            one.await.unwrap();
        }
        assert_eq!(db.client().run(TABLES).await.len(), 6, "{engine}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_block_does_not_allow_is_refused_as_postgresql_does() {
    let both = Both::open().await;
    for (engine, db) in both.each() {
        let mut client = db.client();
        client.run("CREATE TABLE t (id int PRIMARY KEY, v int)").await;
        client.run("BEGIN READ ONLY").await;
        assert_eq!(client.fails("CREATE TABLE u (id int)").await, "25006", "{engine}");
        client.run("ROLLBACK").await;
        client.run("BEGIN READ ONLY").await;
        assert_eq!(client.fails("TRUNCATE t").await, "25006", "{engine}");
        client.run("ROLLBACK").await;
        client.run("BEGIN").await;
        assert_eq!(client.fails("CREATE INDEX CONCURRENTLY i ON t (v)").await, "25001", "{engine}");
        client.run("ROLLBACK").await;
        client.run("CREATE INDEX CONCURRENTLY i ON t (v)").await;
        client.run("DROP INDEX CONCURRENTLY i").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn truncate_and_its_sequences_are_taken_back() {
    let both = Both::open().await;
    for (engine, db) in both.each() {
        let mut client = db.client();
        client.run("CREATE TABLE t (id serial PRIMARY KEY, v int)").await;
        client.run("INSERT INTO t (v) VALUES (1), (2), (3)").await;
        client.run("BEGIN").await;
        client.run("TRUNCATE t RESTART IDENTITY").await;
        assert_eq!(client.run("INSERT INTO t (v) VALUES (9) RETURNING id").await, vec!["1"], "{engine}");
        client.run("ROLLBACK").await;
        assert_eq!(client.run("INSERT INTO t (v) VALUES (4) RETURNING id").await, vec!["4"], "{engine}");
        client.run("BEGIN").await;
        client.run("TRUNCATE t RESTART IDENTITY").await;
        client.run("INSERT INTO t (v) VALUES (9)").await;
        client.run("COMMIT").await;
        assert_eq!(client.run("INSERT INTO t (v) VALUES (8) RETURNING id").await, vec!["2"], "{engine}");
        assert_eq!(client.run("SELECT id, v FROM t ORDER BY id").await, vec!["1|9", "2|8"], "{engine}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_and_sequences_are_dropped_renamed_and_made_anew_in_one_transaction() {
    let both = Both::open().await;
    for (engine, db) in both.each() {
        let mut client = db.client();
        client.run("CREATE TABLE t (id serial PRIMARY KEY, v int)").await;
        client.run("INSERT INTO t (v) VALUES (1), (2), (3)").await;
        for end in ["ROLLBACK", "COMMIT"] {
            client.run("BEGIN").await;
            client.run("ALTER TABLE t RENAME TO old").await;
            client.run("ALTER SEQUENCE t_id_seq RENAME TO old_seq").await;
            client.run("CREATE TABLE t (id serial PRIMARY KEY, w text)").await;
            assert_eq!(client.run("INSERT INTO t (w) VALUES ('new') RETURNING id").await, vec!["1"], "{engine}");
            assert_eq!(client.run("INSERT INTO old (v) VALUES (4) RETURNING id").await, vec!["4"], "{engine}");
            client.run(end).await;
        }
        assert_eq!(client.run("SELECT id, w FROM t").await, vec!["1|new"], "{engine}");
        assert_eq!(client.run("INSERT INTO t (w) VALUES ('more') RETURNING id").await, vec!["2"], "{engine}");
        assert_eq!(client.run("INSERT INTO old (v) VALUES (5) RETURNING id").await, vec!["5"], "{engine}");
        client.run("BEGIN").await;
        client.run("DROP TABLE old").await;
        client.run("CREATE TABLE copy AS SELECT id, w FROM t").await;
        client.run("COMMIT").await;
        assert_eq!(client.run("SELECT count(*) FROM copy").await, vec!["2"], "{engine}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_finds_what_was_committed() {
    let db = Db::sqlite(3).await;
    let mut client = db.client();
    client.run("BEGIN").await;
    client.run("CREATE TABLE t (id serial PRIMARY KEY, v int)").await;
    client.run("INSERT INTO t (v) SELECT generate_series(1, 9)").await;
    client.run("ALTER TABLE t ADD COLUMN w int DEFAULT 3").await;
    client.run("COMMIT").await;
    client.run("BEGIN").await;
    client.run("DROP TABLE t").await;
    drop(client);
    let db = db.restart(3).await;
    assert_eq!(db.client().run("SELECT count(*), sum(w) FROM t").await, vec!["9|27"]);
}

/// I-20: the schema follows the decision, on the servers as in the catalog, after the coordinator has died and the
/// server was killed meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_schema_on_servers_follows_the_decision_after_a_death() {
    for (planted, expected) in [(Planted::DieAfterPledge, None), (Planted::DieAfterDecision, Some("6"))] {
        let server = server();
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::postgres(folder.path(), urls(&server, 3));
        config.planted = Some(planted);
        {
            let database = Database::open(config.clone(), env()).await.unwrap();
            let db = Db { database, folder: tempfile::tempdir().unwrap() };
            let mut client = db.client();
            client.run("BEGIN").await;
            client.run("CREATE TABLE t (id int PRIMARY KEY)").await;
            client.run("INSERT INTO t VALUES (1), (2), (3), (4), (5), (6)").await;
            assert_eq!(client.fails("COMMIT").await, "08007");
        }
        server.kill9();
        server.restart();
        config.planted = None;
        let database = Database::open(config, env()).await.unwrap();
        let db = Db { database, folder };
        let mut client = db.client();
        match expected {
            Some(count) => assert_eq!(client.run("SELECT count(*) FROM t").await, vec![count], "{planted:?}"),
            None => assert_eq!(client.fails("SELECT count(*) FROM t").await, "42P01", "{planted:?}"),
        }
        client.run("CREATE TABLE u (id int PRIMARY KEY)").await;
    }
}

/// A transaction that holds a shard's writer and then waits for everyone finds that a statement waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_after_a_write_does_not_wait_for_those_who_wait_for_it() {
    let db = Db::sqlite(1).await;
    let mut client = db.client();
    client.run("CREATE TABLE t (id bigserial PRIMARY KEY)").await;
    let stop = Arc::new(AtomicBool::new(false));
    let (mut other, stopped) = (db.client(), stop.clone());
    let writes = tokio::spawn(async move {
        let mut done = 0;
        while !stopped.load(Ordering::SeqCst) {
            match other.try_run("INSERT INTO t DEFAULT VALUES").await {
                Ok(_) => done += 1,
                Err(error) => assert_eq!(error.sqlstate, "40P01"),
            }
        }
        done
    });
    let limit = std::time::Duration::from_secs(20);
    let refused = tokio::time::timeout(limit, async {
        loop {
            client.run("BEGIN").await;
            client.run("INSERT INTO t VALUES (0)").await;
            let changed = client.try_run("CREATE TABLE u (id int PRIMARY KEY)").await;
            client.run("ROLLBACK").await;
            if let Err(error) = changed {
                return error;
            }
        }
    });
    assert_eq!(refused.await.expect("nobody waits for the lock limit").sqlstate, "40P01");
    stop.store(true, Ordering::SeqCst);
    let done: u64 = writes.await.unwrap();
    assert_eq!(client.run("SELECT count(*) FROM t").await, vec![done.to_string()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_who_is_alone_and_says_nothing_is_rolled_back_for_the_others() {
    let both = Both::open().await;
    for (engine, db) in both.each() {
        let (mut client, mut other) = (db.client(), db.client());
        client.run("SET idle_in_transaction_session_timeout = 100").await;
        client.run("BEGIN").await;
        client.run("CREATE TABLE t (id int PRIMARY KEY)").await;
        // It waits for the other to end, which nobody but the limit makes it do.
        assert_eq!(other.run("CREATE TABLE u (id int PRIMARY KEY)").await, vec!["CREATE TABLE"], "{engine}");
        assert_eq!(client.fails("INSERT INTO t VALUES (1)").await, "25P03", "{engine}");
        client.run("ROLLBACK").await;
        assert_eq!(client.run(TABLES).await, vec!["u"], "{engine}");
    }
}

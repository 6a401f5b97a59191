//! Foreign keys that are checked when a transaction commits.

use crate::harness::Db;
use isles_cluster::session::Status;

pub(crate) async fn a_deferred_foreign_key_is_checked_at_the_commit(db: Db) {
    let (mut client, mut other) = (db.client(), db.client());
    client.run("CREATE TABLE parents (id int PRIMARY KEY) WITH (\"group\" = 'g')").await;
    client
        .run(
            "CREATE TABLE children (parent int REFERENCES parents DEFERRABLE INITIALLY DEFERRED, id int, \
             PRIMARY KEY (parent, id)) WITH (shard_by = 'parent', \"group\" = 'g')",
        )
        .await;
    client.run("BEGIN").await;
    client.run("INSERT INTO children VALUES (1, 1)").await;
    client.run("INSERT INTO parents VALUES (1)").await;
    client.run("COMMIT").await;
    client.run("BEGIN").await;
    client.run("INSERT INTO children VALUES (2, 1)").await;
    assert_eq!(client.fails("COMMIT").await, "23503");
    assert_eq!(client.status(), Status::Idle);
    assert_eq!(client.fails("INSERT INTO children VALUES (2, 2)").await, "23503", "a statement is a transaction");
    client.run("BEGIN").await;
    client.run("INSERT INTO parents SELECT n FROM generate_series(10, 30) n").await;
    client.run("INSERT INTO children VALUES (31, 1)").await;
    assert_eq!(client.fails("COMMIT").await, "23503");
    assert_eq!(other.run("SELECT count(*) FROM parents").await, ["1"], "of several shards none has kept anything");
    client.run("BEGIN").await;
    client.run("DELETE FROM parents WHERE id = 1").await;
    client.run("SAVEPOINT a").await;
    client.run("INSERT INTO children VALUES (5, 1)").await;
    client.run("ROLLBACK TO a").await;
    client.run("INSERT INTO parents VALUES (1)").await;
    client.run("COMMIT").await;
    assert_eq!(other.run("SELECT parent, id FROM children").await, ["1|1"]);
}

pub(crate) async fn a_foreign_key_says_whether_it_is_deferred(db: Db) {
    let mut client = db.client();
    client.run("CREATE TABLE parents (id int PRIMARY KEY) WITH (kind = 'reference')").await;
    client
        .run(
            "CREATE TABLE a (id int PRIMARY KEY, x int REFERENCES parents, y int REFERENCES parents DEFERRABLE, \
             z int REFERENCES parents NOT NULL INITIALLY DEFERRED)",
        )
        .await;
    client.run("ALTER TABLE a ADD w int").await;
    client.run("ALTER TABLE a ADD FOREIGN KEY (w) REFERENCES parents DEFERRABLE INITIALLY DEFERRED NOT VALID").await;
    let said = client.session.take_notices();
    assert!(said[0].1.message.contains("NOT VALID"), "{said:?}");
    let shown = "SELECT conname, condeferrable, condeferred, pg_get_constraintdef(oid) FROM pg_constraint \
                 WHERE contype = 'f' ORDER BY conname";
    let to = |column: &str, how: &str| format!("FOREIGN KEY ({column}) REFERENCES parents(id){how}");
    let deferred = " DEFERRABLE INITIALLY DEFERRED";
    assert_eq!(
        client.run(shown).await,
        [
            format!("a_w_fkey|t|t|{}", to("w", deferred)),
            format!("a_x_fkey|f|f|{}", to("x", "")),
            format!("a_y_fkey|t|f|{}", to("y", " DEFERRABLE")),
            format!("a_z_fkey|t|t|{}", to("z", deferred)),
        ]
    );
    // The file's table is made anew for this, and keeps what it has.
    client.run("ALTER TABLE a ADD CHECK (id > 0)").await;
    client.run("BEGIN").await;
    client.run("INSERT INTO a (id, z) VALUES (1, 7)").await;
    assert_eq!(client.fails("COMMIT").await, "23503");
    assert_eq!(client.fails("INSERT INTO a (id, y, z) VALUES (1, 7, 7)").await, "23503");
    for sql in [
        "CREATE TABLE b (id int PRIMARY KEY DEFERRABLE)",
        "CREATE TABLE b (id int PRIMARY KEY, v int, UNIQUE (id, v) INITIALLY DEFERRED)",
        "SET CONSTRAINTS ALL DEFERRED",
    ] {
        assert_eq!(client.fails(sql).await, "0A000", "{sql}");
    }
    assert_eq!(client.fails("CREATE TABLE b (id int DEFERRABLE)").await, "42601");
}

pub(crate) async fn what_an_index_says_and_does_not_need_is_left_out_aloud(db: Db) {
    let mut client = db.client();
    client.run("CREATE TABLE a (id int PRIMARY KEY, v text, n int)").await;
    for (sql, said) in [
        ("CREATE INDEX a_v ON a (v varchar_pattern_ops)", None),
        ("CREATE INDEX a_n ON a USING hash (n)", Some("btree")),
        ("CREATE INDEX a_i ON a (v) INCLUDE (n)", Some("INCLUDE")),
        ("ALTER TABLE a ADD UNIQUE (id, v) INCLUDE (n)", Some("INCLUDE")),
    ] {
        client.run(sql).await;
        let notices = client.session.take_notices();
        match said {
            Some(word) => {
                assert!(notices.iter().any(|(_, notice)| notice.message.contains(word)), "{sql}: {notices:?}")
            }
            None => assert!(notices.is_empty(), "{sql}: {notices:?}"),
        }
    }
    let indexes = "SELECT indexname, indexdef FROM pg_indexes WHERE indexname IN ('a_n', 'a_i') ORDER BY 1";
    assert_eq!(
        client.run(indexes).await,
        ["a_i|CREATE INDEX a_i ON public.a USING btree (v)", "a_n|CREATE INDEX a_n ON public.a USING btree (n)"]
    );
    assert_eq!(client.fails("CREATE INDEX ON a (n text_pattern_ops)").await, "42804");
    for sql in [
        "CREATE UNIQUE INDEX ON a USING hash (id)",
        "CREATE INDEX ON a USING hash (id, n)",
        "CREATE INDEX ON a USING gin (v)",
        "CREATE INDEX ON a (v bpchar_pattern_ops)",
    ] {
        assert_eq!(client.fails(sql).await, "0A000", "{sql}");
    }
}

pub(crate) async fn nothing_that_is_said_is_without_effect(db: Db) {
    let mut client = db.client();
    client.run("CREATE TABLE a (id int PRIMARY KEY)").await;
    client.run("CREATE VIEW v AS SELECT id FROM a").await;
    for (sql, code) in [
        ("VACUUM nosuch", "42P01"),
        ("ANALYZE nosuch", "42P01"),
        ("ANALYZE a (nosuch)", "42703"),
        ("VACUUM a (id)", "0A000"),
        ("VACUUM (NOSUCH) a", "42601"),
        ("EXPLAIN (NOSUCH) SELECT 1", "42601"),
        ("EXPLAIN (COSTS maybe) SELECT 1", "42601"),
        ("EXPLAIN (BUFFERS) SELECT 1", "0A000"),
        ("EXPLAIN (COSTS) SELECT 1", "0A000"),
        ("EXPLAIN (FORMAT yaml) SELECT 1", "0A000"),
        ("EXPLAIN (TIMING) SELECT 1", "22023"),
        ("SET seed = 0.5", "0A000"),
    ] {
        assert_eq!(client.fails(sql).await, code, "{sql}");
    }
    for sql in ["VACUUM", "VACUUM (ANALYZE, VERBOSE) a (id)", "ANALYZE pg_class", "ANALYZE a", "UNLISTEN *"] {
        client.run(sql).await;
    }
    client.run("ANALYZE v").await;
    assert_eq!(client.session.take_notices()[0].0, "WARNING");
    let explained =
        client.run("EXPLAIN (ANALYZE, TIMING off, SUMMARY off, COSTS off) SELECT * FROM a").await.join("\n");
    assert!(explained.contains("0 rows") && !explained.contains(" ms") && !explained.contains("Total"), "{explained}");
    client.run("SET client_min_messages = warning").await;
    client.run("DROP TABLE IF EXISTS nosuch").await;
    assert!(client.session.take_notices().is_empty());
    client.run("BEGIN").await;
    assert_eq!(client.fails("VACUUM").await, "25001");
    client.run("ROLLBACK").await;
    for sql in ["LISTEN a", "NOTIFY a", "LOCK TABLE a", "DO 'x'", "CREATE DOMAIN d AS int", "ALTER TABLE a OWNER TO b"]
    {
        let error = client.try_run(sql).await.expect_err(sql);
        assert!(error.sqlstate == "0A000" && error.hint.is_some(), "{sql}: {error:?}");
    }
}

//! Statements over four SQLite shards.

use crate::harness::{Client, Db};
use isles_cluster::session::Answer;
use isles_kernel::value::Value;

async fn users(client: &mut Client, rows: usize) {
    client.run("CREATE TABLE users (id bigint PRIMARY KEY, name text, age int)").await;
    let values: Vec<String> = (1..=rows).map(|n| format!("({n}, 'user{n}', {})", n % 7)).collect();
    let tag = client.run(&format!("INSERT INTO users (id, name, age) VALUES {}", values.join(", "))).await;
    assert_eq!(tag, vec![format!("INSERT 0 {rows}")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_come_back_from_wherever_they_are() {
    let db = Db::sqlite(4).await;
    let mut client = db.client();
    users(&mut client, 40).await;
    assert_eq!(client.run("SELECT id, name FROM users WHERE id = 7").await, vec!["7|user7"]);
    let ordered = client.run("SELECT id FROM users ORDER BY id DESC LIMIT 3 OFFSET 1").await;
    assert_eq!(ordered, vec!["39", "38", "37"]);
    let some = client.run("SELECT id FROM users WHERE id IN (3, 1, 2, 99) ORDER BY id").await;
    assert_eq!(some, vec!["1", "2", "3"]);
    assert_eq!(client.run("SELECT count(*) FROM users").await, vec!["40"]);
    let groups = client.run("SELECT age, count(*) FROM users GROUP BY age ORDER BY age LIMIT 2").await;
    assert_eq!(groups, vec!["0|5", "1|6"]);
    let mut spread = client.run("SHOW SHARDS").await;
    spread.sort();
    assert_eq!(spread.len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_return_in_the_order_of_their_rows() {
    let db = Db::sqlite(4).await;
    let mut client = db.client();
    client.run("CREATE TABLE t (id int PRIMARY KEY, v text)").await;
    let given = client.run("INSERT INTO t VALUES (9, 'a'), (3, 'b'), (7, 'c'), (1, 'd') RETURNING id, v").await;
    assert_eq!(given, vec!["9|a", "3|b", "7|c", "1|d"]);
    assert_eq!(client.run("UPDATE t SET v = 'x' WHERE id > 2").await, vec!["UPDATE 3"]);
    assert_eq!(client.run("DELETE FROM t WHERE v = 'x'").await, vec!["DELETE 3"]);
    assert_eq!(client.run("SELECT id, v FROM t").await, vec!["1|d"]);
    assert_eq!(client.fails("INSERT INTO t VALUES (5, 'e'), (1, 'f')").await, "23505");
    assert_eq!(client.run("SELECT count(*) FROM t").await, vec!["1"], "the other row was not inserted either");
    let merged =
        "INSERT INTO t VALUES (1, 'new'), (2, 'two') ON CONFLICT (id) DO UPDATE SET v = excluded.v RETURNING v";
    assert_eq!(client.run(merged).await, vec!["new", "two"]);
    let twice = "INSERT INTO t VALUES (1, 'p'), (1, 'q') ON CONFLICT (id) DO UPDATE SET v = excluded.v";
    assert_eq!(client.fails(twice).await, "21000");
}

#[tokio::test(flavor = "multi_thread")]
async fn parameters_are_typed_and_route() {
    let db = Db::sqlite(4).await;
    let mut client = db.client();
    users(&mut client, 10).await;
    let found = client.try_with("SELECT name FROM users WHERE id = $1", vec![Value::Int(4)]).await.unwrap();
    assert_eq!(found, vec!["user4"]);
    let none = client.try_with("SELECT name FROM users WHERE id = $1", vec![Value::Null]).await.unwrap();
    assert!(none.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_key_that_changes_moves_its_row() {
    let db = Db::sqlite(4).await;
    let mut client = db.client();
    users(&mut client, 20).await;
    assert_eq!(client.run("UPDATE users SET id = id + 100 WHERE id <= 10").await, vec!["UPDATE 10"]);
    for id in [101, 105, 110] {
        assert_eq!(client.run(&format!("SELECT id FROM users WHERE id = {id}")).await, vec![id.to_string()]);
    }
    assert_eq!(client.run("SELECT count(*) FROM users").await, vec!["20"]);
    assert!(client.run("SELECT 1 FROM users WHERE id = 5").await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn reference_tables_are_on_every_shard() {
    let db = Db::sqlite(3).await;
    let mut client = db.client();
    client.run("CREATE TABLE plans (id int PRIMARY KEY, name text) WITH (kind = 'reference')").await;
    assert_eq!(client.run("INSERT INTO plans VALUES (1, 'free'), (2, 'pro') RETURNING id").await, vec!["1", "2"]);
    assert_eq!(client.run("UPDATE plans SET name = 'paid' WHERE id = 2").await, vec!["UPDATE 1"]);
    users(&mut client, 12).await;
    let joined = client.run("SELECT u.id, p.name FROM users u JOIN plans p ON p.id = u.age ORDER BY u.id").await;
    assert_eq!(joined, vec!["1|free", "2|paid", "8|free", "9|paid"]);
    assert_eq!(client.run("SELECT name FROM plans ORDER BY id").await, vec!["free", "paid"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn tenants_do_not_see_each_other() {
    let db = Db::sqlite(4).await;
    let mut client = db.client();
    client.run("CREATE TABLE notes (id bigint PRIMARY KEY, body text) WITH (kind = 'tenant')").await;
    assert_eq!(client.fails("SELECT * FROM notes").await, "55000");
    for tenant in ["acme", "borealis"] {
        client.run(&format!("SET isles.tenant = '{tenant}'")).await;
        client.run(&format!("INSERT INTO notes VALUES (1, 'of {tenant}')")).await;
    }
    assert_eq!(client.run("SELECT id, body FROM notes").await, vec!["1|of borealis"]);
    client.run("SET isles.tenant = 'acme'").await;
    assert_eq!(client.run("SELECT body FROM notes").await, vec!["of acme"]);
    client.run("SET isles.null_tenant = on").await;
    assert!(client.run("SELECT body FROM notes").await.is_empty());
    client.run("INSERT INTO notes VALUES (1, 'of nobody')").await;
    assert_eq!(client.run("SELECT body FROM notes").await, vec!["of nobody"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn sequences_number_rows_over_all_shards_and_restarts() {
    let db = Db::sqlite(4).await;
    let mut client = db.client();
    client.run("CREATE TABLE t (id bigserial PRIMARY KEY, v text)").await;
    let ids = client.run("INSERT INTO t (v) VALUES ('a'), ('b'), ('c') RETURNING id").await;
    assert_eq!(ids, vec!["1", "2", "3"]);
    assert_eq!(client.run("SELECT currval('t_id_seq')").await, vec!["3"]);
    assert_eq!(client.run("SELECT setval('t_id_seq', 10)").await, vec!["10"]);
    assert_eq!(client.run("SELECT nextval('t_id_seq')").await, vec!["11"]);
    client.session.close().await;
    let db = db.restart(4).await;
    let mut client = db.client();
    assert_eq!(client.fails("SELECT currval('t_id_seq')").await, "55000");
    assert_eq!(client.run("INSERT INTO t (v) VALUES ('d') RETURNING id").await, vec!["12"]);
    assert_eq!(client.run("SELECT count(*) FROM t").await, vec!["4"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_change_that_a_shard_refuses_changes_none() {
    let db = Db::sqlite(4).await;
    let mut client = db.client();
    client.run("CREATE TABLE t (id int PRIMARY KEY, v int)").await;
    client.run("INSERT INTO t SELECT g, g % 3 FROM generate_series(1, 30) g").await;
    let before = db.database.name().to_string();
    assert_eq!(before, "isles");
    let state = client.fails("ALTER TABLE t ADD CONSTRAINT positive CHECK (v > 0)").await;
    assert_eq!(state, "23514");
    client.run("ALTER TABLE t ADD COLUMN w int DEFAULT 5").await;
    assert_eq!(client.run("SELECT sum(w) FROM t").await, vec!["150"]);
    assert_eq!(client.fails("SELECT nothing FROM t").await, "42703");
    client.session.close().await;
    let db = db.restart(4).await;
    assert_eq!(db.client().run("SELECT count(*) FROM t WHERE v = 0").await, vec!["10"]);
}

/// A result that does not fit into a statement's memory is read as the client reads it.
#[tokio::test(flavor = "multi_thread")]
async fn large_results_are_streamed_in_order() {
    let db = Db::sqlite(4).await;
    let mut client = db.client();
    client.run("CREATE TABLE t (id int PRIMARY KEY, v text)").await;
    for chunk in 0..13 {
        let values: Vec<String> = (0..1_000).map(|n| format!("({}, 'x')", chunk * 1_000 + n)).collect();
        client.run(&format!("INSERT INTO t VALUES {}", values.join(", "))).await;
    }
    let ids = client.run("SELECT id FROM t ORDER BY id OFFSET 5").await;
    assert_eq!(ids.len(), 12_995);
    assert!(ids.iter().enumerate().all(|(at, id)| *id == (at + 5).to_string()));
    assert_eq!(client.run("SELECT id, v FROM t").await.len(), 13_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_go_in_and_out() {
    let db = Db::sqlite(4).await;
    let mut client = db.client();
    client.run("CREATE TABLE t (id int PRIMARY KEY, v text, n int DEFAULT 7)").await;
    let prepared = client.session.prepare("COPY t (id, v) FROM STDIN", &[]).await.unwrap();
    let Answer::CopyIn(mut copy) = client.session.execute(&prepared, Vec::new()).await.unwrap() else { panic!() };
    for piece in ["1\tone\n2\tt", "wo\n3\t\\N\n"] {
        copy.write(piece.as_bytes()).await.unwrap();
    }
    assert_eq!(copy.finish().await.unwrap(), "COPY 3");
    assert_eq!(client.run("SELECT id, v, n FROM t ORDER BY id").await, vec!["1|one|7", "2|two|7", "3|∅|7"]);
    let prepared =
        client.session.prepare("COPY (SELECT id, v FROM t ORDER BY id) TO STDOUT (FORMAT csv)", &[]).await.unwrap();
    let Answer::CopyOut(mut copy) = client.session.execute(&prepared, Vec::new()).await.unwrap() else { panic!() };
    let mut bytes = Vec::new();
    while let Some(piece) = copy.next().await.unwrap() {
        bytes.extend(piece.concat());
    }
    assert_eq!(String::from_utf8(bytes).unwrap(), "1,one\n2,two\n3,\n");
    let prepared = client.session.prepare("COPY t (id, v) FROM STDIN", &[]).await.unwrap();
    let Answer::CopyIn(mut copy) = client.session.execute(&prepared, Vec::new()).await.unwrap() else { panic!() };
    copy.write(b"4\tfour\n").await.unwrap();
    assert_eq!(copy.write(b"x\tbad\n").await.unwrap_err().sqlstate, "22P02");
    drop(copy);
    assert_eq!(client.run("SELECT count(*) FROM t").await, vec!["3"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn system_relations_are_queried_like_tables() {
    let db = Db::sqlite(2).await;
    let mut client = db.client();
    client.run("CREATE TABLE t (id int PRIMARY KEY, v text)").await;
    let columns = "SELECT column_name FROM information_schema.columns WHERE table_name = 't' ORDER BY ordinal_position";
    assert_eq!(client.run(columns).await, vec!["id", "v"]);
    assert_eq!(client.run("SELECT relname FROM pg_class WHERE relname = 't'").await, vec!["t"]);
}

//! The failures of asynchronous index maintenance that were shown by running the original, each by its name there.

use super::World;
use super::harness::{Client, Db};
use isles_engine::shard::KeyRange;
use std::time::Duration;

/// A table with an index that can be asked.
pub(crate) async fn users(db: &Db) -> Client {
    let mut client = db.client();
    client.run("CREATE TABLE users (id int PRIMARY KEY, email text, n int) WITH (\"group\" = 'users')").await;
    client.run("CREATE INDEX users_email ON users (email) WITH (global)").await;
    client.run("WAIT FOR INDEX users_email").await;
    client
}

/// Rows of users, however they are found.
pub(crate) async fn by_email(client: &mut Client, email: &str) -> Vec<String> {
    let mut found = client.run(&format!("SELECT id FROM users WHERE email = '{email}'")).await;
    found.sort();
    found
}

/// I-23, I-24, I-25, RUN A: a new value is found before anybody has brought it to the index, by reads and by writes.
pub(crate) async fn update_visible_before_apply(db: World) {
    let mut client = users(&db).await;
    for id in 0..40 {
        client.run(&format!("INSERT INTO users VALUES ({id}, 'old{id}', 0)")).await;
    }
    for id in 0..40 {
        client.run(&format!("UPDATE users SET email = 'new{id}' WHERE id = {id}")).await;
        assert_eq!(by_email(&mut client, &format!("new{id}")).await, [id.to_string()]);
        assert_eq!(by_email(&mut client, &format!("old{id}")).await, Vec::<String>::new());
        assert_eq!(client.run(&format!("UPDATE users SET n = n + 1 WHERE email = 'new{id}'")).await, ["UPDATE 1"]);
        assert_eq!(client.run(&format!("DELETE FROM users WHERE email = 'old{id}'")).await, ["DELETE 0"]);
    }
    assert_eq!(client.run("SELECT sum(n), count(*) FROM users").await, ["40|40"]);
}

/// I-23, I2: what was committed before the process went is in the index after it has come back.
pub(crate) async fn lost_enqueue_impossible(db: World) {
    let mut client = users(&db).await;
    for id in 0..30 {
        client.run(&format!("INSERT INTO users VALUES ({id}, 'e{id}', 0)")).await;
    }
    drop(client);
    let db = db.reopen().await;
    let mut client = db.client();
    for id in 0..30 {
        assert_eq!(by_email(&mut client, &format!("e{id}")).await, [id.to_string()]);
    }
    client.run("WAIT FOR INDEX users_email").await;
    for id in 0..30 {
        assert_eq!(by_email(&mut client, &format!("e{id}")).await, [id.to_string()]);
    }
    assert_eq!(client.run("VERIFY INDEX users_email").await, ["30|0|0|0"]);
}

/// I-23, RUN C: rows that come while the index is compared with the rows stay in it.
pub(crate) async fn insert_between_scan_and_compare(db: World) {
    let mut client = users(&db).await;
    let writer = tokio::spawn({
        let mut client = db.client();
        async move {
            for id in 0..200 {
                client.run(&format!("INSERT INTO users VALUES ({id}, 'e{}', 0)", id % 50)).await;
            }
        }
    });
    while !writer.is_finished() {
        let shown = client.run("VERIFY INDEX users_email REPAIR").await;
        assert!(shown[0].ends_with("|0|0|0"), "entries, missing, superfluous, repaired: {shown:?}");
    }
    writer.await.unwrap();
    for email in 0..50 {
        assert_eq!(by_email(&mut client, &format!("e{email}")).await.len(), 4, "e{email}");
    }
}

/// I-24, RUN E, RUN 4: the empty string, null, '007', true, 2^53+1, blobs and letters in either case.
pub(crate) async fn keys_are_stored_values(db: World) {
    let mut client = db.client();
    client
        .run("CREATE TABLE odd (id int PRIMARY KEY, t text, i bigint, b boolean, x bytea, d numeric, c char(5))")
        .await;
    for column in ["t", "i", "b", "x", "d", "c"] {
        client.run(&format!("CREATE INDEX odd_{column} ON odd ({column}) WITH (global)")).await;
    }
    client.run("INSERT INTO odd VALUES (1, '', 7, true, '\\x00', 1.50, 'ab'), (2, '007', 9007199254740993, false, '\\x0000', 7, 'ab   ')").await;
    client.run("INSERT INTO odd VALUES (3, 'a', 9007199254740992, NULL, '\\x', NULL, 'AB'), (4, 'A', NULL, true, NULL, 1.5, NULL), (5, NULL, -7, false, '\\xff', -1, 'b')").await;
    for column in ["t", "i", "b", "x", "d", "c"] {
        client.run(&format!("WAIT FOR INDEX odd_{column}")).await;
    }
    for (condition, ids) in [
        ("t = ''", "1"),
        ("t = '007'", "2"),
        ("t = '7'", ""),
        ("t = 'a'", "3"),
        ("t = 'A'", "4"),
        ("t IS NULL", "5"),
        ("t LIKE '0%'", "2"),
        ("i = '007'", "1"),
        ("i = 7", "1"),
        ("i = 9007199254740993", "2"),
        ("i = 9007199254740992", "3"),
        ("i < 0", "5"),
        ("i BETWEEN 7 AND 9007199254740992", "1,3"),
        ("b = true", "1,4"),
        ("b", "1,4"),
        ("b IS NULL", "3"),
        ("x = '\\x00'", "1"),
        ("x = '\\x'", "3"),
        ("x > '\\x00'", "2,5"),
        ("d = 1.5", "1,4"),
        ("d = 1.500", "1,4"),
        ("d < 0", "5"),
        ("c = 'ab'", "1,2"),
        ("c = 'ab '", "1,2"),
        ("t IN ('a', 'A', 'zz')", "3,4"),
        ("t = 'a' OR i = 7", "1,3"),
    ] {
        let found = client.run(&format!("SELECT id FROM odd WHERE {condition} ORDER BY id")).await;
        assert_eq!(found.join(","), ids, "{condition}");
    }
}

/// I-24, RUN 2: of two rows with one key on one shard, one goes and the other is still found.
pub(crate) async fn duplicate_key_delete(db: World) {
    let mut client = users(&db).await;
    for id in 0..40 {
        client.run(&format!("INSERT INTO users VALUES ({id}, 'same', 0)")).await;
    }
    for left in (1..40).rev() {
        client.run(&format!("DELETE FROM users WHERE id = {left}")).await;
        if left % 7 == 0 {
            settle(&db).await;
        }
        assert_eq!(by_email(&mut client, "same").await.len(), left);
    }
}

/// I-24, RUN 3: the new value of a row is found that was found by its old one.
pub(crate) async fn update_by_indexed_column(db: World) {
    let mut client = users(&db).await;
    for id in 0..20 {
        client.run(&format!("INSERT INTO users VALUES ({id}, 'a{id}', 0)")).await;
    }
    settle(&db).await;
    for id in 0..20 {
        assert_eq!(client.run(&format!("UPDATE users SET email = 'b{id}' WHERE email = 'a{id}'")).await, ["UPDATE 1"]);
        assert_eq!(by_email(&mut client, &format!("b{id}")).await, [id.to_string()]);
    }
    settle(&db).await;
    for id in 0..20 {
        assert_eq!(by_email(&mut client, &format!("b{id}")).await, [id.to_string()]);
    }
}

/// I-27, RUN 1: rows that were there before the index are found by it.
pub(crate) async fn build_on_populated_table(db: World) {
    let mut client = db.client();
    client.run("CREATE TABLE users (id int PRIMARY KEY, email text, n int) WITH (\"group\" = 'users')").await;
    client.run("INSERT INTO users SELECT i, 'e' || i % 300, 0 FROM generate_series(1, 3000) AS s (i)").await;
    client.run("CREATE INDEX users_email ON users (email) WITH (global)").await;
    assert_eq!(by_email(&mut client, "e7").await.len(), 10, "whether it is built or not");
    client.run("WAIT FOR INDEX users_email").await;
    for email in 0..300 {
        assert_eq!(by_email(&mut client, &format!("e{email}")).await.len(), 10, "e{email}");
    }
    assert_eq!(client.run("UPDATE users SET n = 1 WHERE email = 'e7'").await, ["UPDATE 10"]);
    assert_eq!(client.run("DELETE FROM users WHERE email = 'e8'").await, ["DELETE 10"]);
    settle(&db).await;
    assert!(client.run("VERIFY INDEX users_email").await[0].ends_with("|0|0|0"));
}

/// I-27, RUN 13: rows that come, change and go while an index is built are in it as they are in the end.
pub(crate) async fn insert_during_build(db: World) {
    let mut client = db.client();
    client.run("CREATE TABLE users (id int PRIMARY KEY, email text, n int) WITH (\"group\" = 'users')").await;
    client.run("INSERT INTO users SELECT i, 'e' || i % 100, 0 FROM generate_series(1, 4000) AS s (i)").await;
    let writer = tokio::spawn({
        let mut client = db.client();
        async move {
            for id in 1..=300 {
                client.run(&format!("INSERT INTO users VALUES ({}, 'new{}', 0)", 10_000 + id, id % 10)).await;
                client.run(&format!("UPDATE users SET email = 'moved' WHERE id = {id}")).await;
                client.run(&format!("DELETE FROM users WHERE id = {}", 1000 + id)).await;
            }
        }
    });
    tokio::time::sleep(Duration::from_millis(20)).await;
    client.run("CREATE INDEX users_email ON users (email) WITH (global)").await;
    client.run("WAIT FOR INDEX users_email").await;
    writer.await.unwrap();
    assert_eq!(by_email(&mut client, "moved").await.len(), 300);
    for email in 0..10 {
        assert_eq!(by_email(&mut client, &format!("new{email}")).await.len(), 30);
    }
    settle(&db).await;
    assert!(client.run("VERIFY INDEX users_email").await[0].ends_with("|0|0|0"));
    assert_eq!(by_email(&mut client, "moved").await.len(), 300);
}

/// I-24, RUN 14, 14b: some of an index's columns, and ranges of them.
pub(crate) async fn composite_prefix_and_range(db: World) {
    let mut client = db.client();
    client.run("CREATE TABLE visits (id int PRIMARY KEY, country text, city text, year int)").await;
    client.run("CREATE INDEX visits_where ON visits (country, city, year) WITH (global)").await;
    client.run("WAIT FOR INDEX visits_where").await;
    for id in 0..60 {
        let city = if id % 5 == 0 { "NULL".into() } else { format!("'c{}'", id % 5) };
        let country = ["us", "de", "fr"][id % 3];
        client.run(&format!("INSERT INTO visits VALUES ({id}, '{country}', {city}, {})", 2000 + id % 7)).await;
    }
    for round in 0..2 {
        for condition in [
            "country = 'us'",
            "country = 'us' AND city = 'c1'",
            "country = 'us' AND city = 'c1' AND year = 2003",
            "country = 'us' AND city > 'c2'",
            "country = 'us' AND city = 'c1' AND year > 2002",
            "country = 'us' AND city IS NULL",
            "country = 'us' AND city IS NULL AND year <= 2003",
            "country = 'us' AND year = 2003",
            "country IN ('us', 'de') AND city = 'c3'",
            "country > 'de'",
            "country LIKE 'd%'",
            "country = 'xx'",
            "country = NULL",
        ] {
            let by_index = client.run(&format!("SELECT id FROM visits WHERE {condition} ORDER BY id")).await;
            let by_scan = client
                .run(&format!("SELECT id FROM visits WHERE CASE WHEN {condition} THEN true ELSE false END ORDER BY id"))
                .await;
            assert_eq!(by_index, by_scan, "{condition}, round {round}");
        }
        settle(&db).await;
    }
}

/// I-28, RUN 11: an index leads to where rows have been moved, during a move and after it, and a move changes no entry.
pub(crate) async fn move_keeps_index(db: World) {
    let mut client = users(&db).await;
    for id in 0..100 {
        client.run(&format!("INSERT INTO users VALUES ({id}, 'e{}', 0)", id % 20)).await;
    }
    settle(&db).await;
    let before = entries(&db).await;
    assert!(!before.is_empty());
    let shown = client.run("CREATE MOVE OF BUCKETS 'users/0-7' TO s1 WITH (auto, complete)").await;
    let plan = shown[0].split('|').next().unwrap().to_string();
    loop {
        for email in 0..20 {
            assert_eq!(by_email(&mut client, &format!("e{email}")).await.len(), 5, "e{email}");
        }
        let phase = client.run(&format!("SHOW MOVE {plan}")).await[0].split('|').nth(4).unwrap().to_string();
        if phase == "completed" {
            break;
        }
        assert!(!["failed", "rolled_back"].contains(&phase.as_str()), "{phase}");
    }
    assert_eq!(entries(&db).await, before, "a move changes no entry");
    client.run("UPDATE users SET email = 'after' WHERE email = 'e3'").await;
    assert_eq!(by_email(&mut client, "after").await.len(), 5);
    settle(&db).await;
    assert_eq!(by_email(&mut client, "after").await.len(), 5);
    assert_eq!(by_email(&mut client, "e3").await.len(), 0);
}

/// Waits until the entries have all that is committed.
pub(crate) async fn settle(db: &Db) {
    db.database.settle_indexes().await.unwrap();
}

/// Every entry of every index, without positions, in order.
async fn entries(db: &Db) -> Vec<String> {
    let mut all = Vec::new();
    for name in db.database.shard_names() {
        let shard = db.database.shard(&name).await.unwrap();
        let schema = shard.schema().await.unwrap();
        let mut snapshot = shard.snapshot().await.unwrap();
        for table in schema.tables.values().filter(|table| table.has_entries()) {
            let page = snapshot.page(&KeyRange::table(&table.name), 10_000).await.unwrap();
            let rows = page.rows.into_iter().map(|row| format!("{name} {:?}", row.values));
            all.extend(rows.filter(|row| !row.contains("[Int(0), Bytes([0,")));
        }
    }
    all
}

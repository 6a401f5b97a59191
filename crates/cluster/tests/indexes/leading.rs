//! Which shards a statement goes to, and when an index cannot say.

use super::World;
use super::failures::{by_email, settle, users};
use super::harness::{Client, Db};
use isles_kernel::names::ShardId;

/// Statements that each shard has run.
pub(crate) fn work(db: &Db) -> Vec<(ShardId, u64)> {
    db.database.shard_work().into_iter().map(|(shard, work)| (shard, work.statements)).collect()
}

/// How many shards were asked meanwhile.
pub(crate) fn asked(before: &[(ShardId, u64)], after: &[(ShardId, u64)]) -> usize {
    before.iter().zip(after).filter(|(before, after)| before.1 != after.1).count()
}

/// A statement by an indexed column asks one shard, where one has the key, and none where none has it.
pub(crate) async fn an_index_leads_to_the_shards_that_have_the_key(db: World) {
    let mut client = users(&db).await;
    for id in 0..100 {
        client.run(&format!("INSERT INTO users VALUES ({id}, 'e{id}', 0)")).await;
    }
    for _ in 0..2 {
        for id in [3, 42, 77] {
            let before = work(&db);
            assert_eq!(by_email(&mut client, &format!("e{id}")).await, [id.to_string()]);
            assert_eq!(asked(&before, &work(&db)), 1);
            let before = work(&db);
            assert_eq!(client.run(&format!("UPDATE users SET n = n + 1 WHERE email = 'e{id}'")).await, ["UPDATE 1"]);
            assert_eq!(asked(&before, &work(&db)), 1);
        }
        let before = work(&db);
        assert_eq!(by_email(&mut client, "nobody").await, Vec::<String>::new());
        assert_eq!(asked(&before, &work(&db)), 0);
        settle(&db).await;
    }
    assert_eq!(client.run("SELECT count(*) FROM users WHERE email = 'e3'").await, ["1"]);
    assert_eq!(client.run("SELECT count(*) FROM users WHERE email = 'nobody'").await, ["0"]);
    let shown = client.run("EXPLAIN SELECT * FROM users WHERE email = 'e3'").await.join("\n");
    assert!(shown.contains("users_email"), "{shown}");
}

/// I-22: rows of a transaction are found by it before anybody else knows of them.
pub(crate) async fn a_transaction_sees_its_own_rows(db: World) {
    let mut client = users(&db).await;
    for id in 0..20 {
        client.run(&format!("INSERT INTO users VALUES ({id}, 'e{id}', 0)")).await;
    }
    client.run("BEGIN").await;
    for id in 100..110 {
        client.run(&format!("INSERT INTO users VALUES ({id}, 'mine', 0)")).await;
        assert_eq!(by_email(&mut client, "mine").await.len(), id - 99);
    }
    assert_eq!(client.run("UPDATE users SET email = 'still mine' WHERE email = 'mine'").await, ["UPDATE 10"]);
    assert_eq!(by_email(&mut client, "still mine").await.len(), 10);
    let mut other = db.client();
    assert_eq!(by_email(&mut other, "mine").await.len(), 0);
    client.run("COMMIT").await;
    assert_eq!(by_email(&mut other, "still mine").await.len(), 10);
    client.run("BEGIN").await;
    client.run("UPDATE users SET email = 'never' WHERE email = 'still mine'").await;
    client.run("ROLLBACK").await;
    assert_eq!(by_email(&mut other, "never").await.len(), 0);
    settle(&db).await;
    assert_eq!(by_email(&mut other, "still mine").await.len(), 10);
    assert!(client.run("VERIFY INDEX users_email").await[0].ends_with("|0|0|0"));
}

/// I-24: a transaction that an index has led nowhere has been told so, and what it reads later is of the same moment.
pub(crate) async fn who_was_led_nowhere_keeps_its_moment(db: World) {
    let mut client = users(&db).await;
    let mut other = db.client();
    for id in 0..20 {
        client.run(&format!("INSERT INTO users VALUES ({id}, 'e{id}', 0)")).await;
    }
    settle(&db).await;
    for level in ["REPEATABLE READ READ ONLY", "SERIALIZABLE READ ONLY"] {
        other.run("UPDATE users SET email = 'y' WHERE id = 1").await;
        settle(&db).await;
        // All shards are asked afterwards.
        client.run(&format!("BEGIN ISOLATION LEVEL {level}")).await;
        assert_eq!(by_email(&mut client, "x").await, Vec::<String>::new());
        other.run("UPDATE users SET email = 'x' WHERE id = 1").await;
        assert_eq!(client.fails("SELECT email FROM users WHERE (id >= 0) IS TRUE").await, "40001", "{level}");
        client.run("ROLLBACK").await;
        settle(&db).await;
        // Nowhere, twice: there always was a row with one of both.
        client.run(&format!("BEGIN ISOLATION LEVEL {level}")).await;
        assert_eq!(by_email(&mut client, "y").await, Vec::<String>::new());
        other.run("UPDATE users SET email = 'y' WHERE id = 1").await;
        assert_eq!(client.fails("SELECT id FROM users WHERE email = 'x'").await, "40001", "{level}");
        client.run("ROLLBACK").await;
        // What nobody has touched since is shown.
        client.run(&format!("BEGIN ISOLATION LEVEL {level}")).await;
        assert_eq!(by_email(&mut client, "nobody").await, Vec::<String>::new());
        assert_eq!(by_email(&mut client, "y").await, ["1"]);
        client.run("COMMIT").await;
    }
}

pub(crate) async fn an_index_is_dropped_with_its_entries(db: World) {
    let mut client = users(&db).await;
    client.run("INSERT INTO users VALUES (1, 'a', 0)").await;
    client.run("DROP INDEX users_email").await;
    assert_eq!(by_email(&mut client, "a").await, ["1"]);
    assert_eq!(client.run("SHOW INDEXES").await, Vec::<String>::new());
    client.run("CREATE INDEX users_email ON users (email) WITH (global)").await;
    client.run("WAIT FOR INDEX users_email").await;
    assert_eq!(by_email(&mut client, "a").await, ["1"]);
    client.run("DROP TABLE users").await;
    assert_eq!(client.run("SHOW INDEXES").await, Vec::<String>::new());
    let hidden = client.run("SELECT count(*) FROM information_schema.tables WHERE table_schema LIKE '_isles%'").await;
    assert_eq!(hidden, ["0"]);
}

/// Rows that were written before their table's columns moved, and are applied after.
pub(crate) async fn columns_may_move(db: World) {
    let mut client = db.client();
    client.run("CREATE TABLE users (id int PRIMARY KEY, gone text, email text)").await;
    client.run("CREATE INDEX users_email ON users (email) WITH (global)").await;
    client.run("WAIT FOR INDEX users_email").await;
    for id in 0..50 {
        client.run(&format!("INSERT INTO users VALUES ({id}, 'x{id}', 'e{id}')")).await;
    }
    client.run("ALTER TABLE users DROP COLUMN gone").await;
    client.run("ALTER TABLE users ADD COLUMN more int").await;
    for id in 50..100 {
        client.run(&format!("INSERT INTO users VALUES ({id}, 'e{id}', 1)")).await;
    }
    for id in 0..100 {
        assert_eq!(by_email(&mut client, &format!("e{id}")).await, [id.to_string()]);
    }
    client.run("WAIT FOR INDEX users_email").await;
    settle(&db).await;
    assert_eq!(client.run("VERIFY INDEX users_email").await, ["100|0|0|0"]);
}

/// Indexes over expressions, and over some rows only, lead as others do and keep their keys unique.
pub(crate) async fn expressions_and_some_rows_are_indexed(world: World) {
    let mut client = world.client();
    client.run("CREATE TABLE people (id int PRIMARY KEY, email text, age int, gone boolean)").await;
    client
        .run("INSERT INTO people SELECT i, 'Name' || i, i % 90, i % 7 = 0 FROM generate_series(1, 300) AS s (i)")
        .await;
    client.run("CREATE INDEX people_lower ON people (lower(email), (age * 2)) WITH (global)").await;
    client.run("CREATE INDEX people_old ON people (age) WITH (global) WHERE NOT gone").await;
    client.run("CREATE UNIQUE INDEX people_here ON people (lower(email)) WITH (global) WHERE NOT gone").await;
    client.run("WAIT FOR INDEX people_lower").await;
    client.run("WAIT FOR INDEX people_old").await;
    for round in 0..2 {
        for condition in [
            "lower(email) = 'name17'",
            "lower(email) LIKE 'name1%'",
            "lower(email) = 'name17' AND age * 2 = 34",
            "age = 17 AND NOT gone",
            "age BETWEEN 20 AND 30 AND NOT gone",
            "lower(email) IN ('name7', 'name8') AND NOT gone",
            "lower(email) IS NULL",
        ] {
            let by_index = client.run(&format!("SELECT id FROM people WHERE {condition} ORDER BY id")).await;
            let by_scan = client
                .run(&format!("SELECT id FROM people WHERE CASE WHEN {condition} THEN true ELSE false END ORDER BY id"))
                .await;
            assert_eq!(by_index, by_scan, "{condition}, round {round}");
        }
        settle(&world).await;
        client.run("UPDATE people SET age = age + 1, gone = id % 5 = 0").await;
    }
    let before = work(&world);
    assert_eq!(client.run("SELECT id FROM people WHERE lower(email) = 'name17'").await, ["17"]);
    assert_eq!(asked(&before, &work(&world)), 1);
    assert_eq!(client.fails("INSERT INTO people VALUES (1000, 'NAME17', 1, false)").await, "23505");
    client.run("INSERT INTO people VALUES (1000, 'NAME17', 1, true)").await;
    assert_eq!(client.fails("UPDATE people SET gone = false WHERE id = 1000").await, "23505");
    client.run("UPDATE people SET gone = true WHERE id = 17").await;
    client.run("UPDATE people SET gone = false WHERE id = 1000").await;
    settle(&world).await;
    for index in ["people_lower", "people_old", "people_here"] {
        assert!(client.run(&format!("VERIFY INDEX {index}")).await[0].ends_with("|0|0|0"), "{index}");
    }
}

/// I-28: shards come, take entries and rows, and go.
pub(crate) async fn shards_come_and_go(db: World) {
    let mut client = users(&db).await;
    for id in 0..100 {
        client.run(&format!("INSERT INTO users VALUES ({id}, 'e{}', 0)", id % 20)).await;
    }
    client.run("CREATE SHARD").await;
    client.run("ALTER SHARD s2 DRAIN").await;
    let mut id = 100;
    loop {
        client.run(&format!("INSERT INTO users VALUES ({id}, 'late', 0)")).await;
        id += 1;
        assert_eq!(by_email(&mut client, "late").await.len(), id - 100);
        assert_eq!(by_email(&mut client, "e7").await.len(), 5);
        let shards = client.run("SHOW SHARDS").await;
        if shards.iter().any(|line| line.starts_with("s2|") && line.contains("drained")) {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    while client.try_run("DROP SHARD s2").await.is_err_and(|error| error.sqlstate == "55006") {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert!(!client.run("SHOW SHARDS").await.iter().any(|line| line.starts_with("s2|")));
    assert_eq!(by_email(&mut client, "late").await.len(), id - 100);
    for email in 0..20 {
        assert_eq!(by_email(&mut client, &format!("e{email}")).await.len(), 5);
    }
    client.run("WAIT FOR INDEX users_email").await;
    let shown = client.run("SHOW INDEXES").await[0].clone();
    let counts: Vec<&str> = shown.split('|').skip(8).take(2).collect();
    assert_eq!(counts, ["4", "4"], "shards built, shards: {shown}");
    settle(&db).await;
    assert!(client.run("VERIFY INDEX users_email").await[0].ends_with("|0|0|0"));
}

pub(crate) async fn wait_for_phase(client: &mut Client, plan: &str, wanted: &str) {
    loop {
        let phase = client.run(&format!("SHOW MOVE {plan}")).await[0].split('|').nth(4).unwrap().to_string();
        if phase == wanted {
            return;
        }
        assert!(!["failed", "rolled_back"].contains(&phase.as_str()), "{phase}");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

pub(crate) async fn plan_of(client: &mut Client, order: &str) -> String {
    client.run(order).await[0].split('|').next().unwrap().to_string()
}

/// I-23, I-28: a shard comes while rows are moved, so that nothing is built meanwhile, and is given rows. They are in the
/// index already, and what is written to them there is, too.
pub(crate) async fn rows_that_move_to_a_new_shard_count_once(db: World) {
    let mut client = users(&db).await;
    for id in 0..100 {
        client.run(&format!("INSERT INTO users VALUES ({id}, 'e{}', 0)", id % 20)).await;
    }
    let first = plan_of(&mut client, "CREATE MOVE OF BUCKETS 'users/16-17' TO s0 WITH (auto)").await;
    wait_for_phase(&mut client, &first, "completed").await;
    client.run("CREATE SHARD").await;
    let second = plan_of(&mut client, "CREATE MOVE OF BUCKETS 'users/0-7' TO s4 WITH (auto, complete)").await;
    wait_for_phase(&mut client, &second, "completed").await;
    client.run("UPDATE users SET email = 'changed' WHERE id % 3 = 0").await;
    client.run("DELETE FROM users WHERE id % 10 = 1").await;
    // It can be undone until here, and so its rows are on their way.
    client.run(&format!("ALTER MOVE {first} COMPLETE")).await;
    client.run("WAIT FOR INDEX users_email").await;
    settle(&db).await;
    let shown = loop {
        match client.try_run("VERIFY INDEX users_email").await {
            Err(error) if error.sqlstate == "55006" => tokio::time::sleep(std::time::Duration::from_millis(5)).await,
            shown => break shown.unwrap(),
        }
    };
    assert!(shown[0].ends_with("|0|0|0"), "entries, missing, superfluous, repaired: {shown:?}");
    let moved = client.run("SELECT count(*) FROM users WHERE email = 'changed'").await;
    assert_eq!(moved, client.run("SELECT count(*) FROM users WHERE id % 3 = 0").await);
    client.run("DELETE FROM users").await;
    settle(&db).await;
    let before = work(&db);
    assert_eq!(by_email(&mut client, "changed").await, Vec::<String>::new());
    assert_eq!(asked(&before, &work(&db)), 0, "no entry leads anywhere");
}

/// Users, and invitations to some of them, which are sharded by something else.
async fn invites(db: &Db) -> Client {
    let mut client = users(db).await;
    client.run("CREATE TABLE invites (id int PRIMARY KEY, mail text, n bigint) WITH (\"group\" = 'invites')").await;
    client.run("INSERT INTO users SELECT i, CASE WHEN i % 10 > 0 THEN 'e' || i % 40 END, i FROM generate_series(1, 120) AS s (i)").await;
    client.run("INSERT INTO invites SELECT i, CASE WHEN i % 5 > 0 THEN 'e' || i * 3 END, i * 2 FROM generate_series(1, 30) AS s (i)").await;
    client
}

/// What is joined by an indexed column, or by a shard key, is asked for where its values are.
pub(crate) async fn a_join_asks_the_shards_of_its_values(db: World) {
    let mut client = users(&db).await;
    client.run("CREATE TABLE invites (id int PRIMARY KEY, mail text, n bigint) WITH (\"group\" = 'invites')").await;
    client.run("INSERT INTO users SELECT i, 'e' || i, i FROM generate_series(1, 100) AS s (i)").await;
    client.run("INSERT INTO invites SELECT i, 'e' || i * 2, i + 1 FROM generate_series(1, 80) AS s (i)").await;
    client.run("WAIT FOR INDEX users_email").await;
    let by_email = "SELECT u.id FROM invites i JOIN users u ON u.email = i.mail WHERE i.id = ";
    let by_key = "SELECT u.id FROM invites i JOIN users u ON u.id = i.n WHERE i.id = ";
    for _ in 0..2 {
        for id in [3, 17, 40] {
            for (query, found) in [(by_email, id * 2), (by_key, id + 1)] {
                let before = work(&db);
                assert_eq!(client.run(&format!("{query}{id}")).await, [found.to_string()]);
                let after = work(&db);
                assert!(asked(&before, &after) <= 2, "{query}{id}: {before:?}, {after:?}");
            }
        }
        let before = work(&db);
        assert_eq!(client.run(&format!("{by_email}70")).await, Vec::<String>::new());
        assert_eq!(asked(&before, &work(&db)), 1, "nobody has such an address");
        settle(&db).await;
    }
    let shown = client.run(&format!("EXPLAIN {by_email}3")).await.join("\n");
    for part in
        ["Lookup: $1 are the values of stage_1.mail", "Index: users_email (email in $1)", "For more than 1000 values"]
    {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let ran = client.run(&format!("EXPLAIN ANALYZE {by_email}3")).await.join("\n");
    assert_eq!(ran.matches("Shard s").count(), 2, "{ran}");
}

/// Each join is compared with one whose condition no index knows.
pub(crate) async fn a_join_by_values_gives_what_any_join_gives(db: World) {
    let mut client = invites(&db).await;
    client.run("INSERT INTO invites VALUES (1000, 'e7', 9000000000), (1001, 'none', NULL), (1002, '', -1)").await;
    let queries = [
        "SELECT i.id, u.id FROM invites i JOIN users u ON {} WHERE i.id IN (1, 2, 3, 5, 1000, 1001)",
        "SELECT i.id, u.id FROM invites i JOIN users u ON {} AND u.n > 50 WHERE i.n > 10",
        "SELECT i.id, u.id FROM invites i, users u WHERE {} AND i.id = 7",
        "SELECT i.id, u.id FROM invites i LEFT JOIN users u ON {} WHERE i.id IN (1, 2, 3, 5, 1000, 1001)",
        "SELECT i.id, u.id FROM users u RIGHT JOIN invites i ON {} AND u.n > 50 WHERE i.id < 20",
        "SELECT i.id, u.id FROM users u LEFT JOIN invites i ON {} AND i.id = 3",
        "SELECT i.id, u.id FROM invites i RIGHT JOIN users u ON {} AND i.id = 3",
        "SELECT i.id, u.id FROM invites i FULL JOIN users u ON {}",
        "SELECT i.id, u.id FROM invites i LEFT JOIN users u ON {} WHERE i.id < 9 AND u.id IS NULL",
        "SELECT i.id, u.id, v.id FROM invites i JOIN users u ON {} JOIN users v ON v.n = u.n + 1 WHERE i.id = 3",
        "SELECT i.id, u.id, j.id FROM invites i LEFT JOIN (users u JOIN invites j ON j.n = u.n) ON {} WHERE i.id < 5",
        "SELECT i.id, 0 FROM invites i WHERE i.id < 12 AND EXISTS (SELECT FROM users u WHERE {})",
        "SELECT i.id, 0 FROM invites i WHERE i.id < 12 AND NOT EXISTS (SELECT FROM users u WHERE {})",
        "SELECT i.id, (SELECT count(*) FROM users u WHERE {}) FROM invites i WHERE i.id < 12",
        "WITH i AS MATERIALIZED (SELECT * FROM invites WHERE id < 9) SELECT i.id, u.id FROM i JOIN users u ON {}",
        "SELECT i.id, u.id FROM (SELECT * FROM invites ORDER BY id LIMIT 4) i LEFT JOIN users u ON {}",
        "SELECT i.id, u.id FROM invites i JOIN users u ON {}",
    ];
    let lists = [
        ("email IN", "email || '' IN", "SELECT mail FROM invites WHERE id < 12"),
        ("email = ANY", "email || '' = ANY", "SELECT max(mail) FROM invites GROUP BY id % 3"),
        ("email NOT IN", "email || '' NOT IN", "SELECT mail FROM invites WHERE id IN (1, 2, 3)"),
        ("email NOT IN", "email || '' NOT IN", "SELECT mail FROM invites WHERE id IN (1, 5)"),
        ("id IN", "id + 0 IN", "SELECT n FROM invites WHERE id = 7"),
        ("n > 50 AND email IN", "n > 50 AND email || '' IN", "SELECT mail FROM invites"),
    ];
    let joins = [
        ("u.email = i.mail", "u.email || '' = i.mail"),
        ("i.n = u.id", "i.n = u.id + 0"),
        ("u.id = i.id", "u.id + 0 = i.id"),
    ];
    for round in 0..2 {
        for query in queries {
            for (led, other) in joins {
                let rows = |on: &str| format!("SELECT * FROM ({}) s ORDER BY 1, 2", query.replace("{}", on));
                let (by_values, by_scan) = (client.run(&rows(led)).await, client.run(&rows(other)).await);
                assert_eq!(by_values, by_scan, "{query}, {led}, round {round}");
            }
        }
        for (led, other, list) in lists {
            let rows = |what: &str| format!("SELECT id FROM users WHERE {what} ({list}) ORDER BY id");
            assert_eq!(client.run(&rows(led)).await, client.run(&rows(other)).await, "{led} ({list}), round {round}");
        }
        settle(&db).await;
    }
    // More values than are looked for.
    client.run("INSERT INTO invites SELECT i, 'e' || i, i FROM generate_series(2001, 3500) AS s (i)").await;
    let many = |on: &str| format!("SELECT count(*) FROM invites i JOIN users u ON {on} WHERE i.id > 0");
    for (led, other) in joins {
        assert_eq!(client.run(&many(led)).await, client.run(&many(other)).await, "{led}");
    }
    assert_eq!(client.run(&many(joins[0].0)).await, ["36"]);
}

/// Rows that only the transaction sees are joined, and those that it does not see are not.
pub(crate) async fn a_join_by_values_sees_its_own_transaction(db: World) {
    let mut client = invites(&db).await;
    let joined = "SELECT u.id FROM invites i JOIN users u ON u.email = i.mail WHERE i.id = 500 ORDER BY u.id";
    for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        client.run(&format!("BEGIN ISOLATION LEVEL {level}")).await;
        client.run("INSERT INTO invites VALUES (500, 'mine')").await;
        assert_eq!(client.run(joined).await, Vec::<String>::new(), "{level}");
        client.run("INSERT INTO users VALUES (501, 'mine'), (502, 'mine'), (503, 'mine'), (504, 'other')").await;
        assert_eq!(client.run(joined).await, ["501", "502", "503"], "{level}");
        client.run("UPDATE users SET email = 'other' WHERE id = 502").await;
        assert_eq!(client.run(joined).await, ["501", "503"], "{level}");
        client.run("ROLLBACK").await;
        assert_eq!(client.run(joined).await, Vec::<String>::new(), "{level}");
    }
    // What has gone since its snapshot is there for it, or it is told to try again.
    client.run("INSERT INTO invites VALUES (500, 'kept')").await;
    client.run("INSERT INTO users SELECT i, 'kept', 0 FROM generate_series(601, 608) AS s (i)").await;
    settle(&db).await;
    client.run("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await;
    assert_eq!(client.run("SELECT count(*) FROM users WHERE n = 0").await, ["8"]);
    db.client().run("DELETE FROM users WHERE email = 'kept'").await;
    settle(&db).await;
    match client.try_run(joined).await {
        Ok(found) => assert_eq!(found.len(), 8),
        Err(error) => assert_eq!(error.sqlstate, "40001"),
    }
    client.run("ROLLBACK").await;
    assert_eq!(client.run(joined).await, Vec::<String>::new());
}

/// I-24: a row that goes from shard to shard while it is joined is found once each time, wherever the index says it is.
pub(crate) async fn a_join_by_values_is_of_one_moment(db: World) {
    let mut client = invites(&db).await;
    client.run("INSERT INTO invites VALUES (500, 'wanderer')").await;
    client.run("INSERT INTO users VALUES (1000, 'wanderer')").await;
    let over = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let writer = tokio::spawn({
        let (mut client, over) = (db.client(), over.clone());
        async move {
            let mut at = 1_000;
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                let moved = client.try_run(&format!("UPDATE users SET id = {} WHERE id = {at}", at + 1)).await;
                match moved {
                    Ok(_) => at += 1,
                    Err(error) => assert_eq!(error.sqlstate, "40001", "{error}"),
                }
                tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            }
            at
        }
    });
    let mut found = 0;
    for n in 0..300 {
        // The invitation's shard alone, or all of them, are read before the index is asked.
        let filter = if n % 3 == 0 { "i.mail LIKE 'wander%'" } else { "i.id = 500" };
        let joined = format!("SELECT u.email FROM invites i JOIN users u ON u.email = i.mail WHERE {filter}");
        match client.try_run(&joined).await {
            Ok(rows) => {
                assert_eq!(rows, ["wanderer"], "{n}");
                found += 1;
            }
            Err(error) => assert_eq!(error.sqlstate, "40001", "{error}"),
        }
    }
    over.store(true, std::sync::atomic::Ordering::Relaxed);
    let moves = writer.await.unwrap() - 1_000;
    assert!(found > 30 && moves > 5, "{found} of 300 were answered, {moves} moves");
}

/// A transaction that has been somewhere is led to where rows are, and not to all shards, at every level that keeps a
/// moment; what it changes by an index is changed there.
pub(crate) async fn a_transaction_goes_where_an_index_leads(db: World) {
    let mut client = users(&db).await;
    client.run("INSERT INTO users SELECT i, 'e' || i, 0 FROM generate_series(0, 99) AS s (i)").await;
    settle(&db).await;
    let home = async |client: &mut Client, id: usize| {
        let before = work(&db);
        assert_eq!(by_email(client, &format!("e{id}")).await, [id.to_string()]);
        before.into_iter().zip(work(&db)).find(|(before, after)| before != after).expect("one was asked").0.0
    };
    let first = home(&mut client, 0).await;
    let mut other = 1;
    while home(&mut client, other).await == first {
        other += 1;
    }
    let before = db.database.index_work();
    for level in ["REPEATABLE READ", "REPEATABLE READ READ ONLY", "SERIALIZABLE", "SERIALIZABLE READ ONLY"] {
        client.run(&format!("BEGIN ISOLATION LEVEL {level}")).await;
        assert_eq!(by_email(&mut client, "e0").await, ["0"]);
        let asked_before = work(&db);
        assert_eq!(by_email(&mut client, &format!("e{other}")).await, [other.to_string()]);
        assert_eq!(by_email(&mut client, "nobody").await, Vec::<String>::new());
        assert_eq!(asked(&asked_before, &work(&db)), 2, "{level}: where it is, and where the row is");
        if !level.contains("ONLY") {
            let sql = format!("UPDATE users SET n = n + 1 WHERE email = 'e{other}'");
            assert_eq!(client.run(&sql).await, ["UPDATE 1"]);
            assert_eq!(client.run("UPDATE users SET n = n + 1 WHERE email = 'e0'").await, ["UPDATE 1"]);
            assert_eq!(asked(&asked_before, &work(&db)), 2, "{level}");
        }
        client.run("COMMIT").await;
    }
    assert_eq!(db.database.index_work().fallbacks, before.fallbacks);
    assert_eq!(client.run(&format!("SELECT sum(n) FROM users WHERE email IN ('e0', 'e{other}')")).await, ["4"]);
}

/// I-24: a shard that a transaction passes by has no row of its moment, or the transaction fails.
pub(crate) async fn a_transaction_passes_by_no_row(db: World) {
    let mut client = users(&db).await;
    let mut other = db.client();
    client.run("INSERT INTO users SELECT i, 'e' || i, 0 FROM generate_series(0, 59) AS s (i)").await;
    client.run("UPDATE users SET email = 'key' WHERE id = 1").await;
    settle(&db).await;
    let (mut held, mut refused) = (1, 0);
    for level in ["REPEATABLE READ", "REPEATABLE READ READ ONLY", "SERIALIZABLE", "SERIALIZABLE READ ONLY"] {
        for to in 10..30 {
            client.run(&format!("BEGIN ISOLATION LEVEL {level}")).await;
            assert_eq!(by_email(&mut client, "e0").await, ["0"]);
            // In one commit from one row to another, of any two shards: there is one row with the key at every moment.
            other.run("BEGIN").await;
            other.run(&format!("UPDATE users SET email = 'none' WHERE id = {held}")).await;
            other.run(&format!("UPDATE users SET email = 'key' WHERE id = {to}")).await;
            other.run("COMMIT").await;
            let before = std::mem::replace(&mut held, to);
            match client.try_run("SELECT id FROM users WHERE email = 'key'").await {
                Ok(found) => assert!(found == [to.to_string()] || found == [before.to_string()], "{level}: {found:?}"),
                Err(error) => {
                    assert_eq!(error.sqlstate, "40001", "{level}: {error}");
                    refused += 1;
                }
            }
            client.run("ROLLBACK").await;
        }
    }
    assert!(refused > 0 && refused < 80, "{refused} of 80 were refused");
    // One that writes learns at its commit that a key has come which it had been told nobody has.
    let shard = async |client: &mut Client, id: usize| {
        let before = work(&db);
        client.run(&format!("SELECT n FROM users WHERE id = {id}")).await;
        before.into_iter().zip(work(&db)).find(|(before, after)| before != after).expect("one was asked").0.0
    };
    let first = shard(&mut client, 0).await;
    let mut id = 30;
    while shard(&mut client, id).await == first {
        id += 1;
    }
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        settle(&db).await;
        client.run(&format!("BEGIN ISOLATION LEVEL {level}")).await;
        assert_eq!(by_email(&mut client, "e0").await, ["0"]);
        assert_eq!(by_email(&mut client, "nobody").await, Vec::<String>::new());
        client.run("UPDATE users SET n = n + 1 WHERE email = 'e0'").await;
        // On a shard that the transaction does not hold.
        other.run(&format!("UPDATE users SET email = 'nobody' WHERE id = {id}")).await;
        assert_eq!(client.fails("COMMIT").await, "40001", "{level}");
        client.run("ROLLBACK").await;
        other.run("UPDATE users SET email = 'gone' WHERE email = 'nobody'").await;
    }
}

/// What an index has found is shown with its buckets and shards, and what of it is only noted; of one that is asked for
/// values of something else, that it will be.
pub(crate) async fn explain_names_what_an_index_has_found(db: World) {
    let mut client = users(&db).await;
    client.run("CREATE TABLE invites (id int PRIMARY KEY, email text)").await;
    let explain = async |client: &mut Client, sql: &str| client.run(&format!("EXPLAIN {sql}")).await.join("\n");
    let by_key = "SELECT * FROM users WHERE email = 'a'";
    let shown = explain(&mut client, by_key).await;
    assert!(shown.contains("Found: buckets 0, on shards 0, not yet applied 0"), "{shown}");
    // A PostgreSQL shard learns of a new schema with the first write, and the index of where it is then.
    client.run("INSERT INTO users SELECT i, 'w' || i, 0 FROM generate_series(100, 200) AS s (i)").await;
    settle(&db).await;
    client.run("WAIT FOR INDEX users_email").await;
    // Until the next second nothing is applied, unless somebody waits for it.
    let mut noted = false;
    for id in 0..50 {
        client.run(&format!("INSERT INTO users VALUES ({id}, 'e{id}', 0)")).await;
        let shown = explain(&mut client, &format!("SELECT * FROM users WHERE email = 'e{id}'")).await;
        assert!(shown.contains("Found: buckets 1 ("), "{shown}");
        noted |= shown.contains("not yet applied 1");
    }
    assert!(noted, "one was shown before it was applied");
    settle(&db).await;
    let shown = explain(&mut client, "SELECT * FROM users WHERE email = 'e7'").await;
    let found = shown.lines().find(|line| line.contains("Found:")).unwrap();
    let before = work(&db);
    assert_eq!(by_email(&mut client, "e7").await, ["7"]);
    let on = before.into_iter().zip(work(&db)).find(|(before, after)| before != after).unwrap().0.0;
    assert!(found.contains(&format!("on shards 1 ({on}), not yet applied 0")), "{found}");
    let bucket = found.split(['(', ')']).nth(1).unwrap();
    assert!(bucket.parse::<u32>().is_ok(), "{found}");
    let join = "SELECT u.id FROM invites i JOIN users u ON u.email = i.email WHERE i.id = 7";
    let shown = explain(&mut client, join).await;
    assert!(shown.contains("Found: asked when the values are known, not yet applied 0"), "{shown}");
    let lookups = db.database.index_work().lookups;
    explain(&mut client, by_key).await;
    assert_eq!(db.database.index_work().lookups, lookups, "who explains is led nowhere");
}

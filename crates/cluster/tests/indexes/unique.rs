//! Unique keys over all shards (I-26): what was shown to fail elsewhere, each by its name there, and what follows.

use super::World;
use super::failures::settle;
use super::harness::Client;
use std::time::Duration;

/// A table whose e-mail addresses are unique, although no shard sees the others' rows.
async fn accounts(world: &World) -> Client {
    let mut client = world.client();
    client.run("CREATE TABLE accounts (id int PRIMARY KEY, email text UNIQUE, n int DEFAULT 0)").await;
    client
}

async fn emails(client: &mut Client) -> Vec<String> {
    client.run("SELECT id, email FROM accounts ORDER BY id").await
}

/// I-26, RUN 7: four rows with one unique value were accepted on four nodes.
pub(crate) async fn unique_across_shards(world: World) {
    let mut client = accounts(&world).await;
    client.run("INSERT INTO accounts VALUES (1, 'a@x')").await;
    for round in 0..2 {
        for id in 2..20 {
            let error = client.try_run(&format!("INSERT INTO accounts VALUES ({id}, 'a@x')")).await.unwrap_err();
            assert_eq!(error.sqlstate, "23505", "round {round}");
            assert!(error.message.contains("\"accounts_email_key\""), "{error}");
            assert_eq!(error.detail.as_deref(), Some("Key (email)=(a@x) already exists."));
        }
        settle(&world).await;
    }
    client.run("INSERT INTO accounts VALUES (2, NULL), (3, NULL), (4, 'b@x')").await;
    assert_eq!(emails(&mut client).await, ["1|a@x", "2|∅", "3|∅", "4|b@x"]);
    assert_eq!(client.run("SELECT id FROM accounts WHERE email = 'a@x'").await, ["1"]);
}

/// I-26, vitess 17956: rows of one statement that have a key in common, and one that somebody has.
pub(crate) async fn rows_of_one_statement_are_unique_too(world: World) {
    let mut client = accounts(&world).await;
    assert_eq!(client.fails("INSERT INTO accounts VALUES (1, 'a'), (2, 'b'), (3, 'a')").await, "23505");
    assert_eq!(emails(&mut client).await, Vec::<String>::new());
    client.run("INSERT INTO accounts VALUES (7, 'taken')").await;
    assert_eq!(client.fails("INSERT INTO accounts VALUES (1, 'a'), (2, 'b'), (3, 'taken')").await, "23505");
    assert_eq!(emails(&mut client).await, ["7|taken"]);
    let many = "INSERT INTO accounts SELECT i, 'e' || i FROM generate_series(10, 1500) AS s (i)";
    client.run(many).await;
    assert_eq!(
        client.fails("INSERT INTO accounts SELECT i + 5000, 'e' || i FROM generate_series(1400, 1600) AS s (i)").await,
        "23505"
    );
    assert_eq!(client.run("SELECT count(*), count(DISTINCT email) FROM accounts").await, ["1492|1492"]);
}

/// A key is free again when its row has gone, or has another, or did not come to be.
pub(crate) async fn no_phantom_reservations(world: World) {
    let mut client = accounts(&world).await;
    client.run("INSERT INTO accounts VALUES (1, 'a')").await;
    client.run("DELETE FROM accounts WHERE id = 1").await;
    client.run("INSERT INTO accounts VALUES (2, 'a')").await;
    client.run("UPDATE accounts SET email = 'b' WHERE id = 2").await;
    client.run("INSERT INTO accounts VALUES (3, 'a')").await;
    // A statement that fails for another reason, and a transaction that is rolled back.
    assert_eq!(client.fails("INSERT INTO accounts VALUES (3, 'c')").await, "23505");
    client.run("BEGIN").await;
    client.run("INSERT INTO accounts VALUES (4, 'd')").await;
    client.run("ROLLBACK").await;
    let mut other = world.client();
    other.run("INSERT INTO accounts VALUES (5, 'c'), (6, 'd')").await;
    assert_eq!(emails(&mut client).await, ["2|b", "3|a", "5|c", "6|d"]);
    client.run("TRUNCATE accounts").await;
    client.run("INSERT INTO accounts VALUES (9, 'a'), (10, 'b')").await;
}

/// Updates: to a key that another row has, to one's own, and of rows that take each other's.
pub(crate) async fn updates_keep_keys_unique(world: World) {
    let mut client = accounts(&world).await;
    client.run("INSERT INTO accounts SELECT i, 'e' || i FROM generate_series(1, 10) AS s (i)").await;
    assert_eq!(client.fails("UPDATE accounts SET email = 'e2' WHERE id = 1").await, "23505");
    assert_eq!(client.fails("UPDATE accounts SET email = 'same'").await, "23505");
    assert_eq!(client.run("UPDATE accounts SET email = 'e1' WHERE id = 1").await, ["UPDATE 1"]);
    assert_eq!(client.run("UPDATE accounts SET email = email || '!', n = n + 1").await, ["UPDATE 10"]);
    let swap = "UPDATE accounts SET email = CASE id WHEN 1 THEN 'e2!' ELSE 'e1!' END WHERE id IN (1, 2) RETURNING id";
    assert_eq!(client.run(swap).await.len(), 2);
    assert_eq!(client.run("UPDATE accounts SET id = id + 100 WHERE email = 'e3!'").await, ["UPDATE 1"]);
    assert_eq!(client.fails("INSERT INTO accounts VALUES (200, 'e3!')").await, "23505");
    assert_eq!(client.run("SELECT count(DISTINCT email), sum(n) FROM accounts").await, ["10|10"]);
    assert_eq!(client.run("UPDATE accounts SET n = 5 WHERE email = 'e4!'").await, ["UPDATE 1"]);
}

/// A transaction sees its own keys: what it added, and what it took away.
pub(crate) async fn a_transaction_knows_its_own_keys(world: World) {
    let mut client = accounts(&world).await;
    client.run("INSERT INTO accounts VALUES (1, 'a')").await;
    client.run("BEGIN").await;
    client.run("INSERT INTO accounts VALUES (2, 'b')").await;
    client.run("SAVEPOINT one").await;
    assert_eq!(client.fails("INSERT INTO accounts VALUES (3, 'b')").await, "23505");
    client.run("ROLLBACK TO one").await;
    client.run("DELETE FROM accounts WHERE id = 1").await;
    client.run("INSERT INTO accounts VALUES (4, 'a')").await;
    client.run("COMMIT").await;
    assert_eq!(emails(&mut client).await, ["2|b", "4|a"]);
}

/// Of two who add one key at once, one does and the other is told.
pub(crate) async fn contended_keys_have_one_owner(world: World) {
    let mut client = accounts(&world).await;
    let mut writers = Vec::new();
    for writer in 0..8 {
        let mut client = world.client();
        writers.push(tokio::spawn(async move {
            let mut won = 0;
            for n in 0..40 {
                let id = 1_000 * writer + n;
                let statement = format!("INSERT INTO accounts VALUES ({id}, 'k{n}')");
                let done = match n % 3 {
                    0 => client.try_run(&statement).await,
                    _ => {
                        client.run("BEGIN").await;
                        let done = client.try_run(&statement).await;
                        client.run(if done.is_ok() { "COMMIT" } else { "ROLLBACK" }).await;
                        done
                    }
                };
                match done {
                    Ok(_) => won += 1,
                    Err(error) => assert!(["23505", "40001", "40P01"].contains(&error.sqlstate), "{error}"),
                }
            }
            won
        }));
    }
    let mut won = 0;
    for writer in writers {
        won += writer.await.unwrap();
    }
    let counted = client.run("SELECT count(*), count(DISTINCT email) FROM accounts").await;
    assert_eq!(counted, [format!("{won}|{won}")]);
    assert!(won >= 30, "{won} of 40 keys were won");
}

/// One who waits for a key goes on when its holder has ended, either way.
pub(crate) async fn a_key_is_waited_for(world: World) {
    let mut first = accounts(&world).await;
    for (end, then) in [("ROLLBACK", Ok(())), ("COMMIT", Err("23505"))] {
        first.run("BEGIN").await;
        first.run("INSERT INTO accounts VALUES (1, 'a')").await;
        let waiting = tokio::spawn({
            let mut second = world.client();
            async move { second.try_run("INSERT INTO accounts VALUES (2, 'a')").await }
        });
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!waiting.is_finished());
        first.run(end).await;
        let done = waiting.await.unwrap();
        assert_eq!(done.map(drop).map_err(|error| error.sqlstate), then, "{end}");
        first.run("DELETE FROM accounts").await;
    }
}

/// Two who want each other's keys do not wait for ever.
pub(crate) async fn a_ring_of_keys_is_found(world: World) {
    let mut first = accounts(&world).await;
    let mut second = world.client();
    for client in [&mut first, &mut second] {
        client.run("SET statement_timeout = '20s'").await;
        client.run("BEGIN").await;
    }
    first.run("INSERT INTO accounts VALUES (1, 'a')").await;
    // On another shard: on the same one, of SQLite, it would wait for the writer.
    second.run("INSERT INTO accounts VALUES (3, 'b')").await;
    let waits = tokio::spawn(async move {
        let done = first.try_run("INSERT INTO accounts VALUES (4, 'b')").await;
        first.run(if done.is_ok() { "COMMIT" } else { "ROLLBACK" }).await;
        done.map(drop).map_err(|error| error.sqlstate)
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let done = second.try_run("INSERT INTO accounts VALUES (6, 'a')").await.map(drop).map_err(|error| error.sqlstate);
    second.run(if done.is_ok() { "COMMIT" } else { "ROLLBACK" }).await;
    let results = [done, waits.await.unwrap()];
    assert!(results.contains(&Err("40P01")), "{results:?}");
}

/// A unique index over rows that are not: they are named, and everything is as before.
pub(crate) async fn duplicates_are_named(world: World) {
    let mut client = world.client();
    client.run("CREATE TABLE accounts (id int PRIMARY KEY, email text)").await;
    client.run("INSERT INTO accounts SELECT i, 'e' || i FROM generate_series(1, 500) AS s (i)").await;
    client.run("INSERT INTO accounts VALUES (1000, 'e7'), (1001, NULL), (1002, NULL)").await;
    for make in [
        "CREATE UNIQUE INDEX accounts_email ON accounts (email) WITH (global)",
        "ALTER TABLE accounts ADD CONSTRAINT accounts_email UNIQUE (email)",
    ] {
        let error = client.try_run(make).await.unwrap_err();
        assert_eq!(error.sqlstate, "23505", "{make}: {error}");
        assert!(error.detail.as_ref().is_some_and(|detail| detail.contains("Key (email)=(e7)")), "{error:?}");
        assert_eq!(client.run("SHOW INDEXES").await, Vec::<String>::new());
    }
    client.run("INSERT INTO accounts VALUES (1003, 'e8')").await;
    client.run("DELETE FROM accounts WHERE id >= 1000").await;
    client.run("CREATE UNIQUE INDEX accounts_email ON accounts (email) WITH (global)").await;
    assert_eq!(client.fails("INSERT INTO accounts VALUES (1000, 'e7')").await, "23505");
    assert!(client.run("SHOW INDEXES").await[0].contains("|ready|"));
}

/// I-26: a transaction made a unique index over rows with one key, nobody was told, and both stayed.
pub(crate) async fn duplicates_are_refused_in_a_transaction(world: World) {
    let mut client = world.client();
    client.run("CREATE TABLE accounts (id int PRIMARY KEY, email text)").await;
    client.run("INSERT INTO accounts VALUES (1, 'a'), (2, 'a'), (3, NULL)").await;
    let make = [
        "CREATE UNIQUE INDEX accounts_email ON accounts (email) WITH (global)",
        "ALTER TABLE accounts ADD CONSTRAINT accounts_email UNIQUE (email)",
    ];
    for sql in make {
        for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
            client.run(&format!("BEGIN ISOLATION LEVEL {level}")).await;
            let error = client.try_run(sql).await.unwrap_err();
            assert_eq!(error.sqlstate, "25001", "{level}: {sql}: {error}");
            assert!(error.hint.as_ref().is_some_and(|hint| hint.contains("statement of its own")), "{error:?}");
            client.run("ROLLBACK").await;
        }
        // Several statements in one text are a transaction, too.
        client.session.begin_implicit();
        assert_eq!(client.fails(sql).await, "25001");
        client.session.end_implicit().await.unwrap();
        assert_eq!(client.run("SHOW INDEXES").await, Vec::<String>::new());
    }
    // Over no rows there are no duplicates, and those that come are refused.
    client.run("DELETE FROM accounts").await;
    client.run("BEGIN ISOLATION LEVEL READ COMMITTED").await;
    client.run(make[0]).await;
    client.run("INSERT INTO accounts VALUES (1, 'a')").await;
    assert_eq!(client.fails("INSERT INTO accounts VALUES (2, 'a')").await, "23505");
    client.run("ROLLBACK").await;
    for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        client.run(&format!("BEGIN ISOLATION LEVEL {level}")).await;
        client.run("CREATE TABLE fresh (id int PRIMARY KEY, email text UNIQUE, name text)").await;
        client.run("CREATE UNIQUE INDEX fresh_name ON fresh (name) WITH (global)").await;
        client.run("INSERT INTO fresh VALUES (1, 'a', 'x')").await;
        assert_eq!(client.fails("ALTER TABLE fresh ADD CONSTRAINT fresh_both UNIQUE (email, name)").await, "25001");
        client.run("ROLLBACK").await;
    }
    client.run("BEGIN").await;
    client.run("CREATE TABLE fresh (id int PRIMARY KEY, email text UNIQUE)").await;
    client.run("INSERT INTO fresh VALUES (1, 'a')").await;
    client.run("COMMIT").await;
    assert_eq!(client.fails("INSERT INTO fresh VALUES (2, 'a')").await, "23505");
}

/// Whoever cancels a unique index while it is built is left without it: one that stayed would be asked by every insert.
pub(crate) async fn a_unique_index_that_was_cancelled_is_gone(world: World) {
    let mut client = world.client();
    client.run("CREATE TABLE accounts (id int PRIMARY KEY, email text) WITH (\"group\" = 'accounts')").await;
    client.run("INSERT INTO accounts SELECT i, 'e' || i FROM generate_series(1, 100) AS s (i)").await;
    // A build waits for a move of its table.
    client.run("CREATE MOVE OF BUCKETS 'accounts/0-7' TO s1").await;
    let cancel = client.session.cancel_token();
    let making = tokio::spawn(async move {
        let made = client.try_run("CREATE UNIQUE INDEX accounts_email ON accounts (email) WITH (global)").await;
        (made, client)
    });
    let mut other = world.client();
    while other.run("SHOW INDEXES").await.is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    cancel.cancel();
    let (made, mut client) = making.await.unwrap();
    assert_eq!(made.unwrap_err().sqlstate, "57014");
    assert_eq!(other.run("SHOW INDEXES").await, Vec::<String>::new());
    client.run("INSERT INTO accounts VALUES (1000, 'e7')").await;
}

/// Rows that come while a unique index is built, and moves of buckets, let no key be given twice.
pub(crate) async fn keys_stay_unique_while_an_index_is_built_and_rows_move(world: World) {
    let mut client = world.client();
    client.run("CREATE TABLE accounts (id int PRIMARY KEY, email text) WITH (\"group\" = 'accounts')").await;
    client.run("INSERT INTO accounts SELECT i, 'e' || i FROM generate_series(1, 2000) AS s (i)").await;
    let writer = tokio::spawn({
        let mut client = world.client();
        async move {
            for n in 0..200 {
                let taken =
                    client.try_run(&format!("INSERT INTO accounts VALUES ({}, 'new{}')", 10_000 + n, n % 150)).await;
                // Before there is an index, everything goes.
                if let Err(error) = taken {
                    assert_eq!(error.sqlstate, "23505");
                }
                if n == 60 {
                    client.run("DELETE FROM accounts WHERE id >= 10000").await;
                }
            }
        }
    });
    let made = client.try_run("CREATE UNIQUE INDEX accounts_email ON accounts (email) WITH (global)").await;
    if made.is_ok() {
        client.run("CREATE MOVE OF BUCKETS 'accounts/0-7' TO s1 WITH (auto, complete)").await;
    }
    writer.await.unwrap();
    if made.is_ok() {
        assert_eq!(client.run("SELECT count(*) - count(DISTINCT email) FROM accounts").await, ["0"]);
    }
}

/// I-26, vitess 14652: what a process held when it died is free when it comes back.
pub(crate) async fn keys_are_free_after_a_restart(world: World) {
    let mut client = accounts(&world).await;
    client.run("INSERT INTO accounts VALUES (1, 'a')").await;
    client.run("BEGIN").await;
    client.run("INSERT INTO accounts VALUES (2, 'b')").await;
    drop(client);
    let world = world.reopen().await;
    let mut client = world.client();
    client.run("INSERT INTO accounts VALUES (3, 'b')").await;
    assert_eq!(client.fails("INSERT INTO accounts VALUES (4, 'a')").await, "23505");
    assert_eq!(emails(&mut client).await, ["1|a", "3|b"]);
}

/// `ON CONFLICT` by a global key, by the primary key, and by any.
pub(crate) async fn upserts_find_what_is_in_the_way(world: World) {
    let mut client = accounts(&world).await;
    let upsert = |id: i32, email: &str| {
        format!(
            "INSERT INTO accounts VALUES ({id}, '{email}', 1) ON CONFLICT (email) DO UPDATE SET n = accounts.n + excluded.n \
             RETURNING id, n"
        )
    };
    for round in 1..4 {
        for n in 0..12 {
            let shown = client.run(&upsert(100 * round + n, &format!("e{n}"))).await;
            assert_eq!(shown, [format!("{}|{round}", 100 + n)], "the first row of a key stays");
        }
        settle(&world).await;
    }
    let nothing = "INSERT INTO accounts VALUES (1, 'e1'), (2, 'new'), (100, 'other') ON CONFLICT DO NOTHING";
    assert_eq!(client.run(nothing).await, ["INSERT 0 1"]);
    // By the primary key: it is an update, and its new address must be free.
    let by_id = |id: i32, email: &str| {
        format!("INSERT INTO accounts VALUES ({id}, '{email}') ON CONFLICT (id) DO UPDATE SET email = excluded.email")
    };
    assert_eq!(client.run(&by_id(2, "new")).await, ["INSERT 0 1"]);
    assert_eq!(client.run(&by_id(2, "newer")).await, ["INSERT 0 1"]);
    assert_eq!(client.fails(&by_id(2, "e3")).await, "23505");
    assert_eq!(client.fails(&by_id(3, "e3")).await, "23505");
    assert_eq!(client.run("SELECT email FROM accounts WHERE id = 2").await, ["newer"]);
    let filtered =
        "INSERT INTO accounts VALUES (5, 'e1') ON CONFLICT (email) DO UPDATE SET n = 0 WHERE accounts.n > 100";
    assert_eq!(client.run(filtered).await, ["INSERT 0 0"]);
    let by_name =
        "INSERT INTO accounts VALUES (5, 'e1') ON CONFLICT ON CONSTRAINT accounts_email_key DO UPDATE SET n = 7";
    assert_eq!(client.run(by_name).await, ["INSERT 0 1"]);
    let twice = "INSERT INTO accounts VALUES (50, 'x'), (51, 'x') ON CONFLICT (email) DO UPDATE SET n = 0";
    assert_eq!(client.fails(twice).await, "21000");
    assert_eq!(client.run("SELECT count(*), count(DISTINCT email), sum(n) FROM accounts").await, ["13|13|40"]);
}

/// Upserts of one key from many sides: one row, and every one of them counts.
pub(crate) async fn contended_upserts_count_once(world: World) {
    let mut client = accounts(&world).await;
    let mut writers = Vec::new();
    for writer in 0..6 {
        let mut client = world.client();
        writers.push(tokio::spawn(async move {
            let mut done = 0;
            for n in 0..20 {
                let sql = format!(
                    "INSERT INTO accounts VALUES ({}, 'k{}', 1) ON CONFLICT (email) DO UPDATE SET n = accounts.n + 1",
                    1_000 * writer + n,
                    n % 4
                );
                match client.try_run(&sql).await {
                    Ok(_) => done += 1,
                    Err(error) => assert!(["40001", "40P01"].contains(&error.sqlstate), "{error}"),
                }
            }
            done
        }));
    }
    let mut done = 0;
    for writer in writers {
        done += writer.await.unwrap();
    }
    assert_eq!(client.run("SELECT count(*), sum(n) FROM accounts").await, [format!("4|{done}")]);
    assert!(done >= 60, "{done} of 120");
}

/// A table whose rows are with their owner, and are known by a number of their own.
async fn files(world: &World) -> Client {
    let mut client = world.client();
    client.run("CREATE TABLE files (id bigint PRIMARY KEY, owner text NOT NULL, n int) WITH (shard_by = 'owner', \"group\" = 'files')").await;
    client
}

async fn owners(client: &mut Client) -> Vec<String> {
    client.run("SELECT id, owner FROM files ORDER BY id").await
}

/// I-26: the primary key holds over all owners, wherever they are.
pub(crate) async fn a_primary_key_without_the_shard_key_is_unique(world: World) {
    let mut client = files(&world).await;
    client.run("INSERT INTO files VALUES (1, 'ann')").await;
    for round in 0..2 {
        for owner in ["ann", "bob", "cid", "dan", "eve", "fay"] {
            let error = client.try_run(&format!("INSERT INTO files VALUES (1, '{owner}')")).await.unwrap_err();
            assert_eq!(error.sqlstate, "23505", "round {round}");
            assert_eq!(error.message, "duplicate key value violates unique constraint \"files_pkey\"");
            assert_eq!(error.detail.as_deref(), Some("Key (id)=(1) already exists."));
        }
        settle(&world).await;
    }
    assert_eq!(client.fails("INSERT INTO files VALUES (2, 'ann'), (2, 'bob')").await, "23505");
    let null = client.try_run("INSERT INTO files VALUES (NULL, 'ann')").await.unwrap_err();
    assert_eq!((null.sqlstate, null.column.as_deref()), ("23502", Some("id")));
    let null = client.try_run("INSERT INTO files VALUES (2, NULL)").await.unwrap_err();
    assert_eq!((null.sqlstate, null.column.as_deref()), ("23502", Some("owner")));
    client.copy("COPY files (id, owner) FROM STDIN", "2\tbob\n3\tcid\n").await.unwrap();
    let copied = client.copy("COPY files (id, owner) FROM STDIN", "4\tdan\n3\teve\n").await;
    assert_eq!(copied.unwrap_err().sqlstate, "23505");
    assert_eq!(client.fails("INSERT INTO files SELECT id, owner || '!' FROM files").await, "23505");
    assert_eq!(owners(&mut client).await, ["1|ann", "2|bob", "3|cid"]);
    drop(client);
    let world = world.reopen().await;
    let mut client = world.client();
    assert_eq!(client.fails("INSERT INTO files VALUES (3, 'dan')").await, "23505");
    client.run("DELETE FROM files WHERE id = 3").await;
    client.run("INSERT INTO files VALUES (3, 'dan')").await;
    assert_eq!(client.run("SELECT owner FROM files WHERE id = 3").await, ["dan"]);
}

/// Updates of the key, of the owner, and of both.
pub(crate) async fn updates_keep_such_a_primary_key(world: World) {
    let mut client = files(&world).await;
    client.run("INSERT INTO files SELECT i, 'o' || i, 0 FROM generate_series(1, 12) AS s (i)").await;
    assert_eq!(client.fails("UPDATE files SET id = 2 WHERE id = 1").await, "23505");
    assert_eq!(client.fails("UPDATE files SET id = 2, owner = 'new' WHERE id = 1").await, "23505");
    assert_eq!(client.fails("UPDATE files SET id = NULL WHERE id = 1").await, "23502");
    assert_eq!(client.fails("UPDATE files SET owner = NULL WHERE id = 1").await, "23502");
    // Rows go to other owners, and some to the same one.
    assert_eq!(client.run("UPDATE files SET owner = 'p' || id % 4").await, ["UPDATE 12"]);
    assert_eq!(client.run("UPDATE files SET n = n + 1 WHERE id = 5 RETURNING owner").await, ["p1"]);
    assert_eq!(client.run("UPDATE files SET id = id + 1").await, ["UPDATE 12"]);
    assert_eq!(client.run("UPDATE files SET id = 115 - id, owner = 'q' || id WHERE id < 8").await, ["UPDATE 6"]);
    let swap = "UPDATE files SET id = CASE id WHEN 8 THEN 9 ELSE 8 END WHERE id IN (8, 9)";
    assert_eq!(client.run(swap).await, ["UPDATE 2"]);
    assert_eq!(client.run("SELECT id, owner FROM files WHERE id IN (8, 9) ORDER BY id").await, ["8|p0", "9|p3"]);
    client.run("DELETE FROM files WHERE owner LIKE 'p%'").await;
    settle(&world).await;
    assert_eq!(owners(&mut client).await, ["108|q7", "109|q6", "110|q5", "111|q4", "112|q3", "113|q2"]);
    assert_eq!(client.run("VERIFY INDEX files_pkey").await, ["6|0|0|0"]);
    client.run("BEGIN").await;
    client.run("DELETE FROM files WHERE id = 108").await;
    client.run("INSERT INTO files VALUES (108, 'other')").await;
    client.run("COMMIT").await;
    assert_eq!(client.run("SELECT owner FROM files WHERE id = 108").await, ["other"]);
}

/// `ON CONFLICT` by the primary key, by its name, and by any.
pub(crate) async fn upserts_find_such_a_primary_key(world: World) {
    let mut client = files(&world).await;
    for round in 1..4 {
        for (id, owner) in [(1, "ann"), (2, "bob"), (3, "cid"), (4, "dan")] {
            let target = if round == 2 { "ON CONSTRAINT files_pkey" } else { "(id)" };
            let upsert = format!(
                "INSERT INTO files VALUES ({id}, '{owner}{round}', 1) ON CONFLICT {target} DO UPDATE SET n = files.n + excluded.n \
                 RETURNING owner, n"
            );
            assert_eq!(client.run(&upsert).await, [format!("{owner}1|{round}")], "the first owner stays");
        }
        settle(&world).await;
    }
    let nothing = "INSERT INTO files VALUES (1, 'x'), (5, 'y'), (5, 'z') ON CONFLICT DO NOTHING";
    assert_eq!(client.run(nothing).await, ["INSERT 0 1"]);
    let moved = "INSERT INTO files VALUES (1, 'x') ON CONFLICT (id) DO UPDATE SET id = 2";
    assert_eq!(client.fails(moved).await, "23505");
    let owner = "INSERT INTO files VALUES (1, 'x') ON CONFLICT (id) DO UPDATE SET owner = 'x'";
    assert_eq!(client.fails(owner).await, "0A000");
    let both = "INSERT INTO files VALUES (1, 'ann1') ON CONFLICT (id, owner) DO NOTHING";
    assert_eq!(client.fails(both).await, "42P10");
    assert_eq!(owners(&mut client).await, ["1|ann1", "2|bob1", "3|cid1", "4|dan1", "5|y"]);
}

/// Clients see the key that was declared, and all columns follow from it.
pub(crate) async fn such_a_primary_key_is_shown_and_grouped_by(world: World) {
    let mut client = files(&world).await;
    let indexes = "SELECT c.relname, i.indisprimary, i.indisunique, i.indkey::text, pg_get_constraintdef(k.oid) \
        FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid LEFT JOIN pg_constraint k ON k.conindid = i.indexrelid \
        WHERE i.indrelid = 'files'::regclass";
    assert_eq!(client.run(indexes).await, ["files_pkey|t|t|1|PRIMARY KEY (id)"]);
    let usage = "SELECT c.constraint_name, c.constraint_type, k.column_name FROM information_schema.table_constraints c \
        JOIN information_schema.key_column_usage k ON k.constraint_name = c.constraint_name WHERE c.table_name = 'files' \
        AND c.constraint_type = 'PRIMARY KEY'";
    assert_eq!(client.run(usage).await, ["files_pkey|PRIMARY KEY|id"]);
    client.run("INSERT INTO files SELECT i, 'o' || i % 5, i FROM generate_series(1, 20) AS s (i)").await;
    let grouped = "SELECT id, owner, n, count(*) FROM files GROUP BY id HAVING n > 17 ORDER BY id";
    assert_eq!(client.run(grouped).await, ["18|o3|18|1", "19|o4|19|1", "20|o0|20|1"]);
    let joined = "SELECT f.owner, count(*), sum(g.n) FROM files f LEFT JOIN files g ON g.n = f.id AND g.n < 3 \
        WHERE f.id < 4 GROUP BY f.id ORDER BY f.id";
    assert_eq!(client.run(joined).await, ["o1|1|1", "o2|1|2", "o3|1|∅"]);
    let nulls =
        "SELECT g.owner, count(*) FROM files f LEFT JOIN files g ON g.n = f.id AND g.n < 3 GROUP BY g.id ORDER BY g.id";
    assert_eq!(client.run(nulls).await, ["o1|1", "o2|1", "∅|18"]);
}

/// Names, columns and places change, and the key stays.
pub(crate) async fn such_a_table_changes_and_moves(world: World) {
    let mut client = files(&world).await;
    client.run("CREATE TABLE pages (owner text, file bigint, n int, PRIMARY KEY (owner, file, n), FOREIGN KEY (owner, file) REFERENCES files (owner, id) ON DELETE CASCADE) WITH (shard_by = 'owner', \"group\" = 'files')").await;
    client.run("INSERT INTO files SELECT i, 'o' || i, i FROM generate_series(1, 40) AS s (i)").await;
    client.run("INSERT INTO pages SELECT owner, id, 1 FROM files").await;
    assert_eq!(client.fails("INSERT INTO pages VALUES ('o1', 2, 1)").await, "23503");
    client.run("ALTER TABLE files RENAME TO documents").await;
    client.run("ALTER INDEX files_pkey RENAME TO number").await;
    client.run("ALTER TABLE documents RENAME COLUMN id TO no").await;
    client.run("ALTER TABLE documents ADD COLUMN title text NOT NULL DEFAULT 't'").await;
    client.run("ALTER TABLE documents ALTER COLUMN n TYPE bigint USING n + 1").await;
    let error = client.try_run("INSERT INTO documents VALUES (7, 'x')").await.unwrap_err();
    assert_eq!(error.message, "duplicate key value violates unique constraint \"number\"");
    let shown = client.run("CREATE MOVE OF BUCKETS 'files/0-15' TO s1 WITH (auto, complete)").await;
    let plan = shown[0].split('|').next().unwrap().to_string();
    loop {
        assert_eq!(client.fails("INSERT INTO documents VALUES (7, 'x')").await, "23505");
        let phase = client.run(&format!("SHOW MOVE {plan}")).await[0].split('|').nth(4).unwrap().to_string();
        if phase == "completed" {
            break;
        }
        assert!(!["failed", "rolled_back"].contains(&phase.as_str()), "{phase}");
    }
    assert_eq!(client.fails("INSERT INTO documents VALUES (7, 'x')").await, "23505");
    assert_eq!(client.run("DELETE FROM documents WHERE no <= 10").await, ["DELETE 10"]);
    assert_eq!(client.run("SELECT count(*), min(file) FROM pages").await, ["30|11"]);
    client.run("INSERT INTO documents VALUES (7, 'x')").await;
    settle(&world).await;
    assert_eq!(client.run("VERIFY INDEX number").await, ["31|0|0|0"]);
    client.run("DROP TABLE pages, documents").await;
    assert_eq!(client.run("SHOW INDEXES").await, Vec::<String>::new());
}

/// I-69, planted bug 18: a key that is never let go is noticed by whoever adds it next.
#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_that_is_never_released_is_found() {
    for (world, released) in [(World::sqlite().await, true), (World::with_bug(super::Planted::KeysKept).await, false)] {
        let mut client = accounts(&world).await;
        client.run("SET lock_timeout = '300ms'").await;
        client.run("INSERT INTO accounts VALUES (1, 'a')").await;
        client.run("DELETE FROM accounts WHERE id = 1").await;
        let again = client.try_run("INSERT INTO accounts VALUES (2, 'a')").await;
        assert_eq!(again.is_ok(), released, "{again:?}");
    }
}

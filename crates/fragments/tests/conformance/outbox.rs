//! What clients read of what was committed.

use crate::world::{World, add_user, find, killed_after, shard, user, within};
use isles_fragments::error::Code;
use isles_fragments::query::Find;
use isles_fragments::store::Handle;
use isles_fragments::values::Values;
use isles_kernel::sync::{Cursor, Op, OutboxPage, OutboxQuery, RowKey, SnapshotQuery, Version};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

async fn read(app: &Handle, after: Cursor) -> OutboxPage {
    let page = app.store().outbox(&OutboxQuery { after: Some(after), ..OutboxQuery::default() }).await.unwrap();
    page.check(after).expect("a page continues the log");
    page
}

pub(crate) async fn all(app: &Handle) -> OutboxPage {
    let mut page = read(app, Cursor::START).await;
    while page.has_more() {
        let more = read(app, page.next).await;
        page.entries.extend(more.entries);
        page.next = more.next;
    }
    page
}

/// I-29, I-30: many writers in three shards, and readers who follow at the same time: dense, in order, nothing skipped.
pub(crate) async fn versions_are_dense_in_each_shard_under_concurrency(world: World) {
    let app = world.app().await;
    const WRITERS: usize = 4;
    const EACH: usize = 8;
    let mut tasks = Vec::new();
    for name in ["a", "b", "c"] {
        for _ in 0..WRITERS {
            let app = app.clone();
            tasks.push(tokio::spawn(within(name, async move {
                for _ in 0..EACH {
                    app.handler_tx().mutate(|m, _| m.create("users", user("x"))).execute().await.unwrap();
                }
            })));
        }
    }
    let mut readers = Vec::new();
    for name in ["a", "b", "c"] {
        let app = app.clone();
        readers.push(tokio::spawn(within(name, async move {
            let (mut cursor, mut seen) = (Cursor::START, 0);
            while seen < WRITERS * EACH {
                let query = OutboxQuery { after: Some(cursor), wait_ms: Some(5_000), ..OutboxQuery::default() };
                let page = app.store().outbox(&query).await.unwrap();
                page.check(cursor).unwrap();
                seen += page.entries.len();
                cursor = page.next;
            }
            cursor
        })));
    }
    for task in tasks {
        task.await.unwrap();
    }
    for reader in readers {
        let cursor = reader.await.unwrap();
        assert_eq!(cursor.version().get() as usize, WRITERS * EACH);
    }
}

pub(crate) async fn entries_tell_the_changes_without_shards(world: World) {
    let app = world.app().await;
    within("secret-tenant", async {
        let tx = app.handler_tx().mutate(|m, _| {
            m.create_with_id("users", "u", user("ada"))?;
            m.create_with_id("posts", "p", Values::new().set("authorId", "u").set("title", "t"))?;
            m.update("posts", "p", Values::new().set("likes", 3))?;
            m.delete("posts", "p")
        });
        tx.execute().await.unwrap();
        let page = all(&app).await;
        let mutations = &page.entries[0].mutations;
        let ops: Vec<(Op, &str, u64)> = mutations.iter().map(|m| (m.op, m.key.table.as_str(), m.version.0)).collect();
        assert_eq!(
            ops,
            [(Op::Create, "users", 0), (Op::Create, "posts", 0), (Op::Update, "posts", 1), (Op::Delete, "posts", 1)]
        );
        assert_eq!(mutations[0].key, RowKey::new("app", "users", "u").unwrap());
        assert_eq!(mutations[1].values.get("authorId"), Some(&serde_json::json!("u")), "by its external id");
        assert_eq!(mutations[1].values.get("likes"), Some(&serde_json::json!(0)), "with defaults");
        assert!(mutations[3].values.is_empty());
        let text = serde_json::to_string(&page).unwrap();
        for hidden in ["_shard", "_internalId", "_version", "secret-tenant", "before"] {
            assert!(!text.contains(hidden), "{hidden} in {text}");
        }
    })
    .await;
}

/// An update or delete of what is not there (or is another shard's) is no change.
pub(crate) async fn what_changes_nothing_publishes_nothing(world: World) {
    let app = world.app().await;
    within("a", add_user(&app, "u", user("ada"))).await.unwrap();
    within("b", async {
        app.handler_tx().mutate(|m, _| m.update("users", "u", user("x"))).execute().await.unwrap();
        app.handler_tx().mutate(|m, _| m.delete("users", "u")).execute().await.unwrap();
        assert!(all(&app).await.entries.is_empty());
        add_user(&app, "v", user("bob")).await.unwrap();
        let page = all(&app).await;
        assert_eq!((page.entries.len(), page.entries[0].version), (1, Version::new(1).unwrap()), "no gap");
    })
    .await;
}

/// I-29: what is rolled back takes no version.
pub(crate) async fn units_of_work_that_fail_leave_no_gap(world: World) {
    let app = world.app().await;
    within("a", async {
        for _ in 0..3 {
            add_user(&app, "u", user("ada")).await.unwrap();
            let tx = app.handler_tx().mutate(|m, _| {
                m.update("users", "u", user("x"))?;
                m.create_with_id("users", "u", user("again"))
            });
            assert!(tx.execute().await.is_err());
            app.handler_tx().mutate(|m, _| m.delete("users", "u")).execute().await.unwrap();
        }
        let versions: Vec<u64> = all(&app).await.entries.iter().map(|entry| entry.version.get()).collect();
        assert_eq!(versions, [1, 2, 3, 4, 5, 6]);
    })
    .await;
}

pub(crate) async fn the_entry_is_of_the_shard_of_its_unit_of_work(world: World) {
    let app = world.app().await;
    let tx = within("b", async { app.handler_tx().mutate(|m, _| m.create_with_id("users", "u", user("x"))) }).await;
    within("a", tx.execute()).await.unwrap();
    assert!(within("a", all(&app)).await.entries.is_empty());
    assert_eq!(within("b", all(&app)).await.entries.len(), 1);
}

/// I-2, I-29: a writer that ends at any point has left its rows and their entry, or neither.
pub(crate) async fn a_killed_writer_leaves_rows_and_entry_or_neither(world: World) {
    let app = world.app().await;
    let mut finished = 0;
    let mut killed = 0;
    for polls in 1..60 {
        within("a", async {
            let tx = app.handler_tx().mutate(|m, _| m.create("users", user("x")));
            match killed_after(polls, tx.execute()).await {
                Some(done) => finished += usize::from(done.is_ok()),
                None => killed += 1,
            }
        })
        .await;
        // What was killed may be committed at any moment, so each of these looks at one.
        let (rows, page) = within("a", async {
            let rows = app.store().snapshot(&SnapshotQuery::default()).await.unwrap();
            assert_eq!(rows.rows.len() as u64, rows.cursor.version().get(), "killed after {polls} polls");
            (rows.rows.len(), all(&app).await)
        })
        .await;
        assert_eq!(page.entries.len() as u64, page.head.version().get(), "killed after {polls} polls");
        assert!(page.entries.len() >= rows && rows >= finished, "what was answered is there");
    }
    // Memory answers at once: there is no point in between.
    assert!(finished > 0 && (killed > 0 || world.adapter.name() == "memory"), "{finished} finished, {killed} killed");
}

pub(crate) async fn readers_wait_for_news(world: World) {
    let app = world.app().await;
    within("a", async {
        let began = Instant::now();
        let query = OutboxQuery { wait_ms: Some(150), ..OutboxQuery::default() };
        assert!(app.store().outbox(&query).await.unwrap().entries.is_empty());
        assert!(began.elapsed() >= Duration::from_millis(150));
    })
    .await;
    let waiting = {
        let app = app.clone();
        tokio::spawn(within("a", async move {
            let query = OutboxQuery { wait_ms: Some(20_000), ..OutboxQuery::default() };
            app.store().outbox(&query).await.unwrap()
        }))
    };
    // Another shard's news are not theirs.
    within("b", add_user(&app, "u", user("bob"))).await.unwrap();
    within("a", add_user(&app, "u", user("ada"))).await.unwrap();
    let page = tokio::time::timeout(Duration::from_secs(15), waiting).await.unwrap().unwrap();
    assert_eq!(page.entries.len(), 1);
}

/// What another process commits is found by one who looks, for all who wait.
pub(crate) async fn readers_are_told_of_what_others_commit(world: World) {
    let (app, elsewhere) = (world.app().await, world.app().await);
    let wait = |wait_ms| {
        let app = app.clone();
        let query = OutboxQuery { wait_ms: Some(wait_ms), ..OutboxQuery::default() };
        tokio::spawn(within("a", async move { app.store().outbox(&query).await.unwrap() }))
    };
    // Who looks first is gone before there is something to see.
    let first = wait(300);
    let others: Vec<_> = (0..4).map(|_| wait(25_000)).collect();
    first.await.unwrap();
    within("a", add_user(&elsewhere, "u", user("ada"))).await.unwrap();
    let all = futures::future::join_all(others);
    for page in tokio::time::timeout(Duration::from_secs(15), all).await.expect("all are told") {
        assert_eq!(page.unwrap().entries.len(), 1);
    }
}

/// Entries of a megabyte, and small ones between them: pages are cut by bytes, and nothing is skipped.
pub(crate) async fn pages_of_large_entries_are_cut_by_their_bytes(world: World) {
    let app = world.app().await;
    within("a", async {
        for n in 0..12 {
            let body = "x".repeat(if n % 3 == 0 { 900_000 } else { 10 });
            let tx = app.handler_tx().mutate(move |m, _| {
                let user = m.create("users", user("x"))?;
                let post = m.create("posts", Values::new().set("authorId", user).set("title", "t"))?;
                m.create("comments", Values::new().set("postId", post).set("body", body.as_str())).map(|_| ())
            });
            tx.execute().await.unwrap();
        }
        let (mut cursor, mut pages) = (Cursor::START, 0);
        while cursor.version().get() < 12 {
            let page = read(&app, cursor).await;
            assert!((1..=4).contains(&page.entries.len()), "{}", page.entries.len());
            cursor = page.next;
            pages += 1;
        }
        assert!(pages >= 4, "{pages}");
    })
    .await;
}

/// Below the floor nothing is skipped silently.
pub(crate) async fn below_the_floor_readers_begin_anew(world: World) {
    let app = world.app().await;
    within("a", async {
        let mut cursors = vec![Cursor::START];
        for _ in 0..6 {
            app.handler_tx().mutate(|m, _| m.create("users", user("x"))).execute().await.unwrap();
            cursors.push(all(&app).await.next);
        }
        assert_eq!(app.store().trim(&shard("a"), 2).await.unwrap(), 4);
        for (version, cursor) in cursors.iter().enumerate() {
            let page = app.store().outbox(&OutboxQuery { after: Some(*cursor), ..OutboxQuery::default() }).await;
            match version < 4 {
                true => assert_eq!(page.unwrap_err().refusal(), Some(Code::ResyncRequired), "{version}"),
                false => {
                    let page = page.unwrap();
                    assert_eq!((page.entries.len(), page.floor.get()), (6 - version, 4), "{version}");
                }
            }
        }
        // The floor never falls, and versions go on.
        assert_eq!(app.store().trim(&shard("a"), 100).await.unwrap(), 4);
        app.handler_tx().mutate(|m, _| m.create("users", user("x"))).execute().await.unwrap();
        assert_eq!(read(&app, cursors[6]).await.entries[0].version.get(), 7);
    })
    .await;
    within("b", add_user(&app, "u", user("bob"))).await.unwrap();
    assert_eq!(within("b", all(&app)).await.entries.len(), 1, "b is not trimmed");
}

pub(crate) async fn cursors_of_another_log_are_refused(world: World) {
    let app = world.app().await;
    for name in ["a", "b"] {
        for id in ["u", "v"] {
            within(name, add_user(&app, id, user("x"))).await.unwrap();
        }
    }
    let of_a = within("a", all(&app)).await.next;
    let query = OutboxQuery { after: Some(of_a), ..OutboxQuery::default() };
    let error = within("b", app.store().outbox(&query)).await.unwrap_err();
    assert_eq!(error.refusal(), Some(Code::ResyncRequired), "the number fits, the entry does not");
    let partition = within("a", all(&app)).await.partition;
    let query = OutboxQuery { partition: Some(partition), ..OutboxQuery::default() };
    assert_eq!(within("b", app.store().outbox(&query)).await.unwrap_err().refusal(), Some(Code::WrongPartition));
}

/// I-34: rows of a snapshot, in small pages while others write, and the entries behind its first page, are the rows.
pub(crate) async fn snapshots_and_entries_make_the_same_rows(world: World) {
    let app = world.app().await;
    within("a", async {
        let tx = app.handler_tx().mutate(|m, _| {
            for n in 0..9 {
                m.create_with_id("users", &format!("u{n}"), user("x"))?;
                m.create_with_id(
                    "posts",
                    &format!("p{n}"),
                    Values::new().set("authorId", format!("u{n}")).set("title", "t"),
                )?;
            }
            Ok(())
        });
        tx.execute().await.unwrap();
        let mut replica: BTreeMap<RowKey, (u64, isles_kernel::sync::Values)> = BTreeMap::new();
        let (mut after, mut first) = (None, None);
        for page_number in 0.. {
            let query = SnapshotQuery { after, limit: Some(4), partition: None };
            let page = app.store().snapshot(&query).await.unwrap();
            first.get_or_insert(page.cursor);
            for row in page.rows {
                replica.insert(row.key, (row.version.0, row.values));
            }
            // Before and behind the place of the snapshot.
            let tx = app.handler_tx().mutate(move |m, _| {
                m.update("users", "u0", Values::new().set("age", page_number))?;
                m.delete("posts", &format!("p{}", page_number * 2))?;
                m.create_with_id("users", &format!("u1-{page_number}"), user("late")).map(|_| ())
            });
            tx.execute().await.unwrap();
            after = page.next;
            if after.is_none() {
                assert!(page_number > 2);
                break;
            }
        }
        for entry in read(&app, first.unwrap()).await.entries {
            for mutation in entry.mutations {
                match mutation.op {
                    Op::Delete => {
                        replica.remove(&mutation.key);
                    }
                    Op::Create => {
                        replica.insert(mutation.key, (mutation.version.0, mutation.values));
                    }
                    Op::Update => {
                        if let Some((version, values)) = replica.get_mut(&mutation.key) {
                            *version = mutation.version.0;
                            values.merge(&mutation.values);
                        }
                    }
                }
            }
        }
        let mut rows = 0;
        for table in ["users", "posts"] {
            for row in find(&app, Find::of(table)).await.unwrap() {
                let key = RowKey::new("app", table, row.id.external.as_str()).unwrap();
                let (version, values) = &replica[&key];
                assert_eq!(*version as i64, row.id.version());
                for (name, value) in &row.values.0 {
                    assert_eq!(values.get(name), Some(&isles_fragments::values::to_json(value)), "{key:?} {name}");
                }
                rows += 1;
            }
        }
        assert_eq!(replica.len(), rows, "and no other");
    })
    .await;
}

pub(crate) async fn partitions_are_opaque_and_differ(world: World) {
    let app = world.app().await;
    let store = app.store();
    let of = |name: &str| store.partition(&shard(name)).unwrap();
    assert_ne!(of("tenant-a"), of("tenant-b"));
    assert!(!of("tenant-a").as_str().contains("tenant"));
    let again = world.app().await;
    assert_eq!(again.store().partition(&shard("tenant-a")).unwrap(), of("tenant-a"), "after a restart, too");
    let other = World::memory().await.app().await;
    assert_ne!(other.store().partition(&shard("tenant-a")).unwrap(), of("tenant-a"), "another database");
}

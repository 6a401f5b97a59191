//! Units of work: what they read and write.

use crate::world::{World, add_user, find, fragment, names, user, within};
use isles_fragments::condition::{Condition, Match, Op, compares, eq, is_in, is_null, matches};
use isles_fragments::error::{Code, Rule};
use isles_fragments::query::{Direction, Find, Found};
use isles_fragments::schema::{ColumnType, Schema, column};
use isles_fragments::shard::Strategy;
use isles_fragments::store::{Fragment, Handle};
use isles_fragments::uow::{Attempts, Plan};
use isles_fragments::values::{Values, from_json, timestamp_ms, to_json};
use isles_fragments::{Error, Value};
use isles_kernel::value::Numeric;
use isles_sim::check::{Element, History, Key, Level, Op as Operation, Outcome, Txn};
use isles_sim::rng::Rng;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

pub(crate) async fn rows_are_created_found_updated_and_deleted(world: World) {
    let app = world.app().await;
    within("acme", async {
        add_user(&app, "u1", user("ada").set("age", 36)).await.unwrap();
        let id = app.handler_tx().mutate(|m, _| m.create("users", user("bob"))).execute().await.unwrap();
        assert_eq!(id.len(), 32);
        assert_eq!(find(&app, Find::of("users")).await.unwrap().len(), 2);
        let tx = app.handler_tx().mutate(|m, _| m.update("users", "u1", Values::new().set("age", 37)));
        tx.execute().await.unwrap();
        let found = find(&app, Find::by_id("users", "u1")).await.unwrap();
        assert_eq!((found[0].values.int("age"), found[0].id.version()), (Some(37), 1));
        assert_eq!(found[0].values.get("email"), &Value::Null);
        app.handler_tx().mutate(|m, _| m.delete("users", "u1")).execute().await.unwrap();
        assert_eq!(names(&app).await, ["bob"]);
    })
    .await;
}

pub(crate) async fn values_of_all_types_come_back(world: World) {
    let all = Schema::build("types")
        .table("things", |t| {
            t.column(column("string", ColumnType::String))
                .column(column("text", ColumnType::Text))
                .column(column("varchar", ColumnType::Varchar(5)))
                .column(column("bigint", ColumnType::Bigint))
                .column(column("integer", ColumnType::Integer))
                .column(column("decimal", ColumnType::Decimal))
                .column(column("bool", ColumnType::Bool))
                .column(column("json", ColumnType::Json))
                .column(column("binary", ColumnType::Binary))
                .column(column("date", ColumnType::Date))
                .column(column("timestamp", ColumnType::Timestamp))
        })
        .finish()
        .unwrap();
    let table = all.table("things").unwrap().clone();
    let (app, _) = world.app_with(None, Fragment::new(all)).await;
    let values = Values::new()
        .set("string", "é 'quoted' \"x\" %_\\")
        .set("text", "x".repeat(10_000))
        .set("varchar", "ünfte")
        .set("bigint", i64::MAX)
        .set("integer", -7)
        .set("decimal", Value::Numeric(Numeric::parse("12345678901234567890.0100").unwrap()))
        .set("bool", true)
        .set("json", serde_json::json!({ "a": [1, null, "x"] }))
        .set("binary", Value::Bytes(vec![0, 255, 1]))
        .set("date", Value::Date(-3))
        .set("timestamp", timestamp_ms(1_700_000_000_123));
    let given = values.clone();
    app.handler_tx().mutate(move |m, _| m.create_with_id("things", "t", given.clone())).execute().await.unwrap();
    let found = find(&app, Find::by_id("things", "t")).await.unwrap();
    for (name, value) in &values.0 {
        let ty = table.type_of(name).unwrap();
        match value {
            // A database may print JSON in another way.
            Value::Json(_) => assert_eq!(to_json(found[0].values.get(name)), to_json(value)),
            _ => assert_eq!(found[0].values.get(name), value, "{name}"),
        }
        assert_eq!(to_json(&from_json(&to_json(value), ty).unwrap()), to_json(value), "{name} as JSON");
    }
    let long = values.set("varchar", "123456");
    let refused = app.handler_tx().mutate(move |m, _| m.create("things", long.clone())).execute().await.unwrap_err();
    assert_eq!(refused.refusal(), Some(Code::InvalidValue));
}

/// I-19: twenty who count up one number at the same time lose none.
pub(crate) async fn versions_are_checked_and_units_of_work_are_tried_again(world: World) {
    let app = world.app().await;
    within("acme", add_user(&app, "u1", user("ada").set("age", 0))).await.unwrap();
    let attempts = Arc::new(AtomicU32::new(0));
    let mut tasks = Vec::new();
    for _ in 0..20 {
        let (app, attempts) = (app.clone(), attempts.clone());
        tasks.push(tokio::spawn(within("acme", async move {
            let tx = app.handler_tx().retrieve(|r| r.find(Find::by_id("users", "u1")).map(|_| ()));
            let tx = tx.mutate(move |m, found| {
                attempts.fetch_add(1, Ordering::Relaxed);
                let row = found.first(0).unwrap();
                let age = row.values.int("age").unwrap();
                m.update_checked("users", &row.id, Values::new().set("age", age + 1))
            });
            tx.retry(Attempts { retries: 100, first_wait_ms: 1, longest_wait_ms: 50 }).execute().await
        })));
    }
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    let found = within("acme", find(&app, Find::by_id("users", "u1"))).await.unwrap();
    assert_eq!((found[0].values.int("age"), found[0].id.version()), (Some(20), 20));
    assert!(attempts.load(Ordering::Relaxed) >= 20);
}

pub(crate) async fn a_row_that_was_made_again_is_another_row(world: World) {
    let app = world.app().await;
    within("acme", async {
        add_user(&app, "u1", user("ada")).await.unwrap();
        let old = find(&app, Find::by_id("users", "u1")).await.unwrap()[0].id.clone();
        app.handler_tx().mutate(|m, _| m.delete("users", "u1")).execute().await.unwrap();
        add_user(&app, "u1", user("another")).await.unwrap();
        let tx = app.handler_tx().mutate(move |m, _| m.update_checked("users", &old, user("changed")));
        assert!(tx.execute().await.unwrap_err().is_conflict());
        assert_eq!(names(&app).await, ["another"]);
    })
    .await;
}

pub(crate) async fn joins_counts_and_orders(world: World) {
    let app = world.app().await;
    within("acme", async {
        let tx = app.handler_tx().mutate(|m, _| {
            for (id, age) in [("a", Some(3)), ("b", None), ("c", Some(1))] {
                m.create_with_id("users", id, user(id).set("age", age))?;
                for n in 0..3 {
                    let post = Values::new().set("authorId", id).set("title", format!("{id}{n}"));
                    m.create_with_id("posts", &format!("{id}{n}"), post)?;
                }
            }
            let comment = Values::new().set("postId", "a1").set("body", "first");
            m.create_with_id("comments", "k1", comment)?;
            let reply = Values::new().set("postId", "a1").set("body", "reply").set("replyTo", "k1");
            m.create_with_id("comments", "k2", reply)
        });
        tx.execute().await.unwrap();
        let posts = Find::of("posts").order_by_index("posts_author", Direction::Desc).page_size(2);
        let comments = Find::of("comments").join_one("parent", ("id", "replyTo"), Find::of("comments"));
        let posts = posts.join_many("comments", ("postId", "id"), comments);
        let posts = posts.join_one("author", ("id", "authorId"), Find::of("users").select(&["name"]));
        let wanted = Find::of("users").where_index("users_age", Condition::All);
        let users = find(&app, wanted.join_many("posts", ("authorId", "id"), posts)).await.unwrap();
        let ids: Vec<&str> = users.iter().map(|user| user.id.external.as_str()).collect();
        assert_eq!(ids, ["b", "c", "a"], "null is first");
        let a = &users[2];
        let titles: Vec<&str> = a.many("posts").iter().map(|post| post.values.text("title").unwrap()).collect();
        assert_eq!(titles, ["a2", "a1"]);
        let a1 = &a.many("posts")[1];
        assert_eq!(a1.one("author").unwrap().values.0.len(), 1, "one column was asked for");
        assert_eq!(a1.many("comments").len(), 2);
        assert_eq!(a1.many("comments")[1].one("parent").unwrap().values.text("body"), Some("first"));
        assert!(a1.many("comments")[0].one("parent").is_none());
        let count = app.handler_tx().retrieve(|r| {
            r.count(Find::of("posts").where_index("posts_author", eq("authorId", "a")))?;
            r.count(Find::of("users").where_index("users_age", is_null("age")))?;
            r.count(Find::of("users").where_index("users_age", compares("age", Op::Ne, 3)))?;
            r.count(Find::of("users").where_index("users_age", is_in("age", [1, 3]).negate()))?;
            r.count(Find::of("users").where_index("primary", is_in("id", ["a", "zz"]))).map(|_| ())
        });
        let counts = count.mutate(|_, f| Ok((0..5).map(|n| f.count(n)).collect::<Vec<_>>())).execute().await.unwrap();
        assert_eq!(counts, [3, 1, 1, 0, 1]);
    })
    .await;
}

/// A cursor of any index, nullable ones too, in both directions, sees every row once.
pub(crate) async fn cursors_go_through_any_index_and_name_no_shard(world: World) {
    let app = world.app().await;
    within("acme-secret", async {
        let tx = app.handler_tx().mutate(|m, _| {
            for n in 0..23 {
                let age = (n % 4 != 0).then_some(n % 3);
                m.create_with_id("users", &format!("u{n:02}"), user(&format!("n{}", n % 2)).set("age", age))?;
            }
            Ok(())
        });
        tx.execute().await.unwrap();
        for (index, direction) in [
            ("users_age", Direction::Asc),
            ("users_age", Direction::Desc),
            ("users_name", Direction::Desc),
            ("primary", Direction::Asc),
        ] {
            let base = Find::of("users").order_by_index(index, direction);
            let all: Vec<String> =
                find(&app, base.clone()).await.unwrap().into_iter().map(|row| row.id.external).collect();
            assert_eq!(all.len(), 23);
            let (mut paged, mut cursor) = (Vec::new(), None::<String>);
            loop {
                let mut page = base.clone().page_size(4);
                if let Some(cursor) = &cursor {
                    page = page.after(cursor);
                }
                let tx = app.handler_tx().retrieve(move |r| r.find(page.clone()).map(|_| ()));
                let page = tx.mutate(|_, found| Ok(found.page(0))).execute().await.unwrap();
                paged.extend(page.rows.into_iter().map(|row| row.id.external));
                let Some(next) = page.next else { break };
                use base64::Engine as _;
                let plain = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(&next).unwrap();
                assert!(!String::from_utf8(plain).unwrap().contains("secret"));
                cursor = Some(next);
            }
            assert_eq!(paged, all, "{index} {direction:?}");
            let other = Find::of("users").page_size(4).after(cursor.as_ref().unwrap());
            if index != "primary" {
                assert_eq!(find(&app, other).await.unwrap_err().refusal(), Some(Code::InvalidCursor));
            }
        }
    })
    .await;
}

/// `%`, `_` and `\` of a user's input are characters.
pub(crate) async fn parts_of_texts_are_taken_as_they_are(world: World) {
    let app = world.app().await;
    within("acme", async {
        for (id, name) in
            [("a", "50% off"), ("b", "50 off"), ("c", "a_b"), ("d", "axb"), ("e", "back\\slash"), ("f", "ÄB")]
        {
            add_user(&app, id, user(name)).await.unwrap();
        }
        for (how, text, expected) in [
            (Match::Contains, "0%", vec!["a"]),
            (Match::Contains, "a_b", vec!["c"]),
            (Match::StartsWith, "50", vec!["a", "b"]),
            (Match::StartsWith, "Ä", vec!["f"]),
            (Match::EndsWith, "_b", vec!["c"]),
            (Match::EndsWith, "\\slash", vec!["e"]),
            (Match::EndsWith, "much longer than any of them", vec![]),
        ] {
            let wanted = Find::of("users").where_index("users_name", matches("name", how, text));
            let mut found: Vec<String> =
                find(&app, wanted).await.unwrap().into_iter().map(|row| row.id.external).collect();
            found.sort();
            assert_eq!(found, expected, "{how:?} {text}");
        }
    })
    .await;
}

pub(crate) async fn checks_hold_at_the_commit(world: World) {
    let app = world.app().await;
    within("acme", async {
        add_user(&app, "u1", user("ada").set("email", "a@x")).await.unwrap();
        let seen = find(&app, Find::by_id("users", "u1")).await.unwrap()[0].id.clone();
        app.handler_tx().mutate(|m, _| m.update("users", "u1", Values::new().set("age", 1))).execute().await.unwrap();
        let tx = app.handler_tx().mutate(move |m, _| {
            m.check("users", &seen)?;
            m.create_with_id("users", "u2", user("bob"))
        });
        assert!(tx.execute().await.unwrap_err().is_conflict());
        let absent = |email: &'static str| {
            app.handler_tx().mutate(move |m, _| {
                m.check_absent("users", "users_email", &[("email", Value::text(email))])?;
                m.create("users", user("new"))
            })
        };
        assert!(absent("a@x").execute().await.unwrap_err().is_conflict());
        absent("b@x").execute().await.unwrap();
        assert_eq!(names(&app).await.len(), 2);
        let wrong =
            app.handler_tx().mutate(|m, _| m.check_absent("users", "users_name", &[("name", Value::text("x"))]));
        assert_eq!(wrong.execute().await.unwrap_err().refusal(), Some(Code::InvalidQuery));
    })
    .await;
}

/// Those who write to a new shard at the same moment all make its clock, and none is in another's way.
pub(crate) async fn first_writers_of_a_shard_do_not_collide(world: World) {
    let app = world.app().await;
    for round in 0..20 {
        let shard = format!("new{round}");
        let write = |id: &'static str| {
            let (app, shard) = (app.clone(), shard.clone());
            tokio::spawn(async move { within(&shard, add_user(&app, id, user("ada"))).await })
        };
        for written in futures::future::join_all(["a", "b", "c", "d", "e", "f"].map(write)).await {
            written.unwrap().unwrap();
        }
        assert_eq!(within(&shard, find(&app, Find::of("users"))).await.unwrap().len(), 6);
    }
}

/// I-19: two who each check the other's row and write their own: never both (write skew).
pub(crate) async fn checks_hold_under_concurrency(world: World) {
    let app = world.app().await;
    for round in 0..15 {
        let name = format!("t{round}");
        within(&name, async {
            add_user(&app, "a", user("on call")).await.unwrap();
            add_user(&app, "b", user("on call")).await.unwrap();
        })
        .await;
        let leave = |own: &'static str, other: &'static str| {
            let app = app.clone();
            let name = name.clone();
            tokio::spawn(async move {
                within(&name, async {
                    let tx = app.handler_tx().retrieve(move |r| {
                        r.find(Find::by_id("users", own))?;
                        r.find(Find::by_id("users", other)).map(|_| ())
                    });
                    let tx = tx.mutate(move |m, found| {
                        let (own, other) = (found.first(0).unwrap(), found.first(1).unwrap());
                        if other.values.text("name") == Some("on call") {
                            m.check("users", &other.id)?;
                            m.update_checked("users", &own.id, user("off"))?;
                        }
                        Ok(())
                    });
                    tx.execute().await
                })
                .await
            })
        };
        let (a, b) = (leave("a", "b"), leave("b", "a"));
        a.await.unwrap().unwrap();
        b.await.unwrap().unwrap();
        let on_call = within(&name, names(&app)).await.iter().filter(|name| *name == "on call").count();
        assert_eq!(on_call, 1, "round {round}");
    }
}

/// I-19: the same for rows that must not be there.
pub(crate) async fn absent_checks_hold_under_concurrency(world: World) {
    let app = world.app().await;
    for round in 0..15 {
        let name = format!("t{round}");
        let take = |own: &'static str, other: &'static str| {
            let (app, name) = (app.clone(), name.clone());
            tokio::spawn(async move {
                within(&name, async {
                    let tx = app.handler_tx().mutate(move |m, _| {
                        m.check_absent("users", "primary", &[("id", Value::text(other))])?;
                        m.create_with_id("users", own, user("me"))
                    });
                    tx.execute().await
                })
                .await
            })
        };
        let (a, b) = (take("a", "b"), take("b", "a"));
        let done = [a.await.unwrap().is_ok(), b.await.unwrap().is_ok()];
        assert_eq!(done.iter().filter(|done| **done).count(), 1, "round {round}");
        assert_eq!(within(&name, names(&app)).await.len(), 1);
    }
}

/// I-19: histories of units of work that read two rows, check the one and append to the other are strictly
/// serializable, and so are those that only read.
pub(crate) async fn checked_histories_are_serializable(world: World) {
    const KEYS: u64 = 3;
    const CLIENTS: u64 = 4;
    const UNITS: u64 = 12;
    let (app, clock) = (world.app().await, Arc::new(AtomicU64::new(0)));
    within("acme", async {
        for key in 0..KEYS {
            let tx = app.handler_tx().mutate(move |m, _| m.create_with_id("users", &format!("k{key}"), user("")));
            tx.execute().await.unwrap();
        }
    })
    .await;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|process| {
            let (app, clock) = (app.clone(), clock.clone());
            tokio::spawn(within("acme", async move {
                let (mut rng, mut txns) = (Rng::new(process), Vec::new());
                for at in 0..UNITS {
                    let (read, write) = (rng.below(KEYS), rng.below(KEYS));
                    let element = (read != write).then_some(process * UNITS + at + 1);
                    let invoked_at = clock.fetch_add(1, Ordering::SeqCst);
                    let seen = append(&app, read, write, element).await;
                    let completed_at = Some(clock.fetch_add(1, Ordering::SeqCst));
                    let mut ops = Vec::new();
                    for (key, elements) in seen.iter().flatten() {
                        ops.push(Operation::Read { key: Key(*key), elements: Some(elements.clone()) });
                    }
                    ops.extend(element.map(|element| Operation::Append { key: Key(write), element: Element(element) }));
                    let outcome = if seen.is_ok() { Outcome::Committed } else { Outcome::Aborted };
                    txns.push(Txn { process, invoked_at, completed_at, ops, outcome });
                }
                txns
            }))
        })
        .collect();
    let mut history = History::default();
    for client in clients {
        history.txns.extend(client.await.unwrap());
    }
    let rows = within("acme", find(&app, Find::of("users"))).await.unwrap();
    let key = |row: &Found| Key(row.id.external[1..].parse().unwrap());
    history.final_state = Some(rows.iter().map(|row| (key(row), elements(row))).collect());
    let committed = history.txns.iter().filter(|txn| txn.outcome == Outcome::Committed).count();
    assert!(committed as u64 > CLIENTS * UNITS / 2, "{committed} were committed");
    isles_sim::check::check(&history, Level::StrictSerializable).unwrap_or_else(|failure| panic!("{failure}"));
}

fn elements(row: &Found) -> Vec<Element> {
    let text = row.values.text("name").unwrap();
    text.split_whitespace().map(|element| Element(element.parse().unwrap())).collect()
}

/// Reads two lists, and appends to the second if the first is as it was read.
async fn append(app: &Handle, read: u64, write: u64, element: Option<u64>) -> Result<Vec<(u64, Vec<Element>)>, Error> {
    let tx = app.handler_tx().retrieve(move |r| {
        r.find(Find::by_id("users", &format!("k{read}")))?;
        r.find(Find::by_id("users", &format!("k{write}"))).map(|_| ())
    });
    let tx = tx.mutate(move |m, found| {
        let (first, second) = (found.first(0).unwrap(), found.first(1).unwrap());
        if let Some(element) = element {
            m.check("users", &first.id)?;
            let name = format!("{} {element}", second.values.text("name").unwrap());
            m.update_checked("users", &second.id, user(name.trim()))?;
        }
        Ok(vec![(read, elements(first)), (write, elements(second))])
    });
    tx.execute().await
}

pub(crate) async fn services_run_in_one_transaction_with_their_handler(world: World) {
    let app = world.app().await;
    let touch = |id: &'static str| -> Plan<i64> {
        app.service_tx().retrieve(move |r| r.find(Find::by_id("users", id)).map(|_| ())).mutate(move |m, found| {
            let age = found.first(0).and_then(|row| row.values.int("age")).unwrap_or(0);
            m.update("users", id, Values::new().set("age", age + 1))?;
            Ok(age + 1)
        })
    };
    within("acme", async {
        add_user(&app, "a", user("ada").set("age", 5)).await.unwrap();
        add_user(&app, "b", user("bob").set("age", 7)).await.unwrap();
        let tx = app.handler_tx().retrieve(|r| r.count(Find::of("users")).map(|_| ()));
        let tx = tx.mutate(|_, found| Ok(found.count(0)));
        let ((count, a), b) = tx.with_service(touch("a")).with_service(touch("b")).execute().await.unwrap();
        assert_eq!((count, a, b), (2, 6, 8));
        let page = app.store().outbox(&Default::default()).await.unwrap();
        assert_eq!(page.entries.last().unwrap().mutations.len(), 2, "one entry for both");
        let failing = app.service_tx().mutate(|_, _| -> Result<(), Error> { Err(Error::broken(Rule::Check)) });
        let tx = app.handler_tx().with_service(touch("a")).with_service(failing);
        assert!(tx.execute().await.is_err());
        assert_eq!(find(&app, Find::by_id("users", "a")).await.unwrap()[0].values.int("age"), Some(6));
    })
    .await;
}

pub(crate) async fn what_fails_leaves_nothing(world: World) {
    let app = world.app().await;
    within("acme", async {
        add_user(&app, "a", user("ada").set("email", "a@x")).await.unwrap();
        let tx = app.handler_tx().mutate(|m, _| {
            m.create_with_id("users", "b", user("bob"))?;
            m.create_with_id("users", "c", user("eve").set("email", "a@x"))
        });
        let error = tx.execute().await.unwrap_err();
        assert!(matches!(error, Error::Constraint { rule: Rule::Unique, .. }), "{error:?}");
        let tx = app
            .handler_tx()
            .mutate(|m, _| m.create_with_id("posts", "p", Values::new().set("authorId", "a").set("title", "t")));
        tx.execute().await.unwrap();
        let error = app.handler_tx().mutate(|m, _| m.delete("users", "a")).execute().await.unwrap_err();
        assert!(matches!(error, Error::Constraint { rule: Rule::Reference, .. }), "{error:?}");
        assert_eq!(names(&app).await, ["ada"]);
        // The connection is good for others.
        add_user(&app, "d", user("dan")).await.unwrap();
    })
    .await;
}

pub(crate) async fn bad_input_has_codes(world: World) {
    let app = world.app().await;
    let code = |values: Values, table: &'static str| {
        let app = app.clone();
        async move {
            let tx = app.handler_tx().mutate(move |m, _| m.create(table, values.clone()));
            tx.execute().await.unwrap_err().refusal()
        }
    };
    within("acme", async {
        assert_eq!(code(user("x"), "nothing").await, Some(Code::UnknownTable));
        assert_eq!(code(user("x").set("nope", 1), "users").await, Some(Code::UnknownColumn));
        assert_eq!(code(user(&"x".repeat(192)), "users").await, Some(Code::InvalidValue));
        assert_eq!(code(user("x").set("age", "old"), "users").await, Some(Code::InvalidValue));
        assert_eq!(code(user("x").set("age", i64::MAX), "users").await, Some(Code::InvalidValue));
        assert_eq!(code(Values::new(), "users").await, Some(Code::InvalidValue), "a name is needed");
        assert_eq!(code(user("a\0b"), "users").await, Some(Code::InvalidValue));
        let refused = async |wanted: Find| find(&app, wanted).await.unwrap_err().refusal();
        assert_eq!(refused(Find::of("users").where_index("nope", Condition::All)).await, Some(Code::UnknownIndex));
        let unindexed = Find::of("users").where_index("users_name", eq("age", 1));
        assert_eq!(refused(unindexed).await, Some(Code::InvalidQuery));
        assert_eq!(refused(Find::of("users").page_size(0)).await, Some(Code::InvalidQuery));
        assert_eq!(refused(Find::of("users").page_size(2).after("!")).await, Some(Code::InvalidCursor));
        let many = Find::of("users").where_index("primary", is_in("id", (0..501).map(|n| n.to_string())));
        assert_eq!(refused(many).await, Some(Code::InvalidQuery));
        let long = "x".repeat(129);
        let tx = app.handler_tx().mutate(move |m, _| m.create_with_id("users", &long, user("x")));
        assert_eq!(tx.execute().await.unwrap_err().refusal(), Some(Code::InvalidValue));
        assert!(names(&app).await.is_empty());
    })
    .await;
}

pub(crate) async fn retries_are_for_what_reads(world: World) {
    let (app, _) = world.app_with(Some(Strategy::Row), fragment()).await;
    within("acme", async {
        let tx = app.handler_tx().mutate(|m, _| m.create("users", user("x"))).retry(Attempts::default());
        assert_eq!(tx.execute().await.unwrap_err().refusal(), Some(Code::RetryPolicy));
        add_user(&app, "u", user("x")).await.unwrap();
        let tries = Arc::new(AtomicU32::new(0));
        let counted = tries.clone();
        let tx = app.handler_tx().retrieve(|r| r.find(Find::by_id("users", "u")).map(|_| ()));
        let old = find(&app, Find::by_id("users", "u")).await.unwrap()[0].id.clone();
        app.handler_tx().mutate(|m, _| m.update("users", "u", user("y"))).execute().await.unwrap();
        let tx = tx.mutate(move |m, _| {
            counted.fetch_add(1, Ordering::Relaxed);
            m.check("users", &old)?;
            m.create("users", user("never"))
        });
        let error =
            tx.retry(Attempts { retries: 2, first_wait_ms: 1, longest_wait_ms: 1 }).execute().await.unwrap_err();
        assert!(error.is_conflict());
        assert_eq!(tries.load(Ordering::Relaxed), 3, "the first one and two more");
    })
    .await;
}

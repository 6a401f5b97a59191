//! Shards are kept apart: by the context, by keys, by the strategy.

use crate::world::{Kind, World, add_user, find, fragment, names, schema, shard, user, within};
use isles_fragments::adapter::memory::Memory;
use isles_fragments::adapter::{Mode, Select};
use isles_fragments::context::{Scope, ShardContext, ShardState};
use isles_fragments::error::{Code, Rule};
use isles_fragments::query::{Direction, Find};
use isles_fragments::schema::{ColumnType, Schema, column};
use isles_fragments::shard::{Shard, Strategy};
use isles_fragments::store::{Handle, Store};
use isles_fragments::values::Values;
use isles_fragments::{Error, Value};
use isles_kernel::sync::{Cursor, OutboxQuery};
use isles_sim::rng::Rng;
use std::sync::Arc;
use std::time::Duration;

/// I-42: every kind of operation, and every entry point, without a shard.
pub(crate) async fn without_a_shard_nothing_is_read_or_written(world: World) {
    let app = world.app().await;
    let unset = |error: Error| assert_eq!(error.refusal(), Some(Code::ShardUnset), "{error}");
    unset(find(&app, Find::of("users")).await.unwrap_err());
    unset(app.handler_tx().retrieve(|r| r.count(Find::of("users")).map(|_| ())).execute().await.unwrap_err());
    unset(add_user(&app, "u", user("x")).await.unwrap_err());
    unset(app.handler_tx().mutate(|m, _| m.update("users", "u", user("y"))).execute().await.unwrap_err());
    unset(app.handler_tx().mutate(|m, _| m.delete("users", "u")).execute().await.unwrap_err());
    unset(app.store().outbox(&OutboxQuery::default()).await.unwrap_err());
    unset(app.store().snapshot(&Default::default()).await.unwrap_err());
    let absent = app.handler_tx().mutate(|m, _| m.check_absent("users", "primary", &[("id", Value::text("u"))]));
    unset(absent.execute().await.unwrap_err());
    let of_a = within("a", async {
        add_user(&app, "of-a", user("ada")).await.unwrap();
        find(&app, Find::by_id("users", "of-a")).await.unwrap()[0].id.clone()
    });
    let of_a = of_a.await;
    unset(app.handler_tx().mutate(move |m, _| m.check("users", &of_a)).execute().await.unwrap_err());
    let partition = app.store().partition(&shard("a")).unwrap();
    let (request_id, commands) = (isles_kernel::sync::RequestId(uuid::Uuid::new_v4()), Vec::new());
    let request = isles_kernel::sync::SubmitRequest { request_id, partition, cursor: Cursor::START, commands };
    unset(app.store().submit(&request).await.unwrap_err());
    // A task of its own has no context of its maker.
    let spawned = within("acme", async {
        let app = app.clone();
        tokio::spawn(async move { names_or_error(&app).await }).await.unwrap()
    });
    unset(spawned.await.unwrap_err());
    unset(ShardContext.fresh(|| names_or_error(&app)).await.unwrap_err());
    // The shard without a name is one, when it is chosen.
    ShardContext.with(Shard::None, || add_user(&app, "u", user("x"))).await.unwrap();
}

async fn names_or_error(app: &Handle) -> Result<usize, Error> {
    find(app, Find::of("users")).await.map(|rows| rows.len())
}

/// I-41: finds, counts, updates, deletes, checks, outbox.
pub(crate) async fn shards_do_not_see_each_other(world: World) {
    let app = world.app().await;
    within("a", add_user(&app, "u", user("ada"))).await.unwrap();
    let of_a = within("a", find(&app, Find::by_id("users", "u"))).await.unwrap()[0].id.clone();
    for other in [shard("b"), Shard::None] {
        ShardContext
            .with(other, async || {
                assert!(names(&app).await.is_empty());
                app.handler_tx().mutate(|m, _| m.update("users", "u", user("stolen"))).execute().await.unwrap();
                app.handler_tx().mutate(|m, _| m.delete("users", "u")).execute().await.unwrap();
                for (n, of_a) in [of_a.clone(), of_a.clone(), of_a.clone()].into_iter().enumerate() {
                    let tx = app.handler_tx().mutate(move |m, _| match n {
                        0 => m.update_checked("users", &of_a, user("stolen")),
                        1 => m.delete_checked("users", &of_a),
                        _ => {
                            m.check("users", &of_a)?;
                            m.create("users", user("x")).map(|_| ())
                        }
                    });
                    assert!(tx.execute().await.unwrap_err().is_conflict());
                }
                assert!(names(&app).await.is_empty());
                assert!(app.store().outbox(&OutboxQuery::default()).await.unwrap().entries.is_empty());
            })
            .await;
    }
    assert_eq!(within("a", names(&app)).await, ["ada"]);
    assert_eq!(within("a", find(&app, Find::by_id("users", "u"))).await.unwrap()[0].id, of_a);
}

/// I-41: four levels of joins, one and many, with pages, over the same ids in three shards.
pub(crate) async fn deep_joins_stay_in_the_shard(world: World) {
    let app = world.app().await;
    let shards = [shard("a"), shard("b"), Shard::None];
    for (n, own) in shards.iter().enumerate() {
        let tx = async {
            let tx = app.handler_tx().mutate(move |m, _| {
                m.create_with_id("users", "u", user(&format!("user of {n}")))?;
                for id in ["p", "q"] {
                    let post = Values::new().set("authorId", "u").set("title", format!("{id} of {n}"));
                    m.create_with_id("posts", id, post)?;
                }
                let comment = Values::new().set("postId", "p").set("body", format!("comment of {n}"));
                m.create_with_id("comments", "k", comment)
            });
            tx.execute().await
        };
        ShardContext.with(own.clone(), || tx).await.unwrap();
    }
    for (n, own) in shards.iter().enumerate() {
        let author = Find::of("users");
        let post = Find::of("posts").join_one("author", ("id", "authorId"), author);
        let comments = Find::of("comments").page_size(5).join_one("post", ("id", "postId"), post);
        let posts = Find::of("posts").page_size(5).join_many("comments", ("postId", "id"), comments);
        let wanted = Find::of("users").join_many("posts", ("authorId", "id"), posts);
        let users = ShardContext.with(own.clone(), || find(&app, wanted)).await.unwrap();
        assert_eq!(users.len(), 1);
        assert_eq!(users[0].many("posts").len(), 2);
        let shown = format!("{users:?}");
        assert_eq!(shown.matches(&format!("of {n}")).count(), 6, "{shown}");
        assert_eq!(shown.matches(" of ").count(), 6, "nothing of others: {shown}");
    }
}

/// In create, update, filter, select, join, order, absence check and declaration; and nothing is applied or published.
pub(crate) async fn explicit_shards_are_refused(world: World) {
    let app = world.app().await;
    within("a", async {
        add_user(&app, "u", user("ada")).await.unwrap();
        for hidden in ["_shard", "_shardKey", "_tenant", "_version", "_internalId"] {
            let values = user("x").set(hidden, "b");
            let tx = app.handler_tx().mutate(move |m, _| m.create("users", values.clone()));
            assert_eq!(tx.execute().await.unwrap_err().refusal(), Some(Code::HiddenColumn), "{hidden}");
            let set = Values::new().set(hidden, "b");
            let tx = app.handler_tx().mutate(move |m, _| m.update("users", "u", set.clone()));
            assert_eq!(tx.execute().await.unwrap_err().refusal(), Some(Code::HiddenColumn), "{hidden}");
            let condition = isles_fragments::condition::eq(hidden, "b");
            let filtered = find(&app, Find::of("users").where_index("users_name", condition)).await;
            assert_eq!(filtered.unwrap_err().refusal(), Some(Code::HiddenColumn));
            let selected = find(&app, Find::of("users").select(&[hidden])).await;
            assert_eq!(selected.unwrap_err().refusal(), Some(Code::HiddenColumn));
            for on in [(hidden, "id"), ("id", hidden)] {
                let joined = find(&app, Find::of("users").join_many("posts", on, Find::of("posts"))).await;
                assert_eq!(joined.unwrap_err().refusal(), Some(Code::HiddenColumn), "{on:?}");
            }
            let ordered = find(&app, Find::of("users").order_by_index(hidden, Direction::Asc)).await;
            assert_eq!(ordered.unwrap_err().refusal(), Some(Code::UnknownIndex));
            let key = [("id", Value::text("v")), (hidden, Value::text("b"))];
            let tx = app.handler_tx().mutate(move |m, _| m.check_absent("users", "primary", &key));
            assert_eq!(tx.execute().await.unwrap_err().refusal(), Some(Code::InvalidQuery));
            let declared = Schema::build("x").table("t", |t| t.column(column(hidden, ColumnType::String))).finish();
            assert_eq!(declared.unwrap_err().refusal(), Some(Code::SchemaInvalid), "{hidden}");
        }
        let page = app.store().outbox(&OutboxQuery::default()).await.unwrap();
        assert_eq!(page.entries.len(), 1, "nothing but the first row");
        let found = find(&app, Find::of("users")).await.unwrap();
        assert!(found[0].values.0.keys().all(|name| !name.starts_with('_')));
    })
    .await;
    assert!(within("b", names(&app)).await.is_empty());
}

/// I-40: by id, in create and in update: the same error, word for word.
pub(crate) async fn references_to_another_shard_are_like_absent_ones(world: World) {
    let app = world.app().await;
    within("a", add_user(&app, "only-a", user("ada"))).await.unwrap();
    within("b", async {
        add_user(&app, "mine", user("bob")).await.unwrap();
        let refer = |author: &'static str| {
            let tx = app.handler_tx().mutate(move |m, _| {
                m.create_with_id("posts", "p", Values::new().set("authorId", author).set("title", "t"))
            });
            tx.execute()
        };
        let (theirs, nobodys) = (refer("only-a").await.unwrap_err(), refer("nobody").await.unwrap_err());
        assert!(matches!(theirs, Error::Constraint { rule: Rule::Reference, .. }), "{theirs:?}");
        assert_eq!(theirs.to_string(), nobodys.to_string());
        refer("mine").await.unwrap();
        let tx = app.handler_tx().mutate(|m, _| m.update("posts", "p", Values::new().set("authorId", "only-a")));
        let error = tx.execute().await.unwrap_err();
        assert!(matches!(error, Error::Constraint { rule: Rule::Reference, .. }), "{error:?}");
    })
    .await;
    // And whoever is referred to by nobody of its own can go.
    within("a", app_delete(&app, "only-a")).await.unwrap();
}

async fn app_delete(app: &Handle, id: &'static str) -> Result<(), Error> {
    app.handler_tx().mutate(move |m, _| m.delete("users", id)).execute().await
}

/// I-40, I-41: ids and unique values are free for everybody, once for each.
pub(crate) async fn unique_keys_are_of_a_shard_also_of_the_one_without_a_name(world: World) {
    let app = world.app().await;
    for own in [shard("a"), shard("A"), shard("a "), Shard::None] {
        ShardContext
            .with(own, async || {
                add_user(&app, "u", user("x").set("email", "e@x")).await.unwrap();
                for (id, email) in [("u", "other@x"), ("v", "e@x")] {
                    let error = add_user(&app, id, user("x").set("email", email)).await.unwrap_err();
                    assert!(matches!(error, Error::Constraint { rule: Rule::Unique, .. }), "{error:?}");
                }
                // Null is not equal to null.
                add_user(&app, "v", user("x")).await.unwrap();
                add_user(&app, "w", user("x")).await.unwrap();
                let tx = app.handler_tx().mutate(|m, _| m.update("users", "v", Values::new().set("email", "e@x")));
                assert!(matches!(tx.execute().await, Err(Error::Constraint { rule: Rule::Unique, .. })));
                assert_eq!(names(&app).await.len(), 3);
            })
            .await;
    }
}

/// A request that works in two shards at the same time, within one task.
pub(crate) async fn concurrent_scopes_never_mix(world: World) {
    let app = world.app().await;
    let work = |name: &'static str| {
        let app = app.clone();
        within(name, async move {
            for n in 0..5 {
                tokio::task::yield_now().await;
                assert_eq!(ShardContext.get(), ShardState::Set(shard(name)));
                let tx = app.handler_tx().mutate(move |m, _| m.create("users", user(&format!("{name}{n}"))));
                tokio::task::yield_now().await;
                tx.execute().await.unwrap();
            }
        })
    };
    within("outer", async {
        tokio::join!(work("a"), work("b"), work("c"));
        assert_eq!(ShardContext.get(), ShardState::Set(shard("outer")));
        assert!(names(&app).await.is_empty());
    })
    .await;
    for name in ["a", "b", "c"] {
        let names = within(name, names(&app)).await;
        assert_eq!(names.len(), 5);
        assert!(names.iter().all(|own| own.starts_with(name)), "{names:?}");
    }
}

/// Made in one shard and executed in another: rows, entry and hooks are of the first.
pub(crate) async fn the_shard_is_captured_when_the_unit_of_work_is_made(world: World) {
    let app = world.app().await;
    let tx = within("b", async { app.handler_tx().mutate(|m, _| m.create_with_id("users", "u", user("of b"))) }).await;
    within("a", tx.execute()).await.unwrap();
    assert!(within("a", names(&app)).await.is_empty());
    assert_eq!(within("b", names(&app)).await, ["of b"]);
    let entries = async |name| within(name, app.store().outbox(&OutboxQuery::default())).await.unwrap().entries.len();
    assert_eq!((entries("a").await, entries("b").await), (0, 1));
}

pub(crate) async fn a_shard_is_set_once(world: World) {
    let app = world.app().await;
    assert_eq!(ShardContext.set(shard("a")).unwrap_err().refusal(), Some(Code::ShardUnset), "there is no request");
    ShardContext
        .fresh(async || {
            assert_eq!(ShardContext.get(), ShardState::Unset);
            ShardContext.set(shard("a")).unwrap();
            ShardContext.set(shard("a")).unwrap();
            assert_eq!(ShardContext.set(shard("b")).unwrap_err().refusal(), Some(Code::ShardMixed));
            assert_eq!(ShardContext.set(Shard::None).unwrap_err().refusal(), Some(Code::ShardMixed));
            within("b", async { assert_eq!(ShardContext.get(), ShardState::Set(shard("b"))) }).await;
            assert_eq!(ShardContext.get(), ShardState::Set(shard("a")));
            assert_eq!(ShardContext.get_scope(), Scope::Scoped);
            add_user(&app, "u", user("x")).await.unwrap();
        })
        .await;
    assert_eq!(within("a", names(&app)).await, ["x"]);
}

pub(crate) async fn names_of_shards_have_limits(world: World) {
    let app = world.app().await;
    for bad in ["", &"x".repeat(65), "a\nb", "a\0"] {
        let error = Shard::named(bad).unwrap_err();
        assert_eq!((error.refusal(), error.http().0), (Some(Code::ShardInvalid), 400), "{bad:?}");
    }
    // What looks like SQL, a sentinel, a key or a setting is a name.
    let long = "ü".repeat(64);
    let odd = ["'; DROP TABLE users_app; --", "*", "=sa", "null", long.as_str(), "s", "%", "\"x\""];
    for name in odd {
        within(name, add_user(&app, "u", user(name))).await.unwrap();
    }
    for name in odd {
        assert_eq!(within(name, names(&app)).await, [name]);
    }
}

pub(crate) async fn the_global_scope_reads_all_and_writes_none(world: World) {
    let (app, global) = world.app_with(Some(Strategy::Row), fragment()).await;
    for name in ["a", "b"] {
        within(name, add_user(&app, "u", user(name))).await.unwrap();
    }
    ShardContext
        .with_global(&global, async || {
            assert_eq!(ShardContext.get_scope(), Scope::Global);
            match world.kind {
                // A whole Isles database has no statement over all tenants.
                Kind::Isles => {
                    assert_eq!(find(&app, Find::of("users")).await.unwrap_err().refusal(), Some(Code::GlobalScope));
                }
                _ => assert_eq!(names(&app).await.len(), 2),
            }
            let error = add_user(&app, "v", user("x")).await.unwrap_err();
            assert_eq!(error.refusal(), Some(Code::GlobalScope));
            let outbox = app.store().outbox(&OutboxQuery::default()).await.unwrap_err();
            assert_eq!(outbox.refusal(), Some(Code::GlobalScope));
            // A shard that is named is a scope again.
            within("a", add_user(&app, "v", user("x"))).await.unwrap();
        })
        .await;
    assert_eq!(within("a", names(&app)).await.len(), 2);
}

pub(crate) async fn direct_access_is_refused_with_a_strategy(world: World) {
    let (app, _) = world.app_with(None, fragment()).await;
    add_user(&app, "u", user("x")).await.unwrap();
    let direct = app.db().unwrap();
    let users = app.schema().table("users").unwrap().clone();
    let (condition, order) = (all(), vec![("id".into(), Direction::Asc)]);
    let mut tx = direct.begin(Mode::Read).await.unwrap();
    assert_eq!(tx.select(&Select { table: users, condition, order, after: None, limit: 10 }).await.unwrap().len(), 1);
    tx.commit().await.unwrap();
    app.store().use_strategy(Strategy::Row).await.unwrap();
    let Err(error) = app.db() else { panic!("a way around the shard") };
    assert_eq!(error.refusal(), Some(Code::DirectAccess));
    let Err(error) = direct.begin(Mode::Read).await else { panic!("one that was kept is a way around the shard") };
    assert_eq!(error.refusal(), Some(Code::DirectAccess));
}

/// What is made within a scope is of its shard, also where a sentence makes and runs it.
pub(crate) async fn a_unit_of_work_that_is_made_in_a_scope_is_of_it(world: World) {
    let app = world.app().await;
    let add = || app.handler_tx().mutate(|m, _| m.create("users", user("of a"))).execute();
    within("b", async { ShardContext.with(shard("a"), add).await.unwrap() }).await;
    assert_eq!(within("a", names(&app)).await, ["of a"]);
    assert!(within("b", names(&app)).await.is_empty());
}

/// A database that becomes one shard has a log of its own then: what was before is another one, and is not mixed with it.
pub(crate) async fn what_was_before_a_database_became_one_shard_is_apart(world: World) {
    use isles_fragments::hooks::{Hook, Processed, Processor};
    let fragment = fragment().hook(
        "write",
        Hook::new(|context, _| async move {
            let tx = context.handle.handler_tx().mutate(|m, _| m.create("users", user("by a hook")).map(|_| ()));
            tx.execute().await.map_err(|error| error.to_string())
        }),
    );
    let (app, global) = world.app_with(None, fragment).await;
    for id in ["u", "v", "w"] {
        add_user(&app, id, user("before")).await.unwrap();
    }
    app.handler_tx().mutate(|m, _| m.trigger("write", &serde_json::json!({}))).execute().await.unwrap();
    app.store().use_strategy(Strategy::Adapter { identifier: "object-1".into() }).await.unwrap();
    within("a", async {
        let mut cursor = Cursor::START;
        for (n, id) in ["x", "y", "z"].into_iter().enumerate() {
            add_user(&app, id, user("after")).await.unwrap();
            let query = OutboxQuery { after: Some(cursor), ..OutboxQuery::default() };
            let page = app.store().outbox(&query).await.unwrap();
            page.check(cursor).unwrap();
            assert_eq!((page.entries.len(), page.next.version().get()), (1, n as u64 + 1));
            cursor = page.next;
        }
    })
    .await;
    // A hook of that time runs in the shard that the database is now.
    let done = Processor::global(&app, &global).drain().await.unwrap();
    assert_eq!(done, Processed { completed: 1, ..Processed::default() });
    assert!(within("a", names(&app)).await.contains(&"by a hook".to_string()));
    // Nobody else's name leads into it.
    let not_bound = |error: Error| assert_eq!(error.refusal(), Some(Code::ShardNotBound));
    not_bound(app.store().trim(&shard("b"), 0).await.unwrap_err());
    let processor = Processor::of_shard(&app, shard("b"));
    not_bound(processor.drain().await.unwrap_err());
    not_bound(processor.dead(&shard("b"), 1).await.unwrap_err());
    not_bound(processor.revive(&shard("b"), "x").await.unwrap_err());
    not_bound(processor.next_wake_ms(&shard("b")).await.unwrap_err());
    assert_eq!(app.store().trim(&shard("a"), 1).await.unwrap(), 3, "three of its own, and one of the hook");
}

pub(crate) async fn the_first_strategy_stays(world: World) {
    let one = || Strategy::Adapter { identifier: "one".into() };
    let code = |opened: Result<(Store, isles_fragments::context::GlobalScope), Error>| match opened {
        Ok(_) => None,
        Err(error) => error.refusal(),
    };
    let (store, _) = Store::open(world.adapter.clone(), None).await.unwrap();
    let app = store.register(fragment(), Some(Strategy::Row)).await.unwrap();
    assert_eq!(app.store().strategy(), Some(Strategy::Row));
    // A fragment without one has the store's; another one is an error.
    store.register(fragment(), None).await.unwrap();
    assert_eq!(store.strategy(), Some(Strategy::Row));
    let Err(error) = store.register(fragment(), Some(one())).await else { panic!("two strategies") };
    assert_eq!(error.refusal(), Some(Code::StrategyMismatch));
    // So is another process.
    assert_eq!(code(Store::open(world.adapter.clone(), Some(one())).await), Some(Code::StrategyMismatch));
    assert_eq!(code(Store::open(world.adapter.clone(), None).await), Some(Code::StrategyMismatch));
    assert_eq!(code(Store::open(world.adapter.clone(), Some(Strategy::Row)).await), None);
}

pub(crate) async fn a_database_of_one_shard_is_bound_to_it(world: World) {
    let strategy = Strategy::Adapter { identifier: "object-1".into() };
    let (app, _) = world.app_with(Some(strategy.clone()), fragment()).await;
    assert_eq!(find(&app, Find::of("users")).await.unwrap_err().refusal(), Some(Code::ShardUnset));
    let none = ShardContext.with(Shard::None, || add_user(&app, "u", user("x"))).await;
    assert_eq!(none.unwrap_err().refusal(), Some(Code::ShardUnset), "rows must be traceable");
    within("a", add_user(&app, "u", user("ada"))).await.unwrap();
    assert_eq!(within("a", names(&app)).await, ["ada"]);
    assert_eq!(within("a", app.store().outbox(&OutboxQuery::default())).await.unwrap().entries.len(), 1);
    let other = within("b", find(&app, Find::of("users"))).await.unwrap_err();
    assert_eq!(other.refusal(), Some(Code::ShardNotBound));
    assert_eq!(within("b", add_user(&app, "v", user("x"))).await.unwrap_err().refusal(), Some(Code::ShardNotBound));
    let (again, _) = world.app_with(Some(strategy), fragment()).await;
    assert_eq!(within("b", find(&again, Find::of("users"))).await.unwrap_err().refusal(), Some(Code::ShardNotBound));
    assert_eq!(within("a", names(&again)).await, ["ada"]);
}

pub(crate) async fn without_a_strategy_there_is_one_shard(world: World) {
    let (app, _) = world.app_with(None, fragment()).await;
    add_user(&app, "u", user("ada")).await.unwrap();
    assert_eq!(within("a", names(&app)).await, ["ada"]);
    assert_eq!(ShardContext.with(Shard::None, || names(&app)).await, ["ada"]);
    assert_eq!(app.store().outbox(&OutboxQuery::default()).await.unwrap().entries.len(), 1);
}

/// I-41: any history in three shards of one database is that of three databases of their own, answer by answer: rows,
/// errors, versions, outbox. Of these one has no strategy, one is one shard, and one has one shard of many.
pub(crate) async fn random_histories_are_those_of_separate_databases(world: World) {
    let app = world.app().await;
    let shards = ["a", "b", "c"];
    let mut alone = Vec::new();
    let adapter = Strategy::Adapter { identifier: "b".into() };
    for strategy in [None, Some(adapter), Some(Strategy::Row)] {
        let (store, _) = Store::open(Arc::new(Memory::new()), strategy).await.unwrap();
        alone.push(store.register(fragment(), None).await.unwrap());
    }
    let mut rng = Rng::new(7);
    let mut refused = 0;
    for step in 0..150 {
        let (n, op) = (rng.below(3) as usize, rng.below(8));
        let (id, other) = (format!("u{}", rng.below(4)), format!("u{}", rng.below(4)));
        let shared = within(shards[n], act(&app, op, &id, &other, step)).await;
        let single = within(shards[n], act(&alone[n], op, &id, &other, step)).await;
        assert_eq!(shared, single, "step {step}, operation {op} in {n}");
        refused += usize::from(shared.starts_with("error"));
    }
    assert!((10..140).contains(&refused), "{refused} were refused");
    for (n, name) in shards.iter().enumerate() {
        let shared = within(name, app.store().outbox(&OutboxQuery::default())).await.unwrap();
        let single = within(name, alone[n].store().outbox(&OutboxQuery::default())).await.unwrap();
        let told = |page: &isles_kernel::sync::OutboxPage| -> Vec<_> {
            page.entries.iter().map(|entry| (entry.version, entry.mutations.clone())).collect()
        };
        assert_eq!(told(&shared), told(&single));
        assert!(!shared.entries.is_empty());
    }
}

async fn act(app: &Handle, op: u64, id: &str, other: &str, step: i64) -> String {
    let (id, other) = (id.to_string(), other.to_string());
    let tx = app.handler_tx();
    let done = match op {
        0 | 1 => {
            let email = format!("{other}@x");
            tx.mutate(move |m, _| m.create_with_id("users", &id, user("x").set("email", email.clone()))).execute().await
        }
        2 => tx.mutate(move |m, _| m.update("users", &id, Values::new().set("age", step))).execute().await,
        3 => tx.mutate(move |m, _| m.delete("users", &id)).execute().await,
        4 => {
            let post = Values::new().set("authorId", other).set("title", "t");
            tx.mutate(move |m, _| m.create_with_id("posts", &id, post.clone())).execute().await
        }
        5 => tx.mutate(move |m, _| m.delete("posts", &id)).execute().await,
        6 => {
            let tx = tx.retrieve(|r| r.find(Find::of("users").where_index("users_age", all())).map(|_| ()));
            let tx = tx.mutate(move |m, found| match found.rows(0).last() {
                Some(row) => m.update_checked("users", &row.id, Values::new().set("age", step)),
                None => Ok(()),
            });
            tx.execute().await
        }
        _ => {
            tx.mutate(move |m, _| m.check_absent("users", "primary", &[("id", Value::text(id.as_str()))]))
                .execute()
                .await
        }
    };
    let rows = find(app, Find::of("users").join_many("posts", ("authorId", "id"), Find::of("posts"))).await;
    let rows = rows.unwrap();
    let shown: Vec<String> = rows
        .iter()
        .map(|row| format!("{} {} {:?} {}", row.id.external, row.id.version(), row.values, row.many("posts").len()))
        .collect();
    match done {
        Ok(()) => format!("{shown:?}"),
        Err(error) => format!("error {} {error} {shown:?}", error.sqlstate()),
    }
}

fn all() -> isles_fragments::condition::Condition {
    isles_fragments::condition::Condition::All
}

/// I-44: on PostgreSQL the second fence holds when statements do not name their shard.
#[tokio::test(flavor = "multi_thread")]
async fn row_level_security_holds_without_the_predicate() {
    use isles_fragments::adapter::Adapter;
    use isles_fragments::adapter::postgres::Postgres;
    let world = World::postgres().await;
    let app = world.app().await;
    within("a", add_user(&app, "u", user("ada"))).await.unwrap();
    world.sql("DROP ROLE IF EXISTS fragment_app; CREATE ROLE fragment_app LOGIN; GRANT ALL ON ALL TABLES IN SCHEMA public TO fragment_app").await;
    let url = world.url.as_ref().unwrap().replace("postgres@", "fragment_app@");
    let planted = isles_fragments::adapter::Planted::NoShardPredicate;
    let careless: Arc<dyn Adapter> = Arc::new(Postgres::planted(&url, Some(planted)).unwrap());
    let (store, _) = Store::open(careless, Some(Strategy::Row)).await.unwrap();
    let careless = store.register(fragment(), None).await.unwrap();
    assert!(within("b", names(&careless)).await.is_empty());
    let tx = within("b", async { careless.handler_tx().mutate(|m, _| m.delete("users", "u")) }).await;
    tx.execute().await.unwrap();
    let tx = within("b", async { careless.handler_tx().mutate(|m, _| m.update("users", "u", user("x"))) }).await;
    tx.execute().await.unwrap();
    assert_eq!(within("a", names(&careless)).await, ["ada"], "and it works for the owner");
    world.sql("DROP OWNED BY fragment_app; DROP ROLE fragment_app").await;
}

/// I-44: on SQLite, too, a row of another shard is not believed.
#[tokio::test(flavor = "multi_thread")]
async fn rows_of_others_are_not_believed() {
    let world = World::sqlite().await;
    let app = world.app().await;
    within("a", add_user(&app, "u", user("ada"))).await.unwrap();
    let planted = isles_fragments::adapter::Planted::NoShardPredicate;
    let path = world.folder.path().join("fragments.db");
    let careless = isles_fragments::adapter::sqlite::Sqlite::open_planted(path, Some(planted)).unwrap();
    let (store, _) = Store::open(Arc::new(careless), Some(Strategy::Row)).await.unwrap();
    let careless = store.register(fragment(), None).await.unwrap();
    let error = within("b", find(&careless, Find::of("users"))).await.unwrap_err();
    assert_eq!(error.refusal(), Some(Code::ShardMixed));
}

/// Every index and key of a table of shards is led by the shard, so that what one tenant reads costs what it has, and no
/// key of one can meet another's.
#[tokio::test(flavor = "multi_thread")]
async fn every_index_is_led_by_the_shard() {
    let world = World::postgres().await;
    world.app().await;
    let url = world.url.as_ref().unwrap();
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let sql = "SELECT t.relname, i.relname, a.attname FROM pg_index x JOIN pg_class t ON t.oid = x.indrelid \
               JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum = x.indkey[0] \
               WHERE t.relnamespace = 'public'::regnamespace AND t.relname <> 'isles_settings'";
    let rows = client.query(sql, &[]).await.unwrap();
    assert!(rows.len() > 10, "there are indexes");
    for row in rows {
        let (table, index, first): (&str, &str, &str) = (row.get(0), row.get(1), row.get(2));
        // Maintenance finds shards by it, and no tenant reads it.
        if index == "idx_isles_hooks_hooks_due_anywhere" {
            assert_eq!(first, "namespace");
            continue;
        }
        assert_eq!(first, "_shardKey", "{table}: {index}");
    }
}

/// I-46: writers of different shards do not wait for each other: one that holds its shard's turn delays no other.
#[tokio::test(flavor = "multi_thread")]
async fn writers_of_different_shards_do_not_wait() {
    use isles_fragments::adapter::{Access, Mode, Tick};
    let world = World::postgres().await;
    let (app, global) = world.app_with(Some(Strategy::Row), fragment()).await;
    let mut held = world.adapter.begin(&Access::of_shard(&global, shard("a")), Mode::Write).await.unwrap();
    held.tick(Tick::Hold).await.unwrap();
    within("b", add_user(&app, "u", user("bob"))).await.unwrap();
    let waiting = {
        let app = app.clone();
        tokio::spawn(within("a", async move { add_user(&app, "u", user("ada")).await }))
    };
    for _ in 0..20 {
        let tx = within("b", async { app.handler_tx().mutate(|m, _| m.create("users", user("x"))) }).await;
        tx.execute().await.unwrap();
    }
    assert!(!waiting.is_finished(), "a's writer waits for its turn");
    held.commit().await.unwrap();
    tokio::time::timeout(Duration::from_secs(20), waiting).await.unwrap().unwrap().unwrap();
    assert_eq!(schema().version(), 3);
}

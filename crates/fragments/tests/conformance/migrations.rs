//! Tables made and changed.

use crate::world::{Kind, World, add_user, find, fragment, names, schema, shard, user, within};
use isles_fragments::adapter::Assign;
use isles_fragments::context::ShardContext;
use isles_fragments::error::{Code, Rule};
use isles_fragments::migrate::{migrate, migrate_some, plan};
use isles_fragments::query::Find;
use isles_fragments::schema::{ColumnType, Schema, SchemaBuilder, column};
use isles_fragments::shard::{Shard, Strategy};
use isles_fragments::store::{Fragment, Handle, Store};
use isles_fragments::values::Values;
use isles_fragments::{Error, Value};
use isles_kernel::sync::{Cursor, OutboxQuery, SnapshotQuery};

fn first() -> SchemaBuilder {
    Schema::build("grow")
        .table("teams", |t| t.column(column("name", ColumnType::String)).unique("teams_name", &["name"]))
        .table("people", |t| t.reference("team", "teams").column(column("name", ColumnType::String)))
}

fn second() -> SchemaBuilder {
    first()
        .alter("people", |t| {
            t.column(column("level", ColumnType::Integer).default_to(Value::Int(1)))
                .column(column("note", ColumnType::String).nullable())
                .nullable_reference("boss", "people")
                .index("people_level", &["level"])
        })
        .no_op("data was changed by hand")
        .table("rooms", |t| t.nullable_reference("team", "teams"))
}

async fn fill(world: &World) {
    let (app, _) = world.app_with(Some(Strategy::Row), Fragment::new(first().finish().unwrap()).outbox()).await;
    for own in [shard("a"), Shard::None] {
        let tx = async {
            let tx = app.handler_tx().mutate(|m, _| {
                m.create_with_id("teams", "t", Values::new().set("name", "team"))?;
                m.create_with_id("people", "p", Values::new().set("team", "t").set("name", "ada"))
            });
            tx.execute().await
        };
        ShardContext.with(own, || tx).await.unwrap();
    }
}

async fn check_grown(world: &World) {
    let (app, _) = world.app_with(Some(Strategy::Row), Fragment::new(second().finish().unwrap()).outbox()).await;
    for own in [shard("a"), Shard::None] {
        ShardContext
            .with(own, async || {
                let people =
                    find(&app, Find::of("people").join_one("team", ("id", "team"), Find::of("teams"))).await.unwrap();
                assert_eq!(people.len(), 1);
                assert_eq!((people[0].values.int("level"), people[0].values.get("note")), (Some(1), &Value::Null));
                assert_eq!(people[0].one("team").unwrap().values.text("name"), Some("team"));
                let hire = |boss: &'static str| {
                    let values = Values::new().set("team", "t").set("name", "bob").set("boss", boss);
                    app.handler_tx().mutate(move |m, _| m.create("people", values.clone())).execute()
                };
                hire("p").await.unwrap();
                let error = hire("nobody").await.unwrap_err();
                assert!(matches!(error, Error::Constraint { rule: Rule::Reference, .. }), "{error:?}");
                let by_level = isles_fragments::condition::eq("level", 1);
                assert_eq!(
                    find(&app, Find::of("people").where_index("people_level", by_level)).await.unwrap().len(),
                    2
                );
                let again = app.handler_tx().mutate(|m, _| m.create("teams", Values::new().set("name", "team")));
                assert!(again.execute().await.is_err(), "the name is still unique");
            })
            .await;
    }
}

pub(crate) async fn a_schema_grows_with_its_rows(world: World) {
    fill(&world).await;
    check_grown(&world).await;
    let error = Schema::build("x")
        .table("t", |t| t)
        .alter("t", |t| t.column(column("c", ColumnType::String)))
        .finish()
        .unwrap_err();
    assert_eq!(error.refusal(), Some(Code::SchemaInvalid), "rows would have no value");
}

/// I-13: from both ends: each step may be the last one of its process.
pub(crate) async fn an_interrupted_migration_goes_on_at_any_step(world: World) {
    fill(&world).await;
    let wanted = second().finish().unwrap();
    let mut interruptions = 0;
    while !migrate_some(&*world.adapter, &wanted, 1).await.unwrap() {
        interruptions += 1;
        assert!(interruptions < 50);
    }
    assert!(interruptions >= 2, "{interruptions}");
    check_grown(&world).await;
}

/// I-34: rows that a new schema, or a wider outbox, changes beside the log: whoever has the old ones begins anew.
pub(crate) async fn clients_begin_anew_when_what_they_may_see_grows(world: World) {
    fill(&world).await;
    let open = async |schema: SchemaBuilder, tables: Option<&[&str]>| {
        let fragment = Fragment::new(schema.finish().unwrap());
        let fragment = match tables {
            Some(tables) => fragment.outbox_of(tables),
            None => fragment.outbox(),
        };
        world.app_with(Some(Strategy::Row), fragment).await.0
    };
    let snapshot = async |app: &Handle| within("a", app.store().snapshot(&SnapshotQuery::default())).await.unwrap();
    let outbox = async |app: &Handle, after: Cursor| {
        let query = OutboxQuery { after: Some(after), ..OutboxQuery::default() };
        within("a", app.store().outbox(&query)).await
    };
    // The same again changes nothing.
    let app = open(first(), None).await;
    let old = snapshot(&app).await.cursor;
    assert_eq!(outbox(&app, old).await.unwrap().floor.get(), 0);
    // A column with a default is in rows that nobody has written.
    let app = open(second(), Some(&["people", "teams"])).await;
    assert_eq!(outbox(&app, old).await.unwrap_err().refusal(), Some(Code::ResyncRequired));
    let page = snapshot(&app).await;
    let person = page.rows.iter().find(|row| row.key.table == "people").unwrap();
    assert_eq!(person.values.get("level"), Some(&serde_json::json!(1)));
    let grown = page.cursor;
    assert!(outbox(&app, grown).await.unwrap().entries.is_empty(), "whoever has read them goes on");
    let app = open(second(), Some(&["people", "teams"])).await;
    assert!(outbox(&app, grown).await.is_ok(), "once");
    // Rows that are published no more go, and those that are published now come.
    let app = open(second(), Some(&["people"])).await;
    assert_eq!(outbox(&app, grown).await.unwrap_err().refusal(), Some(Code::ResyncRequired));
    let page = snapshot(&app).await;
    assert!(page.rows.iter().all(|row| row.key.table == "people"));
    let app = open(second(), Some(&["people", "teams"])).await;
    assert_eq!(outbox(&app, page.cursor).await.unwrap_err().refusal(), Some(Code::ResyncRequired));
    assert_eq!(snapshot(&app).await.rows.len(), 2);
    // A shard without such rows has nothing to read anew.
    assert!(within("b", app.store().outbox(&OutboxQuery::default())).await.is_ok());
}

/// Each step once, whoever comes when: rows that are written as soon as the column is there keep what they have in it.
pub(crate) async fn two_who_migrate_at_once_do_each_step_once(world: World) {
    fill(&world).await;
    let wanted = || second().finish().unwrap();
    let migrators = (0..4).map(|n| {
        let world = &world;
        async move {
            let (store, _) = Store::open(world.adapter.clone(), Some(Strategy::Row)).await.unwrap();
            let app = store.register(Fragment::new(wanted()).outbox(), None).await.unwrap();
            let values = Values::new().set("team", "t").set("name", "bob").set("boss", "p").set("level", 7);
            let id = format!("of-{n}");
            let tx = within("a", async {
                app.handler_tx().mutate(move |m, _| m.create_with_id("people", &id, values.clone()))
            });
            tx.await.execute().await.unwrap();
        }
    });
    futures::future::join_all(migrators).await;
    let (app, _) = world.app_with(Some(Strategy::Row), Fragment::new(wanted()).outbox()).await;
    let people = within("a", find(&app, Find::of("people"))).await.unwrap();
    assert_eq!(people.len(), 5);
    for person in people.iter().filter(|person| person.id.external.starts_with("of-")) {
        assert_eq!((person.values.text("boss"), person.values.int("level")), (Some("p"), Some(7)));
    }
}

pub(crate) async fn a_plan_changes_nothing_and_prints_sql(world: World) {
    let wanted = schema();
    let planned = plan(&*world.adapter, &wanted).await.unwrap();
    assert_eq!((planned.from, planned.to), (0, 3));
    assert!(planned.sql().contains("users_app"), "{}", planned.sql());
    assert_eq!(plan(&*world.adapter, &wanted).await.unwrap().from, 0, "nothing was done");
    migrate(&*world.adapter, &wanted).await.unwrap();
    let planned = plan(&*world.adapter, &wanted).await.unwrap();
    assert_eq!((planned.from, planned.steps.len()), (3, 0));
}

pub(crate) async fn a_database_ahead_of_the_code_is_refused(world: World) {
    migrate(&*world.adapter, &second().finish().unwrap()).await.unwrap();
    let error = migrate(&*world.adapter, &first().finish().unwrap()).await.unwrap_err();
    assert_eq!(error.refusal(), Some(Code::SchemaIsOlder));
    let (store, _) = Store::open(world.adapter.clone(), None).await.unwrap();
    let Err(error) = store.register(Fragment::new(first().finish().unwrap()), None).await else { panic!("older") };
    assert_eq!(error.refusal(), Some(Code::SchemaIsOlder));
}

/// Tables as they were before there were shards, with rows, a reference and keys of their own.
async fn legacy(world: &World) {
    match world.kind {
        Kind::Memory => {
            fill_without_strategy(world).await;
            return;
        }
        Kind::Sqlite => {
            world
                .sql(
                    "CREATE TABLE teams_grow (_internalId INTEGER NOT NULL, _version INTEGER NOT NULL DEFAULT 0, \
                     id TEXT NOT NULL UNIQUE, name TEXT NOT NULL); CREATE UNIQUE INDEX old_name ON teams_grow (name); \
                     CREATE TABLE people_grow (_internalId INTEGER NOT NULL, _version INTEGER NOT NULL DEFAULT 0, \
                     id TEXT NOT NULL UNIQUE, team TEXT NOT NULL REFERENCES teams_grow (id), name TEXT NOT NULL);",
                )
                .await;
        }
        Kind::Postgres => {
            world
                .sql(
                    "CREATE TABLE teams_grow (\"_internalId\" bigserial UNIQUE, \"_version\" bigint NOT NULL DEFAULT 0, \
                     id text COLLATE \"C\" NOT NULL UNIQUE, name text NOT NULL); CREATE UNIQUE INDEX old_name ON teams_grow (name); \
                     CREATE TABLE people_grow (\"_internalId\" bigserial UNIQUE, \"_version\" bigint NOT NULL DEFAULT 0, \
                     id text COLLATE \"C\" NOT NULL UNIQUE, team text COLLATE \"C\" NOT NULL REFERENCES teams_grow (id), name text NOT NULL)",
                )
                .await;
        }
        Kind::Isles => {
            world
                .sql(
                    "CREATE TABLE teams_grow (\"_internalId\" bigint NOT NULL, \"_version\" bigint NOT NULL DEFAULT 0, \
                     id text PRIMARY KEY, name text NOT NULL); \
                     CREATE TABLE people_grow (\"_internalId\" bigint NOT NULL, \"_version\" bigint NOT NULL DEFAULT 0, \
                     id text PRIMARY KEY, team text NOT NULL, name text NOT NULL)",
                )
                .await;
        }
    }
    world
        .sql(
            "INSERT INTO teams_grow (\"_internalId\", id, name) VALUES (1, 't', 'team'); \
             INSERT INTO people_grow (\"_internalId\", id, team, name) VALUES (1, 'p', 't', 'ada')",
        )
        .await;
    // What a program of that time has noted.
    Store::open(world.adapter.clone(), None).await.unwrap();
    let note = "INSERT INTO isles_settings (\"_internalId\", \"_version\", id, value) VALUES (0, 0, 'schema_version.grow', '2')";
    world.sql(note).await;
}

async fn fill_without_strategy(world: &World) {
    let (app, _) = world.app_with(None, Fragment::new(first().finish().unwrap())).await;
    let tx = app.handler_tx().mutate(|m, _| {
        m.create_with_id("teams", "t", Values::new().set("name", "team"))?;
        m.create_with_id("people", "p", Values::new().set("team", "t").set("name", "ada"))
    });
    tx.execute().await.unwrap();
}

/// The order of the upgrade: shards first, then indexes that name them; and every step may be the last of its process.
pub(crate) async fn tables_without_shards_get_them_first_at_any_interruption(world: World) {
    legacy(&world).await;
    let wanted = second().finish().unwrap();
    let planned = plan(&*world.adapter, &wanted).await.unwrap();
    assert!(!planned.steps.is_empty());
    let mut interruptions = 0;
    while !migrate_some(&*world.adapter, &wanted, 1).await.unwrap() {
        interruptions += 1;
        assert!(interruptions < 80);
    }
    assert!(interruptions >= 2);
    let (app, _) = world.app_with(Some(Strategy::Row), Fragment::new(wanted).outbox()).await;
    let people = ShardContext.with(Shard::None, || find(&app, Find::of("people"))).await.unwrap();
    assert_eq!((people.len(), people[0].values.int("level")), (1, Some(1)), "rows are in the shard without a name");
    within("a", async {
        let team = |id: &'static str| {
            app.handler_tx()
                .mutate(move |m, _| m.create_with_id("teams", id, Values::new().set("name", "team")))
                .execute()
        };
        team("t").await.unwrap();
        assert!(team("t2").await.is_err(), "unique within the shard");
        let join = |id: &'static str| {
            let values = Values::new().set("team", id).set("name", "x");
            app.handler_tx().mutate(move |m, _| m.create("people", values.clone())).execute()
        };
        join("t").await.unwrap();
        let error = join("nobody").await.unwrap_err();
        assert!(matches!(error, Error::Constraint { rule: Rule::Reference, .. }), "{error:?}");
    })
    .await;
}

/// An operator gives old rows their shards, and clients of those begin anew.
pub(crate) async fn rows_without_a_shard_get_theirs(world: World) {
    let (app, global) = world.app_with(None, fragment()).await;
    for (id, owner) in [("u1", "a"), ("u2", "b"), ("u3", "a")] {
        add_user(&app, id, user(owner)).await.unwrap();
        let post = Values::new().set("authorId", id).set("title", "t");
        app.handler_tx().mutate(move |m, _| m.create_with_id("posts", id, post.clone())).execute().await.unwrap();
    }
    app.store().use_strategy(Strategy::Row).await.unwrap();
    assert!(within("a", names(&app)).await.is_empty(), "they are nobody's");
    let (users, posts) = (app.schema().table("users").unwrap().clone(), app.schema().table("posts").unwrap().clone());
    // References go with their rows, so one table alone is refused, and nothing changes.
    let alone = app.store().assign(&global, std::slice::from_ref(&posts), &Assign::To(shard("a"))).await;
    assert!(alone.is_err());
    let count = app.store().assign(&global, &[users.clone(), posts.clone()], &Assign::To(shard("c"))).await.unwrap();
    assert_eq!(count, 6);
    assert_eq!(within("c", names(&app)).await.len(), 3);
    assert!(ShardContext.with(Shard::None, || names(&app)).await.is_empty());
    let outbox = within("c", app.store().outbox(&OutboxQuery::default())).await;
    assert_eq!(outbox.unwrap_err().refusal(), Some(Code::ResyncRequired));
    let snapshot = within("c", app.store().snapshot(&Default::default())).await.unwrap();
    assert_eq!(snapshot.rows.len(), 6);
    // By a column.
    for (id, owner) in [("v1", "d"), ("v2", "e")] {
        ShardContext.with(Shard::None, || add_user(&app, id, user(owner))).await.unwrap();
    }
    assert_eq!(app.store().assign(&global, &[users], &Assign::Column("name".into())).await.unwrap(), 2);
    assert_eq!(within("d", names(&app)).await, ["d"]);
    assert_eq!(within("e", names(&app)).await, ["e"]);
}

pub(crate) async fn two_schemas_with_one_name_collide(world: World) {
    let (store, _) = Store::open(world.adapter.clone(), None).await.unwrap();
    store.register(fragment(), None).await.unwrap();
    let other = || Schema::build("app").table("other", |t| t);
    let Err(error) = store.register(Fragment::new(other().finish().unwrap()), None).await else {
        panic!("a collision")
    };
    assert_eq!(error.refusal(), Some(Code::SchemaCollision));
    let renamed = other().namespace(Some("app2")).finish().unwrap();
    store.register(Fragment::new(renamed), None).await.unwrap();
    for (bad, name) in [("1x", "t"), ("x", "_t"), ("x", "a b"), ("x", "t\"")] {
        let wrong = Schema::build(bad).table(name, |t| t).finish().unwrap_err();
        assert_eq!(wrong.refusal(), Some(Code::SchemaInvalid));
    }
    let hidden = Schema::build("x").table("t", |t| t.column(column("_shard", ColumnType::String))).finish();
    assert_eq!(hidden.unwrap_err().refusal(), Some(Code::SchemaInvalid));
}

//! Commands of clients.

use crate::outbox::all;
use crate::world::{World, add_user, find, fragment, killed_after, names, shard, user, within};
use isles_fragments::Error;
use isles_fragments::condition::eq;
use isles_fragments::error::{Code, refused};
use isles_fragments::query::Find;
use isles_fragments::shard::Strategy;
use isles_fragments::store::{Fragment, Handle};
use isles_fragments::uow::Plan;
use isles_fragments::values::Values;
use isles_kernel::sync::{
    Command, ConflictCode, Cursor, Predicate, RequestId, RowKey, Scope, Status, SubmitRequest, SubmitResponse,
};
use serde_json::{Value as Json, json};
use uuid::Uuid;

fn text(input: &Json, name: &str) -> Result<String, Error> {
    let found = input.get(name).and_then(Json::as_str).map(String::from);
    found.ok_or_else(|| refused(Code::InvalidRequest, format!("{name} is missing")))
}

/// The fragment of the tests with commands.
pub(crate) fn commands() -> Fragment {
    fragment()
        .command("add", |input| {
            let (id, name) = (text(input, "id")?, text(input, "name")?);
            Ok(Plan::new().mutate(move |m, _| m.create_with_id("users", &id, user(&name))))
        })
        .command("rename", |input| {
            let (id, name) = (text(input, "id")?, text(input, "name")?);
            Ok(Plan::new().mutate(move |m, _| m.update("users", &id, user(&name))))
        })
        .command("count_up", |input| {
            let id = text(input, "id")?;
            let wanted = id.clone();
            let plan = Plan::new().retrieve(move |r| r.find(Find::by_id("users", &wanted)).map(|_| ()));
            Ok(plan.mutate(move |m, found| {
                let Some(row) = found.first(0) else { return Err(refused(Code::NotFound, "there is no such user")) };
                let age = row.values.int("age").unwrap_or(0);
                m.update_checked("users", &row.id, Values::new().set("age", age + 1))
            }))
        })
        .command("nothing", |_| Ok(Plan::new()))
}

async fn app(world: &World) -> Handle {
    world.app_with(Some(Strategy::Row), commands()).await.0
}

fn command(name: &str, input: Json) -> Command {
    Command { schema: "app".into(), name: name.into(), input, reads: Vec::new(), scopes: Vec::new() }
}

fn add(id: &str) -> Command {
    command("add", json!({ "id": id, "name": "x" }))
}

fn request(app: &Handle, name: &str, cursor: Cursor, commands: Vec<Command>) -> SubmitRequest {
    let partition = app.store().partition(&shard(name)).unwrap();
    SubmitRequest { request_id: RequestId(Uuid::new_v4()), partition, cursor, commands }
}

fn codes(answer: &SubmitResponse) -> Vec<ConflictCode> {
    answer.conflicts.iter().map(|conflict| conflict.code).collect()
}

/// I-3: applied once, and the same answer for every copy.
pub(crate) async fn a_request_has_one_effect_and_one_answer(world: World) {
    let app = app(&world).await;
    within("a", async {
        let wanted = request(&app, "a", Cursor::START, vec![add("u"), command("count_up", json!({ "id": "u" }))]);
        let first = app.store().submit(&wanted).await.unwrap();
        assert_eq!((first.status, first.duplicate), (Status::Applied, false));
        assert_eq!(first.page.entries.len(), 1);
        assert_eq!(first.page.entries[0].request_id, Some(wanted.request_id));
        assert_eq!(first.entry, first.page.entries[0].cursor());
        for _ in 0..3 {
            let again = app.store().submit(&wanted).await.unwrap();
            assert_eq!((again.status, again.duplicate, again.entry), (Status::Applied, true, first.entry));
        }
        assert_eq!(find(&app, Find::by_id("users", "u")).await.unwrap()[0].values.int("age"), Some(1));
        assert_eq!(all(&app).await.entries.len(), 1);
        let idle = request(&app, "a", Cursor::START, vec![command("nothing", Json::Null)]);
        let answer = app.store().submit(&idle).await.unwrap();
        assert_eq!((answer.status, answer.entry), (Status::Applied, None), "it changed nothing");
        // A conflict is on record as well.
        let late = request(&app, "a", Cursor::START, vec![command("rename", json!({ "id": "u", "name": "y" }))]);
        for duplicate in [false, true] {
            let answer = app.store().submit(&late).await.unwrap();
            assert_eq!((answer.status, answer.duplicate), (Status::Conflict, duplicate));
        }
    })
    .await;
}

/// I-3: sent eight times at once.
pub(crate) async fn copies_at_the_same_time_have_one_effect(world: World) {
    let app = app(&world).await;
    within("a", add_user(&app, "u", user("x").set("age", 0))).await.unwrap();
    let cursor = within("a", all(&app)).await.next;
    let wanted = request(&app, "a", cursor, vec![command("count_up", json!({ "id": "u" }))]);
    let mut tasks = Vec::new();
    for _ in 0..8 {
        let (app, wanted) = (app.clone(), wanted.clone());
        tasks.push(tokio::spawn(within("a", async move { app.store().submit(&wanted).await })));
    }
    let mut firsts = 0;
    for task in tasks {
        let answer = task.await.unwrap().unwrap();
        assert_eq!(answer.status, Status::Applied);
        firsts += usize::from(!answer.duplicate);
    }
    assert_eq!(firsts, 1);
    assert_eq!(within("a", find(&app, Find::by_id("users", "u"))).await.unwrap()[0].values.int("age"), Some(1));
}

/// I-3, I-32: the server dies at any point, and the client sends the same again.
pub(crate) async fn a_killed_request_is_done_once_when_it_comes_again(world: World) {
    let app = app(&world).await;
    within("a", async {
        add_user(&app, "u", user("x").set("age", 0)).await.unwrap();
        for polls in 1..40 {
            let cursor = all(&app).await.next;
            let wanted = request(&app, "a", cursor, vec![command("count_up", json!({ "id": "u" }))]);
            let _killed = killed_after(polls, app.store().submit(&wanted)).await;
            let answer = app.store().submit(&wanted).await.unwrap();
            assert_eq!(answer.status, Status::Applied, "{:?}", answer.conflicts);
            let age = find(&app, Find::by_id("users", "u")).await.unwrap()[0].values.int("age");
            assert_eq!(age, Some(polls as i64), "killed after {polls} polls");
        }
    })
    .await;
}

pub(crate) async fn the_same_id_with_another_body_is_refused(world: World) {
    let app = app(&world).await;
    within("a", async {
        let wanted = request(&app, "a", Cursor::START, vec![add("u")]);
        app.store().submit(&wanted).await.unwrap();
        let other = SubmitRequest { commands: vec![add("v")], ..wanted };
        let error = app.store().submit(&other).await.unwrap_err();
        assert_eq!((error.refusal(), error.http().0), (Some(Code::RequestIdReused), 422));
        assert_eq!(names(&app).await.len(), 1);
    })
    .await;
}

pub(crate) async fn the_same_id_in_another_shard_is_another_request(world: World) {
    let app = app(&world).await;
    let of_a = request(&app, "a", Cursor::START, vec![add("u")]);
    let of_b = SubmitRequest { partition: app.store().partition(&shard("b")).unwrap(), ..of_a.clone() };
    assert!(!within("a", app.store().submit(&of_a)).await.unwrap().duplicate);
    let answer = within("b", app.store().submit(&of_b)).await.unwrap();
    assert_eq!((answer.status, answer.duplicate), (Status::Applied, false));
    assert_eq!(within("b", names(&app)).await.len(), 1);
}

pub(crate) async fn written_keys_conflict(world: World) {
    let app = app(&world).await;
    within("a", async {
        add_user(&app, "u", user("x")).await.unwrap();
        let cursor = all(&app).await.next;
        app.handler_tx().mutate(|m, _| m.update("users", "u", user("theirs"))).execute().await.unwrap();
        let commands = vec![add("v"), command("rename", json!({ "id": "u", "name": "mine" }))];
        let answer = app.store().submit(&request(&app, "a", cursor, commands.clone())).await.unwrap();
        assert_eq!(codes(&answer), [ConflictCode::WriteConflict]);
        assert_eq!(answer.conflicts[0].command, 1);
        assert_eq!(answer.conflicts[0].key, Some(RowKey::new("app", "users", "u").unwrap()));
        assert_eq!(answer.page.entries.len(), 1, "what it has missed comes with the answer");
        assert_eq!(names(&app).await, ["theirs"], "nothing of it was applied");
        // From where it has seen that, it goes.
        let answer = app.store().submit(&request(&app, "a", answer.page.next, commands)).await.unwrap();
        assert_eq!(answer.status, Status::Applied);
    })
    .await;
}

pub(crate) async fn read_keys_conflict_also_with_deletes(world: World) {
    let app = app(&world).await;
    within("a", async {
        add_user(&app, "u", user("x")).await.unwrap();
        let cursor = all(&app).await.next;
        let read = Command { reads: vec![RowKey::new("app", "users", "u").unwrap()], ..add("v") };
        app.handler_tx().mutate(|m, _| m.delete("users", "u")).execute().await.unwrap();
        let answer = app.store().submit(&request(&app, "a", cursor, vec![read])).await.unwrap();
        assert_eq!(codes(&answer), [ConflictCode::ReadConflict]);
        assert!(names(&app).await.is_empty());
        let elsewhere = Command { reads: vec![RowKey::new("app", "posts", "u").unwrap()], ..add("v") };
        let answer = app.store().submit(&request(&app, "a", cursor, vec![elsewhere])).await.unwrap();
        assert_eq!(answer.status, Status::Applied);
    })
    .await;
}

/// A row that came into a scope, one that was deleted from it, one that was changed out of it; and none of these.
pub(crate) async fn scopes_conflict_with_what_came_left_or_went(world: World) {
    let app = app(&world).await;
    let scope = |name: &str| Scope {
        schema: "app".into(),
        table: "users".into(),
        predicate: Predicate::Eq("name".into(), json!(name)),
    };
    within("a", async {
        for id in ["u1", "u2"] {
            add_user(&app, id, user("open")).await.unwrap();
        }
        let mut done = 0;
        for (change, expected) in [("create", true), ("delete", true), ("leave", true), ("other", false)] {
            let cursor = all(&app).await.next;
            let tx = app.handler_tx().mutate(move |m, _| match change {
                "create" => m.create_with_id("users", "u3", user("open")),
                "delete" => m.delete("users", "u3"),
                "leave" => m.update("users", "u1", user("closed")),
                _ => m.create_with_id("users", "u9", user("elsewhere")),
            });
            tx.execute().await.unwrap();
            let scoped = Command { scopes: vec![scope("open")], ..add(&format!("v-{change}")) };
            let answer = app.store().submit(&request(&app, "a", cursor, vec![scoped])).await.unwrap();
            assert_eq!(answer.status == Status::Conflict, expected, "{change}");
            if expected {
                assert_eq!(codes(&answer), [ConflictCode::ScopeConflict], "{change}");
                done += 1;
            }
        }
        assert_eq!(done, 3);
        assert_eq!(find(&app, Find::of("users").where_index("users_name", eq("name", "x"))).await.unwrap().len(), 1);
    })
    .await;
}

/// A client has no hidden columns: a request that names one is refused whole, wherever in a scope it does.
pub(crate) async fn scopes_do_not_name_hidden_columns(world: World) {
    let app = app(&world).await;
    let named = |column: &str| Predicate::Eq(column.into(), json!("b"));
    within("a", async {
        for predicate in [
            named("_shard"),
            named("_version"),
            Predicate::Not(Box::new(Predicate::Null("_shard".into()))),
            Predicate::Any(vec![named("name"), Predicate::In("_shardKey".into(), vec![json!("sb")])]),
        ] {
            let scope = Scope { schema: "app".into(), table: "users".into(), predicate };
            let wanted = request(&app, "a", Cursor::START, vec![Command { scopes: vec![scope], ..add("u") }]);
            let error = app.store().submit(&wanted).await.unwrap_err();
            assert_eq!((error.refusal(), error.http().0), (Some(Code::HiddenColumn), 400), "{wanted:?}");
            // Its id is not used up.
            let plain = SubmitRequest { commands: vec![command("nothing", json!({}))], ..wanted };
            assert_eq!(app.store().submit(&plain).await.unwrap().status, Status::Applied);
        }
        assert!(names(&app).await.is_empty());
        assert!(all(&app).await.entries.is_empty());
    })
    .await;
}

pub(crate) async fn conflicts_are_of_the_own_shard(world: World) {
    let app = app(&world).await;
    for name in ["a", "b"] {
        within(name, add_user(&app, "u", user("x"))).await.unwrap();
    }
    let cursor = within("a", all(&app)).await.next;
    for _ in 0..3 {
        let tx = within("b", async { app.handler_tx().mutate(|m, _| m.update("users", "u", user("x"))) }).await;
        tx.execute().await.unwrap();
    }
    let read = Command {
        reads: vec![RowKey::new("app", "users", "u").unwrap()],
        ..command("rename", json!({ "id": "u", "name": "y" }))
    };
    let answer = within("a", app.store().submit(&request(&app, "a", cursor, vec![read]))).await.unwrap();
    assert_eq!(answer.status, Status::Applied);
    assert_eq!(answer.page.entries.len(), 1);
    assert_eq!(within("b", names(&app)).await, ["x"]);
}

pub(crate) async fn a_command_that_fails_undoes_those_before_it(world: World) {
    let app = app(&world).await;
    within("a", async {
        add_user(&app, "u", user("x")).await.unwrap();
        let cursor = all(&app).await.next;
        for (bad, code) in [
            (add("u"), ConflictCode::Constraint),
            (command("count_up", json!({ "id": "nobody" })), ConflictCode::Rejected),
            (command("add", json!({ "id": "w" })), ConflictCode::InvalidInput),
            (command("no such", Json::Null), ConflictCode::UnknownCommand),
        ] {
            let answer = app.store().submit(&request(&app, "a", cursor, vec![add("v"), bad])).await.unwrap();
            assert_eq!((answer.status, codes(&answer)), (Status::Conflict, vec![code]));
            assert_eq!(answer.conflicts[0].command, 1);
            assert_eq!(names(&app).await.len(), 1, "{code:?}");
        }
        let answer = app.store().submit(&request(&app, "a", cursor, vec![add("v")])).await.unwrap();
        assert_eq!(answer.status, Status::Applied);
        assert_eq!(answer.entry.unwrap().version().get(), 2, "conflicts took no version");
    })
    .await;
}

pub(crate) async fn commands_see_what_those_before_them_did(world: World) {
    let app = app(&world).await;
    within("a", async {
        let count = || command("count_up", json!({ "id": "u" }));
        let wanted = request(&app, "a", Cursor::START, vec![add("u"), count(), count(), count()]);
        let answer = app.store().submit(&wanted).await.unwrap();
        assert_eq!(answer.status, Status::Applied, "{:?}", answer.conflicts);
        assert_eq!(find(&app, Find::by_id("users", "u")).await.unwrap()[0].values.int("age"), Some(3));
        assert_eq!(all(&app).await.entries.len(), 1);
    })
    .await;
}

pub(crate) async fn wrong_partitions_and_old_cursors_are_refused(world: World) {
    let app = app(&world).await;
    let of_b = request(&app, "b", Cursor::START, vec![add("u")]);
    let error = within("a", app.store().submit(&of_b)).await.unwrap_err();
    assert_eq!((error.refusal(), error.http().0), (Some(Code::WrongPartition), 409));
    within("a", async {
        for id in ["1", "2", "3"] {
            add_user(&app, id, user("x")).await.unwrap();
        }
        app.store().trim(&shard("a"), 1).await.unwrap();
        let error = app.store().submit(&request(&app, "a", Cursor::START, vec![add("u")])).await.unwrap_err();
        assert_eq!((error.refusal(), error.http().0), (Some(Code::ResyncRequired), 410));
        let empty = request(&app, "a", Cursor::START, Vec::new());
        assert_eq!(app.store().submit(&empty).await.unwrap_err().refusal(), Some(Code::InvalidRequest));
        let many = request(&app, "a", Cursor::START, vec![add("u"); 101]);
        assert_eq!(app.store().submit(&many).await.unwrap_err().refusal(), Some(Code::InvalidRequest));
        assert_eq!(names(&app).await.len(), 3, "nothing was applied");
    })
    .await;
}

pub(crate) async fn entries_of_an_answer_are_capped(world: World) {
    let app = app(&world).await;
    within("a", async {
        let body = "x".repeat(150_000);
        let tx = app.handler_tx().mutate(|m, _| {
            m.create_with_id("users", "u", user("x"))?;
            m.create_with_id("posts", "p", Values::new().set("authorId", "u").set("title", "t"))
        });
        tx.execute().await.unwrap();
        for _ in 0..10 {
            let comment = Values::new().set("postId", "p").set("body", body.as_str());
            app.handler_tx().mutate(move |m, _| m.create("comments", comment.clone())).execute().await.unwrap();
        }
        let answer = app.store().submit(&request(&app, "a", Cursor::START, vec![add("v")])).await.unwrap();
        assert_eq!(answer.status, Status::Applied);
        assert!(answer.page.has_more() && !answer.page.entries.is_empty() && answer.page.entries.len() < 11);
        answer.page.check(Cursor::START).unwrap();
        assert_eq!(all(&app).await.entries.len(), 12, "and the rest can be read");
    })
    .await;
}

/// A scope or a row that no entry ever tells of would never be in conflict: it is refused rather than believed.
pub(crate) async fn reads_of_what_is_not_published_are_refused(world: World) {
    let fragment = commands().outbox_of(&["users"]);
    let (app, _) = world.app_with(Some(Strategy::Row), fragment).await;
    let scope = |schema: &str, table: &str, column: &str| {
        let predicate = Predicate::Eq(column.into(), json!("x"));
        Scope { schema: schema.into(), table: table.into(), predicate }
    };
    within("a", async {
        for (n, scope) in [
            scope("nope", "users", "name"),
            scope("app", "nope", "name"),
            scope("app", "posts", "title"),
            scope("app", "users", "nope"),
        ]
        .into_iter()
        .enumerate()
        {
            let command = Command { scopes: vec![scope], ..add(&format!("u{n}")) };
            let answer = app.store().submit(&request(&app, "a", Cursor::START, vec![command])).await.unwrap();
            assert_eq!((answer.status, codes(&answer)), (Status::Conflict, vec![ConflictCode::InvalidInput]));
        }
        let unread = Command { reads: vec![RowKey::new("app", "posts", "p").unwrap()], ..add("u") };
        let answer = app.store().submit(&request(&app, "a", Cursor::START, vec![unread])).await.unwrap();
        assert_eq!(codes(&answer), [ConflictCode::InvalidInput]);
        assert!(names(&app).await.is_empty());
        let good = Command { scopes: vec![scope("app", "users", "name"), scope("app", "users", "id")], ..add("u") };
        let answer = app.store().submit(&request(&app, "a", Cursor::START, vec![good])).await.unwrap();
        assert_eq!(answer.status, Status::Applied);
    })
    .await;
}

/// A client that has missed more than is compared with what it submits catches up first.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_far_behind_catches_up_first() {
    let world = World::sqlite().await;
    let app = app(&world).await;
    within("a", add_user(&app, "u", user("x"))).await.unwrap();
    let id = "printf('00000000-0000-0000-0000-%012d', n)";
    world
        .sql(&format!(
            "WITH RECURSIVE numbers (n) AS (VALUES (2) UNION ALL SELECT n + 1 FROM numbers WHERE n < 10002) \
             INSERT INTO isles_outbox (_shard, _internalId, _version, id, version, prev, at, mutations, before) \
             SELECT 'a', n, 0, {id}, n, NULL, 0, '[]', '[]' FROM numbers; \
             UPDATE isles_clocks SET version = 10002, last = '00000000-0000-0000-0000-000000010002' WHERE _shard = 'a'"
        ))
        .await;
    within("a", async {
        let first = app.store().outbox(&isles_kernel::sync::OutboxQuery { limit: Some(1), ..Default::default() }).await;
        let cursor = first.unwrap().next;
        let behind = app.store().submit(&request(&app, "a", Cursor::START, vec![add("v")])).await.unwrap_err();
        assert_eq!((behind.refusal(), behind.http()), (Some(Code::ClientFarBehind), (409, "client_far_behind")));
        let nearer = app.store().submit(&request(&app, "a", cursor, vec![add("v")])).await;
        assert_eq!(nearer.unwrap_err().refusal(), Some(Code::ClientFarBehind), "10,001 entries");
        let next = isles_kernel::sync::OutboxQuery { after: Some(cursor), limit: Some(1), ..Default::default() };
        let cursor = app.store().outbox(&next).await.unwrap().next;
        let answer = app.store().submit(&request(&app, "a", cursor, vec![add("v")])).await.unwrap();
        assert_eq!(answer.status, Status::Applied, "10,000 are compared");
    })
    .await;
}

//! What is kept, and for how long.

use crate::outbox::all;
use crate::sync::commands;
use crate::world::{World, add_user, find, killed_after, names, shard, user, within};
use isles_fragments::error::Code;
use isles_fragments::hooks::{Hook, Processor};
use isles_fragments::query::Find;
use isles_fragments::retention::{Cleared, Retention};
use isles_fragments::shard::Strategy;
use isles_fragments::store::Handle;
use isles_kernel::sync::{Command, Cursor, OutboxQuery, RequestId, Status, SubmitRequest};
use serde_json::json;
use uuid::Uuid;

const FOREVER: u64 = u64::MAX / 4;
/// Keeps everything.
const ALL: Retention = Retention {
    entries: FOREVER,
    entries_ms: FOREVER,
    records: FOREVER,
    completed_ms: FOREVER,
    dead_ms: None,
    every_ms: FOREVER,
};

async fn write(app: &Handle, name: &str, count: usize) {
    within(name, async {
        for _ in 0..count {
            app.handler_tx().mutate(|m, _| m.create("users", user("x"))).execute().await.unwrap();
        }
    })
    .await;
}

fn rename(app: &Handle, cursor: Cursor) -> SubmitRequest {
    let input = json!({ "id": "u", "name": "y" });
    let command = Command { schema: "app".into(), name: "rename".into(), input, reads: vec![], scopes: vec![] };
    let partition = app.store().partition(&shard("a")).unwrap();
    SubmitRequest { request_id: RequestId(Uuid::new_v4()), partition, cursor, commands: vec![command] }
}

/// By count and by age, in every shard, and each client that is below is told.
pub(crate) async fn old_entries_go_by_count_and_by_age(world: World) {
    let (app, global) = world.app_with(Some(Strategy::Row), commands()).await;
    write(&app, "a", 6).await;
    write(&app, "b", 2).await;
    let store = app.store();
    assert_eq!(store.clear(&global, &ALL).await.unwrap(), Cleared::default());
    // The entry at the floor stays, for those whose cursor is there.
    let cleared = store.clear(&global, &Retention { entries: 2, ..ALL }).await.unwrap();
    assert_eq!(cleared, Cleared { entries: 3, ..Cleared::default() });
    let below = within("a", store.outbox(&OutboxQuery::default())).await.unwrap_err();
    assert_eq!(below.refusal(), Some(Code::ResyncRequired));
    assert_eq!(within("b", all(&app)).await.entries.len(), 2, "it has no more than that");
    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    let cleared = store.clear(&global, &Retention { entries_ms: 1, ..ALL }).await.unwrap();
    assert_eq!(cleared, Cleared { entries: 2 + 1, ..Cleared::default() });
    assert_eq!(within("a", names(&app)).await.len(), 6, "rows stay");
    write(&app, "a", 1).await;
    let head = within("a", store.snapshot(&Default::default())).await.unwrap().cursor;
    assert_eq!(head.version().get(), 7, "versions go on");
}

/// Completed hooks go after a while; those that wait or were given up stay, until it is said otherwise.
pub(crate) async fn hooks_that_are_done_go(world: World) {
    let fail = Hook::new(|_, _| async { Err("no".into()) }).attempts(1, 1);
    let fragment = commands().hook("work", Hook::new(|_, _| async { Ok(()) })).hook("fail", fail);
    let (app, global) = world.app_with(Some(Strategy::Row), fragment).await;
    for name in ["a", "b"] {
        within(name, async {
            let tx = app.handler_tx().mutate(|m, _| {
                m.trigger("work", &json!({}))?;
                m.trigger("fail", &json!({}))
            });
            tx.execute().await.unwrap();
        })
        .await;
    }
    let options = isles_fragments::hooks::ProcessorOptions { lease_ms: 1, ..Default::default() };
    Processor::global(&app, &global).with_options(options).drain().await.unwrap();
    within("a", async { app.handler_tx().mutate(|m, _| m.trigger("work", &json!({}))).execute().await.unwrap() }).await;
    tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    let store = app.store();
    assert_eq!(store.clear(&global, &ALL).await.unwrap().hooks, 0);
    assert_eq!(store.clear(&global, &Retention { completed_ms: 0, ..ALL }).await.unwrap().hooks, 2);
    let dead = async || Processor::global(&app, &global).dead(&shard("a"), 10).await.unwrap().len();
    assert_eq!(dead().await, 1, "dead letters are kept");
    assert_eq!(Processor::of_shard(&app, shard("a")).drain().await.unwrap().completed, 1, "what waited runs");
    assert_eq!(store.clear(&global, &Retention { dead_ms: Some(0), ..ALL }).await.unwrap().hooks, 2);
    assert_eq!(dead().await, 0);
}

/// I-3: a shard of nothing but conflicts is trimmed, too, and a copy that comes late finds no way in.
pub(crate) async fn records_of_conflicts_alone_go(world: World) {
    let (app, global) = world.app_with(Some(Strategy::Row), commands()).await;
    within("a", async {
        let store = app.store();
        add_user(&app, "u", user("x")).await.unwrap();
        let mut requests = Vec::new();
        for _ in 0..5 {
            let request = rename(&app, Cursor::START);
            assert_eq!(store.submit(&request).await.unwrap().status, Status::Conflict);
            requests.push(request);
        }
        assert_eq!(store.clear(&global, &Retention { records: 5, ..ALL }).await.unwrap(), Cleared::default());
        let cleared = store.clear(&global, &Retention { records: 4, ..ALL }).await.unwrap();
        assert_eq!(cleared, Cleared { entries: 1, records: 5, hooks: 0 });
        for late in &requests {
            assert_eq!(store.submit(late).await.unwrap_err().refusal(), Some(Code::ResyncRequired));
        }
        let rows = find(&app, Find::by_id("users", "u")).await.unwrap();
        assert_eq!(rows[0].values.text("name"), Some("x"));
        let cursor = store.snapshot(&Default::default()).await.unwrap().cursor;
        assert_eq!(
            store.submit(&rename(&app, cursor)).await.unwrap().status,
            Status::Applied,
            "who begins anew goes on"
        );
    })
    .await;
}

/// I-3, I-34: a clearing that is killed at any point leaves logs that are read, or say that they are not; the next ends it.
pub(crate) async fn a_killed_clearing_is_ended_by_the_next(world: World) {
    let (app, global) = world.app_with(Some(Strategy::Row), commands()).await;
    write(&app, "a", 20).await;
    let retention = Retention { entries: 3, ..ALL };
    for polls in 1..40 {
        let _killed = killed_after(polls, app.store().clear(&global, &retention)).await;
        within("a", async {
            match app.store().outbox(&OutboxQuery::default()).await {
                Ok(page) => assert_eq!(page.entries.len(), 20, "the floor is where it was"),
                Err(error) => assert_eq!(error.refusal(), Some(Code::ResyncRequired)),
            }
        })
        .await;
    }
    app.store().clear(&global, &retention).await.unwrap();
    let cursor = within("a", app.store().snapshot(&Default::default())).await.unwrap().cursor;
    assert_eq!(cursor.version().get(), 20);
    assert_eq!(app.store().clear(&global, &retention).await.unwrap(), Cleared::default(), "nothing is left to do");
}

//! Entries that are wrong, and those who put them right: jobs, batches, and the comparison that comes by itself.

use super::World;
use super::failures::{by_email, settle, users};
use super::harness::{Client, Db};
use isles_cluster::indexes::{EntryChange, EntryOutcome, EntryRow, Job, JobInfo, JobState};
use isles_engine::entries::EntryPart;
use isles_engine::fence::{Claim, Claimed};
use isles_kernel::index::key::Part;
use isles_kernel::index::{EntryDelta, IndexKey};
use isles_kernel::names::{BucketId, ShardId};
use isles_kernel::schema::{ENTRY_BUCKETS, entry_group};
use isles_kernel::value::Value;
use serde_json::json;
use std::time::Duration;

const INDEX: &str = "users_email";

fn shard(name: &str) -> ShardId {
    ShardId::new(name).unwrap()
}

/// A table of so many users, each with an email of its own, all of them in the entries.
async fn filled(db: &Db, rows: usize) -> Client {
    let mut client = users(db).await;
    let insert = format!("INSERT INTO users SELECT i, 'e' || i, 0 FROM generate_series(1, {rows}) AS s (i)");
    client.run(&insert).await;
    settle(db).await;
    client
}

/// All entries that name buckets of a shard, by pages of so many.
async fn entries_on(db: &Db, name: &str, limit: usize) -> Vec<EntryRow> {
    let (mut all, mut cursor) = (Vec::new(), None::<String>);
    loop {
        let page = db.database.index_entries(INDEX, &shard(name), cursor.as_deref(), limit).await.unwrap();
        assert!(page.entries.len() <= limit);
        all.extend(page.entries);
        match page.next_cursor {
            Some(next) => cursor = Some(next),
            None => return all,
        }
    }
}

fn key_of(email: &str) -> IndexKey {
    IndexKey::of([Part { value: &Value::text(email), padded: false }]).unwrap()
}

/// Changes an entry as damage would: it counts so many rows more, or fewer.
async fn damage(db: &Db, email: &str, bucket: BucketId, rows: i64) {
    damage_entry(db, INDEX, email, bucket, rows).await;
}

pub(crate) async fn damage_entry(db: &Db, index: &str, email: &str, bucket: BucketId, rows: i64) {
    let key = key_of(email);
    let entry_bucket = BucketId(key.entry_bucket(ENTRY_BUCKETS));
    let routing = db.database.current_routing();
    let owner = routing.shard_of_bucket(&entry_group(), entry_bucket).unwrap();
    let part = EntryPart {
        table: db.database.entries_of_index(index).unwrap(),
        bucket: entry_bucket,
        progress: None,
        deltas: vec![EntryDelta { key: key.0, bucket, rows }],
    };
    let claim = Claim::new(routing.version(), vec![Claimed::Bucket(entry_group(), entry_bucket)]);
    db.database.shard(owner).await.unwrap().maintain(claim, vec![part]).await.unwrap();
}

/// An email whose row is on a shard, and its bucket.
async fn one_on(db: &Db, name: &str, rows: usize) -> (String, BucketId) {
    let entries = entries_on(db, name, 100).await;
    let hex = |email: &str| key_of(email).0.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let found = (1..=rows).map(|id| format!("e{id}")).find_map(|email| {
        let wanted = format!("\\x{}", hex(&email));
        entries.iter().find(|entry| entry.key_value == wanted).map(|entry| (email, entry.bucket))
    });
    found.unwrap_or_else(|| panic!("{name} has no rows"))
}

fn job(shards: serde_json::Value) -> serde_json::Value {
    json!({
        "type": "maintain_index", "database_id": "isles", "table_name": "users", "operation": "DELETE",
        "shard_ids": shards, "affected_indexes": [INDEX], "created_at": "2026-01-02T03:04:05Z",
    })
}

fn enqueue(db: &Db, shards: serde_json::Value) -> u64 {
    db.database.enqueue_index_job(Job::from_json(job(shards)).unwrap()).unwrap().id
}

/// A job, when it is over.
async fn finished(db: &Db, id: u64) -> JobInfo {
    for _ in 0..1_000 {
        let info = db.database.index_jobs().into_iter().find(|info| info.id == id).unwrap();
        if info.finished_at.is_some() {
            return info;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("job {id} is not done");
}

async fn verified(client: &mut Client) -> String {
    client.run("VERIFY INDEX users_email").await.remove(0)
}

/// What is wrong on the shards that a job names is right afterwards, and nothing else is touched.
pub(crate) async fn a_job_mends_the_shards_that_it_names(db: World) {
    let mut client = filled(&db, 200).await;
    let (lost, bucket) = one_on(&db, "s0", 200).await;
    let (other, elsewhere) = one_on(&db, "s1", 200).await;
    damage(&db, &lost, bucket, -1).await;
    damage(&db, "nobody", bucket, 3).await;
    damage(&db, &other, elsewhere, -1).await;
    assert_eq!(by_email(&mut client, &lost).await, Vec::<String>::new(), "the damage is real");
    assert_eq!(verified(&mut client).await, "199|2|1|0");
    let info = finished(&db, enqueue(&db, json!([0]))).await;
    assert_eq!(info.state, JobState::Done, "{info:?}");
    assert_eq!((info.found.missing, info.found.superfluous, info.found.repaired), (1, 1, 2));
    assert_eq!(by_email(&mut client, &lost).await.len(), 1);
    assert_eq!(verified(&mut client).await, "199|1|0|0", "the other shard was not named");
    let info = finished(&db, enqueue(&db, json!(["s1", 2, 3]))).await;
    assert_eq!((info.found.missing, info.found.superfluous, info.found.repaired), (1, 0, 1));
    assert_eq!(verified(&mut client).await, "200|0|0|0");
    let again = finished(&db, enqueue(&db, json!([0, 1, 2, 3]))).await;
    assert_eq!((again.found.entries, again.found.differences()), (200, 0));
}

pub(crate) async fn jobs_that_wait_together_are_one_pass(db: World) {
    let _client = filled(&db, 60).await;
    let ids = [json!([0]), json!([0, 1]), json!([3])].map(|shards| enqueue(&db, shards));
    let mut found = Vec::new();
    for id in ids {
        found.push(finished(&db, id).await);
    }
    assert!(found.iter().all(|info| info.finished_at == found[0].finished_at), "{found:?}");
    let on = |name: &'static str| entries_on(&db, name, 100);
    let (first, second) = (on("s0").await.len() as u64, on("s1").await.len() as u64);
    assert_eq!((found[0].found.entries, found[1].found.entries), (first, first + second), "each is told its own part");
    let listed: Vec<u64> = db.database.index_jobs().iter().map(|info| info.id).collect();
    assert_eq!(listed, [ids[2], ids[1], ids[0]], "the newest first");
}

pub(crate) async fn a_job_about_what_there_is_not_is_refused(db: World) {
    let mut client = filled(&db, 3).await;
    client.run("CREATE TABLE other (id int PRIMARY KEY)").await;
    for (field, value, code) in [
        ("database_id", json!("elsewhere"), "42704"),
        ("table_name", json!("nothing"), "42P01"),
        ("table_name", json!("other"), "42704"),
        ("shard_ids", json!([0, 9]), "42704"),
        ("affected_indexes", json!(["users_name"]), "42704"),
    ] {
        let mut wrong = job(json!([0]));
        wrong[field] = value.clone();
        let error = db.database.enqueue_index_job(Job::from_json(wrong).unwrap()).unwrap_err();
        let named = if value == "other" { "affected_indexes" } else { field };
        assert_eq!(error.sqlstate, code, "{error:?}");
        assert!(error.message.contains(&format!("\"{named}\"")), "{}", error.message);
    }
    assert!(db.database.index_jobs().is_empty());
}

/// Every entry is shown for the shard that has its bucket, once, however small the pages are.
pub(crate) async fn entries_are_shown_by_shard(db: World) {
    let mut client = filled(&db, 150).await;
    client.run("INSERT INTO users SELECT i, 'same', 0 FROM generate_series(1000, 1039) AS s (i)").await;
    settle(&db).await;
    let routing = db.database.current_routing();
    let group = isles_kernel::names::GroupName::new("users").unwrap();
    let (mut rows, mut entries) = (0, 0);
    for name in ["s0", "s1", "s2", "s3"] {
        let all = entries_on(&db, name, 1_000).await;
        assert_eq!(entries_on(&db, name, 7).await, all);
        assert!(all.iter().all(|entry| routing.shard_of_bucket(&group, entry.bucket) == Some(&shard(name))));
        rows += all.iter().map(|entry| entry.rows).sum::<i64>();
        entries += all.len();
    }
    assert_eq!(rows, 190);
    assert_eq!(verified(&mut client).await, format!("{entries}|0|0|0"));
    for (index, name, cursor, limit, code) in [
        ("nothing", "s0", None, 10, "42704"),
        (INDEX, "s9", None, 10, "42704"),
        (INDEX, "s0", Some("here"), 10, "22023"),
        (INDEX, "s0", None, 0, "22023"),
        (INDEX, "s0", None, 1_001, "22023"),
    ] {
        let error = db.database.index_entries(index, &shard(name), cursor, limit).await.unwrap_err();
        assert_eq!(error.sqlstate, code);
    }
}

/// `operation key` at a position of a shard.
async fn batch(db: &Db, on: &ShardId, seq: u64, changes: &[(&str, &str)]) -> Vec<EntryOutcome> {
    let change = |(operation, key): &(&str, &str)| json!({"operation": operation, "index_name": INDEX, "key_value": key, "shard_id": on.as_str(), "seq": seq});
    let changes: Vec<_> = changes.iter().map(change).collect();
    let changes = EntryChange::from_json(json!({ "changes": changes })).unwrap();
    db.database.maintain_entries(&changes).await.unwrap()
}

async fn position(db: &Db, on: &ShardId) -> u64 {
    db.database.index_entries(INDEX, on, None, 1).await.unwrap().seq.0
}

/// I-23, RUN D: what an older scan wanted comes last, and the row stays visible.
pub(crate) async fn reordered_jobs(db: World) {
    let mut client = filled(&db, 40).await;
    let (email, _) = one_on(&db, "s2", 40).await;
    let on = shard("s2");
    client.run(&format!("UPDATE users SET email = 'v2' WHERE email = '{email}'")).await;
    settle(&db).await;
    let older = position(&db, &on).await;
    client.run("UPDATE users SET email = 'v3' WHERE email = 'v2'").await;
    settle(&db).await;
    let newer = position(&db, &on).await;
    assert!(older < newer);
    use EntryOutcome::{Already, Refused, Stale};
    assert_eq!(batch(&db, &on, newer, &[("add", "v3"), ("remove", "v2")]).await, [Already, Already]);
    assert_eq!(batch(&db, &on, older, &[("add", "v2"), ("remove", "v3")]).await, [Stale, Stale]);
    // Whoever lies about what it has seen is told by the rows.
    for _ in 0..2 {
        assert_eq!(batch(&db, &on, newer, &[("add", "v2"), ("remove", "v3")]).await, [Refused, Refused]);
        assert_eq!(by_email(&mut client, "v3").await.len(), 1);
        assert_eq!(by_email(&mut client, "v2").await.len(), 0);
    }
    assert!(verified(&mut client).await.ends_with("|0|0|0"));
}

pub(crate) async fn a_batch_is_confirmed_by_the_rows(db: World) {
    let mut client = filled(&db, 80).await;
    let (lost, bucket) = one_on(&db, "s1", 80).await;
    damage(&db, &lost, bucket, -1).await;
    damage(&db, "nobody", bucket, 2).await;
    damage(&db, "kept", bucket, 1).await;
    let on = shard("s1");
    let now = position(&db, &on).await;
    use EntryOutcome::{Already, Applied, Refused, Unknown};
    assert_eq!(batch(&db, &on, now + 1_000_000, &[("add", &lost), ("remove", "nobody")]).await, [Unknown, Unknown]);
    let hex: String = key_of(&lost).0.iter().map(|byte| format!("{byte:02x}")).collect();
    let bytes = format!("\\x{hex}");
    let changes = [("add", bytes.as_str()), ("add", lost.as_str()), ("remove", "nobody"), ("add", "kept")];
    assert_eq!(batch(&db, &on, now, &changes).await, [Applied, Already, Applied, Refused]);
    assert_eq!(by_email(&mut client, &lost).await.len(), 1);
    let again = [("add", lost.as_str()), ("remove", "nobody"), ("remove", "kept"), ("remove", "never")];
    assert_eq!(batch(&db, &on, now, &again).await, [Already, Already, Applied, Already]);
    assert!(verified(&mut client).await.ends_with("|0|0|0"));
    let refused = |index: &str, key: &str, shard: &str| {
        let change = json!({"operation": "add", "index_name": index, "key_value": key, "shard_id": shard, "seq": now});
        EntryChange::from_json(json!({ "changes": [change] })).unwrap()
    };
    for (changes, code) in [
        (refused("nothing", "x", "s0"), "42704"),
        (refused(INDEX, "x", "s9"), "42704"),
        (refused(INDEX, "\\x0", "s0"), "22023"),
        (refused(INDEX, "\\xyz", "s0"), "22023"),
    ] {
        let error = db.database.maintain_entries(&changes).await.unwrap_err();
        assert_eq!(error.sqlstate, code);
        assert!(error.message.starts_with("changes[0]: "), "{}", error.message);
    }
}

/// Damage is found without anybody asking, and what was found is shown.
pub(crate) async fn indexes_are_compared_now_and_then(db: World) {
    let mut client = filled(&db, 50).await;
    let (lost, bucket) = one_on(&db, "s0", 50).await;
    damage(&db, &lost, bucket, -1).await;
    let before = db.database.global_indexes().await.unwrap().remove(0);
    assert_eq!((before.verified_at, before.differences), (None, None));
    assert_eq!(by_email(&mut client, &lost).await.len(), 0);
    drop(client);
    let db = db.reopen_with(|config| config.verify_indexes_every = Duration::from_millis(100)).await;
    let mut client = db.client();
    client.run("WAIT FOR INDEX users_email").await;
    for _ in 0..500 {
        let info = db.database.global_indexes().await.unwrap().remove(0);
        if info.verified_at.is_some() && info.differences.is_some() {
            assert_eq!(by_email(&mut client, &lost).await.len(), 1);
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("nobody has looked");
}

/// Writers and appliers go on while an index is compared with the rows, by several who repair what they find.
pub(crate) async fn nobody_waits_for_a_comparison(db: World) {
    let mut client = filled(&db, 2_000).await;
    let writer = tokio::spawn({
        let mut client = db.client();
        async move {
            for n in 0..150 {
                client.run(&format!("UPDATE users SET email = 'n{}' WHERE id = {}", n % 40, n * 7 % 300 + 1)).await;
                client.run(&format!("DELETE FROM users WHERE id = {}", 1_000 + n)).await;
                client.run(&format!("INSERT INTO users VALUES ({}, 'n{}', 0)", 10_000 + n, n % 40)).await;
            }
        }
    });
    let mut rounds = 0;
    while !writer.is_finished() {
        let mut other = db.client();
        let (one, two) =
            tokio::join!(client.run("VERIFY INDEX users_email REPAIR"), other.run("VERIFY INDEX users_email REPAIR"));
        for shown in [one, two] {
            assert!(shown[0].ends_with("|0|0|0"), "entries, missing, superfluous, repaired: {shown:?}");
        }
        rounds += 1;
    }
    writer.await.unwrap();
    assert!(rounds > 0);
    settle(&db).await;
    assert!(verified(&mut client).await.ends_with("|0|0|0"));
}

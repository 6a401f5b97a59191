//! Changes of a configuration: what is refused, what is kept, who has done it.

use crate::harness::Db;
use async_trait::async_trait;
use isles_cluster::catalog::{Event, Revision};
use isles_cluster::placements::{
    Action, Change, ChangeError, Changed, DEFAULT_TTL, ETag, Keeper, Kept, Migration, Placements, Removable, Source,
    Why,
};
use isles_kernel::error::SqlError;
use isles_kernel::id::{Generation, ResourceId, UniquePart};
use isles_kernel::names::GroupName;
use isles_kernel::placement::{ErrorCode, KeptType, KeySchema, PlacementConfig, Timestamp, TypeName};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub(crate) fn change(tenant: &str, if_match: ETag) -> Change<'_> {
    Change { tenant, by: "alice", if_match, reason: None }
}

/// The groups that the built-in types are meant for, as people write them.
pub(crate) fn preset() -> Value {
    serde_json::to_value(PlacementConfig::preset()).unwrap()
}

pub(crate) async fn put(placements: &Placements, tenant: &str, config: &Value) -> Result<Changed, ChangeError> {
    let etag = placements.get(tenant).await.unwrap().0;
    placements.put(&change(tenant, etag), &config.to_string()).await
}

fn fields(outcome: Result<Changed, ChangeError>) -> Vec<(String, ErrorCode)> {
    match outcome {
        Err(ChangeError::Invalid(errors)) => {
            errors.errors().iter().map(|error| (error.field.clone(), error.code)).collect()
        }
        other => panic!("{other:?}"),
    }
}

fn type_name(name: &str) -> TypeName {
    TypeName::new(name).unwrap()
}

fn migration(text: &str) -> Migration {
    serde_json::from_str(text).unwrap()
}

fn now() -> Timestamp {
    Timestamp::now()
}

/// The seed's failure mode: without a configuration there are 20 buckets for every type, and it is said.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_record_there_are_defaults_and_it_is_said() {
    let db = Db::sqlite(1).await;
    let placements = db.database.placements();
    let found = placements.of("acme").unwrap();
    assert_eq!((found.source, found.etag), (Source::Defaults(Why::Missing), ETag::NONE));
    assert_eq!(found.placement.current().group_of(&type_name("session")).unwrap().buckets().get(), 20);
    assert!(placements.health().uses_defaults);
    put(placements, "default", &preset()).await.unwrap();
    let found = placements.of("acme").unwrap();
    assert_eq!(found.source, Source::Inherited);
    assert_eq!(found.placement.current().group_of(&type_name("authcode")).unwrap().buckets().get(), 64);
    assert_eq!(placements.of("default").unwrap().source, Source::Configured);
    assert!(!placements.health().uses_defaults);
    let status = placements.status("acme").await.unwrap();
    assert_eq!((status.source, status.etag), (Source::Inherited, ETag::NONE));
}

/// What is put is what is read, also after a restart, and an ETag names it.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_put_is_read_and_stays() {
    let db = Db::sqlite(1).await;
    let made = put(db.database.placements(), "acme", &preset()).await.unwrap();
    assert_eq!((made.number, made.generation, made.warnings.len()), (1, Generation::FIRST, 0));
    let db = db.restart(1).await;
    let (etag, source, config) = db.database.placements().get("acme").await.unwrap();
    assert_eq!((etag, source), (made.etag, Source::Configured));
    assert_eq!(serde_json::to_value(config).unwrap(), preset());
    assert_eq!(db.database.placements().of("acme").unwrap().etag, made.etag);
}

/// Hole B10: of those who change the same state, one does, and the others are told.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_changes_of_one_state_one_is_made() {
    let db = Db::sqlite(1).await;
    let made = put(db.database.placements(), "acme", &preset()).await.unwrap();
    let change_it = |n: usize| {
        let placements = db.database.placements().clone();
        async move {
            let mut config = preset();
            config["groups"]["vc"]["description"] = json!(format!("changed by {n}"));
            placements.put(&change("acme", made.etag), &config.to_string()).await
        }
    };
    let outcomes = futures::future::join_all((0..8).map(change_it)).await;
    let winners: Vec<&Changed> = outcomes.iter().flatten().collect();
    assert_eq!(winners.len(), 1);
    for loser in outcomes.iter().filter_map(|outcome| outcome.as_ref().err()) {
        assert!(matches!(loser, ChangeError::Stale { current } if *current == winners[0].etag), "{loser:?}");
    }
    assert_eq!(db.database.placements().history("acme", None).await.unwrap().len(), 2);
    let stale = db.database.placements().put(&change("acme", ETag::NONE), &preset().to_string()).await;
    assert!(matches!(stale, Err(ChangeError::Stale { .. })));
}

/// Hole B40: each field error is told, all at once and by name; nothing takes effect.
#[tokio::test(flavor = "multi_thread")]
async fn every_field_error_is_told_at_once() {
    let db = Db::sqlite(1).await;
    let placements = db.database.placements();
    let mut config = preset();
    config["groups"]["vc"]["totalShards"] = json!(20.5);
    config["groups"]["client-based"]["overrides"] = json!({ "session": 64 });
    config["groups"]["user-client"]["members"] = json!(["authcode", "KeyManager"]);
    config["baseRegions"]["apac"] = json!(10);
    config["colour"] = json!("red");
    let found = fields(put(placements, "acme", &config).await);
    for (field, code) in [
        ("groups.vc.totalShards", ErrorCode::WrongKind),
        ("groups.client-based.overrides.session", ErrorCode::NotMember),
        ("groups.user-client.members[1]", ErrorCode::Singleton),
        ("baseRegions", ErrorCode::ShareSum),
        ("colour", ErrorCode::UnknownField),
        ("groups", ErrorCode::MissingType),
    ] {
        assert!(found.contains(&(field.into(), code)), "{field} {code:?} in {found:?}");
    }
    assert_eq!(placements.of("acme").unwrap().source, Source::Defaults(Why::Missing));
    assert!(placements.history("acme", None).await.unwrap().is_empty());
    let validated = placements.validate("acme", &config.to_string()).await.unwrap().unwrap_err();
    assert_eq!(validated.errors().len(), found.len());
}

/// The forbidden rules 1 to 4, and holes B7 and B9: what would lead a key elsewhere is refused, field by field.
#[tokio::test(flavor = "multi_thread")]
async fn a_mapping_changes_by_a_new_generation_only() {
    let db = Db::sqlite(1).await;
    let placements = db.database.placements();
    put(placements, "acme", &preset()).await.unwrap();
    let refused = |edit: fn(&mut Value)| {
        let mut config = preset();
        edit(&mut config);
        async move { fields(put(placements, "acme", &config).await) }
    };
    let count = refused(|config| config["groups"]["vc"]["totalShards"] = json!(32)).await;
    assert_eq!(count, [("groups.vc.totalShards".to_string(), ErrorCode::MappingChanged)]);
    let salt = refused(|config| config["groups"]["client-based"]["salt"] = json!("s1")).await;
    assert_eq!(salt, [("groups.client-based.salt".to_string(), ErrorCode::MappingChanged)]);
    let region = refused(|config| config["baseRegions"] = json!({ "enam": 60, "weur": 40 })).await;
    assert_eq!(region, [("baseRegions".to_string(), ErrorCode::MappingChanged)]);
    let own = refused(|config| config["groups"]["user-client"]["overrides"] = json!({ "refresh": 32 })).await;
    assert!(own.contains(&("groups.user-client.overrides.refresh".into(), ErrorCode::ColocationOverride)), "{own:?}");
    let split = refused(|config| config["groups"]["user-client"]["members"] = json!(["authcode"])).await;
    assert!(split.iter().any(|(_, code)| *code == ErrorCode::MissingType), "{split:?}");
    let dropped = refused(|config| config["currentGeneration"] = json!(2)).await;
    assert!(dropped.iter().any(|(_, code)| *code == ErrorCode::GenerationDropped), "{dropped:?}");
    let fell = refused(|config| config["currentGeneration"] = json!(0)).await;
    assert!(fell.iter().any(|(_, code)| *code == ErrorCode::OutOfRange), "{fell:?}");
    // A key that leads to the same bucket may be told differently.
    let mut config = preset();
    config["groups"]["vc"]["description"] = json!("credentials");
    put(placements, "acme", &config).await.unwrap();
}

/// A migration keeps what was, for as long as its records can last, and ids of it are still found (B1, B11, B17).
#[tokio::test(flavor = "multi_thread")]
async fn a_migration_keeps_the_last_generation() {
    let db = Db::sqlite(1).await;
    let placements = db.database.placements();
    let made = put(placements, "acme", &preset()).await.unwrap();
    let before = placements.of("acme").unwrap().placement.clone();
    let refresh = type_name("refresh");
    let old = before.locate(&refresh, "user1:client1").unwrap();
    let id = before.mint(&refresh, &old, UniquePart::new("abc123-def456").unwrap()).unwrap();
    let plan = r#"{"groups": {"user-client": {"totalShards": 32, "members": ["authcode", "refresh"]},
        "default": {"totalShards": 20, "members": []}}, "baseRegions": {"enam": 50, "weur": 50}}"#;
    let moved = placements.migrate(&change("acme", made.etag), migration(plan)).await.unwrap();
    assert_eq!(moved.generation.get(), 2);
    assert!(moved.warnings.is_empty(), "{:?}", moved.warnings);
    let after = placements.of("acme").unwrap().placement.clone();
    let until = after.previous()[0].valid_until().unwrap();
    let lasts = until.as_second() - now().as_second();
    assert!(lasts >= DEFAULT_TTL.as_secs() as i64, "refresh tokens last 30 days, it is read for {lasts} s");
    assert_eq!(after.previous()[0].groups(), before.current().groups(), "counts, salts and regions as they were");
    let path = after.read_path(&refresh, "user1:client1", now()).unwrap();
    assert_eq!(path.len(), 2);
    assert_eq!((path[0].generation.get(), path[1].clone()), (2, old.clone()));
    assert_ne!(path[0].space, path[1].space, "generations have instances of their own");
    assert_eq!(after.check_id(&ResourceId::parse(&id.to_string()).unwrap()).unwrap().located, old);
    // One more, without any change but the number: the prefixes of ids can change with it.
    let again = placements.migrate(&change("acme", moved.etag), Migration::default()).await.unwrap();
    let third = placements.of("acme").unwrap().placement.clone();
    assert_eq!((again.generation.get(), third.previous().len()), (3, 2));
    assert_eq!(third.previous()[1].groups(), before.current().groups());
    assert_eq!(third.check_id(&id).unwrap().located, old);
}

/// Hole B11: the number of generations is bounded, and the bound drops none that is still read.
#[tokio::test(flavor = "multi_thread")]
async fn a_sixth_previous_generation_is_refused_and_none_is_dropped() {
    let db = Db::sqlite(1).await;
    let placements = db.database.placements();
    let mut etag = put(placements, "acme", &preset()).await.unwrap().etag;
    for _ in 0..5 {
        etag = placements.migrate(&change("acme", etag), Migration::default()).await.unwrap().etag;
    }
    let found = fields(placements.migrate(&change("acme", etag), Migration::default()).await);
    assert_eq!(found, [("previousGenerations".to_string(), ErrorCode::TooMany)]);
    assert_eq!(placements.of("acme").unwrap().placement.previous().len(), 5);
}

/// A generation that is given too little time is warned about, and one that is given none is refused as text.
#[tokio::test(flavor = "multi_thread")]
async fn too_little_time_for_a_generation_is_warned_about() {
    let db = Db::sqlite(1).await;
    let placements = db.database.placements();
    let etag = put(placements, "acme", &preset()).await.unwrap().etag;
    let bad = placements.migrate(&change("acme", etag), migration(r#"{"validUntil": "tomorrow"}"#)).await;
    assert_eq!(fields(bad), [("previousGenerations[0].validUntil".to_string(), ErrorCode::BadTimestamp)]);
    let soon = Timestamp::from_second(now().as_second() + 3600).unwrap();
    let short = migration(&format!(r#"{{"validUntil": "{soon}"}}"#));
    let dry = placements.dry_run_migration("acme", short.clone()).await.unwrap();
    let made = placements.migrate(&change("acme", etag), short).await.unwrap();
    assert_eq!(made.warnings.len(), 1);
    assert!(made.warnings[0].contains("generation 1 is read until"), "{:?}", made.warnings);
    assert_eq!(dry.warnings.len(), 1);
}

/// A type that is kept, whose records last some days.
pub(crate) fn kept(name: &str, group: &str, key: &str, days: u64) -> Kept {
    let (group, key) = (GroupName::new(group).unwrap(), KeySchema::new(key).unwrap());
    Kept { what: KeptType { name: type_name(name), group, key }, lasts: Duration::from_secs(days * 86_400) }
}

/// Says that a generation is drained when it is told to.
struct Told {
    drained: AtomicBool,
}

#[async_trait]
impl Keeper for Told {
    async fn is_drained(&self, _: Option<&str>, _: Generation) -> Result<bool, SqlError> {
        Ok(self.drained.load(Ordering::SeqCst))
    }

    async fn kept(&self) -> Result<Vec<Kept>, SqlError> {
        Ok(vec![kept("refresh", "user-client", "userId:clientId", 90)])
    }
}

/// A generation goes when it has expired or when nothing is left of it, and not before; its number does not return (B9).
#[tokio::test(flavor = "multi_thread")]
async fn a_generation_is_removed_when_it_is_drained_or_expired() {
    let db = Db::sqlite(1).await;
    let placements = db.database.placements();
    let mut config = preset();
    config["currentGeneration"] = json!(3);
    config["previousGenerations"] = json!([
        { "generation": 2, "totalShards": 10, "validUntil": "2099-01-01T00:00:00Z" },
        { "generation": 0, "totalShards": 20, "validUntil": "2025-02-01T00:00:00Z" },
    ]);
    let etag = put(placements, "acme", &config).await.unwrap().etag;
    let state = |status: &isles_cluster::placements::Status| -> Vec<(u16, Removable)> {
        status.generations.iter().map(|one| (one.generation, one.state)).collect()
    };
    let status = placements.status("acme").await.unwrap();
    assert_eq!(state(&status), [(3, Removable::Current), (2, Removable::InForce), (0, Removable::Expired)]);
    for (number, sqlstate) in [(3, "55000"), (2, "55000"), (9, "42704")] {
        let refused = placements.remove_generation(&change("acme", etag), number).await.unwrap_err().for_people();
        assert_eq!(refused.sqlstate, sqlstate, "{number}: {refused}");
    }
    let gone = placements.remove_generation(&change("acme", etag), 0).await.unwrap();
    let keeper = Arc::new(Told { drained: AtomicBool::new(false) });
    placements.register(keeper.clone());
    let refused = placements.remove_generation(&change("acme", gone.etag), 2).await.unwrap_err().for_people();
    assert!(refused.hint.unwrap().contains("drained"));
    keeper.drained.store(true, Ordering::SeqCst);
    let status = placements.status("acme").await.unwrap();
    assert_eq!(state(&status), [(3, Removable::Current), (2, Removable::Drained)]);
    let gone = placements.remove_generation(&change("acme", gone.etag), 2).await.unwrap();
    assert!(placements.of("acme").unwrap().placement.previous().is_empty());
    let back = fields(placements.put(&change("acme", gone.etag), &config.to_string()).await);
    assert!(back.iter().all(|(_, code)| *code == ErrorCode::GenerationReused) && !back.is_empty(), "{back:?}");
    let other = placements.remove_generation(&change("other", ETag::NONE), 1).await.unwrap_err().for_people();
    assert_eq!(other.sqlstate, "42704");
    // Whoever keeps records knows best how long they last.
    let moved = placements.migrate(&change("acme", gone.etag), Migration::default()).await.unwrap();
    let until = placements.of("acme").unwrap().placement.previous()[0].valid_until().unwrap();
    assert!(until.as_second() - now().as_second() >= 90 * 86_400, "{until} {moved:?}");
}

/// The first configuration of a tenant whose records are there already is a change like any other.
#[tokio::test(flavor = "multi_thread")]
async fn a_first_configuration_loses_no_records() {
    let db = Db::sqlite(1).await;
    let placements = db.database.placements();
    let keeper = Arc::new(Told { drained: AtomicBool::new(false) });
    placements.register(keeper.clone());
    let found = fields(put(placements, "acme", &preset()).await);
    assert!(found.iter().all(|(_, code)| *code == ErrorCode::MappingChanged) && !found.is_empty(), "{found:?}");
    let mut config = preset();
    config["currentGeneration"] = json!(2);
    config["previousGenerations"] =
        json!([{ "generation": 1, "totalShards": 20, "validUntil": "2099-01-01T00:00:00Z" }]);
    put(placements, "acme", &config).await.unwrap();
    keeper.drained.store(true, Ordering::SeqCst);
    put(placements, "unused", &preset()).await.unwrap();
}

/// I-60: the change and who made it are one commit. The history is bounded and goes on counting.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_and_its_entry_are_one_commit() {
    let db = Db::sqlite(1).await;
    let placements = db.database.placements();
    let mut watch = db.database.catalog().watch("region_shard_", Revision(1)).await.unwrap();
    let why = Change { reason: Some("more room"), ..change("a:b", ETag::NONE) };
    let made = placements.put(&why, &preset().to_string()).await.unwrap();
    let commit = watch.next().await.unwrap();
    let mut keys: Vec<String> = commit.events.iter().map(|event| event.key().to_string()).collect();
    keys.sort();
    let expected =
        ["region_shard_config:a:b", "region_shard_history:003:a:b:00000000000000000001", "region_shard_state:a:b"];
    assert_eq!(keys, expected);
    assert_eq!(ETag::parse(&commit.revision.to_string()), Some(made.etag));
    let is_seed_json = |event: &Event| match event {
        Event::Put(record) if record.key.as_str() == expected[0] => record.json::<Value>().unwrap() == preset(),
        _ => false,
    };
    assert!(commit.events.iter().any(is_seed_json));
    let entries = placements.history("a:b", None).await.unwrap();
    assert_eq!(entries.len(), 1);
    let entry = &entries[0];
    assert_eq!((entry.action, entry.by.as_str(), entry.number), (Action::Put, "alice", 1));
    assert_eq!((entry.reason.as_deref(), entry.replaced, &entry.config), (Some("more room"), ETag::NONE, &preset()));
    assert!(placements.history("a", None).await.unwrap().is_empty(), "another tenant's");
    for n in 0..104 {
        let mut config = preset();
        config["groups"]["vc"]["description"] = json!(format!("change {n}"));
        put(placements, "a:b", &config).await.unwrap();
    }
    let entries = placements.history("a:b", Some(1_000)).await.unwrap();
    assert_eq!((entries.len(), entries[0].number, entries[99].number), (100, 105, 6));
    assert_eq!(placements.diff("a:b", 5, None).await.unwrap_err().sqlstate, "42704");
    let found = placements.diff("a:b", 104, Some(105)).await.unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].field, "groups.vc.description");
    assert_eq!((found[0].old.clone(), found[0].new.clone()), (Some(json!("change 102")), Some(json!("change 103"))));
}

/// What a change would move is known before it is made, and nothing is changed by asking.
#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_tells_which_keys_would_move() {
    let db = Db::sqlite(1).await;
    let placements = db.database.placements();
    let made = put(placements, "acme", &preset()).await.unwrap();
    let plan = r#"{"groups": {"user-client": {"totalShards": 128, "members": ["authcode", "refresh"]},
        "random-high-rps": {"totalShards": 64, "members": ["revocation"]},
        "random-medium-rps": {"totalShards": 32, "members": ["session", "challenge"]},
        "client-based": {"totalShards": 32, "members": ["par", "device", "ciba", "dpop"]},
        "vc": {"totalShards": 16, "members": ["credoffer", "vprequest"]}}}"#;
    let dry = placements.dry_run_migration("acme", migration(plan)).await.unwrap();
    assert_eq!((dry.etag, dry.current_generation), (made.etag, 2));
    let share = |to: &str| dry.impact.iter().find(|one| one.to.as_str() == to).unwrap().share();
    // Half of the keys keep the number of their bucket, and of these 26 of 64 their region.
    assert!((0.77..0.83).contains(&share("user-client-g2")), "{}", share("user-client-g2"));
    assert_eq!(share("vc-g2"), 0.0, "the same buckets in the same regions");
    assert!(dry.changes.iter().any(|one| one.field == "groups.user-client.totalShards"));
    assert_eq!(placements.get("acme").await.unwrap().0, made.etag);
    let same = placements.dry_run("acme", &preset().to_string()).await.unwrap();
    assert!(same.changes.is_empty() && same.impact.iter().all(|one| one.moved == 0));
}

/// Sizes are bounded, and what is too large is refused before it is stored.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_large_is_refused() {
    let db = Db::sqlite(1).await;
    let placements = db.database.placements();
    let long = format!("{{{}}}", " ".repeat(600 << 10));
    let found = fields(placements.put(&change("acme", ETag::NONE), &long).await);
    assert_eq!(found, [(String::new(), ErrorCode::TooLarge)]);
    let reason = "x".repeat(1_001);
    let why = Change { reason: Some(&reason), ..change("acme", ETag::NONE) };
    let refused = placements.put(&why, &preset().to_string()).await.unwrap_err().for_people();
    assert_eq!(refused.sqlstate, "54000");
    let name = "t".repeat(65);
    let refused = placements.put(&change(&name, ETag::NONE), &preset().to_string()).await.unwrap_err().for_people();
    assert_eq!(refused.sqlstate, "22023");
}

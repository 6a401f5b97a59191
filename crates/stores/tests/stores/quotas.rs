//! Stores with quotas: how many records there may be, who is refused, and what is never removed for another.

use crate::harness::Client;
use crate::world::{FIRST, World, acme, tenant};
use isles_kernel::error::SqlError;
use isles_kernel::names::{BucketId, GroupName, ShardId};
use isles_stores::identity::Grant;
use isles_stores::{Address, Alteration, Desk, MAX_RECORDS, Outcome, Put, RecordQuota, Reply, StoreConfig};
use std::time::Duration;

const MANY: usize = 24;

/// Records of one client are in one instance.
fn push() -> StoreConfig {
    StoreConfig {
        name: "push".into(),
        prefix: "psh".into(),
        group: "client-based".into(),
        key: "client_id".into(),
        ttl_ms: 600_000,
        ..StoreConfig::default()
    }
}

async fn with_quota(world: &World, max: u64) {
    world.stores.create(StoreConfig { max_records: Some(max), ..push() }).await.unwrap();
}

fn of_app() -> Put {
    Put::of("{}").routed("app")
}

fn named(name: &str) -> Address {
    Address::within("app", name)
}

async fn put(desk: &mut Desk<'_>) -> Result<Address, SqlError> {
    Ok(Address::id(desk.put(&acme(), "push", of_app()).await?.id().unwrap()))
}

async fn refused(desk: &mut Desk<'_>) -> SqlError {
    put(desk).await.unwrap_err()
}

async fn live(world: &World) -> u64 {
    world.desk().count(&acme(), "push").await.unwrap()
}

/// B24: the last place is given once; who comes then is refused by name, and every record that was there still is.
pub(crate) async fn b24_beyond_its_quota_a_store_refuses_and_evicts_nothing(world: World) {
    with_quota(&world, 5).await;
    let mut desk = world.desk();
    let mut ids = Vec::new();
    for _ in 0..4 {
        ids.push(put(&mut desk).await.unwrap());
    }
    let proof = named("proof");
    assert!(desk.put_if_absent(&acme(), "push", &proof, Put::of("1")).await.unwrap().is_ok());
    world.pass(7);
    for _ in 0..20 {
        let error = refused(&mut desk).await;
        assert_eq!((error.sqlstate, error.constraint.as_deref()), ("53400", Some("max_records")), "{error}");
        let hint = error.hint.unwrap();
        assert!(
            hint.contains("max_records = 5") && hint.contains("isles.alter_store('push', max_records =>"),
            "{hint}"
        );
        assert_eq!(error.retry_after_s.map(|s| s.get()), Some(60));
        let another = desk.put_if_absent(&acme(), "push", &named("another"), Put::of("1")).await;
        assert_eq!(another.unwrap_err().sqlstate, "53400");
        let another = desk.put_at(&acme(), "push", &named("another"), Put::of("1")).await;
        assert_eq!(another.unwrap_err().sqlstate, "53400");
    }
    for id in &ids {
        assert_eq!(desk.get(&acme(), "push", id).await.unwrap().outcome, Outcome::Ok);
    }
    // What is remembered is still told apart from what has no place.
    let again = desk.put_if_absent(&acme(), "push", &proof, Put::of("1")).await.unwrap();
    assert_eq!(again.outcome, Outcome::Replayed);
    assert_eq!(desk.get(&acme(), "push", &named("another")).await.unwrap().outcome, Outcome::NotFound);
    // Another instance, another tenant and another store have places of their own.
    assert!(desk.put(&tenant("other"), "push", of_app()).await.unwrap().is_ok());
    assert!(desk.put(&acme(), "par", of_app()).await.unwrap().is_ok());
    let refusals = world.stores.refusals();
    assert_eq!(refusals.len(), 1);
    assert_eq!((&*refusals[0].store, refusals[0].quota, refusals[0].count), ("push", RecordQuota::Records, 60));
    // Shortly before the first of them ends, that is when to come again.
    world.pass(590);
    assert_eq!(refused(&mut desk).await.retry_after_s.map(|s| s.get()), Some(3));
}

async fn many<F>(world: &World, what: impl Fn(Desk<'static>, usize) -> F) -> Vec<Result<Reply, SqlError>>
where
    F: Future<Output = Result<Reply, SqlError>> + Send + 'static,
{
    let tasks: Vec<_> = (0..MANY).map(|number| tokio::spawn(what(world.desk(), number))).collect();
    let mut all = Vec::new();
    for task in tasks {
        all.push(task.await.unwrap());
    }
    all
}

/// However many come at once to the last places, as many pass as there are: by each way that adds a record, whether
/// counters are there or have to be made, and when the rows have to be counted.
pub(crate) async fn of_many_at_the_edge_as_many_pass_as_there_are_places(world: World) {
    const MAX: u64 = 10;
    with_quota(&world, MAX).await;
    for round in 0..6 {
        let free = MAX - live(&world).await;
        assert!(free > 0, "round {round}");
        let outcomes = many(&world, |mut desk, number| async move {
            let name = named(&format!("{round} {number}"));
            match number % 3 {
                0 => desk.put(&acme(), "push", of_app()).await,
                1 => desk.put_if_absent(&acme(), "push", &name, Put::of("1")).await,
                _ => desk.put_at(&acme(), "push", &name, Put::of("1")).await,
            }
        })
        .await;
        let passed = outcomes.iter().filter(|outcome| outcome.as_ref().is_ok_and(Reply::is_ok)).count() as u64;
        assert_eq!((passed, live(&world).await), (free, MAX), "round {round}");
        for error in outcomes.into_iter().filter_map(Result::err) {
            assert_eq!(error.sqlstate, "53400", "{error}");
        }
        match round {
            // All go, as time passes; then some, one by one; then the quota begins anew.
            0 => world.pass(600),
            1..=3 => {
                for name in (0..MANY).map(|number| named(&format!("{round} {number}"))).take(3 * round) {
                    desk_delete(&world, &name).await;
                }
                world.pass(if live(&world).await == MAX { 600 } else { 0 });
            }
            _ => {
                world.pass(600);
                let alter = async |change| world.stores.alter("push", change).await.unwrap();
                alter(Alteration { unlimited: true, ..Alteration::default() }).await;
                let put = world.desk().put(&acme(), "push", of_app()).await.unwrap();
                assert!(put.is_ok());
                alter(Alteration { max_records: Some(MAX), ..Alteration::default() }).await;
            }
        }
    }
}

async fn desk_delete(world: &World, name: &Address) {
    world.desk().delete(&acme(), "push", name).await.unwrap();
}

/// Clients with transactions of their own meet at the last place, too; and what is rolled back takes none.
pub(crate) async fn transactions_at_the_edge_take_one_place_each(world: World) {
    with_quota(&world, 4).await;
    world.stores.register();
    let world = std::sync::Arc::new(world);
    let put = "SELECT isles.put('push', '{}', key => 'app')";
    let mut client = world.db.client_as(Default::default(), &[("isles.tenant", "acme")]).unwrap();
    for _ in 0..6 {
        Box::pin(client.run("BEGIN")).await;
        Box::pin(client.run(put)).await;
        Box::pin(client.run("ROLLBACK")).await;
    }
    assert_eq!(live(&world).await, 0);
    let tasks: Vec<_> = (0..8)
        .map(|number| {
            let world = world.clone();
            tokio::spawn(async move {
                let mut client = world.db.client_as(Default::default(), &[("isles.tenant", "acme")]).unwrap();
                loop {
                    let begin = if number % 2 == 0 { "BEGIN" } else { "BEGIN ISOLATION LEVEL REPEATABLE READ" };
                    match Box::pin(in_transaction(&mut client, begin, put)).await {
                        Err(error) if matches!(error.sqlstate, "40001" | "40P01") => {}
                        ended => return ended,
                    }
                }
            })
        })
        .collect();
    let mut passed = 0;
    for task in tasks {
        match task.await.unwrap() {
            Ok(()) => passed += 1,
            Err(error) => assert_eq!(error.sqlstate, "53400", "{error}"),
        }
    }
    assert_eq!((passed, live(&world).await), (4, 4));
}

async fn in_transaction(client: &mut Client, begin: &str, put: &str) -> Result<(), SqlError> {
    client.run(begin).await;
    let ended = match client.try_run(put).await {
        Ok(_) => client.try_run("COMMIT").await,
        Err(error) => Err(error),
    };
    if ended.is_err() {
        // After a commit that has failed there is nothing to roll back, which is a notice.
        let _ = client.try_run("ROLLBACK").await;
    }
    ended.map(drop)
}

/// A record is over when its time has come, swept or not.
pub(crate) async fn expired_records_take_no_place(world: World) {
    with_quota(&world, 6).await;
    let mut desk = world.desk();
    for round in 0..4 {
        for number in 0..6 {
            // Half of them expire.
            let ttl = Duration::from_secs(if number % 2 == 0 { 10 } else { 500 });
            if round == 0 || number < 3 {
                desk.put(&acme(), "push", of_app().lasting(if round == 0 { ttl } else { Duration::from_secs(10) }))
                    .await
                    .unwrap();
            }
        }
        assert_eq!(refused(&mut desk).await.retry_after_s.map(|s| s.get()), Some(10), "round {round}");
        world.pass(10);
        if round == 2 {
            assert!(world.stores.sweep_before(Duration::ZERO).await.unwrap().removed >= 3);
        }
    }
    // An expired record that is put again is an addition.
    let key = named("key");
    let brief = || Put::of("1").lasting(Duration::from_secs(1));
    assert!(desk.put_if_absent(&acme(), "push", &key, brief()).await.unwrap().is_ok());
    world.pass(1);
    for _ in 0..3 {
        put(&mut desk).await.unwrap();
    }
    assert_eq!(desk.put_if_absent(&acme(), "push", &key, brief()).await.unwrap_err().sqlstate, "53400");
    assert_eq!(live(&world).await, 6);
    // When all is over and gone, so are the counters.
    world.pass(700);
    while world.stores.sweep_before(Duration::ZERO).await.unwrap().more {}
    let mut admin = world.db.client();
    for region in ["apac", "enam", "weur"] {
        let left = admin.run(&format!("SELECT count(*) FROM isles.records_{region}")).await;
        assert_eq!(left, ["0"]);
    }
    for _ in 0..6 {
        put(&mut desk).await.unwrap();
    }
    refused(&mut desk).await;
}

/// One who takes, deletes or revokes a record leaves a place for one other.
pub(crate) async fn what_ends_a_record_frees_its_place(world: World) {
    with_quota(&world, 3).await;
    let mut desk = world.desk();
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(put(&mut desk).await.unwrap());
    }
    for round in 0..6 {
        refused(&mut desk).await;
        let id = ids.remove(0);
        let ended = match round % 3 {
            0 => desk.take(&acme(), "push", &id, None).await,
            1 => desk.delete(&acme(), "push", &id).await,
            _ => desk.revoke(&acme(), "push", &id).await,
        };
        assert!(ended.unwrap().is_ok());
        ids.push(put(&mut desk).await.unwrap());
    }
    refused(&mut desk).await;
}

/// What is changed in place is no addition, however full the store is.
pub(crate) async fn what_replaces_a_record_needs_no_place(world: World) {
    let mut desk = world.desk();
    let tokens = StoreConfig { rotates: true, grace_ms: 1_000, max_records: Some(2), ..push() };
    world.stores.create(tokens).await.unwrap();
    let token = desk.put(&acme(), "push", of_app()).await.unwrap().id().unwrap().to_owned();
    let key = named("key");
    assert!(desk.put_at(&acme(), "push", &key, Put::of("0")).await.unwrap().is_ok());
    refused(&mut desk).await;
    let mut token = token;
    for number in 1..=5 {
        let replaced = desk.put_at(&acme(), "push", &key, Put::of(number.to_string())).await.unwrap();
        assert_eq!(replaced.record.unwrap().version, 2 * number, "it was extended, too");
        token = desk.rotate(&acme(), "push", &token, None).await.unwrap().id().unwrap().to_owned();
        assert!(desk.extend(&acme(), "push", &key, None).await.unwrap().is_ok());
    }
    let swapped = desk.compare_and_swap(&acme(), "push", &key, (11, "\"x\"")).await.unwrap();
    assert!(swapped.is_ok());
    refused(&mut desk).await;
    // One that was revoked is over: to put it again is an addition.
    desk.revoke(&acme(), "push", &key).await.unwrap();
    put(&mut desk).await.unwrap();
    assert_eq!(desk.put_at(&acme(), "push", &key, Put::of("1")).await.unwrap_err().sqlstate, "53400");
    assert_eq!(live(&world).await, 2);
}

/// A code for whose token there is no place is not used up.
pub(crate) async fn a_code_without_a_place_for_its_token_stays(world: World) {
    let mut desk = world.desk();
    let change = Alteration { max_per_owner: Some(1), ..Alteration::default() };
    world.stores.alter("refresh", change).await.unwrap();
    let grant = Grant { user: "ann".into(), client: "app".into(), challenge: None, value: "{}".into() };
    let mut codes = Vec::new();
    for _ in 0..2 {
        codes.push(desk.issue_code(&acme(), &grant).await.unwrap().id().unwrap().to_owned());
    }
    let tokens = desk.exchange_code(&acme(), &codes[0], ("app", None)).await.unwrap().unwrap();
    for _ in 0..3 {
        let error = desk.exchange_code(&acme(), &codes[1], ("app", None)).await.unwrap_err();
        assert_eq!((error.sqlstate, error.constraint.as_deref()), ("53400", Some("max_per_owner")));
    }
    assert!(desk.refresh(&acme(), &tokens.refresh.id, "app").await.unwrap().is_ok());
    desk.log_out_everywhere(&acme(), "bob").await.unwrap();
    desk.revoke_owner(&acme(), "refresh", "ann").await.unwrap();
    assert!(desk.exchange_code(&acme(), &codes[1], ("app", None)).await.unwrap().is_ok());
}

/// Records with a second name have quotas, too; one whose name is taken fills no place.
pub(crate) async fn records_with_aliases_are_counted(world: World) {
    world.stores.create(StoreConfig { has_alias: true, max_records: Some(3), ..push() }).await.unwrap();
    let mut desk = world.desk();
    let called = |alias: &str| of_app().called(alias);
    assert!(desk.put(&acme(), "push", called("a")).await.unwrap().is_ok());
    for _ in 0..5 {
        assert_eq!(desk.put(&acme(), "push", called("a")).await.unwrap().outcome, Outcome::Conflict);
    }
    let outcomes = many(&world, |mut desk, number| async move {
        let put = of_app().called(format!("many {number}"));
        desk.put(&acme(), "push", put).await
    })
    .await;
    assert_eq!((outcomes.iter().filter(|outcome| outcome.is_ok()).count(), live(&world).await), (2, 3));
    assert_eq!(desk.put(&acme(), "push", called("b")).await.unwrap_err().sqlstate, "53400");
    assert!(desk.get_by_alias(&acme(), "push", "a", None).await.unwrap().is_ok());
}

/// An owner is bounded by itself, and a tenant by what each of its instances has.
pub(crate) async fn owners_and_tenants_have_their_parts(world: World) {
    // 32 buckets of clients.
    let config = StoreConfig { max_per_owner: Some(2), max_per_tenant: Some(32 * 3 + 5), ..push() };
    world.stores.create(config).await.unwrap();
    let mut desk = world.desk();
    let mut put = async |owner: &str, route: &str| {
        let put = Put::of("{}").routed(route).owned(owner);
        desk.put(&acme(), "push", put).await.map_err(|error| error.constraint.unwrap_or_default()).err()
    };
    assert_eq!((put("ann", "app").await, put("ann", "app").await), (None, None));
    assert_eq!(put("ann", "app").await.as_deref(), Some("max_per_owner"));
    assert_eq!(put("bob", "app").await, None);
    assert_eq!(put("bob", "app").await.as_deref(), Some("max_per_tenant"));
    let mut passed = 3;
    for client in 0..200 {
        for owner in ["cay", "dan"] {
            passed += u64::from(put(owner, &format!("client {client}")).await.is_none());
        }
    }
    assert_eq!((passed, live(&world).await), (32 * 3, 32 * 3), "every bucket is full, and none has more");
    let few = Alteration { max_per_tenant: Some(31), ..Alteration::default() };
    world.stores.alter("push", few).await.unwrap();
    world.pass(600);
    let error = world.desk().put(&acme(), "push", of_app()).await.unwrap_err();
    assert!(error.sqlstate == "53400" && error.hint.unwrap().contains("max_per_tenant = 31"), "less than one each");
}

/// Rows that take a while to count are not counted for everyone who is refused.
pub(crate) async fn rows_are_not_counted_for_each_who_is_refused(world: World) {
    with_quota(&world, 300).await;
    let mut desk = world.desk();
    let mut ids = Vec::new();
    for _ in 0..300 {
        ids.push(put(&mut desk).await.unwrap());
    }
    refused(&mut desk).await;
    desk.take(&acme(), "push", &ids[0], None).await.unwrap();
    refused(&mut desk).await;
    // The pause is fifty microseconds for each row that was counted.
    world.clock.pass(Duration::from_micros(300 * 50));
    put(&mut desk).await.unwrap();
    refused(&mut desk).await;
}

/// A quota is for what is there, too; it is raised, lowered and taken away while records are there.
pub(crate) async fn a_quota_is_set_changed_and_taken_away(world: World) {
    world.stores.create(push()).await.unwrap();
    world.stores.register();
    let mut admin = world.db.client();
    let mut alter = async |what: &str| {
        Box::pin(admin.run(&format!("SELECT isles.alter_store('push', {what})"))).await;
        let stores = Box::pin(admin.run("SELECT * FROM isles.stores()")).await;
        let row = stores.into_iter().find(|row| row.starts_with("push|")).unwrap();
        row.split('|').skip(8).collect::<Vec<_>>().join("|")
    };
    let mut desk = world.desk();
    for _ in 0..5 {
        put(&mut desk).await.unwrap();
    }
    assert_eq!(alter("max_records => 7").await, "7|∅|∅");
    for _ in 0..2 {
        put(&mut desk).await.unwrap();
    }
    refused(&mut desk).await;
    assert_eq!(alter("max_records => 3, max_per_owner => 9").await, "3|9|∅");
    refused(&mut desk).await;
    assert_eq!(alter("max_records => 8").await, "8|9|∅");
    put(&mut desk).await.unwrap();
    refused(&mut desk).await;
    assert_eq!(alter("unlimited => true, max_per_tenant => 32000").await, "∅|∅|32000");
    put(&mut desk).await.unwrap();
    assert_eq!(alter("unlimited => true").await, "∅|∅|∅");
    for _ in 0..20 {
        put(&mut desk).await.unwrap();
    }
    // Nobody has counted meanwhile.
    assert_eq!(alter("max_records => 10").await, "10|∅|∅");
    refused(&mut desk).await;
    assert_eq!(live(&world).await, 29);
    world.pass(600);
    for _ in 0..10 {
        put(&mut desk).await.unwrap();
    }
    refused(&mut desk).await;
    // What was put without a quota has long expired, so a counter that is not there has nothing to count.
    world.pass(3_600);
    while world.stores.sweep_before(Duration::ZERO).await.unwrap().more {}
    for _ in 0..10 {
        put(&mut desk).await.unwrap();
    }
    refused(&mut desk).await;
}

pub(crate) async fn quotas_that_make_no_sense_are_refused(world: World) {
    world.stores.register();
    let mut admin = world.db.client();
    for quota in ["max_records", "max_per_owner", "max_per_tenant"] {
        let most = if quota == "max_per_tenant" { 1_000_000_000 } else { MAX_RECORDS };
        for wrong in ["0".to_owned(), "-1".into(), (most + 1).to_string()] {
            for sql in [
                format!(
                    "SELECT isles.create_store('bad', prefix => 'bad', key => 'uuid', \"group\" => 'vc', ttl => '1 s', {quota} => {wrong})"
                ),
                format!("SELECT isles.alter_store('session', {quota} => {wrong})"),
            ] {
                let error = Box::pin(admin.try_run(&sql)).await.unwrap_err();
                assert_eq!(error.sqlstate, "22023", "{sql}");
                assert!(error.message.contains(&format!("{quota}: is 1 to {most}")), "{error}");
            }
        }
        let single = format!("SELECT isles.alter_store('keymanager', {quota} => 5)");
        let error = Box::pin(admin.try_run(&single)).await.unwrap_err();
        assert!(error.sqlstate == "22023" && error.message.contains("singleton"), "{error}");
    }
    assert!(world.stores.list().iter().all(|store| store.config().counting.is_none()));
}

/// A proof is noted in each generation in force, and each counts its own.
pub(crate) async fn each_generation_counts_by_itself(world: World) {
    with_quota(&world, 2).await;
    let mut desk = world.desk();
    let key = |number: u64| named(&number.to_string());
    for number in 0..2 {
        assert!(desk.put_if_absent(&acme(), "push", &key(number), Put::of("1")).await.unwrap().is_ok());
    }
    refused(&mut desk).await;
    world.place(2, [48, 20, 24], &[(1, FIRST, 300)]).await;
    // New ids are of the new generation, and fill it.
    put(&mut desk).await.unwrap();
    // What must be new in all of them has no place in the old one.
    assert_eq!(desk.put_if_absent(&acme(), "push", &key(9), Put::of("1")).await.unwrap_err().sqlstate, "53400");
    assert_eq!(desk.put_if_absent(&acme(), "push", &key(1), Put::of("1")).await.unwrap().outcome, Outcome::Replayed);
    // When the old one has ended, its records fill nothing any more.
    world.pass(300);
    assert!(desk.put_if_absent(&acme(), "push", &key(9), Put::of("1")).await.unwrap().is_ok());
    refused(&mut desk).await;
    world.pass(300);
    // Counters keep no generation in force.
    assert!(desk.is_drained(Some(&acme()), isles_kernel::id::Generation::FIRST).await.unwrap());
}

/// A bucket takes its counter along: on the other shard there are as many places as before.
pub(crate) async fn a_count_goes_with_its_bucket(world: World) {
    with_quota(&world, 4).await;
    let mut desk = world.desk();
    let mut admin = world.db.client();
    let mut ids = vec![put(&mut desk).await.unwrap(), put(&mut desk).await.unwrap()];
    let Address::Id(id) = &ids[0] else { panic!("no id") };
    let region = id.split(':').nth(1).unwrap().to_owned();
    let group = GroupName::new(format!("records-{region}")).unwrap();
    // All that the shards of this region have goes round.
    let routing = world.db.database.current_routing();
    let before: Vec<Option<ShardId>> =
        (0..256).map(|bucket| routing.shard_of_bucket(&group, BucketId(bucket)).cloned()).collect();
    for shard in 0..3 {
        let id = ShardId::new(format!("s{shard}")).unwrap();
        let mine = (0..256).filter(|bucket| before[*bucket as usize].as_ref() == Some(&id));
        let mine: Vec<String> = mine.map(|bucket: u32| bucket.to_string()).collect();
        if mine.is_empty() {
            continue;
        }
        let to = (shard + 1) % 3;
        let sql = format!("CREATE MOVE OF BUCKETS 'records-{region}/{}' TO s{to} WITH (auto)", mine.join(","));
        Box::pin(admin.run(&sql)).await;
        if ids.len() == 4 {
            refused(&mut desk).await;
            desk.delete(&acme(), "push", &ids.remove(0)).await.unwrap();
        }
        ids.push(put(&mut desk).await.unwrap());
        world.until_moved().await;
    }
    let after = world.db.database.current_routing();
    assert!((0..256).all(|at| after.shard_of_bucket(&group, BucketId(at)) != before[at as usize].as_ref()));
    refused(&mut desk).await;
    assert_eq!((live(&world).await, ids.len()), (4, 4));
}

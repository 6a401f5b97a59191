//! A shard that is one tenant's: it refuses every other, by each way in, and stays whose it is.

use crate::fixtures::{Options, World};
use crate::given::{
    Db, INT8, TEXT, acts_for, all_open, claim_bucket, claim_tenant, count_of, insert_note, insert_user, notes, select,
    sqlstate, stream, tenant, users, values,
};
use crate::tenants::readable;
use futures::future::join_all;
use isles_engine::binding::Binding;
use isles_engine::error::{Result, ShardError};
use isles_engine::fence::{Access, Claim};
use isles_engine::shard::{
    ActsFor, Batch, Begin, ImportMode, Incoming, Outcome, Request, RowVersion, StoredRow, Transaction,
};
use isles_kernel::names::{RoutingVersion, Seq};
use isles_kernel::schema::Unit;

fn of(name: &str) -> Binding {
    Binding::Tenant(tenant(name).expect("a name"))
}

/// A shard with users and notes that is `acme`'s.
async fn bound(world: &World) -> Db {
    let db = world.empty().await;
    db.bind(Binding::Free).await.expect("a new shard is kept for one tenant");
    let db = db.set_up(vec![users(), notes()]).await;
    db.bind(of("acme")).await.expect("a free shard is given to a tenant");
    db
}

fn check_refusal<T: std::fmt::Debug>(refused: Result<T>) {
    let error = refused.expect_err("the shard is another's");
    assert_eq!(error, ShardError::OtherTenant);
    let error = error.for_people();
    assert_eq!((error.sqlstate, error.message.as_str()), ("XX000", "the shard belongs to another tenant"));
    assert_eq!((error.detail, error.hint), (None, None));
}

async fn write(db: &Db, claim: Claim, whom: ActsFor) -> Result<Vec<Outcome>> {
    let name = whom.key().filter(|name| !name.is_empty()).map(str::to_string);
    let insert = insert_note(db.engine(), name.as_deref(), 1, "written").writing();
    db.execute(Request::write(claim, vec![insert]).acting_for(whom)).await
}

/// Once as one statement that Isles composed, and once with another beside it.
async fn read(db: &Db, claim: Claim, whom: ActsFor) -> [Result<Vec<Outcome>>; 2] {
    let sql = format!("SELECT count(*) FROM {}", readable(db.engine(), "notes"));
    let one = Request::read(claim, count_of(&sql).composed()).acting_for(whom);
    let mut two = one.clone();
    two.statements.push(count_of("SELECT count(*) FROM users").composed());
    [db.execute(one).await, db.execute(two).await]
}

async fn begin(db: &Db, claim: Claim, access: Access, whom: ActsFor) -> Result<Box<dyn Transaction>> {
    db.begin(Begin::new(claim, access).acting_for(whom)).await
}

/// I-44: whatever a router believes.
pub(crate) async fn another_tenant_is_refused_by_each_way_in(world: World) {
    let db = bound(&world).await;
    write(&db, claim_tenant(1, tenant("acme")), acts_for(Some("acme"))).await.expect("its tenant writes");
    let before = db.rows("notes").await;
    let free = world.empty().await;
    free.bind(Binding::Free).await.expect("it is kept");
    let free = free.set_up(vec![users(), notes()]).await;
    for db in [&db, &free] {
        for name in [Some("beta"), Some("Acme"), Some("acme2"), None] {
            for claim in [claim_tenant(1, name.and_then(tenant)), claim_tenant(1, tenant("acme")), Claim::default()] {
                let whom = acts_for(name);
                check_refusal(write(db, claim.clone(), whom.clone()).await);
                for refused in read(db, claim.clone(), whom.clone()).await {
                    check_refusal(refused);
                }
                for access in [Access::Read, Access::Write] {
                    check_refusal(begin(db, claim.clone(), access, whom.clone()).await.map(drop));
                }
            }
        }
    }
    assert_eq!(db.rows("notes").await, before);
    assert_eq!(free.rows("notes").await, []);
    for answer in read(&db, claim_tenant(1, tenant("acme")), acts_for(Some("acme"))).await {
        assert_eq!(answer.expect("its tenant reads")[0].rows, [values![1]]);
    }
}

/// I-44: a transaction that began without a tenant claims none but the shard's.
pub(crate) async fn a_later_claim_of_another_tenant_is_refused(world: World) {
    let db = bound(&world).await;
    for access in [Access::Read, Access::Write] {
        for name in [Some("beta"), None] {
            for whom in [ActsFor::Nobody, acts_for(Some("acme"))] {
                let mut transaction = begin(&db, claim_bucket(1, 0), access, whom).await.expect("it begins");
                check_refusal(transaction.claim(claim_tenant(1, name.and_then(tenant))).await);
                let after = transaction.execute(&count_of("SELECT count(*) FROM users")).await;
                assert_eq!(after.map_err(|error| sqlstate(&error)), Err("25P02"), "the transaction is over");
            }
        }
        let mut transaction =
            begin(&db, claim_bucket(1, 0), access, acts_for(Some("acme"))).await.expect("its tenant begins");
        transaction.claim(claim_tenant(1, tenant("acme"))).await.expect("its tenant is claimed");
        transaction.rollback().await.expect("it ends");
    }
}

/// Tables that are no tenant's are served as anywhere.
pub(crate) async fn requests_that_act_for_nobody_are_served(world: World) {
    let db = bound(&world).await;
    write(&db, claim_tenant(1, tenant("acme")), acts_for(Some("acme"))).await.expect("its tenant writes");
    let insert = Request::write(claim_bucket(1, 1), vec![insert_user(1, "a", 1).writing()]);
    db.execute(insert).await.expect("a user is inserted");
    let mut transaction = begin(&db, claim_bucket(1, 1), Access::Write, ActsFor::Nobody).await.expect("it begins");
    let found = transaction.execute(&select(&[TEXT], "SELECT email FROM users", vec![])).await.expect("it reads");
    assert_eq!(found.rows, [values!["a"]]);
    let sql = format!("SELECT count(*) FROM {}", readable(db.engine(), "notes"));
    let hidden = transaction.execute(&select(&[INT8], &sql, vec![])).await.expect("it reads");
    assert_eq!(hidden.rows, [values![0]], "tenant tables are empty to nobody");
    transaction.commit().await.expect("it commits");
}

/// I-44: rows of another tenant do not come in from elsewhere either.
pub(crate) async fn rows_of_another_tenant_are_not_applied_or_imported(world: World) {
    let db = bound(&world).await;
    for name in [tenant("beta"), None] {
        let row = StoredRow { unit: Unit::Tenant(name.clone()), values: values![1, "x"] };
        check_refusal(db.import("notes", vec![row], ImportMode::Insert).await);
        let incoming = Incoming {
            table: "notes".into(),
            unit: Unit::Tenant(name),
            key: values![1],
            version: RowVersion { epoch: RoutingVersion(1), seq: Seq(1) },
            row: Some(values![1, "x"]),
        };
        let batch = Batch::new(&stream("move"), vec![incoming]);
        check_refusal(db.apply(batch).await);
    }
    let own = StoredRow { unit: Unit::Tenant(tenant("acme")), values: values![1, "x"] };
    assert_eq!(db.import("notes", vec![own], ImportMode::Insert).await, Ok(1));
}

/// A binding goes forward, once, and outlives the process.
pub(crate) async fn a_shard_is_bound_once_and_for_ever(world: World) {
    let fixture = world.fixture().await;
    let shard = fixture.open(&Options::default()).await;
    assert_eq!(shard.binding().await, Ok(Binding::Shared));
    assert!(shard.bind(of("acme")).await.is_err(), "it must be kept for one tenant before");
    for _ in 0..2 {
        shard.bind(Binding::Free).await.expect("it is kept for one tenant");
    }
    let shard = fixture.reopen(shard).await;
    assert_eq!(shard.binding().await, Ok(Binding::Free));
    for _ in 0..2 {
        shard.bind(of("acme")).await.expect("it is given to a tenant");
    }
    let shard = fixture.reopen(shard).await;
    assert_eq!(shard.binding().await, Ok(of("acme")));
    check_refusal(shard.bind(of("beta")).await);
    assert!(shard.bind(Binding::Free).await.is_err());
    assert!(shard.bind(Binding::Shared).await.is_err());
    assert_eq!(shard.binding().await, Ok(of("acme")));
    let db = Db::new(shard);
    db.set_fences(all_open(), crate::given::FENCE_TIME).await.expect("fences are set");
    check_refusal(
        db.begin(Begin::new(Claim::default(), Access::Read).acting_for(acts_for(Some("beta")))).await.map(drop),
    );
}

/// Rows of many tenants may be in it.
pub(crate) async fn a_shard_with_tables_cannot_become_one_tenants(world: World) {
    let db = world.shard().await;
    assert_eq!(db.bind(Binding::Free).await.map_err(|error| sqlstate(&error)), Err("55000"));
    assert_eq!(db.binding().await, Ok(Binding::Shared));
    db.put_note(Some("acme"), 1, "one").await;
    db.put_note(Some("beta"), 1, "another").await;
}

/// I-44: of many who give it away at once, one does.
pub(crate) async fn a_shard_is_given_to_one_of_many(world: World) {
    let db = world.empty().await;
    db.bind(Binding::Free).await.expect("it is kept");
    let names: Vec<String> = (0..8).map(|n| format!("t{n}")).collect();
    let tries = join_all(names.iter().map(|name| db.bind(of(name)))).await;
    let won: Vec<usize> = (0..tries.len()).filter(|at| tries[*at].is_ok()).collect();
    assert_eq!(won.len(), 1, "{tries:?}");
    assert_eq!(db.binding().await, Ok(of(&names[won[0]])));
    tries.into_iter().filter(|tried| tried.is_err()).for_each(check_refusal);
}

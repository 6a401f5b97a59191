//! A tenant that is dropped.

use crate::harness::Client;
use crate::world::{FIRST, World, acme, tenant};
use isles_stores::identity::Device;
use isles_stores::{Address, Outcome, Put, StoreConfig};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Records of one client are in one instance, at most a hundred.
fn push() -> StoreConfig {
    StoreConfig {
        name: "push".into(),
        prefix: "psh".into(),
        group: "client-based".into(),
        key: "client_id".into(),
        ttl_ms: 600_000,
        max_records: Some(100),
        ..StoreConfig::default()
    }
}

fn of_app() -> Put {
    Put::of("{}").routed("app")
}

/// The records of a tenant go with it, live ones too, in all generations; nobody else's do. One that comes back begins
/// with nothing.
pub(crate) async fn records_of_a_dropped_tenant_are_dropped(world: World) {
    world.stores.create(push()).await.unwrap();
    let mut desk = world.desk();
    let mut ids = Vec::new();
    for at in 0..2 {
        if at == 1 {
            world.place(2, [48, 20, 24], &[(1, FIRST, 3_600)]).await;
        }
        for name in ["acme", "other"] {
            for _ in 0..40 {
                let put = desk.put(&tenant(name), "session", Put::of("{}")).await.unwrap();
                ids.push((name, Address::id(put.id().unwrap())));
                desk.start_device(&tenant(name), Device::Code, ("tv", "{}"), (5, None)).await.unwrap();
                desk.put(&tenant(name), "push", of_app()).await.unwrap();
            }
            desk.next_version(&tenant(name), "worker").await.unwrap();
        }
    }
    let mut admin = world.db.client();
    let tables = [
        "records_apac",
        "records_enam",
        "records_weur",
        "aliased_apac",
        "aliased_enam",
        "aliased_weur",
        "records_global",
    ];
    let count = async |admin: &mut Client, name: &str| {
        let mut all = 0;
        for table in tables {
            let sql = format!("SELECT count(*) FROM isles.{table} WHERE tenant = '{name}'");
            // A region without aliased records has no such table.
            all += Box::pin(admin.try_run(&sql)).await.map_or(0, |rows| rows[0].parse::<u64>().unwrap());
        }
        all
    };
    let others = count(&mut admin, "other").await;
    assert!(count(&mut admin, "acme").await > 200 && others > 200);
    Box::pin(admin.run("DROP TENANT acme")).await;
    assert_eq!((count(&mut admin, "acme").await, count(&mut admin, "other").await), (0, others));
    for (name, id) in &ids {
        let found = desk.get(&tenant(name), "session", id).await.unwrap().outcome;
        assert_eq!(found, if *name == "acme" { Outcome::NotFound } else { Outcome::Ok });
    }
    let error = Box::pin(admin.try_run("DROP TENANT acme")).await.unwrap_err();
    assert_eq!(error.sqlstate, "42704", "{error}");
    for _ in 0..100 {
        assert!(desk.put(&acme(), "push", of_app()).await.unwrap().is_ok());
    }
    assert_eq!(desk.put(&acme(), "push", of_app()).await.unwrap_err().sqlstate, "53400");
}

/// Whoever puts records while their tenant is dropped is refused, and what was put before goes with the rest.
pub(crate) async fn a_tenant_that_is_being_dropped_gets_no_records(world: World) {
    let mut admin = world.db.client();
    let is_over = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..4)
        .map(|_| {
            let (mut desk, is_over) = (world.desk(), is_over.clone());
            tokio::spawn(async move {
                let mut put = 0;
                while !is_over.load(Ordering::SeqCst) {
                    match desk.put(&acme(), "session", Put::of("{}")).await {
                        Ok(_) => put += 1,
                        Err(error) => return (put, Some(error.sqlstate)),
                    }
                }
                (put, None)
            })
        })
        .collect();
    while world.desk().count(&acme(), "session").await.unwrap() < 50 {
        tokio::task::yield_now().await;
    }
    Box::pin(admin.run("DROP TENANT acme")).await;
    let left = world.desk().count(&acme(), "session").await.unwrap();
    is_over.store(true, Ordering::SeqCst);
    let mut refused = 0;
    for writer in writers {
        let (put, state) = writer.await.unwrap();
        assert!(put > 0 && matches!(state, None | Some("55000")), "{state:?}");
        refused += usize::from(state.is_some());
    }
    // One who was not refused has put records again, once the name was free.
    assert!(refused > 0 && (refused < 4 || left == 0), "{refused} were refused, {left} records are left");
}

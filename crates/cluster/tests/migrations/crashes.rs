//! Migrations that are interrupted, and go on when the database is opened again.

use crate::world::{BY_OWNER, World};
use isles_cluster::migrations::{MigrationInfo, Planted, State, Stop};

/// Lets a migration begin, and its driver die somewhere.
async fn die_at(world: World, stop: Stop) -> World {
    let world = world.reopen(Some(Planted::StopAt(stop))).await;
    let running = world.begin(BY_OWNER);
    world.until("a driver", |info| !info.migration.state.is_over() && info.migration.driver > 0).await;
    world.until_nobody_drives().await;
    running.abort();
    let _ = running.await;
    world
}

/// I-71, I-72, property 19: an upgrade with data, on each dialect, interrupted at each step. Writes that come while nobody
/// drives it are there in the end; a driver that dies where it did not before leaves nothing half done.
pub(crate) async fn upgrade_with_data_interrupted_at_each_step(mut world: World) {
    for stop in [Stop::BeforeCopy, Stop::InCopy, Stop::BeforeSwap, Stop::AfterSwap, Stop::BeforeDrop] {
        world.with_notes(1_500).await;
        world = die_at(world, stop).await;
        let state = world.migration().await.unwrap().migration.state;
        let is_before = [Stop::BeforeCopy, Stop::InCopy, Stop::BeforeSwap].contains(&stop);
        assert_eq!(state, if is_before { State::Copying } else { State::Cleaning }, "{stop:?}");
        if stop == Stop::InCopy {
            let copied = world.migration().await.unwrap().migration.rows_copied();
            assert!(copied > 0 && copied < 1_500, "{copied} rows are copied");
        }
        let mut rows = [375, 375, 375, 375];
        if is_before {
            // The table is what it was: rows come, go, and are given to others.
            let mut client = world.client();
            client.run("INSERT INTO notes VALUES (2000, 'tenant 0', 'new'), (2001, 'tenant 1', 'new')").await;
            client.run("DELETE FROM notes WHERE id = 2").await;
            client.run("UPDATE notes SET owner = 'tenant 0' WHERE id IN (1, 1499)").await;
            client.run("UPDATE notes SET body = 'changed' WHERE id IN (0, 1496)").await;
            rows = [378, 375, 374, 374];
        }
        world = world.reopen(None).await;
        assert_eq!(world.until_over().await, State::Done, "{stop:?}");
        let mut found = Vec::new();
        for tenant in ["tenant 0", "tenant 1", "tenant 2"] {
            let count = world.client_of(tenant).await.run("SELECT count(*), count(DISTINCT id) FROM notes").await;
            found.extend(count);
        }
        let mut client = world.client();
        client.run("SET isles.null_tenant = on").await;
        found.extend(client.run("SELECT count(*), count(DISTINCT id) FROM notes").await);
        assert_eq!(found, rows.map(|n| format!("{n}|{n}")), "{stop:?}");
        if is_before {
            let mut first = world.client_of("tenant 0").await;
            let changed = first.run("SELECT id, body FROM notes WHERE body NOT LIKE 'note %' ORDER BY id").await;
            assert_eq!(changed, ["0|changed", "1496|changed", "2000|new"], "{stop:?}");
            assert_eq!(first.run("SELECT owner FROM notes WHERE id = 1").await, ["tenant 0"], "{stop:?}");
        }
        assert_eq!(world.traces().await, Vec::<String>::new(), "{stop:?}");
        client.run("DROP TABLE notes").await;
    }
}

/// I-72
pub(crate) async fn an_undoing_that_was_interrupted_goes_on(mut world: World) {
    for stop in [Stop::InCopy, Stop::InUndo, Stop::BeforeDrop] {
        world.with_notes(1_500).await;
        if stop == Stop::InCopy {
            world = die_at(world, stop).await;
            world.database().plant_migration(Some(Planted::StopAt(Stop::InUndo)));
            world.client().run("CANCEL MIGRATION notes").await;
            world.until_nobody_drives().await;
        } else {
            world = world.reopen(Some(Planted::NeverSwap)).await;
            let running = world.begin(BY_OWNER);
            let is_copied =
                |info: &MigrationInfo| !info.migration.state.is_over() && info.migration.rows_copied() == 1_500;
            world.until("all rows", is_copied).await;
            world.database().plant_migration(Some(Planted::StopAt(stop)));
            world.client().run("CANCEL MIGRATION notes").await;
            world.until_nobody_drives().await;
            running.abort();
            let _ = running.await;
        }
        assert_eq!(world.migration().await.unwrap().migration.state, State::Undoing, "{stop:?}");
        assert_ne!(world.traces().await, Vec::<String>::new(), "{stop:?}: there is something to undo");
        world = world.reopen(None).await;
        assert_eq!(world.until_over().await, State::Cancelled, "{stop:?}");
        assert_eq!(world.traces().await, Vec::<String>::new(), "{stop:?}");
        let mut client = world.client();
        assert_eq!(client.run("SELECT count(*), count(owner) FROM notes").await, ["1500|1125"], "{stop:?}");
        client.run("DROP TABLE notes").await;
    }
}

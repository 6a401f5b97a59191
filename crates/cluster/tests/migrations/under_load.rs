//! Clients that write while their table becomes a tenant table, and what they have in the end.

use crate::harness::Client;
use crate::world::{BY_OWNER, World};
use isles_cluster::migrations::{Planted, State};
use isles_engine::env::{Env, TokioEnv};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::task::JoinHandle;

const WRITERS: usize = 4;
const OWNERS: [&str; 3] = ["tenant 0", "tenant 1", "tenant 2"];

/// What a writer knows of its own rows: id to owner and body. `doubtful` is one whose fate it was not told.
#[derive(Default)]
struct Known {
    rows: BTreeMap<u64, (Option<&'static str>, String)>,
    writes: usize,
}

/// Inserts, changes, gives to other owners and deletes rows of its own until the table is a tenant table.
async fn write(mut client: Client, number: usize, begun: Arc<AtomicUsize>) -> Known {
    let (env, mut known) = (TokioEnv::current(), Known::default());
    let mut next = 10_000 * (number as u64 + 1);
    loop {
        let dice = env.random();
        let owner = [Some(OWNERS[0]), Some(OWNERS[1]), Some(OWNERS[2]), None][(dice % 4) as usize];
        let body = format!("write {} of {number}", known.writes);
        let shown = owner.map_or("NULL".into(), |owner| format!("'{owner}'"));
        let some = known.rows.keys().nth((dice >> 8) as usize % known.rows.len().max(1)).copied();
        let (sql, id) = match ((dice >> 4) % 4, some) {
            (0, Some(id)) => (format!("DELETE FROM notes WHERE id = {id}"), id),
            (1, Some(id)) => (format!("UPDATE notes SET owner = {shown}, body = '{body}' WHERE id = {id}"), id),
            // In a transaction, with something that is taken back.
            (2, Some(id)) => {
                let sql = format!("UPDATE notes SET owner = {shown}, body = '{body}' WHERE id = {id}");
                if client.try_run("BEGIN").await.is_err() {
                    return known;
                }
                let done = async {
                    client.try_run("SAVEPOINT s").await?;
                    client.try_run(&format!("DELETE FROM notes WHERE id = {id}")).await?;
                    client.try_run("ROLLBACK TO s").await?;
                    client.try_run(&sql).await?;
                    client.try_run("COMMIT").await
                };
                match done.await {
                    Ok(tag) if tag == ["COMMIT"] => {
                        known.rows.insert(id, (owner, body));
                        known.writes += 1;
                        begun.fetch_add(1, Ordering::SeqCst);
                        continue;
                    }
                    Ok(tag) => panic!("{tag:?}"),
                    Err(error) if error.sqlstate == "40001" => {
                        client.run("ROLLBACK").await;
                        continue;
                    }
                    Err(error) => {
                        assert_eq!(error.sqlstate, "55000", "{error:?}");
                        client.run("ROLLBACK").await;
                        return known;
                    }
                }
            }
            _ => {
                next += 1;
                (format!("INSERT INTO notes VALUES ({next}, {shown}, '{body}')"), next)
            }
        };
        match client.try_run(&sql).await {
            Ok(_) if sql.starts_with("DELETE") => drop(known.rows.remove(&id)),
            Ok(_) => drop(known.rows.insert(id, (owner, body))),
            Err(error) if error.sqlstate == "40001" => continue,
            // The table has become a tenant table: nothing of this statement has happened.
            Err(error) if error.sqlstate == "55000" => return known,
            Err(error) => panic!("{sql}: {error:?}"),
        }
        known.writes += 1;
        begun.fetch_add(1, Ordering::SeqCst);
    }
}

/// Rows as their writers know them, and as they are; and how many writes there were.
async fn migrate_under_load(world: &World) -> (Vec<String>, Vec<String>, usize) {
    let mut client = world.client();
    client.run("CREATE TABLE notes (id bigint PRIMARY KEY, owner text, body text, UNIQUE (id, body))").await;
    client.run("INSERT INTO notes SELECT n, 'tenant 0', 'old' FROM generate_series(1, 2000) AS s(n)").await;
    let begun = Arc::new(AtomicUsize::new(0));
    let writers: Vec<JoinHandle<Known>> =
        (0..WRITERS).map(|number| tokio::spawn(write(world.client(), number, begun.clone()))).collect();
    while begun.load(Ordering::SeqCst) < 40 {
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    client.run(BY_OWNER).await;
    let (mut wanted, mut writes) = (vec!["tenant 0: 2000 old".to_string()], 0);
    for writer in writers {
        let known = writer.await.unwrap();
        writes += known.writes;
        let row = |(id, (owner, body)): (&u64, &(Option<&str>, String))| {
            let owner = owner.unwrap_or("∅");
            format!("{owner}: {id}|{owner}|{body}")
        };
        wanted.extend(known.rows.iter().map(row));
    }
    assert_eq!(world.until_over().await, State::Done);
    let select = "SELECT id, owner, body FROM notes WHERE id > 2000 ORDER BY id";
    let mut found = world.rows_by_tenant(&OWNERS, select).await;
    let mut first = world.client_of(OWNERS[0]).await;
    let old = first.run("SELECT count(*) FROM notes WHERE body = 'old'").await;
    found.push(format!("tenant 0: {} old", old[0]));
    wanted.sort();
    found.sort();
    (wanted, found, writes)
}

/// I-71: what writers were told is what is there, in the partition of its owner and in no other.
pub(crate) async fn writers_lose_nothing(world: World) {
    let (wanted, found, writes) = migrate_under_load(&world).await;
    assert!(writes > 40, "the writers have written: {writes}");
    assert_eq!(found, wanted);
    assert_eq!(world.traces().await, Vec::<String>::new());
    let pause = world.migration().await.unwrap().migration.pause_micros.unwrap();
    assert!(pause < 30_000_000, "writers waited for {pause} µs");
}

/// I-69, planted bug 4: a swap that leaves out the end of the logs is found.
pub(crate) async fn a_swap_without_the_tail_is_found_out(world: World) {
    let world = world.reopen(Some(Planted::NoDrain)).await;
    for attempt in 0..10 {
        let (wanted, found, _) = migrate_under_load(&world).await;
        if wanted != found {
            return;
        }
        world.client().run("DROP TABLE notes").await;
        eprintln!("attempt {attempt}: nobody wrote in the last moment");
    }
    panic!("the bug was not found");
}

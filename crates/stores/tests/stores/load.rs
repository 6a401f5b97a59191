//! Logins, one after the other, while placements change and buckets move.

use crate::world::{FIRST, World, acme};
use isles_stores::identity::Grant;
use isles_stores::{Address, Desk, Outcome, Put};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Clients of a short run, and of a long one.
const CLIENTS: (usize, usize) = (6, 48);
/// Flows of a run that nobody asked more of. Each is seven operations.
const FLOWS: u64 = 180;

fn flows() -> u64 {
    isles_sim::rng::number_from_env("ISLES_LOGIN_FLOWS").unwrap_or(FLOWS)
}

fn clients() -> usize {
    if flows() > 10_000 { CLIENTS.1 } else { CLIENTS.0 }
}

/// A login: code, exchange, session, refresh, and each thing that may happen once a second time.
async fn login(desk: &mut Desk<'static>, user: &str) {
    let grant = Grant { user: user.into(), client: "app".into(), challenge: None, value: "{}".into() };
    let code = desk.issue_code(&acme(), &grant).await.unwrap().id().unwrap().to_owned();
    let proof = format!("proof of {code}");
    let minute = Duration::from_secs(60);
    assert_eq!(desk.pass_proof(&acme(), ("k", &proof), minute).await.unwrap().outcome, Outcome::Ok, "{proof}");
    let tokens = desk.exchange_code(&acme(), &code, ("app", None)).await.unwrap();
    let first = tokens.unwrap_or_else(|outcome| panic!("{code} is {outcome:?}")).refresh.id;
    let session = desk.put(&acme(), "session", Put::of("{}").owned(user)).await.unwrap().id().unwrap().to_owned();
    let second = desk.refresh(&acme(), &first, "app").await.unwrap();
    assert_eq!(second.outcome, Outcome::Ok, "{first}");
    let read = desk.get(&acme(), "session", &Address::id(&session)).await.unwrap();
    assert_eq!(read.outcome, Outcome::Ok, "{session}");
    let third = desk.refresh(&acme(), second.id().unwrap(), "app").await.unwrap();
    assert_eq!(third.outcome, Outcome::Ok);
    // Nothing passes twice.
    assert_eq!(desk.pass_proof(&acme(), ("k", &proof), minute).await.unwrap().outcome, Outcome::Replayed, "{proof}");
    assert_eq!(desk.exchange_code(&acme(), &code, ("app", None)).await.unwrap(), Err(Outcome::Replayed), "{code}");
    assert_eq!(desk.refresh(&acme(), third.id().unwrap(), "app").await.unwrap().outcome, Outcome::Revoked);
}

/// What somebody has from a login of some time ago: a session, and a refresh token.
struct Earlier {
    session: String,
    token: String,
}

impl Earlier {
    async fn new(desk: &mut Desk<'static>, user: &str) -> Earlier {
        let session = desk.put(&acme(), "session", Put::of("{}").owned(user)).await.unwrap().id().unwrap().to_owned();
        let put = Put::of("{}").routed(format!("{user}:app")).bound("app");
        let token = desk.put(&acme(), "refresh", put).await.unwrap().id().unwrap().to_owned();
        Earlier { session, token }
    }

    /// Both are good, in whatever generation they were made.
    async fn come_back(&mut self, desk: &mut Desk<'static>) {
        let read = desk.get(&acme(), "session", &Address::id(&self.session)).await.unwrap();
        assert_eq!(read.outcome, Outcome::Ok, "{}", self.session);
        let next = desk.refresh(&acme(), &self.token, "app").await.unwrap();
        assert_eq!(next.outcome, Outcome::Ok, "{}", self.token);
        self.token = next.id().unwrap().to_owned();
    }
}

/// I-37: no flow fails, no code is used twice, no proof passes twice.
pub(crate) async fn logins_go_on_while_generations_change_and_buckets_move(world: World) {
    let world = Arc::new(world);
    let (done, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let wanted = flows();
    let clients: Vec<_> = (0..clients())
        .map(|client| {
            let (mut desk, done, stop) = (world.desk(), done.clone(), stop.clone());
            tokio::spawn(async move {
                let mut earlier = Earlier::new(&mut desk, &format!("user{client}")).await;
                for number in 0.. {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    login(&mut desk, &format!("user{client}-{number}")).await;
                    earlier.come_back(&mut desk).await;
                    done.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    let until = async |count: u64| {
        while done.load(Ordering::SeqCst) < count {
            assert!(clients.iter().all(|client| !client.is_finished()), "a client has given up");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let moving = async {
        let mut admin = world.db.client();
        for (at, region) in ["enam", "weur", "apac"].into_iter().enumerate() {
            until(wanted * (at as u64 + 1) / 8).await;
            let from = format!("SELECT count(*) FROM isles.records_{region}");
            assert_ne!(admin.run(&from).await, ["0"]);
            // Some buckets of each shard go to the next one.
            for shard in 0..3 {
                let owned = world.db.database.current_routing();
                let group = isles_kernel::names::GroupName::new(format!("records-{region}")).unwrap();
                let id = isles_kernel::names::ShardId::new(format!("s{shard}")).unwrap();
                let mine =
                    |bucket: &u32| owned.shard_of_bucket(&group, isles_kernel::names::BucketId(*bucket)) == Some(&id);
                let some: Vec<String> = (0..256).filter(mine).take(24).map(|bucket| bucket.to_string()).collect();
                let target = (shard + 1) % 3;
                let sql =
                    format!("CREATE MOVE OF BUCKETS 'records-{region}/{}' TO s{target} WITH (auto)", some.join(","));
                admin.run(&sql).await;
            }
            // A move ends by itself.
            world.until_moved().await;
        }
    };
    let changing = async {
        let plans: [[u32; 3]; 3] = [[48, 20, 24], [64, 64, 64], [32, 32, 40]];
        let mut previous: Vec<(u32, [u32; 3], u64)> = vec![(1, FIRST, 3_600)];
        for (at, counts) in plans.into_iter().enumerate() {
            until(wanted * (at as u64 + 1) / 5).await;
            world.place(at as u32 + 2, counts, &previous).await;
            previous.insert(0, (at as u32 + 2, counts, 3_600));
        }
        until(wanted).await;
    };
    tokio::join!(moving, changing);
    stop.store(true, Ordering::SeqCst);
    for client in clients {
        client.await.unwrap();
    }
    let fallbacks: u64 = world.stores.fallbacks().iter().map(|fallback| fallback.count).sum();
    println!("{} flows, {fallbacks} reads of previous generations", done.load(Ordering::SeqCst));
    assert!(fallbacks > 0, "nothing of an earlier generation was used");
    let mut admin = world.db.client();
    let moves = admin.run("SHOW MOVES").await;
    assert_eq!(moves.len(), 9, "{moves:?}");
}

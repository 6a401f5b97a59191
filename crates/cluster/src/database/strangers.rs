//! Which shards have strangers: rows of buckets that they do not own, because these are being moved here or away.
//!
//! A shard refuses statements that would take strangers for its own. What it has said once is remembered here, so that
//! later statements keep to the shard's buckets from the start. A mover in the same process says it beforehand, and says
//! when they have gone. To remember too much costs a condition in some statements; to remember too little, a refusal.
//!
//! Invariants (docs/invariants.md):
//!   * I-11  what is remembered here decides how a statement is written; what it may see, the shard's fence decides

use super::Database;
use arc_swap::ArcSwap;
use isles_engine::fence::Claimed;
use isles_kernel::names::{GroupName, ShardId};
use std::collections::BTreeSet;

/// Groups, on shards: at most each on each.
#[derive(Default)]
pub(crate) struct Strangers(ArcSwap<BTreeSet<(ShardId, GroupName)>>);

impl Strangers {
    fn has(&self, shard: &ShardId, group: &GroupName) -> bool {
        let known = self.0.load();
        // Nearly always there are none, and then nothing is copied to look them up.
        !known.is_empty() && known.contains(&(shard.clone(), group.clone()))
    }

    fn change(&self, edit: impl Fn(&mut BTreeSet<(ShardId, GroupName)>) -> bool) {
        self.0.rcu(|known| {
            let mut known = BTreeSet::clone(known);
            edit(&mut known);
            known
        });
    }
}

impl Database {
    /// Remembers that a shard may have strangers of a group.
    pub(crate) fn note_strangers(&self, shard: &ShardId, group: &GroupName) {
        if !self.strangers.has(shard, group) {
            self.strangers.change(|known| known.insert((shard.clone(), group.clone())));
        }
    }

    /// They have gone, and the shard's fence says so: statements over all that it has may be written as ever.
    pub(crate) fn forget_strangers(&self, shard: &ShardId, group: &GroupName) {
        self.strangers.change(|known| known.remove(&(shard.clone(), group.clone())));
    }

    pub(crate) fn has_strangers(&self, shard: &ShardId, group: &GroupName) -> bool {
        self.strangers.has(shard, group)
    }

    /// How many shards have strangers, of how many groups.
    pub(crate) fn known_strangers(&self) -> usize {
        self.strangers.0.load().len()
    }
}

/// Makes claims to whatever a shard has of a group claims to its own buckets, to which the statement must keep then.
/// Whether there were any.
pub(crate) fn keep_to_own(units: &mut [Claimed], group: &GroupName) -> bool {
    let mut kept = false;
    for unit in units {
        if let Claimed::Buckets(of, first, last) = unit
            && of == group
        {
            *unit = Claimed::OwnBuckets(of.clone(), *first, *last);
            kept = true;
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::database::Config;
    use crate::session::{Answer, Login};
    use isles_engine::env::{Env, TokioEnv};
    use isles_engine::fence::{Fence, FenceMode, FenceScope};
    use isles_engine::shard::{Batch, Incoming, KeyRange, RowVersion};
    use isles_kernel::names::{BucketId, RoutingVersion, Seq, StreamId};
    use isles_kernel::value::Value;
    use std::sync::Arc;
    use std::time::Duration;

    const TIME: Duration = Duration::from_secs(20);

    fn group(name: &str) -> GroupName {
        GroupName::new(name).unwrap()
    }

    #[test]
    fn claims_to_whatever_is_there_become_claims_to_own_buckets() {
        let (g, h, bucket) = (group("g"), group("h"), BucketId(3));
        let mut units = vec![
            Claimed::Buckets(g.clone(), BucketId(0), bucket),
            Claimed::Buckets(h.clone(), bucket, bucket),
            Claimed::Bucket(g.clone(), bucket),
            Claimed::Shared,
        ];
        let before = units.clone();
        assert!(keep_to_own(&mut units, &g));
        assert_eq!(units[0], Claimed::OwnBuckets(g.clone(), BucketId(0), bucket));
        assert_eq!(units[1..], before[1..]);
        assert!(!keep_to_own(&mut units, &g), "there are none any more");
    }

    async fn count(database: &Arc<Database>) -> String {
        let login = Login { user: "a".into(), database: "isles".into(), settings: vec![], role: Default::default() };
        let mut session = database.session(login).unwrap();
        let prepared = session.prepare("SELECT count(*) FROM t", &[]).await.unwrap();
        let Answer::Rows(mut rows) = session.execute(&prepared, vec![]).await.unwrap() else { panic!("no rows") };
        match rows.next(1).await.unwrap().unwrap().remove(0).remove(0) {
            Value::Int(count) => count.to_string(),
            other => panic!("{other:?}"),
        }
    }

    /// I-11, I-21: strangers come and go while a database is used. Told beforehand, nobody is refused for them.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_mover_says_when_strangers_come_and_when_they_have_gone() {
        let folder = tempfile::tempdir().unwrap();
        let env: Arc<dyn Env> = Arc::new(TokioEnv::current());
        let database = Database::open(Config::sqlite(folder.path(), 2), env).await.unwrap();
        let login = Login { user: "a".into(), database: "isles".into(), settings: vec![], role: Default::default() };
        let mut session = database.session(login).unwrap();
        for sql in [
            "CREATE TABLE t (id int PRIMARY KEY) WITH (\"group\" = 'g')",
            "INSERT INTO t SELECT generate_series(1, 50)",
        ] {
            let prepared = session.prepare(sql, &[]).await.unwrap();
            session.execute(&prepared, vec![]).await.unwrap();
        }
        let (g, names) = (group("g"), database.shard_names());
        let from = database.shards.get(&names[0]).await.unwrap();
        let to = database.shards.get(&names[1]).await.unwrap();
        let rows = from.snapshot().await.unwrap().page(&KeyRange::table("t"), 1_000).await.unwrap().rows;
        let stream = StreamId::new("move").unwrap();
        let batch = |seq, there: bool| {
            let incoming = rows.iter().map(|row| Incoming {
                table: "t".into(),
                unit: row.unit.clone(),
                key: row.values.clone(),
                version: RowVersion { epoch: RoutingVersion(1), seq: Seq(seq) },
                row: there.then(|| row.values.clone()),
            });
            Batch::new(&stream, incoming.collect())
        };
        let fence = |version, mode| {
            vec![Fence { scope: FenceScope::Whole { group: g.clone() }, version: RoutingVersion(version), mode }]
        };
        let refusals = || database.shard_work().iter().map(|(_, work)| work.errors).sum::<u64>();
        for round in 1..4 {
            database.note_strangers(&names[1], &g);
            assert!(database.has_strangers(&names[1], &g) && !database.has_strangers(&names[0], &g));
            to.set_fences(fence(round, FenceMode::Closed), TIME).await.unwrap();
            assert_eq!(to.apply(batch(2 * round, true)).await.unwrap().written, rows.len() as u64);
            assert_eq!(count(&database).await, "50");
            assert_eq!(to.apply(batch(2 * round + 1, false)).await.unwrap().deleted, rows.len() as u64);
            to.set_fences(fence(round, FenceMode::Open), TIME).await.unwrap();
            database.forget_strangers(&names[1], &g);
            assert_eq!((count(&database).await.as_str(), database.known_strangers()), ("50", 0));
        }
        assert!(rows.len() > 10 && refusals() == 0, "{} strangers, {} refusals", rows.len(), refusals());
        to.set_fences(fence(9, FenceMode::Closed), TIME).await.unwrap();
        to.apply(batch(99, true)).await.unwrap();
        assert_eq!((count(&database).await.as_str(), database.known_strangers()), ("50", 1), "it learns by a refusal");
        database.close().await.unwrap();
    }
}

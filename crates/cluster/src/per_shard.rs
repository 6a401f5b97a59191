//! Something for each shard, while shards come and go. Looking one up takes no lock.

use arc_swap::ArcSwap;
use isles_kernel::names::ShardId;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) struct PerShard<T>(ArcSwap<BTreeMap<ShardId, Arc<T>>>);

impl<T> FromIterator<(ShardId, T)> for PerShard<T> {
    fn from_iter<I: IntoIterator<Item = (ShardId, T)>>(all: I) -> PerShard<T> {
        let all = all.into_iter().map(|(shard, one)| (shard, Arc::new(one)));
        PerShard(ArcSwap::from_pointee(all.collect()))
    }
}

impl<T> PerShard<T> {
    pub(crate) fn get(&self, shard: &ShardId) -> Option<Arc<T>> {
        self.0.load().get(shard).cloned()
    }

    /// Those of the moment.
    pub(crate) fn all(&self) -> Arc<BTreeMap<ShardId, Arc<T>>> {
        self.0.load_full()
    }

    pub(crate) fn insert(&self, shard: ShardId, one: T) {
        let one = Arc::new(one);
        self.edit(|all| drop(all.insert(shard.clone(), one.clone())));
    }

    pub(crate) fn remove(&self, shard: &ShardId) -> Option<Arc<T>> {
        let one = self.get(shard);
        self.edit(|all| drop(all.remove(shard)));
        one
    }

    fn edit(&self, edit: impl Fn(&mut BTreeMap<ShardId, Arc<T>>)) {
        self.0.rcu(|all| {
            let mut all = BTreeMap::clone(all);
            edit(&mut all);
            all
        });
    }
}

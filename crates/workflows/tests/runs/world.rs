//! Workflows that count what they do.

use crate::harness::{Db, env};
use isles_workflows::{EngineOptions, Registry, Workflows};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The longest wait for something that must come.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// How often each thing was done.
#[derive(Clone, Default)]
pub(crate) struct Done(Arc<Mutex<BTreeMap<String, u64>>>);

impl Done {
    pub(crate) fn add(&self, what: &str) -> u64 {
        let mut all = self.0.lock().unwrap();
        let count = all.entry(what.into()).or_default();
        *count += 1;
        *count
    }

    pub(crate) fn count(&self, what: &str) -> u64 {
        self.0.lock().unwrap().get(what).copied().unwrap_or_default()
    }
}

pub(crate) fn options() -> EngineOptions {
    EngineOptions::default()
}

pub(crate) async fn open(db: &Db, registry: Registry) -> Workflows {
    open_with(db, registry, options()).await
}

pub(crate) async fn open_with(db: &Db, registry: Registry, options: EngineOptions) -> Workflows {
    match Workflows::open(db.database.clone(), env(), registry, options).await {
        Ok(workflows) => workflows,
        Err(error) => panic!("{error} {:?}", error.hint),
    }
}

/// Waits until something is so.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, is_so: impl FnMut() -> F) {
    until_within(LIMIT, what, is_so).await;
}

pub(crate) async fn until_within<F: Future<Output = bool>>(limit: Duration, what: &str, mut is_so: impl FnMut() -> F) {
    let begun = Instant::now();
    while !is_so().await {
        assert!(begun.elapsed() < limit, "{what} did not come");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until a run has a status.
pub(crate) async fn status(workflows: &Workflows, kind: &str, id: &str, wanted: &str) {
    until(&format!("{kind}/{id} {wanted}"), || async {
        workflows.get(kind, id).await.is_ok_and(|run| run.status.as_str() == wanted)
    })
    .await;
}

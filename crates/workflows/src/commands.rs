//! What those who manage runs can ask for, in one form for HTTP, SQL and the command line: words in, JSON out.

use crate::engine::Workflows;
use crate::error::{Code, Result, WorkflowError};
use crate::index::list::Filter;
use crate::registry::{DEFAULT_RESULT_SIZE, Events, Options};
use crate::runs::Create;
use crate::store::Created;
use isles_kernel::runs::list::Order;
use isles_kernel::runs::retry::{Backoff, Retry};
use isles_kernel::runs::status::Status;
use isles_kernel::runs::units::parse_duration;
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// The longest wait that one request asks for: connections are not held without bound.
pub const MAX_WAIT: Duration = Duration::from_secs(60);

/// A type that workers of other languages execute.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RemoteType {
    pub shards: Option<u32>,
    pub previous_shards: Option<u32>,
    #[serde(default)]
    pub legacy: bool,
    /// The events that it takes; any, if not said.
    #[serde(default)]
    pub events: Vec<String>,
    /// How long runs are kept when they have ended, as `30d`.
    pub retention: Option<String>,
    /// Bytes that the results of a run may sum up to.
    pub result_size_limit: Option<u64>,
    /// How steps are tried again; workers are told with each task.
    pub retry: Option<RemoteRetry>,
}

/// How steps are tried again. What is not said is as it is for workflows in Rust.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RemoteRetry {
    pub limit: Option<u32>,
    pub delay_ms: Option<u64>,
    pub backoff: Option<Backoff>,
    pub cap_ms: Option<u64>,
    pub jitter: Option<f64>,
}

impl RemoteRetry {
    pub(crate) fn of(retry: &Retry) -> RemoteRetry {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        RemoteRetry {
            limit: Some(retry.limit),
            delay_ms: Some(ms(retry.delay)),
            backoff: Some(retry.backoff),
            cap_ms: Some(ms(retry.cap)),
            jitter: Some(retry.jitter),
        }
    }

    pub(crate) fn retry(&self) -> Retry {
        let unsaid = Retry::default();
        Retry {
            limit: self.limit.unwrap_or(unsaid.limit),
            delay: self.delay_ms.map_or(unsaid.delay, Duration::from_millis),
            backoff: self.backoff.unwrap_or(unsaid.backoff),
            cap: self.cap_ms.map_or(unsaid.cap, Duration::from_millis),
            jitter: self.jitter.unwrap_or(unsaid.jitter),
        }
    }
}

impl RemoteType {
    fn options(&self) -> Result<Options> {
        let events = self.events.iter().fold(Events::new(), |events, name| events.any(name));
        let retention = self.retention.as_deref().map(parse_duration).transpose();
        Ok(Options {
            shards: self.shards.unwrap_or(1),
            previous_shards: self.previous_shards,
            legacy: self.legacy,
            events,
            result_size_limit: self.result_size_limit.unwrap_or(DEFAULT_RESULT_SIZE),
            retry: self.retry.as_ref().map(RemoteRetry::retry).unwrap_or_default(),
            retention: retention.map_err(|error| WorkflowError::invalid(error.to_string()))?,
            ..Options::default()
        })
    }
}

/// What is asked for of one run.
#[derive(Debug, Clone)]
pub enum Verb {
    Create { input: Json, attributes: Option<Json> },
    Get,
    Timeline,
    Send { event: String, payload: Json, key: Option<String> },
    Pause,
    Resume,
    Terminate,
    Restart,
    Delete,
    Wait { limit: Duration },
    Updates { after: i64 },
}

/// What is asked for of many.
#[derive(Debug, Clone, Default)]
pub struct Listing {
    pub kind: Option<String>,
    pub status: Option<String>,
    pub order: Option<String>,
    pub limit: Option<String>,
    pub cursor: Option<String>,
    /// Attributes, each with the text or the JSON that it must be.
    pub attributes: BTreeMap<String, String>,
}

impl Listing {
    fn filter(&self) -> Result<Filter> {
        let invalid = |error: String| WorkflowError::invalid(error);
        let status = self.status.as_deref().map(str::parse::<Status>).transpose();
        let order = match self.order.as_deref() {
            None => Order::default(),
            Some(text) => Order::parse(text).ok_or_else(|| invalid("the order is updated or created".into()))?,
        };
        let limit = self.limit.as_deref().map(|text| {
            text.parse::<i64>().map_err(|_| invalid(format!("a limit is a whole number from 1 to 1000, not {text}")))
        });
        let value =
            |text: &String| -> Json { serde_json::from_str(text).unwrap_or_else(|_| Json::String(text.clone())) };
        Ok(Filter {
            kind: self.kind.clone(),
            status: status.map_err(|error| invalid(error.to_string()))?,
            attributes: self.attributes.iter().map(|(name, text)| (name.clone(), value(text))).collect(),
            order,
            limit: limit.transpose()?,
            cursor: self.cursor.clone(),
        })
    }
}

impl Workflows {
    /// Does what is asked for, and says what came of it.
    pub async fn manage(&self, kind: &str, id: &str, verb: Verb) -> Result<Json> {
        Ok(match verb {
            Verb::Create { input, attributes } => {
                let create = Create { attributes, ..Create::default() };
                let created = self.create_with(kind, id, &input, create).await?;
                let mut shown = self.get(kind, id).await?.to_json();
                shown["created"] = json!(created == Created::New);
                shown
            }
            Verb::Get => {
                let (run, steps) = self.timeline(kind, id).await?;
                let mut shown = run.to_json();
                shown["steps"] = steps.iter().map(|step| step.to_json()).collect();
                shown
            }
            Verb::Timeline => {
                let (run, steps) = self.timeline(kind, id).await?;
                let steps: Vec<Json> = steps.iter().map(|step| step.to_json()).collect();
                json!({ "type": kind, "id": id, "status": run.status.as_str(), "timeline": steps })
            }
            Verb::Send { event, payload, key } => {
                let seq = self.send(kind, id, &event, &payload, key.as_deref()).await?;
                json!({ "seq": seq })
            }
            Verb::Pause => self.pause(kind, id).await?.to_json(),
            Verb::Resume => self.resume(kind, id).await?.to_json(),
            Verb::Terminate => self.terminate(kind, id).await?.to_json(),
            Verb::Restart => self.restart(kind, id).await?.to_json(),
            Verb::Delete => {
                self.delete(kind, id).await?;
                json!({ "type": kind, "id": id, "deleted": true })
            }
            Verb::Wait { limit } => {
                match self.wait(kind, id, Some(limit.min(MAX_WAIT))).await {
                    // What became of the run is in its row; how long it takes is no error of it.
                    Err(error) if matches!(error.code, Code::WorkflowNotFound | Code::WorkflowTypeUnknown) => {
                        return Err(error);
                    }
                    Err(error) if error.code == Code::Unavailable => return Err(error),
                    _ => self.get(kind, id).await?.to_json(),
                }
            }
            Verb::Updates { after } => {
                let updates: Vec<Json> =
                    self.updates(kind, id, after).await?.iter().map(|update| update.to_json()).collect();
                json!({ "updates": updates })
            }
        })
    }

    pub async fn manage_list(&self, listing: &Listing) -> Result<Json> {
        Ok(self.list(&listing.filter()?).await?.to_json())
    }

    pub async fn manage_counts(&self, kind: Option<&str>) -> Result<Json> {
        let as_of = self.engine.index_is_of();
        let (counts, failed) = self.counts(kind).await?;
        let shown = |count: &crate::index::list::Count| json!({ "type": count.kind, "status": count.status.as_str(), "runs": count.runs });
        let counts: Vec<Json> = counts.iter().map(shown).collect();
        Ok(json!({
            "counts": counts, "incomplete": !failed.is_empty(), "failedShards": failed, "asOf": as_of,
        }))
    }

    pub async fn manage_reindex(&self) -> Result<Json> {
        let mended = self.reindex().await?;
        Ok(json!({ "written": mended.written, "removed": mended.removed }))
    }

    pub async fn manage_resize(&self, kind: &str) -> Result<Json> {
        let resized = self.resize(kind).await?;
        Ok(json!({
            "type": kind, "seen": resized.seen, "moved": resized.moved,
            "mayRemovePreviousShards": resized.may_remove_previous,
        }))
    }

    pub async fn manage_register(&self, kind: &str, remote: &RemoteType) -> Result<Json> {
        self.register_remote(kind, remote.options()?).await?;
        Ok(json!({ "type": kind, "remote": true, "settled": self.is_settled(kind).await? }))
    }

    pub fn manage_types(&self) -> Json {
        let shown = |(kind, remote): (String, bool)| json!({ "type": kind, "remote": remote });
        json!({ "types": self.types().into_iter().map(shown).collect::<Vec<_>>() })
    }
}

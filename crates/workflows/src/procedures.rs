//! What SQL calls.
//!
//! ```text
//! SELECT isles.start_run('payment', 'order-7', '{"amount": 5}')     in the caller's transaction
//! SELECT isles.get_run('payment', 'order-7')                        and pause_run, resume_run, terminate_run, …
//! SELECT isles.send_event('payment', 'order-7', 'approved', 'true')
//! SELECT isles.list_runs('payment', 'running')
//! ```
//!
//! A run that is started in a transaction is there when the transaction commits, and not otherwise. Everything else is a
//! transaction of its own, and answers in JSON.

use crate::commands::{Listing, Verb};
use crate::engine::{Engine, Workflows};
use crate::error::{Code, WorkflowError};
use crate::lines::{params, say, text};
use crate::runs::{Create, Run, run_columns};
use crate::store::NewRun;
use async_trait::async_trait;
use isles_cluster::database::Database;
use isles_cluster::session::rights::Rank;
use isles_cluster::session::{Procedure, Session};
use isles_kernel::error::SqlError;
use isles_kernel::value::Value;
use isles_sql::bind::procedure::{Param, Signature};
use isles_sql::tree::Field;
use isles_sql::types::{BOOL, JSON, TEXT, Type};
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

const FIND: &str = concat!("SELECT ", run_columns!(), " FROM isles.runs WHERE run = $1");
/// How long `isles.wait_for_run` waits at most: as long as a statement may take.
const WAIT: Duration = Duration::from_secs(25);

/// Gives the workflows of a database, and opens them if they are not.
#[async_trait]
pub trait Source: Send + Sync {
    async fn workflows(&self) -> crate::error::Result<Workflows>;
}

/// Workflows that are open. The database has this, so it must not keep the database open.
pub(crate) struct Open(pub(crate) Weak<Engine>);

#[async_trait]
impl Source for Open {
    async fn workflows(&self) -> crate::error::Result<Workflows> {
        let engine = self.0.upgrade().filter(|engine| !engine.is_closed());
        let closed = || WorkflowError::new(Code::Unavailable, "workflows are not open");
        Ok(Workflows { engine: engine.ok_or_else(closed)? })
    }
}

/// Lets clients of the database call what is here.
pub fn register(database: &Database, source: Arc<dyn Source>) {
    database.register("start_run", Arc::new(StartRun(source.clone())));
    for ask in Ask::ALL {
        database.register(ask.name(), Arc::new(Managing { ask, source: source.clone() }));
    }
}

/// As PostgreSQL would say it.
fn said(error: WorkflowError) -> SqlError {
    let state = match error.code {
        Code::WorkflowAlreadyExists => "23505",
        Code::WorkflowTypeUnknown | Code::WorkflowNotFound | Code::ResourceNotFound => "42704",
        Code::WorkflowNotRunning | Code::LeaseLost => "55000",
        Code::ResultTooLarge => "54000",
        Code::EventTimeout | Code::UpdateTimeout => "57014",
        Code::Unavailable => "57P03",
        Code::InternalError => "XX000",
        _ => "22023",
    };
    let shown = SqlError::new(state, error.message).with_detail(error.code.as_str());
    match error.hint {
        Some(hint) => shown.with_hint(hint),
        None => shown,
    }
}

fn parse(given: Option<&str>) -> Result<Json, SqlError> {
    serde_json::from_str(given.unwrap_or("null"))
        .map_err(|error| SqlError::new("22P02", format!("this is no JSON: {error}")))
}

fn param(name: &str, optional: bool) -> Param {
    Param { name: name.into(), ty: TEXT, optional }
}

/// The attributes that runs are listed by, each as the JSON that it must be.
fn attributes(given: Option<&str>) -> Result<BTreeMap<String, String>, SqlError> {
    match given.map(|text| parse(Some(text))).transpose()? {
        None => Ok(BTreeMap::new()),
        Some(Json::Object(all)) => Ok(all.into_iter().map(|(name, value)| (name, value.to_string())).collect()),
        Some(_) => Err(SqlError::new("22023", "attributes are a JSON object")),
    }
}

/// Starts a run in the caller's transaction. True if it is new, false if it was there with this input.
struct StartRun(Arc<dyn Source>);

#[async_trait]
impl Procedure for StartRun {
    fn signature(&self) -> Signature {
        Signature {
            params: vec![param("type", false), param("id", false), param("input", true), param("attributes", true)],
            columns: vec![Field { name: "created".into(), ty: Type::of(BOOL) }],
        }
    }

    fn rank(&self) -> Rank {
        Rank::Owner
    }

    async fn call(&self, session: &mut Session, args: Vec<Value>) -> Result<Vec<Vec<Value>>, SqlError> {
        let workflows = self.0.workflows().await.map_err(said)?;
        let engine = &workflows.engine;
        let given = |at: usize| args.get(at).and_then(text);
        let (Some(kind), Some(id)) = (given(0), given(1)) else {
            return Err(SqlError::new("22004", "a run has a type and an id"));
        };
        let input = parse(given(2))?;
        let definition = engine.definition(kind).map_err(said)?;
        definition.check_input(&input).map_err(said)?;
        let attributes = given(3).map(|attributes| parse(Some(attributes))).transpose()?;
        let create = Create { attributes, ..Create::default() };
        let new = NewRun::new(kind, id, &input, &create).map_err(said)?;
        let now = engine.lines.now();
        for (sql, params) in [new.statement(now, None), new.revive(now, None)] {
            if say(session, sql, params).await?.affected == 1 {
                return Ok(vec![vec![Value::Bool(true)]]);
            }
        }
        let there = say(session, FIND, params![new.key.as_str()]).await?;
        let there = there.rows.first().ok_or_else(|| SqlError::new("40001", "the run went away meanwhile"))?;
        new.compare(&Run::read(there).map_err(said)?).map_err(said)?;
        Ok(vec![vec![Value::Bool(false)]])
    }
}

/// What else can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ask {
    Create,
    Get,
    Timeline,
    Send,
    Pause,
    Resume,
    Terminate,
    Restart,
    Delete,
    Wait,
    List,
    Counts,
    Resize,
    Reindex,
}

impl Ask {
    const ALL: [Ask; 14] = [
        Ask::Create,
        Ask::Get,
        Ask::Timeline,
        Ask::Send,
        Ask::Pause,
        Ask::Resume,
        Ask::Terminate,
        Ask::Restart,
        Ask::Delete,
        Ask::Wait,
        Ask::List,
        Ask::Counts,
        Ask::Resize,
        Ask::Reindex,
    ];

    fn name(self) -> &'static str {
        match self {
            Ask::Create => "create_run",
            Ask::Get => "get_run",
            Ask::Timeline => "run_timeline",
            Ask::Send => "send_event",
            Ask::Pause => "pause_run",
            Ask::Resume => "resume_run",
            Ask::Terminate => "terminate_run",
            Ask::Restart => "restart_run",
            Ask::Delete => "delete_run",
            Ask::Wait => "wait_for_run",
            Ask::List => "list_runs",
            Ask::Counts => "count_runs",
            Ask::Resize => "resize_runs",
            Ask::Reindex => "reindex_runs",
        }
    }

    fn params(self) -> Vec<Param> {
        let run = [param("type", false), param("id", false)];
        let more = match self {
            Ask::Create => vec![param("input", true), param("attributes", true)],
            Ask::Send => vec![param("event", false), param("payload", true), param("key", true)],
            Ask::List => {
                let names = ["type", "status", "order", "limit", "cursor", "attributes"];
                return names.map(|name| param(name, true)).into();
            }
            Ask::Counts => return vec![param("type", true)],
            Ask::Resize => return vec![param("type", false)],
            Ask::Reindex => return Vec::new(),
            _ => Vec::new(),
        };
        run.into_iter().chain(more).collect()
    }

    /// What is asked for of one run; None for what is about many.
    fn verb(self, args: &[Value]) -> Result<Option<Verb>, SqlError> {
        let given = |at: usize| args.get(at).and_then(text);
        Ok(Some(match self {
            Ask::Create => Verb::Create {
                input: parse(given(2))?,
                attributes: given(3).map(|attributes| parse(Some(attributes))).transpose()?,
            },
            Ask::Get => Verb::Get,
            Ask::Timeline => Verb::Timeline,
            Ask::Send => Verb::Send {
                event: given(2).unwrap_or_default().into(),
                payload: parse(given(3))?,
                key: given(4).map(str::to_owned),
            },
            Ask::Pause => Verb::Pause,
            Ask::Resume => Verb::Resume,
            Ask::Terminate => Verb::Terminate,
            Ask::Restart => Verb::Restart,
            Ask::Delete => Verb::Delete,
            Ask::Wait => Verb::Wait { limit: WAIT },
            Ask::List | Ask::Counts | Ask::Resize | Ask::Reindex => return Ok(None),
        }))
    }
}

/// Manages runs.
struct Managing {
    ask: Ask,
    source: Arc<dyn Source>,
}

#[async_trait]
impl Procedure for Managing {
    fn signature(&self) -> Signature {
        Signature {
            params: self.ask.params(),
            columns: vec![Field { name: self.ask.name().into(), ty: Type::of(JSON) }],
        }
    }

    fn rank(&self) -> Rank {
        Rank::Admin
    }

    async fn call(&self, _: &mut Session, args: Vec<Value>) -> Result<Vec<Vec<Value>>, SqlError> {
        let workflows = self.source.workflows().await.map_err(said)?;
        let given = |at: usize| args.get(at).and_then(text).map(str::to_owned);
        let (first, second) = (given(0).unwrap_or_default(), given(1).unwrap_or_default());
        let answer = match self.ask.verb(&args)? {
            Some(verb) => workflows.manage(&first, &second, verb).await,
            None => match self.ask {
                Ask::Counts => workflows.manage_counts(given(0).as_deref()).await,
                Ask::Resize => workflows.manage_resize(&first).await,
                Ask::Reindex => workflows.manage_reindex().await,
                _ => {
                    let listing = Listing {
                        kind: given(0),
                        status: given(1),
                        order: given(2),
                        limit: given(3),
                        cursor: given(4),
                        attributes: attributes(given(5).as_deref())?,
                    };
                    workflows.manage_list(&listing).await
                }
            },
        };
        Ok(vec![vec![Value::Json(answer.map_err(said)?.to_string())]])
    }
}

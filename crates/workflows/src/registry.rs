//! Which workflows there are.
//!
//! A workflow is an async function of a [`Context`] and an input. It is registered under a name, its type, with how many
//! index shards its runs have, which events it takes, and how its steps are tried again. A type of which only the name
//! and the options are known is executed by workers of other languages.

use crate::context::Context;
use crate::error::{Code, Result, WorkflowError, bad_name};
use futures::future::{BoxFuture, FutureExt};
use isles_kernel::runs::names::{check_name, check_type};
use isles_kernel::runs::places::Spread;
use isles_kernel::runs::retry::Retry;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Types of one registry: a list without a type asks all of their index shards.
pub const MAX_TYPES: usize = 1_000;
/// What the results of one run may sum up to, if not said.
pub const DEFAULT_RESULT_SIZE: u64 = 64 << 20;

/// What happens to a step whose result is too large.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnOverflow {
    #[default]
    Fail,
    /// It may be smaller next time.
    Retry,
}

type Check = Arc<dyn Fn(&Json) -> std::result::Result<(), String> + Send + Sync>;

/// The events that a workflow takes, with what their payloads are.
#[derive(Clone, Default)]
pub struct Events(BTreeMap<String, Check>);

impl Events {
    pub fn new() -> Events {
        Events::default()
    }

    /// Takes an event whose payload reads as `T`.
    pub fn with<T: DeserializeOwned + 'static>(mut self, name: &str) -> Events {
        self.0.insert(name.into(), check_of::<T>());
        self
    }

    /// Takes an event with any payload.
    pub fn any(self, name: &str) -> Events {
        self.with::<Json>(name)
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

fn check_of<T: DeserializeOwned>() -> Check {
    Arc::new(|json| T::deserialize(json).map(drop).map_err(|error| error.to_string()))
}

/// How the runs of a type are executed and listed.
#[derive(Clone)]
pub struct Options {
    /// Index shards.
    pub shards: u32,
    /// How many there were, until every entry has come home.
    pub previous_shards: Option<u32>,
    /// Whether there may be entries under `__index:{type}`, or where the old hash led to.
    pub legacy: bool,
    pub events: Events,
    /// Names that it may emit; any, if there are none.
    pub updates: Vec<String>,
    /// How its steps are tried again, if they do not say.
    pub retry: Retry,
    /// How long one attempt of a step may take, if the step does not say.
    pub step_timeout: Option<Duration>,
    /// Bytes that the results of a run may sum up to.
    pub result_size_limit: u64,
    pub on_overflow: OnOverflow,
    /// How long runs are kept when they have ended; for ever if not said.
    pub retention: Option<Duration>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            shards: 1,
            previous_shards: None,
            legacy: false,
            events: Events::default(),
            updates: Vec::new(),
            retry: Retry::default(),
            step_timeout: None,
            result_size_limit: DEFAULT_RESULT_SIZE,
            on_overflow: OnOverflow::Fail,
            retention: None,
        }
    }
}

/// A function whose types are gone: JSON in, JSON out.
pub(crate) type ErasedCode = Arc<dyn Fn(Context, Json) -> BoxFuture<'static, Result<String>> + Send + Sync>;

/// A type of workflow.
#[derive(Clone)]
pub(crate) struct Definition {
    pub(crate) kind: String,
    pub(crate) options: Options,
    pub(crate) spread: Spread,
    check_input: Check,
    /// None: workers execute it.
    pub(crate) code: Option<ErasedCode>,
}

impl Definition {
    fn new(kind: &str, options: Options, check_input: Check, code: Option<ErasedCode>) -> Result<Definition> {
        check_type(kind).map_err(bad_name)?;
        options.retry.check().map_err(|error| WorkflowError::invalid(error.to_string()))?;
        for event in options.events.names() {
            check_name("event", event).map_err(bad_name)?;
        }
        let spread = Spread::new(options.shards, options.previous_shards, options.legacy)
            .map_err(|error| WorkflowError::invalid(error.to_string()))?;
        Ok(Definition { kind: kind.into(), options, spread, check_input, code })
    }

    /// A type that workers of other languages execute.
    pub(crate) fn remote(kind: &str, options: Options) -> Result<Definition> {
        Definition::new(kind, options, check_of::<Json>(), None)
    }

    pub(crate) fn is_remote(&self) -> bool {
        self.code.is_none()
    }

    pub(crate) fn check_input(&self, input: &Json) -> Result<()> {
        (self.check_input)(input).map_err(|why| {
            let message = format!("the input is not what \"{}\" takes: {why}", self.kind);
            WorkflowError::invalid(message)
        })
    }

    pub(crate) fn check_event(&self, name: &str, payload: &Json) -> Result<()> {
        let known = || self.options.events.names().collect::<Vec<_>>().join(", ");
        let invalid = |message: String| {
            let details = serde_json::json!({ "event": name });
            WorkflowError::new(Code::EventInvalid, message).with_details(details)
        };
        match self.options.events.0.get(name) {
            Some(check) => {
                check(payload).map_err(|why| invalid(format!("the payload of \"{name}\" does not fit: {why}")))
            }
            None if self.is_remote() && self.options.events.0.is_empty() => Ok(()),
            None => Err(invalid(format!("\"{}\" takes no event \"{name}\"", self.kind))
                .with_hint(format!("it takes: {}", known()))),
        }
    }
}

/// The workflows of a program.
#[derive(Clone, Default)]
pub struct Registry {
    pub(crate) types: BTreeMap<String, Arc<Definition>>,
}

impl Registry {
    pub fn new() -> Registry {
        Registry::default()
    }

    pub fn is_empty(&self) -> bool {
        self.types.is_empty()
    }

    /// Registers a workflow under a name.
    pub fn register<F, Fut, In, Out>(&mut self, kind: &str, code: F, options: Options) -> Result<()>
    where
        F: Fn(Context, In) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Out>> + Send + 'static,
        In: DeserializeOwned + Send + 'static,
        Out: Serialize + Send + 'static,
    {
        let code: ErasedCode = Arc::new(move |context, input| {
            let input: In = match serde_json::from_value(input) {
                Ok(input) => input,
                Err(error) => {
                    let error = WorkflowError::invalid(format!("the input cannot be read: {error}"));
                    return futures::future::ready(Err(error)).boxed();
                }
            };
            let running = code(context, input);
            async move {
                let out = running.await?;
                serde_json::to_string(&out).map_err(|error| WorkflowError::invalid(error.to_string()))
            }
            .boxed()
        });
        self.add(Definition::new(kind, options, check_of::<In>(), Some(code))?)
    }

    /// Registers a type that workers of other languages execute.
    pub fn register_remote(&mut self, kind: &str, options: Options) -> Result<()> {
        self.add(Definition::remote(kind, options)?)
    }

    fn add(&mut self, definition: Definition) -> Result<()> {
        if self.types.contains_key(&definition.kind) {
            let message = format!("there is a workflow \"{}\" already", definition.kind);
            return Err(WorkflowError::new(Code::InvalidSchema, message));
        }
        if self.types.len() >= MAX_TYPES {
            return Err(WorkflowError::new(Code::InvalidSchema, format!("a registry has at most {MAX_TYPES} types")));
        }
        self.types.insert(definition.kind.clone(), Arc::new(definition));
        Ok(())
    }
}

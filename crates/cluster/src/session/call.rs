//! Procedures: what stands above the database and is called by SQL, as `SELECT isles.name(…)`, or by
//! `SHOW`.
//!
//! A procedure is given the session that calls it, and works in its transaction if there is one: what it does and what
//! the client does stand or fall together. While it runs it may write to the tables of the schema `isles`, which clients
//! may not; so it asks by itself what its caller may do.

use super::rights::{Elevated, Rank};
use super::{Answer, Fields, Result, Rows, Session};
use crate::database::Database;
use async_trait::async_trait;
use isles_kernel::error::SqlError;
use isles_kernel::value::Value;
use isles_sql::bind::procedure::{Call, CallVerb, Signature, Signatures};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Something that can be called by SQL.
#[async_trait]
pub trait Procedure: Send + Sync {
    fn signature(&self) -> Signature;

    /// The lowest rank that may call it.
    fn rank(&self) -> Rank;

    /// The arguments are those of its signature, in order; what is optional and was not given is null.
    async fn call(&self, session: &mut Session, args: Vec<Value>) -> Result<Vec<Vec<Value>>>;
}

/// The procedures of a database, by name.
#[derive(Clone, Default)]
pub struct Procedures {
    pub(crate) signatures: Signatures,
    all: BTreeMap<String, Arc<dyn Procedure>>,
}

impl Database {
    /// Lets clients call a procedure, before there are any: plans of earlier statements do not know it.
    pub fn register(&self, name: &str, procedure: Arc<dyn Procedure>) {
        self.procedures.rcu(|before| {
            let mut after = Procedures::clone(before);
            after.signatures.insert(name.into(), procedure.signature());
            after.all.insert(name.into(), procedure.clone());
            after
        });
    }
}

impl Session {
    /// Calls a procedure.
    pub(super) async fn call(&mut self, call: &Call, fields: Fields, params: &[Value]) -> Result<Answer> {
        let procedures = self.database.procedures.load_full();
        let Some(procedure) = procedures.all.get(&call.procedure) else {
            return Err(SqlError::new("42883", format!("function isles.{}() does not exist", call.procedure)));
        };
        if self.rank < procedure.rank() && !self.is_system {
            return Err(SqlError::new("42501", format!("permission denied for function {}", call.procedure)));
        }
        let args = self.computed(&call.args, params).await?;
        let mut elevated = Elevated::new(self);
        let rows = procedure.call(elevated.session(), args).await?;
        drop(elevated);
        self.counted += rows.len() as u64;
        let tag = match call.verb {
            CallVerb::Select => format!("SELECT {}", rows.len()),
            CallVerb::Show => "SHOW".to_owned(),
        };
        Ok(Answer::Rows(Rows::new(fields, rows, tag)))
    }
}

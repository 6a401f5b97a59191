//! Statements about global indexes.
//!
//!     SHOW INDEXES
//!     REINDEX INDEX name
//!     VERIFY INDEX name [REPAIR]
//!     WAIT FOR INDEX name

use super::super::ddl;
use super::{Context, Utility};
use crate::parse::{IndexOrder, IndexVerb};
use isles_kernel::error::SqlError;
use pg_raw_parse::nodes::ReindexStmt;
use pg_raw_parse::raw::ReindexObjectType;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IndexStatement {
    /// All of them, with their states.
    List,
    /// Its entries are made anew from the rows.
    Rebuild(IndexName),
    /// Its entries are compared with the rows, and put right if that was said.
    Verify { index: IndexName, repair: bool },
    /// Until it can be asked.
    Wait(IndexName),
}

/// A global index that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexName {
    pub table: String,
    pub key: String,
}

impl IndexStatement {
    pub fn command_tag(&self) -> &'static str {
        match self {
            IndexStatement::List => "SHOW",
            IndexStatement::Rebuild(_) => "REINDEX",
            IndexStatement::Verify { .. } => "VERIFY INDEX",
            IndexStatement::Wait(_) => "WAIT",
        }
    }
}

pub(in crate::bind) fn ordered(order: &IndexOrder, context: &Context<'_>) -> Result<Utility, SqlError> {
    let index = ddl::global_index(context, &order.index)?;
    Ok(Utility::Index(match order.verb {
        IndexVerb::Verify => IndexStatement::Verify { index, repair: false },
        IndexVerb::Repair => IndexStatement::Verify { index, repair: true },
        IndexVerb::Wait => IndexStatement::Wait(index),
    }))
}

pub(super) fn reindex(statement: &ReindexStmt, context: &Context<'_>) -> Result<Utility, SqlError> {
    let Some(relation) = statement.relation().filter(|_| statement.kind == ReindexObjectType::REINDEX_OBJECT_INDEX)
    else {
        let error = SqlError::unsupported("REINDEX of more than an index is not supported");
        return Err(error.with_hint("REINDEX INDEX rebuilds a global index; each shard looks after its other ones"));
    };
    if let Some(option) = statement.params().iter().find(|option| option.defname() == Some("tablespace")) {
        let name = option.defname().unwrap_or_default();
        return Err(SqlError::unsupported(format!("REINDEX option \"{name}\" is not supported")));
    }
    let names = [relation.catalogname(), relation.schemaname(), relation.relname()];
    let names: Vec<String> = names.into_iter().flatten().map(Into::into).collect();
    ddl::global_index(context, &names).map(IndexStatement::Rebuild).map(Utility::Index)
}

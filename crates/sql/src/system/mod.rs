//! Relations of `pg_catalog` and `information_schema`.

use crate::tree::Relation;
use std::sync::Arc;

/// A system relation by its schema and name.
pub fn relation(_schema: &str, _name: &str) -> Option<Arc<Relation>> {
    None
}

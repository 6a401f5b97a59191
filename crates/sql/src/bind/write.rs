//! INSERT, UPDATE and DELETE.

use super::{Binder, Result};
use crate::tree::{Delete, Insert, Update};
use pg_raw_parse::nodes;

impl Binder<'_> {
    pub(super) fn insert(&mut self, _insert: &nodes::InsertStmt) -> Result<Insert> {
        self.refuse("INSERT", -1)
    }

    pub(super) fn update(&mut self, _update: &nodes::UpdateStmt) -> Result<Update> {
        self.refuse("UPDATE", -1)
    }

    pub(super) fn delete(&mut self, _delete: &nodes::DeleteStmt) -> Result<Delete> {
        self.refuse("DELETE", -1)
    }
}

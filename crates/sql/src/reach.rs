//! Which tables a statement reads and writes: what rights are asked of.

use crate::plan::walk::{Visitor, walk};
use crate::tree::{CteBody, From, Query, RelationRef, RelationSource, Statement};
use isles_kernel::schema::Table;
use std::sync::Arc;

/// What a statement does with a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    Read,
    Write,
}

/// The user's tables in a statement, in views and subqueries too, once for each use. A table that is written is not
/// listed as read besides.
pub fn reach(statement: &Statement) -> Vec<(Arc<Table>, Use)> {
    let mut found = Found::default();
    found.statement(statement);
    found.0
}

#[derive(Default)]
struct Found(Vec<(Arc<Table>, Use)>);

impl Found {
    fn statement(&mut self, statement: &Statement) {
        match statement {
            Statement::Query(_) => {}
            Statement::Insert(insert) => self.table(&insert.target, Use::Write),
            Statement::Update(update) => self.table(&update.target, Use::Write),
            Statement::Delete(delete) => self.table(&delete.target, Use::Write),
        }
        let ctes = match statement {
            Statement::Query(_) => &[][..],
            Statement::Insert(insert) => &insert.ctes,
            Statement::Update(update) => &update.ctes,
            Statement::Delete(delete) => &delete.ctes,
        };
        ctes.iter().for_each(|cte| self.written_by(&cte.body));
        walk::statement(self, statement);
    }

    /// A statement in WITH that writes.
    fn written_by(&mut self, body: &CteBody) {
        if let CteBody::Write(statement) = body {
            self.statement(statement);
        }
    }

    fn table(&mut self, of: &RelationRef, used: Use) {
        if let RelationSource::User(table) = &of.relation.source {
            self.0.push((table.clone(), used));
        }
    }
}

impl Visitor for Found {
    fn from(&mut self, from: &From) {
        if let From::Relation(relation) = from {
            self.table(relation, Use::Read);
        }
        walk::from(self, from);
    }

    fn query(&mut self, query: &Query) {
        // A row that is locked is one that somebody cannot write.
        let before = self.0.len();
        query.ctes.iter().for_each(|cte| self.written_by(&cte.body));
        walk::query(self, query);
        if query.lock.is_some() {
            self.0[before..].iter_mut().for_each(|(_, used)| *used = Use::Write);
        }
    }
}

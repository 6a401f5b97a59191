//! Small trees for the tests of scoping, routing and planning.

use super::build::{column, operator, query_of, select_of};
use crate::tree::{
    Body, Expr, ExprKind, From, Join, JoinKind, Query, RelId, Relation, RelationColumn, RelationRef, RelationSource,
    Select, Statement,
};
use crate::types::{self, Oid, Type};
use isles_kernel::names::GroupName;
use isles_kernel::schema::{Column, Table, TableKind};
use isles_kernel::value::{DataType, Value};
use std::sync::Arc;

/// A table of `id int8, x int8, y int8`, by `id`.
pub(crate) fn table(rel: u32, name: &str, kind: TableKind) -> From {
    let names = ["id", "x", "y"];
    let columns = names.iter().map(|name| Column::new(name, DataType::Int8)).collect();
    let table = Table::new(name, kind, columns, &["id"]);
    let column = |name: &&str| RelationColumn { name: (*name).into(), ty: Type::of(types::INT8), not_null: false };
    let relation = Relation {
        schema: "public".into(),
        name: name.into(),
        columns: names.iter().map(column).collect(),
        source: RelationSource::User(Arc::new(table)),
    };
    From::Relation(RelationRef { rel: RelId(rel), relation: Arc::new(relation) })
}

pub(crate) fn hashed(rel: u32) -> From {
    let group = GroupName::new("g").expect("a name");
    table(rel, &format!("h{rel}"), TableKind::Hash { group, shard_by: vec!["id".into()], buckets: 8, regions: vec![] })
}

pub(crate) fn tenant(rel: u32) -> From {
    table(rel, &format!("t{rel}"), TableKind::Tenant)
}

/// Column `at` of a relation: 0 is `id`.
pub(crate) fn col(rel: u32, at: usize) -> Expr {
    column(RelId(rel), at, types::INT8.into())
}

pub(crate) fn int(n: i64) -> Expr {
    Expr::new(ExprKind::Const(Value::Int(n)), types::INT8)
}

pub(crate) fn equal(a: Expr, b: Expr) -> Expr {
    operator(Oid(467), "=", vec![a, b], types::BOOL)
}

pub(crate) fn and(parts: Vec<Expr>) -> Expr {
    Expr::new(ExprKind::And(parts), types::BOOL)
}

pub(crate) fn join(kind: JoinKind, left: From, right: From, on: Expr) -> From {
    From::Join(Box::new(Join { kind, left, right, on: Some(on) }))
}

pub(crate) fn select(from: Vec<From>, filter: Option<Expr>) -> Select {
    select_of(vec![int(1)], from, filter)
}

pub(crate) fn query(select: Select) -> Query {
    query_of(Body::Select(Box::new(select)), vec![crate::tree::Field { name: "one".into(), ty: types::INT8.into() }])
}

pub(crate) fn statement(select: Select) -> Statement {
    Statement::Query(query(select))
}
